"""One rank, in a process of its own: it computes its part, counts what it sends, and follows its memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.autograd.profiler import profile

from benchmarks.ranks.formulas import ONE, Way
from conformance.timing import timed_case as timed
from conformance.timing.timed_case import MEMORY, Case
from conformance.timing.verify.row_sampling import BY_ROW, Place, Sample, only_there, query_heads
from specification.distributed import shard_positions
from torch_impl import distributed
from torch_impl.ranks import Members, send_on

LIMIT = 600.0
"""Seconds in which ranks must answer each other."""


class Measurement(NamedTuple):
    """Of one call on a rank: when each pass has ended, the bytes sent in it, and the results at each place."""

    ends: list[float]
    bytes: list[int]
    samples: list[Sample]


class RankWorker:
    """The process of a rank, in groups of the first so many ranks."""

    def __init__(self, rank: int, counts: Sequence[int], store: str, processors: Sequence[int]) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, processors)  # all of them, where `settle` leaves one for each thread
        self.rank, self.counts, self.address = rank, counts, f"file://{store}"
        self.groups: dict[int, Any] = {}

    def join(self) -> None:
        """Join all groups, which takes all ranks."""
        limit, world = timedelta(seconds=LIMIT), max(self.counts)
        dist.init_process_group("gloo", init_method=self.address, rank=self.rank, world_size=world, timeout=limit)
        self.groups = {count: dist.new_group(list(range(count)), timeout=limit) for count in self.counts}

    def measure(self, case: Case, way: Way, ranks: int, seed: int, number: int, places: Sequence[Place]) -> Measurement:
        """Compute this rank's part of one call, from when all ranks are ready; `number` is that of its inputs."""
        call = prepare_call(case, way, self.groups[ranks], seed, number, places)
        marks: list[tuple[float, int]] = []
        with count_bytes() as counts:
            dist.barrier(group=self.groups[ranks])
            start = time.perf_counter()
            results = call(lambda: marks.append((time.perf_counter() - start, counts["bytes"])))
        ends, totals = zip(*marks, strict=True)
        samples = [
            {
                name: result[place.batch, heads_of(case, place, name)].detach().numpy().copy()
                for name, result in zip(case.results, results, strict=True)
            }
            for place in places
        ]
        return Measurement([*ends], [after - before for before, after in pairwise((0, *totals))], samples)

    def peak(self, case: Case, way: Way, ranks: int, seed: int) -> int:
        """Return `peak_bytes` of a call."""
        return peak_bytes(prepare_call(case, way, self.groups[ranks], seed, MEMORY))

    def send(self, count: int) -> float:
        """Return the seconds in which this rank sends so many bytes to the other of two, and receives as many."""
        members, numbers = Members(self.groups[2], self.rank, 2), torch.zeros(count, dtype=torch.uint8)
        dist.barrier(group=members.group)
        start = time.perf_counter()
        send_on(members, numbers, count)()
        return time.perf_counter() - start


def prepare_call(
    case: Case, way: Way, group: Any, seed: int, number: int, places: Sequence[Place] = ()
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a call of all results of this rank's part of a group. It takes a function to call after each pass."""
    own = shard_positions(case.K, dist.get_world_size(group), dist.get_rank(group), way.layout)
    drawn = timed.inputs(case, seed, number)
    parts = {
        n: torch.from_numpy(a[:, :, own]) for n, a in (only_there(case, drawn, places) if places else drawn).items()
    }
    inputs = [parts[name].requires_grad_(case.backward) for name in case.inputs]
    options = {"mask": timed.mask(case, seed, number)}
    if way.function != ONE:
        options |= {"layout": way.layout, "group": group}
    function = getattr(distributed, way.function)

    def call(done: Callable[[], None] = lambda: None) -> tuple[torch.Tensor, ...]:
        output = function(*inputs, **options)
        done()
        if not case.backward:
            return (output,)
        gradients = torch.autograd.grad(output, inputs, parts["cotangent"])
        done()
        return output, *gradients

    return call


def heads_of(case: Case, place: Place, name: str) -> slice:
    return query_heads(case, place) if name in BY_ROW else slice(place.group, place.group + 1)


@contextlib.contextmanager
def count_bytes() -> Iterator[dict[str, int]]:
    """Count the bytes that this rank sends to others, in arrays: under "bytes" in what is returned."""
    counts = {"bytes": 0}
    send, exchange = dist.batch_isend_irecv, dist.all_to_all_single

    def counted_send(operations: Any) -> Any:
        for one in operations:
            if one.op is dist.isend:
                counts["bytes"] += one.tensor.numel() * one.tensor.element_size()
        return send(operations)

    def counted_exchange(received: Any, sent: Any, incoming: Any, outgoing: Any, group: Any) -> Any:
        own = outgoing[dist.get_rank(group)]
        counts["bytes"] += (sent.numel() - own) * sent.element_size()
        return exchange(received, sent, incoming, outgoing, group=group)

    with (
        patch.object(dist, "batch_isend_irecv", counted_send),
        patch.object(dist, "all_to_all_single", counted_exchange),
    ):
        yield counts


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the most bytes that tensors of the call held at one time, its results and scratch of kernels among them.

    PyTorch's profiler notes every block that the CPU allocator hands out, and takes back, on this thread. What was
    there before the call does not count, nor do buffers that BLAS or gloo take for themselves.
    """
    from torch._C._profiler import _EventType

    exchange = dist.all_to_all_single

    def exchange_and_sleep(*arguments: Any, **options: Any) -> None:
        exchange(*arguments, **options)
        time.sleep(0.01)  # until gloo's thread has let go of the message, or that thread frees it, unseen

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or two lines are written for every profile
    with patch.object(dist, "all_to_all_single", exchange_and_sleep), profile(profile_memory=True) as profiler:
        results = call()
    assert profiler.kineto_results is not None
    events, blocks = list(profiler.kineto_results.experimental_event_tree()), []
    del results
    for event in events:  # which grows meanwhile: every event after its parent
        events += event.children
        if event.tag == _EventType.Allocation:
            blocks.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    held: dict[int, int] = {}
    now = most = 0
    for _, address, size in sorted(blocks):
        now -= held.pop(address, 0)
        if size > 0:
            held[address] = size
            now += size
        most = max(most, now)
    return most
