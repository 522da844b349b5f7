"""Losses of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling.draws import CaseStrategy, Rows
from conformance.sampling.losses import MANY_CLASSES, SEVERAL, loss_cases
from conformance.sampling.plan.covering import ROWS, VOCABULARIES, Row
from conformance.sampling.plan.layers import Plan, rows_of_layers
from specification.dtypes import HALF

# --- cross_entropy ----------------------------------------------------------------------------------------------------

NARROW = ("float32", *HALF)
PLAN = Plan(
    values={"rows": ROWS, "classes": (1, 2, 3, *VOCABULARIES)},
    typical={"rows": (3, 130, 65537), "classes": (5, 1000, 65537)},
    ordinary=tuple({"rows": rows, "classes": classes} for rows, classes in ((9, 128256), (7, 151936), (4, 262144))),
)
"""Of every loss."""
UNCOUNTED: dict[str, Any] = {"ignored": (-1, 0), "spoiled": "that do not count", "plans": SEVERAL}
"""What draws rows that do not count, with NaN and infinity in them."""


def loss_rows(cases: Callable[..., CaseStrategy], declaration: Declaration) -> Rows:
    def row_cases(row: Row) -> CaseStrategy:
        return cases(("usual", "trained"), plans=(((row["rows"],), row["classes"]),))

    return rows_of_layers(PLAN, row_cases, declaration, large=2)


def cross_entropy_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "cross_entropy", "LOSS-1")
    cases = partial(loss_cases, "cross_entropy", declaration=declaration)
    return [
        probe("cross-entropy", cases(), 2.0),
        probe("targets that do not count", cases(ignored=(-100, 0, "class", "past"))),
        probe("label smoothing", cases(smoothings=(0.1, 0.3, 0.9))),
        probe("16-bit logits", cases(dtypes=HALF), 0.5),
        probe("saturated logits", cases(("saturated",))),
        probe("logits far from 0", cases(("far",))),
        probe("cross-entropy where no target counts", cases(ignored=(-100, 0), none_counts=True), 0.5, ROBUST),
        probe("logits of -inf", cases(spoiled="classes"), 0.75),
        probe("NaN and infinity in rows that do not count", cases(**UNCOUNTED), 0.75),
        probe("NaN and infinity in logits", cases(spoiled="anywhere"), 0.5),
        probe("cross-entropy of many classes", cases(("usual",), plans=MANY_CLASSES, dtypes=NARROW), 0.3),
        probe("cross-entropy, sizes", loss_rows(cases, declaration)),
    ]


def cross_entropy_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    yield from refuse_targets("cross_entropy", "LOSS-1", array)
    if "label_smoothing" not in declaration.lacking:
        inputs = {"logits": array(2, 3), "targets": np.array([0, 2])}
        for smoothing in (1.0, -0.1):
            title = f"a label smoothing of {smoothing}"
            yield array.refusal("cross_entropy", "LOSS-1", title, ValueError, inputs, label_smoothing=smoothing)


def refuse_targets(name: str, rule: str, array: Numbers) -> Iterator[Refusal]:
    """Of every loss."""
    (scores,) = operation_facts(name).differentiated

    def make_refusal(title: str, error: Kind, targets: Any, **options: Any) -> Refusal:
        return array.refusal(name, rule, title, error, {scores: array(2, 3), "targets": np.asarray(targets)}, **options)

    yield make_refusal("a target past the classes", ValueError, [0, 3])
    yield make_refusal("a negative target", ValueError, [0, -1])
    yield make_refusal("-100 as a target that counts", ValueError, [-100, 1])
    yield make_refusal("targets that are no integers", TypeError, array(2))
    yield make_refusal("one target for two rows", ValueError, [1])
    yield make_refusal("an unknown reduction", ValueError, [0, 2], reduction="batchmean")


CROSS_ENTROPY = JudgedOperation("cross_entropy", cross_entropy_probes, cross_entropy_refusals)


# --- nll_loss ---------------------------------------------------------------------------------------------------------


def nll_loss_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "nll_loss", "LOSS-2")
    cases = partial(loss_cases, "nll_loss", declaration=declaration)
    return [
        probe("nll", cases(), 2.0),
        probe("log-probabilities of targets that do not count", cases(ignored=(-100, 0, "class", "past"))),
        probe("nll where no target counts", cases(ignored=(-100, 0), none_counts=True), 0.5, ROBUST),
        probe("NaN and infinity in log-probabilities that do not count", cases(**UNCOUNTED), 0.75),
        probe("NaN and infinity beside the targets", cases(spoiled="beside"), 0.5),
        probe("NaN and infinity in log-probabilities", cases(spoiled="anywhere"), 0.5),
        probe("nll of many classes", cases(("usual",), plans=MANY_CLASSES, dtypes=NARROW), 0.3),
        probe("nll, sizes", loss_rows(cases, declaration)),
    ]


def nll_loss_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    return refuse_targets("nll_loss", "LOSS-2", array)


NLL_LOSS = JudgedOperation("nll_loss", nll_loss_probes, nll_loss_refusals)
