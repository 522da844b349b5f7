"""What is behind violations: small wrong kernels as people write them, and the causes that the judge finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import reference_numpy
import torch_impl
from conformance import check, compare
from conformance.cases.expectations import replace_hidden
from conformance.diagnosis import explanation
from conformance.diagnosis.cause import Cause, Diagnosis
from conformance.diagnosis.choice import Chooser
from conformance.diagnosis.evidence import Evidence, weigh
from conformance.judge.causes import choose_by_thresholds, make_small
from conformance.mistakes.call import Call
from conformance.mistakes.catalogue import mistakes_of
from conformance.mistakes.condition import ALWAYS, Condition
from conformance.mistakes.planting import PlantedSubject
from specification import Causal
from tests.support.helpers import (
    SMALL,
    Case,
    Mistake,
    Report,
    Threshold,
    attention_case,
    find_mistake,
    judged,
    keep_meaningful,
    name_of_cause,
    options_of,
)
from tests.support.targets import inverted, neighbours, rounded_weights

Function = Callable[..., Any]


def judge_strictly(function: Any, *rules: str, **given: Any) -> Report:
    return judged(function, *rules, **{"profile": "strict"} | given)


def only(report: Report) -> Cause:
    (cause,) = report.causes
    return cause


attend = reference_numpy.attention

# --- one known mistake ------------------------------------------------------------------------------------------------


def test_a_known_mistake_is_named_with_its_evidence() -> None:
    """One cause for all rules of masks. What it breaks first leads, and all its failing cases are explained."""
    report = judge_strictly(inverted, "MASK-1", "MASK-2", "MASK-3", "MASK-4")
    cause = only(report)
    diagnosis = cause.diagnosis
    assert diagnosis is not None
    assert (cause.kind, diagnosis.id, cause.lead.rule) == ("mistake", "masks.inverted", "MASK-1")
    assert cause.conventions == {"polarity": "masked"}
    assert diagnosis.explained == diagnosis.failing > 3
    assert {*cause.rules} == {violation.rule for violation in report.violations}
    assert report.following == [violation for violation in report.violations if violation.rule != "MASK-1"]
    assert (cause.level, cause.lacks, cause.condition) == ("core", (), ALWAYS)
    assert str(report).count("True is taken for forbidden") == 1


def mean_removed(x: Any, weight: Any, *, eps: float) -> Any:
    wide = x.astype(float)
    wide -= wide.mean(tuple(range(-weight.ndim, 0)), keepdims=True)
    return reference_numpy.rms_norm(wide, weight.astype(float), eps=eps).astype(x.dtype)


def over_all_rows(log_probabilities: Any, targets: Any, *, ignore: int | None = None, reduction: str = "mean") -> Any:
    summed = "sum" if reduction == "mean" else reduction
    found = reference_numpy.nll_loss(log_probabilities, targets, ignore=ignore, reduction=summed)
    return found if reduction != "mean" else np.asarray(found / max(targets.size, 1), log_probabilities.dtype)


@pytest.mark.parametrize(
    ("function", "operation", "rule", "name"),
    [
        (mean_removed, "rms_norm", "NORM-7", "norms.mean-subtracted"),
        (over_all_rows, "nll_loss", "LOSS-2", "losses.mean-over-all-rows"),
        (neighbours, "rotary_embedding", "POS-3", "rotary.pairing"),
    ],
)
def test_mistakes_of_other_operations_are_named(function: Function, operation: str, rule: str, name: str) -> None:
    report = judge_strictly(function, rule, operation=operation, supports=["no-gradients"], limits=None)
    assert name_of_cause(report.causes[0]) == name


def silu_in_float32(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return reference_numpy.silu(x.astype(np.float32)).astype(x.dtype)


def norm_in_float32(x: Any, weight: Any, *, eps: float) -> Any:
    with np.errstate(over="ignore"):
        return reference_numpy.rms_norm(x.astype(np.float32), weight.astype(np.float32), eps=eps).astype(x.dtype)


@pytest.mark.parametrize(
    ("function", "operation", "topic"),
    [(silu_in_float32, "silu", "feed_forward"), (norm_in_float32, "rms_norm", "norms")],
)
def test_float64_in_float32_is_one_cause_of_lost_digits_and_lost_range(
    function: Function, operation: str, topic: str
) -> None:
    """Numbers that are 0 or infinite in float32 too, and those that lose digits only."""
    limits = keep_meaningful({"rows": 40, "norm_width": 40}, operation)
    given = {"dtypes": ["float64"], "supports": ["no-gradients"], "limits": limits}
    cause = only(judge_strictly(function, "ACT-1", "NORM-7", operation=operation, **given))
    assert cause.diagnosis is not None
    assert name_of_cause(cause) == f"{topic}.float64-in-float32"
    assert cause.diagnosis.explained == cause.diagnosis.failing > 3


def pad_keys(query: Any, key: Any, value: Any, *, mask: Any, scale: float | None = None) -> Any:
    """Keys and values are filled up to a multiple of 8, and the window is the only mask of what is appended."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    if (K, mask.left, mask.right) != (Q, 8, 8):
        raise NotImplementedError("other windows")
    zeros = [(0, 0), (0, 0), (0, -K % 8), (0, 0)]
    seen = reference_numpy.materialize(mask, Q, K + -K % 8, batch=B, heads=H)
    return attend(query, np.pad(key, zeros), np.pad(value, zeros), mask=seen, scale=scale)


