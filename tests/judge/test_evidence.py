"""What a report shows of a violation: the largest errors, mistakes behind it, errors raised, and what declares them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conformance.diagnosis.dtypes import is_gone
from conformance.diagnosis.following import separated
from conformance.diagnosis.matching import BACKWARD_ONLY
from conformance.diagnosis.naming import replacing
from conformance.diagnosis.precision import AT_MOST
from conformance.judge.other_dtypes import examined, of_one_name

import conformance
import reference_numpy
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING
from conformance.checks.catalogue import AGREEMENT
from conformance.checks.comparison import worst
from conformance.checks.findings import Detail, Finding, NotReproducible, ProcessEnded, Raised, same_error
from conformance.checks.results import WRONG_IN, Results, Violation, Worst
from conformance.checks.threshold import Threshold
from conformance.judge import other_dtypes
from conformance.judge.judgement import claims, telling
from conformance.judge.report import Report
from conformance.judge.run import narrowest, settled
from conformance.peers.judging import PathRunner
from conformance.reports.blocks import block
from conformance.reports.content import real
from conformance.reports.sentences import describe_violation, describe_worst, title_of_another
from conformance.reports.subjects import checked
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import in_dtype
from conformance.sampling.draws import drawn
from conformance.subjects.targets import Target
from tests.judge.test_diagnosis import rules_of
from tests.judge.test_verdicts import printed

QUICK: dict[str, Any] = {"effort": "quick", "seed": 1, "profile": "strict"}

# --- the largest errors -----------------------------------------------------------------------------------------------


def violated(ratio: float, dtype: str = "float32", rule: str = "ATT-5", **told: Any) -> Violation:
    inputs = {name: np.ones((1, 1, 1, 1), dtype) for name in ("query", "key", "value")}
    finding = Finding("output", ratio, (0, 0, 0, 0), 1.5, 1.0, 0.5 / ratio)
    return Violation(rule, "a subject", finding, "a probe", AGREEMENT, Case("attention", dtype, inputs), **told)


def test_of_each_dtype_the_largest_error_is_kept() -> None:
    one, other = Results(), Results()
    for ratio in (3.0, 50.0, 7.0):
        one.violate(violated(ratio))
    other.violate(violated(60.0, "float64"))
    other.violate(violated(80.0, "float16"))
    one.include(other)
    one.with_worst()
    (told,) = one.violations.values()
    assert told.ratio == 3.0  # the first that was found
    assert {dtype: worst.ratio for dtype, worst in told.worst.items()} == {
        "float32": 50.0, "float16": 80.0, "float64": 60.0,
    }  # fmt: skip
    assert [worst.ratio for worst in told.larger] == [60.0, 80.0]  # in wide dtypes, and in 16 bits
    assert "worst in float64: output[0, 0, 0, 0]: got 1.5, expected 1.0, 60 bounds of" in describe_violation(told)
    another = replace(told.worst["float16"], another=True)
    said = "perhaps another mistake in float16: output[0, 0, 0, 0]: got 1.5, expected 1.0, 80 bounds"
    assert describe_worst(another).startswith(said)
    assert describe_worst(another).endswith(f"; {told.worst['float16'].found.case}")


def test_a_smaller_case_with_a_larger_error_counts_in_the_table() -> None:
    results = Results()
    results.violations["ATT-5", "a subject"] = violated(9.0)
    results.with_worst()
    cell = results.rules["ATT-5", "a subject"]
    assert (cell.worst, cell.wide) == (9.0, 9.0)
    assert results.violations["ATT-5", "a subject"].larger == []


def test_the_error_of_several_calls_counts_for_16_bits_where_one_of_them_has_16() -> None:
    wide, narrow = (Case("attention", dtype, {}, {}) for dtype in ("float32", "bfloat16"))
    assert narrowest((wide, narrow), wide) is narrow
    assert narrowest((wide, wide), wide) is narrowest(wide, wide) is wide


def test_what_is_no_violation_after_all_has_no_largest_error() -> None:
    results = Results()
    results.violate(violated(3.0))
    settled(results, lambda found: None)
    assert (results.violations, dict(results.worst)) == ({}, {})
    of_state = violated(3.0)
    results.violate(
        replace(of_state, finding=replace(of_state.finding, detail=NotReproducible(True, of_state.finding)))
    )
    assert dict(results.worst) == {}


def narrow_and_off(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
    """In float64 it computes in float32; in float32 the result is 0.01 % too large."""
    if query.dtype == np.float64:
        narrow = (array.astype(np.float32) for array in (query, key, value))
        return reference_numpy.attention(*narrow, scale=scale).astype(np.float64)
    right = reference_numpy.attention(query, key, value, scale=scale)
    return right * query.dtype.type(1.0001) if query.dtype == np.float32 else right


def test_one_mistake_does_not_hide_another_in_a_wider_dtype(tmp_path: Path) -> None:
    dtypes = ["float32", "float64"]
    report = conformance.check(narrow_and_off, "attention", rules=["ATT-1"], dtypes=dtypes, **QUICK)
    subject = checked(report, tmp_path)
    first = subject["violations"][0]
    (other,) = [one for one in first["worst"] if one["another_mistake"]]
    assert {report.violations[0].case.dtype, other["dtype"]} == set(dtypes)
    assert f"{other['dtype']}[" in other["case"] or f"{other['dtype']}(" in other["case"]
    told = f"{other['dtype']}: up to {real(other['ratio']):.3g} bounds, {title_of_another(other['diagnosis'])}"
    assert told in " ".join(printed(subject).split())
    assert told in block(first)


def test_a_mistake_without_a_name_is_not_called_another_for_certain() -> None:
    assert title_of_another(["the mask is ignored", f"{WRONG_IN}output"]) == "another mistake"
    for names in ([], [f"{WRONG_IN}output"], [f"{AT_MOST} weights in float16 would make them"]):
        assert title_of_another(names) == "perhaps another mistake"


def test_one_known_mistake_is_not_called_another() -> None:
    """The same name in both dtypes; a hint is no name."""
    one, hint = "the mask is ignored", f"{AT_MOST} weights in float16 would make them"
    for names, others, same in [
        ((one, "x"), (one,), True),
        ((one,), ("x", one), False),
        ((), (), False),
        ((hint,), (hint,), False),
        ((f"{WRONG_IN}output",), (f"{WRONG_IN}output",), False),
    ]:
        assert of_one_name(violated(3.0, diagnosis=names), violated(9.0, "float16", diagnosis=others)) == same


def test_clearly_wrong_numbers_refute_names_of_a_larger_case() -> None:
    """A number that is nearly right refutes nothing; nor does one that has the factor of the name."""
    factor = "output is 1e+06 times what it must be (the scale is left out)"
    names = ("the mask is transposed", "only queries past the first 64 are wrong", factor)
    wrong = violated(1e6)
    finding = replace(wrong.finding, name="output", expected=1.0)
    assert replacing(replace(wrong, finding=replace(finding, got=1.0001)), (), names) == names
    assert replacing(replace(wrong, finding=replace(finding, got=1.001e6)), (), names) == names[2:]
    for given in ({"got": -1e6}, {"got": 1e5}, {"got": 1e6, "name": "gradient of key"}):
        other = replace(finding, **given)
        assert replacing(replace(wrong, finding=other), (), names) == ()
    hint = (f"{AT_MOST} weights would make them",)
    assert replacing(wrong, hint, names) == names
    assert replacing(wrong, ("another",), names) == ()


def test_no_number_becomes_infinite_in_another_dtype() -> None:
    """What is cut down to a dtype that does not hold it is another case, on which nobody is right."""
    far = Case("attention", "float64", {name: np.full((1, 1, 1, 1), 1e119) for name in ("query", "key", "value")})
    assert in_dtype("float32", EVERYTHING)(far) is None
    near = replace(far, inputs=far.inputs | {name: np.ones((1, 1, 1, 1)) for name in far.inputs})
    assert in_dtype("float32", EVERYTHING)(near) is not None
    graded = replace(near, cotangents={"output": np.full((1, 1, 1, 1), 1e119)})
    assert in_dtype("float32", EVERYTHING)(graded) is None
    special = replace(near, inputs=near.inputs | {"value": np.full((1, 1, 1, 1), np.inf)}, special=True)
    assert in_dtype("float32", EVERYTHING)(special) is not None


@pytest.mark.parametrize(("name", "another"), [("the mask is ignored", False), ("bias is ignored", True)])
def test_the_largest_error_of_a_dtype_is_examined(name: str, another: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of another size on the same numbers are of another mistake, unless they have the same name."""
    monkeypatch.setattr(other_dtypes, "is_another", lambda *violations: True)
    monkeypatch.setattr(other_dtypes, "cut_down", lambda found, *others, **options: found)
    monkeypatch.setattr(other_dtypes, "diagnosis", lambda *found: (name,))
    told, runner = violated(3.0, diagnosis=("the mask is ignored",)), cast(Runner, SimpleNamespace(overrun=0))
    assert examined(told, Worst(9.0, violated(9.0, "float16")), runner, 0.0).another == another


