"""A failing case is filed under the rule that it speaks of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import reference_numpy
import torch_impl
from conformance.judge.attribution import Failure, attribute
from specification import Causal, SlidingWindow
from specification.rotary import LinearScaling
from tests.support.helpers import CHECKS, Case, Runner, attention_case, find_errors, normal, planted_case, runner_of


def case(**options: Any) -> Case:
    made = attention_case(2, 2, 2, 5, 7, 3, 4, gradients=True, scale=0.3, **options)
    return replace(made, inputs=made.inputs | {"bias": normal(1, 5, 7), "sinks": normal(2, 4)})


def attributed_rule(runner: Runner, example: Any, check: str, rule: str = "MASK-7") -> str:
    """The rule that a failure of this check, by a probe of `rule`, is filed under."""
    findings = find_errors(runner, example, check)
    assert findings
    return attribute(runner, Failure(rule, CHECKS[check], example, findings)).rule


def rule_of_planted(function: Any, clean: Case) -> str:
    runner = runner_of(function, arrays="torch", supports=["structured"])
    return attributed_rule(runner, planted_case(clean), "planted")


def wrong_by(**changed: Any) -> Any:
    """Attention that overlooks some of its arguments."""

    def attention(query, key, value, *, mask=None, bias=None, scale=None, sinks=None):
        given = {"mask": mask, "bias": bias, "scale": scale, "sinks": sinks} | changed
        return torch_impl.attention(query, key, value, **given)

    return attention


@pytest.mark.rule("MASK-7")
@pytest.mark.parametrize(
    ("overlooked", "mask", "rule"),
    [
        ({"bias": None}, Causal(2), "ATT-3"),
        ({"sinks": None}, Causal(2), "ATT-5"),
        ({"scale": None}, Causal(2), "ATT-1"),
        ({"mask": None}, SlidingWindow(1, 1, 1), "MASK-4"),
        ({"mask": None}, SlidingWindow(1, 1, 1) & Causal(2), "MASK-6"),
    ],
)
def test_a_wrong_number_beside_hidden_values(overlooked: dict[str, Any], mask: Any, rule: str) -> None:
    assert rule_of_planted(wrong_by(**overlooked), case(mask=mask)) == rule


def test_gradients_and_heads() -> None:
    def no_gradient(query, key, value, *, mask=None, bias=None, scale=None, sinks=None):
        given = {"mask": mask, "bias": bias, "scale": scale, "sinks": sinks}
        return torch_impl.attention(query, key.detach(), value, **given)

    def first_head(query, key, value, *, mask=None, bias=None, scale=None, sinks=None):
        if query.shape[1] != key.shape[1]:
            key = key[:, :1].expand(key.shape)
        return torch_impl.attention(query, key, value, mask=mask, bias=bias, scale=scale, sinks=sinks)

    assert rule_of_planted(no_gradient, case(mask=Causal(2))) == "ATT-12"
    assert rule_of_planted(first_head, case(mask=Causal(2))) == "ATT-7"


@pytest.mark.rule("MASK-7")
def test_a_wrong_number_beside_what_a_hidden_part_holds() -> None:
    """A part that is left out is so without NaN in another one, too."""

    def first_two(outputs, logsumexps):
        return torch_impl.merge_attention(outputs[:2], logsumexps[:2])

    inputs = {f"outputs[{i}]": normal(i, 1, 1, 2, 3) for i in range(3)}
    inputs |= {f"logsumexps[{i}]": np.zeros((1, 1, 2), np.float32) for i in range(3)}
    inputs["logsumexps[1]"][:] = -np.inf
    clean = Case("merge_attention", "float32", inputs)
    hidden = np.full((1, 1, 2, 3), np.nan, np.float32)
    twins = (replace(clean, inputs=inputs | {"outputs[1]": hidden}, special=True), clean)
    runner = runner_of(first_two, "merge_attention", "torch")
    assert attributed_rule(runner, twins, "twin") == "ATT-14"


@pytest.mark.rule("ATT-13")
def test_what_is_wrong_in_contiguous_arrays_too_is_no_matter_of_memory() -> None:
    runner, given = runner_of(wrong_by(scale=None), arrays="torch"), replace(case(), memory={"query": "transposed"})
    assert attributed_rule(runner, given, "agreement", "ATT-13") == "ATT-1"


class RaisingBackward(torch.autograd.Function):
    """The array; its gradient is an error."""

    @staticmethod
    def forward(ctx: Any, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError("there is no gradient")


def raises_backward(x: Any, weight: Any, *, eps: float = 1e-6, plus_one: bool = False) -> Any:
    return torch_impl.rms_norm(RaisingBackward.apply(x), weight, eps=eps, plus_one=plus_one)


def raises_always(x: Any, weight: Any, *, eps: float = 1e-6, plus_one: bool = False) -> Any:
    raise RuntimeError("there is no norm")


def raises_with_plus_one(x: Any, weight: Any, *, eps: float = 1e-6, plus_one: bool = False) -> Any:
    return raises_always(x, weight) if plus_one else torch_impl.rms_norm(x, weight, eps=eps)


@pytest.mark.parametrize("asked", ["NORM-6", "NORM-7", "NORM-8"])
@pytest.mark.parametrize(
    ("function", "rule"),
    [(raises_backward, "NORM-6"), (raises_always, "NORM-7"), (raises_with_plus_one, "NORM-8")],
)
def test_an_error_is_of_the_rule_without_which_there_is_none(function: Any, rule: str, asked: str) -> None:
    inputs = {"x": normal(0, 3, 5), "weight": normal(1, 5)}
    example = Case("rms_norm", "float32", inputs, {"eps": 1e-6, "plus_one": True}, {"output": normal(2, 3, 5)})
    runner = runner_of(function, "rms_norm", arrays="torch")
    assert attributed_rule(runner, example, "agreement", asked) == rule


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("check", ["determinism", "repetitions"])
def test_a_call_that_fails_by_itself_is_no_matter_of_equal_calls(check: str) -> None:
    def refuse_scale(query, key, value, *, mask=None, bias=None, scale=None, sinks=None):
        if scale is not None:
            raise RuntimeError("no scale")
        return torch_impl.attention(query, key, value, mask=mask, bias=bias, sinks=sinks)

    assert attributed_rule(runner_of(refuse_scale, arrays="torch"), case(), check, "ATT-13") == "ATT-1"


def unscaled_rotary(x: Any, positions: Any, *, base: float = 10000.0, scaling: Any = None) -> Any:
    return reference_numpy.rotary_embedding(x, positions, base=base)


@pytest.mark.rule("POS-4")
@pytest.mark.parametrize("asked", ["ATT-13", "POS-3"])
def test_what_fails_with_a_scaling_alone_is_of_its_rule_in_any_memory(asked: str) -> None:
    inputs = {"x": normal(0, 2, 3, 4, 6), "positions": np.arange(1, 5)}
    example = Case(
        "rotary_embedding", "float32", inputs, {"scaling": LinearScaling(factor=8.0)}, memory={"x": "transposed"}
    )
    runner = runner_of(unscaled_rotary, "rotary_embedding")
    assert attributed_rule(runner, example, "agreement", asked) == "POS-4"
