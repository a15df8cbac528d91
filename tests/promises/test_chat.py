"""`minigpt chat` talks: it reads all that was said, in the roles it was trained on, and forgets the oldest first."""

import io
import sys

import pytest
import torch

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.cli import _dispatch
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.formats.tokenizer_json import read_tokenizer
from minigpt.model.gpt import GPT
from minigpt.sampling import chat as chat_module
from minigpt.sampling.chat import Conversation
from minigpt.sampling.conversation import turn_of
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.generate import Reader
from minigpt.sampling.interactive import prompt_loop
from minigpt.sampling.write import gpt_forward, texts_of, write_texts
from tests.units.formats.reference import CHAT_TEMPLATES, write_chat_tokenizer

BYTE = with_roles(build_tokenizer("byte"))
END = BYTE.special["<|end|>"]


def says(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def loaded(tmp_path):
    torch.manual_seed(2)
    config = TrainConfig(model=ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=64))
    return LoadedCheckpoint(GPT(config.model, BYTE.vocab_size).eval(), BYTE, config, {}, tmp_path)


@pytest.fixture
def talk(loaded, monkeypatch, capsys):
    """A conversation after these lines, and what was shown and noted."""

    def run(*lines, system=None, forward=None, **options):
        forward = forward or gpt_forward(loaded.model, vocab_size=BYTE.vocab_size)
        conversation = Conversation(loaded, forward, system)
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        options = SamplingOptions(**{"max_new_tokens": 6, "temperature": 0.0, **options})
        prompt_loop(options, conversation.answer, conversation.reset)
        captured = capsys.readouterr()
        return conversation, captured.out, captured.err

    return run


def answer_to(loaded, messages, max_new_tokens=6):
    turn = turn_of(BYTE, messages)
    options = SamplingOptions(max_new_tokens=max_new_tokens, temperature=0.0)
    (text,) = texts_of([turn.tokens], options, 1, turn.ends)
    write_texts(Reader(gpt_forward(loaded.model), 64, None), BYTE, [text])
    return text.text


def test_the_model_reads_all_that_was_said_and_forgets_it_when_told(talk, loaded):
    conversation, out, err = talk("hi", "yes?", "/reset now", "hi", system="s", max_new_tokens=3)
    first = answer_to(loaded, [says("system", "s"), says("user", "hi")], 3)
    said = [says("system", "s"), says("user", "hi"), says("assistant", first), says("user", "yes?")]
    assert out == f"{first}\n{answer_to(loaded, said, 3)}\n{first}\n"
    assert conversation.messages == [says("user", "hi"), says("assistant", first)]
    assert "forgotten" in err


def test_commands_set_options_and_text_with_two_slashes_is_a_message(talk):
    conversation, _, err = talk(
        "/temperature 0.5", "/temperature x", "/max_new_tokens 2", "/help", "", "//a", "/rest", "/quit now", "b"
    )
    assert "temperature = 0.5" in err
    assert "temperature must be a number, got 'x'" in err
    assert "/reset               forget the conversation" in err
    assert "no command /rest" in err
    assert [message["content"] for message in conversation.messages[::2]] == ["/a"]


def test_an_answer_ends_with_its_token_and_roles_in_a_text_stay_text(talk):
    answers = iter([*b"ok", END, *b"no", BYTE.eot, *b"me", BYTE.special["<|user|>"]])

    def forward(tokens, lengths, cache):
        token = next(answers) if tokens.shape[1] == 1 else 0  # several are the message being read
        return torch.nn.functional.one_hot(torch.tensor([token]), BYTE.vocab_size).float()

    conversation, out, _ = talk("<|assistant|>", "b", "c", forward=forward)
    assert out == "ok\nno\nme\n"
    assert [message["content"] for message in conversation.messages] == ["<|assistant|>", "ok", "b", "no", "c", "me"]
    assert turn_of(BYTE, conversation.messages[:1]).tokens[1:-1] == list(b"<|assistant|>")


def test_the_oldest_exchanges_are_left_out_where_the_context_is_full(talk, loaded):
    lines = [f"message {number} {'x' * 10}" for number in range(4)]
    conversation, out, err = talk(*lines, system="s")
    assert err.count("note: the model reads 64 tokens: the oldest messages are left out from now on") == 1
    kept = [says("system", "s"), *conversation.messages[-4:-1]]
    assert len(turn_of(BYTE, kept).tokens) <= 64 - 6
    assert out.splitlines()[-1] == answer_to(loaded, kept)


def test_a_message_that_the_context_can_not_hold_is_refused_and_forgotten(talk):
    conversation, _, err = talk("one", "x" * 61, "two", max_new_tokens=2)
    assert "the model reads 64 tokens, of which 2 are for the answer; these messages have 63" in err
    assert [message["content"] for message in conversation.messages[::2]] == ["one", "two"]
    assert "left out" not in err
    assert "these messages have 66" in talk("a", system="x" * 62)[2]


def test_ctrl_c_stops_the_answer_only(talk):
    steps = iter(range(100))

    def forward(tokens, lengths, cache):
        if next(steps) == 2:  # the first call reads the message, each other one makes a token
            raise KeyboardInterrupt
        return torch.nn.functional.one_hot(torch.tensor([97]), BYTE.vocab_size).float()

    conversation, out, err = talk("one", "two", forward=forward, max_new_tokens=4)
    assert out == "a\naaaa\n"
    assert "[stopped]" in err
    assert [message["content"] for message in conversation.messages] == ["one", "a", "two", "aaaa"]


def test_the_command_talks_and_a_model_without_roles_gets_a_transcript(loaded, monkeypatch, capsys, tmp_path):
    loaded.tokenizer = plain = build_tokenizer("byte")
    monkeypatch.setattr(chat_module, "load", lambda config: loaded)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert _dispatch(["chat", f"checkpoint={tmp_path}", "max_new_tokens=3", "compile=off"]) == 0
    captured = capsys.readouterr()
    assert "The model reads a plain transcript" in captured.err
    assert "3 tokens in" in captured.err
    turn = turn_of(plain, [says("user", "hi")])
    assert (BYTE.decode(turn.tokens), turn.stop) == ("User: hi\nAssistant:", ["\nUser:"])


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (CHAT_TEMPLATES["chatml"], None),
        ("{{ messages[0].content.__class__.__mro__ }}", "SecurityError"),
        ("{% for message in messages %}", "TemplateSyntaxError"),
        ("{{ raise_exception('no system messages') }}", "no system messages"),
        ("{% for _ in range(9999) %}{{ bos_token * 99 }}{% endfor %}", "more than 1,048,576 characters"),
        ({"no": "text"}, "TypeError"),
    ],
)
def test_another_programs_template_is_used_in_a_sandbox(tmp_path, loaded, monkeypatch, capsys, template, says):
    loaded.tokenizer = read_tokenizer(write_chat_tokenizer(tmp_path, template))
    loaded.model = GPT(loaded.model.config, loaded.tokenizer.vocab_size).eval()
    monkeypatch.setattr(chat_module, "load", lambda config: loaded)
    monkeypatch.setattr(sys, "stdin", io.StringIO("wood <|im_end|>\n"))
    assert _dispatch(["chat", f"checkpoint={tmp_path}", "max_new_tokens=3", "compile=off"]) == 0
    said = capsys.readouterr().err
    assert "The model reads messages by its own chat_template." in said
    assert ("tokens in" in said) == (says is None)
    assert says is None or f"chat_template does not take these messages ({says}" in said.replace("ValueError: ", "")
