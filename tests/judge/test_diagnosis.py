"""Which violation comes first, which follow from it, and the names of known mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conformance.diagnosis.attention import BY_INFINITY, with_axes_exchanged
from conformance.diagnosis.backward import wrongly_added
from conformance.diagnosis.blocks import online, padded_tail
from conformance.diagnosis.following import about, separated
from conformance.diagnosis.matches import known, wrong_in
from conformance.diagnosis.matching import Failing
from conformance.diagnosis.naming import diagnosed, diagnosis, explaining, in_families
from conformance.diagnosis.precision import AT_MOST, scale_off, variance_off
from conformance.diagnosis.steps import forward

import conformance
import reference_numpy
import torch_impl
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.checks.catalogue import AGREEMENT, DETERMINISM, TWIN
from conformance.checks.check import Check
from conformance.checks.comparison import Finding, judge
from conformance.checks.findings import Raised
from conformance.checks.results import WRONG_IN, Results, Violation
from conformance.diagnosis import blocks, matches, naming
from conformance.oracle.reference import oracle
from conformance.reports.blocks import follow
from conformance.reports.content import document
from conformance.reports.page import page
from conformance.reports.subjects import checked
from conformance.runner.in_process import Runner
from conformance.subjects.targets import Target
from reference_numpy import materialize
from specification import Causal, Dense, KeyLengths
from tests.judge.test_verdicts import QUICK, printed, stale

# --- what comes first -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken() -> conformance.Report:
    return conformance.check(stale, "attention", rules=["MASK-3", "ATT-2", "ATT-5", "ATT-7"], **QUICK)


def test_violations_that_stand_for_themselves_come_first(broken: conformance.Report, tmp_path: Path) -> None:
    rules = [violation.rule for violation in broken.violations]
    assert rules[0] == "ATT-5"
    assert set(rules[1:]) == {violation.rule for violation in broken.following} == {"MASK-3", "ATT-2", "ATT-7"}
    subject = checked(broken, tmp_path)
    line = f"{', '.join(rules[1:])} may follow from the violations above: mend these first, and check again."
    assert follow(subject) == line
    text = printed(subject)
    assert line in text
    assert "ATT-5 softmax:" in text
    assert "MASK-3 causal:" not in text
    assert line in page(document("check", [subject]))
    assert [violation["follows"] for violation in subject["violations"]] == [False, True, True, True]


def failing(asked: Case, answers: dict[str, Any]) -> Failing:
    return Failing(asked, answers, oracle(asked), bound(asked))


def case(*shape: int, mask: Any = None, **options: Any) -> Case:
    inputs = {name: np.ones(shape, "float32") for name in ("query", "key", "value")}
    return Case("attention", "float32", inputs, options | ({} if mask is None else {"mask": mask}))


def violated(rule: str, example: Any, check: Check[Any, Any] = AGREEMENT) -> Violation:
    (finding,) = judge(example, {"output": example.inputs["query"] * 2}, oracle(example), bound(example))
    return Violation(rule, "a subject", finding, "a probe", check, example)


def rules_of(violations: list[Violation]) -> list[str]:
    return [violation.rule for violation in violations]


def test_simplest_first() -> None:
    small, large = case(1, 1, 1, 1), case(1, 1, 2, 2)
    found = [violated("ATT-2", case(1, 1, 1, 1, softcap=2.0)), violated("ATT-8", large), violated("ATT-5", small)]
    assert [rules_of(part) for part in separated(found)] == [["ATT-5", "ATT-8", "ATT-2"], []]


def test_nothing_follows_from_what_needs_more() -> None:
    """A case without softcap does not fail for what is wrong with softcaps."""
    capped, bare = violated("ATT-2", case(1, 1, 1, 1, softcap=2.0)), violated("MASK-3", case(1, 1, 1, 1))
    assert [rules_of(part) for part in separated([capped, bare])] == [["MASK-3", "ATT-2"], []]
    assert [rules_of(part) for part in separated([bare])] == [["MASK-3"], []]
    masked = violated("ATT-2", case(1, 1, 2, 1, mask=Causal(0)))
    assert [rules_of(part) for part in separated([masked, bare])] == [["MASK-3"], ["ATT-2"]]
    repeated = violated("ATT-13", case(1, 1, 1, 1), DETERMINISM)
    assert [rules_of(part) for part in separated([repeated, bare])] == [["MASK-3", "ATT-13"], []]


def test_rules_of_every_case_stand_for_themselves() -> None:
    assert about("ATT-1", "attention") == about("ATT-8", "attention") == about("NORM-1", "layer_norm") == frozenset()
    assert about("NORM-6", "layer_norm") == {"gradients"}
    assert {"causal"} <= about("MASK-3", "attention")
    row = violated("ATT-6", case(1, 1, 1, 1))  # without an empty row
    assert [rules_of(part) for part in separated([row, violated("ATT-5", case(1, 1, 1, 1))])] == [["ATT-5"], ["ATT-6"]]


def test_nothing_grave_follows_from_lost_digits() -> None:
    """And what is wrong altogether comes before what is only rounded, however simple that case is."""
    slight, grave = violated("ATT-5", case(1, 1, 1, 1)), violated("MASK-3", case(1, 1, 2, 2))
    slight = replace(slight, finding=replace(slight.finding, ratio=1.2))
    assert [rules_of(part) for part in separated([slight, grave])] == [["MASK-3", "ATT-5"], []]
    near = replace(slight, finding=replace(slight.finding, ratio=1e5, got=1.001, expected=1.0))
    assert [rules_of(part) for part in separated([near, grave])] == [["MASK-3", "ATT-5"], []]


def test_a_rule_of_which_a_case_has_nothing_follows_from_one_with_other_sizes() -> None:
    """Where a known mistake explains both, the rule that speaks of what the case has is told."""
    grouped, wider = case(1, 2, 1, 1), case(1, 2, 1, 1)
    for asked, width in (grouped, 1), (wider, 2):
        asked.inputs["key"] = np.ones((1, 1, 2, 1), "float32")
        asked.inputs["value"] = np.ones((1, 1, 2, width), "float32")
    of_mask, of_heads = violated("MASK-1", grouped), violated("ATT-7", wider)
    assert [rules_of(part) for part in separated([of_mask, of_heads])] == [["MASK-1", "ATT-7"], []]
    known = [replace(violation, diagnosis=("query head h reads key head h % G",)) for violation in (of_mask, of_heads)]
    assert [rules_of(part) for part in separated(known)] == [["ATT-7"], ["MASK-1"]]


def test_results_of_one_wrong_dtype_are_one_violation() -> None:
    def narrower(rule: str, example: Case, dtype: str, *shape: int) -> Violation:
        (finding,) = judge(example, {"output": np.ones(shape, dtype)}, oracle(example), bound(example))
        return Violation(rule, "a subject", finding, "a probe", AGREEMENT, example)

    first = narrower("ATT-5", case(1, 1, 1, 1), "float16", 1, 1, 1, 1)
    capped, masked = case(1, 1, 1, 1, softcap=2.0), case(1, 1, 2, 1, mask=Causal(0))
    also, wider = (narrower("ATT-2", capped, dtype, 1, 1, 1, 1) for dtype in ("float16", "float64"))
    shaped = narrower("MASK-3", masked, "float16", 1, 1, 1, 1)
    assert [rules_of(part) for part in separated([first, also, shaped])] == [["ATT-5", "MASK-3"], ["ATT-2"]]
    assert [rules_of(part) for part in separated([first, wider])] == [["ATT-5", "ATT-2"], []]


def test_an_error_is_not_charged_to_repetition() -> None:
    """Where other calls raise it too, however small the case is that was asked twice."""
    error = Finding("call", np.inf, detail=Raised("TypeError", "no bias"), raised_at="mine.py:5")
    plain, twice = (
        replace(violated(rule, case(1, 1, n, 1)), finding=error) for rule, n in (("ATT-5", 3), ("ATT-13", 1))
    )
    assert [rules_of(part) for part in separated([twice, plain])] == [["ATT-5"], ["ATT-13"]]
    assert [rules_of(part) for part in separated([twice])] == [["ATT-13"], []]


def test_a_factor_is_compared_by_its_reason() -> None:
    found = violated("ATT-5", case(1, 1, 1, 1)), violated("ATT-2", case(1, 1, 1, 1, softcap=2.0))

    def following(*diagnoses: str) -> list[str]:
        told = [replace(one, diagnosis=(name,)) for one, name in zip(found, diagnoses, strict=True)]
        return rules_of(separated(told)[1])

    name = "the scale is {} times what it must be ({})"
    assert following(name.format(1.41317, "it is left out"), name.format(1.41421, "it is left out")) == ["ATT-2"]
    assert following(name.format(1.41317, "it is left out"), name.format(1.41421, "D is taken for 2")) == []


def heads_written_out_first(query: Any, key: Any, value: Any) -> Any:
    """In bfloat16, so that autograd adds up the heads' gradients in bfloat16."""
    heads = query.shape[1] // key.shape[1]
    return torch_impl.attention(query, key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1))


