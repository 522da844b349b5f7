"""What goes wrong when several ranks compute attention together (DIST-1 to DIST-3, DIST-5).

Most are the ring of `torch_ring.py` with another step. The others change what one rank gets or returns, or never
return. A fault is caught by a rule of attention: ranks together are one implementation of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from conformance.selftest.behaviours.behaviour import Behaviour
from conformance.selftest.behaviours.torch_ring import Block, Gather, Reduced, State, Steps, attend, merge
from specification.distributed import shard_positions
from torch_impl import attention, materialize
from torch_impl.dtypes import widen

Function = Callable[..., Any]
HERE = "conformance.selftest.behaviours.ranks:FAULTS"
FAULTS = SimpleNamespace()
"""The functions, by names under which the processes of ranks find them."""
ROWS: list[Behaviour] = []


def plant(
    rule: str, name: str, function: Function, right: str = "ring", ranks: int = 3, shard: str = "sequence", **given: Any
) -> None:
    """Add a fault. right: the name in `FAULTS` of what it was made from."""
    word = name.replace(" ", "_").replace(",", "")
    setattr(FAULTS, word, function)
    where = "" if shard == "sequence" else f", {shard}"
    ROWS.append(
        Behaviour(
            rule, f"ranks: {name}{where}", f"{HERE}.{word}", f"{HERE}.{right}", arrays="torch",
            given=given, ranks=ranks, shard=shard,
        )
    )  # fmt: skip


FAULTS.ring = attend


def ring(rule: str, name: str, shard: str = "sequence", **steps: Any) -> None:
    plant(rule, name, wraps(attend)(partial(attend, steps=Steps(**steps))), shard=shard)


# --- keys and values that travel --------------------------------------------------------------------------------------


def use_own(keys: Sequence[torch.Tensor], owner: int, own: int) -> torch.Tensor:
    """The values of the right keys, with the gradients of this rank's."""
    right, stale = keys[owner], keys[own]
    return right if right.shape != stale.shape else right.detach() + (stale - stale.detach())


def first_places(places: Any, owner: int, own: int) -> Any:
    return torch.arange(len(places[owner]))


def own_places(places: Any, owner: int, own: int) -> Any:
    """Where the shapes allow it."""
    return places[own] if len(places[own]) == len(places[owner]) else places[owner]


def previous_places(places: Any, owner: int, own: int) -> Any:
    return own_places(places, owner, (owner - 1) % len(places))


def keep_order(length: int, ranks: int, owner: int, _: str) -> np.ndarray:
    """The places of keys that stand rank by rank."""
    sizes = [len(shard_positions(length, ranks, rank, "zigzag")) for rank in range(ranks)]
    return np.arange(sum(sizes[:owner]), sum(sizes[: owner + 1]))


ring("ATT-8", "last rank drops its block", owners=lambda rank, ranks: range(ranks - 1))
ring("ATT-8", "the ring stops one hop early", owners=lambda rank, n: [(rank - step) % n for step in range(n - 1)])
ring("ATT-8", "own block counts twice", owners=lambda rank, n: [rank, *((rank - step) % n for step in range(n))])
ring("ATT-8", "each rank sees itself alone", owners=lambda rank, ranks: [rank])
ring("ATT-8", "later ranks are skipped without a causal mask", owners=lambda rank, ranks: range(rank + 1))
ring("ATT-12", "stale keys in the backward pass", keys=use_own)
ring("ATT-12", "gradients of keys not summed over ranks", summed=False)
ring("MASK-3", "mask of the rank before", mask_columns=previous_places)
ring("MASK-3", "mask columns count from each block's start", mask_columns=first_places)
ring("MASK-3", "mask on the diagonal block alone",
     allowed=lambda allowed, owner, own: allowed if owner == own else torch.ones_like(allowed))  # fmt: skip
ring("ATT-3", "bias columns of the own rank", bias_columns=own_places)
ring("ATT-1", "scale applied at every hop", hop=lambda scale, step: scale ** (step + 1))
ring("ATT-5", "sinks counted by every block", sinks_in=lambda step, ranks: True)
ring("ATT-12", "gradients of sinks not summed over ranks", share_sinks=lambda sinks: sinks)
ring("MASK-3", "zigzag not undone", "zigzag", places=keep_order)


def rotate_values(owner: int, ranks: int) -> int:
    return (owner - 1) % ranks


