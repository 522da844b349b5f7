"""Faults that show only past a size: right at toy sizes, wrong past their own, and never in what they are made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.sizes import Sizes
from conformance.checks.catalogue import AGREEMENT, truth_and_bounds
from conformance.judge.run import breaks
from conformance.runner.in_process import Runner
from conformance.sampling.draws import of_seed
from conformance.sampling.strategies import attention_cases, norm_cases
from conformance.selftest.faults import Fault, planted
from conformance.selftest.faults.thresholds import gradients, heads, keys, masks

SEED = 20260101
TOY = Sizes(2, 4, 2, 5, 7, 3, 6)


OF_ATTENTION = (*keys.FAULTS, *masks.FAULTS, *heads.FAULTS, *gradients.FAULTS)
"""They take the arguments of `attention` as they are."""


def shown(fault: Fault, cases: st.SearchStrategy[Case], seed: int = SEED) -> tuple[bool, bool]:
    """Whether a case shows the fault, and whether the right one passes it."""
    [case] = of_seed(cases, seed, False)
    wrong, right = (Runner(target.make()) for target in (fault.target(), fault.right_target()))
    shared = truth_and_bounds(case)
    return breaks(wrong(AGREEMENT, case, shared)), not breaks(right(AGREEMENT, case, shared))


def test_there_are_many_past_every_size() -> None:
    faults = [fault for fault in planted() if "thresholds" in fault.right.__module__]
    assert len(faults) >= 100
    for number in (64, 128, 1024, 32768, 65535):
        assert sum(str(number) in fault.name for fault in faults) >= 5


def test_names_differ() -> None:
    titles = [fault.title for fault in planted()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("fault", OF_ATTENTION, ids=lambda fault: fault.title)
def test_toy_sizes_show_nothing(fault: Fault) -> None:
    """The same bits as the right one's, with every feature and without."""
    features = ("scale", "softcap", "bias", "sinks", "dropout")
    declared = fault.target().make().declaration
    for focus in ((), features):
        mask = "any" if focus else "none"
        cases = attention_cases(mask=mask, focus=focus, dtypes=("float32",), plans=(TOY,), declaration=declared)
        [case] = of_seed(cases, SEED, False)
        got, want = fault.target().make()(case), fault.right_target().make()(case)
        assert all(np.array_equal(got[name], want[name], equal_nan=True) for name in want)


@pytest.mark.parametrize(
    ("title", "sizes", "given"),
    [
        ("ATT-8 keys past 64 left out", Sizes(1, 2, 1, 3, 71, 4, 4), {}),
        ("ATT-8 keys past 32768 left out", Sizes(1, 1, 1, 2, 65537, 2, 2), {}),
        ("ATT-8 last tile of 128 keys left out", Sizes(1, 2, 1, 3, 150, 4, 4), {}),
        ("ATT-8 last of whole tiles of 64 keys left out", Sizes(1, 2, 1, 3, 192, 4, 4), {}),
        ("ATT-8 queries past 1024 get the last answer", Sizes(1, 1, 1, 1025, 5, 4, 4), {}),
        ("ATT-8 columns of values past 128 get 0", Sizes(1, 1, 1, 3, 5, 8, 160), {}),
        ("ATT-8 batches times heads past 65535 get 0", Sizes(65537, 1, 1, 1, 3, 1, 1), {}),
        ("MASK-1 place in the mask in 16 bits", Sizes(1, 1, 1, 300, 300, 4, 4), {"mask": "dense"}),
        ("MASK-1 mask of the first of 32 queries for all", Sizes(1, 1, 1, 40, 9, 4, 4), {"mask": "dense"}),
        ("MASK-2 lengths in 16 bits", Sizes(2, 1, 1, 2, 40000, 2, 2), {"mask": "lengths"}),
        ("ATT-1 columns past 64 not in the product", Sizes(1, 2, 1, 3, 5, 80, 4), {}),
        ("ATT-1 default scale of a power of two past width 128", Sizes(1, 2, 1, 3, 5, 160, 4), {}),
        ("ATT-2 softcap forgotten past 1024 keys", Sizes(1, 2, 1, 3, 2048, 4, 4), {"focus": ("softcap",)}),
        ("ATT-3 bias past key 4096 ignored", Sizes(1, 2, 1, 3, 5000, 4, 4), {"focus": ("bias",)}),
        ("ATT-5 sinks forgotten past 2048 keys", Sizes(1, 2, 1, 3, 3000, 4, 4), {"focus": ("sinks",)}),
        ("ATT-7 groups of 12 counted as 8", Sizes(1, 24, 2, 3, 5, 4, 4), {}),
        ("ATT-11 keep mask moved past 64 keys", Sizes(1, 2, 1, 3, 71, 4, 4), {"focus": ("dropout",)}),
        ("ATT-12 keys' gradient without the last tile of 64", Sizes(1, 2, 1, 3, 71, 4, 4), {"focus": ("gradients",)}),
        ("ATT-12 bias's gradient of batch element 0 past 32 keys", Sizes(2, 2, 1, 3, 40, 4, 4), {"focus": ("bias",)}),
    ],
)
@pytest.mark.slow_where("65535")
@pytest.mark.slow_where("32768")
@pytest.mark.slow_where("lengths in 16 bits")
def test_attention_is_wrong_past_its_size(title: str, sizes: Sizes, given: dict[str, Any]) -> None:
    """In some of a few cases; the right one passes all of them."""
    fault = next(fault for fault in planted() if fault.title == title)
    cases = attention_cases(**{"mask": "none"} | given, dtypes=("float32",), plans=(sizes,), others=False)
    found = [shown(fault, cases, SEED + number) for number in range(4)]
    assert any(wrong for wrong, _ in found)
    assert all(right for _, right in found)


@pytest.mark.parametrize(
    ("title", "shape"),
    [
        ("NORM-1 columns past 32768 not written", (2, 40000)),
        ("NORM-1 rows past 65535 not written", (65537, 3)),
        ("NORM-1 variance divided by a width padded to 8", (3, 70)),
        ("NORM-6 last block of 128 rows lost in the weight's gradient", (130, 5)),
        ("NORM-6 last block of 32 rows lost in the weight's gradient (rms_norm)", (40, 5)),
    ],
)
def test_norms_are_wrong_past_their_size(title: str, shape: tuple[int, ...]) -> None:
    fault = next(fault for fault in planted() if fault.title == title)
    declared = fault.target().make().declaration
    cases = norm_cases(fault.operation, plans=((shape, 1),), dtypes=("float32",), declaration=declared)
    found = [shown(fault, cases, SEED + number) for number in range(4)]
    assert any(wrong for wrong, _ in found)
    assert all(right for _, right in found)
