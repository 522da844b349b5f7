"""Verdicts as a reader takes them: what was never asked, what comes first, and what a name explains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import conformance
import reference_numpy
from conformance.bounds import bound
from conformance.cases import Case
from conformance.declaration import Declaration
from conformance.diagnosis.attention import MISTAKES
from conformance.diagnosis.blocks import padded_tail
from conformance.diagnosis.following import about, separated
from conformance.diagnosis.matching import matching
from conformance.diagnosis.naming import diagnosed, diagnosis, explaining, in_families
from conformance.expectations import Planted
from conformance.guard import Examiner
from conformance.missing import missing, some_cases
from conformance.oracle import oracle
from conformance.reports.blocks import follow, never_given, only_refused, rules_not_tried
from conformance.reports.content import document
from conformance.reports.junit import junit
from conformance.reports.page import page
from conformance.reports.subjects import checked
from conformance.reports.tables import subject_report, violation_lines
from conformance.signatures import signature_of
from conformance.tally import Tally, Violation
from conformance.targets import Target
from conformance.trials import NotAsked, Trial
from conformance.verdict import Finding, judge
from conformance.workers import ONLY_THERE, asked_again
from specification import Causal, Dense
from tests.test_pytest_plugin import PLUGIN

pytest_plugins = ["pytester"]

QUICK: dict[str, Any] = {"effort": "quick", "seed": 1, "dtypes": ["float32"]}


def flagged(q: Any, k: Any, v: Any, causal: bool = False, sm_scale: Any = None) -> Any:
    """Its flag is broken, and no case sees that."""
    return reference_numpy.attention(q, k, v, mask=Causal(1) if causal else None)


def stale(query: Any, key: Any, value: Any, *, mask: Any = None, softcap: Any = None) -> Any:
    """One key more than there are, with a score of 0."""
    more = [np.concatenate([array, np.zeros_like(array[:, :, :1])], axis=2) for array in (key, value)]
    wider = None if mask is None else np.concatenate([mask, np.ones_like(mask[..., :1])], axis=-1)
    return reference_numpy.attention(query, *more, mask=wider, softcap=softcap)


def without_windows(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    if type(mask).__name__ == "SlidingWindow":
        raise NotImplementedError("windows")
    return reference_numpy.attention(query, key, value, mask=mask)


def of_torch(query: Any, key: Any, value: Any) -> Any:
    return query.new_zeros(())


def printed(subject: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(subject_report(subject, 1), crop=False)
    return captured.get()


def told(function: Any, **options: Any) -> dict[str, Any]:
    """The report's part about the function."""
    return checked(conformance.check(function, "attention", **(QUICK | options)), None)


# --- what was never asked ---------------------------------------------------------------------------------------------


def test_parameters_of_no_operation_are_known_by_the_signature() -> None:
    def everything(query: Any, key: Any, value: Any, /, mask: Any = None, *, Causal: Any = None, **others: Any) -> Any:
        return None

    assert signature_of(flagged, "attention").never_given == ("causal", "sm_scale")
    assert signature_of(everything, "attention").never_given == ("Causal",)
    assert signature_of(reference_numpy.attention, "attention").never_given == ()
    assert signature_of(lambda x, w, zero_centered=False: x, "rms_norm").never_given == ("zero_centered",)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return told(flagged)


def test_what_was_never_given_is_said_everywhere(plain: dict[str, Any]) -> None:
    said = "never given: causal, sm_scale (no parameters of attention)"
    report = document("check", [plain])
    assert plain["conforms"]
    assert plain["never_given"] == ["causal", "sm_scale"]
    assert never_given(plain) == said
    assert said in printed(plain)
    assert said in page(report)
    assert 'name="never_given" value="causal, sm_scale"' in junit(report)
    assert never_given(plain | {"never_given": []}) == ""
    assert never_given({name: value for name, value in plain.items() if name != "never_given"}) == ""  # older


def test_rules_that_were_not_tried_are_counted_and_named(plain: dict[str, Any]) -> None:
    left = rules_not_tried(plain)
    assert left.startswith("13 of 20 rules not tried: MASK-1, MASK-2, ")
    assert printed(plain, 500).splitlines()[-1].endswith(f" cases, seed 1; {left}.")
    assert left in page(document("check", [plain]))


def test_what_was_never_given_is_known_of_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("def mean(q, k, v, causal=False):\n    return 0 * q\n")
    subject = told(f"{tmp_path / 'kernel.py'}:mean", isolate=True, rules=["ATT-13"], shrink=False)
    assert subject["never_given"] == ["causal"]


