"""Attention on several ranks in PyTorch: processes that stay for many cases, and faults that are planted in them.

This file is also what the processes run. They are forked from one that has loaded PyTorch, which takes seconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.ranks.rank_worker import count_bytes
from conformance.cases.arguments import gradient_name
from conformance.subjects.frameworks import TorchArrays
from specification.masks import map_arrays
from tests.support.shards import FUNCTIONS, Call
from torch_impl import distributed
from torch_impl.engines import choice
from torch_impl.engines.blocked import Limits

# --- in a process -----------------------------------------------------------------------------------------------------


def serve(rank: int, ranks: int, store: str, seconds: float, pipe: Connection) -> None:
    """Answer jobs (function, argument) until None comes: with its result, or the error that it raises."""
    torch.set_num_threads(1)
    choice.LIMITS = Limits(block=4)  # so that small cases have several blocks
    limit = timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
    groups = {count: dist.new_group(list(range(count)), timeout=limit) for count in range(1, ranks + 1)}
    while (job := pipe.recv()) is not None:
        function, argument, count = job
        try:
            pipe.send((function(argument, groups[count]), None))
        except Exception as error:
            pipe.send((None, (type(error).__name__, str(error))))


def compute(calls: Sequence[Call], group: Any) -> list[dict[str, Any]]:
    """This rank's result and gradients of each call, and what it sent and computed."""
    return [compute_one(call, group) for call in calls]


def compute_one(call: Call, group: Any) -> dict[str, Any]:
    with planted(call.fault, call.ranks), counted() as counts:
        output, tensors, wanted = forward(call, group)
        counts["forward"] = counts.pop("bytes")
        counts["bytes"] = 0
        results = {"output": numpy(output)}
        if wanted:
            queries, _ = call.positions(dist.get_rank(group))
            cotangent = TorchArrays().array(call.case.cotangents["output"][:, :, queries])
            gradients = torch.autograd.grad(output, [tensors[name] for name in wanted], cotangent)
            results |= {gradient_name(name): numpy(array) for name, array in zip(wanted, gradients, strict=True)}
        counts["backward"] = counts.pop("bytes")
    return results | {"counts": counts}


def forward(call: Call, group: Any) -> tuple[torch.Tensor, dict[str, Any], list[str]]:
    case, arrays = call.case, TorchArrays()
    queries, keys = call.positions(dist.get_rank(group))
    parts = {"query": case.inputs["query"][:, :, queries]}
    parts |= {name: case.inputs[name][:, :, keys] for name in ("key", "value")}
    if "bias" in case.inputs:
        parts["bias"] = case.inputs["bias"][..., :1, :] if call.one_row else case.inputs["bias"][..., queries, :]
    if "sinks" in case.inputs:
        parts["sinks"] = case.inputs["sinks"]
    tensors = {name: arrays.array(array) for name, array in parts.items()}
    wanted = [*tensors] if case.cotangents else []
    for name in wanted:
        tensors[name].requires_grad_()
    options = dict(case.options)
    options["mask"] = map_arrays(options.get("mask"), lambda a: a if isinstance(a, list) else arrays.array(a))
    function = getattr(distributed, FUNCTIONS[call.shard])
    return function(**tensors, **options, group=group, layout=call.layout, engine=call.engine), tensors, wanted


