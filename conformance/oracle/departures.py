"""Exact results under the conventions that a subject declares of its formulas (`declaration.FORMULAS`).

What balls compute otherwise stands in their own formulas, which read the conventions beside the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.expectations import Exact, allowed_pairs
from conformance.cases.facts import returned_columns

Results = dict[str, Exact]
Departure = Callable[[Case, Results], Results]
"""From a case and the definition's results to those that the convention changes."""
ADDED_TO_NORM = 1e-6


def depart(case: Case, results: Results, balls: bool = False) -> Results:
    """The results under the case's conventions. balls: they come from ball arithmetic, which knows some of these."""
    departures = ANY if balls else ANY | IN_FLOAT64
    for name in departures.keys() & case.rounding.keys():
        results = results | departures[name](case, results)
    return results


def restate(case: Case) -> Case:
    """A case in float64 to which the definition gives results that `depart` can turn into those of the conventions."""
    if "columns" in case.rounding and case.cotangents:
        back = np.argsort(returned_columns(case))
        return replace(case, cotangents={name: array[..., back] for name, array in case.cotangents.items()})
    return replace_scores(case) if caps_bias(case) else case


def exact(array: np.ndarray) -> Exact:
    array = np.asarray(array, float)
    return Exact(array, np.zeros_like(array))


# --- of results in float64 and in balls -------------------------------------------------------------------------------


def measure_distances(case: Case, results: Results) -> Results:
    """-slope |j - i - offset|."""
    high, low = results["output"]
    return {"output": Exact(-np.abs(high), np.where(high > 0, -low, low))}


def leave_velocity(case: Case, results: Results) -> Results:
    return {} if case.options.get("momentum", 0.0) else {"velocity": exact(case.inputs["velocity"])}


def divide_by_no_targets(case: Case, results: Results) -> Results:
    return {"output": results["output"].spoil(True)} if averages_nothing(case) else {}


def averages_nothing(case: Case) -> bool:
    """Whether the result is a mean over no loss."""
    targets, ignore = case.inputs["targets"], case.options.get("ignore")
    counted = targets.size if ignore is None else np.count_nonzero(targets != ignore)
    return case.options.get("reduction", "mean") == "mean" and counted == 0


# --- of results in float64 --------------------------------------------------------------------------------------------


def add_epsilon(case: Case, results: Results) -> Results:
    """Adam's step with eps elsewhere, from the averages."""
    options, parameters = case.options, case.inputs["parameters"].astype(float)
    step, eps, rate = options["step"] + 1, options.get("eps", 1e-8), options["learning_rate"]
    first, second = (correction(options.get(name, usual), step) for name, usual in (("beta_1", 0.9), ("beta_2", 0.999)))
    mean, square = (results[name].high for name in ("mean", "square"))
    inside = case.rounding["epsilon"] == "square"
    with np.errstate(all="ignore"):
        root = np.sqrt(square / second + eps) if inside else (np.sqrt(square) + eps) / np.sqrt(second)
        taken = rate * options.get("weight_decay", 0.0) if options.get("decoupled", True) else 0.0
        return {"parameters": exact((1 - taken) * parameters - rate * (mean / first / root))}


def correction(beta: float, step: int) -> float:
    """1 - beta^step."""
    return float(-np.expm1(step * np.log(beta))) if beta > 0 else 1.0


def clip_by_larger_norm(case: Case, results: Results) -> Results:
    """Gradients times limit / (norm + 1e-6), where that is below 1."""
    norm, limit = float(results["norm"].high), case.options["limit"]
    if not np.isfinite(norm):
        return {}
    factor = min(1.0, limit / (norm + ADDED_TO_NORM))
    return {name: exact(array.astype(float) * factor) for name, array in case.inputs.items()}


def move_columns(case: Case, results: Results) -> Results:
    order = returned_columns(case)
    return {"output": Exact(*(array[..., order] for array in results["output"]))}


# --- a bias inside the softcap ----------------------------------------------------------------------------------------


def caps_bias(case: Case) -> bool:
    return "capped" in case.rounding and case.options.get("softcap") is not None and "bias" in case.inputs


class Scores(NamedTuple):
    """All [B, H, Q, K]; query and keys [B, H, ., D]. allowed: the pairs that take part."""

    query: np.ndarray
    keys: np.ndarray
    scale: float
    allowed: np.ndarray
    ratio: np.ndarray  # scores over the softcap

    @classmethod
    def read(cls, case: Case) -> Scores:
        query, key, bias = (case.inputs[name].astype(float) for name in ("query", "key", "bias"))
        keys, allowed = np.repeat(key, query.shape[1] // key.shape[1], axis=1), allowed_pairs(case)
        scale = case.options.get("scale")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        with np.errstate(all="ignore"):
            total = np.where(allowed, query @ keys.swapaxes(-1, -2) * scale + bias, 0)
        return cls(query, keys, scale, allowed, np.tanh(total / case.options["softcap"]))


def replace_scores(case: Case) -> Case:
    """The case with its scores as a bias beside queries and keys of 0."""
    scores = Scores.read(case)
    bias = np.where(scores.allowed, scores.ratio * case.options["softcap"], -np.inf)
    zeros = {name: np.zeros_like(case.inputs[name]) for name in ("query", "key")}
    options = {name: value for name, value in case.options.items() if name not in ("softcap", "mask", "scale")}
    constants = tuple(name for name in case.constants if name != "bias")
    return replace(case, inputs=case.inputs | zeros | {"bias": bias}, options=options, constants=constants)


def pull_back_scores(case: Case, results: Results) -> Results:
    """Gradients of query, key and bias from that of the scores."""
    if not caps_bias(case) or not case.cotangents:
        return {}
    scores, shape = Scores.read(case), case.inputs["bias"].shape
    raw = np.where(scores.allowed, results[gradient_name("bias")].high * (1 - scores.ratio**2), 0)
    (B, H, _, _), (_, G, K, D) = scores.query.shape, case.inputs["key"].shape
    key = (raw.swapaxes(-1, -2) @ scores.query).reshape(B, G, H // G, K, D).sum(axis=2)
    broadcast = tuple(axis for axis, size in enumerate((1,) * (4 - len(shape)) + shape) if size == 1)
    found = {
        "query": scores.scale * (raw @ scores.keys),
        "key": scores.scale * key,
        "bias": raw.sum(axis=broadcast, keepdims=True).reshape(shape),
    }
    return {gradient_name(name): exact(array) for name, array in found.items()}


ANY: dict[str, Departure] = {
    "distances": measure_distances,
    "velocity": leave_velocity,
    "no_targets": divide_by_no_targets,
}
IN_FLOAT64: dict[str, Departure] = {
    "epsilon": add_epsilon,
    "clipping": clip_by_larger_norm,
    "columns": move_columns,
    "capped": pull_back_scores,
}
