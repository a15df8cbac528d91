"""Where a text without a prompt starts, of what a model was trained on."""

import pytest

import minigpt
from minigpt.sampling.write import start_tokens

SMALL = ["model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.block_size=8", "batch_tokens=32"]
SMALL += ["trainer.max_steps=2"]
RECORDS = "\n".join(f"name{number}" for number in range(100))


@pytest.mark.parametrize(("separator", "start"), [(["data.separator=\\n"], [256]), ([], [256, 10])])
def test_a_text_starts_from_end_of_text_if_the_training_text_showed_what_follows(tmp_path, separator, start):
    (tmp_path / "names.txt").write_text(RECORDS)
    where = [f"data.source={tmp_path / 'names.txt'}", f"data.dir={tmp_path}", f"run.dir={tmp_path / 'run'}"]
    run = minigpt.train(["data=text", "tokenizer=byte", *where, *separator, *SMALL])
    assert start_tokens(run.load().tokenizer)[0] == start
