"""Cross-entropy of logits and the classes that are their targets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.draws import CaseStrategy
from conformance.sampling.losses import MANY_CLASSES, SEVERAL, loss_cases
from conformance.sampling.plan.covering import ROWS, VOCABULARIES, Row
from conformance.sampling.plan.layers import Plan
from specification.dtypes import HALF

NAME, OF = "cross_entropy", "logits"
NARROW = ("float32", *HALF)
PLAN = Plan(
    values={"rows": ROWS, "classes": (1, 2, 3, *VOCABULARIES)},
    typical={"rows": (3, 130, 65537), "classes": (5, 1000, 65537)},
    ordinary=tuple({"rows": rows, "classes": classes} for rows, classes in ((9, 128256), (7, 151936), (4, 262144))),
)
"""Of every loss."""


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(loss_cases, NAME, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(("usual", "trained"), plans=(((row["rows"],), row["classes"]),))

    def agree(name: str, cases: CaseStrategy, weight: float = 1.0, level: str = CORE) -> Probe:
        return agreement("LOSS-1", name, NAME, cases, weight, level)

    return [
        agree("cross-entropy", cases(), 2.0),
        agree("targets that do not count", cases(ignored=(-100, 0, "class", "past"))),
        agree("label smoothing", cases(smoothings=(0.1, 0.3, 0.9))),
        agree("16-bit logits", cases(dtypes=HALF), 0.5),
        agree("saturated logits", cases(("saturated",))),
        agree("logits far from 0", cases(("far",))),
        agree("cross-entropy where no target counts", cases(ignored=(-100, 0), none_counts=True), 0.5, ROBUST),
        agree("logits of -inf", cases(spoiled="classes"), 0.75),
        agree("NaN and infinity in rows that do not count", uncounted_rows(NAME, declaration), 0.75),
        agree("NaN and infinity in logits", cases(spoiled="anywhere"), 0.5),
        agree("cross-entropy of many classes", cases(("usual",), plans=MANY_CLASSES, dtypes=NARROW), 0.3),
        agree("cross-entropy, sizes", rows_of_layers(PLAN, row_cases, declaration, large=2)),
    ]


def uncounted_rows(operation: str, declaration: Declaration) -> st.SearchStrategy[Case]:
    """Rows that do not count, with NaN and infinity in them."""
    return loss_cases(operation, ignored=(-1, 0), spoiled="that do not count", plans=SEVERAL, declaration=declaration)


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    yield from refused_targets("LOSS-1", NAME, OF, declaration, array)
    if "label_smoothing" not in declaration.lacking:
        inputs = {OF: array(2, 3), "targets": np.array([0, 2])}
        for smoothing in (1.0, -0.1):
            title = f"a label smoothing of {smoothing}"
            yield array.refusal("LOSS-1", title, ValueError, NAME, inputs, label_smoothing=smoothing)


def refused_targets(rule: str, name: str, of: str, declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    """Of every loss."""

    def make_refusal(title: str, error: Kind, targets: Any, **options: Any) -> Refusal:
        return array.refusal(rule, title, error, name, {of: array(2, 3), "targets": np.asarray(targets)}, **options)

    yield make_refusal("a target past the classes", ValueError, [0, 3])
    yield make_refusal("a negative target", ValueError, [0, -1])
    yield make_refusal("-100 as a target that counts", ValueError, [-100, 1])
    yield make_refusal("targets that are no integers", TypeError, array(2))
    yield make_refusal("one target for two rows", ValueError, [1])
    yield make_refusal("an unknown reduction", ValueError, [0, 2], reduction="batchmean")


OPERATION = JudgedOperation(NAME, probes, refusals)
