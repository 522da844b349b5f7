"""timm: its VisionTransformer, whose projections of queries, keys and values are one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import nn

UNUSED = (
    *("torchvision", "torchvision.datasets", "torchvision.models", "torchvision.models.feature_extraction"),
    *("torchvision.ops", "torchvision.ops.misc", "torchvision.transforms", "torchvision.transforms.functional"),
)
"""Modules that timm imports for data sets and other norms, and that no model here needs."""
for module in UNUSED:
    sys.modules.setdefault(module, MagicMock())

from timm.models.vision_transformer import VisionTransformer  # noqa: E402

ACTIVATIONS: dict[str, Any] = {"gelu": nn.GELU, "gelu_new": partial(nn.GELU, approximate="tanh")}
NAMES = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def convert(entries: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Return the entries under timm's names."""
    found = {
        "cls_token": entries["embeddings.cls_token"],
        "pos_embed": entries["embeddings.position_embeddings"],
    }
    for part in ("weight", "bias"):
        found[f"patch_embed.proj.{part}"] = entries[f"embeddings.patch_embeddings.projection.{part}"]
        found[f"norm.{part}"] = entries[f"layernorm.{part}"]
        for i in range(layers):
            place = f"encoder.layer.{i}"
            found |= {f"blocks.{i}.{name}.{part}": entries[f"{place}.{their}.{part}"] for name, their in NAMES.items()}
            names = [f"{place}.attention.attention.{name}.{part}" for name in ("query", "key", "value")]
            if names[0] in entries:
                found[f"blocks.{i}.attn.qkv.{part}"] = torch.cat([entries[name] for name in names])
    return found


def build_vit(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = VisionTransformer(
        config["image_size"],
        config["patch_size"],
        config["num_channels"],
        num_classes=0,
        global_pool="",
        embed_dim=config["hidden_size"],
        depth=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        mlp_ratio=config["intermediate_size"] / config["hidden_size"],
        qkv_bias=config["qkv_bias"],
        norm_layer=partial(nn.LayerNorm, eps=config["layer_norm_eps"]),
        act_layer=ACTIVATIONS[config["hidden_act"]],
    )
    entries = {name.removeprefix("vit."): torch.from_numpy(array) for name, array in state_dict.items()}
    model.load_state_dict(convert(entries, config["num_hidden_layers"]))
    return torch.no_grad()(model.eval().forward)
