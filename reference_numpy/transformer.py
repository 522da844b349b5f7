"""Whole models, defined (rule TRF-1; "Attention Is All You Need", section 3).

An encoder-decoder, an encoder with a classifier on top or alone, and a decoder alone. What a model does that its
parameters do not say is a `Configuration`: which positions are added to the embedding, whether that is multiplied by
sqrt(E) (in the paper it is), what stands for padding, and how a block is made.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference_numpy.blocks import add, decoder_block, drop, encoder_block, normalize_if, rotations_of
from reference_numpy.dtypes import widen
from reference_numpy.embedding import check_rows, embedding
from reference_numpy.multi_head_attention import linear
from reference_numpy.positions import learned_positions, relative_position_bias, sinusoidal_positions
from reference_numpy.tape import operation
from specification import checks
from specification.configuration import Configuration
from specification.dropout import DecoderBlockDropout, EncoderBlockDropout, StackDropout, TransformerDropout
from specification.dtypes import dtype_name
from specification.masks import Causal, KeyPadding, Mask, Segments, both
from specification.parameters import (
    Classifier,
    Decoder,
    Embedding,
    Encoder,
    ImageEmbedding,
    LanguageModel,
    Linear,
    Transformer,
)

__all__ = ["classifier", "decoder", "embed", "embed_image", "encoder", "language_model", "pool", "transformer"]

# --- before and after the blocks --------------------------------------------------------------------------------------


def embed(
    parameters: Embedding,
    tokens: Integer[np.ndarray, "B T"],
    *,
    configuration: Configuration,
    token_types: Integer[np.ndarray, "B T"] | None = None,
    offset: int | Integer[np.ndarray, ""] = 0,
) -> Float[np.ndarray, "B T E"]:
    """Add up rows of the token table, positions and rows of the token types' table, and apply the norm if there is one.

    Args:
        parameters: The tables and the norm.
        tokens: [B, T], integers.
        configuration: What the parameters do not say.
        token_types: [B, T]; all of type 0 unless given, where the parameters have such a table.
        offset: The first token's position.

    Returns:
        A new array [B, T, E] in the dtype of the tables.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.embed(parameters, tokens, token_types, configuration.positions, offset)
    x = embedding(parameters.tokens, tokens, scaled=configuration.scaled_embedding)
    (_, T), E = tokens.shape, x.shape[-1]
    if parameters.token_types is not None:
        x = add(x, embedding(parameters.token_types, np.zeros_like(tokens) if token_types is None else token_types))
    if configuration.positions == "learned":
        x = add(x, learned_positions(parameters.positions, T, offset=offset))
    elif configuration.positions == "after_padding":
        assert configuration.position_padding is not None  # a Configuration sees to it
        positions = positions_after_padding(tokens, configuration.position_padding)
        check_rows(parameters.positions, positions, "positions after padding")
        x = add(x, embedding(parameters.positions, positions))
    elif configuration.positions != "none":
        exponent = "shared" if configuration.positions == "sinusoidal" else "doubled"
        x = add(x, sinusoidal_positions(T, E, offset=offset, exponent=exponent, dtype=dtype_name(x)))
    return normalize_if(parameters.norm, x, configuration)


