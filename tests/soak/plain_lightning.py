"""The trials of docs/RELIABILITY.md on plain Lightning with its ModelCheckpoint, where they have a subject there.

`python tests/soak/plain_lightning.py [TRIAL ...]` prints what came out, one line a trial. The set-up is the one of
Lightning's documentation: seed_everything, a shuffled DataLoader, ModelCheckpoint(save_last=True), and
fit(ckpt_path="last") when the same command is run again. Some trials need root (a small filesystem, another user).
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.training.lightning_engine import quiet_lightning

STEPS, EVERY = 40, 5
SETTINGS = ModelConfig(n_layer=2, n_head=3, n_embd=24, block_size=16, dropout=0.1)


class Plain(L.LightningModule):
    """The tiny GPT of our own trials."""

    def __init__(self, nan_at: int = -1, pause: float = 0.0, kill: tuple[int, int] | None = None):
        super().__init__()
        self.gpt = GPT(SETTINGS, 257)
        self.nan_at, self.pause, self.kill = nan_at, pause, kill

    def training_step(self, batch, batch_idx):
        time.sleep(self.pause)
        if self.kill and self.kill[0] == batch_idx:
            os.kill(os.getpid(), self.kill[1])
        loss = F.cross_entropy(self.gpt(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())
        return loss * float("nan") if self.global_step == self.nan_at else loss

    def validation_step(self, batch, batch_idx):
        self.log("val", F.cross_entropy(self.gpt(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten()))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def train(folder: Path, module: Plain | None = None, *, workers: int = 0, steps: int = STEPS, **options) -> None:
    """Begin, or go on from the last checkpoint, as the documentation says."""
    torch.set_num_threads(1)
    L.seed_everything(1, verbose=False)
    data = TensorDataset(torch.randint(0, 257, (300, 17), generator=torch.Generator().manual_seed(0)))
    module = module or Plain()
    saver = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=EVERY, save_last=True, save_top_k=-1)
    validation = options.pop("validation", False)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, callbacks=[saver], logger=options.pop("logger", False),
        gradient_clip_val=1.0, enable_progress_bar=False, enable_model_summary=False,
        **({"val_check_interval": 8, "check_val_every_n_epoch": None} if validation else {}), **options,
    )  # fmt: skip
    loaders = [DataLoader(data, 4, shuffle=True, num_workers=workers)] + [DataLoader(data, 4)] * validation
    trainer.fit(module, *loaders, ckpt_path="last")


def start(*arguments, user: int | None = None, **options) -> int:
    """train() in a process of its own; returns its id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if user is not None:
            os.setuid(user)
        train(*arguments, **options)
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    finally:
        os._exit(code)


def finish(*arguments, **options) -> int:
    """train() to its end; returns the exit code."""
    _, status = os.waitpid(start(*arguments, **options), 0)
    return os.waitstatus_to_exitcode(status)


def weights(folder: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / name, weights_only=True)["state_dict"]


def same(one: Path, other: Path) -> str:
    first, second = weights(one), weights(other)
    gap = max(float((first[name] - second[name]).abs().max()) for name in first)
    return "the same weights" if gap == 0 else f"other weights (largest difference {gap:.1e})"


def kill_in_progress(folder: Path, seconds: float, **options) -> None:
    process = start(folder, Plain(pause=0.01), **options)
    while not list(folder.glob("checkpoints/*.ckpt")):
        time.sleep(0.01)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def k1(place: Path) -> str:
    """SIGKILL at a random moment, the same command again."""
    finish(place / "a")
    kill_in_progress(place / "b", 0.07)
    finish(place / "b")
    return same(place / "a", place / "b")


def k3(place: Path) -> str:
    """Go on from every saved step."""
    finish(place / "a", steps=20)
    exact = 0
    for step in (5, 10, 15):
        (place / str(step) / "checkpoints").mkdir(parents=True)
        (kept,) = place.glob(f"a/checkpoints/*step={step}.ckpt")
        shutil.copy(kept, place / str(step) / "checkpoints" / "last.ckpt")
        finish(place / str(step), steps=20)
        exact += same(place / "a", place / str(step)) == "the same weights"
    return f"{exact} of 3 exact"


def k4(place: Path) -> str:
    """SIGTERM in the middle of an accumulation window, the same command again."""
    finish(place / "a", accumulate_grad_batches=3)
    code = finish(place / "b", Plain(kill=(31, signal.SIGTERM)), accumulate_grad_batches=3)
    finish(place / "b", accumulate_grad_batches=3)
    return f"exit {code}, nothing saved at the stop, then {same(place / 'a', place / 'b')}"


def k5(place: Path) -> str:
    """With and without validation."""
    finish(place / "a")
    finish(place / "b", validation=True)
    return same(place / "a", place / "b")


def k6(place: Path) -> str:
    """Killed, and gone on with another number of workers."""
    finish(place / "a")
    kill_in_progress(place / "b", 0.07)
    finish(place / "b", workers=2)
    return same(place / "a", place / "b")


def k7(place: Path) -> str:
    """SIGTERM."""
    code = finish(place / "a", Plain(kill=(13, signal.SIGTERM)))
    steps = sorted(int(path.stem.partition("step=")[2]) for path in place.glob("a/checkpoints/*step=*"))
    return f"exit {code}, stopped in step 14, newest checkpoint of step {steps[-1]}"


