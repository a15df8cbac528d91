"""data.val_source: a validation text of one's own, of which nothing is trained on."""

import json

import pytest

from minigpt.config.check import check, find_notes
from minigpt.config.schema import DataConfig, TokenizerConfig, TrainConfig
from minigpt.data.prepared import describe
from minigpt.data.preparing.prepare import prepare
from minigpt.faults import UserFault


@pytest.fixture
def texts(tmp_path):
    """A folder of training texts, with a validation text in it and another beside it."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.txt").write_text("to train on, naïve")
    (tmp_path / "all" / "b.txt").write_text("more of it")
    (tmp_path / "all" / "val.txt").write_text("held out")
    (tmp_path / "other.jsonl").write_text('{"text": "one"}\n{"text": "twö"}\n')
    return tmp_path


def prepared_from(folder, name="byte", **keys):
    said = []
    data = DataConfig(name="text", dir=str(folder / "data"), **{key: str(folder / path) for key, path in keys.items()})
    return prepare(data, TokenizerConfig(name), say=said.append), said


def streams(prepared) -> list[str]:
    """Training and validation text, with | for end-of-text."""
    both = (split.tokens(0, len(split)) for split in (prepared.train, prepared.val))
    texts = (b"".join(prepared.tokenizer.token_bytes(token) or b"|" for token in tokens) for tokens in both)
    return [text.decode() for text in texts]


def test_all_of_one_text_is_trained_on_and_all_of_the_other_validates(texts):
    prepared, said = prepared_from(texts, source="all/a.txt", val_source="other.jsonl")
    assert streams(prepared) == ["to train on, naïve", "one|twö"]
    assert (prepared.train.bytes, prepared.val.bytes) == (19, 7)
    rule = f"all of {texts / 'other.jsonl'} for validation"
    assert rule in "\n".join(describe(prepared))
    assert rule in said[-1]
    again, said = prepared_from(texts, source="all/a.txt", val_source="other.jsonl")
    assert (again.folder, len(said)) == (prepared.folder, 1)


def test_a_validation_file_in_the_folder_is_not_trained_on(texts):
    prepared, said = prepared_from(texts, source="all", val_source="all/val.txt")
    assert streams(prepared) == ["to train on, naïve|more of it", "held out"]
    assert "data: left out 1 of data.source: in data.val_source" in said
    whole, _ = prepared_from(texts, source="all", val_source="other.jsonl")
    assert streams(whole)[0] == "to train on, naïve|more of it|held out"
    assert whole.fingerprint != prepared.fingerprint


def test_an_alphabet_covers_both_texts(texts):
    prepared, _ = prepared_from(texts, name="char", source="all/b.txt", val_source="other.jsonl")
    assert streams(prepared) == ["more of it", "onetwö"]


def test_it_names_the_tokens_and_val_fraction_no_longer_does(texts):
    folders = {
        prepared_from(texts, source="all/a.txt", val_source=name)[0].folder for name in ("other.jsonl", "all/b.txt")
    }
    assert len(folders) == 2
    data = DataConfig("text", str(texts / "all/a.txt"), str(texts / "all/b.txt"), str(texts / "data"), val_fraction=0.3)
    assert prepare(data, TokenizerConfig("byte"), say=lambda line: None).folder in folders
    keys = json.loads(next(iter(folders)).joinpath("prepared.json").read_text())["keys"]
    assert keys["val_fraction"] == 0


def test_tokens_outlive_a_validation_text_that_is_gone(texts):
    first, _ = prepared_from(texts, source="all/a.txt", val_source="other.jsonl")
    (texts / "other.jsonl").unlink()
    again, said = prepared_from(texts, source="all/a.txt", val_source="other.jsonl")
    assert again.folder == first.folder
    assert "does not exist" in said[0]
    config = TrainConfig(data=DataConfig("text", str(texts / "all"), str(texts / "other.jsonl"), str(texts / "data")))
    assert check(config) == []


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"val_source": "nowhere.txt"}, "data.val_source='nowhere.txt' does not exist"),
        ({"val_source": ""}, "data.val_source is empty"),
        ({"name": "stdlib", "source": None}, "data=stdlib has its own validation split"),
    ],
)
def test_what_can_not_be_is_refused_in_a_sentence(texts, monkeypatch, own, says):
    monkeypatch.chdir(texts)
    keys = {"name": "text", "source": "all/a.txt", "val_source": "other.jsonl", **own}
    (fault,) = check(TrainConfig(data=DataConfig(**keys)))
    assert says in fault


def test_a_validation_text_that_holds_all_of_the_other_leaves_nothing_to_train_on(texts):
    with pytest.raises(UserFault, match=r"all of data\.source is in data\.val_source=.*nothing is left to train on"):
        prepared_from(texts, source="all/a.txt", val_source="all")


def test_a_fraction_beside_it_is_noted(texts):
    data = DataConfig("text", str(texts / "all"), str(texts / "other.jsonl"), val_fraction=0.3)
    assert any("data.val_fraction=0.3 is not used" in note for note in find_notes(TrainConfig(data=data)))


def test_a_validation_text_that_is_too_short_is_named(texts):
    (texts / "short.txt").write_text("x")
    with pytest.raises(UserFault, match=r"the val split has 1 token, and predicting .*\. Use more text$"):
        prepared_from(texts, source="all/a.txt", val_source="short.txt")
    (texts / "empty.txt").write_text("")
    with pytest.raises(UserFault, match=r"data\.val_source=.*is empty"):
        prepared_from(texts, source="all/a.txt", val_source="empty.txt")
