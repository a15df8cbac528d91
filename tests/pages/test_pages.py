"""The pages in a real browser: clicked, typed into, wide and narrow, light and dark. See `make test-pages`.

With PICTURES=DIR screenshots are kept there.
"""

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from minigpt.config.commands import LookConfig
from minigpt.report.page import write_report
from minigpt.serving.look import look
from tests.extras.serving import ServerProcess

REASON = "make test-pages installs playwright, fastapi and uvicorn, and needs Chromium"
api = pytest.importorskip("playwright.sync_api", reason=REASON)
pytest.importorskip("fastapi", reason=REASON)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip(REASON, allow_module_level=True)

LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
LEARNED = ["model.n_embd=32", "model.block_size=96", "batch_tokens=288", "optimizer.lr=1e-2"]  # that the text goes on
PANEL = "[role=tabpanel]:not([hidden])"
READY = f"{PANEL} button.main:not([disabled])"
EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script> &amp;"


@pytest.fixture(scope="module")
def runs(new_run, tmp_path_factory):
    """Two runs with report pages."""
    first = new_run(tmp_path_factory.mktemp("one"))
    first("samples.every_steps=60", "trainer.max_steps=250", *LEARNED)
    second = new_run(tmp_path_factory.mktemp("two"))("trainer.max_steps=200", *LEARNED, "model.n_embd=48")
    renamed = second.with_name("wide")
    second.rename(renamed)
    for run in (first.path, renamed):  # those of trainings in tests are drawn only where a test looks at one
        write_report(run)
    return first.path, renamed


@pytest.fixture(scope="module")
def server(runs, tmp_path_factory):
    words = [*(f"checkpoint={run}" for run in runs), "max_tokens=100000"]
    with ServerProcess(tmp_path_factory.mktemp("server"), *words, OMP_NUM_THREADS="1") as server:
        yield server


@pytest.fixture(scope="module")
def chromium():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def page(chromium, request):
    """A page that says nothing on its console, asks no other host, and is never wider than the screen."""
    width, scheme = request.param
    context = chromium.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(30_000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asking: asked.append(asking.url))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if "PICTURES" in os.environ:
        page.screenshot(path=Path(os.environ["PICTURES"]) / f"{request.node.name}.png", full_page=True)
    context.close()
    assert [words for words in said if "status of 40" not in words] == []  # 400 and 401: which two tests ask for
    assert {url.split("/")[2].split(":")[0] for url in asked if not url.startswith(("data:", "file:"))} <= {"127.0.0.1"}


def text_of(page, selector):
    return page.locator(selector).first.text_content()


def unfolded(page, server):
    """Open the page, with its settings unfolded on a narrow screen, too."""
    page.goto(server.url)
    page.wait_for_selector("#prompt")
    page.evaluate("document.querySelector('.settings').open = true")


def test_the_page_opens_with_a_sample_that_typing_ends(page, server):
    page.goto(server.url)
    page.wait_for_selector(READY)
    assert len(text_of(page, ".pane .text")) > 20
    asked = []
    page.route("**/v1/completions", lambda route: asked.append(route.request.post_data_json))  # never answered
    page.reload()
    page.wait_for_selector("button.main:disabled")
    assert (asked[0]["prompt"], asked[0]["max_tokens"]) == ("", 60)
    page.keyboard.press("Tab")
    page.focus("#prompt")
    page.keyboard.type("h")
    page.wait_for_selector(READY)


def test_tokens_appear_and_a_click_goes_on_from_another(page, server):
    unfolded(page, server)
    page.fill("#prompt", "how much")
    page.fill("#tokens", "30")
    page.click("text=Write >> nth=1")
    page.wait_for_selector(READY)
    before = [token.text_content() for token in page.locator(".token").all()]
    assert 20 < len(before) <= 30
    page.locator(".token").nth(4).click()
    page.wait_for_selector(".chance")
    shares = [float(each.text_content().split()[0]) for each in page.locator(".share").all()]
    assert shares == sorted(shares, reverse=True)
    page.locator(".chances input[type=range]").fill("0.2")
    cooler = [float(each.text_content().split()[0]) for each in page.locator(".share").all()]
    assert cooler[0] > shares[0]
    assert page.locator("[aria-label=temperature]").first.input_value() == "0.2"
    other = page.locator(".chance:not(.taken)").first
    chosen = other.locator("code").text_content()
    other.click()
    page.wait_for_selector(READY)
    after = [token.text_content() for token in page.locator(".token").all()]
    assert after[:4] == before[:4]
    assert after[4].replace(" ", "␣").replace("\n", "↵") == chosen
    assert len(after) > 20


