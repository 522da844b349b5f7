"""Subjects that misbehave in ways of their own, and a judge that fails: neither is taken for the other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import conformance
import jax_impl
import reference_numpy
import torch_impl
from conformance.judge.report import NO_ORACLE
from conformance.reports.content import document
from conformance.reports.writing import format_json
from conformance.runner import in_subprocess
from specification import KeyLengths
from tests.support.drawn_once import draw_anew
from tests.support.helpers import (
    CHECKS,
    Case,
    NumpySubject,
    Runner,
    Target,
    TorchArrays,
    attention_case,
    checked_content,
    command,
    describe_finding,
    examine,
    find_errors,
    judge,
    judged,
    messages,
    runner_of,
    write_replay,
)
from tests.support.targets import good

ROOT = Path(__file__).parents[2]


Command = Callable[..., Any]
ATTENTION, WITH_GRADIENTS = (attention_case(2, 3, 1, 4, 4, 5, 5, gradients=gradients) for gradients in (False, True))


def check(function: Callable[..., Any] | str, *rules: str, **options: Any) -> conformance.Report:
    return judged(function, *rules, **{"profile": "strict", "limits": None} | options)


# --- errors of any kind -----------------------------------------------------------------------------------------------


class Panic(BaseException):
    """As bindings of other languages raise it."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Panic("rust"), Speechless(), SystemExit(3), AssertionError()])
def test_any_error_is_the_subjects(error: BaseException) -> None:
    def raises(query: Any, key: Any, value: Any) -> Any:
        raise error

    (message,) = messages(check(raises)).values()
    assert message.startswith(f"call: raised {type(error).__name__}: ")


