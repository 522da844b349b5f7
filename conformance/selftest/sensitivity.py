"""What the bounds catch: attention that is slightly wrong in float32, and how many cases notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from conformance.bounds import bound
from conformance.cases.features import supports_case
from conformance.checks.comparison import judge
from conformance.judge.options import EFFORTS
from conformance.judge.trial import try_probe
from conformance.operations.probes import probes_of
from conformance.oracle.reference import oracle
from conformance.runner.in_process import Runner
from conformance.sampling.draws import draw_cases
from conformance.sampling.strategies import attention_cases
from conformance.selftest.selftest import Planted, everything_planted

TITLES = (
    "ATT-1 scores.scale-rounded (dtype=float16)",
    "ATT-9 precision.factors-rounded (dtype=tf32, of=query and key, how=rounded)",
    "ATT-9 precision.weights-rounded (dtype=bfloat16, when=after the division)",
    "ATT-5 softmax.exponentials-of-few-digits (bits=12)",
)
"""Planted mistakes that are a matter of digits only."""


@dataclass(frozen=True)
class Sensitivity:
    """share: of the float32 cases drawn that have a result beyond its bound. median: of the cases' largest ratios.

    runs: how many default runs of the fault's own rule catch it, of so many.
    """

    title: str
    share: float
    median: float
    runs: int
    of: int


def slightly_wrong() -> list[Planted]:
    """The faults, in the order of `TITLES`."""
    by_title = {planted.title: planted for planted in everything_planted()}
    return [by_title[title] for title in TITLES]


def sensitivity(fault: Planted, count: int, runs: int, seed: int) -> Sensitivity:
    subject = fault.make()
    cases = attention_cases(dtypes=("float32",), gradients=False, declaration=subject.declaration)
    drawn = [case for _, case in draw_cases(cases, count, seed) if supports_case(case, subject.declaration)]
    findings = [judge(case, subject(case), oracle(case), bound(case)) for case in drawn]
    ratios = [max(finding.ratio for finding in of_case) for of_case in findings]
    probes = probes_of(fault.rule, fault.operation, subject.declaration)
    hits = 0
    for run in range(runs):  # a default run of its rule, by a subject of its own
        runner = Runner(fault.make())
        hits += any(try_probe(probe, [runner], EFFORTS["default"], seed + run).violations for probe in probes)
    return Sensitivity(fault.title, float(np.mean(np.array(ratios) > 1)), float(np.median(ratios)), hits, runs)


def measure(count: int = 200, runs: int = 10, seed: int = 0) -> list[Sensitivity]:
    """Every fault's, from so many cases and default runs."""
    return [sensitivity(fault, count, runs, seed) for fault in slightly_wrong()]


def sensitivity_table(rows: Sequence[Sensitivity]) -> Table:
    table = Table(title="Slightly wrong attention in float32: error ratios", title_justify="left")
    table.add_column("rule and fault")
    for name in ("cases that catch it", "median ratio", "default runs of its rule that catch it"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.title, f"{row.share:.0%}", f"{row.median:.3g}", f"{row.runs} of {row.of}")
    return table
