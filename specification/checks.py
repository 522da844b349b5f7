"""Checks on arguments: the same error, with the same words, for the same mistake in all three implementations.

Everything here looks at shapes, dtypes and plain numbers only, which are known even while a framework is tracing.
What depends on values (lengths, ids) is checked by functions that take them as NumPy arrays, and that an implementation
calls when it can read them.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from specification.dtypes import BOOLEAN, FLOATING, INTEGER, compute_dtype_name, dtype_name
from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Or, Segments, SlidingWindow
from specification.parameters import FeedForward, Linear
from specification.positions import EXPONENTS

SMALLEST_EPS = 2.0**-126
"""The smallest normal float32: an eps below it would vanish in float32 and leave 0 / 0 for a constant row."""


# --- arrays -----------------------------------------------------------------------------------------------------------


def shape_of(name: str, array: Any) -> tuple[int, ...]:
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{name} must be an array, got {type(array).__name__}")
    return tuple(array.shape)


def ranked(name: str, array: Any, axes: str) -> tuple[int, ...]:
    """The shape of an array that must have exactly the named axes, given as 'batch, heads, queries, width'."""
    shape = shape_of(name, array)
    if len(shape) != len(axes.split(", ")):
        raise ValueError(f"{name} must have shape [{axes}], got {list(shape)}")
    return shape


def floating(name: str, array: Any) -> str:
    shape_of(name, array)
    if dtype_name(array) not in FLOATING:
        raise TypeError(f"{name} must have one of the dtypes {', '.join(FLOATING)}, got {dtype_name(array)}")
    return dtype_name(array)


def integer(name: str, array: Any) -> None:
    shape_of(name, array)
    if dtype_name(array) not in INTEGER:
        raise TypeError(f"{name} must have an integer dtype, got {dtype_name(array)}")


def boolean(name: str, array: Any, advice: str = "") -> None:
    shape_of(name, array)
    if dtype_name(array) not in BOOLEAN:
        raise TypeError(f"{name} must be boolean, got {dtype_name(array)}{advice}")


def same_dtype(**arrays: Any) -> str:
    """The one floating dtype that all of the arrays share."""
    names = {name: floating(name, array) for name, array in arrays.items()}
    if len(set(names.values())) > 1:
        raise TypeError(f"{', '.join(names)} must share one dtype, got {', '.join(names.values())}")
    return next(iter(names.values()))


def companion_dtype(name: str, array: Any, dtype: str) -> None:
    """Biases, sinks and norm weights have the main arrays' dtype, or the wider one in which those are computed."""
    allowed = dict.fromkeys((dtype, compute_dtype_name(dtype)))
    if floating(name, array) not in allowed:
        raise TypeError(f"{name} must be {' or '.join(allowed)} beside {dtype} inputs, got {dtype_name(array)}")


def pair_shape(name: str, array: Any, sizes: tuple[int | None, int | None, int, int]) -> None:
    """[Q, K] or [B or 1, H or 1, Q, K] (MASK-5). A batch or head count of None is not checked."""
    shape = shape_of(name, array)
    batch, heads, queries, keys = sizes
    if len(shape) not in (2, 4):
        raise ValueError(
            f"{name} must have shape [queries, keys] or [batch or 1, heads or 1, queries, keys], got {list(shape)}; "
            "for a [batch, keys] padding mask use KeyPadding, for one length a sequence use KeyLengths"
        )
    outer = shape[:-2] or (1, 1)
    fits = all(size in (1, full) or full is None for size, full in zip(outer, (batch, heads), strict=True))
    if not fits or shape[-2:] != (queries, keys):
        expected = [f"{'any' if full is None else full} or 1" for full in (batch, heads)]
        raise ValueError(
            f"{name} of shape {list(shape)} does not fit [{queries}, {keys}] or "
            f"[{expected[0]}, {expected[1]}, {queries}, {keys}]"
        )


# --- numbers ----------------------------------------------------------------------------------------------------------


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{dtype_name(value)} array of shape {list(shape)}"


