"""Attention by blocks of queries and pieces of keys: memory of O(Q + K), and no work where the mask allows nothing.

The same function as `reference_attention`, in another order (Milakov and Gimelshein, arXiv 1805.02867; Dao
et al., arXiv 2205.14135). One block of queries takes the keys that it can see piece by piece. Three numbers a row stand
for all pieces so far: the largest score, the sum of the exponentials, and their sum of the values; a piece with a
larger score shrinks the other two.

    maximum = max(maximum, max scores)                 shrink = exp(old maximum - maximum)
    total   = shrink * total + sum exp(scores - maximum)
    output  = shrink * output + exp(scores - maximum) . value            at last output / total

Where inputs are such that no score can be far from 0, exp(score) itself is summed: no maximum, and nothing to shrink
(`near_zero`), and every score is read once less.

The backward pass computes the scores again, piece by piece, and weights = exp(scores - logsumexp) from them:

    d value = weights^T . d output          d scores = weights * (d output . value^T - sum(d output * output))

The log-sum-exp is kept as a sum of two numbers, itself and what it has lost by its rounding: of scores near -4096 that
is 2^-12, and all weights of the row would be off by it.

A score is rounded before anything is taken from it: the scale is on the queries, and a barrier behind the soft cap,
because XLA makes one rounding of a product and a difference. Large scores would lie far from their own maximum.

Loops have bounds that are known only when they run, so a mask may be traced. Second derivatives are those of
`reference_attention`, with all of its memory.

Where an input is infinite or NaN, zero times it is not zero, and what the mask forbids must stay out (MASK-7). Then the
sums are those of `reference_attention`, over the allowed pairs only; they take about twice the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jax_impl.attention_steps import allowed_sum, pair_products, reference_attention
from jax_impl.dtypes import HIGHEST
from jax_impl.engines.varying import axes_of, vary
from jax_impl.masks import allowed_pairs
from specification.dtypes import compute_dtype_name, dtype_name
from specification.key_ranges import key_ranges
from specification.masks import KeyLengths, KeyPadding, part


class Limits(NamedTuple):
    """How large the pieces are. The numbers decide about speed and rounding, and nothing else."""

    block: int = 256
    """Queries, of all heads that share their keys, that are taken together; four times as many where all see the same
    keys.

    More waste less on starting; where a mask's edge runs through the block, they also see more keys in vain.
    """
    piece: int = 1024
    """Keys taken together. 256 * 1024 scores in float32 are 1 MiB, which stay in the cache from one use to the next."""
    parts: int = 8
    """A piece has 1/n, 2/n, ... or n/n of that many keys, n being this: the less is left to see, the shorter it is."""
    shortest: int = 64
    """Keys that 1/n of a piece has at least, or n is smaller: each length takes time to be compiled for itself."""


class Inputs(NamedTuple):
    """What attention is computed from: key and value heads not repeated, bias of rank 4, numbers as arrays."""

    query: Any
    key: Any
    value: Any
    mask: Any
    bias: Any
    scale: Any
    softcap: Any
    sinks: Any


class Sums(NamedTuple):
    """Three sums of products.

    pairs: left . right^T for the allowed pairs. keys: weights . values over the allowed keys. queries: rows^T . weights
    over the allowed queries, [width, keys], of rows that are given as [width, queries]. XLA 0.10.2 takes about three
    times as long for weights^T . rows on a CPU.
    """

    pairs: Callable[[Any, Any, Any], Any]
    keys: Callable[[Any, Any, Any], Any]
    queries: Callable[[Any, Any, Any], Any]


PLAIN = Sums(
    lambda left, right, _: jnp.matmul(left, right.mT, precision=HIGHEST),
    lambda weights, values, _: jnp.matmul(weights, values, precision=HIGHEST),
    lambda rows, weights, _: jnp.matmul(rows, weights, precision=HIGHEST),
)
"""For finite numbers, with weights of 0 where the mask forbids."""


def everywhere(allowed: jax.Array | None, *shape: int) -> Any:
    return jnp.ones(shape, bool) if allowed is None else allowed


CAREFUL = Sums(
    lambda left, right, allowed: pair_products(left, right, everywhere(allowed, left.shape[0], right.shape[0])),
    lambda weights, values, allowed: allowed_sum(weights, values, everywhere(allowed, *weights.shape)),
    lambda rows, weights, allowed: allowed_sum(weights.mT, rows.mT, everywhere(allowed, *weights.shape).mT).mT,
)
"""For any numbers."""


class Sizes(NamedTuple):
    """B, key heads G, query heads R for each of them, Q, K, the value width V, and how they are cut up."""

    B: int
    G: int
    R: int
    Q: int
    K: int
    V: int
    block: int
    pieces: tuple[int, ...]
    axes: tuple[str, ...]  # of a mesh, along which the inputs vary

    @property
    def blocks(self) -> int:
        return -(-self.Q // self.block)

    @property
    def rows(self) -> tuple[int, int, int]:
        return self.R, self.block, 1


def sizes_of(inputs: Inputs, limits: Limits) -> Sizes:
    (B, H, Q, _), (_, G, K, V) = inputs.query.shape, inputs.value.shape
    R = H // G
    same_keys = inputs.mask is None or isinstance(inputs.mask, KeyLengths | KeyPadding)
    rows = limits.block * (4 if same_keys else 1)
    block = min(Q, max(1, rows // R))
    # The fewer queries, the more keys; and pieces of nearly one length rather than a short last one.
    largest = max(limits.piece, limits.piece * rows // (block * R))
    largest = -(-K // -(-K // largest))
    count = min(limits.parts, max(1, largest // limits.shortest))
    parts = range(1, count + 1) if inputs.mask is not None else (count,)
    pieces = tuple(dict.fromkeys(-(-largest * part // count) for part in parts))
    return Sizes(B, G, R, Q, K, V, block, pieces, axes_of(inputs))


def wide(inputs: Inputs) -> Any:
    """The dtype in which everything is computed (ATT-9)."""
    return jnp.dtype(compute_dtype_name(dtype_name(inputs.query)))


def finite(*arrays: jax.Array) -> Any:
    return jnp.stack([jnp.all(jnp.isfinite(array)) for array in arrays]).all()


SCORE, VALUES = 40.0, (2.0**-60, 2.0**38)
"""exp(score) is between 2^-58 and 2^58 for scores of at most SCORE. Its products with values that are 0 or have such a
magnitude are neither too small for float32 nor, 2^30 of them added up, too large."""


def near_zero(inputs: Inputs) -> Any:
    """Whether every exp(score), and its product with every value, is an ordinary number of float32; False for NaN.

    |query . key| is at most |query| |key|. The square of a small number may be flushed to 0, and the scale may be huge:
    the smallest ordinary number stands for what each square has lost.
    """
    dtype = wide(inputs)
    lost = inputs.query.shape[-1] * jnp.finfo(dtype).tiny
    squares = [jnp.sum(jnp.square(array.astype(dtype)), axis=-1) for array in (inputs.query, inputs.key)]
    norms = [jnp.sqrt(largest_of(square) + lost) for square in squares]
    score = norms[0] * norms[1] * jnp.abs(inputs.scale)
    if inputs.softcap is not None:
        score = jnp.minimum(score, inputs.softcap)
    if inputs.bias is not None:
        bias = inputs.bias.astype(dtype)
        score = score + largest_of(jnp.where(bias == -jnp.inf, 0, jnp.abs(bias)))
    values = jnp.abs(inputs.value.astype(dtype))
    usual = jnp.all((values == 0) | ((values >= VALUES[0]) & (values <= VALUES[1])))
    if inputs.sinks is not None:
        sinks = inputs.sinks.astype(dtype)
        usual &= jnp.all((sinks == -jnp.inf) | (jnp.abs(sinks) <= SCORE))
    return usual & (score <= SCORE)


def bounded(left: jax.Array, right: jax.Array, dtype: DTypeLike) -> Any:
    """Whether no product of a row of each leaves the dtype; False where one of the numbers is NaN."""
    sizes = [largest_of(jnp.abs(array.astype(dtype))) for array in (left, right)]
    return 4 * sizes[0] * sizes[1] * left.shape[-1] < jnp.inf


def largest_of(sizes: jax.Array) -> Any:
    """Of numbers that are not negative; infinity if one is NaN, which XLA's own maximum leaves out where it is long.

    (In 0.10.2 on a CPU the maximum of 4,224 numbers, one of them NaN, is the largest of the others.)
    """
    return jnp.where(jnp.all(sizes < jnp.inf), jnp.max(sizes), jnp.inf)


# --- where a block stands ---------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A block of queries for the heads that share one key head, and the keys that it can see; all may be traced."""

    batch: Any
    group: Any
    query: Any  # its first query
    fresh: Any  # the first that the block before it did not have: blocks are whole, and the last one reaches back
    first: Any
    stop: Any
    full_first: Any
    full_stop: Any