def test_the_headline_names_what_it_does_not_explain() -> None:
    told = [violated(3.0, rule=rule, diagnosis=("the mask is ignored",)) for rule in ("MASK-1", "MASK-3", "ATT-4")]
    others = [violated(3.0, rule=rule) for rule in ("ATT-5", "ATT-8")]
    headline: Any = Report.headline
    for left, following, ending in [
        (others, [], "3 of 5 violations; ATT-5, ATT-8 have no diagnosis"),
        (others, others[1:], "3 of 5 violations; ATT-5 has no diagnosis; ATT-8 may follow"),
        (others[:1], [], "3 of 4 violations; ATT-5 has no diagnosis"),
        (
            [violated(3.0, rule="ATT-9", diagnosis=("bias is ignored",))],
            [],
            "3 of 4 violations; ATT-9 has another diagnosis",
        ),
        ([], told[1:], "3 of 3 violations"),
    ]:
        report = SimpleNamespace(violations=[*told, *left], following=following)
        assert headline.fget(report) == f"the mask is ignored: this explains the smallest cases of {ending}"


def test_of_names_that_explain_as_many_the_likeliest_is_the_headline() -> None:
    known = ("the window is one too wide on the left", "the mask is ignored", "each row has the mask of the first row")
    for names in permutations(known):
        told = [violated(3.0, rule=rule, diagnosis=names) for rule in ("MASK-1", "MASK-3")]
        report = SimpleNamespace(violations=told, following=[])
        headline: Any = Report.headline
        assert headline.fget(report) == f"{names[0]}: this explains the smallest cases of 2 of 2 violations"
    report = SimpleNamespace(violations=[violated(3.0, diagnosis=(f"{BACKWARD_ONLY}it is so",))], following=[])
    assert headline.fget(report) == "it is so, in the backward pass only"  # after "It looks as if"


