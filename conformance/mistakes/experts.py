"""Mixtures of experts gone wrong (MOE-1 to MOE-6): scores, choice, weights, networks, capacity, and routers' losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import experts as bounds_of
from conformance.bounds import layers
from conformance.bounds.arithmetic import Precision, exact
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import answer_in_float64, change_options, rearrange_inputs, round_to
from conformance.mistakes.feed_forward import ACTIVATIONS
from conformance.mistakes.mistake import Change, Topic, name_entries
from specification.dtypes import HALF
from specification.routing import GROUP_SCORES

Array = np.ndarray
ROUTERS, MIXTURES = ("route", "mixture_of_experts"), ("mixture_of_experts",)
LOSSES = ("load_balancing_loss", "router_z_loss")
FLOAT64 = Precision.make("float64")
ROUTING = Topic("experts", "MOE-2", ROUTERS)
MIXING = Topic("experts", "MOE-4", MIXTURES)
BALANCE = Topic("experts", "MOE-6", LOSSES)
GRADIENTS = Topic("experts", "MOE-4", MIXTURES, of_gradients=True)


# --- a mixture whose steps may be changed -----------------------------------------------------------------------------


class Mixture(NamedTuple):
    """What a router and its experts compute with, in float64; tokens are one axis.

    x: [N, E], 0 for what is no token. preferences: [N, X], scores and choice bias. indices, weights: [N, C].
    places: [N, X], which expert takes which token. run: from an expert's number, its parameters and tokens to results.
    before: whether weights multiply what experts are given, and not what they give.
    """

    case: Case
    options: bounds_of.Options
    x: Array
    logits: Array
    scores: Array
    preferences: Array
    indices: Array
    weights: Array
    places: Array
    run: Callable[[dict[str, Array], Array, str], Array]
    before: bool = False

    @property
    def real(self) -> Array:
        return bounds_of.real_tokens(self.case, self.case.inputs["x"].shape[:-1])

    @property
    def activation(self) -> str:
        return str(bounds_of.option(self.case, "activation"))

    def dense(self, parts: Array) -> Array:
        """The parts of the chosen experts among those of all."""
        whole = np.zeros(self.scores.shape)
        np.put_along_axis(whole, self.indices, parts, axis=-1)
        return whole

    def expert_results(self) -> dict[int, tuple[Array, Array]]:
        """By expert, the tokens that it takes, and what it makes of them."""
        own, _ = bounds_of.networks_of(bounds_of.wide_inputs(self.case))
        weights, found = self.dense(self.weights), {}
        for expert in range(self.scores.shape[1]):
            rows = np.flatnonzero(self.places[:, expert])
            if rows.size:
                factor = weights[rows, expert, None] if self.before else 1.0
                found[expert] = rows, self.run(own(expert), factor * self.x[rows], self.activation)
        return found

    def output(self) -> Array:
        _, shared = bounds_of.networks_of(bounds_of.wide_inputs(self.case))
        total = np.zeros((len(self.x), self.case.inputs["experts.outer.weight"].shape[2]))
        weights = self.dense(self.weights)
        for expert, (rows, result) in self.expert_results().items():
            total[rows] += result if self.before else weights[rows, expert, None] * result
        if shared:
            total = total + self.run(shared, self.x, self.activation)
        lead = self.case.inputs["x"].shape[:-1]
        return np.asarray(np.where(self.real[:, None], total, 0).reshape(*lead, total.shape[1]))

    def results(self) -> Results:
        """Without gradients."""
        if self.case.operation == "mixture_of_experts":
            return {"output": self.output()}
        lead = self.case.inputs["x"].shape[:-1]
        named = {"indices": self.indices, "weights": self.weights, "scores": self.scores}
        return {name: np.asarray(array, float).reshape(*lead, array.shape[1]) for name, array in named.items()}


def run_network(parameters: dict[str, Array], x: Array, activation: str) -> Array:
    """One feed-forward network."""
    if activation == "clamped_swiglu":
        return run_clamped(parameters, x, *CLAMPED)
    inner = x @ parameters["inner.weight"] + parameters.get("inner.bias", 0.0)
    activate = ACTIVATIONS[activation]
    if "gate.weight" in parameters:
        hidden = activate(x @ parameters["gate.weight"] + parameters.get("gate.bias", 0.0)) * inner
    else:
        hidden = activate(inner)
    return np.asarray(np.real(hidden) @ parameters["outer.weight"] + parameters.get("outer.bias", 0.0))


Function = Callable[[Array], Array]


def clamp_gate(gate: Array) -> Array:
    return np.minimum(gate, 7) * layers.sigmoid(1.702 * np.minimum(gate, 7))


def clamp_value(value: Array) -> Array:
    return np.clip(value, -7, 7) + 1


CLAMPED: tuple[Function, Function] = (clamp_gate, clamp_value)


def run_clamped(parameters: dict[str, Array], x: Array, of_gate: Function, of_value: Function) -> Array:
    gate = x @ parameters["gate.weight"] + parameters.get("gate.bias", 0.0)
    value = x @ parameters["inner.weight"] + parameters.get("inner.bias", 0.0)
    hidden = of_gate(gate) * of_value(value)
    return np.asarray(hidden @ parameters["outer.weight"] + parameters.get("outer.bias", 0.0))


def read_mixture(case: Case) -> Mixture:
    wide, options = bounds_of.wide_inputs(case), bounds_of.Options.read(case)
    real = bounds_of.real_tokens(case, wide["x"].shape[:-1])
    wide["x"] = np.where(real[:, None], wide["x"].reshape(real.size, wide["x"].shape[-1]), 0)
    logits = bounds_of.router_logits({name: exact(array) for name, array in wide.items()}, FLOAT64)
    r = bounds_of.routed(logits, wide.get("choice_bias"), options, FLOAT64)
    X = logits.value.shape[1]
    places = bounds_of.taken_places(r.choice.indices, X, real, case.options.get("capacity"))
    preferences = r.scores.value + wide.get("choice_bias", 0.0)
    found = r.logits.value, r.scores.value, preferences, r.choice.indices, r.weights.value
    return Mixture(case, options, wide["x"], *found, places, run_network)


def change_mixture(change: Callable[..., Mixture | None]) -> Change:
    """The results by other steps; of finite inputs, and some tokens."""

    def results(call: Call, **values: object) -> Results | None:
        if call.case.special or 0 in call.case.inputs["x"].shape:
            return None
        changed = change(read_mixture(call.case), **values)
        return None if changed is None else changed.results()

    return results


def take_indices(m: Mixture, indices: Array) -> Mixture:
    """The same with another choice, weighed as it is."""
    chosen = [exact(np.take_along_axis(array, indices, axis=-1)) for array in (m.logits, m.scores)]
    return weigh(m._replace(indices=indices), chosen[0].value, chosen[1].value)


def weigh(m: Mixture, logits: Array, scores: Array) -> Mixture:
    """The same with weights from other logits and scores of the chosen."""
    if m.options.weighting == "softmax":
        weights = bounds_of.softmax(exact(logits), FLOAT64).value
    else:
        weights = scores / scores.sum(-1, keepdims=True) if m.options.weighting == "normalized" else scores
    places = bounds_of.taken_places(m.indices, m.scores.shape[1], m.real, m.case.options.get("capacity"))
    return m._replace(weights=m.options.scale * weights, places=places)


def answer_options(rows: Callable[..., dict[str, Any] | None]) -> Change:
    """Answer the case as if it had other options; none where the function says so."""

    def change(call: Call, **values: Any) -> Case | None:
        options = rows(call.case, **values)
        return None if options is None else change_options(call.case, **options)

    return change


def swap_option(name: str) -> Change:
    """Another value of an option where one is asked for."""

    def rows(case: Case, asked: str, used: str) -> dict[str, Any] | None:
        return {name: used} if bounds_of.option(case, name) == asked and used != asked else None

    return answer_options(rows)


def drop_inputs(*names: str) -> Change:
    """Answer the case as if these inputs were not given."""

    def change(call: Call) -> Case | None:
        left = {name: array for name, array in call.case.inputs.items() if name not in names}
        found = replace(call.case, inputs=left, constants=(), memory={})
        return found if len(left) < len(call.case.inputs) else None

    return change


# --- scores, choice and weights ---------------------------------------------------------------------------------------


def round_logits(m: Mixture) -> Mixture | None:
    if m.case.dtype not in HALF:
        return None
    logits = round_to(m.logits, m.case.dtype)
    scores = {"softmax": lambda x: bounds_of.softmax(exact(x), FLOAT64).value, "sigmoid": layers.sigmoid}
    changed = scores.get(m.options.scoring, lambda x: x)(logits)
    preferences = changed + (m.preferences - m.scores)
    moved = m._replace(logits=logits, scores=changed, preferences=preferences)
    return take_indices(moved, bounds_of.choose_experts(exact(preferences), m.options, FLOAT64).indices)


def bias_weights(m: Mixture) -> Mixture | None:
    """The choice bias is in the weights, too."""
    if "choice_bias" not in m.case.inputs:
        return None
    more = np.take_along_axis(m.preferences - m.scores, m.indices, axis=-1)
    logits, scores = (np.take_along_axis(array, m.indices, axis=-1) for array in (m.logits, m.scores))
    return weigh(m, logits + more, scores + more)


def choose_by(score: Callable[[Array], Array]) -> Callable[[Mixture], Mixture | None]:
    """Groups are chosen by another score, of [N, groups, experts]."""

    def change(m: Mixture) -> Mixture | None:
        o = m.options
        if o.groups == 1:
            return None
        grouped = m.preferences.reshape(len(m.x), o.groups, -1)
        some = bounds_of.largest(score(grouped), o.chosen_groups)
        allowed = np.zeros(grouped.shape, bool)
        np.put_along_axis(allowed, some[..., None], True, axis=1)
        inside = np.where(allowed.reshape(m.preferences.shape), m.preferences, -np.inf)
        return take_indices(m, bounds_of.largest(inside, o.chosen))

    return change


def leave_zeros(m: Mixture) -> Mixture | None:
    """Scores in other groups are 0, which may be among the largest."""
    o = m.options
    if o.groups == 1:
        return None
    size = m.preferences.shape[1] // o.groups
    grouped = m.preferences.reshape(len(m.x), o.groups, size)
    best = np.sort(grouped, axis=-1)[..., -(2 if o.group_score == "two_largest" else 1) :].sum(-1)
    allowed = np.repeat(np.zeros(best.shape, bool), size, axis=-1)
    for group in bounds_of.largest(best, o.chosen_groups).T:
        allowed |= np.arange(allowed.shape[1]) // size == group[:, None]
    return take_indices(m, bounds_of.largest(np.where(allowed, m.preferences, 0), o.chosen))


def choose_last(m: Mixture) -> Mixture | None:
    """Of equal preferences those with the higher indices."""
    if m.options.groups > 1:
        return None
    backwards = m.preferences.shape[1] - 1 - bounds_of.largest(m.preferences[:, ::-1], m.options.chosen)
    indices = np.sort(backwards, axis=-1)
    return None if np.array_equal(indices, m.indices) else take_indices(m, indices)


def mismatch_weights(m: Mixture) -> Mixture:
    """Weights come in the order of their size, and indices in that of their numbers."""
    order = np.argsort(-np.take_along_axis(m.preferences, m.indices, axis=-1), axis=-1, kind="stable")
    return m._replace(weights=np.take_along_axis(m.weights, order, axis=-1))


def weigh_over_all(case: Case) -> dict[str, Any] | None:
    softmax = bounds_of.option(case, "weighting") == "softmax"
    return {"weighting": "scores", "scoring": "softmax"} if softmax and "choice_bias" not in case.inputs else None


def count_chosen(case: Case, more: int) -> dict[str, Any]:
    return {"chosen": case.options["chosen"] + more}


def ignore_groups(case: Case) -> dict[str, Any] | None:
    return {"groups": 1, "chosen_groups": 1} if bounds_of.option(case, "groups") > 1 else None


CHOSEN = (
    ROUTING.entry("scoring", "the scores are {used} where {asked} is asked for", swap_option("scoring"), rule="MOE-1",
                  asked=("softmax", "sigmoid", "none"), used=("sigmoid", "softmax", "none")),
    ROUTING.entry("router-bias-left-out", "the router's bias is left out", drop_inputs("router.bias"), rule="MOE-1",
                  needs=("router.bias",)),
    ROUTING.entry("logits-rounded", "the logits are rounded to the inputs' 16 bits", change_mixture(round_logits),
                  rule="MOE-1", needs=("finite",)),
    ROUTING.entry("choice-bias-left-out", "the choice bias is left out", drop_inputs("choice_bias"),
                  needs=("choice_bias",)),
    ROUTING.entry("groups-left-out", "experts are chosen from all groups", answer_options(ignore_groups)),
    ROUTING.entry("group-score", "groups are chosen by {used} where {asked} is asked for", swap_option("group_score"),
                  asked=GROUP_SCORES, used=GROUP_SCORES[::-1]),
    ROUTING.entry("groups-by-sum", "groups are chosen by the sum of all their scores",
                  change_mixture(choose_by(lambda grouped: grouped.sum(-1)))),
    ROUTING.entry("groups-by-scores", "groups are chosen by the sum of the squares of their scores",
                  change_mixture(choose_by(lambda grouped: (grouped**2).sum(-1)))),
    ROUTING.entry("other-groups-at-zero", "scores in groups that are not chosen are 0, and may be the largest",
                  change_mixture(leave_zeros)),
    MIXING.entry("count-of-chosen", "{more:+d} experts are chosen", answer_options(count_chosen), rule="MOE-2",
                 more=(-1, 1)),
    ROUTING.entry("last-of-equal", "of equal scores the last expert is chosen, not the first",
                  change_mixture(choose_last)),
    ROUTING.entry("weighting", "the weights are {used} where {asked} is asked for", swap_option("weighting"),
                  rule="MOE-3", asked=("normalized", "scores", "softmax"), used=("scores", "normalized", "softmax")),
    ROUTING.entry("softmax-over-all", "the softmax of weights is over all experts, not over the chosen ones",
                  answer_options(weigh_over_all), rule="MOE-3"),
    ROUTING.entry("choice-bias-in-weights", "the choice bias is in the weights, too", change_mixture(bias_weights),
                  rule="MOE-3", needs=("choice_bias",)),
    ROUTING.entry("weights-in-other-order", "weights are in the order of their size, and indices are not",
                  change_mixture(mismatch_weights), rule="MOE-3"),
    ROUTING.entry("scale-left-out", "the scale is left out", answer_options(lambda case: {"scale": 1.0}), rule="MOE-3"),
)  # fmt: skip

# --- networks ---------------------------------------------------------------------------------------------------------


@rearrange_inputs
def exchange_gates(case: Case) -> Case | None:
    """Gate and inner projection change places."""
    if "experts.gate.weight" not in case.inputs:
        return None
    swapped = {}
    for name, array in case.inputs.items():
        gate, inner = (f".{side}." for side in ("gate", "inner"))
        other = name.replace(gate, inner) if gate in name else name.replace(inner, gate)
        swapped[other] = array
    return replace(case, inputs={name: swapped[name] for name in case.inputs})


@rearrange_inputs
def read_columns(case: Case, stored: str) -> Case | None:
    """Columns of gates and inner projections stored one way, and read the other."""
    inputs = dict(case.inputs)
    for field in ("weight", "bias"):
        names = [f"experts.{side}.{field}" for side in ("gate", "inner")]
        if not all(name in inputs for name in names):
            continue
        gate, inner = (case.inputs[name] for name in names)
        if stored == "interleaved":
            whole = np.stack([gate, inner], axis=-1).reshape(*gate.shape[:-1], -1)
            inputs[names[0]], inputs[names[1]] = np.split(whole, 2, axis=-1)
        else:
            whole = np.concatenate([gate, inner], axis=-1)
            inputs[names[0]], inputs[names[1]] = whole[..., ::2], whole[..., 1::2]
    return replace(case, inputs=inputs) if "experts.gate.weight" in inputs else None


@rearrange_inputs
def transpose_weights(case: Case, side: str) -> Case | None:
    name = f"experts.{side}.weight"
    if name not in case.inputs or case.inputs[name].shape[1] != case.inputs[name].shape[2]:
        return None
    return replace(case, inputs=case.inputs | {name: case.inputs[name].swapaxes(1, 2)})


@rearrange_inputs
def shift_experts(case: Case, shift: int) -> Case:
    moved = {n: np.roll(a, shift, axis=0) for n, a in case.inputs.items() if n.startswith("experts.")}
    return replace(case, inputs=case.inputs | moved)


@rearrange_inputs
def drop_biases(case: Case, of: str) -> Case | None:
    name = f"experts.{of}.bias"
    left = {n: a for n, a in case.inputs.items() if n != name}
    return replace(case, inputs=left) if name in case.inputs else None


def drop_least(m: Mixture) -> Mixture | None:
    """Of the chosen experts the one with the least weight is left out, and the others' weights stay."""
    if m.indices.shape[1] < 2:
        return None
    least = np.argmin(m.weights, axis=-1)[:, None] == np.arange(m.indices.shape[1])
    return m._replace(weights=np.where(least, 0, m.weights))


