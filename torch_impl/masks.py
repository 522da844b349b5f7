"""Mask descriptions made into boolean tensors (MASK-1 to MASK-6). True = this query may attend to this key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from specification import checks
from specification.masks import (
    And,
    Causal,
    Dense,
    KeyLengths,
    KeyPadding,
    Mask,
    Or,
    Segments,
    SlidingWindow,
    as_mask,
    map_arrays,
)

__all__ = ["materialize"]


def materialize(
    mask: Mask | Bool[torch.Tensor, "..."] | None,
    query_length: int,
    key_length: int,
    *,
    batch: int | None = None,
    heads: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[torch.Tensor, "#B #H #Q #K"]:
    """Make the boolean array that a mask description means (MASK-2).

    Arrays inside the description may be tensors, NumPy arrays or lists.

    Args:
        mask: A description, a boolean array (the same as `Dense` of it), or None for "every query sees every key".
        query_length: Q.
        key_length: K.
        batch, heads: When given, the arrays inside the description must fit them.
        device: Where the result is put: unless given, where the description's first tensor is, or on the default
            device.

    Returns:
        A new boolean array of rank 4 that broadcasts to [batch, heads, query_length, key_length].

    Raises:
        TypeError: A mask that is not boolean.
        ValueError: Sizes or values that do not fit.
    """
    device = device_of(mask) if device is None else device
    mask = checked_mask(mask, query_length, key_length, batch, heads, device)
    allowed = allowed_pairs(mask, query_length, key_length, device)
    shape = (*allowed.shape[:2], query_length, key_length)
    return allowed.expand(shape).clone(memory_format=torch.contiguous_format)


def device_of(mask: Mask | Bool[torch.Tensor, "..."] | None) -> torch.device:
    """Where the first tensor inside a description lives; the default device if it holds none."""
    devices = []
    map_arrays(as_mask(mask), lambda array: devices.append(array.device) if isinstance(array, torch.Tensor) else None)
    return devices[0] if devices else torch.empty(0).device


def checked_mask(
    mask: Mask | Bool[torch.Tensor, "..."] | None,
    query_length: int,
    key_length: int,
    batch: int | None,
    heads: int | None,
    device: torch.device | str,
) -> Mask | None:
    """The description with tensors on `device` inside, once all that it holds is known to fit."""
    mask = map_arrays(as_mask(mask), to_array)
    checks.mask(mask, query_length, key_length, batch, heads)
    checks.mask_values(mask, key_length, readable)
    return map_arrays(mask, lambda array: torch.as_tensor(array, device=device))


def to_array(array: torch.Tensor | np.ndarray | Sequence[object]) -> torch.Tensor | np.ndarray:
    """A tensor as it is, and what is none as an array that can be checked: NumPy's, with the values at hand.

    `torch.compile` cannot tell the dtype of NumPy's arrays, and gets a tensor.
    """
    if isinstance(array, torch.Tensor):
        return array
    array = np.array(array)  # a copy, since no tensor can stand on an array that is read-only or has negative strides
    return torch.as_tensor(array) if torch.compiler.is_compiling() else array


def readable(array: torch.Tensor | np.ndarray) -> np.ndarray | None:
    """An array's values, for a check on them; None where there are none to read.

    That is so while `torch.compile` or `torch.export` traces, under `vmap`, and in the capture of a CUDA graph. Reading
    a CUDA tensor waits for the device.
    """
    if torch.compiler.is_compiling():
        return None
    if isinstance(array, np.ndarray):
        return array
    if array.is_cuda and capturing():
        return None
    try:
        return array.detach().cpu().numpy()
    except RuntimeError:  # a tensor of torch.func, a fake one, or one on the meta device
        return None


def capturing() -> bool:
    """Whether a CUDA graph is captured. `torch.compile`, which cannot say so, captures what it has compiled."""
    return not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()


def allowed_pairs(
    mask: Mask | None, query_length: int, key_length: int, device: torch.device | str
) -> Bool[torch.Tensor, "#B #H #Q #K"]:
    """The description's meaning, in a shape that broadcasts to [B, H, Q, K]."""
    queries = torch.arange(query_length, device=device)[None, None, :, None]
    keys = torch.arange(key_length, device=device)
    if mask is None:
        return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
    if isinstance(mask, And | Or):
        left, right = (allowed_pairs(side, query_length, key_length, device) for side in (mask.left, mask.right))
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Causal):
        return keys <= queries + per_batch(mask.offset)
    if isinstance(mask, SlidingWindow):
        distance = keys - (queries + per_batch(mask.offset))
        inside = torch.ones_like(distance, dtype=torch.bool)
        if mask.left is not None:
            inside = inside & (distance >= -signed(mask.left))
        if mask.right is not None:
            inside = inside & (distance <= signed(mask.right))
        return inside
    if isinstance(mask, KeyLengths):
        return keys < per_batch(mask.lengths)
    if isinstance(mask, KeyPadding):
        return mask.keep[:, None, None, :]
    if isinstance(mask, Segments):
        return signed(mask.query_ids)[:, None, :, None] == signed(mask.key_ids)[:, None, None, :]
    assert isinstance(mask, Dense)
    return mask.array if mask.array.ndim == 4 else mask.array[None, None]


def per_batch(numbers: int | torch.Tensor | None) -> Any:
    """A number as it is, one number per batch element shaped [B, 1, 1, 1]; None is 0."""
    numbers = signed(0 if numbers is None else numbers)
    return numbers.reshape(-1, 1, 1, 1) if isinstance(numbers, torch.Tensor) else numbers


def signed(numbers: int | torch.Tensor) -> Any:
    """Integer tensors as int64: PyTorch has no arithmetic between int64 and the wider unsigned integers."""
    return numbers.to(torch.int64) if isinstance(numbers, torch.Tensor) else numbers
