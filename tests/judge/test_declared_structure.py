"""Functions that take one structure only, some scalings, or wide rows: what they say, and what the report offers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance import Report, check
from tests.support.helpers import SMALL, options_of

Function = Callable[..., Any]
FEW = {"batch": 2, "heads": 2, "length": 8, "model_width": 16}
QUICK: dict[str, Any] = {"effort": "quick", "seed": 1, "shrink": False, "dtypes": "float32", "arrays": "numpy"}


def judged(function: Function, operation: str, **given: Any) -> Report:
    return check(function, operation, **QUICK | given)


def rotary(x: Any, positions: Any, *, base: float = 10000.0) -> Any:
    """Of neighbouring columns, and of no others."""
    return reference_numpy.rotary_embedding(x, positions, base=base, pairing="interleaved")


def halves(x: Any, positions: Any, *, base: float = 10000.0) -> Any:
    return reference_numpy.rotary_embedding(x, positions, base=base)


def scaled(x: Any, positions: Any, *, base: float = 10000.0, scaling: Any = None, length: Any = None) -> Any:
    if type(scaling).__name__ not in ("NoneType", "LinearScaling", "YarnScaling"):
        raise NotImplementedError(type(scaling).__name__)
    return reference_numpy.rotary_embedding(x, positions, base=base, scaling=scaling, length=length)


def adam(parameters: Any, gradients: Any, state: Any, *, learning_rate: float, beta_1: float = 0.9,
         beta_2: float = 0.999) -> Any:  # fmt: skip
    if not beta_1 or not beta_2:
        raise ValueError("betas must be above 0")
    betas = {"beta_1": beta_1, "beta_2": beta_2}
    return reference_numpy.adam_step(parameters, gradients, state, learning_rate=learning_rate, **betas)


@pytest.mark.rule("OPT-1")
def test_an_optimizer_that_refuses_betas_of_0_says_so() -> None:
    report = judged(adam, "adam_step")
    assert [violation.lacks for violation in report.violations] == [("zero_betas",)]
    assert judged(adam, "adam_step", supports="no-zero_betas").conforms


def fused(parameters: Any, query: Any, key: Any, value: Any, num_heads: int, *, mask: Any = None) -> Any:
    width = parameters.query.weight.shape[1]
    assert width % num_heads == 0
    return reference_numpy.multi_head_attention(parameters, query, key, value, num_heads=num_heads, mask=mask)


def separate(parameters: Any, query: Any, key: Any, value: Any, num_heads: int, *, mask: Any = None) -> Any:
    assert isinstance(parameters.query, list)
    return reference_numpy.multi_head_attention(parameters, query, key, value, num_heads=num_heads, mask=mask)


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    return reference_numpy.layer_norm(x, weight, bias + np.zeros_like(weight), eps=eps)


def unbiased(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
    if bias is not None:
        raise NotImplementedError("a bias")
    return reference_numpy.layer_norm(x, weight, None, eps=eps)


def wide_rows(function: Function, least: int, x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
    if weight.size < least:
        raise ValueError("a narrow row")
    return function(x, weight, bias, eps=eps)


@pytest.mark.parametrize(
    ("function", "operation", "option", "given"),
    [
        (fused, "multi_head_attention", "--supports no-separate", {"limits": SMALL}),
        (separate, "multi_head_attention", "--supports no-fused", {"limits": SMALL}),
        (layer_norm, "layer_norm", "--supports no-unbiased", {}),
        (unbiased, "layer_norm", "--supports no-biased", {}),
        (scaled, "rotary_embedding", "--scalings linear,yarn", {"limits": FEW}),
    ],
    ids=["fused", "separate", "biased", "unbiased", "scalings"],
)
def test_a_structure_that_is_not_taken_is_offered_and_declared(
    function: Function, operation: str, option: str, given: dict[str, Any]
) -> None:
    report = judged(function, operation, **given)
    assert not report.conforms
    assert options_of(report) == [option] * len(report.causes)
    name, value = option.removeprefix("--").split()
    report = judged(function, operation, **given, **{name: value})
    assert report.conforms, report.violations
    assert report.cases > 10


def test_only_neighbours_turn() -> None:
    report = judged(rotary, "rotary_embedding", supports="no-halves", limits=FEW)
    assert report.conforms, report.violations
    assert report.cases > 10
    assert not judged(halves, "rotary_embedding", supports="no-halves", limits=FEW).conforms


@pytest.mark.parametrize(("declared", "conforms"), [(24, True), (16, False)])
def test_the_least_width(declared: int, conforms: bool) -> None:
    function = partial(wide_rows, reference_numpy.layer_norm, 24)
    report = judged(lambda x, weight, bias=None, *, eps=1e-5: function(x, weight, bias, eps=eps), "layer_norm",
                    least=f"norm_width={declared}", supports="no-axes,no-empty")  # fmt: skip
    assert report.conforms == conforms, report.violations


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"supports": "no-fused,no-separate"}, "supports: neither fused nor separate leaves"),
        ({"supports": "no-halves"}, "feature halves means nothing for multi_head_attention"),
        ({"scalings": "linear"}, "scalings means nothing for multi_head_attention"),
        ({"least": "rows=3"}, "least: got 'rows', expected one of"),
        ({"least": "key_width=0"}, "least key_width must be a whole number of at least 1"),
        ({"least": "key_width=16", "limits": "key_width=8"}, "limit of key_width is below the least, 16"),
    ],
)
def test_what_leaves_or_means_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judged(fused, "multi_head_attention", **given)


@pytest.mark.parametrize(
    ("operation", "given", "message"),
    [
        (
            "layer_norm",
            {"least": "norm_width=20", "limits": "norm_width=23", "width_multiple": 8},
            "below the least, 24",
        ),
        ("attention", {"least": "key_width=100", "head_widths": "64"}, "below the least key_width, 100"),
    ],
    ids=["multiple", "heads"],
)
def test_a_least_width_that_leaves_none_is_refused(operation: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judged(getattr(reference_numpy, operation), operation, **given)
