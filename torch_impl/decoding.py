"""Decoding step by step with a key/value cache in PyTorch (GEN-1), as `reference_numpy/decoding.py` defines it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Integer

from specification import checks
from specification.blocks import sublayers_of, windowed
from specification.caches import BlockCache, Cache, looks_ahead
from specification.configuration import AttentionLayer, Configuration
from specification.dropout import DecoderBlockDropout
from specification.masks import Causal, KeyPadding, Mask
from specification.parameters import DecoderBlock, LanguageModel, LatentAttention, Transformer
from specification.rotary import Rotation
from torch_impl.blocks import (
    attend_to,
    check_attention,
    normalize_if,
    project_keys,
    project_queries,
    rotation_of,
    rotations_of,
    through,
    transform,
)
from torch_impl.masks import readable
from torch_impl.models import Model
from torch_impl.transformer import embed, encoder, output_layer, position_bias, real_queries, real_tokens

__all__ = ["decode_step", "start"]

# --- the pieces -------------------------------------------------------------------------------------------------------


def write(room: torch.Tensor, new: torch.Tensor, length: int, axis: int) -> torch.Tensor:
    """A copy of the room in which the new positions stand after the first `length`."""
    stop = length + new.shape[axis]
    return torch.cat([room.narrow(axis, 0, length), new, room.narrow(axis, stop, room.shape[axis] - stop)], dim=axis)


def step_mask(
    tokens: Integer[torch.Tensor, "B Q"], real: Bool[torch.Tensor, "B K"], length: int, configuration: Configuration
) -> Any:
    """`target_mask` for the queries at positions length, length + 1, ... and for K keys, of which `real` are tokens."""
    causal = Causal(length)
    if configuration.target_mask in ("none", "causal") or configuration.target_padding is None:
        return causal
    if configuration.target_mask == "causal and real keys":
        return causal & KeyPadding(real)
    return causal & real_queries(tokens, configuration.target_padding, real.shape[1])


def decoder_block_step(
    parameters: DecoderBlock,
    x: Float[torch.Tensor, "B Q E"],
    cache: BlockCache,
    length: int,
    *,
    configuration: Configuration,
    mask: Mask | None,
    memory_mask: Mask | None = None,
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[torch.Tensor, "..."] | None = None,
    rotation: Rotation | None = None,
) -> tuple[Float[torch.Tensor, "B Q E"], BlockCache]:
    """`decoder_block` for the Q positions after the first `length`, and the cache with their keys and values."""
    stop, grown, p = length + x.shape[1], cache, parameters
    checks.norms(parameters, configuration)

    def self_attention(x: torch.Tensor) -> Any:
        nonlocal grown
        check_attention(p.self_attention, x, x, configuration, layer)
        query = project_queries(p.self_attention, x, configuration, layer, rotation)
        keys, values = project_keys(p.self_attention, x, configuration, layer, rotation)
        grown = grown._replace(
            keys=write(cache.keys, keys, length, axis=2), values=write(cache.values, values, length, axis=2)
        )
        seen = grown.keys[:, :, :stop], grown.values[:, :, :stop]
        return attend_to(p.self_attention, query, *seen, windowed(mask, layer, length), None, configuration, bias)

    def cross_attention(x: torch.Tensor) -> Any:
        cross: Any = p.cross_attention
        query = project_queries(cross, x, configuration)
        return attend_to(cross, query, cache.memory_keys, cache.memory_values, memory_mask, None, configuration)

    def position_wise(x: torch.Tensor) -> Any:
        return transform(p.feed_forward, x, None, configuration)

    functions = {"self_attention": self_attention, "cross_attention": cross_attention, "feed_forward": position_wise}
    return through(sublayers_of(p, functions, DecoderBlockDropout()), x, configuration), grown


# --- caches -----------------------------------------------------------------------------------------------------------


def empty_cache(
    parameters: LanguageModel | Transformer,
    batch: int,
    capacity: int,
    *,
    configuration: Configuration,
    source: Integer[torch.Tensor, "B S"] | None = None,
) -> Cache:
    """The cache before the first token, with room for `capacity` positions; an encoder runs here, once."""
    checks.empty_cache(parameters, batch, capacity, source)
    decoder: Any = parameters.decoder
    table = decoder.embedding.tokens
    nobody = table.new_zeros(batch, 0, table.shape[1])
    memory: Any = None
    memory_real = None
    if isinstance(parameters, Transformer):
        assert source is not None  # it is checked
        memory = encoder(parameters.encoder, source, configuration=configuration)
        if parameters.encoder.embedding is not None and configuration.source_padding is not None:
            memory_real = real_tokens(source, configuration.source_padding)
    layers, blocks = configuration.layers(len(decoder.blocks)), []
    for block, own_layer in zip(decoder.blocks, layers, strict=True):
        checks.memory(block, memory)
        width = check_attention(block.self_attention, nobody, nobody, configuration, own_layer)
        # The keys of other attentions have the same shape without their rotation.
        layer = own_layer if isinstance(block.self_attention, LatentAttention) else AttentionLayer()
        rotation = rotation_of(layer.rotary, width, nobody)
        kept = project_keys(block.self_attention, nobody, configuration, layer, rotation)
        own = [a.new_zeros(batch, a.shape[1], capacity, a.shape[3]) for a in kept]
        cross: Any = []
        if memory is not None:
            check_attention(block.cross_attention, nobody, memory, configuration)
            cross = project_keys(block.cross_attention, memory, configuration)
        blocks.append(BlockCache(*own, *cross))
    return Cache(blocks, table.new_zeros(batch, capacity, dtype=torch.bool), memory_real, 0)


def select_rows(cache: Cache, rows: Integer[torch.Tensor, "R"]) -> Cache:
    """The cache of these batch elements, in this order; one may be taken more than once."""

    def gather_rows(array: torch.Tensor | None) -> Any:
        return None if array is None else array[rows]

    blocks = [BlockCache(*map(gather_rows, block)) for block in cache.blocks]
    return Cache(blocks, gather_rows(cache.real), gather_rows(cache.memory_real), cache.length)


# --- the operations ---------------------------------------------------------------------------------------------------


def start(
    parameters: LanguageModel | Transformer | Model,
    tokens: Integer[torch.Tensor, "B T"],
    *,
    configuration: Configuration | None = None,
    capacity: int,
    source: Integer[torch.Tensor, "B S"] | None = None,
) -> tuple[Float[torch.Tensor, "B T N"], Cache]:
    """Run the first tokens: their logits, and a cache with room for more (GEN-1).

    Args:
        parameters: With their configuration, or a loaded model, which has its own.
        tokens: [B, T], integers.
        configuration: Of the parameters; None for a loaded model.
        capacity: How many positions the cache has room for, these included.
        source: Tokens [B, S] of a model with an encoder, which runs here, once. Where it holds the configuration's
            source_padding, it is masked.

    Returns:
        Logits [B, T, N], and the cache.

    Raises:
        TypeError, ValueError: Parameters that cannot generate, a source that is missing or has no place; and as in
            `decode_step`.
    """
    own, configured = checks.held(parameters, configuration)
    batch, _ = checks.tokens("tokens", tokens)
    cache = empty_cache(own, batch, capacity, configuration=configured, source=source)
    return decode_step(own, tokens, cache, configuration=configured)


def decode_step(
    parameters: LanguageModel | Transformer | Model,
    tokens: Integer[torch.Tensor, "B T"],
    cache: Cache,
    *,
    configuration: Configuration | None = None,
) -> tuple[Float[torch.Tensor, "B T N"], Cache]:
    """Run the next tokens, one or several, with the keys and values of those before (GEN-1).

    Args:
        parameters: With their configuration, or a loaded model, which has its own.
        tokens: [B, T], integers.
        cache: From `start` or the step before; it stays as it is.
        configuration: Of the parameters; None for a loaded model.

    Returns:
        Logits [B, T, N] as the full forward pass gives them, and the cache that has the new tokens too.

    Raises:
        ValueError: No room in the cache, no position in a learned table, or what no cache can hold (see
            `specification.caches.looks_ahead`).
    """
    own, configured = checks.held(parameters, configuration)
    checks.structure("cache", cache, Cache)
    length = cache.length
    checks.decode_step(own, tokens, cache, length)
    checks.no_look_ahead(looks_ahead(tokens, length, configured, readable))
    decoder: Any = own.decoder
    real = write(cache.real, real_tokens(tokens, configured.target_padding), length, axis=1)
    stop = length + tokens.shape[1]
    mask = step_mask(tokens, real[:, :stop], length, configured)
    memory_mask = None if cache.memory_real is None else KeyPadding(cache.memory_real)
    x = embed(decoder.embedding, tokens, configuration=configured, offset=length)
    bias = position_bias(decoder, configured, tokens.shape[1], stop, length)
    options: Any = {"configuration": configured, "mask": mask, "memory_mask": memory_mask, "bias": bias}
    layers, blocks = configured.layers(len(decoder.blocks)), []
    attentions = [block.self_attention for block in decoder.blocks]
    rotations = rotations_of(attentions, layers, x, configured, torch.arange(length, stop, device=x.device), stop)
    for block, kept, layer, rotation in zip(decoder.blocks, cache.blocks, layers, rotations, strict=True):
        x, grown = decoder_block_step(block, x, kept, length, layer=layer, rotation=rotation, **options)
        blocks.append(grown)
    logits = output_layer(own.output, normalize_if(decoder.norm, x, configured), configured)
    return logits, Cache(blocks, real, cache.memory_real, stop)