def spread_evenly(m: Mixture) -> Mixture:
    return m._replace(weights=np.full_like(m.weights, m.options.scale / m.weights.shape[1]))


def weigh_inputs(m: Mixture) -> Mixture:
    return m._replace(before=True)


def return_sorted(call: Call) -> Results | None:
    """Results are in the order in which tokens were sorted for their first experts."""
    if call.case.special or 0 in call.case.inputs["x"].shape:
        return None
    m, output = read_mixture(call.case), call.right["output"]
    order = np.argsort(m.indices[:, 0], kind="stable")
    rows = output.reshape(len(order), -1)[order]
    return None if (np.diff(order) > 0).all() else {"output": rows.reshape(output.shape)}


def scale_shared(factor: Callable[[Case], float]) -> Change:
    """The shared network's result is multiplied, and so are its gradients."""

    def change(call: Call) -> Results | None:
        case, number = call.case, factor(call.case)
        if "shared.outer.weight" not in case.inputs or case.special or number == 1:
            return None
        left = {name: array for name, array in case.inputs.items() if not name.startswith("shared.")}
        alone, found = answer_in_float64(replace(case, inputs=left, memory={}, constants=())), dict(call.right)
        for name, right in call.right.items():
            if name in ("output", gradient_name("x")):
                found[name] = alone[name] + number * (right - alone[name])
            elif name.startswith(gradient_name("shared.")):
                found[name] = number * right
        return found

    return change


