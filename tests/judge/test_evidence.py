"""What a report shows of a violation: the largest errors, errors raised, and what declares them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conformance
import reference_numpy
from conformance.checks import findings
from conformance.checks.results import Results
from conformance.diagnosis.experiments import redraw_array
from conformance.judge import plan, trial
from conformance.reports.blocks import block
from conformance.reports.content import real
from conformance.reports.sentences import describe_violation
from conformance.runner.shrinking import change_dtype
from conformance.sampling.operations import feature_sizes
from tests.support.helpers import (
    CHECKS,
    EVERYTHING,
    Case,
    Finding,
    Violation,
    attention_case,
    checked_content,
    describe_finding,
    draw_cases,
    judged,
    options_of,
)
from tests.support.targets import takes_no_masks

STRICT: dict[str, Any] = {"profile": "strict", "limits": None}

# --- the largest errors -----------------------------------------------------------------------------------------------


def violated(ratio: float, dtype: str = "float32", rule: str = "ATT-5", **told: Any) -> Violation:
    finding = Finding("output", ratio, (0, 0, 0, 0), 1.5, 1.0, 0.5 / ratio)
    return Violation(rule, "a subject", finding, "a probe", CHECKS["agreement"], attention_case(dtype=dtype), **told)


def test_of_each_dtype_the_largest_error_is_kept() -> None:
    one, other = Results(), Results()
    for ratio in (3.0, 50.0, 7.0):
        one.add_violation(violated(ratio))
    other.add_violation(violated(60.0, "float64"))
    other.add_violation(violated(80.0, "float16"))
    one.include(other)
    one.set_worst()
    (told,) = one.violations.values()
    assert told.ratio == 3.0  # the first that was found
    assert {dtype: worst.ratio for dtype, worst in told.worst.items()} == {
        "float32": 50.0, "float16": 80.0, "float64": 60.0,
    }  # fmt: skip
    assert [worst.ratio for worst in told.larger] == [60.0, 80.0]  # in wide dtypes, and in 16 bits
    assert "worst in float64: output[0, 0, 0, 0]: got 1.5, expected 1.0, 60 bounds of" in describe_violation(told)


def test_the_error_of_several_calls_counts_for_16_bits_where_one_of_them_has_16() -> None:
    wide, narrow = (Case("attention", dtype, {}, {}) for dtype in ("float32", "bfloat16"))
    assert trial.narrowest((wide, narrow), wide) is narrow
    assert trial.narrowest((wide, wide), wide) is trial.narrowest(wide, wide) is wide


def test_what_is_no_violation_after_all_has_no_largest_error() -> None:
    results = Results()
    results.add_violation(violated(3.0))
    trial.settle_violations(results, lambda found: None)
    assert (results.violations, dict(results.worst)) == ({}, {})
    of_state = violated(3.0)
    finding = replace(of_state.finding, detail=findings.NotReproducible(True, of_state.finding))
    results.add_violation(replace(of_state, finding=finding))
    assert dict(results.worst) == {}


def test_what_stays_of_a_rule_counts_beside_what_does_not() -> None:
    raised = replace(violated(np.inf), finding=Finding("call", np.inf, detail=findings.Raised("ValueError", "no")))
    results = Results()
    for one in (violated(3.0), violated(50.0), raised):
        results.add_violation(one)
        results.rules[one.rule, one.subject].add(one.ratio, "float32")
    trial.settle_violations(results, lambda found: None if found.finding.detail else found)
    cell = results.rules["ATT-5", "a subject"]
    assert (len(results.violations), cell.worst) == (1, 3.0)
    results.set_worst()
    assert cell.worst == 50.0


def narrow_and_off(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
    """In float64 it computes in float32; in float32 the result is 0.01 % too large."""
    if query.dtype == np.float64:
        narrow = (array.astype(np.float32) for array in (query, key, value))
        return reference_numpy.attention(*narrow, scale=scale).astype(np.float64)
    right = reference_numpy.attention(query, key, value, scale=scale)
    return right * query.dtype.type(1.0001) if query.dtype == np.float32 else right


def test_no_number_becomes_infinite_in_another_dtype() -> None:
    """What is cut down to a dtype that does not hold it is another case, on which nobody is right."""
    far = Case("attention", "float64", {name: np.full((1, 1, 1, 1), 1e119) for name in ("query", "key", "value")})
    assert change_dtype("float32", EVERYTHING)(far) is None
    near = replace(far, inputs=far.inputs | {name: np.ones((1, 1, 1, 1)) for name in far.inputs})
    assert change_dtype("float32", EVERYTHING)(near) is not None
    graded = replace(near, cotangents={"output": np.full((1, 1, 1, 1), 1e119)})
    assert change_dtype("float32", EVERYTHING)(graded) is None
    special = replace(near, inputs=near.inputs | {"value": np.full((1, 1, 1, 1), np.inf)}, special=True)
    assert change_dtype("float32", EVERYTHING)(special) is not None


@pytest.mark.slow
def test_the_table_and_the_evidence_have_the_same_largest_error(tmp_path: Path) -> None:
    report = judged(narrow_and_off, "ATT-1", "ATT-5", dtypes=None, **STRICT)
    subject = checked_content(report, tmp_path)
    worst = {rule["rule"]: real(rule["worst"]) for rule in subject["rules"]}
    shown: dict[str, list[float]] = {"ATT-1": [], "ATT-5": []}
    for violation in subject["violations"]:
        shown[violation["rule"]] += map(real, (violation["ratio"], *(one["ratio"] for one in violation["worst"])))
    assert {rule: max(ratios) for rule, ratios in shown.items()} == {rule: worst[rule] for rule in shown}


# --- errors that are raised -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.slow_where("True")
def test_one_error_is_told_once_with_its_line_and_what_declares_it(isolate: bool, tmp_path: Path) -> None:
    rules = ("MASK-2", "MASK-3")
    report = judged(takes_no_masks, *rules, arrays="numpy", isolate=isolate, **STRICT)
    subject = checked_content(report, tmp_path)
    (cause,), (first, other) = subject["causes"], subject["violations"]
    assert (cause["kind"], cause["rules"]) == ("error", ["MASK-2", "MASK-3"])
    assert {first["cause"], other["cause"]} == {None, 0}
    line = takes_no_masks.__code__.co_firstlineno + 2
    assert cause["violation"]["raised_at"] == f"tests/support/targets.py:{line} in takes_no_masks"
    assert "raised at" in block(cause, subject)
    without = "no-causal,no-lengths,no-padding,no-segments"
    assert f"--supports {without}" in block(cause, subject)
    declared = f"{without},no-window,no-dense"
    assert isolate or judged(takes_no_masks, *rules, supports=declared, **STRICT).conforms


def without_float64(query: Any, key: Any, value: Any) -> Any:
    if query.dtype == np.float64:
        raise TypeError("no float64")
    return reference_numpy.attention(query, key, value)


def in_16_bits(query: Any, key: Any, value: Any) -> Any:
    if query.dtype.itemsize != 2:
        raise RuntimeError("only 16-bit types are supported")
    return reference_numpy.attention(query, key, value)


@pytest.mark.parametrize(("dtypes", "told"), [(None, "--dtypes bfloat16,float16"), (["float32", "float64"], "")])
def test_the_dtypes_in_which_the_plainest_call_is_answered_are_told(dtypes: list[str] | None, told: str) -> None:
    """Nothing is told if it is answered in none of them."""
    report = judged(in_16_bits, dtypes=dtypes, shrink=True, **STRICT)
    assert [violation.rule for violation in report.violations] == ["CALL"]
    assert options_of(report) == [told]


def test_a_dtype_that_is_not_supported_is_declared_by_the_others() -> None:
    report = judged(without_float64, "ATT-9", dtypes=["float32", "float64"], **STRICT)
    (found,) = report.violations
    assert (found.lacks, options_of(report)) == (("float64",), ["--dtypes float32"])


def of_two_lines(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    if bias is not None:
        raise NotImplementedError("not supported")
    if mask is not None:
        raise NotImplementedError("not supported")
    return reference_numpy.attention(query, key, value)


def length_first(query: Any, key: Any, value: Any) -> Any:
    """[B, T, H, D]: right in its own layout. In the other one its lengths are heads, which must be equal."""
    scores = np.einsum("bqhd,bkhd->bhqk", query, key, dtype=float) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), value).astype(query.dtype)


def test_the_layout_is_declared_before_features() -> None:
    """Other lengths of keys than of queries raise an error in the wrong layout alone."""
    told: dict[str, Any] = STRICT | {"rules": ["ATT-1", "ATT-8"], "supports": ["no-gqa"]}
    report = judged(length_first, **told)
    assert {cause.rules: cause.lacks for cause in report.causes} == {
        ("ATT-1", "ATT-8"): ("BHTD",),
        ("ATT-8",): ("cross",),
    }
    assert "--layout BTHD" in options_of(report)
    subject = checked_content(report, None)
    (lines,) = (block(cause, subject) for cause in subject["causes"] if cause["rules"] == ["ATT-8"])
    assert "judge it again with:" in lines
    assert "--supports" not in lines
    assert judged(length_first, layout="BTHD", **told).conforms


def test_errors_of_two_lines_are_told_apart() -> None:
    report = judged(of_two_lines, "MASK-1", "ATT-3", **STRICT)
    assert {*options_of(report)} == {"--supports no-dense", "--supports no-bias"}
    assert report.following == []


def without_axes(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """Wrong by a thousandth, with rows in one axis only."""
    if weight.ndim > 1:
        raise NotImplementedError("one axis")
    return (reference_numpy.rms_norm(x, weight, eps=eps, plus_one=plus_one) * 1.001).astype(x.dtype)


def test_what_is_refused_hides_no_wrong_number(tmp_path: Path) -> None:
    report = judged(without_axes, "NORM-7", operation="rms_norm", dtypes="float32", **STRICT)
    assert [(found.rule, found.finding.kind) for found in report.violations] == [
        ("NORM-7", "value"),
        ("NORM-7", "raised"),
    ]
    assert report.levels["core"] == ["NORM-7"]
    assert "violates 1 rule" in str(report)
    files = [cause["violation"]["replay_file"] for cause in checked_content(report, tmp_path)["causes"]]
    assert len({*files}) == len(files) == 2


def with_a_table(x: Any, positions: Any, *, base: float = 10000.0) -> Any:
    if positions.max(initial=0) >= 5000:
        raise IndexError("the table has 5,000 rows")
    return reference_numpy.rotary_embedding(x, positions, base=base)


def test_how_far_a_table_of_positions_reaches_is_declared() -> None:
    given = {"operation": "rotary_embedding", "supports": "no-gradients"}
    (found,) = judged(with_a_table, **given).violations
    assert found.finding.detail.size.dimension == "table"
    assert judged(with_a_table, limits={"table": 5000}, **given).conforms


@conformance.declare("no-axes")
def declared_without_axes(x: Any, weight: Any, *, eps: float) -> Any:
    return without_axes(x, weight, eps=eps)


def test_a_refusal_that_is_declared_by_now_is_not_seen_again(tmp_path: Path) -> None:
    report = judged(without_axes, "NORM-7", operation="rms_norm", dtypes="float32", **STRICT)
    refused = next(one for one in report.violations if one.finding.kind == "raised")
    conformance.save_replay(refused, file := tmp_path / "refused.json")
    assert conformance.replay(file, without_axes)[0].ratio > 1
    assert conformance.replay(file, declared_without_axes) == []


def off_by_option(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """Twice as large where 1 is added to the weight."""
    return reference_numpy.rms_norm(x, weight, eps=eps, plus_one=plus_one) * x.dtype.type(1 + plus_one)


@pytest.mark.parametrize(("function", "rules"), [(off_by_option, ["NORM-8"]), (without_axes, ["NORM-7"])])
def test_the_rule_of_an_option_is_named_where_the_option_matters(function: Any, rules: list[str]) -> None:
    report = judged(function, "NORM-7", "NORM-8", operation="rms_norm", dtypes="float32")
    assert [found.rule for found in report.violations if found.finding.kind == "value"] == rules


def test_a_wrong_call_has_no_line() -> None:
    report = judged(lambda query: query, arrays="numpy", dtypes=None, **STRICT)
    (found,) = report.violations
    assert describe_finding(found.finding).startswith("call: raised TypeError: ")
    assert (found.finding.raised_at, options_of(report)) == ("", [""])


# --- claims -----------------------------------------------------------------------------------------------------------


def ungrouped(query: Any, key: Any, value: Any) -> Any:
    """One key head broadcasts, and several do not."""
    scores = query.astype(float) @ key.astype(float).swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype(float)).astype(query.dtype)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_where(unless="0")
def test_grouped_heads_are_missed_by_every_seed(seed: int) -> None:
    report = judged(ungrouped, "ATT-7", "ATT-1", seed=seed, limits=None)
    (found,) = report.violations
    assert (found.rule, found.title, options_of(report)) == ("ATT-7", "takes gqa", ["--supports no-gqa"])


@pytest.mark.parametrize("operation", ["attention", "attention_weights", "multi_head_attention"])
def test_no_axis_of_size_1_broadcasts_in_a_claim(operation: str) -> None:
    (claim,) = [claim for claim in plan.list_claims(operation, EVERYTHING) if claim.name == "gqa"]
    for _, case in draw_cases(claim.cases, 5, 0):
        heads = case.options.get("num_heads", case.inputs["query"].shape[1])
        groups = feature_sizes("gqa", EVERYTHING)[0].G
        assert 1 < groups < heads
        assert min(case.inputs["query"].shape) > 1
        assert operation == "multi_head_attention" or case.inputs["key"].shape[1] == groups


def test_claims_within_limits() -> None:
    """Where the subject takes no more than two heads, one key head is all that can be asked."""
    (small,) = {(s.H, s.G) for s in feature_sizes("gqa", replace(EVERYTHING, limits={"heads": 2}))}
    assert small == (2, 1)
    assert feature_sizes("dense", replace(EVERYTHING, limits={"batch": 1}))


def test_the_case_of_a_gradient_shows_its_cotangent() -> None:
    asked = violated(3.0).case
    cotangents = {"output": np.full((1, 1, 1, 1), 0.5, "float32")}
    assert repr(replace(asked, cotangents=cotangents)).endswith(") with cotangent float32([[[[0.5]]]])")
    both = replace(asked, cotangents=cotangents | {"logsumexp": np.zeros((2, 9))})
    assert repr(both).endswith(" with cotangents output=float32([[[[0.5]]]]), logsumexp=float64[2, 9]")
    assert "cotangent" not in repr(asked)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_whose_squares_overflow_are_drawn_anew(dtype: str) -> None:
    large = np.array([1.0, -0.5, 0.25], dtype) * np.finfo(dtype).max
    drawn = redraw_array(large, large, np.random.default_rng(1))
    assert np.isfinite(drawn).all()
    assert drawn.dtype == dtype
    assert np.abs(drawn).max() > np.finfo(dtype).max / 100
