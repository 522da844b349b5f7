"use strict";

/* What the page computes, as plain data; ready-made ones; and how an address holds one.

   The batch has one element. Sizes: Q queries, K keys, width D, value width V, H query heads, G key heads.
   query [H, Q, D], key [G, K, D], value [G, K, V], bias [Q, K] or null, sinks [H] or null. Everything in `mask` that is
   on holds at once. */

const LIMITS = { Q: 8, K: 8, D: 6, V: 6, H: 4, G: 4 };
const OPTIONAL = { bias: ({ Q, K }) => filled([Q, K], () => 0) };
const DESCRIPTIONS = ["causal", "window", "lengths", "padding", "segments", "dense"];

/** Small numbers with one digit, the same at every visit. */
function sample(start, spread = 1) {
  return (...index) => {
    const number = index.reduce((sum, n, axis) => sum + n * [37, 23, 11][axis], start);
    return Math.round(spread * (((number * number + 3 * number) % 41) - 20)) / 10;
  };
}

/** A setting of these sizes with sample numbers, where `parts` says nothing else. */
function setting_of(sizes, parts = {}) {
  const { Q, K, D, V, H, G } = { Q: 5, K: 5, D: 2, V: 2, H: 1, G: 1, ...sizes };
  const { mask = {}, ...others } = parts;
  return {
    Q, K, D, V, H, G,
    query: filled([H, Q, D], sample(1)),
    key: filled([G, K, D], sample(5)),
    value: filled([G, K, V], sample(8)),
    bias: null, scale: null, softcap: null, sinks: null, empty_rows: "zero",
    ...others,
    mask: {
      causal: { on: false, offset: 0 },
      window: { on: false, left: 1, right: 1, offset: 0 },
      lengths: { on: false, length: K },
      padding: { on: false, keep: Array(K).fill(true) },
      segments: { on: false, query_ids: Array(Q).fill(0), key_ids: Array(K).fill(0) },
      dense: { on: false, array: filled([Q, K], () => true) },
      ...mask,
    },
  };
}

const causal = (offset) => ({ causal: { on: true, offset } });
const kept = (text) => ({ padding: { on: true, keep: [...text].map((sign) => sign === "1") } });
const ids = (text) => [...text].map(Number);
const spoiled = (array) => mapped(array, (number, _, j) => (j < 3 ? number : NaN));

const PRESETS = [
  { id: "causal", title: "Causal", look: "A query sees the keys up to its own position. Query 0 has one key, so its weight is 1.", make: () => setting_of({}, { mask: causal(0) }) },
  { id: "cache", title: "Causal, more keys than queries", look: "With offset K - Q = 3 the last query stands at the last key. Set the offset to 0: the first query then stands at the first key, and three keys are seen by nobody.", make: () => setting_of({ Q: 3, K: 6 }, { mask: causal(3) }) },
  { id: "window", title: "Window", look: "Both distances count inclusively: left = 2 and right = 0 leave three keys at most, the query's own among them.", make: () => setting_of({ Q: 6, K: 6 }, { mask: { window: { on: true, left: 2, right: 0, offset: 0 } } }) },
  { id: "padding", title: "Padding", look: "The last two keys are padding for every query. What stands there does not matter: change it, and no weight moves.", make: () => setting_of({}, { mask: kept("11100") }) },
  { id: "packing", title: "Two sequences in one row", look: "Equal ids may attend to each other, so that neither sequence sees the other.", make: () => setting_of({ Q: 6, K: 6 }, { mask: { ...causal(0), segments: { on: true, query_ids: ids("000111"), key_ids: ids("000111") } } }) },
  { id: "empty", title: "An empty row", look: "Padding at the start and a causal mask leave queries 0 and 1 nothing to attend to: weights and output 0, log-sum-exp -inf. Other libraries give the mean of all values, or NaN; choose them under empty rows.", make: () => setting_of({}, { mask: { ...causal(0), ...kept("00111") } }) },
  { id: "softcap", title: "Large scores, softcap", look: "Scores far apart give one key nearly all the weight. The softcap squeezes them into (-4, 4); clear it to see them as they are.", make: () => setting_of({}, { query: filled([1, 5, 2], sample(1, 12)), softcap: 4 }) },
  { id: "sink", title: "A sink", look: "The sink takes part in the denominator and has no value, so that a row's weights add up to less than 1. A larger sink takes more.", make: () => setting_of({}, { sinks: [1], mask: causal(0) }) },
  { id: "grouped", title: "Grouped heads", look: "Four query heads read two key heads: heads 0 and 1 the first, 2 and 3 the second. Change the head that is shown.", make: () => setting_of({ Q: 4, K: 4, H: 4, G: 2 }, { mask: causal(0) }) },
  { id: "hidden", title: "NaN behind a mask", look: "Keys and values 3 and 4 are NaN and beyond the length. A weight of 0 would not be enough, since 0 times NaN is NaN; they are left out of the arithmetic. Raise the length to 4 to let one in.", make: () => setting_of({}, { key: spoiled(filled([1, 5, 2], sample(5))), value: spoiled(filled([1, 5, 2], sample(8))), mask: { lengths: { on: true, length: 3 } } }) },
];

/** The setting with other sizes: numbers that were there stay, new ones are samples; key heads fit the query heads. */
function resized(setting, sizes) {
  const { H, G } = { ...setting, ...sizes };
  const next = setting_of({ ...setting, ...sizes, G: Math.max(...[1, 2, 3, 4].filter((fit) => H % fit === 0 && fit <= G)) });
  const keep = (fresh, old) => mapped(fresh, (number, ...index) => index.reduce((part, n) => part?.[n], old) ?? number);
  for (const name of ["query", "key", "value"]) next[name] = keep(next[name], setting[name]);
  next.bias = setting.bias && keep(filled([next.Q, next.K], () => 0), setting.bias);
  next.sinks = setting.sinks && keep(Array(next.H).fill(0), setting.sinks);
  for (const name of ["scale", "softcap", "empty_rows"]) next[name] = setting[name];
  for (const name of DESCRIPTIONS)
    for (const [field, old] of Object.entries(setting.mask[name]))
      next.mask[name][field] = Array.isArray(old) ? keep(next.mask[name][field], old) : old;
  next.mask.lengths.length = Math.min(setting.mask.lengths.length, next.K);
  return next;
}

/** The mask as a description: the conjunction of all that is on, or null. */
function mask_of({ mask }) {
  const meaning = {
    causal: ({ offset }) => Causal(offset),
    window: ({ left, right, offset }) => SlidingWindow(left, right, offset),
    lengths: ({ length }) => KeyLengths([length]),
    padding: ({ keep }) => KeyPadding([keep]),
    segments: ({ query_ids, key_ids }) => Segments([query_ids], [key_ids]),
    dense: ({ array }) => Dense(array),
  };
  const parts = DESCRIPTIONS.filter((name) => mask[name].on).map((name) => meaning[name](mask[name]));
  return parts.length === 0 ? null : parts.reduce(And);
}

/** What `attention` takes besides query, key and value. */
function options_of(setting) {
  const { bias, scale, softcap, sinks, empty_rows } = setting;
  return { mask: mask_of(setting), bias, scale, softcap, sinks, empty_rows };
}
