"""What a result says, in a few short sentences: of a case, of all cases, of two results side by side.

A difference is named only where the interval of the ratio lies on one side of 1; otherwise it is within noise. Ratios
are taken round by round. A stored result has those to our default engines only. For two other subjects the ratio then
lies between the ratios of the ends of their intervals, which is wider.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from benchmarks.measure.statistics import LEAST_LEVEL, paired
from benchmarks.results.compare import FASTER, NO_VERDICT, NOISE, SLOWER, Comparison, own
from benchmarks.results.scaling import power, scaling
from benchmarks.results.tables import measured, milliseconds

Result = dict[str, Any]
NO_LEAD = "our fastest engine is ahead of all libraries in no case, and behind one in none, by more than noise"
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


def ratio(one: Result, other: Result) -> Ratio:
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
    found = ratio(one, other)
    return found.clear and found.low > 1


def names(subjects: Sequence[Result]) -> str:
    """The first, and the user's own. Names have commas in them."""
    told = [subject["name"] for number, subject in enumerate(subjects) if number < NAMED or subject.get("yours")]
    others = len(subjects) - len(told)
    if others == 1:  # its name is no longer than that it is left out
        return "; ".join(subject["name"] for subject in subjects)
    return "; ".join([*told, *([f"and {others} more"] if others else [])])


def counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def of_case(case: Result) -> list[str]:
    order, first = measured(case), leaders(case)
    failed = [subject for subject in case["subjects"] if subject["status"] == "failed"]
    lines = [f"Failed, and without a time: {names(failed)}."] if failed else []
    if not order:
        return ["No subject has a time.", *lines]
    fastest, spent = first[0], f"{milliseconds(first[0]['seconds'])} ms"
    if len(order) == 1:
        return [f"Only {fastest['name']} has a time, {spent}.", *lines]
    if len(first) > 1:
        start, told = f"Fastest, within noise of each other: {names(first)} ({spent} for the first).", first[:1]
        told += [one for one in first if not one.get("yours")]
    else:
        second = next(one for one in order if one is not fastest)
        start = f"Fastest is {fastest['name']}, {spent}; {second['name']} takes {ratio(second, fastest)} as long."
        told = [fastest, second]
    behind = [one for one in order if (one["name"] in case["bases"] or one.get("yours")) and one not in told]
    compared = []
    for one in behind:  # with that of the fastest which is farthest ahead by more than noise; the first where none is
        ahead = [(ratio(one, other).median, other) for other in first if slower(one, other)]
        compared.append((one, max(ahead, key=itemgetter(0))[1] if ahead else fastest))
    own_ones = [one for one in order if one.get("yours")]
    compared += [(one, own_ones[0]) for one in own_ones[1:] if own_ones[0] is not fastest]
    more = []
    for one, other in compared:
        found = ratio(one, other)
        more.append(f"{one['name']} takes {found} as long as {other['name']}{'' if found.clear else ' (noise)'}")
    return [start, *([f"{'; '.join(more)}."] if more else []), *lines]


def of_cases(cases: Sequence[Result]) -> list[str]:
    """Who is fastest where, how far the user's own subjects trail or ours lead and trail, and what grows how."""
    timed = [case for case in cases if measured(case)]
    found = (fastest(timed), of_yours(timed) or against_libraries(timed), growth(timed))
    return [line for line in found if line]


def fastest(cases: Sequence[Result]) -> str:
    alone: Counter[str] = Counter(first[0]["name"] for case in cases if len(first := leaders(case)) == 1)
    if not cases:
        return ""
    if not alone:
        return f"In {counted(len(cases), 'case')} the fastest differ by no more than noise."
    always = yours(cases)
    named = {name: n for place, (name, n) in enumerate(alone.most_common()) if place < NAMED or name in always}
    named["others"] = alone.total() - sum(named.values())
    named["several within noise"] = len(cases) - alone.total()
    told = [f"{name} in {count}" for name, count in named.items() if count]
    return f"Fastest in {counted(len(cases), 'case')}: {'; '.join(told)}."


def yours(cases: Sequence[Result]) -> set[str]:
    return {one["name"] for case in cases for one in case["subjects"] if one.get("yours")}