def embed_image(
    parameters: ImageEmbedding, images: Float[np.ndarray, "B C height width"], *, configuration: Configuration
) -> Float[np.ndarray, "B T E"]:
    """Project the patches of images, put the class token before them, and add positions (TRF-1; arXiv 2010.11929).

    Args:
        parameters: The projection of patches, the class token and the positions.
        images: [B, C, height, width]. Patches go row by row; within one the columns go by channel, then row, then
            column.
        configuration: What the parameters do not say; height and width are multiples of its patch_size.

    Returns:
        A new array [B, T, E] in the dtype of images, where T is the number of patches and 1.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.embed_image(parameters, images, configuration.patch_size)
    assert configuration.patch_size is not None  # it is checked
    x = linear(parameters.patches, patches(images, configuration.patch_size))
    return add(prepend(parameters.class_token, x), parameters.positions)


@operation
def patches(images: Float[np.ndarray, "B C height width"], size: int) -> Float[np.ndarray, "B N CPP"]:
    """Squares of that size, row by row, each as one vector."""
    B, C, height, width = images.shape
    rows, columns = height // size, width // size
    squares = images.reshape(B, C, rows, size, columns, size).transpose(0, 2, 4, 1, 3, 5)
    return squares.reshape(B, rows * columns, C * size * size)


@operation
def prepend(row: Float[np.ndarray, "E"], x: Float[np.ndarray, "B N E"]) -> Float[np.ndarray, "B T E"]:
    """The row before every sequence."""
    first = np.broadcast_to(row, (len(x), 1, len(row)))
    return np.concatenate([first, x], axis=1)


def position_bias(
    parameters: Encoder | Decoder,
    configuration: Configuration,
    queries: int,
    keys: int,
    offset: int | Integer[np.ndarray, ""] = 0,
) -> Any:
    """The bias that all self-attentions of a stack share; None where it has no table of relative positions (POS-6)."""
    if parameters.relative_positions is None:
        return None
    return relative_position_bias(
        parameters.relative_positions, queries, keys,
        bidirectional=isinstance(parameters, Encoder), furthest=configuration.relative_furthest, offset=offset,
    )  # fmt: skip


def real_tokens(tokens: Integer[np.ndarray, "B T"], padding: int | None) -> Bool[np.ndarray, "B T"]:
    """Which of them are not padding."""
    return np.ones(tokens.shape, bool) if padding is None else tokens != padding


def positions_after_padding(tokens: Integer[np.ndarray, "B T"], padding: int) -> Integer[np.ndarray, "B T"]:
    """padding + n for the n-th token that is not padding, counted from 1, and padding for what is."""
    real = real_tokens(tokens, padding)
    return np.cumsum(real, axis=1) * real + padding


def padding_mask(tokens: Integer[np.ndarray, "B T"], padding: int | None) -> KeyPadding | None:
    """Keys that are real tokens; None where no id stands for padding."""
    return None if padding is None else KeyPadding(real_tokens(tokens, padding))


def real_queries(tokens: Integer[np.ndarray, "B Q"], padding: int | None, keys: int) -> Segments:
    """Queries that are real tokens see every key, and others none: segments, which need no array [Q, K]."""
    real = real_tokens(tokens, padding)
    return Segments(real.astype(int), np.ones((1, keys), int))


def target_mask(tokens: Integer[np.ndarray, "B T"], configuration: Configuration) -> Mask | None:
    """Who attends to whom in a decoder's self-attention, as far as the configuration says it (TRF-1)."""
    if configuration.target_mask == "none":
        return None
    if configuration.target_mask == "causal" or configuration.target_padding is None:
        return Causal()
    if configuration.target_mask == "causal and real keys":
        return Causal() & padding_mask(tokens, configuration.target_padding)
    return Causal() & real_queries(tokens, configuration.target_padding, tokens.shape[1])


