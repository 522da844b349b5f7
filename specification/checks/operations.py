"""Checks on the arguments of each operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specification.arrays import Array
from specification.blocks import misplaced_norms
from specification.checks.arguments import (
    check_number,
    check_rate,
    described,
    distance,
    epsilon,
    finite,
    flag,
    natural,
    one_of,
    position,
    refuse,
    shape_of,
    structure,
    values_within,
)
from specification.checks.latent_attention import latent_attention
from specification.checks.shapes import (
    Bool,
    Float,
    Integer,
    Projection,
    Wide,
    arrays_of,
    check_array,
    check_shapes,
    declare,
    match,
    match_each,
)
from specification.checks.sites import sites
from specification.configuration import CHOICES, AttentionLayer, Configuration, ExpertChoice
from specification.dropout import Dropout, StackDropout
from specification.dtypes import FLOATING, LARGEST, compute_dtype_name, dtype_name
from specification.parameters import (
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    ImageEmbedding,
    LatentAttention,
    Linear,
    MultiHeadAttention,
    Norm,
)
from specification.positions import EXPONENTS
from specification.rotary import Rotary, Rotation

__all__ = [
    "alibi_bias", "attention", "block_attention", "embed", "embed_image", "embedding", "feed_forward",
    "gated_feed_forward", "ids_within", "join_heads", "latent_block", "latent_rotation", "latent_scores",
    "learned_positions", "memory", "merge", "mixture_in_block", "multi_head_attention", "no_bias", "norm", "norms",
    "of_a_block", "one_memory", "pool", "positions", "relative_position_bias", "rms_norm", "silu", "stack",
    "standard_deviation_norm", "summands",
]  # fmt: skip

# --- attention --------------------------------------------------------------------------------------------------------


@check_shapes
def attention(
    query: Float[Array, "B H Q D"],
    key: Float[Array, "B G K D"],
    value: Float[Array, "B G K V"] | None,
    *,
    bias: Wide[Array, "Q K"] | Wide[Array, "#B #H Q K"] | None,
    scale: float | None,
    softcap: float | None,
    sinks: Wide[Array, "H"] | None,
    dropout_keep: Bool[Array, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> None:
    """Check the arguments of attention, and of its weights and log-sum-exp, which have no value (ATT-1 to ATT-9).

    The mask is checked by `mask`, once it is known what query and key look like.
    """
    if query.shape[3] == 0:
        refuse("query and key", "have a width of at least 1", 0)
    check_groups(query.shape[1], key.shape[1])
    if scale is not None:
        finite("scale", scale, compute_dtype_name(dtype_name(query)))
    if softcap is not None:
        compute_dtype = compute_dtype_name(dtype_name(query))
        largest, expected = LARGEST[compute_dtype], f"be positive and finite in {compute_dtype}"
        check_number("softcap", softcap, lambda number: 1 / largest <= number <= largest, expected)
    check_rate(dropout_rate, dropout_keep)
    one_of("empty_rows", empty_rows, ("zero", "mean", "nan"))
    if empty_rows != "zero" and sinks is not None:
        refuse("empty_rows", "be 'zero' with sinks, which give every row a denominator", repr(empty_rows))


def check_groups(heads: int, key_heads: int) -> None:
    """Check that every key head serves as many query heads (ATT-7)."""
    if (key_heads == 0 and heads != 0) or (key_heads != 0 and heads % key_heads != 0):
        refuse("query", f"have a multiple of the {key_heads} key heads", f"{heads} query heads")


PART = declare({"outputs": 'Float[Array, "B H Q V"]', "logsumexps": 'Wide[Array, "B H Q"]'})


def merge(outputs: Sequence[Array], logsumexps: Sequence[Array]) -> None:
    """Check the parts that merge_attention merges, at least one (ATT-14)."""
    if len(outputs) != len(logsumexps) or len(outputs) == 0:
        refuse("outputs and logsumexps", "be as many, at least one", f"{len(outputs)} and {len(logsumexps)}")
    match_each("{0}[{1}]", PART, list(zip(outputs, logsumexps, strict=True)))


def multi_head_attention(
    parameters: MultiHeadAttention,
    projections: MultiHeadAttention,
    query: Array,
    key: Array,
    value: Array,
    num_heads: int,
) -> tuple[int, int, int]:
    """Check the arguments of multi-head attention, which has four projections and nothing else (MHA-1, MHA-2, ATT-7).

    `projections` are the parameters with per-head projections joined. Returns the numbers of query heads and key heads,
    and the head width: all are read off the shapes.
    """
    for name in ("query_norm", "key_norm", "sinks"):
        if getattr(parameters, name) is not None:
            refuse(name, "be None in multi-head attention: a block's attention has it", "one among the parameters")
    return attention_projections(parameters, projections, query, key, value, num_heads)


def of_a_block(parameters: MultiHeadAttention, layer: AttentionLayer) -> bool:
    """Tell whether an attention has what only a block's has."""
    return layer != AttentionLayer() or any(part is not None for part in parameters[4:])


