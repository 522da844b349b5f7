"""Runs on a GPU, as far as they can be tested without one: order on the stream, memory, failures, and the result."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from benchmarks.results.compare import compare
from benchmarks.results.findings import describe_cases
from benchmarks.results.scaling import in_words
from conformance.timing.measure import memory
from conformance.timing.measure.clocks import CudaClock, WallClock
from conformance.timing.measure.processes import Failed
from conformance.timing.measure.rounds import Budget
from conformance.timing.measure.running import Plan, Run
from conformance.timing.results.case_table import case_table
from conformance.timing.results.ranking import describe_case
from conformance.timing.results.result import read, save
from conformance.timing.subjects.registry import subjects
from conformance.timing.subjects.timed_subject import Prepared, Subject, Unfit
from conformance.timing.terminal import execute
from conformance.timing.timed_case import Case, inputs, mask
from tests.benchmarks.conftest import Inside
from tests.support import made_results

SMALL = Case("causal, T=32", kind="causal", series="causal", Q=32, K=32)


# --- the clock --------------------------------------------------------------------------------------------------------


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in order, with a stream that is none."""
    torch = pytest.importorskip("torch")
    happened: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            happened.append("record")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: happened.append("synchronize"))
    monkeypatch.setattr("conformance.timing.measure.clocks.perf_counter", lambda: happened.append("record") or 0.0)
    return happened


@pytest.mark.parametrize(("clock", "first"), [(CudaClock, ["synchronize"]), (WallClock, [])])
def test_caches_are_cold_when_the_clock_starts(clock: Any, first: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    happened = recorded(monkeypatch)
    prepared = Prepared(lambda arrays, mask: None, lambda loaded: happened.append("call") or (), lambda result, name: 0)
    prepared.evict = lambda: happened.append("evict")
    clock().results(prepared, [1, 2])
    assert happened == [*first, "evict", "record", "call", "call", "record"]


def test_torch_waits_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or warm-up calls of a tenth of a second would queue seconds of work before each trial."""
    from conformance.timing.subjects.torch_subjects import prepared

    happened = recorded(monkeypatch)
    ready = prepared(SMALL, "cuda", None)
    ready.wait([()])
    assert (ready.on_stream, happened) == (True, ["synchronize"])


def test_a_kernel_that_sdpa_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from conformance.timing.subjects.torch_subjects import sdpa

    def refuses(*given: Any, **options: Any) -> Any:
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuses)
    for kernel, error in (("CUDNN_ATTENTION", Unfit), ("", RuntimeError)):
        ready = sdpa(SMALL, "cpu", kernel)
        loaded = ready.load(inputs(SMALL, 1), mask(SMALL, 1))
        with pytest.raises(error):
            ready.call(loaded)


def test_a_case_that_cudnn_refuses_in_jax_is_left_out() -> None:
    """It is traced without a GPU, with the shapes that JAX takes."""
    jax = pytest.importorskip("jax")
    from conformance.timing.subjects.jax_subjects import refuse_what_cudnn_does_not_take

    def apply(implementation: str, query: Any, key: Any, value: Any) -> Any:
        assert (query.shape, key.shape) == ((1, 32, 8, 64), (1, 32, 8, 64))
        return jax.nn.dot_product_attention(query, key, value, implementation=implementation)

    refuse_what_cudnn_does_not_take(SMALL, partial(apply, "xla"), None)
    if jax.default_backend() == "cpu":
        with pytest.raises(Unfit, match="cuDNN"):
            refuse_what_cudnn_does_not_take(SMALL, partial(apply, "cudnn"), None)


# --- failures ---------------------------------------------------------------------------------------------------------


class Process(Inside):
    """Subjects by name: the second fails in its second trial."""

    ended: ClassVar[list[str]] = []

    def __init__(self, make: Any, given: tuple[Any, ...], variables: Any) -> None:
        super().__init__(make, given, variables)
        self.name, self.trials = given[0].name, 0

    def ask(self, method: str, *given: Any, limit: float) -> Any:
        self.trials += method == "trial"
        if self.name == "fails" and self.trials == 2:
            raise Failed("raised OutOfMemoryError: CUDA out of memory")
        return super().ask(method, *given, limit=limit)

    def end(self) -> None:
        self.ended.append(self.name)


def test_a_run_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process ends at once, and free memory is asked for before each subject."""
    monkeypatch.setattr(Run, "measure_ceilings", lambda run, dtypes: None)
    asked: list[str] = []
    monkeypatch.setattr(memory, "available", lambda device: asked.append(device))
    monkeypatch.setattr("conformance.timing.measure.running.Worker", lambda make, given, threads, variables: Process(
        make, given, variables))  # fmt: skip
    Process.ended = []
    one = subjects()["reference_numpy"]
    known = [Subject(**(vars(one) | {"name": name})) for name in ("works", "fails", "works too")]
    plan = Plan("cpu", 1, 7, Budget(2, 2), memory=lambda case: False)
    cases = [SMALL, Case("causal, T=16", kind="causal", series="causal", Q=16, K=16)]
    path = tmp_path / "b.json"
    result = made_results.empty(made_results.environment("cpu", 1), {"device": "cpu", "rounds": [2, 2]})
    execute(plan, cases, known, result, path)
    assert len(asked) == 2 * len(known)
    assert [[one["status"] for one in case["subjects"]] for case in read(path)["cases"]] == [
        ["measured", "failed", "measured"]
    ] * 2
    assert Process.ended.count("fails") >= 2


# --- the result -------------------------------------------------------------------------------------------------------


def test_a_result_of_a_gpu_is_shown(tmp_path: Path) -> None:
    """The file, tables at every width, findings, growth by the GPU's memory, comparison; see test_plots for pages."""
    path = tmp_path / "gpu.json"
    save(made_results.on_gpu(), path)
    result = read(path)
    console = Console(width=160, record=True, file=io.StringIO())
    for case in result["cases"]:
        assert 1 <= len(describe_case(case)) <= 3
        for width in (80, 120, 160):
            console.print(case_table(case, width))
    text = console.export_text()
    assert "torch SDPA, flash (CUDA)" in text
    assert "nan" not in text
    assert len(describe_cases(result["cases"])) == 3
    words = in_words(result["cases"], result["environment"]["gpu_memory"])
    assert any("would fill 85 GB at T=" in line for line in words)
    assert {change.verdict for change in compare(result, json.loads(path.read_text())).changes} == {"noise"}
