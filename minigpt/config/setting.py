"""How a setting is declared: a dataclass field with its default, meaning, role and range beside it."""

from dataclasses import dataclass, field
from typing import Any, Literal

# The role of a setting: what it changes.
#   weights   the trained weights; fixed for a run. It is part of the run's name.
#   content   the weights, through the files at this path. The path may change if the content of the files is the same.
#   schedule  the weights from now on; it may change when a run continues. It is part of the run's name.
#   machine   where and how fast the work is done; it may change.
#   watch     only what is shown or kept, and where; it may change.
Role = Literal["weights", "content", "schedule", "machine", "watch"]


@dataclass(frozen=True)
class Setting:
    """All that is known about one setting."""

    meaning: str = ""
    role: Role = "weights"
    low: float | None = None  # a number must be at least this
    above: float | None = None  # ... more than this
    high: float | None = None  # ... at most this
    below: float | None = None  # ... less than this
    literal: bool = False  # take the text as typed: null, 123 and ${x} stay text; paths always are literal
    required: bool = False  # it must be given, and not be empty
    folder: bool = False  # a path that is a folder, or can become one
    file: bool = False  # the path of a file that exists
    model: bool = False  # the path of a run, checkpoint, adapter or model that exists, or a model's name on the hub
    aka: str = ""  # its name in other frameworks
    words: bool = False  # takes the arguments that are not key=value
    key: str = ""  # the name that users type, if it is not the Python name
    path: tuple[str, ...] = ()  # its name in code, attribute by attribute
    kind: Any = None  # its type
    default: Any = None


def setting(default: Any, meaning: str, role: Role, **more: Any) -> Any:
    """Return a dataclass field that is a setting; `more` are further fields of Setting."""
    metadata = {"setting": Setting(meaning, role, default=default, **more)}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)
