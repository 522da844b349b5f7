"""Whole models in JAX (rule TRF-1), as `reference_numpy/transformer.py` defines them."""

from __future__ import annotations

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from jax_impl.blocks import add, decoder_block, drop, encoder_block, normalize_if, rotations_of
from jax_impl.dtypes import cast, require_dtype, widen
from jax_impl.embedding import check_rows, embedding
from jax_impl.masks import checked_mask
from jax_impl.multi_head_attention import linear
from jax_impl.positions import learned_positions, relative_position_bias, sinusoidal_positions
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
    tokens: Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    token_types: Integer[jax.Array, "B T"] | None = None,
    offset: int | Integer[jax.Array, ""] = 0,
) -> Float[jax.Array, "B T E"]:
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
        x = add(x, embedding(parameters.token_types, jnp.zeros_like(tokens) if token_types is None else token_types))
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
    parameters: ImageEmbedding, images: Float[jax.Array, "B C height width"], *, configuration: Configuration
) -> Float[jax.Array, "B T E"]:
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


def patches(images: Float[jax.Array, "B C height width"], size: int) -> Float[jax.Array, "B N CPP"]:
    """Squares of that size, row by row, each as one vector."""
    B, C, height, width = images.shape
    rows, columns = height // size, width // size
    squares = images.reshape(B, C, rows, size, columns, size).transpose(0, 2, 4, 1, 3, 5)
    return squares.reshape(B, rows * columns, C * size * size)


def prepend(row: Float[jax.Array, "E"], x: Float[jax.Array, "B N E"]) -> Float[jax.Array, "B T E"]:
    """The row before every sequence."""
    first = jnp.broadcast_to(row, (len(x), 1, len(row)))
    return jnp.concatenate([first, x], axis=1)


def position_bias(
    parameters: Encoder | Decoder,
    configuration: Configuration,
    queries: int,
    keys: int,
    offset: int | Integer[jax.Array, ""] = 0,
) -> Any:
    """The bias that all self-attentions of a stack share; None where it has no table of relative positions (POS-6)."""
    if parameters.relative_positions is None:
        return None
    return relative_position_bias(
        parameters.relative_positions, queries, keys,
        bidirectional=isinstance(parameters, Encoder), furthest=configuration.relative_furthest, offset=offset,
    )  # fmt: skip


def real_tokens(tokens: Integer[jax.Array, "B T"], padding: int | None) -> Bool[jax.Array, "B T"]:
    """Which of them are not padding."""
    if padding is None:
        return jnp.ones(tokens.shape, bool)
    # Widened, because the id of padding would wrap around in a narrow dtype.
    return tokens.astype(int) != padding


def positions_after_padding(tokens: Integer[jax.Array, "B T"], padding: int) -> Integer[jax.Array, "B T"]:
    """padding + n for the n-th token that is not padding, counted from 1, and padding for what is."""
    real = real_tokens(tokens, padding)
    return jnp.cumsum(real, axis=1) * real + padding


def padding_mask(tokens: Integer[jax.Array, "B T"], padding: int | None) -> KeyPadding | None:
    """Keys that are real tokens; None where no id stands for padding."""
    return None if padding is None else KeyPadding(real_tokens(tokens, padding))


def real_queries(tokens: Integer[jax.Array, "B Q"], padding: int | None, keys: int) -> Segments:
    """Queries that are real tokens see every key, and others none: segments, which need no array [Q, K]."""
    real = real_tokens(tokens, padding)
    return Segments(real.astype(int), jnp.ones((1, keys), int))


def target_mask(tokens: Integer[jax.Array, "B T"], configuration: Configuration) -> Mask | None:
    """Who attends to whom in a decoder's self-attention, as far as the configuration says it (TRF-1)."""
    if configuration.target_mask == "none":
        return None
    if configuration.target_mask == "causal" or configuration.target_padding is None:
        return Causal()
    if configuration.target_mask == "causal and real keys":
        return Causal() & padding_mask(tokens, configuration.target_padding)
    return Causal() & real_queries(tokens, configuration.target_padding, tokens.shape[1])


def pool(
    x: Float[jax.Array, "B T E"], pooling: str, keep: Bool[jax.Array, "B T"] | None = None
) -> Float[jax.Array, "B E"]:
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
    keep = jnp.ones(shape, bool) if keep is None else keep
    count = jnp.sum(keep, axis=1)[:, None]
    if pooling == "mean":
        total = jnp.sum(jnp.where(keep[..., None], wide, 0), axis=1)
        return cast(total / jnp.maximum(count, 1), x.dtype)
    if shape[1] == 0:
        return jnp.zeros((shape[0], x.shape[2]), x.dtype)
    where = first_largest(wide, keep)
    return cast(jnp.where(count == 0, 0, jnp.take_along_axis(wide, where[:, None], axis=1)[:, 0]), x.dtype)


