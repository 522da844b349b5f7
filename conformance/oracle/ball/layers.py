"""Norms, positions, embedding, feed-forward network, SiLU and losses in balls."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb

from conformance.oracle.ball.attention import Results, dropout, linear
from conformance.oracle.ball.tape import (
    ONE,
    ZERO,
    Leaves,
    Undecided,
    Variable,
    balls,
    constant,
    erfc,
    exp,
    log,
    select,
    sqrt,
)


def trailing_axes(x: Variable, weight: Variable) -> tuple[tuple[int, ...], int]:
    """The axes over which a norm runs, those that weight's shape names, and how many elements they hold."""
    return tuple(range(-weight.value.ndim, 0)), weight.value.size


def affine(leaves: Leaves, normalized: Variable, weight: Variable) -> Results:
    output = normalized * weight
    return {"output": output + leaves.read("bias") if "bias" in leaves else output}


def number(options: dict[str, Any], name: str, default: float) -> arb:
    value = options.get(name)
    return arb(default if value is None else float(value))


def layer_norm(leaves: Leaves, options: dict[str, Any]) -> Results:
    """(x - mean) / sqrt(var + eps) * weight + bias, with the biased variance (NORM-1)."""
    x, weight = leaves.read("x"), leaves.read("weight")
    axes, size = trailing_axes(x, weight)
    centered = x - x.sum(axes) / arb(size)
    variance = (centered * centered).sum(axes) / arb(size)
    return affine(leaves, centered / sqrt(variance + number(options, "eps", 1e-5)), weight)


def rms_norm(leaves: Leaves, options: dict[str, Any]) -> Results:
    """x / sqrt(mean(x^2) + eps) * weight, or times 1 + weight (NORM-7, NORM-8)."""
    x, weight = leaves.read("x"), leaves.read("weight")
    axes, size = trailing_axes(x, weight)
    weight = weight + ONE if options.get("plus_one") else weight
    return affine(leaves, x / sqrt((x * x).sum(axes) / arb(size) + number(options, "eps", 1e-5)), weight)


def standard_deviation_norm(leaves: Leaves, options: dict[str, Any]) -> Results:
    """(x - mean) / (deviation + eps) * weight + bias, with the unbiased deviation (NORM-7).

    In a constant row the deviation is 0 and has no slope; its gradient counts as 0, the quotient's remains.
    """
    x, weight = leaves.read("x"), leaves.read("weight")
    axes, size = trailing_axes(x, weight)
    if size < 2:
        raise ValueError(f"the unbiased deviation of {size} elements is not defined")
    numbers = np.asarray(leaves.inputs["x"]).astype(np.float64)
    varies = numbers.max(axis=axes, keepdims=True) != numbers.min(axis=axes, keepdims=True)
    centered = x - x.sum(axes) / arb(size)
    variance = (centered * centered).sum(axes) / arb(size - 1)
    deviation = select(varies, sqrt(select(varies, variance, ONE)), ZERO)
    return affine(leaves, centered / (deviation + number(options, "eps", 1e-6)), weight)


def sinusoidal_positions(leaves: Leaves, options: dict[str, Any]) -> Results:
    """sin and cos of p / 10000^(2i/E) on columns 2i and 2i + 1; "doubled": 2c/E for column c (POS-1)."""
    length, width, offset = options["length"], options["width"], options.get("offset") or 0
    doubled = (options.get("exponent") or "shared") == "doubled"
    wavelengths = [arb(10000) ** (arb(2 * c if doubled else c - c % 2) / width) for c in range(width)]
    table = np.empty((length, width), dtype=object)
    for p, c in np.ndindex(length, width):
        angle = arb(offset + p) / wavelengths[c]
        table[p, c] = angle.cos() if c % 2 else angle.sin()
    return {"output": Variable(table)}


def rows_of_table(leaves: Leaves, rows: np.ndarray) -> Variable:
    """table[rows], where only the rows that are taken must be finite."""
    entries = leaves.shape("table")[0]
    if rows.size and not (rows.min() >= 0 and rows.max() < entries):
        raise ValueError(f"row {rows.min()} or {rows.max()} is not in a table of {entries} rows")
    taken = np.isin(np.arange(entries), rows)
    return leaves.read("table", taken[:, None])[rows]


def learned_positions(leaves: Leaves, options: dict[str, Any]) -> Results:
    """Rows offset, ..., offset + length - 1 of the table (POS-2)."""
    offset = options.get("offset") or 0
    return {"output": rows_of_table(leaves, np.arange(offset, offset + options["length"]))}


def slopes_of_heads(count: int) -> list[arb]:
    """A geometric sequence from 2^(-8 / H) on, or those of the powers of two below H and above it, this one in part."""
    power = 2 ** (count.bit_length() - 1)
    if power == count:
        return [arb(2) ** (arb(-8) * h / count) for h in range(1, count + 1)]
    return slopes_of_heads(power) + slopes_of_heads(2 * power)[::2][: count - power]


def alibi_bias(leaves: Leaves, options: dict[str, Any]) -> Results:
    """The slope of a head times j - i - offset (POS-5)."""
    slopes, offset = slopes_of_heads(options["num_heads"]), options.get("offset") or 0
    table = np.empty((1, len(slopes), options["query_length"], options["key_length"]), dtype=object)
    for _, h, i, j in np.ndindex(*table.shape):
        table[0, h, i, j] = slopes[h] * (j - i - offset)
    return {"output": Variable(table)}


