"""Error bounds of mixtures of experts. Small errors are in units of u.

Logits are a projection, as in `layers.py`, kept in the compute dtype; a subject may declare that it rounds them.

Scores. With l' = l + d, |d_j| <= e_j, softmax is off by the factor exp(d_j) / sum_i p_i exp(d_i), which lies within
exp(+-(e_j + D)), D = log(sum_i p_i exp(e_i)). To e_j belongs what the exponential is off by: its argument, the distance
s_j from the largest logit, which rounds once, and EXP + 2 s_j for exp2. Sum and quotient round X + 2 times. A sigmoid
of l + d is off by at most s (1 - s) (exp(e) - 1): its odds change by exp(d). By exponentials it rounds EXP + 2 |l| + 3
relatively, by a tanh TANH / 2 + 2 absolutely.

Choice. Preferences, scores plus bias, carry those errors. A choice is decided where every chosen one exceeds every
other by more than both errors. The score of a group, a sum of its two largest, is off by the two largest errors in it
and one rounding. Of a token whose choice of experts, or of groups, is not decided, nothing is promised but its scores:
its bounds are infinite, and so are those of gradients that add up over tokens. Cases are drawn with a gap, so that this
is rare; ties have probes of their own.

Weights. s_i / T with T the sum of the chosen ones: off by (e_i + w_i e_T) / (T - e_T), and 2 roundings. Softmax of the
chosen logits is off as that of all. The scale rounds, and its product.

Gradients are carried through the same steps: those of a softmax and of a quotient by the sum are w (g - sum w g), which
in any order are sums of terms of |w| (|g| + sum |w g|), each rounded a few times.

Experts. A token's output is the sum of the chosen networks' results, each off as in `layers.py` and rounded to the
inputs' dtype, times weights: as many roundings of the sum of sizes as there are terms, in any order, also where each of
several ranks adds up its experts' terms first (DIST-6). What the network receives, the cotangent times the weight, is
off by the weight's error, and rounds to the inputs' dtype too. The gradient of x adds up parts of networks, which may
be rounded, and that of the router.

Losses. P_e is a mean of softmax over N tokens, f_e exact but for a quotient. Products and their sum round X + N times.
A log-sum-exp is off by the largest error of its terms, X roundings of a sum that is 1 at least, LOG of the logarithm,
and one rounding of itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import layers
from conformance.bounds.arithmetic import (
    EXP,
    LOG,
    TANH,
    Approx,
    Precision,
    add,
    exact,
    multiply,
    partial_sums,
    round_approx,
    round_output,
    select,
    total,
)
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.signatures import default

Array = np.ndarray
FAR = 2.0**12
"""From here on an exponential exp(-FAR) is 0."""
AUTODIFF = 12
"""Roundings of each term of the gradient of a quotient, in any order of its factors."""


def option(case: Case, name: str) -> Any:
    """The option's value; its default where the case does not say it."""
    value = case.options.get(name)
    return default(case.operation, name) if value is None else value


class Options(NamedTuple):
    """What decides the choice and the weights."""

    chosen: int
    scoring: str
    groups: int
    chosen_groups: int
    group_score: str
    weighting: str
    scale: float

    @classmethod
    def read(cls, case: Case) -> Options:
        return cls(*(option(case, name) for name in cls._fields))


class Choice(NamedTuple):
    """indices: [N, C]. decided: [N], whether the errors leave no other choice."""

    indices: Array
    decided: Array


class Routed(NamedTuple):
    """Of every token, its logits and scores [N, X], its choice, and its weights [N, C]."""

    logits: Approx
    scores: Approx
    choice: Choice
    shares: Approx  # the weights before they are scaled
    weights: Approx


# --- scores and choice ------------------------------------------------------------------------------------------------