def test_pytest_says_what_was_never_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(kernel="def mean(q, k, v, causal=False):\n    return 0 * q\n")
    words = ("--conformance", "kernel.py:mean", "--conformance-operation", "attention", "--conformance-effort", "quick")
    result = pytester.runpytest_inprocess(*PLUGIN, *words, "-k", "plain")
    result.stdout.fnmatch_lines(
        ["conformance: kernel.py:mean was never given: causal (no parameters of attention)"], consecutive=True
    )


# --- what comes first -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken() -> conformance.Report:
    return conformance.check(stale, "attention", rules=["MASK-3", "ATT-2", "ATT-5", "ATT-7"], **QUICK)


def test_violations_that_stand_for_themselves_come_first(broken: conformance.Report, tmp_path: Path) -> None:
    rules = [violation.rule for violation in broken.violations]
    assert rules[0] == "ATT-5"
    assert set(rules[1:]) == {violation.rule for violation in broken.following} == {"MASK-3", "ATT-2", "ATT-7"}
    subject = checked(broken, tmp_path)
    line = f"{', '.join(rules[1:])} fail on cases without what these rules are about: they follow from the above."
    assert follow(subject) == line
    text = printed(subject)
    assert line in text
    assert "ATT-5 softmax:" in text
    assert "MASK-3 causal:" not in text
    assert line in page(document("check", [subject]))
    assert [violation["follows"] for violation in subject["violations"]] == [False, True, True, True]


def case(*shape: int, mask: Any = None, **options: Any) -> Case:
    inputs = {name: np.ones(shape, "float32") for name in ("query", "key", "value")}
    return Case("attention", "float32", inputs, options | ({} if mask is None else {"mask": mask}))


def violated(rule: str, material: Any, examined_by: str = "agreement") -> Violation:
    (finding,) = judge(material, {"output": material.inputs["query"] * 2}, oracle(material), bound(material))
    return Violation(rule, "a subject", finding, "a probe", examined_by, material)


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
    repeated = violated("ATT-13", case(1, 1, 1, 1), "determinism")
    assert [rules_of(part) for part in separated([repeated, bare])] == [["ATT-13", "MASK-3"], []]


def test_rules_of_every_case_stand_for_themselves() -> None:
    assert about("ATT-1", "attention") == about("ATT-8", "attention") == about("NORM-1", "layer_norm") == frozenset()
    assert about("NORM-6", "layer_norm") == {"gradients"}
    assert {"causal"} <= about("MASK-3", "attention")
    row = violated("ATT-6", case(1, 1, 1, 1))  # without an empty row
    assert [rules_of(part) for part in separated([row, violated("ATT-5", case(1, 1, 1, 1))])] == [["ATT-5"], ["ATT-6"]]


# --- what a name explains ---------------------------------------------------------------------------------------------


def test_names_of_the_larger_case_alone_are_not_printed() -> None:
    eight, sixteen = "padding counts (blocks of 8 keys)", "padding counts (blocks of 16 keys)"
    assert explaining(("bias is ignored",), (eight,)) == ()
    assert explaining((eight, sixteen), (sixteen, "bias is ignored")) == (sixteen,)
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
    examiner = Examiner(Target(function, "attention").make())
    worst = max(examiner("agreement", small, (oracle(small), bound(small))), key=lambda finding: finding.ratio)
    return diagnosis(Violation("ATT-5", "a subject", worst, "a probe", "agreement", small, uncut), examiner)


def test_one_stale_key_is_no_padding() -> None:
    """With 15 keys one more is the padding of blocks of 8 and of 16; with 3 it is neither."""
    assert found_on(numbers(15), None, one_key_more)[0] == "the last block's padding counts as keys with score 0"
    assert found_on(numbers(3), numbers(15), one_key_more) == ()


def test_the_larger_case_tells_block_sizes_apart() -> None:
    def padded(query: Any, key: Any, value: Any) -> Any:
        inputs = {"query": query, "key": key, "value": value}
        answer = padded_tail(Case("attention", "float32", inputs), 16)
        return reference_numpy.attention(query, key, value) if answer is None else answer.astype("float32")

    name = "the last block's padding counts as keys with score 0"
    assert found_on(numbers(15), None, padded)[0] == name
    assert found_on(numbers(15), numbers(19), padded) == (f"{name} (blocks of 16 keys)",)


def test_every_name_explains_the_case_that_is_shown(broken: conformance.Report) -> None:
    for violation in broken.violations:
        shown = violation.case
        got = {"output": stale(**shown.inputs, **shown.options)}
        known = list(matching(shown, got, oracle(shown), violation.finding, MISTAKES))
        assert all(any(name.startswith(line) for name in known) for line in violation.diagnosis)


