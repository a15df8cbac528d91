// A conversation, with one model or with two side by side.
import { stream } from "./api.js";
import { el, follower } from "./dom.js";
import { markdown } from "./markdown.js";

const TEACH = "minigpt train data=chat data.source=talks.jsonl init.from=runs/NAME";

export function chatView(settings) {
  const typed = el("textarea", { id: "message", "aria-label": "message", placeholder: "Say something" });
  const send = el("button", { class: "main", type: "button", on: { click: sendTyped } }, "Send");
  const stop = el("button", { type: "button", disabled: true, on: { click: () => abort.abort() } }, "Stop");
  const again = el("button", { type: "button", on: { click: restart } }, "New conversation");
  const system = el("textarea", { id: "system", "aria-label": "system text", placeholder: "Be brief." });
  const where = el("div", { class: "panes" }),
    unlearned = el("p", { class: "soft" });
  let panes = [],
    abort = new AbortController(),
    example = false; // the page opened with this conversation: the first message of one's own begins another

  typed.addEventListener("keydown", (event) => onEnter(event, sendTyped));
  settings.node.addEventListener("change", tell);
  tell();

  function tell() {
    const names = settings.models().filter((model) => !settings.about(model).conversations);
    unlearned.hidden = !names.length;
    const who = settings.models().length > 1 ? names.join(" and ") : "This model",
      have = names.length > 1 ? "have" : "has";
    unlearned.replaceChildren(
      `${who} ${have} not learned conversations: it continues a transcript, and may not answer. To teach it: `,
      el("code", {}, TEACH),
    );
  }

  function restart() {
    abort.abort();
    [panes, example] = [[], false];
    where.replaceChildren();
  }

  async function sendTyped() {
    if (send.disabled || !typed.value.trim()) return;
    if (example) restart();
    await say();
    if (!matchMedia("(hover: none)").matches) typed.focus(); // which would bring up a phone's keyboard
  }

  async function say() {
    const content = typed.value.trim(),
      models = settings.models();
    if (models.join() !== panes.map((pane) => pane.model).join()) {
      panes = models.map(paneOf);
      where.replaceChildren(...panes.map((pane) => pane.node));
    }
    typed.value = "";
    await run(panes, (pane) => [...pane.messages, { role: "user", content }]);
  }

  function paneOf(model) {
    const list = el("div", { "aria-live": "polite" }),
      error = el("p", { class: "error", role: "alert" });
    const node = el("section", { class: "pane" }, el("h2", {}, model), list, error);
    return { model, messages: [], from: 0, list, error, node };
  }

  // Have these panes answer what `change` makes of their messages.
  async function run(chosen, change) {
    if (send.disabled) return;
    settings.nextSeed();
    abort = new AbortController();
    const working = (on) => {
      [send.disabled, stop.disabled] = [on, !on];
      where.classList.toggle("busy", on);
    };
    working(true);
    await Promise.all(chosen.map((pane) => turn(pane, change(pane), abort.signal)));
    working(false);
  }

  // A message that fails leaves no trace but the reason; one that is stopped keeps the answer so far.
  async function turn(pane, messages, signal) {
    const before = { messages: pane.messages, from: pane.from },
      answer = { role: "assistant", content: "" };
    if (messages.length < before.messages.length) pane.from = 0;
    pane.messages = [...messages, answer];
    pane.error.textContent = "";
    draw(pane);
    pane.list.setAttribute("aria-busy", "true"); // the answer is read out once it is whole
    try {
      await reply(pane, messages, answer, signal);
    } catch (fault) {
      if (!signal.aborted || !answer.content) {
        Object.assign(pane, before);
        if (!pane.messages.includes(messages.at(-1))) typed.value ||= messages.at(-1).content;
        if (!signal.aborted) pane.error.textContent = fault.message;
      }
    }
    draw(pane);
    pane.list.setAttribute("aria-busy", "false");
  }

  // Where the context is full, go on without the oldest exchange.
  async function reply(pane, messages, answer, signal) {
    const follow = follower(node),
      text = pane.list.lastChild.querySelector(".body"),
      first = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    let waiting = false;
    const paint = () => {
      text.replaceChildren(...markdown(answer.content));
      waiting = false;
    };
    for (;;) {
      const body = { model: pane.model, messages: [...first, ...messages.slice(pane.from)], ...settings.options() };
      try {
        for await (const chunk of stream("/v1/chat/completions", body, signal)) {
          answer.content += chunk.choices[0].delta.content ?? "";
          if (!waiting) requestAnimationFrame(paint);
          waiting = true;
          follow();
        }
        return;
      } catch (fault) {
        if (fault.code !== "context_length_exceeded" || messages.length - pane.from < 2) throw fault;
        pane.from += 2;
      }
    }
  }

  function draw(pane) {
    pane.list.replaceChildren(...pane.messages.map((message, place) => bubble(pane, message, place)));
  }

  function bubble(pane, { role, content }, place) {
    const user = role === "user",
      body = el("div", { class: "body" }, ...(user ? [content] : markdown(content)));
    const redo = () => run([pane], () => pane.messages.slice(0, place)),
      change = () => node.replaceChildren(editor(pane, content, place));
    const tool = el("button", { type: "button", class: "tool", on: { click: user ? change : redo } }, user ? "Edit" : "Again");
    const gone = place < pane.from ? " gone" : "",
      node = el("div", { class: `message ${role}${gone}` }, el("b", {}, user ? "You" : pane.model), body, tool);
    if (gone) node.setAttribute("title", "the context is full: the model no longer reads this");
    return node;
  }

  // What follows a message that was changed is written anew.
  function editor(pane, content, place) {
    const text = el("textarea", { "aria-label": "changed message" });
    const save = () =>
      text.value.trim() &&
      run([pane], () => [...pane.messages.slice(0, place), { role: "user", content: text.value.trim() }]);
    text.value = content;
    text.addEventListener("keydown", (event) => onEnter(event, save));
    text.addEventListener("keydown", (event) => event.key === "Escape" && draw(pane));
    requestAnimationFrame(() => text.focus());
    return el(
      "div",
      {},
      text,
      el(
        "div",
        { class: "row" },
        el("button", { class: "main", type: "button", on: { click: save } }, "Send again"),
        el("button", { type: "button", on: { click: () => draw(pane) } }, "Cancel"),
      ),
    );
  }

  async function open(prompt) {
    typed.value = prompt;
    await say();
    example = panes.length > 0;
    panes.forEach((pane) => pane.list.append(el("p", { class: "soft" }, "An example: your own message begins anew.")));
  }

  const node = el(
    "section",
    {},
    unlearned,
    where,
    typed,
    el(
      "div",
      { class: "row" },
      send,
      stop,
      again,
      el("span", { class: "soft keys" }, "Enter sends, Shift-Enter breaks the line"),
    ),
    el("details", {}, el("summary", {}, "System text"), system),
  );
  return { node, open };
}

// Enter sends, unless it ends a composition or breaks the line.
function onEnter(event, act) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return; // 229: Safari
  event.preventDefault();
  act();
}
