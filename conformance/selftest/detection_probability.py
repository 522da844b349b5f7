"""How surely the planted faults are caught: the chance that a run with a fresh seed misses one.

    conformance dev detection-probability [--cases 60] [--only MASK-1]

A self-test that catches all of them says little of the next one with another seed. Cases are drawn independently, each
by a seed of its own (`sampling/draws.py`), so their chances multiply: a fault that shows in the share p of a probe's
cases is missed by all c of them with probability (1 - p)^c. The first case of most probes is the same in every run, and
shows it always or never; where a filter rejects the simplest of all, it is drawn like the others.

A plan's rows are other distributions each, and a run draws every row once, or some of them, chosen by its seed. A fault
that shows in the share p_r of row r's cases is missed by one cycle of all rows with probability prod (1 - p_r). Of m
rows out of n, each set of m is as likely as any other: the chance is the mean of these products over all sets.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from math import prod
from typing import Any

from hypothesis.strategies import SearchStrategy
from rich.table import Table

from conformance.checks.catalogue import Probe
from conformance.checks.comparison import breaks
from conformance.checks.encoding import encode
from conformance.judge.attribution import Failure, attribute
from conformance.judge.options import EFFORTS
from conformance.judge.plan import count_cases, seed_of
from conformance.judge.trial import ask_questions
from conformance.operations.probes import probes_of
from conformance.runner.in_process import TIME_LIMIT, Runner
from conformance.sampling.draws import Rows, draw_cases, draw_from_seed, own_seed
from conformance.selftest.selftest import Planted, choose_planted, group_planted, questions_of_rule

CASES, ENOUGH = 60, 20
"""For each probe, or each row of a plan; and for faults that are sure to be caught."""
AT_FIRST = 2
"""Cases of each row of a plan; only rows that have shown a fault by then are drawn again for it."""
SEED = 20261125
SEEDS = 4
"""With which first cases are compared."""
SURE = 1e-9
"""A fault that a default run misses no more often is not asked any further."""
SHOWN = 15
"""Faults in the table: the likeliest to be missed."""


@dataclass
class Detection:
    """Of one fault. shown: for every probe, the cases that showed it, of so many. missed: by the effort's name, the
    chance that a run catches it by none of its rule's probes.
    """

    title: str
    shown: dict[str, tuple[int, int]] = field(default_factory=dict)
    missed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(EFFORTS, 1.0))

    @property
    def sure(self) -> bool:
        return self.missed["default"] <= SURE

    def add_probe(self, probe: Probe, shows: Sequence[bool], none: Callable[[int], float]) -> Detection:
        """Return that of one more probe.

        Args:
            shows: for each of its cases whether it shows the fault.
            none: the chance that none of so many cases shows it.
        """
        missed = {effort: chance * none(count_cases(probe, EFFORTS[effort])) for effort, chance in self.missed.items()}
        return Detection(self.title, self.shown | {probe.title: (sum(shows), len(shows))}, missed)


def chance_of_none(simplest: bool | None, fresh: Sequence[bool], cases: int) -> float:
    """That none of a run's cases shows it. One case alone is a fresh one; of several the first is the simplest, unless
    that is None, and all are fresh.

    The share is counted as if one more fresh case had not shown it, so that no number of cases proves certainty.
    """
    share = share_of(fresh)
    if cases == 1 or simplest is None:
        return (1 - share) ** cases
    return 0.0 if simplest else (1 - share) ** (cases - 1)


def share_of(fresh: Sequence[bool]) -> float:
    """Counted as if one more case had not shown it."""
    return sum(fresh) / (len(fresh) + 1)


def chance_of_none_in_rows(rows: Sequence[Sequence[bool]], turns: Sequence[int], cases: int) -> float:
    """That none of a run's cases shows it. So many rows take their turns first, then all do, again and again."""
    unseen, chance, start = [1 - share_of(shows) for shows in rows], 1.0, 0
    for count in turns:
        taken = min(max(cases - start, 0), count)
        chance *= mean_of_products(unseen[start : start + count], taken)
        start += count
    cycles, rest = divmod(max(cases - start, 0), max(len(rows), 1))
    return chance * prod(unseen) ** cycles * mean_of_products(unseen, rest)


def mean_of_products(factors: Sequence[float], count: int) -> float:
    """Over all sets of so many of them: their elementary symmetric polynomial, divided by the number of sets."""
    means = [1.0] + [0.0] * count
    for number, factor in enumerate(factors, 1):
        # A set of m out of `number` has the last of them in m / number of all cases.
        for m in range(min(number, count), 0, -1):
            means[m] = means[m] * (1 - m / number) + means[m - 1] * factor * (m / number)
    return means[count]