def take_values_one_step_behind(query: Any, key: Any, value: Any, **options: Any) -> torch.Tensor:
    """Where all parts are as long; else they do not fit."""
    lengths: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lengths, key.shape[2])
    late = len(set(lengths)) == 1
    return attend(query, key, value, **options, steps=Steps(value_owner=rotate_values) if late else Steps())


def cut_remainder(query: Any, key: Any, value: Any, **options: Any) -> torch.Tensor:
    """All parts are as long as the shortest one."""

    def cut(keys: Sequence[torch.Tensor], owner: int, own: int) -> torch.Tensor:
        return keys[owner][:, :, : min(one.shape[2] for one in keys)]

    def columns(places: Any, owner: int, own: int) -> Any:
        return places[owner][: min(map(len, places))]

    steps = Steps(keys=cut, mask_columns=columns, bias_columns=columns)
    return attend(query, key, value, **options, steps=steps)


plant("ATT-8", "values one step behind their keys", wraps(attend)(take_values_one_step_behind))
plant("ATT-8", "remainder lost", wraps(attend)(cut_remainder))


# --- merging ----------------------------------------------------------------------------------------------------------


def merge_unscaled(lost: str, state: State, block: Block) -> State:
    """The running output, or sum, is not rescaled when the maximum grows."""
    new = merge(state, block)
    shift = torch.where(new.maximum == -torch.inf, 0, new.maximum)
    left = state.maximum - shift
    again = 1 - torch.where(state.maximum == -torch.inf, 0, torch.exp(left))
    again = torch.where(state.maximum == -torch.inf, 0, again)
    total = new.total + (state.total * again if lost == "sum" else 0)
    return new._replace(output=new.output + state.output * again, total=total)


def merge_means(state: State, block: Block) -> State:
    """Each block's own softmax counts as much as any other's."""
    empty = State(torch.full_like(state.maximum, -torch.inf), torch.zeros_like(state.total), 0 * state.output)
    one = merge(empty, block)
    seen = one.total > 0
    mean = torch.where(seen, one.output / torch.where(seen, one.total, 1), 0)
    return State(torch.maximum(state.maximum, one.maximum), state.total + 1.0 * seen, state.output + mean)


def merge_rounded(state: State, block: Block) -> State:
    """What is merged so far is kept in 16 bits."""
    new = merge(state, block)
    return new._replace(output=new.output.to(torch.bfloat16).to(new.output.dtype))


ring("ATT-5", "running output not rescaled", merge=partial(merge_unscaled, "output"))
ring("ATT-5", "output and sum not rescaled", merge=partial(merge_unscaled, "sum"))
ring("ATT-8", "blocks merged without log-sum-exps", merge=merge_means)
ring("ATT-9", "merged in 16 bits", merge=merge_rounded)


# --- descriptions of masks, read by positions within a rank -----------------------------------------------------------


def attend_described(query: Any, key: Any, value: Any, *, mask: Any = None, local: bool = False, **options: Any) -> Any:
    """Attention by a description of the whole. local: it is read for this rank's part alone, block by block."""
    lengths: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lengths, (query.shape[2], key.shape[2]))
    rank, (Q, K) = dist.get_rank(), map(sum, zip(*lengths, strict=True))
    if mask is not None:
        B, H, _, _ = query.shape
        whole = materialize(mask, Q, K, batch=B, heads=H)
        places = [torch.from_numpy(shard_positions(size, len(lengths), rank)) for size in (Q, K)]
        rows = torch.arange(len(places[0])) if local else places[0]
        mask = whole.expand(B, H, Q, K)[:, :, rows]
        if local:
            owners = [torch.arange(keys) for _, keys in lengths]
            mask = mask[..., torch.cat(owners)]
    return attend(query, key, value, mask=mask, **options)


def attend_by_description(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
              softcap: Any = None, sinks: Any = None, layout: str = "contiguous") -> Any:  # fmt: skip
    return attend_described(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)


def attend_within_rank(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
                      softcap: Any = None, sinks: Any = None, layout: str = "contiguous") -> Any:  # fmt: skip
    return attend_described(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, local=True
    )


FAULTS.described = attend_by_description
for kind, rule in (("window", "MASK-4"), ("causal", "MASK-3"), ("lengths", "MASK-2")):
    plant(rule, f"{kind} measured within a rank", attend_within_rank, "described", supports=["structured"])