def test_flaky_names() -> None:
    """Nothing is named where nothing is found on the case that is shown."""
    tally = Tally()
    tally.violate(violated("ATT-5", case(1, 1, 1, 1)))
    diagnosed(tally, Examiner(Target(reference_numpy.attention, "attention").make()))
    assert [violation.diagnosis for violation in tally.violations.values()] == [()]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_not_supported_and_refused_is_called_so() -> None:
    given: dict[str, Any] = {"supports": ["structured", "causal"], "rules": ["MASK-3", "MASK-4"]}
    for function, refused in ((without_windows, True), (reference_numpy.attention, False)):
        subject = told(function, **given)
        rules = {rule["rule"]: rule for rule in subject["rules"]}
        assert subject["conforms"]
        assert rules["MASK-4"]["status"] == "conforms"
        assert only_refused(rules["MASK-4"]) is refused
        assert not only_refused(rules["MASK-3"])
        (row,) = (line for line in printed(subject).splitlines() if "MASK-4" in line and "window" in line)
        assert row.split()[-2] == ("refused" if refused else "conforms")
        assert (">refused<" in page(document("check", [subject]))) is refused


# --- what it was called with, and lines to be copied ------------------------------------------------------------------


def test_a_call_that_fails_says_with_which_arrays() -> None:
    subject = told(of_torch)
    (violation,) = subject["violations"]
    line = "it was called with NumPy arrays; --arrays torch or jax for others"
    assert violation["called_with"] == line
    assert line in printed(subject)
    assert line in page(document("check", [subject]))


def test_a_command_is_never_broken(broken: conformance.Report, tmp_path: Path) -> None:
    folder = tmp_path / ("a-long-name-" * 8)
    subject = checked(broken, folder)
    text = printed(subject, width=80)
    assert f"  replay         {subject['violations'][0]['replay_command']}" in text.splitlines()
    assert all(len(line) <= 80 for line in text.splitlines() if "replay  " not in line)
    assert json.loads(next(folder.iterdir()).read_text())["rule"]


# --- what pytest skips ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    target = Target(without_windows, "attention", given={"supports": ["dense", "gqa"], "dtypes": ["float32"]})
    made = Trial(target, effort="quick", shrink=False)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("question", "lacks"),
    [
        ("ATT-2 softcap", "softcap"),
        ("ATT-5 sinks", "sinks"),
        ("ATT-12 gradients of bias and sinks", "gradients"),
        ("ATT-9 float64 inputs", "float64"),
        ("ATT-9 16-bit inputs", "bfloat16 or float16"),
        ("ATT-8 lengths of 0", "empty"),
    ],
)
def test_a_skip_says_what_is_missing(trial: Trial, question: str, lacks: str) -> None:
    (asked,) = (one for one in trial.questions() if str(one) == question)
    with pytest.raises(NotAsked, match="within what the function takes") as reason:
        trial.ask(asked)
    assert lacks in str(reason.value).removeprefix("it does not take ").partition(":")[0].split(" and ")


def test_missing_masks(trial: Trial) -> None:
    def combinations(declaration: Declaration) -> list[Case]:
        probes = (p for p in trial.fresh().probes(declaration) if p.title == "combinations")
        return [case for probe in probes for case in some_cases(probe)]

    assert missing(combinations, trial.examiner.declaration.without("dense")) == "masks"
    assert missing(lambda declaration: [], trial.examiner.declaration) == ""


# --- violations seen once ---


@pytest.mark.parametrize("hidden", [True, False])
def test_a_violation_is_asked_for_again_in_a_new_process(hidden: bool) -> None:
    """It is remarked on where it does not come again; here a NaN is said to be hidden, and is or is not."""
    query, key, value = (np.ones((1, 1, length, 2), "float32") for length in (1, 2, 2))
    mask = Dense(np.array([[True, not hidden]]))
    marks = {"query": np.zeros((1, 1, 1), bool)} | {name: np.zeros((1, 1, 2, 2), bool) for name in ("key", "value")}
    marks["value"][..., 1, :] = True
    clean = Case("attention", "float32", {"query": query, "key": key, "value": value}, {"mask": mask})
    planted = replace(clean, inputs=clean.inputs | {"value": np.where(marks["value"], np.nan, value)}, special=True)
    material = Planted(clean, planted, np.array([[[[True, False]]]]), marks)
    finding = Finding("output", float("inf"), message="a NaN where none belongs")
    seen = Violation("MASK-7", "reference_numpy", finding, "hidden NaN", "planted", material)
    assert asked_again(seen).diagnosis == ((ONLY_THERE,) if hidden else ())
    assert ONLY_THERE not in violation_lines(seen).plain
    assert ONLY_THERE in violation_lines(replace(seen, diagnosis=(ONLY_THERE,))).plain
