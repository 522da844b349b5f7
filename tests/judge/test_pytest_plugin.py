"""The pytest plugin: one test for each question, on the command line and in a test file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance.checks.levels import JUDGED

# Loaded here, since what a run in this process loads is unloaded after it.
from conformance.judge.checking import make_executor
from conformance.judge.executor import NotAsked
from conformance.reports.sentences import describe_finding
from conformance.subjects.callables import Target
from tests.support import targets
from tests.support.helpers import FEW_SIZES, SMALL, messages

pytest_plugins = ["pytester"]

INSTALLED = any(point.name == "conformance" for point in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "conformance.pytest_plugin")
GIVEN = {"operation": "attention", "effort": "quick", "seed": "1", "time-limit": "1", "dtypes": "float32"}
GIVEN |= {"limits": FEW_SIZES[1]}
QUICK = ("--conformance-no-shrink", *(f"--conformance-{name}={value}" for name, value in GIVEN.items()))
HERE = ("--conformance-in-process",)
TARGETS = Path(targets.__file__).read_text()


@pytest.fixture(autouse=True)
def no_targets() -> Iterator[None]:
    """targets.py is loaded for each test anew."""
    sys.modules.pop("targets", None)
    yield
    sys.modules.pop("targets", None)


@pytest.fixture
def run(pytester: pytest.Pytester) -> Any:
    """pytest on a function of targets.py."""
    pytester.makepyfile(targets=TARGETS)

    def run(name: str, *words: str, where: tuple[str, ...] = HERE) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*PLUGIN, "--conformance", f"targets.py:{name}", *QUICK, *where, *words)

    return run


# --- on the command line ----------------------------------------------------------------------------------------------


def test_conforming_target(run: Any) -> None:
    result = run("good", "-k", "MASK-3 and takes or ATT-7")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 4
    assert "failed" not in outcomes
    assert result.ret == 0
    result.stdout.fnmatch_lines(["conformance: targets.py:good, seed 1"])


def test_items_are_rules_and_titles(run: Any) -> None:
    result = run("good", "--collect-only", "-q", "--conformance-dtypes", "float32,float16")
    lines = [line.removeprefix("conformance[targets.py:good]::") for line in result.outlines]
    assert lines[0] == "CALL a plain call"
    for line in ("ATT-9 takes float16", "MASK-3 takes causal", "ATT-1 scale", "CALL prints nothing"):
        assert line in lines


def test_failure_is_the_block(run: Any, pytester: pytest.Pytester) -> None:
    result = run("unscaled", "-k", "ATT-1 and default and not widths")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["ATT-1: the default scale is 1*", "  found by *default scale", "  replay *.json"])
    assert "executor.py" not in result.stdout.str()  # no traceback of ours
    (file,) = (pytester.path / ".pytest_cache/d/conformance-replays").iterdir()
    assert file.name == "targets.py-unscaled-ATT-1-default-scale.json"
    assert max(finding.ratio for finding in conformance.replay(file)) > 1


def test_selection(run: Any) -> None:
    assert "failed" not in run("unscaled", "-k", "plain or takes").parseoutcomes()
    outcomes = run("unscaled", "-x", "--conformance-rules", "MASK-1", "--conformance-rules", "MASK-3").parseoutcomes()
    assert outcomes["failed"] == 1
    assert "deselected" not in outcomes
    outcomes = run("unscaled", "--conformance-rules", "MASK-1", "--last-failed").parseoutcomes()
    assert (outcomes["failed"], "passed" in outcomes) == (1, False)


@pytest.mark.slow
def test_what_is_claimed_and_not_taken(run: Any) -> None:
    """The claims fail; what depends on them is skipped; the rest is judged."""
    rules = ("--conformance-rules", "MASK-3", "--conformance-rules", "ATT-1")
    result = run("takes_no_masks", "-rsf", *rules)
    failed = {line.split("::")[1].split(" - ")[0] for line in result.outlines if line.startswith("FAILED")}
    assert failed == {"MASK-3 takes causal"}
    result.stdout.fnmatch_lines(["SKIPPED * within what the function takes there is no such case"])


def test_a_skip_says_what_is_missing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    result = run(
        "good", "-v", "-k", "ATT-2 or ATT-5 or ATT-8 or ATT-9 or ATT-12", "--conformance-supports", "dense,gqa"
    )
    skipped = [
        "ATT-2 softcap SKIPPED (it does not take softcap: within what the function takes there is no such case)*",
        "ATT-5 sinks SKIPPED (it does not take sinks: *",
        "ATT-8 lengths of 0 SKIPPED (it does not take empty: *",
        "ATT-9 16-bit inputs SKIPPED (it does not take bfloat16 or float16: *",
        "ATT-9 float64 inputs SKIPPED (it does not take float64: *",
        "ATT-12 gradients of bias and sinks SKIPPED (it does not take * and gradients: *",
    ]
    result.stdout.fnmatch_lines([f"*::{line}" for line in skipped])


def test_function_that_answers_nothing(run: Any) -> None:
    outcomes = run("takes_one").parseoutcomes()
    assert (outcomes["failed"], "passed" in outcomes) == (1, False)
    result = run("takes_one", "-rs", "-k", "ATT-1")
    result.stdout.fnmatch_lines(["SKIPPED * the plainest call fails, and nothing else was tried"])


@pytest.mark.slow
def test_empty_rows_fail_by_themselves(run: Any) -> None:
    """Whatever else is selected, and in whatever order."""
    result = run("mean_of_empty_rows", "-k", "ATT-6 or MASK-1 or MASK-3")
    failed = [line for line in result.outlines if line.startswith("FAILED")]
    assert failed
    assert all("::ATT-6 " in line for line in failed)
    assert "failed" not in run("mean_of_empty_rows", "-k", "MASK-1 or ATT-7").parseoutcomes()


def test_warnings_are_nothing_to_be_judged_by(run: Any) -> None:
    result = run("divides_by_zero", "-W", "error", "-k", "plain")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"], warnings=1)


@pytest.mark.slow
def test_declared_limits(run: Any) -> None:
    plain = ("-k", "ATT-1 and default and not widths")
    assert run("up_to_8_keys", *plain).parseoutcomes()["failed"]
    assert "failed" not in run("up_to_8_keys", *plain, "--conformance-limits", "keys=8").parseoutcomes()


@pytest.mark.slow
def test_function_that_hangs(run: Any) -> None:
    """After a few cases that took too long it is asked no more."""
    result = run("hangs_on_masks", "--conformance-rules", "MASK-3", "--conformance-time-limit", "0.3", "-rs")
    assert 1 <= result.parseoutcomes()["failed"] <= 3
    result.stdout.fnmatch_lines(["SKIPPED * 3 cases took longer than 0.3 s, and nothing more is tried"])


def test_function_that_dies(run: Any) -> None:
    """By default it does so in a subprocess."""
    result = run("dies_on_masks", "-k", "plain or takes and causal", where=())
    result.assert_outcomes(passed=1, failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*its process died of SIGABRT*"])


@pytest.mark.slow
def test_target_that_cannot_be_judged(run: Any) -> None:
    result = run("nothing")
    result.stdout.fnmatch_lines(["not judged: targets.py has no nothing"])
    assert result.ret == pytest.ExitCode.INTERRUPTED
    wrong = {"conventions": "polarity", "rules": "ATT-99", "device": "tpu", "tile": "128", "limits": "keys=many"}
    wrong |= {"head-widths": "64/", "windows": "31"}
    for option, value in wrong.items():
        run("good", f"--conformance-{option}", value).stdout.fnmatch_lines(["not judged: *"])
    result = run("good", "--conformance-rules", "NORM-1")
    result.stdout.fnmatch_lines(["not judged: rules: nothing in NORM-1 speaks of attention"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_operation_is_needed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*PLUGIN, "--conformance", "targets.py:good")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--conformance needs --conformance-operation*"])


def test_the_operation_is_what_the_name_says(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(kernels="from reference_numpy import sinusoidal_positions")
    asked = ("--conformance", "kernels.py:sinusoidal_positions", "--conformance-effort", "quick")
    result = pytester.runpytest_inprocess(*PLUGIN, *asked, "--conformance-rules", "POS-1", "--collect-only")
    result.stdout.fnmatch_lines(["*POS-1*"])


def test_own_tests_are_left_alone_unless_named(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    assert "test_nothing" not in run("good", "--collect-only", "-q").stdout.str()
    file = "test_own_tests_are_left_alone_unless_named.py"
    named = run("good", file, "--collect-only", "-q").stdout.str()
    assert "test_nothing" in named
    assert "ATT-1 scale" in named
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=1)


def test_without_a_cache(run: Any) -> None:
    run("unscaled", "-p", "no:cacheprovider", "-k", "ATT-1 and default").stdout.fnmatch_lines(["  replay *.json"])


# --- in a test file ---------------------------------------------------------------------------------------------------

TEST_FILE = f"""
from targets import unscaled
from conformance.pytest_plugin import conformance_test

