"use strict";

/* What the page computes, as plain data; ready-made ones; and how an address holds one.

   Sizes: N tokens, X experts. logits [N, X], choice_bias [X] or null. */

const LIMITS = { N: 8, X: 12 };
const OPTIONAL = { choice_bias: ({ X }) => Array(X).fill(0) };
const NUMBERS = ["chosen", "groups", "chosen_groups", "scale", "capacity"];
const CHOICES = {
  scoring: ["softmax", "sigmoid", "none"],
  group_score: ["two_largest", "largest"],
  weighting: ["normalized", "scores", "softmax"],
};

/** Small numbers with one digit, no two of a row alike, the same at every visit. */
const sample_logit = (n, x) => (((n * 29 + x * 37 + n * x * 5) % 41) - 20) / 10;

/** A setting of these sizes with sample numbers, where `parts` says nothing else. */
function setting_of(sizes, parts = {}) {
  const { N, X } = { N: 5, X: 8, ...sizes };
  return {
    N, X,
    logits: filled([N, X], sample_logit),
    choice_bias: null, chosen: 2, scoring: "softmax", groups: 1, chosen_groups: 1, group_score: "two_largest",
    weighting: "normalized", scale: 1, capacity: null,
    ...parts,
  };
}

const PRESETS = [
  { id: "two", title: "Two of eight", look: "As Mixtral and Qwen3-MoE choose: the weights are the scores of the two, divided by their sum. Set the weighting to softmax: nothing moves, as what divides the softmax over all cancels.", make: () => setting_of() },
  { id: "scores", title: "Scores as weights", look: "As OLMoE weighs: the softmax over all experts stays as it is, so a token's weights sum to less than 1.", make: () => setting_of({}, { chosen: 4, weighting: "scores" }) },
  { id: "logits", title: "Softmax after the choice", look: "As GPT-OSS weighs: the largest logits are chosen, and the softmax is over these alone.", make: () => setting_of({}, { chosen: 4, scoring: "none", weighting: "softmax" }) },
  { id: "bias", title: "A bias that only chooses", look: "No token would choose expert 4, so training raised its choice bias: all choose it now, and its weight still follows from its score alone. Set the bias to 0 to see which they choose then.", make: () => setting_of({}, { scoring: "sigmoid", choice_bias: [0, 0, 0, 0, 0.7, 0, 0, 0] }) },
  { id: "groups", title: "Groups", look: "As DeepSeek-V3 chooses: two of four groups, by the sum of their two largest scores; then four experts among these. A large score in another group does not count. Set the group score to largest: other groups are chosen.", make: () => setting_of({ X: 12 }, { chosen: 4, scoring: "sigmoid", groups: 4, chosen_groups: 2, scale: 2.5 }) },
  { id: "tie", title: "A tie", look: "All logits of token 0 are equal, and experts 2 and 3 of token 1: of equal ones the lower index is chosen. Other libraries say nothing of it, and choose otherwise on another device.", make: () => setting_of({ N: 2, X: 4 }, { logits: [[1, 1, 1, 1], [0, 2, 1, 1]] }) },
  { id: "nan", title: "NaN in one token", look: "Token 1 has a NaN among its logits: its weights are NaN, and no other token's are.", make: () => setting_of({ N: 3 }, { logits: filled([3, 8], (n, x) => (n === 1 && x === 3 ? NaN : sample_logit(n, x))) }) },
  { id: "capacity", title: "Full experts", look: "Each expert takes two tokens, the first that chose it. What a token loses is not made up for: its other weights stay.", make: () => setting_of({ N: 8, X: 4 }, { capacity: 2 }) },
];

/** The setting with other sizes: numbers that were there stay, new ones are samples. */
function resized(setting, sizes) {
  const next = setting_of({ ...setting, ...sizes });
  const logits = mapped(next.logits, (fresh, n, x) => setting.logits[n]?.[x] ?? fresh);
  const choice_bias = setting.choice_bias && Array.from({ length: next.X }, (_, x) => setting.choice_bias[x] ?? 0);
  return { ...setting, N: next.N, X: next.X, logits, choice_bias };
}

/** What is not as `setting_of` has it; what is left out of an address is. */
function to_pairs(setting) {
  const plain = setting_of(setting);
  const told = [["sizes", list(Object.keys(LIMITS).map((name) => setting[name]))], ["logits", list(setting.logits)]];
  if (setting.choice_bias) told.push(["choice_bias", list(setting.choice_bias)]);
  for (const name of [...NUMBERS, ...Object.keys(CHOICES)]) if (setting[name] !== plain[name]) told.push([name, setting[name]]);
  return told;
}

/** Throws an Error that says why, where the pairs hold no setting. */
function from_pairs(told) {
  const { N, X } = sizes_of(told.get("sizes"));
  const setting = setting_of({ N, X });
  for (const [name, sizes] of Object.entries({ logits: [N, X], choice_bias: [X] }))
    if (told.has(name)) setting[name] = array_of(told.get(name), sizes, number_of, ",");
  for (const name of NUMBERS)
    if (told.has(name)) setting[name] = (name === "scale" ? number_of : whole_number_of)(told.get(name));
  for (const [name, words] of Object.entries(CHOICES)) {
    if (told.has(name) && !words.includes(told.get(name))) throw new Error(`${name} must be one of ${words.join(", ")}`);
    setting[name] = told.get(name) ?? setting[name];
  }
  route_by_logits(setting.logits, setting); // refuses what has no meaning
  return setting;
}
