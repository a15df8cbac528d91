"""Secrets are taken out, and nothing else is."""

import pytest

from minigpt.redact import REDACTED, redact, redact_arguments, redact_values

KEYS = [
    "0123456789abcdef0123456789abcdef01234567",
    "wandb_v1_AbCdEfGhIjKlMnOpQrSt",
    "hf_AbCdEfGhIjKlMnOpQrStUv",
    "sk-proj-AbCdEfGhIjKlMnOp",
    "ghp_AbCdEfGhIjKlMnOpQrSt0123",
    "github_pat_11ABCDEFG0123456789_abc",
    "glpat-AbCdEfGhIjKlMnOpQr",
    "xoxb-123456789012-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("around", ["{}", "a {} b", "/data/{}/text.txt", "key={}", '"{}"'])
def test_keys_are_known_by_their_form_and_secrets_by_their_names(key, around):
    assert redact(around.format(key), {}) == around.format(REDACTED)
    for name in ("HF_TOKEN", "MY_PASSWORD", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "db.password", "WANDB_API_KEY"):
        assert redact(around.format("tell nobody"), {name: "tell nobody"}) == around.format(REDACTED)


@pytest.mark.parametrize(
    "text",
    [
        "python scripts/train.py data=text batch_tokens=4096 tokenizer=bpe trainer.max_tokens=1000000",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",  # a SHA-256
        "runs/shakespeare_char-1a2b3c4d task-based sk-learn ask-me hf_hub skip-connections AKIA",
        "https://example.org/a/b@c",
        "To be, or not to be",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text, {"HOME": "/root", "SORT_KEY": "to be, or", "MAX_TOKENS": "10000000", "TOKEN": "short"}) == text


def test_a_login_in_an_address():
    assert redact("https://me:pass@host/x s3://key@bucket", {}) == f"https://{REDACTED}@host/x s3://{REDACTED}@bucket"


def test_a_command_line_loses_values_with_a_secret_name():
    given = [
        "train.py",
        "wandb.key=abc",
        "api_key=abc",
        "--hf-token",
        "abc",
        "--token=abc",
        "batch_tokens=64",
        "seed=3",
    ]
    assert redact_arguments(given) == [
        "train.py", f"wandb.key={REDACTED}", f"api_key={REDACTED}", "--hf-token", REDACTED, f"--token={REDACTED}",
        "batch_tokens=64", "seed=3",
    ]  # fmt: skip


def test_plain_data_keeps_its_shape(monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "hush-hush")
    plain = {"a": [1, "x hush-hush", None, True], "b": {"c": 0.5, "d": KEYS[2]}}
    assert redact_values(plain) == {"a": [1, f"x {REDACTED}", None, True], "b": {"c": 0.5, "d": REDACTED}}
