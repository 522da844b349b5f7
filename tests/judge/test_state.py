"""What depends on earlier calls, on calls beside it, or on chance, is told as that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance import check, replay
from conformance.cases.case import Case
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT
from conformance.judge.report import Report
from conformance.judge.reproduction import Reproduction
from conformance.judge.trial import make_violation as violation
from conformance.reports.replays import save_replay
from conformance.reports.sentences import describe_finding
from conformance.runner.in_process import Runner
from conformance.subjects.callables import Target
from tests.support.helpers import SMALL, messages

SUBJECTS = '''
import random
import threading

import numpy as np

import reference_numpy

KEPT, COMPILED, WORKSPACE, TABLES, LOCK, DICE = {}, {}, {}, {}, threading.Lock(), random.Random()


def eps_kept(x, weight, *, eps):
    eps = KEPT.setdefault((x.dtype, weight.dtype, weight.shape), eps)
    return reference_numpy.rms_norm(x, weight, eps=eps)


def eps_kept_rightly(x, weight, *, eps):
    eps = KEPT.setdefault((x.dtype, weight.dtype, weight.shape, eps), eps)
    return reference_numpy.rms_norm(x, weight, eps=eps)


def scale_kept(query, key, value, *, mask=None, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    plain = COMPILED.setdefault((query.dtype, query.shape[-1]), scale == 1)
    return reference_numpy.attention(query, key, value, mask=mask, scale=1.0 if plain else scale)


def stale(query, key, value, *, mask=None, scale=None):
    """A workspace that is not cleared past the keys of this call; its last key counts if it is of the same sizes."""
    rows = WORKSPACE.get(key.dtype)
    if rows is not None and rows[0].shape[2] > key.shape[2] > 0 and mask is None:
        pairs = list(zip(rows, (key, value)))
        if all(old.shape[:2] == new.shape[:2] and old.shape[3] == new.shape[3] for old, new in pairs):
            key, value = (np.concatenate([new, old[:, :, -1:]], 2) for old, new in pairs)
            return reference_numpy.attention(query, key, value, scale=scale)
    WORKSPACE[key.dtype] = (key.copy(), value.copy())
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


def first_table(length, width, *, offset=0, exponent="shared", dtype="float32"):
    whole = TABLES.setdefault((width, exponent, dtype), {})
    offset = whole.setdefault("offset", offset)
    return reference_numpy.sinusoidal_positions(length, width, offset=offset, exponent=exponent, dtype=dtype)


def racing(query, key, value, *, mask=None):
    if key.shape[2] and DICE.random() < 1 / 50:
        key = key.copy()
        key[:, :, -1] = key[:, :, 0]
    return reference_numpy.attention(query, key, value, mask=mask)


def unlocked(query, key, value, *, mask=None):
    WORKSPACE["query"] = query.copy()
    for _ in range(200):
        np.ones(8).sum()
    return reference_numpy.attention(WORKSPACE["query"], key, value, mask=mask)


def locked(query, key, value, *, mask=None):
    with LOCK:
        return unlocked(query, key, value, mask=mask)


def narrow(x, weight, *, eps):
    if x.shape[-1] > 250:
        raise MemoryError("no room")
    return reference_numpy.rms_norm(x, weight, eps=eps)


def wrong(x, weight, *, eps):
    return reference_numpy.rms_norm(x, weight, eps=2 * eps)
'''
TORCH = '''
import torch

import torch_impl

LAST = {}


class Kept(torch.autograd.Function):
    """Saves what its backward pass needs where the next forward pass puts its own."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        LAST["x"], LAST["weight"], LAST["eps"] = x, weight, eps
        return torch_impl.rms_norm(x, weight, eps=eps)

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = (LAST[name].detach().requires_grad_() for name in ("x", "weight"))
        with torch.enable_grad():
            result = torch_impl.rms_norm(x, weight, eps=LAST["eps"])
        return *torch.autograd.grad(result, (x, weight), cotangent), None


def saved_for_all(x, weight, *, eps):
    return Kept.apply(x, weight, eps)


class Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.times = eps, 0
        return torch_impl.rms_norm(x, weight, eps=eps)

    @staticmethod
    def backward(ctx, cotangent):
        ctx.times += 1
        x, weight = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        with torch.enable_grad():
            result = torch_impl.rms_norm(x, weight, eps=ctx.eps)
        return *torch.autograd.grad(result, (x, weight), cotangent * ctx.times), None


