"use strict";

/* Mask descriptions made into arrays, as reference_numpy/masks.py does it (MASK-1 to MASK-6).

   Functions, steps and their names are those of the definition. True = this query may attend to this key. */

/** An element of an array [Q, K] or [B or 1, H or 1, Q, K]. */
function at(array, b, h, i, j) {
  if (shape(array).length === 2) return array[i][j];
  const batch = array[array.length === 1 ? 0 : b];
  return batch[batch.length === 1 ? 0 : h][i][j];
}

// --- descriptions ----------------------------------------------------------------------------------------------------

const Causal = (offset = null) => ({ type: "Causal", offset });
const SlidingWindow = (left, right, offset = null) => ({ type: "SlidingWindow", left, right, offset });
const KeyLengths = (lengths) => ({ type: "KeyLengths", lengths });
const KeyPadding = (keep) => ({ type: "KeyPadding", keep });
const Segments = (query_ids, key_ids) => ({ type: "Segments", query_ids, key_ids });
const Dense = (array) => ({ type: "Dense", array });
const And = (left, right) => ({ type: "And", left, right });
const Or = (left, right) => ({ type: "Or", left, right });

// --- what they mean --------------------------------------------------------------------------------------------------

/** The boolean array [B, H, Q, K] that a description means; null allows every pair. */
function materialize(mask, query_length, key_length, batch, heads) {
  check_mask(mask, query_length, key_length, batch, heads);
  return filled([batch, heads, query_length, key_length], (b, h, i, j) => is_allowed(mask, b, h, i, j));
}

/** Whether query i may attend to key j, in batch element b and head h. */
function is_allowed(mask, b, h, i, j) {
  if (mask === null) return true;
  if (mask.type === "And") return is_allowed(mask.left, b, h, i, j) && is_allowed(mask.right, b, h, i, j);
  if (mask.type === "Or") return is_allowed(mask.left, b, h, i, j) || is_allowed(mask.right, b, h, i, j);
  if (mask.type === "Causal") return j <= i + per_batch(mask.offset, b);
  if (mask.type === "SlidingWindow") {
    const distance = j - (i + per_batch(mask.offset, b));
    let inside = true;
    if (mask.left !== null) inside = inside && distance >= -mask.left;
    if (mask.right !== null) inside = inside && distance <= mask.right;
    return inside;
  }
  if (mask.type === "KeyLengths") return j < per_batch(mask.lengths, b);
  if (mask.type === "KeyPadding") return mask.keep[b][j];
  if (mask.type === "Segments") return row_of(mask.query_ids, b)[i] === row_of(mask.key_ids, b)[j];
  return at(mask.array, b, h, i, j);
}

/** A number, or one number for each batch element; null is 0. */
function per_batch(numbers, b) {
  return Array.isArray(numbers) ? numbers[b] : numbers ?? 0;
}

/** Of an array [B or 1, length]. */
function row_of(rows, b) {
  return rows[rows.length === 1 ? 0 : b];
}

// --- what is refused -------------------------------------------------------------------------------------------------

/** Sizes and numbers inside a description, with the words of specification/checks/masks.py. */
function check_mask(mask, query_length, key_length, batch, heads) {
  if (mask === null) return;
  if (mask.type === "And" || mask.type === "Or") {
    check_mask(mask.left, query_length, key_length, batch, heads);
    check_mask(mask.right, query_length, key_length, batch, heads);
  } else if (mask.type === "Causal" || mask.type === "SlidingWindow") {
    if (mask.offset === null && query_length !== key_length)
      throw new RangeError(
        `${mask.type} must have an offset with ${query_length} queries and ${key_length} keys, got None; ` +
          `offset=0 aligns the first query and key, offset=${key_length - query_length} the last ones`,
      );
    if (Array.isArray(mask.offset)) check_shape("offset", mask.offset, [batch]);
    for (const name of ["left", "right"])
      if ((mask[name] ?? 0) < 0) throw new RangeError(`${name} must not be negative, got ${mask[name]}`);
  } else if (mask.type === "KeyLengths") {
    check_shape("lengths", mask.lengths, [batch]);
    if (mask.lengths.some((length) => length < 0 || length > key_length))
      throw new RangeError(`lengths must lie between 0 and ${key_length} keys, got [${mask.lengths.join(", ")}]`);
  } else if (mask.type === "KeyPadding") {
    check_shape("keep", mask.keep, [batch, key_length]);
  } else if (mask.type === "Segments") {
    check_shape("query_ids", mask.query_ids, [mask.query_ids.length === 1 ? 1 : batch, query_length]);
    check_shape("key_ids", mask.key_ids, [mask.key_ids.length === 1 ? 1 : batch, key_length]);
  } else {
    check_pairs("mask", mask.array, [batch, heads, query_length, key_length]);
  }
}

function check_shape(name, array, expected) {
  if (String(shape(array)) !== String(expected))
    throw new RangeError(`${name} must have shape [${expected.join(", ")}], got [${shape(array).join(", ")}]`);
}

/** [Q, K] or [B or 1, H or 1, Q, K] (MASK-5). */
function check_pairs(name, array, sizes) {
  const got = shape(array);
  const outer = got.length === 2 ? [1, 1] : got.slice(0, 2);
  const fits = got.length === 2 || got.length === 4;
  if (!fits || outer.some((size, n) => size !== 1 && size !== sizes[n]) || String(got.slice(-2)) !== String(sizes.slice(2)))
    throw new RangeError(
      `${name} must have shape [${sizes.slice(2).join(", ")}] or ` +
        `[${sizes[0]} or 1, ${sizes[1]} or 1, ${sizes.slice(2).join(", ")}], got [${got.join(", ")}]`,
    );
}
