"""Checks on the arguments of each operation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specification.blocks import misplaced_norms
from specification.checks.arguments import (
    boolean,
    companion_dtype,
    described,
    distance,
    dropout,
    epsilon,
    finite,
    flag,
    floating,
    in_range,
    integer,
    natural,
    one_of,
    pair_shape,
    ranked,
    real_number,
    same_dtype,
    shape_of,
    structure,
)
from specification.checks.sites import sites
from specification.configuration import CHOICES, AttentionLayer, Configuration
from specification.dropout import StackDropout
from specification.dtypes import FLOATING, LARGEST, compute_dtype_name, dtype_name
from specification.parameters import (
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    ImageEmbedding,
    Linear,
    Norm,
)
from specification.positions import EXPONENTS

__all__ = [
    "alibi_bias",
    "attention",
    "block_attention",
    "embed",
    "embed_image",
    "embedding",
    "feed_forward",
    "gated_feed_forward",
    "ids_within",
    "join_heads",
    "learned_positions",
    "memory",
    "merge",
    "multi_head_attention",
    "no_bias",
    "norm",
    "norms",
    "of_a_block",
    "one_memory",
    "pool",
    "positions",
    "relative_position_bias",
    "rms_norm",
    "silu",
    "stack",
    "standard_deviation_norm",
    "summands",
]


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
    """Check the arguments of attention, and of its weights and log-sum-exp (ATT-1 to ATT-9).

    The mask is checked by `mask`, once it is known what query and key look like.

    Args:
        query: [B, H, Q, D].
        key: [B, G, K, D], with H a multiple of G.
        value: [B, G, K, V], or None for weights and log-sum-exp.
        bias: [Q, K] or [B or 1, H or 1, Q, K], or None.
        scale: a finite number, or None.
        softcap: a positive number, or None.
        sinks: [H], or None.
        dropout_keep: booleans [B, H, Q, K], or None.
        dropout_rate: in [0, 1).
        empty_rows: "zero", "mean" or "nan"; the last two not together with sinks.

    Raises:
        TypeError: for what is no array or no number, and for other dtypes.
        ValueError: for shapes that do not fit, and for numbers out of range.
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
        finite("scale", scale, LARGEST[compute_dtype_name(dtype)])
    if softcap is not None:
        cap = real_number("softcap", softcap)
        largest = LARGEST[compute_dtype_name(dtype)]
        if cap is not None and not 1 / largest <= cap <= largest:
            raise ValueError(f"softcap must be positive and finite in {compute_dtype_name(dtype)}, got {cap}")
    if sinks is not None:
        companion_dtype("sinks", sinks, dtype)
        if shape_of("sinks", sinks) != (H,):
            raise ValueError(f"sinks must have shape [{H}], one for each query head, got {list(sinks.shape)}")
    dropout(dropout_keep, dropout_rate, (B, H, Q, K))
    one_of("empty_rows", empty_rows, ("zero", "mean", "nan"))
    if empty_rows != "zero" and sinks is not None:
        raise ValueError(f"empty_rows={empty_rows!r} has no meaning with sinks, which give every row a denominator")


def merge(outputs: Any, logsumexps: Any) -> None:
    """Check the arguments of merge_attention (ATT-14).

    Args:
        outputs: one or more arrays [B, H, Q, V] of one dtype.
        logsumexps: as many arrays [B, H, Q].

    Raises:
        TypeError: for other dtypes.
        ValueError: for counts or shapes that do not fit.
    """
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
    """Check a projection.

    Args:
        name: what messages call it.
        parameters: weight [in, out], and bias [out] or None.
        dtype: that of its input.
        width: that of its input, or None for any.

    Returns:
        (in, out).

    Raises:
        TypeError: for another structure or dtype.
        ValueError: for shapes that do not fit.
    """
    structure(name, parameters, Linear)
    inner, outer = ranked(f"{name}.weight", parameters.weight, "in, out")
    if floating(f"{name}.weight", parameters.weight) != dtype:
        raise TypeError(f"input, {name}.weight must share one dtype, got {dtype}, {dtype_name(parameters.weight)}")
    if width is not None and inner != width:
        raise ValueError(f"{name}.weight must have shape [{width}, out], got {[inner, outer]}")
    if parameters.bias is not None:
        same_dtype(**{f"{name}.weight": parameters.weight, f"{name}.bias": parameters.bias})
        if shape_of(f"{name}.bias", parameters.bias) != (outer,):
            raise ValueError(f"{name}.bias must have shape [{outer}], got {list(parameters.bias.shape)}")
    return inner, outer