def test_the_keyboard_alone_will_do(page, server):
    page.goto(server.url)
    page.wait_for_selector("#prompt")
    page.focus("#prompt")
    page.keyboard.type("wood")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".token")
    page.wait_for_selector(READY)
    for _ in range(9):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "token":
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".chance")
    assert "Token 3 could have been" in text_of(page, ".chances p")
    page.keyboard.press("Escape")
    assert not page.locator(".chances").is_visible()
    page.focus("role=tab[name='Write']")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("role=tab[name='Chat']", "aria-selected") == "true"
    assert page.locator("#message").is_visible()


def test_the_prompt_is_first_and_a_narrow_screen_folds_the_settings(page, server):
    page.goto(server.url)
    page.wait_for_selector(".token")
    narrow = page.viewport_size["width"] < 500
    places = [page.locator(each).first.bounding_box()["y"] for each in ("#prompt", ".settings", ".panes")]
    assert places == sorted(places)
    assert page.locator("#tokens").is_visible() is not narrow
    if narrow:
        page.click("summary")
    sizes = page.eval_on_selector_all("input, select, textarea", "all => all.map(x => getComputedStyle(x).fontSize)")
    assert {float(size.removesuffix("px")) for size in sizes} == {16.0}  # iOS zooms into smaller ones
    page.click("role=tab[name='Surprise']")
    assert not page.locator("#tokens").is_visible()  # nothing is drawn there
    assert page.locator("[aria-label=model]").is_visible()


def test_the_seed_changes_unless_it_is_kept(page, server):
    seeds, texts = [], []
    page.on("request", lambda asking: "completions" in asking.url and seeds.append(asking.post_data_json["seed"]))
    unfolded(page, server)
    page.fill("#prompt", "how")
    page.fill("#tokens", "30")
    for kept in (False, False, True, True):
        page.set_checked("[aria-label='keep the seed']", kept)
        page.click("text=Write >> nth=1")
        page.wait_for_selector(READY)
        texts.append(text_of(page, ".pane .text"))
    assert len(set(seeds)) == 3  # the opening's, the first, the second
    assert texts[1] == texts[2] == texts[3]
    assert f"seed {seeds[-1]}" in text_of(page, ".pane .soft")


def test_the_page_follows_what_is_written_until_one_scrolls_away(page, server):
    unfolded(page, server)
    page.set_viewport_size({**page.viewport_size, "height": 420})
    page.fill("#tokens", "100000")
    page.fill("#prompt", "how")
    page.click("text=Write >> nth=1")
    while page.evaluate("window.scrollY") < 50:
        page.wait_for_timeout(50)
    end = "document.querySelector('.pane').getBoundingClientRect().bottom - window.innerHeight"
    assert page.evaluate(end) < 100  # the room below it, and lines that may come before the next frame
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(300)
    assert page.evaluate("window.scrollY") == 0
    page.click("text=Stop")


def test_two_models_side_by_side_and_stop(page, server):
    unfolded(page, server)
    page.select_option("[aria-label='second model']", "wide")
    page.fill("#prompt", "how")
    page.fill("#tokens", "100000")
    page.click("text=Write >> nth=1")
    for pane in range(2):
        page.locator(".pane").nth(pane).locator(".token").nth(9).wait_for()
    assert [each.text_content() for each in page.locator(".pane h2").all()] == ["run", "wide"]
    page.click("text=Stop")
    page.wait_for_selector(READY)
    page.wait_for_timeout(1000)
    assert server.health()["writing"] == 0