# --- heads ------------------------------------------------------------------------------------------------------------


def attend_to_own_heads(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
                 softcap: Any = None, sinks: Any = None) -> Any:  # fmt: skip
    """Attention of this rank's heads; a bias that all ranks share has the gradient of all of them."""
    if bias is not None and (bias.ndim == 2 or bias.shape[1] == 1):
        bias = Reduced.apply(widen(bias)) if bias.requires_grad else bias
    return attention(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)


def change_heads(change: Callable[..., Any]) -> Function:
    @wraps(attend_to_own_heads)
    def changed(query: Any, key: Any, value: Any, **options: Any) -> Any:
        query, key, value = change(query, key, value)
        return attend_to_own_heads(query, key, value, **options)

    return changed


@wraps(attend_to_own_heads)
def keep_own_share_of_bias(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return attention(query, key, value, **options)


def regroup(query: Any, key: Any, value: Any) -> Any:
    """Query heads are dealt one by one, and not in groups."""
    H, G = query.shape[1], key.shape[1]
    heads = torch.arange(H) % G if H > G > 1 else torch.arange(H) // max(H // max(G, 1), 1)
    return query, key[:, heads], value[:, heads]


FAULTS.heads = attend_to_own_heads
plant("ATT-7", "groups split one by one", change_heads(regroup), "heads", ranks=2, shard="heads")
plant("ATT-8", "heads in another order", change_heads(lambda q, k, v: (q.flip(1), k, v)), "heads", 2, "heads")
plant("ATT-12", "gradients of a shared bias not summed", keep_own_share_of_bias, "heads", 2, "heads")


# --- what one rank returns, or never returns --------------------------------------------------------------------------


def change_rank(number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """Change the output of one rank."""

    @wraps(attend)
    def changed(*arguments: Any, **options: Any) -> torch.Tensor:
        output = attend(*arguments, **options)
        return change(output) if dist.get_rank() == number else output

    return changed


def share_first(output: torch.Tensor) -> torch.Tensor:
    """Rank 0's output on all ranks of the same shape."""
    first = Gather.apply(True, output.detach())[0]
    return output + (first - output).detach() if first.shape == output.shape else output


def fail(output: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no memory left")


def end(output: torch.Tensor) -> torch.Tensor:
    os._exit(7)


def sleep(output: torch.Tensor) -> torch.Tensor:
    time.sleep(3600)
    return output


def fail_before(change: Callable[[Any], Any]) -> Function:
    """Rank 1 is lost while the others wait for it."""

    @wraps(attend)
    def changed(query: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        return attend(change(query) if dist.get_rank() == 1 else query, *arguments, **options)

    return changed


def wait_for_each_other(output: torch.Tensor) -> torch.Tensor:
    """Each rank receives from the next one, and none sends."""
    dist.recv(torch.empty_like(output), (dist.get_rank() + 1) % dist.get_world_size())
    return output


@wraps(attend)
def attend_in_deadlock(*arguments: Any, **options: Any) -> torch.Tensor:
    return wait_for_each_other(attend(*arguments, **options))


@wraps(attend)
def return_first_output(*arguments: Any, **options: Any) -> torch.Tensor:
    return share_first(attend(*arguments, **options))


@wraps(attend)
def return_all_outputs(*arguments: Any, **options: Any) -> torch.Tensor:
    return torch.cat(Gather.apply(True, attend(*arguments, **options)), dim=2)


plant("ATT-8", "output of rank 0 on all", return_first_output)
plant("ATT-8", "whole output on every rank", return_all_outputs)
plant("ATT-9", "rank 1 returns float32", change_rank(1, torch.Tensor.float))
plant("ATT-8", "rank 1 raises", change_rank(1, fail))
plant("ATT-8", "rank 1 raises while others wait", fail_before(fail))
plant("ATT-8", "rank 1 dies", change_rank(1, end))
plant("ATT-8", "rank 1 dies while others wait", fail_before(end))
plant("ATT-8", "rank 1 hangs", change_rank(1, sleep))
plant("ATT-8", "rank 1 hangs while others wait", fail_before(sleep))
plant("ATT-8", "all ranks wait for each other", attend_in_deadlock)

BEHAVIOURS = tuple(ROWS)