def places(inputs: Inputs, sizes: Sizes) -> Callable[[Any], Place]:
    """From the number of a block, counted over batch, key heads and blocks of queries, to its place."""
    # The barrier keeps XLA from computing the ranges of a mask that is known while it compiles, which takes it minutes.
    mask = inputs.mask if inputs.mask is None else lax.optimization_barrier(inputs.mask)
    ranges = key_ranges(mask, sizes.Q, sizes.K, sizes.block, jnp)
    edges = jnp.stack([jnp.asarray(edge, jnp.int32) for edge in ranges], axis=-1)

    def place(number: int | jax.Array) -> Place:
        rest, block = number // sizes.blocks, number % sizes.blocks
        batch, group = rest // sizes.G, rest % sizes.G
        fresh = block * sizes.block
        seen = edges[batch if edges.shape[0] > 1 else 0, block]
        return Place(batch, group, jnp.minimum(fresh, sizes.Q - sizes.block), fresh, *seen)

    return place


def bounds(
    axes: tuple[str, ...], shape: tuple[int, ...], sizes: Sizes, place: Place, start: int | jax.Array, length: int
) -> tuple[list[Any], list[int]]:
    """Where the part of an array that belongs to a place begins on every axis, and how long it is there.

    An axis without a name is taken whole, as are the width and one of size 1 for batch or heads, which all share.
    """
    named = {
        "batch": (place.batch, 1),
        "heads": (place.group * sizes.R, sizes.R),
        "groups": (place.group, 1),
        "queries": (place.query, sizes.block),
        "keys": (start, length),
    }
    found = [(0, size) for size in shape]
    for axis, (name, size) in enumerate(zip(axes, shape, strict=False)):
        if name != "width" and not (name in ("batch", "heads") and size == 1):
            found[axis] = named[name]
    return [jnp.asarray(first, jnp.int32) for first, _ in found], [size for _, size in found]


