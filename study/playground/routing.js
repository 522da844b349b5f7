"use strict";

/* Routing, as reference_numpy/experts.py defines it, in float64 (MOE-1 to MOE-3), and who takes which token (MOE-5).

       scores  = softmax or sigmoid of the logits, or the logits themselves
       chosen  = the largest of scores + choice_bias           in the best groups, of equal ones the lower indices
       weights = of the chosen, by their scores or logits, times the scale

   Functions, steps and their names are those of the definition; a row belongs to one token. */

// --- the pieces ------------------------------------------------------------------------------------------------------

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

function softmax(logits) {
  const maximum = Math.max(...logits);
  const exponentials = logits.map((logit) => Math.exp(logit - maximum));
  const total = sum(exponentials);
  return exponentials.map((number) => number / total);
}

/** The scores of all experts, each of which a sigmoid makes by itself (MOE-1). */
function expert_scores(logits, scoring) {
  if (scoring === "softmax") return softmax(logits);
  return scoring === "sigmoid" ? logits.map((logit) => 1 / (1 + Math.exp(-logit))) : logits;
}

/** Below 0 where `left` comes before `right` in ascending order; NaN comes last, as NumPy sorts. */
function compare(left, right) {
  if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right);
  return (left > right) - (left < right);
}

/** Where the largest numbers stand, in ascending order; of equal ones those with the lower indices (MOE-2). */
function largest(numbers, count) {
  const order = numbers.map((_, n) => n).sort((i, j) => compare(-numbers[i], -numbers[j]) || i - j);
  return order.slice(0, count).sort(compare);
}

/** What groups are chosen by: the sum of the two largest preferences of each, or its largest one. */
function sum_groups(preferences, groups, group_score) {
  const size = preferences.length / groups;
  return filled([groups], (g) => {
    const group = preferences.slice(g * size, (g + 1) * size).sort(compare);
    return sum(group.slice(group_score === "two_largest" ? -2 : -1));
  });
}

/** The experts with the largest preferences in the best groups; of a token with a NaN the first ones (MOE-2). */
function choose_experts(preferences, { chosen, groups, chosen_groups, group_score }) {
  const size = preferences.length / groups;
  const group_scores = sum_groups(preferences, groups, group_score);
  const best_groups = largest(group_scores, chosen_groups);
  const candidates = preferences.map((_, x) => x).filter((x) => best_groups.includes(Math.floor(x / size)));
  const inside = largest(candidates.map((x) => preferences[x]), chosen);
  const spoiled = [...preferences, ...group_scores].some(Number.isNaN);
  return { indices: spoiled ? filled([chosen], (n) => n) : inside.map((n) => candidates[n]), candidates, group_scores, spoiled };
}

/** The weights of the chosen experts, by their logits and scores; 0 where the scores sum to 0 (MOE-3). */
function expert_weights(logits, scores, weighting) {
  if (weighting === "softmax") return softmax(logits);
  if (weighting === "scores") return scores;
  const total = sum(scores);
  return scores.map((score) => (total === 0 ? 0 : score / total));
}

/** Which expert takes which token: those that chose it, up to its capacity the first of them (MOE-5). */
function taken_places(indices, experts, capacity) {
  const counts = Array(experts).fill(0);
  return indices.map((row) =>
    counts.map((_, x) => row.includes(x) && (capacity === null || (counts[x] += 1) <= capacity)),
  );
}

// --- the operation ---------------------------------------------------------------------------------------------------

/** For each token: the chosen experts, their weights, and everything on the way. */
function route_by_logits(logits, options = {}) {
  const all = { scoring: "softmax", groups: 1, chosen_groups: 1, group_score: "two_largest", weighting: "normalized", scale: 1, choice_bias: null, ...options };
  check_choice(logits[0].length, all);
  return logits.map((row) => {
    const scores = expert_scores(row, all.scoring);
    const preferences = all.choice_bias === null ? scores : scores.map((score, x) => score + all.choice_bias[x]);
    const choice = choose_experts(preferences, all);
    const parts = [row, scores].map((numbers) => choice.indices.map((x) => numbers[x]));
    const weights = expert_weights(...parts, all.weighting).map((weight) => (choice.spoiled ? NaN : weight * all.scale));
    return { ...choice, scores, preferences, weights };
  });
}

/** What is refused, with the words of specification/checks/experts.py. */
function check_choice(experts, { chosen, scoring, groups, chosen_groups, weighting, scale }) {
  const check = (name, right, expected, got) => {
    if (!right) throw new RangeError(`${name} must ${expected}, got ${got}`);
  };
  check("chosen", chosen >= 1, "be at least 1", chosen);
  check("chosen", chosen <= experts, `be at most ${experts}, the number of experts`, chosen);
  const summed = scoring === "none" && weighting === "normalized";
  check("weighting", !summed, "be 'scores' or 'softmax' with scoring 'none', whose sum may be 0", "'normalized'");
  check("groups", groups >= 1, "be at least 1", groups);
  check("router.weight", experts % groups === 0, `have columns that ${groups} groups share equally`, `${experts} columns`);
  check("chosen_groups", chosen_groups >= 1, "be at least 1", chosen_groups);
  check("chosen_groups", chosen_groups <= groups, `be at most ${groups}, the number of groups`, chosen_groups);
  const inside = (experts / groups) * chosen_groups;
  check("chosen", chosen <= inside, `be at most ${inside}, the number of experts in the chosen groups`, chosen);
  check("scale", Number.isFinite(scale), "be finite in float64", String(scale).replace("Infinity", "inf").replace("NaN", "nan"));
}