def scale_of(case: Case) -> float:
    return float(bounds_of.option(case, "scale"))


FORMS: dict[str, tuple[Function, Function]] = {
    "the gate without its limit": (lambda g: g * layers.sigmoid(1.702 * g), clamp_value),
    "the value without its limits": (clamp_gate, lambda v: v + 1),
    "the value without 1 more": (clamp_gate, lambda v: np.clip(v, -7, 7)),
    "the gate times sigmoid(gate)": (
        lambda g: np.minimum(g, 7) * layers.sigmoid(np.minimum(g, 7)), clamp_value),
    "the gate between -7 and 7": (lambda g: np.clip(g, -7, 7) * layers.sigmoid(1.702 * np.clip(g, -7, 7)), clamp_value),
    "sigmoid(1.702 gate) alone": (lambda g: layers.sigmoid(1.702 * np.minimum(g, 7)), clamp_value),
    "a silu gate, nothing cut and nothing added": (lambda g: g * layers.sigmoid(g), lambda v: v),
}  # fmt: skip


def clamp_otherwise(m: Mixture, form: str) -> Mixture | None:
    if m.activation != "clamped_swiglu":
        return None
    return m._replace(run=lambda parameters, x, activation: run_clamped(parameters, x, *FORMS[form]))


COMPUTED = (
    MIXING.entry("gate-exchanged", "gate and inner projection are exchanged", exchange_gates),
    MIXING.entry("columns-read-otherwise", "gate and inner columns, stored {stored}, are read the other way",
                 read_columns, stored=("interleaved", "side by side")),
    MIXING.entry("weights-transposed", "the {side} weights are transposed", transpose_weights,
                 side=("outer", "inner", "gate")),
    MIXING.entry("experts-shifted", "each expert has the parameters of the one {shift:+d} from it", shift_experts,
                 shift=(1, -1)),
    MIXING.entry("bias-left-out", "the {of} biases of experts are left out", drop_biases,
                 of=("outer", "inner", "gate")),
    MIXING.entry("activation", "the activation is {used} where {asked} is asked for", swap_option("activation"),
                 asked=("silu", "gelu", "gelu_tanh", "relu", "clamped_swiglu"),
                 used=("gelu", "silu", "gelu_tanh", "relu")),
    MIXING.entry("least-expert-left-out", "of the chosen experts the one with the least weight is left out",
                 change_mixture(drop_least)),
    MIXING.entry("weights-even", "the chosen experts are averaged, whatever their weights",
                 change_mixture(spread_evenly), rule="MOE-3"),
    MIXING.entry("weights-on-inputs", "weights multiply what experts are given, not what they give",
                 change_mixture(weigh_inputs)),
    MIXING.entry("results-in-sorted-order", "results come in the order in which tokens were sorted for experts",
                 return_sorted),
    MIXING.entry("shared-left-out", "the shared expert is left out", scale_shared(lambda case: 0.0)),
    MIXING.entry("shared-scaled", "the scale multiplies the shared expert, too", scale_shared(scale_of)),
    MIXING.entry("shared-for-each", "the shared expert is added once for each chosen one",
                 scale_shared(lambda case: case.options["chosen"] * 1.0)),
    MIXING.entry("shared-averaged", "the shared expert is divided by the number of all that are added",
                 scale_shared(lambda case: 1 / (case.options["chosen"] + 1))),
    MIXING.entry("clamp", "clamped_swiglu has {form}", change_mixture(clamp_otherwise), form=tuple(FORMS)),
)  # fmt: skip

