"""Cases have seeds of their own: independent of one another, and the same for the same seed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

import reference_numpy
from conformance.cases.declaration import Declaration
from conformance.judge import plan, trial
from conformance.judge.smallest_case import shrink_violations
from conformance.sampling import special
from conformance.sampling.draws import CaseStrategy, Rows
from tests.support.drawn_once import drawn_once
from tests.support.helpers import Case, Probe, catalogue, draw_cases, operation_cases, runner_of

NUMBERS = st.integers(0, 2**60)


def list_draws(strategy: CaseStrategy, count: int, seed: int = 1) -> list[Any]:
    return [case for _, case in draw_cases(strategy, count, seed)]


def test_the_same_for_the_same_seed() -> None:
    assert list_draws(NUMBERS, 9) == list_draws(NUMBERS, 9)
    assert list_draws(NUMBERS, 9)[1:] != list_draws(NUMBERS, 9, 2)[1:]
    assert list_draws(NUMBERS, 4) == list_draws(NUMBERS, 9)[:4]
    assert len(set(list_draws(NUMBERS, 40))) == 40


def test_the_first_of_several_is_the_simplest() -> None:
    assert list_draws(NUMBERS, 5)[0] == 0
    assert list_draws(NUMBERS, 1, 1) != list_draws(NUMBERS, 1, 2)  # a single one is no more the simplest than others


@pytest.mark.parametrize("seed", range(5))
def test_a_choice_comes_out_as_often_as_it_should(seed: int) -> None:
    """15 to 45 of 60: a fair coin is outside that once in 30,000 times, and the seeds are fixed."""
    sides = list_draws(st.tuples(st.booleans(), NUMBERS, st.booleans()), 60, seed)
    for side in (0, 2):  # the first choice of all, and a later one
        assert 15 <= sum(drawn[side] for drawn in sides) <= 45


@pytest.mark.parametrize("of_plan", [False, True])
def test_where_nothing_can_be_drawn(of_plan: bool) -> None:
    asked = 0

    @st.composite
    def impossible(draw: st.DrawFn) -> int:
        nonlocal asked
        asked += 1
        assume(False)
        return draw(NUMBERS)

    strategy: CaseStrategy = Rows(lambda: (impossible(),) * 500) if of_plan else impossible()
    assert list_draws(strategy, 50) == []
    few = asked
    assert list_draws(strategy, 500) == []
    assert asked == 2 * few


def test_a_row_without_a_case_ends_no_plan() -> None:
    assert list_draws(Rows(lambda: (NUMBERS, *(st.nothing(),) * 4, NUMBERS)), 60)


@pytest.mark.parametrize(
    "strategy", [partial(special.planted_cases, "hidden"), special.empty_row_cases], ids=["hidden", "empty rows"]
)
def test_masks_that_hide_no_key_are_found_out_before_arrays_are_drawn(strategy: Any, monkeypatch: Any) -> None:
    """A window around the query's own key, with as many queries as keys, lets every key be seen."""
    features = frozenset(("structured", "window", "gradients", "scale"))
    declaration = Declaration(features=features, windows=((8, 8),), mask_required=True)
    monkeypatch.setattr(special, "attention_cases", None)
    assert list_draws(strategy(declaration=declaration), 15) == []


def test_what_is_hard_to_draw_is_drawn_as_often() -> None:
    assert len(list_draws(NUMBERS.filter(lambda number: number % 7 == 3), 20)) == 20


def wrong_when_long(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    return reference_numpy.attention(query, key, value, mask=mask) * (2 if key.shape[2] > 9 else 1)


def test_the_smallest_case_comes_from_the_one_that_failed() -> None:
    """And not from the first, which passes."""
    runner = runner_of(wrong_when_long)
    probe = next(probe for probe in catalogue(runner.declaration) if probe.title == "causal, many keys")
    results = trial.ask_probe(probe, [runner], 10, 1)
    shrink_violations(results, [runner], 30)
    (violation,) = results.violations.values()
    case: Case = violation.case
    assert case.inputs["key"].shape[2] == 10


def test_cases_that_tests_keep_are_those_that_are_drawn() -> None:
    """Also after a function that overwrites what it was given."""

    def overwrites(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
        x[...] = 0
        return x

    probe = Probe("NORM-1", "kept", ("layer_norm",), operation_cases("layer_norm", ("float32",)))
    seed = plan.seed_of(probe, 1)
    before = list(drawn_once(probe.cases, 3, seed))
    results = trial.ask_probe(probe, [runner_of(overwrites, "layer_norm")], 3, 1)
    assert results.violations
    for number, kept in drawn_once(probe.cases, 3, seed):
        assert kept is before[number][1]
    for (_, kept), (_, fresh) in zip(before, draw_cases(probe.cases, 3, seed), strict=True):
        assert kept.options == fresh.options
        for name, array in fresh.inputs.items():
            np.testing.assert_array_equal(kept.inputs[name], array)
