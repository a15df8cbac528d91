// Attention, layer by head: rows are queries (the token that attends), columns keys (what it attends to).
import { el, onDemand, visible } from "./dom.js";
import { tokenLine } from "./tokens.js";

export function unpack({ weights }) {
  const bytes = Uint8Array.from(atob(weights), (each) => each.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, place) => view.getUint16(2 * place, true) / 65535);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const SHORT = { previous: "prev", first: "first", induction: "ind" };
const KINDS =
  "previous: mean attention to the token before. first: to the first token of the text. induction: in 25 random tokens " +
  "that are repeated, to the token after the earlier occurrence (Olsson et al. 2022). The highest is shown, bold from 0.4.";

export function attentionView(data, more) {
  const { layers, heads } = data.attention,
    names = data.tokens.map((token) => visible(token.text) || "·"),
    T = names.length;
  const all = unpack(data.attention),
    state = { layer: 0, head: 0, query: T - 1, key: 0 };
  const weight = (query, key) => all[((state.layer * heads + state.head) * T + query) * T + key];
  const matrix = el("canvas", {
    class: "matrix",
    tabindex: "0",
    role: "img",
    "aria-label": "attention of one head: arrow keys move",
  });
  const said = el("p", { class: "said", "aria-live": "polite" });
  const text = el("div", { class: "text" }),
    line = tokenLine(text, { name: "queries", pick: look });
  data.tokens.forEach((token, place) =>
    line.add(token.text || names[place]).addEventListener("mouseenter", () => look(place)),
  );
  const buttons = [],
    labels = [];
  let kinds = null;
  const name = onDemand("Name the heads", async () => {
    kinds = await more("kinds");
    labels.forEach((label, place) => {
      const { kind, ...scores } = kinds[Math.floor(place / heads)][place % heads],
        [[highest, score]] = Object.entries(scores).sort(([, one], [, other]) => other - one);
      label.textContent = `${SHORT[highest]} ${score.toFixed(2)}`;
      label.classList.toggle("named", kind !== "");
    });
    about.hidden = false;
    move(state.query, state.key);
  });
  const about = el("p", { class: "soft", hidden: true }, KINDS);

  function thumbnail(layer, head) {
    const canvas = el("canvas", { width: T, height: T }),
      context = canvas.getContext("2d"),
      image = context.createImageData(T, T);
    const [red, green, blue] = colour("--cell").split(" ").map(Number);
    for (let place = 0; place < T * T; place++) {
      image.data.set([red, green, blue, 255 * Math.sqrt(all[(layer * heads + head) * T * T + place])], 4 * place);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  function draw() {
    const size = Math.min(matrix.clientWidth || 640, 640),
      ratio = window.devicePixelRatio || 1;
    const longest = Math.max(...names.map((name) => [...name].length)),
      labels = (0.8 * size) / T >= 8; // pixels
    const edge = labels ? Math.min(size / 4, 9 + 7 * longest) : 4,
      cell = (size - edge) / T,
      context = matrix.getContext("2d");
    matrix.width = matrix.height = size * ratio;
    matrix.style.setProperty("height", `${size}px`);
    context.scale(ratio, ratio);
    context.clearRect(0, 0, size, size);
    for (let query = 0; query < T; query++) {
      for (let key = 0; key <= query; key++) {
        context.fillStyle = `rgb(${colour("--cell")} / ${0.06 + 0.94 * Math.sqrt(weight(query, key))})`;
        context.fillRect(
          edge + key * cell,
          edge + query * cell,
          Math.max(cell - 0.7, 0.7),
          Math.max(cell - 0.7, 0.7),
        );
      }
    }
    if (labels) drawLabels(context, edge, cell);
    context.strokeStyle = colour("--ink");
    context.lineWidth = 1.5;
    context.strokeRect(edge + state.key * cell, edge + state.query * cell, cell, cell);
    state.edge = edge;
    state.cell = cell;
  }

  function drawLabels(context, edge, cell) {
    context.font = `${Math.max(8, Math.min(12, cell - 2))}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
    context.textBaseline = "middle";
    names.forEach((name, place) => {
      context.fillStyle = colour(place === state.query ? "--ink" : "--soft");
      context.textAlign = "right";
      context.fillText(name, edge - 4, edge + (place + 0.5) * cell, edge - 6);
      context.save();
      context.translate(edge + (place + 0.5) * cell, edge - 4);
      context.rotate(-Math.PI / 2);
      context.fillStyle = colour(place === state.key ? "--ink" : "--soft");
      context.textAlign = "left";
      context.fillText(name, 0, 0, edge - 6);
      context.restore();
    });
  }

  function move(query, key) {
    state.query = Math.max(0, Math.min(T - 1, query));
    state.key = Math.max(0, Math.min(state.query, key));
    const share = (100 * weight(state.query, state.key)).toFixed(1);
    const scores = kinds ? Object.entries(kinds[state.layer][state.head]).filter(([key]) => key !== "kind") : [],
      about = scores.map(([key, score]) => `; ${key} ${score.toFixed(2)}`).join("");
    said.textContent = `layer ${state.layer + 1}, head ${state.head + 1}: query ${names[state.query]} (row ${state.query + 1}) attends to key ${names[state.key]} (column ${state.key + 1}) with ${share} %${about}`;
    line.mark(state.query);
    line.spans.forEach((span, place) => {
      span.style.setProperty(
        "background",
        place <= state.query
          ? `rgb(${colour("--cell")} / ${0.75 * Math.sqrt(weight(state.query, place))})`
          : "none",
      );
    });
    draw();
  }

  // A query, and the key that it attends to most.
  function look(query) {
    const row = names.map((_, key) => (key <= query ? weight(query, key) : 0));
    move(query, row.indexOf(Math.max(...row)));
  }

  function select(layer, head) {
    Object.assign(state, { layer, head });
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === layer * heads + head)));
    look(state.query);
  }

  const place = (event) => Math.floor((event - state.edge) / state.cell);
  const at = (event) => move(place(event.offsetY), place(event.offsetX));
  matrix.addEventListener("pointermove", at);
  matrix.addEventListener("pointerdown", at);
  matrix.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[
      event.key
    ] || [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    move(state.query + down, state.key + right);
  });
  const rows = Array.from({ length: layers }, (_, layer) =>
    el(
      "div",
      {},
      el("h3", {}, `layer ${layer + 1}`),
      ...Array.from({ length: heads }, (_, head) => {
        const button = el(
          "button",
          {
            type: "button",
            "aria-label": `layer ${layer + 1}, head ${head + 1}`,
            on: { click: () => select(layer, head) },
          },
          thumbnail(layer, head),
        );
        const label = el("span", {}, String(head + 1));
        buttons.push(button);
        labels.push(label);
        return el("figure", {}, button, label);
      }),
    ),
  );
  new ResizeObserver(() => draw()).observe(matrix);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    buttons.forEach((button, each) => button.replaceChildren(thumbnail(Math.floor(each / heads), each % heads)));
    select(state.layer, state.head);
  });
  select(0, 0);
  if (data.kinds) name.firstChild.click(); // at rest: nothing is left to compute
  return el(
    "div",
    {},
    el(
      "p",
      { class: "soft" },
      "Rows: queries (the token that attends). Columns: keys (what it attends to). Colour: square root of the weight.",
    ),
    name,
    about,
    el(
      "div",
      { class: "attention" },
      el("div", { class: "heads" }, ...rows),
      el("div", {}, said, text, matrix),
    ),
  );
}