def softmax(logits: Approx, p: Precision) -> Approx:
    value, count = logits.value, logits.value.shape[-1]
    distance = np.max(value, axis=-1, keepdims=True) - value
    exponentials = np.exp(-distance)
    shares = exponentials / np.sum(exponentials, axis=-1, keepdims=True)
    e = logits.error + p.inner * (EXP + 3 * np.minimum(distance, FAR))
    common = np.log(np.sum(shares * np.exp(e), axis=-1, keepdims=True))
    relative = np.expm1(e + common + p.gamma(count + 2))
    return Approx(shares, shares * relative + 2 * p.inner_tiny)


def sigmoid(logits: Approx, p: Precision) -> Approx:
    value = layers.sigmoid(logits.value)
    moved = value * layers.sigmoid(-logits.value) * np.expm1(logits.error)
    own = p.inner * (value * (EXP + 2 * np.minimum(np.abs(logits.value), FAR) + 3) + TANH / 2 + 2)
    return Approx(value, moved + own + p.inner_tiny)


def largest(numbers: Array, count: int) -> Array:
    """Where the largest stand, in ascending order."""
    return np.sort(np.argsort(-numbers, axis=-1, kind="stable")[..., :count], axis=-1)


def choose(numbers: Approx, count: int) -> Choice:
    """The largest of [..., n], and whether they are apart from all others."""
    indices = largest(numbers.value, count)
    chosen = np.zeros(numbers.value.shape, bool)
    np.put_along_axis(chosen, indices, True, axis=-1)
    low = np.min(np.where(chosen, numbers.value - numbers.error, np.inf), axis=-1)
    high = np.max(np.where(chosen, -np.inf, numbers.value + numbers.error), axis=-1)
    return Choice(indices, low > high)


