# mypy: allow-untyped-defs, allow-incomplete-defs
"""The Triton kernels of the backward pass: weights are computed again from the log-sum-exp (ATT-12).

    P = exp(scores - log-sum-exp)      S_bar = P (O_bar . V - delta)      delta = sum of O_bar * O
    Q_bar = scale S_bar K              K_bar = scale S_bar^T Q            V_bar = P^T O_bar

One kernel has a block of queries in each program and adds up Q_bar; the other has a block of keys, and adds up K_bar
and V_bar over the queries of all heads that share it. No number is written by two programs, so the gradients are the
same every time (ATT-13).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specification.masks import Mask
from torch_impl.engines.kernel_inputs import in_units
from torch_impl.engines.triton.layout import (
    COTANGENT,
    KEY,
    QUERY,
    VALUE,
    block_of,
    edges_of,
    head_of,
    layout_of,
    sizes_of,
    stride,
)
from torch_impl.engines.triton.masks import Marks, Tilings, ranges_of_keys, ranges_of_queries
from torch_impl.engines.triton.tiles import allowed_pairs, pair_products, put_rows, rows_of, weighted_sum


@triton.jit
def query_kernel(
    query, key, value, cotangent, output, logsumexp, delta, gradient, layout, marks, ranges, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, and delta."""
    H, G, Q, K, D, V = sizes_of(layout)
    block, batch, head, place = block_of(Q, H, QUERIES)
    group = head // (H // G)
    rows = block * QUERIES + tl.arange(0, QUERIES)

    query = head_of(query, layout, QUERY, batch, head)
    cotangent = head_of(cotangent, layout, COTANGENT, batch, head)
    key = head_of(key, layout, KEY, batch, group)
    value = head_of(value, layout, VALUE, batch, group)
    key_stride, value_stride = stride(layout, KEY, 2), stride(layout, VALUE, 2)
    queries = rows_of(query, stride(layout, QUERY, 2), rows, Q, D, WIDTH)
    cotangents = rows_of(cotangent, stride(layout, COTANGENT, 2), rows, Q, V, VALUE_WIDTH)
    outputs = rows_of(output + place * V, V, rows, Q, V, VALUE_WIDTH)
    deltas = tl.sum(outputs * cotangents.to(tl.float32), 1)
    tl.store(delta + place + rows, deltas, mask=rows < Q)
    sums = tl.load(logsumexp + place + rows, mask=rows < Q, other=float("inf"))
    first, stop, full_first, full_stop = edges_of(ranges, layout, batch, block)

    total = tl.zeros([QUERIES, WIDTH], tl.float32)
    for key_block in range(first, stop):
        columns = key_block * KEYS + tl.arange(0, KEYS)
        keys = rows_of(key, key_stride, columns, K, D, WIDTH)
        weights = tl.exp(pair_products(queries, keys) * scale - sums[:, None])
        if (key_block < full_first) | (key_block >= full_stop):
            allowed = allowed_pairs(marks, layout, batch, head, rows[:, None], columns[None, :], Q, K)
            weights = tl.where(allowed, weights, 0.0)
        values = rows_of(value, value_stride, columns, K, V, VALUE_WIDTH)
        scores_bar = weights * (pair_products(cotangents, values) - deltas[:, None])
        total = weighted_sum(scores_bar, keys, total)
    put_rows(gradient + place * D, D, rows, Q, D, total * scale, WIDTH)


