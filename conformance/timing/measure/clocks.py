"""Clocks: how long some calls take, one after the other, until all of their results are there."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from conformance.timing.subjects.timed_subject import Prepared, Results


class WallClock:
    """The system's monotonic clock, as it was before any subject was loaded.

    `results` makes the calls; `seconds`, asked after whatever has to be done at once, says how long they took.
    """

    name = "wall clock"

    def results(self, prepared: Prepared, loaded: Sequence[Any]) -> list[Results]:
        call, now = prepared.call, perf_counter
        prepared.evict()
        self.start = now()
        found = [call(inputs) for inputs in loaded]
        prepared.wait(found)
        for ready in waiting(found):
            ready()
        self.stop = now()
        return found

    def seconds(self) -> float:
        return self.stop - self.start


def waiting(results: Sequence[Results]) -> list[Any]:
    """The waits for arrays that may still be computed: who forgets to wait is timed until they are there."""
    every = [each for of_call in results for each in of_call]
    found = [each.block_until_ready for each in every if hasattr(each, "block_until_ready")]
    if any(getattr(each, "is_cuda", False) for each in every):
        import torch

        found.append(torch.cuda.synchronize)
    return found


class CudaClock:
    """Events of CUDA's current stream, around calls that queue there.

    What a subject does on another stream without telling this one is not timed, and is not there either when the rows
    that are looked at are copied, on this stream right behind the last call.
    """

    name = "CUDA events"

    def results(self, prepared: Prepared, loaded: Sequence[Any]) -> list[Results]:
        import torch

        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        prepared.evict()  # queued: the GPU has work while Python makes the first call, so no launch is timed
        self.events[0].record()
        found = [prepared.call(inputs) for inputs in loaded]
        self.events[1].record()
        return found

    def seconds(self) -> float:
        self.events[1].synchronize()
        milliseconds: float = self.events[0].elapsed_time(self.events[1])
        return milliseconds / 1000


def clock_for(prepared: Prepared) -> WallClock | CudaClock:
    return CudaClock() if prepared.on_stream else WallClock()
