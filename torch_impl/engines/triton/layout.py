# mypy: allow-untyped-defs, allow-incomplete-defs
"""Sizes and strides for the Triton kernels, in one array of integers that a kernel reads when it starts.

They are no arguments, because Triton compiles a kernel again for an integer that is 1, or that is a multiple of 16
where the one before was not. Most new lengths would cost a compilation of several seconds. Here nothing is compiled
again. What the compiler must know, so that it moves 16 bytes at once, it is told by UNIT: widths and strides are given
in units of 16 if all of them are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
import triton
import triton.language as tl

SIZES = 6
"""B is not among them: it is the grid's."""
RANGES, MASK, TENSORS = tl.constexpr(6), tl.constexpr(8), tl.constexpr(12)
"""Where the strides of the ranges, of the mask's array and of the tensors begin."""
QUERY, KEY, VALUE, COTANGENT = (tl.constexpr(number) for number in range(4))


class Layout(NamedTuple):
    """numbers: H, G, Q, K, D, V, two strides of the ranges, four of the mask's array, three of every tensor."""

    numbers: torch.Tensor
    unit: int


def layout_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ranges: torch.Tensor, mask_strides: Sequence[int],
    *others: torch.Tensor,
) -> Layout:  # fmt: skip
    """The layout of a call. The last axis of every tensor has the stride 1."""
    (H, Q, D), (G, K), V = query.shape[1:], key.shape[1:3], value.shape[3]
    strides = [*chain.from_iterable(tensor.stride()[:3] for tensor in (query, key, value, *others))]
    unit = 1 if any(number % 16 for number in (D, V, *strides)) else 16
    numbers = H, G, Q, K, D // unit, V // unit, *ranges.stride()[:2], *mask_strides, *(n // unit for n in strides)
    return Layout(torch.tensor(numbers, dtype=torch.int64, device=query.device), unit)


@triton.jit
def sizes_of(layout, UNIT: tl.constexpr):
    """H query heads share G key heads; rows of queries and keys are D wide, those of values V."""
    H, G = tl.load(layout).to(tl.int32), tl.load(layout + 1).to(tl.int32)
    Q, K = tl.load(layout + 2).to(tl.int32), tl.load(layout + 3).to(tl.int32)
    return H, G, Q, K, tl.load(layout + 4).to(tl.int32) * UNIT, tl.load(layout + 5).to(tl.int32) * UNIT


@triton.jit
def stride(layout, tensor: tl.constexpr, axis: tl.constexpr, UNIT: tl.constexpr):
    return tl.load(layout + TENSORS + 3 * tensor + axis) * UNIT


@triton.jit
def head_of(pointer, layout, tensor: tl.constexpr, batch, head, UNIT: tl.constexpr):
    """Where the rows of a head begin."""
    return pointer + batch * stride(layout, tensor, 0, UNIT) + head * stride(layout, tensor, 1, UNIT)


@triton.jit
def edges_of(ranges, layout, batch, block):
    """First and stop of the blocks to visit, and of those among them that need no mask."""
    edges = ranges + batch * tl.load(layout + RANGES) + block * tl.load(layout + RANGES + 1)
    return tl.load(edges), tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)