def of_yours(cases: Sequence[Result]) -> str:
    """How often each of the user's own subjects is among the fastest, and its largest lag."""
    found: dict[str, list[list[tuple[Ratio, str, str]]]] = {}  # by subject, for each case what is ahead of it
    for case in cases:
        order = measured(case)
        for one in (one for one in order if one.get("yours")):
            ahead = [(ratio(one, other), other["name"], case["name"]) for other in order if slower(one, other)]
            found.setdefault(one["name"], []).append(ahead)
    told = []
    for name, lags in found.items():
        told.append(f"{name} is among the fastest in {lags.count([])} of {counted(len(lags), 'case')}")
        if any(lags):
            lag, other, place = max((one for ahead in lags for one in ahead), key=lambda one: one[0].median)
            told.append(f"its largest lag: it takes {lag} as long as {other} ({place})")
    return f"{'; '.join(told)}." if told else ""


def against_libraries(cases: Sequence[Result]) -> str:
    """The largest lead and the largest lag of our fastest default engine.

    It leads in a case where it leads every library: that counts which is least behind. It lags where any library is
    ahead.
    """
    leads, lags, compared = [], [], False
    for case in cases:
        order = measured(case)
        ours = next((one for one in order if one["ours"] and one["name"] in case["bases"]), None)
        libraries = [one for one in order if not own(one)]
        if ours is None or not libraries:
            continue
        compared = True
        lags += [(ratio(ours, one), case["name"], one["name"], ours["name"]) for one in libraries if slower(ours, one)]
        if all(slower(one, ours) for one in libraries):
            least = min(libraries, key=lambda one: ratio(one, ours).median)
            leads.append((ratio(least, ours), case["name"], ours["name"], least["name"]))
    told = []
    if leads:
        largest, name, ahead, behind = max(leads, key=lambda one: one[0].median)
        told.append(f"largest lead of {ahead} over all libraries: {behind} takes {largest} as long ({name})")
    if lags:
        largest, name, ahead, behind = max(lags, key=lambda one: one[0].median)
        told.append(f"largest lag of our fastest engine: {behind} takes {largest} as long as {ahead} ({name})")
    text = "; ".join(told) or (NO_LEAD if compared else "")
    return text and f"{text[0].upper()}{text[1:]}."


def growth(cases: Sequence[Result]) -> str:
    """Of our default engines and the user's own subjects, in the series that reaches farthest with most lengths."""
    told_of = {base for case in cases for base in case["bases"]} | yours(cases)
    fits = [one for one in scaling(cases) if one["quantity"] == "seconds" and one["subject"] in told_of]
    if not fits:
        return ""
    best = max(fits, key=lambda one: (one["points"], one["to"]))
    same = [one for one in fits if all(one[name] == best[name] for name in ("series", "from", "to"))]
    told = "; ".join(f"{power(one)} ({one['subject']})" for one in same)
    return f"Time of {best['series']} attention from T={best['from']:,} to {best['to']:,} grows as {told}."


def failures(cases: Sequence[Result]) -> str:
    """Return what failed, and in how many cases; empty if nothing did."""
    failed = [one["name"] for case in cases for one in case["subjects"] if one["status"] == "failed"]
    told = [f"{name} in {counted(number, 'case')}" for name, number in Counter(failed).most_common()]
    return f"FAILED: {'; '.join(told)}." if told else ""


def of_comparison(found: Comparison) -> list[str]:
    if not found.changes:
        return ["No subject has a time in both results."]
    count = Counter(change.verdict for change in found.changes)
    told = [f"{count[SLOWER]} slower", f"{count[FASTER]} faster", f"{count[NOISE]} changed by no more than noise"]
    told += [f"{count[NO_VERDICT]} without a verdict"] if count[NO_VERDICT] else []
    lines = [f"Of {counted(len(found.changes), 'time')}, {', '.join(told[:-1])}, and {told[-1]}."]
    for verdict, most in ((SLOWER, max), (FASTER, min)):
        some = [change for change in found.changes if change.verdict == verdict]
        if some:
            one = most(some, key=lambda change: change.ratio)
            spent = f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}]"
            lines.append(f"Most {verdict}: {one.subject} at {one.case} takes {spent} times as long as before.")
    return lines
