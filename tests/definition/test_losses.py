"""Losses: single values that one can check by hand, and what happens at the edges (LOSS-1, LOSS-2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.helpers import Case, Implementation, bound

OF = {"cross_entropy": "logits", "nll_loss": "log_probabilities"}
RULED = [
    pytest.param("cross_entropy", marks=pytest.mark.rule("LOSS-1")),
    pytest.param("nll_loss", marks=pytest.mark.rule("LOSS-2")),
]
REDUCTIONS = ("mean", "sum", "none")
NAN, INF = math.nan, math.inf


def loss_case(operation: str, rows: Any, targets: Any, dtype: str = "float32", **options: Any) -> Case:
    """With cotangents of 1."""
    inputs = {OF[operation]: np.array(rows, dtype), "targets": np.array(targets)}
    shape = inputs["targets"].shape if options.get("reduction") == "none" else ()
    return Case(operation, dtype, inputs, options, {"output": np.ones(shape, dtype)}, special=True)


def answers(implementation: Implementation, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The loss and its gradient."""
    found = implementation.subject(case)
    return found["output"], found[f"gradient of {OF[case.operation]}"]


def within(case: Case, got: tuple[np.ndarray, np.ndarray], loss: Any, gradient: Any) -> bool:
    bounds = bound(case)
    pairs = zip(got, (loss, gradient), ("output", f"gradient of {OF[case.operation]}"), strict=True)
    return all((np.abs(one.astype(float) - other) <= bounds[name]).all() for one, other, name in pairs)


# Softmax of log(1), log(2), log(5) is 1/8, 2/8, 5/8.
ROW = [0.0, math.log(2), math.log(5)]
PROBABILITIES = np.array([1, 2, 5]) / 8


@pytest.mark.rule("LOSS-1")
def test_cross_entropy_of_a_row_by_hand(implementation: Implementation) -> None:
    case = loss_case("cross_entropy", [ROW], [1], "float64")
    assert within(case, answers(implementation, case), math.log(4), [PROBABILITIES - [0, 1, 0]])


@pytest.mark.rule("LOSS-1")
def test_label_smoothing_by_hand(implementation: Implementation) -> None:
    """The target keeps 1 - s and its own part of s; s of 0.3 over 3 classes is 0.1 for each."""
    case = loss_case("cross_entropy", [ROW], [1], "float64", label_smoothing=0.3)
    loss = 0.1 * math.log(8) + 0.8 * math.log(4) + 0.1 * math.log(8 / 5)
    assert within(case, answers(implementation, case), loss, [PROBABILITIES - [0.1, 0.8, 0.1]])


@pytest.mark.rule("LOSS-2")
def test_nll_by_hand(implementation: Implementation) -> None:
    case = loss_case("nll_loss", [[-1, -2], [-4, -8], [-16, -32]], [1, -1, 0], ignore=-1)
    assert within(case, answers(implementation, case), 9.0, [[0, -0.5], [0, 0], [-0.5, 0]])


@pytest.mark.parametrize("operation", RULED)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_mean_is_over_the_targets_that_count(implementation: Implementation, operation: str, reduction: str) -> None:
    """The second of three rows does not count."""
    case = loss_case(operation, [[1, 0], [3, 0], [0, 2]], [0, 7, 0], ignore=7, reduction=reduction)
    entropy = operation == "cross_entropy"
    first, last = (math.log1p(math.exp(-1)), math.log1p(math.exp(2))) if entropy else (-1.0, 0.0)
    loss = {"mean": (first + last) / 2, "sum": first + last, "none": np.array([first, 0, last])}[reduction]
    got, _ = answers(implementation, case)
    assert np.all(np.abs(got - loss) <= bound(case)["output"])


@pytest.mark.parametrize("operation", RULED)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(2, 3), (0,), (2, 0)])
def test_where_no_target_counts_all_is_0(
    implementation: Implementation, operation: str, reduction: str, shape: tuple[int, ...]
) -> None:
    rows = np.full((*shape, 4), NAN)
    case = loss_case(operation, rows, np.full(shape, -100), ignore=-100, reduction=reduction)
    loss, gradient = answers(implementation, case)
    assert loss.shape == (shape if reduction == "none" else ())
    assert gradient.shape == rows.shape
    assert (loss == 0).all()
    assert (gradient == 0).all()


