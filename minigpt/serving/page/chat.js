// A conversation, with one model or with two side by side.
import { stream } from "./api.js";
import { el } from "./dom.js";

export function chatView(settings) {
  const typed = el("textarea", { id: "message", "aria-label": "message", placeholder: "Say something" });
  const send = el("button", { class: "main", type: "button", on: { click: say } }, "Send");
  const stop = el("button", { type: "button", disabled: true, on: { click: () => abort.abort() } }, "Stop");
  const again = el("button", { type: "button", on: { click: restart } }, "New conversation");
  const where = el("div", { class: "panes" });
  let panes = [],
    abort = new AbortController();

  typed.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    if (!send.disabled) say();
  });

  function restart() {
    abort.abort();
    panes = [];
    where.replaceChildren();
  }

  async function say() {
    const content = typed.value.trim(),
      models = settings.models();
    if (!content) return;
    if (models.join() !== panes.map((pane) => pane.model).join()) {
      panes = models.map((model) => ({
        model,
        messages: [],
        node: el("section", { class: "pane", "aria-live": "polite" }, el("h2", {}, model)),
      }));
      where.replaceChildren(...panes.map((pane) => pane.node));
    }
    typed.value = "";
    abort = new AbortController();
    [send.disabled, stop.disabled] = [true, false];
    await Promise.all(panes.map((pane) => turn(pane, content, abort.signal)));
    [send.disabled, stop.disabled] = [false, true];
    typed.focus();
  }

  async function turn(pane, content, signal) {
    pane.messages.push({ role: "user", content });
    bubble(pane, "user", "You").textContent = content;
    await reply(pane, signal);
  }

  async function reply(pane, signal) {
    const answer = bubble(pane, "assistant", pane.model);
    try {
      for await (const chunk of stream(
        "/v1/chat/completions",
        { model: pane.model, messages: pane.messages, ...settings.options() },
        signal,
      )) {
        answer.append(chunk.choices[0].delta.content ?? "");
      }
    } catch (fault) {
      if (fault.code === "context_length_exceeded") {
        pane.node.lastChild.remove();
        return shorten(pane, fault, signal);
      }
      if (!signal.aborted) pane.node.append(el("p", { class: "error", role: "alert" }, fault.message));
    }
    pane.messages.push({ role: "assistant", content: answer.textContent });
  }

  // Go on without the oldest exchange; a message that alone is too long is forgotten.
  async function shorten(pane, fault, signal) {
    if (pane.messages.length > 1) {
      pane.messages.splice(0, 2);
      return reply(pane, signal);
    }
    pane.messages.pop();
    pane.node.append(el("p", { class: "error", role: "alert" }, fault.message));
  }

  function bubble(pane, kind, name) {
    const text = el("span");
    pane.node.append(el("div", { class: `message ${kind}` }, el("b", {}, name), text));
    return text;
  }

  return el(
    "section",
    {},
    where,
    typed,
    el(
      "div",
      { class: "row" },
      send,
      stop,
      again,
      el("span", { class: "soft" }, "Enter sends, Shift-Enter breaks the line"),
    ),
  );
}
