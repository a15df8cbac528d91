"""Where a text without a prompt starts, of what a model was trained on."""

import pytest

import minigpt
from minigpt.sampling.write import start_tokens

RECORDS = "\n".join(f"name{number}" for number in range(100))


@pytest.mark.parametrize(("separator", "start"), [(["data.separator=\\n"], [256]), ([], [256, 10])])
def test_a_text_starts_from_end_of_text_if_the_training_text_showed_what_follows(run, separator, start):
    (run.folder / "text.txt").write_text(RECORDS)
    assert start_tokens(minigpt.load(run("trainer.max_steps=2", *separator)).tokenizer)[0] == start
