"use strict";

/* A setting as the pairs of an address, and back: what is left out there is off. */

/** An array of booleans as 0110, one of integers as 0.1.1.2, a number as itself, null as "none". */
function field_text(field) {
  if (!Array.isArray(field)) return String(field ?? "none");
  const flat = field.flat();
  return typeof flat[0] === "boolean" ? flat.map(Number).join("") : flat.join(".");
}

function to_pairs(setting) {
  const told = [["sizes", list(Object.keys(LIMITS).map((name) => setting[name]))]];
  for (const name of ["query", "key", "value", "bias", "sinks"]) if (setting[name]) told.push([name, list(setting[name])]);
  for (const name of ["scale", "softcap"]) if (setting[name] !== null) told.push([name, setting[name]]);
  if (setting.empty_rows !== "zero") told.push(["empty_rows", setting.empty_rows]);
  for (const name of DESCRIPTIONS) {
    const { on, ...fields } = setting.mask[name];
    if (on) told.push([name, Object.values(fields).map(field_text).join("_")]);
  }
  return told;
}

/** What stands in the place of `old`, which says what kind of thing it is. */
function field_of(text, old) {
  if (!Array.isArray(old)) return text === "none" ? null : whole_number_of(text);
  if (typeof old.flat()[0] === "boolean") return array_of(text, shape(old), boolean_of, "");
  return array_of(text, shape(old), whole_number_of, ".");
}

/** Throws an Error that says why, where the pairs hold no setting. */
function from_pairs(told) {
  const setting = setting_of(sizes_of(told.get("sizes")));
  const { Q, K, H } = setting;
  const arrays = { query: shape(setting.query), key: shape(setting.key), value: shape(setting.value), bias: [Q, K], sinks: [H] };
  for (const [name, sizes] of Object.entries(arrays))
    if (told.has(name)) setting[name] = array_of(told.get(name), sizes, number_of, ",");
  for (const name of ["scale", "softcap"]) if (told.has(name)) setting[name] = number_of(told.get(name));
  if (told.has("empty_rows")) setting.empty_rows = told.get("empty_rows");
  for (const name of DESCRIPTIONS.filter((name) => told.has(name))) {
    const texts = told.get(name).split("_");
    const { on, ...fields } = setting.mask[name];
    const read = Object.entries(fields).map(([field, old], n) => [field, field_of(texts[n], old)]);
    setting.mask[name] = { on: true, ...Object.fromEntries(read) };
  }
  if (setting.mask.lengths.length === null) throw new Error("a length must be given");
  attention_steps([setting.query], [setting.key], [setting.value], options_of(setting)); // refuses what has no meaning
  return setting;
}
