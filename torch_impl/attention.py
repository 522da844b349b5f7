"""Attention in PyTorch (rules ATT-1 to ATT-14, MHA-1, MHA-2; "Attention Is All You Need", section 3.2).

    scores  = softcap(scale * query . key) + bias        for the pairs that the mask allows, and for no others
    weights = softmax over the allowed keys of a row     0 where the mask forbids, and in a row that allows nothing
    output  = weights . value

Gradients are autograd's. Only three sums of products have a gradient written here, because what autograd does for a
product, 0 * NaN = NaN, would let a forbidden NaN through (MASK-7), or because autocast would narrow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float

from specification import Linear, MultiHeadAttention, checks
from specification.dtypes import compute_dtype_name, dtype_name
from torch_impl import engines
from torch_impl.blocked import Inputs, Literal, blocked_attention
from torch_impl.fused import fused_attention
from torch_impl.masks import allowed_pairs, checked_mask

# --- the pieces -------------------------------------------------------------------------------------------------------


def pair_products(
    left: Float[torch.Tensor, "*lead Q D"],
    right: Float[torch.Tensor, "*lead K D"],
    allowed: Bool[torch.Tensor, "*#lead #Q #K"],
) -> Float[torch.Tensor, "*lead Q K"]:
    """left . right for the allowed pairs, and 0 for the others, whatever they hold (MASK-7)."""
    return PairProducts.apply(left, right, allowed)


def allowed_sum(
    weights: Float[torch.Tensor, "*lead Q K"],
    values: Float[torch.Tensor, "*lead K V"],
    allowed: Bool[torch.Tensor, "*#lead #Q #K"],
) -> Float[torch.Tensor, "*lead Q V"]:
    """weights @ values, summed over the allowed keys only; `weights` is 0 at the others.

    An entry that an allowed NaN or infinity reaches becomes NaN (ATT-10); a forbidden one reaches nothing (MASK-7).
    """
    return AllowedSum.apply(weights, values, allowed)


class PairProducts(torch.autograd.Function):
    """`pair_products`; its gradients are allowed sums."""

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Any, right: Any, allowed: Any) -> Any:
        return torch.where(allowed, product(left, right.mT), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> tuple[Any, Any, None]:
        left, right, allowed = ctx.saved_tensors
        cotangent = torch.where(allowed, cotangent, 0)
        return allowed_sum(cotangent, right, allowed), allowed_sum(cotangent.mT, left, allowed.mT), None


class AllowedSum(torch.autograd.Function):
    """`allowed_sum`; its gradients are pair products and an allowed sum."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Any, values: Any, allowed: Any) -> Any:
        finite = torch.isfinite(values)
        output = product(weights, torch.where(finite, values, 0))
        reached = product(allowed.expand(weights.shape).to(values.dtype), (~finite).to(values.dtype)) > 0
        return torch.where(reached, torch.nan, output)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> tuple[Any, Any, None]:
        weights, values, allowed = ctx.saved_tensors
        return pair_products(cotangent, values, allowed), allowed_sum(weights.mT, cotangent, allowed.mT), None


class Product(torch.autograd.Function):
    """x @ weight. Autocast narrows neither this product nor, as it would with `@`, those of its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, weight: Any) -> Any:
        return product(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> tuple[Any, Any]:
        x, weight = ctx.saved_tensors
        rows, flat = cotangent[None].flatten(0, -2), x[None].flatten(0, -2)
        return Product.apply(cotangent, weight.mT), Product.apply(flat.mT, rows)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right in their own dtype, under autocast too.

    TF32 is off in PyTorch unless the user turns it on, and that choice is left as it is.
    """
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


