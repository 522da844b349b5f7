"""Mixtures of experts: values that one can check by hand, and what happens at the edges (MOE-1 to MOE-6)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specification import FeedForward, GatedFeedForward, Linear, MixtureOfExperts, Routing
from specification.parameters import mapped
from tests.support.helpers import Implementation

NAN, INF = math.nan, math.inf
# Softmax of log(1), log(2), log(5) is 1/8, 2/8, 5/8.
LOGITS = [0.0, math.log(2), math.log(5)]


def routed(implementation: Implementation, logits: Any, **options: Any) -> Routing:
    """What is made of logits: of tokens that are the rows of a diagonal matrix, the router's weight."""
    rows = np.atleast_2d(np.array(logits, np.float32))
    if options.get("choice_bias") is not None:
        options["choice_bias"] = np.array(options["choice_bias"], np.float32)
    return Routing(*implementation.call("route", np.eye(len(rows), dtype=np.float32), Linear(rows), **options))


def mixture(shared: bool = False, experts: int = 3) -> MixtureOfExperts:
    """Expert e makes e + 1 of a token's first number, and the shared network 100 of it; the router is the identity."""
    eye = np.eye(experts, dtype=np.float32)
    factors = np.arange(1, experts + 1, dtype=np.float32)
    inner = Linear(np.repeat(eye[None, :, :1], experts, axis=0))
    own = FeedForward(Linear(eye[:, :1]), Linear(np.full((1, 1), 100, np.float32)))
    return MixtureOfExperts(
        Linear(eye), FeedForward(inner, Linear(factors[:, None, None])), None, own if shared else None
    )


@pytest.mark.rule("MOE-1", "MOE-3")
@pytest.mark.parametrize(
    ("options", "weights", "scores"),
    [
        ({}, [2 / 7, 5 / 7], [1 / 8, 2 / 8, 5 / 8]),
        ({"weighting": "scores", "scale": 4.0}, [1, 2.5], [1 / 8, 2 / 8, 5 / 8]),
        ({"weighting": "softmax"}, [2 / 7, 5 / 7], [1 / 8, 2 / 8, 5 / 8]),
        ({"scoring": "sigmoid", "weighting": "scores"}, [2 / 3, 5 / 6], [1 / 2, 2 / 3, 5 / 6]),
        ({"scoring": "sigmoid"}, [4 / 9, 5 / 9], [1 / 2, 2 / 3, 5 / 6]),
        ({"scoring": "none", "weighting": "softmax", "scale": 2.0}, [4 / 7, 10 / 7], LOGITS),
        ({"scoring": "none", "weighting": "scores"}, LOGITS[1:], LOGITS),
    ],
)
def test_scores_and_weights_by_hand(
    implementation: Implementation, options: dict[str, Any], weights: Any, scores: Any
) -> None:
    got = routed(implementation, LOGITS, chosen=2, **options)
    np.testing.assert_array_equal(got.indices, [[1, 2]])
    np.testing.assert_allclose(got.weights, [weights], rtol=2**-20)
    np.testing.assert_allclose(got.scores, [scores], rtol=2**-20)


@pytest.mark.rule("MOE-2", "MOE-3")
def test_a_choice_bias_chooses_and_does_not_weigh(implementation: Implementation) -> None:
    options: dict[str, Any] = {"scoring": "none", "weighting": "scores", "chosen": 2}
    got = routed(implementation, [1, 2, 3, 4], choice_bias=[5, 0, 0, -5], **options)
    np.testing.assert_array_equal(got.indices, [[0, 2]])
    np.testing.assert_array_equal(got.weights, [[1, 3]])


@pytest.mark.rule("MOE-2")
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize(("groups", "chosen_groups"), [(1, 1), (4, 2)])
def test_of_equal_scores_the_first(
    implementation: Implementation, scoring: str, groups: int, chosen_groups: int
) -> None:
    options: dict[str, Any] = {"groups": groups, "chosen_groups": chosen_groups, "weighting": "softmax"}
    got = routed(implementation, np.zeros((3, 64)), chosen=4, scoring=scoring, **options)
    np.testing.assert_array_equal(got.indices, [[0, 1, 2, 3]] * 3)
    got = routed(implementation, [0.0, -0.0, 1, 0, -0.0, 0, -1, -1], chosen=3, scoring=scoring, weighting="softmax")
    np.testing.assert_array_equal(got.indices, [[0, 1, 2]])