# --- tokens and places ------------------------------------------------------------------------------------------------


def place_tokens(order: Callable[[Mixture], Array]) -> Callable[[Mixture], Mixture | None]:
    """Experts take tokens in another order: by the rank [N, X] of each token with each expert."""

    def change(m: Mixture) -> Mixture | None:
        capacity = m.case.options.get("capacity")
        if capacity is None:
            return None
        wanted = (m.indices[:, :, None] == np.arange(m.scores.shape[1])).any(axis=1) & m.real[:, None]
        ranks = np.where(wanted, order(m), np.inf)
        place = np.argsort(np.argsort(ranks, axis=0, kind="stable"), axis=0, kind="stable")
        return m._replace(places=wanted & (place < capacity))

    return change


def rank_choices(m: Mixture) -> Array:
    """First the tokens whose first choice it is, by size of weights, then those whose second choice it is."""
    ranks = np.argsort(np.argsort(-m.weights, axis=-1, kind="stable"), axis=-1, kind="stable")
    return m.dense(ranks * 1.0) * len(m.x) + np.arange(len(m.x))[:, None]


def rank_columns(m: Mixture) -> Array:
    """Tokens in the order of their last leading axis first."""
    shape = m.case.inputs["x"].shape[:-1]
    order = np.arange(len(m.x)).reshape(shape[::-1]).transpose().reshape(-1)
    return np.broadcast_to(order[:, None], m.scores.shape)


