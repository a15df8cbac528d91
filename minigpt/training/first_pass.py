"""The loss before step 1: compiled, and with a micro-batch that fits the device's memory."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches, document_end
from minigpt.data.prepared import Prepared
from minigpt.data.tokenizers.dropout import BPEDropout
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices
from minigpt.machine.torch_setup import LossFunction, compiler_options, is_out_of_memory
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, plain_loss
from minigpt.screen import tell
from minigpt.training.state import TrainingJob, steps_of

REMEDY = "Use a smaller model or model.block_size, or model.checkpoint_activations=true"


def text_batches(config: TrainConfig, choices: Choices, prepared: Prepared, **place: Any) -> MicroBatches:
    """Return an endless stream of a text's micro-batches; `place` holds rank and first step."""
    rate, steps = config.tokenizer.dropout, steps_of(config)
    return MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        world_size=choices.devices,
        pin_memory=choices.device == "cuda",
        document_end=document_end(config.data, prepared.tokenizer),
        dropout=BPEDropout(prepared.tokenizer, rate, config.seed, steps) if rate and steps else None,
        **place,
    )


def first_pass(gpt: GPT, job: TrainingJob, choices: Choices) -> tuple[Choices, LossFunction]:
    """Compute one micro-batch forward and backward; halve it until it fits, and do not compile if the compiler fails.

    The trial contains no collective, since it may fail on one rank; the ranks agree afterwards. There is no trial with
    sharded weights, whose forward pass is a collective, nor on a CPU, where the system kills a process without an
    error: the formula of machine/memory.py decides.

    Returns:
        The choices, with a micro-batch that fits everywhere, and the loss to train with.
    """
    loss = plain = plain_loss(job.config.data.mask_documents, choices.loss_chunk)
    gpt = gpt if job.config.trainer.sharded else gpt.to(choices.device).train()
    if job.config.trainer.sharded or (choices.device == "cpu" and not choices.compile):
        return choices, plain
    cuts: contextlib.AbstractContextManager = contextlib.nullcontext()
    if choices.compile:
        tell("Compiling the training step (once; up to a minute or two) ...")
        loss = torch.compile(plain, dynamic=False, options=compiler_options(choices.device))
        torch._dynamo.config.optimize_ddp = not job.config.model.checkpoint_activations  # the two are incompatible
        if dist.is_initialized():
            # Compiled here, the backward pass is cut where DDP's buckets end, so that gradients are sent before its
            # end. The constructor is a collective: its errors are not the compiler's.
            cuts = torch.nn.parallel.DistributedDataParallel(gpt)._inside_ddp_forward()  # type: ignore[no-untyped-call]
    sequences, fits = choices.micro_batch * choices.accumulate, False
    while not fits:
        try:
            with cuts:
                _try_micro_batch(gpt, job, choices, loss)
            fits = True
        except Exception as error:
            smaller = _smaller(choices)
            if is_out_of_memory(error) and smaller:
                choices = replace(choices, micro_batch=smaller, accumulate=sequences // smaller)
                tell(f"Memory     out of memory: continuing with micro-batches of {smaller}, the same step")
            elif is_out_of_memory(error):
                raise UserFault(f"not even one sequence fits the device's memory. {REMEDY}") from error
            elif choices.compile:  # a failing compiler must not stop a run
                torch._dynamo.reset()
                reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
                tell(f"torch.compile does not work here ({reason}); continuing without it")
                choices, loss = replace(choices, compile=False), plain
            else:
                raise
    micro_batch = min(map(int, job.processes.gather(str(choices.micro_batch))))
    return replace(choices, micro_batch=micro_batch, accumulate=sequences // micro_batch), loss


def _smaller(choices: Choices) -> int:
    """Return the largest micro-batch of half the size or less that divides a device's sequences; 0 if none does."""
    sequences = choices.micro_batch * choices.accumulate
    return max((size for size in range(1, choices.micro_batch // 2 + 1) if sequences % size == 0), default=0)


def _try_micro_batch(gpt: GPT, job: TrainingJob, choices: Choices, loss: LossFunction) -> None:
    """Compute the first micro-batch forward and backward, with as much memory in use as in a later step."""
    config = job.config
    held: list[Tensor] = []  # stand-ins for the optimizer's averages
    try:
        for parameter in (parameter for parameter in gpt.parameters() if parameter.requires_grad):
            held += [torch.empty_like(parameter) for _ in range(2 + (config.optimizer.average_fraction > 0))]
            parameter.grad = torch.zeros_like(parameter)  # gradients exist during a later forward pass
        batch = text_batches(config, choices, job.prepared)[0].to(choices.device)
        weights = (batch.weights, batch.documents) if config.data.mask_documents else ()
        with autocast(choices.device, choices.precision):
            loss(gpt, batch.tokens, batch.targets, *weights).backward()
    finally:
        held.clear()
        gpt.zero_grad(set_to_none=True)
        if choices.device == "cuda":
            torch.cuda.empty_cache()


@contextlib.contextmanager
def explained_out_of_memory(choices: Choices) -> Iterator[None]:
    """Say what to type where memory runs out in a `with` block around the training."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        smaller = _smaller(choices)
        remedy = f"Add trainer.micro_batch={smaller}; the steps stay the same" if smaller else REMEDY
        raise UserFault(f"the device ran out of memory. {remedy}. The same command continues the run") from error
