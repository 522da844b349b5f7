"""Choices of experts under judgement: ties, pairs in any order, and mixtures as transformers computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import reference_numpy
from conformance import compare
from conformance.cases.arguments import arguments
from conformance.checks.findings import Finding
from conformance.checks.levels import CORE, STRICT
from conformance.sampling.experts import mixture_cases
from specification import FeedForward, Linear, MixtureOfExperts, Routing
from tests.support.helpers import EVERYTHING, OPERATIONS, Probe, draw_cases, judged, runner_of, violated

ROUTE = {probe.name: probe for probe in OPERATIONS["route"].probes(EVERYTHING)}


def choose_experts(rank: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., Routing]:
    """A router with another choice; from preferences [N, X] and their number to indices, in any order."""

    def route(x: Any, router: Any, *, choice_bias: Any = None, **options: Any) -> Routing:
        found = reference_numpy.route(x, router, choice_bias=choice_bias, **options)
        preferences = found.scores + (0 if choice_bias is None else choice_bias)
        indices = rank(preferences, options["chosen"])
        bias = np.zeros(found.scores.shape[-1], found.scores.dtype)
        bias[indices] = 1e3
        return reference_numpy.route(x, router, choice_bias=bias, **options)

    return route


def rank_last(preferences: np.ndarray, count: int) -> np.ndarray:
    """Of equal ones the last."""
    return preferences.shape[-1] - 1 - np.argsort(-preferences[0, ::-1], kind="stable")[:count]


def rank_other(preferences: np.ndarray, count: int) -> np.ndarray:
    """The least in place of the last that is chosen."""
    order = np.argsort(-preferences[0], kind="stable")
    return np.array([*order[: count - 1], order[-1]])


def findings_of(probe: Probe, function: Callable[..., Routing]) -> list[Finding]:
    """All that break a rule, in twelve cases."""
    runner, found = runner_of(function, "route"), list[Finding]()
    for _, example in draw_cases(probe.cases, 12, 1):
        forward = tuple(replace(case, cotangents={}) for case in example)
        found += runner(probe.check, forward, probe.check.prepare(forward))
    return [finding for finding in found if finding.ratio > 1]


@pytest.mark.rule("MOE-2")
def test_the_last_of_equal_experts_is_wrong_at_strict_alone() -> None:
    findings = findings_of(ROUTE["equal scores"], choose_experts(rank_last))
    assert {finding.level for finding in findings} == {STRICT}
    assert findings_of(ROUTE["equal scores"], reference_numpy.route) == []


@pytest.mark.rule("MOE-2")
def test_of_nearly_equal_experts_either_is_right() -> None:
    assert findings_of(ROUTE["nearly equal scores"], choose_experts(rank_last)) == []
    assert findings_of(ROUTE["nearly equal scores"], reference_numpy.route) == []


@pytest.mark.rule("MOE-2")
@pytest.mark.parametrize("name", ["equal scores", "nearly equal scores"])
def test_a_third_expert_is_wrong(name: str) -> None:
    findings = findings_of(ROUTE[name], choose_experts(rank_other))
    assert CORE in {finding.level for finding in findings}


@pytest.mark.rule("MOE-2")
def test_the_weights_of_the_other_choice_are_wrong() -> None:
    """Indices of one choice with the weights of the other, which differ where weights are normalised."""

    def route(x: Any, router: Any, **options: Any) -> Routing:
        right = reference_numpy.route(x, router, **options)
        return right._replace(weights=right.weights * np.float32(1.001).astype(right.weights.dtype))

    assert findings_of(ROUTE["nearly equal scores"], route) != []


def route_by_size(x: torch.Tensor, router: Any, *, chosen: int, scoring: str = "softmax") -> Routing:
    """Pairs in the order of their scores."""
    logits = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32) @ router.weight.to(
        torch.float64 if x.dtype == torch.float64 else torch.float32
    )
    logits = logits if router.bias is None else logits + router.bias
    scores = torch.softmax(logits, -1) if scoring == "softmax" else torch.sigmoid(logits)
    weights, indices = torch.topk(scores, chosen, -1)
    return Routing(indices, weights / weights.sum(-1, keepdim=True), scores)


@pytest.mark.rule("MOE-2", "MOE-3")
def test_pairs_may_come_in_any_order() -> None:
    """Gradients too. A wrong order of weights beside their indices is wrong."""
    rules = ("MOE-2", "MOE-3")
    report = judged(route_by_size, *rules, operation="route", profile="robust")
    assert report.conforms, str(report)

    def mismatch(x: torch.Tensor, router: Any, *, chosen: int) -> Routing:
        found = route_by_size(x, router, chosen=chosen)
        return found._replace(indices=found.indices.flip(-1))

    assert violated(mismatch, *rules, operation="route") != []


def mixture_in_16_bits(parameters: MixtureOfExperts, x: torch.Tensor, *, chosen: int) -> torch.Tensor:
    """As transformers 5 computes Mixtral: logits and the sum over experts in the inputs' dtype."""
    router, experts, bias, shared = parameters
    rows, X = x.reshape(-1, x.shape[-1]), router.weight.shape[1]
    scores = torch.softmax(F.linear(rows, router.weight.T, router.bias).to(torch.float64).to(wide(x)), -1)
    indices = torch.topk(scores if bias is None else scores + bias, chosen, -1).indices
    weights = scores.gather(-1, indices)
    weights = weights / weights.sum(-1, keepdim=True)
    output = torch.zeros(len(rows), experts.outer.weight.shape[-1], dtype=x.dtype) + 0 * rows.sum()
    for expert in range(X):
        token, place = torch.where(indices == expert)
        result = network(experts, rows[token], expert) * weights[token, place, None]
        output = output.index_add(0, token, result.to(x.dtype))
    output = output if shared is None else output + network(shared, rows, None)
    return output.reshape(*x.shape[:-1], output.shape[-1])


def wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def network(parameters: Any, x: torch.Tensor, expert: int | None) -> torch.Tensor:
    def project(side: Any, rows: torch.Tensor) -> torch.Tensor:
        own = [part if part is None or expert is None else part[expert] for part in side]
        return F.linear(rows, own[0].T, own[1])

    if isinstance(parameters, FeedForward):
        return project(parameters.outer, F.silu(project(parameters.inner, x)))
    return project(parameters.outer, F.silu(project(parameters.gate, x)) * project(parameters.inner, x))


@pytest.mark.rule("MOE-1", "MOE-4")
def test_mixtures_in_16_bits_need_a_declaration() -> None:
    given: dict[str, Any] = {"operation": "mixture_of_experts", "dtypes": ["bfloat16"], "profile": "core"}
    rules = ("MOE-2", "MOE-3", "MOE-4")
    assert violated(mixture_in_16_bits, *rules, **given) != []
    declared = {"scores": "inputs", "combined": "inputs"}
    assert violated(mixture_in_16_bits, *rules, **given, conventions=declared) == []


@pytest.mark.rule("MOE-3", "MOE-4")
def test_results_computed_elsewhere() -> None:
    """Of structures in structures, and of pairs in the order of their weights."""
    (_, case), *_ = draw_cases(mixture_cases(("gated",), shared=True, biased=True, dtypes=("float32",)), 1, 0)
    (parameters, x), options = arguments(case.operation, case.inputs, case.options)
    given = {"parameters": parameters, "x": x, **options}
    output = reference_numpy.mixture_of_experts(**given)
    gradients = reference_numpy.mixture_of_experts_vjp(cotangent=case.cotangents["output"], **given)._asdict()
    judged = partial(compare, "mixture_of_experts", cotangent=case.cotangents["output"], **given)
    assert judged(output, gradients=gradients).conforms
    right = gradients["parameters"]
    wrong = right._replace(shared=right.shared._replace(outer=Linear(2 * right.shared.outer.weight)))
    assert not judged(output, gradients=gradients | {"parameters": wrong}).conforms
    routed = reference_numpy.route(x, parameters.router, chosen=case.options["chosen"])
    back = routed.indices[..., ::-1], routed.weights[..., ::-1], routed.scores
    pairs = partial(compare, "route", x=x, router=parameters.router, chosen=case.options["chosen"])
    assert pairs(back).conforms
    assert not pairs((routed.indices, back[1], routed.scores)).conforms
