"""What the times of a case say, in a few short sentences.

A difference is named only where the interval of the ratio lies on one side of 1; otherwise it is within noise. Ratios
are taken round by round. A stored result has those to our default engines only. For two other subjects the ratio then
lies between the ratios of the ends of their intervals, which is wider.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from conformance.timing.measure.statistics import LEAST_LEVEL, paired
from conformance.timing.results.case_table import measured, milliseconds

Result = dict[str, Any]
NAMED = 3
"""Subjects that a sentence names at most."""


class Ratio(NamedTuple):
    """How many times as long one subject takes as another. clear: more than noise."""

    median: float
    low: float
    high: float
    clear: bool

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}] times"


def time_ratio(one: Result, other: Result) -> Ratio:
    """The time of one subject of a case over that of another."""
    a, b = one["seconds"], other["seconds"]
    forth = one["ratios"].get(other["name"])
    if not forth and (by_rounds := paired(one["trials"] or (), other["trials"] or ())):
        forth = by_rounds._asdict()
    if forth:
        median, low, high = forth["median"], forth["low"], forth["high"]
    elif back := other["ratios"].get(one["name"]):
        median, low, high = 1 / back["median"], 1 / back["high"], 1 / back["low"]
    else:
        median, low, high = a["median"] / b["median"], a["low"] / b["high"], a["high"] / b["low"]
    return Ratio(median, low, high, not low <= 1 <= high and min(a["level"], b["level"]) >= LEAST_LEVEL)


def leaders(case: Result) -> list[Result]:
    """Return the fastest: no other is faster than one of them by more than noise.

    A fastest subject with a wide interval is not enough to compare with: everything is within its noise.
    """
    order = measured(case)
    return [one for one in order if not any(slower(one, other) for other in order)] or order[:1]


def slower(one: Result, other: Result) -> bool:
    """Whether one takes longer than the other, by more than noise."""
    found = time_ratio(one, other)
    return found.clear and found.low > 1


def list_names(subjects: Sequence[Result]) -> str:
    """The first, and the user's own. Names have commas in them."""
    told = [subject["name"] for number, subject in enumerate(subjects) if number < NAMED or subject.get("yours")]
    others = len(subjects) - len(told)
    if others == 1:  # its name is no longer than that it is left out
        return "; ".join(subject["name"] for subject in subjects)
    return "; ".join([*told, *([f"and {others} more"] if others else [])])


def count_noun(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def describe_case(case: Result) -> list[str]:
    order, first = measured(case), leaders(case)
    failed = [subject for subject in case["subjects"] if subject["status"] == "failed"]
    lines = [f"Failed, and without a time: {list_names(failed)}."] if failed else []
    if not order:
        return ["No subject has a time.", *lines]
    fastest, spent = first[0], f"{milliseconds(first[0]['seconds'])} ms"
    if len(order) == 1:
        return [f"Only {fastest['name']} has a time, {spent}.", *lines]
    if len(first) > 1:
        start, told = f"Fastest, within noise of each other: {list_names(first)} ({spent} for the first).", first[:1]
        told += [one for one in first if not one.get("yours")]
    else:
        second = next(one for one in order if one is not fastest)
        start = f"Fastest is {fastest['name']}, {spent}; {second['name']} takes {time_ratio(second, fastest)} as long."
        told = [fastest, second]
    behind = [one for one in order if (one["name"] in case["bases"] or one.get("yours")) and one not in told]
    compared = []
    for one in behind:  # with that of the fastest which is farthest ahead by more than noise; the first where none is
        ahead = [(time_ratio(one, other).median, other) for other in first if slower(one, other)]
        compared.append((one, max(ahead, key=itemgetter(0))[1] if ahead else fastest))
    own_ones = [one for one in order if one.get("yours")]
    compared += [(one, own_ones[0]) for one in own_ones[1:] if own_ones[0] is not fastest]
    more = []
    for one, other in compared:
        found = time_ratio(one, other)
        more.append(f"{one['name']} takes {found} as long as {other['name']}{'' if found.clear else ' (noise)'}")
    return [start, *([f"{'; '.join(more)}."] if more else []), *lines]


def failures(cases: Sequence[Result]) -> str:
    """Return what failed, and in how many cases; empty if nothing did."""
    failed = [one["name"] for case in cases for one in case["subjects"] if one["status"] == "failed"]
    told = [f"{name} in {count_noun(number, 'case')}" for name, number in Counter(failed).most_common()]
    return f"FAILED: {'; '.join(told)}." if told else ""
