"""What a run leaves to the machine, settled once: device, kernels, micro-batch; kept when the run continues."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from minigpt.config.convert import shown
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.prepare import Prepared
from minigpt.faults import UserFault
from minigpt.machine.hardware import Choices, Hardware, choose, fault_in_choices, probe
from minigpt.machine.memory import fit_micro_batch
from minigpt.model.gpt import GPT
from minigpt.process.group import Processes
from minigpt.rundir.run_directory import RunDirectory


def find_device(config: TrainConfig) -> Hardware:
    """The device that `trainer.device` asks for."""
    hardware = probe(config.trainer.device)
    wanted = config.trainer.device
    if wanted not in ("auto", hardware.device):
        raise UserFault(
            f"trainer.device={wanted}: this machine, or this build of PyTorch, has none; got {hardware.device}. "
            "Use trainer.device=auto"
        )
    count = torch.cuda.device_count()
    if hardware.device == "cuda" and config.trainer.devices > count:
        raise UserFault(f"trainer.devices={config.trainer.devices}: this machine has {count} GPU(s)")
    return hardware


def settle_choices(run: RunDirectory, config: TrainConfig, hardware: Hardware, prepared: Prepared) -> Choices:
    """The automatic choices: as they were when the run began, else from config and hardware."""
    choices = choose(config, hardware, prepared.tokenizer.vocab_size)
    saved = run.read_json("choices.json")
    if saved is not None and saved.get("devices") != choices.devices:
        print(
            f"Devices    {choices.devices} instead of {shown(saved.get('devices'))}: each step trains on the same "
            "tokens as before, but sums are taken in another order, so the last bits may differ"
        )
        run.event("devices_changed", was=saved.get("devices"), now=choices.devices)
    if saved is None or saved.get("device") != choices.device or saved.get("devices") != choices.devices:
        return choices
    explicit = {
        "compile": config.trainer.compile != "auto",
        "attention_kernel": config.trainer.attention_kernel != "auto",
        "micro_batch": config.trainer.micro_batch > 0,
        "threads": config.trainer.threads > 0,
        "validation_batch": config.validate.batch > 0,
    }
    kept = {name: value for name, value in saved.items() if not explicit.get(name)}
    if explicit["micro_batch"]:
        kept.pop("accumulate", None)
    fault = fault_in_choices(vars(choices) | kept, config)
    if fault:
        raise UserFault(
            f"{run.path / 'choices.json'} holds what no run chooses ({fault}). Put the file back as it was, or remove "
            "it: then the choices are made anew, and bits may differ from here on"
        )
    return Choices(**(vars(choices) | kept))


def settle_memory(
    gpt: GPT, config: TrainConfig, choices: Choices, *, prepared: Prepared, processes: Processes
) -> Choices:
    """Try one micro-batch; if it does not fit the memory of some device, all go on with a smaller one."""
    gpt.to(choices.device).train()
    batch = partial(first_batch, prepared, config, choices.device)
    fitting = fit_micro_batch(gpt, choices, batch, say=print)
    micro_batch = min(int(size) for size in processes.gather(str(fitting.micro_batch)))
    return replace(choices, micro_batch=micro_batch, accumulate=choices.micro_batch * choices.accumulate // micro_batch)


def first_batch(prepared: Prepared, config: TrainConfig, device: str, size: int) -> tuple[Tensor, Tensor]:
    """The run's first windows, to try things on: (tokens, targets), each (size, block_size)."""
    windows = MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=size,
        accumulate=1,
    )
    batch = windows[0].to(device)
    return batch.tokens, batch.targets