def test_a_conversation(page, server):
    unfolded(page, server)
    evil = EVIL[: EVIL.index("<script>")]  # all of it fits the context
    page.fill("#tokens", "10")
    page.click("role=tab[name='Chat']")
    page.fill("#message", evil)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    page.fill("#message", "and you?")
    page.click("text=Send")
    page.wait_for_selector(READY)
    messages = page.locator(".message .body").all()
    assert [messages[0].text_content(), messages[2].text_content()] == [evil, "and you?"]
    assert len(messages) == 4
    page.click("text=New conversation")
    assert page.locator(".message").count() == 0


def test_a_message_that_fails_leaves_no_trace_and_enter_that_ends_a_composition_sends_nothing(page, server):
    page.goto(server.url)
    page.click("role=tab[name='Chat']")
    page.fill("#message", "how")
    page.dispatch_event("#message", "keydown", {"key": "Enter", "isComposing": True})
    assert page.locator(".message").count() == 0
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body='{"error": {"message": "no"}}'))
    page.keyboard.press("Enter")
    page.wait_for_selector(".error:not(:empty)")
    assert page.locator(".message").count() == 0
    assert page.input_value("#message") == "how"
    page.unroute("**/v1/chat/completions")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "how"}]
    page.wait_for_selector(READY)


def spoken(page):
    """The messages that stand on the page."""
    return [body.text_content() for body in page.locator(".message .body").all()]


def answers(page, *texts):
    """Have the next requests of Chat answered with these texts; return the bodies of the requests."""
    asked, left = [], list(texts)

    def answer(route):
        asked.append(route.request.post_data_json)
        pieces = [left[0][:4], left.pop(0)[4:]]
        chunks = [json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}) for piece in pieces]
        body = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return asked


def test_a_message_is_edited_and_an_answer_written_again(page, server):
    page.goto(server.url)
    page.click("role=tab[name='Chat']")
    assert "This model has not learned conversations" in text_of(page, f"{PANEL} .soft")
    asked = answers(page, "one", "two", "three", "four", "five")
    for message in ("a", "b"):
        page.fill("#message", message)
        page.keyboard.press("Enter")
        page.wait_for_selector(READY)
    assert spoken(page) == ["a", "one", "b", "two"]
    page.click("text=Again >> nth=1")
    page.wait_for_selector("text=three")
    assert spoken(page) == ["a", "one", "b", "three"]
    assert asked[1]["messages"] == asked[2]["messages"]
    assert asked[1]["seed"] != asked[2]["seed"]
    page.click("text=System text")
    page.fill("#system", "Be kind.")
    page.click("text=Edit >> nth=0")
    page.fill("[aria-label='changed message']", "c")
    page.keyboard.press("Escape")
    assert spoken(page) == ["a", "one", "b", "three"]
    page.click("text=Edit >> nth=0")
    page.fill("[aria-label='changed message']", "c")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=four")
    assert spoken(page) == ["c", "four"]
    wanted = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "c"}]
    assert asked[3]["messages"] == wanted
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body='{"error": {"message": "no"}}'))
    page.click("text=Again")
    page.wait_for_selector(".error:not(:empty)")
    assert spoken(page) == ["c", "four"]  # what failed left the answer that was there
    assert page.input_value("#message") == ""
    page.click("text=Edit")
    page.fill("[aria-label='changed message']", "d")
    page.click("text=Send again")
    page.wait_for_selector(READY)
    assert spoken(page) == ["c", "four"]
    assert page.input_value("#message") == "d"  # not lost


