"""The ranges of keys that an engine skips, or leaves unmasked, against the masks themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_impl  # noqa: F401  (makes the descriptions pytrees)
from conformance.sampling.strategies import attention_cases
from reference_numpy import materialize
from specification.key_ranges import KeyRanges, key_ranges, starts
from specification.masks import Causal, KeyLengths, KeyPadding, Segments, SlidingWindow, as_mask, map_arrays


def of_mask(
    mask: Any, sizes: tuple[int, int, int, int], block: int, xp: Any = np, at_segments: bool = False
) -> KeyRanges:
    """The ranges for sizes [B, H, Q, K], each checked against the mask as an array."""
    B, H, Q, K = sizes
    block = min(block, Q)
    mask = map_arrays(as_mask(mask), xp.asarray)
    begin = starts(mask, Q, block) if at_segments else None
    count = -(-Q // block) if begin is None else len(begin)
    ranges = KeyRanges(*(np.broadcast_to(edge, (B, count)) for edge in key_ranges(mask, Q, K, block, xp, begin)))
    allowed = np.broadcast_to(materialize(map_arrays(mask, np.asarray), Q, K, batch=B, heads=H), sizes)
    for b in range(B):
        for i, (first, stop, full_first, full_stop) in enumerate(zip(*(edge[b] for edge in ranges), strict=True)):
            start = min(i * block, Q - block) if begin is None else begin[i]
            end = start + block if begin is None else [*begin[1:], Q][i]
            assert 0 < end - start <= block
            rows = allowed[b, :, start:end]
            assert all(0 <= edge <= K for edge in (first, stop, full_first, full_stop))
            assert not rows[..., :first].any()
            assert not rows[..., max(stop, first) :].any()
            assert rows[..., full_first : max(full_stop, full_first)].all()
    return ranges


@given(attention_cases(mask="any", gradients=False, dtypes=("float32",)), st.sampled_from((1, 3, 8, 64)), st.booleans())
def test_ranges_are_safe(case: Any, block: int, at_segments: bool) -> None:
    B, H, Q, _ = case.inputs["query"].shape
    of_mask(case.options["mask"], (B, H, Q, case.inputs["key"].shape[2]), block, at_segments=at_segments)


def test_blocks_begin_with_segments() -> None:
    ids = np.repeat([[4, 1, 7]], [6, 9, 5], axis=1)
    packed = Segments(ids, ids)
    assert starts(packed, 20, 4).tolist() == [0, 4, 6, 10, 14, 15, 19]
    found = of_mask(packed, (1, 1, 20, 20), 4, at_segments=True)
    assert np.stack(found)[:, 0].T.tolist() == [[0, 6, 0, 6]] * 2 + [[6, 15, 6, 15]] * 3 + [[15, 20, 15, 20]] * 2
    other = Segments(np.repeat([[0, 1]], [3, 17], axis=1), ids)
    assert starts((packed & Causal()) | other, 20, 6).tolist() == [0, 3, 6, 12, 15]
    assert starts(packed, 20, 20).tolist() == [0]  # more segments than blocks
    assert starts(Causal(), 20, 8).tolist() == [0, 8, 16]


@pytest.mark.parametrize("block", [1, 5, 8])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        Causal(),
        Causal([0, 3]),
        SlidingWindow(4, None),
        SlidingWindow(3, 2) & KeyLengths([20, 9]),
        KeyLengths(np.array([20, 9], np.uint8)) & Causal(np.array([0, 3], np.uint8)),
        SlidingWindow(2, 0) | KeyPadding(np.arange(20) < np.array([[4], [20]])),
        Segments(np.arange(20)[None] // 7, np.arange(20)[None] // 7) & Causal(),
        np.tri(20, dtype=bool),
    ],
)
@pytest.mark.slow_where(unless="-5")
def test_numpy_and_jax_agree(mask: Any, block: int) -> None:
    expected = of_mask(mask, (2, 3, 20, 20), block)
    np.testing.assert_array_equal(expected, of_mask(mask, (2, 3, 20, 20), block, jnp))
    mask = map_arrays(as_mask(mask), jnp.asarray)
    traced = jax.jit(lambda mask: key_ranges(mask, 20, 20, block, jnp))(mask)
    np.testing.assert_array_equal(expected, [np.broadcast_to(edge, expected.first.shape) for edge in traced])


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [(0, 12, 0, 12)] * 3),
        (Causal(), [(0, 4, 0, 1), (0, 8, 0, 5), (0, 12, 0, 9)]),
        (SlidingWindow(2, 0), [(0, 4, 1, 1), (2, 8, 5, 5), (6, 12, 9, 9)]),
        (KeyLengths([7]), [(0, 7, 0, 7)] * 3),
        (KeyPadding([[False] * 3 + [True] * 9]), [(3, 12, 3, 12)] * 3),
        (Segments([[0] * 6 + [1] * 6], [[0] * 6 + [1] * 6]), [(0, 6, 0, 6), (0, 12, 0, 0), (6, 12, 6, 12)]),
        (Causal() & KeyLengths([7]), [(0, 4, 0, 1), (0, 7, 0, 5), (0, 7, 0, 7)]),
        (KeyLengths([3]) | Causal(-5), [(0, 3, 0, 3), (0, 3, 0, 3), (0, 7, 0, 4)]),
        (KeyLengths([0]) | Causal(-5), [(0, 0, 0, 0), (0, 3, 0, 0), (0, 7, 0, 4)]),
        (np.arange(12) % 4 < np.ones((12, 1)), [(0, 9, 0, 0)] * 3),
    ],
)
def test_ranges_are_sharp(mask: Any, expected: list[tuple[int, ...]]) -> None:
    """What a range rules out is all that it could: an engine that skipped nothing would pass the other tests."""
    found = of_mask(mask, (1, 1, 12, 12), 4)
    empty = [full_stop <= full_first for *_, full_first, full_stop in expected]
    for i, edges in enumerate(expected):
        got = tuple(int(edge[0, i]) for edge in found)
        assert got[:2] == edges[:2]
        assert (got[3] <= got[2]) if empty[i] else got[2:] == edges[2:]


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize("far", [2**30, 2**30 - 1, -(2**30)])
def test_the_farthest_numbers(far: int, xp: Any) -> None:
    for mask in (Causal(far), Causal([far, 0]), SlidingWindow(2**30, 2**30, far), SlidingWindow(0, None, far)):
        of_mask(mask, (2, 1, 9, 5), 4, xp)
