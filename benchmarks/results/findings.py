"""What many cases say together, and two results side by side, in a few short sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.results.compare import FASTER, NO_VERDICT, NOISE, SLOWER, Comparison, own
from benchmarks.results.scaling import power, scaling
from conformance.timing.results.case_table import measured
from conformance.timing.results.ranking import NAMED, Ratio, count_noun, leaders, slower, time_ratio

Result = dict[str, Any]
NO_LEAD = "our fastest engine is ahead of all libraries in no case, and behind one in none, by more than noise"


def describe_cases(cases: Sequence[Result]) -> list[str]:
    """Who is fastest where, how far the user's own subjects trail or ours lead and trail, and what grows how."""
    timed = [case for case in cases if measured(case)]
    found = (fastest(timed), own_standing(timed) or against_libraries(timed), growth(timed))
    return [line for line in found if line]


def fastest(cases: Sequence[Result]) -> str:
    alone: Counter[str] = Counter(first[0]["name"] for case in cases if len(first := leaders(case)) == 1)
    if not cases:
        return ""
    if not alone:
        return f"In {count_noun(len(cases), 'case')} the fastest differ by no more than noise."
    always = yours(cases)
    named = {name: n for place, (name, n) in enumerate(alone.most_common()) if place < NAMED or name in always}
    named["others"] = alone.total() - sum(named.values())
    named["several within noise"] = len(cases) - alone.total()
    told = [f"{name} in {count}" for name, count in named.items() if count]
    return f"Fastest in {count_noun(len(cases), 'case')}: {'; '.join(told)}."


def yours(cases: Sequence[Result]) -> set[str]:
    return {one["name"] for case in cases for one in case["subjects"] if one.get("yours")}


def own_standing(cases: Sequence[Result]) -> str:
    """How often each of the user's own subjects is among the fastest, and its largest lag."""
    found: dict[str, list[list[tuple[Ratio, str, str]]]] = {}  # by subject, for each case what is ahead of it
    for case in cases:
        order = measured(case)
        for one in (one for one in order if one.get("yours")):
            ahead = [(time_ratio(one, other), other["name"], case["name"]) for other in order if slower(one, other)]
            found.setdefault(one["name"], []).append(ahead)
    told = []
    for name, lags in found.items():
        told.append(f"{name} is among the fastest in {lags.count([])} of {count_noun(len(lags), 'case')}")
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
        faster = [one for one in libraries if slower(ours, one)]
        lags += [(time_ratio(ours, one), case["name"], one["name"], ours["name"]) for one in faster]
        if all(slower(one, ours) for one in libraries):
            least = min(libraries, key=lambda one: time_ratio(one, ours).median)
            leads.append((time_ratio(least, ours), case["name"], ours["name"], least["name"]))
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


def describe_comparison(found: Comparison) -> list[str]:
    if not found.changes:
        return ["No subject has a time in both results."]
    count = Counter(change.verdict for change in found.changes)
    told = [f"{count[SLOWER]} slower", f"{count[FASTER]} faster", f"{count[NOISE]} changed by no more than noise"]
    told += [f"{count[NO_VERDICT]} without a verdict"] if count[NO_VERDICT] else []
    lines = [f"Of {count_noun(len(found.changes), 'time')}, {', '.join(told[:-1])}, and {told[-1]}."]
    for verdict, most in ((SLOWER, max), (FASTER, min)):
        some = [change for change in found.changes if change.verdict == verdict]
        if some:
            one = most(some, key=lambda change: change.ratio)
            spent = f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}]"
            lines.append(f"Most {verdict}: {one.subject} at {one.case} takes {spent} times as long as before.")
    return lines
