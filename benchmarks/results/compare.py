"""Two results side by side: what became faster or slower, and what may be noise.

The times of a subject at a case differ if their intervals do not overlap. Two runs may differ as a whole, though: by
load, clock, or how memory came to lie. What is the same in both, the libraries of the same version, shows by how much.
So the interval of a subject's ratio must also lie beyond the range of the ratios that those have at the same case, if
there are at least ENOUGH of them: above it to be slower, below it to be faster. A case that other programs disturbed,
or that was other work under the same name, gets no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from conformance.timing.measure.statistics import LEAST_LEVEL
from conformance.timing.results.case_table import busy_cases

Result = dict[str, Any]
Pair = tuple[str, Result, Result]
"""A case's name, and one subject of it in both results."""

FASTER, SLOWER, NOISE, NO_VERDICT = "faster", "slower", "noise", "no verdict"
ENOUGH = 4
BUSY = "other programs used the machine; repeat the run"
NEAR = 0.01
"""By which part numbers of a machine may differ that is the same: its memory after a restart."""


class Change(NamedTuple):
    """ratio: the later median over the earlier one; below 1 is faster. low, high: what the two intervals allow it."""

    case: str
    subject: str
    own: bool
    yours: bool
    ratio: float
    low: float
    high: float
    verdict: str


class Comparison(NamedTuple):
    """circumstances: what else differs, a line each. drift: by case, the range of the ratios of what is the same."""

    changes: list[Change]
    circumstances: list[str]
    drift: dict[str, tuple[float, float]]


def compare(before: Result, after: Result) -> Comparison:
    olds, news = (
        {(case["name"], subject["name"]): subject for case in result["cases"] for subject in case["subjects"]}
        for result in (before, after)
    )
    pairs = [(key[0], olds[key], new) for key, new in news.items() if key in olds]
    timed_pairs = [(case, old, new) for case, old, new in pairs if timed(old) and timed(new)]
    drift, why = drifts(before, after, timed_pairs), unlike(before, after)
    changes = [change(case, old, new, drift.get(case), case not in why) for case, old, new in timed_pairs]
    told = [f"{case}: no verdict, {reason}" for case, reason in why.items() if reason != BUSY]
    disturbed = list(why.values()).count(BUSY)
    common = len({case["name"] for case in before["cases"]} & {case["name"] for case in after["cases"]})
    told += [f"no verdict in {disturbed} of {common} cases: {BUSY}"] if disturbed else []
    against = []  # the times of a result: other programs, an interrupt
    for name, result in (("A", before), ("B", after)):
        found = [busy_cases(result["cases"]), "" if result["finished"] else "interrupted"]
        against += [f"{name}: {', '.join(filter(None, found))}"] if any(found) else []
    told += ["; ".join(against)] if against else []
    told += circumstances(before, after)
    told += [
        f"{case}: {new['name']}: {old['status']}, then {new['status']}: {new['reason'] or old['reason']}"
        for case, old, new in pairs
        if timed(old) != timed(new)
    ]
    told += missing(before, after)
    return Comparison(sorted(changes, key=lambda one: not one.yours), told, drift)


def unlike(before: Result, after: Result) -> dict[str, str]:
    """Why a case gets no verdict, by its name."""
    found = {}
    olds, news = ({case["name"]: case for case in result["cases"]} for result in (before, after))
    for name, new in news.items():
        if (old := olds.get(name)) is None:
            continue
        if old["pairs"] != new["pairs"]:
            found[name] = f"it was other work: {old['pairs']:,} pairs of queries and keys, then {new['pairs']:,}"
        elif old.get("busy") or new.get("busy"):
            found[name] = BUSY
    return found


def drifts(before: Result, after: Result, pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    if before["environment"]["versions"] != after["environment"]["versions"]:
        return {}
    found: dict[str, list[float]] = {}
    for case, old, new in pairs:
        if not own(old) and not own(new):
            found.setdefault(case, []).append(new["seconds"]["median"] / old["seconds"]["median"])
    return {case: (min(ratios), max(ratios)) for case, ratios in found.items() if len(ratios) >= ENOUGH}


def own(subject: Result) -> bool:
    """Whether its code may have changed between the runs: it is this project's or the user's, not a library's."""
    return subject["ours"] or subject.get("yours", False)


def timed(subject: Result) -> bool:
    return subject["status"] == "measured"


def change(case: str, old: Result, new: Result, drift: tuple[float, float] | None, comparable: bool) -> Change:
    a, b = old["seconds"], new["seconds"]
    ratio, low, high = b["median"] / a["median"], b["low"] / a["high"], b["high"] / a["low"]
    least, most = drift or (1, 1)
    verdict = FASTER if high < min(1, least) else SLOWER if low > max(1, most) else NOISE
    if min(a["level"], b["level"]) < LEAST_LEVEL:
        verdict = NOISE
    verdict = verdict if comparable else NO_VERDICT
    return Change(case, new["name"], own(new), new.get("yours", False), ratio, low, high, verdict)


def circumstances(before: Result, after: Result) -> list[str]:
    lines = []
    for part in ("environment", "settings"):
        for name, old in before[part].items():
            new = after[part].get(name)
            if name == "versions":
                lines += [
                    f"{package}: {old.get(package, 'not installed')}, then {new.get(package, 'not installed')}"
                    for package in sorted(old | new)
                    if old.get(package) != new.get(package)
                ]
            elif name == "load":
                lines += [f"load: {old:.2f}, then {new:.2f}"] if old and new and abs(math.log(old / new)) > 1 else []
            elif name == "memory" and old and new:
                lines += [f"memory: {old:,}, then {new:,}"] if abs(old - new) > NEAR * old else []
            elif old != new:
                lines.append(f"{name}: {old}, then {new}")
    return lines


def missing(before: Result, after: Result) -> list[str]:
    """What only one of the results has: whole cases, and subjects of cases that both have, unless it left them out."""
    cases = [{case["name"] for case in result["cases"]} for result in (before, after)]
    subjects = [
        {f"{case['name']}: {one['name']}": one["status"]
         for case in result["cases"] if case["name"] in cases[0] & cases[1] for one in case["subjects"]}
        for result in (before, after)
    ]  # fmt: skip
    begun = [{name for name, status in found.items() if status != "left out"} for found in subjects]
    alone = [
        *(("first", cases[0] - cases[1]), ("second", cases[1] - cases[0])),
        *(("first", begun[0] - set(subjects[1])), ("second", begun[1] - set(subjects[0]))),
    ]
    return [f"only in the {which}: {'; '.join(sorted(names))}" for which, names in alone if names]