def let_padding_in(m: Mixture) -> Mixture | None:
    """What is no token takes a place, as a vector of its own would."""
    capacity = m.case.options.get("capacity")
    if capacity is None or m.real.all():
        return None
    whole = read_mixture(replace(m.case, inputs={n: a for n, a in m.case.inputs.items() if n != "token_mask"}))
    return m._replace(places=whole.places & m.real[:, None])


def renormalize(m: Mixture) -> Mixture | None:
    """What is left of a token's weights after a loss of experts is normalised again."""
    if m.case.options.get("capacity") is None or m.options.weighting != "normalized":
        return None
    left = np.where(np.take_along_axis(m.places, m.indices, axis=-1), m.weights, 0)
    total = left.sum(-1, keepdims=True)
    return m._replace(weights=np.where(total > 0, m.options.scale * left / np.where(total > 0, total, 1), 0))


def add_capacity(case: Case, more: int) -> dict[str, Any] | None:
    capacity = case.options.get("capacity")
    return None if capacity is None else {"capacity": capacity + more}


PLACED = (
    MIXING.entry("mask-left-out", "what is no token is computed, too", drop_inputs("token_mask"), rule="MOE-5",
                 needs=("token_mask",)),
    MIXING.entry("capacity-left-out", "experts take all tokens", answer_options(lambda case: {"capacity": None}),
                 rule="MOE-5", needs=("capacity",)),
    MIXING.entry("capacity-off", "the capacity is {more:+d}", answer_options(add_capacity), rule="MOE-5",
                 needs=("capacity",), more=(1, -1)),
    MIXING.entry("last-tokens", "an expert takes the last tokens that chose it", change_mixture(
        place_tokens(lambda m: -np.arange(len(m.x))[:, None] + 0 * m.scores)), rule="MOE-5", needs=("capacity",)),
    MIXING.entry("largest-weights-first", "an expert takes the tokens with the largest weights", change_mixture(
        place_tokens(lambda m: -m.dense(m.weights))), rule="MOE-5", needs=("capacity",)),
    MIXING.entry("first-choices-first", "tokens whose first choice an expert is come before others", change_mixture(
        place_tokens(rank_choices)), rule="MOE-5", needs=("capacity",)),
    MIXING.entry("tokens-by-column", "an expert takes tokens in the order of the batch's columns", change_mixture(
        place_tokens(rank_columns)), rule="MOE-5", needs=("capacity",)),
    MIXING.entry("padding-takes-places", "what is no token takes places, too", change_mixture(let_padding_in),
                 rule="MOE-5", needs=("capacity", "token_mask")),
    MIXING.entry("normalized-again", "weights are normalised again after experts are full",
                 change_mixture(renormalize), rule="MOE-5", needs=("capacity",)),
)  # fmt: skip

