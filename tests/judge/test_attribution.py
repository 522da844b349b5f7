"""A failing case is filed under the rule that it speaks of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import torch_impl
from conformance.cases.case import Case
from conformance.cases.expectations import Planted, allowed_pairs
from conformance.checks.catalogue import AGREEMENT, PLANTED, TWIN
from conformance.judge.attribution import Failure, attribute
from conformance.runner.in_process import Runner
from conformance.subjects.targets import Target
from specification import Causal, SlidingWindow

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(3)


def case(**options: Any) -> Case:
    shapes = {"query": (2, 4, 5, 3), "key": (2, 2, 7, 3), "value": (2, 2, 7, 4), "bias": (5, 7), "sinks": (4,)}
    inputs = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    cotangents = {"output": RNG.normal(size=(2, 4, 5, 4)).astype(np.float32)}
    return Case("attention", "float32", inputs, {"scale": 0.3, **options}, cotangents)


def planted(clean: Case) -> Planted:
    """Nothing is planted, so every number that is wrong is wrong in the clean case too."""
    marks = {name: np.zeros(clean.inputs[name].shape, bool) for name in ("query", "key", "value")}
    return Planted(clean, clean, allowed_pairs(clean), marks)


def rule_of_planted(function: Any, clean: Case, rule: str = "MASK-7") -> str:
    runner = Runner(Target(function, "attention", "torch", given={"supports": ["structured"]}).make())
    example = planted(clean)
    findings = runner(PLANTED, example, PLANTED.prepare(example))
    assert any(finding.ratio > 1 for finding in findings)
    return attribute(runner, Failure(rule, PLANTED, example, findings)).rule


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

    inputs = {f"outputs[{i}]": RNG.normal(size=(1, 1, 2, 3)).astype(np.float32) for i in range(3)}
    inputs |= {f"logsumexps[{i}]": np.zeros((1, 1, 2), np.float32) for i in range(3)}
    inputs["logsumexps[1]"][:] = -np.inf
    clean = Case("merge_attention", "float32", inputs)
    hidden = np.full((1, 1, 2, 3), np.nan, np.float32)
    twins = (replace(clean, inputs=inputs | {"outputs[1]": hidden}, special=True), clean)
    runner = Runner(Target(first_two, "merge_attention", "torch").make())
    findings = runner(TWIN, twins, TWIN.prepare(twins))
    assert attribute(runner, Failure("MASK-7", TWIN, twins, findings)).rule == "ATT-14"


@pytest.mark.rule("ATT-13")
def test_what_is_wrong_in_contiguous_arrays_too_is_no_matter_of_memory() -> None:
    runner = Runner(Target(wrong_by(scale=None), "attention", "torch").make())
    given = case()
    given.memory["query"] = "transposed"
    findings = runner(AGREEMENT, given, AGREEMENT.prepare(given))
    assert attribute(runner, Failure("ATT-13", AGREEMENT, given, findings)).rule == "ATT-1"
