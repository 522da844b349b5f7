"""What is planted is caught by its own rule, and named; and what it is made from conforms on the same cases.

All of it is left to `conformance selftest` and `conformance selftest --names`: it takes hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from conformance.judge import trial
from conformance.mistakes.catalogue import planted_mistakes
from conformance.mistakes.planting import PlantedMistake
from conformance.selftest import behaviours, names, selftest
from specification import RULES
from tests.support.helpers import rendered

SEED = 20260101
NUMPY = tuple(one for one in behaviours.behaviours() if one.arrays == "numpy")
IN_PLACE = next(one for one in NUMPY if one.name == "query scaled in place")


def every_group(planted: Sequence[selftest.Planted]) -> list[Any]:
    groups = ([planted[index] for index in group] for group in selftest.group_planted(planted))
    return [pytest.param(group, id=f"{group[0].rule} {group[0].operation}") for group in groups]


def test_titles_differ() -> None:
    titles = [one.title for one in selftest.everything_planted()]
    assert len(set(titles)) == len(titles) >= 1000


def test_every_rule_has_some() -> None:
    assert {one.rule for one in selftest.everything_planted()} == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize("group", every_group(NUMPY))
def test_behaviours_are_caught(group: list[behaviours.Behaviour]) -> None:
    """And what they are made from conforms."""
    outcome = selftest.judge_together(group, "default", SEED)
    assert outcome == selftest.Outcome(caught=tuple(one.title for one in group))


SOME = ("norms.eps-twice", "losses.sum-for-mean", "lookups.scaled-unasked")
OF_ATTENTION = ("masks.transposed", "heads.reversed", "ranks.groups-dealt")


@pytest.mark.parametrize("name", [*SOME, *(pytest.param(one, marks=pytest.mark.slow) for one in OF_ATTENTION)])
def test_mistakes_are_caught_and_named(name: str) -> None:
    (planted,) = selftest.choose_planted([name])
    assert selftest.judge_together([planted], "default", SEED).missed == ()
    assert [one.verdict for one in names.name_mistakes("quick", SEED, 1, [name])] == ["right"]


@pytest.mark.slow
def test_sizes_past_which_mistakes_show() -> None:
    """Rows whose condition asks for a size are right at toy sizes: no case of the quickest run shows them."""
    large = [one for one in planted_mistakes() if one.condition.past >= 1024]
    assert len(large) >= 20
    shown = {one.operations[0]: PlantedMistake(one) for one in large}
    for planted in shown.values():
        condition = replace(planted.mistake.condition, past=10**9)
        within = replace(planted, mistake=replace(planted.mistake, condition=condition))
        assert selftest.judge_together([within], "quick", SEED).caught == ()


def test_a_right_one_is_missed() -> None:
    """Nothing is called caught that is not."""
    right = replace(IN_PLACE, name="nothing wrong", function=IN_PLACE.right)
    assert selftest.judge_together([right], "quick", SEED) == selftest.Outcome(missed=(right.title,))


def test_a_wrong_one_to_stand_on_is_a_false_alarm() -> None:
    exchanged = replace(IN_PLACE, function=IN_PLACE.right, right=IN_PLACE.function)
    found = selftest.judge_together([exchanged], "quick", SEED)
    assert found.missed == (IN_PLACE.title,)
    assert len(found.false_alarms) == 1
    assert "ATT-13" in found.false_alarms[0]


def test_a_suspect_is_asked_until_its_own_rule_is_broken() -> None:
    suspect = selftest.Suspect(IN_PLACE)
    suspect.hear_rule("no such rule")
    assert suspect.overrun < trial.STUCK
    suspect.hear_rule(IN_PLACE.rule)
    assert suspect.overrun == trial.STUCK


def test_score_is_shown() -> None:
    missed = ("ATT-1 scores.scale-twice", "ATT-13 two")
    outcome = selftest.Outcome(("MASK-1 masks.inverted",), missed, ("right: wrong",))
    shown = rendered(partial(selftest.show, selftest.Score("quick", 7, outcome, ("no jax",))))
    assert "1 of 3 planted faults" in shown
    assert "behaviours 0/1, masks 1/1, scores 0/1" in shown
    assert all(words in shown for words in ("scale-twice", "false alarm", "no jax", "seed 7", "33.3%"))


def test_names_are_shown() -> None:
    namings = [
        names.Naming("MASK-1 masks.inverted", "right", "masks.inverted", 3, 3),
        names.Naming("ATT-1 scores.scale-twice", "wrong", "masks.inverted", 2, 5),
        names.Naming("ATT-1 scores.root-of-scale", "none"),
    ]
    shown = rendered(partial(names.show_naming, namings[1])) + rendered(partial(names.show_counts, namings))
    assert "wrong ATT-1 scores.scale-twice: masks.inverted, which explains 2 of 5 failing cases" in shown
    assert "scores: 1 none, 1 wrong" in shown
    assert "1 of 3 planted mistakes are named first, 1 are called something else" in shown


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main("quick", SEED, 1, ["query scaled in place"]) == 0
    assert selftest.main("quick", SEED, 1, ["nothing of this name"]) == 2
    assert selftest.main("slow", SEED, 1, None) == 2
    assert "planted" in capsys.readouterr().out
