"""What a case's results are, exactly enough to judge by.

float16, bfloat16 and float32: the definition in float64, on the exactly widened inputs; its own rounding, 2^-29 of
float32's, is part of the bound. float64: `ball.py`, which shares no code with the definition and so judges it too.
Cases with NaN or infinity are special: ball arithmetic has no use for them, and the definition says what they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.cases.arguments import gradient_name, replace_kernel_arguments
from conformance.cases.case import Case, logsumexp_alone, output_alone
from conformance.cases.expectations import Exact, nan_rows
from conformance.subjects.subject import NumpySubject
from specification.dtypes import FLOATING


def widen_case(case: Case) -> Case:
    """The same case in float64; every float16, bfloat16 and float32 is a float64."""

    def wide(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: a.astype(np.float64) if str(a.dtype) in FLOATING else a for n, a in arrays.items()}

    options = dict(case.options)
    if "dtype" in options:
        options["dtype"] = "float64"
    return replace(case, dtype="float64", inputs=wide(case.inputs), cotangents=wide(case.cotangents), options=options)


def evaluate_definition(case: Case) -> dict[str, Exact]:
    if case.with_logsumexp:
        return add_logsumexp(evaluate_definition(output_alone(case)), evaluate_definition(logsumexp_alone(case)))
    answers = NumpySubject()(widen_case(case))
    return {name: Exact(array, np.zeros_like(array)) for name, array in answers.items()}


def add_logsumexp(output: dict[str, Exact], logsumexp: dict[str, Exact]) -> dict[str, Exact]:
    """Both results of one call, and their gradients added."""
    pairs = {name: (output[name], exact) for name, exact in logsumexp.items() if name != "output"}
    sums = {name: Exact(one.high + other.high, one.low + other.low) for name, (one, other) in pairs.items()}
    return output | sums | {"logsumexp": logsumexp["output"]}


def evaluate_balls(case: Case) -> dict[str, Exact]:
    from conformance.oracle import ball

    return {name: Exact(*exact) for name, exact in ball.evaluate(case).items()}


def balls_available() -> bool:
    try:
        from conformance.oracle import ball  # noqa: F401
    except ImportError:
        return False
    return True


def oracle(case: Case) -> dict[str, Exact]:
    case = replace_kernel_arguments(case)
    mode = case.options.get("empty_rows")
    if mode in ("nan", "any"):
        plain = {name: value for name, value in case.options.items() if name != "empty_rows"}
        truth = oracle(replace(case, options=plain))
        return nan_rows(case, truth) if mode == "nan" else truth
    found = evaluate_balls(case) if case.dtype == "float64" and not case.special else evaluate_definition(case)
    unasked = {gradient_name(name) for name in case.constants}
    return {name: exact for name, exact in found.items() if name not in unasked}
