"""Latent attention: what one can check by hand, edge cases, and its two forms."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

from conformance.cases.arguments import name_arguments
from specification import Causal, KeyLengths, KeyPadding, LatentAttention, Linear, Norm
from specification.configuration import AttentionLayer, Configuration
from specification.rotary import Rotary, Rotation
from tests.support.helpers import Case, Implementation, bound, oracle

B, T, E, H, D, R, V, C = 2, 4, 6, 3, 3, 2, 5, 4
SIZES: dict[str, Any] = {"num_heads": H, "rotary_width": R}
FORMS = pytest.mark.parametrize("absorbed", [False, True], ids=["expanded", "absorbed"])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).normal(size=shape).astype(np.float32)


def parameters(compressed: bool = False) -> LatentAttention:
    """Three heads with keys of 3 + 2 columns and values of 5, latents of 4, queries from 3 columns if compressed."""
    down, norm = (Linear(numbers(E, 3), numbers(3)), Norm(numbers(3))) if compressed else (None, None)
    return LatentAttention(
        Linear(numbers(3 if compressed else E, H * (D + R))), Linear(numbers(E, C + R), numbers(C + R)),
        Norm(numbers(C)), Linear(numbers(C, H * (D + V))), Linear(numbers(H * V, 7), numbers(7)), down, norm,
    )  # fmt: skip


def case_of(layers: LatentAttention, x: np.ndarray, **options: Any) -> Case:
    """The call as a case of the judge's."""
    inputs, options = name_arguments("latent_attention", {"parameters": layers, "x": x} | options)
    return Case("latent_attention", "float32", inputs, options)


def attend(implementation: Implementation, x: np.ndarray, **options: Any) -> np.ndarray:
    return implementation.call("latent_attention", parameters(), x, **SIZES | options)


@pytest.mark.rule("MLA-1", "MLA-2")
def test_one_head_of_one_latent_by_hand(implementation: Implementation) -> None:
    """C, D and V are 1, R is 2 and positions are 0: a norm of one column leaves its sign, and nothing is rotated.

    The latents are 1 and -1, keys (2, 3, 0) and (-2, 3, 0) beside queries (5, 7, 0): scores are a multiple of 10 + 21
    and -10 + 21, whose softmax is that of 10 and -10. Values are 11 and -11.
    """
    tokens = np.array([[[1.0], [-1.0]]], np.float32)
    layers = LatentAttention(
        Linear(np.zeros((1, 3), np.float32), np.array([5, 7, 0], np.float32)),
        Linear(np.array([[1, 0, 0]], np.float32), np.array([0, 3, 0], np.float32)),
        Norm(np.ones(1, np.float32)), Linear(np.array([[2, 11]], np.float32)), Linear(np.ones((1, 1), np.float32)),
    )  # fmt: skip
    right = 11 * math.tanh(10 * 0.05)
    options: Any = {"num_heads": 1, "rotary_width": 2, "positions": np.zeros(2, int), "scale": 0.05, "eps": 2.0**-126}
    for absorbed in (False, True):
        found = implementation.call("latent_attention", layers, tokens, absorbed=absorbed, **options)
        error = bound(case_of(layers, tokens, **options))["output"]
        assert (np.abs(found - np.array([[[right], [right]]])) <= error).all(), absorbed


@FORMS
@pytest.mark.rule("MLA-1", "MLA-2", "ATT-6")
def test_an_empty_row_gives_the_bias(implementation: Implementation, absorbed: bool) -> None:
    found = attend(implementation, numbers(B, T, E), mask=KeyLengths(np.array([0, 2])), absorbed=absorbed)
    np.testing.assert_array_equal(found[0], np.broadcast_to(numbers(7), (T, 7)))
    assert np.isfinite(found).all()
    assert (found[1] != numbers(7)).any()


@FORMS
@pytest.mark.rule("MLA-1", "MLA-2")
@pytest.mark.parametrize("shape", [(B, 0, E), (0, T, E)])
def test_nothing(implementation: Implementation, absorbed: bool, shape: tuple[int, ...]) -> None:
    assert attend(implementation, np.zeros(shape, np.float32), absorbed=absorbed).shape == (*shape[:2], 7)


@FORMS
@pytest.mark.rule("MLA-1", "MLA-2", "MASK-7")
def test_a_hidden_token_reaches_no_other(implementation: Implementation, absorbed: bool) -> None:
    x, hidden = numbers(B, T, E), np.array([[True] * T, [True, True, False, True]])
    x[1, 2, 0] = np.nan
    found = attend(implementation, x, mask=KeyPadding(hidden), absorbed=absorbed)
    np.testing.assert_array_equal(np.isfinite(found), np.broadcast_to(hidden[..., None], found.shape))


