# mypy: allow-untyped-defs, allow-incomplete-defs
"""The sizes and strides of a call, in one array of integers that every Triton kernel reads when it starts.

As arguments they would cost a compilation of several seconds for most new lengths: Triton compiles a kernel again for
an integer that is 1, and for a multiple of 16 where the earlier number was none. Numbers in an array compile nothing.
But the compiler moves 16 bytes at once only if it knows that widths and strides are multiples of 16. So the array holds
them in units of 16, which `kernel_inputs.in_units` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
import triton
import triton.language as tl

from torch_impl.engines import kernel_inputs

RANGES, MASK, TENSORS = tl.constexpr(6), tl.constexpr(8), tl.constexpr(12)
"""Where the strides of the ranges, of the mask's array and of the tensors begin. The six sizes are before them."""
UNIT = tl.constexpr(kernel_inputs.UNIT)
"""What the widths and the tensors' strides are multiples of."""
QUERY, KEY, VALUE, COTANGENT = (tl.constexpr(number) for number in range(4))
"""The tensors in the order of their strides."""


def layout_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ranges: torch.Tensor, mask_strides: Sequence[int],
    *others: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """What a kernel needs to know of tensors that `kernel_inputs.in_units` returned.

    H, G, Q, K, D, V (the grid implies B), two strides of the ranges, four of the mask's array, three of every tensor.
    """
    (H, Q, D), (G, K), V = query.shape[1:], key.shape[1:3], value.shape[3]
    strides = chain.from_iterable(tensor.stride()[:3] for tensor in (query, key, value, *others))
    in_16s = (number // kernel_inputs.UNIT for number in strides)  # where an axis has one element, any stride will do
    numbers = H, G, Q, K, D // kernel_inputs.UNIT, V // kernel_inputs.UNIT, *ranges.stride()[:2], *mask_strides, *in_16s
    return torch.tensor(numbers, dtype=torch.int64, device=query.device)


@triton.jit
def sizes_of(layout):
    """H, G, Q, K, D, V: query heads, key heads, queries, keys, the width of queries and keys, that of values."""
    H, G = tl.load(layout).to(tl.int32), tl.load(layout + 1).to(tl.int32)
    Q, K = tl.load(layout + 2).to(tl.int32), tl.load(layout + 3).to(tl.int32)
    return H, G, Q, K, tl.load(layout + 4).to(tl.int32) * UNIT, tl.load(layout + 5).to(tl.int32) * UNIT


@triton.jit
def block_of(length, heads, SIZE: tl.constexpr):
    """The block of rows that this program computes, its batch element, its head, and the rows before that head."""
    blocks = tl.cdiv(length, SIZE)
    block, batch_head = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    return block, batch_head // heads, batch_head % heads, batch_head * length


@triton.jit
def stride(layout, tensor: tl.constexpr, axis: tl.constexpr):
    """The stride of one axis of a tensor, in elements."""
    return tl.load(layout + TENSORS + 3 * tensor + axis) * UNIT


@triton.jit
def head_of(pointer, layout, tensor: tl.constexpr, batch, head):
    """A pointer to the first row of a head."""
    return pointer + batch * stride(layout, tensor, 0) + head * stride(layout, tensor, 1)


@triton.jit
def edges_of(ranges, layout, batch, block):
    """First and stop of the blocks to visit, then first and stop of those among them that need no mask."""
    edges = ranges + batch * tl.load(layout + RANGES) + block * tl.load(layout + RANGES + 1)
    return tl.load(edges), tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)
