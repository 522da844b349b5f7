"use strict";

/* The page: fields change the setting, and everything computed from it is drawn anew. */

const page = { setting: null, head: 0, timer: null };
const found = (id) => document.getElementById(id);
const names = (word, count) => Array.from({ length: count }, (_, n) => `${word} ${n}`);

// --- what is given ---------------------------------------------------------------------------------------------------

/** The head of keys and values that a query head reads. */
function key_head(setting, head) {
  return Math.floor(head / (setting.H / setting.G));
}

function draw_given() {
  const { setting, head } = page;
  const { Q, K, D, V, H, G } = setting;
  const group = key_head(setting, head);
  const which = (number, count) => (count > 1 ? `, head ${number}` : "");
  const table = (name, rows, columns, array, word) =>
    framed(name, name, word, editable_table(name, rows, columns, array, changed));
  const figures = [
    table("query", names("query", Q), names("d", D), setting.query[head], `[Q, D]${which(head, H)}`),
    table("key", names("key", K), names("d", D), setting.key[group], `[K, D]${which(group, G)}`),
    table("value", names("key", K), names("v", V), setting.value[group], `[K, V]${which(group, G)}`),
    framed("mask", "mask", "[Q, K], click a cell or move with the arrows", mask_table()),
  ];
  if (setting.bias) figures.push(table("bias", names("query", Q), names("key", K), setting.bias, "[Q, K], added after the softcap"));
  found("given").replaceChildren(...figures);
}

/** A button for each pair; one of them at a time is reached by tab, the others from it by the arrow keys. */
function mask_table() {
  const { Q, K } = page.setting;
  const table = grid(names("query", Q), names("key", K), (i, j) => {
    const button = element("button", { type: "button", tabindex: i + j ? "-1" : "0", "data-pair": `${i},${j}` });
    button.addEventListener("click", () => flip(i, j));
    return element("td", {}, button);
  });
  table.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !event.target.dataset.pair) return;
    const [i, j] = event.target.dataset.pair.split(",").map((n, axis) => Number(n) + step[axis]);
    const next = table.querySelector(`[data-pair="${i},${j}"]`);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return table;
}

/** The pairs that the mask allows; null where it is refused. */
function mask_pairs() {
  const { Q, K } = page.setting;
  try {
    return materialize(mask_of(page.setting), Q, K, 1, 1)[0][0];
  } catch {
    return null;
  }
}

/** What all descriptions allow together becomes the array itself, with one pair the other way round. */
function flip(i, j) {
  const array = mask_pairs();
  if (array === null) return;
  array[i][j] = !array[i][j];
  for (const name of DESCRIPTIONS) page.setting.mask[name].on = name === "dense";
  page.setting.mask.dense.array = array;
  show_fields();
  changed();
}

function draw_mask() {
  const allowed = mask_pairs();
  for (const button of document.querySelectorAll("[data-pair]")) {
    const [i, j] = button.dataset.pair.split(",").map(Number);
    button.setAttribute("aria-pressed", allowed === null ? "mixed" : allowed[i][j]);
    button.setAttribute("aria-label", `query ${i} may attend to key ${j}`);
  }
}

// --- what is computed ------------------------------------------------------------------------------------------------

function computed_of(setting) {
  const { query, key, value, bias, scale, softcap } = setting;
  const steps = attention_steps([query], [key], [value], options_of(setting));
  const everywhere = mapped(steps.allowed, () => true);
  const raw = attention_scores([query], repeat_heads([key], setting.H), everywhere, { bias, scale, softcap });
  return { ...steps, raw };
}

