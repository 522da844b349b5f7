"""ViT in PyTorch on `nn.MultiheadAttention`, with patches cut by `F.unfold`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    w = {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()}
    E, heads, size = config["hidden_size"], config["num_attention_heads"], config["patch_size"]
    eps, tanh = config.get("layer_norm_eps", 1e-12), config.get("hidden_act") == "gelu_new"
    attentions = []
    for i in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{i}.attention"
        attention = nn.MultiheadAttention(E, heads, batch_first=True, dtype=dtype)
        zero = torch.zeros(E, dtype=dtype)
        parts = [f"{name}.attention.{part}" for part in ("query", "key", "value")]
        attention.load_state_dict({
            "in_proj_weight": torch.cat([w[f"{part}.weight"] for part in parts]),
            "in_proj_bias": torch.cat([w.get(f"{part}.bias", zero) for part in parts]),
            "out_proj.weight": w[f"{name}.output.dense.weight"],
            "out_proj.bias": w[f"{name}.output.dense.bias"],
        })  # fmt: skip
        attentions.append(attention.eval())

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (E,), w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    @torch.inference_mode()
    def vit(images: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(images.to(dtype), size, stride=size).transpose(1, 2)
        projection = "embeddings.patch_embeddings.projection"
        x = F.linear(patches, w[f"{projection}.weight"].flatten(1), w[f"{projection}.bias"])
        positions = w["embeddings.position_embeddings"]
        first = (w["embeddings.cls_token"] + positions[:, :1]).expand(len(images), -1, -1)
        x = torch.cat((first, x + positions[:, 1:]), dim=1)
        for i, attention in enumerate(attentions):
            name = f"encoder.layer.{i}"
            h = norm(f"{name}.layernorm_before", x)
            x = x + attention(h, h, h, need_weights=False)[0]
            h = linear(f"{name}.intermediate.dense", norm(f"{name}.layernorm_after", x))
            x = x + linear(f"{name}.output.dense", F.gelu(h, approximate="tanh" if tanh else "none"))
        return norm("layernorm", x)

    return vit
