"""Attention over several ranks in JAX (DIST-1 to DIST-5), inside `jax.shard_map`.

Every device of a mesh's axis is a rank. It holds a part of the queries, and a part of the keys with their values
(`shard_positions`). R is the number of ranks. All parts have the length T / R, as everything in `jax.shard_map`: pad
other lengths at the end, and hide the padding by `KeyLengths` or `KeyPadding`.

`ring_attention` (Liu, Zaharia and Abbeel, arXiv 2310.01889) sends keys and values around. `head_parallel_attention`
(Jacobs et al., arXiv 2309.14509) exchanges sequence for heads, and computes whole rows of some heads.

What is the same on all devices (sinks, a bias for all queries) has the gradient of the whole, the sum over devices.
`jax.shard_map` adds it up by the types of its arguments, unless `check_vma=False` turns that off: then differentiate
the mapped function, and not inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float

from jax_impl.attention import attention, merge_attention
from jax_impl.dtypes import cast, require_dtype, widen
from jax_impl.engines import choice
from jax_impl.engines.blocked import Inputs
from jax_impl.engines.parts import Results, forward_of_part, gradients_of_part
from jax_impl.engines.varying import axes_of, vary
from jax_impl.masks import checked_mask
from specification import checks
from specification.checks.arguments import one_of
from specification.distributed import LAYOUTS, Pieces, even_pieces, shard_positions
from specification.dtypes import compute_dtype_name, dtype_name
from specification.key_ranges import key_ranges
from specification.masks import Mask, part

__all__ = ["head_parallel_attention", "ring_attention", "shard_positions"]


def ring_attention(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    value: Float[jax.Array, "B G K V"],
    *,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    axis_name: str,
    layout: str = "contiguous",
    engine: str = "auto",
) -> Float[jax.Array, "B H Q V"]:
    """Compute this rank's rows of `attention` of the whole, while keys and values travel from rank to rank (DIST-1).

    Each rank computes its queries with the keys that it has, while those of the rank before it arrive. Partial results
    are merged by their log-sum-exps (ATT-14). In the backward pass, which is written by hand, keys and values travel
    again, with the sums of their gradients. Weights are computed anew from the log-sum-exp over all keys. Nothing is
    computed for pieces between which the mask hides everything.

    Bytes that a rank sends, for K keys of its own in a dtype of n bytes, w = max(n, 4):

        forward     B G K (D + V) n (R - 1)
        backward    the same, and B G K (D + V) w R

    The backward pass also takes a sum over ranks for sinks, and one for a bias for all queries. A rank holds O(T / R)
    numbers beside its mask and bias, among them two parts of keys and values, and two of their gradients. The engine
    "reference" also holds the scores of two pieces; "blocked" takes pieces of them.

    Args:
        query: [B, H, Q, D], this rank's part, in float16, bfloat16, float32 or float64.
        key: [B, G, K, D], this rank's part. Its length may differ from that of query.
        value: [B, G, K, V], this rank's part.
        mask: As in `attention`, of the whole and the same on every rank (DIST-2).
        bias: [Q, K_whole] or [B or 1, H or 1, Q, K_whole], the rows of this rank's queries and the columns of all keys.
            A query axis of length 1 means the same bias for all queries, unless every rank has one query.
        scale, softcap: As in `attention`, but plain numbers.
        sinks: [H], the same on every rank.
        axis_name: The mesh's axis along which the ranks stand.
        layout: "contiguous" or "zigzag", which positions of the whole a rank holds (`shard_positions`, DIST-3).
        engine: As in `attention`, for each two pieces.

    Returns:
        A new array [B, H, Q, V] in the dtype of query, this rank's rows. It can be differentiated once.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    arrays = (query, key, value, bias, sinks)
    ring, mask, arrays = prepare("ring_attention", arrays, mask, scale, softcap, axis_name, layout, engine)
    return run_ring(ring, mask, arrays)


