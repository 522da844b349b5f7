"use strict";

/* Attention, as reference_numpy/attention_steps.py defines it, in float64 (ATT-1 to ATT-10, ATT-14).

       scores  = softcap(scale * query . key) + bias        for the pairs that the mask allows, and for no others
       weights = softmax over the allowed keys of a row     0 where the mask forbids, and in a row that allows nothing
       output  = weights . value

   Functions, steps and their names are those of the definition; dropout, gradients and 16-bit dtypes are left out. */

// --- the pieces ------------------------------------------------------------------------------------------------------

/** left . right for the allowed pairs, and 0 for the others, whatever they hold (MASK-7). */
function pair_products(left, right, allowed) {
  return mapped(allowed, (one, b, h, i, j) => (one ? dot(left[b][h][i], right[b][h][j]) : 0));
}

function dot(left, right) {
  return left.reduce((sum, number, n) => sum + number * right[n], 0);
}

/** weights . values, summed over the allowed keys only; an entry that an allowed NaN or infinity reaches is NaN. */
function allowed_sum(weights, values, allowed) {
  const [B, H, Q, K] = shape(weights);
  return filled([B, H, Q, values[0][0][0].length], (b, h, i, v) => {
    let output = 0;
    let reached = false;
    for (let j = 0; j < K; j++) {
      const finite = Number.isFinite(values[b][h][j][v]);
      output += weights[b][h][i][j] * (finite ? values[b][h][j][v] : 0);
      reached = reached || (allowed[b][h][i][j] && !finite);
    }
    return reached ? NaN : output;
  });
}

/** softcap(scale * query . key) + bias for the allowed pairs, 0 for the others (ATT-1 to ATT-4). */
function attention_scores(query, key, allowed, { bias = null, scale = null, softcap = null } = {}) {
  const factor = resolve_scale(scale, query[0][0][0].length);
  let scores = mapped(pair_products(query, key, allowed), (score) => score * factor);
  if (softcap !== null) scores = mapped(scores, (score) => softcap * Math.tanh(score / softcap));
  if (bias !== null)
    scores = mapped(scores, (score, b, h, i, j) => score + (allowed[b][h][i][j] ? at(bias, b, h, i, j) : 0));
  return scores;
}

/** Softmax over the allowed keys, and its log-sum-exp (ATT-5, ATT-6): [weights, logsumexp]. */
function softmax(scores, allowed, sinks = null) {
  const [B, H, Q] = shape(scores);
  const rows = filled([B, H, Q], (b, h, i) => softmax_row(scores[b][h][i], allowed[b][h][i], sinks && sinks[h]));
  return [mapped(rows, (row) => row.weights), mapped(rows, (row) => row.logsumexp)];
}

/** One row; a sink of null is none. */
function softmax_row(scores, allowed, sink) {
  let maximum = scores.reduce((largest, score, j) => (allowed[j] ? Math.max(largest, score) : largest), -Infinity);
  if (sink !== null) maximum = Math.max(maximum, sink);
  // An empty row's maximum is -inf; a finite number in its place avoids inf - inf and changes nothing else.
  if (maximum === -Infinity) maximum = 0;
  // Subtracting the maximum leaves the quotient as it is and keeps exp from overflowing.
  const exponentials = scores.map((score, j) => Math.exp(allowed[j] ? score - maximum : -Infinity));
  let total = exponentials.reduce((sum, number) => sum + number, 0);
  if (sink !== null) total = total + Math.exp(sink - maximum);
  const weights = exponentials.map((number, j) => (allowed[j] ? number / (total === 0 ? 1 : total) : 0));
  return { weights, logsumexp: maximum + Math.log(total) };
}

/** Weights of the rows that may attend to nothing, and the pairs over which values are then summed (ATT-6). */
function fill_empty_rows(weights, allowed, empty_rows) {
  if (empty_rows === "zero") return [weights, allowed];
  const empty = mapped(weights, (_, b, h, i) => !allowed[b][h][i].some(Boolean));
  const filling = empty_rows === "nan" ? NaN : 1 / shape(weights)[3];
  return [
    mapped(weights, (weight, b, h, i, j) => (empty[b][h][i][j] ? filling : weight)),
    mapped(allowed, (one, b, h, i, j) => one || empty[b][h][i][j]),
  ];
}

