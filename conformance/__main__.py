"""The command line: `conformance run` and `conformance rules`, also as `python -m conformance`."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

EFFORTS = {"quick": 4, "default": 20, "thorough": 200}
FRAMEWORKS = {"reference_numpy": "numpy", "torch_impl": "torch", "jax_impl": "jax"}

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Does an implementation compute what SPEC.md says?")
console = Console()


def main() -> None:
    keep_compiled_code()
    app()


def keep_compiled_code() -> None:
    """JAX compiles for every new shape; the next run finds it all compiled. Set before JAX is imported."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "transformer-conformance" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@app.callback()
def commands() -> None:
    """Without this, typer would run a lone command without its name."""


@app.command()
def rules() -> None:
    """List the rules."""
    from specification import RULES

    table = Table(show_header=False, box=None)
    for rule in RULES.values():
        table.add_row(rule.id, rule.title, rule.statement)
    console.print(table)


@app.command()
def run(
    effort: Annotated[str, typer.Option(help="quick, default or thorough: how many cases for each probe")] = "default",
    cases: Annotated[int | None, typer.Option(help="cases for each probe, instead of an effort")] = None,
    seed: Annotated[int | None, typer.Option(help="draw the same cases again; a fresh seed unless given")] = None,
    repeat: Annotated[int, typer.Option(help="that many runs, each with the next seed")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="an implementation, or a rule; may be given again")] = None,
) -> None:
    """Judge the three implementations against every rule, on generated cases."""
    from specification import RULES

    names = [name for name in only or [] if name in FRAMEWORKS] or list(FRAMEWORKS)
    chosen = [name for name in only or [] if name in RULES] or list(RULES)
    wrong = [name for name in only or [] if name not in FRAMEWORKS and name not in RULES]
    if effort not in EFFORTS or wrong or repeat < 1 or (cases is not None and cases < 1):
        unknown = wrong[0] if wrong else effort
        console.print(f"[red]not understood: {unknown}; see conformance run --help, conformance rules[/red]")
        raise typer.Exit(2)
    installed = [name for name in names if available(name)]
    first = secrets.randbelow(2**32) if seed is None else seed
    failures = sum(
        not judged(installed, chosen, EFFORTS[effort] if cases is None else cases, first + number)
        for number in range(repeat)
    )
    if repeat > 1:
        console.print(f"{repeat} runs, seeds {first} to {first + repeat - 1}: {failures} with violations")
    raise typer.Exit(1 if failures else 0)


def available(name: str) -> bool:
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:
        console.print(f"{name} is left out: {FRAMEWORKS[name]} is not installed")
        return False
    return True


def judged(names: list[str], chosen: list[str], examples: int, seed: int) -> bool:
    """One run with a bar that moves; prints the report."""
    from conformance.oracle import balls_available
    from conformance.probes import PROBES
    from conformance.refusals import REFUSALS
    from conformance.report import print_report
    from conformance.run import cases_of, run
    from conformance.subjects import IMPLEMENTATIONS

    if not balls_available():
        console.print("float64 is left out: its oracle needs python-flint, which is not installed")
    probes = [probe for probe in PROBES if probe.rule in chosen]
    total = sum(cases_of(probe, examples) for probe in probes) + sum(r.rule in chosen for r in REFUSALS)
    columns = (TextColumn("{task.description:48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("loading the frameworks", total=total)
        subjects = [IMPLEMENTATIONS[name]() for name in names]

        def advance(rule: str, title: str) -> None:
            progress.update(task, advance=1, description=f"{rule} {title}")

        tally = run(probes, subjects, examples=examples, seed=seed, progress=advance)
    console.print(f"seed {seed}, {examples} cases for each probe")
    print_report(tally, names, console)
    return tally.conforms


if __name__ == "__main__":
    main()
