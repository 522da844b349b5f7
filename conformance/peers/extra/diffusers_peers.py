"""Diffusers: rotary embeddings, with frequencies in float32, or in float64 as Flux has them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.extra.torch_modules import FLOAT32_ANGLES

if TYPE_CHECKING:
    import torch

LACKS = ("no-batch_positions", "no-rotary_width", "no-rotary_scaling")


def rotate(x: torch.Tensor, positions: torch.Tensor, base: float, pairing: str, dtype: str) -> Any:
    """`get_1d_rotary_pos_embed` and `apply_rotary_emb`, of pairs in either half, or of neighbours."""
    import torch
    from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed

    neighbours = pairing == "interleaved"
    options: dict[str, Any] = {"use_real": True, "repeat_interleave_real": neighbours}
    table = get_1d_rotary_pos_embed(x.shape[-1], positions, base, **options, freqs_dtype=getattr(torch, dtype))
    return apply_rotary_emb(x, table, use_real_unbind_dim=-1 if neighbours else -2)


@declare(LACKS, conventions=FLOAT32_ANGLES)
def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, pairing: str = "halves") -> Any:
    return rotate(x, positions, base, pairing, "float32")


@declare(LACKS)
def rotary_float64(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, pairing: str = "halves") -> Any:
    return rotate(x, positions, base, pairing, "float64")


peer = partial(make_peer, "Diffusers ", __name__, "torch", ("diffusers", "torch"), isolated=True)
PEERS = (
    peer("apply_rotary_emb", "rotary", "rotary_embedding"),
    peer("apply_rotary_emb, freqs_dtype=float64", "rotary_float64", "rotary_embedding"),
)
