"""What a case's results are, exactly enough to judge by.

float16, bfloat16 and float32: the definition in float64, on the exactly widened inputs; its own rounding, 2^-29 of
float32's, is part of the bound. float64: `ball.py`, which shares no code with the definition and so judges it too.
Cases with NaN or infinity are special: ball arithmetic has no use for them, and the definition says what they are.

Ball arithmetic works on one number at a time. `ball_work` estimates how much work a case of given sizes is, so that
float64 is drawn only where `affordable` says that it takes about a second at most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.expectations import Exact, nan_rows
from conformance.cases.kernel_arguments import without_kernel_arguments
from conformance.cases.operation import operation_named
from conformance.cases.with_logsumexp import logsumexp_alone, output_alone
from conformance.subjects.subject import NumpySubject
from specification.dtypes import FLOATING


def widened(case: Case) -> Case:
    """The same case in float64; every float16, bfloat16 and float32 is a float64."""

    def wide(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: a.astype(np.float64) if str(a.dtype) in FLOATING else a for n, a in arrays.items()}

    options = dict(case.options)
    if "dtype" in options:
        options["dtype"] = "float64"
    return replace(case, dtype="float64", inputs=wide(case.inputs), cotangents=wide(case.cotangents), options=options)


def by_definition(case: Case) -> dict[str, Exact]:
    if case.with_logsumexp:
        return with_logsumexp(by_definition(output_alone(case)), by_definition(logsumexp_alone(case)))
    answers = NumpySubject()(widened(case))
    return {name: Exact(array, np.zeros_like(array)) for name, array in answers.items()}


def with_logsumexp(output: dict[str, Exact], logsumexp: dict[str, Exact]) -> dict[str, Exact]:
    """Both results of one call, and their gradients added."""
    pairs = {name: (output[name], exact) for name, exact in logsumexp.items() if name != "output"}
    sums = {name: Exact(one.high + other.high, one.low + other.low) for name, (one, other) in pairs.items()}
    return output | sums | {"logsumexp": logsumexp["output"]}


def by_balls(case: Case) -> dict[str, Exact]:
    from conformance.oracle import ball

    return {name: Exact(*exact) for name, exact in ball.evaluate(case).items()}


def balls_available() -> bool:
    try:
        from conformance.oracle import ball  # noqa: F401
    except ImportError:
        return False
    return True


def oracle(case: Case) -> dict[str, Exact]:
    case = without_kernel_arguments(case)
    mode = case.options.get("empty_rows")
    if mode in ("nan", "any"):
        plain = {name: value for name, value in case.options.items() if name != "empty_rows"}
        truth = oracle(replace(case, options=plain))
        return nan_rows(case, truth) if mode == "nan" else truth
    found = by_balls(case) if case.dtype == "float64" and not case.special else by_definition(case)
    unasked = {gradient_name(name) for name in case.constants}
    return {name: exact for name, exact in found.items() if name not in unasked}


# --- what ball arithmetic costs ---------------------------------------------------------------------------------------

AFFORDABLE = 5e6
"""Work of 0.6 seconds on one core, and of a second with every feature of attention."""


def affordable(operation: str, *, gradients: bool, **sizes: int) -> bool:
    """Whether ball arithmetic evaluates a case in about a second at most. Sizes as in `ball_work`."""
    return ball_work(operation, gradients=gradients, **sizes) <= AFFORDABLE


def ball_work(operation: str, *, gradients: bool, **sizes: int) -> float:
    """An estimate of the work of ball arithmetic, in multiplications of two balls (0.12 microseconds each).

    sizes:
        attention: B, H, G, Q, K, D, V; attention_weights, attention_logsumexp: the same without V
        merge_attention: B, H, Q, V, parts
        multi_head_attention: B, H, G, Q, K, D, V, E (the model's width)
        layer_norm, rms_norm, standard_deviation_norm: rows, width
        feed_forward, gated_feed_forward: rows, E, F (the inner width), out (the output's width)
        embedding, learned_positions: N (rows of the table), E, rows (taken)
        sinusoidal_positions: rows, width
        alibi_bias, relative_position_bias: pairs (of queries and keys, in all heads)

    The factors are measured times: of exp, erfc and quotients, and of turning numbers into balls and back.
    """
    return operation_named(operation).work(3 if gradients else 1, gradients, **sizes)


def attention_work(passes: int, gradients: bool, *, B: int, H: int, G: int, Q: int, K: int, D: int, V: int = 0) -> int:
    pairs, entries = B * H * Q * K, B * H * (Q + K) * (D + V)
    outputs = B * H * Q * V if V else pairs
    return pairs * (passes * (D + V) + (32 if gradients else 16)) + entries * (8 if gradients else 2) + 4 * outputs


def merge_work(passes: int, gradients: bool, *, B: int, H: int, Q: int, V: int, parts: int) -> int:
    return B * H * Q * parts * (V * (25 if gradients else 8) + (30 if gradients else 12))


def multi_head_work(
    passes: int, gradients: bool, *, B: int, H: int, G: int, Q: int, K: int, D: int, V: int, E: int
) -> float:
    rows = {"query": (Q, H * D), "key": (K, G * D), "value": (K, G * V), "output": (Q, H * V)}
    parameters = E * sum(columns for _, columns in rows.values()) * (15 if gradients else 4)
    # flint multiplies matrices faster than single balls.
    products = 0.4 * passes * B * E * sum(length * columns for length, columns in rows.values())
    inputs = B * E * (2 * Q + 2 * K) * (8 if gradients else 3)
    inner = attention_work(passes, gradients, B=B, H=H, G=G, Q=Q, K=K, D=D, V=V)
    return parameters + products + inputs + inner


def norm_work(passes: int, gradients: bool, *, rows: int, width: int) -> int:
    return rows * width * (55 if gradients else 25) + width * (20 if gradients else 3)


def feed_forward_work(passes: int, gradients: bool, *, rows: int, E: int, F: int, out: int) -> int:
    hidden = rows * F * (passes * (E + out) + (125 if gradients else 70))
    return hidden + (E * F + F * out + rows * (E + out)) * (10 if gradients else 4)


def gated_feed_forward_work(passes: int, gradients: bool, *, rows: int, E: int, F: int, out: int) -> int:
    twice = rows * F * E * passes + (E * F) * (10 if gradients else 4)
    return feed_forward_work(passes, gradients, rows=rows, E=E, F=F, out=out) + twice + rows * F * 10


def lookup_work(passes: int, gradients: bool, *, N: int, E: int, rows: int) -> int:
    return N * E * (8 if gradients else 2) + rows * E * (14 if gradients else 8)


def sinusoidal_work(passes: int, gradients: bool, *, rows: int, width: int) -> int:
    return rows * width * 20