def attention_scores(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B H K D"],
    allowed: Bool[torch.Tensor, "#B #H #Q #K"],
    *,
    bias: Float[torch.Tensor, "#B #H #Q #K"] | None,
    scale: float | None,
    softcap: float | None,
) -> Float[torch.Tensor, "B H Q K"]:
    """softcap(scale * query . key) + bias for the allowed pairs, 0 for the others (ATT-1 to ATT-4)."""
    scores = pair_products(query, key, allowed) * resolve_scale(scale, query.shape[-1])
    if softcap is not None:
        scores = number(softcap) * torch.tanh(scores / number(softcap))
    if bias is not None:
        scores = scores + torch.where(allowed, bias, 0)
    return scores


def softmax(
    scores: Float[torch.Tensor, "B H Q K"],
    allowed: Bool[torch.Tensor, "#B #H #Q #K"],
    sinks: Float[torch.Tensor, "H"] | None = None,
) -> tuple[Float[torch.Tensor, "B H Q K"], Float[torch.Tensor, "B H Q"]]:
    """Softmax over the allowed keys, and its log-sum-exp (ATT-5, ATT-6)."""
    maximum = row_maximum(torch.where(allowed, scores, -torch.inf))
    if sinks is not None:
        maximum = torch.maximum(maximum, sinks[:, None, None])
    # An empty row's maximum is -inf; a finite number in its place avoids inf - inf and changes nothing else.
    # Neither result depends on which number is subtracted, so the maximum is a constant to the gradient.
    maximum = torch.where(maximum == -torch.inf, 0, maximum).detach()
    # Subtracting the maximum leaves the quotient as it is and keeps exp from overflowing.
    exponentials = torch.exp(torch.where(allowed, scores - maximum, -torch.inf))
    total = torch.sum(exponentials, dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None, None] - maximum)
    # The total of an empty row is replaced before anything divides by it or takes its logarithm: selecting afterwards
    # would leave 0 * inf = NaN in the gradient.
    empty = total == 0
    total = torch.where(empty, 1, total)
    weights = torch.where(allowed, exponentials / total, 0)
    return weights, torch.where(empty, -torch.inf, maximum + torch.log(total))[..., 0]


def row_maximum(scores: Float[torch.Tensor, "B H Q K"]) -> Float[torch.Tensor, "B H Q 1"]:
    """The largest of each row, -inf where there are no keys at all, which amax refuses."""
    if scores.shape[-1] == 0:
        return scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    return torch.amax(scores, dim=-1, keepdim=True)


def fill_empty_rows(
    weights: Float[torch.Tensor, "B H Q K"], allowed: Bool[torch.Tensor, "#B #H #Q #K"], empty_rows: str
) -> tuple[Float[torch.Tensor, "B H Q K"], Bool[torch.Tensor, "#B #H #Q #K"]]:
    """Weights of the rows that may attend to nothing, and the pairs over which values are then summed (ATT-6)."""
    if empty_rows == "zero":
        return weights, allowed
    empty = ~torch.any(allowed.expand(weights.shape), dim=-1, keepdim=True)
    filling = math.nan if empty_rows == "nan" else 1 / max(weights.shape[-1], 1)
    return torch.where(empty, filling, weights), allowed | empty


def resolve_scale(scale: float | None, width: int) -> float:
    """1 / sqrt(D) unless another scale is given (ATT-1)."""
    return 1 / math.sqrt(width) if scale is None else number(scale)


def number(value: Any) -> Any:
    """A Python float, whose product with a tensor keeps the tensor's dtype; a tensor stays, and gets a gradient."""
    return value if isinstance(value, torch.Tensor) else float(value)


