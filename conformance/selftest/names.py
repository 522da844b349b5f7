"""Is a known mistake that is planted also named? The second direction of the self-test.

A planted mistake is judged by the probes of its own rule, as many cases as a check has, and by a few cases of other
rules, as only these tell some mistakes apart. What `judge.causes` makes of the answers must name it first.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from conformance.checks.levels import STATE_RULE
from conformance.checks.results import Results
from conformance.judge.causes import explain_results
from conformance.judge.options import EFFORTS
from conformance.judge.plan import make_question
from conformance.judge.trial import ask_questions
from conformance.mistakes.planting import PlantedMistake
from conformance.operations.probes import catalogue
from conformance.runner.in_process import TIME_LIMIT, Runner
from conformance.selftest.selftest import WORKERS, Planted, check_arguments, choose_planted, share_groups, topic_of

TOGETHER = 8
"""So many mistakes are asked the same cases in one piece of work: most of the time goes into their diagnosis."""

Verdict = Literal["right", "none", "wrong", "missed"]
"""Its own name came first, none, another one; or its rule did not catch it at all."""


@dataclass(frozen=True)
class Naming:
    """What a planted mistake was called.

    title: of what was planted. named: the first diagnosis with its values and condition; empty where there is none.
    explained, failing: cases that the diagnosis explains, and all that fail.
    """

    title: str
    verdict: Verdict
    named: str = ""
    explained: int = 0
    failing: int = 0


def name_planted(planted: PlantedMistake, results: Results, runner: Runner) -> Naming:
    """Find the causes of the violations of one planted mistake, and compare the first name with its own."""
    if not any(violation.subject == runner.name for violation in results.violations.values()):
        return Naming(planted.title, "missed")
    causes = explain_results(results, runner, 0)
    first = next((cause.diagnosis for cause in causes if cause.diagnosis is not None), None)
    if first is None:
        return Naming(planted.title, "none")
    verdict: Verdict = "right" if first.id == planted.mistake.id else "wrong"
    return Naming(planted.title, verdict, PlantedMistake(first.mistake).name, first.explained, first.failing)


def name_group(only: Collection[str] | None, group: Sequence[int], effort: str, seed: int) -> list[Naming]:
    """Name the mistakes that the same cases test."""
    chosen = choose_mistakes(choose_planted(only))
    planted = [chosen[index] for index in group]
    first = planted[0]
    runners = [Runner(one.make(), TIME_LIMIT) for one in planted]
    results = Results()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what mistakes make of their numbers
        for probe in catalogue(runners[0].declaration, first.operation):
            if probe.rule == first.rule or probe.rule != STATE_RULE:
                examples = EFFORTS[effort if probe.rule == first.rule else "quick"]
                results.include(ask_questions([make_question(probe)], runners, examples, seed))
        return [name_planted(one, results, runner) for one, runner in zip(planted, runners, strict=True)]


def choose_mistakes(planted: Sequence[Planted]) -> list[PlantedMistake]:
    return [one for one in planted if isinstance(one, PlantedMistake)]


def name_mistakes(
    effort: str = "default",
    seed: int | None = None,
    workers: int = WORKERS,
    only: Collection[str] | None = None,
    progress: Callable[[Sequence[Naming], int, int], None] = lambda part, done, count: None,
) -> list[Naming]:
    """Plant every known mistake, and say what each is called.

    Args:
        effort, seed, workers, only: as in `selftest`.
        progress: is called with the next few, how many are done, and of how many.

    Raises:
        ValueError: for an effort that does not exist, or when nothing is chosen.
    """
    chosen, seed = check_arguments(effort, seed, only)
    planted = choose_mistakes(chosen)
    if not planted:
        raise ValueError("no known mistake is called so: behaviours have no names")
    found: list[Naming] = []
    for part in share_groups(name_group, planted, only, effort, seed, workers, TOGETHER):
        found += part
        progress(part, len(found), len(planted))
    return found


def show_naming(one: Naming, console: Console) -> None:
    """Print one that has another name or none."""
    explains = f": {one.named}, which explains {one.explained} of {one.failing} failing cases" if one.named else ""
    console.print(f"{one.verdict} {one.title}{explains}")


def show_counts(namings: Sequence[Naming], console: Console) -> None:
    """Print the counts by topic and in all."""
    counts = Counter((topic_of(one.title), one.verdict) for one in namings)
    for topic in sorted({topic for topic, _ in counts}):
        shown = (f"{count} {verdict}" for (of, verdict), count in sorted(counts.items()) if of == topic)
        console.print(f"{topic}: {', '.join(shown)}")
    right = sum(one.verdict == "right" for one in namings)
    wrong = sum(one.verdict == "wrong" for one in namings)
    console.print(f"{right} of {len(namings)} planted mistakes are named first, {wrong} are called something else")


def main(
    effort: str = "default", seed: int | None = None, workers: int = WORKERS, only: Collection[str] | None = None
) -> int:
    """Name planted mistakes for the command line, and print those with another name as they come.

    Returns:
        0 if none has a wrong name, 1 if one has, 2 for a wrong argument.
    """
    console = Console(markup=False, soft_wrap=True)
    try:
        with console.status("planting") as status:

            def progress(part: Sequence[Naming], done: int, count: int) -> None:
                status.update(f"{done} of {count} done")
                for one in part:
                    if one.verdict != "right":
                        show_naming(one, console)

            found = name_mistakes(effort, seed, workers, only, progress)
    except ValueError as error:
        console.print(str(error))
        return 2
    show_counts(found, console)
    return 1 if any(one.verdict == "wrong" for one in found) else 0
