"""Functions with arguments that the definition lacks: ALiBi's slopes, and lengths of queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torch_impl
from conformance.cases.arguments import alibi, replace_kernel_arguments
from specification import KeyLengths
from tests.support.helpers import Case, Report, judged, names_of_causes, oracle

Function = Callable[..., Any]
Bias = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def judge_kernel(function: Function, *rules: str, **given: Any) -> Report:
    return judged(function, *rules, **{"arrays": "torch", "shrink": True} | given)


def distances(slopes: torch.Tensor, places: torch.Tensor, scale: float) -> torch.Tensor:
    return -slopes * places.abs()


def with_slopes(bias: Bias = distances, aligned: bool = True) -> Function:
    """bias: from slopes [B or 1, H, 1, 1], places [Q, K] and the scale. aligned: the last query is at the last key."""

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, alibi_slopes: Any) -> Any:
        Q, K = query.shape[2], key.shape[2]
        places = torch.arange(Q)[:, None] + (K - Q if aligned else 0) - torch.arange(K)
        slopes = None if alibi_slopes is None else torch.atleast_2d(alibi_slopes)[..., None, None]
        found = None if slopes is None else bias(slopes, places, query.shape[-1] ** -0.5 if scale is None else scale)
        return torch_impl.attention(query, key, value, mask=mask, scale=scale, bias=found)

    return attention


def test_the_bias_of_slopes() -> None:
    """Distances from the last key, by hand: two queries are at keys 1 and 2 of three."""
    one = [[-0.5, 0, -0.5], [-1, -0.5, 0]]
    np.testing.assert_array_equal(alibi(np.array([0.5]), 2, 3), [[one]])
    np.testing.assert_array_equal(alibi(np.array([[0.5], [1.0]]), 2, 3), [[one], [np.multiply(one, 2)]])


def in_other_units(slopes: torch.Tensor, places: torch.Tensor, scale: float) -> torch.Tensor:
    """As kernels compute it, in units of the scale and of log2(e)."""
    return distances(slopes / scale * (scale * np.log2(np.e)), places, scale) / np.log2(np.e)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_slopes_conform_in_every_dtype(dtype: str) -> None:
    for bias in (distances, in_other_units):
        assert names_of_causes(judge_kernel(with_slopes(bias), "ATT-3", "ATT-12", dtypes=[dtype])) == []


@pytest.mark.parametrize(
    ("name", "bias"),
    [
        ("alibi-from-first", None),
        ("alibi-sign", lambda slopes, places, scale: slopes * places.abs()),
        ("alibi-raises-later-keys", lambda slopes, places, scale: -slopes * places),
        ("alibi-scaled", lambda slopes, places, scale: -slopes * places.abs() * scale),
        ("alibi-of-other-heads", lambda slopes, places, scale: -slopes.flip(1) * places.abs()),
        ("alibi-of-batch-0", lambda slopes, places, scale: -slopes[:1] * places.abs()),
    ],
)
@pytest.mark.slow_where(unless="from-first")
def test_mistakes_in_slopes_are_told_by_name(name: str, bias: Bias | None) -> None:
    function = with_slopes(aligned=False) if bias is None else with_slopes(bias)
    assert names_of_causes(judge_kernel(function, "ATT-3")) == [("ATT-3", f"scores.{name}")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "effort"), [(torch.bfloat16, "quick"), (torch.float16, "default")], ids=["bfloat16", "float16"]
)
def test_slopes_in_16_bits_do_not_conform(dtype: torch.dtype, effort: str) -> None:
    def narrow(slopes: torch.Tensor, places: torch.Tensor, scale: float) -> torch.Tensor:
        return distances(slopes.to(dtype).to(slopes.dtype), places, scale)

    (cause,) = judge_kernel(with_slopes(narrow), "ATT-3", effort=effort).causes
    assert cause.diagnosis is not None
    assert str(cause.diagnosis.mistake) == f"scores.alibi-rounded (dtype={str(dtype).removeprefix('torch.')})"


# --- lengths of queries -----------------------------------------------------------------------------------------------


def with_lengths(real_of: Function = lambda real: real, beyond: float = float("nan")) -> Function:
    """real_of: from which rows are queries to those that are taken for queries. beyond: what stands in the others."""

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, query_lengths: Any = None) -> Any:
        if query_lengths is None:
            return torch_impl.attention(query, key, value, mask=mask)
        real = real_of(torch.arange(query.shape[2]) < query_lengths[:, None])[:, None, :, None]
        output = torch_impl.attention(torch.where(real, query, 0), key, value, mask=mask)
        return torch.where(real, output, beyond)

    return attention


def test_what_follows_the_queries() -> None:
    """It takes no part: with a length of 0, keys and values have gradients of 0, and nothing else is compared."""
    ones = np.ones((1, 1, 2, 1))
    inputs = {"query": ones, "key": ones, "value": ones, "query_lengths": np.array([0], np.int32)}
    case = Case("attention", "float64", inputs, {"mask": KeyLengths(np.array([1]))}, {"output": ones})
    assert not replace_kernel_arguments(case).cotangents["output"].any()
    assert all(not exact.high.any() for exact in oracle(case).values())


@pytest.mark.parametrize(
    ("beyond", "rules"),
    [
        (7.0, ["MASK-7"]),
        pytest.param(7.0, ["MASK-2", "ATT-12"], marks=pytest.mark.slow),
        pytest.param(float("nan"), ["MASK-2", "MASK-7"], marks=pytest.mark.slow),
    ],
)
def test_lengths_of_queries_conform(beyond: float, rules: list[str]) -> None:
    assert names_of_causes(judge_kernel(with_lengths(beyond=beyond), *rules)) == []


def test_what_follows_the_queries_must_not_be_read() -> None:
    everything = with_lengths(lambda real: torch.ones_like(real))
    assert [violation.rule for violation in judge_kernel(everything, "MASK-2", "MASK-7").violations] == [
        "MASK-2",
        "MASK-7",
    ]


def test_the_last_query_must_be_computed() -> None:
    def one_less(real: torch.Tensor) -> torch.Tensor:
        return real & torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], 1)

    assert names_of_causes(judge_kernel(with_lengths(one_less, beyond=0.0), "MASK-2", shrink=False))[0][0] == "MASK-2"


@pytest.mark.slow
def test_who_has_no_such_argument_is_not_asked() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, **options: Any) -> Any:
        assert not {"alibi_slopes", "query_lengths"} & options.keys()
        return torch_impl.attention(query, key, value, mask=mask, **options)

    assert names_of_causes(judge_kernel(attention, "MASK-2", "ATT-3", shrink=False)) == []
