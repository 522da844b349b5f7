"""The command line: `python -m mutation run`, which can be broken off and taken up again, and `score`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from mutation.judging import judged, questions
from mutation.mutants import ROOT, Mutant, mutants_of
from mutation.results import KINDS, Results, explanations, score
from mutation.running import Trial, tried
from mutation.testing import SLOW, TIME_LIMIT, prepare, tested, tests

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Is every small wrong edit of the definition caught?"
)
console = Console()

RESULTS = Path("build/mutation/results.jsonl")
JUDGING = 60.0
"""Seconds for the judge on one mutant."""


Files = Annotated[
    list[Path] | None,
    typer.Argument(help="by their paths; all of reference_numpy unless given", exists=True, resolve_path=True),
]
Place = Annotated[Path, typer.Option("--results", help="where results are kept")]


@app.command()
def run(
    files: Files = None,
    processes: Annotated[int, typer.Option(help="mutants tried at a time", min=1)] = 1,
    again: Annotated[bool, typer.Option(help="try those that lived once more")] = False,
    thorough: Annotated[bool, typer.Option(help="run the tests on mutants that are explained, too")] = False,
    slow: Annotated[float, typer.Option(help="seconds; tests that take longer are left out")] = SLOW,
    results: Place = RESULTS,
) -> None:
    """Try every mutant that has not been tried yet, and print the score."""
    mutants, known, explained = all_mutants(files or []), Results(results), explanations()
    waiting = [m for m in mutants if known.of(m) is None or (again and known.lives(m))]
    if waiting:
        trial = partial(judged, questions())
        for mutant, killed_by in shown("judge", waiting, trial, processes, JUDGING):
            known.add(mutant, "judge", killed_by)
    passed = [m for m in mutants if known.passed_judge(m) and (thorough or m.name not in explained)]
    if passed:
        prepare()
        trial = partial(tested, tests(slow), known)
        for mutant, killed_by in shown("tests", passed, trial, processes, TIME_LIMIT):
            known.add(mutant, "tests", killed_by)
    print_score(mutants, known)


@app.command(name="score")
def score_only(files: Files = None, results: Place = RESULTS) -> None:
    """Print the score of what has been tried."""
    print_score(all_mutants(files or []), Results(results))


def all_mutants(files: Sequence[Path]) -> list[Mutant]:
    paths = sorted((ROOT / "reference_numpy").glob("*.py"))
    strange = [path for path in files if path not in paths]
    if strange:
        raise typer.BadParameter(f"{strange[0]} is no file of reference_numpy, of which alone edits are judged")
    paths = list(files) or paths
    return [mutant for path in paths for mutant in mutants_of(path)]


def shown(
    title: str, mutants: Sequence[Mutant], trial: Trial, processes: int, seconds: float
) -> Iterable[tuple[Mutant, str]]:
    return track(tried(mutants, trial, processes, seconds), title, total=len(mutants), console=console)


def print_score(mutants: Sequence[Mutant], known: Results) -> None:
    total = score(mutants, known, explanations())
    for kind, living in total.explained.items():
        for mutant, why in living:
            print_mutant(mutant, f"{kind}: {why}")
    for mutant in total.unexplained:
        print_mutant(mutant, "[bold red]not explained")
    for name in total.stale:
        console.print("explained, but not alive:", name, highlight=False, markup=False)
    killed = total.judged + total.tested
    console.print(
        f"{len(mutants)} mutants, {total.tried} tried: {total.judged} killed by the judge, {total.tested} by the tests"
    )
    for kind, meaning in KINDS.items():
        console.print(f"{len(total.explained[kind])} live, {kind}: {meaning}")
    console.print(f"{len(total.unexplained)} live and are not explained")
    equivalent = len(total.explained["equivalent"])
    console.print(f"killed / all: {killed / max(total.tried, 1):.2%}")
    console.print(f"killed / (all - equivalent): {killed / max(total.tried - equivalent, 1):.2%}")
    if total.unexplained or total.tried < len(mutants):
        raise typer.Exit(1)


def print_mutant(mutant: Mutant, note: str) -> None:
    console.print(f"{mutant.file}, {mutant.function or 'module'}", highlight=False)
    console.print(f"  - {mutant.old}\n  + {mutant.new}", highlight=False, markup=False)
    console.print(f"  {note}", highlight=False)


if __name__ == "__main__":
    app()
