// Elements. Text enters the page through text nodes only: what a model writes is never read as HTML.

export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "on")
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(child))));
  return node;
}

// A control with its label; a range shows its value.
export function field(name, input) {
  const shown = el("output", {}, "");
  const show = () => (shown.textContent = input.value);
  if (input.type === "range") {
    input.addEventListener("input", show);
    show();
  }
  return el("label", {}, name, ...(input.type === "range" ? [input, shown] : [input]));
}

// A button for something that is computed only when asked for; it goes when that is there.
export function onDemand(name, work) {
  const failed = el("span", { class: "error", role: "alert" });
  const button = el("button", { type: "button", on: { click: run } }, name);
  async function run() {
    button.disabled = true;
    failed.textContent = "";
    try {
      await work();
      node.remove();
    } catch (fault) {
      failed.textContent = fault.message;
      button.disabled = false;
    }
  }
  const node = el("div", { class: "row" }, button, failed);
  return node;
}

// Scrolls with a node that grows, once a frame at most: who scrolls up stays there, until its end is in sight again.
export function follower(node) {
  let [waiting, following, left] = [false, true, window.scrollY];
  function look() {
    const below = node.getBoundingClientRect().bottom + 12 - window.innerHeight;
    if (below <= 0) following = true;
    else if (window.scrollY < left) following = false;
    if (following && below > 0) window.scrollBy(0, below);
    [waiting, left] = [false, window.scrollY];
  }
  return () => {
    if (!waiting) requestAnimationFrame(look);
    waiting = true;
  };
}

// A token as it can be read alone: white space and control characters as pictures, long runs counted.
export function visible(text) {
  const spaces = text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  const counted = spaces.replace(/([␣↵⇥])\1{3,}/gu, (run) => `${run[0]}×${run.length}`);
  return counted.replace(/[\u0000-\u001f\u007f]/g, (each) =>
    String.fromCodePoint(each === "\u007f" ? 0x2421 : 0x2400 + each.charCodeAt(0)),
  );
}
