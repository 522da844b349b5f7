"""Every honest variant before the judge, which may find nothing. Those with one declaration are asked together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from conformance.cases.declaration import split_names
from conformance.checks.results import Results
from conformance.judge.options import EFFORTS
from conformance.judge.plan import list_questions
from conformance.judge.smallest_case import SHRINKING, shrink_violations
from conformance.judge.trial import ask_questions
from conformance.operations.probes import catalogue
from conformance.runner.in_process import TIME_LIMIT, Runner
from conformance.runner.workers import WorkerPool, encode_call, group_indices, kind, prepare_worker
from conformance.selftest.variants import VARIANTS

Group = tuple[int, ...]
"""Indices of variants of one operation with one declaration: the same cases are for all of them."""

runners: dict[int, Runner] = {}
"""A worker process's own subjects, made when they are first asked."""


def choose_variants(arrays: Collection[str], only: Collection[str] = ()) -> list[int]:
    """Indices of the variants in these frameworks' arrays, with one of these words in their titles if there are any."""
    return [
        index
        for index, variant in enumerate(VARIANTS)
        if variant.arrays in split_names(arrays)
        and (not only or any(word in variant.title for word in split_names(only)))
    ]


def groups(indices: Sequence[int]) -> list[Group]:
    """Those of one operation and one declaration together, largest group first."""
    kinds = [(VARIANTS[index].operation, kind(VARIANTS[index].subject().declaration)) for index in indices]
    return [tuple(indices[place] for place in places) for places in group_indices(kinds)]


def judge_group(group: Group, examples: int, seed: int) -> Results:
    """What the frozen corpus, the probes and the refusals find in them."""
    for index in group:
        if index not in runners:
            runners[index] = Runner(VARIANTS[index].subject(), TIME_LIMIT)
    asked, operation = [runners[index] for index in group], VARIANTS[group[0]].operation
    declaration = asked[0].declaration
    probes = catalogue(declaration, operation)
    results = ask_questions(list_questions(operation, declaration, declaration, None, probes), asked, examples, seed)
    shrink_violations(results, asked, SHRINKING)
    return results


def runs(indices: Sequence[int], effort: str, seeds: Sequence[int], workers: int) -> Iterator[Results]:
    """One results for each seed, in order."""
    asked, examples = groups(indices), EFFORTS[effort]
    pool = WorkerPool(workers, encode_call(prepare_worker))
    try:
        waiting = [[pool.submit(judge_group, group, examples, seed) for group in asked] for seed in seeds]
        for futures in waiting:
            total = Results()
            for future in futures:
                total.include(future.result())
            yield total
    finally:
        pool.close()
