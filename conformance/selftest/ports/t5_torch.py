"""T5 in PyTorch: one class for encoder and decoder, as in modeling_t5, with its formula of buckets."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from conformance.selftest.ports.entries import find_head


def bucket(relative: torch.Tensor, bidirectional: bool, count: int, furthest: int) -> torch.Tensor:
    """relative: key position minus query position."""
    buckets = torch.zeros_like(relative)
    if bidirectional:
        count //= 2
        buckets = buckets + (relative > 0).long() * count
        relative = relative.abs()
    else:
        relative = -torch.min(relative, torch.zeros_like(relative))
    exact = count // 2
    logs = torch.log(relative.double().clamp(min=1) / exact) / math.log(furthest / exact)
    # A logarithm just below a whole number would put a distance into the bucket before its own.
    large = exact + torch.floor(logs * (count - exact) + 1e-9).long()
    return buckets + torch.where(relative < exact, relative, large.clamp(max=count - 1))


class T5:
    def __init__(self, config: dict[str, Any], entries: dict[str, torch.Tensor]) -> None:
        self.config, self.entries = config, entries
        self.heads, self.head_width = config["num_heads"], config["d_kv"]
        self.eps = config.get("layer_norm_epsilon", 1e-6)
        self.dtype = entries["shared.weight"].dtype

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.entries[f"{name}.weight"] * (x * torch.rsqrt(variance + self.eps)).to(x.dtype)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.entries[f"{name}.weight"])

    def position_bias(self, stack: str, length: int) -> torch.Tensor:
        table = self.entries[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        relative = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        furthest = self.config.get("relative_attention_max_distance", 128)
        rows = table[bucket(relative, stack == "encoder", table.shape[0], furthest)]
        return rows.permute(2, 0, 1)[None]

    def attend(self, name: str, x: torch.Tensor, memory: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

        q = split(self.linear(f"{name}.q", x))
        k = split(self.linear(f"{name}.k", memory))
        v = split(self.linear(f"{name}.v", memory))
        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return self.linear(f"{name}.o", torch.matmul(weights, v).transpose(1, 2).flatten(2))

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        kind = self.config.get("feed_forward_proj", "relu")
        if kind == "relu":
            return self.linear(f"{name}.wo", F.relu(self.linear(f"{name}.wi", x)))
        gate = self.linear(f"{name}.wi_0", x)
        gate = F.silu(gate) if kind == "gated-silu" else F.gelu(gate, approximate="tanh")
        return self.linear(f"{name}.wo", gate * self.linear(f"{name}.wi_1", x))

    def stack(self, name: str, tokens: torch.Tensor, keep: Any, memory: Any = None, memory_keep: Any = None) -> Any:
        x = self.entries["shared.weight"][tokens]
        T, decoding = tokens.shape[1], name == "decoder"
        mask = torch.ones(1, 1, T, T, dtype=torch.bool)
        if decoding:
            mask = mask.tril()
        if keep is not None:
            mask = mask & keep[:, None, None, :]
        lowest = torch.finfo(x.dtype).min
        bias = self.position_bias(name, T).masked_fill(~mask, lowest)
        memory_bias = torch.zeros((), dtype=x.dtype)
        if memory_keep is not None:
            memory_bias = memory_bias.masked_fill(~memory_keep[:, None, None, :], lowest)
        count = self.config.get("num_decoder_layers") or self.config["num_layers"]
        for i in range(count if decoding else self.config["num_layers"]):
            layer = f"{name}.block.{i}.layer"
            h = self.norm(f"{layer}.0.layer_norm", x)
            x = x + self.attend(f"{layer}.0.SelfAttention", h, h, bias)
            if decoding:
                h = self.norm(f"{layer}.1.layer_norm", x)
                x = x + self.attend(f"{layer}.1.EncDecAttention", h, memory, memory_bias)
            last = 2 if decoding else 1
            h = self.norm(f"{layer}.{last}.layer_norm", x)
            x = x + self.feed_forward(f"{layer}.{last}.DenseReluDense", h)
        return self.norm(f"{name}.final_layer_norm", x)

    def __call__(
        self, source: torch.Tensor, target: torch.Tensor, source_key_padding: Any = None, target_key_padding: Any = None
    ) -> torch.Tensor:
        memory = self.stack("encoder", source, source_key_padding)
        x = self.stack("decoder", target, target_key_padding, memory, source_key_padding)
        if self.config.get("tie_word_embeddings", True):
            x = x * self.config["d_model"] ** -0.5
        return F.linear(x, find_head(self.entries, "shared.weight"))


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    return T5(config, {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()})