def cut(
    array: jax.Array, axes: tuple[str, ...], sizes: Sizes, place: Place, start: int | jax.Array = 0, length: int = 0
) -> Any:
    """The part of an array whose first axes are so named: for this block of queries, and `length` keys from `start`."""
    return lax.dynamic_slice(array, *bounds(axes, array.shape, sizes, place, start, length))


def put(
    array: jax.Array, block: jax.Array, axes: tuple[str, ...], sizes: Sizes, place: Place,
    start: int | jax.Array = 0, length: int = 0, *, add: bool = False,
) -> Any:  # fmt: skip
    """The array with the part that `cut` would give replaced, or with `block` added to it."""
    starts, extents = bounds(axes, array.shape, sizes, place, start, length)
    block = block.reshape(extents)
    if add:
        block = block + lax.dynamic_slice(array, starts, extents)
    return lax.dynamic_update_slice(array, block, starts)


QUERIES, KEYS, PAIRS = ("batch", "heads", "queries"), ("batch", "groups", "keys"), ("batch", "heads", "queries", "keys")
UPRIGHT_KEYS = ("batch", "groups", "width", "keys")


# --- one block of queries and one piece of keys -----------------------------------------------------------------------


class Piece(NamedTuple):
    """Some keys for a block of queries."""

    start: Any  # the first key
    key: Any  # [piece, D]
    value: Any  # [piece, V]
    scores: Any  # [R, block, piece], -inf where forbidden
    slope: Any  # of the soft cap, or None
    allowed: Any  # [R, block, piece], or None where all are


