"""Parameter structures: NamedTuples of arrays, nested the way the calls are.

They hold NumPy arrays, torch tensors or JAX arrays alike (for JAX they are pytrees as they stand). Sizes are not
stored: they come from the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from specification.arrays import Array

    Tree: TypeAlias = Array | float | Mapping[Any, "Tree"] | Sequence["Tree"] | None
else:
    Tree = object  # annotations that are checked while a program runs can hold no type that contains itself

__all__ = [
    "Classifier", "Decoder", "DecoderBlock", "Embedding", "Encoder", "EncoderBlock", "FeedForward", "GatedFeedForward",
    "LanguageModel", "LatentAttention", "Linear", "MixtureOfExperts", "MultiHeadAttention", "Norm", "Transformer",
]  # fmt: skip

Parameters = TypeVar("Parameters", bound=Tree)
"""A tree, any nesting of NamedTuples, dicts, lists, tuples and arrays, where what is returned has the same form."""


class Linear(NamedTuple):
    """x @ weight + bias, with weight [in, out] and bias [out] or None."""

    weight: Any
    bias: Any = None


class Norm(NamedTuple):
    """weight and bias of a layer norm or one of its variants, [E] each; bias may be None."""

    weight: Any
    bias: Any = None


class MultiHeadAttention(NamedTuple):
    """The four projections of multi-head attention (MHA-1).

    query [E, H*D], key [E, G*D], value [E, G*V], output [H*V, E_out]. Each of the first three may instead be a list of
    per-head projections in head order (MHA-2).

    A block's attention may have more: norms of projected queries and keys before they are rotated, each of every head
    by itself ([D]) or of all heads together ([H*D], [G*D]) (NORM-8); and sinks [H] (ATT-5).
    """

    query: Linear | list[Linear]
    key: Linear | list[Linear]
    value: Linear | list[Linear]
    output: Linear
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    sinks: Any = None


class LatentAttention(NamedTuple):
    """The projections and norms of latent attention, whose keys and values come from one vector for a token (MLA-1).

    query [E or Cq, H*(D+R)], in each head D columns that are not rotated, then R that are; key_value_down [E, C+R], the
    latent, then the one rotated key of all heads; key_value_norm [C]; key_value_up [C, H*(D+V)], in each head D columns
    of the key, then V of the value, without a bias; output [H*V, E_out]. query_down [E, Cq] and query_norm [Cq] are
    there where queries are compressed too.
    """

    query: Linear
    key_value_down: Linear
    key_value_norm: Norm
    key_value_up: Linear
    output: Linear
    query_down: Linear | None = None
    query_norm: Norm | None = None


class FeedForward(NamedTuple):
    """The two projections of the feed-forward network (FFN-1): inner [E, F], outer [F, E_out]."""

    inner: Linear
    outer: Linear


class GatedFeedForward(NamedTuple):
    """The three projections of the gated feed-forward network (FFN-2): gate and inner [E, F], outer [F, E_out]."""

    gate: Linear
    inner: Linear
    outer: Linear


class MixtureOfExperts(NamedTuple):
    """A router and the feed-forward networks among which it chooses (MOE-1 to MOE-5).

    router: weight [E, X], bias [X] or None. experts: X networks of one form, with an axis X before the axes of every
    weight and bias. choice_bias: [X], added to the scores where experts are chosen, and not where they are weighed.
    shared: one network of the same kind, without that axis, which every token passes.
    """

    router: Linear
    experts: FeedForward | GatedFeedForward
    choice_bias: Any = None
    shared: FeedForward | GatedFeedForward | None = None


class EncoderBlock(NamedTuple):
    """Self-attention and feed-forward, each with the norm of its residual connection (BLK-1).

    A norm is None where a block has none there: attention without one, as in ModernBERT's first block, or one norm for
    two parallel sublayers (BLK-3). output norms: of what a sublayer gives, before it is added, where there are two.
    """

    attention: MultiHeadAttention
    attention_norm: Norm | None
    feed_forward: FeedForward | GatedFeedForward
    feed_forward_norm: Norm | None
    attention_output_norm: Norm | None = None
    feed_forward_output_norm: Norm | None = None


class DecoderBlock(NamedTuple):
    """Self-attention, attention to the encoder's output, and feed-forward, each with its norm (BLK-1).

    The two of the cross-attention are None in a decoder that has no encoder.
    """

    self_attention: MultiHeadAttention | LatentAttention
    self_attention_norm: Norm | None
    cross_attention: MultiHeadAttention | None
    cross_attention_norm: Norm | None
    feed_forward: FeedForward | GatedFeedForward | MixtureOfExperts
    feed_forward_norm: Norm | None
    self_attention_output_norm: Norm | None = None
    feed_forward_output_norm: Norm | None = None


class Embedding(NamedTuple):
    """What is added up for a token: a row of `tokens` [vocabulary, E], and of the others where there are any.

    positions [longest sequence, E], token_types [types, E]; norm is applied to the sum.
    """

    tokens: Any
    positions: Any = None
    token_types: Any = None
    norm: Norm | None = None


class ImageEmbedding(NamedTuple):
    """What makes a sequence of an image: patches [channels * P * P, E], a class token [E], positions [N + 1, E].

    The columns of a patch go by channel, then row, then column. The class token comes first.
    """

    patches: Linear
    class_token: Any
    positions: Any


class Encoder(NamedTuple):
    """A stack of encoder blocks, with what stands before and after it.

    embedding: None where the input is embedded already. norm: the one after the last block, where there is one.
    relative_positions: the table [buckets, H] of a bias that all blocks' self-attentions share (POS-6).
    """

    embedding: Embedding | ImageEmbedding | None
    blocks: list[EncoderBlock]
    norm: Norm | None = None
    relative_positions: Any = None


class Decoder(NamedTuple):
    """As `Encoder`, of decoder blocks."""

    embedding: Embedding | None
    blocks: list[DecoderBlock]
    norm: Norm | None = None
    relative_positions: Any = None


class Transformer(NamedTuple):
    """Encoder and decoder (TRF-1); output [E, vocabulary] is None where the decoder's own output is asked for."""

    encoder: Encoder
    decoder: Decoder
    output: Linear | None = None


