"""A run spread over processes, one probe at a time: JAX compiles for every new shape, and one core is not enough."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from conformance.cases.declaration import EVERYTHING
from conformance.checks.check import Check
from conformance.checks.comparison import Finding
from conformance.checks.probe import agreement
from conformance.checks.results import Results, Violation
from conformance.judge.run import (
    SHRINKING,
    Progress,
    breaks,
    cases_of,
    run_corpus,
    run_probe,
    run_refusals,
    shrink_violations,
    silent,
)
from conformance.operations import OPERATIONS
from conformance.operations.corpus import entries_for
from conformance.operations.probes import PROBES
from conformance.oracle.reference import balls_available
from conformance.runner.compiled_code import forget_compiled_code, keep_compiled_code, share_of_memory
from conformance.runner.in_process import Runner
from conformance.runner.process_lifetime import end_with_parent
from conformance.sampling.operations import operation_cases
from conformance.subjects.subject import IMPLEMENTATIONS

runners: list[Runner] = []
"""A worker process's own subjects, made once."""

room = math.inf
"""Bytes that it may hold before it forgets what JAX has compiled."""


def start(names: Sequence[str], device: str, processes: int = 1) -> None:
    """What a worker process does first; `processes`: how many share the machine."""
    global room
    room = share_of_memory(processes)
    end_with_parent()
    keep_compiled_code()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    made: dict[str, Any] = IMPLEMENTATIONS
    runners[:] = [Runner(made[name](device=device)) for name in names]
    for runner in runners:
        torch: Any = getattr(runner.subject.framework, "torch", None)
        if torch is not None:
            torch.set_num_threads(1)  # the processes share the cores among them


SHARES = 8
"""Pieces into which the frozen corpus is divided among the processes."""


def work(index: int | None, rules: Collection[str], examples: int, seed: int) -> Results:
    """The probe of that index; for None the refusals; below 0 a share of the frozen corpus."""
    forget_compiled_code(room)
    if index is None:
        return run_refusals(rules, runners)
    if index < 0:
        frozen = entries_for(set(OPERATIONS), EVERYTHING)[-1 - index :: SHARES]
        return run_corpus((entry for entry in frozen if entry.rule in rules), runners)
    return shrink(run_probe(PROBES[index], runners, examples, seed, silent))


def work_definition(operation: str, examples: int, seed: int) -> Results:
    """The definition in float64 against ball arithmetic, on cases of one operation."""
    probe = agreement("ATT-9", operation, operation, operation_cases(operation, ("float64",)))
    return shrink(run_probe(probe, runners, examples, seed, silent))


def shrink(results: Results) -> Results:
    """The results with smaller cases, and without those that nobody asks again."""
    shrink_violations(results, runners, SHRINKING)
    results.kept.clear()
    return results


def ask_again(check: Check[Any, Any], example: Any) -> list[Finding]:
    return runners[0](check, example, check.prepare(example))


def confirm_violation(violation: Violation, device: str = "cpu") -> Violation:
    """The violation; it is not steady where a process that starts anew does not show it."""
    context = multiprocessing.get_context("spawn")
    names = (violation.subject,)
    with ProcessPoolExecutor(1, mp_context=context, initializer=start, initargs=(names, device)) as pool:
        findings = pool.submit(ask_again, violation.check, violation.example).result()
    return violation if breaks(findings) else replace(violation, steady=False)


class Workers:
    """Processes that keep their frameworks loaded, and what JAX has compiled, from one run to the next."""

    def __init__(self, names: Sequence[str], count: int, device: str = "cpu") -> None:
        context = multiprocessing.get_context("spawn")
        if count > 1:
            for library in ("OPENBLAS", "OMP", "MKL"):  # the processes share the cores among them
                os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=start, initargs=(names, device, count))
        # An interrupt is for this process alone; those started now inherit that they do not hear it.
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(count):
            self.pool.submit(int)
        signal.signal(signal.SIGINT, heard)

    def run(self, rules: Collection[str], examples: int, seed: int, progress: Progress) -> Results:
        """As `run.run`, for the probes of the given rules; `progress` hears of a probe once all its cases are done."""
        largest_first = sorted(range(len(PROBES)), key=lambda index: -cases_of(PROBES[index], examples))
        chosen = [*range(-SHARES, 0), None, *(index for index in largest_first if PROBES[index].rule in rules)]
        futures = {self.pool.submit(work, index, rules, examples, seed): index for index in chosen}
        for future in as_completed(futures):
            index = futures[future]
            future.result()  # what went wrong in a worker goes wrong here
            if index is not None and index >= 0:
                progress(PROBES[index].rule, PROBES[index].title)
        results = Results()
        for future in sorted(
            futures, key=lambda future: -SHARES - 1 if futures[future] is None else futures[future]
        ):  # the same order every time
            results.include(future.result())
        return results

    def run_definition(self, examples: int, seed: int, progress: Progress) -> Results:
        """Every operation in float64, against an oracle that shares no code with the definition."""
        futures = {self.pool.submit(work_definition, name, examples, seed): name for name in OPERATIONS}
        for future in as_completed(futures):
            future.result()
            progress("float64", futures[future])
        results = Results()
        for future in futures:
            results.include(future.result())
        return results

    def close(self) -> None:
        """End the processes, also in the middle of a probe."""
        for process in multiprocessing.active_children():
            process.terminate()
        self.pool.shutdown(cancel_futures=True)
