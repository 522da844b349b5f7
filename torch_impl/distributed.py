"""Attention over several ranks in PyTorch (DIST-1 to DIST-5), by `torch.distributed`.

Every rank holds a part of the queries, and a part of the keys with their values (`shard_positions`). R is the number of
ranks, and a length is cut into parts of about T / R.

`ring_attention` (Liu, Zaharia and Abbeel, arXiv 2310.01889) sends keys and values around. `head_parallel_attention`
(Jacobs et al., arXiv 2309.14509) exchanges sequence for heads, and computes whole rows of some heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch.autograd.function import once_differentiable

from specification.distributed import Pieces, shard_positions
from specification.masks import Mask, part
from torch_impl.attention import attention, merge_attention
from torch_impl.dtypes import widen
from torch_impl.engines import choice
from torch_impl.engines.blocked import Block, Inputs, arrays_of, blocks, mask_of
from torch_impl.engines.parts import Results, forward_of_part, gradients_of_part
from torch_impl.ranks import Members, Whole, agree, exchange, send_on, sum_over_ranks

__all__ = ["head_parallel_attention", "ring_attention", "shard_positions"]


def ring_attention(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    *,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    engine: str = "auto",
) -> Float[torch.Tensor, "B H Q V"]:
    """Compute this rank's rows of `attention` of the whole, while keys and values travel from rank to rank (DIST-1).

    Each rank computes its queries with the keys that it has, while those of the rank before it arrive. Partial results
    are merged by their log-sum-exps (ATT-14). In the backward pass keys and values travel again, with the sums of their
    gradients. Weights are computed anew from the log-sum-exp over all keys. Nothing is computed for pieces between
    which the mask hides everything.

    Bytes that a rank sends, for keys and values of K_r positions on rank r in a dtype of n bytes, w = max(n, 4):

        forward     B G (D + V) n (sum of all K_r, but that of the next rank)
        backward    the same, and B G (D + V) w (sum of all K_r) where keys or values want gradients

    Comparing the calls takes some more. So does the backward pass: a sum over ranks for sinks, and one for a bias for
    all queries. A rank holds O(T / R) numbers beside its mask and bias, among them two parts of keys and values, and
    two of their gradients. The engine "reference" also holds the scores of two pieces; the others take blocks of them.

    Args:
        query: [B, H, Q, D], this rank's part, in float16, bfloat16, float32 or float64.
        key: [B, G, K, D], this rank's part. Its length may differ from that of query.
        value: [B, G, K, V], this rank's part.
        mask: As in `attention`, of the whole and the same on every rank (DIST-2).
        bias: [Q, K_whole] or [B or 1, H or 1, Q, K_whole], the rows of this rank's queries and the columns of all keys.
            A query axis of length 1 means the same bias for all queries, unless every rank has one query.
        scale, softcap: As in `attention`, but plain numbers.
        sinks: [H], the same on every rank.
        group: The process group, None for the default one. Without any there is one rank.
        layout: "contiguous" or "zigzag", which positions of the whole a rank holds (`shard_positions`, DIST-3).
        engine: As in `attention`, for each two pieces.

    Returns:
        A new array [B, H, Q, V] in the dtype of query, this rank's rows. It can be differentiated once.

    Raises:
        TypeError: Dtypes or structures that are not as described, on any rank.
        ValueError: Sizes or numbers that are not as described, on any rank, or calls that differ.
    """
    tensors = (query, key, value, bias, sinks)
    whole = agree("ring_attention", tensors, mask, scale, softcap, group, layout, engine)
    return RingAttention.apply(whole, *tensors)


def head_parallel_attention(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    *,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    engine: str = "auto",
) -> Float[torch.Tensor, "B H Q V"]:
    """Compute this rank's rows of `attention` of the whole, by whole rows of H / R heads on each rank (DIST-1).

    Each rank sends every other one its part of that one's heads, and the key heads that they read, computes `attention`
    of whole sequences, and sends the rows back.

    Bytes that a rank sends, for Q queries and K keys of its own in a dtype of n bytes, with G_r the key heads that rank
    r reads:

        forward     B n (Q D H (R - 1) / R + K (D + V) (sum of G_r of all others)), and back
                    B n V (H / R) (queries of all others)
        backward    the gradients of all that, back where it came from; those of queries, keys and values in 4 bytes or
                    more a number where several ranks read one key head

    Comparing the calls takes some more. A bias adds its own rows to the forward pass, and their gradients to the
    backward pass; sinks, and a bias for all queries, one sum over ranks. A rank holds whole sequences of H / R heads,
    O(T / R) numbers, and its heads' rows of the bias: all of it where its head axis is 1.

    Args:
        query, key, value, mask, bias, scale, softcap, sinks, group, layout: As in `ring_attention`. H is a multiple of
            the number of ranks. G need not be.
        engine: As in `attention`.

    Returns:
        A new array [B, H, Q, V] in the dtype of query, this rank's rows.

    Raises:
        TypeError, ValueError: As in `ring_attention`; also a number of heads that ranks cannot share equally.
    """
    tensors = (query, key, value, bias, sinks)
    whole = agree("head_parallel_attention", tensors, mask, scale, softcap, group, layout, engine)
    members = whole.members
    H, G, dtype = query.shape[1], key.shape[1], query.dtype
    share, count = max(H // max(G, 1), 1), H // members.ranks
    heads = [(count * rank, count * (rank + 1)) for rank in range(members.ranks)]
    groups = [(first // share, -(-stop // share)) for first, stop in heads]
    first, stop = heads[members.rank]
    # What several ranks read gets its gradient from all of them, and is rounded when they are summed.
    wide = sum(stop - first for first, stop in groups) > G
    query = GatherRows.apply(members, whole.queries, heads, wide, query)
    key, value = (GatherRows.apply(members, whole.keys, groups, wide, tensor) for tensor in (key, value))
    readers = [head // share - groups[members.rank][0] for head in range(first, stop)]
    if any(readers.count(reader) * key.shape[1] != count for reader in readers):
        key, value = key[:, readers], value[:, readers]
    if bias is not None:
        bias = bias if bias.ndim == 4 else bias[None, None]
        own = heads if bias.shape[1] > 1 else [(0, 1)] * members.ranks
        if whole.one_row:
            bias = SameOnRanks.apply(members, bias)[:, slice(*own[members.rank])].expand(-1, -1, query.shape[2], -1)
        else:
            bias = GatherRows.apply(members, whole.queries, own, True, bias)
    sinks = None if sinks is None else SameOnRanks.apply(members, sinks)[first:stop]

    def cut_heads(array: torch.Tensor, axes: tuple[str, ...]) -> torch.Tensor:
        return array[:, first:stop] if "heads" in axes and array.shape[1] > 1 else array

    rows = attention(
        query, key, value, mask=part(whole.mask, 0, 0, cut_heads), bias=bias, scale=scale, softcap=softcap,
        sinks=sinks, engine=engine,
    )  # fmt: skip
    return GatherHeads.apply(members, whole.queries, heads, rows.to(dtype))


# --- the ring ---------------------------------------------------------------------------------------------------------


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Whole, *tensors: Any) -> torch.Tensor:
        query, key, value, _, sinks = tensors
        output = widen(query.new_zeros((*query.shape[:3], value.shape[3])))
        logsumexp = output.new_full(query.shape[:3], -torch.inf)
        for owner, keys, values in travel(whole, key, value):
            for pair in pairs(whole, tensors, owner, keys, values):
                rows = output[:, :, pair.queries], logsumexp[:, :, pair.queries]
                found = forward_of_part(pair.engine, pair.inputs)
                merged = merge_attention([rows[0], found[0]], [rows[1], found[1]])
                for total, part_of_it in zip(rows, merged, strict=True):
                    total.copy_(part_of_it)
        empty = logsumexp == -torch.inf
        if sinks is not None:
            alone = widen(sinks)[:, None].expand(logsumexp.shape)
            output, logsumexp = merge_attention([output, torch.zeros_like(output)], [logsumexp, alone])
            output = torch.where(empty[..., None], 0, output)  # whatever the sink is, a NaN too (ATT-6)
        ctx.whole = whole
        ctx.save_for_backward(*tensors, output, logsumexp, empty, *arrays_of((whole.mask, None, None)))
        return output.to(query.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        whole, wanted = ctx.whole, ctx.needs_input_grad[1:]
        *tensors, output, logsumexp, empty = ctx.saved_tensors[:8]
        _, key, value, _, sinks = tensors
        cotangent = as_computed(cotangent)
        mean = torch.sum(widen(cotangent) * output, dim=-1)
        sums: list[Any] = [
            torch.zeros_like(widen(t)) if want else None for t, want in zip(tensors, wanted, strict=True)
        ]
        arrival = None
        for owner, keys, values in travel(whole, key, value):
            here = [torch.zeros_like(widen(array)) for array in (keys, values)]
            for pair in pairs(whole, tensors, owner, keys, values):
                results = Results(*(array[:, :, pair.queries] for array in (output, logsumexp, mean, cotangent)))
                found = gradients_of_part(pair.engine, pair.inputs, results, (*wanted[:4], False))
                places = zip((sums[0], *here), (pair.queries, pair.keys, pair.keys), found, strict=False)
                for total, place, gradient in places:
                    if gradient is not None:
                        total[:, :, place] += gradient
                if found[3] is not None:
                    columns = in_rank_4(sums[3])[..., pair.columns]
                    if whole.one_row:
                        columns += found[3].sum(dim=2, keepdim=True)
                    else:
                        columns[:, :, pair.queries] += found[3]
            if wanted[1] or wanted[2]:
                travelling = torch.cat([array.reshape(-1) for array in here])
                travelling = travelling if arrival is None else travelling + arrival()
                arrival = send_on(whole.members, travelling, numbers_of(whole, owner - 1, key, value))
        if arrival is not None:
            sums[1:3] = unpacked(arrival(), key, value, key.shape[2])
        if wanted[3] and whole.one_row:
            sums[3] = sum_over_ranks(whole.members, sums[3])
        if wanted[4]:
            weights = torch.exp(widen(sinks)[:, None] - logsumexp)
            sums[4] = sum_over_ranks(whole.members, -torch.sum(torch.where(empty, 0, weights * mean), dim=(0, 2)))
        rounded = zip(sums, tensors, wanted, strict=True)
        return None, *(total.to(tensor.dtype) if want else None for total, tensor, want in rounded)


def travel(whole: Whole, key: torch.Tensor, value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """This rank's keys and values, then those of each rank before it; the next ones arrive while these are used."""
    numbers = torch.cat([key.reshape(-1), value.reshape(-1)])
    for step in range(whole.members.ranks):
        owner = (whole.members.rank - step) % whole.members.ranks
        last = step == whole.members.ranks - 1
        arrival = None if last else send_on(whole.members, numbers, numbers_of(whole, owner - 1, key, value))
        keys, values = unpacked(numbers, key, value, length_of(whole.keys[owner]))
        yield owner, keys, values
        if arrival is not None:
            numbers = arrival()