# --- gradients alone --------------------------------------------------------------------------------------------------


def scale_router(factor: Callable[[Case], float]) -> Change:
    """What comes back through the weights is multiplied; 0 where they are constants."""

    def change(call: Call) -> Results | None:
        case, number = call.case, factor(call.case)
        if not case.cotangents or case.special or 0 in case.inputs["x"].shape or number == 1:
            return None
        m, found = read_mixture(case), dict[str, Array]()
        bar = case.cotangents["output"].astype(float).reshape(len(m.x), -1) * m.real[:, None]
        of_weights = np.zeros(m.scores.shape)
        for expert, (rows, result) in m.expert_results().items():
            of_weights[rows, expert] = np.sum(bar[rows] * result, axis=-1)
        choice = bounds_of.Choice(m.indices, np.ones(len(m.x), bool))
        parts = map(exact, (m.weights / m.options.scale, m.weights))
        r = bounds_of.Routed(exact(m.logits), exact(m.scores), choice, *parts)
        received = exact(np.take_along_axis(of_weights, m.indices, axis=-1))
        of_logits = bounds_of.logits_gradient(r, received, exact(np.zeros(m.scores.shape)), m.options, FLOAT64).value
        through = np.where(m.real[:, None], of_logits, 0) @ case.inputs["router.weight"].astype(float).T
        name = gradient_name("x")
        if name in call.right:
            found[name] = call.right[name] + (number - 1) * through.reshape(call.right[name].shape)
        for name in map(gradient_name, ("router.weight", "router.bias")):
            if name in call.right:
                found[name] = number * call.right[name]
        return found

    return change


