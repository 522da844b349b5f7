"""Bounds of attention taken in blocks, and statistics of sampled rows: the parts are those of the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.bounds import attention as blocked
from conformance.bounds.arithmetic import Sums
from conformance.cases.expectations import allowed_pairs
from conformance.checks import results
from reference_numpy import attention_weights
from specification.masks import Causal, KeyLengths, SlidingWindow
from tests.support.helpers import Case, bound

B, H, G, Q, K, D, V = 5, 4, 2, 7, 6, 3, 2
RNG = np.random.default_rng(0)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def case(operation: str = "attention", bias: tuple[int, ...] = (), dtype: Any = np.float32, **options: Any) -> Case:
    inputs = {"query": random(B, H, Q, D, dtype=dtype), "key": random(B, G, K, D, dtype=dtype)}
    if operation == "attention":
        inputs["value"] = random(B, G, K, V, dtype=dtype)
    if options.pop("sinks", False):
        inputs["sinks"] = random(H, dtype=dtype)
    if bias:
        inputs["bias"] = random(*bias, dtype=dtype)
    last = {"attention": (V,), "attention_weights": (K,), "attention_logsumexp": ()}[operation]
    wide = np.float32 if operation == "attention_logsumexp" else dtype
    return Case(operation, np.dtype(dtype).name, inputs, options, {"output": random(B, H, Q, *last, dtype=wide)})


DROPOUT: dict[str, Any] = {"dropout_keep": RNG.random((B, H, Q, K)) < 0.7, "dropout_rate": 0.3}
LENGTHS = KeyLengths(np.array([6, 0, 3, 1, 5]))
CASES = {
    "plain": case(),
    "all features": case(bias=(B, H, Q, K), mask=Causal(1), softcap=2.0, sinks=True, **DROPOUT),
    "bias of all": case(bias=(Q, K), mask=SlidingWindow(2, 1, 0)),
    "bias by head": case(bias=(1, H, Q, K), sinks=True),
    "bias by batch element": case(bias=(B, 1, Q, K), mask=LENGTHS),
    "mean of empty rows": case(mask=LENGTHS & Causal(0), empty_rows="mean", **DROPOUT),
    "weights": case("attention_weights", (1, 1, Q, K), mask=LENGTHS, empty_rows="mean"),
    "log-sum-exp": case("attention_logsumexp", mask=LENGTHS, sinks=True),
    "declared": replace(
        case(bias=(Q, K), dtype=ml_dtypes.bfloat16, mask=Causal(0)),
        rounding={"weights": "bfloat16", "products": "bfloat16"},
    ),
}


def differing(of: Case, size: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The results whose bounds differ when blocks hold so many numbers."""
    whole = bound(of)
    with monkeypatch.context() as patch:
        patch.setattr(blocked, "BLOCK", size)
        patch.setattr(blocked, "LARGEST_BLOCK", size)
        parts = bound(of)
    assert parts.keys() == whole.keys()
    # float64's own rounding shows where the squares that an output's bound is made of cancel.
    close = {name: np.allclose(parts[name], a, rtol=1e-6 if name == "output" else 1e-11) for name, a in whole.items()}
    return [name for name, same in close.items() if not same]


@pytest.mark.parametrize("size", [1, 100, 400])
@pytest.mark.parametrize("name", CASES)
def test_in_blocks_as_in_one(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differing(CASES[name], size, monkeypatch)


@pytest.mark.parametrize("rows", [1, 8, 20])
def test_few_queries_of_many_in_a_block(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares are added up over all queries also where each block has so few that its absolute terms would do."""
    query, key, value, cotangent = (random(1, 1, length, D) for length in (200, 64, 64, 200))
    of = Case("attention", "float32", {"query": query, "key": key, "value": value}, {}, {"output": cotangent})
    assert not differing(of, rows * 64, monkeypatch)


def test_a_block_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "__add__", lambda self, other: self)
    assert differing(CASES["plain"], 1, monkeypatch) == ["gradient of key", "gradient of value"]


def test_a_block_that_counts_its_own_terms_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """gamma(n) of a block's n instead of that of all queries."""
    in_all: Any = blocked.some_elements

    def own_terms(kind: str, block: Any, settings: Any) -> Any:
        blocks = [block.queries(part) for part in blocked.slices(Q, blocked.BLOCK)]
        result, gradients = in_all(kind, block, settings)
        parts = [in_all(kind, part, settings)[1] for part in blocks]
        key = blocked.Approx(gradients.key.value, np.sum([part.key.error for part in parts], axis=0))
        return result, gradients._replace(key=key)

    monkeypatch.setattr(blocked, "some_elements", own_terms)
    assert differing(CASES["plain"], 1, monkeypatch) == ["gradient of key"]


@pytest.mark.parametrize("name", ["plain", "all features", "bias by head", "bias by batch element"])
@pytest.mark.parametrize("sample", [1, 2 * H * K, 3 * H * Q * K, 10**6])
def test_sampled_weights_are_those_of_some_rows(name: str, sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SAMPLE", sample)
    of = CASES[name]
    weights, several = results.sampled_weights(of, allowed_pairs(of))
    options = {n: of.options[n] for n in ("mask", "softcap") if n in of.options}
    wide: dict[str, Any] = {n: a.astype(np.float64) for n, a in of.inputs.items() if n != "value"}
    whole = attention_weights(**wide, **options)
    assert weights.size <= max(sample, H * K)
    assert several.shape == weights.shape[:-1]
    for element in weights.swapaxes(1, 2).reshape(-1, H, K):
        assert np.isclose(whole.swapaxes(1, 2), element, rtol=1e-12).all((-1, -2)).any()
