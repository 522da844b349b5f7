"""Mixtures of experts, and the losses of their routers, in balls (MOE-1 to MOE-6)."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

import numpy as np
from flint import arb

from conformance.oracle.ball.attention import Results, linear
from conformance.oracle.ball.layers import ACTIVATIONS, sigmoid_linear
from conformance.oracle.ball.tape import ONE, ZERO, Leaves, Undecided, Variable, concatenate, exp, log, select

SCALES = {"scoring": "softmax", "groups": 1, "chosen_groups": 1, "group_score": "two_largest"}
SCALES |= {"weighting": "normalized", "scale": 1.0}
"""Defaults of the options."""


def compare(left: arb, right: arb) -> int:
    """Which of two is larger, if the balls tell. Balls of one computation are equal to the last bit."""
    if left > right:
        return 1
    if left < right:
        return -1
    if left.mid() == right.mid() and left.rad() == right.rad():
        return 0
    raise Undecided("which of two scores is larger")


def largest(numbers: list[arb], count: int) -> list[int]:
    """The places of the largest, in ascending order; of equal ones the first."""
    order = sorted(range(len(numbers)), key=cmp_to_key(lambda i, j: compare(numbers[j], numbers[i]) or i - j))
    return sorted(order[:count])


def choose(preferences: list[arb], options: dict[str, Any]) -> list[int]:
    """The experts of one token: of the best groups the best."""
    size = len(preferences) // options["groups"]
    groups = [preferences[start : start + size] for start in range(0, len(preferences), size)]
    counted = 2 if options["group_score"] == "two_largest" else 1
    scores = [sum((group[i] for i in largest(group, min(counted, size))), ZERO) for group in groups]
    experts = [g * size + i for g in largest(scores, options["chosen_groups"]) for i in range(size)]
    return [experts[place] for place in largest([preferences[e] for e in experts], options["chosen"])]


def softmax(x: Variable) -> Variable:
    weights = exp(x)
    return weights / weights.sum(-1)


def weights_of(logits: Variable, leaves: Leaves, given: dict[str, Any]) -> tuple[np.ndarray, Variable, Variable]:
    """Indices, weights and scores of logits [N, X]."""
    options = SCALES | {name: value for name, value in given.items() if value is not None}
    count, experts = logits.shape
    ones = Variable(np.full(logits.shape, ONE, dtype=object))
    by_name = {"softmax": softmax, "sigmoid": lambda x: ones / (exp(x * arb(-1)) + ONE), "none": lambda x: x}
    scores = by_name[options["scoring"]](logits)
    bias = leaves.read("choice_bias").value if "choice_bias" in leaves else np.full(experts, ZERO, dtype=object)
    chosen = [choose(list(row + bias), options) for row in scores.value]
    indices = np.array(chosen, int).reshape(count, options["chosen"])
    places = np.arange(count)[:, None], indices
    if options["weighting"] == "softmax":
        weights = softmax(logits[places])
    else:
        weights = scores[places]
        weights = weights / weights.sum(-1) if options["weighting"] == "normalized" else weights
    return indices, weights * arb(float(options["scale"])), scores


def router_logits(leaves: Leaves, x: Variable) -> Variable:
    return linear(leaves, "router", x)


def route(leaves: Leaves, options: dict[str, Any]) -> Results:
    """Scores of all experts, and the weights of the largest (MOE-1 to MOE-3)."""
    x = leaves.read("x")
    lead = x.shape[:-1]
    rows = x.reshape(int(np.prod(lead)), x.shape[-1])
    indices, weights, scores = weights_of(router_logits(leaves, rows), leaves, options)
    whole = np.array([[arb(int(i)) for i in row] for row in indices], dtype=object).reshape(*lead, indices.shape[1])
    named = {"weights": weights, "scores": scores}
    return {"indices": Variable(whole)} | {n: one.reshape(*lead, one.shape[1]) for n, one in named.items()}


def clamp(x: Variable, least: int | None, most: int) -> Variable:
    """x between two numbers, with slope 0 where it is cut."""
    tests = {
        "above": np.frompyfunc(lambda ball: ball > most, 1, 1)(x.value),
        "below": np.frompyfunc(lambda ball: least is not None and ball < least, 1, 1)(x.value),
        "inside": np.frompyfunc(lambda ball: ball <= most and (least is None or ball >= least), 1, 1)(x.value),
    }
    above, below, inside = (np.asarray(test, bool) for test in tests.values())
    if not (above | below | inside).all():
        raise Undecided("whether a number is cut off")
    return select(inside, x, np.where(above, arb(most), arb(0 if least is None else least)))


def network(leaves: Leaves, x: Variable, name: str, expert: int | None, activation: str) -> Variable:
    """One network of a stack, or the one of that name."""

    def project(side: str, rows: Variable) -> Variable:
        weight, bias = f"{name}.{side}.weight", f"{name}.{side}.bias"
        matrix = leaves.variables[weight] if expert is None else leaves.variables[weight][expert]
        output = rows @ matrix
        if bias in leaves:
            output = output + (leaves.variables[bias] if expert is None else leaves.variables[bias][expert])
        return output

    inner = project("inner", x)
    if f"{name}.gate.weight" not in leaves:
        return project("outer", ACTIVATIONS[activation](inner))
    gate = project("gate", x)
    if activation != "clamped_swiglu":
        return project("outer", ACTIVATIONS[activation](gate) * inner)
    constant = arb(1702) / 1000
    gate = sigmoid_linear(clamp(gate, None, 7) * constant) / constant
    return project("outer", gate * (clamp(inner, -7, 7) + ONE))


def mixture_of_experts(leaves: Leaves, options: dict[str, Any]) -> Results:
    """The chosen experts' results times weights, and the shared one's (MOE-4, MOE-5)."""
    lead = leaves.shape("x")[:-1]
    count = int(np.prod(lead))
    mask = np.asarray(leaves.inputs["token_mask"]) if "token_mask" in leaves else np.ones(lead, bool)
    real = np.flatnonzero(mask)
    x = leaves.read("x", mask[..., None])
    tokens = x.reshape(count, x.shape[-1])[real]
    for name in leaves.floating_names():
        if name.startswith(("experts.", "shared.")):
            leaves.read(name)
    indices, weights, _ = weights_of(router_logits(leaves, tokens), leaves, options)
    capacity, activation = options.get("capacity"), options.get("activation") or "silu"
    parts, owners = [], []
    for expert in range(leaves.shape("router.weight")[1]):
        rows, slots = np.nonzero(indices == expert)
        rows, slots = rows[:capacity], slots[:capacity]
        if rows.size:
            result = network(leaves, tokens[rows], "experts", expert, activation)
            parts.append(result * weights[rows, slots].reshape(rows.size, 1))
            owners.append(rows)
    if "shared.inner.weight" in leaves and real.size:
        parts.append(network(leaves, tokens, "shared", None, activation))
        owners.append(np.arange(real.size))
    outer = leaves.shape("experts.outer.weight")[2]
    if not parts:
        return {"output": Variable(np.full((*lead, outer), ZERO, dtype=object)) + tokens.sum(None).reshape(1) * ZERO}
    return {"output": add_rows(concatenate(parts, 0), real[np.concatenate(owners)], count).reshape(*lead, outer)}


def add_rows(parts: Variable, owners: np.ndarray, count: int) -> Variable:
    """[count, width], of which each row is the sum of its parts."""
    whole = np.full((count, parts.shape[1]), ZERO, dtype=object)
    np.add.at(whole, owners, parts.value)
    return Variable(whole, [(parts, lambda g: g[owners])])


def token_rows(leaves: Leaves) -> tuple[Variable, int]:
    """The logits of what counts, and how many there are, at least one."""
    shape = leaves.shape("router_logits")
    mask = np.asarray(leaves.inputs["token_mask"]) if "token_mask" in leaves else np.ones(shape[:-1], bool)
    logits = leaves.read("router_logits", mask[..., None]).reshape(int(np.prod(shape[:-1])), shape[-1])
    return logits[np.flatnonzero(mask)], max(int(mask.sum()), 1)


def load_balancing_loss(leaves: Leaves, options: dict[str, Any]) -> Results:
    """X * sum of share * mean probability (MOE-6)."""
    logits, count = token_rows(leaves)
    experts = logits.shape[1]
    shares = np.full(experts, ZERO, dtype=object)
    for row in logits.value:
        shares[largest(list(row), options["chosen"])] += ONE / count
    means = softmax(logits).sum(0, keepdims=False) / arb(count)
    return {"output": (means * shares).sum(0, keepdims=False) * arb(experts)}


def router_z_loss(leaves: Leaves, options: dict[str, Any]) -> Results:
    """The mean of squared log-sum-exps (MOE-6)."""
    logits, count = token_rows(leaves)
    sums = log(exp(logits).sum(-1))
    return {"output": (sums * sums).reshape(logits.shape[0]).sum(0, keepdims=False) / arb(count)}