BACKWARD = (
    GRADIENTS.entry("weights-constant", "no gradient passes through the weights", scale_router(lambda case: 0.0),
                    needs=("gradients",)),
    GRADIENTS.entry("scale-left-out-of-gradients", "the gradient of the router knows no scale",
                    scale_router(lambda case: 1 / scale_of(case)), needs=("gradients",)),
)  # fmt: skip

# --- losses of routers ------------------------------------------------------------------------------------------------


def token_count(case: Case) -> tuple[int, int]:
    """How many tokens count, at least one, and how many places there are."""
    _, real, count = bounds_of.loss_rows(case)
    return count, max(real.size, 1)


def scale_loss(factor: Callable[[Case], float]) -> Change:
    """The loss and its gradient, multiplied."""

    def change(call: Call) -> Results | None:
        number = factor(call.case)
        return None if number == 1 else {name: number * array for name, array in call.right.items()}

    return change


def experts_of(case: Case) -> int:
    return int(case.inputs["router_logits"].shape[-1])


def change_loss(change: Callable[[Array, Array, int, Case], Any]) -> Change:
    """Another loss of logits [N, X] that count; without gradients."""

    def results(call: Call) -> Results | None:
        logits, real, count = bounds_of.loss_rows(call.case)
        if call.case.special or not real.any():
            return None
        return {"output": np.asarray(change(logits[real], real, count, call.case))}

    return results


def shares_of(logits: Array, chosen: int) -> Array:
    X = logits.shape[1]
    picked = bounds_of.taken_places(bounds_of.largest(logits, chosen), X, np.ones(len(logits), bool), None)
    return picked.sum(axis=0) / len(logits)


def balance_by_sigmoid(logits: Array, real: Array, count: int, case: Case) -> Any:
    return logits.shape[1] * np.sum(shares_of(logits, case.options["chosen"]) * layers.sigmoid(logits).mean(axis=0))


def balance_over_tokens(logits: Array, real: Array, count: int, case: Case) -> Any:
    over = np.exp(logits - logits.max(axis=0)) / np.exp(logits - logits.max(axis=0)).sum(axis=0)
    return logits.shape[1] * np.sum(shares_of(logits, case.options["chosen"]) * over.mean(axis=0))


def balance_by_probabilities(logits: Array, real: Array, count: int, case: Case) -> Any:
    means = bounds_of.softmax(exact(logits), FLOAT64).value.mean(axis=0)
    return logits.shape[1] * np.sum(means**2)


def logsumexps(logits: Array) -> Any:
    largest = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(-1)) + largest[:, 0]


def lose_nothing(call: Call) -> Results | None:
    """0 / 0 where there is no token."""
    _, real, _ = bounds_of.loss_rows(call.case)
    return None if real.any() else {"output": np.asarray(np.nan)}


