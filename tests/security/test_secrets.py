"""No secret is written down."""

import json
import sys

import pytest
import yaml

from minigpt.config.compose import compose
from minigpt.training.run import train
from tests.security.stranger import TINY

CANARIES = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYCANARYKEY",
    "HF_TOKEN": "hf_canarycanarycanarycanary",
    "OPENAI_API_KEY": "sk-canarycanarycanarycanary",
    "GITHUB_TOKEN": "ghp_canarycanarycanarycanary0000",
    "MY_PASSWORD": "correct-horse-battery",
}


def test_no_secret_of_the_environment_reaches_disk_or_screen(tmp_path, monkeypatch, capsys):
    """Canaries in variables, the path of the text, a prompt and the command line; begun, crashed, continued."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / f"user:{CANARIES['HF_TOKEN']}@host" / CANARIES["MY_PASSWORD"]
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(200)))
    keys = [*TINY, f"data.source={folder}/text.txt", f"data.dir={tmp_path}/data", f"run.dir={tmp_path}/run"]
    keys += [f"samples.prompt=my key is {CANARIES['AWS_SECRET_ACCESS_KEY']}"]
    monkeypatch.setattr(sys, "argv", ["train.py", *keys, f"api_key={CANARIES['OPENAI_API_KEY']}"])

    def crash(*_, **__):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("minigpt.training.saving.Saving.save", crash)
        with pytest.raises(RuntimeError, match="a bug"):
            train(compose("train", keys))
    assert train(compose("train", keys)) == 0
    assert train(compose("train", [*keys, "trainer.max_steps=8"])) == 0
    out = "".join(capsys.readouterr())
    assert [name for name, value in CANARIES.items() if value in out.replace(str(folder), "")] == []
    for place in (tmp_path / "run", tmp_path / "data"):
        files = [file for file in place.rglob("*") if file.is_file() and file.name not in ("loss.png", "samples.jsonl")]
        assert len(files) > 5
        found = [
            (file, name) for file in files for name, value in CANARIES.items() if value.encode() in file.read_bytes()
        ]
        assert found == []
        assert not [file for file in files for value in CANARIES.values() if value in str(file.relative_to(place))]


def test_the_record_of_a_run_holds_no_variable_of_the_environment(made):
    record = json.loads((made / "run" / "environment.json").read_text())
    assert set(record) == {"minigpt", "commit", "python", "torch", "lightning", "platform", "machine", "cpus", "gpus"}
    saved = yaml.safe_load((made / "run" / "config.yaml").read_text())
    assert "environ" not in str(saved).lower()
