"""The plan of all operations, for the three implementations together, in batches that worker processes share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from functools import cache
from typing import Any

from conformance.cases.declaration import EVERYTHING
from conformance.checks.catalogue import Check, Example, make_probe
from conformance.checks.comparison import breaks
from conformance.checks.findings import Finding
from conformance.checks.results import Results, Violation
from conformance.judge.plan import Question, count_cases, list_questions, make_question
from conformance.judge.smallest_case import SHRINKING, shrink_violations
from conformance.judge.trial import Progress, ask_questions
from conformance.operations import OPERATIONS
from conformance.operations.probes import probes_of_all
from conformance.runner.compiled_code import forget_compiled_code, share_of_memory
from conformance.runner.in_process import Runner
from conformance.runner.workers import WorkerPool, encode_call, prepare_worker
from conformance.sampling.operations import operation_cases
from conformance.subjects.subject import IMPLEMENTATIONS


@cache
def plan_of_operations() -> list[Question]:
    """List all questions for subjects that take everything, in the same order in every process."""
    return list_questions(None, EVERYTHING, EVERYTHING, probes=probes_of_all())


class ImplementationPool:
    """Workers that keep the implementations, and what JAX has compiled for them, from one run to the next.

    Args:
        names: of `IMPLEMENTATIONS`.
        count: workers.
        device: "cpu" or "cuda".
    """

    def __init__(self, names: Sequence[str], count: int, device: str = "cpu") -> None:
        self.pool = WorkerPool(count, encode_call(load_implementations, list(names), device, count))

    def run(self, rules: Collection[str], examples: int, seed: int, progress: Progress) -> Results:
        """Ask everything about some rules.

        Args:
            rules: their names.
            examples: cases for a probe of weight 1.
            seed: of the run.
            progress: is called once all cases of a probe are done.
        """
        plan = plan_of_operations()
        chosen = [index for index, question in enumerate(plan) if question.rule in rules]
        probes = [index for index in chosen if plan[index].kind == "probe"]
        refusals = [index for index in chosen if plan[index].kind == "refusal"]
        frozen = [[index] for index in chosen if plan[index].kind == "frozen"]
        largest_first = sorted(probes, key=lambda index: -count_cases(plan[index].about, examples))
        groups = [*frozen, refusals, *([index] for index in largest_first)]

        def tell(indices: Sequence[int]) -> None:
            for question in (plan[index] for index in indices):
                if question.kind == "probe":
                    progress(question.rule, question.title)

        results = self.collect([(ask_batch, indices, examples, seed) for indices in groups], lambda n: tell(groups[n]))
        in_order = sorted(zip(groups, results, strict=True), key=lambda pair: pair[0])  # the same order every time
        return merge(part for _, part in in_order)

    def run_definition(self, examples: int, seed: int, progress: Progress) -> Results:
        """Every operation in float64, against an oracle that shares no code with the definition."""
        names = [*OPERATIONS]
        calls = [(ask_in_float64, name, examples, seed) for name in names]
        return merge(self.collect(calls, lambda number: progress("float64", names[number])))

    def collect(self, calls: Sequence[tuple[Any, ...]], tell: Callable[[int], None]) -> list[Any]:
        """Return the calls' results, in their order. tell: is called with the number of each that is done.

        What goes wrong in a worker goes wrong here.
        """
        futures = {self.pool.submit(*call): number for number, call in enumerate(calls)}
        for future in as_completed(futures):
            future.result()
            tell(futures[future])
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the processes, also in the middle of a probe."""
        self.pool.close()


def merge(parts: Iterable[Results]) -> Results:
    results = Results()
    for part in parts:
        results.include(part)
    return results


def confirm_violation(violation: Violation, device: str = "cpu") -> Violation:
    """The violation; it is not steady where a process that starts anew does not show it."""
    pool = ImplementationPool([violation.subject], 1, device)
    try:
        findings = pool.pool.submit(ask_again, violation.check, violation.example).result()
    finally:
        pool.close()
    return violation if breaks(findings) else replace(violation, steady=False)


# --- in a worker ------------------------------------------------------------------------------------------------------


runners: list[Runner] = []
"""A worker process's own subjects, made once."""

room = math.inf
"""Bytes that it may hold before it forgets what JAX has compiled."""


def load_implementations(names: Sequence[str], device: str, processes: int) -> None:
    """Load some of the three. processes: how many share the memory."""
    global room
    room = share_of_memory(processes)
    prepare_worker()
    made: dict[str, Any] = IMPLEMENTATIONS
    runners[:] = [Runner(made[name](device=device)) for name in names]


def ask_batch(indices: Sequence[int], examples: int, seed: int) -> Results:
    """Ask the questions of these indices."""
    forget_compiled_code(room)
    questions = [plan_of_operations()[index] for index in indices]
    results = ask_questions(questions, runners, examples, seed)
    if any(question.kind == "probe" for question in questions):  # frozen cases are small, and told by their names
        shrink_violations(results, runners, SHRINKING)
    results.kept.clear()  # nobody asks them again
    return results


def ask_in_float64(operation: str, examples: int, seed: int) -> Results:
    """The definition in float64 against ball arithmetic, on cases of one operation."""
    probe = make_probe(operation, "ATT-9", operation, operation_cases(operation, ("float64",)))
    results = ask_questions([make_question(probe)], runners, examples, seed)
    shrink_violations(results, runners, SHRINKING)
    results.kept.clear()
    return results


def ask_again(check: Check[Example, Any], example: Example) -> list[Finding]:
    return runners[0](check, example, check.prepare(example))
