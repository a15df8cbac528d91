"""How fast this machine trains a size: measured for a few sizes, estimated for all others."""

from collections.abc import Callable

import numpy as np

from minigpt.screen import short_number, tell
from minigpt.sizing.law import Size

MEASURED = 4  # sizes, at most
FIRST_STEPS = 3  # at least, in a measurement
LAUNCHING = 1.2  # times the time that launching a step takes: in a longer one, the GPU is at work all the time
STEP_SECONDS = 0.002  # overhead of a step of any size
ALIKE = 1.25  # sizes with one batch whose FLOPs per token differ by less share one rate
# FLOP/s grow with this power of a token's FLOPs, beyond the measured sizes: wider products are faster. Up to FAR times.
GROWS, FAR = 0.4, 2.0

Timed = Callable[[Size, float], float]  # trains a size for some seconds -> tokens a second


class Speeds:
    """Estimates tokens per second for any size from a few measured sizes.

    Args:
        guess: FLOP/s, until a size was measured.
        patience: seconds that all measurements may take.
        clock: gives seconds that pass, the same on all ranks.
    """

    def __init__(self, measure: Timed, guess: float, patience: float, clock: Callable[[], float]):
        self.measure, self.guess, self.patience, self.clock = measure, guess, patience, clock
        self.each = min(patience / 5, max(2.0, patience / 40))  # seconds of a measurement; a long budget affords more
        self.rates: dict[float, float] = {}  # FLOPs of a token -> FLOP/s
        self.measured: list[Size] = []
        self.spent = self.start = 0.0  # seconds: on measuring; until a training runs
        self.layer_seconds = 0.0  # a step takes at least so long for each layer
        self.gain = 1.0  # from compiling
        self.farthest = FAR  # 1 when no larger size can be measured: none is expected to be faster

    def __call__(self, size: Size) -> float:
        """Return tokens a second."""
        flops = flops_of(size)
        known = np.log(sorted(self.rates.items()) or [(flops, self.guess)])
        beyond = flops / min(max(flops, min(self.rates, default=flops)), max(self.rates, default=flops))
        rate = np.exp(np.interp(np.log(flops), *known.T)) * min(self.farthest, max(1 / FAR, beyond)) ** GROWS
        seconds = STEP_SECONDS + work_of(size) / rate
        return float(self.gain * size.batch_tokens / max(seconds, self.layer_seconds * size.n_layer))

    def know_launches(self, size: Size) -> None:
        """Measure the shortest step: on a GPU it takes as long as the host needs to launch its kernels."""
        self.layer_seconds = self.step_seconds(size) / size.n_layer
        tell(f"Speed      {1e3 * self.layer_seconds:.1f} ms a step for each layer, at least")

    def know(self, size: Size) -> bool:
        """Measure a size unless its speed is known or time is short; return whether estimates have changed."""
        flops = flops_of(size)
        alike = [other for other in self.measured if other.batch_tokens == size.batch_tokens]
        if any(1 / ALIKE < flops / flops_of(other) < ALIKE for other in alike):
            return False
        least = self.start + FIRST_STEPS * size.batch_tokens / self(size)
        if len(self.measured) >= MEASURED or (self.measured and self.spent + least > self.patience):
            hoped, self.farthest = self.farthest, 1.0
            return hoped > 1
        step_seconds = self.step_seconds(size)
        self.measured.append(size)
        is_busy = step_seconds > LAUNCHING * self.layer_seconds * size.n_layer
        if not is_busy:
            self.layer_seconds = step_seconds / size.n_layer
        if is_busy or step_seconds < size.batch_tokens / self(size):
            self.rates[flops] = work_of(size) / max(step_seconds - STEP_SECONDS, 0.5 * step_seconds)
        tell(f"Speed      {self(size):,.0f} tokens/s with {short_number(size.parameters)} parameters")
        return True

    def step_seconds(self, size: Size) -> float:
        """Train a size for some seconds; return the seconds of a step."""
        began = self.clock()
        speed = self.measure(size, self.each)
        took = self.clock() - began
        self.spent, self.start = self.spent + took, max(0.0, took - self.each)
        return size.batch_tokens / speed


def flops_of(size: Size) -> float:
    """Return about how many floating-point operations a token of training takes."""
    return 6.0 * size.multiplied + 12.0 * size.n_layer * size.n_embd * size.block_size


def work_of(size: Size) -> float:
    """Return the floating-point operations of a step: its tokens, and Muon's fifteen products for each matrix."""
    matrices = size.multiplied - size.n_embd * size.vocab_size  # of the blocks
    return size.batch_tokens * flops_of(size) + 30.0 * size.n_embd * matrices