@pytest.mark.rule("MOE-2")
@pytest.mark.parametrize(("group_score", "indices"), [("two_largest", [2, 3]), ("largest", [0, 1])])
def test_groups_are_chosen_first(implementation: Implementation, group_score: str, indices: list[int]) -> None:
    """By the sum of two 3 + 3, by the largest 4; the second of the largest group is -9, and still chosen."""
    logits = [4, -9, 3, 3, 2, 3.5]
    options: dict[str, Any] = {"scoring": "none", "weighting": "scores", "groups": 3, "chosen": 2}
    got = routed(implementation, logits, group_score=group_score, **options)
    np.testing.assert_array_equal(got.indices, [indices])
    np.testing.assert_array_equal(got.weights, [[logits[i] for i in indices]])


@pytest.mark.rule("MOE-2")
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "none"])
def test_a_nan_spoils_its_token_alone(implementation: Implementation, scoring: str) -> None:
    x, router = np.array([[0, 1], [NAN, 1], [1, 2]], np.float32), np.array([[1, 2, 3, 4], [4, 3, 2, 5]], np.float32)
    options: dict[str, Any] = {"chosen": 2, "scoring": scoring, "weighting": "softmax"}
    got = Routing(*implementation.call("route", x, Linear(router), **options))
    clean = Routing(*implementation.call("route", np.nan_to_num(x), Linear(router), **options))
    np.testing.assert_array_equal(got.indices, [clean.indices[0], [0, 1], clean.indices[2]])
    np.testing.assert_array_equal(got.weights, [clean.weights[0], [NAN, NAN], clean.weights[2]])
    biased = np.array([0, 0, NAN, 0], np.float32)
    got = Routing(*implementation.call("route", np.nan_to_num(x), Linear(router), choice_bias=biased, **options))
    np.testing.assert_array_equal(got.indices, [[0, 1]] * 3)
    assert np.isnan(got.weights).all()
    np.testing.assert_array_equal(got.scores, clean.scores)


@pytest.mark.rule("MOE-2", "MOE-3")
def test_infinite_logits(implementation: Implementation) -> None:
    got = routed(implementation, [-INF, 0, -INF, -INF], chosen=2)
    np.testing.assert_array_equal(got.indices, [[0, 1]])
    np.testing.assert_array_equal(got.weights, [[0, 1]])
    got = routed(implementation, [-INF] * 3, chosen=2, scoring="sigmoid")
    np.testing.assert_array_equal(got.weights, [[0, 0]])
    assert np.isnan(routed(implementation, [0, INF], chosen=1).weights).all()
    got = routed(implementation, [0, INF, -INF], chosen=1, scoring="sigmoid")
    np.testing.assert_array_equal(got.indices, [[1]])
    np.testing.assert_array_equal(got.weights, [[1]])


@pytest.mark.rule("MOE-1")
def test_logits_are_not_rounded_to_16_bits(implementation: Implementation) -> None:
    """4097 and 4098 are one number in float16, where the first of both would be chosen."""
    rows = np.array([[512, 512], [1, 2]], np.float16)
    got = Routing(*implementation.call("route", np.array([[8, 1]], np.float16), Linear(rows), chosen=1))
    np.testing.assert_array_equal(got.indices, [[1]])
    assert (got.weights.dtype, got.scores.dtype) == (np.float32, np.float32)


@pytest.mark.rule("MOE-4")
def test_experts_are_weighted_and_the_shared_one_is_not(implementation: Implementation) -> None:
    x = np.array([[1, 3, 2]], np.float32)
    options: dict[str, Any] = {"scoring": "none", "weighting": "scores", "activation": "relu", "scale": 0.5}
    got = implementation.call("mixture_of_experts", mixture(shared=True), x, chosen=2, **options)
    np.testing.assert_array_equal(got, [[0.5 * (3 * 2 + 2 * 3) + 100]])


@pytest.mark.rule("MOE-4")
@pytest.mark.parametrize(
    ("gate", "value", "hidden"),
    [(1, 2, 3 / (1 + math.exp(-1.702))), (9, 20, 8 * 7), (-INF, 2, 0), (0.5, -9, -6 * 0.5 / (1 + math.exp(-0.851)))],
)
def test_clamped_swiglu_by_hand(implementation: Implementation, gate: float, value: float, hidden: float) -> None:
    def one(number: float) -> np.ndarray:
        return np.full((1, 1, 1), number, np.float32)

    zero = Linear(one(0), np.full((1, 1), gate, np.float32)), Linear(one(0), np.full((1, 1), value, np.float32))
    parameters = MixtureOfExperts(Linear(one(1)[0]), GatedFeedForward(*zero, Linear(one(1))))
    got = implementation.call("mixture_of_experts", parameters, one(1)[0], chosen=1, activation="clamped_swiglu")
    np.testing.assert_allclose(got, [[hidden]], rtol=1e-5)


