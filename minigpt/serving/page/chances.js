// What the next token could have been, at any temperature.
import { el, visible } from "./dom.js";

// Probabilities of the likeliest tokens, by their logprobs and those of the rest: [[logprob, how many], ...].
export function shares(found, temperature) {
  const highest = found.top[0].logprob;
  if (temperature === 0) return found.top.map((each, place) => (place === 0 ? 1 : 0));
  const weight = (logprob) => Math.exp((logprob - highest) / temperature);
  const total =
    found.top.reduce((sum, each) => sum + weight(each.logprob), 0) +
    found.rest.reduce((sum, [logprob, many]) => sum + many * weight(logprob), 0);
  return found.top.map((each) => weight(each.logprob) / total);
}

// Bars that a slider moves. `taken` is the token that stands in the text; `choose`, if given, is called with another.
export function chancesView(found, { taken, slider, choose, count = 14 }) {
  const rows = found.top.slice(0, count).map((each) => {
    const bar = el("i"),
      share = el("span", { class: "share" });
    const same = taken !== undefined && (each.id === taken || each.text === taken);
    const row = el(
      "button",
      {
        class: same ? "chance taken" : "chance",
        type: "button",
        disabled: !choose || same,
        on: { click: () => choose(each) },
      },
      el("code", {}, visible(each.text)),
      el("span", { class: "bar" }, bar),
      share,
    );
    return { row, bar, share };
  });
  const others = el("p", { class: "soft" });
  const draw = () => {
    const all = shares(found, Number(slider.value));
    let left = 1;
    rows.forEach(({ bar, share }, place) => {
      left -= all[place];
      bar.style.setProperty("width", `${100 * all[place]}%`);
      share.textContent = `${(100 * all[place]).toFixed(all[place] < 0.0995 ? 2 : 1)} %`;
    });
    others.textContent = `all others together: ${(100 * Math.max(left, 0)).toFixed(2)} %`;
  };
  slider.addEventListener("input", draw);
  draw();
  return el("div", {}, ...rows.map(({ row }) => row), others);
}

export function temperatureSlider(value = 1) {
  return el("input", {
    type: "range",
    min: "0",
    max: "2",
    step: "0.05",
    value: String(value),
    "aria-label": "temperature",
  });
}