def test_error_without_words_is_a_refusal_without_a_message() -> None:
    def refuses(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
        if scale is not None and not np.isfinite(scale):
            raise Speechless
        return good(query, key, value, scale=scale)

    report = check(refuses, "ATT-1", supports=["refusals", "scale"])
    assert "raised Speechless, expected ValueError" in messages(report)["ATT-1"]


@pytest.mark.parametrize("rank", [2, 4])
def test_a_mask_that_is_no_boolean_in_one_of_its_forms(rank: int) -> None:
    """It looks at the dtype of the other form only."""

    def converts(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        if mask is not None and np.ndim(mask) == rank:
            mask = np.asarray(mask).astype(bool)
        return reference_numpy.attention(query, key, value, mask=mask)

    report = check(converts, "MASK-1", supports=["refusals", "dense", "cross"])
    form, error = (" [queries, keys]", "an error") if rank == 2 else ("", "TypeError")
    assert f"a mask{form} of 0 and 1: accepted, expected {error}" in str(report)


@pytest.fixture
def failing_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot compare dense masks' answers any more."""

    def fails(case: Case, *arguments: Any) -> Any:
        if isinstance(case.options.get("mask"), np.ndarray):
            raise KeyError("lost")
        return judge(case, *arguments)

    monkeypatch.setattr("conformance.checks.catalogue.judge", fails)


@pytest.mark.usefixtures("failing_judge")
def test_error_of_the_judge_is_no_violation() -> None:
    found: list[conformance.Report] = []
    with pytest.raises(RuntimeError, match="the judge failed: KeyError: 'lost'"):
        check(good, "MASK-1", unfinished=found.append)
    (report,) = found
    assert (report.violations, report.conforms, report.untried) == ([], False, "the check was ended before its end")


@pytest.mark.usefixtures("failing_judge")
def test_report_is_written_when_the_judge_fails(check_command: Command) -> None:
    code, output, report = check_command("unscaled")
    assert code == 2
    assert "not judged to the end: the judge failed: KeyError: 'lost'" in output
    assert report["error"] == "the judge failed: KeyError: 'lost'"
    (subject,) = report["subjects"]
    assert not subject["conforms"]
    assert {rule["rule"] for rule in subject["rules"] if rule["cases"]} >= {"CALL", "ATT-6"}


def test_report_is_written_after_an_interrupt(check_command: Command) -> None:
    code, output, report = check_command("interrupted", "--rules", "ATT-1")
    assert code == 130
    assert "not judged to the end: interrupted" in output
    assert report["error"] == "interrupted"
    (subject,) = report["subjects"]
    assert [violation["rule"] for violation in subject["violations"]] == ["ATT-1"]


def test_report_is_written_when_replay_files_are_not(check_command: Command, folder: Path) -> None:
    (folder / "file").write_text("")
    code, _, report = check_command("unscaled", "--rules", "ATT-1", "--replays", "file/replays")
    assert code == 2
    assert report["error"] == "replay files cannot be written to file/replays: Not a directory"
    (subject,) = report["subjects"]
    assert subject["violations"][0]["replay"] is not None


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_settings_of_numpy_stay_the_subjects() -> None:
    """Its own underflows raise; those of the judge's oracle and comparisons do not."""
    seen = []

    def strict(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        seen.append(np.geterr()["invalid"])
        with np.errstate(all="ignore"):
            output = good(query, key, value, mask=mask)
        np.seterr(all="raise")
        return output

    before = np.geterr()
    assert messages(check(strict, "ATT-10", "MASK-7", "ATT-13")) == {}
    assert np.geterr() == before
    assert seen[0] == before["invalid"]
    assert set(seen[1:]) == {"raise"}


def test_by_default_what_belongs_to_a_process_is_not_the_judges(folder: Path) -> None:
    """A working folder, a limit of recursion, alarms, and a log at the descriptor of standard output."""
    (folder / "elsewhere").mkdir()
    Path("log").write_text("of yesterday\n")
    before = sys.getrecursionlimit(), signal.getsignal(signal.SIGALRM)
    report = check("targets.py:unruly", "MASK-1")
    assert messages(report) == {}
    assert str(folder / "targets.py") not in {getattr(one, "__file__", "") for one in [*sys.modules.values()]}
    assert Path.cwd() == folder
    assert (sys.getrecursionlimit(), signal.getsignal(signal.SIGALRM)) == before
    first, *lines = Path("log").read_text().splitlines()
    assert (first, set(lines)) == ("of yesterday", {"a line"})


# --- time -------------------------------------------------------------------------------------------------------------


def swallows_once(query: Any, key: Any, value: Any) -> Any:
    with contextlib.suppress(BaseException):
        time.sleep(10)
    return good(query, key, value)


def calls_it_something_else(query: Any, key: Any, value: Any) -> Any:
    try:
        time.sleep(10)
    except BaseException as error:
        raise RuntimeError("no device") from error


@pytest.mark.parametrize("function", [swallows_once, calls_it_something_else])
def test_time_is_over_also_where_the_alarm_is_caught(function: Callable[..., Any]) -> None:
    start = time.monotonic()
    assert messages(check(function, time_limit=0.2)) == {"CALL": "call: took longer than 0.2 s"}
    assert time.monotonic() - start < 5


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge waits less long for a process that is to end by itself."""
    monkeypatch.setattr("conformance.runner.in_subprocess.ENDING", 0.3)


@pytest.mark.parametrize("name", ["swallows", "holds_the_interpreter"])
@pytest.mark.usefixtures("impatient")
@pytest.mark.slow_where("swallows")
def test_what_heeds_no_alarm_is_killed(folder: Path, name: str) -> None:
    report = check(f"targets.py:{name}", time_limit=0.2)
    assert messages(report) == {"CALL": "call: took longer than 0.2 s, and its process was ended"}


# --- standard output --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: sys.stdout.fileno(), {}),
        (lambda: sys.stdout.close(), {}),
        (lambda: sys.stdout.buffer.write(b"\xff"), {"CALL": "call: prints to standard output: '\\\\xff'"}),
    ],
    ids=["asked for its descriptor", "closed", "bytes"],
)
def test_standard_output_is_a_file(use: Callable[[], Any], told: dict[str, str]) -> None:
    def uses(query: Any, key: Any, value: Any) -> Any:
        use()
        return good(query, key, value)

    assert messages(check(uses, "ATT-1")) == told


def test_standard_output_that_was_kept_ends_with_the_judge(folder: Path) -> None:
    """Else what is printed to it would go to whatever file stands at its descriptor by then."""
    kept: list[Any] = []

    def keeps(query: Any, key: Any, value: Any) -> Any:
        kept.append((sys.stdout, sys.stdout.fileno()))
        return good(query, key, value)

    assert messages(check(keeps, "ATT-1")) == {}
    file, descriptor = kept[0]
    with open("mine", "w") as mine:
        os.dup2(mine.fileno(), descriptor)
        with pytest.raises(ValueError, match="closed file"):
            print("of the function", file=file, flush=True)
        os.close(descriptor)
    assert not Path("mine").read_text()


# --- what is returned -------------------------------------------------------------------------------------------------


def test_wrong_rank_is_one_finding() -> None:
    """Also where the judge would put heads back into their order, or look at single rows."""

    def flat_if_grouped(query: Any, key: Any, value: Any) -> Any:
        output = good(query, key, value)
        return output.reshape(-1) if query.shape[1] != key.shape[1] else output

    report = check(flat_if_grouped, "ATT-7", conventions={"heads": "tiled"})
    assert "has dtype and shape float32 [" in messages(report)["ATT-7"]

    def flat_norm(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
        output = reference_numpy.layer_norm(x, weight, bias, eps=eps)
        return output.reshape(-1) if np.isnan(x).any() else output

    found = messages(check(flat_norm, "NORM-5", operation="layer_norm"))["NORM-5"]
    assert found.startswith("output: has dtype and shape float32 [")


def test_a_number_of_numpy_is_an_array_without_axes() -> None:
    def nll_loss(log_probabilities: Any, targets: Any, *, reduction: str = "mean") -> Any:
        losses = -np.take_along_axis(log_probabilities, targets[..., None], -1)[..., 0]
        wide = losses.astype(np.result_type(losses.dtype, np.float32))
        return losses if reduction == "none" else losses.dtype.type(getattr(np, reduction)(wide))

    report = conformance.check(nll_loss, "nll_loss", effort="quick", seed=1, supports="no-empty", profile="core")
    assert report.conforms, report.violations


def test_wrong_answer_is_no_refusal() -> None:
    def nothing_for_grouped_heads(query: Any, key: Any, value: Any) -> Any:
        return good(query, key, value) if query.shape[1] == key.shape[1] else None

    report = check(nothing_for_grouped_heads, "ATT-7", supports=["no-gqa"])
    assert "neither supported nor refused, and wrong: call: returned builtins.NoneType" in messages(report)["ATT-7"]


def test_missing_gradient_is_a_finding() -> None:
    def vjp(query: Any, key: Any, value: Any, cotangent: Any, **options: Any) -> Any:
        return {"query": reference_numpy.attention_vjp(query, key, value, cotangent, **options).query}

    report = check(good, "ATT-12", "ATT-10", vjp=vjp)
    assert messages(report) == {"ATT-12": "gradient of key: no such result"}


def test_result_on_another_device() -> None:
    def elsewhere(query: Any, key: Any, value: Any) -> Any:
        return query.to("meta")

    report = check(elsewhere, arrays="torch")
    assert messages(report) == {"CALL": "output: lies on meta, and the inputs do not"}


def test_no_known_mistake_is_behind_a_flaky_subject() -> None:
    calls = []

    def flaky(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        calls.append(1)
        return good(query, key, value, mask=mask) + np.float32(len(calls) % 5 == 0)

    report = check(flaky, "MASK-1", "ATT-13")
    assert messages(report).keys() == {"ATT-13"}  # right when the same is asked again: masks are not to blame
    assert [cause.kind for cause in report.causes] == ["state"]


@pytest.mark.parametrize("shrink", [False, True])
def test_what_raises_stands_before_lost_digits(shrink: bool) -> None:
    """Of two mistakes that one rule shows, also where a case with lost digits is found first, or is smaller."""

    def with_both(query: Any, key: Any, value: Any) -> Any:
        if key.shape[2] == 32:
            raise ValueError("32 keys")
        return good(query, key, value) * np.float32(1 + 1e-5)

    found = messages(check(with_both, "ATT-1", "ATT-8", shrink=shrink))
    assert found["ATT-8"] == "call: raised ValueError: 32 keys"
    assert found["ATT-1"].startswith("output[")


@pytest.mark.slow
def test_lost_digits_are_told_beside_calls_that_should_be_refused() -> None:
    """Before them, but for those digits that only `strict` asks for: refusals are robust."""

    def rounded(query: Any, key: Any, value: Any) -> Any:
        """Integers, too; weights in 16 bits where the inputs are."""
        scores = query.astype(np.float32) @ key.astype(np.float32).swapaxes(2, 3) / np.float32(query.shape[3] ** 0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))
        weights = (weights / weights.sum(-1, keepdims=True)).astype(query.dtype).astype(np.float32)
        return (off * weights @ value.astype(np.float32)).astype(query.dtype)

    both, accepts = ["float32", "float16"], "robust integers"
    for factor, dtypes, causes in (
        (1.02, both, ["core output", accepts]),
        (1.0, both, [accepts, "strict output"]),
        (1.0, ["float32"], [accepts]),
    ):
        off = factor
        report = check(rounded, "ATT-9", dtypes=dtypes, supports=["refusals", "no-gradients"])
        assert [f"{cause.level} {cause.lead.finding.name}" for cause in report.causes] == causes


@pytest.mark.slow
@pytest.mark.rule("ATT-13")
def test_answers_kept_without_their_graph() -> None:
    """The same call a second time has no gradients."""
    kept = dict[bytes, Any]()

    def keeps(query: Any, key: Any, value: Any) -> Any:
        known = b"".join(array.detach().double().numpy().tobytes() for array in (query, key, value))
        if known in kept:
            return kept[known].clone()
        output = torch_impl.attention(query, key, value)
        kept[known] = output.detach().clone()
        return output

    found = messages(check(keeps, "ATT-13", arrays="torch"))
    assert found["ATT-13"] == "call: has no gradients when the same is asked again"


@pytest.mark.rule("ATT-13")
def test_gradient_that_is_not_there_again() -> None:
    seen: list[int] = []

    def leaves_out(query: Any, key: Any, value: Any, cotangent: Any) -> Any:
        found = reference_numpy.attention_vjp(query, key, value, cotangent)._asdict()
        if id(query) in seen:
            del found["key"]
        seen.append(id(query))
        return found

    runner = runner_of(lambda query, key, value: good(query, key, value), vjp=leaves_out)
    found = examine(runner, WITH_GRADIENTS, "determinism")
    assert [*map(describe_finding, found)] == ["gradient of key: no such result"]


@pytest.mark.rule("ATT-13")
def test_cotangent_that_is_given_away() -> None:
    """With memory that JAX is told to reuse."""

    def backward(*arguments: Any) -> Any:
        *inputs, cotangent = arguments
        return jax.vjp(jax_impl.attention, *inputs)[1](cotangent)

    for given, found in ({}, set()), ({"donate_argnums": 3}, {"unreadable"}):
        runner = runner_of(jax_impl.attention, arrays="jax", vjp=jax.jit(backward, **given))
        assert {finding.kind for finding in find_errors(runner, WITH_GRADIENTS, "determinism")} == found


@pytest.mark.rule("ATT-13")
def test_gradients_of_ids_are_of_no_account() -> None:
    def gradients(table: Any, ids: Any, cotangent: Any, *, scaled: bool = False) -> Any:
        of_table = reference_numpy.embedding_vjp(table, ids, cotangent, scaled=scaled)
        return {"table": of_table, "ids": np.zeros(ids.shape)}

    inputs = {"table": np.ones((3, 2), np.float32), "ids": np.array([0, 2, 2])}
    case = Case("embedding", "float32", inputs, {"scaled": False}, {"output": np.ones((3, 2), np.float32)})
    runner = runner_of(reference_numpy.embedding, "embedding", vjp=gradients)
    assert not find_errors(runner, case) + find_errors(runner, case, "determinism")


@pytest.mark.rule("ATT-13")
def test_gradients_by_hand_are_no_cotangents(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the definition as in other functions that do not leave them to a framework."""
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    options = {"length": 3, "offset": 0}
    case = Case("learned_positions", "float32", {"table": table}, options, {"output": np.ones((3, 2), np.float32)})
    runner = Runner(NumpySubject())
    assert not find_errors(runner, case, "determinism")
    monkeypatch.setattr(reference_numpy, "learned_positions_vjp", lambda table, length, cotangent, **_: cotangent)
    (found,) = find_errors(runner, case, "determinism")
    assert describe_finding(found) == "gradient of table: shares memory with the cotangent of output, call 3"


@pytest.mark.rule("MASK-2")
@pytest.mark.parametrize(
    "answer",
    [
        lambda array: array[0],
        lambda array: array.astype(np.int8),
        lambda array: np.repeat(array, 3, axis=0),
        lambda array: np.swapaxes(array, 0, 2),
        lambda array: ~array,
    ],
    ids=["rank", "dtype", "batch", "axes", "meaning"],
)
def test_a_wrong_array_of_a_mask_is_a_verdict(answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever shape: the judge does not stumble over it."""
    right = reference_numpy.materialize
    case = replace(ATTENTION, options={"mask": KeyLengths(np.array([1, 4]))})
    runner, check = Runner(NumpySubject()), CHECKS["description"]
    shared = check.prepare(case)
    assert all(found.ratio <= 1 for found in runner(check, case, shared))
    monkeypatch.setattr(reference_numpy, "materialize", lambda *a, **k: answer(right(*a, **k)))
    (found,) = runner(check, case, shared)
    assert describe_finding(found) == "materialize: differs from the predicate"


# --- memory -----------------------------------------------------------------------------------------------------------


def test_one_buffer_for_all_results_is_seen_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where what comes to NumPy is a copy; and by what becomes of its numbers where it has no address."""
    numpy = TorchArrays.numpy
    monkeypatch.setattr(TorchArrays, "numpy", lambda self, array: np.array(numpy(self, array)))
    buffers: dict[Any, Any] = {}

    def buffered(query: Any, key: Any, value: Any) -> Any:
        output = torch_impl.attention(query, key, value)
        return buffers.setdefault(output.shape, torch.empty_like(output)).copy_(output)

    runner = runner_of(buffered, arrays="torch")
    found, *_ = find_errors(runner, ATTENTION, "determinism")
    assert describe_finding(found) == "output: shares memory with earlier output"
    monkeypatch.setattr(TorchArrays, "memory", lambda self, array: None)
    found, *_ = find_errors(runner, ATTENTION, "determinism")
    assert describe_finding(found) == "output: was changed by a later call"
    assert not find_errors(runner_of(torch_impl.attention, arrays="torch"), ATTENTION, "determinism")


def test_memory_is_compared_exactly() -> None:
    arrays, room = TorchArrays(), torch.zeros(4, 2, dtype=torch.bfloat16)
    even, odd, rows = (arrays.memory(view) for view in (room[:, 0], room[:, 1], room[1:3].mT))
    assert even is not None
    assert not np.shares_memory(even, odd)
    assert np.shares_memory(even, rows)
    assert arrays.memory(room[:0]) is None


# --- nothing is never a verdict ---------------------------------------------------------------------------------------


@pytest.fixture
def no_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_anew(monkeypatch)
    modules = ("sampling.strategies", "judge.plan", "operations.corpus", "judge.report", "judge.replaying")
    for module in (*modules, "oracle.reference"):
        monkeypatch.setattr(f"conformance.{module}.balls_available", lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("no_oracle")
def test_float64_is_not_left_out_silently() -> None:
    report = check(good, "ATT-9", dtypes=["float32", "float64"])
    assert (report.conforms, report.left_out, report.declaration.dtypes) == (True, NO_ORACLE, ("float32",))
    subject = checked_content(report, None)
    assert subject["left_out"] == NO_ORACLE
    assert subject["declaration"]["dtypes"] == ["float32"]
    assert NO_ORACLE in format_json(document("check", [subject]))
    with pytest.raises(ValueError, match=r"nothing was tried: .*python-flint"):
        check(good, "ATT-9", dtypes=["float64"])


# --- empty rows and sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)], ids=["batch", "heads", "queries"])
def test_nan_rows_of_nothing(shape: tuple[int, int, int]) -> None:
    inputs = {"query": np.zeros((*shape, 5), np.float32), "key": np.zeros((shape[0], shape[1] // 2, 6, 5), np.float32)}
    inputs |= {"value": inputs["key"]}
    given: dict[str, Any] = {"conventions": "empty_rows=nan", "cotangent": inputs["query"], "gradients": inputs}
    found = conformance.compare("attention", inputs["query"], **inputs, **given)
    assert found.error_ratio == 0


def test_rows_of_nan_by_convention() -> None:
    def nan_rows(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return reference_numpy.attention(query, key, value, mask=mask, empty_rows="nan")

    assert messages(check(nan_rows, "ATT-6", "ATT-8", conventions={"empty_rows": "nan"})) == {}


# --- a process of its own ---------------------------------------------------------------------------------------------


def test_what_no_process_can_be_sent() -> None:
    with pytest.raises(ValueError, match=r"cannot be sent to a process of its own .*name it as package\.module"):
        check(lambda query, key, value: query, isolate=True)


GUARD = 'the file that is judged calls the judge while it is loaded: put that under `if __name__ == "__main__":`'


@pytest.mark.parametrize(
    ("subject", "last"),
    [
        ("good", ""),
        ("lambda query, key, value: value", "ValueError: <lambda> is in the script that runs"),
        ("'script.py:good'", f"ValueError: script.py cannot be imported: ValueError: {GUARD}"),
    ],
)
def test_script_without_a_guard(folder: Path, subject: str, last: str) -> None:
    """Its function is loaded by name, and the script is not, unless that is the name."""
    call = f'conformance.check({subject}, "attention", isolate=True, rules=["MASK-3"], effort="quick", seed=1)'
    (folder / "script.py").write_text(f"import conformance\nfrom targets import good\n{call}\n")
    command, path = [sys.executable, "script.py"], {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=path, cwd=folder)
    assert done.returncode == bool(last)
    assert (done.stderr.splitlines() or [""])[-1].startswith(last)


def test_process_that_cannot_be_started_again(check_command: Command) -> None:
    code, output, report = check_command("only_once", "--isolate", "--rules", "MASK-1", "--rules", "MASK-3")
    assert code == 2
    assert "the function could not be loaded again: targets.py cannot be imported: RuntimeError" in output
    (subject,) = report["subjects"]
    assert [violation["message"] for violation in subject["violations"]] == ["call: its process ended with exit code 4"]


@pytest.mark.slow
def test_process_that_is_spoilt_is_started_again(check_command: Command) -> None:
    options = ("--supports", "causal", "--rules", "MASK-3", "--rules", "ATT-5")
    code, _, _ = check_command("spoils_the_judge", *options, "--isolate")
    assert code == 0


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("deaf", 20, "its process lost its connection to the judge, and was ended"),
        ("babbles", 20, "its process lost its connection to the judge, and was ended"),
        ("survived", 20, "its process died of SIGKILL"),
        ("half_an_answer", 2, "took longer than 2 s, and its process was ended"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_process_that_answers_no_more(check_command: Command, name: str, limit: int, message: str) -> None:
    """It holds no pipe any more, has written into it, or has left a process that holds it."""
    code, _, report = check_command(name, "--isolate", "--rules", "ATT-1", "--time-limit", limit)
    assert code == 1
    (violation,) = report["subjects"][0]["violations"]
    assert violation["message"] == f"call: {message}"
    assert violation["called_with"] is None


def test_warnings_of_odd_numbers_are_not_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The judge gives such numbers, and says what becomes of them."""
    runner = in_subprocess.SubprocessRunner(Target("targets.py:divides_by_zero", "attention"), 20.0)
    assert not find_errors(runner, ATTENTION, "determinism")
    runner.close()
    assert "RuntimeWarning" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_process_that_does_not_read_the_question(folder: Path) -> None:
    runner = in_subprocess.SubprocessRunner(Target("targets.py:good", "attention"), 1.0)
    assert runner.worker is not None
    os.kill(runner.worker.process.pid, signal.SIGSTOP)
    (finding,) = find_errors(runner, attention_case(Q=1, K=1, D=1_000_000, V=1_000_000), "determinism")
    said = "call: took longer than 1 s, and its process was ended at 1,000,000 columns of keys"
    assert describe_finding(finding) == said
    assert runner.overrun == 1


def test_process_forked_by_the_function_does_not_answer(check_command: Command) -> None:
    code, _, report = check_command("forks", "--isolate", "--rules", "ATT-1")
    assert (code, report["error"]) == (0, None)


def test_a_file_that_changes_the_folder_is_loaded(folder: Path) -> None:
    """Where its own path is then, nothing tells."""
    (folder / "elsewhere").mkdir()
    (folder / "moves.py").write_text("import os\nos.chdir('elsewhere')\n\ndef attention(query, key, value): ...\n")
    runner = in_subprocess.SubprocessRunner(Target("moves.py:attention", "attention", "numpy"), 5.0)
    runner.close()
    assert runner.target is not None
    assert runner.target.source == ""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("if os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\nos._exit(3)", "its process ended with exit code 3"),
        (r"import targets; targets.write_everywhere(b'\0\0\0\5hello')", "its process lost its connection"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_process_that_is_lost_while_loading(folder: Path, lines: str, message: str) -> None:
    Path("lost.py").write_text(f"import os, time\n{lines}\n\ndef function(query, key, value):\n    return query\n")
    start = time.monotonic()
    with pytest.raises(ValueError, match=f"while it was loaded .*{message}"):
        in_subprocess.SubprocessRunner(Target("lost.py:function", "attention"), 1.0)
    assert time.monotonic() - start < 40


@pytest.mark.slow
def test_declaration_comes_from_the_process(check_command: Command) -> None:
    _, _, report = check_command("differentiated", "--isolate", "--rules", "ATT-12")
    (subject,) = report["subjects"]
    assert subject["declaration"]["own_gradients"]
    assert [violation["rule"] for violation in subject["violations"]] == ["ATT-12"]


# --- replay -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replay_keeps_the_time_limit(check_command: Command) -> None:
    words = ("--rules", "MASK-3", "--supports", "causal", "--time-limit", 0.3)
    _, _, report = check_command("slow_with_masks", *words)
    file = report["subjects"][0]["violations"][0]["replay_file"]
    assert json.loads(Path(file).read_text())["time_limit"] == 0.3
    replay = ("replay", file, "--in-process")
    code, output = command(*replay)
    assert code == 1
    assert "took longer than 0.3 s" in output
    assert command(*replay, "--time-limit", 30)[0] == 0
    assert command(*replay, "--time-limit", "inf")[0] == 2
    old = {name: value for name, value in json.loads(Path(file).read_text()).items() if name != "time_limit"}
    Path(file).write_text(json.dumps(old))
    assert command(*replay)[0] == 0


@pytest.mark.slow
def test_replay_needs_the_gradients_that_were_given(folder: Path) -> None:
    def doubled(*arguments: Any, **options: Any) -> Any:
        found = reference_numpy.attention_vjp(*arguments, **options)
        return 2 * found.query, found.key, found.value

    report = check("targets.py:good", "ATT-12", vjp=doubled)
    (violation,) = checked_content(report, folder)["violations"]
    assert violation["replay_command"].startswith("python: conformance.replay(")
    assert "vjp=" in violation["replay_command"]
    file = violation["replay_file"]
    code, output = command("replay", file)
    assert code == 2
    assert "gradients another one gives: give that as vjp" in output
    assert command("replay", file, "--vjp", "targets.py:doubled")[0] == 1
    assert max(found.ratio for found in conformance.replay(file, vjp=reference_numpy.attention_vjp)) <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_oracle")
def test_replay_of_float64_without_its_oracle(folder: Path) -> None:
    report = check("targets.py:unscaled", "ATT-1", isolate=False)
    file = write_replay(report, folder)
    content = json.loads(file.read_text())
    content["material"]["fields"]["dtype"] = "float64"
    file.write_text(json.dumps(content))
    code, output = command("replay", file, "--in-process")
    assert code == 2
    assert "cannot be replayed: its case is in float64, whose oracle needs python-flint" in output


def test_an_interrupt_of_the_function_is_not_the_users(tmp_path: Path) -> None:
    (tmp_path / "interrupts.py").write_text("def norm(x, weight, *, eps=1e-6):\n    raise KeyboardInterrupt\n")
    report = conformance.check(f"{tmp_path / 'interrupts.py'}:norm", "rms_norm", arrays="numpy", effort="quick", seed=1)
    assert messages(report) == {"CALL": "call: raised KeyboardInterrupt: "}
