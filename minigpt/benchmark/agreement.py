"""Whether two loss curves are the same: a speed-up that changes the mathematics is none."""

from dataclasses import dataclass

LIMITS = {"fp32": 1e-3, "fp64": 1e-3, "bf16": 2e-2}  # nats; largest difference of two equal curves, by our precision


@dataclass(frozen=True)
class Agreement:
    """Two loss curves compared."""

    difference: float  # largest, in nats
    limit: float
    steps: int

    @property
    def holds(self) -> bool:
        """Whether the two train the same thing. NaN does not."""
        return self.difference <= self.limit

    @property
    def sentence(self) -> str:
        """For the terminal."""
        verdict = "agree" if self.holds else "do NOT agree"
        return (
            f"Curves     {self.steps} steps from the same weights and batches {verdict} with nanoGPT's (its model.py "
            f"and AdamW, as shipped): largest difference {self.difference:.2g} nats, limit {self.limit:g}"
        )


def compare(ours: list[float], theirs: list[float], precision: str) -> Agreement:
    """Step by step. Curves of different lengths never agree."""
    together = list(zip(ours, theirs, strict=False))
    differences = [abs(one - other) for one, other in together]
    finite = len(ours) == len(theirs) > 0 and all(each == each for each in differences)  # NaN is not itself
    largest = max(differences) if finite else float("nan")
    return Agreement(largest, LIMITS[precision], len(together))
