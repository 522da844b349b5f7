"""What depends on earlier calls, on calls beside it, or on chance, is told as that."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance import Report, check, replay
from conformance.judge.reproduction import Reproduction
from tests.support import stateful, stateful_gradients
from tests.support.helpers import (
    SMALL,
    Case,
    describe_finding,
    find_errors,
    find_violation,
    keep_meaningful,
    messages,
    normal,
    runner_of,
    write_replay,
)

WIDTHS = {"rows": 130, "norm_width": 264, "key_width": 104, "value_width": 104}
"""Limits that leave histories widths of their own: what is kept by width is then set within one of them."""
ALONE = "depends on earlier calls: right in a fresh process, wrong after "


def judged(folder: Path, name: str, operation: str, **options: Any) -> Report:
    path = shutil.copy((stateful if hasattr(stateful, name) else stateful_gradients).__file__, folder)
    given: dict[str, Any] = {"arrays": "numpy", "shrink": False, "dtypes": ["float32"], "isolate": False}
    given |= {"effort": "quick", "seed": 1, "limits": keep_meaningful(SMALL | WIDTHS, operation)}
    return check(f"{path}:{name}", operation, **given | options)


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.slow_where("True")
def test_kept_eps_is_told_as_state_by_the_call_before(tmp_path: Path, isolate: bool) -> None:
    report = judged(tmp_path, "eps_kept", "rms_norm", isolate=isolate)
    found = messages(report)
    assert [*found] == ["ATT-13"]
    assert found["ATT-13"].startswith(f"output: {ALONE}rms_norm(")
    assert report.rules["NORM-7"].worst <= 1
    file = write_replay(report, tmp_path)
    assert any(finding.ratio > 1 for finding in replay(file, isolate=isolate))
    alone = json.loads(file.read_text())
    del alone["material"]["tuple"][:-1]
    file.write_text(json.dumps(alone))
    assert all(finding.ratio <= 1 for finding in replay(file, isolate=isolate))


@pytest.mark.slow
@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("name", ["scale_kept", "stale", "first_table"])
def test_state_stands_alone(tmp_path: Path, name: str) -> None:
    operation = "sinusoidal_positions" if name == "first_table" else "attention"
    found = messages(judged(tmp_path, name, operation, effort="default", rules=["ATT-1", "ATT-8", "POS-1", "ATT-13"]))
    assert found.keys() == {"ATT-13"}
    assert ALONE in found["ATT-13"]


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize(
    ("name", "operation", "arrays", "told"),
    [
        ("race_calls", "attention", "numpy", "not reproducible|equal calls"),
        ("share_query", "attention", "numpy", "threads call at the same time"),
        ("saved_for_all", "rms_norm", "torch", "after other forward passes|Mismatch in shape"),
        ("added_up", "rms_norm", "torch", "second backward pass"),
    ],
)
def test_what_depends_on_other_calls_is_told(tmp_path: Path, name: str, operation: str, arrays: str, told: str) -> None:
    """A race is found, and does not blame a case."""
    rules = ["ATT-13", *(("MASK-1", "ATT-1") if name == "race_calls" else ())]
    found = messages(judged(tmp_path, name, operation, arrays=arrays, rules=rules))
    assert found.keys() == {"ATT-13"}
    assert re.search(told, found["ATT-13"])


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize(("name", "operation"), [("eps_kept_rightly", "rms_norm"), ("share_query_locked", "attention")])
def test_what_is_kept_rightly_conforms(tmp_path: Path, name: str, operation: str) -> None:
    assert messages(judged(tmp_path, name, operation, rules=["ATT-13"])) == {}


@pytest.mark.slow
def test_a_size_that_is_too_large_is_one_violation(tmp_path: Path) -> None:
    found = messages(judged(tmp_path, "narrow", "rms_norm", effort="default", limits={"rows": 16}))
    (message,) = found.values()
    assert message.startswith("call: raised MemoryError: no room at 1,025")  # the first of such rows that is asked
    assert message.endswith(" numbers in a row")


def test_what_is_wrong_alone_stands_under_its_own_rule(tmp_path: Path) -> None:
    assert messages(judged(tmp_path, "wrong", "rms_norm")).keys() <= {"NORM-7", "NORM-5"}
    only = messages(judged(tmp_path, "wrong", "rms_norm", rules=["ATT-13"]))
    assert only.keys() == {"NORM-7"}  # a wrong answer is told whatever was asked


def test_objects_are_asked_again_where_they_are() -> None:
    class Counting:
        __name__, calls = "counting", 0

        def __call__(self, x: Any, weight: Any, *, eps: float) -> Any:
            self.calls += 1
            return reference_numpy.rms_norm(x, weight, eps=eps) + x.dtype.type(self.calls % 7 == 0)

    given: dict[str, Any] = {"arrays": "numpy", "effort": "quick", "seed": 1, "shrink": False, "dtypes": ["float32"]}
    assert messages(check(Counting(), "rms_norm", **given)).keys() == {"ATT-13"}


def three_bits_lost(query: Any, key: Any, value: Any) -> Any:
    """Of 16-bit numbers, in every call."""
    right = reference_numpy.attention(query, key, value)
    return right if query.dtype == np.float32 else right + right.dtype.type(8) * np.spacing(right)


def test_digits_lost_in_every_call_are_no_matter_of_the_calls_before() -> None:
    generator = np.random.default_rng(0)
    cases = []
    for dtype in ("float32", "float16"):
        inputs = {name: generator.normal(size=(1, 1, 3, 2)).astype(dtype) for name in ("query", "key", "value")}
        cases.append(Case("attention", dtype, inputs, {}))
    runner = runner_of(three_bits_lost)
    found = find_violation(runner, (cases[0], cases[1]), "after other calls", "ATT-13")
    assert "wrong in call 2 of 2" in describe_finding(found.finding)
    settled = Reproduction(runner, None).settle(found)
    assert settled is not None
    assert (settled.rule, settled.check.name, settled.example) == ("ATT-9", "agreement", cases[1])


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("check_name", ["repetitions", "determinism"])
def test_the_sign_of_nan_is_no_difference_between_equal_calls(check_name: str) -> None:
    """A call that is NaN each time is wrong, and the same: its rule says so, and not that of state."""
    signs = itertools.cycle((1.0, -1.0))

    def negated_by_chance(x: Any) -> Any:
        return np.copysign(np.full_like(x, np.nan), next(signs))

    example = Case("silu", "float32", {"x": normal(0, 3, 5)})
    assert not find_errors(runner_of(negated_by_chance, "silu"), example, check_name)
