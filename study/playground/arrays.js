"use strict";

/* Arrays as nested lists, of which every size is at least 1. */

/** The array of these sizes whose element at each index is entry(...index). */
function filled(sizes, entry, ...index) {
  if (index.length === sizes.length) return entry(...index);
  return Array.from({ length: sizes[index.length] }, (_, n) => filled(sizes, entry, ...index, n));
}

function shape(array) {
  return Array.isArray(array) ? [array.length, ...shape(array[0])] : [];
}

/** convert(element, ...index) of every element. */
function mapped(array, convert, ...index) {
  if (!Array.isArray(array)) return convert(array, ...index);
  return array.map((part, n) => mapped(part, convert, ...index, n));
}
