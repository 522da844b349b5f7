"""Rotary embeddings: values that one can check by hand, positions far out, and what each framework cannot read."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import jax
import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
import torch_impl
from conformance.checks.encoding import decode, encode
from specification import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from specification.frequencies import CONTEXT, DIGIT_BITS, DIGITS, TURN, exact_frequencies, turn_digits
from specification.rotary import SCALINGS
from tests.support.helpers import REFERENCE, Case, Implementation, bound

LONG = LongRopeScaling(short_factors=(1.0, 2.0), long_factors=(4.0, 8.0), original_length=8, factor=4.0)


def rotated(implementation: Implementation, x: np.ndarray, positions: Any, **options: Any) -> np.ndarray:
    return implementation.call("rotary_embedding", x, np.array(positions), **options)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape).astype(dtype)


@pytest.mark.rule("POS-3")
def test_one_radian(implementation: Implementation) -> None:
    """The first pair turns by a radian from one position to the next, the second, with base 100, by a tenth."""
    x = np.array([1.0, 2.0, 0.0, 0.0], np.float32).reshape(1, 1, 1, 4)
    options = {"base": 100.0}
    found = rotated(implementation, x, [3], **options)[0, 0, 0]
    right = [math.cos(3), 2 * math.cos(0.3), math.sin(3), 2 * math.sin(0.3)]
    error = bound(Case("rotary_embedding", "float32", {"x": x, "positions": np.array([3])}, options))["output"]
    assert (np.abs(found - right) <= error[0, 0, 0]).all()
    neighbours = rotated(implementation, x[..., [0, 2, 1, 3]], [3], pairing="interleaved", **options)[0, 0, 0]
    np.testing.assert_array_equal(neighbours, found[[0, 2, 1, 3]])


@pytest.mark.rule("POS-3")
def test_whole_turns_are_dropped_exactly(implementation: Implementation) -> None:
    """Positions at which the first pair, which turns by a radian, has turned nearly whole: 2 q for p / q near pi."""
    positions = [2 * 355, 2 * 103993, 2 * 312689, 2 * 411557987]
    x = np.array([1.0, 0.0], np.float32).reshape(1, 1, 1, 2).repeat(len(positions), 2)
    for row, position in zip(rotated(implementation, x, positions)[0, 0], positions, strict=True):
        left = float((position + TURN / 2) % TURN - TURN / 2)
        assert abs(left) < 1e-4
        assert row[0] == 1
        assert abs(row[1] - math.sin(left)) <= 2.0**-38 + 2.0**-22 * abs(left)


@pytest.mark.rule("POS-3")
def test_columns_that_stay_keep_their_bits(implementation: Implementation) -> None:
    x = numbers(1, 2, 3, 7)
    x[..., 4:] = np.array([-0.0, np.nan, np.inf], np.float32)
    found = rotated(implementation, x, [5, 9, 2**30], rotary_width=4)
    assert found[..., 4:].tobytes() == x[..., 4:].tobytes()
    assert np.isfinite(found[..., :4]).all()
    assert not np.array_equal(found[..., :4], x[..., :4])


@pytest.mark.rule("POS-3")
def test_scores_depend_on_distances_alone(implementation: Implementation) -> None:
    """In float64, at the far end of all positions too."""
    query, key = numbers(1, 1, 1, 8, dtype=np.float64), numbers(1, 1, 1, 8, dtype=np.float64)[..., ::-1].copy()
    with jax.enable_x64(True):
        near, far = (
            np.sum(rotated(implementation, query, [start + 5]) * rotated(implementation, key, [start]))
            for start in (0, 2**30 - 5)
        )
    assert abs(near - far) < 1e-13


@pytest.mark.rule("POS-3")
def test_positions_that_cannot_be_read() -> None:
    """Out of range they give NaN, in range the numbers that they give otherwise."""
    x, positions = numbers(2, 3, 4, 6), np.array([[0, 7, 2**30, 2**30 + 1], [-1, 5, 100_000, 3]])
    bad = (positions < 0) | (positions > 2**30)
    right = rotated(REFERENCE, x, np.where(bad, 0, positions))
    with jax.enable_x64(False):
        traced = jax.jit(jax_impl.rotary_embedding)(x, positions.astype(np.int32))
    mapped = torch.func.vmap(lambda row: torch_impl.rotary_embedding(torch.from_numpy(x), row))
    several = mapped(torch.from_numpy(positions)[None])[0]
    for found in (np.asarray(traced), several.numpy()):
        assert np.isnan(found).any((1, 3)).tolist() == bad.tolist()
        np.testing.assert_allclose(np.where(np.isnan(found), right, found), right, atol=1e-6)


@pytest.mark.rule("POS-4")
def test_a_length_that_cannot_be_read_must_be_given() -> None:
    x, positions = numbers(1, 1, 2, 4), np.array([3, 20], np.int32)
    with pytest.raises(ValueError, match="length must be given for LongRopeScaling where positions cannot be read"):
        jax.jit(lambda p: jax_impl.rotary_embedding(x, p, scaling=LONG))(positions)
    traced = jax.jit(lambda p: jax_impl.rotary_embedding(x, p, scaling=LONG, length=21))(positions)
    np.testing.assert_allclose(traced, rotated(REFERENCE, x, positions, scaling=LONG), atol=1e-6)


@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_positions_of_every_integer_dtype(implementation: Implementation, dtype: str) -> None:
    x, positions = numbers(1, 2, 3, 4), np.array([0, 90, 127])
    np.testing.assert_array_equal(
        rotated(implementation, x, positions.astype(dtype)), rotated(implementation, x, positions)
    )


@pytest.mark.rule("POS-4")
def test_the_largest_position_decides_the_length(implementation: Implementation) -> None:
    x = numbers(1, 1, 2, 4)
    for last, length in ((7, 8), (8, 9)):
        found = rotated(implementation, x, [1, last], scaling=LONG)
        np.testing.assert_array_equal(found, rotated(implementation, x, [1, last], scaling=LONG, length=length))
    assert not np.array_equal(
        rotated(implementation, x, [1, 7], scaling=LONG), rotated(implementation, x, [1, 7], scaling=LONG, length=9)
    )


@pytest.mark.rule("POS-4")
def test_frequencies_by_hand() -> None:
    frequencies, factor = reference_numpy.rotary_frequencies(4, 100.0)
    assert frequencies.tolist() == [1.0, 0.1]
    assert factor == 1.0
    assert reference_numpy.rotary_frequencies(4, 100.0, LinearScaling(factor=4.0))[0].tolist() == [0.25, 0.025]
    frequencies, factor = reference_numpy.rotary_frequencies(4, 100.0, LONG, length=9)
    assert frequencies.tolist() == [0.25, 0.0125]
    assert factor == math.sqrt(1 + math.log(4) / math.log(8))
    assert reference_numpy.rotary_frequencies(4, 100.0, LONG, length=8)[0].tolist() == [1.0, 0.05]
    twice = DynamicScaling(factor=2.0, original_length=10)  # a length of 20 has the base 100 * 3^2
    assert reference_numpy.rotary_frequencies(4, 100.0, twice, length=20)[0].tolist() == [1.0, 1 / 30]
    # With L / 2 pi = 1000 turns of the first pair and 100 of the second, in radians 2000 pi and 200 pi.
    ramp = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=10)
    kept = (10 / (2 * math.pi) - 1) / 3
    np.testing.assert_allclose(
        reference_numpy.rotary_frequencies(4, 100.0, ramp)[0], [kept + (1 - kept) / 8, 0.1 / 8], rtol=1e-15
    )
    slow = YarnScaling(factor=math.e, original_length=4096, beta_fast=32.0)
    assert reference_numpy.rotary_frequencies(4, 100.0, slow)[1] == pytest.approx(1.1, abs=1e-15)


@pytest.mark.rule("POS-4")
def test_frequencies_in_jax_without_64_bits() -> None:
    with jax.enable_x64(False):
        narrow = jax_impl.rotary_frequencies(8, 10000.0)[0]
    assert narrow.dtype == np.float32
    with jax.enable_x64(True):
        wide = jax_impl.rotary_frequencies(8, 10000.0)[0]
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(narrow, np.asarray(wide).astype(np.float32))


@pytest.mark.rule("POS-3")
def test_digits_of_a_turn() -> None:
    """They are the fraction, cut off below 2^-90, and have no whole turns."""
    digits = turn_digits(8, 10000.0, None, None)
    assert len(digits) == DIGITS
    with localcontext(CONTEXT):
        for pair, frequency in enumerate(exact_frequencies(8, 10000.0, None, None)):
            whole = sum(digit[pair] << DIGIT_BITS * (DIGITS - 1 - i) for i, digit in enumerate(digits))
            assert 0 <= frequency / TURN - Decimal(whole) / 2 ** (DIGITS * DIGIT_BITS) < Decimal(2) ** -90


@pytest.mark.rule("POS-3")
def test_compiled_in_pytorch() -> None:
    ramp = YarnScaling(factor=4.0, original_length=2048)
    x, positions = torch.from_numpy(numbers(2, 3, 4, 8)), torch.tensor([0, 9, 70000, 2**30])
    call = torch.compile(lambda x, p: torch_impl.rotary_embedding(x, p, scaling=ramp), fullgraph=True, backend="eager")
    torch.testing.assert_close(call(x, positions), torch_impl.rotary_embedding(x, positions, scaling=ramp))


@pytest.mark.rule("POS-4")
def test_a_case_with_a_scaling_can_be_written_down() -> None:
    assert {kind.__name__ for kind in SCALINGS} == {
        "LinearScaling", "DynamicScaling", "YarnScaling", "Llama3Scaling", "LongRopeScaling",
    }  # fmt: skip
    case = Case("rotary_embedding", "float32", {"x": numbers(1, 1, 1, 4), "positions": np.arange(1)}, {"scaling": LONG})
    assert decode(encode(case)).options["scaling"] == LONG


@pytest.mark.slow
@pytest.mark.rule("POS-4")
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3", "longrope"])
def test_scalings_as_transformers_computes_them(kind: str) -> None:
    """In float32, and the attention factor in Python's floats."""
    transformers = pytest.importorskip("transformers")
    computed = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS[kind]
    rng = np.random.default_rng(3)
    for _ in range(40):
        width, base = int(rng.choice([4, 8, 64, 128])), float(rng.choice([1e4, 5e5, 1e6]))
        s, L = float(rng.choice([1.5, 4, 32])), int(rng.choice([2048, 8192]))
        length, truncate = int(rng.choice([10, L, L + 1, 4 * L])), bool(rng.integers(2))
        short, long = (tuple(np.round(1 + top * rng.random(width // 2), 2).tolist()) for top in (1, 30))
        original = {"original_max_position_embeddings": L}
        scaling, names = {
            "linear": (LinearScaling(factor=s), {}),
            "dynamic": (DynamicScaling(factor=s, original_length=L), {}),
            "yarn": (YarnScaling(factor=s, original_length=L, truncate=truncate), {"truncate": truncate} | original),
            "llama3": (
                Llama3Scaling(factor=s, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=L),
                {"low_freq_factor": 1.0, "high_freq_factor": 4.0} | original,
            ),
            "longrope": (
                LongRopeScaling(short_factors=short, long_factors=long, original_length=L, factor=s),
                {"short_factor": list(short), "long_factor": list(long)} | original,
            ),
        }[kind]
        rope = {"rope_type": kind, "rope_theta": base, "factor": s} | names
        longest = L if kind == "dynamic" else int(s * L)
        config = transformers.LlamaConfig(
            hidden_size=2 * width, num_attention_heads=2, max_position_embeddings=longest, rope_parameters=rope
        )
        theirs, their_factor = computed(config, "cpu", seq_len=length)
        ours, factor = reference_numpy.rotary_frequencies(width, base, scaling, length=length)
        np.testing.assert_allclose(theirs.numpy(), ours, rtol=2e-6)
        assert their_factor == pytest.approx(factor, rel=1e-14)