def numpy(tensor: torch.Tensor) -> np.ndarray:
    found: np.ndarray = TorchArrays().numpy(tensor.detach())
    return found


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Bytes that this rank sends to others, and how often an engine computes a pair of pieces."""
    compute = distributed.forward_of_part

    def counted_compute(*arguments: Any) -> Any:
        counts["pairs"] += 1
        return compute(*arguments)

    with count_bytes() as counts, replaced(distributed, "forward_of_part", counted_compute):
        counts["pairs"] = 0
        yield counts


@contextlib.contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[int], list[tuple[str, Any]]]] = {}
"""By name, what stands in the place of which functions of `torch_impl.distributed`, for so many ranks."""


def fault(function: Callable[[int], list[tuple[str, Any]]]) -> Any:
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


@contextlib.contextmanager
def planted(name: str, ranks: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for function, value in FAULTS[name](ranks) if name else ():
            stack.enter_context(replaced(distributed, function, value))
        yield


@fault
def stale_keys_in_the_backward_pass(ranks: int) -> Any:
    travel, passes = distributed.travel, [0]

    def stale(whole: Any, key: Any, value: Any) -> Any:
        passes[0] += 1
        for owner, keys, values in travel(whole, key, value):
            yield owner, *((key, value) if passes[0] == 2 else (keys, values))

    return [("travel", stale)]


@fault
def mask_of_the_wrong_rank(ranks: int) -> Any:
    mask_of = distributed.mask_of

    def shifted(inputs: Any, block: Any) -> Any:
        begin = max(block.queries.start - (block.queries.stop - block.queries.start), 0)
        return mask_of(inputs, block._replace(queries=slice(begin, begin + block.queries.stop - block.queries.start)))

    return [("mask_of", shifted)]


@fault
def merged_without_log_sum_exps(ranks: int) -> Any:
    merge = distributed.merge_attention

    def mean(outputs: Any, logsumexps: Any) -> Any:
        seen = [torch.where(one == -torch.inf, one, 0) for one in logsumexps]
        return merge(outputs, seen)[0], merge(outputs, logsumexps)[1]

    return [("merge_attention", mean)]


@fault
def gradients_not_summed_over_ranks(ranks: int) -> Any:
    return [("sum_over_ranks", lambda whole, array: array)]


@fault
def order_not_undone(ranks: int) -> Any:
    def keep_rank_order(rows: Any, device: Any) -> Any:
        return torch.arange(sum(map(distributed.length_of, rows)))

    def places(pieces: Any) -> Any:
        begin = 0
        for start, stop in pieces:
            yield slice(begin, begin + stop - start), slice(pieces[0][0] + begin, pieces[0][0] + begin + stop - start)
            begin += stop - start

    return [("order_of", keep_rank_order), ("places_of", places)]


@fault
def remainder_lost(ranks: int) -> Any:
    pairs = distributed.pairs

    def whole_shards(whole: Any, tensors: Any, owner: int, keys: Any, values: Any) -> Any:
        shortest = min(map(distributed.length_of, whole.keys))
        cut = [(start, min(stop, start + shortest)) for start, stop in whole.keys[owner]]
        lengths = [*whole.keys[:owner], tuple(cut), *whole.keys[owner + 1 :]]
        return pairs(whole._replace(keys=lengths), tensors, owner, keys, values)

    return [("pairs", whole_shards)]


@fault
def sinks_counted_on_every_rank(ranks: int) -> Any:
    ring = distributed.ring_attention

    def more(*, sinks: Any, **arguments: Any) -> Any:
        return ring(**arguments, sinks=sinks + np.log(ranks))

    return [("ring_attention", more)]


@fault
def only_own_gradients_of_shared_heads(ranks: int) -> Any:
    scatter = distributed.scatter_rows

    def first_of_all(whole: Any, rows: Any, heads: Any, tensor: Any) -> Any:
        parts, taken = [part.clone() for part in scatter(whole, rows, heads, tensor)], 0
        for part, (first, stop) in zip(parts, heads, strict=True):
            part[:, : max(taken - first, 0)] = 0
            taken = max(taken, stop)
        return parts

    return [("scatter_rows", first_of_all)]


# --- in the tests -----------------------------------------------------------------------------------------------------


class Ranks:
    """Processes in one group, and in the groups of the first of them, for as long as the block lasts."""

    def __init__(self, count: int, seconds: float = 20) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes, self.lost = [], [], False
        store = str(Path(self.folder.name) / "store")
        for rank in range(count):
            mine, its = context.Pipe()
            process = context.Process(target=serve, args=(rank, count, store, seconds, its), daemon=True)
            process.start()
            its.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join(0.1)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()

    def ask(self, function: Callable[..., Any], arguments: Sequence[Any], patience: float = 120) -> list[Any]:
        """(result, error) of each rank in the group of as many ranks as there are arguments."""
        assert not self.lost, "an earlier call left ranks that did not answer"
        for pipe, argument in zip(self.pipes, arguments, strict=False):
            pipe.send((function, argument, len(arguments)))
        answers: list[Any] = []
        end = time.monotonic() + patience
        for pipe, _ in zip(self.pipes, arguments, strict=False):
            try:
                in_time = pipe.poll(max(end - time.monotonic(), 0))
                answers.append(pipe.recv() if in_time else (None, ("silence", "")))
            except EOFError:
                answers.append((None, ("death", "")))
        self.lost = any(error is not None and error[0] in ("silence", "death") for _, error in answers)
        return answers

    def compute(self, calls: Sequence[Call]) -> list[list[dict[str, Any]]]:
        """Of each call what every rank has; all on the same number of ranks."""
        answers = self.ask(compute, [calls] * calls[0].ranks)
        errors = [error for _, error in answers if error is not None]
        assert not errors, errors
        return [list(of_ranks) for of_ranks in zip(*(results for results, _ in answers), strict=True)]
