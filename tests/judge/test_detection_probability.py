"""The chance that a run misses a planted fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import strategies as st

import reference_numpy
from conformance.judge.options import EFFORTS
from conformance.operations.probes import probes_of
from conformance.sampling.draws import Rows
from conformance.selftest import selftest
from conformance.selftest.behaviours import Behaviour
from conformance.selftest.detection_probability import (
    Detection,
    chance_of_none,
    chance_of_none_in_rows,
    detect_by_probe,
    detection_table,
    detections_of,
    starts_the_same,
)
from tests.support.helpers import Probe, Runner, operation_cases, probes_of_all, rendered

SEED = 20260101
[TILED, *_] = selftest.choose_planted(["heads.modulo"])


def now_and_then(every: int, rule: str = "MASK-1") -> Behaviour:
    """Wrong for one of so many inputs, chosen by their bits."""

    def function(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        wrong = crc32(query.tobytes()) % every == 0
        return right(query, key, value, mask=mask) + np.asarray(float(wrong)).astype(value.dtype)

    def right(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return reference_numpy.attention(query, key, value, mask=mask)

    return Behaviour(rule, f"one in {every}", function, right, given={"dtypes": ["float32"]})


def test_chances_multiply() -> None:
    fresh = [True, False, False, True, False, False, False]  # 2 of 7, counted as 2 of 8
    assert chance_of_none(False, fresh, 1) == 0.75
    assert chance_of_none(False, fresh, 4) == 0.75**3
    assert chance_of_none(True, fresh, 4) == 0.0
    assert chance_of_none(True, fresh, 1) == 0.75, "one case alone is not the simplest"
    assert chance_of_none(False, [], 10) == 1.0
    assert chance_of_none(None, fresh, 4) == 0.75**4, "of which none is the same in every run"


def test_chances_of_a_plan() -> None:
    rows = [[True] * 3, [False] * 3, [], [True, False, False]]  # shares of 3/4, 0, 0 and 1/4
    assert chance_of_none_in_rows(rows, [4], 4) == pytest.approx(0.25 * 0.75), "every row once"
    assert chance_of_none_in_rows(rows, [4], 1) == pytest.approx(0.75), "any of the rows, each as likely"
    assert chance_of_none_in_rows(rows, [4], 8) == pytest.approx((0.25 * 0.75) ** 2)
    assert chance_of_none_in_rows(rows, [2], 2) == pytest.approx(0.25), "the first two before any other"
    assert chance_of_none_in_rows(rows, [2], 6) == pytest.approx(0.25 * 0.25 * 0.75)
    assert chance_of_none_in_rows(rows, [1, 3], 2) == pytest.approx(0.25 * (1 + 1 + 0.75) / 3), "then one of the others"


def shown_by_one_row_of(size: int) -> tuple[Probe, Detection]:
    """A plan of three rows, and a fault that shows past 128 columns only."""
    [fault, *_] = selftest.choose_planted(["norms.columns-not-written (first=128)"])
    shapes = (((2, 7), 1), ((2, size), 1), ((3, 5), 1))
    plan = Rows(
        lambda: tuple(operation_cases("layer_norm", ("float32",), plans=(shape,), gradients=False) for shape in shapes)
    )
    probe = Probe("NORM-1", "three rows", ("layer_norm",), plan)
    [detection] = detect_by_probe(probe, [(Detection(fault.title), Runner(fault.make()))], 12, SEED)
    return probe, detection


def test_rows_of_a_plan_are_counted_one_by_one() -> None:
    probe, detection = shown_by_one_row_of(700)
    count, of = detection.shown[probe.title]
    assert of == 2 + 2 + 12, "only the row that shows it is drawn again"
    assert 8 < count <= 12
    assert detection.missed["default"] == pytest.approx(1 - count / 13)
    assert detection.missed["quick"] == pytest.approx(1 - count / 13 / 3), "one row of three"
    assert detection.missed["thorough"] < 1e-3


def test_what_no_row_shows_is_always_missed() -> None:
    probe, detection = shown_by_one_row_of(100)
    assert detection.shown[probe.title] == (0, 6)
    assert detection.missed == dict.fromkeys(EFFORTS, 1.0)


def test_a_rejected_simplest_case_is_no_first_of_every_run() -> None:
    numbers = st.integers(0, 10**6)
    assert starts_the_same(numbers, SEED)
    assert not starts_the_same(numbers.filter(bool), SEED)
    [fault, *_] = selftest.choose_planted(["masks.window-ends (taken=0 where there is none)"])
    runner = Runner(fault.make())
    probe = next(probe for probe in probes_of_all() if (probe.rule, probe.title) == ("MASK-4", "window"))
    for seed in range(20):
        [detection] = detect_by_probe(probe, [(Detection(fault.title), runner)], 2, seed)
        if detection.shown[probe.title] == (2, 2):  # the first shows it, here
            break
    assert 0.0 < detection.missed["default"] < 1.0


def test_a_violation_of_another_rule_does_not_count() -> None:
    """Wrong in contiguous arrays too: no layout shows that it is one of ATT-13."""
    runner = Runner(TILED.make())
    memory = next(p for p in probes_of("ATT-13", "attention", runner.declaration) if "transposed" in p.title)
    [detection] = detect_by_probe(memory, [(Detection(TILED.title), runner)], 6, SEED)
    assert detection.shown[memory.title] == (0, 6)


def test_what_always_shows_is_never_missed() -> None:
    [detection] = detections_of([TILED], 10, SEED)
    assert detection.sure
    assert max(detection.missed.values()) < 1e-3


def test_a_right_one_is_always_missed() -> None:
    one = now_and_then(6)
    [detection] = detections_of([replace(one, function=one.right)], 10, SEED)
    assert detection.missed == dict.fromkeys(EFFORTS, 1.0)
    assert all(count == 0 for count, _ in detection.shown.values())


@pytest.mark.slow
def test_the_chance_is_what_runs_show() -> None:
    """Of quick runs with different seeds about so many miss it."""
    fault, runs = now_and_then(6, "MASK-5"), 60  # whose probes follow no plan
    [detection] = detections_of([fault], 200, SEED)
    chance = detection.missed["quick"]
    missed = sum(bool(selftest.judge_together([fault], "quick", SEED + run).missed) for run in range(runs))
    spread = np.sqrt(runs * chance * (1 - chance))
    assert 3 * spread < runs / 3, "a chance twice as large or half as large would show"
    assert missed == pytest.approx(chance * runs, abs=3 * spread)


@pytest.mark.slow
def test_the_likeliest_to_be_missed_come_first() -> None:
    detection = [*detections_of([TILED], 5, SEED), *detections_of([now_and_then(6)], 5, SEED)]
    shown = rendered(lambda console: console.print(detection_table(detection)), 150)
    assert 0 < shown.index("one in 6") < shown.index(TILED.name)
    assert "missed of 2, expected" in shown
