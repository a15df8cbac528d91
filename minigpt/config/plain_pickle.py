"""Reads a pickle as data: the functions that it would call are named, not called. Standard library only."""

import pickletools
from typing import Any, NamedTuple

from minigpt.faults import UserFault

_MEMO = ("PUT", "BINPUT", "LONG_BINPUT")
_RECALL = ("GET", "BINGET", "LONG_BINGET")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


class Call(NamedTuple):
    """A call that an unpickler would make, of a function that the pickle names."""

    name: str
    arguments: Any = ()


def read_pickle(content: bytes, origin: str) -> Any:
    """Return the dictionaries, lists, tuples, texts and numbers of a pickle, with a `Call` for each call in it.

    Raises:
        UserFault: it is no pickle, or holds an instruction that plain data and tensors don't need.
    """
    try:
        return _read(content)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise UserFault(f"{origin} is no pickle of plain values ({type(error).__name__}: {error})") from None


def _read(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def take(count: int | None = None) -> list[Any]:
        """Pop the last values of the stack: `count` of them, or those after the last mark."""
        start = marks.pop() if count is None else len(stack) - count
        if start < 0:
            raise IndexError("it takes more values than it holds")
        taken = stack[start:]
        del stack[start:]
        return taken

    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in _MEMO or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in _RECALL:
            stack.append(memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name in ("SETITEM", "SETITEMS"):
            pairs = take(2 if name == "SETITEM" else None)
            if not all(key is None or isinstance(key, str | int | float | bytes) for key in pairs[::2]):
                raise ValueError("it holds a key that is no text or number")  # to hash nested tuples can take for ever
            stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            items = take(1 if name == "APPEND" else None)
            stack[-1].extend(items)
        elif name in _TUPLES or name == "TUPLE":
            stack.append(tuple(take(_TUPLES.get(name))))
        elif name == "GLOBAL":
            stack.append(Call(str(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            stack.append(Call(".".join(take(2))))
        elif name == "REDUCE":
            called, arguments = take(2)
            stack.append({} if called.name == "collections.OrderedDict" else Call(called.name, arguments))
        elif name == "BINPERSID":
            stack.append(Call("persistent", *take(1)))
        elif name == "BUILD":
            take(1)  # attributes of what was called
        elif name == "STOP":
            return stack.pop()
        elif isinstance(argument, str | int | float | bytes) and name not in ("PROTO", "FRAME"):
            if opcode.stack_before or not opcode.stack_after:
                raise ValueError(f"it holds the instruction {name}")
            stack.append(argument)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it holds the instruction {name}")
    raise ValueError("it has no end")