given = dict(effort="quick", rules=["ATT-1", "MASK-1"], dtypes=["float32"], shrink=False, limits={SMALL})
test_unscaled = conformance_test(unscaled, "attention", **given)
"""


def test_in_a_test_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(targets=TARGETS, test_mine=TEST_FILE)
    result = pytester.runpytest_inprocess(*PLUGIN)
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines(["*test_unscaled[[]ATT-1 default scale[]]*", "  replay *--target targets.py:unscaled"])
    assert pytester.runpytest_inprocess(*PLUGIN, "-k", "takes").ret == 0


def test_test_file_with_wrong_options(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(targets=TARGETS, test_mine=TEST_FILE.replace("effort", "efort"))
    pytester.runpytest_inprocess(*PLUGIN).stdout.fnmatch_lines(["*ValueError: unknown option: got 'efort', *"])


PROFILES = """
from targets import plain_norm
from conformance.pytest_plugin import conformance_test

given = {"effort": "quick", "rules": ["NORM-3"], "dtypes": ["float32"], "shrink": False}
test_robust = conformance_test(plain_norm, "layer_norm", **given)
test_strict = conformance_test(plain_norm, "layer_norm", profile="strict", **given)
"""


def test_only_what_the_profile_asks_for_fails(pytester: pytest.Pytester) -> None:
    """The summary still names what is violated beyond the profile."""
    pytester.makepyfile(targets=TARGETS, test_mine=PROFILES)
    assert pytester.runpytest_inprocess(*PLUGIN, "-k", "strict").parseoutcomes()["failed"] >= 1
    result = pytester.runpytest_inprocess(*PLUGIN, "-k", "robust")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["conformance: plain_norm: NORM-3 is violated at the level strict: output - bias: *"])


# --- the questions ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_questions_find_what_a_check_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "targets.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    chosen = {"mean_of_empty_rows": ["ATT-6", "MASK-1"], "takes_no_masks": ["MASK-1", "MASK-3"], "prints": ["CALL"]}
    given = {"dtypes": ["float32"], "limits": SMALL}
    for name, rules in chosen.items():
        options: dict[str, Any] = {"effort": "quick", "seed": 1, "shrink": False, "rules": rules, "isolate": False}
        report = conformance.check(f"targets.py:{name}", "attention", **given, **options)
        executor = make_executor(Target(f"targets.py:{name}", "attention", given=given), **options)
        found: dict[str, str] = {}
        for question in executor.list_all():
            try:
                cause = executor.find_cause(question)
            except NotAsked:
                continue
            if cause is not None:
                found.setdefault(cause.lead.rule, describe_finding(cause.lead.finding))
        order = list(JUDGED)
        assert found == messages(report)
        assert sorted(found, key=order.index) == [violation.rule for violation in report.violations]


def test_every_refusal_is_a_question() -> None:
    target = Target("reference_numpy:attention", "attention", given={"supports": ["refusals", "structured"]})
    executor = make_executor(target, effort="quick", isolate=False)
    refusals = [question for question in executor.list_all() if question.kind == "refusal"]
    assert len(refusals) > 20
    assert all(executor.find_cause(question) is None for question in refusals)
