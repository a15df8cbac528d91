"""LoRA trains a small adapter beside a model; GRPO makes rewarded answers likelier; both continue to the same bytes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import minigpt
from minigpt.checkpoint.folder import best_checkpoint, read_manifest
from minigpt.checkpoint.load import load_checkpoint, load_with_adapter
from minigpt.config.compose import compose
from minigpt.config.schema import TrainConfig
from minigpt.data.chat import tasks
from minigpt.faults import UserFault
from minigpt.rundir.rows import TIMINGS, read_rows
from minigpt.stages import ask
from minigpt.training import grpo
from minigpt.training.run import train
from minigpt.training.step import LanguageModel
from minigpt.verify import compare_runs

BLOCK = ["model.attention=rotary", "model.activation=swiglu", "model.norm=rmsnorm", "model.bias=none"]
LORA = [*BLOCK, "adapter=lora", "adapter.rank=2", "optimizer.lr=0.1", "trainer.max_steps=8", "model.dropout=0.1"]
SAVES = ["checkpoint.every_steps=1", "checkpoint.keep_last=9"]


class Kill(BaseException):
    """Stands for SIGKILL."""


def kill_in_step(patch, step: int) -> None:
    real = LanguageModel.end_step

    def end_step(self, result, **options):
        if self.state.step == step - 1:
            raise Kill
        real(self, result, **options)

    patch.setattr(LanguageModel, "end_step", end_step)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, new_run):
    """A folder with a run, and one with an adapter over it."""
    run = new_run(tmp_path_factory.mktemp("adapters"))
    run(*BLOCK, "optimizer.lr=0.05").rename(run.folder / "base")
    run(f"init.from={run.folder / 'base'}", *LORA, *SAVES).rename(run.folder / "tuned")
    return run


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-?????????"))


def test_only_the_adapter_learns_and_is_saved_beside_the_model_as_it_was(adapters):
    tuned, base = newest(adapters.folder / "tuned"), newest(adapters.folder / "base")
    model, below = load_file(tuned / "model.safetensors"), load_file(base / "model.safetensors")
    assert model.keys() == below.keys()
    assert all(torch.equal(tensor, below[name]) for name, tensor in model.items())
    adapter, averages = load_file(tuned / "adapter_model.safetensors"), load_file(tuned / "optimizer.safetensors")
    assert len(averages) == 3 * len(adapter)  # step and two averages of each
    rows = read_rows(adapters.folder / "tuned" / "metrics.jsonl")
    assert rows[-1]["val/loss"] < rows[1]["val/loss"] - 0.05


def test_killed_and_without_its_base_a_lora_run_ends_with_the_same_bytes(adapters, monkeypatch):
    base = adapters.folder / "base"
    with monkeypatch.context() as patch:
        kill_in_step(patch, 5)
        with pytest.raises(Kill):
            adapters(f"init.from={base}", *LORA, *SAVES)
    base.rename(adapters.folder / "elsewhere")
    adapters(f"init.from={base}", *LORA, *SAVES)
    (adapters.folder / "elsewhere").rename(base)
    assert compare_runs(adapters.folder / "tuned", adapters.path)[1] == []
    shutil.rmtree(adapters.path)


def test_an_adapter_is_merged_wherever_it_is_read_and_refused_on_another_base(adapters):
    base, tuned = adapters.folder / "base", adapters.folder / "tuned"
    alone, over = load_checkpoint(tuned), load_with_adapter(str(tuned), "best", [load_checkpoint(base)])
    tokens = torch.tensor([[10, 40, 90, 33, 104]])
    with torch.inference_mode():
        assert torch.equal(alone.model(tokens), over.model(tokens))
        assert (alone.model(tokens) - load_checkpoint(base).model(tokens)).abs().max() > 0.05
    assert minigpt.load(tuned).generate("how ", max_new_tokens=3)
    with pytest.raises(UserFault, match="Give the model it was trained on as checkpoint="):
        load_with_adapter(str(tuned), "best", [load_checkpoint(tuned)])


TINY = ["data=tasks", "model.block_size=64", "batch_tokens=1024", "schedule=constant", "optimizer.lr=0.02"]
GRPO = ["objective=grpo", "objective.answers=4", "trainer.micro_batch=8", "logger.every_steps=1"]  # 2 x 8 answers


def begins_low(tokenizer, question, answer) -> float:
    """A reward that an untrained model earns every other time."""
    return float(answer[0] < 128)


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run):
    """A folder with a run on a few generated conversations, and one by rewards from it."""
    patch = pytest.MonkeyPatch()
    for part, size in {"train": 300, "val": 14, "test": 14}.items():
        patch.setitem(tasks.SIZES, part, size)
    patch.setattr(grpo, "reward", begins_low)  # the right ones are out of its reach
    run = new_run(tmp_path_factory.mktemp("grpo"))
    assert train(config(run, "base", "trainer.max_steps=1", "optimizer.lr=1e-9", "schedule.warmup_steps=0")) == 0
    assert train(config(run, "whole", *GRPO, f"init.from={run.folder / 'base'}")) == 0
    yield run
    patch.undo()


def config(run, name: str, *extra: str) -> TrainConfig:
    run.path = run.folder / name
    words = [word for word in run.arguments() if "data.source" not in word and word != "data=text"]
    return compose("train", [*words, *TINY, *extra])


def rows(run, name: str) -> list[dict]:
    kept = read_rows(run.folder / name / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in kept]


def test_the_reward_stands_in_the_rows(place):
    earned = [row["train/reward"] for row in rows(place, "whole")]
    assert len(earned) == 6
    assert all(0 < share < 1 and share * 16 % 1 == 0 for share in earned)
    assert {row["train/loss"] for row in rows(place, "whole")} == {None}
    assert all("train/reward" not in row for row in rows(place, "base"))


def test_the_newest_checkpoint_is_the_best_one_whatever_the_validation_loss_says(place):
    folder = place.folder / "whole" / "checkpoints"
    assert len(list(folder.glob("step-*"))) > 1
    assert best_checkpoint(folder) == max(folder.glob("step-*"))
    assert read_manifest(best_checkpoint(folder))["val_loss"] is None
    assert rows(place, "whole")[-1]["val/loss"] > 0


def test_killed_in_a_step_a_grpo_run_ends_with_the_same_bytes(place, monkeypatch):
    again = config(place, "cut", *GRPO, f"init.from={place.folder / 'base'}")
    again.checkpoint.every_steps = 2
    with monkeypatch.context() as patch:
        kill_in_step(patch, 4)
        with pytest.raises(Kill):
            train(again)
    assert train(again) == 0
    assert '"continued"' in (place.folder / "cut" / "events.jsonl").read_text()
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        cut, whole = (newest(place.folder / run) / name for run in ("cut", "whole"))
        assert cut.read_bytes() == whole.read_bytes()
    assert rows(place, "cut") == rows(place, "whole")


def test_groups_that_do_not_fit_are_refused_before_anything_is_written(place, monkeypatch):
    def halved(gpt, job, choices):
        return replace(choices, micro_batch=2, accumulate=8), None

    monkeypatch.setattr("minigpt.training.run.first_pass", halved)
    words = [word for word in GRPO if "micro_batch" not in word]
    with pytest.raises(UserFault, match=r"Add trainer\.micro_batch=4"):
        train(config(place, "unfit", *words, f"init.from={place.folder / 'base'}"))
    assert not (place.folder / "unfit").exists()


def test_a_model_without_roles_is_refused_for_no_answer_of_it_would_be_right(place):
    base = place.folder / "text"
    place.path = base
    place("model.block_size=64", "trainer.max_steps=1")
    with pytest.raises(UserFault, match=r"lacks 4 control tokens, and no answer would be right"):
        train(config(place, "refused", *GRPO, f"init.from={base}"))
    with pytest.raises(UserFault, match=r"test\.jsonl holds messages") as caught:
        ask(config(place, "refused", *GRPO, f"init.from={base}"), str(base))
    assert len(caught.value.faults) <= 2