def multiply_padding(call: Call) -> Results | None:
    """0 times NaN, where NaN stands in what is no token."""
    logits = call.case.inputs["router_logits"].astype(float)
    mask = call.case.inputs.get("token_mask")
    hidden = None if mask is None else ~np.isfinite(logits).all(axis=-1) & ~mask
    return None if hidden is None or not hidden.any() else {"output": np.asarray(np.nan)}


OF_BALANCE, OF_SIZE = LOSSES[:1], LOSSES[1:]
LOST = (
    BALANCE.entry("without-experts", "the loss is not multiplied by the number of experts",
                  scale_loss(lambda case: 1 / experts_of(case)), operations=OF_BALANCE),
    BALANCE.entry("divided-by-chosen", "the loss is divided by the number of experts chosen",
                  scale_loss(lambda case: 1 / case.options["chosen"]), operations=OF_BALANCE),
    BALANCE.entry("sum-over-tokens", "tokens are added up, and not divided by their number",
                  scale_loss(lambda case: float(token_count(case)[0]))),
    BALANCE.entry("padding-in-number", "the mean is over all places, padding too",
                  scale_loss(lambda case: token_count(case)[0] / token_count(case)[1])),
    BALANCE.entry("padding-counted", "padding counts as tokens", drop_inputs("token_mask"), needs=("token_mask",)),
    BALANCE.entry("first-choice-alone", "shares are those of the first choice alone",
                  answer_options(lambda case: {"chosen": 1}), operations=OF_BALANCE),
    BALANCE.entry("shares-by-probability", "shares are the mean probabilities",
                  change_loss(balance_by_probabilities), operations=OF_BALANCE),
    BALANCE.entry("sigmoid-for-softmax", "probabilities are sigmoids", change_loss(balance_by_sigmoid),
                  operations=OF_BALANCE),
    BALANCE.entry("softmax-over-tokens", "the softmax is over tokens, not over experts",
                  change_loss(balance_over_tokens), operations=OF_BALANCE),
    BALANCE.entry("not-squared", "log-sum-exps are not squared",
                  change_loss(lambda logits, *_: logsumexps(logits).mean()), operations=OF_SIZE),
    BALANCE.entry("square-of-mean", "the mean is squared, not the log-sum-exps",
                  change_loss(lambda logits, *_: logsumexps(logits).mean() ** 2), operations=OF_SIZE),
    BALANCE.entry("squares-of-logits", "the squares are those of the logits, not of their log-sum-exp",
                  change_loss(lambda logits, *_: (logits**2).mean()), operations=OF_SIZE),
    BALANCE.entry("logarithm-of-mean", "the exponentials are averaged, not added up",
                  change_loss(lambda logits, *_: ((logsumexps(logits) - math.log(logits.shape[1])) ** 2).mean()),
                  operations=OF_SIZE),
    BALANCE.entry("loss-of-nothing", "where there is no token, the mean is 0 / 0", lose_nothing),
    BALANCE.entry("zero-times-nan", "padding is multiplied by 0, and 0 * NaN and 0 * inf are NaN", multiply_padding),
)  # fmt: skip

MISTAKES = (*CHOSEN, *COMPUTED, *PLACED, *BACKWARD, *LOST)
NAMED = name_entries(MISTAKES)
MORE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("scoring", {"asked": "sigmoid", "used": "softmax"}),
    ("scoring", {"asked": "softmax", "used": "none"}),
    ("group-score", {"asked": "largest", "used": "two_largest"}),
    ("count-of-chosen", {"more": 1}),
    ("weighting", {"asked": "scores", "used": "normalized"}),
    ("weighting", {"asked": "scores", "used": "softmax"}),
    ("columns-read-otherwise", {"stored": "side by side"}),
    ("weights-transposed", {"side": "inner"}),
    ("bias-left-out", {"of": "inner"}),
    ("activation", {"asked": "clamped_swiglu", "used": "silu"}),
    *(("clamp", {"form": form}) for form in list(FORMS)[1:]),
    ("capacity-off", {"more": -1}),
)
"""Other values that are planted."""
IN_MIXTURES = ("choice-bias-left-out", "choice-bias-in-weights", "scale-left-out", "weighting", "scoring")
"""Mistakes of routers that are planted in mixtures, too, where only results show them."""
PLANTED = (
    *(one.choose() for one in MISTAKES),
    *(NAMED[name].choose(**values) for name, values in MORE),
    *(NAMED[name].choose().plant_in("mixture_of_experts", rule="MOE-4") for name in IN_MIXTURES),
    *(NAMED[name].choose().plant_in("router_z_loss") for name in ("sum-over-tokens", "padding-counted")),
)
