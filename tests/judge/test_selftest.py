"""The planted faults: each is caught by its own rule, and what it is made from conforms on the same cases.

Those that need PyTorch or JAX are left to `conformance selftest`, which plants them too.
"""

from __future__ import annotations

from functools import cache

import pytest
from rich.console import Console

from conformance.judge.run import STUCK
from conformance.selftest.faults import Fault, planted
from conformance.selftest.selftest import Outcome, Score, Suspect, groups, judged, main, show
from specification import RULES

SEED = 20260101
FAULTS = tuple(fault for fault in planted() if fault.arrays == "numpy")
GROUPS = groups(FAULTS)


@cache
def outcome(group: int) -> Outcome:
    return judged([FAULTS[index] for index in GROUPS[group]], "default", SEED)


def test_there_are_many() -> None:
    assert len(FAULTS) >= 80
    assert len({fault.title for fault in planted()}) == len(planted())


def test_every_rule_has_some() -> None:
    assert {fault.rule for fault in planted()} == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "fault"),
    [
        pytest.param(group, FAULTS[index], id=FAULTS[index].title)
        for group, indices in enumerate(GROUPS)
        for index in indices
    ],
)
def test_fault_is_caught(group: int, fault: Fault) -> None:
    assert fault.title in outcome(group).caught


@pytest.mark.parametrize("group", range(len(GROUPS)))
@pytest.mark.slow
def test_what_it_is_made_from_conforms(group: int) -> None:
    assert outcome(group).false_alarms == ()


def test_a_right_one_is_a_fault_that_is_missed() -> None:
    """Nothing is called caught that is not."""
    fault = FAULTS[0]
    right = Fault(fault.rule, "nothing wrong", fault.operation, fault.right, fault.right)
    assert judged([right], "quick", SEED) == Outcome(missed=(right.title,))


def test_a_wrong_one_to_stand_on_is_a_false_alarm() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "True taken for forbidden")
    found = judged([Fault(fault.rule, fault.name, fault.operation, fault.right, fault.function)], "quick", SEED)
    assert found.missed == (fault.title,)
    assert len(found.false_alarms) == 1
    assert "MASK-1" in found.false_alarms[0]


def test_a_suspect_is_asked_until_its_own_rule_is_broken() -> None:
    suspect = Suspect(FAULTS[0])
    suspect.violates("no such rule")
    assert suspect.overrun < STUCK
    suspect.violates(FAULTS[0].rule)
    assert suspect.overrun == STUCK


def test_score_is_shown() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        show(Score("quick", 7, Outcome(("MASK-1 one",), ("ATT-1 two",), ("right: wrong",)), ("no jax",)), console)
    shown = captured.get()
    assert "1 of 2 planted faults" in shown
    assert "50.0%" in shown
    assert all(words in shown for words in ("two", "false alarm", "no jax", "seed 7"))


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("quick", SEED, 1, ["heads tiled, not repeated"]) == 0
    assert main("quick", SEED, 1, ["no such fault"]) == 2
    assert main("slow", SEED, 1, None) == 2
    assert "planted faults" in capsys.readouterr().out
