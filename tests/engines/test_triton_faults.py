"""Planted faults: every test of the Triton kernels can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.engines.test_triton import hidden, in_frames, lost_digits
from tests.support.engine_cases import agreement, module_of
from tests.support.triton_interpreter import TRITON, interpreted, large

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # wrong kernels divide by 0
]


def of_large(name: str) -> Callable[[], float]:
    return lambda: large(name).ratio


def of_small(name: str) -> Callable[[], float]:
    return lambda: agreement(TRITON, name).ratio


IN_SMALL = {
    "keys past the last one attended to": (
        "none",
        "tiles",
        "(columns < tl.load(reach + 2)) & (rows < Q)",
        "(rows < Q)",
    ),
    "window too narrow by one": ("window", "tiles", "distance >= tl.load(reach)", "distance > tl.load(reach)"),
    "lengths too long by one": ("lengths", "tiles", "columns < tl.load(reach + 2)", "columns <= tl.load(reach + 2)"),
    "padding not looked at": ("padding", "tiles", "if marks.keep is not None:", "if False:"),
    "segments not looked at": ("segments", "tiles", "if marks.query_ids is not None:", "if False:"),
    "array of every head the first one's": ("dense, per head", "tiles", " + head * tl.load(strides + 1)", ""),
    "scale forgotten": ("causal", "forward", "keys) * scale", "keys)"),
    "another key head": ("causal", "forward", "group = head // (H // G)", "group = head % G"),
    "empty rows NaN": ("causal, empty rows", "forward", 'larger == float("-inf"), 0.0', "False, 0.0"),
    "delta forgotten": ("causal", "backward", " - deltas[:, None]", ""),
    "scale forgotten in the queries' gradient": ("causal", "backward", "total * scale", "total"),
    "first head of a group only": ("causal", "backward", "in range(share)", "in range(1)"),
}
"""In a file of kernels a text becomes another one, and the error in a small case, of tiles of 8 by 16, is too large."""
IN_LARGE = {
    "low parts of weights dropped": ("causal, bfloat16", "tiles", "tl.static_range(3)", "tl.static_range(1)"),
    "low part of weights dropped, float16": ("causal, float16", "tiles", "tl.static_range(2)", "tl.static_range(1)"),
    "sums not shrunk": ("none, float32", "forward", "total_output * shrink[:, None]", "total_output"),
    "total not shrunk": ("none, float32", "forward", "total * shrink", "total"),
    "another mask in the keys' gradient": (
        "causal, float32", "backward", "rows[None, :], columns[:, None]", "rows[None, :], columns[:, None] + 1",
    ),
    "forbidden pairs have weights in the queries' gradient": (
        "lengths and causal, float32", "backward",
        "weights = tl.where(allowed, weights, 0.0)\n        values", "weights = weights\n        values",
    ),
}  # fmt: skip
"""The same in a large case, of tiles of 16 by 16."""
WRONG: dict[str, tuple[Callable[[], float], str, str, str]] = {
    "lowest part of weights dropped": (
        lambda: lost_digits(torch.bfloat16) / 2**-24, "tiles", "tl.static_range(3)", "tl.static_range(2)",
    ),
    "parts cut instead of rounded": (
        lambda: lost_digits(torch.float16) / 2**-23, "tiles", "tl.constexpr(1 << 12)", "tl.constexpr(0)",
    ),
    "read past the width": (in_frames, "tiles", "mask=inside, other", "mask=(rows < length)[:, None], other"),
}  # fmt: skip
"""The same with other ratios that must not be above 1."""
WRONG |= {name: (of_small(case), *edit) for name, (case, *edit) in IN_SMALL.items()}
WRONG |= {name: (of_large(case), *edit) for name, (case, *edit) in IN_LARGE.items()}


@pytest.mark.parametrize("name", WRONG)
def test_planted_fault_is_noticed(name: str, tmp_path: Path) -> None:
    ratio, file, old, new = WRONG[name]
    with interpreted((8, 16) if name in IN_SMALL else (16, 16), {file: (old, new)}, tmp_path):
        assert not ratio() <= 1


class Misled(NamedTuple):
    """`module.name` is changed, and the ratio that is asked for is above 1."""

    ratio: Callable[[], float]
    module: str
    name: str
    change: Callable[[Any], Any]


def after(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function's result is changed."""
    return lambda right: lambda *given: change(right(*given))


def last_queries_forgotten(ranges: Any) -> Any:
    return ranges - (ranges == ranges[..., 1].max())


MISLED = {
    "keys left out": Misled(
        of_large("window, float32"), "engines.triton.masks", "key_ranges", after(lambda r: r._replace(stop=r.stop - 16))
    ),
    "forbidden keys taken for full": Misled(
        of_large("causal, float32"), "engines.triton.masks", "key_ranges",
        after(lambda r: r._replace(stop=r.stop + 16, full_stop=r.full_stop + 16)),
    ),
    "queries left out of the keys' gradient": Misled(
        of_large("causal, float32"), "engines.triton.masks", "turned", after(last_queries_forgotten)
    ),
    "0 times NaN": Misled(
        lambda: hidden("value").ratio, "engines.fused_gpu", "size", lambda right: lambda tensor: 0.0
    ),
    "0 times infinity in the gradient": Misled(
        lambda: hidden("key").ratio, "engines.fused_gpu", "recomputed_alike", lambda right: lambda _: True
    ),
    "0 times a cotangent of NaN": Misled(
        lambda: hidden("cotangent").ratio, "engines.fused_gpu", "bounded", lambda right: lambda *given: True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISLED)
def test_misled_kernels_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = MISLED[name]
    module = module_of(TRITON, wrong.module)
    with interpreted((16, 16)):
        monkeypatch.setattr(module, wrong.name, wrong.change(getattr(module, wrong.name)))
        ratio = wrong.ratio()
    assert not ratio <= 1
