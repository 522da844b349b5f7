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

from torch_impl.engines.triton.forward import Sizes, padded
from torch_impl.engines.triton.masks import Marks, TileRanges, Tiles
from torch_impl.engines.triton.tiles import allowed_pairs, pair_products, put_rows, rows_of, weighted_sum


@triton.jit
def towards_query(
    gradient, query, cotangent, logsumexp, delta, key, value, key_stride,
    value_stride, marks, batch, head, rows, first, stop, scale, sizes,
    MASKED: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """S_bar K of the blocks of keys from `first` to `stop` added to the gradient."""
    for block in range(first, stop):
        columns = block * KEYS + tl.arange(0, KEYS)
        keys = rows_of(key, key_stride, columns, sizes.K, sizes.D, WIDTH)
        weights = tl.exp(pair_products(query, keys) * scale - logsumexp[:, None])
        if MASKED:
            allowed = allowed_pairs(marks, batch, head, rows[:, None], columns[None, :], sizes.Q, sizes.K)
            weights = tl.where(allowed, weights, 0.0)
        values = rows_of(value, value_stride, columns, sizes.K, sizes.V, VALUE_WIDTH)
        scores_bar = weights * (pair_products(cotangent, values) - delta[:, None])
        gradient = weighted_sum(scores_bar, keys, gradient)
    return gradient


@triton.jit
def query_kernel(
    query, key, value, cotangent, output, logsumexp, delta, gradient,
    strides, marks, ranges, range_strides, scale, sizes,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, and delta."""
    blocks = tl.cdiv(sizes.Q, QUERIES)
    block, batch_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = (batch_head // sizes.H).to(tl.int64), (batch_head % sizes.H).to(tl.int64)
    group = head // (sizes.H // sizes.G)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    place = batch_head.to(tl.int64) * sizes.Q

    queries = rows_of(
        query + batch * strides[0][0] + head * strides[0][1], strides[0][2], rows, sizes.Q, sizes.D, WIDTH
    )
    cotangents = rows_of(
        cotangent + batch * strides[3][0] + head * strides[3][1], strides[3][2], rows, sizes.Q, sizes.V, VALUE_WIDTH
    )
    outputs = rows_of(output + place * sizes.V, sizes.V, rows, sizes.Q, sizes.V, VALUE_WIDTH)
    deltas = tl.sum(outputs * cotangents.to(tl.float32), 1)
    tl.store(delta + place + rows, deltas, mask=rows < sizes.Q)
    sums = tl.load(logsumexp + place + rows, mask=rows < sizes.Q, other=float("inf"))
    key += batch * strides[1][0] + group * strides[1][1]
    value += batch * strides[2][0] + group * strides[2][1]
    edges = ranges + batch * range_strides[0] + block * range_strides[1]
    first, stop, full_first, full_stop = tl.load(edges), tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)

    total = tl.zeros([QUERIES, WIDTH], tl.float32)
    total = towards_query(
        total, queries, cotangents, sums, deltas, key, value, strides[1][2], strides[2][2], marks, batch, head, rows,
        first, full_first, scale, sizes, True, KEYS, WIDTH, VALUE_WIDTH,
    )  # fmt: skip
    total = towards_query(
        total, queries, cotangents, sums, deltas, key, value, strides[1][2], strides[2][2], marks, batch, head, rows,
        full_first, full_stop, scale, sizes, False, KEYS, WIDTH, VALUE_WIDTH,
    )  # fmt: skip
    total = towards_query(
        total, queries, cotangents, sums, deltas, key, value, strides[1][2], strides[2][2], marks, batch, head, rows,
        full_stop, stop, scale, sizes, True, KEYS, WIDTH, VALUE_WIDTH,
    )  # fmt: skip
    put_rows(gradient + place * sizes.D, sizes.D, rows, sizes.Q, sizes.D, total * scale, WIDTH)


@triton.jit
def towards_key(
    gradients, keys, values, query, cotangent, logsumexp, delta, query_stride,
    cotangent_stride, marks, batch, head, columns, first, stop, scale,
    sizes,
    MASKED: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """S_bar^T Q and P^T O_bar of the blocks of queries from `first` to `stop` added to the gradients.

    Tiles have keys in rows here and queries in columns.
    """
    key_gradient, value_gradient = gradients
    for block in range(first, stop):
        rows = block * QUERIES + tl.arange(0, QUERIES)
        queries = rows_of(query, query_stride, rows, sizes.Q, sizes.D, WIDTH)
        sums = tl.load(logsumexp + rows, mask=rows < sizes.Q, other=float("inf"))
        weights = tl.exp(pair_products(keys, queries) * scale - sums[None, :])
        if MASKED:
            allowed = allowed_pairs(marks, batch, head, rows[None, :], columns[:, None], sizes.Q, sizes.K)
            weights = tl.where(allowed, weights, 0.0)
        cotangents = rows_of(cotangent, cotangent_stride, rows, sizes.Q, sizes.V, VALUE_WIDTH)
        value_gradient = weighted_sum(weights, cotangents, value_gradient)
        deltas = tl.load(delta + rows, mask=rows < sizes.Q, other=0.0)
        scores_bar = weights * (pair_products(values, cotangents) - deltas[None, :])
        key_gradient = weighted_sum(scores_bar, queries, key_gradient)
    return key_gradient, value_gradient


@triton.jit
def key_kernel(
    query, key, value, cotangent, logsumexp, delta, key_gradient,
    value_gradient, strides, marks, ranges, range_strides, scale, sizes,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and of its values."""
    blocks = tl.cdiv(sizes.K, KEYS)
    block, batch_group = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, group = (batch_group // sizes.G).to(tl.int64), (batch_group % sizes.G).to(tl.int64)
    columns = block * KEYS + tl.arange(0, KEYS)
    place = batch_group.to(tl.int64) * sizes.K

    keys = rows_of(key + batch * strides[1][0] + group * strides[1][1], strides[1][2], columns, sizes.K, sizes.D, WIDTH)
    values = rows_of(
        value + batch * strides[2][0] + group * strides[2][1], strides[2][2], columns, sizes.K, sizes.V, VALUE_WIDTH
    )
    edges = ranges + batch * range_strides[0] + block * range_strides[1]
    first, stop, full_first, full_stop = tl.load(edges), tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)

    gradients = (tl.zeros([KEYS, WIDTH], tl.float32), tl.zeros([KEYS, VALUE_WIDTH], tl.float32))
    share = sizes.H // sizes.G
    for number in range(share):
        head = group * share + number
        of_query = query + batch * strides[0][0] + head * strides[0][1]
        of_output = cotangent + batch * strides[3][0] + head * strides[3][1]
        sums, deltas = logsumexp + (batch * sizes.H + head) * sizes.Q, delta + (batch * sizes.H + head) * sizes.Q
        gradients = towards_key(
            gradients, keys, values, of_query, of_output, sums, deltas, strides[0][2], strides[3][2], marks, batch,
            head, columns, first, full_first, scale, sizes, True, QUERIES, WIDTH, VALUE_WIDTH,
        )  # fmt: skip
        gradients = towards_key(
            gradients, keys, values, of_query, of_output, sums, deltas, strides[0][2], strides[3][2], marks, batch,
            head, columns, full_first, full_stop, scale, sizes, False, QUERIES, WIDTH, VALUE_WIDTH,
        )  # fmt: skip
        gradients = towards_key(
            gradients, keys, values, of_query, of_output, sums, deltas, strides[0][2], strides[3][2], marks, batch,
            head, columns, full_stop, stop, scale, sizes, True, QUERIES, WIDTH, VALUE_WIDTH,
        )  # fmt: skip
    put_rows(key_gradient + place * sizes.D, sizes.D, columns, sizes.K, sizes.D, gradients[0] * scale, WIDTH)
    put_rows(value_gradient + place * sizes.V, sizes.V, columns, sizes.K, sizes.V, gradients[1], VALUE_WIDTH)


def backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, logsumexp: torch.Tensor,
    cotangent: torch.Tensor, marks: Marks, ranges: TileRanges, scale: float, tiles: Tiles,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of query, key and value, in float32. The cotangent has the dtype of the inputs."""
    (B, H, Q, D), (G, K), V = query.shape, key.shape[1:3], value.shape[3]
    of_query, of_key, of_value = (
        torch.empty(tensor.shape, dtype=torch.float32, device=query.device) for tensor in (query, key, value)
    )
    delta = torch.empty_like(logsumexp)
    strides = tuple(tensor.stride()[:3] for tensor in (query, key, value, cotangent))
    sizes, widths = Sizes(H, G, Q, K, D, V), {"WIDTH": padded(D), "VALUE_WIDTH": padded(V)}
    # The first kernel writes delta, and the second one reads it.
    query_kernel[(-(-Q // tiles.queries) * B * H,)](
        query, key, value, cotangent, output, logsumexp, delta, of_query, strides, marks, ranges.of_queries,
        ranges.of_queries.stride(), scale, sizes, **tiles.launch, **widths,
    )  # fmt: skip
    key_kernel[(-(-K // tiles.keys) * B * G,)](
        query, key, value, cotangent, logsumexp, delta, of_key, of_value, strides, marks, ranges.of_keys,
        ranges.of_keys.stride(), scale, sizes, **tiles.launch, **widths,
    )  # fmt: skip
    return of_query, of_key, of_value
