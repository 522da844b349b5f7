"""Gradients of the models in `transformer.py`: by a tape, and by hand those of operations that stand there alone.

An input that is embedded already receives a gradient; for tokens it is the tables that do. Memory receives something
from every decoder block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.tape import gradient_of, vjp
from reference_numpy.transformer import (
    classifier,
    decoder,
    embed,
    embed_image,
    encoder,
    first_largest,
    language_model,
    log_softmax,
    shrink,
    transformer,
)
from specification.configuration import Configuration
from specification.dropout import StackDropout, TransformerDropout
from specification.masks import Mask
from specification.parameters import Classifier, Decoder, Embedding, Encoder, ImageEmbedding, LanguageModel, Transformer

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
    options: Any = {"configuration": configuration, "token_types": token_types, "offset": offset}
    return vjp(embed, {"parameters": parameters}, cotangent, tokens=tokens, **options)["parameters"]


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
    inputs = {"parameters": parameters, "images": images}
    return ImageEmbeddingGradients(**vjp(embed_image, inputs, cotangent, configuration=configuration))


@gradient_of("images")
def patches_vjp(
    images: Float[np.ndarray, "B C height width"], size: int, cotangent: Float[np.ndarray, "B N CPP"]
) -> Float[np.ndarray, "B C height width"]:
    """Every pixel's own."""
    B, C, height, width = images.shape
    squares = cotangent.reshape(B, height // size, width // size, C, size, size)
    return squares.transpose(0, 3, 1, 4, 2, 5).reshape(images.shape)


@gradient_of("row", "x")
def prepend_vjp(
    row: Float[np.ndarray, "E"], x: Float[np.ndarray, "B N E"], cotangent: Float[np.ndarray, "B T E"]
) -> tuple[Float[np.ndarray, "E"], Float[np.ndarray, "B N E"]]:
    """What all sequences give to the row, and the rest."""
    return np.sum(widen(cotangent[:, 0]), axis=0).astype(row.dtype), cotangent[:, 1:]


@gradient_of("x")
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


@gradient_of("x")
def log_softmax_vjp(x: Float[np.ndarray, "... N"], cotangent: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
    """y_bar - softmax(x) * sum(y_bar)."""
    wide = widen(cotangent)
    weights = np.exp(log_softmax(widen(x)))
    return (wide - weights * np.sum(wide, axis=-1, keepdims=True)).astype(x.dtype)


@gradient_of("x")
def shrink_vjp(x: Float[np.ndarray, "... E"], cotangent: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "... E"]:
    """y_bar / sqrt(E)."""
    return shrink(cotangent)


@gradient_of("x")
def squeeze_vjp(
    x: Float[np.ndarray, "..."], cap: float, cotangent: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """y_bar * (1 - tanh(x / cap)^2)."""
    return (widen(cotangent) * (1 - np.tanh(widen(x) / float(cap)) ** 2)).astype(x.dtype)


# --- models -----------------------------------------------------------------------------------------------------------


def encoder_vjp(
    parameters: Encoder,
    x: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    inputs = {"parameters": parameters, "x": x}
    options: Any = {"mask": mask, "token_types": token_types, "dropout": dropout}
    return EncoderGradients(**vjp(encoder, inputs, cotangent, configuration=configuration, **options))


def decoder_vjp(
    parameters: Decoder,
    x: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    memory: Float[np.ndarray, "B S E"] | None,
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    memory_mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    inputs = {"parameters": parameters, "x": x, "memory": memory}
    options: Any = {"mask": mask, "memory_mask": memory_mask, "dropout": dropout}
    return DecoderGradients(**vjp(decoder, inputs, cotangent, configuration=configuration, **options))


def transformer_vjp(
    parameters: Transformer,
    source: Float[np.ndarray, "B S E"] | Integer[np.ndarray, "B S"],
    target: Float[np.ndarray, "B T E"] | Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T N"],
    *,
    configuration: Configuration,
    source_mask: Mask | Bool[np.ndarray, "..."] | None = None,
    target_mask: Mask | Bool[np.ndarray, "..."] | None = None,
    memory_mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    inputs = {"parameters": parameters, "source": source, "target": target}
    options: Any = {"source_mask": source_mask, "target_mask": target_mask, "memory_mask": memory_mask}
    options |= {"configuration": configuration, "dropout": dropout}
    return TransformerGradients(**vjp(transformer, inputs, cotangent, **options))


def classifier_vjp(
    parameters: Classifier,
    tokens: Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B C"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    options: Any = {"configuration": configuration, "mask": mask, "keep": keep, "dropout": dropout}
    return vjp(classifier, {"parameters": parameters}, cotangent, tokens=tokens, **options)["parameters"]


def language_model_vjp(
    parameters: LanguageModel,
    tokens: Integer[np.ndarray, "B T"],
    cotangent: Float[np.ndarray, "B T N"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    options: Any = {"configuration": configuration, "mask": mask, "dropout": dropout}
    return vjp(language_model, {"parameters": parameters}, cotangent, tokens=tokens, **options)["parameters"]
