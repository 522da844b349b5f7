"""Known losses of precision in attention: factors rounded, a scale slightly off, narrower arithmetic all through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.bounds import bound
from conformance.cases import Case, expected_dtype
from conformance.diagnosis.matching import Mistake, computed
from conformance.expectations import Exact
from conformance.oracle import oracle
from conformance.subjects import Answers
from conformance.verdict import compare

FORMATS = {"TF32": 11, "float16": 11, "bfloat16": 8}
"""Binary digits."""
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

    with np.errstate(all="ignore"):
        exact, step, wide = at(1.0), 1e-5, got["output"].astype(float)
        slope = (at(1 + step) - exact) / step
        away = float(np.nansum((wide - exact) * slope) / np.nansum(slope**2))
        if not 1e-7 < abs(away) < 0.1:
            return
        there = Exact(at(1 + away), np.zeros_like(exact))
    if compare("output", got["output"], there, bound(plain)["output"], expected_dtype("output", case)).ratio <= 1:
        yield f"the scale is {1 + away:.6g} times what it must be"


def excused(case: Case, got: Answers, truth: dict[str, Exact]) -> Iterator[str]:
    """The smallest known loss of precision within whose bound all answers lie."""
    if case.operation in ("attention", "attention_weights", "attention_logsumexp", "multi_head_attention"):
        for name, rounding in ROUNDINGS.items():
            if within(replace(case, rounding=rounding), got, truth):
                yield f"as far off as {name} would be at most"
                return
    if case.dtype == "float64" and within(replace(case, dtype="float32"), got, truth, "float64"):
        yield "as far off as float32 arithmetic would be at most"


def within(case: Case, got: Answers, truth: dict[str, Exact], dtype: str | None = None) -> bool:
    bounds = bound(case)
    return all(
        name in got and compare(name, got[name], exact, bounds[name], dtype or expected_dtype(name, case)).ratio <= 1
        for name, exact in truth.items()
    )
