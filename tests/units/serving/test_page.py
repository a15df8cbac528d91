"""The pages' source: self-contained, and without a way for text to become HTML or script."""

import json
import re

import pytest

from minigpt.config.commands import LookConfig
from minigpt.serving import look as look_module
from minigpt.serving.look import AT_REST, FOLDER, SERVER, look, page_of

EVIL = "</script><script>alert(1)</script><!-- \u2028 ]]>"


@pytest.mark.parametrize("modules", [SERVER, AT_REST])
def test_every_module_stands_after_those_it_imports_and_shares_no_name(modules):
    names = []
    for place, module in enumerate(modules):
        source = (FOLDER / f"{module}.js").read_text()
        assert set(re.findall(r'^import \{.*\} from "\./(\w+)\.js";$', source, re.M)) <= set(modules[:place]), module
        names += re.findall(r"^(?:export )?(?:async )?(?:function\*?|const|let) (\w+)", source, re.M)
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc", "http"):
            assert way not in source, way  # text enters as text, and nothing comes from elsewhere
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("modules", [SERVER, AT_REST])
def test_data_can_not_end_its_element(modules):
    page, policy = page_of(modules, title="<b>", data={"text": EVIL})
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert page.count("<script") == 2
    assert json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]) == {"text": EVIL}
    assert "<title>&lt;b&gt;</title>" in page


def test_look_writes_one_page_and_a_picture(loaded, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(look_module, "load_checkpoint", lambda path, which: loaded)
    text, page, picture = "how <b>$much$</b> wood would", tmp_path / "look.html", tmp_path / "look.png"
    look(LookConfig(checkpoint="run", text=text, out=str(page), png=str(picture)))
    view = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert "".join(token["text"] for token in view["tokens"]) == text[:24]
    printed = capsys.readouterr().out
    assert "its first 24 tokens are shown" in printed
    assert printed.endswith(f"Wrote {page} {picture}\n")
    assert "<b>" not in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    look(LookConfig(checkpoint="run", text=text, out=str(page)))
    assert capsys.readouterr().out.endswith(f"Wrote {page}\n")
