"""Norms of `torch.nn.functional`, which `nn.LayerNorm` and `nn.RMSNorm` call."""

from __future__ import annotations

from typing import Any

from conformance.cases.declaration import declare
from conformance.peers.peer import Peer


@declare()
def layer_norm(x: Any, weight: Any, bias: Any = None, *, eps: float | None = None) -> Any:
    """`F.layer_norm`."""
    from torch.nn import functional

    given = {} if eps is None else {"eps": eps}
    return functional.layer_norm(x, weight.shape, weight, bias, **given)


@declare()
def rms_norm(x: Any, weight: Any, *, eps: float | None = None) -> Any:
    """`F.rms_norm`."""
    from torch.nn import functional

    return functional.rms_norm(x, weight.shape, weight, eps)


PEERS = (
    Peer("torch F.layer_norm", f"{__name__}:layer_norm", "layer_norm", "torch", ("torch",)),
    Peer("torch F.rms_norm", f"{__name__}:rms_norm", "rms_norm", "torch", ("torch",)),
)
