"""Names of known mistakes of losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance.diagnosis.losses import CHANGES, OF_LOG_PROBABILITIES, OF_LOGITS, loss_of, output_of
from conformance.diagnosis.matches import answered, hints, known
from conformance.diagnosis.matching import BACKWARD_ONLY, Failing
from conformance.diagnosis.naming import explaining
from conformance.diagnosis.precision import AT_MOST
from conformance.selftest.faults.losses import FAULTS

import reference_numpy
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.diagnosis import matching
from conformance.oracle.reference import oracle
from conformance.sampling.strategies import numpy_dtype

NUMBERS = np.random.default_rng(0)
BY_NAME = {fault.title: fault for fault in FAULTS}


def loss_case(operation: str = "cross_entropy", scale: float = 1.0, classes: int = 5, **options: Any) -> Case:
    """Two sequences of three rows. In the first one target does not count."""
    rows = (NUMBERS.normal(size=(2, 3, classes)) * scale).astype(np.float32)
    rows = rows if operation == "cross_entropy" else rows - np.float32(3)
    name = "logits" if operation == "cross_entropy" else "log_probabilities"
    targets = np.array([[1, 7, 3], [0, 2, classes - 1]])
    bar = NUMBERS.normal(size=(2, 3) if options.get("reduction") == "none" else ()).astype(np.float32)
    return Case(operation, "float32", {name: rows, "targets": targets}, {"ignore": 7} | options, {"output": bar})


def names_of(title: str, case: Case) -> list[str]:
    failing = answered(BY_NAME[title].target().make(), case)
    assert failing is not None
    return list(known(failing, failing.wrong[0], np.inf))


NOTHING = replace(loss_case(), options={"ignore": 1}, inputs=loss_case().inputs | {"targets": np.ones((2, 3), int)})
MANY = loss_case(classes=1030)
MANY.inputs["logits"][..., -1] = 8


@pytest.mark.parametrize(
    ("title", "name", "case"),
    [
        ("LOSS-1 mean over all rows", "the mean is taken over all rows, not over the targets that count", loss_case()),
        ("LOSS-1 mean of every sequence's mean", "the mean of every sequence is taken first, and then of these",
         loss_case()),
        ("LOSS-1 sum for the mean", "the losses are added up, and not divided by their number", loss_case()),
        ("LOSS-1 what does not count taken for class 0", "targets that do not count are taken for class 0",
         loss_case()),
        ("LOSS-1 NaN where no target counts", "where no target counts, the mean is 0 / 0", NOTHING),
        ("LOSS-1 no maximum subtracted",
         "exponentials overflow, since the maximum of the row is not subtracted", loss_case(scale=200)),
        ("LOSS-1 logarithm of the softmax", "the logarithm is taken of a softmax that is 0", loss_case(scale=200)),
        ("LOSS-1 probabilities of 1e-7 at least", "probabilities are 1e-07 at least", loss_case(scale=20)),
        ("LOSS-1 smoothing over the other classes", "the smoothing is spread over the V - 1 other classes",
         loss_case(label_smoothing=0.2)),
        ("LOSS-1 smoothing added", "the smoothing is added to the target, and not taken from it",
         loss_case(label_smoothing=0.2)),
        ("LOSS-1 classes past whole blocks left out",
         "classes past the last whole block take no part in the log-sum-exp (blocks of 256 classes)", MANY),
        ("LOSS-1 gradient not divided by the count",
         f"{BACKWARD_ONLY}the losses are added up, and not divided by their number", loss_case()),
        ("LOSS-1 gradient divided by all rows",
         "the gradient is divided by the number of all rows, not of targets that count", loss_case()),
        ("LOSS-1 gradient without smoothing", f"{BACKWARD_ONLY}the smoothing is left out",
         loss_case(label_smoothing=0.2)),
        ("LOSS-2 sign not turned", "the sign is not turned", loss_case("nll_loss")),
        ("LOSS-2 mean over all rows", "the mean is taken over all rows, not over the targets that count",
         loss_case("nll_loss")),
        ("LOSS-2 log-probabilities normalised again", "log-probabilities are normalised again", loss_case("nll_loss")),
        ("LOSS-2 gradient of the softmax too", f"{BACKWARD_ONLY}log-probabilities are normalised again",
         loss_case("nll_loss", reduction="none")),
    ],
)  # fmt: skip
def test_planted_faults_have_names(title: str, name: str, case: Case) -> None:
    assert name in names_of(title, case)


@pytest.mark.parametrize("name", CHANGES | OF_LOGITS | OF_LOG_PROBABILITIES)
def test_every_mistake_differs_from_what_is_right(name: str) -> None:
    """On one of a few cases, and gives what is right on none by accident of its own formula."""
    every = CHANGES | OF_LOGITS | OF_LOG_PROBABILITIES
    operation = "nll_loss" if name in OF_LOG_PROBABILITIES else "cross_entropy"
    cases = [loss_case(operation), loss_case(operation, reduction="sum"), loss_case(operation, classes=65600)]
    cases += [loss_case(label_smoothing=0.3)] if operation == "cross_entropy" else []
    cases.append(replace(cases[0], options={}, inputs=cases[0].inputs | {"targets": np.array([[1, 0, 3], [0, 2, 1]])}))
    cases.append(replace(cases[0], options={"ignore": 2}, inputs=cases[-1].inputs))
    cases.append(replace(cases[0], inputs=cases[0].inputs | {"targets": np.array([[1, 7, 3], [1, 2, 1]])}))
    seen = []
    for case in cases:
        right, change = loss_of(case), every[name](loss_of(case), case)
        np.testing.assert_allclose(output_of(right, case), oracle(case)["output"].high, rtol=1e-12)
        seen.append(change is not None and not np.allclose(output_of(change, case), output_of(right, case)))
    assert any(seen)


def with_one_number(logits: Any, targets: Any) -> Any:
    maximum = logits.max(-1)
    logsumexp = maximum + np.log(np.exp(logits - maximum[..., None]).sum(-1))
    losses = logsumexp - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return losses.astype(logits.dtype)


def in_its_dtype(logits: Any, targets: Any) -> Any:
    shifted = logits - logits.max(-1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return losses.astype(logits.dtype)


@pytest.mark.parametrize(
    ("function", "dtype", "far", "hint"),
    [
        (with_one_number, "float32", 2.0**16, f"{AT_MOST} a log-sum-exp kept as one number would make them"),
        (in_its_dtype, "float16", 0.0, f"{AT_MOST} float16 arithmetic would make them"),
    ],
)
def test_lost_digits_have_a_hint(function: Callable[..., Any], dtype: str, far: float, hint: str) -> None:
    rows = (np.round(NUMBERS.normal(size=(40, 40)) * 32) / 32 + far).astype(dtype)
    case = Case("cross_entropy", dtype, {"logits": rows, "targets": np.arange(40)}, {"reduction": "none"})
    got = {"output": function(**case.inputs)}
    failing = Failing(case, got, oracle(case), bound(case))
    assert failing.wrong == ["output"]
    assert list(known(failing, "output", np.inf)) == []
    assert hint in list(hints(BY_NAME["LOSS-1 mean over all rows"].target().make(), failing, "output"))


def test_a_mistake_seen_backwards_only_in_one_of_two_cases_is_named_so() -> None:
    """The larger case may be one in which the mistake would not show in the output."""
    name = "the smoothing is left out"
    for names, before in (([name], [f"{BACKWARD_ONLY}{name}"]), ([f"{BACKWARD_ONLY}{name}"], [name])):
        assert explaining(tuple(names), tuple(before)) == (f"{BACKWARD_ONLY}{name}",)


def test_what_is_right_has_no_name() -> None:
    case = loss_case(label_smoothing=0.1)
    got = {"output": reference_numpy.cross_entropy(**case.inputs, **case.options)}
    failing = Failing(replace(case, cotangents={}), got, oracle(replace(case, cotangents={})), {"output": np.zeros(())})
    assert list(known(failing, "output", np.inf)) == []


@pytest.mark.parametrize("nearest", ["right", "mistake"])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_mistake_is_nearer_to_the_answer_than_what_is_right(
    monkeypatch: pytest.MonkeyPatch, nearest: str, guarded: bool
) -> None:
    """In bfloat16 the right loss and the mean of means are two steps apart. The answer between them is no mistake's."""
    rng = np.random.default_rng(10)
    logits = (2 * rng.normal(size=(2, 3, 4))).astype(numpy_dtype("bfloat16"))
    given = {"logits": logits, "targets": np.array([[1, 7, 3], [0, 2, 1]])}
    case = Case("cross_entropy", "bfloat16", given, {"ignore": 7})
    name = "the mean of every sequence is taken first, and then of these"
    wrong, right = mean_of_means(case), oracle(case)["output"].high
    np.testing.assert_allclose([right, wrong], [2.3797759, 2.4104452], rtol=1e-7)
    got = np.asarray(2.390625 if nearest == "right" else wrong).astype(logits.dtype)
    if not guarded:
        monkeypatch.setattr(matching, "nearer", lambda *given: True)
    failing = Failing(case, {"output": got}, oracle(case), bound(case))
    assert failing.wrong == ["output"]
    assert (name in known(failing, "output", np.inf)) is (nearest == "mistake" or not guarded)


def mean_of_means(case: Case) -> Any:
    """By hand, in float64."""
    x, targets = case.inputs["logits"].astype(float), case.inputs["targets"]
    losses = [
        [np.log(np.sum(np.exp(row))) - row[target] for row, target in zip(rows, ids, strict=True) if target != 7]
        for rows, ids in zip(x, targets, strict=True)
    ]
    return np.mean([np.mean(one) for one in losses])
