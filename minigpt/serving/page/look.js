// A text as the model reads it: each token's surprise, what else was likely there, and attention.
import { attentionView } from "./attention.js";
import { chancesView, temperatureSlider } from "./chances.js";
import { el, field } from "./dom.js";
import { tint, tokenLine } from "./tokens.js";

export function lookView(data) {
  const text = el("div", { class: "text" }),
    chances = el("div", { class: "chances", hidden: true }),
    slider = temperatureSlider();
  const line = tokenLine(text, { name: "tokens", pick });
  data.tokens.forEach((token) => tint(line.add(token.text), token.nats));

  function pick(place) {
    line.mark(place);
    const token = data.tokens[place];
    chances.hidden = false;
    const about =
      token.nats === null
        ? "The first token is only read."
        : `In place of token ${place + 1}, ${token.nats.toFixed(2)} nats:`;
    chances.replaceChildren(
      el("p", {}, about),
      ...(token.top ? [field("temperature", slider), chancesView(token, { taken: token.text, slider })] : []),
    );
  }

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
    chances,
    el("h2", {}, "Attention"),
    attentionView(data),
  );
}