def digits_lost(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
    """The same mistake in every dtype: some of its last digits are wrong."""
    right = reference_numpy.attention(query.astype(float), key.astype(float), value.astype(float), scale=scale)
    return (right * (1 + 40 * float(np.finfo(query.dtype).eps))).astype(query.dtype)


def unscaled(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
    return reference_numpy.attention(query, key, value, scale=1.0 if scale is None else scale)


@pytest.mark.parametrize("function", [digits_lost, unscaled])
@pytest.mark.slow
def test_one_mistake_in_several_dtypes_is_one(function: Any) -> None:
    dtypes = ["float32", "float64", "float16"]
    report = conformance.check(function, "attention", rules=["ATT-1"], dtypes=dtypes, **QUICK)
    (found,) = report.violations
    assert len(found.worst) > 1
    assert not any(worst.another for worst in found.worst.values())


def test_a_dtype_that_is_an_argument_is_not_asked_again() -> None:
    """Positions are computed from sizes and a dtype: there are no numbers that are the same in another one."""
    asked = Case("sinusoidal_positions", "float64", {}, {"length": 3, "width": 4, "dtype": "float64"})
    runner = Runner(Target(lambda length, width, *, dtype: np.zeros((length, width), dtype), asked.operation).make())
    wrong = worst(runner(AGREEMENT, asked, AGREEMENT.prepare(asked)))
    assert not is_gone(Violation("POS-1", "a subject", wrong, "a probe", AGREEMENT, asked), "float32", runner)


def test_a_dtype_that_is_no_librarys_path_is_not_asked() -> None:
    """Nothing comes back then."""
    asked = Case("silu", "float64", {"x": np.ones(3)}, {})
    runner = PathRunner(Target(lambda x: x, asked.operation).make())
    wrong = worst(runner(AGREEMENT, asked, AGREEMENT.prepare(asked)))
    runner.asks = lambda case: case.dtype == "float64"
    assert not is_gone(Violation("ACT-1", "a subject", wrong, "a probe", AGREEMENT, asked), "float32", runner)


@pytest.mark.slow
def test_the_table_and_the_evidence_have_the_same_largest_error(tmp_path: Path) -> None:
    report = conformance.check(narrow_and_off, "attention", rules=["ATT-1", "ATT-5"], shrink=False, **QUICK)
    subject = checked(report, tmp_path)
    worst = {rule["rule"]: real(rule["worst"]) for rule in subject["rules"]}
    assert len(subject["violations"]) == 2
    for violation in subject["violations"]:
        shown = [violation["ratio"], *(one["ratio"] for one in violation["worst"])]
        assert max(map(real, shown)) == worst[violation["rule"]]


# --- errors that are raised -------------------------------------------------------------------------------------------


def refuse_masks(mask: Any) -> None:
    if mask is not None:
        raise NotImplementedError(f"no mask {np.shape(mask)}")


def maskless(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    refuse_masks(mask)
    return reference_numpy.attention(query, key, value)


WITHOUT = "no-causal,no-lengths,no-padding,no-segments"


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.slow_where("True")
def test_one_error_is_told_once_with_its_line_and_what_declares_it(isolate: bool, tmp_path: Path) -> None:
    told: dict[str, Any] = {"rules": ["MASK-2", "MASK-3"], "dtypes": ["float32"], "shrink": False}
    report = conformance.check(maskless, "attention", arrays="numpy", isolate=isolate, **told, **QUICK)
    first, *others = checked(report, tmp_path)["violations"]
    assert [first["follows"], *(one["follows"] for one in others)] == [False, True]
    line = refuse_masks.__code__.co_firstlineno + 2
    assert first["raised_at"] == f"tests/judge/test_evidence.py:{line} in refuse_masks"
    assert first["declare"] == f"--supports {WITHOUT}"
    assert "raised at" in block(first)
    assert first["declare"] in block(first)
    declared = f"{WITHOUT},no-window,no-dense"
    assert isolate or conformance.check(maskless, "attention", supports=declared, **told, **QUICK).conforms


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
    (found,) = conformance.check(in_16_bits, "attention", dtypes=dtypes, **QUICK).violations
    assert (found.rule, found.declare) == ("CALL", told)


def test_a_dtype_that_is_not_supported_is_declared_by_the_others() -> None:
    dtypes = ["float32", "float64"]
    report = conformance.check(without_float64, "attention", rules=["ATT-9"], dtypes=dtypes, shrink=False, **QUICK)
    (found,) = report.violations
    assert (found.lacks, found.declare) == (("float64",), "--dtypes float32")


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
    told: dict[str, Any] = {"rules": ["ATT-1", "ATT-8"], "dtypes": ["float32"], "supports": ["no-gqa"], "shrink": False}
    report = conformance.check(length_first, "attention", **told, **QUICK)
    assert {violation.rule: (violation.lacks, violation.declare) for violation in report.violations} == {
        "ATT-1": ((), ""), "ATT-8": (("cross",), "--layout BTHD"),
    }  # fmt: skip
    lines = block(checked(report, None)["violations"][1])
    assert "judge it again with:" in lines
    assert "--supports" not in lines
    assert conformance.check(length_first, "attention", layout="BTHD", **told, **QUICK).conforms


def test_errors_of_two_lines_are_told_apart() -> None:
    told: dict[str, Any] = {"rules": ["MASK-1", "ATT-3"], "dtypes": ["float32"], "shrink": False}
    report = conformance.check(of_two_lines, "attention", **told, **QUICK)
    assert {violation.rule: violation.declare for violation in report.violations} == {
        "MASK-1": "--supports no-dense", "ATT-3": "--supports no-bias",
    }  # fmt: skip
    assert report.following == []


def test_which_errors_are_the_same() -> None:
    def found(detail: Detail, line: str = "kernel.py:3 in f") -> Finding:
        return Finding("call", np.inf, detail=detail, raised_at=line)

    one, other = Raised("ValueError", "3 and 4"), Raised("ValueError", "5 and 6")
    assert same_error(found(one), found(other))
    assert not same_error(found(one), found(Raised("TypeError", "3 and 4")))
    assert not same_error(found(one), found(Raised("ValueError", "3 and 4", threads=2)))
    assert not same_error(found(one), found(one, "kernel.py:4 in f"))
    assert not same_error(found(one), found(other, ""))
    assert same_error(found(one), found(one, ""))
    assert not same_error(found(ProcessEnded(-6)), found(ProcessEnded(-6)))


def test_a_wrong_call_has_no_line() -> None:
    report = conformance.check(lambda query: query, "attention", arrays="numpy", shrink=False, **QUICK)
    (found,) = report.violations
    assert isinstance(found.finding.detail, Raised)
    assert found.finding.detail.error == "TypeError"
    assert (found.finding.raised_at, found.declare) == ("", "")


# --- claims -----------------------------------------------------------------------------------------------------------


def ungrouped(query: Any, key: Any, value: Any) -> Any:
    """One key head broadcasts, and several do not."""
    scores = query.astype(float) @ key.astype(float).swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype(float)).astype(query.dtype)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_where(unless="0")
def test_grouped_heads_are_missed_by_every_seed(seed: int) -> None:
    told: dict[str, Any] = {"rules": ["ATT-7", "ATT-1"], "dtypes": ["float32"], "shrink": False, "effort": "quick"}
    report = conformance.check(ungrouped, "attention", seed=seed, **told)
    (found,) = report.violations
    assert (found.rule, found.title, found.declare) == ("ATT-7", "takes gqa", "--supports no-gqa")


@pytest.mark.parametrize("operation", ["attention", "attention_weights", "multi_head_attention"])
def test_no_axis_of_size_1_broadcasts_in_a_claim(operation: str) -> None:
    (claim,) = [claim for claim in claims(operation, EVERYTHING) if claim.name == "gqa"]
    for _, case in drawn(claim.cases, 5, 0):
        heads = case.options.get("num_heads", case.inputs["query"].shape[1])
        groups = telling("gqa", EVERYTHING)[0].G
        assert 1 < groups < heads
        assert min(case.inputs["query"].shape) > 1
        assert operation == "multi_head_attention" or case.inputs["key"].shape[1] == groups


def test_claims_within_limits() -> None:
    """Where the subject takes no more than two heads, one key head is all that can be asked."""
    (small,) = {(s.H, s.G) for s in telling("gqa", replace(EVERYTHING, limits={"heads": 2}))}
    assert small == (2, 1)
    assert telling("dense", replace(EVERYTHING, limits={"batch": 1}))


# --- one gradient -----------------------------------------------------------------------------------------------------

KEY = "wrong in: gradient of key only; output and the gradients of query and value conform"
VALUE = "wrong in: gradient of value only; output and the gradients of query and key conform"


def test_one_wrong_gradient_is_told_once() -> None:
    ratios = iter(range(100, 200))  # no two findings are alike

    def of(rule: str, line: str, *names: str) -> Violation:
        return violated(next(ratios), rule=rule, diagnosis=(*names, line))

    rules = ["ATT-1", "ATT-5", "ATT-8"]
    first, others = separated([of(rule, KEY) for rule in rules])
    assert (rules_of(first), rules_of(others)) == (["ATT-1"], ["ATT-5", "ATT-8"])
    assert len(separated([of("ATT-1", KEY), of("ATT-5", VALUE)])[0]) == 2
    names = ("gradient of key is missing: it is 0", "gradient of key is 2 times what it must be (counted twice)")
    assert len(separated([of("ATT-1", KEY, names[0]), of("ATT-5", KEY, names[1])])[0]) == 2
    assert len(separated([of("ATT-1", KEY, names[0]), of("ATT-5", KEY)])[0]) == 1
    several = "wrong in: the gradients of query and key; output and gradient of value conform"
    assert len(separated([of("ATT-1", several), of("ATT-5", several)])[0]) == 1
    assert len(separated([of("ATT-1", several), of("ATT-5", KEY)])[0]) == 2
    lines = (KEY, several, "wrong in: every gradient", "wrong in: output only; every gradient conforms")
    assert [of("ATT-1", line).wrong_gradients for line in lines] == [
        "gradient of key", "the gradients of query and key", "every gradient", "",
    ]  # fmt: skip


def test_one_threshold_or_one_definite_name_is_told_once() -> None:
    first, also = ((Threshold(("K",), "first", wrong, (63, 64), 64),) for wrong in ((65,), (65, 96, 192)))
    later = (replace(also[0], wrong=(66, 96, 192)),)
    one, other = violated(9.0, rule="ATT-1", threshold=first), violated(5.0, "bfloat16", rule="ATT-9", threshold=also)
    assert rules_of(separated([one, other])[1]) == ["ATT-9"]
    assert separated([one, replace(other, threshold=later)])[1] == []
    assert separated([one, replace(other, diagnosis=("keys past the first 64 count twice",))])[1] == []
    scaled, masked = (
        replace(violation, example=replace(violation.case, options=options), rule=rule, threshold=())
        for violation, options, rule in (
            (one, {"scale": 2.0}, "ATT-1"),
            (other, {"mask": np.ones((1, 1), bool)}, "MASK-1"),
        )
    )
    for name, following in (
        ("keys past the first 64 are left out", 1),
        ("perhaps: the errors are no larger than", 0),
    ):
        told = [replace(violation, diagnosis=(name,)) for violation in (scaled, masked)]
        assert len(separated(told)[1]) == following


def test_the_case_of_a_gradient_shows_its_cotangent() -> None:
    asked = violated(3.0).case
    cotangents = {"output": np.full((1, 1, 1, 1), 0.5, "float32")}
    assert repr(replace(asked, cotangents=cotangents)).endswith(") with cotangent float32([[[[0.5]]]])")
    both = replace(asked, cotangents=cotangents | {"logsumexp": np.zeros((2, 9))})
    assert repr(both).endswith(" with cotangents output=float32([[[[0.5]]]]), logsumexp=float64[2, 9]")
    assert "cotangent" not in repr(asked)
