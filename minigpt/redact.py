"""Secrets are not written down: values of names like api_key, token or password, and logins and signatures in URLs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"

# api_key, HF_TOKEN, wandb.key; not batch_tokens, tokenizer or sort_key.
_SECRET_NAME = re.compile(
    r"(?i)(^|[._-])(token|secret|passw(or)?d|passphrase|credentials?|((api|access|secret|private|auth)_?|wandb[._])key)$"
)
# user:password@ of a URL, up to its last @: passwords may hold @, : and /. A port before a path is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@]*:(?!\d+/)\S*@|[^/\s]*@)")
# Parameters that sign a URL: ?X-Amz-Signature=..., &sig=..., &access_token=...
_SIGNATURE = re.compile(r"(?i)([?&][\w.-]*(?:token|secret|signature|sig|credential|passw(?:or)?d|key|auth)=)[^&\s'\"]+")


def redact(text: str) -> str:
    """Return the text without logins and signatures in its URLs."""
    return _LOGIN.sub(f"{REDACTED}@", _SIGNATURE.sub(rf"\1{REDACTED}", text))


def redact_values(plain: Any) -> Any:
    """Apply `redact` to every text in plain data (dictionaries, lists, values); remove texts under secret names."""
    if isinstance(plain, Mapping):
        secret = {key for key, value in plain.items() if isinstance(value, str) and _SECRET_NAME.search(str(key))}
        return {redact_values(key): REDACTED if key in secret else redact_values(plain[key]) for key in plain}
    if isinstance(plain, list):
        return [redact_values(value) for value in plain]
    return redact(plain) if isinstance(plain, str) else plain


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line without secrets."""
    parts = [(word, *word.partition("=")) for word in arguments]
    return [f"{name}={REDACTED}" if eq and _SECRET_NAME.search(name) else redact(word) for word, name, eq, _ in parts]
