"""Questions that are conversations: their forms, what ends an answer, and which are too long."""

import json

import pytest
import torch

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.commands import EvaluateConfig
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.evaluation.evaluate import evaluate
from minigpt.faults import UserFault

TOKENIZER = with_roles(build_tokenizer("byte"))


class Parrot(torch.nn.Module):
    """Behind each token the likeliest is one certain other."""

    def __init__(self, follows):
        super().__init__()
        self.vocab_size, self.config = TOKENIZER.vocab_size, ModelConfig(block_size=12)
        self.token_embedding = torch.nn.Embedding(self.vocab_size, self.vocab_size)
        torch.nn.init.zeros_(self.token_embedding.weight)
        for before, behind in follows.items():
            self.token_embedding.weight.data[before, behind] = 9.0

    def forward(self, tokens):
        return self.token_embedding(tokens)


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Asks a model that answers "b", and ends as it is told, the questions of some records."""

    def asked(*records, end="<|end|>"):
        model = Parrot({TOKENIZER.special["<|assistant|>"]: ord("b"), ord("b"): TOKENIZER.special[end]})
        loaded = LoadedCheckpoint(model, TOKENIZER, TrainConfig(model=model.config), {}, tmp_path)
        monkeypatch.setattr("minigpt.evaluation.evaluate.load_checkpoint", lambda path, which: loaded)
        (file := tmp_path / "questions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        evaluate(EvaluateConfig(checkpoint="model", questions=[str(file)], json=str(tmp_path / "json")))
        return json.loads((tmp_path / "json").read_text())["accuracy"], capsys.readouterr().out

    return asked


def exchange(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.mark.parametrize("end", TOKENIZER.special)
def test_any_control_token_ends_an_answer(ask, end):
    assert ask(exchange("a", "b"), exchange("a", "bb"), end=end)[0] == 0.5


def test_a_question_may_have_each_form_of_a_conversation_and_what_else_a_row_holds(ask):
    forms = [
        exchange("a", "b") | {"id": 1},
        {"prompt": "a", "completion": "b"},
        {"prompt": exchange("a", "b")["messages"][:1], "completion": exchange("a", "b")["messages"][1:], "task": "t"},
    ]
    accuracy, said = ask(*forms)
    assert accuracy == 1.0
    assert "1 of 1" in said
    assert "longer" not in said
    with pytest.raises(UserFault, match=r"the record has 'completion'"):
        ask({"completion": "b"})
    with pytest.raises(UserFault, match=r"both 'messages' and 'completion'"):
        ask(exchange("a", "b") | {"completion": "c"})
