"""Known losses of precision: factors rounded, a scale or a variance slightly off, narrower arithmetic all through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.bounds import bound
from conformance.cases import Case, expected_dtype
from conformance.diagnosis.layers import mean, square, variance
from conformance.diagnosis.matching import Bounds, Mistake, computed, exactly
from conformance.expectations import Exact
from conformance.oracle import oracle
from conformance.spreading import gradient_name
from conformance.subjects import Answers
from conformance.verdict import PRECISION, compare
from specification.dtypes import compute_dtype_name

FORMATS = {"TF32": 11, "float16": 11, "bfloat16": 8}
"""Binary digits."""
AT_MOST = "the errors are as large as"
"""How a name begins that says what the errors may come from, and not what they come from."""
NARROWEST = 2.0**-24
"""The smallest step of float16."""

ROUNDINGS = {
    "weights rounded to float16": {"weights": "float16"},
    "weights rounded to bfloat16": {"weights": "bfloat16"},
    "products in TF32": {"products": "tf32", "weights": "float16"},
    "products in bfloat16": {"products": "bfloat16", "weights": "bfloat16"},
}
"""From the smallest loss to the largest."""


def rounded(array: np.ndarray, form: str) -> np.ndarray:
    """To the nearest number of the format, in float64."""
    if form == "bfloat16":
        return array.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float)
    mantissa, exponent = np.frexp(array.astype(float))
    result = np.ldexp(np.rint(np.ldexp(mantissa, FORMATS[form])), exponent - FORMATS[form])
    return np.rint(result / NARROWEST) * NARROWEST if form == "float16" else result


def factors_rounded(form: str) -> Mistake:
    """Query and key, which are then multiplied exactly."""

    def output(case: Case) -> Any:
        if case.dtype not in ("float32", "float64"):
            return None
        inputs = {n: rounded(a, form) if n in ("query", "key") else a for n, a in case.inputs.items()}
        return oracle(in_float64(replace(case, inputs=inputs)))["output"].high

    return computed(f"query and key are rounded to {form} before they are multiplied", output)


def weights_rounded(form: str) -> Mistake:
    def output(case: Case) -> Any:
        if case.operation != "attention" or case.options.get("dropout_keep") is not None:
            return None
        inputs = {name: array for name, array in case.inputs.items() if name != "value"}
        weights = oracle(replace(case, operation="attention_weights", inputs=inputs, cotangents={}))["output"].high
        repeat = weights.shape[1] // max(case.inputs["value"].shape[1], 1)
        return rounded(weights, form) @ np.repeat(case.inputs["value"].astype(float), repeat, axis=1)

    return computed(f"weights are rounded to {form} before they are multiplied with values", output)


def in_float64(case: Case) -> Case:
    inputs = {name: array.astype(float) for name, array in case.inputs.items()}
    return replace(case, dtype="float64", inputs=inputs, cotangents={}, special=True)  # by the definition, not by balls


MISTAKES = [*map(factors_rounded, FORMATS), *map(weights_rounded, ("float16", "bfloat16"))]


def scale_off(case: Case, got: Answers) -> Iterator[str]:
    """A scale that is slightly off, by how much the answers say themselves."""
    if not case.operation.startswith("attention") or "output" not in got:
        return
    plain = replace(case, cotangents={})
    scale = case.options.get("scale")
    scale = case.inputs["query"].shape[-1] ** -0.5 if scale is None else scale

    def at(factor: float) -> np.ndarray:
        return oracle(replace(plain, options=plain.options | {"scale": scale * factor}))["output"].high

    def answers_to(exact: np.ndarray) -> bool:
        return compare("output", got["output"], exactly(exact), bounds, expected_dtype("output", case)).ratio <= 1

    with np.errstate(all="ignore"):
        exact, step, wide, bounds = at(1.0), 1e-5, got["output"].astype(float), bound(plain)["output"]
        slope = (at(1 + step) - exact) / step
        away = float(np.nansum((wide - exact) * slope) / np.nansum(slope**2))
        if 1e-7 < abs(away) < 0.1 and answers_to(at(1 + away)) and not answers_to(exact):
            yield f"the scale is {1 + away:.6g} times what it must be"


def variance_off(case: Case, got: Answers) -> Iterator[str]:
    """Every row of a layer norm has some variance, and it is off by no more than E[x^2] - E[x]^2 can be.

    Of n terms that are added one after the other, E[x^2] is off by at most n u E[x^2], and rounding the squares and the
    difference makes it a few more. What variance a row had is told by the one factor that all its elements have.
    """
    if case.operation != "layer_norm" or "output" not in got:
        return
    x, weight = case.inputs["x"].astype(float), case.inputs["weight"].astype(float)
    bias = case.inputs["bias"].astype(float) if "bias" in case.inputs else 0.0
    axes = tuple(range(-weight.ndim, 0))
    expected = variance(x, axes) + case.options.get("eps", 1e-5)
    rows = (x - mean(x, axes)) * weight
    with np.errstate(all="ignore"):
        size = np.sum(rows**2, axis=axes, keepdims=True)
        factor = np.sum((got["output"].astype(float) - bias) * rows, axis=axes, keepdims=True) / size
        away = np.where(size == 0, 0.0, np.abs(factor**-2 - expected))
        exact = np.where(size == 0, 0.0, rows * factor) + bias
        bounds = bound(replace(case, cotangents={}))["output"] * np.fmax(1, factor * np.sqrt(expected))
    unit = 2.0 ** -PRECISION[compute_dtype_name(case.dtype)][0]
    there = compare("output", got["output"], exactly(exact), bounds, case.dtype)
    if np.all(away <= (weight.size + 4) * unit * (square(x, axes) + expected)) and there.ratio <= 1:
        yield f"{AT_MOST} a variance of E[x^2] - E[x]^2 would make them at most"


def excused(case: Case, got: Answers, truth: dict[str, Exact]) -> Iterator[str]:
    """The smallest known loss of precision within whose bound all answers lie."""
    for name, bounds in losses(case):
        if within(case, bounds, got, truth):
            yield f"{AT_MOST} {name} would make them at most"
            return
    if case.dtype == "float64" and within(case, bound(replace(case, dtype="float32")), got, truth):
        yield f"{AT_MOST} float32 arithmetic would make them at most"


def losses(case: Case) -> Iterator[tuple[str, Bounds]]:
    """Names and bounds: sums over heads first, then narrower arithmetic, from the smallest loss to the largest."""
    if case.operation == "attention" and (shared := inputs_of_several_heads(case)):
        yield f"gradients added up over heads in {case.dtype}", added_up_narrowly(case, shared)
    if case.operation in ("attention", "attention_weights", "attention_logsumexp", "multi_head_attention"):
        for name, rounding in ROUNDINGS.items():
            yield name, bound(replace(case, rounding=rounding))


def within(case: Case, bounds: Bounds, got: Answers, truth: dict[str, Exact]) -> bool:
    return all(
        name in got and compare(name, got[name], exact, bounds[name], expected_dtype(name, case)).ratio <= 1
        for name, exact in truth.items()
    )


# --- sums over heads that are rounded at every step -------------------------------------------------------------------


def inputs_of_several_heads(case: Case) -> dict[str, np.ndarray]:
    """16-bit inputs that several heads or batch elements read, written out for each of them.

    Who writes them out before widening them to float32 has automatic differentiation add up their gradients in 16 bits.
    """
    if not case.cotangents or case.dtype not in ("float16", "bfloat16") or not case.cotangents["output"].size:
        return {}
    batch, heads = case.inputs["query"].shape[:2]
    wide = {n: np.repeat(a, heads // a.shape[1], 1) for n, a in case.inputs.items() if n in ("key", "value") and a.size}
    if "bias" in case.inputs and case.inputs["bias"].dtype == case.inputs["query"].dtype:
        bias = case.inputs["bias"]
        wide["bias"] = np.broadcast_to(bias, (batch, heads, *bias.shape[-2:]))
    return {name: array for name, array in wide.items() if array.shape != case.inputs[name].shape}


def added_up_narrowly(case: Case, shared: dict[str, np.ndarray]) -> Bounds:
    """Of n terms g, each rounded and within its own bound b, the sum is off by sum(b) + (n - 1) u sum(|g| + b)."""
    spread = replace(case, inputs=case.inputs | shared)
    bounds, terms, own = bound(case), oracle(spread), bound(spread)
    unit = 2.0 ** -PRECISION[case.dtype][0]
    for name in shared:
        of, shape = gradient_name(name), case.inputs[name].shape
        count = shared[name].size // max(case.inputs[name].size, 1)
        error = summed_to(own[of], shape)
        bounds[of] = error + (count - 1) * unit * (summed_to(np.abs(terms[of].high), shape) + error)
    return bounds


def summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Over batch and heads, to the shape of what was written out: neighbouring heads belong together."""
    batch, heads, *rest = array.shape
    of, groups = (1, 1, *shape)[-4:-2]
    return array.reshape(of, batch // of, groups, heads // groups, *rest).sum((1, 3)).reshape(shape)
