// A text as its tokens. One of them can be reached with Tab, the others from it with the arrow keys.
import { el } from "./dom.js";

export function tokenLine(node, { pick, name }) {
  const spans = [];
  const focus = (place) => {
    const wanted = spans[Math.max(0, Math.min(spans.length - 1, place))];
    spans.forEach((span) => span.setAttribute("tabindex", span === wanted ? "0" : "-1"));
    return wanted;
  };
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", name);
  node.addEventListener("keydown", (event) => {
    const place = spans.indexOf(event.target),
      step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (place < 0) return;
    if (step) focus(place + step).focus();
    else if (event.key === "Home" || event.key === "End")
      focus(event.key === "Home" ? 0 : spans.length - 1).focus();
    else if (event.key === "Enter" || event.key === " ") pick(place);
    else return;
    event.preventDefault();
  });
  return {
    spans,
    add(text, options = {}) {
      const place = spans.length;
      const span = el(
        "span",
        {
          class: "token",
          role: "button",
          tabindex: place ? "-1" : "0",
          on: { click: () => pick(place) },
          ...options,
        },
        text,
      );
      spans.push(span);
      node.append(span);
      return span;
    },
    cut(count) {
      spans.splice(count).forEach((span) => span.remove());
    },
    mark(place) {
      spans.forEach((span, each) => span.classList.toggle("on", each === place));
      if (place >= 0) focus(place);
    },
  };
}

// The surprise of a token in nats, as a background.
export function tint(span, nats) {
  if (nats === null) return;
  span.style.setProperty("background", `rgb(var(--hot) / ${Math.min(nats / 9, 1) * 0.75})`);
  span.setAttribute(
    "title",
    `${nats.toFixed(2)} nats: the model gave it ${(100 * Math.exp(-nats)).toPrecision(2)} %`,
  );
}