def multi_head_attention(
    parameters: Any, projections: Any, query: Any, key: Any, value: Any, num_heads: int
) -> tuple[int, int, int]:
    """Check the arguments of multi-head attention (MHA-1, MHA-2, ATT-7).

    Args:
        parameters: a `MultiHeadAttention` of four projections and nothing else.
        projections: the same with per-head projections joined.
        query: [B, Q, E].
        key: [B, K, E of the keys].
        value: [B, K, E of the values].
        num_heads: the number of query heads.

    Returns:
        (H, G, D): query heads, key heads and head width, all read off the shapes.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes or numbers of heads that do not fit, and for what only a block's attention has.
    """
    for name in ("query_norm", "key_norm", "sinks"):
        if getattr(parameters, name) is not None:
            raise ValueError(f"multi-head attention takes no {name} among its parameters: a block's attention has it")
    return attention_projections(parameters, projections, query, key, value, num_heads)


def of_a_block(parameters: Any, layer: AttentionLayer) -> bool:
    """Tell whether an attention has what only a block's has.

    Args:
        parameters: a `MultiHeadAttention`.
        layer: its window and rotation.
    """
    return layer != AttentionLayer() or any(part is not None for part in parameters[4:])


def one_memory(key: Any, value: Any) -> None:
    """Check that a block's attention is given no values of their own.

    Args:
        key: what keys and values are projected from.
        value: the same.

    Raises:
        ValueError: for another array.
    """
    if value is not key:
        raise ValueError("a block's attention projects keys and values from the same array, got another as value")