def piece_at(
    inputs: Inputs, sizes: Sizes, place: Place, query: jax.Array, position: int | jax.Array, length: int, *, full: bool
) -> Piece:
    """The `length` keys from `position` on; if there are no more so many, the last ones, of which some are forbidden.

    full: the mask allows all of them, and there are so many.
    """
    start = position if full else jnp.minimum(position, sizes.K - length)

    def cut_here(array: jax.Array, axes: tuple[str, ...]) -> Any:
        array = jnp.asarray(array, int) if axes == ("batch",) else array
        return cut(array, axes, sizes, place, start, length) if array.ndim else array

    key, value = (cut_here(array, KEYS)[0, 0].astype(query.dtype) for array in (inputs.key, inputs.value))
    scores = jnp.matmul(query * inputs.scale, key.T, precision=HIGHEST).reshape(sizes.R, sizes.block, length)
    scores, slope = capped(scores, inputs.softcap)
    allowed = None
    if not full:
        mask = part(inputs.mask, place.query, start, cut_here)
        allowed = allowed_pairs(mask, sizes.block, length)[0] & (start + jnp.arange(length) >= position)
    if inputs.bias is not None:
        bias = cut_here(inputs.bias, PAIRS)[0].astype(scores.dtype)
        there = bias != -jnp.inf
        allowed = there if allowed is None else allowed & there
        scores = scores + bias
    if allowed is not None:
        allowed = jnp.broadcast_to(allowed, scores.shape)
        scores = jnp.where(allowed, scores, -jnp.inf)
    return Piece(start, key, value, scores, slope, allowed)


def capped(scores: jax.Array, softcap: float | jax.Array | None) -> tuple[Any, Any]:
    """The scores under the soft cap (ATT-2), and its slope there; as they are, and None, where there is none."""
    if softcap is None:
        return scores, None
    bent = jnp.tanh(scores / softcap)
    return lax.optimization_barrier(softcap * bent), 1 - bent**2


def flat(rows: Any) -> Any:
    """[R, block, width] as [R * block, width]."""
    return rows if rows is None else rows.reshape(-1, rows.shape[-1])


