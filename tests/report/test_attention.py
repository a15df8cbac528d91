"""Pictures of attention: drawn for any text, labelled so that they can be read."""

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minigpt.report.attention as drawing
from minigpt.attention.masks import causal_mask
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT
from minigpt.report.attention import attention_to, draw_attention, draw_heads, draw_masks, token_labels

ROOT = Path(__file__).parents[2]
BYTES = Tokenizer("byte", [bytes([byte]) for byte in range(256)])
PNG = b"\x89PNG\r\n\x1a\n"


def loaded(path=Path("lone"), n_layer=2, attention="softmax"):
    torch.manual_seed(0)
    config = TrainConfig(model=ModelConfig(n_layer=n_layer, n_head=3, n_embd=12, block_size=20, attention=attention))
    model = GPT(config.model, BYTES.vocab_size).eval()
    return SimpleNamespace(model=model, tokenizer=BYTES, config=config, path=path)


@pytest.fixture
def only_our_font(monkeypatch):
    from matplotlib.font_manager import fontManager

    monkeypatch.setattr(fontManager, "ttflist", [font for font in fontManager.ttflist if font.name == drawing.FONT])
    drawing._font_with.cache_clear()
    yield
    drawing._font_with.cache_clear()


@pytest.mark.usefixtures("only_our_font")
def test_labels_show_white_space_bytes_and_long_runs():
    words = [b" the", b"\n", b"\t", b"        ", b"\xe2\x82", "é".encode(), b"x" * 20, b"\x00", b"a\r\n", "漢".encode()]
    tokenizer = SimpleNamespace(token_bytes=words.__getitem__)
    assert token_labels(tokenizer, range(len(words))) == [
        "␣the", "↵", "⇥", "␣×8", r"\xe2\x82", "é", "x" * 11 + "…", r"\x00", r"a\r↵", r"\u6f22",
    ]  # fmt: skip
    assert token_labels(BYTES, [65, BYTES.eot]) == ["A", "<eot>"]


def test_a_character_of_several_tokens_is_shown_as_a_character():
    assert token_labels(BYTES, list("é€a".encode())) == ["é", "·", "€", "·", "·", "a"]
    assert token_labels(BYTES, list(b"\xe2\x82a\xff")) == [r"\xe2", r"\x82", "a", r"\xff"]


@pytest.mark.usefixtures("only_our_font")
def test_a_character_that_our_font_lacks_is_drawn_from_another(monkeypatch):
    from matplotlib import font_manager

    assert token_labels(BYTES, list("漢".encode())) == [r"\u6f22", "·", "·"]
    drawing._font_with.cache_clear()
    ours, other = font_manager.fontManager.ttflist[0], SimpleNamespace(name="Other", fname="other.ttf")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [other, ours])
    real = drawing.get_font
    other_font = SimpleNamespace(get_charmap=lambda: {ord("漢"): 1, ord("a"): 2})
    monkeypatch.setattr(drawing, "get_font", lambda path: other_font if path == "other.ttf" else real(path))
    assert token_labels(BYTES, list("漢a".encode())) == ["漢", "·", "·", "a"]
    assert (drawing._font_with("漢"), drawing._font_with("a")) == ("Other", drawing.FONT)


@settings(max_examples=30)
@given(text=st.text(min_size=1, max_size=5))
def test_every_text_has_labels_that_the_font_can_draw(text):
    labels = token_labels(BYTES, BYTES.encode(text))
    assert len(labels) == len(text.encode())
    assert all(label and all(map(drawing._font_with, label)) for label in labels)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_the_weights_drawn_are_those_of_the_model_reading_the_text(attention):
    labels, weights = attention_to(loaded(attention=attention), "<|end|>")
    assert labels == list("<|end|>")
    assert list(weights) == ["blocks.0.attention", "blocks.1.attention"]
    for per_head in weights.values():
        assert per_head.shape == (3, 7, 7)
        assert (per_head.triu(1) == 0).all()
        torch.testing.assert_close(per_head.sum(dim=-1), torch.ones(3, 7))


def test_a_picture_per_layer_and_any_text_in_it(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr(drawing, "load_checkpoint", lambda path, which: loaded(run / "checkpoints" / "step-1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # e.g. a glyph missing
        paths = draw_attention(run, "$a_b$ \\ é\n漢")
    assert paths == [run / "attention" / "layer-01.png", run / "attention" / "layer-02.png"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert draw_attention(run, "a", tmp_path / "here")[0].parent == tmp_path / "here"
    assert sorted(path.name for path in (run / "attention").iterdir()) == ["layer-01.png", "layer-02.png"]


def test_a_text_that_does_not_fit_and_a_folder_that_can_not_be_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "load_checkpoint", lambda path, which: loaded())
    with pytest.raises(UserFault, match="text: got an empty one"):
        draw_attention("run", "", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserFault, match="can't write pictures there"):
        draw_attention("run", "a", tmp_path / "file")


def test_of_a_longer_text_the_beginning_is_drawn_and_said(capsys):
    labels, weights = attention_to(loaded(), "x" * 21)
    assert len(labels) == 20
    assert weights["blocks.0.attention"].shape == (3, 20, 20)
    assert "The text has 21 tokens: the first 20 are drawn" in capsys.readouterr().out


def pixels(path):
    from matplotlib.image import imread

    return torch.tensor(imread(path))[..., :3]


def test_rows_are_queries_columns_keys_and_hidden_cells_grey(tmp_path):
    weights = torch.zeros(1, 6, 6)
    weights[0, :, 0] = 1.0  # everybody looks at the first: a dark column at the left
    draw_heads(weights, tmp_path / "column.png", title="a column", rows=list("abcdef"))
    picture = pixels(tmp_path / "column.png")
    dark = (picture - torch.tensor([8, 48, 107]) / 255).abs().amax(dim=-1) < 0.02  # the scale's darkest blue
    grey = (picture - torch.tensor([236, 239, 243]) / 255).abs().amax(dim=-1) < 0.005
    rows, columns = dark[:, : dark.shape[1] * 3 // 4].nonzero(as_tuple=True)  # without the colour bar
    assert rows.max() - rows.min() > 4 * (columns.max() - columns.min())
    assert grey.sum() > 3 * len(rows)
    assert grey.nonzero()[:, 1].float().mean() > columns.float().mean()


def test_masks_of_any_shape_are_drawn(tmp_path):
    draw_masks({"square": causal_mask(3), "wide": causal_mask(2, 5)}, tmp_path / "masks.png", title="masks")
    assert (tmp_path / "masks.png").read_bytes().startswith(PNG)


def test_the_script_ends_with_code_2_before_torch_is_imported():
    command = [sys.executable, str(ROOT / "scripts" / "draw_attention.py"), "text=x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
