// Plain writing: tokens appear as they are made; a click on one shows what it could have been, and goes on from there.
import { ask, stream } from "./api.js";
import { chancesView } from "./chances.js";
import { el, field, follower } from "./dom.js";
import { tokenLine } from "./tokens.js";

const OPENING_TOKENS = 60;

export function writeView(settings) {
  const prompt = el("textarea", { id: "prompt", "aria-label": "prompt", placeholder: "The beginning of a text" });
  const go = el("button", { class: "main", type: "button", on: { click: start } }, "Write");
  const stop = el(
    "button",
    { type: "button", disabled: true, on: { click: () => panes.forEach((pane) => pane.stop()) } },
    "Stop",
  );
  const where = el("div", { class: "panes" });
  let panes = [],
    busy = 0,
    opening = false; // the sample with which the page opens: whoever types ends it

  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  });

  prompt.addEventListener("input", () => opening && panes.forEach((pane) => pane.stop()));

  function working(change) {
    busy += change;
    go.disabled = busy > 0;
    stop.disabled = busy === 0;
  }

  function start(opens) {
    opening = opens === true;
    panes.forEach((pane) => pane.stop());
    panes = settings.models().map((model) => paneOf(model, settings, working));
    where.replaceChildren(...panes.map((pane) => pane.node));
    if (!opening) panes[0].node.scrollIntoView({ block: "nearest" });
    settings.nextSeed();
    panes.forEach((pane) => pane.write(prompt.value, opening ? OPENING_TOKENS : Infinity));
  }

  function open(text) {
    prompt.value = text;
    start(true);
  }

  const node = el(
    "section",
    {},
    prompt,
    el(
      "div",
      { class: "row" },
      go,
      stop,
      el(
        "span",
        { class: "soft keys" },
        "Ctrl-Enter writes; Tab and arrow keys reach a token, Enter opens it, Escape closes",
      ),
    ),
    where,
  );
  return { node, open, text: () => panes[0]?.text() ?? "" };
}

function paneOf(model, settings, working) {
  const begin = el("span", { class: "prompt" }),
    body = el("span"),
    chances = el("div", { class: "chances", hidden: true });
  const error = el("p", { class: "error", role: "alert" }),
    said = el("p", { class: "soft" });
  const line = tokenLine(body, { name: `written by ${model}`, pick });
  let ids = [],
    written = [],
    abort = null;

  async function write(start, most = Infinity) {
    stop();
    const mine = (abort = new AbortController());
    const began = performance.now();
    const follow = follower(node);
    let count = 0,
      waiting = [];
    error.textContent = "";
    if (typeof start === "string") begin.textContent = start;
    working(1);
    try {
      const options = settings.options(),
        body = { model, prompt: start, return_token_ids: true, ...options };
      body.max_tokens = Math.min(options.max_tokens, most);
      if (typeof start !== "string") body.truncate_prompt_tokens = -1; // a long text goes on with its end
      for await (const chunk of stream("/v1/completions", body, mine.signal)) {
        const choice = chunk.choices[0];
        if (choice.prompt_token_ids && typeof start === "string") ids = choice.prompt_token_ids;
        count += choice.token_ids.length;
        waiting = [...waiting, ...choice.token_ids];
        if (!choice.text) continue; // a part of a character
        written.push({ ids: waiting, text: choice.text });
        waiting = [];
        const rate = (count / ((performance.now() - began) / 1000)).toFixed(0);
        line.add(choice.text);
        said.textContent = `${count} tokens, ${rate} per second, seed ${options.seed}`;
        follow();
      }
    } catch (fault) {
      if (!mine.signal.aborted) error.textContent = fault.message;
    } finally {
      working(-1);
    }
  }

  function stop() {
    abort?.abort();
  }

  function before(place) {
    return [...ids, ...written.slice(0, place).flatMap((each) => each.ids)];
  }

  async function pick(place) {
    line.mark(place);
    chances.hidden = false;
    chances.replaceChildren(el("p", { class: "soft" }, "…"));
    try {
      const found = await ask("/api/next", { model, tokens: before(place) });
      const view = chancesView(found, {
        taken: written[place].ids[0],
        slider: settings.temperature,
        choose: (other) => goOn(place, other),
      });
      const close = el("button", { type: "button", on: { click: shut } }, "Close");
      chances.replaceChildren(
        el("p", {}, `Token ${place + 1} could have been:`),
        mirror(settings.temperature),
        view,
        close,
      );
      view.querySelector("button:enabled")?.focus();
    } catch (fault) {
      error.textContent = fault.message;
    }
  }

  function goOn(place, other) {
    const start = [...before(place), other.id];
    shut();
    line.cut(place);
    written = [...written.slice(0, place), { ids: [other.id], text: other.text }];
    line.add(other.text);
    settings.nextSeed();
    write(start);
  }

  function shut() {
    const place = line.spans.findIndex((span) => span.classList.contains("on"));
    chances.hidden = true;
    line.mark(-1);
    line.spans[place]?.focus();
  }

  const node = el(
    "section",
    { class: "pane", on: { keydown: (event) => event.key === "Escape" && !chances.hidden && shut() } },
    el("h2", {}, model),
    el("div", { class: "text" }, begin, body),
    said,
    error,
    chances,
  );
  return { node, write, stop, text: () => begin.textContent + body.textContent };
}

// A second slider for the same value, close to the bars that it moves.
function mirror(slider) {
  const own = el("input", {
    type: "range",
    min: slider.min,
    max: slider.max,
    step: slider.step,
    value: slider.value,
    "aria-label": "temperature of the bars",
  });
  own.addEventListener("input", () => {
    slider.value = own.value;
    slider.dispatchEvent(new Event("input"));
  });
  return field("temperature", own);
}
