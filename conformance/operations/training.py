"""Losses of classes, steps of optimizers, and gradients clipped by their norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling.draws import Rows
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import rows_of_layers
from conformance.sampling.training import (
    FAR_BELOW,
    LATE,
    LIST_SHAPES,
    MANY_CLASSES,
    SEVERAL,
    adam_cases,
    clip_cases,
    loss_cases,
    sgd_cases,
)
from specification.dtypes import HALF, compute_dtype_name

# --- cross_entropy ----------------------------------------------------------------------------------------------------

NARROW = ("float32", *HALF)
UNCOUNTED: dict[str, Any] = {"ignored": (-1, 0), "spoiled": "that do not count", "plans": SEVERAL}
"""What draws rows that do not count, with NaN and infinity in them."""


def loss_rows(cases: Callable[..., st.SearchStrategy[Case]], declaration: Declaration) -> Rows:
    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(("usual", "trained"), plans=(((row["rows"],), row["classes"]),))

    return rows_of_layers("cross_entropy", row_cases, declaration, large=2)


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

    def make_refusal(title: str, error: Kind, targets: np.ndarray | Sequence[int], **options: object) -> Refusal:
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


# --- adam_step --------------------------------------------------------------------------------------------------------


def adam_step_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "adam_step", "OPT-1")
    cases = partial(adam_cases, declaration=declaration)
    decay = {"weight_decay": (0.3, 0.1)}
    return [
        probe("adam", cases(), weight=2.0),
        probe("first steps", cases(("usual", "small"), (0, 1)), weight=1.5),
        probe("late steps", cases(("usual",), LATE)),
        probe("gradients as small as eps", cases(("small",), options={"eps": (1e-8, 1e-7)})),
        probe("weight decay", cases(("usual", "small"), options=decay), weight=1.5),
        probe("zero gradients", cases(("zeros",))),
        probe("huge and vanishing squares", cases(("large", "vanishing")), level=ROBUST),
        probe("NaN and infinity in gradients of adam_step", cases(("usual",), special=True), 0.8, ROBUST),
        probe(
            "sizes", rows_of_layers("adam_step", lambda row: cases(("usual",), plans=((row["rows"],),)), declaration)
        ),
    ]


def adam_step_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    wide = compute_dtype_name(array.dtype)

    def make_refusal(title: str, error: Kind, changes: dict[str, Any], **options: object) -> Refusal:
        inputs = {"parameters": array(2, 3), "gradients": array(2, 3)} | dict.fromkeys(
            ("mean", "square"), np.abs(array(2, 3, dtype=wide))
        )
        given = {"step": 3, "learning_rate": 0.1} | options
        return array.refusal("adam_step", "OPT-1", title, error, inputs | changes, **given)

    yield make_refusal("gradients of another shape", ValueError, {"gradients": array(3, 2)})
    yield make_refusal("a mean of another shape", ValueError, {"mean": array(3, dtype=wide)})
    yield make_refusal("parameters of integers", TypeError, {"parameters": np.ones((2, 3), int)})
    yield make_refusal("a negative learning rate", ValueError, {}, learning_rate=-0.1)
    yield make_refusal("beta_2 of 1", ValueError, {}, beta_2=1.0)
    yield make_refusal("eps 0", ValueError, {}, eps=0.0)
    yield make_refusal("a negative step", ValueError, {}, step=-1)


ADAM_STEP = JudgedOperation("adam_step", adam_step_probes, adam_step_refusals)


# --- sgd_step ---------------------------------------------------------------------------------------------------------


def sgd_step_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "sgd_step", "OPT-2")
    cases = partial(sgd_cases, declaration=declaration)
    momentum = {"momentum": (0.9, 0.5)}
    return [
        probe("sgd", cases(), weight=1.5),
        probe("momentum", cases(("usual",), options=momentum | {"nesterov": (False,)})),
        probe("nesterov", cases(("usual",), options=momentum | {"nesterov": (True,)})),
        probe("the first step", cases(("zeros",), options=momentum)),
        probe("weight decay", cases(("usual",), options={"weight_decay": (0.3, 0.1)})),
        probe("NaN and infinity in gradients of sgd_step", cases(("usual",), special=True), 0.5, ROBUST),
        probe("sizes", rows_of_layers("sgd_step", lambda row: cases(("usual",), plans=((row["rows"],),)), declaration)),
    ]


def sgd_step_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    wide = compute_dtype_name(array.dtype)

    def make_refusal(title: str, error: Kind, changes: dict[str, Any], **options: object) -> Refusal:
        inputs = {"parameters": array(2, 3), "gradients": array(2, 3), "velocity": array(2, 3, dtype=wide)}
        given = {"learning_rate": 0.1} | options
        return array.refusal("sgd_step", "OPT-2", title, error, inputs | changes, **given)

    yield make_refusal("gradients of another shape", ValueError, {"gradients": array(3, 2)})
    yield make_refusal("parameters of integers", TypeError, {"parameters": np.ones((2, 3), int)})
    yield make_refusal("a momentum of 1", ValueError, {}, momentum=1.0)
    yield make_refusal("nesterov without momentum", ValueError, {}, nesterov=True)


SGD_STEP = JudgedOperation("sgd_step", sgd_step_probes, sgd_step_refusals)


# --- clip_by_global_norm ----------------------------------------------------------------------------------------------


def clip_by_global_norm_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "clip_by_global_norm", "OPT-3")
    cases = partial(clip_cases, declaration=declaration)
    usual = ("usual", "small", "uneven")
    return [
        probe("clip", cases(usual), weight=1.5),
        probe("norms below the limit", cases(usual, (1.1, 2.0, 10.0))),
        probe("no limit", cases(usual, (np.inf,)), weight=0.5, level=ROBUST),
        probe("small norms", cases(("small",), (0.1, 0.5), dtypes=("float32", "float64"))),
        probe("several arrays", cases(("uneven",), (0.1, 0.5, 0.9), plans=LIST_SHAPES[:3])),
        probe("no gradient", cases(("zeros",)), weight=0.5),
        probe("huge and tiny gradients", cases(("huge", "tiny")), level=ROBUST),
        probe("limits far below the norm", cases(("huge",), FAR_BELOW, dtypes=("float32",)), 0.5, ROBUST),
        probe("NaN and infinity in gradients to clip", cases(usual, special=True), 0.5, ROBUST),
        probe(
            "sizes",
            rows_of_layers(
                "clip_by_global_norm",
                lambda row: cases(("usual",), (0.1, 0.5), plans=(((row["rows"],), (3, 2)),)),
                declaration,
            ),
        ),
    ]


def clip_by_global_norm_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: type[Exception], inputs: dict[str, Any], limit: float = 1.0) -> Refusal:
        return array.refusal("clip_by_global_norm", "OPT-3", title, error, inputs, limit=limit)

    gradients = {"gradients[0]": array(2, 3), "gradients[1]": array(5)}
    yield make_refusal("a limit of 0", ValueError, gradients, 0.0)
    yield make_refusal("gradients of integers", TypeError, gradients | {"gradients[1]": np.array([1, 2])})
    yield make_refusal("no gradients", ValueError, {})


CLIP_BY_GLOBAL_NORM = JudgedOperation("clip_by_global_norm", clip_by_global_norm_probes, clip_by_global_norm_refusals)
