"""How long attention over many ranks takes, from times of its pieces: a simulation of the schedule, step by step.

Every rank has a device of its own and a link to the next rank, which carries one message at a time. A message takes
`latency + bytes / bandwidth` seconds, from when both ranks are ready for it.

A pair of pieces of n queries and n keys takes what one process took for it. Between two sizes that were measured, the
logarithm of the time is linear in that of n. Above the largest, it grows with n^2 at the rate between the last two.
Below the smallest it is that of the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.ranks.formulas import RING, WAYS, Way, bytes_sent, rank_lengths
from conformance.timing.timed_case import Case
from specification.distributed import even_pieces

FULL, DIAGONAL, WHOLE = "dense", "causal", "whole"
"""The kinds of a pair of pieces: all keys before all queries, or the same positions; and causal attention of all."""
EXCHANGES = 4
"""Of queries, keys, values and outputs, or of their gradients."""


class Machine(NamedTuple):
    """seconds[kind] has [forward, backward] for each of the sizes; latency in seconds, bandwidth in bytes a second."""

    sizes: Sequence[int]
    seconds: Mapping[str, Sequence[Sequence[float]]]
    latency: float
    bandwidth: float

    def pair(self, kind: str, size: float, backward: bool) -> float:
        """Return the seconds for a pair of pieces of so many positions."""
        times = [both[backward] for both in self.seconds[kind]]
        (*_, before, last), (*_, earlier, latest) = self.sizes, times
        rate = (latest - earlier) / (last**2 - before**2)
        beyond = rate * max(size**2 - last**2, 0)
        return beyond + float(np.exp(np.interp(np.log(size), np.log(self.sizes), np.log(times))))

    def send(self, count: float, messages: int = 1) -> float:
        return messages * self.latency + count / self.bandwidth


def simulate_attention(machine: Machine, case: Case, way: Way, ranks: int) -> float:
    """Return the seconds until the last rank is done with causal attention, forward and, where the case has it, back.

    A ring begins its backward pass when its last rank is done with the forward pass.
    Head-parallel attention takes 1 / R of the time of all heads for those of a rank, and no exchange overlaps with it.
    """
    length, passes = case.K, (False, True)[: 1 + case.backward]
    if way.function != RING:
        sent = bytes_sent(case, way, ranks)
        exchanged = sum(machine.send(max(both[i] for both in sent), EXCHANGES * (ranks - 1)) for i in passes)
        return exchanged + simulate_one_device(machine, case) / ranks
    keys = -(-length // ranks) * case.B * case.G * (case.D + case.V)
    transfer, gradients = machine.send(keys * case.itemsize), machine.send(keys * max(case.itemsize, 4))
    return sum(
        simulate_ring(ring_steps(machine, length, ranks, way.layout, i), transfer, gradients if i else None)
        for i in passes
    )


def simulate_one_device(machine: Machine, case: Case) -> float:
    return sum(machine.pair(WHOLE, case.K, backward) for backward in (False, True)[: 1 + case.backward])


def ring_steps(machine: Machine, length: int, ranks: int, layout: str, backward: bool) -> np.ndarray:
    """Return the seconds [steps, ranks] that each rank computes in each step of a ring, under a causal mask.

    In step s, rank r has the keys of rank r - s. A pair whose keys all come after its queries takes no time.
    """
    starts = np.array([[start for start, _ in pieces] for pieces in even_pieces(length, ranks, layout)])
    size = length / starts.size
    full, diagonal = (machine.pair(kind, size, backward) for kind in (FULL, DIAGONAL))
    steps = []
    for step in range(ranks):
        queries, keys = starts[:, :, None], np.roll(starts, step, axis=0)[:, None]
        steps.append((keys < queries).sum((1, 2)) * full + (keys == queries).sum((1, 2)) * diagonal)
    return np.array(steps)


def simulate_ring(steps: np.ndarray, transfer: float, gradients: float | None = None) -> float:
    """Return when the last rank of a ring is done, in the order of `torch_impl.distributed`.

    A rank starts to send the keys that it has, computes with them, and waits until they are sent and the next ones are
    there. In the backward pass it then sends gradients, after those of its predecessor have arrived.

    Args:
        steps: [steps, ranks], the seconds that each rank computes in each step.
        transfer: Seconds that keys and values of one rank take to the next one.
        gradients: Seconds that their gradients take; None for the forward pass.
    """
    count, ranks = steps.shape
    now = free = np.zeros(ranks)  # when each rank is ready, and its link to the next one

    def send(seconds: float) -> np.ndarray:
        nonlocal free
        free = np.maximum(np.maximum(now, np.roll(now, -1)), free) + seconds * (ranks > 1)
        return np.maximum(free, np.roll(free, 1))  # sent to the next rank, and received from the one before

    arrived = now
    for step in range(count):
        keys_here = send(transfer) if step < count - 1 else now
        now = now + steps[step]
        if gradients is not None:
            now = np.maximum(now, arrived)
            arrived = send(gradients)
        now = np.maximum(now, keys_here)
    return float(np.maximum(now, arrived).max())


def predict_growth(
    machine: Machine, case: Case, ranks: Sequence[int], position_bytes: dict[str, float]
) -> list[dict[str, object]]:
    """Return time, efficiency, bytes and memory of a rank, for each way and number of ranks that can share the case.

    position_bytes: of each way, the memory that a rank needs for one of its own positions.
    """
    alone = simulate_one_device(machine, case)
    rows: list[dict[str, object]] = []
    for name, memory in position_bytes.items():
        way = WAYS[name]
        for count in ranks:
            if case.H % count and way.function != RING:
                continue
            seconds = simulate_attention(machine, case, way, count)
            own = max(rank_lengths(case.K, count, way.layout))
            sent = [max(both) for both in zip(*bytes_sent(case, way, count), strict=True)]
            rows.append({
                "way": name, "ranks": count, "direction": case.direction, "length": case.K, "seconds": seconds,
                "efficiency": alone / seconds / count, "bytes": sent[: 1 + case.backward],
                "memory": round(memory * own),
            })  # fmt: skip
    return rows
