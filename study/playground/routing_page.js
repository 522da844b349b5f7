"use strict";

/* Routing on the page: the logits that are given, and which experts they choose, with which weights. */

function draw_given() {
  const { N, X, logits, choice_bias } = page.setting;
  const experts = names("expert", X);
  const table = (name, rows, array, note) => framed(name, name.replace("_", " "), note, editable_table(name, rows, experts, array, changed));
  const figures = [table("logits", names("token", N), logits, "[N, X], what the router makes of each token")];
  if (choice_bias) figures.push(table("choice_bias", ["bias"], [choice_bias], "[X], added where experts are chosen, and to no weight"));
  found("given").replaceChildren(...figures);
}

function draw_computed() {
  const { N, X, logits, choice_bias, groups, group_score, capacity } = page.setting;
  const tokens = names("token", N);
  const experts = names("expert", X);
  const routes = route_by_logits(logits, page.setting);
  if (capacity !== null && capacity < 1) throw new RangeError(`capacity must be at least 1, got ${capacity}`);
  const taken = taken_places(routes.map(({ indices }) => indices), X, capacity);
  const scores = routes.map((route) => route.scores);
  const preferences = routes.map((route) => route.preferences);
  const candidates = routes.map((route) => experts.map((_, x) => route.candidates.includes(x)));
  const weights = routes.map(({ indices, weights }) => experts.map((_, x) => weights[indices.indexOf(x)] ?? 0));
  const widest = largest_size(weights);
  const weight_table = grid(tokens, [...experts, "sum"], (n, x) => {
    if (x === X) return number_cell(sum(routes[n].weights), 0, { class: "aside" });
    if (!routes[n].indices.includes(x)) return hatched_cell("not chosen");
    return taken[n][x] ? number_cell(weights[n][x], widest) : number_cell(weights[n][x], widest, { class: "dropped" });
  });
  const counts = experts.map((_, x) => taken.filter((row) => row[x]).length);
  const most = Math.max(...counts);
  const load_table = grid(["tokens"], experts, (_, x) => number_cell(counts[x], most, {}, String));
  const figures = [framed("scores", "scores", "of each expert, by the logits alone", number_table(tokens, experts, scores))];
  if (groups > 1) {
    const group_names = filled([groups], (g) => `experts ${(g * X) / groups} to ${((g + 1) * X) / groups - 1}`);
    const widest_group = largest_size(routes.map(({ group_scores }) => group_scores));
    const group_table = grid(tokens, group_names, (n, g) =>
      number_cell(routes[n].group_scores[g], widest_group, candidates[n][(g * X) / groups] ? {} : { class: "forbidden" }),
    );
    const summed = group_score === "two_largest" ? "the sum of the two largest" : "the largest";
    figures.push(framed("groups", "groups", `${summed} ${choice_bias ? "preferences" : "scores"} of each`, group_table));
  }
  if (groups > 1 || choice_bias) {
    const table = number_table(tokens, experts, preferences, { allowed: candidates, reason: "not in a chosen group" });
    figures.push(framed("preferences", "preferences", choice_bias ? "scores + choice bias" : "scores in the chosen groups", table));
  }
  figures.push(
    framed("weights", "weights", "of the chosen experts", weight_table),
    framed("load", "load", "tokens that each expert takes", load_table),
  );
  found("computed").replaceChildren(...figures);
  const dropped = sum(routes.map(({ indices }) => indices.length)) - sum(counts);
  const idle = counts.filter((count) => count === 0).length;
  const fewest = idle === 0 ? "at least 1 to each" : `none to ${idle} of ${X}`;
  const lost = capacity === null ? "" : ` ${dropped} of ${dropped + sum(counts)} choices find their expert full.`;
  tell(
    `At most ${most === 1 ? "1 token goes" : `${most} tokens go`} to one expert, and ${fewest}.${lost}`,
    routes.map(({ indices, weights, spoiled }, n) => {
      if (spoiled) return `Token ${n} has a NaN: its result is NaN.`;
      const parts = indices.map((x, c) => `${x} (${short(weights[c])}${taken[n][x] ? "" : ", which is full"})`);
      return `Token ${n} chooses ${parts.length === 1 ? "expert" : "experts"} ${parts.join(", ")}.`;
    }),
  );
}
