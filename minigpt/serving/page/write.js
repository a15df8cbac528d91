// Plain writing: tokens appear as they are made; a click on one shows what it could have been, and goes on from there.
import { ask, stream } from "./api.js";
import { chancesView } from "./chances.js";
import { el, field } from "./dom.js";
import { tokenLine } from "./tokens.js";

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
    busy = 0;

  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  });

  function working(change) {
    busy += change;
    go.disabled = busy > 0;
    stop.disabled = busy === 0;
  }

  function start() {
    panes.forEach((pane) => pane.stop());
    panes = settings.models().map((model) => paneOf(model, settings, working));
    where.replaceChildren(...panes.map((pane) => pane.node));
    panes.forEach((pane) => pane.write(prompt.value));
  }

  return el(
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
        { class: "soft" },
        "Ctrl-Enter writes; Tab and arrow keys reach a token, Enter opens it, Escape closes",
      ),
    ),
    where,
  );
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

  async function write(start) {
    stop();
    const mine = (abort = new AbortController());
    const began = performance.now();
    let count = 0,
      waiting = [];
    error.textContent = "";
    if (typeof start === "string") begin.textContent = start || "∅";
    working(1);
    try {
      const body = { model, prompt: start, return_token_ids: true, ...settings.options() };
      if (typeof start !== "string") body.truncate_prompt_tokens = -1; // a long text goes on with its end
      for await (const chunk of stream("/v1/completions", body, mine.signal)) {
        const choice = chunk.choices[0];
        if (choice.prompt_token_ids && typeof start === "string") ids = choice.prompt_token_ids;
        count += choice.token_ids.length;
        waiting = [...waiting, ...choice.token_ids];
        if (!choice.text) continue; // a part of a character
        written.push({ ids: waiting, text: choice.text });
        line.add(choice.text);
        waiting = [];
        said.textContent = `${count} tokens, ${(count / ((performance.now() - began) / 1000)).toFixed(0)} per second`;
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
        el("p", {}, `Token ${place + 1} could have been, at temperature `, mirror(settings.temperature), ":"),
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
  return { node, write, stop };
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
  return field("", own);
}
