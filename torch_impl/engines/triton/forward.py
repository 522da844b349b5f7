# mypy: allow-untyped-defs, allow-incomplete-defs
"""The Triton kernel of the forward pass: online softmax over the tiles that the mask leaves (ATT-1 to ATT-9).

A program computes one block of queries of one head. It keeps, for every query, the maximum m of the scores so far, the
sum of exp(score - m), and that of exp(score - m) value; when m grows, both sums are multiplied by exp(old m - new m).
Nothing is added up by more than one program, so the result is the same every time (ATT-13).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from torch_impl.engines.kernel_inputs import in_units
from torch_impl.engines.triton.layout import KEY, QUERY, VALUE, block_of, edges_of, head_of, layout_of, sizes_of, stride
from torch_impl.engines.triton.masks import Marks, Tiles
from torch_impl.engines.triton.tiles import allowed_pairs, pair_products, put_rows, rows_of, weighted_sum


@triton.jit
def forward_kernel(
    query, key, value, output, logsumexp, layout, marks, ranges, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """The output and the log-sum-exp of a block of queries."""
    H, G, Q, K, D, V = sizes_of(layout)
    block, batch, head, place = block_of(Q, H, QUERIES)
    group = head // (H // G)
    rows = block * QUERIES + tl.arange(0, QUERIES)

    query = head_of(query, layout, QUERY, batch, head)
    key = head_of(key, layout, KEY, batch, group)
    value = head_of(value, layout, VALUE, batch, group)
    key_stride, value_stride = stride(layout, KEY, 2), stride(layout, VALUE, 2)
    queries = rows_of(query, stride(layout, QUERY, 2), rows, Q, D, WIDTH)
    first, stop, full_first, full_stop = edges_of(ranges, layout, batch, block)

    total_output = tl.zeros([QUERIES, VALUE_WIDTH], tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    maximum = tl.full([QUERIES], float("-inf"), tl.float32)
    for key_block in range(first, stop):
        columns = key_block * KEYS + tl.arange(0, KEYS)
        keys = rows_of(key, key_stride, columns, K, D, WIDTH)
        scores = pair_products(queries, keys) * scale
        if (key_block < full_first) | (key_block >= full_stop):
            allowed = allowed_pairs(marks, layout, batch, head, rows[:, None], columns[None, :], Q, K)
            scores = tl.where(allowed, scores, float("-inf"))
        larger = tl.maximum(maximum, tl.max(scores, 1))
        # Where nothing was allowed yet, -inf less -inf would be NaN.
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(scores - shift[:, None])
        shrink = tl.exp(maximum - shift)
        total = total * shrink + tl.sum(weights, 1)
        values = rows_of(value, value_stride, columns, K, V, VALUE_WIDTH)
        total_output = weighted_sum(weights, values, total_output * shrink[:, None])
        maximum = larger

    empty = total == 0
    total = tl.where(empty, 1.0, total)
    put_rows(output + place * V, V, rows, Q, V, total_output / total[:, None], VALUE_WIDTH)
    # exp(score - inf) = 0 are the weights of an empty row when they are computed again.
    sums = tl.where(empty, float("inf"), maximum + tl.log(total))
    tl.store(logsumexp + place + rows, sums, mask=rows < Q)


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, marks: Marks, ranges: torch.Tensor, scale: float,
    tiles: Tiles,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output and log-sum-exp [B, H, Q] in float32; the latter is +inf where a row is empty.

    The output is [B, H, Q, V], with zeros behind V up to a multiple of 16.
    """
    query, key, value = map(in_units, (query, key, value))
    (B, H, Q, D), V = query.shape, value.shape[3]
    output = query.new_empty((B, H, Q, V), dtype=torch.float32)
    logsumexp = query.new_empty((B, H, Q), dtype=torch.float32)
    layout = layout_of(query, key, value, ranges, marks.strides)
    forward_kernel[(-(-Q // tiles.queries) * B * H,)](
        query, key, value, output, logsumexp, layout, marks, ranges, scale,
        WIDTH=triton.next_power_of_2(D), VALUE_WIDTH=triton.next_power_of_2(V), **tiles.launch,
    )  # fmt: skip
    return output, logsumexp