def plain(value: Any) -> Any:
    """A NumPy array of rank 0 as the number that it holds; anything else as it is."""
    return value.item() if isinstance(value, np.ndarray) and value.shape == () else value


def real_number(name: str, value: Any) -> float | None:
    """The value of a real number. A framework's array of rank 0 will do too; it may be traced, is not read: None."""
    value = plain(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if getattr(value, "shape", None) == () and dtype_name(value) in FLOATING + INTEGER:
        return None
    raise TypeError(f"{name} must be a real number, got {described(value)}")


def whole_number(name: str, value: Any) -> int | None:
    """The value of an integer. A framework's array of rank 0 will do too; it may be traced, is not read: None."""
    value = plain(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "shape", None) == () and dtype_name(value) in INTEGER:
        return None
    raise TypeError(f"{name} must be an integer, got {described(value)}")


def distance(name: str, value: Any) -> int | None:
    """The value of an integer that is not negative, or None for one that cannot be read."""
    number = whole_number(name, value)
    if number is not None and number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return in_range(name, number)


def in_range(name: str, number: int | None) -> int | None:
    """Positions are compared in 32 bits where a framework has no more; larger numbers would wrap around."""
    if number is not None and abs(number) > 2**30:
        raise ValueError(f"{name} must lie within 2**30 of 0, got {number}; a window's None is unbounded")
    return number


def natural(name: str, value: Any) -> int:
    """A count, which decides shapes and so must be a plain number."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {described(value)}")
    if int(value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    return int(value)


def finite(name: str, value: Any) -> None:
    number = real_number(name, value)
    if number is not None and not -math.inf < number < math.inf:
        raise ValueError(f"{name} must be finite, got {number}")


def epsilon(eps: Any) -> None:
    number = real_number("eps", eps)
    if number is not None and not SMALLEST_EPS <= number < math.inf:
        raise ValueError(f"eps must be finite and at least 2**-126, got {number}")


def dropout(keep: Any, rate: Any, shape: tuple[int, ...]) -> None:
    number = real_number("dropout_rate", rate)
    if number is not None and not 0 <= number < 1:
        raise ValueError(f"dropout_rate must be at least 0 and below 1, got {number}")
    if keep is None:
        if number is not None and number != 0:
            raise ValueError(f"dropout_rate is {rate} but no dropout_keep was given; the caller draws it")
        return
    boolean("dropout_keep", keep)
    if shape_of("dropout_keep", keep) != shape:
        raise ValueError(f"dropout_keep must have shape {list(shape)}, got {list(keep.shape)}")


# --- masks ------------------------------------------------------------------------------------------------------------


def offset_given(description: Causal | SlidingWindow, query_length: int, key_length: int) -> None:
    if description.offset is None and query_length != key_length:
        name = type(description).__name__
        raise ValueError(
            f"{name} needs an offset when there are {query_length} queries and {key_length} keys: offset=0 aligns the "
            f"first query with the first key, offset={key_length - query_length} the last query with the last key"
        )


def offset_type(offset: Any, batch: int | None) -> None:
    """An int or one int per batch element (MASK-3)."""
    if offset is not None and getattr(offset, "shape", ()) != ():
        per_batch("offset", offset, batch)
    elif offset is not None:
        in_range("offset", whole_number("offset", offset))


def per_batch(name: str, array: Any, batch: int | None) -> None:
    """An integer array [B]."""
    integer(name, array)
    (size,) = ranked(name, array, "batch")
    if batch is not None and size != batch:
        raise ValueError(f"{name} must have shape [{batch}], got [{size}]")


def batch_by_length(name: str, array: Any, batch: int | None, length: int, *, shared: bool) -> None:
    """An array [B, length], or [1, length] too where one row may be shared by the whole batch."""
    shape = ranked(name, array, "batch, positions")
    if shape[1] != length or not (batch is None or shape[0] == batch or (shared and shape[0] == 1)):
        rows = "any" if batch is None else f"{batch} or 1" if shared else str(batch)
        raise ValueError(f"{name} must have shape [{rows}, {length}], got {list(shape)}")


def mask(description: Any, query_length: int, key_length: int, batch: int | None, heads: int | None) -> None:
    """Shapes and dtypes of everything inside a description (MASK-1 to MASK-5)."""
    natural("query_length", query_length)
    natural("key_length", key_length)
    if description is None:
        return
    if isinstance(description, And | Or):
        for side in (description.left, description.right):
            mask(side, query_length, key_length, batch, heads)
    elif isinstance(description, Causal | SlidingWindow):
        offset_given(description, query_length, key_length)
        offset_type(description.offset, batch)
        if isinstance(description, SlidingWindow):
            window(description.left, description.right)
    elif isinstance(description, KeyLengths):
        per_batch("lengths", description.lengths, batch)
    elif isinstance(description, KeyPadding):
        boolean("keep", description.keep, NOT_ADDITIVE)
        batch_by_length("keep", description.keep, batch, key_length, shared=False)
    elif isinstance(description, Segments):
        integer("query_ids", description.query_ids)
        integer("key_ids", description.key_ids)
        batch_by_length("query_ids", description.query_ids, batch, query_length, shared=True)
        batch_by_length("key_ids", description.key_ids, batch, key_length, shared=True)
    elif isinstance(description, Dense):
        boolean("mask", description.array, NOT_ADDITIVE)
        pair_shape("mask", description.array, (batch, heads, query_length, key_length))
    else:
        raise TypeError(f"mask must be a description or a boolean array, got {type(description).__name__}")


NOT_ADDITIVE = " (True = may attend; additive numbers are a bias, never a mask)"


def window(left: Any, right: Any) -> None:
    for name, value in (("left", left), ("right", right)):
        if value is not None:
            distance(name, value)


def lengths_within(lengths: np.ndarray, key_length: int) -> None:
    """Values of KeyLengths, where they can be read."""
    if lengths.size and (lengths.min() < 0 or lengths.max() > key_length):
        raise ValueError(f"lengths must lie between 0 and {key_length} keys, got {lengths.tolist()}")


# --- operations -------------------------------------------------------------------------------------------------------


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    bias: Any,
    scale: Any,
    softcap: Any,
    sinks: Any,
    dropout_keep: Any = None,
    dropout_rate: Any = 0.0,
    empty_rows: str = "zero",
) -> None:
    """Arguments of attention, and of its weights and log-sum-exp, for which `value` is None (ATT-1 to ATT-9).

    The mask is checked by `mask`, once it is known what query and key look like.
    """
    arrays = {"query": query, "key": key} | ({} if value is None else {"value": value})
    B, H, Q, D = ranked("query", query, "batch, heads, queries, width")
    key_batch, G, K, key_width = ranked("key", key, "batch, key heads, keys, width")
    dtype = same_dtype(**arrays)
    if key_batch != B:
        raise ValueError(f"query and key must have the same batch size, got {B} and {key_batch}")
    if key_width != D:
        raise ValueError(f"query and key must have the same width, got {D} and {key_width}")
    if D == 0:
        raise ValueError("query and key must have a width of at least 1, got 0")
    if value is not None:
        shape = ranked("value", value, "batch, key heads, keys, value width")
        if shape[:3] != (B, G, K):
            raise ValueError(f"value must have shape [{B}, {G}, {K}, value width] like key, got {list(shape)}")
    if (G == 0 and H != 0) or (G != 0 and H % G != 0):
        raise ValueError(f"the {H} query heads must be a multiple of the {G} key heads")
    if bias is not None:
        companion_dtype("bias", bias, dtype)
        pair_shape("bias", bias, (B, H, Q, K))
    if scale is not None:
        finite("scale", scale)
    if softcap is not None:
        cap = real_number("softcap", softcap)
        if cap is not None and not 0 < cap < math.inf:
            raise ValueError(f"softcap must be positive and finite, got {cap}")
    if sinks is not None:
        companion_dtype("sinks", sinks, dtype)
        if shape_of("sinks", sinks) != (H,):
            raise ValueError(f"sinks must have shape [{H}], one for each query head, got {list(sinks.shape)}")
    dropout(dropout_keep, dropout_rate, (B, H, Q, K))
    one_of("empty_rows", empty_rows, ("zero", "mean", "nan"))
    if empty_rows != "zero" and sinks is not None:
        raise ValueError(f"empty_rows={empty_rows!r} has no meaning with sinks, which give every row a denominator")


def merge(outputs: Any, logsumexps: Any) -> None:
    """Arguments of merge_attention (ATT-14)."""
    if len(outputs) != len(logsumexps) or len(outputs) == 0:
        raise ValueError(f"as many outputs as log-sum-exps, and at least one, got {len(outputs)} and {len(logsumexps)}")
    shape = ranked("outputs[0]", outputs[0], "batch, heads, queries, value width")
    dtype = floating("outputs[0]", outputs[0])
    for i, (output, logsumexp) in enumerate(zip(outputs, logsumexps, strict=True)):
        same_dtype(**{"outputs[0]": outputs[0], f"outputs[{i}]": output})
        companion_dtype(f"logsumexps[{i}]", logsumexp, dtype)
        if shape_of(f"outputs[{i}]", output) != shape or shape_of(f"logsumexps[{i}]", logsumexp) != shape[:3]:
            raise ValueError(
                f"outputs[{i}] and logsumexps[{i}] must have shapes {list(shape)} and {list(shape[:3])}, "
                f"got {list(output.shape)} and {list(logsumexp.shape)}"
            )


def linear(name: str, parameters: Linear, dtype: str, width: int | None) -> tuple[int, int]:
    """(in, out) of a projection whose input has the given dtype and width."""
    structure(name, parameters, Linear)
    inner, outer = ranked(f"{name}.weight", parameters.weight, "in, out")
    same_dtype(**{"input": _Named(dtype), f"{name}.weight": parameters.weight})
    if width is not None and inner != width:
        raise ValueError(f"{name}.weight must have shape [{width}, out], got {[inner, outer]}")
    if parameters.bias is not None:
        same_dtype(**{f"{name}.weight": parameters.weight, f"{name}.bias": parameters.bias})
        if shape_of(f"{name}.bias", parameters.bias) != (outer,):
            raise ValueError(f"{name}.bias must have shape [{outer}], got {list(parameters.bias.shape)}")
    return inner, outer


def structure(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {described(value)}")


class _Named:
    """A dtype standing where an array is expected."""

    shape = ()

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


def multi_head_attention(parameters: Any, query: Any, key: Any, value: Any, num_heads: int) -> tuple[int, int, int]:
    """(H, G, D): query heads, key heads and head width, all read off the shapes (MHA-1, ATT-7).

    `parameters` holds fused projections.
    """
    natural("num_heads", num_heads)
    if num_heads == 0:
        raise ValueError("num_heads must be at least 1, got 0")
    shapes = [
        ranked(name, array, "batch, positions, width")
        for name, array in (("query", query), ("key", key), ("value", value))
    ]
    dtype = same_dtype(query=query, key=key, value=value)
    if len({shape[0] for shape in shapes}) > 1 or shapes[1][1] != shapes[2][1]:
        raise ValueError(
            "query, key and value must share the batch size, and key and value the length, got "
            f"{list(shapes[0])}, {list(shapes[1])} and {list(shapes[2])}"
        )
    named = zip(("query", "key", "value"), parameters[:3], shapes, strict=True)
    widths = [linear(name, projection, dtype, shape[2])[1] for name, projection, shape in named]
    if widths[0] % num_heads != 0 or widths[0] == 0:
        raise ValueError(f"query.weight has {widths[0]} columns, which {num_heads} heads cannot share equally")
    width = widths[0] // num_heads
    if widths[1] % width != 0 or widths[1] == 0:
        raise ValueError(f"key.weight has {widths[1]} columns, which is no multiple of the head width {width}")
    key_heads = widths[1] // width
    if num_heads % key_heads != 0:
        raise ValueError(f"the {num_heads} query heads must be a multiple of the {key_heads} key heads")
    if widths[2] % key_heads != 0:
        raise ValueError(f"value.weight has {widths[2]} columns, which {key_heads} key heads cannot share equally")
    linear("output", parameters[3], dtype, widths[2] // key_heads * num_heads)
    return num_heads, key_heads, width


def join_heads(projections: Any) -> None:
    """Per-head projections that are to be concatenated (MHA-2)."""
    if not isinstance(projections, list | tuple):
        raise TypeError(f"a projection must be a Linear or a list of them, got {described(projections)}")
    if len(projections) == 0:
        raise ValueError("at least one per-head projection is needed, got none")
    first = projections[0]
    structure("heads[0]", first, Linear)
    width, _ = ranked("heads[0].weight", first.weight, "in, out")
    for i, head in enumerate(projections):
        linear(f"heads[{i}]", head, floating("heads[0].weight", first.weight), width)
        if (head.bias is None) != (first.bias is None):
            raise ValueError(f"either every head has a bias or none has, but heads[0] and heads[{i}] differ")


def norm(x: Any, weight: Any, bias: Any, eps: Any) -> tuple[int, ...]:
    """The trailing axes that a norm's weight names, as negative numbers (NORM-1)."""
    shape, axes = shape_of("x", x), shape_of("weight", weight)
    dtype = floating("x", x)
    companion_dtype("weight", weight, dtype)
    if len(axes) == 0 or shape[-len(axes) :] != axes:
        raise ValueError(f"weight must have the shape of x's trailing axes, got {list(axes)} for x {list(shape)}")
    if 0 in axes:
        raise ValueError(f"there must be at least one element to normalise over, got weight {list(axes)}")
    if bias is not None:
        companion_dtype("bias", bias, dtype)
        if shape_of("bias", bias) != axes:
            raise ValueError(f"bias must have shape {list(axes)} like weight, got {list(bias.shape)}")
    epsilon(eps)
    return tuple(range(-len(axes), 0))


def standard_deviation_norm(x: Any, weight: Any, bias: Any, eps: Any) -> tuple[int, ...]:
    axes = norm(x, weight, bias, eps)
    if math.prod(weight.shape) < 2:
        raise ValueError("the unbiased deviation needs at least two elements, got 1")
    return axes


def positions(length: int, width: int, offset: Any, exponent: str, dtype: str) -> None:
    natural("length", length)
    natural("width", width)
    distance("offset", offset)
    one_of("exponent", exponent, EXPONENTS)
    if dtype not in FLOATING:
        raise TypeError(f"dtype must be one of {', '.join(FLOATING)}, got {dtype}")


def learned_positions(table: Any, length: int, offset: Any) -> None:
    rows, _ = ranked("table", table, "positions, width")
    floating("table", table)
    natural("length", length)
    start = distance("offset", offset)
    if start is not None and start + length > rows:
        raise ValueError(f"{length} positions from {start} on need a table of {start + length} rows, got {rows}")


def embedding(table: Any, ids: Any) -> None:
    ranked("table", table, "vocabulary, width")
    floating("table", table)
    integer("ids", ids)


def ids_within(ids: np.ndarray, vocabulary: int) -> None:
    """Values of token ids, where they can be read (EMB-1)."""
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
        raise ValueError(f"ids must lie in [0, {vocabulary}), got values from {ids.min()} to {ids.max()}")


def feed_forward(parameters: Any, x: Any, activation: str, dropout_keep: Any, dropout_rate: Any) -> None:
    structure("parameters", parameters, FeedForward)
    shape = shape_of("x", x)
    dtype = floating("x", x)
    if len(shape) == 0:
        raise ValueError("x must have shape [..., width], got []")
    _, inner = linear("inner", parameters.inner, dtype, shape[-1])
    linear("outer", parameters.outer, dtype, inner)
    one_of("activation", activation, ("relu", "gelu", "gelu_tanh"))
    dropout(dropout_keep, dropout_rate, (*shape[:-1], inner))
