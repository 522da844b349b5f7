"""Every honest variant before the judge, which may find nothing. Those with one declaration are asked together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from conformance.checking import EFFORTS
from conformance.corpus import entries_for
from conformance.guard import TIME_LIMIT, Examiner
from conformance.oracle import balls_available
from conformance.probes import catalogue
from conformance.run import SHRINKING, run_corpus, run_probe, run_refusals, silent
from conformance.tally import Tally
from conformance.variants import VARIANTS

Company = tuple[int, ...]
"""Indices of variants of one operation with one declaration: the same cases are for all of them."""

examiners: dict[int, Examiner] = {}
"""A worker process's own subjects, made when they are first asked."""


def chosen(arrays: Collection[str], only: Collection[str] = ()) -> list[int]:
    """Indices of the variants in these frameworks' arrays, with one of these words in their titles if there are any."""
    return [
        index
        for index, variant in enumerate(VARIANTS)
        if variant.arrays in arrays and (not only or any(word in variant.title for word in only))
    ]


def companies(indices: Iterable[int]) -> list[Company]:
    """Those of one kind together, largest company first."""
    found: dict[str, list[int]] = {}
    for index in indices:
        variant = VARIANTS[index]
        said = variant.subject().declaration
        conventions = sorted(said.conventions.items())
        key = repr((variant.operation, sorted(said.features), said.dtypes, said.layout, conventions))
        found.setdefault(key, []).append(index)
    return sorted(map(tuple, found.values()), key=len, reverse=True)


def judged(company: Company, examples: int, seed: int) -> Tally:
    """What the frozen corpus, the probes and the refusals find in them."""
    for index in company:
        if index not in examiners:
            examiners[index] = Examiner(VARIANTS[index].subject(), TIME_LIMIT)
    asked, operation = [examiners[index] for index in company], VARIANTS[company[0]].operation
    declaration, tally = asked[0].declaration, Tally()
    tally.include(run_corpus(entries_for({operation}, declaration), asked))
    for probe in catalogue(declaration):
        if probe.operations == (operation,):
            tally.include(run_probe(probe, asked, examples, seed, silent, SHRINKING))
    tally.include(run_refusals(None, asked, operation))
    return tally


def start() -> None:
    """A worker process: compiled code is kept, and the processes share the cores among them."""
    from conformance.__main__ import keep_compiled_code

    keep_compiled_code()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    if any(variant.arrays == "torch" for variant in VARIANTS):
        import torch

        torch.set_num_threads(1)


def runs(indices: Iterable[int], effort: str, seeds: Sequence[int], workers: int) -> Iterator[Tally]:
    """One tally for each seed, in order."""
    asked, examples = companies(indices), EFFORTS[effort]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=start) as pool:
        waiting = [[pool.submit(judged, company, examples, seed) for company in asked] for seed in seeds]
        for futures in waiting:
            total = Tally()
            for future in futures:
                total.include(future.result())
            yield total
