"""Subjects that are wrong, early, or fall over, in processes of their own beside honest ones: all are told apart.

This module is loaded in these processes too: `make` is what makes every subject here ready.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance.subjects.wrong_answers import relative_path
from conformance.timing.measure.rounds import Budget
from conformance.timing.measure.running import FAILED, LEFT_OUT, MEASURED, Entry, Plan, Run
from conformance.timing.subjects import numpy_subjects
from conformance.timing.subjects.timed_subject import Prepared, Results, Subject
from conformance.timing.timed_case import BOTH, Case, mixture_parameters

SIZES: dict[str, Any] = {"B": 2, "H": 4, "G": 2, "Q": 64, "K": 64, "D": 8, "V": 8}
CAUSAL = Case("causal", kind="causal", **SIZES)
BACKWARD = Case("backward", kind="causal", direction=BOTH, **SIZES)
LENGTHS = Case("lengths", kind="lengths", **SIZES)
NORM = Case("norm", "layer_norm", direction=BOTH, B=2, H=1, G=1, Q=200, D=8)
MIXTURE = Case("mixture", "mixture_of_experts", B=2, H=1, G=1, Q=100, D=16, F=24, X=8, chosen=2)

Call = Callable[[Any], Results]


def timed() -> bool:
    """The clock runs: the collector is off."""
    return not gc.isenabled()


class When:
    """Wrong before, while, or after it is timed."""

    def __init__(self, phase: str, wrong: Callable[[Results], Results]) -> None:
        self.phase, self.wrong, self.seen = phase, wrong, False

    def __call__(self, call: Call) -> Call:
        def changed(loaded: Any) -> Results:
            self.seen = self.seen or timed()
            phase = "while" if timed() else "after" if self.seen else "before"
            return self.wrong(call(loaded)) if phase == self.phase else call(loaded)

        return changed


def zeros(results: Results) -> Results:
    return tuple(np.zeros_like(each) for each in results)


def scaled(number: int) -> Callable[[Results], Results]:
    """One result off by a thousandth."""
    factor = np.float32(1.001)
    return lambda results: tuple(each * factor if i == number else each for i, each in enumerate(results))


def only(*place: Any) -> Callable[[Results], Results]:
    """The output is computed at the place alone."""

    def part(results: Results) -> Results:
        found = np.zeros_like(results[0])
        found[place] = results[0][place]
        return (found, *results[1:])

    return part


def last_result(call: Call) -> Call:
    """What the call before this one should have given."""
    kept: list[Results] = []

    def late(loaded: Any) -> Results:
        kept.append(call(loaded))
        return kept[-2] if len(kept) > 1 else kept[-1]

    return late


def unfinished(call: Call) -> Call:
    """Filled by a thread, when the clock has stopped."""

    def early(loaded: Any) -> Results:
        true = call(loaded)
        empty = zeros(true)
        if not timed():
            return true

        def fill() -> None:
            time.sleep(0.02)
            for target, source in zip(empty, true, strict=True):
                target[...] = source

        threading.Thread(target=fill).start()
        return empty

    return early


def by_identity(call: Call) -> Call:
    """What was computed for the arrays that have this identity, whatever is in them by now."""
    known: dict[int, Results] = {}

    def cached(loaded: Any) -> Results:
        key = id(loaded[0][0])
        if key not in known:
            known[key] = call(loaded)
        return known[key]

    return cached


def by_content(call: Call) -> Call:
    """Right, unless it is asked the same thing twice."""
    seen: set[bytes] = set()

    def fresh(loaded: Any) -> Results:
        content = b"".join(array.tobytes() for array in loaded[0])
        again = content in seen
        seen.add(content)
        return zeros(call(loaded)) if again else call(loaded)

    return fresh


def while_timed(action: Callable[[], Any]) -> Callable[[Call], Call]:
    """The action, in the middle of a round."""

    def fallen(call: Call) -> Call:
        def changed(loaded: Any) -> Results:
            if timed():
                action()
            return call(loaded)

        return changed

    return fallen


def unfit(call: Call) -> Call:
    from conformance.timing.subjects.timed_subject import Unfit

    raise Unfit("it is for Sundays")


class Lazy(np.ndarray):
    """Could compute its numbers when they are looked at."""


def always(wrong: Callable[[Results], Results]) -> Callable[[Call], Call]:
    return lambda call: lambda loaded: wrong(call(loaded))


def fail(error: Exception) -> Any:
    raise error


PLACE = f"{relative_path(__file__)}:{fail.__code__.co_firstlineno + 1}"
HOARD = 2**28
"""Bytes."""


def hoarding(call: Call) -> Call:
    kept = np.ones(HOARD // 8)
    return lambda inputs: call(inputs) if kept.size else []


WAYS: dict[str, Callable[[Call], Call]] = {
    "honest": lambda call: call,
    "hoarding": hoarding,
    "asked the same twice": by_content,
    "zeros": always(zeros),
    "last result": last_result,
    "unfinished": unfinished,
    "first queries": always(only(..., slice(16), slice(None))),
    "first element": always(only(slice(1))),
    "by identity": by_identity,
    "wrong before": When("before", scaled(0)),
    "wrong while": When("while", scaled(0)),
    "wrong after": When("after", scaled(0)),
    "too few": always(lambda results: results[:-1]),
    "shape": always(lambda results: (results[0][..., :1], *results[1:])),
    "dtype": always(lambda results: (results[0].astype(np.float64), *results[1:])),
    "lazy": always(lambda results: tuple(each.view(Lazy) for each in results)),
    "NaN": always(lambda results: (results[0] * np.nan, *results[1:])),
    **{f"result {number} wrong": always(scaled(number)) for number in range(4)},
    **{f"result {number} wrong while": When("while", scaled(number)) for number in range(4)},
    "raises": while_timed(lambda: fail(RuntimeError("no more\nand a page of this"))),
    "no memory": while_timed(lambda: fail(MemoryError())),
    "ends": while_timed(lambda: os._exit(3)),
    "killed": while_timed(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "hangs": while_timed(lambda: time.sleep(1000)),
    "unfit": unfit,
}
GRADIENTS = [f"result {number} wrong{when}" for number in range(1, 4) for when in ("", " while")]
LINES = {
    "raises": f"timed trial 1: raised RuntimeError: no more ({PLACE} in fail)",
    "no memory": "timed trial 1: there was not enough memory",
    "ends": "timed trial 1: its process ended with code 3",
    "killed": "timed trial 1: its process ended with code -9 (killed: there may not have been enough memory)",
    "hangs": "timed trial 1: took longer than 20 s",
    "too few": "before the timing: gives 0 results, expected output",
    "shape": "before the timing: output is float32 [2, 4, 64, 1], expected float32 [2, 4, 64, 8]",
    "lazy": "before the timing: output is of a class of its own, Lazy, that may compute it later",
    "dtype": "before the timing: output is float64 [2, 4, 64, 8], expected float32 [2, 4, 64, 8]",
}
CHEATS = [
    "zeros", "last result", "unfinished", "first queries", "first element", "by identity", "wrong before",
    "wrong while", "wrong after", "NaN",
]  # fmt: skip


def mixture(case: Case, device: str) -> Prepared:
    parameters = mixture_parameters(case, np.array)
    return numpy_subjects.prepared(
        case, device, lambda x: reference_numpy.mixture_of_experts(parameters, x, chosen=case.chosen)
    )


def make(case: Case, device: str, way: str) -> Prepared:
    prepared = (mixture if case.facts.own_weights else numpy_subjects.reference)(case, device)
    prepared.call = WAYS[way](prepared.call)
    return prepared


def subject(way: str, operation: str = "attention", **fields: Any) -> Subject:
    return Subject(way, operation, "numpy", ("numpy",), make, (way,), **fields)


def run_of(subjects: list[Subject], **budget: Any) -> contextlib.closing[Run]:
    settings: dict[str, Any] = {"least": 4, "most": 4, "limit": 300.0} | budget
    return contextlib.closing(Run(Plan("cpu", 1, 7, Budget(**settings), memory=lambda case: False), subjects))


def entries(case: Case, ways: list[str], **budget: Any) -> dict[str, Entry]:
    """Of a run with these subjects at one case."""
    with run_of([subject(way, case.operation) for way in ways], **budget) as run:
        return {entry.subject.name: entry for entry in run.case(case)[1]}


@cache
def forward() -> dict[str, Entry]:
    return entries(CAUSAL, ["honest", "asked the same twice", *CHEATS, "too few", "shape", "lazy", "dtype"])


@cache
def backward(case: Case) -> dict[str, Entry]:
    return entries(case, ["honest", "asked the same twice", *GRADIENTS])


@cache
def falling() -> dict[str, Entry]:
    entries(CAUSAL, ["honest"])  # so that what the processes are forked from is there
    return entries(CAUSAL, ["honest", "raises", "no memory", "ends", "killed", "hangs", "unfit"], limit=20.0)


def told(entry: Entry) -> str:
    assert "\n" not in entry.reason
    return f"{entry.status}: {entry.reason}"


@pytest.mark.slow
@pytest.mark.parametrize("case", [CAUSAL, BACKWARD, NORM], ids=lambda case: case.name)
@pytest.mark.parametrize("way", ["honest", "asked the same twice"])
def test_the_honest_are_measured(case: Case, way: str) -> None:
    entry = (backward(case) if case.backward else forward())[way]
    assert told(entry) == f"{MEASURED}: "
    assert sum(trial is not None for trial in entry.trials) == 4
    for verdict in (entry.before, entry.during, entry.after):
        assert 0 < verdict.worst <= 1


@pytest.mark.parametrize("way", CHEATS)
def test_cheats_fail(way: str) -> None:
    assert told(forward()[way]).startswith(f"{FAILED}: ")


@pytest.mark.parametrize(
    ("way", "when"),
    [
        ("wrong before", "before the timing"),
        ("zeros", "before the timing"),
        ("by identity", "before the timing"),
        ("unfinished", "timed trial 1"),
        ("wrong while", "timed trial 1"),
        ("wrong after", "after the timing"),
    ],
)
def test_the_judge_says_when(way: str, when: str) -> None:
    assert forward()[way].reason.startswith(f"{when}: output")


def test_what_failed_before_is_never_timed() -> None:
    assert not forward()["wrong before"].trials


@pytest.mark.parametrize("way", GRADIENTS)
@pytest.mark.slow
def test_wrong_gradients_fail(way: str) -> None:
    for case in (BACKWARD, NORM):
        when = "timed trial" if way.endswith("while") else "before the timing"
        name = case.results[int(way.split()[1])]
        assert re.match(rf"{FAILED}: {when}.*: {name}\[", told(backward(case)[way]))


@pytest.mark.slow
@pytest.mark.parametrize("way", list(LINES))
def test_one_line_for_what_falls_over(way: str) -> None:
    assert told((forward() | falling())[way]) == f"{FAILED}: {LINES[way]}"


@pytest.mark.slow
def test_the_others_go_on() -> None:
    assert told(falling()["honest"]) == f"{MEASURED}: "
    assert len(falling()["honest"].trials) == 4
    assert told(falling()["unfit"]) == f"{LEFT_OUT}: it is for Sundays"


def test_what_cannot_be_pickled_is_told_in_a_line() -> None:
    with run_of([subject("local", takes=lambda *_: ""), subject("honest")]) as run:
        local, honest = run.case(CAUSAL)[1]
    assert told(local).startswith(f"{FAILED}: it cannot be pickled, to go into a process of its own: ")
    assert told(honest) == f"{MEASURED}: "


def slow(case: Case, device: str, marks: str) -> Prepared:
    """Every call but the first leaves a mark and takes half a second."""
    prepared = numpy_subjects.reference(case, device)
    call = prepared.call

    def marked(loaded: Any) -> Results:
        with Path(marks).open("a") as file:
            file.write("x")
        time.sleep(0.5 * (len(Path(marks).read_text()) > 1))
        return call(loaded)

    prepared.call = marked
    return prepared


def test_one_slow_call_is_enough(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    found = Subject("slow", "attention", "numpy", ("numpy",), slow, (str(marks),))
    with run_of([found], slowest=0.2) as run:
        (entry,) = run.case(CAUSAL)[1]
    assert told(entry).startswith(f"{LEFT_OUT}: one call takes ")
    assert told(entry).endswith(" s, more than the 0.2 s given to it; not judged; without --quick it has 10 s")
    assert len(marks.read_text()) == 2


def test_every_element_of_a_batch_is_looked_at() -> None:
    found = entries(LENGTHS, ["honest", "first element", "first queries"])
    assert [entry.status for entry in found.values()] == [MEASURED, FAILED, FAILED]


def test_rows_of_a_mixture_are_judged_in_every_phase() -> None:
    phases = {"wrong before": "before the timing", "wrong while": "timed trial 1", "wrong after": "after the timing"}
    found = entries(MIXTURE, ["honest", *phases])
    honest = found["honest"]
    assert told(honest) == f"{MEASURED}: "
    assert all(0 < verdict.worst <= 1 for verdict in (honest.before, honest.during, honest.after))
    for way, when in phases.items():
        assert found[way].reason.startswith(f"{when}: output")


def resident(process: Any) -> int:
    """Bytes."""
    pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="there a process tells its memory")
@pytest.mark.parametrize("slowest", [10.0, 0.0])
def test_nothing_of_a_case_stays_in_memory(slowest: float) -> None:
    """The process of what is too slow ends before the others are timed."""
    with run_of([subject("honest"), subject("hoarding")], least=2, most=2, slowest=slowest) as run:
        statuses = [entry.status for entry in run.case(CAUSAL)[1]]
        honest, hoarding = (worker.process for worker in run.workers.values())
        assert statuses == [MEASURED if slowest else LEFT_OUT] * 2
        assert (hoarding is None) == (not slowest)
        assert hoarding is None or resident(hoarding) - resident(honest) < HOARD / 2