def over_pieces(
    sizes: Sizes, place: Place, look: Callable[..., Any], add: Callable[[Any, Any], Any], state: Any
) -> Any:
    """The state after add(look(position, length, full), state) for all pieces, from the first key seen to the last.

    What is looked at has one shape for all lengths, and the state is no business of the switch: it would be copied.
    """
    lengths = (*sizes.pieces, sizes.pieces[-1])
    branches = [partial(look, length=length, full=i == len(sizes.pieces)) for i, length in enumerate(lengths)]

    def body(carried: tuple[Any, Any]) -> tuple[Any, Any]:
        position, state = carried
        shorter = [(place.stop - position > length).astype(jnp.int32) for length in sizes.pieces[:-1]]
        full = (position >= place.full_first) & (position + lengths[-1] <= place.full_stop)
        chosen = jnp.where(full, len(sizes.pieces), sum(shorter))
        found = lax.switch(chosen, branches, position)
        return position + jnp.asarray(lengths, jnp.int32)[chosen], add(found, state)

    return lax.while_loop(lambda carried: carried[0] < place.stop, body, (place.first, state))[1]


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def forward(limits: Limits, inputs: Inputs) -> tuple[Any, Any]:
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q, 2], in the dtype in which everything is computed."""
    sizes = sizes_of(inputs, limits)
    if few_scores(inputs):
        return forward_at_once(inputs, sizes._replace(block=sizes.Q))
    simple = sizes._replace(pieces=sizes.pieces[-1:])
    return lax.switch(
        jnp.where(near_zero(inputs), 0, jnp.where(finite(inputs.value), 1, 2)),
        (
            lambda: forward_blocks(inputs, sizes, PLAIN, near=True),
            lambda: forward_blocks(inputs, simple, PLAIN),
            lambda: forward_blocks(inputs, simple, CAREFUL),
        ),
    )


def few_scores(inputs: Inputs) -> bool:
    """Whether every query sees every key, and there are no more scores than numbers in keys and values.

    So it is when one token after the other is decoded. Nothing is forbidden, so nothing has to be kept out.
    """
    (_, H, Q, D), (_, G, _, V) = inputs.query.shape, inputs.value.shape
    return inputs.mask is None and inputs.bias is None and H // G * Q <= D + V


def forward_at_once(inputs: Inputs, sizes: Sizes) -> tuple[Any, Any]:
    """All in one block and one piece: what a loop takes of keys and values it copies, and here each is used once."""
    dtype = wide(inputs)

    def group(query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array | None) -> tuple[Any, Any]:
        rows = flat(query).astype(dtype) * inputs.scale
        # In this order XLA reads the keys as they lie.
        products = jnp.matmul(key.astype(dtype), rows.T, precision=HIGHEST).T
        scores, _ = capped(products.reshape(sizes.R, sizes.Q, sizes.K), inputs.softcap)
        output, logsumexp = finished(summed(scores, value.astype(dtype), None, PLAIN), sinks, sizes)
        output = jnp.where(jnp.isinf(output), jnp.nan, output)  # an infinite value does the same as NaN (ATT-10)
        return output.reshape(query.shape[:-1] + output.shape[-1:]), logsumexp

    sinks = None if inputs.sinks is None else inputs.sinks.reshape(sizes.G, sizes.R)
    grouped = inputs.query.reshape(sizes.B, sizes.G, sizes.R, sizes.Q, -1)
    groups = jax.vmap(group, in_axes=(0, 0, 0, None if sinks is None else 0))
    found = jax.vmap(groups, in_axes=(0, 0, 0, None))(grouped, inputs.key, inputs.value, sinks)
    output, logsumexp = (rows.reshape(sizes.B, -1, *rows.shape[3:]) for rows in found)
    return output, logsumexp


def forward_blocks(inputs: Inputs, sizes: Sizes, sums: Sums, *, near: bool = False) -> tuple[Any, Any]:
    """near: the scores are near 0, so that no maximum is needed."""
    dtype, place_of = wide(inputs), places(inputs, sizes)

    def block(number: int | jax.Array, results: tuple[Any, Any]) -> tuple[Any, Any]:
        place = place_of(number)
        query = flat(cut(inputs.query, QUERIES, sizes, place)[0]).astype(dtype)

        def look(position: int | jax.Array, length: int, full: bool) -> Partial:
            piece = piece_at(inputs, sizes, place, query, position, length, full=full)
            return summed(piece.scores, piece.value, flat(piece.allowed), sums, near=near)

        keys = over_pieces(sizes, place, look, merged, nothing_yet(sizes, dtype, near=near))
        found = finished(keys, sinks_at(inputs, sizes, place), sizes)
        return tuple(put(all_rows, rows, QUERIES, sizes, place) for all_rows, rows in zip(results, found, strict=True))

    shape = inputs.query.shape[:3]
    results = vary((jnp.zeros((*shape, sizes.V), dtype), jnp.zeros((*shape, 2), dtype)), sizes.axes)
    return lax.fori_loop(0, sizes.B * sizes.G * sizes.blocks, block, results)


class Partial(NamedTuple):
    """What some of the keys make of a block of queries."""

    maximum: Any  # [R, block, 1], the largest score; None for 0 in its place
    total: Any  # [R, block, 1], the sum of exp(score - maximum)
    output: Any  # [R * block, V], and the same sum of the values


def summed(
    scores: jax.Array, value: jax.Array, allowed: jax.Array | None, sums: Sums, *, near: bool = False
) -> Partial:
    """Of the keys of one piece."""
    maximum = None if near else jnp.max(scores, axis=-1, keepdims=True)
    exponentials = jnp.exp(scores if maximum is None else jnp.minimum(scores - shift_of(maximum), 0))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return Partial(maximum, total, sums.keys(flat(exponentials), value, allowed))


def finished(keys: Partial, sinks: jax.Array | None, sizes: Sizes) -> tuple[Any, Any]:
    """Output [R * block, V] and log-sum-exp [R, block, 2] from all keys and the sinks [R], if there are any."""
    near = keys.maximum is None
    alone = None if sinks is None else sink_alone(sinks, sizes, keys.total.dtype, near=near)
    maximum, total, output = keys if alone is None else merged(alone, keys)
    nothing = total == 0
    total = jnp.where(nothing, 1, total)
    logsumexp, lost = exact_sum(0 if near else shift_of(maximum), jnp.log(total))
    logsumexp = jnp.concatenate([jnp.where(nothing, -jnp.inf, logsumexp), lost], axis=-1)
    # A row without keys is 0 whatever its sink is, a NaN too.
    # The maximum does not tell: of a row that is NaN throughout XLA makes -inf in some fusions.
    return jnp.where(flat(keys.total == 0), 0, output / flat(total)), logsumexp


def exact_sum(first: int | jax.Array, second: jax.Array) -> tuple[Any, Any]:
    """first + second, and what its rounding has lost of it (Knuth's TwoSum), 0 where that is no number."""
    found = first + second
    of_second = found - first
    lost = (first - (found - of_second)) + (second - of_second)
    return found, jnp.where(jnp.isfinite(found), lost, 0)


def merged(piece: Partial, before: Partial) -> Partial:
    """Of both sets of keys; as in `merge_attention` (ATT-14)."""
    if piece.maximum is None:
        return Partial(None, piece.total + before.total, piece.output + before.output)
    maximum = jnp.maximum(piece.maximum, before.maximum)
    shrink, shrink_before = (jnp.exp(part.maximum - shift_of(maximum)) for part in (piece, before))
    return Partial(
        maximum,
        shrink * piece.total + shrink_before * before.total,
        flat(shrink) * piece.output + flat(shrink_before) * before.output,
    )


def shift_of(maximum: jax.Array) -> Any:
    """What is subtracted from scores: 0 where nothing is allowed so far, which avoids inf - inf."""
    return jnp.where(maximum == -jnp.inf, 0, maximum)


def nothing_yet(sizes: Sizes, dtype: DTypeLike, *, near: bool = False) -> Partial:
    """When no key was taken."""
    output = jnp.zeros((sizes.R * sizes.block, sizes.V), dtype)
    maximum = None if near else jnp.full(sizes.rows, -jnp.inf, dtype)
    return Partial(*vary((maximum, jnp.zeros(sizes.rows, dtype), output), sizes.axes))


def sinks_at(inputs: Inputs, sizes: Sizes, place: Place) -> Any:
    return inputs.sinks if inputs.sinks is None else cut(inputs.sinks, ("heads",), sizes, place)


def sink_alone(sinks: jax.Array, sizes: Sizes, dtype: DTypeLike, *, near: bool = False) -> Partial:
    """The sinks' own scores [R], which have no value (ATT-5)."""
    sinks = jnp.broadcast_to(sinks[:, None, None], sizes.rows).astype(dtype)
    if near:
        return nothing_yet(sizes, dtype, near=True)._replace(total=jnp.exp(sinks))
    return nothing_yet(sizes, dtype)._replace(maximum=sinks, total=(sinks != -jnp.inf).astype(dtype))


# --- backward ---------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def backward(
    limits: Limits,
    inputs: Inputs,
    output: jax.Array,
    logsumexp: jax.Array,
    of_output: jax.Array,
    of_logsumexp: jax.Array,
) -> Inputs:
    """Gradients in the dtype in which everything is computed, from those of the output and of the log-sum-exp."""
    sizes = sizes_of(inputs, limits)
    simple = sizes._replace(pieces=sizes.pieces[-1:])
    # An empty row has a log-sum-exp of -inf.
    clean = finite(inputs.query, inputs.key) & bounded(inputs.value, of_output, output.dtype)
    clean &= jnp.all(logsumexp < jnp.inf)
    results = (output, logsumexp, of_output, of_logsumexp)
    return lax.cond(
        clean,
        lambda: backward_blocks(inputs, sizes, PLAIN, *results),
        lambda: backward_blocks(inputs, simple, CAREFUL, *results),
    )


