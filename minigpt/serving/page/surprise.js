// The loss of a pasted text, and where it comes from.
import { ask } from "./api.js";
import { el } from "./dom.js";
import { lookView } from "./look.js";
import { tint, tokenLine } from "./tokens.js";

// A text to paste, a button, and what each model makes of it.
export function textView(settings, { id, button, show }) {
  const text = el("textarea", { id, "aria-label": "text", placeholder: "A text" });
  const go = el("button", { class: "main", type: "button", on: { click: run } }, button);
  const where = el("div", { class: "panes" });

  async function run() {
    go.disabled = true;
    const parts = settings
      .models()
      .map((model) =>
        show(model, text.value).catch((fault) =>
          el("p", { class: "error", role: "alert" }, `${model}: ${fault.message}`),
        ),
      );
    where.replaceChildren(...(await Promise.all(parts)));
    go.disabled = false;
  }

  return el("section", {}, text, el("div", { class: "row" }, go), where);
}

export const surpriseView = (settings) => textView(settings, { id: "scored", button: "Measure", show: measured });
export const lookingView = (settings) =>
  textView(settings, {
    id: "looked",
    button: "Look",
    show: async (model, text) => 
      lookView(await ask("/api/look", { model, text }), (view) => ask(`/api/${view}`, { model, text })),
  });

async function measured(model, text) {
  const found = await ask("/api/score", { model, text });
  const body = el("div", { class: "text" }),
    said = el("p", { class: "soft" }, "The warmer, the more surprising. Point at a token, tap it, or use Tab, arrow keys and Enter.");
  const line = tokenLine(body, { name: `tokens and their surprise for ${model}`, pick });
  found.tokens.forEach((token, place) => {
    const span = line.add(token.text);
    tint(span, token.nats);
    span.addEventListener("mouseenter", () => pick(place));
  });
  function pick(place) {
    line.mark(place);
    said.textContent = line.spans[place].title || "The first token is only read.";
  }
  const figure = (value, name) => el("span", {}, el("b", {}, value.toFixed(3)), ` ${name}`);
  return el(
    "section",
    { class: "pane" },
    el("h2", {}, model),
    el(
      "p",
      { class: "figures" },
      figure(found.nats_per_token, "nats per token"),
      figure(found.bits_per_byte, "bits per byte"),
      figure(found.perplexity, "perplexity"),
    ),
    said,
    body,
  );
}