def test_an_answers_markdown_becomes_elements_and_its_html_stays_text(page, server):
    page.goto(server.url)
    page.click("role=tab[name='Chat']")
    written = (
        f"# Head\nA **bold *both*** word, _thin_, `a*b*` 2 * 3 * 4 snake_case_name\n{EVIL}\n\n3. three\n4. four\n- x"
    )
    answers(page, f"{written}\n\n```python\nif **a**:\n\n    <b>\n```\nend **open")
    page.fill("#message", "**mine**")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=end **open")
    page.wait_for_selector(READY)
    body = page.locator(".message.assistant .body")
    found = body.evaluate("node => [...node.querySelectorAll('*')].map(x => [x.localName, x.textContent])")
    assert found == [
        ["p", "Head"],
        ["strong", "Head"],
        ["p", f"A bold both word, thin, a*b* 2 * 3 * 4 snake_case_name\n{EVIL}"],
        ["strong", "bold both"],
        ["em", "both"],
        ["em", "thin"],
        ["code", "a*b*"],
        ["ol", "threefour"],
        ["li", "three"],
        ["li", "four"],
        ["ul", "x"],
        ["li", "x"],
        ["pre", "if **a**:\n\n    <b>"],
        ["code", "if **a**:\n\n    <b>"],
        ["p", "end **open"],
    ]
    assert body.locator("ol").get_attribute("start") == "3"
    assert spoken(page)[0] == "**mine**"


def test_a_model_that_talks_opens_with_an_example_which_ones_own_message_ends(page, server):
    def about(route):
        found = route.fetch().json()
        found["data"][0] |= {"conversations": True, "prompt": "how much"}
        route.fulfill(json=found)

    page.route("**/v1/models", about)
    asked = answers(page, "hello", "again")
    page.goto(server.url)
    page.wait_for_selector("text=An example")
    assert spoken(page) == ["how much", "hello"]
    assert not page.locator("text=has not learned conversations").is_visible()
    page.fill("#message", "mine")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=again")
    assert spoken(page) == ["mine", "again"]
    assert asked[1]["messages"] == [{"role": "user", "content": "mine"}]


def test_what_a_model_writes_stays_text(page, server):
    """A model that writes HTML: its answer is shown as it is, and nothing of it runs."""
    page.goto(server.url)
    page.wait_for_selector("#prompt")
    chunk = {"choices": [{"index": 0, "text": EVIL, "token_ids": [1], "prompt_token_ids": [2]}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.click("text=Write >> nth=1")
    page.wait_for_selector(".token")
    assert text_of(page, ".token") == EVIL
    assert page.locator("main img, main script").count() == 0
    page.click("role=tab[name='Surprise']")
    page.wait_for_selector(READY)
    page.fill("#scored", EVIL)
    page.click("text=Measure")
    page.wait_for_selector(READY)
    assert text_of(page, ".pane .text >> nth=-1").endswith("&amp;")
    assert page.locator("main img, main script").count() == 0


def look_at_how_much(page, server):
    """Open the page, and then the attention in a text."""
    page.goto(server.url)
    page.wait_for_selector(READY)
    page.click("role=tab[name='Attention']")
    assert page.input_value("#looked") == text_of(page, ".pane .text")  # what was written
    page.wait_for_selector(".matrix")  # of what was written
    page.wait_for_selector(READY)
    page.fill("#looked", "how much")
    page.click("text=Look")
    page.wait_for_selector(READY)


def test_attention_on_hover_and_by_keys(page, server):
    look_at_how_much(page, server)
    assert page.locator(".heads button").count() == 2
    page.locator(".heads button").nth(1).click()
    box = page.locator(".matrix").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.9 * box["height"])
    said = text_of(page, ".said")
    assert "layer 1, head 2: query" in said
    assert "attends to key" in said
    page.focus(".matrix")
    page.keyboard.press("ArrowUp")
    assert text_of(page, ".said") != said
    page.focus(f"{PANEL} .attention .token[tabindex='0']")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert "(row 1)" in text_of(page, ".said")
    page.locator(f"{PANEL} .pane .text").first.locator(".token").nth(3).click()
    page.wait_for_selector(".chance")
    assert "In place of token 4" in text_of(page, f"{PANEL} .chances p")


def test_kinds_of_heads_and_the_lens_are_computed_when_asked_for(page, server):
    asked = []
    page.on("request", lambda asking: asked.append(asking.url.rpartition("/")[2]))
    look_at_how_much(page, server)
    assert not {"kinds", "lens"} & {*asked}
    page.click("text=Name the heads")
    page.wait_for_selector(".heads span:has-text('.')")
    assert re.fullmatch(r"(prev|first|ind) 0\.\d\d|ind 1\.00", text_of(page, ".heads span"))
    assert re.search(r"; previous 0\.\d\d; first 0\.\d\d; induction [01]\.\d\d$", text_of(page, ".said"))
    page.click("text=What each layer would say")
    page.wait_for_selector(".lens")
    assert [row.text_content() for row in page.locator(".lens tbody th").all()] == ["embedding", "layer 1"]
    assert "token 8" in text_of(page, ".lens caption")
    page.locator(f"{PANEL} .pane .text").first.locator(".token").nth(3).click()
    assert "token 4" in text_of(page, ".lens caption")
    last = page.locator(".lens tbody tr").last.locator("td").all_text_contents()
    top, share = text_of(page, f"{PANEL} .chance code"), text_of(page, f"{PANEL} .share")
    assert last[0].replace("\u00a0", " ") == f"{top} {share}"  # what the last layer says is what the model says
    assert page.get_by_text("What each layer would say").count() == 0


def test_the_servers_refusals_are_shown(page, server):
    page.goto(server.url)
    page.wait_for_selector(READY)
    page.click("role=tab[name='Surprise']")
    page.wait_for_selector(".figures")  # of what was written
    page.fill("#scored", "a")
    with page.expect_response("**/api/score") as answer:
        page.click("text=Measure")
    assert answer.value.status == 400
    page.wait_for_selector(".error:not(:empty)")
    assert "at least 2" in text_of(page, ".error:not(:empty)")


def test_the_report_fits(page, runs):
    page.goto(f"file://{runs[0] / 'report.html'}")
    width = page.viewport_size["width"]
    shown = [chart.bounding_box() for chart in page.locator("svg, img").all() if chart.is_visible()]
    assert shown
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in shown)
    letters = [text.bounding_box()["height"] for text in page.locator("svg text").all() if text.is_visible()]
    assert min(letters) > 9  # pixels: they can be read
    for chart in page.locator("svg").all():
        boxes = [text.bounding_box() for text in chart.locator("text").all() if text.is_visible()]
        assert [(a, b) for a, b in itertools.combinations(boxes, 2) if overlap(a, b)] == []