def backward_blocks(
    inputs: Inputs,
    sizes: Sizes,
    sums: Sums,
    output: jax.Array,
    logsumexp: jax.Array,
    of_output: jax.Array,
    of_logsumexp: jax.Array,
) -> Inputs:
    dtype, place_of, largest = wide(inputs), places(inputs, sizes), sizes.pieces[-1]

    def block(number: int | jax.Array, gradients: Inputs) -> Inputs:
        place = place_of(number)
        of_rows = (inputs.query, output, logsumexp, of_output, of_logsumexp)
        query, out, lse, d_out, d_lse = (flat(cut(array, QUERIES, sizes, place)[0]).astype(dtype) for array in of_rows)
        lse, lost = (column.reshape(sizes.rows) for column in (jnp.where(lse == -jnp.inf, 0, lse)[:, :1], lse[:, 1:]))
        # sum(d output * output) over the width is sum(weights * d weights) over the keys.
        d_lse = d_lse[:, :1]
        mean = (jnp.sum(d_out * out, axis=-1, keepdims=True) - d_lse).reshape(sizes.rows)
        # Rows that the block before had too add nothing to what is summed over queries.
        fresh = jnp.tile(place.query + jnp.arange(sizes.block) >= place.fresh, sizes.R)[:, None]
        fresh_query, fresh_d_out = (jnp.where(fresh, rows, 0).T for rows in (query, d_out))

        def look(position: int | jax.Array, length: int, full: bool) -> Contribution:
            piece = piece_at(inputs, sizes, place, query, position, length, full=full)
            weights = jnp.exp(jnp.minimum(piece.scores - lse - lost, 0))
            allowed = flat(piece.allowed)
            d_weights = sums.pairs(d_out, piece.value, allowed).reshape(weights.shape)
            d_scores = weights * (d_weights - mean)
            d_products = d_scores * inputs.scale
            d_products = d_products if piece.slope is None else d_products * piece.slope
            if piece.allowed is not None and sums is not PLAIN:  # where all is finite, forbidden weights are 0 already
                weights, d_scores, d_products = (
                    jnp.where(piece.allowed, pairs, 0) for pairs in (weights, d_scores, d_products)
                )
            d_products = flat(d_products)
            d_bias = None
            if inputs.bias is not None:
                d_bias = jnp.where(fresh.reshape(sizes.rows), d_scores, 0)
                d_bias = d_bias if inputs.bias.shape[1] > 1 else jnp.sum(d_bias, axis=0, keepdims=True)
            plain = sums is PLAIN or piece.allowed is None
            return Contribution(
                piece.start,
                vary(jnp.ones(sizes.rows, bool), sizes.axes)
                if plain
                else jnp.any(piece.allowed, axis=-1, keepdims=True),
                sums.keys(d_products, piece.key, allowed),
                filled(sums.queries(fresh_query, d_products, allowed), largest, 1),
                filled(sums.queries(fresh_d_out, flat(weights), allowed), largest, 1),
                None if d_bias is None else filled(d_bias, largest, 2),
            )

        def add(piece: Contribution, state: tuple[Any, Any, Inputs]) -> tuple[Any, Any, Inputs]:
            seen, d_query, found = state
            there = (sizes, place, piece.start, largest)
            found = found._replace(
                key=put(found.key, piece.key, UPRIGHT_KEYS, *there, add=True),
                value=put(found.value, piece.value, UPRIGHT_KEYS, *there, add=True),
                bias=None if piece.bias is None else put(found.bias, piece.bias, PAIRS, *there, add=True),
            )
            return seen | piece.seen, d_query + piece.query, found

        nothing = vary((jnp.zeros(sizes.rows, bool), jnp.zeros_like(query), gradients), sizes.axes)
        seen, d_query, gradients = over_pieces(sizes, place, look, add, nothing)
        if inputs.sinks is not None:
            sinks = sink_alone(sinks_at(inputs, sizes, place), sizes, dtype).maximum
            # No cotangent of a row without keys gets to its sink, a NaN no more than others (ATT-6).
            rows = -jnp.exp(sinks - lse - lost) * jnp.where(seen, mean, -d_lse.reshape(sizes.rows))
            rows = jnp.where(fresh.reshape(sizes.rows), rows, 0)
            d_sinks = put(gradients.sinks, jnp.sum(rows, axis=(1, 2)), ("heads",), sizes, place, add=True)
            gradients = gradients._replace(sinks=d_sinks)
        return gradients._replace(query=put(gradients.query, d_query, QUERIES, sizes, place))

    zeros = Inputs(*(None if array is None else jnp.zeros(jnp.shape(array), dtype) for array in without_mask(inputs)))
    # Room after the last key, because what a piece adds is as long as the longest.
    zeros = zeros._replace(
        key=filled(zeros.key.mT, sizes.K + largest, 3),
        value=filled(zeros.value.mT, sizes.K + largest, 3),
        bias=None if zeros.bias is None else filled(zeros.bias, sizes.K + largest, 3),
    )
    found = lax.fori_loop(0, sizes.B * sizes.G * sizes.blocks, block, vary(zeros, sizes.axes))
    return found._replace(
        key=found.key[..., : sizes.K].mT,
        value=found.value[..., : sizes.K].mT,
        bias=None if found.bias is None else found.bias[..., : sizes.K],
    )