def first_largest(x: Float[jax.Array, "B T E"], keep: Bool[jax.Array, "B T"]) -> Integer[jax.Array, "B E"]:
    """The first position with the largest value among those that are kept, also where that is -inf."""
    where = jnp.argmax(jnp.where(keep[..., None], x, -jnp.inf), axis=1)
    found = jnp.take_along_axis(keep, where, axis=1)
    return jnp.where(found, where, jnp.argmax(keep, axis=1)[:, None])


def log_softmax(x: Float[jax.Array, "... N"]) -> Float[jax.Array, "... N"]:
    """x - log(sum(exp(x))) over the last axis."""
    return cast(jax.nn.log_softmax(widen(x), axis=-1), x.dtype)


def readable_mask(
    mask: Mask | Bool[jax.Array, "..."] | None, x: jax.Array, memory: jax.Array, configuration: Configuration
) -> Any:
    """The mask, once what it holds is known to fit: inside a block, which is compiled, it can no longer be read.

    Nor can what x and memory were before they were handed over, where float64 may have been narrowed; nor the rates of
    dropout, so that a block with dropout is not compiled as a whole.
    """
    for array in (x, memory):
        require_dtype(dtype_name(array))
    return checked_mask(mask, x.shape[1], memory.shape[1], x.shape[0], configuration.num_heads)


def output_layer(parameters: Linear, x: Float[jax.Array, "... E"], configuration: Configuration) -> Any:
    """The output layer, with x scaled before it and its result capped after it where the configuration says so."""
    x = shrink(x) if configuration.scaled_output else x
    output = linear(parameters, x)
    return output if configuration.output_softcap is None else squeeze(output, configuration.output_softcap)


def shrink(x: Float[jax.Array, "... E"]) -> Float[jax.Array, "... E"]:
    """x / sqrt(E)."""
    return cast(widen(x) * (1 / math.sqrt(x.shape[-1])), x.dtype)


def squeeze(x: Float[jax.Array, "..."], cap: float) -> Float[jax.Array, "..."]:
    """cap * tanh(x / cap)."""
    return cast(float(cap) * jnp.tanh(widen(x) / float(cap)), x.dtype)


# --- models -----------------------------------------------------------------------------------------------------------


def encoder(
    parameters: Encoder,
    x: Float[jax.Array, "B T E"] | Integer[jax.Array, "B T"] | Float[jax.Array, "B C height width"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    token_types: Integer[jax.Array, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[jax.Array, "B T E"]:
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
    mask = readable_mask(mask, x, x, configuration)
    call: Any = inspect.unwrap(encoder_block) if dropout.blocks else encoder_block
    options: Any = {"configuration": configuration, "mask": mask}
    options["bias"] = position_bias(parameters, configuration, x.shape[1], x.shape[1])
    layers = configuration.layers(len(parameters.blocks))
    sites = dropout.blocks or [EncoderBlockDropout()] * len(parameters.blocks)
    rotations = rotations_of([block.attention for block in parameters.blocks], layers, x, configuration)
    for block, layer, rotation, dropped in zip(parameters.blocks, layers, rotations, sites, strict=True):
        x = call(block, x, layer=layer, rotation=rotation, dropout=dropped, **options)
    return normalize_if(parameters.norm, x, configuration)


def decoder(
    parameters: Decoder,
    x: Float[jax.Array, "B T E"] | Integer[jax.Array, "B T"],
    memory: Float[jax.Array, "B S E"] | None = None,
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    memory_mask: Mask | Bool[jax.Array, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[jax.Array, "B T E"]:
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
    mask = readable_mask(mask, x, x, configuration)
    memory_mask = None if memory is None else readable_mask(memory_mask, x, memory, configuration)
    call: Any = inspect.unwrap(decoder_block) if dropout.blocks else decoder_block
    options: Any = {"configuration": configuration, "mask": mask, "memory_mask": memory_mask}
    options["bias"] = position_bias(parameters, configuration, x.shape[1], x.shape[1])
    layers = configuration.layers(len(parameters.blocks))
    sites = dropout.blocks or [DecoderBlockDropout()] * len(parameters.blocks)
    rotations = rotations_of([block.self_attention for block in parameters.blocks], layers, x, configuration)
    for block, layer, rotation, dropped in zip(parameters.blocks, layers, rotations, sites, strict=True):
        x = call(block, x, memory, layer=layer, rotation=rotation, dropout=dropped, **options)
    return normalize_if(parameters.norm, x, configuration)


def transformer(
    parameters: Transformer,
    source: Float[jax.Array, "B S E"] | Integer[jax.Array, "B S"],
    target: Float[jax.Array, "B T E"] | Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    source_mask: Mask | Bool[jax.Array, "..."] | None = None,
    target_mask: Mask | Bool[jax.Array, "..."] | None = None,
    memory_mask: Mask | Bool[jax.Array, "..."] | None = None,
    dropout: TransformerDropout = TransformerDropout(),
) -> Float[jax.Array, "B T N"]:
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
    tokens: Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    keep: Bool[jax.Array, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[jax.Array, "B C"]:
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
    tokens: Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Float[jax.Array, "B T N"]:
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