def k13(place: Path) -> str:
    """Two processes in one folder."""
    processes = [start(place / "a", Plain(pause=0.01)) for _ in range(2)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    return (
        f"both run (exit {codes[0]} and {codes[1]}), {len(list(place.glob('a/checkpoints/*')))} files of two runs mixed"
    )


@contextlib.contextmanager
def small_disk(place: Path):
    folder = place / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def readable(path: Path) -> bool:
    try:
        torch.load(path, weights_only=True)
    except Exception:
        return False
    return True


def d1(place: Path) -> str:
    """The disk is full at the next save (TMPDIR on another disk, as usual)."""
    with small_disk(place) as disk:
        code = finish(disk)
        found = list(disk.glob("checkpoints/*.ckpt"))
        bad = [path.name for path in found if not readable(path)]
        last = "last.ckpt unreadable" if "last.ckpt" in bad else "last.ckpt readable"
        return f"the run dies (exit {code}); {len(bad)} of {len(found)} files unreadable, {last}"


def d3(place: Path) -> str:
    """SIGKILL while 120 MB are written over the last checkpoint, TMPDIR on another disk, 10 times."""
    from lightning.fabric.utilities.cloud_io import _atomic_save

    lost = 0
    elsewhere = tempfile.mkdtemp(dir="/dev/shm")
    for number in range(10):
        target = place / f"{number}.ckpt"
        _atomic_save({"w": torch.zeros(10)}, target)
        process = os.fork()
        if not process:
            tempfile.tempdir = elsewhere
            _atomic_save({"w": torch.zeros(30_000_000)}, target)
            os._exit(0)
        ends = time.monotonic() + 20
        while target.stat().st_size < 1_000_000 and time.monotonic() < ends:
            time.sleep(0.0005)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        lost += not readable(target)
        target.unlink()
    shutil.rmtree(elsewhere)
    return f"the previous checkpoint is destroyed {lost} times of 10"


def d5(place: Path) -> str:
    """No permission to write."""
    place.chmod(0o755)
    (place / "a" / "checkpoints").mkdir(parents=True)
    code = finish(place / "a", user=65534)
    return f"exit {code} after {STEPS} steps, {len(list(place.glob('a/checkpoints/*')))} checkpoints"


def d7(place: Path) -> str:
    """The folder is moved away while the run goes on."""
    process = start(place / "a", Plain(pause=0.01))
    while len(list(place.glob("a/checkpoints/*step*"))) < 3:
        time.sleep(0.01)
    (place / "a").rename(place / "elsewhere")
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    left = [len(list((place / name / "checkpoints").glob("*"))) for name in ("elsewhere", "a")]
    return f"exit {code}; {left[0]} files in the moved folder, {left[1]} in one made anew"


def d8(place: Path) -> str:
    """The disk of the log is full, that of the checkpoints is not."""
    with small_disk(place) as disk:
        (disk / "filler").write_bytes(bytes(2 * 2**20 - 16384))
        with contextlib.suppress(OSError), open(disk / "rest", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        code = finish(place / "a", Plain(), logger=CSVLogger(disk), validation=True, log_every_n_steps=1)
        return f"exit {code}, {len(list(place.glob('a/checkpoints/*')))} checkpoints"


def c1(place: Path) -> str:
    """One flipped bit, 200 times."""
    finish(place / "a", steps=5)
    path = place / "a" / "checkpoints" / "last.ckpt"
    content, generator, silent = path.read_bytes(), random.Random(1), 0
    for _ in range(200):
        changed = bytearray(content)
        bit = generator.randrange(8 * len(content))
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        silent += readable(path)
    return f"{silent} of 200 loaded without a word"


def c2(place: Path) -> str:
    """The newest checkpoint is cut short; older ones are there."""
    finish(place / "a")
    path = place / "a" / "checkpoints" / "last.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    return f"exit {finish(place / 'a', steps=STEPS + 5)} (traceback), the older ones are not tried"


def c3(place: Path) -> str:
    """last.ckpt is missing, though checkpoints are there."""
    finish(place / "a")
    for path in place.glob("a/checkpoints/*"):
        path.rename(path.with_suffix(".bad"))
    before = weights(place / "a", "last.bad")
    code = finish(place / "a", steps=EVERY)
    after = weights(place / "a")
    begun_anew = not all(torch.equal(before[name], after[name]) for name in before)
    return f"exit {code}, {'begun anew' if begun_anew else 'kept'} (a warning only)"


def f2(place: Path) -> str:
    """One loss is NaN, at step 7."""
    code = finish(place / "a", Plain(nan_at=6))
    bad = sum(
        any(not tensor.isfinite().all() for tensor in weights(place / "a", path.name).values())
        for path in place.glob("a/checkpoints/*.ckpt")
    )
    return f"exit {code}, {bad} of {len(list(place.glob('a/checkpoints/*.ckpt')))} checkpoints are NaN"


TRIALS: dict[str, Callable[[Path], str]] = {
    each.__name__: each for each in (k1, k3, k4, k5, k6, k7, k13, d1, d3, d5, d7, d8, c1, c2, c3, f2)
}


def main(names: list[str]) -> None:
    quiet_lightning()
    warnings.simplefilter("ignore")
    print(f"Lightning {L.__version__}, torch {torch.__version__}")
    for name in names or TRIALS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            try:
                outcome = TRIALS[name](Path(place))
            except Exception as error:
                outcome = f"could not be tried: {type(error).__name__}: {error}"
        print(f"{name.upper():4} {TRIALS[name].__doc__:90} {outcome}", flush=True)


if __name__ == "__main__":
    main([name.lower() for name in sys.argv[1:]])
