"""The parts of a benchmark: work, bounds, order, intervals, verdicts, the result and its pictures."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import reference_numpy
from benchmarks.results import scaling
from conformance.timing.measure.environment import crowded, in_use
from conformance.timing.measure.memory import MemoryWorker, extra_peak, hindrance, needed
from conformance.timing.measure.other_programs import Taken
from conformance.timing.measure.rounds import INPUTS, MOST, Budget, calls_in_trial, order, rounds
from conformance.timing.measure.running import Entry, Plan, Run, impossible
from conformance.timing.measure.statistics import interval, paired
from conformance.timing.measure.timing_worker import Start, TimingWorker, Trial, call_to_judge
from conformance.timing.results.case_table import line_of_others
from conformance.timing.subjects import numpy_subjects
from conformance.timing.subjects.registry import subjects
from conformance.timing.subjects.timed_subject import Prepared, Subject
from conformance.timing.timed_case import BOTH, Case, dense_mask, inputs, mask, mixture_parameters
from conformance.timing.verify import gate
from conformance.timing.verify.gate import Call, learn_truths
from conformance.timing.verify.mixture_rows import wide_weights
from conformance.timing.verify.row_sampling import Place, draw, small_case
from conformance.timing.work import Work, work
from tests.support.helpers import bound, oracle

SIZES: dict[str, Any] = {"B": 2, "H": 4, "G": 2, "Q": 40, "K": 40, "D": 8, "V": 6}
KINDS = [
    Case(kind, kind=kind, direction=direction, **(SIZES | more))
    for direction in ("forward", BOTH)
    for kind, more in (
        ("dense", {"Q": 3}), ("causal", {}), ("window", {"window": 5}), ("lengths", {}),
        ("segments", {"segments": 4}),
    )
]  # fmt: skip
NORM = Case("norm", "layer_norm", direction=BOTH, B=2, H=1, G=1, Q=20, D=8)


# --- cases and work ---------------------------------------------------------------------------------------------------


def allowed(case: Case, words: tuple[int, ...] = ()) -> np.ndarray:
    """Pair by pair, from what the kinds mean."""
    description = mask(case, 1, *words)
    found = np.zeros((case.B, case.Q, case.K), bool)
    for b, i, j in np.ndindex(found.shape):
        if case.kind == "lengths":
            found[b, i, j] = j < description.lengths[b]
        elif case.kind == "segments":
            found[b, i, j] = description.query_ids[0][i] == description.key_ids[0][j]
        else:
            found[b, i, j] = case.kind == "dense" or (j <= i and (case.kind == "causal" or i - j < case.window))
    return found


@pytest.mark.parametrize("case", KINDS, ids=lambda case: f"{case.kind}-{case.direction}")
def test_work_is_what_a_loop_counts(case: Case) -> None:
    pairs = allowed(case)
    count = int(pairs.sum()) * case.H
    # A product of a row with a column of n numbers is n multiplications and n additions.
    products = [case.D, case.V] + ([case.D, case.V, case.V, case.D, case.D] if case.backward else [])
    found = work(case, 1)
    assert (found.pairs, found.flops) == (count, count * 2 * sum(products))
    assert found.least_flops == count * 2 * (sum(products) - (case.D if case.backward else 0))
    queries, keys = int(pairs.any(axis=2).sum()), int(pairs.any(axis=1).sum())
    B, H, G, Q, K, D, V = case.B, case.H, case.G, case.Q, case.K, case.D, case.V
    numbers = queries * H * D + keys * G * (D + V) + B * H * Q * V
    if case.backward:
        numbers += queries * H * V + B * H * Q * D + B * G * K * (D + V)
    assert found.bytes == 4 * numbers


@pytest.mark.parametrize("case", KINDS, ids=lambda case: f"{case.kind}-{case.direction}")
def test_masks_change_and_their_work_does_not(case: Case) -> None:
    description = mask(case, 1, 2, 3)
    dense = True if description is None else dense_mask(case, description)
    assert np.array_equal(np.broadcast_to(dense, (case.B, case.H, case.Q, case.K))[:, 0], allowed(case, (2, 3)))
    assert len({int(allowed(case, (2, number)).sum()) for number in range(4)}) == 1
    if case.kind in ("lengths", "segments"):
        assert len({allowed(replace(case, B=5), (2, number)).tobytes() for number in range(4)}) > 1


def test_inputs_are_fresh_for_every_call_and_the_same_for_every_subject() -> None:
    case = KINDS[-1]
    first, again, other = inputs(case, 1, 2, 0, 0), inputs(case, 1, 2, 0, 0), inputs(case, 1, 2, 0, 1)
    assert list(first) == ["query", "key", "value", "cotangent"]
    for name, array in first.items():
        assert np.array_equal(array, again[name])
        assert not np.array_equal(array, other[name])
        assert not np.array_equal(array, inputs(case, 2, 2, 0, 0)[name])


def test_layer_norm_moves_every_array_once() -> None:
    rows, width = 40, 8
    assert work(NORM, 1) == Work(
        None, None, None, 4 * (4 * rows * width + 4 * width)
    )  # x, cotangent; output, gradient of x
    assert work(replace(NORM, direction="forward"), 1).bytes == 4 * (2 * rows * width + 2 * width)


# --- the judge --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [KINDS[6], NORM], ids=lambda case: case.name)
def test_bounds_over_blocks_hold_those_of_the_whole(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(gate, "BLOCK", 16)  # and a last one of 8
    whole = Place(0, 0, tuple(range(40)), 40)
    call = Call(case, 1, (2, 0, 0))
    small = small_case(case, call.arrays, call.mask, whole, {})
    truth, bounds = oracle(small), bound(small)
    values, sums = call.sums(whole, {})
    assert set(values) == {name for name in truth if name not in ("output", "gradient of query", "gradient of x")}
    for name, value in values.items():
        np.testing.assert_allclose(value, truth[name].high, rtol=1e-13, atol=1e-14)
        assert (sums[name] >= bounds[name]).all()
        assert (sums[name] <= 8 * bounds[name]).all()


MIXTURE = Case("mixture", "mixture_of_experts", B=2, H=1, G=1, Q=20, D=16, F=24, X=8, chosen=2)


def mixture_places(count: int) -> list[tuple[Call, Place, dict[str, str]]]:
    """Three rows of each of some calls."""
    random = np.random.default_rng(5)
    return [(Call(MIXTURE, 1, (2, i, 0)), draw(MIXTURE, random, 1, 3)[0], {}) for i in range(count)]


def test_rows_of_a_mixture_are_judged_as_each_alone() -> None:
    asked = mixture_places(5)
    learn_truths(asked)
    for call, place, _ in asked:
        small = small_case(MIXTURE, call.arrays, None, place, {})
        _, truth, bounds = call.known[call.key(place, {})]
        np.testing.assert_allclose(truth["output"].high, oracle(small)["output"].high, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(bounds["output"], bound(small)["output"], rtol=1e-9)


def test_experts_that_rows_choose_are_widened_and_a_fault_in_one_is_caught() -> None:
    call, place, conventions = mixture_places(1)[0]
    wide_weights.cache_clear()
    learn_truths([(call, place, conventions)])
    rows = call.arrays["x"].reshape(-1, MIXTURE.D)[[*place.rows]]
    parameters = mixture_parameters(MIXTURE, np.array)
    chosen = {*reference_numpy.route(rows, parameters.router, chosen=MIXTURE.chosen).indices.ravel()}
    assert {*np.flatnonzero(wide_weights(MIXTURE).widened)} == chosen
    assert 0 < len(chosen) < MIXTURE.X
    for expert in range(MIXTURE.X):
        faulty = mixture_parameters(MIXTURE, np.array)
        faulty.experts.outer.weight[expert] *= np.float32(1.01)
        output = reference_numpy.mixture_of_experts(faulty, rows, chosen=MIXTURE.chosen)
        verdict = call.rows(place, {"output": output[None]}, conventions, "here")
        assert bool(verdict.wrong) == (expert in chosen)


def test_rows_are_drawn_by_nobody_who_could_tell_them() -> None:
    case = KINDS[1]
    timing_worker = TimingWorker(subjects()["reference_numpy"], "cpu")
    timing_worker.prepare(case, 1)
    trials = [timing_worker.trial(case, 1, (0,), 3, 1.0) for _ in range(8)]
    assert len({trial.place for trial in trials}) > 4
    random = np.random.default_rng(0)
    drawn = [call_to_judge(random, 10) for _ in range(1000)]
    assert set(drawn) == set(range(10))
    assert 450 < drawn.count(9) < 650


def test_the_clock_runs_until_every_result_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def passed(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Late(np.ndarray):
        def block_until_ready(self) -> None:
            passed(1.0)

    case = KINDS[1]
    timing_worker = TimingWorker(Subject("late", "attention", "numpy", ("numpy",), late), "cpu")
    timing_worker.prepare(case, 1)
    call = timing_worker.prepared.call

    def slow(loaded: Any) -> Any:
        passed(10.0)
        return tuple(each.view(Late) for each in call(loaded))

    timing_worker.prepared.call, timing_worker.prepared.wait = slow, lambda results: passed(100.0 * len(results))
    monkeypatch.setattr("conformance.timing.measure.clocks.perf_counter", lambda: now)
    monkeypatch.setattr("conformance.timing.measure.timing_worker.array_classes", lambda: {Late})
    assert timing_worker.trial(case, 1, (0,), 3, 1.0).seconds == pytest.approx(111.0)  # for each of 3 calls


def late(case: Case, device: str) -> Prepared:
    return numpy_subjects.reference(case, device)


# --- rounds and statistics --------------------------------------------------------------------------------------------


def test_rounds_are_interleaved_and_nobody_has_always_the_same_before_it() -> None:
    asked: list[tuple[str, int]] = []

    def trial(subject: str, number: int) -> bool:
        asked.append((subject, number))
        return (subject, number) != ("c", 2)

    count = rounds("abcd", trial, Budget(8, 8), lambda number: None)
    by_round = [[subject for subject, of in asked if of == number] for number in range(8)]
    assert count == 8
    assert [number for _, number in asked] == sorted(number for _, number in asked)
    assert by_round[:3] == [order("abcd", number) for number in range(3)]
    assert all(sorted(one) == list("abd") for one in by_round[3:])  # c has failed
    turns = [order("abcd", number) for number in range(8)]
    assert all({turn[turn.index(x) - 1] for turn in turns if turn.index(x)} == set("abcd") - {x, y}
               for x, y in zip("abcd", "cdab", strict=True))  # fmt: skip
    assert {turn[0] for turn in turns} == set("abcd")


def test_calls_in_a_trial() -> None:
    assert calls_in_trial(1.0, 1000, "cpu") == 1
    assert calls_in_trial(0.001, 1000, "cpu") == 5
    assert calls_in_trial(1e-9, 1000, "cpu") == MOST
    assert calls_in_trial(1e-9, INPUTS, "cpu") == 2


@pytest.mark.parametrize("n", range(1, 13))
def test_intervals_hold_the_median_as_often_as_they_say(n: int) -> None:
    found = interval([float(i) for i in range(n)])
    # Every value lies below the true median or above it, with the same probability. Value i is the i-th smallest.
    inside = wider = 0
    for below in map(sum, itertools.product((0, 1), repeat=n)):
        inside += found.low + 1 <= below <= found.high
        wider += found.low + 2 <= below <= found.high - 1
    assert found.level == pytest.approx(inside / 2**n)
    assert found.low + found.high == n - 1
    assert found.median == (n - 1) / 2
    assert found.level >= 0.95 or n < 6
    assert wider / 2**n < 0.95  # a narrower one would not do


def test_ratios_are_taken_pair_by_pair() -> None:
    base = [1.0, 10.0, 100.0, None, 1000.0, 5.0]
    found = paired([2.0, 20.0, 200.0, 7.0, None, 10.0], base)
    assert (found.median, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 4)
    assert paired([None], [1.0]) is None


def entry(seconds: list[float], **fields: Any) -> Entry:
    subject = Subject("mine", "attention", "numpy", ("numpy",), numpy_subjects.naive, **fields)
    trials: list[Trial | None] = [Trial(each, (0,), Place(0, 0, (0,), 1), {}) for each in seconds]
    return Entry(subject, start=Start("", "", (), "wall clock", 1.0, 1.0), trials=trials)


CEILINGS = [
    {"kind": "product", "framework": "numpy", "dtype": "float32", "size": 8, "rates": [90.0, 100.0]},
    {"kind": "copy", "framework": "numpy", "dtype": "float32", "size": 8, "rates": [50.0]},
]


@pytest.mark.parametrize(
    ("seconds", "flops", "moved", "line"),
    [
        (1.0, 99, 49, ""),
        (1.0, 101, 49, "impossible: 0 GFLOP/s at least, and the best matrix product here has 0"),
        (1.0, 99, 51, "impossible: 0 GB/s at least, and the best copy here has 0"),
        (0.0, 1, 1, "impossible: it took no time at all"),
    ],
)
def test_the_impossible(seconds: float, flops: int, moved: int, line: str) -> None:
    case = KINDS[0]
    found = Work(1, 1000, flops, moved)
    assert impossible(entry([seconds] * 6), case, found, CEILINGS) == line
    assert not impossible(entry([1.0] * 5 + [3.0]), case, Work(1, 1000, 101, 51), CEILINGS)  # at its slow end


class Remeasured:
    """Ceilings as they are, measured while others took a share of the processor time."""

    others: float | None = 0.0

    def __init__(self, *given: Any) -> None: ...

    def ask(self, method: str, *given: Any, limit: float) -> Any:
        return [one | {"others": self.others} for one in CEILINGS]

    def end(self) -> None: ...


@pytest.mark.parametrize(
    ("others", "busy", "status"),
    [
        (0.01, "", "failed"),
        (None, "", "failed"),
        (0.3, "", "not credible"),
        (Taken(-2.0, 0.0, 2.0).share, "load 7.9 on 2 processors", "not credible"),  # nothing is counted
        (0.01, "load 7.9 on 2 processors", "failed"),  # quiet while the ceilings were measured
        (None, "load 7.9 on 2 processors", "not credible"),
    ],
)
def test_what_a_busy_machine_cannot_refute_is_not_credible(
    monkeypatch: pytest.MonkeyPatch, others: float | None, busy: str, status: str
) -> None:
    monkeypatch.setattr(Remeasured, "others", others)
    run = Run(Plan("cpu", 1, 7), [], Remeasured)
    run.ceilings, run.busy = list(CEILINGS), busy
    fast, slow, none = entry([1.0] * 6), entry([9.0] * 6), entry([0.0] * 6)
    run.refuse_the_impossible([fast, slow, none], KINDS[0], Work(1, 1000, 101, 1))
    assert (fast.status, slow.status, none.status) == (status, "measured", "failed")
    if status == "not credible":
        assert "best matrix product here has 0, while other programs use this machine (" in fast.reason
        assert fast.reason.endswith("): repeat the run")


def test_a_loaded_machine_is_told() -> None:
    assert crowded(7.9, 2, own=2) == "load 7.9 on 2 processors"
    with patch("conformance.timing.measure.other_programs.account", side_effect=[(0.0, 0.0), (100.0, 0.0)]):
        assert in_use(0.01).startswith("they take ")
    with patch("conformance.timing.measure.other_programs.account", return_value=(7.0, 0.0)):
        assert in_use(0.01) == ""  # whatever ran a minute ago
    assert crowded(2.9, 2, own=2) == crowded(None, 2) == crowded(0.9, 2) == ""
    assert line_of_others({"busy": "load 7.9 on 2 processors"}).endswith("ratios may be wrong; repeat the run")
    assert line_of_others({}) == line_of_others({"busy": ""}) == ""


def test_growth_is_fitted() -> None:
    def seconds(length: int, factor: float = 1.0) -> dict[str, float]:
        median = factor * 3e-9 * length**2
        return {"median": median, "low": median / 1.5, "high": 2 * median, "level": 0.9}

    found = scaling.fit([(length, seconds(length)) for length in (128, 512, 1024, 4096)])
    assert len(found["between"]) == 2
    # Around the mean of 9, 10 and 12 the lengths lie at -4/3, -1/3 and 5/3 powers of 2; their squares are 14/3.
    octaves = 5 / 3 * 3 / 14
    assert found["high"] == pytest.approx(2 + octaves * (np.log2(2) + np.log2(1.5)))
    assert found["low"] == pytest.approx(2 - octaves * (np.log2(2) + np.log2(1.5)))
    assert found["level"] == pytest.approx(0.9**3)
    assert found["exponent"] == pytest.approx(2)
    assert found["factor"] == pytest.approx(3e-9)
    assert (found["from"], found["to"], found["points"]) == (512, 4096, 3)
    assert scaling.fit([(128, seconds(128))]) is None


def test_the_interval_contains_the_exponent_as_often_as_it_says() -> None:
    """Of noise with a heavy tail; an interval of a third of the width does not."""
    random, inside, narrow, level = np.random.default_rng(3), 0, 0, 0.0
    for _ in range(400):
        points = [
            (length, interval((length**1.5 * np.exp(0.1 * random.standard_t(2, 9))).tolist())._asdict())
            for length in (512, 1024, 4096)
        ]
        found = scaling.exponent(points)
        level = found["level"]
        off = abs(1.5 - found["median"])
        inside += found["low"] <= 1.5 <= found["high"]
        narrow += off <= (found["high"] - found["low"]) / 6
    assert level == pytest.approx(interval([1.0] * 9).level ** 3)
    assert inside >= level * 400 > narrow


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_that_does_not_suffice_is_told_before() -> None:
    case = replace(KINDS[1], Q=2**14, K=2**14, H=8, G=8)
    subject = Subject("mine", "attention", "numpy", ("numpy",), numpy_subjects.naive, scores=(2, 2))
    assert needed(subject, case) > 2 * 4 * 2 * 8 * 2**28
    assert hindrance(subject, case, 8 * 10**9) == (
        "one call needs about 35.5 GB; 6.4 GB are allowed, 80% of the 8.0 GB that are free "
        "(SPARE in conformance/timing/measure/memory.py)"
    )
    assert not hindrance(subject, case, None)
    assert not hindrance(subject, KINDS[1], 8 * 10**9)


def test_peaks_count_what_is_freed_again() -> None:
    size = 2**25

    def call() -> np.ndarray:
        large = np.ones(size, np.uint8)
        return large[:10].copy()

    assert 0.9 * size < extra_peak(call) < 1.5 * size
    assert max(MemoryWorker(subjects()["reference_numpy"], "cpu").measure(KINDS[1], 1, 3)) < size
