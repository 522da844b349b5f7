"""A subject's own place of work: makes it ready for a case, lets it answer, and times it. It runs in a process apart.

Inputs are drawn here, outside the clock, from seeds that the subject is not given. Of which call which rows are kept is
drawn once the clock has stopped, by the system's random numbers, and they are copied before anything else is done.

The first call of a trial, and every one that is judged, finds its inputs where those of the one before were: the same
NumPy arrays, with other numbers in them. Whoever takes them for the same gives the wrong result.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from conformance.runner.compiled_code import give_back_freed_memory
from conformance.timing import timed_case as timed
from conformance.timing.measure.clocks import clock_for
from conformance.timing.measure.other_programs import watch_processors
from conformance.timing.subjects.timed_subject import Prepared, Results, Subject, Wrong
from conformance.timing.timed_case import TRIAL, WARM_UP, Arrays, Case
from conformance.timing.verify.gate import all_rows_judged
from conformance.timing.verify.row_sampling import BY_ROW, Place, Sample, draw, only_there, taken
from specification.dtypes import dtype_name

ROWS_OF_TRIAL = 6
WARM_CALLS = 2
SHORT = 0.5
"""Seconds of a trial below which unmeasured calls go before it, for `Budget.awake` seconds.

Threads that have slept may wake up on one processor, and part late. Seen with JAX 0.10.2 on two processors: after
0.7 s of sleep calls of 25 ms take 45, 31, 26 and 25, the first of them on one processor alone (user time equals elapsed
time, and 125 involuntary switches). PyTorch's OpenMP shows nothing of it.
"""


class Start(NamedTuple):
    """How the mask is given, the engine that "auto" took, and how long the first call and those after it took."""

    form: str
    chosen: str
    notes: tuple[str, ...]
    clock: str
    first: float
    typical: float


class Trial(NamedTuple):
    """Seconds for one call, and what one of the calls gave where it was looked at.

    words: of the seed from which that call's inputs were drawn. stolen: the share of processor time that the host took.
    """

    seconds: float
    words: tuple[int, ...]
    place: Place
    sample: Sample
    stolen: float | None = None


class TimingWorker:
    """One subject; it has one case at a time."""

    def __init__(self, subject: Subject, device: str) -> None:
        self.subject, self.device = subject, device
        self.prepared: Any = None
        self.reused: Arrays = {}

    def prepare(self, case: Case, seed: int, slowest: float = math.inf) -> Start:
        """Ready for the case, and warm, unless a call takes longer than `slowest` seconds; raises Unfit."""
        self.release()
        self.prepared = prepared = self.subject.ready(case, self.device)
        first, fastest = self.spent(prepared, case, seed, 0), math.inf
        for number in range(1, 1 + WARM_CALLS):
            fastest = min(fastest, self.spent(prepared, case, seed, number))
            if fastest > slowest:
                break
        return Start(prepared.form, prepared.chosen, prepared.notes, clock_for(prepared).name, first, fastest)

    def spent(self, prepared: Prepared, case: Case, seed: int, number: int) -> float:
        """Seconds of one call, whatever it does in it."""
        loaded = self.loaded(case, seed, WARM_UP, number)
        start = time.perf_counter()
        with prepared.around():
            results = prepared.finish(loaded)
            for name, result in zip(case.results, results, strict=False):
                prepared.numpy(prepared.copy(prepared.view(result, name)[0, 0, :1]))  # a GPU is done after this
        return time.perf_counter() - start

    def loaded(self, case: Case, seed: int, *words: int, again: bool = True) -> Any:
        arrays = self.in_place(case, seed, *words) if again else timed.inputs(case, seed, *words)
        return self.prepared.load(arrays, timed.mask(case, seed, *words))

    def in_place(self, case: Case, seed: int, *words: int) -> Arrays:
        """The inputs in the arrays that held those of an earlier call."""
        for name in case.shapes:
            drawn = timed.one_input(case, name, seed, *words)
            self.reused.setdefault(name, drawn)[...] = drawn
        return dict(self.reused)

    def examine(self, case: Case, seed: int, words: Sequence[int], places: Sequence[Place]) -> list[Sample]:
        """What fresh inputs give at these places; with a backward pass, for a cotangent that is zero elsewhere."""
        prepared: Prepared = self.prepared
        arrays = only_there(case, self.in_place(case, seed, *words), places)
        loaded = prepared.load(arrays, timed.mask(case, seed, *words))
        with prepared.around():
            results = prepared.finish(loaded)
        self.complete(case, results)
        found = [taken(case, prepared, results, place, case.results) for place in places]
        return [{name: prepared.numpy(piece) for name, piece in sample.items()} for sample in found]

    def complete(self, case: Case, results: Results) -> None:
        """All results, each in its shape and in the inputs' dtype, and arrays that hold their numbers by now."""
        if len(results) != len(case.results):
            raise Wrong(f"gives {len(results)} results, expected {', '.join(case.results)}")
        classes = array_classes()
        for name, result in zip(case.results, results, strict=True):
            if type(result) not in classes:
                raise Wrong(f"{name} is of a class of its own, {type(result).__name__}, that may compute it later")
            view, expected = self.prepared.view(result, name), shape_of(case, name)
            if tuple(view.shape) != expected or dtype_name(view) != case.dtype:
                found = f"{dtype_name(view)} {list(view.shape)}, expected {case.dtype} {list(expected)}"
                raise Wrong(f"{name} is {found}")

    def trial(
        self, case: Case, seed: int, words: tuple[int, ...], calls: int, expected: float, awake: float = 0.0
    ) -> Trial:
        """Some calls in a row, each on inputs of its own; `expected` seconds for each.

        words: by which this trial's inputs differ from those of others. awake: seconds of calls before them, if these
        are short.
        """
        prepared: Prepared = self.prepared
        loaded = [self.loaded(case, seed, TRIAL, *words, call, again=call == 0) for call in range(calls)]
        short = calls * expected < SHORT
        extra = self.loaded(case, seed, WARM_UP, *words, calls, again=False) if short else None
        clock, random = clock_for(prepared), np.random.default_rng()
        looked_at = [name for name in case.results if name in BY_ROW or all_rows_judged(case)]
        gc.disable()
        try:
            with prepared.around():
                end = time.perf_counter() + awake
                while extra is not None:  # once at least
                    prepared.finish(extra)
                    if time.perf_counter() >= end:
                        break
                by_others = watch_processors()
                results = clock.results(prepared, loaded)
                place, call = draw(case, random, 1, ROWS_OF_TRIAL)[0], call_to_judge(random, calls)
                sample = taken(case, prepared, results[call], place, looked_at)
                seconds = clock.seconds()
                used = by_others()
        finally:
            gc.enable()
        for each in results:
            self.complete(case, each)
        kept_numpy = {name: prepared.numpy(piece) for name, piece in sample.items()}
        stolen = None if used is None else used.host / used.available
        return Trial(seconds / calls, (TRIAL, *words, call), place, kept_numpy, stolen)

    def release(self) -> None:
        """Nothing of the case is kept."""
        self.prepared, self.reused = None, {}
        gc.collect()
        give_back_freed_memory()
        if self.device == "cuda" and "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()  # does nothing unless PyTorch has used the GPU


def array_classes() -> set[type]:
    """Of the frameworks that are loaded. A class derived from one may compute after the clock has stopped."""
    found: set[type] = {np.ndarray}
    if "torch" in sys.modules:
        found.add(sys.modules["torch"].Tensor)
    if "jax" in sys.modules:
        found.add(type(sys.modules["jax"].numpy.zeros(())))
    return found


def call_to_judge(random: np.random.Generator, calls: int) -> int:
    """Half of the times the last, which has had no time after it to be finished in, else any."""
    return calls - 1 if random.integers(2) else int(random.integers(calls))


def shape_of(case: Case, result: str) -> tuple[int, ...]:
    """Of a result, as four axes."""
    shapes = case.shapes
    if result == "output":
        main = case.inputs[0]
        shape = (*shapes[main][:-1], case.V) if case.facts.by_head else shapes[main]
    else:
        shape = shapes[result.removeprefix("gradient of ")]
    if case.facts.by_head:
        return shape
    rows = 1 if len(shape) == 1 else shape[0] * shape[1]
    return (1, 1, rows, shape[-1])
