"""A backward pass that takes the weights from one log-sum-exp for each row, as FlashAttention-2 does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from conformance import Report
from conformance.bounds.arithmetic import Precision
from conformance.cases.expectations import Exact
from conformance.checks.catalogue import twin_bound
from conformance.checks.comparison import ratio
from tests.support.helpers import SMALL, Case, Finding, Runner, bound, find_errors, judged, name_of_cause, runner_of

Function = Callable[..., Any]
BLOCK = 16


class Design(NamedTuple):
    """The kernel's steps that a planted fault may replace.

    kept: what the backward pass gets of (maximum, sum, sinks), each [B, H, Q, 1]. weight: exp(score - log-sum-exp).
    """

    kept: Callable[[Any, Any, Any], Any] = lambda maximum, total, sinks: maximum + torch.log(total)
    weight: Callable[[Any, Any], Any] = lambda scores, log: torch.exp(scores - log)


def scores_of(query: Any, key: Any, bias: Any, allowed: Any, scale: float) -> Any:
    """[B, H, Q, K], with -inf for forbidden pairs."""
    scores = query @ key.mT * scale
    return (scores if bias is None else scores + bias).masked_fill(~allowed, -torch.inf)


HONEST = Design()


class Flash(torch.autograd.Function):
    """All arrays in float32; keys and values have one head for each group of query heads. sinks: [1, H, 1, 1]."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, sinks: Any, allowed: Any, *options: Any) -> Any:
        scale, design = options
        share = query.shape[1] // max(key.shape[1], 1)
        k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        scores = scores_of(query, k, bias, allowed, scale)
        rows = query[..., :1]
        maximum = torch.full_like(rows, -torch.inf) if sinks is None else sinks.expand_as(rows)
        total = torch.zeros_like(maximum) if sinks is None else torch.ones_like(maximum)
        output = query.new_zeros(*query.shape[:3], v.shape[-1])
        for part, values in zip(scores.split(BLOCK, -1), v.split(BLOCK, -2), strict=True):
            highest = torch.maximum(maximum, part.amax(-1, keepdim=True))
            around = highest.masked_fill(highest == -torch.inf, 0)
            exponentials, factor = torch.exp(part - around), torch.exp(maximum - around)
            total = total * factor + exponentials.sum(-1, keepdim=True)
            output = output * factor + exponentials @ values
            maximum = highest
        output = output / total.masked_fill(total == 0, 1)
        log = design.kept(maximum, total, sinks).masked_fill(total == 0, 0)
        ctx.save_for_backward(query, key, value, bias, sinks, allowed, output, log)
        ctx.options = options
        return output

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        query, key, value, bias, sinks, allowed, output, log = ctx.saved_tensors
        scale, design = ctx.options
        groups, share = key.shape[1], query.shape[1] // max(key.shape[1], 1)
        k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        mean = (bar * output).sum(-1, keepdim=True)
        query_bar, of_keys, of_values, of_scores = torch.zeros_like(query), [], [], []
        for i in range(0, k.shape[2], BLOCK):
            block = slice(i, i + BLOCK)
            local = None if bias is None else bias[..., block]
            scores = scores_of(query, k[:, :, block], local, allowed[..., block], scale)
            weights = design.weight(scores, log).masked_fill(~allowed[..., block], 0)
            scores_bar = weights * (bar @ v[:, :, block].mT - mean)
            query_bar = query_bar + scores_bar @ k[:, :, block] * scale
            of_keys.append(scores_bar.mT @ query * scale)
            of_values.append(weights.mT @ bar)
            of_scores.append(scores_bar)

        def by_group(parts: list[Any]) -> Any:
            return torch.cat(parts, -2).unflatten(1, (groups, share)).sum(2)

        bias_bar = None if bias is None else torch.cat(of_scores, -1).sum_to_size(bias.shape)
        sinks_bar = None if sinks is None else (-design.weight(sinks, log) * mean).sum_to_size(sinks.shape)
        return query_bar, by_group(of_keys), by_group(of_values), bias_bar, sinks_bar, None, None, None