function draw_computed(steps) {
  const { setting, head } = page;
  const { Q, K, V } = setting;
  const [allowed, raw, weights, output] = [steps.allowed, steps.raw, steps.weights, steps.output].map((array) => array[0][head]);
  const logsumexp = steps.logsumexp[0][head];
  const queries = names("query", Q);
  const rows = queries.map((name, i) => (allowed[i].some(Boolean) ? name : `${name}, empty`));
  const keys = names("key", K);
  const capped = setting.softcap === null ? "scale · query · key" : "softcap(scale · query · key)";
  const formula = capped + (setting.bias ? " + bias" : "");
  const largest = largest_size(raw);
  const sink = setting.sinks ? setting.sinks[head] : null;
  const beside = [...(sink === null ? [] : ["sink"]), "log-sum-exp"];
  const extra = (i) => [...(sink === null ? [] : [Math.exp(sink - logsumexp[i])]), logsumexp[i]];
  const weight_table = grid(rows, [...keys, ...beside], (i, j) => {
    if (j >= K) return number_cell(extra(i)[j - K], beside[j - K] === "sink" ? 1 : 0, { class: "aside" });
    const filled_in = weights[i][j] !== 0 && !allowed[i][j]; // an empty row that is read as a mean or NaN
    return allowed[i][j] || filled_in ? number_cell(weights[i][j], 1) : number_cell(0, 1, { class: "forbidden" });
  });
  found("computed").replaceChildren(
    framed("scores", "scores", `${formula}, of all pairs`, number_table(queries, keys, raw)),
    framed("masked", "masked scores", "what the softmax is taken of", number_table(queries, keys, raw, { allowed, largest })),
    framed("weights", "weights", "softmax over the allowed keys", weight_table),
    framed("output", "output", "weights · value", number_table(rows, names("v", V), output)),
  );
  draw_words(allowed, weights, output, sink, logsumexp);
}

function draw_words(allowed, weights, output, sink, logsumexp) {
  const { setting, head } = page;
  const empty = allowed.filter((row) => !row.some(Boolean)).length;
  const pairs = allowed.flat().filter(Boolean).length;
  const rows = empty === 0 ? "no empty row" : empty === 1 ? "1 empty row" : `${empty} empty rows`;
  const which = setting.H > 1 ? `Query head ${head} reads key head ${key_head(setting, head)}. ` : "";
  found("summary").textContent = `${which}${pairs} of ${allowed.flat().length} pairs allowed, ${rows}.`;
  const lines = allowed.map((row, i) => {
    const keys = row.flatMap((one, j) => (one ? [j] : []));
    const gives = `output (${output[i].map(short).join(", ")})`;
    if (keys.length === 0) return `Query ${i} may attend to nothing: ${gives}.`;
    const most = keys.reduce((best, j) => (weights[i][j] > weights[i][best] ? j : best));
    const taken = sink === null ? "" : `, the sink takes ${short(Math.exp(sink - logsumexp[i]))}`;
    const seen = keys.length === 1 ? `key ${keys[0]}` : `keys ${keys.join(", ")}`;
    return `Query ${i} may attend to ${seen}. Largest weight: ${short(weights[i][most])} for key ${most}${taken}; ${gives}.`;
  });
  found("words").lastElementChild.replaceChildren(...lines.map((line) => element("li", {}, line)));
}

// --- together --------------------------------------------------------------------------------------------------------

function refuse(message) {
  found("refusal").hidden = message === null;
  if (found("refusal").textContent !== message) found("refusal").textContent = message ?? "";
}

/** After every change of the setting's numbers. What is refused is said, and nothing is shown as if it followed. */
function changed() {
  draw_mask();
  try {
    draw_computed(computed_of(page.setting));
    found("words").hidden = false;
    refuse(null);
    clearTimeout(page.timer); // browsers refuse to change the address at every keystroke
    page.timer = setTimeout(() => history.replaceState(null, "", `#${to_hash(page.setting)}`), 150);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    found("computed").replaceChildren();
    found("words").hidden = true;
    found("summary").textContent = "";
    refuse(error.message);
  }
}

/** Another setting, or another shape of this one. */
function show(setting, head = 0) {
  page.setting = setting;
  page.head = Math.min(head, setting.H - 1);
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
      return show(from_hash(decodeURIComponent(text)));
    } catch (error) {
      show_preset(PRESETS[0]);
      return refuse(`The address holds no setting that can be shown (${error.message}). This is "${PRESETS[0].title}".`);
    }
  }
  return show_preset(PRESETS.find(({ id }) => id === text) ?? PRESETS[0]);
}
