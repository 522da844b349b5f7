"""The chance that a run misses a planted fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import strategies as st
from rich.console import Console

from conformance.checking import EFFORTS
from conformance.faults import Fault, planted
from conformance.guard import Examiner
from conformance.odds import Odds, after_probe, chance_of_none, odds_of, odds_table, starts_the_same
from conformance.probes import PROBES
from conformance.selftest import judged

SEED = 20260101
TILED = next(fault for fault in planted() if fault.name == "heads tiled, not repeated")


def now_and_then(every: int) -> Fault:
    """Wrong for one of so many inputs, chosen by their bits."""

    def function(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        wrong = crc32(query.tobytes()) % every == 0
        return TILED.right(query, key, value, mask=mask) + np.asarray(float(wrong)).astype(value.dtype)

    def right(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return TILED.right(query, key, value, mask=mask)

    return Fault("MASK-1", f"one in {every}", "attention", function, right, given={"dtypes": ["float32"]})


def test_chances_multiply() -> None:
    fresh = [True, False, False, True, False, False, False]  # 2 of 7, counted as 2 of 8
    assert chance_of_none(False, fresh, 1) == 0.75
    assert chance_of_none(False, fresh, 4) == 0.75**3
    assert chance_of_none(True, fresh, 4) == 0.0
    assert chance_of_none(True, fresh, 1) == 0.75, "one case alone is not the simplest"
    assert chance_of_none(False, [], 10) == 1.0
    assert chance_of_none(None, fresh, 4) == 0.75**4, "of which none is the same in every run"


def test_a_rejected_simplest_case_is_no_first_of_every_run() -> None:
    numbers = st.integers(0, 10**6)
    assert starts_the_same(numbers, SEED)
    assert not starts_the_same(numbers.filter(bool), SEED)
    fault = next(fault for fault in planted() if fault.name == "no right bound taken for 0")
    examiner = Examiner(fault.target().make())
    probe = next(probe for probe in PROBES if (probe.rule, probe.title) == ("MASK-4", "window"))
    for seed in range(20):
        [odds] = after_probe(probe, [(Odds(fault.title), examiner)], 2, seed)
        if odds.shown[probe.title] == (2, 2):  # the first shows it, here
            break
    assert 0.0 < odds.missed["default"] < 1.0


def test_what_always_shows_is_never_missed() -> None:
    [odds] = odds_of([TILED], 10, SEED)
    assert odds.sure
    assert max(odds.missed.values()) < 1e-3


def test_a_right_one_is_always_missed() -> None:
    [odds] = odds_of([replace(TILED, function=TILED.right)], 10, SEED)
    assert odds.missed == dict.fromkeys(EFFORTS, 1.0)
    assert all(count == 0 for count, _ in odds.shown.values())


def test_the_chance_is_what_runs_show() -> None:
    """Of quick runs with different seeds about so many miss it."""
    fault, runs = now_and_then(6), 60
    [odds] = odds_of([fault], 200, SEED)
    chance = odds.missed["quick"]
    missed = sum(bool(judged([fault], "quick", SEED + run).missed) for run in range(runs))
    spread = np.sqrt(runs * chance * (1 - chance))
    assert 3 * spread < runs / 3, "a chance twice as large or half as large would show"
    assert missed == pytest.approx(chance * runs, abs=3 * spread)


def test_the_likeliest_to_be_missed_come_first() -> None:
    odds = [*odds_of([TILED], 5, SEED), *odds_of([now_and_then(6)], 5, SEED)]
    console = Console(width=150)
    with console.capture() as captured:
        console.print(odds_table(odds))
    shown = captured.get()
    assert 0 < shown.index("one in 6") < shown.index(TILED.name)
    assert "missed of 2, expected" in shown
