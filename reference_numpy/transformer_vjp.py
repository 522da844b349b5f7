"""Gradients of the models in `transformer.py`, by hand.

Each `<model>_vjp` takes the model's own arguments and the cotangent of its result. The forward pass is walked once
more, keeping what every block was given, and then back, block by block. An input that is embedded already receives a
gradient; for tokens it is the tables that do. Memory receives something from every decoder block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference_numpy.blocks import add, decoder_block, drop, encoder_block, rotations_of
from reference_numpy.blocks_vjp import decoder_block_vjp, encoder_block_vjp, normalize_if_vjp, normalize_vjp
from reference_numpy.dtypes import widen
from reference_numpy.embedding_vjp import embedding_vjp
from reference_numpy.multi_head_attention import linear
from reference_numpy.multi_head_attention_vjp import linear_vjp
from reference_numpy.positions_vjp import learned_positions_vjp, relative_position_bias_vjp
from reference_numpy.transformer import (
    decoder,
    embed,
    embed_image,
    encoder,
    first_largest,
    log_softmax,
    output_layer,
    padding_mask,
    patches,
    pool,
    position_bias,
    positions_after_padding,
    shrink,
    sites_of,
    target_mask,
)
from specification import checks
from specification.configuration import Configuration
from specification.dropout import DecoderBlockDropout, EncoderBlockDropout, StackDropout, TransformerDropout
from specification.dtypes import dtype_name
from specification.masks import Causal, both
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

__all__ = [
    "DecoderGradients",
    "EncoderGradients",
    "ImageEmbeddingGradients",
    "TransformerGradients",
    "classifier_vjp",
    "decoder_vjp",
    "embed_image_vjp",
    "embed_vjp",
    "encoder_vjp",
    "language_model_vjp",
    "pool_vjp",
    "transformer_vjp",
]


class ImageEmbeddingGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments."""

    parameters: ImageEmbedding
    images: Any


class EncoderGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments; x is None where it was tokens."""

    parameters: Encoder
    x: Any


class DecoderGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments; None for tokens and for a memory that was not given."""

    parameters: Decoder
    x: Any
    memory: Any


class TransformerGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments; None for tokens."""

    parameters: Transformer
    source: Any
    target: Any


# --- before and after the blocks --------------------------------------------------------------------------------------


def embed_vjp(
    parameters: Embedding,
    tokens: Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    token_types: Integer[np.ndarray, "B T"] | None = None,
    offset: int = 0,
) -> Embedding:
    """Compute the gradients of the tables and the norm (ATT-12).

    Args:
        parameters, tokens: As in `embed`.
        cotangent: Gradient with respect to the result of `embed`, [B, T, E], in its dtype.
        configuration, token_types, offset: As in `embed`.

    Returns:
        Gradients in the structure, shapes and dtypes of parameters.

    Raises:
        TypeError, ValueError: As in `embed`, and for a cotangent in another shape or dtype than its result.
    """
    norm = None
    if parameters.norm is not None:
        total = embed(
            parameters._replace(norm=None), tokens,
            configuration=configuration, token_types=token_types, offset=offset,
        )  # fmt: skip
        norm, cotangent = normalize_vjp(parameters.norm, total, cotangent, configuration)
    positions = types = None
    if configuration.positions == "learned":
        rows = batch_sum(cotangent)
        positions = learned_positions_vjp(parameters.positions, tokens.shape[1], rows, offset=offset)
    elif configuration.positions == "after_padding":
        places = positions_after_padding(tokens, configuration.position_padding)
        positions = embedding_vjp(parameters.positions, places, cotangent)
    if parameters.token_types is not None:
        ids = np.zeros_like(tokens) if token_types is None else token_types
        types = embedding_vjp(parameters.token_types, ids, cotangent)
    table = embedding_vjp(parameters.tokens, tokens, cotangent, scaled=configuration.scaled_embedding)
    return Embedding(table, positions, types, norm)


def embed_image_vjp(
    parameters: ImageEmbedding,
    images: Float[np.ndarray, "B C height width"],
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
) -> ImageEmbeddingGradients:
    """Compute the gradients of parameters and images (ATT-12).

    Args:
        parameters, images: As in `embed_image`.
        cotangent: Gradient with respect to the result of `embed_image`, [B, T, E], in its dtype.
        configuration: As in `embed_image`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `embed_image`, and for a cotangent in another shape or dtype than its result.
    """
    checks.embed_image(parameters, images, configuration.patch_size)
    checks.cotangent(cotangent, (len(images), *parameters.positions.shape), dtype_name(images))
    positions = batch_sum(cotangent)
    columns = patches(images, configuration.patch_size)
    projection, columns_gradient = linear_vjp(parameters.patches, columns, cotangent[:, 1:])
    images_gradient = patches_vjp(columns_gradient, images.shape, configuration.patch_size)
    return ImageEmbeddingGradients(ImageEmbedding(projection, positions[0].copy(), positions), images_gradient)


def patches_vjp(
    cotangent: Float[np.ndarray, "B N CPP"], shape: tuple[int, ...], size: Any
) -> Float[np.ndarray, "B C height width"]:
    """Gradient of images of that shape, for `patches`: every pixel's own."""
    B, C, height, width = shape
    squares = cotangent.reshape(B, height // size, width // size, C, size, size)
    return squares.transpose(0, 3, 1, 4, 2, 5).reshape(shape)


def batch_sum(x: Float[np.ndarray, "B T E"]) -> Float[np.ndarray, "T E"]:
    """What all sequences give to what they share."""
    return np.sum(widen(x), axis=0).astype(x.dtype)


def position_bias_vjp(parameters: Encoder | Decoder, gradients: list[Any], configuration: Configuration) -> Any:
    """Gradient of the table of relative positions, which the bias of every block has a part in."""
    if parameters.relative_positions is None:
        return None
    if not gradients:
        return np.zeros_like(parameters.relative_positions)
    total = np.zeros_like(gradients[0])
    for gradient in gradients:
        total = add(total, gradient)
    length, table = total.shape[-1], parameters.relative_positions
    return relative_position_bias_vjp(
        table, length, length, total,
        bidirectional=isinstance(parameters, Encoder), furthest=configuration.relative_furthest,
    )  # fmt: skip


def pool_vjp(
    x: Float[np.ndarray, "B T E"],
    pooling: str,
    keep: Bool[np.ndarray, "B T"] | None,
    cotangent: Float[np.ndarray, "B E"],
) -> Float[np.ndarray, "B T E"]:
    """Compute the gradient of x: shared equally by the positions, or all of it at the first of the largest.

    Args:
        x, pooling, keep: As in `pool`.
        cotangent: Gradient with respect to the result of `pool`, [B, E], in its dtype.

    Returns:
        A new array like x.

    Raises:
        TypeError, ValueError: As in `pool`, and for a cotangent in another shape or dtype than its result.
    """
    keep = np.ones(x.shape[:2], bool) if keep is None else keep
    wide = widen(cotangent)[:, None]
    if pooling == "mean":
        return np.where(keep[..., None], wide / np.maximum(keep.sum(axis=1), 1)[:, None, None], 0).astype(x.dtype)
    if x.shape[1] == 0:
        return np.zeros_like(x)
    where = first_largest(widen(x), keep)
    chosen = np.arange(x.shape[1])[:, None] == where[:, None]
    return np.where(chosen & keep[..., None], wide, 0).astype(x.dtype)


def log_softmax_vjp(x: Float[np.ndarray, "... N"], cotangent: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
    """Gradient of x, for `log_softmax`: y_bar - softmax(x) * sum(y_bar)."""
    wide = widen(cotangent)
    weights = np.exp(log_softmax(widen(x)))
    return (wide - weights * np.sum(wide, axis=-1, keepdims=True)).astype(x.dtype)


def output_layer_vjp(
    parameters: Linear,
    x: Float[np.ndarray, "... E"],
    cotangent: Float[np.ndarray, "... N"],
    configuration: Configuration,
) -> tuple[Linear, Float[np.ndarray, "... E"]]:
    """Gradients of the parameters and of x, for `output_layer`."""
    checks.cotangent(cotangent, (*x.shape[:-1], parameters.weight.shape[1]), dtype_name(x))
    x = shrink(x) if configuration.scaled_output else x
    if configuration.output_softcap is not None:
        cotangent = squeeze_vjp(linear(parameters, x), configuration.output_softcap, cotangent)
    gradient, x_gradient = linear_vjp(parameters, x, cotangent)
    return gradient, shrink(x_gradient) if configuration.scaled_output else x_gradient


def squeeze_vjp(
    x: Float[np.ndarray, "..."], cap: float, cotangent: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Gradient of x, for `squeeze`: y_bar * (1 - tanh(x / cap)^2)."""
    return (widen(cotangent) * (1 - np.tanh(widen(x) / float(cap)) ** 2)).astype(x.dtype)


# --- models -----------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def encoder_vjp(
    parameters: Encoder,
    x: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Any = None,
    token_types: Integer[np.ndarray, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
) -> EncoderGradients:
    """Compute the gradients of parameters, and of x where it is no tokens (ATT-12).

    Args:
        parameters, x: As in `encoder`.
        cotangent: Gradient with respect to the result of `encoder`, [B, T, E], in its dtype.
        configuration, mask, token_types, dropout: As in `encoder`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `encoder`, and for a cotangent in another shape or dtype than its result.
    """
    checks.stack(parameters, Encoder, x, dropout, token_types)
    given = x
    if isinstance(parameters.embedding, ImageEmbedding):
        x = embed_image(parameters.embedding, given, configuration=configuration)
    elif parameters.embedding is not None:
        mask = both(mask, padding_mask(given, configuration.source_padding))
        x = embed(parameters.embedding, given, configuration=configuration, token_types=token_types)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    options: Any = {"configuration": configuration, "mask": mask}
    options["bias"] = position_bias(parameters, x.shape[1], configuration)
    layers, sites = configuration.layers(len(parameters.blocks)), sites_of(dropout, parameters, EncoderBlockDropout())
    rotations = rotations_of([block.attention for block in parameters.blocks], layers, x, configuration)
    layered = [*zip(parameters.blocks, layers, rotations, sites, strict=True)]
    inputs = [drop(x, dropout.embedding)]
    for block, layer, rotation, d in layered:
        inputs.append(encoder_block(block, inputs[-1], layer=layer, rotation=rotation, dropout=d, **options))
    norm, cotangent = normalize_if_vjp(parameters.norm, inputs[-1], cotangent, configuration)
    blocks, biases = [], []
    for (block, layer, rotation, d), x in reversed([*zip(layered, inputs[:-1], strict=True)]):
        gradient, cotangent, bias = encoder_block_vjp(
            block, x, cotangent, layer=layer, rotation=rotation, dropout=d, **options
        )
        blocks.append(gradient)
        biases.append(bias)
    relative = position_bias_vjp(parameters, biases, configuration)
    cotangent = drop(cotangent, dropout.embedding)
    embedded: Any = None
    if isinstance(parameters.embedding, ImageEmbedding):
        embedded, cotangent = embed_image_vjp(parameters.embedding, given, cotangent, configuration=configuration)
    elif parameters.embedding is not None:
        embedded = embed_vjp(
            parameters.embedding, given, cotangent, configuration=configuration, token_types=token_types
        )
    x_gradient = None if isinstance(parameters.embedding, Embedding) else cotangent
    return EncoderGradients(Encoder(embedded, blocks[::-1], norm, relative), x_gradient)


@np.errstate(all="ignore")
def decoder_vjp(
    parameters: Decoder,
    x: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    memory: Float[np.ndarray, "B S E"] | None,
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Any = None,
    memory_mask: Any = None,
    dropout: StackDropout = StackDropout(),
) -> DecoderGradients:
    """Compute the gradients of parameters, memory, and of x where it is no tokens (ATT-12).

    Args:
        parameters, x, memory: As in `decoder`.
        cotangent: Gradient with respect to the result of `decoder`, [B, T, E], in its dtype.
        configuration, mask, memory_mask, dropout: As in `decoder`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `decoder`, and for a cotangent in another shape or dtype than its result.
    """
    checks.stack(parameters, Decoder, x, dropout, memory=memory)
    tokens = x
    if parameters.embedding is not None:
        mask = both(mask, target_mask(tokens, configuration))
        x = embed(parameters.embedding, tokens, configuration=configuration)
    elif configuration.target_mask != "none":
        mask = both(mask, Causal())
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    options: Any = {"configuration": configuration, "mask": mask, "memory_mask": memory_mask}
    options["bias"] = position_bias(parameters, x.shape[1], configuration)
    layers, sites = configuration.layers(len(parameters.blocks)), sites_of(dropout, parameters, DecoderBlockDropout())
    rotations = rotations_of([block.self_attention for block in parameters.blocks], layers, x, configuration)
    layered = [*zip(parameters.blocks, layers, rotations, sites, strict=True)]
    inputs = [drop(x, dropout.embedding)]
    for block, layer, rotation, d in layered:
        inputs.append(decoder_block(block, inputs[-1], memory, layer=layer, rotation=rotation, dropout=d, **options))
    blocks, biases = [], []
    memory_gradient: Any = None if memory is None else np.zeros_like(memory)
    norm, cotangent = normalize_if_vjp(parameters.norm, inputs[-1], cotangent, configuration)
    for (block, layer, rotation, d), x in reversed([*zip(layered, inputs[:-1], strict=True)]):
        found = decoder_block_vjp(block, x, memory, cotangent, layer=layer, rotation=rotation, dropout=d, **options)
        gradient, cotangent, part, bias = found
        blocks.append(gradient)
        biases.append(bias)
        memory_gradient = None if part is None else add(memory_gradient, part)
    relative = position_bias_vjp(parameters, biases, configuration)
    cotangent = drop(cotangent, dropout.embedding)
    if parameters.embedding is not None:
        embedded = embed_vjp(parameters.embedding, tokens, cotangent, configuration=configuration)
        return DecoderGradients(Decoder(embedded, blocks[::-1], norm, relative), None, memory_gradient)
    return DecoderGradients(Decoder(None, blocks[::-1], norm, relative), cotangent, memory_gradient)


@np.errstate(all="ignore")
def transformer_vjp(
    parameters: Transformer,
    source: Float[np.ndarray, "B S E"] | Integer[np.ndarray, "B S"],
    target: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T N"],
    *,
    configuration: Configuration,
    source_mask: Any = None,
    target_mask: Any = None,
    memory_mask: Any = None,
    dropout: TransformerDropout = TransformerDropout(),
) -> TransformerGradients:
    """Compute the gradients of parameters, and of source and target where they are no tokens (ATT-12).

    Args:
        parameters, source, target: As in `transformer`.
        cotangent: Gradient with respect to the result of `transformer`, [B, T, N], in its dtype.
        configuration, source_mask, target_mask, memory_mask, dropout: As in `transformer`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `transformer`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, Transformer)
    checks.sites(dropout, TransformerDropout)
    encoded: Any = {"configuration": configuration, "mask": source_mask, "dropout": dropout.encoder}
    memory = encoder(parameters.encoder, source, **encoded)
    if parameters.encoder.embedding is not None:
        memory_mask = both(memory_mask, padding_mask(source, configuration.source_padding))
    decoded: Any = {"configuration": configuration, "mask": target_mask, "memory_mask": memory_mask}
    decoded["dropout"] = dropout.decoder
    output = None
    if parameters.output is not None:
        x = decoder(parameters.decoder, target, memory, **decoded)
        output, cotangent = output_layer_vjp(parameters.output, x, cotangent, configuration)
    down = decoder_vjp(parameters.decoder, target, memory, cotangent, **decoded)
    up = encoder_vjp(parameters.encoder, source, down.memory, **encoded)
    return TransformerGradients(Transformer(up.parameters, down.parameters, output), up.x, down.x)


@np.errstate(all="ignore")
def classifier_vjp(
    parameters: Classifier,
    tokens: Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B C"],
    *,
    configuration: Configuration,
    mask: Any = None,
    keep: Bool[np.ndarray, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
) -> Classifier:
    """Compute the gradients of parameters (ATT-12).

    Args:
        parameters, tokens: As in `classifier`.
        cotangent: Gradient with respect to the result of `classifier`, [B, C], in its dtype.
        configuration, mask, keep, dropout: As in `classifier`.

    Returns:
        Gradients in the structure, shapes and dtypes of parameters.

    Raises:
        TypeError, ValueError: As in `classifier`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, Classifier)
    options: Any = {"configuration": configuration, "mask": mask, "dropout": dropout}
    x = encoder(parameters.encoder, tokens, **options)
    pooled = pool(x, configuration.pooling, keep)
    logits = output_layer(parameters.output, pooled, configuration)
    checks.cotangent(cotangent, logits.shape, dtype_name(logits))
    logits_gradient = log_softmax_vjp(logits, cotangent)
    output, pooled_gradient = output_layer_vjp(parameters.output, pooled, logits_gradient, configuration)
    x_gradient = pool_vjp(x, configuration.pooling, keep, pooled_gradient)
    return Classifier(encoder_vjp(parameters.encoder, tokens, x_gradient, **options).parameters, output)


@np.errstate(all="ignore")
def language_model_vjp(
    parameters: LanguageModel,
    tokens: Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T N"],
    *,
    configuration: Configuration,
    mask: Any = None,
    dropout: StackDropout = StackDropout(),
) -> LanguageModel:
    """Compute the gradients of parameters (ATT-12).

    Args:
        parameters, tokens: As in `language_model`.
        cotangent: Gradient with respect to the result of `language_model`, [B, T, N], in its dtype.
        configuration, mask, dropout: As in `language_model`.

    Returns:
        Gradients in the structure, shapes and dtypes of parameters.

    Raises:
        TypeError, ValueError: As in `language_model`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, LanguageModel)
    options: Any = {"configuration": configuration, "mask": mask, "dropout": dropout}
    x = decoder(parameters.decoder, tokens, **options)
    output, x_gradient = output_layer_vjp(parameters.output, x, cotangent, configuration)
    return LanguageModel(decoder_vjp(parameters.decoder, tokens, None, x_gradient, **options).parameters, output)
