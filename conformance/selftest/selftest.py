"""Is the judge itself to be trusted? What is planted must be caught, and what it is made from must conform.

Known mistakes and bad behaviours with the same rule, operation, framework and declaration are asked together, with the
right functions that behaviours are made from beside them on the very same cases. One is caught by a violation of its
own rule; what other rules say of it does not count.
"""

from __future__ import annotations

import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.cases.declaration import Declaration, split_names
from conformance.judge.options import EFFORTS
from conformance.judge.plan import Question, list_questions
from conformance.judge.trial import STUCK, ask_questions
from conformance.mistakes.catalogue import planted_mistakes
from conformance.mistakes.planting import PlantedMistake
from conformance.operations.probes import probes_of
from conformance.oracle.reference import balls_available
from conformance.reports.sentences import describe_finding
from conformance.runner.in_process import TIME_LIMIT, Runner
from conformance.runner.workers import WorkerPool, encode_call, group_indices, kind, prepare_worker
from conformance.selftest.behaviours import Behaviour, behaviours, missing_frameworks

WORKERS = 2
GROUP_LIMIT = 1000
"""Members that are judged together at most: more than any group has, so that none is divided."""
Work = TypeVar("Work")


Planted: TypeAlias = PlantedMistake | Behaviour


@cache
def everything_planted() -> tuple[Planted, ...]:
    """Return every known mistake and every behaviour, always in the same order."""
    return (*(PlantedMistake(mistake) for mistake in planted_mistakes()), *behaviours())


def choose_planted(only: Collection[str] | None) -> tuple[Planted, ...]:
    """Return those of these rules, operations or frameworks, or with these words in their names; all for None."""
    if not only:
        return everything_planted()
    return tuple(
        one
        for one in everything_planted()
        if any(word in (one.rule, one.operation, one.arrays) or word in one.name for word in split_names(only))
    )


@dataclass(frozen=True)
class Outcome:
    """Titles of what was caught and missed, and what was found wrong with right functions."""

    caught: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    false_alarms: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        alarms = dict.fromkeys(self.false_alarms + other.false_alarms)
        return Outcome(self.caught + other.caught, self.missed + other.missed, tuple(alarms))


@dataclass(frozen=True)
class Score:
    """A whole self-test. skipped: why some were not planted."""

    effort: str
    seed: int
    outcome: Outcome
    skipped: tuple[str, ...] = ()

    @property
    def planted(self) -> int:
        return len(self.outcome.caught) + len(self.outcome.missed)

    @property
    def share(self) -> float:
        """Of what was planted, that was caught."""
        return len(self.outcome.caught) / max(self.planted, 1)

    @property
    def perfect(self) -> bool:
        return not self.outcome.missed and not self.outcome.false_alarms


class Suspect(Runner):
    """Runs checks on what is planted until a violation of its own rule has been seen."""

    def __init__(self, planted: Planted) -> None:
        super().__init__(planted.make(), TIME_LIMIT)
        self.rule = planted.rule

    def hear_rule(self, rule: str) -> None:
        """Stop at its own rule."""
        if rule == self.rule:
            self.overrun = STUCK


def questions_of_rule(rule: str, operation: str, declaration: Declaration) -> list[Question]:
    """Every question of a rule but frozen cases: these are what earlier versions of it have caught."""
    probes = probes_of(rule, operation, declaration)
    questions = list_questions(operation, declaration, declaration, [rule], probes)
    return [question for question in questions if question.kind != "frozen"]


# --- what is asked together -------------------------------------------------------------------------------------------


def group_planted(planted: Sequence[Planted]) -> list[list[int]]:
    """Return the indices of those that the same cases test, largest group first."""
    return group_indices([(p.rule, p.operation, p.arrays, kind(p.make().declaration)) for p in planted])


