"""Any two ranges of sizes occur together in some case, but for the pairs that are listed here.

docs/declarations.md says why they are left out: their exact results take too long, or too much memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, wraps
from inspect import signature
from itertools import chain, combinations, product
from typing import Any

import pytest
import torch

import torch_impl
from conformance import check
from conformance.cases import features
from conformance.sampling.draws import Rows, draw_from_seed
from conformance.sampling.plan import attention, layers
from conformance.sampling.plan.covering import Levels, Row
from tests.support.helpers import EVERYTHING, Case, catalogue

COMPILED = replace(EVERYTHING, compiled=True)
Pair = tuple[str, int, str, int]
"""Two dimensions, each with the smallest size of a range."""

HUGE_NORMS = {("rows", 1025, "norm_width", 16385)}
HUGE_NORMS |= {("rows", 16385, "norm_width", width) for width in (1025, 4097, 16385)}
LARGE_NORMS = {("rows", 1025, "norm_width", 4097)}
WIDE_NORMS = {("rows", 129, "norm_width", 16385), ("rows", 16385, "norm_width", 129)}
HUGE_LOSSES = {("rows", 1025, "classes", 30522), ("rows", 16385, "classes", 1025), ("rows", 16385, "classes", 30522)}
WIDE_LOSSES = {("rows", 129, "classes", 30522), ("rows", 16385, "classes", 255)}
HUGE_NETWORKS = {("rows", 16385, name, 1025) for name in ("model_width", "inner_width")}
WIDE_NETWORKS = {("rows", 16385, name, 129) for name in ("model_width", "inner_width")}
PAST_THE_TABLE = {("length", 1025, "vocabulary", 63)} | {("length", n, "vocabulary", 5) for n in (63, 255, 1025)}
NEVER: dict[str, set[Pair]] = {
    "layer_norm": HUGE_NORMS,
    "rms_norm": HUGE_NORMS,
    "standard_deviation_norm": HUGE_NORMS | LARGE_NORMS,
    "cross_entropy": HUGE_LOSSES,
    "nll_loss": HUGE_LOSSES,
    "embedding": {("rows", 16385, "model_width", 1025)},
    "learned_positions": PAST_THE_TABLE,
    "feed_forward": HUGE_NETWORKS,
    "gated_feed_forward": HUGE_NETWORKS,
}
THOROUGH_ONLY: dict[str, set[Pair]] = {
    "layer_norm": LARGE_NORMS,
    "rms_norm": LARGE_NORMS,
    "standard_deviation_norm": WIDE_NORMS,
    "cross_entropy": WIDE_LOSSES,
    "nll_loss": WIDE_LOSSES,
    "embedding": {("rows", 16385, "model_width", 129)},
    "feed_forward": WIDE_NETWORKS,
    "gated_feed_forward": WIDE_NETWORKS,
}


def pairs_apart(levels: Levels, rows: Sequence[Row]) -> set[Pair]:
    """The pairs of ranges that occur together in no row."""
    ranged = [name for name in levels if len(levels[name]) > 1]
    return {
        (one, low[0], other, high[0])
        for one, other in combinations(ranged, 2)
        for low, high in product(levels[one], levels[other])
        if not any(low[0] <= row[one] <= low[-1] and high[0] <= row[other] <= high[-1] for row in rows)
    }


@cache
def drawn_cases(operation: str, thorough: bool) -> list[Case]:
    """A case for each row of the plans that the default effort, or only the thorough one, gives once."""
    found: list[Case] = []
    for probe in catalogue(EVERYTHING):
        if probe.operations == (operation,) and isinstance(probe.cases, Rows) and probe.weight == 1:
            rows = probe.cases.later() if thorough else probe.cases.strategies
            found += chain.from_iterable(draw_from_seed(row, number, False) for number, row in enumerate(rows))
    return found


@pytest.mark.parametrize("operation", [name for name in layers.PLANS if len(layers.PLANS[name].values) > 1])
def test_ranges_meet_in_drawn_cases(operation: str) -> None:
    levels, never = dict(layers.levels_of(layers.PLANS[operation], False)), NEVER.get(operation, set())
    levels.pop("outer_width", None)
    rows = [features.dimensions(case) for case in drawn_cases(operation, False)]
    assert pairs_apart(levels, rows) == never | THOROUGH_ONLY.get(operation, set())
    rows += [features.dimensions(case) for case in drawn_cases(operation, True)]
    assert pairs_apart(levels, rows) == never


@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm"])
def test_ranges_meet_in_gradients_of_norms(operation: str) -> None:
    levels = dict(layers.levels_of(layers.PLANS[operation], False))
    rows = [features.dimensions(case) for case in drawn_cases(operation, False) if case.cotangents]
    assert pairs_apart(levels, rows) == HUGE_NORMS | LARGE_NORMS | WIDE_NORMS
    rows += [features.dimensions(case) for case in drawn_cases(operation, True) if case.cotangents]
    assert pairs_apart(levels, rows) == HUGE_NORMS | LARGE_NORMS


FULL_BATCHES = {("batch", 1023, "queries", 4097)}
LONG = {("queries", 1025, "keys", 4097)}
OF_ATTENTION: dict[str, tuple[set[Pair], set[Pair]]] = {
    "everything": (
        LONG | {("queries", 4097, "keys", 1025), ("batch", 1023, "queries", 1025), ("batch", 1023, "keys", 4097)},
        FULL_BATCHES | {("queries", 4097, "keys", 4097)},
    ),
    "lengths": (LONG, set()),
    "widths": (set(), set()),
    "features": (set(), set()),
    "merges": ({("batch", 1023, "queries", 1025)}, set()),
    "heads": (set(), {("key_heads", 12, "group_ratio", 12), ("key_heads", 12, "group_ratio", 16)}),
}
"""By plan: the pairs that only the thorough effort has, and those that no plan has."""


@pytest.mark.parametrize("plan", OF_ATTENTION)
def test_ranges_meet_in_plans_of_attention(plan: str) -> None:
    """The plan of heads is multi-head attention's, which has up to 128; 4,097 queries meet 4,097 keys in a square."""
    (thorough_only, never), levels = OF_ATTENTION[plan], attention.levels_of(plan, False, None)
    wanted = attention.has_few_columns if plan == "heads" else attention.has_any_sizes
    large, largest = attention.large_plans_of(plan, EVERYTHING, 0, wanted)
    rows = [attention.row_of(s) for s in (*attention.plan_of(plan, EVERYTHING), *large) if wanted(s)]
    assert pairs_apart(levels, rows) == thorough_only | never
    assert pairs_apart(levels, rows + [attention.row_of(s) for s in largest]) == never
    assert attention.thorough_plan(COMPILED) == (attention.SQUARE,)


