"""Attention on several ranks in PyTorch, as many write it, and what goes wrong in it.

`attend` keeps every rule. Each fault is the same function with other `Steps`, or with other arguments or results. A
rank has its rows of the mask and the bias, and of these a column for each of all keys; with a part of the heads, those
of its heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from specification.distributed import shard_positions
from torch_impl.attention_steps import allowed_sum, pair_products, repeat_heads
from torch_impl.dtypes import widen


class Gather(torch.autograd.Function):
    """All ranks' parts [B, G, T, W], one for each rank; gradients are summed over ranks."""

    @staticmethod
    def forward(ctx: Any, summed: bool, part: torch.Tensor) -> Any:
        lengths: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lengths, part.shape[2])
        ctx.lengths, ctx.summed = lengths, summed
        padded = part.new_zeros((*part.shape[:2], max(lengths), part.shape[3]))
        padded[:, :, : part.shape[2]] = part
        found = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(found, padded)
        return tuple(one[:, :, :length].clone() for one, length in zip(found, lengths, strict=True))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        sums = [bar.contiguous().clone() for bar in cotangents]
        for bar in sums:
            if ctx.summed:
                dist.all_reduce(bar)
        return None, sums[dist.get_rank()]


class Reduced(torch.autograd.Function):
    """The same tensor, whose gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, bar: torch.Tensor) -> torch.Tensor:
        bar = bar.contiguous().clone()
        dist.all_reduce(bar)
        return bar


class State(NamedTuple):
    """Running maximum, sum and output of some rows."""

    maximum: torch.Tensor
    total: torch.Tensor
    output: torch.Tensor


class Block(NamedTuple):
    """Scores [B, H, Q, K] of the keys of one rank, which pairs are allowed, and the values."""

    scores: torch.Tensor
    allowed: torch.Tensor
    values: torch.Tensor


def merge(state: State, block: Block) -> State:
    raised = torch.cat([state.maximum, block.scores.detach()], dim=-1).amax(dim=-1, keepdim=True)
    shift = torch.where(raised == -torch.inf, 0, raised)
    weights = torch.where(block.allowed, torch.exp(block.scores - shift), 0)
    factor = torch.exp(state.maximum - shift)
    output = state.output * factor + allowed_sum(weights, block.values, block.allowed)
    return State(raised, state.total * factor + weights.sum(dim=-1, keepdim=True), output)


def list_from_own(rank: int, ranks: int) -> list[int]:
    return [(rank - step) % ranks for step in range(ranks)]


class Steps(NamedTuple):
    """What faults replace.

    owners: of the blocks, in the order in which they are merged. mask_columns, bias_columns: (places, owner, own) ->
    those of a block. allowed: (allowed pairs, owner, own) -> those of a block. hop: (scale, step) -> its scale.
    """

    owners: Callable[[int, int], Sequence[int]] = list_from_own
    value_owner: Callable[[int, int], int] = lambda owner, ranks: owner
    places: Callable[[int, int, int, str], Any] = shard_positions
    mask_columns: Callable[[Any, int, int], Any] = lambda places, owner, own: places[owner]
    bias_columns: Callable[[Any, int, int], Any] = lambda places, owner, own: places[owner]
    allowed: Callable[[torch.Tensor, int, int], torch.Tensor] = lambda allowed, owner, own: allowed
    keys: Callable[[list[torch.Tensor], int, int], torch.Tensor] = lambda keys, owner, own: keys[owner]
    hop: Callable[[float, int], float] = lambda scale, step: scale
    merge: Callable[[State, Block], State] = merge
    sinks_in: Callable[[int, int], bool] = lambda step, ranks: step == 0
    share_sinks: Callable[[torch.Tensor], Any] = Reduced.apply
    summed: bool = True


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    layout: str = "contiguous",
    steps: Steps = Steps(),  # noqa: B008
) -> torch.Tensor:
    """This rank's rows, from the keys and values of all ranks."""
    rank, ranks, H, dtype = dist.get_rank(), dist.get_world_size(), query.shape[1], query.dtype
    query = widen(query)  # once, as gradients are rounded where numbers are widened
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    blocks = Gather.apply(steps.summed, widen(torch.cat([key, value], dim=-1)))
    keys = [repeat_heads(one[..., : key.shape[-1]], H) for one in blocks]
    values = [repeat_heads(one[..., key.shape[-1] :], H) for one in blocks]
    length = sum(one.shape[2] for one in keys)
    places = [torch.from_numpy(steps.places(length, ranks, owner, layout)) for owner in range(ranks)]
    rows = query.new_zeros((*query.shape[:3], 1))
    state = State(rows - torch.inf, rows.clone(), rows.expand(-1, -1, -1, value.shape[-1]))
    logits = None if sinks is None else steps.share_sinks(widen(sinks))[:, None, None]
    seen = torch.zeros_like(rows, dtype=torch.bool)
    for step, owner in enumerate(steps.owners(rank, ranks)):
        of_key = steps.keys(keys, owner, rank)
        of_value = values[steps.value_owner(owner, ranks)][:, :, : of_key.shape[2]]
        columns = steps.mask_columns(places, owner, rank)
        allowed = torch.ones((*rows.shape[:3], of_key.shape[2]), dtype=torch.bool)
        if mask is not None:
            allowed = allowed & mask[..., columns]
        if bias is not None:
            added = bias[..., steps.bias_columns(places, owner, rank)]
            allowed = allowed & (added != -torch.inf)
        allowed = steps.allowed(allowed, owner, rank)
        scores = pair_products(query, of_key, allowed) * steps.hop(scale, step)
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + torch.where(added == -torch.inf, 0, widen(added))
        scores = torch.where(allowed, scores, -torch.inf)
        if logits is not None and steps.sinks_in(step, ranks):
            nothing = of_value.new_zeros((*of_value.shape[:2], 1, of_value.shape[3]))
            sink = logits.expand(*rows.shape)
            state = steps.merge(state, Block(sink, torch.ones_like(sink, dtype=torch.bool), nothing))
        state = steps.merge(state, Block(scores, allowed, of_value))
        seen = seen | allowed.any(dim=-1, keepdim=True)
    output = torch.where(seen, state.output / torch.where(seen, state.total, 1), 0)
    return output.to(dtype)
