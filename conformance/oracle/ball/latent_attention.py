"""Latent attention in balls (MLA-1, MLA-2): scores as a sum of two products, keys and values of every head expanded."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb

from conformance.cases.expectations import visible_pairs
from conformance.oracle.ball.attention import Results, linear, split_heads
from conformance.oracle.ball.layers import number
from conformance.oracle.ball.rotary import turn
from conformance.oracle.ball.tape import ONE, ZERO, Leaves, Variable, exp, select, sqrt


def root_mean_square(leaves: Leaves, name: str, x: Variable, options: dict[str, Any]) -> Variable:
    """x * weight over the root of its mean square and eps."""
    square = (x * x).sum(-1) / arb(x.shape[-1])
    return x * leaves.read(f"{name}.weight") / sqrt(square + number(options, "eps", 1e-6))


def latent_attention(leaves: Leaves, options: dict[str, Any]) -> Results:
    """output(heads of softmax(scale (q . k + r(q') . r(k'))) v), with k and v from the normalised latent."""
    x, heads, turning = leaves.read("x"), options["num_heads"], options["rotary_width"]
    batch, length, _ = x.shape
    inner = x
    if "query_down.weight" in leaves:
        inner = root_mean_square(leaves, "query_norm", linear(leaves, "query_down", x), options)
    query = split_heads(linear(leaves, "query", inner), heads)
    down = linear(leaves, "key_value_down", x)
    latents, width = leaves.shape("key_value_norm.weight")[0], query.shape[3] - turning
    up = linear(leaves, "key_value_up", root_mean_square(leaves, "key_value_norm", down[..., :latents], options))
    up = split_heads(up, heads)
    positions = leaves.inputs.get("positions", np.arange(length))
    given = options | {"pairing": options.get("pairing") or "interleaved"}
    shared = turn(down[..., latents:].reshape(batch, 1, length, turning), positions, given)
    turned = turn(query[..., width:], positions, given)
    scale = options.get("scale")
    scale = 1 / arb(query.shape[3]).sqrt() if scale is None else arb(float(scale))
    every = shared[:, [0] * heads]
    scores = query[..., :width] @ up[..., :width].transpose(0, 1, 3, 2) + turned @ every.transpose(0, 1, 3, 2)
    visible = visible_pairs(options.get("mask"), None, (batch, heads, length, length))
    terms = select(visible, exp(select(visible, scores * scale, ZERO)), ZERO)
    total = select(visible.any(-1, keepdims=True), terms.sum(-1), ONE)
    together = ((terms / total) @ up[..., width:]).transpose(0, 2, 1, 3)
    return {"output": linear(leaves, "output", together.reshape(batch, length, heads * together.shape[3]))}