def length_of(pieces: Pieces) -> int:
    return sum(stop - start for start, stop in pieces)


def numbers_of(whole: Whole, owner: int, key: torch.Tensor, value: torch.Tensor) -> int:
    """How many numbers the keys and values of a rank are."""
    (B, G, _, D), V = key.shape, value.shape[3]
    return B * G * length_of(whole.keys[owner % whole.members.ranks]) * (D + V)


def unpacked(numbers: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Keys and values of a rank that has so many, of the same kind as these."""
    shapes = [(*array.shape[:2], length, array.shape[3]) for array in (key, value)]
    sizes = [math.prod(shape) for shape in shapes]
    return [array.view(shape) for array, shape in zip(numbers.split(sizes), shapes, strict=True)]


class Pair(NamedTuple):
    """A piece of this rank's queries and one of the keys that are here, as attention of its own."""

    queries: slice  # among this rank's
    keys: slice  # among those that are here
    columns: slice  # where these keys stand in the whole
    inputs: Inputs
    engine: str


def pairs(whole: Whole, tensors: Any, owner: int, keys: torch.Tensor, values: torch.Tensor) -> Iterator[Pair]:
    """Those between which the mask leaves anything."""
    query, key, value, bias, _ = tensors
    if 0 in (*query.shape, *values.shape):
        return
    whole_inputs = Inputs(query, key, value, whole.mask, bias, whole.scale, whole.softcap, None)
    if bias is not None:
        bias = in_rank_4(bias).expand(-1, -1, query.shape[2], -1)
    for rows, queries in places_of(whole.queries[whole.members.rank]):
        of_query = as_computed(query[:, :, rows])
        for here, columns in places_of(whole.keys[owner]):
            if rows.start == rows.stop or here.start == here.stop:
                continue
            block = Block(slice(None), queries, columns, masked=True)
            inputs = whole_inputs._replace(
                query=of_query,
                key=as_computed(keys[:, :, here]),
                value=as_computed(values[:, :, here]),
                mask=mask_of(whole_inputs, block),
                bias=None if bias is None else bias[:, :, rows, columns],
            )
            if blocks(inputs, rows.stop - rows.start):
                yield Pair(rows, here, columns, inputs, choice.engine_for(whole.engine, inputs, None, "zero").engine)


def places_of(pieces: Pieces) -> Iterator[tuple[slice, slice]]:
    """Where each piece stands among a rank's positions, and in the whole."""
    begin = 0
    for start, stop in pieces:
        yield slice(begin, begin + stop - start), slice(start, stop)
        begin += stop - start


def in_rank_4(bias: torch.Tensor) -> torch.Tensor:
    return bias if bias.ndim == 4 else bias[None, None]


def as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """Widened, but on a GPU, where kernels take 16 bits."""
    return tensor if tensor.is_cuda else widen(tensor)


# --- heads in exchange for rows ---------------------------------------------------------------------------------------

Ranges = list[tuple[int, int]]
"""The heads (first, stop) of each rank; several ranks may have the same ones."""


class GatherRows(torch.autograd.Function):
    """All rows of this rank's heads, in the order of the whole, from this rank's rows of all heads.

    wide: the result, and so its gradient, has the dtype in which everything is computed.
    """

    @staticmethod
    def forward(ctx: Any, members: Members, rows: list[Pieces], heads: Ranges, wide: bool, tensor: torch.Tensor) -> Any:
        ctx.arguments, ctx.shape, ctx.dtype = (members, rows, heads), tensor.shape, tensor.dtype
        gathered = gather_rows(members, rows, heads, tensor)
        return widen(gathered) if wide else gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        total = cotangent.new_zeros(ctx.shape)
        members, rows, heads = ctx.arguments
        for (first, stop), part_of_it in zip(heads, scatter_rows(members, rows, heads, cotangent), strict=True):
            total[:, first:stop] += part_of_it
        return None, None, None, None, total.to(ctx.dtype)


class GatherHeads(torch.autograd.Function):
    """All heads of this rank's rows, from all rows of its heads: what `GatherRows` did, undone."""

    @staticmethod
    def forward(ctx: Any, members: Members, rows: list[Pieces], heads: Ranges, tensor: torch.Tensor) -> Any:
        ctx.arguments = members, rows, heads
        return torch.cat(list(scatter_rows(members, rows, heads, tensor)), dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        members, rows, heads = ctx.arguments
        return None, None, None, gather_rows(members, rows, heads, cotangent)


class SameOnRanks(torch.autograd.Function):
    """What every rank has the same, whose gradient is the sum over ranks, in the dtype in which it is computed."""

    @staticmethod
    def forward(ctx: Any, members: Members, tensor: torch.Tensor) -> Any:
        ctx.members, ctx.dtype = members, tensor.dtype
        return widen(tensor).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        return None, sum_over_ranks(ctx.members, cotangent.clone()).to(ctx.dtype)


def gather_rows(members: Members, rows: list[Pieces], heads: Ranges, tensor: torch.Tensor) -> torch.Tensor:
    """Send each rank its heads of this rank's rows [B, H, rows, W], and put what arrives into the whole's order."""
    first, stop = heads[members.rank]
    shapes = [(tensor.shape[0], stop - first, length_of(pieces), tensor.shape[3]) for pieces in rows]
    received = exchange(members, [tensor[:, first:stop] for first, stop in heads], shapes)
    return torch.cat(list(received), dim=2)[:, :, torch.argsort(order_of(rows, tensor.device))]


def scatter_rows(members: Members, rows: list[Pieces], heads: Ranges, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Send each rank its rows of this rank's heads, and return this rank's rows of each rank's heads."""
    lengths = [length_of(pieces) for pieces in rows]
    shapes = [(tensor.shape[0], stop - first, lengths[members.rank], tensor.shape[3]) for first, stop in heads]
    return exchange(members, tensor[:, :, order_of(rows, tensor.device)].split(lengths, dim=2), shapes)


def order_of(rows: list[Pieces], device: torch.device) -> torch.Tensor:
    """The positions of all ranks' rows, rank by rank."""
    return torch.cat([torch.arange(*piece, device=device) for pieces in rows for piece in pieces])