@pytest.mark.parametrize(
    ("operation", "title", "plan"),
    [
        ("attention", "everything, everything", "everything"),
        ("attention", "causal, lengths", "lengths"),
        ("attention_weights", "weights, lengths", "lengths"),
        ("attention_weights", "weights, features", "features"),
        ("attention_logsumexp", "log-sum-exp, lengths", "lengths"),
        ("attention_logsumexp", "log-sum-exp, features", "features"),
        ("merge_attention", "merge, sizes", "merges"),
    ],
)
def test_probes_have_the_large_rows(operation: str, title: str, plan: str) -> None:
    [probe] = [probe for probe in catalogue(EVERYTHING) if (probe.operations, probe.title) == ((operation,), title)]
    large, _ = attention.large_plans_of(plan, EVERYTHING, zlib.crc32(probe.name.encode()), attention.has_any_sizes)
    assert isinstance(probe.cases, Rows)
    assert len(probe.cases.turns[1]) == len(large) > 0


def test_where_shapes_are_compiled_no_case_is_large() -> None:
    assert not any(probe.cases.turns[1] for probe in catalogue(COMPILED) if isinstance(probe.cases, Rows))


# --- kernels that are wrong only where two sizes are large ------------------------------------------------------------


def wrong_where(operation: str, wrong: Callable[[dict[str, Any]], bool]) -> Any:
    """The operation of `torch_impl`, whose last numbers are 0 where the arguments are so."""
    right = getattr(torch_impl, operation)

    @wraps(right)
    def faulty(*arguments: Any, **options: Any) -> Any:
        result = right(*arguments, **options)
        kept = torch.ones_like(result)
        if wrong(signature(right).bind(*arguments, **options).arguments):
            kept.view(-1)[-8:] = 0
        return result * kept

    return faulty