class Classifier(NamedTuple):
    """An encoder whose positions are pooled into one vector, and output [E, classes]."""

    encoder: Encoder
    output: Linear


class LanguageModel(NamedTuple):
    """A decoder without an encoder, and output [E, vocabulary]."""

    decoder: Decoder
    output: Linear


ModelParameters: TypeAlias = (
    Transformer | Classifier | LanguageModel | Encoder | Decoder | EncoderBlock | DecoderBlock | MultiHeadAttention
)
"""What a model may be made of, each a structure that can be called by itself."""


def mapped(function: Callable[..., Any], first: Tree, *others: Any) -> Any:
    """Apply a function to the arrays that stand in the same place of several structures of one form.

    Structures are any nesting of NamedTuples, dicts, lists and tuples. Where the first is None, the result is None.
    """
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: mapped(function, part, *(other[key] for other in others)) for key, part in first.items()}
    if isinstance(first, list | tuple):
        parts = [mapped(function, *same) for same in zip(first, *others, strict=True)]
        return rebuild(first, parts)
    return function(first, *others)


def rebuild(structure: Sequence[Tree], parts: list[Any]) -> Any:
    """Return a NamedTuple, list or tuple like the structure, made of other parts."""
    kind: Callable[..., Any] = type(structure)
    return kind(*parts) if hasattr(structure, "_fields") else kind(parts)


def leaves(tree: Tree, path: str = "") -> dict[str, Any]:
    """Return the arrays of a structure, as `mapped` takes it, in its order by their paths; `path` is its own."""
    if tree is None:
        return {}
    if isinstance(tree, dict):
        parts = {f"{path}[{key!r}]": part for key, part in tree.items()}
    elif (names := getattr(tree, "_fields", None)) is not None:
        parts = {f"{path}.{name}": getattr(tree, name) for name in names}
    elif isinstance(tree, list | tuple):
        parts = {f"{path}[{i}]": part for i, part in enumerate(tree)}
    else:
        return {path: tree}
    return {name: array for path, part in parts.items() for name, array in leaves(part, path).items()}
