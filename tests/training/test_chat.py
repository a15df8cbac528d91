"""Runs on conversations: begun from a base without roles, shown, continued to the bytes, sampled, exported."""

import json

import pytest
import torch
from tests.export.test_export import SHAPES

from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.compose import compose
from minigpt.data.chat.roles import CONTROL, has_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.evaluation.command import evaluate
from minigpt.evaluation.questions import encode_questions, read_questions
from minigpt.export import export
from minigpt.faults import UserFault
from minigpt.sampling.conversation import turn_of
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.generate import Reader, TextInProgress
from minigpt.sampling.write import gpt_forward, write_texts
from minigpt.stages import train_in_stages
from minigpt.training.run import train

CHAT = ["data=chat", "model.block_size=32", "batch_tokens=128", "trainer.precision=fp32"]


@pytest.fixture
def chat(run, capsys):
    """Trains on conversations; arguments as of TinyRun."""
    source = run.folder / "talks.jsonl"
    rows = [{"prompt": f"say {n}", "completion": f"it is {n}"} for n in range(90)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(name, *extra, code=0):
        run.path = run.folder / name
        words = [word for word in run.arguments() if "data.source" not in word and word != "data=text"]
        assert train(compose("train", [*words, *CHAT, f"data.source={source}", *extra])) == code
        return run.path, capsys.readouterr().out

    start.run = run
    return start


def weights_of(path):
    (last,) = sorted((path / "checkpoints").glob("step-*"))[-1:]
    return (last / "model.safetensors").read_bytes(), (last / "optimizer.safetensors").read_bytes()


def test_a_run_on_conversations_shows_what_it_learns_and_continues_exactly(chat):
    _, said = chat("whole", "samples.every_steps=6", "samples.prompt=say 3", "samples.max_new_tokens=5")
    assert "tokens are learned" in said
    assert said.index("[[it is ") < said.index("step 1/6")
    assert "sample at step 6" in said
    chat("stopped", "checkpoint.every_steps=2", "trainer.max_steps=4", "schedule=constant", "schedule.warmup_steps=0")
    path, _ = chat("stopped", "checkpoint.every_steps=2", "schedule=constant", "schedule.warmup_steps=0")
    straight, _ = chat("straight", "schedule=constant", "schedule.warmup_steps=0")
    assert weights_of(path) == weights_of(straight)


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


def test_what_conversations_can_not_do_is_said_at_once(chat):
    for words, sentence in (
        (["tokenizer=char"], "tokenizer=char has none"),
        (["data.source="], "data=chat needs your conversations"),
        (["data=tasks"], "data=tasks would ignore data.source"),
    ):
        with pytest.raises(UserFault, match=sentence):
            chat("refused", *words)


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


def test_the_smallest_context_that_is_named_trains(chat, tmp_path):
    val = tmp_path / "val.jsonl"
    val.write_text(talks_of(100, 30, 110))
    chat("near", f"data.val_source={val}", "trainer.max_steps=1")


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


def test_several_devices_are_told_to_train_the_first_alone():
    with pytest.raises(UserFault, match=r"then init\.from=ITS_RUN"):
        compose("train", ["experiment=chat_tiny", "trainer=ddp", "trainer.devices=2"])
    with pytest.raises(UserFault, match=r"init\.experiment='a b' names no file"):
        compose("train", ["init.experiment=a b"])


def test_an_experiment_is_trained_first_and_its_weights_taken(chat):
    seen = []
    config = compose("train", ["experiment=chat_tiny", f"run.dir={chat.run.folder / 'two'}", "trainer.threads=1"])
    config.data.name = "stdlib"

    def trained(each):
        seen.append((each.experiment, each.run.dir, each.init.source, each.trainer.threads))
        return 0 if len(seen) > 1 else 75

    assert train_in_stages(config, ["trainer.threads=1", "run.dir=two"], trained) == 75
    first = ("chat_tiny_base", f"{chat.run.folder / 'two'}-chat_tiny_base", None, 1)
    assert seen == [first]
    assert train_in_stages(config, ["trainer.threads=1"], trained) == 0
    assert seen[1:] == [first, ("chat_tiny", str(chat.run.folder / "two"), first[1], 1)]


def test_of_several_ranks_the_first_answers_the_questions(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("minigpt.stages.evaluate", asked.append)
    config = compose("train", ["data=tasks", f"run.dir={tmp_path / 'run'}"])
    for rank in range(2):
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", "1")
        assert train_in_stages(config, [], lambda _: 0) == 0
        assert len(asked) == 1


def test_an_export_takes_the_template_along_and_comes_back(chat, tmp_path):
    path, _ = chat("told", "trainer.max_steps=2", *SHAPES["qwen3"])
    export(compose("export", [f"checkpoint={path}", f"dir={tmp_path / 'out'}"]), lambda line: None)
    config, generation, tokens = (
        json.loads((tmp_path / "out" / name).read_text())
        for name in ("tokenizer_config.json", "generation_config.json", "tokenizer.json")
    )
    assert (config["eos_token"], generation["eos_token_id"]) == ("<|end|>", [260, 256])
    assert "<|assistant|>" in config["chat_template"]
    assert [each["content"] for each in tokens["added_tokens"]] == ["<|endoftext|>", *CONTROL]
    ours, back = load_checkpoint(path), load_checkpoint(tmp_path / "out")
    messages = [{"role": "user", "content": "say <|end|>"}]
    assert turn_of(back.tokenizer, messages).tokens == turn_of(ours.tokenizer, messages).tokens
    assert turn_of(back.tokenizer, messages).ends >= {260}


def test_questions_of_messages_are_scored_task_by_task(chat, capsys):
    path, _ = chat("asked", "trainer.max_steps=60", "model.n_embd=32", "optimizer.lr=0.01", "validate.every_steps=0")
    file = chat.run.folder / "questions.jsonl"
    rows = [("known", f"say {n}", f"it is {n}") for n in range(5)] + [
        ("unknown", "hm", "x"),
        ("unknown", "say 1", "it"),
    ]
    roles = ("user", "assistant")
    file.write_text(
        "".join(
            json.dumps(
                {
                    "task": task,
                    "messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)],
                }
            )
            + "\n"
            for task, *texts in rows
        )
    )
    evaluate(compose("evaluate", [f"checkpoint={path}", f"questions={file}", f"json={file}.json"]))
    figures, said = json.loads((file.parent / f"{file.name}.json").read_text()), capsys.readouterr().out
    loaded = load_checkpoint(path)
    right = [asked(loaded, question) == answer for _, question, answer in rows]
    assert figures["tasks"] == {"known": sum(right[:5]) / 5, "unknown": 0.0}
    assert figures["accuracy"] == pytest.approx(sum(right) / 7)
    assert f"known{sum(right[:5]) / 5:>19.2%}  {sum(right[:5])} of 5" in said


def asked(loaded, question):
    """What the model answers, token by token."""
    turn = turn_of(loaded.tokenizer, [{"role": "user", "content": question}])
    text = TextInProgress(turn.tokens, SamplingOptions(temperature=0.0, max_new_tokens=20), ends=turn.ends)
    write_texts(Reader(gpt_forward(loaded.model), 32, loaded.model.new_cache), loaded.tokenizer, [text])
    return text.text


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "must end with an answer of the assistant"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "has the role 'robot'"),
        ({"task": 3, "context": "a", "answer": "b"}, "task must be a name"),
    ],
)
def test_questions_that_are_none_are_named(tmp_path, row, sentence):
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserFault, match=f"line 1: .*{sentence}"):
        read_questions(tmp_path / "q.jsonl")


def test_messages_are_not_asked_of_a_model_without_roles(tmp_path):
    (tmp_path / "q.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    )
    questions = read_questions(tmp_path / "q.jsonl")
    with pytest.raises(UserFault, match="trained on conversations"):
        encode_questions(build_tokenizer("byte"), questions, 8, tmp_path)
