"""ViT in PyTorch: patches by a convolution, modules after timm, filled entry by entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> Any:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = q * self.scale
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        dim, eps = config["hidden_size"], config.get("layer_norm_eps", 1e-12)
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, config["num_attention_heads"], config.get("qkv_bias", True))
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.fc1 = nn.Linear(dim, config["intermediate_size"])
        self.fc2 = nn.Linear(config["intermediate_size"], dim)
        self.approximate = "tanh" if config.get("hidden_act", "gelu") == "gelu_new" else "none"

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.attn(self.norm1(x))
        hidden = F.gelu(self.fc1(self.norm2(x)), approximate=self.approximate)
        return x + self.fc2(hidden)


class VisionTransformer(nn.Module):
    def __init__(self, config: dict[str, Any], tokens: int) -> None:
        super().__init__()
        dim, size = config["hidden_size"], config["patch_size"]
        self.patch_embed = nn.Conv2d(config["num_channels"], dim, kernel_size=size, stride=size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.LayerNorm(dim, eps=config.get("layer_norm_eps", 1e-12))

    def forward(self, images: torch.Tensor) -> Any:
        images = images.to(self.cls_token.dtype)
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def convert(entries: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Return the entries under timm's names."""
    found = {
        "cls_token": entries["embeddings.cls_token"],
        "pos_embed": entries["embeddings.position_embeddings"],
        "patch_embed.weight": entries["embeddings.patch_embeddings.projection.weight"],
        "patch_embed.bias": entries["embeddings.patch_embeddings.projection.bias"],
        "norm.weight": entries["layernorm.weight"],
        "norm.bias": entries["layernorm.bias"],
    }
    names = {
        "norm1": "layernorm_before",
        "attn.proj": "attention.output.dense",
        "norm2": "layernorm_after",
        "fc1": "intermediate.dense",
        "fc2": "output.dense",
    }
    for i in range(layers):
        theirs = f"encoder.layer.{i}"
        for part in ("weight", "bias"):
            for name, their_name in names.items():
                found[f"blocks.{i}.{name}.{part}"] = entries[f"{theirs}.{their_name}.{part}"]
            qkv = [entries.get(f"{theirs}.attention.attention.{name}.{part}") for name in ("query", "key", "value")]
            if qkv[0] is not None:
                found[f"blocks.{i}.attn.qkv.{part}"] = torch.cat(qkv, dim=0)  # type: ignore[arg-type]
    return found


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    entries = {name.removeprefix("vit."): torch.from_numpy(array) for name, array in state_dict.items()}
    model = VisionTransformer(config, entries["embeddings.position_embeddings"].shape[1])
    model.load_state_dict(convert(entries, config["num_hidden_layers"]))
    model.to(getattr(torch, config.get("dtype", "float32"))).eval()
    return torch.no_grad()(model.forward)