def detections_of(faults: Sequence[Planted], cases: int, seed: int) -> list[Detection]:
    """Of faults that are asked together."""
    first = faults[0]
    runners = {fault.title: Runner(fault.make(), TIME_LIMIT) for fault in faults}
    questions = questions_of_rule(first.rule, first.operation, runners[first.title].declaration)
    refusals = [question for question in questions if question.kind == "refusal"]
    refused = ask_questions(refusals, [*runners.values()], 1, seed)
    detections = {title: Detection(title) for title in runners}
    for title, found in detections.items():
        if refused.violations_of(first.rule, title):  # the same in every run
            found.missed = dict.fromkeys(EFFORTS, 0.0)
    for probe in probes_of(first.rule, first.operation, runners[first.title].declaration):
        asked = [(found, runners[title]) for title, found in detections.items() if not found.sure]
        detections |= {found.title: found for found in detect_by_probe(probe, asked, cases, seed)}
    return list(detections.values())


def detect_by_probe(probe: Probe, before: Sequence[tuple[Detection, Runner]], cases: int, seed: int) -> list[Detection]:
    """before: each fault and its runner."""
    if isinstance(probe.cases, Rows):
        return detect_by_plan(probe, probe.cases, before, cases, seed)
    shows: list[list[bool]] = [[] for _ in before]
    now = [detection for detection, _ in before]
    of_probe = seed_of(probe, seed)
    settled = starts_the_same(probe.cases, of_probe)
    for number, example in draw_cases(probe.cases, cases, of_probe):
        asked = [index for index, detection in enumerate(now) if number < ENOUGH or not detection.sure]
        if not asked:
            break
        shared = probe.check.prepare(example)
        for index in asked:
            detection, runner = before[index]
            shows[index].append(shows_violation(probe, runner, example, shared))
            simplest, fresh = (shows[index][0], shows[index][1:]) if settled else (None, shows[index])
            now[index] = detection.add_probe(probe, shows[index], partial(chance_of_none, simplest, fresh))
    return now


def detect_by_plan(
    probe: Probe, plan: Rows, before: Sequence[tuple[Detection, Runner]], cases: int, seed: int
) -> list[Detection]:
    """`detect_by_probe` for a plan. cases: of each row at most."""
    rows, of_probe = plan.all_strategies, seed_of(probe, seed)
    shows: list[list[list[bool]]] = [[[] for _ in rows] for _ in before]
    now = [detection for detection, _ in before]
    for turn, row in product(range(cases), range(len(rows))):
        asked = [
            index
            for index, detection in enumerate(now)
            if not detection.sure and (turn < AT_FIRST or any(shows[index][row]))
        ]
        drawn_now = draw_from_seed(rows[row], own_seed(of_probe, turn * len(rows) + row), False) if asked else []
        for example in drawn_now[-1:]:
            shared = probe.check.prepare(example)
            for index in asked:
                detection, runner = before[index]
                shows[index][row].append(shows_violation(probe, runner, example, shared))
                none = partial(chance_of_none_in_rows, shows[index], [*map(len, plan.turns)])
                now[index] = detection.add_probe(probe, [*chain.from_iterable(shows[index])], none)
    return now


def shows_violation(probe: Probe, runner: Runner, example: Any, shared: Any) -> bool:
    """Whether a case is a violation of the probe's own rule."""
    findings = runner(probe.check, example, shared)
    failure = Failure(probe.rule, probe.check, example, findings)
    return breaks(findings) and attribute(runner, failure).rule == probe.rule


def starts_the_same(strategy: SearchStrategy[Any], seed: int) -> bool:
    """Whether the first case is the same with every seed, of some."""
    firsts = (draw_from_seed(strategy, own_seed(seed, number))[:1] for number in range(SEEDS))
    return len({json.dumps(encode(tuple(first))) for first in firsts}) == 1


def measure(only: Collection[str] | None, cases: int, seed: int) -> Iterator[Detection]:
    """only: as in `selftest`."""
    faults = choose_planted(only)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what faults make of their numbers
        for group in group_planted(faults):
            yield from detections_of([faults[index] for index in group], cases, seed)


def detection_table(detections: Sequence[Detection]) -> Table:
    """The likeliest to be missed, and the sum over all: how many faults a run is expected to miss."""
    table = Table(title="Chance that a run with a fresh seed misses a planted fault", title_justify="left")
    table.add_column("fault")
    table.add_column("of so many cases, shown by")
    for effort in EFFORTS:
        table.add_column(effort, justify="right")
    for found in sorted(detections, key=lambda found: -found.missed["default"])[:SHOWN]:
        probes = ", ".join(f"{title} {count}/{of}" for title, (count, of) in found.shown.items() if count)
        table.add_row(found.title, probes, *(f"{found.missed[effort]:.1e}" for effort in EFFORTS))
    sums = [sum(found.missed[effort] for found in detections) for effort in EFFORTS]
    table.add_row(f"missed of {len(detections)}, expected", "", *(f"{total:.1e}" for total in sums), style="bold")
    return table
