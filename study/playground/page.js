"use strict";

/* What every playground does: a setting is shown, a field changes it, and what follows from it is drawn anew.

   A playground has PRESETS, LIMITS and OPTIONAL, `resized`, `to_pairs` and `from_pairs`; `draw_given` draws the arrays of
   page.setting, `draw_computed` what follows from them, or throws a RangeError that says what is refused. */

const page = { setting: null, head: 0, timer: null };
const found = (id) => document.getElementById(id);
const names = (word, count) => Array.from({ length: count }, (_, n) => `${word} ${n}`);

function refuse(message) {
  found("refusal").hidden = message === null;
  if (found("refusal").textContent !== message) found("refusal").textContent = message ?? "";
}

function tell(summary, lines) {
  found("summary").textContent = summary;
  found("words").lastElementChild.replaceChildren(...lines.map((line) => element("li", {}, line)));
}

/** After every change of the setting's numbers. What is refused is said, and nothing is shown as if it followed. */
function changed() {
  try {
    draw_computed();
    found("words").hidden = false;
    refuse(null);
    clearTimeout(page.timer); // browsers refuse to change the address at every keystroke
    page.timer = setTimeout(() => history.replaceState(null, "", `#${write_pairs(to_pairs(page.setting))}`), 150);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    found("computed").replaceChildren();
    found("words").hidden = true;
    found("summary").textContent = "";
    refuse(error.message);
  }
}

/** Another setting, or another shape of this one. */
function show(setting) {
  page.setting = setting;
  show_fields();
  draw_given();
  changed();
}

function show_preset(preset) {
  show(preset.make());
  found("look").textContent = preset.look;
  for (const button of document.querySelectorAll("[data-preset]"))
    button.setAttribute("aria-pressed", button.dataset.preset === preset.id);
}

/** The setting in the address, or the first of the ready-made ones. */
function show_address() {
  const text = location.hash.slice(1);
  found("look").textContent = "";
  for (const button of document.querySelectorAll("[data-preset]")) button.setAttribute("aria-pressed", "false");
  if (text.startsWith("sizes=")) {
    try {
      return show(from_pairs(read_pairs(decodeURIComponent(text))));
    } catch (error) {
      show_preset(PRESETS[0]);
      return refuse(`The address holds no setting that can be shown (${error.message}). This is "${PRESETS[0].title}".`);
    }
  }
  return show_preset(PRESETS.find(({ id }) => id === text) ?? PRESETS[0]);
}

function start() {
  for (const preset of PRESETS) {
    const button = element("button", { type: "button", "data-preset": preset.id, "aria-pressed": "false" }, preset.title);
    button.addEventListener("click", () => show_preset(preset));
    found("presets").append(element("li", {}, button));
  }
  listen_to_fields();
  if (matchMedia("(max-width: 60rem)").matches) for (const group of document.querySelectorAll("form details")) group.open = false;
  start_theme();
  found("playground").hidden = false;
  addEventListener("hashchange", show_address);
  show_address();
}

/** Light or dark by choice, which is kept where the browser lets a page keep things. */
function start_theme() {
  const choose = (theme) => {
    found("theme").value = theme;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  try {
    choose(localStorage.getItem("theme") ?? "");
  } catch {
    choose("");
  }
  // From another tab, or from the page just left: its choice may arrive after this page has read the store.
  addEventListener("storage", (event) => { if (event.key === "theme") choose(event.newValue ?? ""); });
  found("theme").parentElement.hidden = false;
  found("theme").addEventListener("change", () => {
    choose(found("theme").value);
    try {
      localStorage.setItem("theme", found("theme").value);
    } catch {
      // The choice then holds for this visit.
    }
  });
}

addEventListener("DOMContentLoaded", start);
