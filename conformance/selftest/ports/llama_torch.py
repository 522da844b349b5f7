"""Llama in PyTorch, after Hugging Face's modeling_llama: repeated key heads, `rotate_half`, norms in float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from conformance.selftest.ports.entries import find_head

ACTIVATIONS: dict[str, Any] = {"silu": F.silu, "gelu": F.gelu}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + eps)).to(x.dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return x * cos + rotate_half(x) * sin


def repeat_kv(x: torch.Tensor, times: int) -> torch.Tensor:
    B, G, T, D = x.shape
    return x[:, :, None].expand(B, G, times, T, D).reshape(B, G * times, T, D)


def scale_frequencies(inv_freq: torch.Tensor, rope: dict[str, Any], width: int) -> tuple[torch.Tensor, float]:
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return inv_freq, 1.0
    factor = rope["factor"]
    if kind == "linear":
        return inv_freq / factor, 1.0
    original = rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wavelength = 2 * math.pi / inv_freq
        smooth = (original / wavelength - low) / (high - low)
        between = (1 - smooth) * inv_freq / factor + smooth * inv_freq
        scaled = torch.where(wavelength > original / low, inv_freq / factor, inv_freq)
        medium = (wavelength <= original / low) & (wavelength >= original / high)
        return torch.where(medium, between, scaled), 1.0
    base, pairs = rope["rope_theta"], torch.arange(width // 2, dtype=inv_freq.dtype)
    low, high = (
        width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    ramp = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return inv_freq / factor * ramp + inv_freq * (1 - ramp), 0.1 * math.log(factor) + 1.0


class Llama:
    def __init__(self, config: dict[str, Any], entries: dict[str, torch.Tensor]) -> None:
        self.entries, self.layers = entries, config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.key_heads = config.get("num_key_value_heads") or self.heads
        self.head_width = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.activation = ACTIVATIONS[config.get("hidden_act", "silu")]
        rope = config.get("rope_parameters") or {}
        pairs = torch.arange(0, self.head_width, 2, dtype=torch.float64)
        inv_freq = 1.0 / rope.get("rope_theta", 10000.0) ** (pairs / self.head_width)
        self.inv_freq, self.attention_factor = scale_frequencies(inv_freq, rope, self.head_width)
        self.head = find_head(entries, "model.embed_tokens.weight")

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.entries[f"{name}.weight"], self.entries.get(f"{name}.bias"))

    def rotary(self, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(length).double(), self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * self.attention_factor).to(dtype), (angles.sin() * self.attention_factor).to(dtype)

    def attend(self, name: str, x: torch.Tensor, mask: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        B, T, _ = x.shape
        q = self.linear(f"{name}.q_proj", x).view(B, T, self.heads, self.head_width).transpose(1, 2)
        k = self.linear(f"{name}.k_proj", x).view(B, T, self.key_heads, self.head_width).transpose(1, 2)
        v = self.linear(f"{name}.v_proj", x).view(B, T, self.key_heads, self.head_width).transpose(1, 2)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        times = self.heads // self.key_heads
        k, v = repeat_kv(k, times), repeat_kv(v, times)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_width)
        scores = scores + mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
        return self.linear(f"{name}.o_proj", torch.matmul(weights, v).transpose(1, 2).reshape(B, T, -1))

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        gated = self.activation(self.linear(f"{name}.gate_proj", x)) * self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", gated)

    def __call__(self, tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        x = self.entries["model.embed_tokens.weight"][tokens]
        B, T = tokens.shape
        lowest = torch.finfo(x.dtype).min
        mask = torch.full((T, T), lowest, dtype=x.dtype).triu(1).expand(B, 1, T, T)
        if key_padding is not None:
            mask = mask.masked_fill(~key_padding[:, None, None, :], lowest)
        cos, sin = self.rotary(T, x.dtype)
        for i in range(self.layers):
            name = f"model.layers.{i}"
            residual = x
            x = rms_norm(x, self.entries[f"{name}.input_layernorm.weight"], self.eps)
            x = residual + self.attend(f"{name}.self_attn", x, mask, cos, sin)
            residual = x
            x = rms_norm(x, self.entries[f"{name}.post_attention_layernorm.weight"], self.eps)
            x = residual + self.feed_forward(f"{name}.mlp", x)
        x = rms_norm(x, self.entries["model.norm.weight"], self.eps)
        return F.linear(x, self.head)


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    return Llama(config, {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()})
