"""Is the judge itself to be trusted? Planted faults must be caught, and what they are made from must conform.

Faults with the same rule, operation, framework and declaration are asked together, with the right ones beside them on
the very same cases. A fault is caught by a violation of its own rule; what other rules say of it does not count.
"""

from __future__ import annotations

import multiprocessing
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.cases.declaration import listed
from conformance.checks.results import Results
from conformance.judge.checking import EFFORTS
from conformance.judge.run import STUCK, run_probe, run_refusals, silent
from conformance.operations.probes import probes_of
from conformance.oracle.reference import balls_available
from conformance.reports.sentences import describe_finding
from conformance.runner.cores import kind, start, together
from conformance.runner.in_process import TIME_LIMIT, Runner
from conformance.selftest.faults import Fault, absent, planted

WORKERS = 2


@dataclass(frozen=True)
class Outcome:
    """What became of faults: titles of those caught and missed, and what was found wrong with right ones."""

    caught: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    false_alarms: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        alarms = dict.fromkeys(self.false_alarms + other.false_alarms)
        return Outcome(self.caught + other.caught, self.missed + other.missed, tuple(alarms))


@dataclass(frozen=True)
class Score:
    """A whole self-test. skipped: why some faults were not planted."""

    effort: str
    seed: int
    outcome: Outcome
    skipped: tuple[str, ...] = ()

    @property
    def planted(self) -> int:
        return len(self.outcome.caught) + len(self.outcome.missed)

    @property
    def share(self) -> float:
        """Of the planted faults that were caught."""
        return len(self.outcome.caught) / max(self.planted, 1)

    @property
    def perfect(self) -> bool:
        return not self.outcome.missed and not self.outcome.false_alarms


class Suspect(Runner):
    """Runs checks on a fault until a violation of its own rule has been seen."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.target().make(), TIME_LIMIT)
        self.rule = fault.rule

    def violates(self, rule: str) -> None:
        """Stop at the fault's own rule."""
        if rule == self.rule:
            self.overrun = STUCK


# --- faults that are asked together -----------------------------------------------------------------------------------


def groups(faults: Collection[Fault]) -> list[list[int]]:
    """Indices of faults that the same cases test, largest group first."""
    subjects = (fault.target().make() for fault in faults)
    return together(
        [(f.rule, f.operation, f.arrays, kind(s.declaration)) for f, s in zip(faults, subjects, strict=True)]
    )


def judged(faults: Collection[Fault], effort: str, seed: int) -> Outcome:
    """Of faults that are asked together."""
    first = next(iter(faults))
    suspects = {fault.title: Suspect(fault) for fault in faults}
    right = [Runner(target.make(), TIME_LIMIT) for target in {f.right: f.right_target() for f in faults}.values()]
    results = Results()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what faults make of their numbers
        for probe in probes_of(first.rule, first.operation, suspects[first.title].declaration):
            asked = [suspect for suspect in suspects.values() if suspect.overrun < STUCK]
            results.include(run_probe(probe, [*asked, *right], EFFORTS[effort], seed, silent))
        results.include(run_refusals({first.rule}, [*suspects.values(), *right], first.operation))
    caught = tuple(title for title in suspects if (first.rule, title) in results.violations)
    missed = tuple(title for title in suspects if title not in caught)
    violations = [results.violations[first.rule, e.name] for e in right if (first.rule, e.name) in results.violations]
    return Outcome(
        caught, missed, tuple(f"{v.subject}: {v.rule} {v.title}: {describe_finding(v.finding)}" for v in violations)
    )


# --- the whole --------------------------------------------------------------------------------------------------------


def chosen(only: Collection[str] | None) -> tuple[Fault, ...]:
    """Faults of these rules, operations or frameworks, or with these words in their names; all of them for None."""
    faults = planted()
    if not only:
        return faults
    return tuple(f for f in faults if any(w in (f.rule, f.operation, f.arrays) or w in f.name for w in listed(only)))


def work(only: Collection[str] | None, group: list[int], effort: str, seed: int) -> Outcome:
    faults = chosen(only)
    return judged([faults[index] for index in group], effort, seed)


def outcomes(only: Collection[str] | None, effort: str, seed: int, workers: int) -> Iterator[Outcome]:
    """One for each group, as they come."""
    all_of_them = groups(chosen(only))
    if workers < 2:
        yield from (work(only, group, effort, seed) for group in all_of_them)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, WORKERS), mp_context=context, initializer=start) as pool:
        futures = [pool.submit(work, only, group, effort, seed) for group in all_of_them]
        for future in as_completed(futures):
            yield future.result()


def selftest(
    effort: str = "default",
    seed: int | None = None,
    workers: int = WORKERS,
    only: Collection[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Score:
    """Plant every fault, and say which of them their rules have caught.

    effort: as in `check`. seed: a fresh one unless given. workers: processes, two at most. only: rules, operations or
    frameworks ("numpy", "torch", "jax"), or words in the faults' names. progress: told how many faults are done.

    ValueError for an effort that does not exist, or when nothing is chosen.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}")
    count = len(chosen(only))
    if not count:
        raise ValueError(f"no planted fault is called {', '.join(only or ())}")
    seed = secrets.randbelow(2**32) if seed is None else seed
    outcome = Outcome()
    for part in outcomes(only, effort, seed, workers):
        outcome += part
        progress(len(outcome.caught) + len(outcome.missed), count)
    skipped = tuple(f"{name} is not installed: its faults were skipped" for name in absent())
    if not balls_available():
        skipped += ("python-flint is not installed: float64 was skipped",)
    return Score(effort, seed, outcome, skipped)


def show(score: Score, console: Console) -> None:
    """The faults that were missed, the right ones that were not acquitted, and the score."""
    if score.outcome.missed:
        table = Table("rule", "missed", title="planted faults that their rule has missed", title_justify="left")
        for title in sorted(score.outcome.missed):
            table.add_row(*title.split(" ", 1))
        console.print(table)
    for alarm in score.outcome.false_alarms:
        console.print(Text.assemble(("false alarm", "red"), f" {alarm}"))
    for line in score.skipped:
        console.print(line)
    caught = f"{len(score.outcome.caught)} of {score.planted} planted faults were caught by the rule they break"
    console.print(f"{caught} ({score.share:.1%}), effort {score.effort}, seed {score.seed}")


def main(
    effort: str = "default", seed: int | None = None, workers: int = WORKERS, only: Collection[str] | None = None
) -> int:
    """What the command line does: 0 if all was caught and nothing else, 1 if not, 2 for a wrong argument."""
    console = Console(markup=False)
    try:
        with console.status("loading the frameworks") as status:
            score = selftest(effort, seed, workers, only, lambda done, of: status.update(f"{done} of {of} faults"))
    except ValueError as error:
        console.print(str(error))
        return 2
    show(score, console)
    return 0 if score.perfect else 1