def choose_experts(preferences: Approx, options: Options, p: Precision) -> Choice:
    lead, X = preferences.value.shape[:-1], preferences.value.shape[-1]
    size = X // options.groups
    grouped = preferences.reshape(*lead, options.groups, size)
    counted = min(size, 2 if options.group_score == "two_largest" else 1)
    best = np.sum(np.sort(grouped.value, axis=-1)[..., -counted:], axis=-1)
    off = np.sum(np.sort(grouped.error, axis=-1)[..., -counted:], axis=-1)
    groups = choose(Approx(best, off + p.inner * (np.abs(best) + off)), options.chosen_groups)
    if options.chosen_groups == options.groups:
        groups = groups._replace(decided=np.ones(lead, bool))
    inside = [np.take_along_axis(array, groups.indices[..., None], axis=-2) for array in grouped]
    candidates = Approx(*(array.reshape(*lead, options.chosen_groups * size) for array in inside))
    found, decided = choose(candidates, options.chosen)
    decided = decided | (options.chosen == candidates.value.shape[-1])
    indices = np.take_along_axis(groups.indices, found // size, axis=-1) * size + found % size
    return Choice(indices, decided & groups.decided)


def take(x: Approx, indices: Array) -> Approx:
    return Approx(*(np.take_along_axis(array, indices, axis=-1) for array in x))


def spread(x: Approx, indices: Array, count: int) -> Approx:
    """Among all of them, with an exact 0 elsewhere."""
    whole = Approx(*(np.zeros((*indices.shape[:-1], count)) for _ in x))
    for array, part in zip(whole, x, strict=True):
        np.put_along_axis(array, indices, part, axis=-1)
    return whole


def chosen_sum(scores: Approx, p: Precision) -> Approx:
    return total(scores, -1, p, keepdims=True)


def normalize(scores: Approx, p: Precision) -> Approx:
    sums = chosen_sum(scores, p)
    least = np.maximum(sums.value - sums.error, 0)
    value = scores.value / sums.value
    error = (scores.error + np.abs(value) * sums.error) / least + 2 * p.inner * np.abs(value) + p.inner_tiny
    empty = sums.value == 0
    return Approx(np.where(empty, 0, value), np.where(empty & (sums.error == 0), 0, error))


def routed(logits: Approx, choice_bias: Array | None, options: Options, p: Precision) -> Routed:
    scores = {"softmax": softmax, "sigmoid": sigmoid}.get(options.scoring, lambda x, p: x)(logits, p)
    preferences = scores if choice_bias is None else add(scores, exact(choice_bias), p)
    choice = choose_experts(preferences, options, p)
    chosen = take(scores, choice.indices)
    if options.weighting == "softmax":
        shares = softmax(take(logits, choice.indices), p)
    else:
        shares = normalize(chosen, p) if options.weighting == "normalized" else chosen
    scaled = Approx(shares.value * options.scale, abs(options.scale) * (shares.error + 2 * p.inner * shares.size))
    weights = round_approx(scaled, p.weights)
    return Routed(logits, scores, choice, shares, weights)


def router_logits(inputs: dict[str, Approx], p: Precision) -> Approx:
    """[N, X], rounded as the subject declares."""
    x = layers.flatten_rows(inputs["x"])
    return round_approx(layers.linear(x, inputs["router.weight"], inputs.get("router.bias"), p), p.scores)


def unless_undecided(x: Approx, choice: Choice) -> Approx:
    """Anything of tokens whose choice is not decided."""
    return Approx(x.value, np.where(choice.decided[:, None], x.error, np.inf))


# --- gradients of the router ------------------------------------------------------------------------------------------


def softmax_gradient(weights: Approx, cotangent: Approx, p: Precision) -> Approx:
    """weights * (cotangent - sum of weights * cotangent)."""
    products = multiply(weights, cotangent, p)
    mean = total(products, -1, p, keepdims=True)
    difference = Approx(cotangent.value - mean.value, cotangent.error + mean.error)
    result = multiply(weights, difference, p)
    sizes = weights.size * (cotangent.size + np.sum(products.size, axis=-1, keepdims=True))
    return Approx(result.value, result.error + p.gamma(AUTODIFF + weights.value.shape[-1]) * sizes + p.inner_tiny)


def logits_gradient(r: Routed, of_weights: Approx, of_scores: Approx, options: Options, p: Precision) -> Approx:
    """From cotangents of the weights [N, C] and of the scores [N, X]."""
    X = r.scores.value.shape[-1]
    scaled = Approx(of_weights.value * options.scale, abs(options.scale) * of_weights.error)
    received = round_approx(Approx(scaled.value, scaled.error + 2 * p.inner * scaled.size), p.weights)
    if options.weighting == "softmax":
        through = spread(softmax_gradient(r.shares, received, p), r.choice.indices, X)
    elif options.weighting == "normalized":
        # (g - sum w g) / T, whose parts may be divided before they are subtracted
        sums = chosen_sum(take(r.scores, r.choice.indices), p)
        products = multiply(r.shares, received, p)
        mean = total(products, -1, p, keepdims=True)
        value = (received.value - mean.value) / sums.value
        sizes = received.size + np.sum(products.size, axis=-1, keepdims=True)
        least = np.maximum(sums.value - sums.error, 0)
        own = received.error + mean.error + np.abs(value) * sums.error
        own = own + p.gamma(AUTODIFF + r.shares.value.shape[-1]) * sizes
        through = spread(Approx(value, own / least + p.inner_tiny), r.choice.indices, X)
    else:
        through = spread(received, r.choice.indices, X)
    inner = of_scores if options.weighting == "softmax" else add(of_scores, through, p)
    if options.scoring == "softmax":
        inner = softmax_gradient(r.scores, inner, p)
    elif options.scoring == "sigmoid":
        rest = layers.sigmoid(-r.logits.value)  # 1 - s, which is off as s is where it is formed so
        slope = multiply(r.scores, Approx(rest, r.scores.error + p.inner), p)
        inner = multiply(inner, slope, p, 4)
    result = add(inner, through, p) if options.weighting == "softmax" else inner
    return round_approx(unless_undecided(result, r.choice), p.scores)


def router_gradients(inputs: dict[str, Approx], received: Approx, p: Precision) -> dict[str, Approx]:
    x = layers.flatten_rows(inputs["x"])
    found = layers.linear_gradients(x, inputs["router.weight"], received, p)
    return dict(zip(("x", "router.weight", "router.bias"), found, strict=True))


def nothing_of(inputs: dict[str, Array], name: str) -> dict[str, Approx]:
    """The choice bias has the gradient 0."""
    return {name: exact(np.zeros(inputs[name].shape))} if name in inputs else {}


def wide_inputs(case: Case) -> dict[str, Array]:
    return {name: np.asarray(array, float) for name, array in case.inputs.items() if name != "token_mask"}


def route(case: Case, p: Precision) -> dict[str, Approx]:
    wide, options = wide_inputs(case), Options.read(case)
    inputs = {name: exact(array) for name, array in wide.items()}
    r = routed(router_logits(inputs, p), wide.get("choice_bias"), options, p)
    lead = wide["x"].shape[:-1]
    indices = unless_undecided(exact(r.choice.indices), r.choice)
    found = {"indices": indices, "weights": unless_undecided(r.weights, r.choice), "scores": r.scores}
    results = {name: approx.reshape(*lead, approx.value.shape[-1]) for name, approx in found.items()}
    if not case.cotangents:
        return results
    bars = {name: layers.flatten_rows(exact(bar)) for name, bar in case.cotangents.items()}
    gradients = router_gradients(inputs, logits_gradient(r, bars["weights"], bars["scores"], options, p), p)
    gradients["x"] = gradients["x"].reshape(*wide["x"].shape)
    gradients |= nothing_of(wide, "choice_bias")
    return results | {gradient_name(name): g for name, g in gradients.items() if name in case.inputs}


# --- mixtures ---------------------------------------------------------------------------------------------------------


def real_tokens(case: Case, lead: tuple[int, ...]) -> Array:
    mask = case.inputs.get("token_mask")
    return np.ones(math.prod(lead), bool) if mask is None else np.asarray(mask).reshape(-1)


def taken_places(indices: Array, count: int, real: Array, capacity: int | None) -> Array:
    """Which expert takes which token, [N, X]."""
    places = (indices[:, :, None] == np.arange(count)).any(axis=1) & real[:, None]
    return places if capacity is None else places & (np.cumsum(places, axis=0) <= capacity)


def networks_of(wide: dict[str, Array]) -> tuple[Callable[[int], dict[str, Array]], dict[str, Array]]:
    """The parameters of an expert by its number, and those of the shared network, by the names of a network's case."""

    def parts(name: str) -> dict[str, Array]:
        return {n.removeprefix(f"{name}."): array for n, array in wide.items() if n.startswith(f"{name}.")}

    stacks = parts("experts")
    return lambda expert: {name: array[expert] for name, array in stacks.items()}, parts("shared")


def keep_exact(x: Approx) -> Approx:
    return x


def network(
    parameters: dict[str, Array],
    x: Array,
    cotangent: Approx | None,
    activation: str,
    p: Precision,
    between: Callable[[Approx], Approx],
) -> dict[str, Approx]:
    gated = "gate.weight" in parameters
    run: Any = partial(layers.gated_feed_forward, between=between) if gated else layers.feed_forward
    found: dict[str, Approx] = run(parameters | {"x": x}, cotangent, activation, 1.0, p, lambda y: round_output(y, p))
    return found


def mixture_of_experts(case: Case, p: Precision, between: Callable[[Approx], Approx] = keep_exact) -> dict[str, Approx]:
    """Errors of the output and of all gradients. between: as in `layers.gated_feed_forward`, inside the networks."""
    wide, options = wide_inputs(case), Options.read(case)
    activation, capacity = option(case, "activation"), case.options.get("capacity")
    lead, X = wide["x"].shape[:-1], wide["router.weight"].shape[1]
    real = real_tokens(case, lead)
    wide["x"] = np.where(real[:, None], wide["x"].reshape(real.size, wide["x"].shape[-1]), 0)
    inputs = {name: exact(array) for name, array in wide.items() if name == "x" or name.startswith("router.")}
    r = routed(router_logits(inputs, p), wide.get("choice_bias"), options, p)
    decided = r.choice.decided | ~real
    if capacity is not None and not decided.all():
        decided = np.zeros_like(decided) | ~real
    r = r._replace(choice=r.choice._replace(decided=decided))
    places = taken_places(r.choice.indices, X, real, capacity)
    weights = spread(r.weights, r.choice.indices, X)
    own, shared = networks_of(wide)
    outer = (shared or own(0))["outer.weight"].shape[1]
    bar = case.cotangents.get("output")
    g = None if bar is None else exact(np.where(real[:, None], np.asarray(bar, float).reshape(real.size, outer), 0))
    combined = p.combined
    terms = Terms.make(real.size, outer)
    of_weights = Approx(np.zeros_like(weights.value), np.zeros_like(weights.value))
    of_tokens = Terms.make(*wide["x"].shape)
    parameters = {} if g is None else {name: array for name, array in wide.items() if name != "x"}
    gradients: dict[str, Approx] = {name: exact(np.zeros_like(array)) for name, array in parameters.items()}
    for expert in range(X):
        rows = np.flatnonzero(places[:, expert])
        if rows.size == 0:
            continue
        x, weight = wide["x"][rows], weights.select((rows, slice(expert, expert + 1)))
        received = None
        if g is not None:
            of_result = multiply(weight, g.select(rows), p)
            received = round_output(round_approx(of_result, combined), p)
        found = network(own(expert), x, received, activation, p, between)
        result = round_output(found.pop("output"), p)
        terms.add(rows, round_approx(multiply(weight, result, p), combined))
        if g is None:
            continue
        products = round_approx(multiply(g.select(rows), result, p), p.weights)
        summed = round_approx(total(products, -1, p), p.weights)
        of_weights.value[rows, expert], of_weights.error[rows, expert] = summed
        of_tokens.add(rows, round_output(found.pop("x"), p))
        for name, gradient in found.items():
            if f"experts.{name}" in gradients:
                whole = gradients[f"experts.{name}"]
                whole.value[expert], whole.error[expert] = gradient
    if shared:
        rows = np.flatnonzero(real)
        received = None if g is None else g.select(rows)
        found = network(shared, wide["x"][rows], received, activation, p, between)
        terms.add(rows, round_output(found.pop("output"), p))
        if g is not None:
            of_tokens.add(rows, round_output(found.pop("x"), p))
            gradients |= {f"shared.{name}": one for name, one in found.items() if f"shared.{name}" in gradients}
    output = unless_undecided(terms.total(p, combined), r.choice)
    results = {"output": select(real[:, None], output).reshape(*lead, outer)}
    if g is None:
        return results
    zero = Approx(np.zeros_like(r.scores.value), np.zeros_like(r.scores.value))
    of_logits = logits_gradient(r, take(of_weights, r.choice.indices), zero, options, p)
    found = router_gradients(inputs, select(real[:, None], of_logits), p)
    of_tokens.add(np.arange(real.size), round_approx(found.pop("x"), combined))
    gradients |= {name: gradient for name, gradient in found.items() if name in gradients}
    if not decided.all():
        for name, gradient in gradients.items():
            if name.startswith("experts."):
                gradients[name] = Approx(gradient.value, np.full_like(gradient.error, np.inf))
    gradients["x"] = select(real[:, None], unless_undecided(of_tokens.total(p, combined), r.choice))
    gradients["x"] = gradients["x"].reshape(*case.inputs["x"].shape)
    return results | {gradient_name(name): one for name, one in gradients.items()}


class Terms(NamedTuple):
    """A sum of arrays, some of which have some rows only: its value, the terms' errors, their sizes, their number."""

    value: Array
    error: Array
    sizes: Array
    count: Array

    @classmethod
    def make(cls, rows: int, columns: int) -> Terms:
        value, error, sizes = (np.zeros((rows, columns)) for _ in range(3))
        return cls(value, error, sizes, np.zeros((rows, 1)))

    def add(self, rows: Array, term: Approx) -> None:
        self.value[rows] += term.value
        self.error[rows] += term.error
        self.sizes[rows] += term.size
        self.count[rows] += 1

    def total(self, p: Precision, form: Any) -> Approx:
        """As many roundings as terms, in any order; of each partial sum to the format, where there is one."""
        summed = Approx(self.value, self.error + p.gamma(self.count + 1) * self.sizes)
        return partial_sums(summed, self.sizes, int(self.count.max(initial=0)) + 1, form)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_rows(case: Case) -> tuple[Array, Array, int]:
    """Logits [N, X] with 0 in what is no token, which those are that count, and their number."""
    logits = np.asarray(case.inputs["router_logits"], float)
    real = real_tokens(case, logits.shape[:-1])
    return np.where(real[:, None], logits.reshape(real.size, logits.shape[-1]), 0), real, max(int(real.sum()), 1)


def load_balancing_loss(case: Case, p: Precision) -> dict[str, Approx]:
    logits, real, count = loss_rows(case)
    X = logits.shape[1]
    probabilities, chosen = softmax(exact(logits), p), case.options["chosen"]
    decided = (choose(probabilities, chosen).decided | ~real).all() or chosen == X
    probabilities = select(real[:, None], probabilities)
    picked = taken_places(largest(logits, chosen), X, real, None)
    shares = exact(picked.sum(axis=0) / count)
    shares = Approx(shares.value, p.inner * shares.value)
    added = total(probabilities, 0, p)
    mean = Approx(added.value / count, added.error / count + 2 * p.inner * added.size / count)
    loss = total(multiply(shares, mean, p, 2), 0, p)
    value = X * loss.value
    # The factors may be taken in any order: of each term, or of the sum.
    more = 0.0 if decided else np.inf
    results = {"output": Approx(value, X * loss.error + 4 * p.inner * np.abs(value) + more)}
    if not case.cotangents:
        return results
    bar = float(case.cotangents["output"])
    received = X * bar * shares.value / count
    received = Approx(np.broadcast_to(received, logits.shape), 6 * p.inner * np.abs(received) + p.inner_tiny + more)
    gradient = select(real[:, None], softmax_gradient(probabilities, received, p))
    return results | {gradient_name("router_logits"): gradient.reshape(*case.inputs["router_logits"].shape)}


def router_z_loss(case: Case, p: Precision) -> dict[str, Approx]:
    logits, real, count = loss_rows(case)
    maximum = np.max(logits, axis=-1, keepdims=True)
    distance = np.minimum(maximum - logits, FAR)
    exponentials = np.exp(-distance)
    T = np.sum(exponentials, axis=-1, keepdims=True)
    terms = p.inner * (EXP + 3 * distance) * exponentials + p.inner_tiny
    relative = (np.sum(terms, axis=-1, keepdims=True) + p.gamma(logits.shape[1]) * T) / T
    value = maximum + np.log(T)
    error = relative / (1 - relative) + p.inner * ((LOG + 2) * np.log(T) + 2 * np.abs(value))
    sums = Approx(value, error)
    squares = select(real[:, None], multiply(sums, sums, p))
    added = total(Approx(*(array[:, 0] for array in squares)), 0, p)
    results = {"output": Approx(added.value / count, added.error / count + 2 * p.inner * added.size / count)}
    if not case.cotangents:
        return results
    factor = 2 * float(case.cotangents["output"]) / count
    received = Approx(factor * value, abs(factor) * (error + 4 * p.inner * np.abs(value)) + p.inner_tiny)
    gradient = select(real[:, None], multiply(received, softmax(exact(logits), p), p, 4))
    return results | {gradient_name("router_logits"): gradient.reshape(*case.inputs["router_logits"].shape)}
