"""Messages for another program's chat model become the tokens of transformers' apply_chat_template."""

import pytest

from minigpt.formats.tokenizer_json import read_tokenizer
from minigpt.sampling.conversation import turn_of
from tests.units.formats.reference import CHAT_TEMPLATES, write_chat_tokenizer

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-extras")


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("name", CHAT_TEMPLATES)
def test_the_tokens_are_those_of_transformers(tmp_path, name, as_file):
    path = write_chat_tokenizer(tmp_path, CHAT_TEMPLATES[name], as_file=as_file)
    messages = [
        {"role": "system", "content": " be  brief\n"},
        {"role": "user", "content": "wöuld chuck {{ 1 }}"},
        {"role": "assistant", "content": "how much "},
        {"role": "user", "content": "wood\n"},
    ]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for talk in (messages, messages[1:2]):
        ids = theirs.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
        turn = turn_of(read_tokenizer(path), talk)
        assert turn.tokens == ids
        assert {7, theirs.convert_tokens_to_ids("<|im_end|>")} < turn.ends
