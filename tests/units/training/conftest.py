"""A LanguageModel without a run around it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minigpt.config.schema import TrainConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.machine.choices import Choices
from minigpt.machine.hardware import Hardware
from minigpt.model.gpt import GPT
from minigpt.model.loss import plain_loss
from minigpt.ranks.group import Processes
from minigpt.rundir.run_directory import RunDirectory
from minigpt.training.state import RunState, TrainingJob
from minigpt.training.step import LanguageModel


@pytest.fixture(scope="session")
def module_of():
    def make(gpt: GPT, config: TrainConfig, choices: Choices, world_size: int = 1) -> LanguageModel:
        run, hardware = RunDirectory(Path("none"), writes=False), Hardware("cpu", "cpu", 1, False, 1 << 30)
        prepared = SimpleNamespace(tokenizer=with_roles(build_tokenizer("byte")))
        job = TrainingJob(config, hardware, prepared, Processes(), run, [])
        parts = {"optimizer": torch.optim.SGD(gpt.parameters()), "state": RunState()}
        module = LanguageModel(gpt, job, choices, loss=plain_loss(True, choices.loss_chunk), **parts)
        module._trainer = SimpleNamespace(world_size=world_size, should_stop=False)
        return module

    return make