@pytest.mark.parametrize("operation", RULED)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("hidden", [NAN, INF, -INF])
def test_a_target_that_does_not_count_hides_its_row(
    implementation: Implementation, operation: str, reduction: str, hidden: float
) -> None:
    rows = [[0.5, -1.0, 2.0], [hidden] * 3, [1.0, 1.5, 0.0]]
    options: dict[str, Any] = {"ignore": 1, "reduction": reduction}
    got = answers(implementation, loss_case(operation, rows, [0, 1, 2], **options))
    clean = answers(implementation, loss_case(operation, [rows[0], [0.0] * 3, rows[2]], [0, 1, 2], **options))
    for one, other in zip(got, clean, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.rule("LOSS-1")
def test_classes_of_probability_0(implementation: Implementation) -> None:
    """They change nothing, unless the target is one of them, or smoothing gives them a share."""
    row = [-INF, 0.0, -INF, 0.0]
    case = loss_case("cross_entropy", [row], [1])
    assert within(case, answers(implementation, case), math.log(2), [[0, -0.5, 0, 0.5]])
    loss, gradient = answers(implementation, loss_case("cross_entropy", [row], [0]))
    assert loss == INF
    np.testing.assert_array_equal(gradient, [[-1, 0.5, 0, 0.5]])
    loss, gradient = answers(implementation, loss_case("cross_entropy", [row], [1], label_smoothing=0.5))
    assert loss == INF
    np.testing.assert_array_equal(gradient, [[-0.125, -0.125, -0.125, 0.375]])
    assert answers(implementation, case)[1][0, 0] == 0


@pytest.mark.rule("LOSS-1")
@pytest.mark.parametrize("row", [[NAN, 0, 1], [INF, 0, 1], [-INF, -INF, -INF], [INF, INF, 0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_row_without_a_softmax_is_nan(implementation: Implementation, row: list[float], smoothing: float) -> None:
    """And no other."""
    case = loss_case("cross_entropy", [row, [0, 1, 2]], [1, 1], reduction="none", label_smoothing=smoothing)
    loss, gradient = answers(implementation, case)
    np.testing.assert_array_equal(np.isnan(loss), [True, False])
    np.testing.assert_array_equal(np.isnan(gradient), [[True] * 3, [False] * 3])


@pytest.mark.rule("LOSS-2")
def test_only_the_targets_reach_a_likelihood(implementation: Implementation) -> None:
    rows = [[NAN, -1.0], [-2.0, INF], [-INF, NAN]]
    case = loss_case("nll_loss", rows, [1, 0, 0], reduction="none")
    loss, gradient = answers(implementation, case)
    np.testing.assert_array_equal(loss, np.array([1, 2, INF], np.float32))
    np.testing.assert_array_equal(gradient, [[0, -1], [-1, 0], [-1, 0]])


@pytest.mark.rule("LOSS-1")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_constant_costs_no_digits(implementation: Implementation, dtype: str) -> None:
    """Numbers that the dtype holds beside the constant as they are without it."""
    row, far = np.array([0.0, 1.0, 3.0, 2.0]), {"float16": 2.0**10, "float32": 2.0**22, "float64": 2.0**50}[dtype]
    near = answers(implementation, loss_case("cross_entropy", [row], [1], dtype))
    for constant in (far, -far):
        got = answers(implementation, loss_case("cross_entropy", [row + constant], [1], dtype))
        for one, other in zip(got, near, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.rule("LOSS-1")
def test_no_logits_overflow(implementation: Implementation) -> None:
    loss, gradient = answers(implementation, loss_case("cross_entropy", [[1e30, -1e30, 0], [0, 200, 0]], [0, 0]))
    assert loss == 100
    np.testing.assert_array_equal(gradient, np.array([[0, 0, 0], [-0.5, 0.5, 0]], np.float32))


@pytest.mark.parametrize("operation", RULED)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_targets_of_any_integer_dtype(implementation: Implementation, operation: str, kind: str) -> None:
    """What does not count need not fit in theirs."""
    rows, targets = [[0.0, 1.0, 3.0], [0.5, 0.0, 0.0]], np.array([1, 2])
    case = loss_case(operation, rows, targets, ignore=-100)
    expected = answers(implementation, case)
    got = answers(implementation, Case(**case.__dict__ | {"inputs": case.inputs | {"targets": targets.astype(kind)}}))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
