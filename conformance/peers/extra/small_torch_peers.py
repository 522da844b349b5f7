"""local-attention, rotary-embedding-torch and ring-attention-pytorch: libraries of one module each."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.extra.torch_modules import FLOAT32_ANGLES
from conformance.peers.peer import bottom_right, causal_flag, is_aligned, takes_masks
from specification import Causal, KeyPadding, SlidingWindow

if TYPE_CHECKING:
    import torch

# --- local-attention --------------------------------------------------------------------------------------------------

SIZE = 8
"""Of the windows: queries come in blocks of so many, and the last one is padded."""
WINDOW = ("structured", "window", "no-offset", "no-unmasked", "no-cross", "no-gqa", "no-empty", "scale", "gradients")
NOTHING_HIDDEN = {"isolation": "finite"}
"""Every key is in the window of some query, so that no number is behind the mask of all."""


def attend_locally(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: SlidingWindow, causal: bool, **options: Any
) -> Any:
    """`LocalAttention` with `exact_windowsize` and `autopad`."""
    from local_attention import LocalAttention

    sides = (SIZE, 0 if causal else SIZE)
    if not isinstance(window, SlidingWindow) or (window.left, window.right) != sides or not is_aligned(window):
        raise NotImplementedError(f"no mask but the window of {sides} keys")
    if not query.shape == key.shape == value.shape:
        raise NotImplementedError("queries, keys and values have one shape")
    mask = options.pop("mask", None)
    options |= {"autopad": True, "exact_windowsize": True, "use_rotary_pos_emb": False}
    return LocalAttention(SIZE, causal=causal, **options)(query, key, value, mask=mask)


@declare(WINDOW, windows=[(SIZE, 0)], conventions=NOTHING_HIDDEN)
def local_causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: SlidingWindow, scale: float | None = None
) -> Any:
    return attend_locally(query, key, value, mask, causal=True, scale=scale)


@declare(WINDOW, windows=[(SIZE, SIZE)], conventions=NOTHING_HIDDEN)
def local_both(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: SlidingWindow, scale: float | None = None
) -> Any:
    return attend_locally(query, key, value, mask, causal=False, scale=scale)


@declare(WINDOW, windows=[(SIZE, SIZE)], conventions=NOTHING_HIDDEN)
def local_masked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: SlidingWindow, scale: float | None = None
) -> Any:
    """With a mask that shows all keys, so that those of the padding are hidden."""
    import torch

    visible = torch.ones(query.shape[0], query.shape[2], dtype=torch.bool)
    return attend_locally(query, key, value, mask, causal=False, scale=scale, mask=visible)


# --- rotary-embedding-torch -------------------------------------------------------------------------------------------


@functools.cache
def rotary_module(width: int, base: float) -> Any:
    """One for each width and base, as a model keeps it; there is none of width 2."""
    from rotary_embedding_torch import RotaryEmbedding

    return RotaryEmbedding(width, theta=base)


@declare(["no-empty", "no-batch_positions", "no-halves"], conventions=FLOAT32_ANGLES, width_multiple=4)
def rotate_step_by_step(
    x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, rotary_width: int | None = None
) -> Any:
    """`rotate_queries_or_keys` of one position at a time, with the offset, as where a token is generated."""
    import torch

    module = rotary_module(rotary_width or x.shape[-1], base)
    parts = [module.rotate_queries_or_keys(x[:, :, t : t + 1], offset=int(p)) for t, p in enumerate(positions.tolist())]
    return torch.cat(parts, 2)


@declare(["no-empty", "no-halves"], conventions=FLOAT32_ANGLES, width_multiple=4)
def rotate_positions(
    x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, rotary_width: int | None = None
) -> Any:
    """`forward` of the positions and `apply_rotary_emb`."""
    from rotary_embedding_torch import apply_rotary_emb

    angles = rotary_module(rotary_width or x.shape[-1], base)(positions)
    return apply_rotary_emb(angles[:, None] if positions.ndim == 2 else angles, x, freqs_seq_dim=-2)


# --- ring-attention-pytorch -------------------------------------------------------------------------------------------

TILED = {"heads": "tiled"}
RING: dict[str, Any] = {"layout": "BTHD"}
RING_FEATURES = ("softcap", "gqa", "gradients")


@declare(["structured", *RING_FEATURES, "padding", "cross", "value_width"], conventions=TILED, **RING)
def ring_padding(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: KeyPadding | None = None,
    softcap: float | None = None,
) -> Any:  # fmt: skip
    """`default_attention`, whose mask is of keys."""
    from ring_attention_pytorch.ring_attention import default_attention

    return default_attention(query, key, value, read_padding(mask), **clamp(softcap))


@declare(["structured", *RING_FEATURES, "padding", "cross"], dtypes=("float32",), conventions=TILED, **RING)
def ring_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: KeyPadding | None = None,
    softcap: float | None = None,
) -> Any:  # fmt: skip
    """`ring_flash_attn` in buckets of 8, on one machine; the queries of other dtypes meet float32 sums."""
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    return ring_flash_attn(query, key, value, read_padding(mask), bucket_size=8, **clamp(softcap))


@declare(
    ["structured", *RING_FEATURES, "causal"], dtypes=("float32",),
    conventions=TILED | {"causal": "bottom_right"}, **RING,
)  # fmt: skip
def ring_causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: Causal | None = None,
    softcap: float | None = None,
) -> Any:  # fmt: skip
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    if query.shape[1] != key.shape[1] or key.shape != value.shape:
        raise NotImplementedError("as many queries as keys, and values of their width")
    options = {"causal": causal_flag(mask, "causal"), "bucket_size": 8}
    return ring_flash_attn(query, key, value, **options, **clamp(softcap))


def clamp(softcap: float | None) -> dict[str, Any]:
    return {} if softcap is None else {"softclamp_qk_sim": True, "softclamp_value": softcap}


def read_padding(mask: KeyPadding | None) -> Any:
    import torch

    if not isinstance(mask, KeyPadding | None):
        raise NotImplementedError("no mask but one of keys")
    return None if mask is None else torch.as_tensor(mask.keep, dtype=torch.bool)


local, rotary, ring = (
    partial(
        make_peer, f"{name} ", __name__, "torch", (name.replace("-", "_"), "torch"), operation=operation, isolated=True
    )
    for name, operation in (
        ("local-attention", "attention"),
        ("rotary-embedding-torch", "rotary_embedding"),
        ("ring-attention-pytorch", "attention"),
    )
)
PEERS = (
    local("LocalAttention, causal, autopad", "local_causal"),
    local("LocalAttention, autopad", "local_both"),
    local("LocalAttention, autopad, mask", "local_masked"),
    ring("default_attention, mask", "ring_padding", takes=takes_masks(KeyPadding)),
    ring("ring_flash_attn, mask", "ring_flash", takes=takes_masks(KeyPadding)),
    ring("ring_flash_attn, causal", "ring_causal", takes=bottom_right),
    rotary("rotate_queries_or_keys, one position at a time", "rotate_step_by_step"),
    rotary("apply_rotary_emb", "rotate_positions"),
)
