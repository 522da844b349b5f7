# mypy: allow-untyped-defs, allow-incomplete-defs
"""The Triton kernel of the forward pass: online softmax over the tiles that the mask leaves (ATT-1 to ATT-9).

A program computes one block of queries of one head. It keeps, for every query, the maximum m of the scores so far, the
sum of exp(score - m), and that of exp(score - m) value; when m grows, both sums are multiplied by exp(old m - new m).
Nothing is added up by more than one program, so the result is the same every time (ATT-13).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from torch_impl.engines.triton.masks import Marks, TileRanges, Tiles
from torch_impl.engines.triton.tiles import allowed_pairs, pair_products, put_rows, rows_of, weighted_sum


class Sizes(NamedTuple):
    """H query heads share G key heads; rows of queries and keys are D wide, those of values V."""

    H: int
    G: int
    Q: int
    K: int
    D: int
    V: int


def padded(width: int) -> int:
    """The narrowest that a tensor core takes, or the next power of two."""
    return max(16, triton.next_power_of_2(width))


@triton.jit
def attend(
    state, query, key, value, key_stride, value_stride, marks, batch, head,
    rows, first, stop, scale, sizes,
    MASKED: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Output, total and maximum after the blocks of keys from `first` to `stop`."""
    output, total, maximum = state
    for block in range(first, stop):
        columns = block * KEYS + tl.arange(0, KEYS)
        keys = rows_of(key, key_stride, columns, sizes.K, sizes.D, WIDTH)
        scores = pair_products(query, keys) * scale
        if MASKED:
            allowed = allowed_pairs(marks, batch, head, rows[:, None], columns[None, :], sizes.Q, sizes.K)
            scores = tl.where(allowed, scores, float("-inf"))
        larger = tl.maximum(maximum, tl.max(scores, 1))
        # Where nothing was allowed yet, -inf less -inf would be NaN.
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(scores - shift[:, None])
        shrink = tl.exp(maximum - shift)
        total = total * shrink + tl.sum(weights, 1)
        values = rows_of(value, value_stride, columns, sizes.K, sizes.V, VALUE_WIDTH)
        output = weighted_sum(weights, values, output * shrink[:, None])
        maximum = larger
    return output, total, maximum


@triton.jit
def forward_kernel(
    query, key, value, output, logsumexp, strides, marks, ranges,
    range_strides, scale, sizes,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(sizes.Q, QUERIES)
    block, batch_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = (batch_head // sizes.H).to(tl.int64), (batch_head % sizes.H).to(tl.int64)
    group = head // (sizes.H // sizes.G)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    place = batch_head.to(tl.int64) * sizes.Q

    queries = rows_of(
        query + batch * strides[0][0] + head * strides[0][1], strides[0][2], rows, sizes.Q, sizes.D, WIDTH
    )
    key += batch * strides[1][0] + group * strides[1][1]
    value += batch * strides[2][0] + group * strides[2][1]
    edges = ranges + batch * range_strides[0] + block * range_strides[1]
    first, stop, full_first, full_stop = tl.load(edges), tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)

    state = (
        tl.zeros([QUERIES, VALUE_WIDTH], tl.float32),
        tl.zeros([QUERIES], tl.float32),
        tl.full([QUERIES], float("-inf"), tl.float32),
    )
    state = attend(
        state, queries, key, value, strides[1][2], strides[2][2], marks, batch, head, rows, first, full_first,
        scale, sizes, True, KEYS, WIDTH, VALUE_WIDTH,
    )  # fmt: skip
    state = attend(
        state, queries, key, value, strides[1][2], strides[2][2], marks, batch, head, rows, full_first, full_stop,
        scale, sizes, False, KEYS, WIDTH, VALUE_WIDTH,
    )  # fmt: skip
    rows_output, total, maximum = attend(
        state, queries, key, value, strides[1][2], strides[2][2], marks, batch, head, rows, full_stop, stop,
        scale, sizes, True, KEYS, WIDTH, VALUE_WIDTH,
    )  # fmt: skip

    empty = total == 0
    total = tl.where(empty, 1.0, total)
    put_rows(output + place * sizes.V, sizes.V, rows, sizes.Q, sizes.V, rows_output / total[:, None], VALUE_WIDTH)
    # exp(score - inf) = 0 are the weights of an empty row when they are computed again.
    sums = tl.where(empty, float("inf"), maximum + tl.log(total))
    tl.store(logsumexp + place + rows, sums, mask=rows < sizes.Q)


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, marks: Marks, ranges: TileRanges, scale: float,
    tiles: Tiles,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q] in float32; the latter is +inf where a row is empty."""
    (B, H, Q, D), (G, K), V = query.shape, key.shape[1:3], value.shape[3]
    output = query.new_empty((B, H, Q, V), dtype=torch.float32)
    logsumexp = query.new_empty((B, H, Q), dtype=torch.float32)
    strides = tuple(tensor.stride()[:3] for tensor in (query, key, value))
    forward_kernel[(-(-Q // tiles.queries) * B * H,)](
        query, key, value, output, logsumexp, strides, marks, ranges.of_queries, ranges.of_queries.stride(),
        scale, Sizes(H, G, Q, K, D, V),
        **tiles.launch, WIDTH=padded(D), VALUE_WIDTH=padded(V),
    )  # fmt: skip
    return output, logsumexp
