// A text as the model reads it: each token's surprise, what else was likely, what each layer would say, and attention.
import { attentionView } from "./attention.js";
import { chancesView, temperatureSlider } from "./chances.js";
import { el, field, onDemand } from "./dom.js";
import { lensTable } from "./lens.js";
import { tint, tokenLine } from "./tokens.js";

// `more` promises what is computed only when asked for: "kinds" of heads, and the "lens".
export function lookView(data, more = async (name) => data[name]) {
  const text = el("div", { class: "text" }),
    chances = el("div", { class: "chances", hidden: true }),
    slider = temperatureSlider();
  const line = tokenLine(text, { name: "tokens", pick });
  data.tokens.forEach((token) => tint(line.add(token.text), token.nats));
  const lens = el("div", { hidden: true });
  let layers = null;
  const ask = onDemand("What each layer would say", async () => {
    layers = await more("lens");
    const chosen = line.spans.findIndex((span) => span.classList.contains("on"));
    pick(chosen > 0 ? chosen : data.tokens.length - 1);
  });

  function pick(place) {
    line.mark(place);
    const token = data.tokens[place];
    chances.hidden = false;
    lens.hidden = !layers || place === 0;
    if (!lens.hidden) lens.replaceChildren(lensTable(layers, place, token.text));
    const about =
      token.nats === null
        ? "The first token is only read."
        : `In place of token ${place + 1}, ${token.nats.toFixed(2)} nats:`;
    chances.replaceChildren(
      el("p", {}, about),
      ...(token.top ? [field("temperature", slider), chancesView(token, { taken: token.text, slider })] : []),
    );
  }

  if (data.lens) ask.firstChild.click(); // at rest: nothing is left to compute
  const known = data.tokens.filter((token) => token.nats !== null),
    mean = known.reduce((sum, token) => sum + token.nats, 0) / (known.length || 1);
  const cut = data.cut ? ` The last ${data.cut} tokens of the text are left out.` : "";
  return el(
    "section",
    { class: "pane" },
    el("h2", {}, data.name),
    el(
      "p",
      { class: "soft" },
      `${data.tokens.length} tokens, ${mean.toFixed(3)} nats per token. The warmer, the more surprising; a click shows what else was likely.${cut}`,
    ),
    text,
    ask,
    el("div", { class: "beside" }, lens, chances),
    el("h2", {}, "Attention"),
    attentionView(data, more),
  );
}