@operation
def pool(
    x: Float[np.ndarray, "B T E"], pooling: str, keep: Bool[np.ndarray, "B T"] | None = None
) -> Float[np.ndarray, "B E"]:
    """Take the largest or the mean of every feature over the positions that are kept (TRF-1).

    Args:
        x: [B, T, E].
        pooling: "max" or "mean".
        keep: [B, T], True = count the position. None counts all.

    Returns:
        A new array [B, E] in the dtype of x, 0 where there is no position. Of equal maxima the first receives the
        gradient.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.pool(x, pooling, keep)
    wide, shape = widen(x), x.shape[:2]
    keep = np.ones(shape, bool) if keep is None else keep
    count = keep.sum(axis=1)[:, None]
    if pooling == "mean":
        total = np.sum(np.where(keep[..., None], wide, 0), axis=1)
        return (total / np.maximum(count, 1)).astype(x.dtype)
    if shape[1] == 0:
        return np.zeros((shape[0], x.shape[2]), x.dtype)
    where = first_largest(wide, keep)
    return np.where(count == 0, 0, np.take_along_axis(x, where[:, None], axis=1)[:, 0]).astype(x.dtype)


def first_largest(x: Float[np.ndarray, "B T E"], keep: Bool[np.ndarray, "B T"]) -> Integer[np.ndarray, "B E"]:
    """The first position with the largest value among those that are kept, also where that is -inf."""
    where = np.argmax(np.where(keep[..., None], x, -np.inf), axis=1)
    found = np.take_along_axis(keep, where, axis=1)
    return np.where(found, where, np.argmax(keep, axis=1)[:, None])


@operation
def log_softmax(x: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
    """x - log(sum(exp(x))) over the last axis."""
    wide = widen(x)
    shifted = wide - np.max(wide, axis=-1, keepdims=True)
    return (shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))).astype(x.dtype)


def output_layer(parameters: Linear, x: Float[np.ndarray, "... E"], configuration: Configuration) -> Any:
    """The output layer, with x scaled before it and its result capped after it where the configuration says so."""
    x = shrink(x) if configuration.scaled_output else x
    output = linear(parameters, x)
    return output if configuration.output_softcap is None else squeeze(output, configuration.output_softcap)


@operation
def shrink(x: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "... E"]:
    """x / sqrt(E)."""
    return (widen(x) * (1 / math.sqrt(x.shape[-1]))).astype(x.dtype)


@operation
def squeeze(x: Float[np.ndarray, "..."], cap: float) -> Float[np.ndarray, "..."]:
    """cap * tanh(x / cap)."""
    return (float(cap) * np.tanh(widen(x) / float(cap))).astype(x.dtype)


# --- models -----------------------------------------------------------------------------------------------------------


def encoder(
    parameters: Encoder,
    x: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"] | Float[np.ndarray, "B C height width"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    token_types: Integer[np.ndarray, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[np.ndarray, "B T E"]:
    """Apply every block in turn, and the last norm (TRF-1).

    Args:
        parameters: Embedding, blocks and norm.
        x: [B, T] tokens, [B, C, height, width] images where that is what the parameters embed, or [B, T, E] where they
            have no embedding.
        configuration: What the parameters do not say.
        mask: Counts beside that of the source's padding, which the configuration knows.
        token_types: [B, T], as in `embed`.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, T, E].

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.stack(parameters, Encoder, x, dropout, token_types)
    if isinstance(parameters.embedding, ImageEmbedding):
        x = embed_image(parameters.embedding, x, configuration=configuration)
    elif parameters.embedding is not None:
        mask = both(mask, padding_mask(x, configuration.source_padding))
        x = embed(parameters.embedding, x, configuration=configuration, token_types=token_types)
    x = drop(x, dropout.embedding)
    options: Any = {"configuration": configuration, "mask": mask}
    options["bias"] = position_bias(parameters, configuration, x.shape[1], x.shape[1])
    layers = configuration.layers(len(parameters.blocks))
    sites = dropout.blocks or [EncoderBlockDropout()] * len(parameters.blocks)
    rotations = rotations_of([block.attention for block in parameters.blocks], layers, x, configuration)
    for block, layer, rotation, dropped in zip(parameters.blocks, layers, rotations, sites, strict=True):
        x = encoder_block(block, x, layer=layer, rotation=rotation, dropout=dropped, **options)
    return normalize_if(parameters.norm, x, configuration)


