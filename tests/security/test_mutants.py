"""No mutant of a stranger's file ends in a traceback."""

import contextlib
import random
import re
import shutil
import time

import pytest
import torch

from minigpt.checkpoint.folder import MANIFEST
from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.data import prepared
from minigpt.data.preparing import prepare
from minigpt.faults import UserFault
from tests.security.stranger import FAULTS, NAMES, arguments, continue_it, copy, newest, reseal


def mutant(content: bytes, dice: random.Random) -> bytes:
    """A file with something wrong in it."""
    place = dice.randrange(len(content) + 1)
    kind = dice.randrange(6)
    if kind == 0 and place < len(content):
        return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
    if kind == 1:
        return content[:place]
    if kind == 2:
        return content[:place] + dice.randbytes(dice.randrange(1, 40)) + content[place:]
    if kind == 3:
        return (
            content[:place]
            + dice.choice([b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"\xff", b"NaN"])
            + content[place:]
        )
    if kind == 4:
        numbers = list(re.finditer(rb"\d+", content[: 1 << 14]))
        found = dice.choice(numbers) if numbers else None
        value = dice.choice([b"0", b"-7", b"99999999999999999999", b"true", b'"x"', b"[[1]]", b"0.5"])
        return content[: found.start()] + value + content[found.end() :] if found else b""
    return dice.randbytes(dice.randrange(200))


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("known", [True, False], ids=["resealed", "as it is"])
def test_no_mutant_of_a_checkpoint_ends_in_a_traceback(foreign, known, count):
    dice = random.Random(7 + known)
    checkpoint = newest(foreign)
    whole = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    weights = load_checkpoint(checkpoint).model.state_dict()
    used = 0
    for number in range(count):
        name = dice.choice([*NAMES, MANIFEST])
        content = mutant(whole[name], dice)
        (checkpoint / name).write_bytes(content)
        if known and name != MANIFEST:
            reseal(checkpoint)
        began = time.monotonic()
        try:
            loaded = load_checkpoint(checkpoint)
        except FAULTS:
            pass
        else:
            used += 1
            assert known or name == "optimizer.safetensors" or content == whole[name], f"{number}: {name}"
            if name != "model.safetensors":
                assert all(torch.equal(weights[key], value) for key, value in loaded.model.state_dict().items())
        assert time.monotonic() - began < 5
        for file, original in whole.items():
            (checkpoint / file).write_bytes(original)
    assert used < count / 2


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.soak)])
def test_no_mutant_of_prepared_tokens_ends_in_a_traceback(foreign, count):
    dice = random.Random(11)
    (folder,) = foreign.glob("data/text-*")
    names = ["train.json", "val.json", "train-000.bin", "val-000.bin", "tokenizer.json", "prepared.json"]
    whole = {name: (folder / name).read_bytes() for name in names}
    config = compose("train", arguments(foreign))
    fingerprint = prepare.prepare(config.data, config.tokenizer, say=str).fingerprint
    for _ in range(count):
        name = dice.choice(names)
        (folder / name).write_bytes(mutant(whole[name], dice))
        began = time.monotonic()
        try:
            found = prepare.prepare(config.data, config.tokenizer, say=str)
            prepared.describe(found)
            assert found.fingerprint == fingerprint
        except UserFault:
            pass
        assert time.monotonic() - began < 5
        for other in folder.iterdir():
            if other.name not in whole:
                other.unlink()
        for file, original in whole.items():
            (folder / file).write_bytes(original)


@pytest.mark.soak
def test_no_mutant_of_a_run_directory_ends_in_a_traceback(made, tmp_path):
    dice = random.Random(13)
    for number in range(60):
        place = copy(made, tmp_path / str(number))
        names = [
            file for file in (place / "run").rglob("*") if file.suffix in (".json", ".jsonl", ".yaml", ".safetensors")
        ]
        file = dice.choice(sorted(names))
        file.write_bytes(mutant(file.read_bytes(), dice))
        if file.parent.name.startswith("step") and file.name != MANIFEST:
            reseal(file.parent)
        with contextlib.suppress(*FAULTS):
            continue_it(place)
        shutil.rmtree(place)
