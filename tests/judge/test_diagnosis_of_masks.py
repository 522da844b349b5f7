"""Mistakes of whoever writes attention for the first time: a mask inverted, a triangle always, scores in 16 bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance.diagnosis.attention import EVERY_CALL
from conformance.diagnosis.attribution import Failure, attributed
from conformance.diagnosis.elsewhere import hint_for, with_hints
from conformance.diagnosis.following import separated
from conformance.diagnosis.matches import of_planted
from conformance.diagnosis.naming import diagnosis, may_hold
from conformance.diagnosis.precision import AT_MOST, excused, rounded

import conformance
import reference_numpy
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.expectations import Planted, allowed_pairs
from conformance.checks.catalogue import AGREEMENT, PLANTED
from conformance.checks.check import Check
from conformance.checks.comparison import Finding, worst
from conformance.checks.results import Results, Violation
from conformance.diagnosis import matches
from conformance.judge.run import cut_down, run_corpus, violation
from conformance.operations.corpus import entries
from conformance.oracle.reference import oracle
from conformance.runner.dimensions import Part, taken
from conformance.runner.in_process import Runner
from conformance.sampling.strategies import numpy_dtype
from conformance.subjects.targets import Target
from specification import Causal, Dense, KeyLengths, KeyPadding, SlidingWindow

Function = Callable[..., Any]
INVERTED = "the mask is inverted: True is taken for forbidden"


def runner_of(function: Function) -> Runner:
    return Runner(Target(function, "attention").make())


def masked(Q: int, K: int, mask: Any = None, dtype: str = "float32", **options: Any) -> Case:
    rng = np.random.default_rng(0)
    sizes = {"query": Q, "key": K, "value": K}
    inputs = {name: rng.normal(size=(1, 1, length, 2)).astype(dtype) for name, length in sizes.items()}
    return Case("attention", dtype, inputs, options | ({} if mask is None else {"mask": mask}))


def named(function: Function, small: Any, uncut: Any = None, check: Check[Any, Any] = AGREEMENT) -> tuple[str, ...]:
    runner = runner_of(function)
    findings = runner(check, small, check.prepare(small))
    assert worst(findings).ratio > 1
    return diagnosis(Violation("ATT-5", "a subject", worst(findings), "a probe", check, small, uncut), runner)


def attend(
    seen: Callable[[Any], Any], fill: float = -np.inf, dtype: Any = float, scores: Callable[[Any], Any] = lambda s: s
) -> Function:
    """The usual lines. seen: which pairs [Q, K] of what the mask allows. fill: for the others."""

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        with np.errstate(all="ignore"):
            query, key, wide = (array.astype(dtype) for array in (query, key, value))
            s = scores((query @ key.swapaxes(2, 3) / np.sqrt(query.shape[3])).astype(dtype))
            mask = np.ones(s.shape, bool) if mask is None else np.broadcast_to(mask, s.shape)
            s = np.where(seen(mask), s, fill).astype(dtype)
            weights = np.exp(s - s.max(-1, keepdims=True))
            return ((weights / weights.sum(-1, keepdims=True)) @ wide).astype(value.dtype)

    return attention


def inverted_where_given(fill: float) -> Function:
    plain, turned = attend(lambda mask: mask, fill), attend(np.logical_not, fill)
    return lambda query, key, value, *, mask=None: (
        plain(query, key, value) if mask is None else turned(query, key, value, mask=mask)
    )


# --- rows that a mistake leaves nothing -------------------------------------------------------------------------------

ONE_PAIR = (np.array([[True]]), KeyLengths(np.array([1])), KeyPadding(np.array([[True]])), SlidingWindow(None, 1, -1))


EMPTIED = [(-np.inf, 1, mask) for mask in ONE_PAIR] + [(-1e9, 2, np.array([[True, True]]))]


@pytest.mark.parametrize(("fill", "K", "mask"), EMPTIED)
def test_a_row_that_an_inverted_mask_empties_is_explained(fill: float, K: int, mask: Any) -> None:
    """Whatever this implementation gives for it: NaN, or the mean."""
    assert named(inverted_where_given(fill), masked(1, K, mask)) == (INVERTED,)


def test_a_larger_case_with_such_rows_is_explained_too() -> None:
    function, window = inverted_where_given(-np.inf), SlidingWindow(None, 1, -3)
    larger = masked(7, 4, window, empty_rows="any")
    assert named(function, masked(1, 1, SlidingWindow(None, 1, -1)), larger) == (INVERTED,)
    assert named(function, masked(1, 1, np.array([[False]])), masked(2, 3, np.array([[True] * 3, [False] * 3]))) == (
        INVERTED,
    )


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_scale_of_the_number_of_keys_is_no_overflow(dtype: str) -> None:
    """Of the inputs' 16 bits nothing is lost."""

    def of_keys(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return reference_numpy.attention(query, key, value, scale=key.shape[2] ** -0.5)

    assert named(of_keys, masked(2, 5, dtype=dtype)) == ("the scale is 1 / sqrt(K), of the number of keys",)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_wrong_by_a_constant_is_no_overflow(dtype: str) -> None:
    def shifted(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return (reference_numpy.attention(query, key, value).astype(float) + 0.375).astype(value.dtype)

    assert not any("overflow" in name for name in named(shifted, masked(2, 5, dtype=numpy_dtype(dtype).name)))


def test_nan_alone_is_no_inverted_mask() -> None:
    """It must explain other calls, too."""

    def always(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return reference_numpy.attention(query, key, value, mask=mask) * np.float32(np.nan)

    def large(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        found = reference_numpy.attention(query, key, value, mask=mask)
        return found * np.float32(np.nan) if np.abs(query).max() > 10 else found

    asked = masked(1, 1, np.array([[True]]))
    assert named(always, asked) == ()
    asked.inputs["query"][:] = 20
    assert named(large, asked) == ()


def test_rows_of_nan_have_no_multiple_of_the_mean() -> None:
    assert named(attend(lambda mask: mask), masked(1, 1, np.array([[False]]))) == ("rows that allow nothing get NaN",)


# --- calls that are always causal -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "last"), [("first query and key (top left)", False), ("last query and key (bottom right)", True)]
)
def test_calls_that_are_always_causal(place: str, last: bool) -> None:
    def triangle(mask: Any) -> Any:
        Q, K = mask.shape[2:]
        return np.tri(Q, K, K - Q if last else 0, dtype=bool)

    whatever, beside = (f"every call is causal from the {place}, {words} its mask" for words in ("whatever", "beside"))
    dense = np.random.default_rng(1).random((3, 5)) < 0.5
    dense[:, 0] = True
    for mask in (None, dense):
        assert named(attend(triangle), masked(3, 5, mask)) == (whatever,)
        assert named(attend(lambda mask: mask & triangle(mask)), masked(3, 5, mask)) == (beside,)


def test_a_causal_mask_at_another_place_is_no_call_that_is_always_causal() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        mask = Causal(0) if isinstance(mask, Causal) else mask
        return reference_numpy.attention(query, key, value, mask=mask)

    runner = Runner(Target(attention, "attention", given={"supports": ["structured"]}).make())
    asked = masked(3, 5, Causal(2))
    found = worst(runner(AGREEMENT, asked, (oracle(asked), bound(asked))))
    names = diagnosis(Violation("MASK-3", "a subject", found, "a probe", AGREEMENT, asked), runner)
    assert names[0] == "the causal mask is aligned to the first query and key (top left)"
    assert not any(name.startswith(EVERY_CALL) for name in names)


# --- 16 bits ----------------------------------------------------------------------------------------------------------


def test_scores_that_overflow_in_16_bits_have_a_name() -> None:
    asked, larger = masked(1, 1, dtype="float16"), masked(2, 3, np.array([[True, False, False], [True] * 3]), "float16")
    for case in (asked, larger):
        case.inputs["query"][..., 0, :], case.inputs["key"][..., 0, :] = -32768, 32768
    name = ("scores overflow in float16, the dtype of the inputs",)
    narrow = attend(lambda mask: mask, dtype=np.float16)
    assert named(narrow, asked) == named(narrow, asked, larger) == name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_arithmetic_in_the_dtype_of_the_inputs_is_named_by_it(dtype: str) -> None:
    """And not by TF32, of which a CPU has none, nor by another 16-bit dtype."""
    rng = np.random.default_rng(0)
    asked = masked(3, 40)
    inputs = {name: rng.normal(size=array.shape).astype(numpy_dtype(dtype)) for name, array in asked.inputs.items()}
    narrow = attend(lambda mask: mask, dtype=numpy_dtype(dtype))
    (name,) = named(narrow, replace(asked, dtype=dtype, inputs=inputs))
    assert name == f"{AT_MOST} {dtype} arithmetic would make them"


def test_tf32_is_a_format_of_gpus() -> None:
    def cut(query: Any, key: Any, value: Any) -> Any:
        query, key, value = (rounded(array, "TF32").astype("float32") for array in (query, key, value))
        return reference_numpy.attention(query, key, value)

    runner, asked = runner_of(cut), masked(8, 40)
    failing = matches.failing_of(runner.subject, asked, asked)
    in_tf32, in_float16 = (f"{AT_MOST} products in {form} would make them" for form in ("TF32", "float16"))
    assert {in_tf32, in_float16} <= {*excused(failing)}
    assert not matches.possible(in_tf32, runner.subject, asked)
    assert named(cut, asked) == (in_float16,)
    runner.subject.framework.device = "cuda"
    assert matches.possible(in_tf32, runner.subject, asked)


def test_a_name_of_nan_and_of_hidden_keys_must_have_its_place() -> None:
    asked = masked(1, 3, np.array([[True, True, False]]))
    nan = Violation("ATT-4", "a subject", Finding("output", np.inf, (0, 0, 0, 0), np.nan, 1.0), "", AGREEMENT, asked)
    number = replace(nan, finding=replace(nan.finding, got=2.0))
    hidden = "rows whose last {} hidden are NaN"
    assert may_hold(hidden.format("key is"), nan)
    assert not may_hold(hidden.format("2 keys are"), nan)
    assert not may_hold(hidden.format("key is"), number)
    assert not may_hold("scores overflow in float16, the dtype of the inputs", number)


def test_lost_digits_of_16_bits_have_no_name_of_another_computation() -> None:
    """Not from a larger case either: here it would show as more than a rounding."""
    asked = replace(masked(1, 3), dtype="bfloat16")
    near = Violation(
        "NORM-6", "a subject", Finding("output", 1.9, (0, 0, 0, 0), 0.2715, 0.2735, 1e-3), "", AGREEMENT, asked
    )
    padded, rounded = "padding counts in the variance, by the mean's square", "x is rounded to bfloat16"
    assert not may_hold(padded, near)
    assert may_hold(rounded, near)
    assert may_hold(padded, replace(near, finding=replace(near.finding, got=0.1, ratio=170.0)))


def softmax_along(axes: Any, of_maximum: Any) -> Function:
    def function(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        exponentials = np.exp(scores - scores.max(axis=of_maximum, keepdims=True))
        return (exponentials / exponentials.sum(axis=axes, keepdims=True) @ value).astype(query.dtype)

    return function


@pytest.mark.parametrize(
    ("axes", "of_maximum", "name"),
    [
        (-2, -2, "the softmax runs over queries, not keys"),
        (-2, -1, "the softmax divides by sums over queries, not keys"),
        (1, 1, "the softmax runs over heads, not keys"),
        (0, 0, "the softmax runs over the batch, not keys"),
        ((-2, -1), (-2, -1), "the softmax runs over all pairs of queries and keys"),
    ],
)
def test_a_softmax_along_another_axis_has_a_name(axes: Any, of_maximum: Any, name: str) -> None:
    rng, case = np.random.default_rng(0), masked(2, 3)
    inputs = {n: rng.normal(size=(2, 2, *a.shape[2:])).astype("float32") for n, a in case.inputs.items()}
    function = softmax_along(axes, of_maximum)
    assert named(function, replace(case, inputs=inputs)) == (name,)
    if axes != -2:
        return
    with np.errstate(all="ignore"):  # the second key's column is empty: 0 / 0
        hidden = replace(case, inputs=inputs, options={"mask": np.array([[True, False, True], [True, False, False]])})
        assert named(function, hidden) == (name,)


def causal_without_a_mask(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    triangle = np.tri(query.shape[2], key.shape[2], dtype=bool)
    return reference_numpy.attention(query, key, value, mask=triangle if mask is None else mask)


@pytest.mark.parametrize("supports", [None, "dense,causal,value_width"])
def test_calls_without_a_mask_that_are_causal_are_told_from_calls_with_one(supports: str | None) -> None:
    """Also of a function that takes no more keys than queries."""
    given = {} if supports is None else {"supports": supports}
    runner, case = Runner(Target(causal_without_a_mask, "attention", "numpy", given=given).make()), masked(2, 2)
    findings = runner(AGREEMENT, case, AGREEMENT.prepare(case))
    found = diagnosis(Violation("ATT-1", "a subject", worst(findings), "a probe", AGREEMENT, case), runner)
    name = f"{EVERY_CALL} from the first query and key (top left), where it has no mask"
    assert found[0] == name
    assert not [line for line in found if line.endswith(("beside its mask", "whatever its mask"))]
    assert hint_for(Violation("ATT-1", "", worst(findings), "", AGREEMENT, case, diagnosis=found), runner) == (
        "the mistake is one of MASK-3, causal"
    )


# --- where to look ----------------------------------------------------------------------------------------------------


def hint(rule: str, case: Case, function: Function) -> str:
    runner = runner_of(function)
    findings = runner(AGREEMENT, case, AGREEMENT.prepare(case))
    return hint_for(Violation(rule, "a subject", worst(findings), "a probe", AGREEMENT, case), runner)


def doubled(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """Wrong in every call."""
    return 2 * reference_numpy.attention(query, key, value, mask=mask) + 1


def test_what_every_call_gets_wrong_is_no_matter_of_masks() -> None:
    """Without a name for it the rule would send the reader to the mask."""
    bare, causal = masked(2, 3), masked(2, 3, Causal(1))
    assert hint("MASK-3", bare, doubled) == "this case has nothing that it speaks of"
    assert hint("MASK-3", causal, doubled) == "without mask the call is wrong, too"
    assert hint("MASK-2", causal, doubled) == "the mask of this case has a rule of its own, MASK-3, causal"
    both = masked(2, 3, Causal(1) & SlidingWindow(1, None, 1))
    assert hint("MASK-2", both, doubled) == "the mask of this case has a rule of its own, MASK-6, combination"
    of_array = masked(2, 3, Dense(np.ones((2, 3), bool)))
    assert hint("MASK-2", of_array, doubled) == "this case has nothing that it speaks of"
    assert hint("MASK-3", causal, inverted_where_given(-np.inf)) == ""  # right without
    assert hint("ATT-1", bare, doubled) == "a plain call is wrong: any step may be mistaken, that of ATT-1 among them"
    runner = runner_of(doubled)
    findings = runner(AGREEMENT, bare, AGREEMENT.prepare(bare))
    violation = Violation("MASK-3", "a subject", worst(findings), "a probe", AGREEMENT, bare)
    of_softmax = replace(violation, diagnosis=("the softmax runs over queries, not keys",))
    assert hint_for(of_softmax, runner) == "the mistake is one of ATT-5, softmax"
    assert hint_for(replace(of_softmax, rule="ATT-1"), runner) == "the mistake is one of ATT-5, softmax"
    assert hint_for(replace(of_softmax, rule="ATT-5"), runner) == ""
    plain_first = separated([replace(of_softmax, rule=rule) for rule in ("ATT-1", "ATT-5", "ATT-8")])
    assert [[one.rule for one in part] for part in plain_first] == [["ATT-5"], ["ATT-1", "ATT-8"]]
    masked_too = Violation("MASK-3", "a subject", worst(findings), "a probe", AGREEMENT, causal)
    results = Results()
    for one in (replace(violation, rule="ATT-1"), masked_too):
        results.violate(one)
    with_hints(results, runner)
    assert [[one.rule for one in part] for part in separated([*results.violations.values()])] == [["ATT-1"], ["MASK-3"]]
    results = Results()
    results.violate(violation)
    with_hints(results, runner)
    (hinted,) = results.violations.values()
    assert hinted.diagnosis == ("look beyond MASK-3: this case has nothing that it speaks of",)
    assert hinted.mistakes == ()


# --- NaN beside rows that allow nothing -------------------------------------------------------------------------------


def planted(clean: Case, name: str, place: tuple[int, ...], number: float = np.nan) -> Planted:
    marks = {n: np.zeros(clean.inputs[n].shape, bool) for n in ("query", "key", "value")}
    marks[name][place] = True
    array = np.where(marks[name], np.float32(number), clean.inputs[name])
    dirty = replace(clean, inputs=clean.inputs | {name: array}, special=True)
    return Planted(clean, dirty, allowed_pairs(clean), marks, np.isinf(number))


def test_what_is_wrong_in_an_empty_row_is_told_by_its_rule() -> None:
    """-1e9 makes such a row the mean of all values: of what is planted, too."""
    runner, example = runner_of(attend(lambda mask: mask, -1e9)), planted(masked(2, 2, Causal(-1)), "value", (0, 0, 0))
    findings = runner(PLANTED, example, PLANTED.prepare(example))
    failure = attributed(runner, Failure("ATT-10", PLANTED, example, findings))
    assert (failure.rule, failure.check, failure.example) == ("ATT-6", AGREEMENT, example.clean)


def test_what_is_nan_in_the_clean_case_is_told_by_its_rule() -> None:
    runner = runner_of(inverted_where_given(-np.inf))
    example = planted(masked(2, 2, Causal(1)), "query", (0, 0, 0, 0))
    findings = runner(PLANTED, example, PLANTED.prepare(example))
    assert worst(findings).index[2] == 1
    assert attributed(runner, Failure("ATT-10", PLANTED, example, findings)).rule == "MASK-3"


def test_a_smallest_case_keeps_a_nan_that_is_attended_to() -> None:
    """And no row that allows nothing is taken for one that swallows it."""

    def swallows(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        """And makes a mean of an empty row."""
        return attend(lambda mask: mask, -1e9)(query, key, np.nan_to_num(value), mask=mask)

    runner, example = runner_of(swallows), planted(masked(3, 3, Causal(-1)), "value", (0, 0, 0, 0))
    findings = runner(PLANTED, example, PLANTED.prepare(example))
    found = cut_down(violation("ATT-10", "an attended NaN", PLANTED, runner, example, findings), runner, 5.0)
    assert found.example.attended
    assert np.isnan(found.finding.expected)


def test_a_hidden_nan_that_the_right_weights_spread_has_no_other_name() -> None:
    """A mean in empty rows is another mistake: no such row is here. A number in place of NaN is another one, too."""
    example = planted(masked(2, 2, Causal(0)), "value", (0, 0, 1, 0))
    for asked in (example, example.planted):
        check = PLANTED if asked is example else AGREEMENT
        assert named(attend(lambda mask: mask, -1e9), asked, check=check) == (matches.MULTIPLIED,)
    runner = runner_of(attend(np.logical_not))
    given = matches.failing_of(runner.subject, example.planted, example.planted)
    assert not matches.multiplied(given, "output")


def test_nan_and_infinity_are_told_apart() -> None:
    example = planted(masked(2, 2, Causal(0)), "value", (0, 0, 1, 0), np.inf)
    of_nan = Finding("output", np.inf, got=np.nan, expected=1.0)
    assert "0 * NaN" in of_planted(example, of_nan)[0]
    assert of_planted(example, replace(of_nan, got=-np.inf)) == [
        "an infinity that stands behind a mask gets a weight other than 0"
    ]
    open_to_all = planted(masked(2, 2), "query", (0, 0, 1, 0))
    assert of_planted(open_to_all, of_nan) == ["NaN reaches what does not attend to it"]


# --- the judge's own words --------------------------------------------------------------------------------------------


def test_the_name_of_a_frozen_case_is_no_diagnosis() -> None:
    entry = next(one for one in entries() if one.rule == "ATT-1" and one.shows.startswith("columns past"))

    def first(query: Any, key: Any, value: Any) -> Any:
        return reference_numpy.attention(query, key[:, :, :1], value[:, :, :1])

    (found,) = run_corpus([entry], [runner_of(first)]).violations.values()
    assert found.title == f'a frozen case; its own name, and no diagnosis: "{entry.shows}"'


def test_larger_cases_of_large_numbers_overflow_nowhere() -> None:
    asked = masked(1, 2, dtype="float16")
    asked.inputs["value"][:] = 60000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        larger = taken(asked, {"K": Part(0, 64)}, np.random.default_rng(0))
    assert larger is not None
    assert np.isfinite(larger.inputs["value"]).all()


@pytest.mark.slow
def test_a_whole_report_of_an_inverted_mask_has_one_mistake() -> None:
    rules = ["MASK-1", "MASK-2", "MASK-4", "ATT-5", "ATT-6", "ATT-10"]
    told: dict[str, Any] = {"effort": "quick", "seed": 1, "dtypes": ["float32"], "supports": ["no-gqa"]}
    report = conformance.check(inverted_where_given(-np.inf), "attention", rules=rules, **told)
    assert {violation.diagnosis[:1] for violation in report.violations} == {(INVERTED,)}
    assert report.headline.startswith(INVERTED)
    assert "and not" not in report.headline


def scored_where_forbidden(change: Callable[[Any, Any], Any]) -> Function:
    """Forbidden scores are changed, and stay in the softmax."""

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores = scores if mask is None else change(scores, np.asarray(mask))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return (weights / weights.sum(axis=-1, keepdims=True) @ value).astype(query.dtype)

    return attention


MASKED_ONLY = {"supports": ["dense", "causal", "value_width"], "dtypes": ["float32"], "effort": "quick", "seed": 1}


def test_scores_times_the_mask_have_a_name() -> None:
    """One mistake under every rule of masks, dtypes and hidden NaN."""
    rules = ["MASK-1", "MASK-3", "MASK-7", "ATT-4", "ATT-9", "ATT-10"]
    report = conformance.check(
        scored_where_forbidden(lambda scores, mask: scores * mask), "attention", rules=rules, **MASKED_ONLY
    )
    found = report.violations[0]
    assert (found.rule, found.diagnosis) == ("MASK-1", ("forbidden scores are a number, not -inf (0)",))
    assert {one.rule for one in report.following} >= {*rules} - {"MASK-1"}


def test_a_mistake_of_masks_without_a_name() -> None:
    """What hidden NaN and empty rows show of it is no name, and the rule of dtypes only follows."""
    rules = ["MASK-1", "ATT-6", "ATT-9", "ATT-10"]
    report = conformance.check(
        scored_where_forbidden(lambda scores, mask: scores - 3 * ~mask), "attention", rules=rules, **MASKED_ONLY
    )
    named = {one.rule: one.diagnosis for one in report.violations}
    assert not any(named[rule] for rule in ("MASK-1", "ATT-6", "ATT-9"))
    assert named["ATT-10"] == ("look beyond ATT-10: with numbers in place of NaN and infinity the call is wrong, too",)
    assert {"ATT-9", "ATT-10"} <= {one.rule for one in report.following}
    assert "ATT-6" not in [one.rule for one in report.following]  # mended masks leave empty rows as they are


def divided_by(root: Callable[[Any], Any], maximum: Callable[[Any], Any]) -> Function:
    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.swapaxes(-1, -2) / root(query)
        with np.errstate(all="ignore"):
            weights = np.exp(scores - maximum(scores))
            return (weights / weights.sum(axis=-1, keepdims=True) @ value).astype(query.dtype)

    return attention


def width_root(query: Any) -> Any:
    return np.float32(np.sqrt(query.shape[-1]))


@pytest.mark.parametrize("root", [width_root, lambda query: np.sqrt(query.shape[-1])], ids=["float32", "float64"])
def test_a_maximum_that_is_not_subtracted_has_a_name(root: Any) -> None:
    """Whatever arithmetic holds the exponentials, and though rows of low scores lose theirs."""
    given = {"supports": ["value_width"], "dtypes": ["float32"], "seed": 1, "rules": ["ATT-5"]}
    report = conformance.check(divided_by(root, lambda scores: 0), "attention", **given)
    assert report.violations[0].diagnosis == ("the maximum is not subtracted: exponentials overflow or are all 0",)


def test_a_scale_by_the_number_of_heads_has_a_name() -> None:
    """A case of one head does not tell it from no scale, or from the width of values."""
    function = divided_by(lambda query: np.sqrt(query.shape[1]), lambda scores: scores.max(axis=-1, keepdims=True))
    report = conformance.check(
        function, "attention", rules=["ATT-1", "ATT-5"], **MASKED_ONLY | {"supports": ["value_width"]}
    )
    assert {one.diagnosis[0] for one in report.violations} == {"the scale is 1 / sqrt(H), of the number of heads"}
