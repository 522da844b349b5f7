"""Exact results under the conventions that a subject declares of its formulas (`declaration.FORMULAS`).

What balls compute otherwise stands in their own formulas, which read the conventions beside the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.cases.case import Case
from conformance.cases.expectations import Exact
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


def adapt_cotangents(case: Case) -> Case:
    """The case with cotangents of the definition's results."""
    if "columns" not in case.rounding or not case.cotangents:
        return case
    back = np.argsort(returned_columns(case))
    return replace(case, cotangents={name: array[..., back] for name, array in case.cotangents.items()})


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


ANY: dict[str, Departure] = {
    "distances": measure_distances,
    "velocity": leave_velocity,
    "no_targets": divide_by_no_targets,
}
IN_FLOAT64: dict[str, Departure] = {
    "epsilon": add_epsilon,
    "clipping": clip_by_larger_norm,
    "columns": move_columns,
}
