"""Levels and profiles: what a finding is worth, which one is kept of several, and that each profile can be violated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance import Comparison, compare
from conformance.bounds import relaxed_bound
from conformance.checks.levels import LEVELS, PARTS, WHOLE
from conformance.checks.results import Results
from conformance.reports import blocks
from conformance.reports.content import document
from conformance.reports.junit import junit
from conformance.reports.page import page
from conformance.reports.subjects import rules_of_operation, run_subject
from specification import RULES
from specification.dtypes import HALF
from specification.rules import MODEL_RULES
from tests.support.helpers import (
    CHECKS,
    Case,
    Finding,
    Report,
    Violation,
    attention_case,
    bound,
    checked_content,
    command,
    draw_cases,
    find_errors,
    judged,
    operation_cases,
    printed,
    probes_of_all,
    runner_of,
)
from tests.support.targets import mean_of_empty_rows, plain_norm, rounded_weights, unscaled

CORE, ROBUST, STRICT = LEVELS
# --- rows that allow nothing ------------------------------------------------------------------------------------------


def kept_of(report: Any) -> str | None:
    """The highest profile that some chosen rules leave; a report of them says none, as other rules may be violated."""
    assert report.chosen
    assert report.kept is None
    return replace(report, chosen=()).kept


def test_empty_rows_are_no_matter_of_the_core() -> None:
    report = judged(mean_of_empty_rows, "MASK-1", "MASK-3", "ATT-6", dtypes=None)
    assert kept_of(report) == CORE
    assert [violation.rule for violation in report.violations] == ["ATT-6"]
    assert report.worst == report.rules["ATT-6"].worst > 1
    core = replace(report, profile=CORE)
    assert core.conforms
    assert 0 < core.worst <= 1


def test_other_rows_are_a_matter_of_the_core_where_some_are_empty() -> None:
    arrays, mask = attention_case(K=2).inputs, np.array([[False, False], [True, True]])
    for factor, level in ((1, ROBUST), (2, CORE)):
        output = mean_of_empty_rows(arrays["query"], arrays["key"], factor * arrays["value"], mask=mask)
        found = compare("attention", output, **arrays, mask=mask)
        assert (found.worst.ratio > 1, found.worst.level) == (True, level)


def rounded_beside_empty_rows(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    empty_rows = "zero" if mask is None or 0 in mask.shape else "mean"
    return rounded_weights(query, key, value, mask=mask, empty_rows=empty_rows)


def test_check_tells_of_empty_rows_beside_rounded_weights() -> None:
    """Each level has a finding of its own in one result."""
    report = judged(rounded_beside_empty_rows, "ATT-6", "ATT-9", dtypes=["bfloat16"])
    assert (levels_of(report), kept_of(report)) == ({"ATT-6": ROBUST, "ATT-9": STRICT}, CORE)


# --- the table --------------------------------------------------------------------------------------------------------


def test_table_names_rules_that_exist_and_levels_of_probes() -> None:
    levels = {(part.rule, part.level) for part in PARTS}
    assert {(probe.rule, probe.level) for probe in probes_of_all() if probe.level != CORE} <= levels
    assert "ATT-14 merge of far parts" in {probe.id for probe in probes_of_all() if probe.level == ROBUST}
    assert {*WHOLE, *(part.rule for part in PARTS)} <= {*RULES, *MODEL_RULES}
    assert {*WHOLE.values(), *(part.level for part in PARTS)} <= set(LEVELS)


def test_levels_of_cases_with_empty_and_special_arrays() -> None:
    def level(operation: str, **inputs: np.ndarray) -> str:
        wrong = runner_of(lambda *arrays, **options: None, operation)
        (finding,) = find_errors(wrong, Case(operation, "float32", inputs))
        return finding.level

    x, bias = np.ones((2, 3), np.float32), np.full((2, 3), -np.inf, np.float32)
    assert [level("silu", x=one) for one in (x, x[:0], x * np.inf, x * np.nan)] == [CORE, ROBUST, ROBUST, ROBUST]
    attention = attention_case().inputs
    assert [level("attention", **attention, bias=one) for one in (bias, -bias)] == [CORE, ROBUST]


# --- one finding of several -------------------------------------------------------------------------------------------


def test_worst_finding_is_of_the_lowest_level() -> None:
    digits, large = Finding("output", 1.5), Finding("gradient of x", 1e6, level=STRICT)
    assert Comparison("silu", CORE, (large, digits)).worst is Comparison("silu", CORE, (digits, large)).worst is digits
    assert Comparison("silu", CORE, (large, Finding("output", 0.5))).worst is large
    assert [Comparison("silu", profile, (large,)).conforms for profile in LEVELS] == [True, True, False]
    assert not Comparison("silu", CORE, (large, digits)).conforms


def violation(level: str, ratio: float, **told: Any) -> Violation:
    finding = Finding("output", ratio, (0,), 1.0, 2.0, 1.0, level=level)
    return Violation("ATT-9", "mine", finding, "a probe", **{"check": CHECKS["agreement"], "example": None} | told)


def test_no_violation_hides_one_of_a_lower_level() -> None:
    of_each = [violation(STRICT, np.inf), violation(ROBUST, 1e9), violation(CORE, 1.5)]
    for order in (of_each, of_each[::-1]):
        results = Results()
        for one in order:
            results.add_violation(one)
        assert results.violations["ATT-9", "mine", False].level == CORE
    assert not results.keeps("ATT-9", "mine", CORE)
    assert violation(CORE, 2.0, least=ROBUST).level == ROBUST
    refused = violation(ROBUST, np.inf, check=CHECKS["refusal"])
    assert refused.stands_before(violation(STRICT, 2.0))
    assert not refused.stands_before(violation(CORE, 2.0))


# --- numbers ----------------------------------------------------------------------------------------------------------


def with_weights(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Attention without options, with its weights changed before they meet the values."""

    def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        wide = np.float64 if query.dtype == np.float64 else np.float32
        q, k, v = (array.astype(wide) for array in (query, key, value))
        k, v = (np.repeat(array, q.shape[1] // max(array.shape[1], 1), axis=1) for array in (k, v))
        weights = reference_numpy.attention_weights(q, k) if k.shape[2] else np.zeros((*q.shape[:3], 0), wide)
        narrow = change(weights).astype(query.dtype).astype(wide)
        return np.matmul(narrow if query.dtype.itemsize == 2 else change(weights), v).astype(query.dtype)

    return attention


rounded = with_weights(lambda weights: weights)


@pytest.mark.parametrize("dtype", HALF)
def test_rounded_weights_are_a_matter_of_strict_alone(dtype: str) -> None:
    arrays = attention_case(G=2, K=40, D=8, V=8, dtype=dtype).inputs
    for function, level in ((rounded, STRICT), (with_weights(lambda weights: weights * 1.1), CORE)):
        found = compare("attention", function(**arrays), **arrays).worst
        assert (found.ratio > 1, found.level) == (True, level)


def test_no_bound_is_relaxed_in_wide_dtypes_or_as_declared() -> None:
    assert relaxed_bound(attention_case()) is None
    assert relaxed_bound(replace(attention_case(dtype="float16"), rounding={"weights": "float16"})) is None


def test_shown_element_is_one_that_the_level_is_about() -> None:
    """The first column is off by many bounds, as rounded weights may make it, the second by a little more than that."""
    query, key = np.zeros((1, 1, 1, 2), np.float16), np.zeros((1, 1, 2, 2), np.float16)
    value = np.array([[[[1, 1], [-1, 1]]]], np.float16)
    for error, index, level in ((0.004, 1, CORE), (0, 0, STRICT)):
        output = np.array([[[[3e-4, 1 + error]]]], np.float16)
        found = compare("attention", output, query=query, key=key, value=value).worst
        assert (found.index, found.level) == ((0, 0, 0, index), level)


# --- faults, one for each level and more ------------------------------------------------------------------------------


def leaking(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Any = None) -> np.ndarray:
    """Forbidden values are multiplied by 0."""
    groups = query.shape[1] // max(key.shape[1], 1)
    weights = reference_numpy.attention_weights(query, key, mask=mask)
    with np.errstate(all="ignore"):
        return np.matmul(weights, np.repeat(value, groups, axis=1))


def any_mask(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Any = None) -> np.ndarray:
    mask = None if mask is None else np.asarray(mask).astype(bool)
    return reference_numpy.attention(query, key, value, mask=mask)


def nan_in_empty_rows(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, mask: Any = None) -> Any:
    options: dict[str, Any] = {"num_heads": num_heads, "mask": mask, "empty_rows": "nan"}
    return reference_numpy.multi_head_attention(parameters, query, key, value, **options)


def needs_keys(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    if key.shape[2] == 0:
        raise RuntimeError("no keys")
    return reference_numpy.attention(query, key, value)


@np.errstate(all="ignore")
def one_at_constant_rows(x: np.ndarray, weight: np.ndarray, *, eps: float = 1e-5) -> np.ndarray:
    axes = tuple(range(-weight.ndim, 0))
    constant = (x == np.min(x, axes, keepdims=True)).all(axes, keepdims=True)
    return np.where(constant, 1, reference_numpy.layer_norm(x, weight, None, eps=eps)).astype(x.dtype)


class LastBit:
    """Right, with another last bit in every second call. error: relative, in place of that bit."""

    def __init__(self, error: float = 0.0) -> None:
        self.calls, self.error = 0, error

    def __call__(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        self.calls += 1
        output = reference_numpy.attention(query, key, value)
        if self.calls % 2:
            return output
        return np.nextafter(output, 0) if not self.error else (output * (1 + self.error)).astype(output.dtype)


def clipped_sinks(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, sinks: Any = None) -> np.ndarray:
    return reference_numpy.attention(query, key, value, sinks=None if sinks is None else sinks.clip(-30, 30))


@np.errstate(all="ignore")
def literal_silu(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    return np.where(np.isneginf(wide), 0, wide / (1 + np.exp(-wide))).astype(x.dtype)


def levels_of(report: Report) -> dict[str, str]:
    return {violation.rule: violation.level for violation in report.violations}


FAULTS: dict[str, tuple[Any, str, tuple[str, ...], str, dict[str, Any]]] = {
    "another scale": (unscaled, "attention", ("ATT-1",), CORE, {}),
    "constant rows give 1": (one_at_constant_rows, "layer_norm", ("NORM-3",), CORE, {}),
    "10 % off now and then": (LastBit(0.1), "attention", ("ATT-13",), CORE, {}),
    "wrong weights of 16 bits": (with_weights(lambda w: w * 1.1), "attention", ("ATT-9",), CORE, {"dtypes": HALF}),
    "forbidden NaN": (leaking, "attention", ("MASK-7",), ROBUST, {}),
    "NaN in a layer's empty rows": (
        nan_in_empty_rows,
        "multi_head_attention",
        ("MHA-1",),
        ROBUST,
        {"supports": "no-empty"},
    ),
    "no keys": (needs_keys, "attention", ("ATT-8",), ROBUST, {}),
    "refuses no mask of numbers": (any_mask, "attention", ("MASK-1",), ROBUST, {"supports": ["refusals", "dense"]}),
    "sinks far from the scores": (clipped_sinks, "attention", ("ATT-5",), ROBUST, {}),
    "weights in 16 bits": (rounded, "attention", ("ATT-9",), STRICT, {"dtypes": HALF}),
    "inexact constant rows": (plain_norm, "layer_norm", ("NORM-3",), STRICT, {}),
    "another last bit": (LastBit(), "attention", ("ATT-13",), STRICT, {}),
    "sigmoid below the normal numbers": (literal_silu, "silu", ("ACT-1",), STRICT, {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_level_can_be_violated(name: str) -> None:
    """A fault fails its profile and those above it, and keeps those below."""
    function, operation, rules, level, given = FAULTS[name]
    report = judged(function, *rules, operation=operation, **given)
    reports = {profile: replace(report, profile=profile) for profile in LEVELS}
    below = LEVELS[: LEVELS.index(level)]
    assert {profile: report.conforms for profile, report in reports.items()} == {p: p in below for p in LEVELS}
    assert set(levels_of(report).values()) == {level}
    assert kept_of(report) == (below[-1] if below else None)


def test_right_functions_keep_strict() -> None:
    report = judged(reference_numpy.layer_norm, "NORM-1", "NORM-3", "NORM-5", operation="layer_norm", profile=STRICT)
    assert (report.conforms, kept_of(report)) == (True, STRICT)
    first, second, *_ = str(report).splitlines()
    assert "conforms (strict)" in first
    assert second == "Violated at core: nothing; at robust: nothing; at strict: nothing"


def wrong_past_20(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Weights in 16 bits, which break strict for any number of keys; past 20 keys the last one is left out."""
    count = min(key.shape[2], 20)
    return rounded(query, key[:, :, :count], value[:, :, :count])


@pytest.mark.slow
def test_making_a_case_smaller_keeps_its_level() -> None:
    report = judged(wrong_past_20, "ATT-9", dtypes=["float16"], shrink=True, limits=None)
    (found,) = report.violations
    assert (found.level, kept_of(report)) == (CORE, None)
    assert found.case.inputs["key"].shape[2] == 21
    assert "first wrong at 21 keys" in str(report)


# --- exit codes and reports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "code"), [("core", 0), (None, 0), ("strict", 1)])
def test_exit_code(profile: str | None, code: int, folder: Path) -> None:
    words = ["check", "targets.py:plain_norm", "--operation", "layer_norm", "--dtypes", "float32", "--rules", "NORM-3"]
    words += ["--effort", "quick", "--seed", "1", "--no-shrink", "--in-process", "--json", "report.json"]
    found, output = command(*words, *(["--profile", profile] if profile else []))
    assert found == code, output
    assert "Violated at core: nothing; at robust: nothing; at strict: NORM-3" in output
    (subject,) = json.loads((folder / "report.json").read_text())["subjects"]
    assert (subject["profile"], subject["kept"], subject["conforms"]) == (profile or "robust", None, code == 0)
    assert ", of the rules that were chosen." in output
    assert "profile kept" not in output  # of all rules one was tried
    assert subject["levels"] == {"core": [], "robust": [], "strict": ["NORM-3"]}
    assert [one["level"] for one in subject["violations"]] == ["strict"]
    file = subject["violations"][0]["replay_file"]
    assert command("replay", file, "--in-process")[0] == 1
    assert json.loads(Path(file).read_text())["level"] == "strict"


def test_reports_say_the_level() -> None:
    plain = judged(plain_norm, "NORM-3", operation="layer_norm")
    told = {profile: checked_content(replace(plain, profile=profile, chosen=()), None) for profile in LEVELS}
    assert [document("check", [told[profile]])["conforms"] for profile in LEVELS] == [True, True, False]
    summary = "Violated at core: nothing; at robust: nothing; at strict: NORM-3. Highest profile kept: robust."
    assert f"Profile robust. {summary}" in printed(told[ROBUST])
    assert "violated (strict only)" in printed(told[ROBUST])
    robust, strict = (document("check", [told[profile]]) for profile in (ROBUST, STRICT))
    assert f"Profile strict. {summary}" in page(strict)
    assert 'class="cell beyond"' in page(robust)
    assert 'class="cell violated"' in page(strict)
    assert ('failures="0"' in junit(robust), 'failures="1"' in junit(strict)) == (True, True)
    assert "beyond the profile robust" in junit(robust)
    assert plain.conforms


@pytest.mark.parametrize("operation", ["attention", "attention_weights", "attention_logsumexp"])
def test_the_relaxed_bound_of_gradients(operation: str) -> None:
    """A log-sum-exp alone has a cotangent, and its weights none."""
    cases = operation_cases(operation, focus=("gradients",), dtypes=("float16",))
    for _, case in draw_cases(cases, 3, 1):
        strict, relaxed = bound(case), relaxed_bound(case)
        assert relaxed is not None
        assert relaxed.keys() == strict.keys()
        assert all((relaxed[name] >= strict[name]).all() for name in strict)


@pytest.mark.parametrize("operation", ["attention", "layer_norm", "attention_logsumexp"])
@pytest.mark.parametrize("untried", [None, "the plainest call fails"])
def test_chosen_rules_are_said_so_where_core_is_violated_too(operation: str, untried: str | None) -> None:
    """Of the others nothing is known, at the higher levels either. A full check lists every rule of its operation."""
    every = ["CALL", *rules_of_operation(operation)]
    told = {"core": ["CALL"], "robust": [], "strict": []}
    subject = {"levels": told, "untried": untried, "kept": None, "profile": "robust", "operations": [operation]}
    listed = [{"rule": rule} for rule in every]
    chosen, full = (blocks.levels({**subject, "rules": rules}) for rules in (listed[:2], listed))
    assert chosen.endswith("at strict: nothing more, of the rules that were chosen")
    assert full.endswith("at strict: nothing more" if untried else ". Highest profile kept: none")


def test_of_a_whole_run_no_rules_were_chosen() -> None:
    """Though it has no rule of calls. Of some rules no profile is kept."""
    results = Results()
    case = attention_case()
    finding = Finding("output", 9.0, (0, 0, 0, 0), 1.5, 1.0)
    results.add_violation(Violation("ATT-5", "mine", finding, "a probe", CHECKS["agreement"], case))
    whole, some = (run_subject(results, "mine", "numpy", "cpu", rules) for rules in ([*RULES], ["ATT-5", "NORM-1"]))
    assert blocks.levels(whole).endswith("Highest profile kept: none")
    assert blocks.levels(some).endswith(", of the rules that were chosen")
    right = [run_subject(Results(), "mine", "numpy", "cpu", rules)["kept"] for rules in ([*RULES], ["ATT-5"])]
    assert right == ["strict", None]
