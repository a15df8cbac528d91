"""Secrets are taken out, and nothing else is."""

import pytest

from minigpt.redact import REDACTED, redact, redact_arguments, redact_values

HEX = "0123456789abcdef0123456789abcdef01234567"
KEYS = [
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


@pytest.mark.parametrize("around", ["{}", "a {} b", "/data/{}/text.txt", "key={}", '"{}"'])
def test_keys_are_known_by_their_form_and_secrets_by_their_names(around):
    for key in KEYS:
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
        "https://example.org:8080/a/b@c",
        "To be, or not to be",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text, {"HOME": "/root", "SORT_KEY": "to be, or", "MAX_TOKENS": "10000000", "TOKEN": "short"}) == text


@pytest.mark.parametrize(
    "text", ["WANDB_API_KEY={}", '{{"api_key": "{}"}}', "wandb login {}", "Authorization: Bearer {}", "token: '{}'"]
)
def test_a_key_of_hex_digits_is_known_by_the_word_before_it(text):
    assert redact(text.format(HEX), {}) == text.format(REDACTED)
    assert redact(f"x {HEX} y", {"WANDB_API_KEY": HEX}) == f"x {REDACTED} y"


@pytest.mark.parametrize(
    "text",
    [
        "commit {}",
        "python scripts/train.py data=text data.source=/hub/models--gpt2/snapshots/{}/text.txt",
        "git checkout {}",
        "init.from=runs/{}",
        '{{"commit": "{}"}}',
        "samples.prompt={}",
    ],
)
def test_a_hash_is_no_key_and_a_command_with_one_still_runs(text):
    """Finding 12: git hashes and snapshots of the hub had been taken out of commands that people run again."""
    assert redact(text.format(HEX), {}) == text.format(HEX)


@pytest.mark.parametrize(
    "login", ["me:p@ss", "me:p@s@s", "me", "me:p/a:ss", "me:p@/ss", "me:secret", ":only", "me:1234x"]
)
def test_nothing_of_a_login_is_left(login):
    """Finding 12: of me:p@ss@host everything behind the first @ had stayed."""
    assert redact(f"to postgresql://{login}@host:5432/base now", {}) == f"to postgresql://{REDACTED}@host:5432/base now"


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
    plain = {"a": [1, "x hush-hush", None, True], "b": {"c": 0.5, "d": KEYS[2], "wandb.key": HEX}}
    assert redact_values(plain) == {
        "a": [1, f"x {REDACTED}", None, True],
        "b": {"c": 0.5, "d": REDACTED, "wandb.key": REDACTED},
    }