def repeat_heads(array: Float[torch.Tensor, "B G K W"], num_heads: int) -> Float[torch.Tensor, "B H K W"]:
    """One key or value head for every query head: query head h reads head h // (H / G) (ATT-7)."""
    return torch.repeat_interleave(array, num_heads // max(array.shape[1], 1), dim=1)


def widen(array: Float[torch.Tensor, "..."] | None) -> Any:
    """The tensor in the dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""
    if array is None:
        return None
    if not isinstance(array, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(array).__name__}")
    return array.to(getattr(torch, compute_dtype_name(dtype_name(array))))


def visible_pairs(
    mask: Any, bias: Float[torch.Tensor, "..."] | None, query_length: int, key_length: int, device: torch.device
) -> tuple[Bool[torch.Tensor, "#B #H #Q #K"], Float[torch.Tensor, "#B #H #Q #K"] | None]:
    """Which pairs count, and the bias in rank 4; -inf in the bias forbids a pair (ATT-3).

    device: of the arrays in the mask. A description without arrays does not tell it.
    """
    allowed = allowed_pairs(mask, query_length, key_length, device)
    if bias is None:
        return allowed, None
    bias = bias if bias.ndim == 4 else bias[None, None]
    return allowed & (bias != -torch.inf), bias


def dropout_factor(keep: Bool[torch.Tensor, "..."], rate: float, dtype: torch.dtype) -> Float[torch.Tensor, "..."]:
    """keep / (1 - rate), with which weights are multiplied; no mask, so 0 * NaN is NaN (ATT-11)."""
    # torch.where makes float32 of two Python numbers, which is too coarse for float64.
    return keep.to(dtype) * (1 / (1 - number(rate)))


# --- the operations ---------------------------------------------------------------------------------------------------


def attention(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    *,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    dropout_keep: Bool[torch.Tensor, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
    engine: str = "auto",
) -> Float[torch.Tensor, "B H Q V"]:
    """output = softmax(softcap(scale * query . key) + bias) . value, over the keys that the mask allows.

    engine: "reference" is `literal_attention`, "blocked" the same in blocks with a memory of O(Q + K), "fused"
    PyTorch's own kernel or, on a GPU, one in Triton, "auto" the one that `explain_engine` tells.

    The output is a new tensor in the dtype and on the device of query, to which arrays inside the mask are moved.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H, query.device)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    chosen = engines.engine_for(engine, inputs, dropout_keep, empty_rows).engine
    if chosen == "reference":
        output, _ = literal_attention(inputs, dropout_keep, dropout_rate, empty_rows)
    else:
        compute = fused_attention if chosen == "fused" else blocked_attention
        output = compute(Literal(literal_attention, engines.LIMITS), inputs)
    return output.to(query.dtype)


def literal_attention(
    inputs: Inputs, dropout_keep: Any = None, dropout_rate: Any = 0.0, empty_rows: str = "zero"
) -> tuple[Float[torch.Tensor, "B H Q V"], Float[torch.Tensor, "B H Q 1"]]:
    """Output and log-sum-exp as the definition has them, unrounded; all [B, H, Q, K] scores stand in memory.

    The log-sum-exp is a column [B, H, Q, 1], as the blocks hold it: theirs goes beside scores [B, H, Q, K].
    """
    (_, H, Q, _), K = inputs.query.shape, inputs.key.shape[2]
    query, key, value = widen(inputs.query), repeat_heads(widen(inputs.key), H), repeat_heads(widen(inputs.value), H)
    allowed, bias = visible_pairs(inputs.mask, widen(inputs.bias), Q, K, query.device)
    scores = attention_scores(query, key, allowed, bias=bias, scale=inputs.scale, softcap=inputs.softcap)
    weights, logsumexp = softmax(scores, allowed, widen(inputs.sinks))
    weights, reach = fill_empty_rows(weights, allowed, empty_rows)
    if dropout_keep is not None:
        weights = weights * dropout_factor(dropout_keep, dropout_rate, weights.dtype)
    return allowed_sum(weights, value, reach), logsumexp[..., None]


def attention_weights(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    empty_rows: str = "zero",
) -> Float[torch.Tensor, "B H Q K"]:
    """The weights that `attention` gives to every key, before dropout: [B, H, Q, K] in the dtype of query (ATT-14)."""
    checks.attention(
        query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks, empty_rows=empty_rows
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask, dtype = checked_mask(mask, Q, K, B, H, query.device), query.dtype
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, Q, K, query.device)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    weights, _ = softmax(scores, allowed, sinks)
    weights, _ = fill_empty_rows(weights, allowed, empty_rows)
    return weights.to(dtype)


