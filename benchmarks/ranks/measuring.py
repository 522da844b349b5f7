"""Start ranks, time them together, and judge what they compute."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import attention, causal
from benchmarks.ranks.formulas import ONE, RING, Way, bytes_sent
from benchmarks.ranks.growth import DIAGONAL, FULL, WHOLE, Machine
from benchmarks.ranks.rank_worker import LIMIT, Measurement, RankWorker
from conformance.bounds import bound
from conformance.checks.comparison import judge
from conformance.oracle.reference import oracle
from conformance.timing.measure.processes import Failed, Worker, processors
from conformance.timing.measure.running import FOR_PLACES, PAIRS, PLACES, ROWS, STILL
from conformance.timing.timed_case import Case, both_ways, generator, inputs, mask
from conformance.timing.verify.gate import Verdict, verdict_of, worst
from conformance.timing.verify.row_sampling import BY_ROW, Place, as_answers, draw, only_there, small_case
from specification.distributed import even_pieces, shard_positions

ROUNDS = 5
"""Calls of which the fastest counts, after one to be warm."""
MESSAGES = (2**10, 2**24)
"""Bytes of the messages from whose times latency and bandwidth come."""


class Ranks:
    """So many processes, one for each rank."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def ask(self, count: int, method: str, *arguments: Any) -> list[Any]:
        """Return what the method returns on each of the first ranks; Failed says what the first error is."""
        workers = self.workers[:count]
        with ThreadPoolExecutor(count) as pool:
            answers = [pool.submit(worker.ask, method, *arguments, limit=LIMIT) for worker in workers]
            done, _ = wait(answers, return_when=FIRST_EXCEPTION)
            errors = [error for answer in done if (error := answer.exception())]
            for worker in workers:
                if errors and worker.process is not None:
                    worker.process.kill()  # or it waits for the rank that failed
        if errors:
            raise errors[0]
        return [answer.result() for answer in answers]


@contextlib.contextmanager
def start_ranks(counts: Sequence[int]) -> Iterator[Ranks]:
    """Start as many ranks as the largest count, in groups of each count."""
    with tempfile.TemporaryDirectory() as folder:
        store, there = str(Path(folder) / "store"), processors()
        workers = [Worker(RankWorker, (rank, counts, store, there), 1, {}) for rank in range(max(counts))]
        try:
            for worker in workers:
                worker.start()
            ranks = Ranks(workers)
            ranks.ask(len(workers), "join")
            yield ranks
        finally:
            for worker in workers:
                worker.end()


# --- one case ---------------------------------------------------------------------------------------------------------


def measure_case(ranks: Ranks, case: Case, name: str, way: Way, count: int, seed: int) -> dict[str, Any]:
    """Return the row of a way on so many ranks; Failed where bytes differ from the formula, or a result is wrong."""
    expected = [list(both[: 1 + case.backward]) for both in bytes_sent(case, way, count)]
    rounds, verdicts = [], []
    for number in range(ROUNDS + 1):
        rows = max(ROWS, PAIRS // case.K)
        random = generator(seed, case, number, FOR_PLACES)
        places = draw(case, random, PLACES, rows, STILL if case.backward else 0)
        found: list[Measurement] = ranks.ask(count, "measure", case, way, count, seed, number, places)
        where = f"{name} on {count} ranks, {case.name}"
        if [one.bytes for one in found] != expected:
            raise Failed(f"{where}: sends {[one.bytes for one in found]} bytes, the formula says {expected}")
        if number in (0, ROUNDS):
            verdicts.append(judge_call(case, way, count, seed, number, places, found))
            if verdicts[-1].wrong:
                raise Failed(f"{where}: {verdicts[-1].wrong}")
        rounds.append(np.max([one.ends for one in found], axis=0))  # of the slowest rank
    least = min(rounds[1:], key=lambda ends: ends[-1])
    return {
        "way": name, "ranks": count, "direction": case.direction, "length": case.K,
        "seconds": float(least[-1]), "passes": np.diff(least, prepend=0).tolist(),
        "bytes": [max(both) for both in zip(*expected, strict=True)],
        "memory": max(ranks.ask(count, "peak", case, way, count, seed)), "error": worst(verdicts).worst,
    }  # fmt: skip


def judge_call(
    case: Case, way: Way, ranks: int, seed: int, number: int, places: Sequence[Place], found: Sequence[Measurement]
) -> Verdict:
    """Judge rows of one process's attention, which all ranks have a part of, within the bound of merging."""
    arrays, verdicts = only_there(case, inputs(case, seed, number), places), []
    own = [shard_positions(case.K, ranks, rank, way.layout) for rank in range(ranks)]
    parts = sum(map(len, even_pieces(case.K, ranks, way.layout)))
    merging = {"saved": "logsumexp", "merging": "logsumexp", "parts": str(parts)}
    for i, place in enumerate(places):
        small = small_case(case, arrays, mask(case, seed, number), place, {})
        small = replace(small, rounding=merging if way.function == RING else {})
        sample = {}
        for name in case.results:
            samples = [one.samples[i][name] for one in found]
            order = np.argsort(np.concatenate(own))
            whole = np.concatenate(samples, axis=1)[:, order]
            sample[name] = whole[:, list(place.rows)] if name in BY_ROW else whole
        findings = judge(small, as_answers(case, sample), oracle(small), bound(small))
        verdicts.append(verdict_of(findings, f"call {number + 1}"))
    return worst(verdicts)


# --- the pieces of growth ---------------------------------------------------------------------------------------------


def measure_machine(ranks: Ranks, sizes: Sequence[int], seed: int, say: Callable[[str], None]) -> Machine:
    """Time pairs of pieces and attention of the whole on one process, and messages between two."""
    seconds: dict[str, list[list[float]]] = {FULL: [], DIAGONAL: [], WHOLE: []}
    for kind, times in seconds.items():
        for size in sizes:
            case = both_ways(attention(kind, size) if kind == FULL else causal(size))[1]
            way = ONE if kind == WHOLE else RING
            say(f"{way} of one rank: {case.name}")
            times.append(measure_case(ranks, case, way, Way(way), 1, seed)["passes"])
        if min(np.subtract(times[-1], times[-2])) <= 0:
            raise Failed(f"{sizes[-1]} positions take no longer than {sizes[-2]}: repeat this on a quieter machine")
    small, large = (min(max(ranks.ask(2, "send", count)) for _ in range(4 * ROUNDS)) for count in MESSAGES)
    return Machine(sizes, seconds, small, (MESSAGES[1] - MESSAGES[0]) / max(large - small, 1e-9))