def judge_together(planted: Sequence[Planted], effort: str, seed: int) -> Outcome:
    """Judge what the same cases test by its rule."""
    first = planted[0]
    suspects = {one.title: Suspect(one) for one in planted}
    subjects = {subject.name: subject for one in planted if (subject := one.make_right()) is not None}
    right = [Runner(subject, TIME_LIMIT) for subject in subjects.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what wrong functions make of their numbers
        questions = questions_of_rule(first.rule, first.operation, suspects[first.title].declaration)
        results = ask_questions(questions, [*suspects.values(), *right], EFFORTS[effort], seed)
    caught = tuple(title for title in suspects if results.violations_of(first.rule, title))
    missed = tuple(title for title in suspects if title not in caught)
    violations = [violation for one in right for violation in results.violations_of(first.rule, one.name)]
    return Outcome(
        caught, missed, tuple(f"{v.subject}: {v.rule} {v.title}: {describe_finding(v.finding)}" for v in violations)
    )


# --- the whole --------------------------------------------------------------------------------------------------------


def judge_group(only: Collection[str] | None, group: Sequence[int], effort: str, seed: int) -> Outcome:
    planted = choose_planted(only)
    return judge_together([planted[index] for index in group], effort, seed)


def share_groups(
    work: Callable[..., Work],
    planted: Sequence[Planted],
    only: Collection[str] | None,
    effort: str,
    seed: int,
    workers: int,
    most: int = GROUP_LIMIT,
) -> Iterator[Work]:
    """Yield `work(only, group, effort, seed)` for each group of what is planted, as they come.

    most: members of a group; larger ones are divided.
    """
    groups = [group[first : first + most] for group in group_planted(planted) for first in range(0, len(group), most)]
    if workers < 2:
        yield from (work(only, group, effort, seed) for group in groups)
        return
    pool = WorkerPool(min(workers, WORKERS), encode_call(prepare_worker))
    try:
        for future in as_completed([pool.submit(work, only, group, effort, seed) for group in groups]):
            yield future.result()
    finally:
        pool.close()


def selftest(
    effort: str = "default",
    seed: int | None = None,
    workers: int = WORKERS,
    only: Collection[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, count: None,
) -> Score:
    """Plant every known mistake and behaviour, and say which of them their rules have caught.

    Args:
        effort: as in `check`.
        seed: a fresh one unless given.
        workers: processes, two at most.
        only: rules, operations or frameworks ("numpy", "torch", "jax"), or words in names.
        progress: is called with how many are done, and of how many.

    Raises:
        ValueError: for an effort that does not exist, or when nothing is chosen.
    """
    planted, seed = check_arguments(effort, seed, only)
    outcome = Outcome()
    for part in share_groups(judge_group, planted, only, effort, seed, workers):
        outcome += part
        progress(len(outcome.caught) + len(outcome.missed), len(planted))
    skipped = tuple(f"{name} is not installed: its behaviours were skipped" for name in missing_frameworks())
    if not balls_available():
        skipped += ("python-flint is not installed: float64 was skipped",)
    return Score(effort, seed, outcome, skipped)


def check_arguments(effort: str, seed: int | None, only: Collection[str] | None) -> tuple[tuple[Planted, ...], int]:
    """Return what is chosen, and the seed; ValueError where they cannot be used."""
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}")
    planted = choose_planted(only)
    if not planted:
        raise ValueError(f"nothing that is planted is called {', '.join(only or ())}")
    return planted, secrets.randbelow(2**32) if seed is None else seed


def topic_of(title: str) -> str:
    """The topic of a known mistake, by its id; "behaviours" for the others."""
    name = title.split(" ", 1)[1]
    return name.split(".", 1)[0] if "." in name.split(" ", 1)[0] else "behaviours"


def show(score: Score, console: Console) -> None:
    """Print what was missed, the right functions that were not acquitted, and the score by topic."""
    if score.outcome.missed:
        table = Table("rule", "missed", title="planted, and missed by its rule", title_justify="left")
        for title in sorted(score.outcome.missed):
            table.add_row(*title.split(" ", 1))
        console.print(table)
    for alarm in score.outcome.false_alarms:
        console.print(Text.assemble(("false alarm", "red"), f" {alarm}"))
    for line in score.skipped:
        console.print(line)
    caught = Counter(map(topic_of, score.outcome.caught))
    topics = sorted({*caught, *map(topic_of, score.outcome.missed)})
    missed = Counter(map(topic_of, score.outcome.missed))
    console.print(", ".join(f"{topic} {caught[topic]}/{caught[topic] + missed[topic]}" for topic in topics))
    count = f"{len(score.outcome.caught)} of {score.planted} planted faults were caught by the rule they break"
    console.print(f"{count} ({score.share:.1%}), effort {score.effort}, seed {score.seed}")


def main(
    effort: str = "default", seed: int | None = None, workers: int = WORKERS, only: Collection[str] | None = None
) -> int:
    """Run the self-test for the command line.

    Returns:
        0 if all was caught and nothing else, 1 if not, 2 for a wrong argument.
    """
    console = Console(markup=False)
    try:
        with console.status("loading the frameworks") as status:
            score = selftest(effort, seed, workers, only, lambda done, count: status.update(f"{done} of {count} done"))
    except ValueError as error:
        console.print(str(error))
        return 2
    show(score, console)
    return 0 if score.perfect else 1
