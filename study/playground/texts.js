"use strict";

/* Numbers and arrays as text, and back: in fields, and in an address. */

// --- fields -----------------------------------------------------------------------------------------------------------

const text_of = (number) => String(number).replace("Infinity", "inf").replace("NaN", "nan");

/** The number that a reader typed, "inf", "-inf" and "nan" among them; null where it is none. */
function number_from(text) {
  const trimmed = text.trim().toLowerCase().replace("−", "-").replace("∞", "inf");
  const special = { inf: Infinity, "+inf": Infinity, "-inf": -Infinity, nan: NaN };
  if (trimmed in special) return special[trimmed];
  return trimmed === "" || !Number.isFinite(Number(trimmed)) ? null : Number(trimmed);
}

// --- addresses --------------------------------------------------------------------------------------------------------

const write_pairs = (pairs) => pairs.map((pair) => pair.join("=")).join("&");
const read_pairs = (text) => new Map(text.split("&").map((pair) => pair.split("=")));
const list = (array) => array.flat(Infinity).join(",");

function number_of(digits) {
  const number = Number(digits);
  if (!digits || (Number.isNaN(number) && digits !== "NaN")) throw new Error(`"${digits}" is no number`);
  return number;
}

function whole_number_of(digits) {
  if (!Number.isSafeInteger(number_of(digits))) throw new Error(`"${digits}" is no whole number`);
  return Number(digits);
}

function boolean_of(sign) {
  if (sign !== "0" && sign !== "1") throw new Error(`"${sign}" is neither 0 nor 1`);
  return sign === "1";
}

/** The array of these sizes whose elements stand in the text one after the other. */
function array_of(text, sizes, read, separator) {
  const flat = (text ?? "").split(separator).map(read);
  const count = sizes.reduce((product, size) => product * size, 1);
  if (flat.length !== count) throw new Error(`${flat.length} numbers where there should be ${count}`);
  return filled(sizes, (...index) => flat[index.reduce((place, n, axis) => place * sizes[axis] + n, 0)]);
}

/** The sizes that `LIMITS` names. */
function sizes_of(text) {
  const names = Object.keys(LIMITS);
  const numbers = array_of(text, [names.length], whole_number_of, ",");
  const sizes = Object.fromEntries(names.map((name, n) => [name, numbers[n]]));
  for (const name of names)
    if (sizes[name] < 1 || sizes[name] > LIMITS[name]) throw new Error(`${name} must be from 1 to ${LIMITS[name]}`);
  return sizes;
}
