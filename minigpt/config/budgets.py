"""Times as people type them: 90s, 20min, 8h. Standard library only."""

import re

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
LEAST_SECONDS = 15  # of a budget: starting, reading, validating and the report take some ten on a quiet machine


def seconds_of(text: str) -> float | None:
    """Return a time in seconds; None if the text is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", text.strip())
    return float(match[1]) * SECONDS[match[2]] if match else None
