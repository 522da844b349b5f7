"""Memory that is shared, changed, stale or not written, and results that differ between two calls (ATT-13 and others).

What is kept between calls is kept in the function itself, as a workspace or a cache in a library would be.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults import right_numpy as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import planted
from conformance.selftest.faults.right_gradients import GRADIENTS, attention_vjp_by
from conformance.selftest.faults.right_gradients import attention as attention_with_gradients
from conformance.selftest.faults.right_layers import learned_positions, merge_attention
from conformance.selftest.faults.right_norms import layer_norm_forward as layer_norm
from conformance.selftest.faults.right_numpy import Function, attention

attention_vjp = attention_vjp_by(GRADIENTS)

# --- kept between calls -----------------------------------------------------------------------------------------------


def in_one_buffer() -> Function:
    """Results of one shape and dtype lie in the same memory."""
    buffers: dict[Any, Any] = {}

    def rounded(output: Any, dtype: Any) -> Any:
        buffer = buffers.setdefault((output.shape, str(dtype)), np.empty(output.shape, dtype))
        buffer[...] = output
        return buffer

    return rounded


def in_turn() -> Function:
    """Two buffers for each shape, used in turn."""
    buffers: dict[Any, Any] = {}

    def rounded(output: Any, dtype: Any) -> Any:
        made = [np.empty(output.shape, dtype), np.empty(output.shape, dtype)]
        cycle = buffers.setdefault((output.shape, str(dtype)), itertools.cycle(made))
        buffer = next(cycle)
        buffer[...] = output
        return buffer

    return rounded


def cached_mask() -> Function:
    """The first mask of each shape is kept for all that follow."""
    masks: dict[Any, Any] = {}

    def allowed(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
        kept = mask if mask is None else masks.setdefault((mask.shape, shape), mask.copy())
        return right.allowed_pairs(kept, bias, shape)

    return allowed


def cached_keys() -> Function:
    """The first keys of each shape are kept for all that follow, as in a cache that nobody resets."""
    kept: dict[Any, Any] = {}

    def products(query: Any, key: Any, allowed: Any) -> Any:
        return right.products(query, kept.setdefault((key.shape, key.dtype.name), key.copy()), allowed)

    return products


def uncleared() -> Function:
    """A workspace for the scores, cleared only where a pair is allowed when it is first made."""
    rooms: dict[Any, Any] = {}

    def exponentials(shifted: Any, allowed: Any) -> Any:
        room = rooms.setdefault((shifted.shape, shifted.dtype.name), np.zeros_like(shifted))
        np.copyto(room, right.exponentials(shifted, allowed), where=allowed)
        return room.copy()

    return exponentials


def accumulating() -> Function:
    """The sum begins where the call before it has ended, for the first row."""
    rooms: dict[Any, Any] = {}

    def weighted_sum(weights: Any, value: Any, allowed: Any) -> Any:
        output = right.weighted_sum(weights, value, allowed)
        room = rooms.setdefault((output.shape, output.dtype.name), np.zeros_like(output))
        room[:, :, 1:] = 0
        room += output
        return room.copy()

    return weighted_sum


def tuning() -> Function:
    """Every fourth call tries a faster path, with weights in bfloat16."""
    calls = itertools.count()

    def weighted_sum(weights: Any, value: Any, allowed: Any) -> Any:
        if next(calls) % 4 == 3:
            weights = weights.astype(ml_dtypes.bfloat16).astype(weights.dtype)
        return right.weighted_sum(weights, value, allowed)

    return weighted_sum


def in_any_order() -> Function:
    """Keys are added up in another order every time, as threads finish."""
    rng = np.random.default_rng()

    def weighted_sum(weights: Any, value: Any, allowed: Any) -> Any:
        order = rng.permutation(weights.shape[-1])
        return right.weighted_sum(weights[..., order], value[:, :, order], allowed[..., order])

    return weighted_sum


def dropping_by_itself() -> Function:
    """Dropout of its own, as of a model left in training."""
    rng = np.random.default_rng()
    return lambda e, total, allowed: right.normalized(e, total, allowed) * (rng.random(e.shape) > 0.1)


# --- arguments changed or handed on -----------------------------------------------------------------------------------


def scaled_in_place(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    query *= query.dtype.type(query.shape[-1] ** -0.5 if scale is None else scale)
    return attention(query, key, value, mask=mask, bias=bias, scale=1.0)


def biased_in_place(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """-inf is written into the caller's bias where the mask forbids, if one fits into the other."""
    if bias is not None and mask is not None and np.broadcast_shapes(bias.shape, mask.shape) == bias.shape:
        np.copyto(bias, -np.inf, where=~mask)
    return attention(query, key, value, mask=mask, bias=bias, scale=scale)