class Contribution(NamedTuple):
    """What a piece of keys adds to gradients. Those of keys, values and bias are filled up to the longest piece."""

    start: Any
    seen: Any  # [R, block, 1], whether a row has any of these keys; true of all where everything is finite
    query: Any
    key: Any  # [D, piece]
    value: Any  # [V, piece]
    bias: Any


def filled(array: jax.Array, length: int, axis: int) -> Any:
    """The array with zeros after it, until the axis has that length."""
    missing = [(0, length - array.shape[axis] if i == axis else 0) for i in range(array.ndim)]
    return jnp.pad(array, missing)


def without_mask(inputs: Inputs) -> Inputs:
    return inputs._replace(mask=None)


# --- the operation ----------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def blocked_attention(limits: Limits, inputs: Inputs) -> tuple[Any, Any]:
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q, 2], both in the dtype in which everything is computed.

    The log-sum-exp is the sum of its two columns.

    There must be at least one batch element, head, query and key.
    """
    return forward(limits, inputs)


def blocked_attention_forward(limits: Limits, inputs: Inputs) -> tuple[Any, Any]:
    # Of the function itself and not of its loops, which cannot be differentiated: this is, for second derivatives.
    results = blocked_attention(limits, inputs)
    return results, (inputs, *results)


def blocked_attention_backward(limits: Limits, saved: Any, cotangents: tuple[Any, Any]) -> tuple[Inputs]:
    return (gradients(limits, *saved, *cotangents),)


blocked_attention.defvjp(blocked_attention_forward, blocked_attention_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def gradients(limits: Limits, inputs: Inputs, *results: jax.Array) -> Inputs:
    """The gradients, each in the dtype of its own argument; the mask has none, and scale and softcap are constants."""
    found = backward(limits, inputs, *results)
    return jax.tree.map(lambda gradient, array: gradient.astype(array.dtype), found, without_mask(inputs))


def gradients_forward(limits: Limits, inputs: Inputs, *results: jax.Array) -> tuple[Inputs, Any]:
    return gradients(limits, inputs, *results), (inputs, results)


def gradients_backward(limits: Limits, saved: Any, cotangents: Inputs) -> tuple[Any, ...]:
    """Through `reference_attention`: output and log-sum-exp are functions of the inputs there, and count with those."""
    inputs, (output, logsumexp, *of_results) = saved

    def results_of(arrays: Inputs) -> tuple[Any, Any]:
        return reference_attention(**arrays._replace(mask=inputs.mask)._asdict())

    def reference_gradients(arrays: Inputs, of_results: list[Any]) -> Inputs:
        _, pullback = jax.vjp(results_of, arrays)
        of_output, of_logsumexp = of_results
        return pullback((of_output, of_logsumexp[..., 0]))[0]

    _, pullback = jax.vjp(reference_gradients, without_mask(inputs), of_results)
    of_inputs, of_cotangents = pullback(cotangents)
    return of_inputs, jnp.zeros_like(output), jnp.zeros_like(logsumexp), *of_cotangents


gradients.defvjp(gradients_forward, gradients_backward)
