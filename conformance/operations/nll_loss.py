"""Negative log-likelihood: the log-probabilities of the classes that are targets, with their sign turned."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.cross_entropy import NARROW, PLAN, refused_targets, uncounted_rows
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.draws import CaseStrategy
from conformance.sampling.losses import MANY_CLASSES, loss_cases
from conformance.sampling.plan.covering import Row

NAME, OF = "nll_loss", "log_probabilities"


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(loss_cases, NAME, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(("usual", "trained"), plans=(((row["rows"],), row["classes"]),))

    def agree(name: str, cases: CaseStrategy, weight: float = 1.0, level: str = CORE) -> Probe:
        return agreement("LOSS-2", name, NAME, cases, weight, level)

    return [
        agree("nll", cases(), 2.0),
        agree("log-probabilities of targets that do not count", cases(ignored=(-100, 0, "class", "past"))),
        agree("nll where no target counts", cases(ignored=(-100, 0), none_counts=True), 0.5, ROBUST),
        agree("NaN and infinity in log-probabilities that do not count", uncounted_rows(NAME, declaration), 0.75),
        agree("NaN and infinity beside the targets", cases(spoiled="beside"), 0.5),
        agree("NaN and infinity in log-probabilities", cases(spoiled="anywhere"), 0.5),
        agree("nll of many classes", cases(("usual",), plans=MANY_CLASSES, dtypes=NARROW), 0.3),
        agree("nll, sizes", rows_of_layers(PLAN, row_cases, declaration, large=2)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    return refused_targets("LOSS-2", NAME, OF, declaration, array)


OPERATION = JudgedOperation(NAME, probes, refusals)