def heads_widened_first(query: Any, key: Any, value: Any) -> Any:
    heads = query.shape[1] // key.shape[1]
    key, value = (array.float().repeat_interleave(heads, 1) for array in (key, value))
    return torch_impl.attention(query.float(), key, value).to(query.dtype)


@pytest.mark.slow
def test_one_mistake_is_one_violation_and_others_follow() -> None:
    told: dict[str, Any] = {"arrays": "torch", "dtypes": ["bfloat16"], "seed": 3, "profile": "strict"}
    rules = ["ATT-1", "ATT-5", "ATT-7", "ATT-9", "ATT-10", "ATT-12", "ATT-13"]
    report = conformance.check(heads_written_out_first, "attention", rules=rules, **told)
    first, *others = report.violations
    assert (first.rule, first.check) == ("ATT-7", AGREEMENT)
    assert set(rules_of(report.following)) == set(rules_of(others))
    assert {"ATT-9", "ATT-12"} <= {violation.rule for violation in others}
    mistake = "perhaps: the errors are no larger than gradients added up over heads in bfloat16 would make them"
    assert first.mistakes == (mistake,)
    assert first.diagnosis[-1].startswith("wrong in: gradient of ")
    assert conformance.check(heads_widened_first, "attention", rules=rules, **told).conforms


def test_a_scale_that_fits_is_not_blamed() -> None:
    """Where the output is right, and a gradient is not."""
    generator = np.random.default_rng(0)
    inputs = {name: generator.normal(size=(1, 1, 3, 2)).astype("float32") for name in ("query", "key", "value")}
    asked = Case("attention", "float32", inputs)
    answers = {"output": oracle(asked)["output"].high.astype("float32")}
    assert list(scale_off(failing(asked, answers))) == []
    off = oracle(replace(asked, options={"scale": 1.001 / np.sqrt(2)}))["output"].high.astype("float32")
    assert list(scale_off(failing(asked, {"output": off}))) == ["the scale is 1.001 times what it must be"]


# --- what a name explains ---------------------------------------------------------------------------------------------


def test_names_of_the_larger_case_alone_are_not_printed() -> None:
    eight, sixteen = "padding counts (blocks of 8 keys)", "padding counts (blocks of 16 keys)"
    assert explaining(("bias is ignored",), (eight,)) == ()
    assert explaining((eight, sixteen), (sixteen, "bias is ignored")) == (sixteen,)
    assert explaining((eight, "bias is ignored"), (sixteen,)) == ("padding counts",)
    assert explaining(("the scale is 1.001 times what it must be",), ("the scale is 1.002 times what it must be",))
    assert in_families((eight, sixteen, "bias is ignored")) == ("padding counts", "bias is ignored")
    assert in_families((sixteen,)) == (sixteen,)


def one_key_more(query: Any, key: Any, value: Any) -> Any:
    return stale(query, key, value)