def attention_projections(
    parameters: Any, projections: Any, query: Any, key: Any, value: Any, num_heads: int
) -> tuple[int, int, int]:
    """Check the four projections of an attention and what they are given (MHA-1, MHA-2, ATT-7).

    Args:
        parameters, projections, query, key, value, num_heads: as for `multi_head_attention`.

    Returns:
        (H, G, D): query heads, key heads and head width, all read off the shapes.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes or numbers of heads that do not fit.
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
    named = zip(("query", "key", "value"), projections[:3], shapes, strict=True)
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
    counts = zip(("query", "key", "value"), parameters[:3], (num_heads, key_heads, key_heads), strict=True)
    for name, given, heads in counts:
        if not isinstance(given, Linear) and len(given) != heads:
            raise ValueError(f"{name} must have {heads} per-head projections, got {len(given)}")
    linear("output", projections[3], dtype, widths[2] // key_heads * num_heads)
    return num_heads, key_heads, width


def join_heads(projections: Any) -> None:
    """Check per-head projections that are to be concatenated (MHA-2).

    Args:
        projections: a list of `Linear`, all of one shape, with biases in all or none.

    Raises:
        TypeError: for what is no list of `Linear`.
        ValueError: for an empty list, and for heads that differ.
    """
    if not isinstance(projections, list | tuple):
        raise TypeError(f"a projection must be a Linear or a list of them, got {described(projections)}")
    if len(projections) == 0:
        raise ValueError("at least one per-head projection is needed, got none")
    first = projections[0]
    structure("heads[0]", first, Linear)
    shape = ranked("heads[0].weight", first.weight, "in, out")
    for i, head in enumerate(projections):
        if linear(f"heads[{i}]", head, floating("heads[0].weight", first.weight), shape[0]) != shape:
            raise ValueError(
                f"every head must have the same width, got heads[{i}].weight {list(head.weight.shape)} "
                f"and heads[0].weight {list(shape)}"
            )
        if (head.bias is None) != (first.bias is None):
            raise ValueError(f"either every head has a bias or none has, but heads[0] and heads[{i}] differ")


def norm(x: Any, weight: Any, bias: Any, eps: Any) -> tuple[int, ...]:
    """Check the arguments of a norm (NORM-1).

    Args:
        x: [..., E], or with more trailing axes.
        weight: of the shape of the trailing axes to normalise over.
        bias: like weight, or None.
        eps: finite and at least 2**-126.

    Returns:
        The trailing axes that the weight names, as negative numbers.

    Raises:
        TypeError: for other dtypes.
        ValueError: for shapes that do not fit, and for another eps.
    """
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


def rms_norm(x: Any, weight: Any, eps: Any, plus_one: Any) -> tuple[int, ...]:
    """Check the arguments of rms_norm (NORM-7, NORM-8).

    Args:
        x: as for `norm`.
        weight: as for `norm`.
        eps: as for `norm`.
        plus_one: True or False.

    Returns:
        The trailing axes, as `norm` has them.

    Raises:
        TypeError: for other dtypes, and for a plus_one that is no truth value.
        ValueError: for shapes that do not fit, and for another eps.
    """
    flag("plus_one", plus_one)
    return norm(x, weight, None, eps)


def standard_deviation_norm(x: Any, weight: Any, bias: Any, eps: Any) -> tuple[int, ...]:
    """Check the arguments of a norm by the unbiased deviation, which needs two elements (NORM-7).

    Args:
        x: as for `norm`.
        weight: as for `norm`.
        bias: as for `norm`.
        eps: as for `norm`.

    Returns:
        The trailing axes, as `norm` has them.

    Raises:
        TypeError: for other dtypes.
        ValueError: for shapes that do not fit, for fewer than two elements, and for another eps.
    """
    axes = norm(x, weight, bias, eps)
    if math.prod(weight.shape) < 2:
        raise ValueError("the unbiased deviation needs at least two elements, got 1")
    return axes


def positions(length: int, width: int, offset: Any, exponent: str, dtype: str) -> None:
    """Check the arguments of sinusoidal_positions (POS-1).

    Args:
        length: the number of positions.
        width: the number of columns.
        offset: the first position.
        exponent: "shared" or "doubled".
        dtype: the name of a floating dtype.

    Raises:
        TypeError: for what is no integer, and for another dtype.
        ValueError: for negative numbers, and for another exponent.
    """
    natural("length", length)
    natural("width", width)
    distance("offset", offset)
    one_of("exponent", exponent, EXPONENTS)
    if dtype not in FLOATING:
        raise TypeError(f"dtype must be one of {', '.join(FLOATING)}, got {dtype}")


def learned_positions(table: Any, length: int, offset: Any) -> None:
    """Check the arguments of learned_positions (POS-2).

    Args:
        table: [positions, width], with a row for every position.
        length: the number of positions.
        offset: the first position.

    Raises:
        TypeError: for other dtypes.
        ValueError: for negative numbers, and for a table that is too short.
    """
    rows, _ = ranked("table", table, "positions, width")
    floating("table", table)
    natural("length", length)
    start = distance("offset", offset)
    if start is not None and start + length > rows:
        raise ValueError(f"{length} positions from {start} on need a table of {start + length} rows, got {rows}")


def alibi_bias(num_heads: int, query_length: int, key_length: int, offset: Any, dtype: str) -> None:
    """Check the arguments of alibi_bias (POS-5).

    Args:
        num_heads: the number of query heads.
        query_length: the number of queries.
        key_length: the number of keys.
        offset: the position of the first query.
        dtype: the name of a floating dtype.

    Raises:
        TypeError: for what is no integer, and for another dtype.
        ValueError: for negative numbers, and for no heads.
    """
    if natural("num_heads", num_heads) == 0:
        raise ValueError("num_heads must be at least 1, got 0")
    natural("query_length", query_length)
    natural("key_length", key_length)
    distance("offset", offset)
    if dtype not in FLOATING:
        raise TypeError(f"dtype must be one of {', '.join(FLOATING)}, got {dtype}")


def relative_position_bias(
    table: Any, query_length: int, key_length: int, bidirectional: Any, furthest: int, offset: Any
) -> None:
    """Check the arguments of relative_position_bias (POS-6).

    Args:
        table: [buckets, heads], with two buckets at least for each direction.
        query_length: the number of queries.
        key_length: the number of keys.
        bidirectional: True or False.
        furthest: more than half the buckets of a direction.
        offset: the position of the first query.

    Raises:
        TypeError: for other dtypes, and for what is no integer or no truth value.
        ValueError: for negative numbers, for too few buckets, and for another furthest.
    """
    flag("bidirectional", bidirectional)
    rows, _ = ranked("table", table, "buckets, heads")
    floating("table", table)
    natural("query_length", query_length)
    natural("key_length", key_length)
    distance("offset", offset)
    buckets, direction = (rows // 2, " for each direction") if bidirectional else (rows, "")
    if buckets < 2:
        raise ValueError(f"at least two buckets are needed{direction}, got a table of {rows} rows")
    in_range("furthest", natural("furthest", furthest))
    if furthest <= buckets // 2:
        raise ValueError(
            f"furthest must be more than {buckets // 2}, the distances that have a bucket of their own, got {furthest}"
        )


def embedding(table: Any, ids: Any) -> None:
    """Check the arguments of embedding but for the values of `ids` (EMB-1).

    Args:
        table: [vocabulary, width].
        ids: integers of any shape.

    Raises:
        TypeError: for other dtypes.
        ValueError: for a table of another rank.
    """
    ranked("table", table, "vocabulary, width")
    floating("table", table)
    integer("ids", ids)


def ids_within(ids: np.ndarray, rows: int, name: str = "ids") -> None:
    """Check the values of ids, where they can be read (EMB-1).

    Args:
        ids: integers.
        rows: how many rows the table has.
        name: what messages call them.

    Raises:
        ValueError: for ids that are no row of the table.
    """
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        raise ValueError(f"{name} must lie in [0, {rows}), got values from {ids.min()} to {ids.max()}")


def feed_forward(parameters: Any, x: Any, activation: str, dropout_keep: Any, dropout_rate: Any) -> None:
    """Check the arguments of feed_forward (FFN-1).

    Args:
        parameters: a `FeedForward`.
        x: [..., E].
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        dropout_keep: booleans [..., F], or None.
        dropout_rate: in [0, 1).

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes that do not fit, and for another activation or rate.
    """
    structure("parameters", parameters, FeedForward)
    network(parameters, x, activation, dropout_keep, dropout_rate)


def gated_feed_forward(parameters: Any, x: Any, activation: str, dropout_keep: Any, dropout_rate: Any) -> None:
    """Check the arguments of gated_feed_forward (FFN-2).

    Args:
        parameters: a `GatedFeedForward`.
        x: as for `feed_forward`.
        activation: as for `feed_forward`.
        dropout_keep: as for `feed_forward`.
        dropout_rate: as for `feed_forward`.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes that do not fit, and for another activation or rate.
    """
    structure("parameters", parameters, GatedFeedForward)
    inner = network(parameters, x, activation, dropout_keep, dropout_rate)
    _, gate = linear("gate", parameters.gate, floating("x", x), x.shape[-1])
    if gate != inner:
        raise ValueError(f"gate.weight must have as many columns as inner.weight, got {gate} and {inner}")


def network(parameters: Any, x: Any, activation: str, dropout_keep: Any, dropout_rate: Any) -> int:
    """Check what both feed-forward networks have, and return the width between inner and outer (FFN-1, FFN-2)."""
    shape = shape_of("x", x)
    dtype = floating("x", x)
    if len(shape) == 0:
        raise ValueError("x must have shape [..., width], got []")
    _, inner = linear("inner", parameters.inner, dtype, shape[-1])
    linear("outer", parameters.outer, dtype, inner)
    one_of("activation", activation, CHOICES["activation"])
    dropout(dropout_keep, dropout_rate, (*shape[:-1], inner))
    return inner


# --- blocks and models ------------------------------------------------------------------------------------------------


def block_attention(parameters: Any, projections: Any, x: Any, memory: Any, num_heads: int) -> int:
    """Check a block's attention, whose queries and keys may have norms of their own (MHA-1, NORM-8).

    Args:
        parameters: a `MultiHeadAttention`.
        projections: the same with per-head projections joined.
        x: [B, Q, E].
        memory: [B, K, E of the keys].
        num_heads: the number of query heads.

    Returns:
        The head width.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes or numbers of heads that do not fit.
    """
    H, G, D = attention_projections(parameters, projections, x, memory, memory, num_heads)
    for name, given, heads in (("query_norm", parameters.query_norm, H), ("key_norm", parameters.key_norm, G)):
        if given is None:
            continue
        structure(name, given, Norm)
        shape = shape_of(f"{name}.weight", given.weight)
        if shape not in ((D,), (heads * D,)):
            wanted = f"[{D}] for each head or [{heads * D}] for all together"
            raise ValueError(f"{name}.weight must have shape {wanted}, got {list(shape)}")
    return D


def norms(parameters: Any, configuration: Configuration) -> None:
    """Check that a block has the norms that its order asks for, and no others (BLK-1, BLK-3).

    Args:
        parameters: an `EncoderBlock` or a `DecoderBlock`.
        configuration: the model's.

    Raises:
        ValueError: for a norm that is missing or has no place, and for cross-attention where the order has none.
    """
    problems = misplaced_norms(parameters, configuration.norm_order)
    if problems:
        raise ValueError(f"with norm_order={configuration.norm_order!r} {problems[0]}")


def summands(x: Any, y: Any) -> None:
    """Check two arrays that are added: a width of 1 would be stretched without a word.

    Args:
        x: an array.
        y: an array with the trailing axes of x.

    Raises:
        ValueError: for other shapes.
    """
    whole, part = shape_of("x", x), shape_of("y", y)
    if whole[len(whole) - len(part) :] != part or len(part) > len(whole):
        raise ValueError(f"what is added to {list(whole)} must have its trailing axes, got {list(part)}")


def silu(x: Any) -> None:
    """Argument of silu, of any shape (ACT-1)."""
    floating("x", x)


def no_bias(bias: Any) -> None:
    """Refuse a bias of rms_norm, which adds none (NORM-7).

    Args:
        bias: must be None.

    Raises:
        ValueError: for a bias.
    """
    if bias is not None:
        raise ValueError("rms_norm has no bias, and the parameters have one")


def memory(parameters: Any, given: Any) -> None:
    """Check that a decoder block is given the encoder's output exactly where it has cross-attention (TRF-1).

    Args:
        parameters: a `DecoderBlock`.
        given: the encoder's output, or None.

    Raises:
        ValueError: where one is there without the other.
    """
    if (parameters.cross_attention is None) != (given is None):
        needed = "no memory" if parameters.cross_attention is None else "the encoder's output as memory"
        raise ValueError(f"a decoder block with these parameters takes {needed}, got {described(given)}")


def embed(parameters: Any, tokens: Any, token_types: Any, positions: str, offset: Any) -> None:
    """Check the arguments of a model's embedding (TRF-1).

    Args:
        parameters: an `Embedding`, with the tables that `positions` asks for.
        tokens: integers [B, T].
        token_types: the same, or None.
        positions: the configuration's.
        offset: the position of the first token; 0 for positions "after_padding".

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for tables that are missing or not asked for, and for shapes that do not fit.
    """
    structure("embedding", parameters, Embedding)
    if positions == "after_padding" and not (isinstance(offset, int) and offset == 0):
        raise ValueError("positions 'after_padding' are counted from the first token on, and take no offset or cache")
    if (parameters.positions is None) == (positions in ("learned", "after_padding")):
        there = "no table of them" if parameters.positions is None else "a table of them"
        raise ValueError(f"the positions are configured as {positions!r}, and the parameters have {there}")
    shape = ranked("tokens", tokens, "batch, positions")
    integer("tokens", tokens)
    if token_types is None:
        return
    if parameters.token_types is None:
        raise ValueError("token_types were given, and the parameters have no table for them")
    integer("token_types", token_types)
    if shape_of("token_types", token_types) != shape:
        raise ValueError(f"token_types must have shape {list(shape)} like tokens, got {list(token_types.shape)}")


def embed_image(parameters: Any, images: Any, size: int | None) -> None:
    """Check the arguments of an embedding of images (TRF-1).

    Args:
        parameters: an `ImageEmbedding`.
        images: [B, C, height, width].
        size: the configuration's patch_size.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for a size that is missing, and for shapes that do not fit.
    """
    structure("embedding", parameters, ImageEmbedding)
    _, channels, height, width = ranked("images", images, "batch, channels, height, width")
    dtype = floating("images", images)
    if size is None:
        raise ValueError("images are cut into patches, and the configuration has no patch_size")
    if height % size or width % size:
        raise ValueError(f"images must have sides that are multiples of patch_size={size}, got {height} and {width}")
    inner, outer = linear("patches", parameters.patches, dtype, None)
    if inner != channels * size * size:
        raise ValueError(
            f"images of {channels} channels have patches of {channels * size * size} numbers, and patches.weight has "
            f"{inner} rows"
        )
    same_dtype(images=images, class_token=parameters.class_token, positions=parameters.positions)
    rows, columns = height // size, width // size
    for name, array, wanted in (("class_token", parameters.class_token, (outer,)),
                                ("positions", parameters.positions, (rows * columns + 1, outer))):  # fmt: skip
        if shape_of(name, array) != wanted:
            raise ValueError(
                f"images of {height} by {width} in {rows} by {columns} patches need {name} of shape {list(wanted)}, "
                f"got {list(array.shape)}"
            )


def stack(parameters: Any, kind: type, x: Any, dropout: Any, token_types: Any = None, memory: Any = None) -> None:
    """Check the arguments of an encoder or a decoder.

    Args:
        parameters: the stack.
        kind: `Encoder` or `Decoder`.
        x: token ids [B, T] where there is an embedding of those, images [B, C, height, width] where there is one of
            images, else what is embedded already, [B, T, E].
        dropout: a `StackDropout`, for all blocks or none.
        token_types: of the tokens, or None.
        memory: [B, S, E] that a decoder attends to, or None.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes or counts that do not fit.
    """
    structure("parameters", parameters, kind)
    for i, block in enumerate(parameters.blocks):
        structure(f"blocks[{i}]", block, EncoderBlock if kind is Encoder else DecoderBlock)
    if not isinstance(parameters.embedding, Embedding) and token_types is not None:
        raise ValueError("token_types were given, and the parameters have no embedding of tokens")
    if parameters.embedding is None:
        ranked("x", x, "batch, positions, width")
        floating("x", x)
    elif isinstance(parameters.embedding, ImageEmbedding):
        ranked("images", x, "batch, channels, height, width")
        floating("images", x)
    else:
        ranked("tokens", x, "batch, positions")
        integer("tokens", x)
    if memory is not None and ranked("memory", memory, "batch, positions, width")[0] != x.shape[0]:
        raise ValueError(f"memory must have the batch size {x.shape[0]} of the target, got shape {list(memory.shape)}")
    sites(dropout, StackDropout)
    if dropout.blocks and len(dropout.blocks) != len(parameters.blocks):
        raise ValueError(f"dropout is given for {len(dropout.blocks)} blocks, and there are {len(parameters.blocks)}")


def pool(x: Any, pooling: str, keep: Any) -> None:
    """Check the arguments of pool but for the values of `keep` (TRF-1).

    Args:
        x: [B, T, E].
        pooling: "max" or "mean".
        keep: booleans [B, T], or None.

    Raises:
        TypeError: for other dtypes.
        ValueError: for shapes that do not fit, and for another pooling.
    """
    shape = ranked("x", x, "batch, positions, width")
    floating("x", x)
    one_of("pooling", pooling, ("max", "mean"))
    if keep is not None:
        boolean("keep", keep)
        if shape_of("keep", keep) != shape[:2]:
            raise ValueError(f"keep must have shape {list(shape[:2])}, got {list(keep.shape)}")
