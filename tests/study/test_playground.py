"""The playground computes what the definition computes: its own functions, run in a browser."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import browser
from tests.support.helpers import Case
from tests.support.playground_settings import RESULTS, allowance, by_definition, described, setting, spoiled

chromium, playground = browser.chromium, browser.playground

COMPUTE = """settings => settings.map(({query, key, value, ...options}) => ({
    output: attention(query, key, value, options),
    weights: attention_weights(query, key, options),
    logsumexp: attention_logsumexp(query, key, options),
}))"""
SETTINGS = 240


@cache
def case(number: int) -> Case:
    return setting(number)


@cache
def expected(number: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The definition's result, and how far from it the page may be."""
    return by_definition(case(number), name), allowance(case(number), name)


def answers(chromium: Any, file: Path, cases: list[Case]) -> list[dict[str, np.ndarray]]:
    with browser.opened(chromium, file) as watched:
        plain = [{name: described(part) for name, part in (one.inputs | one.options).items()} for one in cases]
        found = watched.page.evaluate(COMPUTE, plain)
        assert watched.errors == []
    return [{name: np.array(array, float) for name, array in one.items()} for one in found]


def distances(chromium: Any, file: Path, settings: int = SETTINGS) -> tuple[float, float]:
    """How far page and definition are apart at most: in units of what is allowed, and in itself."""
    largest_ratio = largest = 0.0
    for number, answer in enumerate(answers(chromium, file, [case(number) for number in range(settings)])):
        for name, got in answer.items():
            exact, allowed = expected(number, name)
            assert got.shape == exact.shape
            with np.errstate(all="ignore"):
                same = (got == exact) | (np.isnan(got) & np.isnan(exact))
                apart = np.where(same, 0.0, np.nan_to_num(np.abs(got - exact), nan=np.inf))
                ratios = np.where(same, 0.0, apart / allowed)
            largest_ratio, largest = max(largest_ratio, ratios.max()), max(largest, apart.max())
    return float(largest_ratio), float(largest)


def test_agrees_with_the_definition(chromium: Any, playground: Path) -> None:
    ratio, apart = distances(chromium, playground)
    assert ratio <= 1
    assert apart <= 1e-6


def test_nan_and_infinity_stand_where_the_definition_has_them(chromium: Any, playground: Path) -> None:
    cases = [spoiled(seed) for seed in range(60)]
    met = set()
    for one, answer in zip(cases, answers(chromium, playground, cases), strict=True):
        for name, got in answer.items():
            exact = by_definition(one, name)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
            np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(exact), exact, 0))
            met.update((name, kind) for kind in ("isnan", "isfinite") if getattr(np, kind)(exact).any())
    assert met == {(name, kind) for name in RESULTS for kind in ("isnan", "isfinite")}


def test_what_the_settings_hold() -> None:
    """The agreement stands on them: empty rows in every reading, every description, every two options together."""
    cases = [case(number) for number in range(SETTINGS)]
    empty = [one for one in cases if has_empty_row(one)]
    for reading in ("zero", "mean", "nan"):
        assert sum(one.options["empty_rows"] == reading for one in empty) >= 10
    features = ("bias", "sinks", "scale", "softcap")
    given = [{name for name in features if name in one.inputs | one.options} for one in cases]
    for one in features:
        assert all(any({one, other} <= names for names in given) for other in features)
        assert any(one in names and part.options["mask"] for part, names in zip(cases, given, strict=True))
    met = set().union(*(kinds(one.options["mask"]) for one in cases))
    assert met == {"Causal", "SlidingWindow", "KeyLengths", "KeyPadding", "Segments", "Dense", "And", "Or"}
    assert any(one.inputs["query"].shape[1] > one.inputs["key"].shape[1] > 1 for one in cases)
    assert sum(not np.isfinite(one.inputs["value"]).all() for one in cases) >= 10


def has_empty_row(one: Case) -> bool:
    without_sinks = {name: array for name, array in one.inputs.items() if name != "sinks"}
    plain = Case(one.operation, one.dtype, without_sinks, one.options)
    return bool(np.isneginf(by_definition(plain, "logsumexp")).any())


def kinds(mask: Any) -> set[str]:
    sides = (getattr(mask, side) for side in ("left", "right")) if type(mask).__name__ in ("And", "Or") else ()
    return set() if mask is None else {type(mask).__name__}.union(*map(kinds, sides))


CAP = "  if (softcap !== null) scores = mapped(scores, (score) => softcap * Math.tanh(score / softcap));\n"
BIAS = (
    "  if (bias !== null)\n"
    "    scores = mapped(scores, (score, b, h, i, j) => score + (allowed[b][h][i][j] ? at(bias, b, h, i, j) : 0));\n"
)
FAULTS = {
    "mask inverted": ("masks.js", "return at(mask.array, b, h, i, j);", "return !at(mask.array, b, h, i, j);"),
    "top-left causal": ("masks.js", "return j <= i + per_batch(mask.offset, b);", "return j <= i;"),
    "left bound exclusive": ("masks.js", "distance >= -mask.left", "distance > -mask.left"),
    "and taken for or": ("masks.js", "i, j) && is_allowed", "i, j) || is_allowed"),
    "lengths inclusive": ("masks.js", "return j < per_batch", "return j <= per_batch"),
    "segments of batch element 0": ("masks.js", "rows[rows.length === 1 ? 0 : b]", "rows[0]"),
    "scale left out": ("attention.js", "(score) => score * factor)", "(score) => score)"),
    "softcap after the bias": ("attention.js", CAP + BIAS, BIAS + CAP),
    "empty row not zero": ("attention.js", "allowed[j] ? number / (total === 0 ? 1 : total) : 0", "number / total"),
    "empty row as the mean": ("attention.js", 'if (empty_rows === "zero")', 'if (empty_rows === "none")'),
    "sink left out of the denominator": ("attention.js", "if (sink !== null) total =", "if (false) total ="),
    "heads tiled": ("attention.js", "heads[Math.floor(h / (num_heads / heads.length))]", "heads[h % heads.length]"),
    "bias does not forbid": ("attention.js", "return bias === null ? allowed :", "return true ? allowed :"),
    "zero times hidden NaN": ("attention.js", "finite ? values[b][h][j][v] : 0", "true ? values[b][h][j][v] : 0"),
    "single precision": ("attention.js", "sum + number * right[n]", "Math.fround(sum + number * right[n])"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(fault: str, chromium: Any, tmp_path: Path) -> None:
    ratio, _ = distances(chromium, browser.faulty_playground(tmp_path, *FAULTS[fault]), 80)
    assert ratio > 1
