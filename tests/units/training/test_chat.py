"""Runs on conversations: begun from a base without roles, shown, continued to the bytes, sampled, exported."""

import json

import pytest
import torch

from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.data.chat.roles import has_roles
from minigpt.faults import UserFault
from minigpt.training.run import train

CHAT = ["data=chat", "model.block_size=32", "batch_tokens=128", "trainer.precision=fp32"]


@pytest.fixture
def chat(run, capsys):
    """Trains on conversations; arguments as of TinyRun."""
    source = run.folder / "talks.jsonl"
    rows = [{"prompt": f"say {n}", "completion": f"it is {n}"} for n in range(90)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(name, *extra, train=run):
        run.path = run.folder / name
        return train(*CHAT, f"data.source={source}", *extra), capsys.readouterr().out

    start.run = run
    return start


def test_a_run_on_conversations_shows_what_it_learns_and_continues_exactly(chat):
    samples = ["samples.every_steps=6", "samples.prompt=say 3", "samples.max_new_tokens=5"]
    path, said = chat("whole", *samples, train=chat.run.continued)
    assert "tokens are learned" in said
    assert said.index("[[it is ") < said.index("step 1/6")
    assert "sample at step 6" in said
    assert "say 3" not in (path / "samples.jsonl").read_text()


def test_a_model_without_roles_learns_them_and_keeps_what_it_knew(chat):
    base = chat.run("model.block_size=32", "batch_tokens=128")
    path, _ = chat("tuned", f"init.from={base}", "trainer.max_steps=1", "optimizer.lr=1e-30")
    known, tuned = load_checkpoint(base), load_checkpoint(path)
    assert has_roles(tuned.tokenizer)
    assert not has_roles(known.tokenizer)
    theirs, ours = (loaded.model.token_embedding.weight for loaded in (known, tuned))
    torch.testing.assert_close(ours[:257], theirs[:257], rtol=0, atol=1e-20)
    assert (ours[257:261].std(dim=1) > 0).all()
    text = f"{chat.run.folder / 'text.txt'}"
    for name, data in {"back": ["data=text", f"data.source={text}"], "mixed": [f"data.mix={{{text}: 1}}"]}.items():
        chat.run.path = chat.run.folder / name
        words = [word for word in chat.run.arguments() if "data.source" not in word and word != "data=text"]
        words += [*data, "model.block_size=32", f"init.from={path}", "trainer.max_steps=1", "optimizer.lr=1e-30"]
        assert train(compose("train", words)) == train(compose("train", words)) == 0  # and continues
        back = load_checkpoint(chat.run.path)
        assert back.tokenizer.hash == tuned.tokenizer.hash
        torch.testing.assert_close(back.model.token_embedding.weight, ours, rtol=0, atol=1e-20)


def test_beside_an_adapter_the_embeddings_of_roles_learn_and_all_others_stay(chat):
    base = chat.run("model.block_size=32", "batch_tokens=128")
    words = [f"init.from={base}", "adapter=lora", "schedule=constant", "optimizer.lr=1e-2"]
    begun, _ = chat("begun", *words, "trainer.max_steps=2", "optimizer.lr=1e-30")
    whole, _ = chat("whole", *words, train=chat.run.continued)
    known, first, last = (load_checkpoint(path).model.token_embedding.weight for path in (base, begun, whole))
    assert torch.equal(last[:257], known[:257])
    assert ((last - first)[257:261].abs().mean(dim=1) > 1e-3).all()


def talks_of(*lengths):
    rows = [{"prompt": "q" * length, "completion": "yes"} for length in lengths]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_context_that_reaches_no_answer_is_refused_before_the_first_step(chat, tmp_path):
    val = tmp_path / "val.jsonl"
    val.write_text(talks_of(100, 90, 110))
    with pytest.raises(UserFault, match=r"of the val split begins within model.block_size=32.*block_size=92 or more"):
        chat("far", f"data.val_source={val}")
    (chat.run.folder / "train.jsonl").write_text(talks_of(*range(100, 150)))
    val.write_text(talks_of(*range(10)))
    with pytest.raises(UserFault, match=r"of the train split begins within model.block_size=32"):
        chat("far", f"data.source={chat.run.folder / 'train.jsonl'}", f"data.val_source={val}")
    assert not (chat.run.folder / "far").exists()


def test_a_step_without_an_answer_leaves_the_weights_and_is_not_bad(chat, tmp_path):
    source, val = tmp_path / "mixed.jsonl", tmp_path / "val.jsonl"
    source.write_text(talks_of(*range(100, 160), 3))  # one conversation of 61 is learned, and that in one step of 16
    val.write_text(talks_of(3))
    words = [f"data.source={source}", f"data.val_source={val}", "optimizer.weight_decay=0.1", "logger.every_steps=1"]
    path, said = chat("empty", *words, "trainer.max_steps=3", "checkpoint.every_steps=1", "guard.max_skips=1")
    assert "skipped" not in said
    assert "step 1/3  33%  no loss" in said  # and not that one is NaN
    weights = [load_checkpoint(each).model.token_embedding.weight for each in sorted(path.glob("checkpoints/step-*"))]
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/loss"] is None for row in rows] == [True, True, True]
    assert all(torch.equal(weights[0], each) for each in weights[1:])