@pytest.mark.rule("MOE-4")
def test_an_expert_that_nobody_chose_may_hold_anything(implementation: Implementation) -> None:
    parameters = mixture()
    spoiled = parameters._replace(experts=mapped(np.copy, parameters.experts))
    for array in (spoiled.experts.inner.weight, spoiled.experts.outer.weight):
        array[1] = NAN
    x = np.array([[1, 0, 2], [3, 1, 2]], np.float32)
    first, second = (
        implementation.call("mixture_of_experts", p, x, chosen=2, activation="relu") for p in (parameters, spoiled)
    )
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all()


@pytest.mark.rule("MOE-5")
def test_a_capacity_drops_later_tokens(implementation: Implementation) -> None:
    """All choose expert 2, the first and the third also expert 0, the others expert 1; the second token is none."""
    x = np.array([[[2, 1, 3], [1, 2, 3]], [[2, 1, 3], [1, 2, 3]]], np.float32)
    keep = np.array([[True, False], [True, True]])
    options: dict[str, Any] = {"scoring": "none", "weighting": "scores", "activation": "relu", "chosen": 2}
    got = implementation.call("mixture_of_experts", mixture(), x, capacity=1, token_mask=keep, **options)
    expected = [[2 * 2 * 1 + 3 * 2 * 3, 0], [0, 2 * 1 * 2]]
    np.testing.assert_array_equal(got[..., 0], expected)
    got = implementation.call("mixture_of_experts", mixture(), x, token_mask=keep, **options)
    np.testing.assert_array_equal(got[..., 0], [[22, 0], [22, 2 * 1 * 2 + 3 * 1 * 3]])


@pytest.mark.rule("MOE-5")
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3)])
def test_there_may_be_no_token(implementation: Implementation, shape: tuple[int, ...]) -> None:
    got = implementation.call("mixture_of_experts", mixture(shared=True), np.zeros(shape, np.float32), chosen=2)
    assert got.shape == (*shape[:-1], 1)
    indices, weights, scores = implementation.call("route", np.zeros(shape, np.float32), mixture().router, chosen=2)
    assert (indices.shape, weights.shape, scores.shape) == ((*shape[:-1], 2), (*shape[:-1], 2), shape)


@pytest.mark.rule("MOE-5")
def test_a_token_does_not_depend_on_others(implementation: Implementation) -> None:
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    whole = implementation.call("mixture_of_experts", mixture(), x, chosen=2)
    alone = [implementation.call("mixture_of_experts", mixture(), row[None], chosen=2) for row in x]
    np.testing.assert_allclose(whole, np.concatenate(alone), rtol=1e-6)
    spoiled = np.where(np.arange(6)[:, None] == 2, NAN, x).astype(np.float32)
    got = implementation.call("mixture_of_experts", mixture(), spoiled, chosen=2)
    np.testing.assert_array_equal(np.isnan(got), np.arange(6)[:, None] == 2)


@pytest.mark.rule("MOE-6")
def test_losses_of_routers_by_hand(implementation: Implementation) -> None:
    """Shares 1/2, 1/2, 1 for two choices; the third token is none."""
    rows = np.array([LOGITS, [math.log(2), 0, math.log(5)], [NAN, INF, 0]], np.float32)
    keep = np.array([True, True, False])
    balance = implementation.call("load_balancing_loss", rows, chosen=2, token_mask=keep)
    np.testing.assert_allclose(balance, 3 * (0.5 * 3 / 16 * 2 + 5 / 8), rtol=1e-6)
    assert balance.shape == ()
    z_loss = implementation.call("router_z_loss", rows, token_mask=keep)
    np.testing.assert_allclose(z_loss, math.log(8) ** 2, rtol=1e-6)
    for loss, options in (("load_balancing_loss", {"chosen": 2}), ("router_z_loss", {})):
        assert np.isnan(implementation.call(loss, rows, **options))
        assert implementation.call(loss, rows, token_mask=np.zeros(3, bool), **options) == 0
        assert implementation.call(loss, rows[:0], **options) == 0
