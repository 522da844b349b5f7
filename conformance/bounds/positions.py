"""Bounds of rows of tables, and of what positions and distances give."""

from __future__ import annotations

import numpy as np

from conformance.bounds.arithmetic import EXP, Approx, Precision
from conformance.bounds.layers import sinusoid
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.facts import bias_sizes
from conformance.cases.operation import OFFSET
from specification.positions import angular_frequencies, bucket_edges


def lookup(case: Case, p: Precision) -> dict[str, Approx]:
    """Rows of a table are copied, not computed: no error, unless they are multiplied by sqrt(E)."""
    table = np.asarray(case.inputs["table"], float)
    if case.operation == "embedding":
        rows = case.inputs["ids"].astype(int)
    else:
        rows = np.arange(case.options["length"]) + case.options.get("offset", 0)
    root = np.sqrt(table.shape[1]) if case.options.get("scaled") else 1.0
    value = table[rows] * root
    unit = 3 * p.inner if case.options.get("scaled") else 0.0
    results = {"output": Approx(value, unit * np.abs(value))}
    if case.cotangents:
        cotangent = np.asarray(case.cotangents["output"], float) * root
        results[gradient_name("table")] = gathered_gradient(table, rows, cotangent, p, unit)
    return results


def gathered_gradient(
    table: np.ndarray, rows: np.ndarray, cotangent: np.ndarray, p: Precision, unit: float = 0.0
) -> Approx:
    """The gradient of a table [N, E] whose `rows` [...] are taken: their cotangents [..., E] added up.

    unit: the relative error of each of them.
    """
    bars, places = cotangent.reshape(-1, table.shape[1]), rows.reshape(-1)
    value, size, count = np.zeros_like(table), np.zeros_like(table), np.zeros(len(table))
    np.add.at(value, places, bars)
    np.add.at(size, places, np.abs(bars))
    np.add.at(count, places, 1)
    return Approx(value, (p.gamma(np.maximum(count - 1, 0))[:, None] + unit) * size)


def sinusoidal_positions(case: Case, p: Precision) -> dict[str, Approx]:
    options = case.options
    positions = np.arange(options["length"]) + options.get("offset", 0)
    exponent = options.get("exponent", "shared")
    angles = positions[:, None] * angular_frequencies(options["width"], exponent)
    value = np.where(np.arange(options["width"]) % 2 == 0, np.sin(angles), np.cos(angles))
    return {"output": Approx(value, sinusoid(positions, angular_frequencies(options["width"], exponent), p))}


def slope_powers(num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """(b, n) of every head, whose slope is 2^(-b n): the first slope of P or 2 P heads, and its power."""
    power = 2 ** int(np.log2(num_heads))
    first, others = np.arange(1, power + 1), np.arange(1, 2 * (num_heads - power), 2)
    return np.repeat((8 / power, 4 / power), (power, num_heads - power)), np.concatenate([first, others])


def alibi_bias(case: Case, p: Precision) -> dict[str, Approx]:
    """A slope is the n-th power of 2^-b, or 2^(-b n).

    The first: 2^-b is off by EXP u and its rounding, its power n times as much, and there may be n products. The
    second: b n, at most 8, is exact; as exp(-b n log 2) its argument is off by 2 u, and the exponential by EXP u and
    2 * 8 log 2 < 12 u. The distance may be rounded to the compute dtype, and so are the slope and the product.
    """
    step, power = slope_powers(case.options["num_heads"])
    _, Q, K = bias_sizes(case)
    distance = np.arange(K) - (np.arange(Q) + (case.options.get(OFFSET) or 0))[:, None]
    distance = -np.abs(distance) if "distances" in p.declared else distance
    value = (2.0 ** (-step * power))[:, None, None] * distance
    relative = np.maximum((EXP + 2) * power, EXP + 12) + 3
    return {"output": Approx(value[None], p.inner * (relative[:, None, None] * np.abs(value))[None] + p.inner_tiny)}


def relative_position_bias(case: Case, p: Precision) -> dict[str, Approx]:
    """Numbers are copied. A row's gradient adds up as many cotangents as pairs are in its bucket."""
    table, both, (_, Q, K) = np.asarray(case.inputs["table"], float), case.options["bidirectional"], bias_sizes(case)
    relative = np.arange(K) - (np.arange(Q) + (case.options.get(OFFSET) or 0))[:, None]
    size = len(table) // 2 if both else len(table)
    distance = np.abs(relative) if both else np.maximum(-relative, 0)
    edges = bucket_edges(size, case.options.get("furthest", 128))
    bucket = np.searchsorted(edges, distance, side="right") + size * (relative > 0) * both
    bias = np.moveaxis(table[bucket], -1, 0)[None]
    results = {"output": Approx(bias, np.zeros_like(bias))}
    if case.cotangents:
        bar = np.moveaxis(np.asarray(case.cotangents["output"], float)[0], 0, -1)
        results[gradient_name("table")] = gathered_gradient(table, bucket, bar, p)
    return results
