"""A boolean mask of PyTorch in the other forms that functions take: numbers to add, and a `mask_mod`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def additive(mask: Any, dtype: Any, bias: Any = None) -> Any:
    """The bias, or 0, where the mask allows, and the dtype's lowest number elsewhere, as `transformers` writes it."""
    import torch

    allowed = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias.to(dtype)
    return torch.where(mask, allowed, torch.finfo(dtype).min)


def lookup(array: Any) -> Callable[..., Any]:
    """[Q, K] or [B or 1, H or 1, Q, K] as a function of the four indices."""
    if array.ndim == 2:
        return lambda b, h, i, j: array[i, j]
    batches, heads = array.shape[0] > 1, array.shape[1] > 1
    return lambda b, h, i, j: array[b if batches else 0, h if heads else 0, i, j]


def block_mask(mask: Any, query: Any, key: Any) -> Any:
    """A `BlockMask` whose `mask_mod` looks the mask up."""
    from torch.nn.attention.flex_attention import create_block_mask

    found = lookup(mask)
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return create_block_mask(lambda b, h, i, j: found(b, h, i, j), *sizes, device=str(query.device))
