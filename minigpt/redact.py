"""Removes secrets from text before it is written to a file or the screen."""

import os
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"

# Names that hold a secret: api_key, HF_TOKEN, wandb.key; not batch_tokens, tokenizer or sort_key.
_SECRET_NAME = re.compile(
    r"(?i)(^|[._-])(token|secret|passw(or)?d|passphrase|credentials?|api_?key|(access|secret|private|auth)_?key"
    r"|wandb[._]key)$|(?i:apikey|secret_access_key)"
)
# Keys that can be recognised by their form.
_SECRET_FORM = re.compile(
    r"(?<![0-9A-Za-z])(?:wandb_v\d_[A-Za-z0-9_]{16,}|hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|A[KS]IA[0-9A-Z]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}|ey[A-Za-z0-9_-]{15,}\.ey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
)
# A wandb key is 40 hex digits, like git's hashes and many names of folders: it is recognised by the word before it.
_HEX_KEY = re.compile(
    r"(?i)((?:key|token|secret|passw(?:or)?d|login|bearer)[\"']?(?:\s*[=:]\s*|\s+)[\"']?)[0-9a-f]{40}(?!\w)"
)
# user:password@ of an address, up to its last @: passwords may hold @, : and /. A port before a path is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@]*:(?!\d+/)\S*@|[^/\s]*@)")

# Parameters that sign an address: ?X-Amz-Signature=..., &sig=..., &access_token=...
_QUERY = re.compile(
    r"(?i)([?&][\w.-]*(?:token|secret|signature|sig|credential|passw(?:or)?d|key(?:-pair)?(?:-?id)?|auth|policy)=)[^&\s'\"]+"
)


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the text without anything that looks like a key, and without the values of secrets in the environment.

    Args:
        text: anything that is about to be written to a file or the screen.
        environment: default os.environ.
    """
    return _redact(text, _secrets(os.environ if environment is None else environment))


def _secrets(environment: Mapping[str, str]) -> list[str]:
    return [value for name, value in environment.items() if len(value) >= 8 and _SECRET_NAME.search(name)]


def _redact(text: str, secrets: list[str]) -> str:
    for value in secrets:
        text = text.replace(value, REDACTED)
    text = _HEX_KEY.sub(rf"\1{REDACTED}", _SECRET_FORM.sub(REDACTED, text))
    return _LOGIN.sub(f"{REDACTED}@", _QUERY.sub(rf"\1{REDACTED}", text))


def redact_values(plain: Any) -> Any:
    """Apply `redact` to every text in plain data (dictionaries, lists, values); remove texts under secret names."""
    return _redact_values(plain, _secrets(os.environ))  # looked up once: that takes longer than the rest


def _redact_values(plain: Any, secrets: list[str]) -> Any:
    if isinstance(plain, Mapping):
        shown = {}
        for key, value in plain.items():
            secret = isinstance(value, str) and _SECRET_NAME.search(str(key))
            name = _redact(key, secrets) if isinstance(key, str) else key
            shown[name] = REDACTED if secret else _redact_values(value, secrets)
        return shown
    if isinstance(plain, list):
        return [_redact_values(value, secrets) for value in plain]
    return _redact(plain, secrets) if isinstance(plain, str) else plain


def redact_arguments(arguments: list[str]) -> list[str]:
    """Return a command line without secrets: `NAME=VALUE` and `--NAME VALUE` lose the value if the name is secret."""
    shown = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, equals, _ = argument.partition("=")
        if equals and _SECRET_NAME.search(name):
            shown.append(f"{name}={REDACTED}")
        else:
            secret = before.startswith("--") and "=" not in before and _SECRET_NAME.search(before)
            shown.append(REDACTED if secret else redact(argument))
    return shown