def relative_position_bias(leaves: Leaves, options: dict[str, Any]) -> Results:
    """table[bucket], the bucket found one distance at a time by powers of integers (POS-6)."""
    rows, both, furthest = leaves.shape("table")[0], options["bidirectional"], options.get("furthest") or 128
    size = rows // 2 if both else rows
    single = size // 2

    def bucket(relative: int) -> int:
        n = abs(relative) if both else max(-relative, 0)
        if n < single:
            found = n
        else:
            power = size - single
            late = (n**power * single**k >= furthest**k * single**power for k in range(1, power))
            found = single + sum(late)
        return found + (size if both and relative > 0 else 0)

    lengths, offset = (options["query_length"], options["key_length"]), options.get("offset") or 0
    known = {d: bucket(d) for d in range(-lengths[0] - offset, lengths[1] - offset)}
    places = [[known[j - i - offset] for j in range(lengths[1])] for i in range(lengths[0])]
    taken = rows_of_table(leaves, np.array(places, int).reshape(lengths))
    return {"output": taken.transpose(2, 0, 1).reshape(1, leaves.shape("table")[1], *lengths)}


def embedding(leaves: Leaves, options: dict[str, Any]) -> Results:
    """table[ids], times sqrt(E) when scaled (EMB-1)."""
    rows = rows_of_table(leaves, np.asarray(leaves.inputs["ids"]).astype(np.int64))
    return {"output": rows * arb(rows.shape[-1]).sqrt() if options.get("scaled") else rows}


def relu(x: Variable) -> Variable:
    """max(x, 0), with slope 0 at 0."""
    decided = np.frompyfunc(lambda ball: ball > 0 or ball <= 0, 1, 1)(x.value)
    if not np.all(decided):
        raise Undecided("the sign of a relu's argument")
    return select((x.value > 0).astype(bool), x, ZERO)


def gelu(x: Variable) -> Variable:
    """x Phi(x) = x erfc(-x / sqrt(2)) / 2; 1 + erf would cancel for negative x."""
    return x * erfc(x / -arb(2).sqrt()) / arb(2)


def gelu_tanh(x: Variable) -> Variable:
    """x (1 + tanh(y)) / 2 with y = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 + exp(-2 y)), which never cancels."""
    y = (x + x * x * x * (arb(44715) / 10**6)) * (2 / arb.pi()).sqrt()
    return x / (exp(y * arb(-2)) + ONE)


def silu(leaves: Leaves, options: dict[str, Any]) -> Results:
    """x sigmoid(x) as x / (1 + exp(-x)) (ACT-1)."""
    return {"output": sigmoid_linear(leaves.read("x"))}


def sigmoid_linear(x: Variable) -> Variable:
    """x / (1 + exp(-x))."""
    return x / (exp(x * arb(-1)) + ONE)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": sigmoid_linear}


def feed_forward(leaves: Leaves, options: dict[str, Any]) -> Results:
    """outer(activation(inner(x))), with dropout between the two where a dialect has it (FFN-1)."""
    activation = ACTIVATIONS[options.get("activation") or "relu"]
    hidden = activation(linear(leaves, "inner", leaves.read("x")))
    return {"output": linear(leaves, "outer", dropout(hidden, options))}


def gated_feed_forward(leaves: Leaves, options: dict[str, Any]) -> Results:
    """outer(activation(gate(x)) * inner(x)), with dropout on the product (FFN-2)."""
    activation, x = ACTIVATIONS[options.get("activation") or "silu"], leaves.read("x")
    hidden = activation(linear(leaves, "gate", x)) * linear(leaves, "inner", x)
    return {"output": linear(leaves, "outer", dropout(hidden, options))}


def mixed_targets(leaves: Leaves, options: dict[str, Any], rows: str) -> tuple[np.ndarray, np.ndarray]:
    """Which targets count, and (1 - s) one-hot + s / V for each row."""
    targets, classes = np.asarray(leaves.inputs["targets"]).astype(np.int64), leaves.shape(rows)[-1]
    ignore, smoothing = options.get("ignore"), arb(float(options.get("label_smoothing") or 0.0))
    counted = np.ones(targets.shape, bool) if ignore is None else targets != ignore
    if not ((targets[counted] >= 0) & (targets[counted] < classes)).all():
        raise ValueError(f"a target is none of {classes} classes")
    hot = balls(targets[..., None] == np.arange(classes))
    return counted, hot * (1 - smoothing) + smoothing / classes


def reduce_losses(losses: Variable, counted: np.ndarray, options: dict[str, Any]) -> Results:
    losses = select(counted, losses, ZERO)
    reduction = options.get("reduction") or "mean"
    if reduction == "none":
        return {"output": losses}
    total = losses.reshape(counted.size).sum(0, keepdims=False)
    count = int(counted.sum()) or 1
    return {"output": total if reduction == "sum" else total / arb(count)}


def cross_entropy(leaves: Leaves, options: dict[str, Any]) -> Results:
    """log(sum of exp(x)) - sum of q x, with the mixed target q (LOSS-1)."""
    counted, mixed = mixed_targets(leaves, options, "logits")
    x = leaves.read("logits", counted[..., None])
    losses = log(exp(x).sum(-1)) - (x * constant(mixed)).sum(-1)
    return reduce_losses(losses.reshape(*counted.shape), counted, options)


def nll_loss(leaves: Leaves, options: dict[str, Any]) -> Results:
    """-sum of q y, with the one-hot target q (LOSS-2)."""
    counted, hot = mixed_targets(leaves, options, "log_probabilities")
    y = leaves.read("log_probabilities", counted[..., None] & (hot != 0).astype(bool))
    return reduce_losses((y * constant(-hot)).sum(-1).reshape(*counted.shape), counted, options)
