"""Inputs to try a model with: random ones, and the masks that such a model meets in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specification.configuration import Configuration
from specification.masks import Causal, Dense, KeyPadding
from specification.parameters import (
    Classifier,
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    ImageEmbedding,
    LanguageModel,
    Transformer,
)

if TYPE_CHECKING:
    from specification.parameters import Linear, ModelParameters

LENGTH = 16
SHARES = (1.0, 0.6, 0.1)
"""How much of each sequence of a batch is no padding."""

Probe = tuple[tuple[np.ndarray, ...], dict[str, Any]]
"""What a model is called with: inputs, and masks and token types by keyword."""


def probe(parameters: ModelParameters, configuration: Configuration, seed: int = 0) -> Probe:
    """Random tokens, or embeddings where the model takes those, in sequences of differing lengths.

    Padding is where the model knows of it: as the tokens that the configuration names, or as a mask beside the inputs.
    A decoder to which nobody but its caller says so is causal. Beside all these each attention is given a mask with
    holes, so that a mask of the caller's that is dropped shows.
    """
    generator = np.random.default_rng(seed)
    if isinstance(parameters, Transformer):
        return probe_transformer(parameters, configuration, generator)
    if isinstance(parameters, Classifier | LanguageModel):
        padding = configuration.source_padding if isinstance(parameters, Classifier) else configuration.target_padding
        x = probe_stack(parameters[0], generator, padding=padding)
        kept_positions = {"keep": real_positions(x.shape[1])} if isinstance(parameters, Classifier) else {}
        return (x,), {"mask": holes(x.shape[1])} | kept_positions
    if isinstance(parameters, Encoder):
        return probe_encoder(parameters, configuration, generator)
    if isinstance(parameters, Decoder):
        return probe_decoder(parameters, configuration, generator)
    if isinstance(parameters, EncoderBlock | DecoderBlock):
        raise TypeError("parameters: a block has no configuration of its own; put it into an Encoder or a Decoder")
    inputs = tuple(probe_heads(part, generator, LENGTH) for part in parameters[:3])
    return inputs, {"mask": KeyPadding(real_positions(LENGTH)) & holes(LENGTH)}


# --- each kind of model -----------------------------------------------------------------------------------------------


def probe_transformer(parameters: Transformer, configuration: Configuration, generator: np.random.Generator) -> Probe:
    source = probe_stack(parameters.encoder, generator, padding=configuration.source_padding)
    target = probe_stack(parameters.decoder, generator, LENGTH - 3, padding=configuration.target_padding)
    S, T = source.shape[1], target.shape[1]
    masks: dict[str, Any] = {"source_mask": holes(S), "target_mask": holes(T), "memory_mask": holes(T, S)}
    if parameters.encoder.embedding is None:
        padding = KeyPadding(real_positions(S))
        beside: dict[str, Any] = {"source_mask": padding, "memory_mask": padding}
        beside["target_mask"] = Causal() & KeyPadding(real_positions(T))
        masks = {name: beside[name] & mask for name, mask in masks.items()}
    return (source, target), masks


def probe_encoder(parameters: Encoder, configuration: Configuration, generator: np.random.Generator) -> Probe:
    named = (configuration.source_padding, configuration.position_padding)
    padding, length = next((padding for padding in named if padding is not None), None), LENGTH
    embedding = parameters.embedding
    if isinstance(embedding, Embedding) and configuration.position_padding is not None:
        # The first rows of the table, up to that of padding, are no token's.
        length = min(length, embedding.positions.shape[0] - configuration.position_padding - 1)
    x = probe_stack(parameters, generator, length, padding=padding, size=configuration.patch_size)
    positions = embedding.positions.shape[0] if isinstance(embedding, ImageEmbedding) else x.shape[1]
    options: dict[str, Any] = {"key_padding": real_positions(positions), "mask": holes(positions)}
    if isinstance(embedding, Embedding) and embedding.token_types is not None:
        options["token_types"] = generator.integers(0, embedding.token_types.shape[0], x.shape)
    return (x,), options


def probe_decoder(parameters: Decoder, configuration: Configuration, generator: np.random.Generator) -> Probe:
    x = probe_stack(parameters, generator, padding=configuration.target_padding)
    mask: Any = holes(x.shape[1])
    if configuration.target_mask == "none":
        mask = Causal() & KeyPadding(real_positions(x.shape[1])) & mask
    if not parameters.blocks or parameters.blocks[0].cross_attention is None:
        return (x,), {"mask": mask}
    memory = probe_heads(parameters.blocks[0].cross_attention.key, generator, LENGTH - 3)
    S = memory.shape[1]
    return (x, memory), {"mask": mask, "memory_mask": KeyPadding(real_positions(S)) & holes(x.shape[1], S)}


# --- sequences --------------------------------------------------------------------------------------------------------


def real_positions(length: int) -> np.ndarray:
    """Which positions of each sequence are real: the first ones, and at least one."""
    lengths = [max(1, round(share * length)) for share in SHARES]
    return np.arange(length) < np.array(lengths)[:, None]


def holes(queries: int, keys: int | None = None) -> Dense:
    """Every query leaves out each third key, and not the first, so that none is left with nothing by this alone."""
    i, j = np.ogrid[:queries, : queries if keys is None else keys]
    return Dense((j == 0) | ((i + j) % 3 != 0))


def probe_stack(
    parameters: Encoder | Decoder,
    generator: np.random.Generator,
    length: int = LENGTH,
    *,
    padding: int | None = None,
    size: int | None = None,
) -> np.ndarray:
    """padding: the token that fills up sequences, and occurs nowhere else. size: of an image's patches."""
    embedding = parameters.embedding
    if embedding is None:
        norm: Any = parameters.blocks[0][1] if parameters.blocks else parameters.norm
        width, dtype = norm.weight.shape[0], norm.weight.dtype
        return generator.normal(size=(len(SHARES), length, width)).astype(dtype)
    if isinstance(embedding, ImageEmbedding):  # as wide as the number of positions can be shared by rows, and less high
        patches, weight = embedding.positions.shape[0] - 1, embedding.patches.weight
        assert size is not None  # it is the configuration of a model of images
        rows = max(rows for rows in range(1, patches + 1) if patches % rows == 0 and rows**2 <= patches)
        shape = (len(SHARES), weight.shape[0] // size**2, rows * size, patches // rows * size)
        return generator.normal(size=shape).astype(weight.dtype)
    longest = length if embedding.positions is None else min(length, embedding.positions.shape[0])
    every = np.arange(embedding.tokens.shape[0])
    ids = every[every != padding] if len(every) > 1 else every
    tokens = generator.choice(ids, (len(SHARES), longest))
    return tokens if padding is None else np.where(real_positions(longest), tokens, padding)


def probe_heads(projection: Linear | list[Linear], generator: np.random.Generator, length: int) -> np.ndarray:
    weight = projection[0].weight if isinstance(projection, list) else projection.weight
    return generator.normal(size=(len(SHARES), length, weight.shape[0])).astype(weight.dtype)
