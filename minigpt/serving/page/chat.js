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
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return; // 229: Safari
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

  // A message that fails leaves no trace but the reason; one that is stopped keeps the answer so far.
  async function turn(pane, content, signal) {
    const question = bubble(pane, "user", "You"),
      answer = bubble(pane, "assistant", pane.model);
    question.textContent = content;
    pane.messages.push({ role: "user", content });
    try {
      await reply(pane, answer, signal);
    } catch (fault) {
      if (!signal.aborted || !answer.textContent) {
        pane.messages.pop();
        [question, answer].forEach((text) => text.parentNode.remove());
        if (!signal.aborted) pane.node.append(el("p", { class: "error", role: "alert" }, fault.message));
        typed.value ||= content;
        return;
      }
    }
    pane.messages.push({ role: "assistant", content: answer.textContent });
  }

  // Where the context is full, go on without the oldest exchange.
  async function reply(pane, answer, signal) {
    for (;;) {
      const body = { model: pane.model, messages: pane.messages, ...settings.options() };
      try {
        for await (const chunk of stream("/v1/chat/completions", body, signal)) {
          answer.append(chunk.choices[0].delta.content ?? "");
        }
        return;
      } catch (fault) {
        if (fault.code !== "context_length_exceeded" || pane.messages.length < 2) throw fault;
        pane.messages.splice(0, 2);
      }
    }
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