/** 1 / sqrt(D) unless another scale is given (ATT-1). */
function resolve_scale(scale, width) {
  return scale === null ? 1 / Math.sqrt(width) : scale;
}

/** One key or value head for every query head: query head h reads head h // (H / G) (ATT-7). */
function repeat_heads(array, num_heads) {
  return array.map((heads) => filled([num_heads], (h) => heads[Math.floor(h / (num_heads / heads.length))]));
}

/** Which pairs count; -inf in the bias forbids a pair (ATT-3). */
function visible_pairs(mask, bias, [B, H, Q, K]) {
  const allowed = materialize(mask, Q, K, B, H);
  return bias === null ? allowed : mapped(allowed, (one, ...pair) => one && at(bias, ...pair) !== -Infinity);
}

// --- the operations --------------------------------------------------------------------------------------------------

/** Everything on the way from query, key and value to the output; `value` may be null. */
function attention_steps(query, key, value, options = {}) {
  const { mask = null, bias = null, sinks = null, empty_rows = "zero" } = options;
  check_attention(query, key, value, options);
  const [B, H, Q] = shape(query);
  const K = shape(key)[2];
  key = repeat_heads(key, H);
  const allowed = visible_pairs(mask, bias, [B, H, Q, K]);
  const scores = attention_scores(query, key, allowed, options);
  const [shares, logsumexp] = softmax(scores, allowed, sinks);
  const [weights, reach] = fill_empty_rows(shares, allowed, empty_rows);
  const output = value && allowed_sum(weights, repeat_heads(value, H), reach);
  return { allowed, scores, weights, logsumexp, output };
}

/** output = softmax(softcap(scale * query . key) + bias) . value, over the keys that the mask allows. */
function attention(query, key, value, options = {}) {
  return attention_steps(query, key, value, options).output;
}

/** The weights that `attention` gives to every key (ATT-14). */
function attention_weights(query, key, options = {}) {
  return attention_steps(query, key, null, options).weights;
}

/** log of the sum of exp(scores) over the allowed keys, and of exp(sink) if there is one (ATT-14). */
function attention_logsumexp(query, key, options = {}) {
  return attention_steps(query, key, null, { ...options, empty_rows: "zero" }).logsumexp;
}

/** What is refused, with the words of specification/checks/operations.py. */
function check_attention(query, key, value, { bias = null, scale = null, softcap = null, sinks = null, empty_rows = "zero" }) {
  const [B, H, Q, D] = shape(query);
  const [, G, K] = shape(key);
  check_shape("key", key, [B, G, K, D]);
  if (value !== null) check_shape("value", value, [B, G, K, shape(value)[3]]);
  if (H % G !== 0) throw new RangeError(`query must have a multiple of the ${G} key heads, got ${H} query heads`);
  if (bias !== null) check_pairs("bias", bias, [B, H, Q, K]);
  if (scale !== null && !Number.isFinite(scale)) throw new RangeError(`scale must be finite, got ${scale}`);
  if (softcap !== null && !(softcap > 0 && softcap < Infinity))
    throw new RangeError(`softcap must be positive and finite, got ${softcap}`);
  if (sinks !== null && sinks.length !== H)
    throw new RangeError(`sinks must have shape [${H}] beside query [${shape(query).join(", ")}], got [${sinks.length}]`);
  if (!["zero", "mean", "nan"].includes(empty_rows))
    throw new RangeError(`empty_rows must be one of 'zero', 'mean', 'nan', got '${empty_rows}'`);
  if (empty_rows !== "zero" && sinks !== null)
    throw new RangeError(`empty_rows must be 'zero' with sinks, which give every row a denominator, got '${empty_rows}'`);
}
