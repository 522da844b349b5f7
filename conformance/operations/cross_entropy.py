"""Cross-entropy of logits and the classes that are their targets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import losses
from conformance.bounds.arithmetic import Precision
from conformance.bounds.operations import finished
from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Rows, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import losses as mistakes
from conformance.operations.common import rows_of_layers
from conformance.sampling.draws import CaseStrategy
from conformance.sampling.losses import MANY_CLASSES, SEVERAL, loss_cases
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import ROWS, VOCABULARIES
from specification.dtypes import HALF

NAME, OF = "cross_entropy", "logits"
NARROW = ("float32", *HALF)
PLAN = Plan(
    values={"rows": ROWS, "classes": (1, 2, 3, *VOCABULARIES)},
    typical={"rows": (3, 130, 65537), "classes": (5, 1000, 65537)},
)
"""Of every loss."""


def work(passes: int, gradients: bool, *, rows: int, classes: int) -> int:
    return rows * classes * (120 if gradients else 50)


def shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["targets"].shape if case.options.get("reduction") == "none" else ()


def dimensions(case: Case) -> dict[str, int]:
    rows = case.inputs.get("logits", case.inputs.get("log_probabilities"))
    return {"rows": case.inputs["targets"].size, "classes": 0 if rows is None else rows.shape[-1]}


def axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["targets"], 0)
    whole = (*rows, ("classes",))
    arrays = {"targets": rows, OF: whole, "log_probabilities": whole}
    arrays["-> output"] = rows if case.options.get("reduction") == "none" else ()
    return sizes | {"classes": dimensions(case)["classes"]}, arrays, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(loss_cases, NAME, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
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
        agree("NaN and infinity in rows that do not count", uncounted(NAME, declaration), 0.75),
        agree("NaN and infinity in logits", cases(spoiled="anywhere"), 0.5),
        agree("cross-entropy of many classes", cases(("usual",), plans=MANY_CLASSES, dtypes=NARROW), 0.3),
        agree("cross-entropy, sizes", rows_of_layers(PLAN, at_size, declaration)),
    ]


def uncounted(operation: str, declaration: Declaration) -> st.SearchStrategy[Case]:
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

    def refused(title: str, error: Kind, targets: Any, **options: Any) -> Refusal:
        return array.refusal(rule, title, error, name, {of: array(2, 3), "targets": np.asarray(targets)}, **options)

    yield refused("a target past the classes", ValueError, [0, 3])
    yield refused("a negative target", ValueError, [0, -1])
    yield refused("-100 as a target that counts", ValueError, [-100, 1])
    yield refused("targets that are no integers", TypeError, array(2))
    yield refused("one target for two rows", ValueError, [1])
    yield refused("an unknown reduction", ValueError, [0, 2], reduction="batchmean")


def relaxed(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow a log-sum-exp kept as one number."""
    p = Precision.of(case.dtype)
    with np.errstate(all="ignore"):
        found = losses.cross_entropy(case, p, kept=True)
        return {name: finished(name, approx, case, p) for name, approx in found.items()}


OPERATION = Operation(
    name=NAME,
    rules={"": "LOSS-1"},
    arguments=(OF, "targets"),
    differentiated=(OF,),
    rows=Rows(OF, lambda case: 1),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=losses.cross_entropy,
    relaxed=relaxed,
    work=work,
    cases=partial(loss_cases, NAME),
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    measured=mistakes.measured,
    mistakes=mistakes.CROSS_ENTROPY,
)