def overlap(a, b):
    """Whether two labels collide; a pixel is the room around the letters."""
    apart = (
        a[way] + a[size] - 1 <= b[way] or b[way] + b[size] - 1 <= a[way]
        for way, size in (("x", "width"), ("y", "height"))
    )
    return not any(apart)


def test_the_page_of_minigpt_look_needs_no_server(page, runs, tmp_path):
    look(LookConfig(checkpoint=str(runs[0]), text=f"how much {EVIL}", out=str(tmp_path / "look.html")))
    page.goto(f"file://{tmp_path / 'look.html'}")
    page.wait_for_selector(".matrix")
    assert text_of(page, ".pane .text").startswith("how much <img")
    page.locator(".token").nth(2).click()
    page.wait_for_selector(".chance")
    before = text_of(page, ".share")
    page.locator(".chances input[type=range]").fill("0.1")
    assert text_of(page, ".share") != before
    page.locator(".heads button").last.click()
    assert "head 2" in text_of(page, ".said")
    assert page.locator(".lens tbody tr").count() == 2
    assert "induction" in text_of(page, ".said")


def test_the_page_asks_for_the_token(page, runs, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef")
    words = [f"checkpoint={runs[0]}", f"token_file={tmp_path / 'token'}"]
    with ServerProcess(tmp_path, *words, OMP_NUM_THREADS="1") as server:
        page.goto(server.url)
        page.fill("[aria-label=token]", "0123456789wrong!")
        page.keyboard.press("Enter")
        page.wait_for_timeout(1000)  # it asks again
        page.locator("[aria-label=token]").fill("0123456789abcdef")
        page.keyboard.press("Enter")
        page.fill("#prompt", "how")
        page.click("text=Write >> nth=1")
        page.wait_for_selector(".token")
        page.wait_for_selector(READY)
