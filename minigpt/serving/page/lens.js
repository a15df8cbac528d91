// The logit lens (nostalgebraist 2020): what the model would say if it ended after a layer.
import { el, visible } from "./dom.js";

const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)}\u00a0%`;

// A row for each layer: its likeliest token in place of one token of the text, and what it gives to that one.
export function lensTable(layers, place, text) {
  const mean = (layer) => layer.reduce((sum, each) => sum + each.nats, 0) / layer.length;
  const cell = (content, kind = "td") => el(kind, {}, content);
  const rows = layers.map((layer, depth) => {
    const { top, share, rank, nats } = layer[place - 1];
    const said = [el("code", {}, visible(top)), ` ${percent(share)}`];
    return el(
      "tr",
      { class: rank === 1 ? "right" : "" },
      cell(depth ? `layer ${depth}` : "embedding", "th"),
      el("td", {}, ...said),
      cell(String(rank)),
      cell(percent(Math.exp(-nats))),
      cell(mean(layer).toFixed(2)),
    );
  });
  const names = ["after", "would say", "rank", "chance", "nats"];
  return el(
    "table",
    { class: "lens" },
    el(
      "caption",
      {},
      `If the model ended after a layer (logit lens), it would say in place of token ${place + 1}, `,
      el("code", {}, visible(text)),
      ". Rank and chance are that token's; nats, the mean over the text.",
    ),
    el("thead", {}, el("tr", {}, ...names.map((name) => cell(name, "th")))),
    el("tbody", {}, ...rows),
  );
}
