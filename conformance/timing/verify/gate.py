"""The judge of a benchmark: no hand-made tolerance, the bounds and the oracle of `conformance`, at the real size.

Before and after the timing a subject computes fresh inputs at the case's real size, and some rows of what it gives are
judged (see `row_sampling`). Of every timed call some rows are kept the moment the clock stops, and judged later by row:
output, and gradients of queries. Gradients of keys, values and weights depend on all rows. They are judged for one
timed trial, the same for all subjects and drawn after the timing, as the sum over blocks of rows: each block's
gradients and their bounds are those of a small case. The errors of its terms add up over the blocks. The rounding of
the sum itself is bounded by gamma(n + c) of the absolute terms for all n rows, by gamma(block + c) for a block, with
the same small c for roundings besides; and gamma(n + c) / gamma(block + c) decreases with c. So the blocks' bounds,
each times gamma(n) / gamma(block), add up to a bound for the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import Precision
from conformance.cases import case as judged
from conformance.cases.expectations import Exact
from conformance.checks.comparison import compare, judge
from conformance.checks.findings import Finding
from conformance.oracle.reference import oracle
from conformance.reports.sentences import describe_finding
from conformance.timing import timed_case as timed
from conformance.timing.timed_case import Arrays, Case
from conformance.timing.verify.mixture_rows import evaluate_rows
from conformance.timing.verify.row_sampling import (
    BY_ROW,
    Place,
    Sample,
    as_answers,
    count_rows,
    declared_roundings,
    only_there,
    small_case,
)

BLOCK = 256
"""Rows that are judged together where all rows count."""
LARGEST = 2**24
"""Pairs of a key head up to which all rows are judged for its keys and values."""


class Verdict(NamedTuple):
    """The worst error in units of its bound, and what is wrong in a line; empty if nothing is."""

    worst: float
    wrong: str = ""


GOOD = Verdict(0.0)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, default=GOOD, key=lambda verdict: (bool(verdict.wrong), verdict.worst))


def verdict_of(findings: Iterable[Finding], where: str) -> Verdict:
    found = max(findings, key=lambda finding: finding.ratio)
    return Verdict(found.ratio, f"{where}: {describe_finding(found)}" if found.ratio > 1 else "")


def all_rows_judged(case: Case) -> bool:
    """Whether gradients of keys, values and weights are judged with all rows counted."""
    return case.backward and count_rows(case) * case.facts.row_size(case) <= LARGEST


Truth = tuple[judged.Case, dict[str, Exact], dict[str, np.ndarray]]
"""A small case, its exact results, and their bounds."""


@dataclass
class Call:
    """One call's inputs and truth, by the seeds that it was made from; what many subjects share is computed once."""

    case: Case
    seed: int
    words: tuple[int, ...]
    sparse: tuple[Place, ...] = ()
    known: dict[Any, Any] = field(default_factory=dict)  # truths by `key`, and sums

    @cached_property
    def arrays(self) -> Arrays:
        arrays = timed.inputs(self.case, self.seed, *self.words)
        return only_there(self.case, arrays, self.sparse) if self.sparse else arrays

    @cached_property
    def mask(self) -> Any:
        return timed.mask(self.case, self.seed, *self.words)

    def rows(self, place: Place, sample: Sample, conventions: dict[str, str], where: str) -> Verdict:
        """Of the results that were taken at the place."""
        learn_truths([(self, place, conventions)])
        small, truth, bounds = self.known[self.key(place, conventions)]
        answers = as_answers(self.case, sample)
        asked = {name: exact for name, exact in truth.items() if name in answers}
        return verdict_of(judge(small, answers, asked, bounds), where)

    def key(self, place: Place, conventions: dict[str, str]) -> tuple[Any, ...]:
        """What the truth about a place depends on: of conventions, what they change in this dtype."""
        return place, *declared_roundings(conventions, self.case.dtype).items()

    def sums(self, place: Place, conventions: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The gradients of the place's keys and values, or of the weights, over all rows, and their bounds."""
        total = count_rows(self.case)
        precision = Precision.make(self.case.dtype)
        values: dict[str, np.ndarray] = {}
        bounds: dict[str, np.ndarray] = {}
        for start in range(0, total, BLOCK):
            rows = tuple(range(start, min(start + BLOCK, total)))
            block = Place(place.batch, place.group, rows, len(rows))
            growth = precision.gamma(total) / precision.gamma(len(rows))
            small = small_case(self.case, self.arrays, self.mask, block, conventions)
            truth, errors = oracle(small), bound(small)
            for name in set(truth) - set(BY_ROW):
                values[name] = values.get(name, 0) + truth[name].high
                bounds[name] = bounds.get(name, 0) + growth * errors[name]
        return values, bounds

    def over_all_rows(self, place: Place, sample: Sample, conventions: dict[str, str], where: str) -> Verdict:
        """Of the gradients that depend on all rows, among what was taken."""
        key = ("sums", place.batch, place.group, *conventions.items())
        if key not in self.known:
            self.known[key] = self.sums(place, conventions)
        values, bounds = self.known[key]
        answers = as_answers(self.case, sample)
        findings = [
            compare(name, answers.get(name), Exact(value, np.zeros_like(value)), bounds[name], self.case.dtype)
            for name, value in values.items()
        ]
        return verdict_of(findings, where)


def learn_truths(asked: Iterable[tuple[Call, Place, dict[str, str]]]) -> None:
    """Compute what results at the places are judged by, under a subject's conventions, where it is not known yet."""
    groups: dict[Any, list[tuple[Call, Any, judged.Case]]] = {}
    for call, place, conventions in asked:
        key = call.key(place, conventions)
        if key not in call.known:
            small = small_case(call.case, call.arrays, call.mask, place, conventions)
            groups.setdefault(key[1:], []).append((call, key, small))
            if call.case.facts.own_weights:
                del call.arrays  # of which the small case has copies; there may be a call for every trial
    for group in groups.values():
        truths = find_truths(group[0][0].case, [small for _, _, small in group])
        for (call, key, _), truth in zip(group, truths, strict=True):
            call.known[key] = truth


def find_truths(case: Case, smalls: Sequence[judged.Case]) -> list[Truth]:
    """The small cases, each with its exact results and their bounds; rows of a mixture are computed together."""
    if not case.facts.own_weights:
        return [(small, oracle(small), bound(small)) for small in smalls]
    tokens = [small.inputs["x"] for small in smalls]
    weights, output = evaluate_rows(case, np.concatenate(tokens))
    errors = bound(replace(smalls[0], inputs={"x": np.concatenate(tokens)} | weights))["output"]
    ends = np.cumsum([len(rows) for rows in tokens])[:-1]
    smalls = [replace(small, inputs=small.inputs | weights) for small in smalls]
    exact = [{"output": Exact(value, np.zeros_like(value))} for value in np.split(output, ends)]
    return [*zip(smalls, exact, ({"output": error} for error in np.split(errors, ends)), strict=True)]