def head_parallel_attention(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    value: Float[jax.Array, "B G K V"],
    *,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    axis_name: str,
    layout: str = "contiguous",
    engine: str = "auto",
) -> Float[jax.Array, "B H Q V"]:
    """Compute this rank's rows of `attention` of the whole, by whole rows of H / R heads on each rank (DIST-1).

    Each rank sends every other one its part of that one's heads, and the key heads that they read, computes `attention`
    of whole sequences, and sends the rows back.

    Bytes that a rank sends, for Q queries and K keys of its own in a dtype of n bytes, with G_r = G / R key heads for
    each rank if R divides G, and otherwise the most that one of them reads, in float32 or wider:

        forward     B (R - 1) n (Q D H / R + K (D + V) G_r + Q V H / R)
        backward    the same

    A bias adds its own rows, in float32 or wider; sinks, and a bias for all queries, one sum over ranks in the backward
    pass. A rank holds whole sequences of H / R heads, O(T / R) numbers, and its heads' rows of the bias: all of it
    where its head axis is 1.

    Args:
        query, key, value, mask, bias, scale, softcap, sinks, axis_name, layout: As in `ring_attention`. H is a multiple
            of the number of ranks. G need not be.
        engine: As in `attention`.

    Returns:
        A new array [B, H, Q, V] in the dtype of query, this rank's rows.

    Raises:
        TypeError, ValueError: As in `ring_attention`; also a number of heads that ranks cannot share equally.
    """
    arrays = (query, key, value, bias, sinks)
    ring, mask, arrays = prepare("head_parallel_attention", arrays, mask, scale, softcap, axis_name, layout, engine)
    query, key, value, bias, sinks = arrays
    H, G, dtype, rank = query.shape[1], key.shape[1], query.dtype, lax.axis_index(axis_name)
    share, count = max(H // max(G, 1), 1), H // ring.ranks
    if G % ring.ranks == 0:
        readers = None
    else:
        # Key heads that several ranks read have the gradients of all of them, and are rounded when those are summed.
        query, key, value = (widen(array) for array in (query, key, value))
        first = np.arange(ring.ranks) * count // share
        most = max(-(-(rank + 1) * count // share) - start for rank, start in enumerate(first))
        sent = np.minimum(first[:, None] + np.arange(most), G - 1).reshape(-1)
        key, value = key[:, sent], value[:, sent]
        readers = np.arange(H).reshape(ring.ranks, count) // share - first[:, None] if most > 1 else None
    query = gather_rows(ring, ring.queries, query)
    key, value = (gather_rows(ring, ring.keys, array) for array in (key, value))
    if readers is not None:
        key, value = (jnp.take(array, jnp.asarray(readers)[rank], axis=1) for array in (key, value))

    def own_heads(array: jax.Array, axis: int) -> jax.Array:
        return array if array.shape[axis] == 1 else lax.dynamic_slice_in_dim(array, rank * count, count, axis)

    if bias is not None and ring.one_row:
        bias = own_heads(bias, 1)
        bias = jnp.broadcast_to(bias, (*bias.shape[:2], query.shape[2], bias.shape[3]))
    elif bias is not None and bias.shape[1] == 1:
        bias = restore_order(ring.queries, lax.all_gather(bias, axis_name, axis=2, tiled=True))
    elif bias is not None:
        bias = gather_rows(ring, ring.queries, bias)
    rows = attention(
        query, key, value,
        mask=part(mask, 0, 0, lambda array, axes: own_heads(array, 1) if "heads" in axes else array),
        bias=bias, scale=scale, softcap=softcap, sinks=None if sinks is None else own_heads(sinks, 0), engine=engine,
    )  # fmt: skip
    rows = cast(rows, dtype)[:, :, order_of(ring.queries)]
    return lax.all_to_all(rows, axis_name, split_axis=2, concat_axis=1, tiled=True)


def gather_rows(ring: Ring, pieces: Shards, array: jax.Array) -> jax.Array:
    """Send each rank its heads of this rank's rows [B, H, rows, W], and put what arrives into the whole's order."""
    return restore_order(pieces, lax.all_to_all(array, ring.axis_name, split_axis=1, concat_axis=2, tiled=True))


def restore_order(pieces: Shards, array: jax.Array) -> jax.Array:
    """Put rows that stand rank by rank into the whole's order."""
    return array[:, :, np.argsort(order_of(pieces))]


def order_of(pieces: Shards) -> np.ndarray:
    """The positions of all ranks' rows, rank by rank."""
    return np.concatenate([np.arange(*piece) for of_rank in pieces for piece in of_rank])


# --- the call ---------------------------------------------------------------------------------------------------------

Shards = tuple[Pieces, ...]
"""The pieces of every rank. The i-th piece is as long on all of them."""


class Ring(NamedTuple):
    """What is known of a call before it runs."""

    axis_name: str
    ranks: int
    queries: Shards
    keys: Shards
    scale: float | None
    softcap: float | None
    engine: str
    one_row: bool  # the bias has one row for all queries


def prepare(
    function: str, arrays: Any, mask: Any, scale: Any, softcap: Any, axis_name: str, layout: str, engine: str
) -> tuple[Ring, Mask | None, Any]:
    """Check a call, and return it with arrays that vary along the axis; bias in rank 4, and sinks, are widened.

    The gradient of widening and casting is the sum over ranks, rounded once.
    """
    query, key, value, bias, sinks = arrays
    ranks = lax.axis_size(axis_name)
    one_of("layout", layout, LAYOUTS)
    checks.plain_numbers(scale=scale, softcap=softcap)
    checks.attention(query, key, value, bias=None, scale=scale, softcap=softcap, sinks=sinks)
    (B, H, Q, _), K = query.shape, key.shape[2]
    one_row = bias is not None and checks.bias_of_ranks([tuple(bias.shape)] * ranks, [Q] * ranks, K * ranks)
    if bias is not None:
        columns: Any = jax.ShapeDtypeStruct((*bias.shape[:-2], Q, K), bias.dtype)
        checks.attention(query, key, value, bias=columns, scale=scale, softcap=softcap, sinks=sinks)
        bias = widen(bias if bias.ndim == 4 else bias[None, None])
    mask = checked_mask(mask, Q * ranks, K * ranks, B, H)
    if function == "head_parallel_attention":
        checks.heads_of_ranks(H, ranks)
    require_dtype(compute_dtype_name(dtype_name(query)))
    query, key, value = (jnp.asarray(array) for array in (query, key, value))
    some = Inputs(query, key, value, None, None, scale, softcap, None)
    # Pieces that are empty have no engine, so that one which takes no sizes of 0 is not refused for them.
    if 0 not in (*query.shape, *value.shape):
        choice.engine_for(engine, some, None, "zero")
    queries, keys = (tuple(even_pieces(length * ranks, ranks, layout)) for length in (Q, K))
    ring = Ring(axis_name, ranks, queries, keys, scale, softcap, engine, one_row)
    arrays = (query, key, value, bias, widen(sinks))
    axes = axes_of(lax.axis_index(axis_name), arrays, mask)
    return ring, vary(mask, axes), vary(arrays, axes)


# --- the ring ---------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run_ring(ring: Ring, mask: Mask | None, arrays: Any) -> jax.Array:
    """This rank's rows, in the dtype of query."""
    return ring_forward(ring, mask, arrays)[0]


def ring_forward(ring: Ring, mask: Mask | None, arrays: Any) -> tuple[jax.Array, Any]:
    query, key, value, _, sinks = arrays
    axes = axes_of(arrays)
    dtype = compute_dtype_name(dtype_name(query))
    output = vary(jnp.zeros((*query.shape[:3], value.shape[3]), dtype), axes)
    logsumexp = vary(jnp.full(query.shape[:3], -jnp.inf, dtype), axes)

    def absorb(step: Any, output: Any, logsumexp: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        for pair in pairs(ring, mask, arrays, step, keys, values):
            rows = (slice(None), slice(None), pair.queries)
            nothing = vary((jnp.zeros_like(output[rows]), jnp.full_like(logsumexp[rows], -jnp.inf)), axes)
            found = compute_if_seen(pair, partial(forward_of_part, pair.engine, pair.inputs), nothing)
            merged = merge_attention([output[rows], found[0]], [logsumexp[rows], found[1]])
            output, logsumexp = output.at[rows].set(merged[0]), logsumexp.at[rows].set(merged[1])
        return output, logsumexp

    def body(step: Any, state: Any) -> Any:
        output, logsumexp, keys, values = state
        arriving = send_on(ring, (keys, values))
        return *absorb(step, output, logsumexp, keys, values), *arriving

    state = lax.fori_loop(0, ring.ranks - 1, body, (output, logsumexp, key, value))
    output, logsumexp = absorb(ring.ranks - 1, *state)
    empty = logsumexp == -jnp.inf
    if sinks is not None:
        alone = jnp.broadcast_to(sinks[:, None], logsumexp.shape)
        output, logsumexp = merge_attention([output, jnp.zeros_like(output)], [logsumexp, alone])
        output = jnp.where(empty[..., None], 0, output)  # whatever the sink is, a NaN too (ATT-6)
    return cast(output, query.dtype), (mask, arrays, output, logsumexp, empty)


def ring_backward(ring: Ring, saved: Any, cotangent: jax.Array) -> tuple[None, Any]:
    mask, arrays, output, logsumexp, empty = saved
    _, key, value, _, sinks = arrays
    axes = axes_of(arrays)
    mean = jnp.sum(widen(cotangent) * output, axis=-1)
    zeros = [None if array is None else vary(jnp.zeros_like(widen(array)), axes) for array in arrays]

    def add(step: Any, of_query: Any, of_bias: Any, keys: Any, values: Any, of_keys: Any, of_values: Any) -> Any:
        for pair in pairs(ring, mask, arrays, step, keys, values):
            rows, here = ((slice(None), slice(None), place) for place in (pair.queries, pair.keys))
            results = Results(output[rows], logsumexp[rows], mean[rows], cotangent[rows])
            wide = [None if array is None else widen(array) for array in pair.inputs[:3]] + [pair.inputs.bias]
            nothing = vary(jax.tree.map(jnp.zeros_like, wide), axes)
            found = compute_if_seen(pair, partial(gradients, pair, results), nothing)
            of_query = of_query.at[rows].add(found[0])
            of_keys, of_values = of_keys.at[here].add(found[1]), of_values.at[here].add(found[2])
            if of_bias is not None:
                of_pairs = jnp.sum(found[3], axis=2, keepdims=True) if ring.one_row else found[3]
                place = (0, 0, 0 if ring.one_row else pair.queries.start, pair.column)
                before = lax.dynamic_slice(of_bias, place, of_pairs.shape)
                of_bias = lax.dynamic_update_slice(of_bias, before + of_pairs, place)
        return of_query, of_bias, of_keys, of_values

    def body(step: Any, state: Any) -> Any:
        of_query, of_bias, keys, values, *_ = state
        arriving = send_on(ring, (keys, values))
        of_query, of_bias, *of_here = add(step, *state)
        return of_query, of_bias, *arriving, *send_on(ring, tuple(of_here))

    state = (zeros[0], zeros[3], key, value, zeros[1], zeros[2])
    state = lax.fori_loop(0, ring.ranks - 1, body, state)
    of_query, of_bias, *of_here = add(ring.ranks - 1, *state)
    of_key, of_value = send_on(ring, tuple(of_here))
    of_sinks = None
    if sinks is not None:
        weights = jnp.exp(sinks[:, None] - logsumexp)
        of_sinks = vary(-jnp.sum(jnp.where(empty, 0, weights * mean), axis=(0, 2)), axes)
    found = (of_query, of_key, of_value, of_bias, of_sinks)
    return None, tuple(
        None if array is None else cast(gradient, array.dtype) for gradient, array in zip(found, arrays, strict=True)
    )


run_ring.defvjp(ring_forward, ring_backward)


def gradients(pair: Pair, results: Results) -> Any:
    """Of query, key, value and bias."""
    found = gradients_of_part(pair.engine, pair.inputs, results)
    return [found.query, found.key, found.value, found.bias]


def send_on(ring: Ring, arrays: Any) -> Any:
    """The arrays of the rank before, for those of this rank, which the next one has then."""
    return lax.ppermute(arrays, ring.axis_name, [(rank, (rank + 1) % ring.ranks) for rank in range(ring.ranks)])


class Pair(NamedTuple):
    """A piece of this rank's queries and one of the keys that are here, as attention of its own."""

    queries: slice  # among this rank's
    keys: slice  # among those that are here
    column: Any  # where these keys begin in the whole
    inputs: Inputs
    engine: str


def pairs(ring: Ring, mask: Mask | None, arrays: Any, step: Any, keys: jax.Array, values: jax.Array) -> Iterator[Pair]:
    """Those that hold anything, after so many steps of keys and values."""
    query, _, _, bias, _ = arrays
    if 0 in (*query.shape, *values.shape):
        return
    rank = lax.axis_index(ring.axis_name)
    for rows, row in places_of(ring.queries, rank):
        for here, column in places_of(ring.keys, (rank - step) % ring.ranks):
            sizes = {"queries": rows.stop - rows.start, "keys": here.stop - here.start}
            if 0 in sizes.values():
                continue

            def cut(array: Any, axes: tuple[str, ...], row: Any = row, column: Any = column, sizes: Any = sizes) -> Any:
                if axes == ("batch",):
                    return jnp.asarray(array, int)
                for axis, name in enumerate(axes):
                    if name in sizes:
                        start = row if name == "queries" else column
                        array = lax.dynamic_slice_in_dim(array, start, sizes[name], axis)
                return array

            if bias is None:
                some = None
            else:
                some = jnp.broadcast_to(bias, (*bias.shape[:2], query.shape[2], bias.shape[3]))[:, :, rows]
                some = lax.dynamic_slice_in_dim(some, column, sizes["keys"], 3)
            inputs = Inputs(
                query[:, :, rows], keys[:, :, here], values[:, :, here], part(mask, row, column, cut), some, ring.scale,
                ring.softcap, None,
            )  # fmt: skip
            yield Pair(rows, here, column, inputs, choice.engine_for(ring.engine, inputs, None, "zero").engine)


def places_of(shards: Shards, rank: Any) -> Iterator[tuple[slice, Any]]:
    """Where each piece stands among a rank's positions, and where it begins in the whole; the rank may be traced."""
    begin = 0
    for pieces in zip(*shards, strict=True):
        size = pieces[0][1] - pieces[0][0]
        yield slice(begin, begin + size), jnp.asarray([start for start, _ in pieces])[rank]
        begin += size


def compute_if_seen(pair: Pair, compute: Callable[[], Any], nothing: Any) -> Any:
    """Compute something for a pair, or give nothing if the mask hides all of it."""
    mask, Q, K = pair.inputs.mask, pair.inputs.query.shape[2], pair.inputs.key.shape[2]
    if mask is None:
        return compute()
    ranges = key_ranges(mask, Q, K, Q, jnp)
    return lax.cond(jnp.any(ranges.first < ranges.stop), compute, lambda: nothing)
