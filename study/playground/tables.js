"use strict";

/* Arrays as tables: every cell holds its number and is shaded by it, so that the picture is its own text. */

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes))
    if (value !== null && value !== false) made.setAttribute(attribute, value === true ? "" : value);
  made.append(...children);
  return made;
}

/** A number in few digits; the cell's tooltip has all of them. */
function short(number) {
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  const digits = size === 0 ? "0" : size >= 1e4 || size < 5e-4 ? size.toExponential(1) : size >= 100 ? size.toFixed(1) : size.toFixed(3);
  return (number < 0 ? "−" : "") + digits;
}

function largest_size(rows) {
  return Math.max(0, ...rows.flat().map(Math.abs).filter(Number.isFinite));
}

/** Warm above 0, cool below, by its part of the largest size; what is no finite number is marked. */
function shading(number, largest) {
  if (Number.isNaN(number)) return { class: "nan" };
  if (!Number.isFinite(number)) return { class: "infinite" };
  const shade = largest > 0 ? Math.abs(number) / largest : 0;
  return { class: number < 0 ? "negative" : "positive", style: `--shade: ${shade.toFixed(3)}` };
}

/** A scrolling frame with a caption around a table that it describes. */
function framed(id, title, note, table) {
  const caption = element("figcaption", { id: `${id}-title` }, element("b", {}, title), element("span", {}, note));
  const frame = element("div", { class: "frame", tabindex: "0", role: "group", "aria-labelledby": `${id}-title` }, table);
  table.setAttribute("aria-labelledby", `${id}-title`);
  return element("figure", { id, class: "array" }, caption, frame);
}

/** A table with names above and beside it; cell(i, j) gives each of its cells. */
function grid(row_names, column_names, cell) {
  const head = element("tr", {}, element("td"), ...column_names.map((name) => element("th", { scope: "col" }, name)));
  const rows = row_names.map((name, i) =>
    element("tr", {}, element("th", { scope: "row" }, name), ...column_names.map((_, j) => cell(i, j))),
  );
  return element("table", { class: "heat" }, element("thead", {}, head), element("tbody", {}, ...rows));
}

function number_cell(number, largest, extra = {}, write = short) {
  const { class: kind, style = null } = shading(number, largest);
  const told = { style, title: String(number), "data-value": String(number), ...extra };
  return element("td", { ...told, class: `${kind} ${extra.class ?? ""}`.trim() }, write(number));
}

/** A cell without a number, for a reason that is read out. */
function hatched_cell(reason) {
  const dot = element("span", { "aria-hidden": "true" }, "·");
  return element("td", { class: "forbidden" }, dot, element("span", { class: "unseen" }, reason));
}

/** A table of numbers that cannot be edited; where `allowed` forbids, the cell gives the reason instead. */
function number_table(row_names, column_names, rows, { allowed = null, reason = "forbidden", largest = largest_size(rows) } = {}) {
  return grid(row_names, column_names, (i, j) =>
    allowed && !allowed[i][j] ? hatched_cell(reason) : number_cell(rows[i][j], largest),
  );
}

/** A table of fields. change(i, j, number) is called with every number that can be read. */
function editable_table(name, row_names, column_names, rows, change) {
  const cell = (i, j) => {
    const attributes = { "aria-label": `${name}, ${row_names[i]}, ${column_names[j]}`, value: text_of(rows[i][j]) };
    const field = element("input", { ...attributes, inputmode: "text", autocomplete: "off", spellcheck: "false" });
    const holder = element("td", {}, field);
    const shade = () => {
      const { class: kind, style = "" } = shading(rows[i][j], largest_size(rows));
      holder.className = kind;
      holder.style = style;
    };
    field.addEventListener("input", () => {
      const number = number_from(field.value);
      field.setAttribute("aria-invalid", number === null);
      if (number === null) return;
      rows[i][j] = number;
      shade();
      change();
    });
    shade();
    return holder;
  };
  return grid(row_names, column_names, cell);
}
