"""The chat_template of another program's model: Jinja code from an unknown author, run in jinja2's sandbox only."""

import functools
import json
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from minigpt.faults import UserFault

MAX_CHARACTERS = 1 << 20  # of the text that a template makes
# transformers' own tag, around what an assistant says. It writes nothing.
_GENERATION = re.compile(r"({%[-+]?\s*)(end)?generation\b")


@dataclass(frozen=True)
class ChatTemplate:
    """How a model's messages become text.

    Attributes:
        source: the template.
        names: that it may use, of control tokens: bos_token, eos_token and others.
        ends: the tokens that end an answer.
    """

    source: str
    names: Mapping[str, str]
    ends: Set[int]

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint's tokenizer.json holds."""
        return {"source": self.source, "names": dict(self.names), "ends": sorted(self.ends)}

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of messages, up to where the assistant's answer begins, as transformers has it."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise ValueError(message)

        extensions, text = ["jinja2.ext.loopcontrols"], ""
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        sandbox.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
        sandbox.globals |= {"raise_exception": refuse, "strftime_now": time.strftime, "tools": None, "documents": None}
        try:
            source = _GENERATION.sub(lambda tag: tag[1] + ("endif" if tag[2] else "if true"), self.source)
            template = sandbox.from_string(source)
            for part in template.generate(messages=messages, add_generation_prompt=True, **self.names):
                text += part
                if len(text) > MAX_CHARACTERS:
                    refuse(f"more than {MAX_CHARACTERS:,} characters")
        except Exception as error:  # it is a program: it can raise anything
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise UserFault(f"the model's chat_template does not take these messages ({why})") from None
        return text
