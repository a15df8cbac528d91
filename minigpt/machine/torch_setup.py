"""How torch computes: threads, products, determinism, and torch.compile."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minigpt.machine.choices import Choices

LossFunction = Callable[..., Tensor]  # of model, tokens and targets, and of weights and documents if there are any


def set_up_torch(choices: Choices, *, deterministic: bool) -> None:
    """Set torch's options, before anything is compiled or a device's memory is used."""
    keep_freed_memory()
    torch.set_num_threads(choices.threads)
    torch.set_float32_matmul_precision(choices.float32_products)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once
    # Compiled code for a CPU would add to an embedding's gradient in an order that depends on its threads' timing.
    torch.use_deterministic_algorithms(deterministic or (choices.compile and choices.device == "cpu"))
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it takes time


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step: zeroing new pages takes up to a sixth of a CPU run's time.

    Source: mallopt(3): M_MMAP_MAX = -4, M_TRIM_THRESHOLD = -1, M_TOP_PAD = -2.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):
            mallopt(parameter, value)


def compiler_options(device: str) -> dict[str, Any] | None:
    """Return the compiler's options for a device.

    On a CPU it would replace explicit attention by the fused kernel. That kernel's backward pass is the slower one
    there (choices.py chose between them).
    """
    return {"pattern_matcher": False} if device == "cpu" else None


def eager() -> contextlib.AbstractContextManager:
    """Return a context in which what was compiled is computed as it is: samples and validations have many shapes."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, means that memory ran out, on any device and in any library."""
    if error is None:
        return False
    words = ("out of memory", "can't allocate memory", "not enough memory", "_status_alloc_failed")
    matches = any(sentence in str(error).lower() for sentence in words)
    return matches or isinstance(error, MemoryError) or is_out_of_memory(error.__cause__ or error.__context__)
