"""What a case's results are, exactly enough to judge by.

float16, bfloat16 and float32: the definition in float64, on the exactly widened inputs; its own rounding, 2^-29 of
float32's, is part of the bound. float64: `oracle/ball/`, which shares no code with the definition and so judges it too.
Cases with NaN or infinity are special: ball arithmetic has no use for them, and the definition says what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.cases.arguments import gradient_name, replace_kernel_arguments
from conformance.cases.case import Case, logsumexp_alone, output_alone
from conformance.cases.expectations import Exact, nan_rows
from conformance.cases.facts import convert_dtype
from conformance.oracle.departures import depart, restate
from conformance.subjects.subject import NumpySubject


def evaluate_definition(case: Case) -> dict[str, Exact]:
    if case.with_logsumexp:
        output, logsumexp = evaluate_definition(output_alone(case)), evaluate_definition(logsumexp_alone(case))
        pairs = {name: (output[name], exact) for name, exact in logsumexp.items() if name != "output"}
        sums = {name: Exact(one.high + other.high, one.low + other.low) for name, (one, other) in pairs.items()}
        return output | sums | {"logsumexp": logsumexp["output"]}
    answers = NumpySubject()(restate(convert_dtype(case, "float64")))
    return depart(case, {name: Exact(array, np.zeros_like(array)) for name, array in answers.items()})


def evaluate_balls(case: Case) -> dict[str, Exact]:
    from conformance.oracle import ball

    return depart(case, {name: Exact(*exact) for name, exact in ball.evaluate(case).items()}, balls=True)


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
    results = evaluate_balls(case) if case.dtype == "float64" and not case.special else evaluate_definition(case)
    unasked = {gradient_name(name) for name in case.constants}
    return {name: exact for name, exact in results.items() if name not in unasked}


# --- what ball arithmetic costs ---------------------------------------------------------------------------------------


AFFORDABLE = 5e6
"""Work of 0.6 seconds on one core, and of a second with every feature of attention."""


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


def latent_work(
    passes: int, gradients: bool, *, B: int, H: int, T: int, E: int, D: int, V: int, C: int, R: int, inner: int
) -> float:
    columns = [(E, C + R), (C, H * (D - R + V)), (H * V, E)]
    columns += [(E, inner), (inner, H * D)] if inner else [(E, H * D)]
    products = sum(rows * width for rows, width in columns)
    layers = products * (15 if gradients else 4) + 0.4 * passes * B * T * products
    turned = B * T * (H + 1) * R * (30 if gradients else 14) + B * T * R * 30
    normalized = B * T * (C + inner) * (55 if gradients else 25)
    return layers + turned + normalized + attention_work(passes, gradients, B=B, H=H, G=H, Q=T, K=T, D=D, V=V)


def norm_work(passes: int, gradients: bool, *, rows: int, width: int) -> int:
    return rows * width * (55 if gradients else 25) + width * (20 if gradients else 3)


def feed_forward_work(passes: int, gradients: bool, *, rows: int, E: int, F: int, out: int) -> int:
    hidden = rows * F * (passes * (E + out) + (125 if gradients else 70))
    return hidden + (E * F + F * out + rows * (E + out)) * (10 if gradients else 4)


def gated_feed_forward_work(passes: int, gradients: bool, *, rows: int, E: int, F: int, out: int) -> int:
    twice = rows * F * E * passes + (E * F) * (10 if gradients else 4)
    return feed_forward_work(passes, gradients, rows=rows, E=E, F=F, out=out) + twice + rows * F * 10


def route_work(passes: int, gradients: bool, *, rows: int, E: int, X: int) -> int:
    return rows * X * (passes * E + (200 if gradients else 90)) + (E * X + rows * E) * (10 if gradients else 4)


def mixture_work(
    passes: int, gradients: bool, *, rows: int, E: int, X: int, F: int, out: int, chosen: int, shared: int
) -> int:
    taken = rows * chosen
    network = gated_feed_forward_work(passes, gradients, rows=taken + rows * (shared > 0), E=E, F=F, out=out)
    stacks = (X * F + shared) * (2 * E + out) * (10 if gradients else 4)
    return route_work(passes, gradients, rows=rows, E=E, X=X) + network + stacks + taken * out * 10


def lookup_work(passes: int, gradients: bool, *, N: int, E: int, rows: int) -> int:
    return N * E * (8 if gradients else 2) + rows * E * (14 if gradients else 8)


def rotary_embedding_work(passes: int, gradients: bool, *, numbers: int, angles: int) -> int:
    return numbers * (30 if gradients else 14) + angles * 60


PER_NUMBER = {
    "sinusoidal_positions": (20, 20),
    "alibi_bias": (20, 20),
    "relative_position_bias": (8, 14),
    "silu": (50, 110),
    "rotary_frequencies": (100, 100),
    "cross_entropy": (50, 120),
    "nll_loss": (15, 40),
    "adam_step": (120, 120),
    "sgd_step": (60, 60),
    "clip_by_global_norm": (30, 30),
    "load_balancing_loss": (70, 150),
    "router_z_loss": (50, 120),
}
"""Of operations whose work grows with the product of their sizes: that for each number, without gradients and with."""
WORK: dict[str, Callable[..., float]] = {
    "attention": attention_work,
    "attention_weights": attention_work,
    "attention_logsumexp": attention_work,
    "merge_attention": merge_work,
    "multi_head_attention": multi_head_work,
    "latent_attention": latent_work,
    "layer_norm": norm_work,
    "rms_norm": norm_work,
    "standard_deviation_norm": norm_work,
    "feed_forward": feed_forward_work,
    "gated_feed_forward": gated_feed_forward_work,
    "mixture_of_experts": mixture_work,
    "route": route_work,
    "embedding": lookup_work,
    "learned_positions": lookup_work,
    "rotary_embedding": rotary_embedding_work,
}
"""From how often each product of matrices is taken, whether there are gradients, and the sizes as keywords."""


def ball_work(operation: str, *, gradients: bool, **sizes: int) -> float:
    """An estimate of the work of ball arithmetic, in multiplications of two balls (0.12 microseconds each).

    sizes:
        attention: B, H, G, Q, K, D, V; attention_weights, attention_logsumexp: the same without V
        merge_attention: B, H, Q, V, parts
        multi_head_attention: B, H, G, Q, K, D, V, E (the model's width)
        latent_attention: B, H, T, E (the model's width), D (of a key), V, C (of a latent), R (rotated), inner (columns
            between the query's two projections, or 0)
        layer_norm, rms_norm, standard_deviation_norm: rows, width
        feed_forward, gated_feed_forward: rows, E, F (the inner width), out (the output's width)
        route: rows, E, X; mixture_of_experts: the same, and F, out, chosen, shared (the shared network's inner width)
        load_balancing_loss, router_z_loss: rows, experts
        embedding, learned_positions: N (rows of the table), E, rows (taken)
        sinusoidal_positions: rows, width
        alibi_bias, relative_position_bias: pairs (of queries and keys, in all heads)
        rotary_embedding: numbers (of x), angles; rotary_frequencies: width
        cross_entropy, nll_loss: rows, classes
        silu, adam_step, sgd_step, clip_by_global_norm: rows (all numbers)

    The factors are measured times: of exp, erfc and quotients, and of turning numbers into balls and back.
    """
    if operation in PER_NUMBER:
        return math.prod(sizes.values()) * PER_NUMBER[operation][gradients]
    return WORK[operation](3 if gradients else 1, gradients, **sizes)
