"""minigpt chat: history, /reset, options, a context that is full, and Ctrl-C."""

import io
import sys

import pytest
import torch

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.compose import compose
from minigpt.config.schema import ModelConfig, SampleConfig, TrainConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from minigpt.sampling.chat import Conversation, chat, talk
from minigpt.sampling.conversation import turn_of
from minigpt.sampling.write import gpt_forward, write_answer

BYTE = with_roles(build_tokenizer("byte"))
END = BYTE.special["<|end|>"]


def say(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def loaded(tmp_path):
    torch.manual_seed(2)
    config = TrainConfig(model=ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=64))
    return LoadedCheckpoint(GPT(config.model, BYTE.vocab_size).eval(), BYTE, config, {}, tmp_path)


@pytest.fixture
def spoken(loaded, monkeypatch, capsys):
    """A conversation after these lines, and what was shown and said."""

    def run(*lines, system=None, forward=None, **options):
        forward = forward or gpt_forward(loaded.model, vocab_size=BYTE.vocab_size)
        conversation = Conversation(loaded, forward, system)
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        talk(conversation, SampleConfig(**{"checkpoint": ".", "max_new_tokens": 6, "temperature": 0.0, **options}))
        captured = capsys.readouterr()
        return conversation, captured.out, captured.err

    return run


def answer_to(loaded, messages, **options):
    pieces = []
    model, turn = loaded.model, turn_of(BYTE, messages)
    options = SampleConfig(**{"max_new_tokens": 6, "temperature": 0.0, **options})
    write_answer(gpt_forward(model), BYTE, turn, options, block_size=64, on_text=pieces.append)
    return "".join(pieces)


def test_the_model_reads_all_that_was_said_and_forgets_it_when_told(spoken, loaded):
    conversation, out, err = spoken("hi", "yes?", "/reset", "hi", system="s", max_new_tokens=3)
    first = answer_to(loaded, [say("system", "s"), say("user", "hi")], max_new_tokens=3)
    asked = [say("system", "s"), say("user", "hi"), say("assistant", first), say("user", "yes?")]
    assert out == f"{first}\n{answer_to(loaded, asked, max_new_tokens=3)}\n{first}\n"
    assert conversation.messages == [say("user", "hi"), say("assistant", first)]
    assert "forgotten" in err


def test_commands_set_options_and_text_with_two_slashes_is_a_message(spoken):
    conversation, _, err = spoken("/temperature 0.5", "/temp x", "/len 2", "/help", "", "//a", "/rest")
    assert "temperature = 0.5" in err
    assert "temperature must be a number, got 'x'" in err
    assert "/reset   forget the conversation" in err
    assert "no command /rest" in err
    assert conversation.messages[0] == say("user", "/a")
    assert "seed 1337" in err


def test_an_answer_ends_with_its_token_and_roles_in_a_text_stay_text(spoken):
    answers = iter([*b"ok", END, *b"no", BYTE.eot, *b"me", BYTE.special["<|user|>"]])

    def forward(tokens, lengths, cache):
        token = next(answers) if tokens.shape[1] == 1 else 0  # several are the message being read
        return torch.nn.functional.one_hot(torch.tensor([token]), BYTE.vocab_size).float()

    conversation, out, _ = spoken("<|assistant|>", "b", "c", forward=forward, use_cache=False)
    assert out == "ok\nno\nme\n"
    assert [each["content"] for each in conversation.messages] == ["<|assistant|>", "ok", "b", "no", "c", "me"]
    assert turn_of(BYTE, conversation.messages[:1]).tokens[1:-1] == list(b"<|assistant|>")


def test_the_oldest_exchanges_are_left_out_where_the_context_is_full(spoken, loaded):
    lines = [f"message {number} {'x' * 10}" for number in range(4)]
    conversation, out, err = spoken(*lines, system="s")
    assert err.count("note: the model reads 64 tokens: the oldest messages are left out from now on") == 1
    kept = [say("system", "s"), *conversation.messages[-4:-1]]
    assert len(turn_of(BYTE, kept).tokens) <= 64 - 6
    assert out.splitlines()[-1] == answer_to(loaded, kept)


def test_a_message_that_the_context_cannot_hold_is_refused_and_forgotten(spoken):
    conversation, out, err = spoken("x" * 63, "x" * 62, system="", max_new_tokens=2)
    assert err.count("the model reads 64 tokens, and these messages have 66. Send a shorter one") == 1
    assert "have 65" in err
    assert (out, conversation.messages) == ("", [])
    conversation, _, err = spoken("one", "x" * 99, "two", max_new_tokens=2)
    assert [each["content"] for each in conversation.messages[::2]] == ["one", "two"]
    assert "left out" not in err


def test_a_message_of_the_system_that_the_context_cannot_hold_is_refused_at_the_start(spoken):
    assert "have 64" not in spoken(system="x" * 61)[2]
    with pytest.raises(UserFault, match=r"system=: the model reads 64 tokens, and these messages have 65"):
        spoken(system="x" * 62)


def test_words_behind_a_command_that_takes_none_do_not_hide_it(spoken):
    conversation, _, err = spoken("a", "/reset now", "/quit now", "b")
    assert "forgotten" in err
    assert conversation.messages == []


def test_ctrl_c_stops_the_answer_only(spoken):
    steps = iter(range(100))

    def forward(tokens, lengths, cache):
        if next(steps) == 2:  # the first call reads the message, each other one makes a token
            raise KeyboardInterrupt
        return torch.nn.functional.one_hot(torch.tensor([97]), BYTE.vocab_size).float()

    conversation, out, err = spoken("one", "two", forward=forward, max_new_tokens=4)
    assert out == "a\naaaa\n"
    assert "[stopped]" in err
    assert [each["content"] for each in conversation.messages] == ["one", "a", "two", "aaaa"]


def test_a_model_without_roles_gets_a_transcript(loaded):
    plain = build_tokenizer("byte")
    assert turn_of(plain, [say("user", "a")]).stop == ["\nUser:"]


def test_an_adapter_is_put_on_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr("minigpt.sampling.chat.load", lambda options: (_ for _ in ()).throw(UserFault(options.adapter)))
    with pytest.raises(UserFault, match=str(tmp_path)):
        chat(compose("chat", ["checkpoint=.", f"adapter={tmp_path}"]))