def numbers(keys: int) -> Case:
    generator = np.random.default_rng(0)
    shapes = {"query": (1, 1, 1, 2), "key": (1, 1, keys, 2), "value": (1, 1, keys, 2)}
    inputs = {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    return Case("attention", "float32", inputs)


def found_on(small: Case, uncut: Case | None, function: Any) -> tuple[str, ...]:
    runner = Runner(Target(function, "attention").make())
    worst = max(runner(AGREEMENT, small, (oracle(small), bound(small))), key=lambda finding: finding.ratio)
    return diagnosis(Violation("ATT-5", "a subject", worst, "a probe", AGREEMENT, small, uncut), runner)


def by_lengths_first(query: Any, key: Any, value: Any) -> Any:
    return reference_numpy.attention(*(array.swapaxes(1, 2) for array in (query, key, value))).swapaxes(1, 2)


def by_lengths_first_vjp(*arrays: Any) -> dict[str, Any]:
    found = reference_numpy.attention_vjp(*(array.swapaxes(1, 2) for array in arrays))
    return {name: getattr(found, name).swapaxes(1, 2) for name in ("query", "key", "value")}


@pytest.mark.parametrize("wrong", ["output", "gradient of value"])
def test_heads_and_positions_that_changed_places_tell_the_option(wrong: str) -> None:
    """The same words as for a result of that shape. Of equal values the output is right, and the gradient is not."""
    generator = np.random.default_rng(0)
    shapes = {"query": (1, 2, 6, 2), "key": (1, 2, 3, 2), "value": (1, 2, 3, 2), "output": (1, 2, 6, 2)}
    arrays = {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    cotangents = {"output": arrays.pop("output")}
    arrays["value"] = arrays["value"] if wrong == "output" else np.ones_like(arrays["value"])
    asked = Case("attention", "float32", arrays, {}, cotangents)
    got = {"output": by_lengths_first(*asked.inputs.values())}
    vjp = by_lengths_first_vjp(*asked.inputs.values(), asked.cotangents["output"])
    got |= {f"gradient of {name}": array for name, array in vjp.items()}
    (name,) = known(failing(asked, got), wrong, np.inf)
    assert name == "heads and positions changed places (--layout BTHD is for arrays [batch, length, heads, width])"


@pytest.mark.slow
def test_a_whole_report_names_the_other_layout() -> None:
    """And the rules whose violations it does not explain."""
    rules = ["ATT-1", "ATT-5", "ATT-8"]
    report = conformance.check(by_lengths_first, "attention", rules=rules, **QUICK | {"dtypes": ["float32"]})
    assert "this explains the smallest cases of 2 of 3 violations; ATT-8 has " in report.headline
    assert report.headline.startswith("heads and positions changed places (--layout BTHD ")
    assert conformance.check(
        by_lengths_first, "attention", rules=rules, layout="BTHD", **QUICK | {"dtypes": ["float32"]}
    ).conforms


def test_one_stale_key_is_no_padding() -> None:
    """With 15 keys one more is the padding of blocks of 8 and of 16; another number of keys tells that it is not."""
    name = "one key too many counts, with a score of 0 and a value of 0"
    assert found_on(numbers(15), None, one_key_more) == (name,)
    assert found_on(numbers(3), numbers(15), one_key_more) == (name,)


def test_the_larger_case_tells_block_sizes_apart() -> None:
    def padded(query: Any, key: Any, value: Any) -> Any:
        inputs = {"query": query, "key": key, "value": value}
        steps = padded_tail(16)(failing(Case("attention", "float32", inputs), {}))
        return (
            reference_numpy.attention(query, key, value) if steps is None else forward(steps).output.astype("float32")
        )

    name = "the last block's padding counts as keys with score 0"
    assert found_on(numbers(15), None, padded)[0] == f"{name} (blocks of 16 keys)"
    assert found_on(numbers(15), numbers(19), padded) == (f"{name} (blocks of 16 keys)",)


def test_a_wrong_answer_is_rounded_too() -> None:
    """In 16 bits, and where it is larger than every right one."""
    values = np.random.default_rng(0).uniform(0.01, 0.02, size=(24, 16))
    keys = np.repeat([[0.0], [2.0]], [16, 8], axis=0)  # the maximum grows in the second block
    rows = {"query": np.full((1, 1), 4.0), "key": keys, "value": values}
    asked = Case("attention", "float16", {name: array[None, None].astype("float16") for name, array in rows.items()})
    answer = online(failing(asked, {}), 16, rescale_output=False)
    found = failing(asked, {"output": answer.astype("float16")})
    assert np.abs(answer).max() > 2 * np.abs(found.right("output")).max()
    assert any("output is not rescaled" in name for name in known(found, "output", np.inf))


CAPPED: list[tuple[str, Callable[..., Any]]] = [
    ("the softcap comes before the scale", lambda p, s, c: s * c * np.tanh(p / c)),
    ("scores are clipped at the softcap, without tanh", lambda p, s, c: np.clip(s * p, -c, c)),
    ("the softcap is not multiplied back in", lambda p, s, c: np.tanh(s * p / c)),
    ("scores are not divided by the softcap", lambda p, s, c: c * np.tanh(s * p)),
]


@pytest.mark.parametrize(("name", "scores"), CAPPED)
def test_softcaps_gone_wrong_have_names(name: str, scores: Callable[..., Any]) -> None:
    def capped(query: Any, key: Any, value: Any, *, scale: Any = None, softcap: Any = None) -> Any:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if softcap is None:
            return reference_numpy.attention(query, key, value, scale=scale)
        G, H = key.shape[1], query.shape[1]
        products = query.astype(float) @ key.astype(float).repeat(H // max(G, 1), axis=1).swapaxes(-1, -2)
        bias = scores(products, scale, softcap).astype("float32")
        return reference_numpy.attention(query * 0, key, value, bias=bias)

    report = conformance.check(capped, "attention", rules=["ATT-2"], supports=["scale", "softcap", "gqa"], **QUICK)
    (violation,) = report.violations
    assert any(name in line for line in violation.diagnosis), violation.diagnosis


def test_a_mistake_that_changes_nothing_here_is_not_named() -> None:
    """With fewer keys than a block has, the running maximum never grows, and 16 bits hide that nothing is wrong."""
    inputs = {name: array.astype("bfloat16") for name, array in numbers(3).inputs.items()}
    inputs["value"][..., 0] *= 8  # so that the bounds of the two elements differ
    asked = Case("attention", "bfloat16", inputs)
    truth, limits = oracle(asked), bound(asked)
    off = np.array([0.0, 1.5]) * limits["output"]
    got = {"output": (truth["output"].high + off).astype("bfloat16")}
    found = failing(asked, got)
    assert found.wrong
    assert not [name for name in known(found, "output", np.inf) if "rescaled" in name]


def test_every_name_explains_the_case_that_is_shown(broken: conformance.Report) -> None:
    for violation in broken.violations:
        shown = violation.case
        found = failing(shown, {"output": stale(**shown.inputs, **shown.options)})
        names = list(known(found, "output", np.inf))
        assert all(any(name.startswith(line) for name in names) for line in violation.mistakes)


def test_flaky_names() -> None:
    """Nothing is named where nothing is found on the case that is shown."""
    results = Results()
    results.violate(violated("ATT-5", case(1, 1, 1, 1)))
    diagnosed(results, Runner(Target(reference_numpy.attention, "attention").make()))
    assert [violation.diagnosis for violation in results.violations.values()] == [()]


def in_blocks_of_32(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """The last block is filled up with keys whose scores of 0 count."""
    missing = -key.shape[2] % 32
    more = [np.pad(array, ((0, 0), (0, 0), (0, missing), (0, 0))) for array in (key, value)]
    widths = ((0, 0),) * (0 if mask is None else mask.ndim - 1) + ((0, missing),)
    wider = None if mask is None else np.pad(mask, widths, constant_values=True)
    return reference_numpy.attention(query, *more, mask=wider)


@pytest.mark.parametrize(("rule", "check"), [("ATT-4", TWIN), ("ATT-10", AGREEMENT)])
@pytest.mark.slow
def test_a_mistake_is_known_where_a_case_is_judged_by_another(rule: str, check: Check[Any, Any]) -> None:
    """By a twin whose scores are near 0, where a score of 0 is another mistake; by the case without NaN."""
    report = conformance.check(in_blocks_of_32, "attention", rules=[rule], **QUICK)
    assert check in {violation.check for violation in report.violations}
    names = [violation.diagnosis for violation in report.violations if violation.check == check]
    padding = "the last block's padding counts as keys with score 0"
    assert any(name.startswith(padding) for several in names for name in several)


def filled_with(number: float) -> Callable[..., Any]:
    def attend(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        scores = query.astype(float) @ key.astype(float).swapaxes(2, 3) / np.sqrt(query.shape[3])
        scores = scores if mask is None else np.where(mask, scores, number)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return ((weights / weights.sum(-1, keepdims=True)) @ value.astype(float)).astype(query.dtype)

    return attend


@pytest.mark.parametrize("number", [-1e4, -1e9])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_where(unless="0--")
def test_a_number_for_forbidden_scores_is_no_inverted_mask(number: float, seed: int) -> None:
    """Though it looks like one where all allowed scores are smaller, and like a right one everywhere else."""
    conventions = {"empty_rows": "mean", "isolation": "finite"}
    told = QUICK | {"effort": "default", "seed": seed, "dtypes": ["float32"], "supports": ["dense", "causal"]}
    report = conformance.check(filled_with(number), "attention", rules=["ATT-4"], conventions=conventions, **told)
    (violation,) = report.violations
    assert violation.diagnosis[0].startswith("forbidden scores are a number, not -inf")


def test_a_number_for_forbidden_scores_is_told_from_another() -> None:
    """By scores between the two."""
    masked = replace(numbers(4), options={"mask": Causal(0)})
    masked.inputs["query"][:] = 150
    masked.inputs["key"][:, :, 0] = -150
    assert found_on(masked, None, filled_with(-1e4)) == ("forbidden scores are a number, not -inf (-10000)",)


@pytest.mark.parametrize("order", ["tiled", "first"])
def test_heads_read_wrongly_have_a_name_with_gradients_too(order: str) -> None:
    def reads(query: Any, key: Any, value: Any) -> Any:
        heads, groups = query.shape[1], key.shape[1]
        read = np.arange(heads) % groups if order == "tiled" else np.zeros(heads, int)
        return torch_impl.attention(query, key[:, read], value[:, read])

    shapes = {"query": (2, 4, 3, 2), "key": (2, 2, 5, 2), "value": (2, 2, 5, 3), "bar": (2, 4, 3, 3)}
    generator = np.random.default_rng(1)
    inputs = {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    asked = Case("attention", "float32", inputs, {}, {"output": inputs.pop("bar")})
    runner = Runner(Target(reads, "attention", "torch").make())
    findings = [found for found in runner(AGREEMENT, asked, (oracle(asked), bound(asked))) if found.ratio > 1]
    assert {finding.name for finding in findings} > {"output", "gradient of key", "gradient of value"}
    name = {"tiled": "query head h reads key head h % G", "first": "every query head reads key head 0"}[order]
    for finding in findings:
        found = diagnosis(Violation("ATT-7", "a subject", finding, "a probe", AGREEMENT, asked), runner)
        assert found == (name, "wrong in: output and every gradient")


def by_one_logsumexp(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    query, key, value = (array.astype(np.float32) for array in (query, key, value))
    scores = query @ key.swapaxes(2, 3) / np.float32(np.sqrt(query.shape[3]))
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    maximum = np.maximum(scores.max(-1, keepdims=True), np.finfo(np.float32).min)
    with np.errstate(divide="ignore"):
        logsumexp = maximum + np.log(np.exp(scores - maximum).sum(-1, keepdims=True))
    return np.exp(scores - np.maximum(logsumexp, np.finfo(np.float32).min)) @ value


@pytest.mark.slow
def test_one_logsumexp_beside_large_scores_has_a_name() -> None:
    told = QUICK | {"supports": ["dense"], "dtypes": ["float32"]}
    (violation,) = conformance.check(by_one_logsumexp, "attention", rules=["ATT-4"], **told).violations
    assert violation.diagnosis[0].startswith("weights are not divided by their sum, or as exp(score - log-sum-exp)")
    assert not conformance.check(by_one_logsumexp, "attention", rules=["ATT-1", "MASK-1"], **told).violations


def test_a_number_for_forbidden_scores_is_no_multiple_where_empty_rows_are_zero() -> None:
    def attend(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        output = filled_with(-1e9)(query, key, value, mask=mask)
        return output if mask is None else np.where(mask.any(-1, keepdims=True), output, 0).astype(query.dtype)

    told = QUICK | {"effort": "default", "dtypes": ["float32"], "supports": ["dense"]}
    (violation,) = conformance.check(attend, "attention", rules=["ATT-4"], **told).violations
    assert violation.diagnosis[0].startswith("forbidden scores are a number, not -inf")
    assert not any("times what it must be" in name for name in violation.diagnosis)


# --- planted mistakes -------------------------------------------------------------------------------------------------

Numbers = dict[str, Any]


def drawn(B: int = 1, H: int = 2, G: int = 2, Q: int = 3, K: int = 5, D: int = 4, V: int = 4, **more: Any) -> Case:
    """more: dtype, inputs by shape, `masked`, `dropped`, `graded`, and options."""
    generator = np.random.default_rng(0)
    dtype = more.pop("dtype", "float32")
    shapes = {"query": (B, H, Q, D), "key": (B, G, K, D), "value": (B, G, K, V)}
    shapes |= {name: more.pop(name) for name in ("bias", "sinks") if name in more}
    inputs = {name: generator.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    options: Numbers = {}
    if more.pop("masked", False):
        options["mask"] = generator.random((B, 1, Q, K)) < 0.6
        options["mask"][..., 0] = True
    if more.pop("dropped", False):
        options |= {"dropout_keep": generator.random((B, H, Q, K)) < 0.7, "dropout_rate": 0.3}
    bar = {"output": generator.normal(size=(B, H, Q, V)).astype(dtype)} if more.pop("graded", False) else {}
    return Case("attention", dtype, inputs, options | more, bar)


def told(function: Callable[..., Any], asked: Case, arrays: str = "numpy") -> tuple[str, ...]:
    """The diagnosis of a function's answers to one case."""
    runner = Runner(Target(function, asked.operation, arrays).make())
    worst = max(runner(AGREEMENT, asked, (oracle(asked), bound(asked))), key=lambda finding: finding.ratio)
    assert worst.ratio > 1
    return diagnosis(Violation("ATT-1", "a subject", worst, "a probe", AGREEMENT, asked), runner)


def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return reference_numpy.attention(query, key, value, **options)


def first_keys(n: int) -> Callable[..., Any]:
    return lambda query, key, value: attend(query, key[:, :, :n], value[:, :, :n])


def read_by(order: Callable[[int, int], Any]) -> Callable[..., Any]:
    def function(query: Any, key: Any, value: Any) -> Any:
        read = np.minimum(order(query.shape[1], key.shape[1]), key.shape[1] - 1)
        return attend(query, key[:, read], value[:, read])

    return function


def merged_wrongly(query: Any, key: Any, value: Any) -> Any:
    """Parts of 8 keys, by log-sum-exps in base 2."""
    parts = [slice(start, start + 8) for start in range(0, key.shape[2], 8)]
    outputs = [attend(query, key[:, :, part], value[:, :, part]) for part in parts]
    logs = [reference_numpy.attention_logsumexp(query, key[:, :, part]) / np.float32(np.log(2)) for part in parts]
    return reference_numpy.merge_attention(outputs, logs)[0]


def adding(number: float) -> Callable[..., Any]:
    def function(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        bias = np.zeros((*query.shape[:3], key.shape[2]), "float32")
        return attend(
            query, key, value, bias=bias if mask is None else bias + np.where(mask, 0, number).astype("float32")
        )

    return function


def floor(query: Any, key: Any, value: Any) -> Any:
    scores = (query @ key.swapaxes(2, 3) / np.sqrt(np.float32(query.shape[3]))).astype("float32")
    exponentials = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), 0))
    return exponentials / np.maximum(exponentials.sum(-1, keepdims=True), np.float32(1e-30)) @ value


def far() -> Case:
    asked = drawn(D=1)
    asked.inputs["query"][:], asked.inputs["key"][:] = 20, asked.inputs["key"] - 20
    return asked


def with_an_empty_row() -> Case:
    asked = drawn(masked=True)
    asked.options["mask"][:, :, 1] = False
    return asked


def test_a_number_that_cannot_be_told_from_others_is_not_named() -> None:
    """Beside the lowest number nothing is left of the scores; of scores near 0 other numbers leave the same."""
    asked = with_an_empty_row()
    inputs = asked.inputs | {"query": asked.inputs["query"] * np.float32(1e-2)}
    found = told(adding(float(np.finfo("float32").min)), replace(asked, inputs=inputs))
    assert "rows that allow nothing get the mean of all values" in found
    assert not any(line.startswith("a number is added") for line in found)


def by_scores(change: Callable[..., Any], exponentials: Callable[..., Any] = lambda s: np.exp(s - top(s))) -> Any:
    """Attention in three lines. change: of the scores, the mask and what is given; exponentials: of the scores."""

    def function(
        query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None
    ) -> Any:
        found = change(query.astype(float), key.astype(float), mask, scale, softcap)
        found = exponentials(found) if sinks is None else exponentials(found, sinks.astype(float)[:, None, None])
        return (found / found.sum(-1, keepdims=True) @ value if sinks is None else found @ value).astype("float32")

    return function


def top(scores: Any) -> Any:
    return scores.max(-1, keepdims=True)


def hidden(scores: Any, mask: Any) -> Any:
    return scores if mask is None else np.where(mask, scores, -np.inf)


def plain_scores(query: Any, key: Any, mask: Any, scale: Any, softcap: Any) -> Any:
    return hidden(query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale), mask)


def scored_by(scale: Callable[[int, Any], float]) -> Any:
    """scale: by the width of the heads and the given one."""
    return by_scores(lambda q, k, mask, given, cap: hidden(q @ k.swapaxes(-1, -2) * scale(q.shape[-1], given), mask))


def capped_last(query: Any, key: Any, mask: Any, scale: Any, softcap: Any) -> Any:
    scores = plain_scores(query, key, mask, scale, None)
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def without_transpose(query: Any, key: Any, mask: Any, scale: Any, softcap: Any) -> Any:
    B, G, K, D = key.shape
    return query @ key.reshape(B, G, D, K) / D**0.5


def with_sink(scores: Any, sink: Any = None) -> Any:
    exponentials = np.exp(scores - top(scores))
    if sink is None:
        return exponentials
    return exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(sink))


def late(query: Any, key: Any, value: Any) -> Any:
    """Online softmax in blocks of 8 keys whose running sum is rescaled after the block has been added."""
    scores, maximum, total, output = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5), -1e30, 0, 0
    for start in range(0, key.shape[2], 8):
        larger = np.maximum(maximum, top(scores[..., start : start + 8]))
        found, shrunk = np.exp(scores[..., start : start + 8] - larger), np.exp(maximum - larger)
        total = (total + found.sum(-1, keepdims=True)) * (shrunk if start else 1)
        output, maximum = output * shrunk + found @ value[:, :, start : start + 8], larger
    return (output / total).astype(query.dtype)


@np.errstate(invalid="ignore")
def rooted(query: Any, key: Any, value: Any, *, scale: float = 1.0) -> Any:
    root = np.sqrt(np.float32(scale))
    return attend(query * root, key * root, value, scale=1.0)


def reversed_sign(query: Any, key: Any, value: Any) -> Any:
    """Online softmax in blocks of 8 keys that rescales by exp(new - old)."""
    scores, maximum, total, output = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5), None, 0, 0
    for start in range(0, key.shape[2], 8):
        best = top(scores[..., start : start + 8])
        larger = best if maximum is None else np.maximum(maximum, best)
        grown = 0 if maximum is None else np.exp(larger - maximum)
        found = np.exp(scores[..., start : start + 8] - larger)
        total, maximum = total * grown + found.sum(-1, keepdims=True), larger
        output = output * grown + found @ value[:, :, start : start + 8]
    return (output / total).astype(query.dtype)


def unit(array: Any) -> Any:
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def beside_sink(query: Any, key: Any, sinks: Any) -> Any:
    scores = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5)
    if sinks is None:
        sinks = np.full(query.shape[1], -1e9, "float32")
    column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
    found = np.exp((scores := np.concatenate([scores, column], -1)) - top(scores))
    return found / found.sum(-1, keepdims=True)


def by_sums(query: Any, key: Any) -> Any:
    scores = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5)
    found = np.exp(scores - top(scores))
    return (found / np.cumsum(found.sum(-1, keepdims=True), axis=2)).astype("float32")


def dropped(scores: Any, keep: Any, rate: float) -> Any:
    return (scores if keep is None else np.where(keep, scores / (1 - rate), 0)).astype("float32")


def forbidden_weights(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    weights = reference_numpy.attention_weights(query, key)
    return (weights if mask is None else np.where(mask, weights, np.float32(-1e9))) @ value


def square(**more: Any) -> Case:
    return drawn(Q=5, **more)


def beyond_forbidden() -> Case:
    """A forbidden key scores so high that all else is lost beside it, in some rows."""
    asked = drawn(masked=True, D=1, V=1, Q=5)
    asked.inputs["query"][:, :, ::2], asked.inputs["query"][:, :, 1::2], asked.inputs["key"][:, :, 2] = 20, 0.1, 20
    asked.options["mask"][:, :, :, 2] = False
    return asked


def exactly_0() -> Case:
    asked = drawn()
    asked.inputs["key"][:, :, 1] = 0
    return asked


STUDENTS: list[tuple[str, Callable[..., Any], Case]] = [
    ("the given scale divides the scores", scored_by(lambda D, s: D**-0.5 if s is None else 1 / s), drawn(scale=0.3)),
    ("the scale is 1 / (2 D), as of D ** -1 / 2", scored_by(lambda D, s: D**-1 / 2), drawn(D=6)),
    ("the scale is one over sqrt(D) rounded down", scored_by(lambda D, s: 1 / int(D**0.5)), drawn(D=6, V=5)),
    ("the scale is sqrt(D): scores are multiplied by it", scored_by(lambda D, s: D**0.5), drawn()),
    (
        "the root of a scale below 0 is taken: it is NaN",
        rooted,
        drawn(scale=-0.2),
    ),
    ("keys [K, D] are reshaped to [D, K], not transposed", by_scores(without_transpose), drawn()),
    (
        "the softcap comes after the mask: forbidden scores are -softcap",
        by_scores(capped_last),
        drawn(masked=True, softcap=0.8),
    ),
    (
        "the output is transposed to [B, Q, H, V], and read as [B, H, Q, V]",
        lambda q, k, v: attend(q, k, v).swapaxes(1, 2).reshape(*q.shape[:3], v.shape[-1]),
        drawn(),
    ),
    (
        "the output [B, H, Q, V] is read as [B, Q, H, V]",
        lambda q, k, v: attend(q, k, v).reshape(q.shape[0], q.shape[2], q.shape[1], -1).swapaxes(1, 2),
        drawn(),
    ),
    (
        "weights in column j are divided by the sum of row j",
        lambda q, k, v: by_columns_divided(q, k) @ v,
        square(),
    ),
    (
        "the maximum is taken over queries, not keys",
        by_scores(plain_scores, lambda s: np.exp(s - s.max(-2, keepdims=True))),
        drawn(),
    ),
    (
        "the maximum of row j is subtracted from column j",
        by_scores(plain_scores, lambda s: np.exp(s - top(s).swapaxes(-1, -2))),
        square(),
    ),
    (
        "a number is added to the sum of the exponentials (0.001)",
        lambda q, k, v: attend(q, k, v, sinks=np.log(np.float32(1e-3)) + top(q @ k.swapaxes(-1, -2) / 2)[0, :, 0, 0]),
        drawn(Q=1),
    ),
    (
        "the sink's exponential is taken without subtracting the maximum",
        by_scores(plain_scores, with_sink),
        drawn(sinks=(2,)),
    ),
    ("forbidden weights are a number, not 0 (-1e+09)", forbidden_weights, drawn(masked=True)),
    (
        "scores are clipped to lie between -c and c (5)",
        by_scores(lambda q, *more: plain_scores(q, *more).clip(-5, 5)),
        drawn(scale=9.0),
    ),
    (
        "scores of exactly 0 are taken for forbidden",
        by_scores(lambda *given: np.where(plain_scores(*given) == 0, -np.inf, plain_scores(*given))),
        exactly_0(),
    ),
    ("the running sum is rescaled with the new block in it (blocks of 8 keys)", late, drawn(K=20)),
    ("sum and output are rescaled by exp(new - old) (blocks of 8 keys)", reversed_sign, drawn(K=20)),
    (
        "scores are cosines, of queries and keys divided by their lengths",
        by_scores(lambda q, k, *more: unit(q) @ unit(k).swapaxes(-1, -2)),
        drawn(),
    ),
    (
        "every head has the sum of all key heads' values",
        lambda q, k, v: np.einsum("bhqk,bgkv->bhqv", reference_numpy.attention_weights(q, k), v),
        drawn(H=4, G=2),
    ),
    (
        "the sink's column stands last, and the first one is cut off",
        lambda q, k, v, *, sinks=None: beside_sink(q, k, sinks)[..., 1:] @ v,
        drawn(sinks=(2,)),
    ),
    (
        "the sum of the exponentials is not set back from row to row",
        lambda q, k, v: by_sums(q, k) @ v,
        drawn(),
    ),
    (
        "dropout is applied to the scores, not to the weights",
        lambda q, k, v, *, dropout_keep=None, dropout_rate=0.0: attend(
            q * 0, k, v, bias=dropped(q @ k.swapaxes(-1, -2) / np.float32(2), dropout_keep, dropout_rate)
        ),
        drawn(dropped=True),
    ),
    (
        "every block of queries has the mask of the first one (blocks of 4 rows)",
        lambda q, k, v, *, mask=None: attend(
            q, k, v, mask=mask if mask is None else mask[:, :, np.arange(q.shape[2]) % 4]
        ),
        drawn(Q=10, masked=True),
    ),
    (
        "the maximum is taken over forbidden keys, too: all exponentials of a row may be 0",
        lambda q, k, v, mask=None: beside_forbidden(q, k, mask) @ v,
        beyond_forbidden(),
    ),
]


def by_columns_divided(query: Any, key: Any) -> Any:
    scores = plain_scores(query, key, None, None, None)
    found = np.exp(scores - top(scores))
    return (found / found.sum(-1)[:, :, None]).astype("float32")


def beside_forbidden(query: Any, key: Any, mask: Any) -> Any:
    scores = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5)
    found = np.where(mask, np.exp(scores - top(scores)), np.float32(0))
    return found / np.maximum(found.sum(-1, keepdims=True), np.float32(1e-37))


@pytest.mark.parametrize(("name", "function", "asked"), STUDENTS, ids=[name for name, _, _ in STUDENTS])
def test_mistakes_of_a_first_attempt_are_named_first(name: str, function: Callable[..., Any], asked: Case) -> None:
    assert told(function, asked)[0] == name


def test_one_common_factor_is_no_number_added_to_the_sum() -> None:
    """Where all sums are the same, or there is one."""
    halved = told(lambda q, k, v: attend(q, k, v) / 2, drawn(Q=1, K=1, H=1, G=1, V=1))
    assert not any(name.startswith("a number is added") for name in halved)
    assert told(lambda q, k, v: attend(q, k, v) / 2, drawn())[0].startswith("output is 0.5 times what it must be")


def test_equal_weights_of_one_query_are_no_maximum_over_queries() -> None:
    equal = lambda q, k, v: np.broadcast_to(v.mean(2, keepdims=True), (*q.shape[:3], v.shape[-1])) + 0 * v[:, :, :1]  # noqa: E731
    assert "the maximum is taken over queries, not keys" not in told(equal, drawn(Q=1))


def test_a_scale_of_0_taken_for_none_is_told_from_a_scale_that_is_ignored() -> None:
    asked = drawn(scale=0.0, V=5)
    assert told(scored_by(lambda D, s: s or D**-0.5), asked) == ("a scale of 0 is taken for none: 1 / sqrt(D) is used",)
    assert told(scored_by(lambda D, s: D**-0.5), asked) == ("the given scale is ignored: 1 / sqrt(D) is used",)


def test_a_root_below_0_is_told_from_exponentials_that_overflow() -> None:
    asked = drawn(scale=-1e4)
    root, before = told(rooted, asked), told(maximum_before_the_scale, asked)
    assert root == ("the root of a scale below 0 is taken: it is NaN",)
    assert before[0] == "the maximum is taken before a scale below 0: exponentials overflow"
    assert root[0] not in before


@np.errstate(all="ignore")
def maximum_before_the_scale(query: Any, key: Any, value: Any, *, scale: float = 1.0) -> Any:
    products, scale = query @ key.swapaxes(-1, -2), np.float32(scale)
    found = np.exp(products * scale - top(products) * scale)
    return found / found.sum(-1, keepdims=True) @ value


def test_low_scores_of_a_bias_are_told_from_those_of_products() -> None:
    """The other sign of the bias makes them high."""

    @np.errstate(all="ignore")
    def from_0(query: Any, key: Any, value: Any, *, bias: Any = None) -> Any:
        scores = query @ key.swapaxes(-1, -2) / np.float32(2) + (0 if bias is None else bias)
        found = np.exp(scores - np.maximum(top(scores), 0))
        return (found / found.sum(-1, keepdims=True) @ value).astype("float32")

    asked = drawn(bias=(3, 5))
    asked.inputs["bias"] -= 300
    assert told(from_0, asked) == ("the maximum begins too high, as at 0: all exponentials of scores far below are 0",)


def test_nan_alone_names_no_mask() -> None:
    """A length that is rounded down to 0 leaves nothing; so does a mask that is multiplied by infinity."""

    @np.errstate(all="ignore")
    def by_infinity(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        scores = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5)
        scores = scores if mask is None else scores + (~mask) * np.float32(-np.inf)
        found = np.exp(scores - top(scores))
        return found / found.sum(-1, keepdims=True) @ value

    asked = replace(drawn(K=1), options={"mask": KeyLengths(np.array([1]))})
    names = told(by_infinity, asked)
    assert not any("rounded down" in name for name in names)
    assert told(by_infinity, drawn(masked=True)) == (BY_INFINITY.name,)


def test_heads_are_no_positions_under_a_causal_mask_without_an_offset() -> None:
    """Of two heads and one key head: the mask says nothing of their exchange."""
    asked = replace(drawn(H=2, G=1, Q=2, K=2), options={"mask": Causal()})
    assert with_axes_exchanged(asked) is None
    assert with_axes_exchanged(replace(asked, options={"mask": Causal(0)})) is not None


def test_a_name_from_larger_cases_needs_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may fit by chance."""
    several = {7: ["by chance", "true"], 9: ["true"]}
    monkeypatch.setattr(matches, "larger_cases", lambda case: [drawn(K=K) for K in several])
    monkeypatch.setattr(
        matches, "answered", lambda subject, case: SimpleNamespace(case=case, wrong=["gradient of key"])
    )
    monkeypatch.setattr(
        matches, "names_of", lambda subject, failing, *more: several[failing.case.inputs["key"].shape[2]]
    )
    assert matches.of_larger(cast(Any, None), drawn(), "gradient of key") == ["true"]
    del several[9]
    assert matches.of_larger(cast(Any, None), drawn(), "gradient of key") == ["by chance", "true"]


def test_a_scale_that_narrow_heads_cannot_tell_is_told_by_wider_ones() -> None:
    """1 / sqrt(2) rounded up is 1, as without a scale; of other widths it is neither."""
    rounded_down = "the scale is one over sqrt(D) rounded down"
    assert told(scored_by(lambda D, s: 1 / int(D**0.5)), drawn(D=2)) == (rounded_down,)
    assert told(scored_by(lambda D, s: 1.0), drawn(D=2)) == ("the scale is 1: it is left out",)
    neither = told(scored_by(lambda D, s: 1.0 if D < 4 else D**-0.5), drawn(D=2))
    assert not any(name.startswith("the scale is 1:") for name in neither)


FORWARDS: list[tuple[str, Callable[..., Any], Case]] = [
    ("keys past the first 64 are left out", first_keys(64), drawn(K=70)),
    ("keys past the first 24 are left out", first_keys(24), drawn(K=70)),
    ("the last key is left out", lambda q, k, v: attend(q, k[:, :, :-1], v[:, :, :-1]), drawn(K=17)),
    (
        "keys past the last whole block are left out (blocks of 16 keys)",
        lambda q, k, v: attend(q, k[:, :, : k.shape[2] // 16 * 16 or None], v[:, :, : k.shape[2] // 16 * 16 or None]),
        drawn(K=19),
    ),
    (
        "scores are taken from the first 64 columns of query and key",
        lambda q, k, v: attend(q[..., :64], k[..., :64], v, scale=q.shape[-1] ** -0.5),
        drawn(D=70),
    ),
    (
        "the default scale is taken from a width of 256, not 160",
        lambda q, k, v: attend(q, k, v, scale=256**-0.5),
        drawn(D=160),
    ),
    ("the scale is 1.3 times what it must be", lambda q, k, v: attend(q, k, v, scale=0.65), drawn()),
    (
        "the scale is 1.44269 times what it must be (log2(e))",
        lambda q, k, v: attend(q, k, v, scale=0.5 / np.log(2)),
        drawn(),
    ),
    (
        "columns past the first 64 are 0",
        lambda q, k, v: np.where(np.arange(v.shape[-1]) < 64, attend(q, k, v), 0).astype(q.dtype),
        drawn(V=70),
    ),
    (
        "heads past the first 3 get the answer of the one before",
        lambda q, k, v: attend(q, k, v)[:, np.minimum(np.arange(q.shape[1]), 2)],
        drawn(H=5, G=5),
    ),
    (
        "query heads of a group are counted in powers of two: they read the wrong key head",
        read_by(lambda H, G: np.arange(H) // (1 << (H // G - 1).bit_length())),
        drawn(H=6, G=2),
    ),
    (
        "parts of the keys are merged by log-sum-exps in base 2 as if they were natural (blocks of 8 keys)",
        merged_wrongly,
        drawn(K=20),
    ),
    (
        "mask and bias of a block's first row are used for all its rows (blocks of 4 rows)",
        lambda q, k, v, mask=None: attend(q, k, v, mask=mask[:, :, np.arange(q.shape[2]) // 4 * 4]),
        drawn(Q=6, masked=True),
    ),
    (
        "the sink counts twice",
        lambda q, k, v, sinks=None: attend(q, k, v, sinks=sinks + np.float32(np.log(2))),
        drawn(sinks=(2,)),
    ),
    ("a number is added to forbidden scores, which are not -inf", adding(-1e4), with_an_empty_row()),
    ("rows of low scores fade to 0: their maximum is kept from falling below a number", floor, far()),
    (
        "the sum of the exponentials is rounded to float16",
        lambda q, k, v: sum_in_16_bits(q, k, v),
        drawn(Q=20, K=40, dtype="float16"),
    ),
]


def sum_in_16_bits(query: Any, key: Any, value: Any) -> Any:
    wide = [array.astype("float32") for array in (query, key, value)]
    scores = wide[0] @ wide[1].swapaxes(2, 3) / np.sqrt(np.float32(query.shape[3]))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    total = exponentials.sum(-1, keepdims=True).astype("float16").astype("float32")
    return (exponentials / total @ wide[2]).astype("float16")


@pytest.mark.parametrize(("name", "function", "asked"), FORWARDS, ids=[name for name, _, _ in FORWARDS])
def test_planted_mistakes_are_named_first(name: str, function: Callable[..., Any], asked: Case) -> None:
    assert told(function, asked)[0] == name


SEEN = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], bool)
"""Which of three blocks of 16 keys a query sees."""


@pytest.mark.parametrize("how", blocks.SINK_COUNTS)
@pytest.mark.parametrize(("heads", "times"), [(2, 1), (8, 10)], ids=["all rows", "the worst row first"])
def test_sinks_that_count_by_blocks_have_a_name(how: str, heads: int, times: int) -> None:
    asked = drawn(H=heads, G=heads, Q=6 * times, K=40, sinks=(heads,))
    asked.options["mask"] = np.tile(SEEN.repeat(16, axis=1)[:, :40], (times, 1))

    def function(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
        output, logs = attend(query, key, value, mask=mask), reference_numpy.attention_logsumexp(query, key, mask=mask)
        seen = [mask[..., start : start + 16].any(axis=-1) for start in range(0, key.shape[2], 16)]
        counts = blocks.SINK_COUNTS[how](np.stack(seen, axis=-1))
        return (output / (1 + counts * np.exp(sinks[:, None] - logs))[..., None]).astype("float32")

    assert told(function, asked)[0].partition(" (")[0] == f"the sink counts {how}"


def test_a_verdict_survives_a_diagnosis_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_diagnosis(*given: Any) -> Any:
        raise IndexError("planted")

    monkeypatch.setattr(matches, "names_of", failing_diagnosis)
    assert told(first_keys(2), drawn()) == ("no diagnosis: the judge failed: IndexError: planted",)


FADED = "rows of low scores fade to 0"
GRADIENTS = f"{WRONG_IN}the gradients of query and key; output and gradient of value conform"


@pytest.mark.parametrize(
    ("smaller", "larger", "names"),
    [
        ((FADED,), (GRADIENTS,), (FADED,)),
        ((FADED, "output is 0"), (GRADIENTS,), ()),  # too small a case to say which
        ((FADED,), (f"{WRONG_IN}output and every gradient",), ()),  # the larger output is wrong, and not by this
        ((FADED,), ("another mistake", GRADIENTS), ()),
        ((FADED,), ("gradient of bias is -1 times what it must be", GRADIENTS), (FADED,)),
    ],
)
def test_a_case_cut_from_gradients_to_an_output(
    smaller: tuple[str, ...], larger: tuple[str, ...], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(violated("MASK-1", case(1, 1, 1, 1)), uncut=case(1, 1, 7, 1))
    monkeypatch.setattr(
        naming, "asked", lambda one, case, runner, how=None: () if how else larger if case is one.uncut else smaller
    )
    monkeypatch.setattr(naming, "because_of_memory", lambda *given: False)
    assert naming.names_of(found, cast(Any, None)) == names


def test_a_name_that_explains_cases_like_the_smallest_may_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before it was cut down may be wrong in several ways at once, which no single mistake explains."""
    found = replace(violated("MASK-1", case(1, 1, 1, 1)), uncut=case(1, 1, 7, 1))
    answers = {naming.DOUBTING: (FADED,), naming.DIAGNOSIS: (FADED, "output is 0")}

    def asked(one: Violation, case: Case, runner: Any, how: Any = naming.DIAGNOSIS) -> tuple[str, ...]:
        return () if case is one.uncut else answers[how]

    monkeypatch.setattr(naming, "asked", asked)
    monkeypatch.setattr(naming, "because_of_memory", lambda *given: False)
    assert naming.names_of(found, cast(Any, None)) == (FADED,)
    answers[naming.DOUBTING] = ()
    assert naming.names_of(found, cast(Any, None)) == ()


def over_queries_with_a_number(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """A softmax over the queries, and -1e9 for forbidden scores: two mistakes, which a mask shows together."""
    scores = query @ np.repeat(key, query.shape[1] // key.shape[1], 1).swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(materialize(mask, *scores.shape[-2:]), scores, -1e9)
    weights = np.exp(scores - scores.max(-2, keepdims=True))
    weights = weights / weights.sum(-2, keepdims=True)
    return (weights @ np.repeat(value, query.shape[1] // value.shape[1], 1)).astype(query.dtype)


def test_one_of_two_mistakes_has_its_name_under_the_rule_of_the_other() -> None:
    pairs = np.random.default_rng(0).random((12, 12)) < 0.5
    pairs[:, 2] = False
    small = replace(violated("MASK-1", drawn(Q=2, K=2)), uncut=drawn(Q=12, K=12, mask=Dense(pairs)))
    runner = Runner(Target(over_queries_with_a_number, "attention").make())
    assert naming.names_of(small, runner) == ("the softmax runs over queries, not keys",)


def test_a_case_with_a_key_head_for_every_query_head_has_no_mistake_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(violated("ATT-12", case(1, 1, 1, 1)), uncut=case(1, 2, 7, 1))
    found = replace(found, finding=replace(found.finding, name="gradient of key"))
    name = "gradient of key adds up other query heads than each group's"
    vague = f"{AT_MOST} weights rounded to float16 would make them"
    monkeypatch.setattr(naming, "asked", lambda one, case, runner: (name,) if case is one.uncut else (vague,))
    monkeypatch.setattr(naming, "because_of_memory", lambda *given: False)
    assert naming.names_of(found, cast(Any, None)) == ()
    inputs = found.case.inputs | {"query": np.ones((1, 2, 1, 1), "float32")}
    grouped = replace(found, example=replace(found.case, inputs=inputs))
    assert naming.names_of(grouped, cast(Any, None)) == (name,)


def test_a_gradient_that_is_wrong_by_digits_has_no_mistake_of_groups() -> None:
    asked = drawn(H=4, G=2, graded=True)
    found = answers_of(asked, asked)
    name = "gradient of key"
    got = found.got | {name: (found.right(name) + 1.5 * found.bounds[name]).astype("float32")}
    assert name in replace(found, got=got).wrong
    assert list(wrongly_added(replace(found, got=got), name)) == []
    first = found.parts.key[:, ::2].astype("float32")
    (only,) = wrongly_added(replace(found, got=found.got | {name: first}), name)
    assert only == f"{name} comes from the first query head of each group only"


def test_a_diagnosis_that_failed_is_no_headline(broken: conformance.Report) -> None:
    failed = [replace(violation, diagnosis=("no diagnosis: the judge failed",)) for violation in broken.violations]
    assert replace(broken, violations=failed).headline == ""


def answers_of(asked: Case, backwards: Case) -> Failing:
    """The right output of one case, with the gradients of another one."""
    got = {name: exact.high for name, exact in oracle(asked).items()}
    got |= {name: exact.high for name, exact in oracle(backwards).items() if name != "output"}
    right = oracle(asked)
    got |= {
        name: np.zeros_like(exact.high)
        for name, exact in right.items()
        if name not in oracle(backwards) and name != "output"
    }
    return failing(asked, {name: array.astype(asked.dtype) for name, array in got.items()})


def lacking(asked: Case, *names: str) -> Case:
    inputs = {name: array for name, array in asked.inputs.items() if name not in names}
    return replace(asked, inputs=inputs, options={n: o for n, o in asked.options.items() if n not in names})


BACKWARDS = [
    ("the backward pass knows nothing of the mask", drawn(graded=True, masked=True), ("mask",)),
    ("the backward pass knows nothing of the sinks", drawn(graded=True, sinks=(2,)), ("sinks",)),
    (
        "the dropout mask is missing in the backward pass",
        drawn(graded=True, dropped=True),
        ("dropout_keep", "dropout_rate"),
    ),
    ("in the backward pass only: softcap is ignored", drawn(graded=True, softcap=1.0), ("softcap",)),
    ("in the backward pass only: bias is ignored", drawn(graded=True, bias=(3, 5)), ("bias",)),
]


@pytest.mark.parametrize(("name", "asked", "missing"), BACKWARDS)
def test_wrong_backward_passes_are_named_first(name: str, asked: Case, missing: tuple[str, ...]) -> None:
    found = answers_of(asked, lacking(asked, *missing))
    assert "output" not in found.wrong
    assert next(known(found, found.wrong[0], np.inf)) == name


def changed_gradients(asked: Case, **changed: Callable[[Any], Any]) -> Failing:
    got = {name: exact.high for name, exact in oracle(asked).items()}
    got |= {f"gradient of {name}": change(got[f"gradient of {name}"]) for name, change in changed.items()}
    return failing(asked, {name: array.astype(asked.dtype) for name, array in got.items()})


def test_factors_of_gradients_are_explained() -> None:
    asked = drawn(graded=True, D=9, H=6)
    expected = {
        "query": (1 / 3, "0.333333 times what it must be (the scale is applied twice, or the query heads of a group"),
        "key": (3, "3 times what it must be (the scale is left out)"),
        "value": (np.log(2), "0.693147 times what it must be (ln 2)"),
    }
    for name, (factor, words) in expected.items():
        found = changed_gradients(asked, **{name: lambda gradient, factor=factor: gradient * factor})
        assert next(known(found, f"gradient of {name}", np.inf)).startswith(f"gradient of {name} is {words}")
        one, other = (of for of in expected if of != name)
        right = f"output and the gradients of {one} and {other} conform"
        assert list(wrong_in(found)) == [f"wrong in: gradient of {name} only; {right}"]
    missing = changed_gradients(asked, value=lambda gradient: gradient * 0)
    assert next(known(missing, "gradient of value", np.inf)) == "gradient of value is missing: it is 0"


def test_a_factor_near_1_is_not_told_as_1() -> None:
    asked = drawn(graded=True, D=9, H=6)
    found = changed_gradients(asked, key=lambda gradient: gradient * (1 + 4e-6))
    assert next(known(found, "gradient of key", np.inf)).startswith("gradient of key is 1 + 4e-06 times what")


def test_terms_left_out_of_gradients_are_named() -> None:
    asked = drawn(B=3, H=4, graded=True, bias=(1, 4, 3, 5))
    full = failing(asked, {}).parts
    first = changed_gradients(asked, bias=lambda gradient: full.scores[:1])
    assert next(known(first, "gradient of bias", np.inf)) == "gradient of bias comes from the first batch element only"
    heads = changed_gradients(asked, key=lambda gradient: full.key[:, ::2])
    name = "gradient of key comes from the first query head of each group only"
    assert next(known(heads, "gradient of key", np.inf)) == name
    tiled = changed_gradients(asked, value=lambda gradient: full.value[:, :2] + full.value[:, 2:])
    name = "gradient of value adds up query heads h, h + G, ... in place of each group's"
    assert next(known(tiled, "gradient of value", np.inf)) == name


def test_which_results_are_wrong() -> None:
    asked = drawn(graded=True)
    everything = {name: lambda gradient: gradient * 2 for name in ("query", "key", "value")}
    found = changed_gradients(asked, **everything)
    assert list(wrong_in(found)) == ["wrong in: every gradient; output conforms"]
    found = changed_gradients(asked, query=everything["query"], key=everything["key"])
    line = "wrong in: the gradients of query and key; output and gradient of value conform"
    assert list(wrong_in(found)) == [line]
    assert list(wrong_in(failing(drawn(), {"output": asked.inputs["query"]}))) == []


# --- hints ------------------------------------------------------------------------------------------------------------


def in_float32(query: Any, key: Any, value: Any) -> Any:
    narrow = [array.astype("float32") for array in (query, key, value)]
    return attend(*narrow).astype(query.dtype)


def test_float32_comes_before_16_bits() -> None:
    name = "perhaps: the errors are no larger than float32 arithmetic, all through or in the softmax, would make them"
    assert told(in_float32, drawn(dtype="float64")) == (name,)


def slightly_off(query: Any, key: Any, value: Any) -> Any:
    noise = np.sin(np.arange(query.shape[0] * query.shape[1] * query.shape[2] * value.shape[3]))
    right = attend(query, key, value)
    return (right * (1 + 3e-4 * noise.reshape(right.shape))).astype(query.dtype)


def test_one_key_has_a_weight_of_1_which_nothing_rounds() -> None:
    """Nor do errors that no rounding makes get its name."""
    assert told(slightly_off, drawn(K=1, Q=9)) == ()
    assert told(slightly_off, drawn(K=9, Q=9)) == ()


# --- norms ------------------------------------------------------------------------------------------------------------


def rows(*shape: int, dtype: str = "float32", size: Any = 1.0, loc: float = 0.0, graded: bool = False) -> Case:
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape) * size + loc
    inputs = {"x": x, "weight": generator.normal(size=shape[-1:]), "bias": generator.normal(size=shape[-1:])}
    bar = {"output": generator.normal(size=shape).astype(dtype)} if graded else {}
    return Case("layer_norm", dtype, {n: a.astype(dtype) for n, a in inputs.items()}, {"eps": 1e-5}, bar)


def by(statistic: Callable[[Any, float], Any], form: Callable[[Any], Any] = lambda row: row) -> Callable[..., Any]:
    def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
        wide = x.astype(float)
        mean, square = statistic(wide, eps)
        return (form((wide - mean) / np.sqrt(square)) * weight.astype(float) + bias.astype(float)).astype(x.dtype)

    return layer_norm


def spread(x: Any) -> Any:
    return ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)


def center(x: Any) -> Any:
    return x.mean(-1, keepdims=True)


def ends(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    out = np.zeros_like(x)
    out[..., :16] = reference_numpy.layer_norm(x[..., :16], weight[:16], bias[:16], eps=eps)
    return out


DIFFERENT = np.array([[1.0], [1e-3], [3e-4], [1e-4]])
NORMS: list[tuple[str, Callable[..., Any], Case]] = [
    ("small variances are taken for 0", by(lambda x, e: (center(x), np.where(spread(x) < 1e-6, 0, spread(x)) + e)),
     rows(4, 8, size=DIFFERENT)),
    ("eps is the least variance, and not added", by(lambda x, e: (center(x), np.maximum(spread(x), e))),
     rows(3, 8, size=0.01)),
    ("eps is 2e-06", by(lambda x, e: (center(x), spread(x) + 2e-6)), rows(3, 8, size=0.01)),
    ("the squares are divided by the padded width (a row is filled up to a multiple of 8)",
     by(lambda x, e: (center(x), spread(x) * x.shape[-1] / (x.shape[-1] + -x.shape[-1] % 8) + e)), rows(3, 5)),
    ("padding counts in the variance, by the mean's square (a row is filled up to a multiple of 8)",
     by(lambda x, e: (center(x), spread(x) + -x.shape[-1] % 8 / x.shape[-1] * center(x) ** 2 + e)),
     rows(3, 5, loc=0.5)),
    ("statistics come from the first 16 columns of a row",
     by(lambda x, e: (center(x[..., :16]), spread(x[..., :16]) + e)), rows(3, 40)),
    ("only the first 16 columns of a row are read and written", ends, rows(3, 40)),
    ("the normalised row is rounded before it meets the weight",
     by(lambda x, e: (center(x), spread(x) + e), lambda row: row.astype("float16").astype(float)),
     rows(20, 8, dtype="float16")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "asked"), NORMS, ids=[name for name, _, _ in NORMS])
def test_planted_mistakes_of_norms_are_named_first(name: str, function: Callable[..., Any], asked: Case) -> None:
    assert told(function, asked)[0] == name


def test_a_wrong_gradient_of_a_norm_is_no_wrong_variance() -> None:
    asked = rows(5, 4, graded=True)
    right = oracle(asked)
    x, bar = asked.inputs["x"].astype(float), asked.cotangents["output"].astype(float)
    normal = (x - center(x)) / np.sqrt(spread(x) + 1e-5)
    lost = changed_gradients(asked, weight=lambda gradient: (bar * normal)[:4].sum(0))
    name = "gradient of weight loses the rows of the last block, which is not whole (blocks of 4 rows)"
    assert name in list(known(lost, "gradient of weight", np.inf))
    odd = changed_gradients(asked, weight=lambda gradient: gradient + np.sin(np.arange(4)))
    assert list(known(odd, "gradient of weight", np.inf)) == []
    assert list(variance_off(odd)) == []
    g = bar * asked.inputs["weight"]
    without = (g - normal * (g * normal).mean(-1, keepdims=True)) / np.sqrt(spread(x) + 1e-5)
    assert right["gradient of x"].high.shape == without.shape
    constant = changed_gradients(asked, x=lambda gradient: without)
    assert next(known(constant, "gradient of x", np.inf)) == "the mean's part is missing in the gradient of x"
