"""torch: `nn.TransformerEncoder` with norms after sublayers, as in BERT, and before them, as in GPT-2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from conformance.peers.models.layers import Entries, Layer, read_affine, read_bert, read_gpt2, read_gpt2_output

ACTIVATIONS: dict[str, Any] = {"gelu": F.gelu, "relu": F.relu, "gelu_new": partial(F.gelu, approximate="tanh")}


def make_layer(layer: Layer, heads: int, activation: str, eps: float, norm_first: bool) -> nn.TransformerEncoderLayer:
    inner, width = layer.inner[0].shape
    options: dict[str, Any] = {"activation": ACTIVATIONS[activation], "layer_norm_eps": eps, "batch_first": True}
    module = nn.TransformerEncoderLayer(width, heads, inner, norm_first=norm_first, **options)
    entries = {
        f"{name}.{part}": torch.from_numpy(array.copy())
        for name, affine in (
            ("self_attn.out_proj", layer.output),
            ("norm1", layer.attention_norm),
            ("linear1", layer.inner),
            ("linear2", layer.outer),
            ("norm2", layer.feed_forward_norm),
        )
        for part, array in zip(("weight", "bias"), affine, strict=True)
    }
    for part, arrays in zip(("weight", "bias"), zip(layer.query, layer.key, layer.value, strict=True), strict=True):
        entries[f"self_attn.in_proj_{part}"] = torch.cat([torch.from_numpy(array) for array in arrays])
    module.load_state_dict(entries)
    return module


def make_encoder(layers: list[nn.TransformerEncoderLayer], norm: nn.Module | None, nested: bool) -> Any:
    """`nn.TransformerEncoder` copies one layer; each is then replaced by its own."""
    encoder = nn.TransformerEncoder(layers[0], len(layers), norm, enable_nested_tensor=nested)
    encoder.layers = nn.ModuleList(layers)
    return encoder.eval()


def make_norm(affine: tuple[torch.Tensor, torch.Tensor], eps: float) -> nn.LayerNorm:
    norm = nn.LayerNorm(len(affine[0]), eps)
    norm.load_state_dict(dict(zip(("weight", "bias"), affine, strict=True)))
    return norm


def build_bert(fast: bool, config: dict[str, Any], state_dict: Entries) -> Callable[..., Any]:
    """fast: with what PyTorch does by itself, fused layers and nested tensors in the place of padding."""
    torch.backends.mha.set_fastpath_enabled(fast)
    eps, heads, activation = config["layer_norm_eps"], config["num_attention_heads"], config["hidden_act"]
    layers = [make_layer(layer, heads, activation, eps, False) for layer in read_bert(config, state_dict)]
    encoder = make_encoder(layers, None, nested=fast)
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    words, positions, types = (
        entries[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
    )
    norm = make_norm(read_affine(entries, "embeddings.LayerNorm"), eps)  # type: ignore[arg-type]

    @torch.no_grad()
    def encode(
        tokens: torch.Tensor, key_padding: torch.Tensor | None = None, token_types: torch.Tensor | None = None
    ) -> Any:
        kinds = torch.zeros_like(tokens) if token_types is None else token_types
        x = norm(words[tokens] + positions[: tokens.shape[1]] + types[kinds])
        return encoder(x, src_key_padding_mask=None if key_padding is None else ~key_padding)

    return encode


def build_gpt2(fast: bool, config: dict[str, Any], state_dict: Entries) -> Callable[..., Any]:
    torch.backends.mha.set_fastpath_enabled(fast)
    eps, heads, activation = config["layer_norm_epsilon"], config["n_head"], config["activation_function"]
    layers = [make_layer(layer, heads, activation, eps, True) for layer in read_gpt2(config, state_dict)]
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    encoder = make_encoder(layers, make_norm(read_affine(entries, "transformer.ln_f"), eps), nested=False)  # type: ignore[arg-type]
    words, positions = entries["transformer.wte.weight"], entries["transformer.wpe.weight"]
    head = torch.from_numpy(read_gpt2_output(state_dict))

    @torch.no_grad()
    def predict(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        T = tokens.shape[1]
        hides_later = torch.ones(T, T, dtype=torch.bool).triu(1)
        hidden = None if key_padding is None else ~key_padding
        x = words[tokens] + positions[:T]
        return encoder(x, mask=hides_later, src_key_padding_mask=hidden, is_causal=True) @ head.T

    return predict


bert_fast, bert_slow = partial(build_bert, True), partial(build_bert, False)
gpt2_fast, gpt2_slow = partial(build_gpt2, True), partial(build_gpt2, False)