@triton.jit
def key_kernel(
    query, key, value, cotangent, logsumexp, delta, key_gradient, value_gradient, layout, marks, ranges, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and of its values.

    Tiles have keys in rows here and queries in columns.
    """
    H, G, Q, K, D, V = sizes_of(layout)
    block, batch, group, place = block_of(K, G, KEYS)
    columns = block * KEYS + tl.arange(0, KEYS)

    keys = rows_of(head_of(key, layout, KEY, batch, group), stride(layout, KEY, 2), columns, K, D, WIDTH)
    values = rows_of(head_of(value, layout, VALUE, batch, group), stride(layout, VALUE, 2), columns, K, V, VALUE_WIDTH)
    query_stride, cotangent_stride = stride(layout, QUERY, 2), stride(layout, COTANGENT, 2)
    first, stop, full_first, full_stop = edges_of(ranges, layout, batch, block)

    of_keys, of_values = tl.zeros([KEYS, WIDTH], tl.float32), tl.zeros([KEYS, VALUE_WIDTH], tl.float32)
    share = H // G
    for number in range(share):
        head = group * share + number
        of_query = head_of(query, layout, QUERY, batch, head)
        of_output = head_of(cotangent, layout, COTANGENT, batch, head)
        begin = (batch * H + head) * Q
        for query_block in range(first, stop):
            rows = query_block * QUERIES + tl.arange(0, QUERIES)
            queries = rows_of(of_query, query_stride, rows, Q, D, WIDTH)
            sums = tl.load(logsumexp + begin + rows, mask=rows < Q, other=float("inf"))
            weights = tl.exp(pair_products(keys, queries) * scale - sums[None, :])
            if (query_block < full_first) | (query_block >= full_stop):
                allowed = allowed_pairs(marks, layout, batch, head, rows[None, :], columns[:, None], Q, K)
                weights = tl.where(allowed, weights, 0.0)
            cotangents = rows_of(of_output, cotangent_stride, rows, Q, V, VALUE_WIDTH)
            of_values = weighted_sum(weights, cotangents, of_values)
            deltas = tl.load(delta + begin + rows, mask=rows < Q, other=0.0)
            scores_bar = weights * (pair_products(values, cotangents) - deltas[None, :])
            of_keys = weighted_sum(scores_bar, queries, of_keys)
    put_rows(key_gradient + place * D, D, columns, K, D, of_keys * scale, WIDTH)
    put_rows(value_gradient + place * V, V, columns, K, V, of_values, VALUE_WIDTH)


def backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, logsumexp: torch.Tensor,
    cotangent: torch.Tensor, mask: Mask | None, marks: Marks, scale: float, tilings: Tilings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of query, key and value, in float32. The cotangent has the dtype of the inputs.

    The output has zeros behind V, as `forward` returns it.
    """
    widths = [tensor.shape[3] for tensor in (query, key, value)]
    query, key, value, cotangent = map(in_units, (query, key, value, cotangent))
    (B, H, Q, D), (G, K), V = query.shape, key.shape[1:3], value.shape[3]
    of_query, of_key, of_value = (
        torch.empty(tensor.shape, dtype=torch.float32, device=query.device) for tensor in (query, key, value)
    )
    delta = torch.empty_like(logsumexp)
    tiled = {"WIDTH": triton.next_power_of_2(D), "VALUE_WIDTH": triton.next_power_of_2(V)}
    # The first kernel writes delta, and the second one reads it.
    ranges, _ = ranges_of_queries(mask, query, K, tilings.query)
    layout = layout_of(query, key, value, ranges, marks.strides, cotangent)
    query_kernel[(-(-Q // tilings.query.queries) * B * H,)](
        query, key, value, cotangent, output, logsumexp, delta, of_query, layout, marks, ranges, scale,
        **tilings.query.launch, **tiled,
    )  # fmt: skip
    ranges = ranges_of_keys(mask, query, K, tilings.key)
    layout = layout_of(query, key, value, ranges, marks.strides, cotangent)
    key_kernel[(-(-K // tilings.key.keys) * B * G,)](
        query, key, value, cotangent, logsumexp, delta, of_key, of_value, layout, marks, ranges, scale,
        **tilings.key.launch, **tiled,
    )  # fmt: skip
    return of_query[..., : widths[0]], of_key[..., : widths[1]], of_value[..., : widths[2]]