def kernel(design: Design = HONEST) -> Function:
    def flash(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, sinks: Any = None
    ) -> Any:
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool) if mask is None else mask
        if bias is not None:
            bias = bias.float()
            allowed = allowed & (bias.detach() != -torch.inf)
            bias = bias.masked_fill(~allowed, 0)
            bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        sinks = None if sinks is None else sinks.float().reshape(1, -1, 1, 1)
        wide = (array.float() for array in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return Flash.apply(*wide, bias, sinks, allowed, scale, design).to(query.dtype)

    return flash


def judge_kernel(
    function: Function, rules: list[str], seed: int = 1, dtype: str = "float32", **declared: str
) -> Report:
    given: dict[str, Any] = {"arrays": "torch", "profile": "strict", "seed": seed, "dtypes": [dtype], "shrink": True}
    given |= {"limits": SMALL | {"keys": 40, "queries": 40}, "conventions": {"isolation": "finite"} | declared}
    return judged(function, *rules, **given)


def from_logsumexp(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The output, too, comes from weights exp(score - log-sum-exp)."""
    share = query.shape[1] // max(key.shape[1], 1)
    k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = query @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    log = torch.logsumexp(scores, -1, keepdim=True)
    return torch.exp(scores - log.masked_fill(log == -torch.inf, 0)) @ v


ONE_NUMBER = "backward.logsumexp-beside-large-scores"
RULES = ["ATT-1", "ATT-3", "ATT-4", "ATT-5", "ATT-6", "ATT-7", "ATT-10", "ATT-12"]
LOG2E = float(np.log2(np.e))


# --- what is declared -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_of_this_design_keeps_every_rule(dtype: str, seed: int) -> None:
    report = judge_kernel(kernel(), RULES, seed, dtype, saved="logsumexp")
    assert report.violations == []


@pytest.mark.slow
def test_undeclared_it_breaks_one_rule_about_scores_of_any_size() -> None:
    (cause,) = judge_kernel(kernel(), RULES).causes
    assert (cause.level, cause.rules, name_of_cause(cause)) == ("robust", ("ATT-4",), ONE_NUMBER)
    assert cause.conventions == {"saved": "logsumexp"}


def test_without_a_bias_products_far_below_0_show_it() -> None:
    def plain(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return kernel()(query, key, value, mask=mask)

    (found,) = judge_kernel(plain, ["ATT-4"]).violations
    assert (found.level, found.finding.name) == ("robust", "gradient of value")
    assert judge_kernel(plain, ["ATT-4"], saved="logsumexp").violations == []


def beside_a_low_bias(function: Function, **rounding: str) -> tuple[Runner, tuple[Case, Case], list[Finding]]:
    """A case in which every score is -1e5 must be like one in which it is 0."""
    rng = np.random.default_rng(1)
    shapes = {"query": (1, 4, 3, 2), "key": (1, 2, 20, 2), "value": (1, 2, 20, 3), "bias": (3, 20)}
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    cotangents = {"output": rng.normal(size=(1, 4, 3, 3)).astype(np.float32)}
    harmless, asked = (
        Case("attention", "float32", inputs | {"bias": bias}, {"scale": 0.0}, cotangents, rounding=rounding)
        for bias in (np.zeros((3, 20), np.float32), np.full((3, 20), -1e5, np.float32))
    )
    runner, twins = runner_of(function, arrays="torch"), (asked, harmless)
    return runner, twins, find_errors(runner, twins, "twin")


@pytest.mark.parametrize("low", [-1e7, -1e21, -3e38])
def test_no_bound_is_infinite_however_large_the_scores(low: float) -> None:
    """No weight is off by more than 1."""
    _, (asked, harmless), _ = beside_a_low_bias(kernel(), saved="logsumexp")
    asked.inputs["bias"][:] = low
    assert all(np.isfinite(one).all() for one in twin_bound((asked, harmless), bound).values())


def test_beside_large_scores_it_is_allowed_as_declared_and_no_further() -> None:
    assert beside_a_low_bias(kernel(), saved="logsumexp")[2] == []
    _, _, wrong = beside_a_low_bias(kernel(FAULTS["in float16"]), saved="logsumexp")
    assert "gradient of value" in {found.name for found in wrong}
    _, _, wrong = beside_a_low_bias(from_logsumexp, saved="logsumexp")
    assert {found.name for found in wrong} == {"output"}


IN_BASE_2 = [
    lambda scores, log: torch.exp2(scores * LOG2E - log * LOG2E),
    lambda scores, log: torch.exp2((scores - log) * LOG2E),
]


@pytest.mark.slow
@pytest.mark.parametrize("weight", IN_BASE_2, ids=["both in base 2", "their difference in base 2"])
def test_the_diagnosis_names_it_in_base_2(weight: Function) -> None:
    assert [*map(name_of_cause, judge_kernel(kernel(HONEST._replace(weight=weight)), ["ATT-4"]).causes)] == [ONE_NUMBER]


def test_weights_that_do_not_add_up_to_1() -> None:
    """Scores that are all off alike leave the forward pass's weights as they are, but not the backward pass's.

    Values are equal, so that only the weights' sum tells what the gradient of the scores, and so of the bias, is.
    """
    rng = np.random.default_rng(1)
    inputs = {"query": rng.uniform(1, 2, (1, 1, 1, 64)), "key": rng.uniform(1, 2, (1, 1, 3, 64))}
    inputs |= {"value": np.ones((1, 1, 3, 1)), "bias": np.zeros((1, 3))}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    cotangent = {"output": np.ones((1, 1, 1, 1), np.float32)}
    scores = (inputs["key"].astype(float) @ inputs["query"].astype(float).swapaxes(-1, -2))[0, 0, :, 0]
    off = Precision.make("float32").gamma(64) * scores.min()
    weights = np.exp(scores - np.log(np.sum(np.exp(scores))) + off)
    gradient = weights * (1 - np.sum(weights))  # exactly 0 with weights that add up to 1

    def allowed(**rounding: str) -> Any:
        case = Case("attention", "float32", inputs, {"scale": 1.0}, cotangent, rounding=rounding)
        return bound(case)["gradient of bias"][0]

    assert np.all(np.abs(gradient) <= allowed(saved="logsumexp"))
    assert np.any(np.abs(gradient) > allowed())


# --- and no more ------------------------------------------------------------------------------------------------------


def kept_in(dtype: Any) -> Function:
    return lambda maximum, total, sinks: HONEST.kept(maximum, total, sinks).to(dtype).float()


def without_sinks(maximum: Any, total: Any, sinks: Any) -> Any:
    return HONEST.kept(maximum, total if sinks is None else total - torch.exp(sinks - maximum), sinks)


FAULTS = {
    "in bfloat16": HONEST._replace(kept=kept_in(torch.bfloat16)),
    "in float16": HONEST._replace(kept=kept_in(torch.float16)),
    "in base 2, used as natural": HONEST._replace(kept=lambda *kept: HONEST.kept(*kept) * LOG2E),
    "natural, used in base 2": HONEST._replace(weight=lambda scores, log: torch.exp2(scores - log)),
    "of the neighbouring row": HONEST._replace(kept=lambda *kept: HONEST.kept(*kept).roll(1, -2)),
    "without the sink": HONEST._replace(kept=without_sinks),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_logsumexp_is_caught(fault: str, dtype: str) -> None:
    report = judge_kernel(kernel(FAULTS[fault]), ["ATT-12"], dtype=dtype, saved="logsumexp")
    assert [(found.rule, found.finding.level) for found in report.violations] == [("ATT-12", "core")]
    assert ONE_NUMBER not in map(name_of_cause, report.causes)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_infinity_is_right_where_the_bound_holds_numbers_beyond_the_dtype(sign: float) -> None:
    """Of either sign, whatever that of the exact number is; a NaN never is."""
    exact, infinity = Exact(np.array([sign * 1e-12]), np.zeros(1)), np.array([np.inf])
    for got, bound_of_it, right in ((infinity, 1e6, True), (-infinity, 1e6, True), (-infinity, 1e4, False)):
        assert bool(ratio(got, exact, np.array([bound_of_it]), "float16")[0] == 0) is right
    assert ratio(np.array([np.nan]), exact, np.array([np.inf]), "float16")[0] == np.inf