@FORMS
@pytest.mark.rule("MLA-1", "MLA-2", "ATT-10")
def test_an_attended_nan_reaches_those_that_attend(implementation: Implementation, absorbed: bool) -> None:
    x = numbers(B, T, E)
    x[1, 2, 0] = np.nan
    found = attend(implementation, x, mask=Causal(), absorbed=absorbed)
    np.testing.assert_array_equal(np.isnan(found).all(axis=2), np.isnan(found).any(axis=2))
    np.testing.assert_array_equal(np.isnan(found[..., 0]), [[False] * T, [False, False, True, True]])


@FORMS
@pytest.mark.rule("MLA-1", "MLA-2")
def test_defaults(implementation: Implementation, absorbed: bool) -> None:
    """The scale is that of both parts of a key, positions count from 0, eps is 1e-6, neighbours are pairs."""
    x = numbers(B, T, E)
    given = {"scale": 1 / math.sqrt(D + R), "positions": np.arange(T), "eps": 1e-6, "pairing": "interleaved"}
    given |= {"base": 10000.0, "scaling": None, "length": None, "mask": None}
    found = attend(implementation, x, absorbed=absorbed)
    np.testing.assert_array_equal(found, attend(implementation, x, absorbed=absorbed, **given))


@pytest.mark.rule("MLA-1")
@pytest.mark.parametrize(("name", "value"), [("softcap", 2.0), ("empty_rows", "nan")])
def test_a_block_refuses_what_latent_attention_lacks(implementation: Implementation, name: str, value: Any) -> None:
    blocks = importlib.import_module(f"{implementation.package}.blocks")
    layers, x = implementation.convert((parameters()._replace(output=Linear(numbers(H * V, E))), numbers(B, T, E)))
    layer, options = AttentionLayer(rotary=Rotary(width=R)), {name: value}
    blocks.attend(layers, x, x, None, None, Configuration(H), layer)
    with pytest.raises(ValueError, match=rf"configuration.{name} must be .* with latent attention, got .?{value}"):
        blocks.attend(layers, x, x, None, None, Configuration(H, **options), layer)


@pytest.mark.rule("MLA-1")
def test_one_token_attends_to_itself(implementation: Implementation) -> None:
    """So that its value is what it gets, rounded where projections and norms are and nowhere else."""
    x, given = numbers(B, 1, E), implementation.convert(parameters())
    heads = importlib.import_module(f"{implementation.package}.multi_head_attention")
    down = heads.linear(given.key_value_down, implementation.convert(x))[..., :C]
    latent = implementation.rms_norm(down, given.key_value_norm.weight, eps=1e-6)
    values = heads.linear(given.key_value_up, latent).reshape(B, 1, H, D + V)[..., D:].reshape(B, 1, H * V)
    expected = implementation.subject.framework.numpy(heads.linear(given.output, values))
    np.testing.assert_array_equal(attend(implementation, x), expected)


@FORMS
@pytest.mark.rule("MLA-1", "MLA-2")
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_a_cache_of_latents_gives_what_the_whole_gives(
    implementation: Implementation, absorbed: bool, compressed: bool
) -> None:
    """One token after another, each beside the latents and rotated keys of those before it."""
    file, rotary = (
        importlib.import_module(f"{implementation.package}.{name}") for name in ("latent_attention", "rotary")
    )
    layers, x, numpy = parameters(compressed), numbers(B, T, E), implementation.subject.framework.numpy
    case = case_of(layers, x, **SIZES, mask=Causal(), absorbed=absorbed)
    exact, error = oracle(case)["output"].high, bound(case)["output"]
    given = implementation.convert(layers)
    cached: list[list[np.ndarray]] = [[], []]
    for t in range(T):
        token, position = implementation.convert(x[:, t : t + 1]), implementation.convert(np.array([t]))
        rotation = Rotation(*rotary.rotary_table(position, R, 10000.0, None, None, "float32"))
        queries = file.project_latent_queries(given, token, H, rotation, "interleaved", 1e-6)
        for held, new in zip(cached, file.project_latents(given, token, rotation, "interleaved", 1e-6), strict=True):
            held.append(numpy(new))
        latents, keys = (implementation.convert(np.concatenate(held, axis=1)) for held in cached)
        found = numpy(file.attend_to_latents(given, queries, latents, keys, mask=None, absorbed=absorbed))
        assert (np.abs(found[:, 0] - exact[:, t]) <= error[:, t]).all()
    assert latents.shape == (B, T, C)
    assert keys.shape == (B, T, R)
