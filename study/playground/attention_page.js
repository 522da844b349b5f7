"use strict";

/* Attention on the page: the arrays that are given, and everything computed from them. */

KINDS.sinks = {
  read: (text) => (text.trim() === "" ? null : lists.read(text, Array(page.setting.H), number_from, "numbers, one for each query head")),
  write: (value) => (value === null ? "" : value.map(text_of).join(" ")),
};

// --- what is given ---------------------------------------------------------------------------------------------------

/** The head of keys and values that a query head reads. */
function key_head(setting, head) {
  return Math.floor(head / (setting.H / setting.G));
}

/** The numbers of key heads that fit the query heads, and the heads of which one is shown. */
function draw_heads() {
  const { setting } = page;
  const choose = (select, numbers, chosen) => {
    select.replaceChildren(...numbers.map((number) => element("option", {}, String(number))));
    select.value = chosen;
  };
  page.head = Math.min(page.head, setting.H - 1);
  choose(document.querySelector('[data-size="G"]'), names("", setting.H).map((_, n) => n + 1).filter((G) => setting.H % G === 0), setting.G);
  choose(found("head"), names("", setting.H).map((_, n) => n), page.head);
  found("head").parentElement.hidden = setting.H === 1;
  found("head").onchange = () => {
    page.head = Number(found("head").value);
    show(setting);
  };
}

function draw_given() {
  draw_heads();
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

function draw_computed() {
  const { setting, head } = page;
  draw_mask();
  const steps = computed_of(setting);
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
  const lines = allowed.map((row, i) => {
    const keys = row.flatMap((one, j) => (one ? [j] : []));
    const gives = `output (${output[i].map(short).join(", ")})`;
    if (keys.length === 0) return `Query ${i} may attend to nothing: ${gives}.`;
    const most = keys.reduce((best, j) => (weights[i][j] > weights[i][best] ? j : best));
    const taken = sink === null ? "" : `, the sink takes ${short(Math.exp(sink - logsumexp[i]))}`;
    const seen = keys.length === 1 ? `key ${keys[0]}` : `keys ${keys.join(", ")}`;
    return `Query ${i} may attend to ${seen}. Largest weight: ${short(weights[i][most])} for key ${most}${taken}; ${gives}.`;
  });
  tell(`${which}${pairs} of ${allowed.flat().length} pairs allowed, ${rows}.`, lines);
}