def cleaned_in_place(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    """Values that nobody sees are set to 0 where they are."""
    if mask is not None:
        seen: Any = np.broadcast_to(mask, (*query.shape[:3], key.shape[2])).any((1, 2))
        value *= seen[:, None, :, None]
    return attention(query, key, value, mask=mask, scale=scale)


def one_key_is_its_value(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """A result that equals its values is a view of them."""
    output = attention(query, key, value, mask=mask, bias=bias)
    same = output.shape == value.shape and output.dtype == value.dtype and np.array_equal(output, value)
    return value if same else output


def in_the_query(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """The result is written over the query where it fits."""
    output = attention(query, key, value, mask=mask, bias=bias)
    if output.shape != query.shape:
        return output
    query[...] = output
    return query


def positions_as_view(table: Any, length: int, *, offset: int = 0) -> Any:
    return table[offset : offset + length]


def single_part_as_it_is(outputs: Any, logsumexps: Any) -> Any:
    """One part has nothing to be merged with."""
    return (outputs[0], logsumexps[0]) if len(outputs) == 1 else merge_attention(outputs, logsumexps)


def norm_in_place(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """The mean is subtracted where x lies."""
    output = layer_norm(x, weight, bias, eps=eps)
    x -= x.mean(axis=tuple(range(x.ndim - weight.ndim, x.ndim)), keepdims=True, dtype=x.dtype)
    return output


def unbiased_mask(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """What a bias of -inf forbids is taken out of the caller's mask, if one fits into the other."""
    if bias is not None and mask is not None and np.broadcast_shapes(bias.shape, mask.shape) == mask.shape:
        mask &= bias != -np.inf
    return attention(query, key, value, mask=mask, bias=bias)


def masked_keep(
    query: Any, key: Any, value: Any, *, mask: Any = None, dropout_keep: Any = None, dropout_rate: float = 0.0
) -> Any:
    """What the mask forbids is dropped, too, in the caller's own array."""
    if dropout_keep is not None and mask is not None:
        dropout_keep &= mask
    return attention(query, key, value, mask=mask, dropout_keep=dropout_keep, dropout_rate=dropout_rate)


# --- gradients --------------------------------------------------------------------------------------------------------


def scaled_cotangent(
    query: Any, key: Any, value: Any, cotangent: Any, *, mask: Any = None, scale: Any = None
) -> dict[str, Any]:
    """What the gradients of query and key are multiplied by is multiplied into the cotangent where it lies."""
    gradients = attention_vjp(query, key, value, cotangent, mask=mask, scale=scale)
    cotangent *= cotangent.dtype.type(query.shape[-1] ** -0.5 if scale is None else scale)
    return gradients


def in_the_cotangent(
    query: Any, key: Any, value: Any, cotangent: Any, *, mask: Any = None, scale: Any = None
) -> dict[str, Any]:
    """The gradient of the query is written over the cotangent where it fits."""
    gradients = attention_vjp(query, key, value, cotangent, mask=mask, scale=scale)
    if cotangent.shape == query.shape:
        cotangent[...] = gradients["query"]
        gradients["query"] = cotangent
    return gradients


def in_buffers() -> Function:
    """Gradients of one argument lie in the same memory, call after call."""
    buffers: dict[Any, Any] = {}

    def kept(name: str, gradient: Any) -> Any:
        buffer = buffers.setdefault((name, gradient.shape, str(gradient.dtype)), np.empty_like(gradient))
        buffer[...] = gradient
        return buffer

    def vjp(query: Any, key: Any, value: Any, cotangent: Any, *, mask: Any = None, scale: Any = None) -> Any:
        gradients = attention_vjp(query, key, value, cotangent, mask=mask, scale=scale)
        return {name: kept(name, gradient) for name, gradient in gradients.items()}

    return vjp


def differentiated_by(vjp: Function) -> Function:
    def attention_so(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
        return attention(query, key, value, mask=mask, scale=scale)

    return declare(vjp=vjp)(attention_so)


# --- how arguments lie in memory --------------------------------------------------------------------------------------


def in_order_of_memory(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    """Numbers are read one after the other as they lie in memory, whatever the strides say."""
    query, key, value = (np.ravel(array, order="K").reshape(array.shape) for array in (query, key, value))
    return attention(query, key, value, mask=mask, scale=scale)


FAULTS = (
    planted("ATT-13", "one buffer for all results", rounded=in_one_buffer()),
    planted("ATT-13", "two buffers in turn", rounded=in_turn()),
    planted("MASK-1", "the first mask of a shape kept", allowed=cached_mask()),
    planted("ATT-8", "the first keys of a shape kept", products=cached_keys()),
    planted("MASK-1", "workspace not cleared where forbidden", exponentials=uncleared()),
    planted("ATT-13", "first row not cleared", weighted_sum=accumulating()),
    planted("ATT-13", "another path in every fourth call", weighted_sum=tuning()),
    planted("ATT-13", "keys added up in any order", weighted_sum=in_any_order()),
    planted("ATT-13", "dropout of its own", normalized=dropping_by_itself()),
    Fault("ATT-13", "strides of arguments ignored", "attention", in_order_of_memory, attention),
    Fault("ATT-13", "query scaled in place", "attention", scaled_in_place, attention),
    Fault("ATT-13", "mask written into the bias", "attention", biased_in_place, attention),
    Fault("ATT-13", "unseen values cleared in place", "attention", cleaned_in_place, attention),
    Fault("ATT-13", "values handed on as they are", "attention", one_key_is_its_value, attention),
    Fault("ATT-13", "result written over the query", "attention", in_the_query, attention),
    Fault("ATT-13", "-inf of the bias written into the mask", "attention", unbiased_mask, attention),
    Fault("ATT-13", "mask written into what dropout keeps", "attention", masked_keep, attention),
    Fault("ATT-13", "cotangent scaled in place", "attention", differentiated_by(scaled_cotangent),
          attention_with_gradients),
    Fault("ATT-13", "gradient written over the cotangent", "attention", differentiated_by(in_the_cotangent),
          attention_with_gradients),
    Fault("ATT-13", "a buffer for each argument's gradient", "attention", differentiated_by(in_buffers()),
          attention_with_gradients),
    Fault("ATT-13", "positions as a view of the table", "learned_positions", positions_as_view, learned_positions),
    Fault("ATT-13", "a single part handed on", "merge_attention", single_part_as_it_is, merge_attention),
    Fault("ATT-13", "mean taken off in place", "layer_norm", norm_in_place, layer_norm),
)  # fmt: skip
