"use strict";

/* The form: what a field's text means, and the setting that it changes. Starts the page. */

const lists = {
  parts: (text) => text.trim().split(/[\s,]+/),
  read: (text, old, convert, what) => {
    const read = lists.parts(text).map(convert);
    if (read.length !== old.length || read.includes(null)) throw new Error(`expected ${old.length} ${what}`);
    return read;
  },
};

const whole = (text) => (/^[-−+]?\d{1,9}$/.test(text.trim()) ? Number(text.trim().replace("−", "-")) : null);
const needed = (value, what) => {
  if (value === null) throw new Error(`expected ${what}`);
  return value;
};
const optional = (text, read, what) => (text.trim() === "" ? null : needed(read(text), `${what}, or nothing`));

/** For each kind of field: the value that a text means (an Error says what was expected), and the text of a value. */
const KINDS = {
  whole: { read: (text) => needed(whole(text), "a whole number"), write: String },
  "whole or none": { read: (text) => optional(text, whole, "a whole number"), write: (value) => value ?? "" },
  distance: { read: (text) => optional(text, whole, "a whole number"), write: (value) => value ?? "" },
  "number or none": { read: (text) => optional(text, number_from, "a number"), write: (value) => (value === null ? "" : text_of(value)) },
  signs: {
    read: (text, old) => lists.read(text.replace(/(?<=[01])(?=[01])/g, " "), old, (sign) => ({ 0: false, 1: true })[sign] ?? null, "signs of 1 (keep) or 0"),
    write: (value) => value.map(Number).join(" "),
  },
  "whole numbers": { read: (text, old) => lists.read(text, old, whole, "whole numbers"), write: (value) => value.join(" ") },
  sinks: {
    read: (text) => (text.trim() === "" ? null : lists.read(text, Array(page.setting.H), number_from, "numbers, one for each query head")),
    write: (value) => (value === null ? "" : value.map(text_of).join(" ")),
  },
  choice: { read: (text) => text, write: String },
};

/** The object that holds what a path such as "mask.causal.offset" names, and its last name. */
function place_of(path) {
  const parts = path.split(".");
  const last = parts.pop();
  return [parts.reduce((part, name) => part[name], page.setting), last];
}

/** Every field says what the setting holds. */
function show_fields() {
  const { setting } = page;
  for (const field of document.querySelectorAll("[data-path]")) {
    const [holder, name] = place_of(field.dataset.path);
    if (field.dataset.kind === "on") field.checked = holder[name];
    else field.value = KINDS[field.dataset.kind].write(holder[name]);
    field.removeAttribute("aria-invalid");
  }
  found("bias-on").checked = setting.bias !== null;
  const choose = (select, numbers, chosen) => {
    select.replaceChildren(...numbers.map((number) => element("option", {}, String(number))));
    select.value = chosen;
  };
  const groups = names("", setting.H).map((_, n) => n + 1).filter((G) => setting.H % G === 0);
  choose(document.querySelector('[data-size="G"]'), groups, setting.G);
  choose(found("head"), names("", setting.H).map((_, n) => n), page.head);
  found("head").parentElement.hidden = setting.H === 1;
  for (const field of document.querySelectorAll("input[data-size]")) {
    field.max = LIMITS[field.dataset.size];
    field.value = setting[field.dataset.size];
  }
}

function read_field(field) {
  const [holder, name] = place_of(field.dataset.path);
  if (field.dataset.kind === "on") holder[name] = field.checked;
  else {
    try {
      holder[name] = KINDS[field.dataset.kind].read(field.value, holder[name]);
      field.removeAttribute("aria-invalid");
    } catch (error) {
      field.setAttribute("aria-invalid", "true");
      return refuse(`${field.labels[0].textContent.trim()}: ${error.message}, got "${field.value}"; the last one that could be read holds.`);
    }
    if ("on" in holder) {
      holder.on = true; // whoever writes a description's numbers means it to hold
      document.querySelector(`[data-path="${field.dataset.path.replace(/\w+$/, "on")}"]`).checked = true;
    }
  }
  changed();
}

function read_size(field) {
  const { size } = field.dataset;
  const number = Math.min(Math.max(Math.round(Number(field.value)) || 1, 1), LIMITS[size]);
  const sizes = { [size]: number };
  if (size === "H") sizes.G = Math.max(...[1, 2, 3, 4].filter((G) => number % G === 0 && G <= page.setting.G));
  show(resized(page.setting, sizes), page.head);
}

function start() {
  for (const preset of PRESETS) {
    const button = element("button", { type: "button", "data-preset": preset.id, "aria-pressed": "false" }, preset.title);
    button.addEventListener("click", () => show_preset(preset));
    found("presets").append(element("li", {}, button));
  }
  for (const field of document.querySelectorAll("[data-path]"))
    field.addEventListener(field.type === "text" ? "input" : "change", () => read_field(field));
  for (const field of document.querySelectorAll("[data-size]")) field.addEventListener("change", () => read_size(field));
  found("head").addEventListener("change", () => show(page.setting, Number(found("head").value)));
  found("bias-on").addEventListener("change", () => {
    const { Q, K } = page.setting;
    page.setting.bias = found("bias-on").checked ? filled([Q, K], () => 0) : null;
    show(page.setting, page.head);
  });
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

start();