def fails_in_blocks(given: dict[str, Any]) -> bool:
    """vllm PR 44692: from 512 rows on, some multiples of 1,024 columns."""
    width = given["x"].shape[-1]
    rows = given["x"].numel() // max(width, 1)
    return given["weight"].ndim == 1 and rows >= 512 and width % 1024 == 0 and width not in (1024, 4096)


def past(rows: int, width: int, name: str = "x") -> Callable[[dict[str, Any]], bool]:
    """Rows and columns of an argument past both numbers."""

    def wrong(given: dict[str, Any]) -> bool:
        array = given[name]
        return array.shape[-1] > width and array.numel() // array.shape[-1] > rows

    return wrong


def past_inner(rows: int, inner: int) -> Callable[[dict[str, Any]], bool]:
    """Rows and inner columns of a network past both numbers."""

    def wrong(given: dict[str, Any]) -> bool:
        x, weight = given["x"], given["parameters"].inner.weight
        return weight.shape[1] > inner and x.numel() // x.shape[-1] > rows

    return wrong


def many_scores(given: dict[str, Any]) -> bool:
    """More than 2^20 pairs of queries and keys in one head."""
    return given["query"].shape[2] * given["key"].shape[2] > 2**20


FAULTS = {
    "RMS norm in blocks": ("rms_norm", "NORM-7", fails_in_blocks),
    "RMS norm in blocks, gradients": ("rms_norm", "NORM-6", fails_in_blocks),
    "layer norm of 129 wide rows": ("layer_norm", "NORM-1", past(128, 16384)),
    "layer norm of many rows": ("layer_norm", "NORM-1", past(16384, 128)),
    "layer norm, gradients": ("layer_norm", "NORM-6", past(511, 2047)),
    "norm by the deviation": ("standard_deviation_norm", "NORM-7", past(1024, 1024)),
    "a large vocabulary": ("embedding", "EMB-1", past(2**17, 3, "table")),
    "a large table": ("embedding", "EMB-1", past(1024, 1024, "table")),
    "a network of 2^20 inner numbers": ("feed_forward", "FFN-1", past_inner(1024, 1024)),
    "a gated network of many rows": ("gated_feed_forward", "FFN-2", past_inner(16384, 16)),
    "scores": ("attention", "ATT-8", many_scores),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_two_large_sizes_are_found(name: str, seed: int) -> None:
    operation, rule, wrong = FAULTS[name]
    given: dict[str, Any] = {"arrays": "torch", "effort": "default", "rules": [rule], "seed": seed, "shrink": False}
    report = check(wrong_where(operation, wrong), operation, isolate=False, **given)
    assert rule in {violation.rule for violation in report.violations}


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2**15, 2**17, 2**18 - 1])
def test_losses_of_many_classes_are_judged(classes: int) -> None:
    def cross_entropy(logits: Any, targets: Any, **options: Any) -> Any:
        last = logits[..., :classes]
        return torch_impl.cross_entropy(last, targets.clamp(max=last.shape[-1] - 1), **options)

    given: dict[str, Any] = {"arrays": "torch", "rules": ["LOSS-1"], "seed": 1, "shrink": False}
    assert not check(cross_entropy, "cross_entropy", **given).conforms
