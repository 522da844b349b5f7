"""The plan of all operations, for the three implementations together, in batches that worker processes share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

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

KINDS = ("frozen", "refusal", "probe")
"""Of questions to subjects that take everything."""


@cache
def plan_of_operations() -> list[Question]:
    """List all questions for subjects that take everything, in the same order in every process."""
    return list_questions(None, EVERYTHING, EVERYTHING, probes=probes_of_all())


class Shard(NamedTuple):
    """One of `parts` parts of a run, by its number, from 1."""

    number: int
    parts: int

    def __str__(self) -> str:
        return f"part {self.number} of {self.parts}"


def read_shard(text: str) -> Shard:
    """Read "3/8", the third of eight parts; ValueError for anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    shard = Shard(*map(int, match.groups())) if match else Shard(0, 0)
    if not 1 <= shard.number <= shard.parts:
        raise ValueError(f"not understood: {text}; --shard takes a part and the number of parts, such as 1/8 to 8/8")
    return shard


class Group(NamedTuple):
    """Questions that a worker is asked in one go, by their indices in the plan, and the number of their cases."""

    indices: list[int]
    cases: int


def list_groups(rules: Collection[str], examples: int, shard: Shard | None = None) -> list[Group]:
    """List what is asked about some rules, in the order in which workers start on it, or one part of that.

    A probe is a group of its own, so that all that its cases lead to stays together. Every process makes the same
    parts. The largest group comes first, and each goes to the part that has the fewest cases until then. Groups of
    equal size come in the order of the plan, so the probes of one operation, whose cases cost about the same, are
    spread.

    Args:
        rules: their names.
        examples: cases for a probe of weight 1.
        shard: the part; None for all.
    """
    plan = plan_of_operations()
    chosen = {kind: [i for i, one in enumerate(plan) if one.kind == kind and one.rule in rules] for kind in KINDS}
    frozen = [Group([index], len(plan[index].about)) for index in chosen["frozen"]]
    refusals = [Group(chosen["refusal"], 0)] if chosen["refusal"] else []  # calls without results: they cost little
    probes = [Group([index], count_cases(plan[index].about, examples)) for index in chosen["probe"]]
    groups = [*frozen, *refusals, *sorted(probes, key=lambda group: -group.cases)]
    if shard is None:
        return groups
    parts: list[list[Group]] = [[] for _ in range(shard.parts)]
    cases = [0] * shard.parts
    for group in sorted(groups, key=lambda group: -group.cases):
        lightest = cases.index(min(cases))
        cases[lightest] += group.cases
        parts[lightest].append(group)
    return parts[shard.number - 1]


class ImplementationPool:
    """Workers that keep the implementations, and what JAX has compiled for them, from one run to the next.

    Args:
        names: of `IMPLEMENTATIONS`.
        count: workers.
        device: "cpu" or "cuda".
    """

    def __init__(self, names: Sequence[str], count: int, device: str = "cpu") -> None:
        self.pool = WorkerPool(count, encode_call(load_implementations, list(names), device, count))

    def run(self, groups: Sequence[Group], examples: int, seed: int, progress: Progress) -> dict[int, Results]:
        """Ask groups of questions.

        Args:
            groups: by `list_groups`, with the same examples.
            examples: cases for a probe of weight 1.
            seed: of the run.
            progress: is called once all cases of a probe are done.

        Returns:
            The results of each group, by the index of its first question, in the order of the plan.
        """
        plan = plan_of_operations()

        def tell(indices: Sequence[int]) -> None:
            for question in (plan[index] for index in indices):
                if question.kind == "probe":
                    progress(question.rule, question.title)

        calls = [(ask_batch, group.indices, examples, seed) for group in groups]
        results = self.collect(calls, lambda number: tell(groups[number].indices))
        found = {group.indices[0]: part for group, part in zip(groups, results, strict=True)}
        return {index: found[index] for index in sorted(found)}

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


def merge_run(found: Mapping[int, Results]) -> Results:
    """Return the results of a whole run. found: of its groups, by the index of the first question of each.

    The order of the plan decides which violation of a rule stands before others.
    """
    results = merge(found[index] for index in sorted(found))
    results.set_worst()
    return results


def confirm_violations(results: Results, device: str = "cpu") -> None:
    """Ask the case of every violation again, each in a new process."""
    results.violations = {key: confirm_violation(one, device) for key, one in results.violations.items()}


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