def decoder(
    parameters: Decoder,
    x: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    memory: Float[np.ndarray, "B S E"] | None = None,
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    memory_mask: Mask | Bool[np.ndarray, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[np.ndarray, "B T E"]:
    """Apply every block in turn, and the last norm (TRF-1).

    Args:
        parameters: Embedding, blocks and norm.
        x: [B, T] tokens, or [B, T, E] where the parameters have no embedding.
        memory: [B, S, E], the encoder's output, or None.
        configuration: What the parameters do not say.
        mask: Counts beside what the configuration's target_mask says.
        memory_mask: Of the attention to memory.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, T, E].

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.stack(parameters, Decoder, x, dropout, memory=memory)
    if parameters.embedding is not None:
        mask = both(mask, target_mask(x, configuration))
        x = embed(parameters.embedding, x, configuration=configuration)
    elif configuration.target_mask != "none":
        mask = both(mask, Causal())
    x = drop(x, dropout.embedding)
    options: Any = {"configuration": configuration, "mask": mask, "memory_mask": memory_mask}
    options["bias"] = position_bias(parameters, configuration, x.shape[1], x.shape[1])
    layers = configuration.layers(len(parameters.blocks))
    sites = dropout.blocks or [DecoderBlockDropout()] * len(parameters.blocks)
    rotations = rotations_of([block.self_attention for block in parameters.blocks], layers, x, configuration)
    for block, layer, rotation, dropped in zip(parameters.blocks, layers, rotations, sites, strict=True):
        x = decoder_block(block, x, memory, layer=layer, rotation=rotation, dropout=dropped, **options)
    return normalize_if(parameters.norm, x, configuration)


def transformer(
    parameters: Transformer,
    source: Float[np.ndarray, "B S E"] | Integer[np.ndarray, "B S"],
    target: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    *,
    configuration: Configuration,
    source_mask: Mask | Bool[np.ndarray, "..."] | None = None,
    target_mask: Mask | Bool[np.ndarray, "..."] | None = None,
    memory_mask: Mask | Bool[np.ndarray, "..."] | None = None,
    dropout: TransformerDropout = TransformerDropout(),
) -> Float[np.ndarray, "B T N"]:
    """Compute output(decoder(target, encoder(source))) (TRF-1).

    Args:
        parameters: Encoder, decoder and output layer.
        source: [B, S] tokens, or [B, S, E] where the parameters have no embedding.
        target: [B, T] tokens, or [B, T, E] where the parameters have no embedding.
        configuration: What the parameters do not say.
        source_mask, target_mask: Of the two self-attentions, beside what the configuration says of padding.
        memory_mask: Of the attention to the encoder's output, beside the same.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, T, N]; what the decoder gives, [B, T, E], where there is no output layer.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, Transformer)
    checks.sites(dropout, TransformerDropout)
    memory = encoder(parameters.encoder, source, configuration=configuration, mask=source_mask, dropout=dropout.encoder)
    if parameters.encoder.embedding is not None:
        memory_mask = both(memory_mask, padding_mask(source, configuration.source_padding))
    x = decoder(
        parameters.decoder, target, memory,
        configuration=configuration, mask=target_mask, memory_mask=memory_mask, dropout=dropout.decoder,
    )  # fmt: skip
    return x if parameters.output is None else output_layer(parameters.output, x, configuration)


def classifier(
    parameters: Classifier,
    tokens: Integer[np.ndarray, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    keep: Bool[np.ndarray, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[np.ndarray, "B C"]:
    """Compute log-softmax(output(pool(encoder(tokens)))) (TRF-1).

    Args:
        parameters: Encoder and output layer.
        tokens: [B, T], integers.
        configuration: What the parameters do not say.
        mask: As in `encoder`.
        keep: [B, T], the positions that are pooled; all unless given.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, C].

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, Classifier)
    x = encoder(parameters.encoder, tokens, configuration=configuration, mask=mask, dropout=dropout)
    return log_softmax(output_layer(parameters.output, pool(x, configuration.pooling, keep), configuration))


def language_model(
    parameters: LanguageModel,
    tokens: Integer[np.ndarray, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[np.ndarray, "B T N"]:
    """Compute output(decoder(tokens)), for every position the logits of the token that comes next (TRF-1).

    Args:
        parameters: Decoder and output layer.
        tokens: [B, T], integers.
        configuration: What the parameters do not say.
        mask: As in `decoder`.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, T, N].

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, LanguageModel)
    x = decoder(parameters.decoder, tokens, configuration=configuration, mask=mask, dropout=dropout)
    return output_layer(parameters.output, x, configuration)
