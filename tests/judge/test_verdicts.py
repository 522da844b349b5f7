"""Verdicts as a reader takes them: what was never asked, what is refused, and what is skipped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance.checks import findings
from conformance.judge.batches import confirm_violation
from conformance.reports import tables
from conformance.reports.content import document
from conformance.reports.junit import junit
from conformance.reports.page import page
from specification import Causal, Dense
from tests.judge.test_pytest_plugin import PLUGIN
from tests.support.helpers import (
    CHECKS,
    Finding,
    Violation,
    attention_case,
    checked_content,
    judged,
    planted_case,
    printed,
    runner_of,
)

pytest_plugins = ["pytester"]

QUICK: dict[str, Any] = {"profile": "strict", "shrink": True, "limits": None}


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


def told(function: Any, **options: Any) -> dict[str, Any]:
    """The report's part about the function."""
    return checked_content(judged(function, **QUICK | options), None)


# --- what was never asked ---------------------------------------------------------------------------------------------


def test_parameters_of_no_operation_are_known_by_the_signature() -> None:
    def everything(query: Any, key: Any, value: Any, /, mask: Any = None, *, Causal: Any = None, **others: Any) -> Any:
        return None

    assert runner_of(flagged).never_given == ("causal", "sm_scale")
    assert runner_of(everything).never_given == ("Causal",)
    assert runner_of(reference_numpy.attention).never_given == ()
    assert runner_of(lambda x, w, zero_centered=False: x, "rms_norm").never_given == ("zero_centered",)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return told(flagged)


@pytest.mark.slow
def test_what_was_never_given_is_said_everywhere(plain: dict[str, Any]) -> None:
    how = "no parameters of attention; what they do can be judged in a function that sets them"
    said = f"never given: causal, sm_scale ({how})"
    report = document("check", [plain])
    assert plain["conforms"]
    assert plain["never_given"] == ["causal", "sm_scale"]
    assert said in printed(plain)
    assert said in page(report)
    assert 'name="never_given" value="causal, sm_scale"' in junit(report)
    older = {name: value for name, value in plain.items() if name != "never_given"}
    assert not any("never given" in printed(subject) for subject in (older, plain | {"never_given": []}))


@pytest.mark.slow
def test_rules_that_were_not_tried_are_counted_and_named(plain: dict[str, Any]) -> None:
    *_, last = printed(plain, 500).splitlines()
    (left,) = re.findall(r" cases, seed 1; (13 of 20 rules not tried: MASK-1, MASK-2, .*)\.$", last)
    assert left in page(document("check", [plain]))


@pytest.mark.slow
def test_what_was_never_given_is_known_of_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("def mean(q, k, v, causal=False):\n    return 0 * q\n")
    subject = told(f"{tmp_path / 'kernel.py'}:mean", isolate=True, rules=["ATT-13"], shrink=False)
    assert subject["never_given"] == ["causal"]


def test_pytest_says_what_was_never_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(kernel="import numpy\ndef mean(q, k, v, causal=False):\n    return 0 * q\n")
    words = ("--conformance", "kernel.py:mean", "--conformance-operation", "attention", "--conformance-effort", "quick")
    result = pytester.runpytest_inprocess(*PLUGIN, *words, "-k", "plain")
    how = "no parameters of attention; what they do can be judged in a function that sets them"
    guess = "conformance: kernel.py:mean was called with arrays of numpy, a guess: its module imports numpy"
    never = f"conformance: kernel.py:mean was never given: causal ({how})"
    result.stdout.fnmatch_lines([guess, never], consecutive=True)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_not_supported_and_refused_is_called_so() -> None:
    given: dict[str, Any] = {"supports": ["structured", "causal"], "rules": ["MASK-3", "MASK-4"]}
    for function, refused in ((without_windows, True), (reference_numpy.attention, False)):
        subject = told(function, **given)
        assert subject["conforms"]
        rows = re.findall(r"(MASK-\d) │.* (\w+) *│", printed(subject))
        assert rows == [("MASK-3", "conforms"), ("MASK-4", "refused" if refused else "conforms")]
        assert (">refused<" in page(document("check", [subject]))) is refused


# --- what it was called with, and lines to be copied ------------------------------------------------------------------


def test_a_call_that_fails_says_with_which_arrays() -> None:
    subject = told(lambda query, key, value: query.new_zeros(()), arrays="numpy")
    (violation,) = subject["violations"]
    line = "the judge called it with NumPy arrays; --arrays torch or jax for others"
    assert violation["called_with"] == line
    assert line in printed(subject)
    assert line in page(document("check", [subject]))


@pytest.mark.slow
def test_a_command_is_never_broken(tmp_path: Path) -> None:
    folder = tmp_path / ("a-long-name-" * 8)
    subject = checked_content(judged(stale, "ATT-5", **QUICK), folder)
    text = printed(subject, width=80)
    assert f"  replay         {subject['violations'][0]['replay_command']}" in text.splitlines()
    assert all(len(line) <= 80 for line in text.splitlines() if "replay  " not in line)
    assert json.loads(next(folder.iterdir()).read_text())["rule"]


# --- violations seen once ---


@pytest.mark.parametrize("hidden", [True, False])
def test_a_violation_is_asked_for_again_in_a_new_process(hidden: bool) -> None:
    """It is remarked on where it does not come again; here a NaN is said to be hidden, and is or is not."""
    clean = attention_case(Q=1, K=2, mask=Dense(np.array([[True, not hidden]])))
    planted = planted_case(clean, "value", np.s_[..., 1, :])
    example = replace(planted, allowed=np.array([[[[True, False]]]]))
    finding = Finding("output", float("inf"), detail=findings.NotANumber())
    seen = Violation("MASK-7", "reference_numpy", finding, "hidden NaN", CHECKS["planted"], example)
    again = confirm_violation(seen)
    assert again.steady is not hidden
    assert (tables.ANOTHER_PROCESS in tables.violation_lines(again).plain) is hidden
