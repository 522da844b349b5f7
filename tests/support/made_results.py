"""Results of runs as tests need them, made by what makes the real ones; and the pages that show them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import CUDA_CASES
from benchmarks.results.scaling import scaling
from conformance.checks.results import Cell
from conformance.checks.results import Results as RunResults
from conformance.reports.content import document
from conformance.reports.subjects import run_subject
from conformance.reports.writing import format_json
from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.sources import LABELS
from conformance.timing.measure.environment import environment
from conformance.timing.measure.running import FAILED, LEFT_OUT, Entry
from conformance.timing.results.result import case_result, empty
from conformance.timing.timed_case import Case
from conformance.timing.work import Work, work
from study import divergences, results, site
from tests.benchmarks.test_parts import CEILINGS, SIZES, entry
from tests.support.helpers import OFF, violation

PEAKS = [one | {"rates": [1e12]} for one in CEILINGS]
NASTY = "it's <b>wrong</b> & broken"
ARRAYS = dict(zip(LABELS, ("numpy", "torch", "jax"), strict=True))
Result = dict[str, Any]


def report(*broken: tuple[str, str], names: Any = LABELS, **told: Any) -> Result:
    """Of a run on ATT-5, ATT-7 and NORM-1. broken: (implementation, rule)."""
    subjects = []
    for name in names:
        run_results = RunResults()
        for rule in ("ATT-5", "ATT-7", "NORM-1"):
            bad = (name, rule) in broken
            run_results.rules[rule, name] = Cell(3, 12.5, 12.5) if bad else Cell(3, 0.875, 0.125)
            if bad:
                run_results.add_violation(violation(OFF, name, rule))
        subjects.append(run_subject(run_results, name, ARRAYS[name], "cpu", ["ATT-5", "ATT-7", "ATT-11", "NORM-1"]))
    return document("run", subjects, **({"seed": 77, "cases": 3} | told))


def one(name: str, seconds: float, operation: str = "attention", **fields: Any) -> Entry:
    found = entry([seconds, 1.25 * seconds] * 4)
    found.subject = replace(found.subject, name=name, operation=operation, **fields)
    return found


def benchmark(finished: bool = True, **settings: Any) -> Result:
    """Two lengths of causal attention and a layer norm; of the libraries one failed, and one was left out."""
    told = {"device": "cpu", "threads": 1, "seed": 5, "quick": False, "only": [], "rounds": [8, 8]}
    result = empty(environment("cpu", 1), told | settings)
    for length in (32, 64):
        case = Case(f"causal, T={length}", kind="causal", series="causal", **(SIZES | {"Q": length, "K": length}))
        wrong, absent = one("Wrong library", 1.0), one("Absent library", 1.0)
        wrong.end(FAILED, NASTY)
        absent.end(LEFT_OUT, "it is not installed")
        entries = [
            one("torch_impl, auto", 0.5, ours=True, base=True),
            one("jax_impl, auto", 0.25, ours=True, base=True),
            one("reference_numpy", 2.0, ours=True),
            one("Fast library", 0.125),
            wrong,
            absent,
        ]
        result["cases"].append(case_result(case, work(case, 5), entries, PEAKS))
    case = Case("layer norm, 2x40x8", "layer_norm", **SIZES)
    entries = [one("torch_impl, layer norm", 0.5, "layer_norm", ours=True, base=True),
               one("Slow library", 3.0, "layer_norm")]  # fmt: skip
    result["cases"].append(case_result(case, work(case, 5), entries, PEAKS))
    return result | {"ceilings": PEAKS, "scaling": scaling(result["cases"]), "finished": finished}


GPU = "NVIDIA H100 80GB HBM3"
FACTORS = {
    "torch_impl, auto": 1.02, "jax_impl, auto": 1.5, "torch SDPA": 1.0, "torch SDPA, flash (CUDA)": 1.1,
    "torch SDPA, efficient": 1.7, "torch SDPA, cuDNN": 0.8, "torch FlexAttention (CUDA)": 1.6,
    "jax.nn.dot_product_attention": 9.0, "jax.nn.dot_product_attention, cuDNN": 0.85,
}  # fmt: skip


def on_gpu(failing: str = "torch SDPA, cuDNN") -> Result:
    """All attention of a run with --device cuda; one subject has failed at the longest sequences."""
    there = environment("cpu", 16) | {"processors": 16, "load": 0.5, "gpu": GPU, "gpu_memory": 85_000_000_000}
    settings = {"device": "cuda", "threads": 16, "seed": 5, "quick": False, "only": [], "with": [], "rounds": [7, 21]}
    result = empty(there, settings)
    peaks = [one | {"dtype": case.dtype, "rates": [1e15]} for one in CEILINGS for case in CUDA_CASES[1:3]]
    for case in CUDA_CASES:
        if case.operation == "attention":
            pairs = case.B * case.H * case.Q * case.K
            done = Work(pairs, 4 * pairs * case.D, 4 * pairs * case.D, 8 * case.B * case.H * case.K * case.D)
            entries = [measured_on_gpu(name, factor, case) for name, factor in FACTORS.items()]
            for found in entries:
                if found.subject.name == failing and case.K == 16384:
                    found.end(FAILED, "raised OutOfMemoryError: CUDA out of memory")
            result["cases"].append(case_result(case, done, entries, peaks))
    return result | {"ceilings": peaks, "scaling": scaling(result["cases"]), "finished": True}


def measured_on_gpu(name: str, factor: float, case: Case) -> Entry:
    seconds = 1e-5 + factor * 1e-15 * case.B * case.H * case.Q * case.K * case.D
    found = one(name, seconds, ours="_impl" in name, base="_impl" in name, conventions={"weights": "inputs"})
    found.start = found.start._replace(clock="CUDA events")
    found.peaks = [2 * case.B * case.H * case.Q * case.D * (case.K // 64 if "." in name else 1)] * 7
    return found


def written(folder: Path, **contents: Result | str | None) -> results.Results:
    """Results as files. None: no file."""
    paths = {}
    for name, content in contents.items():
        paths[name] = folder / f"{name}.json"
        if content is not None:
            paths[name].write_text(content if isinstance(content, str) else format_json(content))
    return results.gather(**{"matrix": divergences.MATRIX} | paths)


def built(out: Path, found: results.Results, *operations: str) -> dict[str, str]:
    """operations: whose pages are made, without those of dialects and the diagram; all unless given."""
    with pytest.MonkeyPatch.context() as patched:
        if operations:
            patched.setattr(site, "OPERATIONS", tuple(one for one in OPERATIONS if one.name in operations))
            for pages in (site.dialect_pages, site.diagram):
                patched.setattr(pages, "rendered", lambda *_: {})
        site.build(out, examples=False, results=found)
    return {path.stem: path.read_text() for path in out.glob("*.html")}


def text_of(page: str, part: str = "main") -> str:
    """What is read, in one line, from the place of that name on."""
    _, _, rest = page.partition(f'id="{part}"')
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", rest, flags=re.DOTALL)).split())
