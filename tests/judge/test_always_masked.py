"""Attention that always has a mask, or only some windows: declarations, and the examples in docs/adapters.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import reference_numpy
import specification
from conformance import replay
from conformance.cases import features
from conformance.sampling import strategies
from specification import Causal, SlidingWindow
from tests.support import kernels
from tests.support.helpers import (
    SMALL,
    catalogue,
    checked_content,
    declaration_of,
    documented_examples,
    draw_cases,
    judged,
    options_of,
    printed,
    violated,
    write_replay,
)

FLAG, ALWAYS_CAUSAL, FIXED_WINDOW = documented_examples("A kernel with a causal flag")
(BACKWARD,) = documented_examples("A kernel with its own backward pass")
LIMITS = SMALL | {"queries": 40, "keys": 40}
TORCH: dict[str, Any] = {"arrays": "torch", "limits": LIMITS}


def my_kernel(q: Any, k: Any, v: Any, *, is_causal: bool, sm_scale: float | None) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=sm_scale)


def example(text: str, **names: Any) -> Any:
    """The function of an example, with these names in place of the kernels."""
    module = ModuleType("example")
    vars(module).update(vars(kernels) | {"my_kernel": my_kernel} | vars(specification) | names)
    exec("import conformance\n" + text, vars(module))
    return module.attention


# --- the examples -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("text", [ALWAYS_CAUSAL, FIXED_WINDOW, BACKWARD], ids=["causal", "window", "backward"])
def test_an_example_conforms_to_every_rule(text: str) -> None:
    assert violated(example(text), **TORCH) == []


@pytest.mark.slow
def test_another_window_is_refused() -> None:
    def whatever(query: Any, key: Any, value: Any, *, mask: Any) -> Any:
        return kernels.windowed_kernel(query, key, value)

    given: dict[str, Any] = {"windows": [(31, 0)], "conventions": {"causal": "bottom_right"}}
    report = judged(whatever, "MASK-4", supports="structured,window,no-offset", **TORCH, **given)
    assert [(one.rule, one.title) for one in report.violations] == [("MASK-4", "another window")]


def hide_diagonal(q: Any, k: Any, v: Any, *, sm_scale: Any = None) -> Any:
    return kernels.torch_impl.attention(q, k, v, mask=Causal(k.shape[2] - q.shape[2] - 1), scale=sm_scale)


@pytest.mark.parametrize(
    ("text", "kernel", "rule"),
    [
        (ALWAYS_CAUSAL, {"causal_kernel": hide_diagonal}, "MASK-3"),
        (FIXED_WINDOW, {"windowed_kernel": partial(kernels.windowed_kernel, before=30)}, "MASK-4"),
        (FIXED_WINDOW, {"windowed_kernel": partial(kernels.windowed_kernel, before=32)}, "MASK-4"),
        pytest.param(BACKWARD.replace("(of_weights - mean)", "of_weights"), {}, "ATT-12", marks=pytest.mark.slow),
    ],
    ids=["causal", "window of 30", "window of 32", "backward"],
)
def test_an_example_with_a_wrong_kernel(text: str, kernel: dict[str, Any], rule: str) -> None:
    assert violated(example(text, **kernel), rule, **TORCH) == [rule]


# --- declarations -----------------------------------------------------------------------------------------------------


def always(query: Any, key: Any, value: Any, mask: Any, scale: Any = None) -> Any:
    if not isinstance(mask, Causal):
        raise NotImplementedError("always causal")
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


def by_default(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    if mask is None:
        raise NotImplementedError("a mask")
    return reference_numpy.attention(query, key, value, mask=mask)


def test_a_mask_without_a_default_is_always_there() -> None:
    found = declaration_of(always, False, supports="structured,causal")
    assert found.mask_required
    assert "unmasked" not in found
    told = declaration_of(always, False, supports="structured,causal,unmasked")
    assert "unmasked" in told
    assert not told.mask_required
    assert "unmasked" in declaration_of(by_default, False)
    assert "unmasked" not in declaration_of(by_default, False, supports="no-unmasked")
    assert "unmasked" in declaration_of(always, False, supports="scale")


@pytest.mark.slow
def test_the_report_says_that_a_mask_is_always_there() -> None:
    for function, supports, said in ((always, "structured,causal", True), (by_default, "no-unmasked", False)):
        report = judged(function, "CALL", supports=supports)
        assert report.conforms
        assert ("so every call has a mask" in printed(checked_content(report, None))) == said


@pytest.mark.parametrize(("works", "declare"), [(True, "--supports no-unmasked"), (False, "")])
def test_a_plain_call_that_fails(works: bool, declare: str) -> None:
    def attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return by_default(query, key, value, mask if works else None)

    report = judged(attention, limits=None)
    assert ([one.rule for one in report.violations], options_of(report)) == (["CALL"], [declare])


@pytest.mark.parametrize(
    "supports", ["structured,causal", "structured,window", "structured,lengths,scale", "segments", "dense,bias,gqa"]
)
@pytest.mark.slow
def test_no_case_is_without_a_mask(supports: str) -> None:
    said = declaration_of(by_default, False, supports=f"{supports},no-unmasked", limits=LIMITS)
    said = replace(said, windows=((31, 0), (2, None)) if "window" in said else ())
    for probe in catalogue(said):
        if probe.operations in {("attention",), ("attention_weights",)}:
            for _, found in draw_cases(probe.cases, 2, 1):
                assert features.has_declared_masks(probe.check.case_of(found), said), probe.title


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["diagonal", "scale", "gradient", "nan"])
def test_no_call_is_without_a_mask(wrong: str) -> None:
    """Neither when a failing case is made smaller, nor when its mistake is named."""
    masks = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return cotangents[0] * 2

    def attention(query: Any, key: Any, value: Any, *, mask: Any, scale: Any = None) -> Any:
        masks.append(mask)
        if mask is None or not isinstance(mask, Causal):
            raise NotImplementedError("causal masks")
        if wrong == "diagonal":
            mask = Causal(key.shape[2] - query.shape[2] - 1)
        if wrong == "scale":
            scale = 0.3
        value = Doubled.apply(value) if wrong == "gradient" else value.nan_to_num() if wrong == "nan" else value
        return kernels.torch_impl.attention(query, key, value, mask=mask, scale=scale)

    given: dict[str, Any] = {"arrays": "torch", "conventions": {"causal": "bottom_right"}, "shrink": True}
    report = judged(attention, supports="structured,causal,no-offset,scale,gqa,cross,gradients", **given)
    assert report.violations
    assert masks
    assert not any(mask is None for mask in masks)


@pytest.mark.parametrize("convention", ["top_left", "bottom_right"])
@pytest.mark.parametrize("supports", ["window,cross", "window"])
@pytest.mark.parametrize("window", [(31, 0), (0, 31), (5, 9), (None, 40)], ids=str)
def test_sizes_go_past_each_edge_of_a_window(window: Any, supports: str, convention: str) -> None:
    """A window that is one key wider, on either side that has an end, allows other pairs at one of the sizes."""
    said = declaration_of(by_default, False, supports=f"structured,{supports},no-offset", windows=[window])
    assert strategies.window_sizes(said)

    def allowed(edges: Any, s: Any) -> Any:
        offset = s.K - s.Q if convention == "bottom_right" else 0
        return reference_numpy.materialize(SlidingWindow(*edges, offset), s.Q, s.K)

    for side in (side for side in (0, 1) if window[side] is not None):
        wider = tuple(n + 1 if i == side else n for i, n in enumerate(window))
        assert any((allowed(window, s) != allowed(wider, s)).any() for s in strategies.window_sizes(said))


@pytest.mark.slow
def test_a_replay_remembers_the_windows(tmp_path: Path) -> None:
    wrong = example(FIXED_WINDOW, windowed_kernel=partial(kernels.windowed_kernel, before=30))
    wrong.conformance.pop("windows")
    file = write_replay(judged(wrong, "MASK-4", windows=[(31, 0)], **TORCH), tmp_path)
    assert max(finding.ratio for finding in replay(file, wrong)) > 1
    told = json.loads(file.read_text())["target"]["given"]["dict"]["windows"]
    assert told == {"tuple": [{"tuple": [31, 0]}]}


# --- the table of a report --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtypes", "told"),
    [
        (["float32", "bfloat16", "float16", "float64"], "in float32 and float64, and in all four dtypes"),
        (["float32", "bfloat16"], "in float32, and in float32 and bfloat16"),
        (["float32", "float64"], "in float32 and float64"),
        (["bfloat16"], "in bfloat16"),
    ],
)
def test_the_table_names_the_judged_dtypes(dtypes: list[str], told: str) -> None:
    subject = checked_content(judged(always, supports="unmasked"), None)
    subject["declaration"]["dtypes"] = dtypes
    title, _, _ = printed(subject).partition("┏")
    assert " ".join(title.split()) == f"Largest error ratio (at most 1 conforms): {told}"


def test_what_a_failed_plain_call_leaves_untried_is_one_row() -> None:
    subject = checked_content(judged(always, supports="unmasked"), None)
    rows = re.findall(r"^│ (\S+) +│ (.*?) +│", printed(subject), re.MULTILINE)
    assert rows == [("CALL", "contract"), ("others", f"{len(subject['rules']) - 1} rules")]
