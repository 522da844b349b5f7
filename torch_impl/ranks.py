"""What ranks say to each other for `distributed.py`: they compare their calls, and send arrays (DIST-5).

Without a process group there is one rank, and nothing is sent.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from specification import checks
from specification.checks.arguments import one_of, refuse
from specification.distributed import LAYOUTS, Pieces, pieces_of_lengths
from specification.dtypes import dtype_name
from specification.masks import Mask, as_mask, map_arrays
from torch_impl.engines import choice
from torch_impl.engines.blocked import Inputs
from torch_impl.masks import checked_mask, to_array


class Members(NamedTuple):
    """The ranks of a group, and which of them this one is."""

    group: Any
    rank: int
    ranks: int


class Whole(NamedTuple):
    """A call as every rank knows it."""

    members: Members
    queries: list[Pieces]  # of every rank
    keys: list[Pieces]
    mask: Mask | None
    scale: float | None
    softcap: float | None
    engine: str
    one_row: bool  # the bias has one row for all queries


# --- one call of all ranks --------------------------------------------------------------------------------------------


def members_of(group: Any) -> Members:
    """This rank among those of a process group, None for the default one."""
    members = Members(group, dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else None
    if members is not None and members.rank < 0:
        refuse("group", "hold the rank that calls", f"one without rank {dist.get_rank()}")
    return Members(group, 0, 1) if members is None else members


def compare_calls(members: Members, describe: Callable[[], tuple[dict[str, Any], Any]]) -> list[tuple[Any, Any]]:
    """Return what `describe` returns on every rank: what must be the same on all of them, by name, and what may differ.

    An error of one rank, and a difference, is the same error on all.
    """
    own: Any
    try:
        own = describe()
    except Exception as error:  # all ranks must hear of it, or they wait
        own = error
    calls = [own] * members.ranks
    if members.ranks > 1:
        dist.all_gather_object(calls, own, members.group)
    for call in calls:
        if isinstance(call, Exception):
            raise call
    checks.same_calls([options for options, _ in calls])
    return calls


NAMES = ("query", "key", "value", "bias", "sinks")


def agree(
    function: str, tensors: Sequence[Any], mask: Any, scale: Any, softcap: Any, group: Any, layout: Any, engine: Any
) -> Whole:
    """Compare the calls of all ranks and check all of them, so that a wrong one is the same error everywhere.

    From here on a rank knows the shapes of what it receives.
    """
    members = members_of(group)
    calls = compare_calls(members, lambda: describe_call(function, tensors, mask, scale, softcap, layout, engine))
    of_ranks = [arrays for _, arrays in calls]
    for arrays in of_ranks:
        check_arrays(arrays | {"bias": None}, scale, softcap)
    queries, keys = ([arrays[name][0][2] for arrays in of_ranks] for name in ("query", "key"))
    one_row = False
    if tensors[3] is not None:
        one_row = checks.bias_of_ranks([arrays["bias"][0] for arrays in of_ranks], queries, sum(keys))
        for arrays, *sizes in zip(of_ranks, queries, keys, strict=True):
            shape, dtype = arrays["bias"]
            check_arrays(arrays | {"bias": ((*shape[:-2], *sizes), dtype)}, scale, softcap)
    of_queries, of_keys = pieces_of_lengths("query", queries, layout), pieces_of_lengths("key", keys, layout)
    (B, H), device = tensors[0].shape[:2], tensors[0].device
    mask = checked_mask(mask, sum(queries), sum(keys), B, H, device)
    query, key, value, bias, sinks = map(stand_in, tensors)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    if function == "head_parallel_attention":
        checks.heads_of_ranks(H, members.ranks)
    else:
        inputs = inputs._replace(sinks=None)  # they count once, after all keys
    choice.engine_for(engine, inputs, None, "zero")
    return Whole(members, of_queries, of_keys, mask, scale, softcap, engine, one_row)


def describe_call(
    function: str, tensors: Sequence[Any], mask: Any, scale: Any, softcap: Any, layout: Any, engine: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What must be the same on every rank, by name, and shape and dtype of each of this rank's arrays."""
    one_of("layout", layout, LAYOUTS)
    checks.plain_numbers(scale=scale, softcap=softcap)
    options = {"the function": function, "layout": layout, "engine": engine}
    options |= {"scale": repr(scale), "softcap": repr(softcap), "mask": repr(map_arrays(as_mask(mask), fingerprint))}
    arrays: dict[str, Any] = {}
    for name, tensor in zip(NAMES, tensors, strict=True):
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            refuse(name, "be a torch.Tensor", type(tensor).__name__, TypeError)
        arrays[name] = None if tensor is None else (tuple(tensor.shape), tensor.dtype)
        other = None if tensor is None else [size for i, size in enumerate(tensor.shape) if i - tensor.ndim != -2]
        options[f"the shape of {name} without its length"] = other
        options[f"the dtype of {name}"] = None if tensor is None else dtype_name(tensor)
        gradient = tensor is not None and tensor.requires_grad and torch.is_grad_enabled()
        options[f"whether {name} wants a gradient"] = gradient
    return options, arrays


