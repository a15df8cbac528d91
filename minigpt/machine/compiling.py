"""How torch computes: threads, products, determinism, and torch.compile."""

import contextlib
import getpass
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT

LossFunction = Callable[..., Tensor]  # of model, tokens and targets, and of weights and documents if there are any


def set_up_torch(choices: Choices, *, deterministic: bool) -> None:
    """Set torch's options, before anything is compiled or a device's memory is used.

    Args:
        choices: threads, products and whether anything is compiled.
        deterministic: as `trainer.deterministic`.
    """
    torch.set_num_threads(choices.threads)
    torch.set_float32_matmul_precision(choices.float32_products)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once
    # Compiled code for a CPU would add to an embedding's gradient in an order that depends on its threads' timing.
    wanted = deterministic or (choices.compile and choices.device == "cpu")
    torch.use_deterministic_algorithms(wanted)  # set each time: an earlier training in this process may have changed it
    if wanted:
        # It switches on a debugging aid, which takes time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def compiled_loss(device: str, loss: LossFunction) -> LossFunction:
    """Return model and loss compiled as one graph; compiling begins at the first call."""
    return torch.compile(loss, dynamic=False, options=compiler_options(device))


def compiler_options(device: str) -> dict[str, Any] | None:
    """Return the compiler's options for a device, and set the folder in which it keeps its code."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiler_cache())
    options: dict[str, Any] | None = None
    if device == "cpu":
        # The compiler would recognise explicit attention and put the fused kernel in its place, whose backward
        # pass is the slower one there (choices.py chose between them).
        options = {"pattern_matcher": False}
    return options


def compiler_cache() -> Path:
    """Return the folder in which torch's compiler keeps its code: its usual one, unless others may write there."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    folder = Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    mine = found.st_uid == os.getuid() and not found.st_mode & 0o022 and not folder.is_symlink()
    return folder if mine else Path(tempfile.mkdtemp(prefix="torchinductor-"))


@contextlib.contextmanager
def cut_for_ddp(gpt: GPT) -> Iterator[None]:
    """Let code that is compiled in a `with` block be cut where DDP's buckets of gradients end.

    Compiled as a whole, the backward pass would give all gradients at its end, and none could be sent earlier.
    The compiler makes these cuts only inside DDP's forward pass; code that is compiled here is used again there.
    """
    torch._dynamo.config.optimize_ddp = not gpt.config.checkpoint_activations  # the two don't go together
    if not dist.is_initialized():
        yield
        return
    with DistributedDataParallel(gpt)._inside_ddp_forward():  # type: ignore[no-untyped-call]
        yield
