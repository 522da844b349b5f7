"""GPT-2 in PyTorch after nanoGPT: `nn.Linear` everywhere, so that the checkpoint's [in, out] weights are turned.

It decodes with a cache of keys and values, and its gradients are turned back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from conformance.selftest.ports.entries import find_head
from conformance.selftest.ports.gradients import differentiate_module

TURNED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None, past: Any = None) -> Any:
        B, T, E = x.shape
        q, k, v = self.c_attn(x).split(E, dim=2)
        q = q.view(B, T, self.heads, E // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, E // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, E // self.heads).transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        K = k.shape[2]
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        allowed = torch.ones(T, K, dtype=torch.bool).tril(K - T)
        if keep is not None:
            allowed = allowed & keep[:, None, None, :]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        y = F.softmax(scores, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, E)
        return self.c_proj(y), (k, v)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, inner)
        self.c_proj = nn.Linear(inner, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> Any:
        x = self.c_fc(x)
        if self.activation == "relu":
            x = F.relu(x)
        else:
            x = F.gelu(x, approximate="tanh" if self.activation == "gelu_new" else "none")
        return self.c_proj(x)


class Block(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["n_embd"], config.get("layer_norm_epsilon", 1e-5)
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = CausalSelfAttention(width, config["n_head"])
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        self.mlp = MLP(width, config.get("n_inner") or 4 * width, config.get("activation_function", "gelu_new"))

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None, past: Any = None) -> Any:
        attended, present = self.attn(self.ln_1(x), keep, past)
        x = x + attended
        x = x + self.mlp(self.ln_2(x))
        return x, present


class GPT(nn.Module):
    def __init__(self, config: dict[str, Any], tied: bool) -> None:
        super().__init__()
        width = config["n_embd"]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(config["vocab_size"], width),
            "wpe": nn.Embedding(config["n_positions"], width),
            "h": nn.ModuleList(Block(config) for _ in range(config["n_layer"])),
            "ln_f": nn.LayerNorm(width, eps=config.get("layer_norm_epsilon", 1e-5)),
        })  # fmt: skip
        self.lm_head = nn.Linear(width, config["vocab_size"], bias=False)
        if tied:
            table: Any = self.transformer["wte"]
            self.lm_head.weight = table.weight

    def forward(self, tokens: torch.Tensor, key_padding: torch.Tensor | None = None, cache: Any = None) -> Any:
        parts: Any = self.transformer
        offset = 0 if cache is None else cache[0][0].shape[2]
        positions = torch.arange(offset, offset + tokens.shape[1])
        x = parts["wte"](tokens) + parts["wpe"](positions)
        presents = []
        for i, block in enumerate(parts["h"]):
            x, present = block(x, key_padding, None if cache is None else cache[i])
            presents.append(present)
        x = parts["ln_f"](x)
        return self.lm_head(x), presents


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    tied = config.get("tie_word_embeddings", True)
    model = GPT(config, tied)
    entries = {
        name: torch.from_numpy(array).T if name.endswith(TURNED) else torch.from_numpy(array)
        for name, array in state_dict.items()
        if not name.endswith("lm_head.weight")
    }
    entries["lm_head.weight"] = torch.from_numpy(find_head(state_dict, "transformer.wte.weight"))
    model.load_state_dict(entries)
    model.to(getattr(torch, config.get("dtype", "float32"))).eval()

    def call(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        return model(tokens.long(), key_padding)[0]

    @torch.no_grad()
    def step(tokens: torch.Tensor, cache: Any = None) -> Any:
        return model(tokens.long(), None, cache)

    differentiate = differentiate_module(model, call)
    names = {name for name in state_dict if name.endswith("lm_head.weight")}

    def vjp(cotangent: torch.Tensor, *inputs: Any, **options: Any) -> dict[str, Any]:
        gradients = differentiate(cotangent, *inputs, **options)
        gradients = {name: g.T if name.endswith(TURNED) else g for name, g in gradients.items()}
        for name in names:
            gradients[name] = gradients.pop("lm_head.weight")
        return gradients

    call.step, call.vjp = step, vjp  # type: ignore[attr-defined]
    return call
