"use strict";

/* The form: what a field's text means, and the setting that it changes. */

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
  number: { read: (text) => needed(number_from(text), "a number"), write: text_of },
  "number or none": { read: (text) => optional(text, number_from, "a number"), write: (value) => (value === null ? "" : text_of(value)) },
  signs: {
    read: (text, old) => lists.read(text.replace(/(?<=[01])(?=[01])/g, " "), old, (sign) => ({ 0: false, 1: true })[sign] ?? null, "signs of 1 (keep) or 0"),
    write: (value) => value.map(Number).join(" "),
  },
  "whole numbers": { read: (text, old) => lists.read(text, old, whole, "whole numbers"), write: (value) => value.join(" ") },
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
  for (const tick of document.querySelectorAll("[data-optional]")) tick.checked = setting[tick.dataset.optional] !== null;
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
  show(resized(page.setting, { [size]: Math.min(Math.max(Math.round(Number(field.value)) || 1, 1), LIMITS[size]) }));
}

/** An array that the setting may have or not: zeros at first. */
function read_tick(tick) {
  const name = tick.dataset.optional;
  page.setting[name] = tick.checked ? OPTIONAL[name](page.setting) : null;
  show(page.setting);
}

function listen_to_fields() {
  const listen = (selector, react) => {
    for (const field of document.querySelectorAll(selector))
      field.addEventListener(field.type === "text" ? "input" : "change", () => react(field));
  };
  listen("[data-path]", read_field);
  for (const field of document.querySelectorAll("[data-size]")) field.addEventListener("change", () => read_size(field));
  listen("[data-optional]", read_tick);
}
