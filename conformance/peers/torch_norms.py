"""Norms of `torch.nn.functional`, which `nn.LayerNorm` and `nn.RMSNorm` call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.peers.adapters import adapt_layer_norm, adapt_rms_norm
from conformance.peers.peer import Peer

if TYPE_CHECKING:
    import torch


def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **eps: float) -> Any:
    from torch.nn import functional

    return functional.layer_norm(x, weight.shape, weight, bias, **eps)


def normalize_by_root(x: torch.Tensor, weight: torch.Tensor, bias: None, **eps: float) -> Any:
    from torch.nn import functional

    return functional.rms_norm(x, weight.shape, weight, **eps)


layer_norm, rms_norm = adapt_layer_norm(normalize, "eps"), adapt_rms_norm(normalize_by_root, "eps")

PEERS = (
    Peer("torch F.layer_norm", f"{__name__}:layer_norm", "layer_norm", "torch", ("torch",)),
    Peer("torch F.rms_norm", f"{__name__}:rms_norm", "rms_norm", "torch", ("torch",)),
)
