"""The page's source: whole, self-contained, and without a way for text to become HTML or script."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from minigpt.config.commands import LookConfig
from minigpt.serving import look as look_module
from minigpt.serving.look import look
from minigpt.serving.page_of import AT_REST, FOLDER, SERVER, page_of

MODULES = sorted(FOLDER.glob("*.js"))
EVIL = "</script><script>alert(1)</script><!-- \u2028 ]]>"


def test_every_module_is_used_and_stands_after_those_it_imports():
    assert {path.stem for path in MODULES} == {*SERVER, *AT_REST}
    for modules in (SERVER, AT_REST):
        for place, name in enumerate(modules):
            imported = re.findall(
                r'^import \{.*\} from "\./(\w+)\.js";$', (FOLDER / f"{name}.js").read_text(), re.MULTILINE
            )
            assert set(imported) <= set(modules[:place]), name


def test_imports_name_what_is_exported_and_no_two_modules_share_a_name():
    names = []
    for path in MODULES:
        for listed, module in re.findall(r'^import \{ (.*) \} from "\./(\w+)\.js";$', path.read_text(), re.MULTILINE):
            for name in listed.split(", "):
                source = (FOLDER / f"{module}.js").read_text()
                assert re.search(rf"^export (async )?(function\*?|const) {name}\b", source, re.MULTILINE), (
                    path.name,
                    name,
                )
        names += re.findall(r"^(?:export )?(?:async )?(?:function\*?|const|let) (\w+)", path.read_text(), re.MULTILINE)
    assert len(names) > 20
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_text_enters_as_text_and_nothing_comes_from_elsewhere(path):
    source = path.read_text()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "http",
    ):
        assert way not in source, way
    assert 'setAttribute("style"' not in source


@pytest.mark.parametrize("modules", [SERVER, AT_REST])
def test_the_policy_admits_this_script_and_style_and_no_other(modules):
    page, policy = page_of(modules, title="<b>", data={"text": EVIL})
    script = re.search(r'<script type="module">(.*?)</script>', page, re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert f'content="{policy}"' in page
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "import " not in script
    assert "export " not in script
    assert page.count("<script") == 2
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data) == {"text": EVIL}
    assert "<title>&lt;b&gt;</title>" in page


def test_look_writes_one_file_with_everything_in_it(loaded, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(look_module, "load_checkpoint", lambda path, which: loaded)
    text = "how <b>much</b> wood would"
    path = look(LookConfig(checkpoint="run", text=text, out=str(tmp_path / "look.html")))
    page = Path(path).read_text()
    found = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert "".join(token["text"] for token in found["tokens"]) == text[:24]
    assert "its first 24 tokens are shown" in capsys.readouterr().out
    assert "<b>" not in page
    assert not re.search(r"(src|href)=\"(?!data:,)", page)