def one_memory(key: Array, value: Array) -> None:
    """Check that a block's attention is given no values of their own."""
    if value is not key:
        refuse("value", "be key in a block's attention, which projects both from it", "another array")


INPUTS = declare(
    {"query": 'Float[Array, "B Q E"]', "key": 'Float[Array, "B K E_key"]', "value": 'Float[Array, "B K E_value"]'}
)
PROJECTIONS = INPUTS + declare(
    {
        "query": 'Projection[Linear, "E HD"]',
        "key": 'Projection[Linear, "E_key GD"]',
        "value": 'Projection[Linear, "E_value GV"]',
    }
)
OUTPUT = INPUTS + declare({"output": 'Projection[Linear, "HV E_out"]'})


def attention_projections(
    parameters: MultiHeadAttention,
    projections: MultiHeadAttention,
    query: Array,
    key: Array,
    value: Array,
    num_heads: int,
) -> tuple[int, int, int]:
    """Check the projections of an attention and their inputs, and return (H, G, D) (MHA-1, MHA-2, ATT-7)."""
    natural("num_heads", num_heads, least=1)
    arrays = {"query": query, "key": key, "value": value}
    for name in ("query", "key", "value"):
        arrays |= arrays_of(name, getattr(projections, name))
    sizes = match(PROJECTIONS, arrays)
    query_columns, key_columns, value_columns = (sizes[letters] for letters in ("HD", "GD", "GV"))
    if query_columns % num_heads != 0 or query_columns == 0:
        refuse("query.weight", f"have columns that {num_heads} heads share equally", f"{query_columns} columns")
    width = query_columns // num_heads
    if key_columns % width != 0 or key_columns == 0:
        refuse("key.weight", f"have a multiple of the head width {width} as columns", f"{key_columns} columns")
    key_heads = key_columns // width
    check_groups(num_heads, key_heads)
    if value_columns % key_heads != 0:
        refuse("value.weight", f"have columns that {key_heads} key heads share equally", f"{value_columns} columns")
    for name, heads in (("query", num_heads), ("key", key_heads), ("value", key_heads)):
        given = getattr(parameters, name)
        if not isinstance(given, Linear) and len(given) != heads:
            refuse(name, f"have {heads} per-head projections", len(given))
    arrays |= arrays_of("output", projections.output)
    match(OUTPUT, arrays, HV=value_columns // key_heads * num_heads)
    return num_heads, key_heads, width


HEAD = declare({"weight": 'Float[Array, "I O"]', "bias": 'Float[Array, "O"] | None'})


def join_heads(projections: Sequence[Linear]) -> None:
    """Check per-head projections: of one shape, with biases in all or none (MHA-2)."""
    if not isinstance(projections, list | tuple):
        refuse("a projection", "be a Linear or a list of them", described(projections), TypeError)
    if len(projections) == 0:
        refuse("a projection", "have at least one head", "none")
    for i, head in enumerate(projections):
        structure(f"heads[{i}]", head, Linear)
    match_each("heads[{1}].{0}", HEAD, projections)
    for i, head in enumerate(projections):
        if (head.bias is None) != (projections[0].bias is None):
            refuse(f"heads[{i}].bias", "be there exactly if heads[0] has one", described(head.bias))


# --- norms ------------------------------------------------------------------------------------------------------------


@check_shapes
def norm(
    x: Float[Array, "..."], weight: Wide[Array, "*N"], bias: Wide[Array, "*N"] | None, eps: float
) -> tuple[int, ...]:
    """Check the arguments of a norm, and return the axes that the weight names, as negative numbers (NORM-1)."""
    axes = tuple(weight.shape)
    if len(axes) == 0 or tuple(x.shape[-len(axes) :]) != axes:
        refuse("weight", "have the shape of x's trailing axes", f"{list(axes)} for x {list(x.shape)}")
    if 0 in axes:
        refuse("weight", "have at least one element to normalise over", list(axes))
    epsilon(eps)
    return tuple(range(-len(axes), 0))


def rms_norm(x: Array, weight: Array, eps: float, plus_one: bool) -> tuple[int, ...]:
    """Check the arguments of rms_norm, as `norm` does (NORM-7, NORM-8)."""
    flag("plus_one", plus_one)
    return norm(x, weight, None, eps)


def standard_deviation_norm(x: Array, weight: Array, bias: Array | None, eps: float) -> tuple[int, ...]:
    """Check the arguments of a norm by the unbiased deviation, which needs two elements, as `norm` does (NORM-7)."""
    axes = norm(x, weight, bias, eps)
    if math.prod(weight.shape) < 2:
        refuse("weight", "have at least two elements for the unbiased deviation", 1)
    return axes


# --- positions and embedding ------------------------------------------------------------------------------------------


def positions(length: int, width: int, offset: int | Array, exponent: str, dtype: str) -> None:
    """Check the arguments of sinusoidal_positions (POS-1)."""
    natural("length", length)
    natural("width", width)
    distance("offset", offset)
    one_of("exponent", exponent, EXPONENTS)
    one_of("dtype", dtype, FLOATING, TypeError)


@check_shapes
def learned_positions(table: Float[Array, "N E"], length: int, offset: int | Array) -> None:
    """Check the arguments of learned_positions, whose table has a row for every position (POS-2)."""
    natural("length", length)
    start, rows = distance("offset", offset), table.shape[0]
    if start is not None and start + length > rows:
        refuse("table", f"have {start + length} rows for {length} positions from {start} on", rows)


def alibi_bias(num_heads: int, query_length: int, key_length: int, offset: int | Array, dtype: str) -> None:
    """Check the arguments of alibi_bias (POS-5)."""
    natural("num_heads", num_heads, least=1)
    natural("query_length", query_length)
    natural("key_length", key_length)
    distance("offset", offset)
    one_of("dtype", dtype, FLOATING, TypeError)


@check_shapes
def relative_position_bias(
    table: Float[Array, "N H"],
    query_length: int,
    key_length: int,
    bidirectional: bool,
    furthest: int,
    offset: int | Array,
) -> None:
    """Check the arguments of relative_position_bias: two buckets at least for each direction (POS-6)."""
    flag("bidirectional", bidirectional)
    natural("query_length", query_length)
    natural("key_length", key_length)
    distance("offset", offset)
    rows = table.shape[0]
    buckets, direction = (rows // 2, " for each direction") if bidirectional else (rows, "")
    if buckets < 2:
        refuse("table", f"have at least two buckets{direction}", f"{rows} rows")
    position("furthest", natural("furthest", furthest))
    alone = buckets // 2
    if furthest <= alone:
        refuse("furthest", f"be more than {alone}, the distances that have a bucket of their own", furthest)


@check_shapes
def embedding(table: Float[Array, "N E"], ids: Integer[Array, "..."]) -> None:
    """Check the arguments of embedding but for the values of `ids` (EMB-1)."""


def ids_within(ids: np.ndarray, rows: int, name: str = "ids") -> None:
    """Check that ids, where they can be read, are rows of the table (EMB-1)."""
    values_within(name, ids, 0, rows)


# --- feed-forward networks --------------------------------------------------------------------------------------------


def feed_forward(
    parameters: FeedForward, x: Array, activation: str, dropout_keep: Array | None, dropout_rate: float
) -> None:
    """Check the arguments of feed_forward (FFN-1)."""
    structure("parameters", parameters, FeedForward)
    check_network(x, parameters.inner, parameters.outer, activation, dropout_keep, dropout_rate)


def gated_feed_forward(
    parameters: GatedFeedForward, x: Array, activation: str, dropout_keep: Array | None, dropout_rate: float
) -> None:
    """Check the arguments of gated_feed_forward (FFN-2)."""
    structure("parameters", parameters, GatedFeedForward)
    check_network(x, parameters.inner, parameters.outer, activation, dropout_keep, dropout_rate)
    check_gate(x, parameters.inner, parameters.gate)


@check_shapes
def check_network(
    x: Float[Array, "... E"],
    inner: Projection[Linear, "E F"],
    outer: Projection[Linear, "F E_out"],
    activation: str,
    dropout_keep: Bool[Array, "... F"] | None,
    dropout_rate: float,
) -> None:
    """Check what both feed-forward networks have (FFN-1, FFN-2)."""
    one_of("activation", activation, CHOICES["activation"])
    check_rate(dropout_rate, dropout_keep)


@check_shapes
def check_gate(x: Float[Array, "... E"], inner: Projection[Linear, "E F"], gate: Projection[Linear, "E F"]) -> None:
    """Check a gate, which has the shape of the inner projection (FFN-2)."""


@check_shapes
def silu(x: Float[Array, "..."]) -> None:
    """Check the argument of silu (ACT-1)."""


# --- blocks and models ------------------------------------------------------------------------------------------------


HEAD_NORM = declare({"weight": 'Shaped[Array, "D"] | Shaped[Array, "HD"]'})


def block_attention(
    parameters: MultiHeadAttention, projections: MultiHeadAttention, x: Array, memory: Array, num_heads: int
) -> int:
    """Check a block's attention, whose queries and keys may have norms, and return the head width (MHA-1, NORM-8).

    Queries are projected from `x`, keys and values from `memory`; `projections` is as in `multi_head_attention`.
    """
    heads, key_heads, width = attention_projections(parameters, projections, x, memory, memory, num_heads)
    for name, count in (("query_norm", heads), ("key_norm", key_heads)):
        if (given := getattr(parameters, name)) is not None:
            structure(name, given, Norm)
            match(HEAD_NORM, given._asdict(), prefix=f"{name}.", D=width, HD=count * width)
    return width


NEEDS_ROTARY = "be there with latent attention, which rotates one key for all heads"


def latent_rotation(rotary: Rotary | None, rotation: Rotation | None) -> tuple[Rotary, Rotation]:
    """Check that a block's latent attention is rotated (MLA-1)."""
    if rotary is None or rotation is None:
        refuse("rotary", NEEDS_ROTARY, None)
    return rotary, rotation


def latent_scores(configuration: Configuration) -> None:
    """Check that a configuration asks nothing of scores and empty rows that latent attention does not have (MLA-1)."""
    for name, value in (("softcap", None), ("empty_rows", "zero")):
        if (given := getattr(configuration, name)) != value:
            refuse(f"configuration.{name}", f"be {value!r} with latent attention", repr(given))


def latent_block(
    parameters: LatentAttention, x: Array, memory: Array, configuration: Configuration, rotary: Rotary | None
) -> int:
    """Check a block's latent attention, and return the width that it rotates (MLA-1)."""
    latent_scores(configuration)
    if memory.shape != x.shape:
        refuse("memory", f"have the shape {list(x.shape)} of x in latent attention", list(memory.shape))
    if rotary is None:
        refuse("rotary", NEEDS_ROTARY, None)
    structure("parameters", parameters, LatentAttention)
    width = rotary.width
    if width is None:
        width = parameters.key_value_down.weight.shape[-1] - parameters.key_value_norm.weight.shape[-1]
    latent_attention(parameters, x, configuration.num_heads, None, replace(rotary, width=width), None, False)
    return width


def mixture_in_block(choice: ExpertChoice | None, inner_dropout: Dropout | None) -> None:
    """Check what a block's mixture of experts is called with beside its parameters (MOE-2)."""
    if choice is None:
        refuse("configuration.experts", "say how experts are chosen, with a mixture among the parameters", None)
    if inner_dropout is not None:
        refuse("dropout", "have no feed_forward.inner with a mixture of experts", "one")


def norms(parameters: EncoderBlock | DecoderBlock, configuration: Configuration) -> None:
    """Check that a block has the norms and cross-attention that its order asks for, and no others (BLK-1, BLK-3)."""
    problems = misplaced_norms(parameters, configuration.norm_order)
    if problems:
        raise ValueError(f"with norm_order={configuration.norm_order!r} {problems[0]}")


def summands(x: Array, y: Array) -> None:
    """Check two arrays that are added: a width of 1 would be stretched without a word."""
    whole, part = shape_of("x", x), shape_of("y", y)
    if whole[len(whole) - len(part) :] != part or len(part) > len(whole):
        refuse(f"what is added to {list(whole)}", "have its trailing axes", list(part))


def no_bias(bias: Array | None) -> None:
    """Refuse a bias of rms_norm, which adds none (NORM-7)."""
    if bias is not None:
        refuse("bias", "be None in rms_norm", described(bias))


def memory(parameters: DecoderBlock, given: Array | None) -> None:
    """Check that a decoder block is given the encoder's output exactly where it has cross-attention (TRF-1)."""
    if (parameters.cross_attention is None) != (given is None):
        expected = "be None without" if parameters.cross_attention is None else "be the encoder's output with"
        refuse("memory", f"{expected} cross-attention among the parameters", described(given))


@check_shapes
def embed(
    parameters: Embedding,
    tokens: Integer[Array, "B T"],
    token_types: Integer[Array, "B T"] | None,
    positions: str,
    offset: int | Array,
) -> None:
    """Check the arguments of a model's embedding, with the tables that `positions` asks for (TRF-1)."""
    structure("embedding", parameters, Embedding)
    if positions == "after_padding" and not (isinstance(offset, int) and offset == 0):
        refuse("offset", "be 0, without a cache, for positions 'after_padding', counted from the first token", offset)
    if (parameters.positions is None) == (positions in ("learned", "after_padding")):
        expected = "be None" if parameters.positions is not None else "be a table"
        refuse("embedding.positions", f"{expected} for positions {positions!r}", described(parameters.positions))
    if token_types is not None and parameters.token_types is None:
        refuse("token_types", "be None without a table of them among the parameters", described(token_types))


IMAGE = declare({"images": 'Float[Array, "B C height width"]'})
IMAGE_EMBEDDING = IMAGE + declare(
    {"patches": 'Projection[Linear, "CPP E"]', "class_token": 'Float[Array, "E"]', "positions": 'Float[Array, "T E"]'}
)


def embed_image(parameters: ImageEmbedding, images: Array, size: int | None) -> None:
    """Check the arguments of an embedding of images, which are cut into patches of a size (TRF-1)."""
    structure("embedding", parameters, ImageEmbedding)
    sizes = match(IMAGE, {"images": images})
    if size is None:
        refuse("patch_size", "be in the configuration of a model of images", size)
    channels, height, width = sizes["C"], sizes["height"], sizes["width"]
    if height % size or width % size:
        refuse("images", f"have sides that are multiples of patch_size={size}", f"{height} and {width}")
    arrays = parameters._asdict() | arrays_of("patches", parameters.patches) | {"images": images}
    match(IMAGE_EMBEDDING, arrays, CPP=channels * size * size, T=height // size * (width // size) + 1)


def stack(
    parameters: Encoder | Decoder,
    kind: type,
    x: Array,
    dropout: StackDropout,
    token_types: Array | None = None,
    memory: Array | None = None,
) -> None:
    """Check the arguments of an `Encoder` or `Decoder`, whose input its embedding decides: without one, vectors."""
    structure("parameters", parameters, kind)
    for i, block in enumerate(parameters.blocks):
        structure(f"blocks[{i}]", block, EncoderBlock if kind is Encoder else DecoderBlock)
    if not isinstance(parameters.embedding, Embedding) and token_types is not None:
        refuse("token_types", "be None without an embedding of tokens", described(token_types))
    if parameters.embedding is None:
        check_array("x", x, "Float", "B T E")
    elif isinstance(parameters.embedding, ImageEmbedding):
        check_array("images", x, "Float", "B C height width")
    else:
        check_array("tokens", x, "Integer", "B T")
    if memory is not None:
        check_array("memory", memory, "Shaped", "B S E", B=x.shape[0])
    sites(dropout, StackDropout)
    if dropout.blocks and len(dropout.blocks) != len(parameters.blocks):
        refuse("dropout", f"be for all {len(parameters.blocks)} blocks or none", f"{len(dropout.blocks)} blocks")


@check_shapes
def pool(x: Float[Array, "B T E"], pooling: str, keep: Bool[Array, "B T"] | None) -> None:
    """Check the arguments of pool but for the values of `keep` (TRF-1)."""
    one_of("pooling", pooling, ("max", "mean"))
