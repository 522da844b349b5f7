"""Attention and what is built on it, literally: exp(score) / sum over allowed keys of exp(score).

No maximum is subtracted, since a ball's exponent has no bound. Scores of forbidden pairs are replaced by an exact 0
before anything is computed from them, and so are inputs that no allowed pair uses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from flint import arb

from conformance.cases.expectations import any_in_group, visible_bias_entries, visible_pairs
from conformance.oracle.ball.tape import ONE, ZERO, Leaves, Variable, concatenate, constant, exp, log, select, tanh

Results = dict[str, Variable]


class Softmax(NamedTuple):
    """weights [B, H, Q, K] and logsumexp [B, H, Q]."""

    weights: Variable
    logsumexp: Variable


def softmax(leaves: Leaves, options: dict[str, Any], query: Variable, key: Variable, visible: np.ndarray) -> Softmax:
    """Equations ATT-1 to ATT-5. A row without keys has weights 0 and log-sum-exp -inf (with a sink: the sink)."""
    heads, width = query.shape[1], query.shape[3]
    scale = options.get("scale")
    scale = 1 / arb(width).sqrt() if scale is None else arb(float(scale))
    scores = query @ read_by_heads(key, heads).transpose(0, 1, 3, 2) * scale
    bias = leaves.read("bias", visible_bias_entries(visible, leaves.shape("bias"))) if "bias" in leaves else None
    if bias is not None and "capped" in options:  # a convention: the softcap is that of the sum
        scores, bias = scores + bias, None
    if options.get("softcap") is not None:
        softcap = arb(float(options["softcap"]))
        scores = tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    terms = select(visible, exp(select(visible, scores, ZERO)), ZERO)
    total = terms.sum(-1)
    sums_something = visible.any(-1, keepdims=True)
    if "sinks" in leaves:
        total = total + exp(leaves.read("sinks").reshape(1, heads, 1, 1))
        sums_something = np.ones_like(sums_something)
    # 1 stands in where there is no sum, so that neither the quotient nor the logarithm meets 0.
    total = select(sums_something, total, ONE)
    logsumexp = select(sums_something, log(total), arb.neg_inf())
    return Softmax(terms / total, logsumexp.reshape(*visible.shape[:3]))


def read_by_heads(array: Variable, heads: int) -> Variable:
    """Query head h reads key/value head h // (H / G) (ATT-7)."""
    groups = array.shape[1]
    return array if groups == heads else array[:, [h // (heads // groups) for h in range(heads)]]


def fill_empty_rows(weights: Variable, visible: np.ndarray, empty_rows: str) -> tuple[Variable, Any]:
    """Weights, and the pairs whose values count: with "mean" an empty row weighs all its K keys by 1/K (ATT-6)."""
    nonempty = visible.any(-1, keepdims=True)
    if empty_rows == "nan" and not nonempty.all():
        raise ValueError("a query may attend to nothing and empty_rows is 'nan': NaN is no ball")
    if empty_rows == "mean" and visible.shape[-1]:
        return select(nonempty, weights, 1 / arb(visible.shape[-1])), visible | ~nonempty
    return weights, visible


def weighted_values(weights: Variable, value: Variable, options: dict[str, Any]) -> Variable:
    """weights . value, after dropout if the options hold a keep mask: weights * keep / (1 - rate) (ATT-11)."""
    weights = dropout(weights, options)
    return weights @ read_by_heads(value, weights.shape[1])


def dropout(x: Variable, options: dict[str, Any]) -> Variable:
    if options.get("dropout_keep") is None:
        return x
    return select(options["dropout_keep"], x, ZERO) / (1 - arb(float(options.get("dropout_rate") or 0.0)))


def pairs_and_leaves(leaves: Leaves, options: dict[str, Any]) -> tuple[Any, Variable, Variable]:
    """Visible pairs [B, H, Q, K], query and key."""
    batch, heads, queries, _ = leaves.shape("query")
    groups, keys = leaves.shape("key")[1:3]
    visible = visible_pairs(options.get("mask"), leaves.inputs.get("bias"), (batch, heads, queries, keys))
    query = leaves.read("query", visible.any(-1)[..., None])
    key = leaves.read("key", any_in_group(visible.any(-2), groups)[..., None])
    return visible, query, key


def attention(leaves: Leaves, options: dict[str, Any]) -> Results:
    return {"output": attention_with_logsumexp(leaves, options)["output"]}


def attention_with_logsumexp(leaves: Leaves, options: dict[str, Any]) -> Results:
    visible, query, key = pairs_and_leaves(leaves, options)
    weights, logsumexp = softmax(leaves, options, query, key, visible)
    weights, counted = fill_empty_rows(weights, visible, options.get("empty_rows") or "zero")
    value = leaves.read("value", any_in_group(counted.any(-2), key.shape[1])[..., None])
    return {"output": weighted_values(weights, value, options), "logsumexp": logsumexp}


def attention_weights(leaves: Leaves, options: dict[str, Any]) -> Results:
    visible, query, key = pairs_and_leaves(leaves, options)
    weights = softmax(leaves, options, query, key, visible).weights
    return {"output": fill_empty_rows(weights, visible, options.get("empty_rows") or "zero")[0]}


def attention_logsumexp(leaves: Leaves, options: dict[str, Any]) -> Results:
    visible, query, key = pairs_and_leaves(leaves, options)
    return {"output": softmax(leaves, options, query, key, visible).logsumexp}


def merge_attention(leaves: Leaves, options: dict[str, Any]) -> Results:
    """sum_p exp(L_p) o_p / sum_p exp(L_p) and its logarithm, over the parts whose L_p is not -inf (ATT-14).

    Where every part is -inf the output is 0, the log-sum-exp -inf, and no gradient flows.
    """
    parts = [name.removeprefix("outputs") for name in leaves.inputs if name.startswith("outputs[")]
    seen = {part: ~np.isneginf(np.asarray(leaves.inputs["logsumexps" + part]).astype(np.float64)) for part in parts}
    output, total = constant(ZERO), constant(ZERO)
    for part in parts:
        term = select(seen[part], exp(leaves.read("logsumexps" + part, seen[part])), ZERO)
        output = output + term.reshape(*term.shape, 1) * leaves.read("outputs" + part, seen[part][..., None])
        total = total + term
    seen_by_any = np.any(list(seen.values()), axis=0)
    total = select(seen_by_any, total, ONE)
    output = output / total.reshape(*total.shape, 1)
    return {"output": output, "logsumexp": select(seen_by_any, log(total), arb.neg_inf())}


def linear(leaves: Leaves, name: str, x: Variable) -> Variable:
    """x @ weight + bias; the bias may be absent (MHA-1)."""
    result = x @ leaves.read(f"{name}.weight")
    return result + leaves.read(f"{name}.bias") if f"{name}.bias" in leaves else result


def per_head_names(leaves: Leaves, name: str) -> list[str]:
    """The names of separate per-head projections in head order, or the one name of a fused projection (MHA-2)."""
    if f"{name}.weight" in leaves:
        return [name]
    count = 0
    while f"{name}[{count}].weight" in leaves:
        count += 1
    return [f"{name}[{head}]" for head in range(count)]


def columns(leaves: Leaves, name: str) -> int:
    return sum(leaves.shape(f"{part}.weight")[1] for part in per_head_names(leaves, name))


def split_heads(x: Variable, heads: int) -> Variable:
    """[B, T, H * W] as [B, H, T, W]."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def project_to_heads(leaves: Leaves, name: str, x: Variable, heads: int) -> Variable:
    """[B, T, E] to [B, H, T, W]: head h is the h-th consecutive block of columns (MHA-1)."""
    return split_heads(concatenate([linear(leaves, part, x) for part in per_head_names(leaves, name)], axis=-1), heads)


def multi_head_attention(leaves: Leaves, options: dict[str, Any]) -> Results:
    """output(heads of attention(query(x), key(y), value(z)) side by side); sizes come from the projections."""
    heads = options["num_heads"]
    groups = columns(leaves, "key") // (columns(leaves, "query") // heads)
    batch, queries, _ = leaves.shape("query")
    keys = leaves.shape("key")[1]
    visible = visible_pairs(options.get("mask"), leaves.inputs.get("bias"), (batch, heads, queries, keys))
    x = leaves.read("query", visible.any((1, 3))[..., None])
    y = leaves.read("key", visible.any((1, 2))[..., None])
    query = project_to_heads(leaves, "query", x, heads)
    key = project_to_heads(leaves, "key", y, groups)
    weights = softmax(leaves, options, query, key, visible).weights
    weights, counted = fill_empty_rows(weights, visible, options.get("empty_rows") or "zero")
    z = leaves.read("value", counted.any((1, 2))[..., None])
    value = project_to_heads(leaves, "value", z, groups)
    together = weighted_values(weights, value, options).transpose(0, 2, 1, 3)
    together = together.reshape(batch, queries, heads * value.shape[3])
    return {"output": linear(leaves, "output", together)}
