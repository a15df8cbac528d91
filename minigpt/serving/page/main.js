// The page of `minigpt serve`: which models, how they draw, and the four views.
import { ask, whenRefused } from "./api.js";
import { chatView } from "./chat.js";
import { temperatureSlider } from "./chances.js";
import { el, field } from "./dom.js";
import { lookingView, surpriseView } from "./surprise.js";
import { writeView } from "./write.js";

const main = document.querySelector("main");

function tokenForm() {
  return new Promise((resolve) => {
    const input = el("input", { type: "password", "aria-label": "token", autocomplete: "off" });
    const form = el(
      "form",
      {
        class: "row",
        on: {
          submit: (event) => {
            event.preventDefault();
            form.remove();
            resolve(input.value);
          },
        },
      },
      field("The server wants its token", input),
      el("button", {}, "Use it"),
    );
    main.prepend(form);
    input.focus();
  });
}

function settingsOf(abouts) {
  const names = abouts.map((model) => model.id);
  const choice = (label, more) =>
    el(
      "select",
      { "aria-label": label },
      ...[...more, ...names].map((name) => el("option", { value: name === "none" ? "" : name }, name)),
    );
  const first = choice("model", []),
    second = choice("second model", ["none"]);
  const number = (id, value, min, max) =>
    el("input", { id, type: "number", value: String(value), min: String(min), max: String(max) });
  const temperature = temperatureSlider(0.8),
    top = el("input", { type: "range", min: "0.05", max: "1", step: "0.05", value: "1", "aria-label": "top-p" });
  const tokens = number("tokens", 200, 1, 100000),
    seed = number("seed", "", 0, 4294967295);
  const keep = el("input", { type: "checkbox", "aria-label": "keep the seed" }),
    drawing = [field("temperature", temperature), field("top-p", top), field("tokens", tokens), field("seed", seed)];
  drawing.push(field("keep seed", keep));
  seed.addEventListener("input", () => (keep.checked = seed.value !== ""));
  const choices = [field("model", first), ...(names.length > 1 ? [field("beside", second)] : [])];
  const node = el(
    "details",
    { class: "settings" },
    el("summary", {}, "Settings"),
    el("div", { class: "row" }, ...choices, ...drawing),
  );
  const wide = matchMedia("(min-width: 501px)"), // a narrow screen has them folded
    unfold = () => (node.open = wide.matches);
  wide.addEventListener("change", unfold);
  unfold();

  // Stand below the prompt of a view; those who only read need the models, and not how tokens are drawn.
  function below(row, { draws }) {
    row.after(node);
    drawing.forEach((each) => (each.hidden = !draws));
    node.hidden = !draws && names.length === 1;
  }
  return {
    below,
    node,
    temperature,
    about: (name) => abouts.find((model) => model.id === name),
    nextSeed() {
      if (!keep.checked) seed.value = String(Math.floor(Math.random() * 1e6));
    },
    models: () => [first.value, ...(second.value && second.value !== first.value ? [second.value] : [])],
    options: () => ({
      temperature: Number(temperature.value),
      top_p: Number(top.value),
      max_tokens: Number(tokens.value),
      seed: Number(seed.value),
    }),
  };
}

function tabs(views, selected, first) {
  const buttons = [],
    panels = [];
  const select = (place) => {
    buttons.forEach((button, each) => {
      button.setAttribute("aria-selected", String(each === place));
      button.tabIndex = each === place ? 0 : -1;
      panels[each].hidden = each !== place;
    });
    selected(panels[place], buttons[place].textContent);
  };
  for (const [name, view] of Object.entries(views)) {
    const place = buttons.length;
    const move = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (place + step + buttons.length) % buttons.length;
      select(next);
      buttons[next].focus();
    };
    buttons.push(
      el(
        "button",
        { role: "tab", type: "button", id: `tab-${place}`, on: { click: () => select(place), keydown: move } },
        name,
      ),
    );
    panels.push(el("div", { role: "tabpanel", "aria-labelledby": `tab-${place}` }, view));
  }
  select(first);
  return [el("div", { role: "tablist" }, ...buttons), ...panels];
}

whenRefused(tokenForm);
try {
  const models = (await ask("/v1/models")).data,
    settings = settingsOf(models),
    write = writeView(settings),
    chat = chatView(settings);
  const views = {
    Write: write.node,
    Chat: chat.node,
    Attention: lookingView(settings),
    Surprise: surpriseView(settings),
  };
  const selected = (panel, name) => {
    const draws = name === "Write" || name === "Chat";
    settings.below(panel.querySelector(".row"), { draws });
    const text = panel.querySelector("textarea");
    if (draws || text.value || !write.text()) return;
    text.value = write.text(); // something to begin with
    panel.querySelector("button").click();
  };
  const [first] = models,
    talks = first.conversations && first.prompt !== "";
  main.append(...tabs(views, selected, talks ? 1 : 0));
  (talks ? chat : write).open(first.prompt);
} catch (fault) {
  main.append(el("p", { class: "error", role: "alert" }, fault.message));
}