def attention_logsumexp(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
) -> Float[torch.Tensor, "B H Q"]:
    """log of the sum of exp(scores) over the allowed keys, and of exp(sink) if there is one: [B, H, Q] (ATT-14).

    In the dtype used inside: float32, or float64 for float64.
    """
    checks.attention(query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H, query.device)
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, Q, K, query.device)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    _, logsumexp = softmax(scores, allowed, sinks)
    return logsumexp


def merge_attention(
    outputs: Sequence[Float[torch.Tensor, "B H Q V"]], logsumexps: Sequence[Float[torch.Tensor, "B H Q"]]
) -> tuple[Float[torch.Tensor, "B H Q V"], Float[torch.Tensor, "B H Q"]]:
    """Attention over all keys, from its results over disjoint sets of them (ATT-14)."""
    checks.merge(outputs, logsumexps)
    parts = torch.stack([widen(output) for output in outputs], dim=-2)
    scores = torch.stack([widen(logsumexp) for logsumexp in logsumexps], dim=-1)
    # Merging is attention once more: one query, one key for each part, the parts' log-sum-exps as its scores.
    seen = scores != -torch.inf
    weights, logsumexp = softmax(torch.where(seen, scores, 0), seen)
    output = allowed_sum(weights[..., None, :], parts, seen[..., None, :])[..., 0, :]
    return output.to(outputs[0].dtype), logsumexp


# --- multi-head attention ---------------------------------------------------------------------------------------------


def linear(parameters: Linear, x: Float[torch.Tensor, "... I"]) -> Float[torch.Tensor, "... O"]:
    """x @ weight + bias, rounded once to the dtype of x (MHA-1)."""
    output = Product.apply(widen(x), widen(parameters.weight))
    if parameters.bias is not None:
        output = output + widen(parameters.bias)
    return output.to(x.dtype)


def join_heads(projections: Linear | Sequence[Linear]) -> Linear:
    """One projection out of per-head projections: their columns side by side, in head order (MHA-2)."""
    if isinstance(projections, Linear):
        return projections
    checks.join_heads(projections)
    weight = torch.cat([head.weight for head in projections], dim=1)
    if projections[0].bias is None:
        return Linear(weight)
    return Linear(weight, torch.cat([head.bias for head in projections]))


def split_heads(x: Float[torch.Tensor, "B T HW"], num_heads: int) -> Float[torch.Tensor, "B H T W"]:
    """Head h is the h-th block of consecutive columns (MHA-1)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).transpose(1, 2)


def concatenate_heads(x: Float[torch.Tensor, "B H T W"]) -> Float[torch.Tensor, "B T HW"]:
    """The heads' columns side by side again, in order."""
    B, H, T, width = x.shape
    return x.transpose(1, 2).reshape(B, T, H * width)


def multi_head_attention(
    parameters: MultiHeadAttention,
    query: Float[torch.Tensor, "B Q E"],
    key: Float[torch.Tensor, "B K E_key"],
    value: Float[torch.Tensor, "B K E_value"],
    *,
    num_heads: int,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    dropout_keep: Bool[torch.Tensor, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[torch.Tensor, "B Q E_out"]:
    """output(concatenated heads of attention(query(x), key(y), value(z))), each a linear projection (MHA-1, MHA-2).

    weight is [in, out], the transpose of `torch.nn.Linear`'s. Other arguments as in `attention`.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = MultiHeadAttention._make([*map(join_heads, parameters[:3]), parameters.output])
    H, G, _ = checks.multi_head_attention(parameters, projections, query, key, value, num_heads)
    output = attention(
        split_heads(linear(projections.query, query), H),
        split_heads(linear(projections.key, key), G),
        split_heads(linear(projections.value, value), G),
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_keep=dropout_keep,
        dropout_rate=dropout_rate,
        empty_rows=empty_rows,
    )
    return linear(projections.output, concatenate_heads(output))