def test_padding_that_a_window_reaches_is_one_cause_of_all_rules() -> None:
    takes = ["structured", "window", "no-offset", "no-cross", "no-empty", "scale", "value_width", "no-gradients"]
    given = {"windows": [(8, 8)], "conventions": {"isolation": "finite"}, "dtypes": ["float32"], "limits": None}
    cause = only(judge_strictly(pad_keys, "MASK-2", "MASK-4", "ATT-1", "ATT-8", supports=takes, **given))
    assert cause.diagnosis is not None
    assert name_of_cause(cause) == "extents.key-tail-filled"
    assert cause.diagnosis.explained == cause.diagnosis.failing > 3


# --- several, or one under a condition --------------------------------------------------------------------------------


def test_two_mistakes_are_two_causes() -> None:
    """Each rule is explained by its own."""

    def make_both_mistakes(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
        if bias is None:
            return inverted(query, key, value, mask=mask)
        return attend(query, key, value, mask=mask, bias=2 * bias)

    causes = judge_strictly(make_both_mistakes, "MASK-1", "ATT-3").causes
    rules = {name_of_cause(cause): cause.rules for cause in causes}
    assert rules == {"masks.inverted": ("MASK-1",), "scores.bias-twice": ("ATT-3",)}


def attend_in_own_dtype(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
    """Every product and every sum is rounded to the inputs' dtype, and forbidden scores are its lowest number."""
    scale = query.dtype.type(query.shape[-1] ** -0.5)
    key, value = (np.repeat(array, query.shape[1] // array.shape[1], axis=1) for array in (key, value))
    products = (query[..., :, None, d] * scale * key[..., None, :, d] for d in range(query.shape[-1]))
    scores = sum(products, np.zeros((), query.dtype))
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(query.dtype).min)
    maximum = scores.max(-1, keepdims=True)
    with np.errstate(over="ignore"):
        weights = np.exp(scores - maximum)
        total = np.zeros((), query.dtype) if sinks is None else np.exp(sinks[:, None, None] - maximum)
    weights /= sum((weights[..., k, None] for k in range(key.shape[2])), total)
    return sum((weights[..., k, None] * value[..., None, k, :] for k in range(key.shape[2])), np.zeros((), query.dtype))


def test_arithmetic_in_16_bits_is_one_cause_beside_mistakes() -> None:
    """The float16 cases of the other mistake are explained by it within the bounds of that arithmetic."""
    rules = ("MASK-1", "ATT-1", "ATT-6", "ATT-9")
    report = judge_strictly(
        attend_in_own_dtype, *rules, supports=["causal", "dense", "gqa"], dtypes=["float16", "float32"]
    )
    narrow, filled = report.causes
    assert (narrow.kind, narrow.condition) == ("arithmetic", Condition(dtypes=("float16",)))
    assert (name_of_cause(filled), filled.rules) == ("fills.number-put", ("ATT-6",))


def test_arithmetic_is_allowed_of_what_a_check_compares() -> None:
    """Sinks of -inf are compared with no sinks, which have no gradient."""
    given: dict[str, Any] = {"supports": ["sinks", "gqa", "gradients"], "vjp": reference_numpy.attention_vjp}
    cause = only(judge_strictly(attend_in_own_dtype, "ATT-5", "ATT-9", dtypes=["float16"], **given))
    assert cause.kind == "arithmetic"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda output, value: output + 1 if output.dtype == np.float16 and output.shape[2] % 2 else output,
        lambda output, value: np.full_like(output, np.nan if output.shape[2] % 2 else 777),
        lambda output, value: output + value.dtype.type(0.01) * value.mean(axis=(1, 2), keepdims=True),
    ],
)
def test_wrong_numbers_in_16_bits_are_no_arithmetic(spoil: Function) -> None:
    """Whatever the bounds of that arithmetic; nor is what is wrong in float32 as well."""

    def attend_and_spoil(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return spoil(attend_in_own_dtype(query, key, value, mask=mask), value).astype(query.dtype)

    report = judge_strictly(attend_and_spoil, "MASK-1", "ATT-1", supports=["dense"], dtypes=["float16", "float32"])
    assert report.causes
    assert "arithmetic" not in {cause.kind for cause in report.causes}


def test_the_size_past_which_a_mistake_shows_is_learned() -> None:
    def unmasked_past_20(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return attend(query, key, value, mask=None if key.shape[2] > 20 else mask)

    limits = SMALL | {"keys": 40, "queries": 40}
    report = judge_strictly(unmasked_past_20, "MASK-1", "MASK-3", limits=limits, effort="default")
    cause = only(report)
    assert cause.condition is not None
    assert (name_of_cause(cause), cause.condition.axis) == ("masks.ignored", "K")
    assert 4 < cause.condition.past <= 20  # the largest size that was tried and is right
    assert f"only past {cause.condition.past} keys" in str(report)


def test_the_size_of_a_mistake_is_that_of_the_thresholds() -> None:
    """Few cases tell blocks of 16 rows from those of 128; the sizes that are tried at the end do."""
    blocks = [find_mistake("norm_gradients.last-block-lost").choose(block=block) for block in (16, 128)]
    cause = Cause("mistake", (), Diagnosis(blocks[0], 5, 5, 40, (blocks[1],)))
    threshold = Threshold(("rows",), "no multiple", (129, 130), (64, 128), above=128, multiple=128)
    diagnosis = choose_by_thresholds(cause, [threshold]).diagnosis
    assert diagnosis is not None
    assert (diagnosis.mistake, diagnosis.alternatives) == (blocks[1], ())


def test_a_mistake_that_other_sizes_refute_is_withdrawn() -> None:
    """Rounded up to a power of two, 97 columns would be as wrong as 96."""

    def wrong_at_96(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return attend(query, key, value, mask=mask, scale=128**-0.5 if query.shape[-1] == 96 else None)

    cause = only(check(wrong_at_96, "attention", arrays="numpy", effort="quick", seed=1))
    assert cause.kind == "numbers"
    assert (96,) in [threshold.wrong for threshold in cause.lead.threshold]


def test_the_dtype_of_a_mistake_is_learned() -> None:
    def unscaled_in_float16(query: Any, key: Any, value: Any) -> Any:
        return attend(query, key, value, scale=1.0 if query.dtype == np.float16 else None)

    cause = only(judge_strictly(unscaled_in_float16, "ATT-1", "ATT-9", dtypes=["float32", "float16"]))
    assert cause.diagnosis is not None
    assert (cause.diagnosis.id, cause.diagnosis.values["scale"]) == ("scores.default-scale", "1")
    assert cause.condition == Condition(dtypes=("float16",))


def added_under_softcap(query: Any, key: Any, value: Any, *, mask: Any = None, softcap: Any = None) -> Any:
    """Adds the mask to capped scores; without a softcap it is right."""
    if softcap is None or mask is None:
        return attend(query, key, value, mask=mask, softcap=softcap)
    return attend(query, key, value, bias=np.broadcast_to(mask, mask.shape).astype(query.dtype), softcap=softcap)


def test_the_feature_of_a_mistake_is_learned() -> None:
    """Behind a mask with NaN another mistake is at work, which this one resembles."""
    report = judge_strictly(added_under_softcap, "MASK-1", "MASK-3", "ATT-2", "ATT-8", supports="no-gqa")
    diagnoses = {one.diagnosis.id: one.condition for one in report.causes if one.diagnosis is not None}
    assert diagnoses["masks.added-to-scores"].features == ("softcap",)


def test_a_feature_that_most_failing_cases_have_limits_a_mistake() -> None:
    capped, also_capped, plain, other = (
        SimpleNamespace(call=SimpleNamespace(features=frozenset(features)))
        for features in (("softcap", "gqa"), ("softcap",), (), ("gqa",))
    )
    chooser: Any = SimpleNamespace(uncovered=[capped, also_capped, plain])
    mistake = mistakes_of("attention")[0]
    explained: Any = [capped, also_capped, plain]
    against: Any = [other]
    limited = Chooser.limit_to_feature(chooser, explanation.Explanation(mistake, explained, against))
    assert limited is not None
    assert (limited.mistake.condition.features, limited.explained) == (("softcap",), [capped, also_capped])
    assert (
        Chooser.limit_to_feature(chooser, explanation.Explanation(mistake, explained, [*against, *explained])) is None
    )


def mean_over_all_at_0(logits: Any, targets: Any, *, ignore: Any = None, reduction: str = "mean") -> Any:
    """The mean is over all rows where class 0 does not count."""
    loss = reference_numpy.cross_entropy(logits, targets, ignore=ignore, reduction=reduction)
    share = (targets != 0).mean() if ignore == 0 and reduction == "mean" else 1
    return np.asarray(loss * share, logits.dtype)


def test_the_value_of_an_option_is_learned() -> None:
    given = {"operation": "cross_entropy", "effort": "default", "dtypes": "float32"}
    cause = only(judge_strictly(mean_over_all_at_0, "LOSS-1", **given))
    assert name_of_cause(cause) == "losses.mean-over-all-rows"
    assert cause.condition is not None
    assert cause.condition.features == ("ignore=0",)


def lost_past_64(query: Any, key: Any, value: Any) -> Any:
    weights = reference_numpy.attention_weights(query.astype(float), key.astype(float))
    return (weights[..., :64] @ value[..., :64, :].astype(float)).astype(query.dtype)


def test_when_a_cause_shows_agrees_with_its_smallest_case() -> None:
    report = judged(lost_past_64, "ATT-8", supports="no-gqa,no-gradients", seed=1, limits={"keys": 600}, shrink=True)
    for cause in report.causes:
        assert cause.condition is None or cause.condition.holds(Call(cause.lead.case))
    runner: Any = SimpleNamespace(overrun=True)  # so that the case stays as it is
    for condition, holds in ((Condition(features=("softcap",)), False), (Condition(lacks=("softcap",)), True)):
        cause = replace(report.causes[0], diagnosis=None, condition=condition)
        smallest = make_small(cause, runner, 0, lambda violation: violation, sized=False)
        assert smallest.condition == (condition if holds else None)


def test_a_slip_in_the_backward_pass_is_named() -> None:
    def counted_twice(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return torch_impl.attention(query, key, 2 * value - value.detach(), mask=mask)

    report = judge_strictly(counted_twice, "ATT-12", "MASK-3", arrays="torch")
    cause = only(report)
    assert (name_of_cause(cause), cause.lead.rule) == ("backward.factor", "ATT-12")
    assert {violation.finding.name for violation in report.violations} == {"gradient of value"}


def test_empty_rows_with_the_mean_are_one_cause_of_their_rule() -> None:
    def fill_with_finite_number(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        empty_rows = "zero" if mask is None or 0 in mask.shape else "mean"
        return attend(query, key, value, mask=mask, empty_rows=empty_rows)

    cause = only(judge_strictly(fill_with_finite_number, "MASK-1", "MASK-2", "ATT-6"))
    assert cause.diagnosis is not None
    assert (cause.rules, cause.level) == (("ATT-6",), "robust")
    mistakes = (cause.diagnosis.mistake, *cause.diagnosis.alternatives)
    assert {"empty_rows.filled", "fills.number-put"} & {mistake.id for mistake in mistakes}


# --- no known mistake -------------------------------------------------------------------------------------------------


def test_a_rounding_that_may_be_meant_has_its_convention() -> None:
    given: dict[str, Any] = {"dtypes": ["bfloat16"]}
    cause = only(judge_strictly(rounded_weights, "ATT-9", **given))
    assert (name_of_cause(cause), cause.level) == ("precision.weights-rounded", "strict")
    assert cause.conventions == {"weights": "inputs"}
    assert judge_strictly(rounded_weights, "ATT-9", "ATT-8", conventions=dict(cause.conventions), **given).conforms


def weigh_hidden_values(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    key, value = (array.repeat_interleave(query.shape[1] // key.shape[1], 1) for array in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1).nan_to_num(0) @ value


def weigh_absent_parts(outputs: Any, logsumexps: Any) -> Any:
    whole = torch.logsumexp(torch.stack(logsumexps), 0)
    weights = torch.exp(torch.stack(logsumexps) - torch.where(whole.isinf(), 0, whole))
    return (weights[..., None] * torch.stack(outputs)).sum(0), whole


@pytest.mark.rule("MASK-7")
@pytest.mark.parametrize(
    ("function", "operation", "options"),
    [
        (weigh_hidden_values, "attention", "--conventions isolation=finite"),
        (weigh_absent_parts, "merge_attention", ""),  # nothing there is masked
    ],
)
@pytest.mark.parametrize("shrink", [False, True])
def test_only_who_has_masks_may_promise_nothing_behind_them(
    function: Any, operation: str, options: str, shrink: bool
) -> None:
    given: dict[str, Any] = {"arrays": "torch", "supports": "no-gradients,no-empty", "shrink": shrink}
    report = judged(function, "MASK-7", operation=operation, **given)
    assert [violation.rule for violation in report.violations] == ["MASK-7"]
    assert options_of(report) == [options]


@np.errstate(all="ignore")
@pytest.mark.parametrize(
    ("mistake", "verdict"),
    [
        (find_mistake("special_values.hidden-multiplied").choose(), "explains"),
        (find_mistake("fills.number-put").choose(), "silent"),
        (find_mistake("extents.key-tail-filled").choose(what="the first keys"), "silent"),
        (find_mistake("masks.ignored").choose(), "explains"),
    ],
    ids=str,
)
def test_only_mistakes_of_special_values_are_named_for_what_hidden_nan_alone_shows(
    mistake: Mistake, verdict: str
) -> None:
    """What is -inf, or stands behind a causal mask, has a weight of 0. An ignored mask lets numbers through, too."""
    case = small_case(keys=6, mask=Causal(0))
    value = np.where(np.arange(6)[:, None] > 4, np.float32("nan"), case.inputs["value"])
    case = replace(case, inputs=case.inputs | {"value": value}, cotangents={}, special=True)
    evidence = weigh(Call(case), {"output": np.full((1, 2, 3, 3), np.nan, np.float32)})
    assert evidence is not None
    assert explanation.judge_mistake(mistake, evidence) == verdict


def test_hidden_numbers_stand_in_for_hidden_nan() -> None:
    """What some query attends to stays, and so do an infinity that forbids, and a case that hides numbers alone."""
    nan, inf = np.float32("nan"), np.float32("inf")
    bias = np.array([[0, 0, 0, nan, inf], [0, 0, 0, 0, 0], [0, 0, 0, 0, -inf]], np.float32)
    case = small_case(mask=Causal(0))
    key = case.inputs["key"].copy()
    key[..., 1, 0], key[..., 4, :] = nan, inf
    clean = replace_hidden(replace(case, inputs=case.inputs | {"key": key, "bias": bias}))
    assert np.isnan(clean.inputs["key"][..., 1, 0]).all()
    assert (clean.inputs["key"][..., 4, :] == 1).all()
    np.testing.assert_array_equal(clean.inputs["bias"][:2], [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    assert clean.inputs["bias"][2, 4] == -inf
    plain = small_case()
    assert replace_hidden(plain) is plain


def test_lost_digits_that_no_mistake_explains_are_called_so() -> None:
    def slightly_too_large(query: Any, key: Any, value: Any) -> Any:
        return attend(query, key, value) * np.float32(1 + 1e-5)

    assert name_of_cause(only(judge_strictly(slightly_too_large, "ATT-1", "ATT-8"))) == "digits"


def test_digits_lost_in_both_16_bit_dtypes_are_one_cause() -> None:
    """Where they are lost at the same places."""

    def too_large_in_16_bits(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        output = attend(query, key, value, mask=mask)
        wrong = output.astype(np.float32) * np.float32(1.012)
        if output.dtype != np.float32 and parts and str(output.dtype) == "bfloat16":
            wrong[..., :1] = output[..., :1]
        return output if output.dtype == np.float32 else wrong.astype(output.dtype)

    rules = ("MASK-1", "ATT-1", "ATT-7", "ATT-8", "ATT-9")
    for parts in (False, True):
        report = judge_strictly(too_large_in_16_bits, *rules, dtypes=["float32", "float16", "bfloat16"])
        assert {cause.kind for cause in report.causes} == {"digits"}
        assert {rule for cause in report.causes for rule in cause.rules} == {*rules}
        assert len(report.causes) == 1 + parts


def test_what_no_mistake_explains_has_a_pattern() -> None:
    def wrong_columns(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        output = attend(query, key, value, mask=mask)
        output[..., 2:] += np.float32(0.25) * query[..., :1]
        return output

    report = judge_strictly(wrong_columns, "ATT-1", "ATT-8", "MASK-1")
    assert name_of_cause(only(report)) == "numbers"
    assert {"ATT-8", "MASK-1"} <= {*only(report).rules}
    assert "columns of value from 2 on (of " in str(report)


def test_what_depends_on_memory_is_a_cause_of_its_own() -> None:
    def reading_on(query: Any, key: Any, value: Any) -> Any:
        count = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
        if value.numel() <= count:
            strides = torch.empty(value.shape).stride()
            value = torch.as_strided(value, value.shape, strides, value.storage_offset())
        return torch_impl.attention(query, key, value)

    cause = only(judge_strictly(reading_on, "ATT-13", "ATT-8", arrays="torch", supports=["no-gradients"]))
    assert (cause.kind, cause.rules) == ("memory", ("ATT-13",))


# --- evidence made by hand --------------------------------------------------------------------------------------------


def small_case(width: int = 4, keys: int = 5, seed: int = 0, dtype: str = "float32", **options: Any) -> Case:
    return attention_case(1, 2, 1, 3, keys, width, 3, dtype=dtype, seed=seed, gradients=True, **options)


def scaled_by(name: str, scale: Callable[[int], float]) -> Mistake:
    def change(call: Call) -> Any:
        return call.steps.change(scale=scale(call.case.inputs["query"].shape[-1]))

    return Mistake(name, "ATT-1", name, change)


QUARTER = scaled_by("scale.quarter", lambda width: 0.25)
INVERSE = scaled_by("scale.inverse", lambda width: 1 / width)


def evidence_of(mistake: Mistake, case: Case) -> Evidence:
    found = weigh(Call(case), PlantedSubject(mistake)(case))
    assert found is not None
    return found


def test_a_mistake_explains_is_spoken_against_or_silent() -> None:
    wrong, alike = evidence_of(QUARTER, small_case(9)), evidence_of(QUARTER, small_case(4))
    right = evidence_of(QUARTER.limit(Condition("K", past=5)), small_case(9))
    silent = scaled_by("scale.right", lambda width: width**-0.5)
    judge_mistake, is_consistent = explanation.judge_mistake, explanation.is_consistent
    assert [judge_mistake(QUARTER, one) for one in (wrong, alike, right)] == ["explains", "explains", "against"]
    assert [judge_mistake(INVERSE, one) for one in (wrong, alike, right)] == ["against", "explains", "against"]
    assert [judge_mistake(silent, one) for one in (wrong, right)] == ["silent", "silent"]
    assert [is_consistent(mistake, wrong) for mistake in (QUARTER, INVERSE, silent)] == [True, False, False]


SQUARED = Mistake("scale.squared", "ATT-1", "", lambda call: call.steps.change(scale=call.steps.scale**2))


@pytest.mark.parametrize(("mistakes", "name"), [([QUARTER, SQUARED], "scale.squared"), ([QUARTER], None)])
def test_a_chance_agreement_is_refuted_by_experiments(mistakes: list[Mistake], name: str | None) -> None:
    """A scale of 1 / 2 is 1 / 4 when it is squared. Without other cases the first of both names would be chosen."""
    failing = [evidence_of(SQUARED, small_case(9, seed=seed, scale=0.5)) for seed in (1, 2)]

    def chosen(*scales: float) -> list[str]:
        drawn = (small_case(9, seed=seed, scale=scale) for seed, scale in enumerate(scales, 3))
        search = Chooser(failing, [], mistakes, lambda one: drawn, lambda case: evidence_of(SQUARED, case))
        return [one.mistake.id for one in search.choose()]

    assert chosen() == ["scale.quarter"]
    assert chosen(0.5, 0.3, 0.7, 0.2) == ([] if name is None else [name])


def test_conditions_that_all_cases_fit_are_told_apart_by_experiments() -> None:
    """A feature is tried before a size; the next case shows that the size is meant."""
    planted = QUARTER.limit(Condition("K", past=8))
    failing = [evidence_of(planted, small_case(9, 10, seed, mask=Causal(7))) for seed in (1, 2)]
    passing = [evidence_of(planted, small_case(9, 8, 3))]

    def learned(*cases: Case) -> Condition:
        search = Chooser(failing, passing, [QUARTER], lambda one: iter(cases), lambda case: evidence_of(planted, case))
        (found,) = search.choose()
        return found.mistake.condition

    assert learned() == Condition(features=("causal",))
    assert learned(*(small_case(9, 8, seed, mask=Causal(5)) for seed in (4, 5))) == planted.condition


@pytest.mark.parametrize("others", [3, 2])
@pytest.mark.parametrize("keys", [8, 10])
def test_a_mistake_up_to_a_size_explains_more_than_it_leaves_out(others: int, keys: int) -> None:
    """Three cases of fewer keys agree with a quarter; past a size a mistake may show beside any other."""
    failing = [evidence_of(QUARTER, small_case(9, 9, seed)) for seed in (1, 2, 3)]
    failing += [evidence_of(INVERSE, small_case(9, keys, seed)) for seed in range(4, 4 + others)]
    chosen = Chooser(failing, [], [QUARTER], lambda one: iter(()), lambda case: None).choose()
    condition = Condition("K", past=8) if keys == 8 else Condition("K", up_to=9)
    assert [one.mistake.condition for one in chosen] == ([] if (others, keys) == (3, 10) else [condition])


def test_two_mistakes_that_are_there_everywhere() -> None:
    """The scale is seen where there is no mask, and so is left out as much as it is explained."""

    def attend_unscaled(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return attend(query, key, value, mask=None if mask is None else ~np.asarray(mask), scale=1.0)

    report = judge_strictly(attend_unscaled, "ATT-1", "MASK-1", supports=["dense"])
    assert "scores.default-scale" in map(name_of_cause, report.causes)


@pytest.mark.parametrize(
    ("wrong", "right", "condition"),
    [
        ([{}], [], ALWAYS),
        ([{"keys": 9}, {"keys": 20}], [{"keys": 8}, {"keys": 2}], Condition("K", past=8)),
        ([{"keys": 9}, {"keys": 20}], [{"keys": 30}], Condition("K", up_to=20)),
        ([{"keys": 9}, {"keys": 21}], [{"keys": 8}, {"keys": 30}], Condition("K", past=2, partial=2)),
        ([{"keys": 8}, {"keys": 24}], [{"keys": 9}, {"keys": 30}, {"keys": 4}], Condition("K", whole=8)),
        ([{"dtype": "float16"}], [{"dtype": "float32"}], Condition(dtypes=("float16",))),
        ([{"scale": 0.3}], [{"keys": 6}, {"keys": 4}], Condition(features=("scale",))),
        ([{}, {"mask": Causal(2)}], [{"scale": 0.3}, {"scale": 0.1, "mask": Causal(2)}], Condition(lacks=("scale",))),
        ([{}], [{}], None),
    ],
)
def test_the_simplest_condition_is_learned(wrong: Any, right: Any, condition: Condition | None) -> None:
    explained, others = (
        [Evidence(Call(small_case(**given)), {}, frozenset()) for given in several] for several in (wrong, right)
    )
    assert explanation.learn_condition(explained, others) == condition


@pytest.mark.parametrize(
    ("wrong", "places"),
    [
        ("1111", "throughout"),
        ("0100", "in one of 4 queries: 1"),
        ("0011", "in queries from 2 on (of 4)"),
        ("1100", "in queries up to 1 (of 4)"),
        ("010101", "in queries 1, 3, ... (one in 2)"),
        ("1001001", "in queries 0, 3, ... (one in 3)"),
        ("011100", "in queries 1 to 3 (of 6)"),
        ("110100", "in 3 of 6 queries"),
    ],
)
def test_places_are_described(wrong: str, places: str) -> None:
    """Of the first wrong result, with the share of its numbers that are wrong."""
    case = attention_case(Q=len(wrong))
    output = attend(**case.inputs)
    output[:, :, [digit == "1" for digit in wrong]] += 1
    found = str(compare("attention", output, **case.inputs))
    share = wrong.count("1") / len(wrong)
    assert f"output is wrong {places}" + (f"; {share:.1%} of its numbers are wrong" if share < 1 else "") in found


def test_the_pattern_is_of_the_first_wrong_result() -> None:
    def spoiled_twice(query: Any, key: Any, value: Any) -> Any:
        output = attend(query, key, value)
        output[:, 1:2] += 1
        return output

    def vjp(*arguments: Any) -> Any:
        return reference_numpy.attention_vjp(*arguments)._replace(key=0 * arguments[1])

    patterns = {cause.kind: cause.pattern for cause in judge_strictly(spoiled_twice, "ATT-1", "ATT-12", vjp=vjp).causes}
    pattern = patterns["numbers"]
    assert pattern is not None
    heads = pattern.places[1]
    assert (pattern.result, pattern.share) == ("output", 1 / heads.size)
    assert (heads.kind, heads.start) == ("one", 1)