def added_up(x, weight, *, eps):
    return Spent.apply(x, weight, eps)
'''
ALONE = "depends on earlier calls: right in a fresh process, wrong after "


def judged(folder: Path, name: str, operation: str, text: str = SUBJECTS, **options: Any) -> Report:
    path = folder / "subjects.py"
    path.write_text(text)
    given: dict[str, Any] = {"effort": "quick", "seed": 1, "shrink": False, "dtypes": ["float32"], "isolate": False}
    given["limits"] = SMALL | {"rows": 16, "norm_width": 64}
    return check(f"{path}:{name}", operation, **given | options)


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.slow_where("True")
def test_kept_eps_is_told_as_state_by_the_call_before(tmp_path: Path, isolate: bool) -> None:
    report = judged(tmp_path, "eps_kept", "rms_norm", isolate=isolate)
    (violation,) = report.violations
    assert violation.rule == "ATT-13"
    assert describe_finding(violation.finding).startswith(f"output: {ALONE}rms_norm(")
    assert report.rules["NORM-7"].worst <= 1
    save_replay(violation, tmp_path / "kept.json")
    assert any(finding.ratio > 1 for finding in replay(tmp_path / "kept.json", isolate=isolate))
    alone = tmp_path / "alone.json"
    save_replay(violation.__class__(**vars(violation) | {"example": violation.example[-1:]}), alone)
    assert all(finding.ratio <= 1 for finding in replay(alone, isolate=isolate))


@pytest.mark.slow
@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("name", ["scale_kept", "stale", "first_table"])
def test_state_stands_alone(tmp_path: Path, name: str) -> None:
    operation = "sinusoidal_positions" if name == "first_table" else "attention"
    found = messages(judged(tmp_path, name, operation, effort="default", rules=["ATT-1", "ATT-8", "POS-1", "ATT-13"]))
    assert found.keys() == {"ATT-13"}
    assert ALONE in found["ATT-13"]


@pytest.mark.rule("ATT-13")
def test_race_is_found_and_does_not_blame_a_case(tmp_path: Path) -> None:
    found = messages(judged(tmp_path, "racing", "attention", rules=["MASK-1", "ATT-1", "ATT-13"]))
    assert found.keys() == {"ATT-13"}
    assert "not reproducible" in found["ATT-13"] or "equal calls" in found["ATT-13"]


@pytest.mark.rule("ATT-13")
def test_threads_that_share_a_workspace(tmp_path: Path) -> None:
    found = messages(judged(tmp_path, "unlocked", "attention", rules=["ATT-13"]))
    assert "threads call at the same time" in found["ATT-13"]


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize("name", ["saved_for_all", "added_up"])
def test_forward_and_backward_passes_that_alternate(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    found = messages(judged(tmp_path, name, "rms_norm", TORCH, arrays="torch", rules=["ATT-13"]))
    told = {"saved_for_all": ("after other forward passes", "Mismatch in shape"), "added_up": ("second backward pass",)}
    assert any(text in found["ATT-13"] for text in told[name])


@pytest.mark.rule("ATT-13")
@pytest.mark.parametrize(("name", "operation"), [("eps_kept_rightly", "rms_norm"), ("locked", "attention")])
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
        __name__ = "counting"

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, x: Any, weight: Any, *, eps: float) -> Any:
            import reference_numpy

            self.calls += 1
            return reference_numpy.rms_norm(x, weight, eps=eps) + x.dtype.type(self.calls % 7 == 0)

    found = messages(check(Counting(), "rms_norm", effort="quick", seed=1, shrink=False, dtypes=["float32"]))
    assert found.keys() == {"ATT-13"}


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
    example = tuple(cases)
    runner = Runner(Target(three_bits_lost, "attention").make())
    findings = runner(AFTER_OTHER_CALLS, example, AFTER_OTHER_CALLS.prepare(example))
    found = violation("ATT-13", "after other calls", AFTER_OTHER_CALLS, runner, example, findings)
    assert "wrong in call 2 of 2" in describe_finding(found.finding)
    settled = Reproduction(runner, None).settle(found)
    assert settled is not None
    assert (settled.rule, settled.check, settled.example) == ("ATT-9", AGREEMENT, cases[1])