def fingerprint(array: Any) -> str:
    """What tells the contents of an array in a mask apart."""
    array = to_array(array)
    numbers = array
    if isinstance(array, torch.Tensor):  # an empty one may have strides of 0, of which no bytes can be viewed
        numbers = array.detach().cpu().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()
    return f"{dtype_name(array)}{list(array.shape)} {hashlib.sha256(numbers.tobytes()).hexdigest()[:16]}"


def check_arrays(arrays: dict[str, Any], scale: Any, softcap: Any) -> None:
    """Check one rank's arrays, of which shapes and dtypes are known, as those of `attention`."""
    made: dict[str, Any] = {
        name: None if kind is None else torch.empty(kind[0], dtype=kind[1], device="meta")
        for name, kind in arrays.items()
    }
    checks.attention(**made, scale=scale, softcap=softcap)


def stand_in(tensor: torch.Tensor | None) -> Any:
    """A tensor of the same kind of which no axis is empty, so that every rank chooses the same engine."""
    return None if tensor is None else tensor.detach().new_empty(()).expand([max(size, 1) for size in tensor.shape])


# --- sending ----------------------------------------------------------------------------------------------------------


def send_on(members: Members, numbers: torch.Tensor, count: int) -> Callable[[], torch.Tensor]:
    """Send numbers to the next rank, and return how to wait for `count` of them from the rank before."""
    if members.ranks == 1:
        return lambda: numbers
    received = numbers.new_empty(count)
    sends = [(dist.isend, numbers, 1)] if numbers.numel() else []
    receives = [(dist.irecv, received, -1)] if count else []
    operations = [
        dist.P2POp(operation, tensor, group=members.group, group_peer=(members.rank + step) % members.ranks)
        for operation, tensor, step in (*sends, *receives)
    ]
    works = dist.batch_isend_irecv(operations) if operations else []

    def wait() -> torch.Tensor:
        for work in works:
            work.wait()
        assert numbers is not None  # kept until it is sent
        return received

    return wait


def exchange(
    members: Members, pieces: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]
) -> Sequence[torch.Tensor]:
    """Send to each rank its piece, and receive one of a known shape from each."""
    if members.ranks == 1:
        return pieces
    sent = torch.cat([piece.reshape(-1) for piece in pieces])
    counts = [math.prod(shape) for shape in shapes]
    received = sent.new_empty(sum(counts))
    dist.all_to_all_single(received, sent, counts, [piece.numel() for piece in pieces], group=members.group)
    return [piece.view(*shape) for piece, shape in zip(received.split(counts), shapes, strict=True)]


def sum_over_ranks(members: Members, array: torch.Tensor) -> torch.Tensor:
    """The sum of every rank's array, in place of it where it is contiguous."""
    if members.ranks > 1:
        array = array.contiguous()
        dist.all_reduce(array, group=members.group)
    return array
