"""The command line: `conformance run`, `definition` and `rules`, also as `python -m conformance`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.generation import OPERATIONS
from conformance.oracle import balls_available
from conformance.probes import PROBES
from conformance.report import print_report, results_table, violation_lines
from conformance.tally import Tally
from conformance.workers import Workers
from specification import RULES

CORES = min(os.cpu_count() or 1, 4)
EFFORTS = {"quick": 3, "default": 10, "thorough": 100}
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


@app.command()
def rules() -> None:
    """List the rules."""
    table = Table(show_header=False, box=None)
    for rule in RULES.values():
        table.add_row(rule.id, rule.title, rule.statement)
    console.print(table)


@app.command()
def run(
    effort: Annotated[str, typer.Option(help="quick, default or thorough: how many cases for each probe")] = "default",
    cases: Annotated[int | None, typer.Option(help="cases for each probe, instead of an effort", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="draw the same cases again; a fresh seed unless given")] = None,
    repeat: Annotated[int, typer.Option(help="that many runs, each with the next seed", min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help="an implementation or a rule; may be given again")] = None,
    workers: Annotated[int, typer.Option(help="processes", min=1)] = CORES,
    device: Annotated[str, typer.Option(help="cpu or cuda; NumPy stays on the CPU")] = "cpu",
) -> None:
    """Judge the three implementations against every rule, on generated cases."""
    wrong = [name for name in only or [] if name not in FRAMEWORKS and name not in RULES]
    if effort not in EFFORTS or wrong:
        known = f"--only takes {', '.join(FRAMEWORKS)} or a rule (conformance rules), --effort {', '.join(EFFORTS)}"
        console.print(f"[red]not understood: {wrong[0] if wrong else effort}[/red]; {known}")
        raise typer.Exit(2)
    if device not in ("cpu", "cuda") or (device == "cuda" and not gpu_available()):
        console.print(f"no device {device} here; cpu, or cuda where PyTorch sees a GPU")
        raise typer.Exit(2)
    chosen = [name for name in only or [] if name in RULES] or list(RULES)
    installed = [n for n in [name for name in only or [] if name in FRAMEWORKS] or FRAMEWORKS if available(n)]
    if not installed:
        console.print("nothing to judge")
        raise typer.Exit(2)
    if not balls_available():
        console.print("float64 is left out: its oracle needs python-flint, which is not installed")
    first = secrets.randbelow(2**32) if seed is None else seed
    examples = EFFORTS[effort] if cases is None else cases
    pool, total, failures = Workers(installed, workers, device), Tally(), 0
    try:
        for number in range(first, first + repeat):
            with bar("loading the frameworks", sum(probe.rule in chosen for probe in PROBES)) as advance:
                tally = pool.run(chosen, examples, number, advance)
            total.include(tally)
            failures += not tally.conforms
            console.print(f"seed {number}: {'conforms' if tally.conforms else 'violations'}")
            console.print(*map(violation_lines, tally.violations.values()), sep="\n", end="")
    except KeyboardInterrupt:
        console.print("interrupted")
        raise typer.Exit(130) from None
    finally:
        pool.close()
    print_report(total, installed, console)
    console.print(f"{repeat} run{'s' * (repeat > 1)} of {examples} cases for each probe, {failures} with violations")
    raise typer.Exit(1 if failures else 0)


@app.command()
def definition(
    cases: Annotated[int, typer.Option(help="cases of each operation", min=1)] = 1000,
    seed: Annotated[int | None, typer.Option(help="draw the same cases again; a fresh seed unless given")] = None,
    workers: Annotated[int, typer.Option(help="processes", min=1)] = CORES,
) -> None:
    """Hold the definition itself to its bound of ball arithmetic, which shares no code with it."""
    if not balls_available():
        console.print("this needs python-flint, which is not installed")
        raise typer.Exit(2)
    seed = secrets.randbelow(2**32) if seed is None else seed
    pool = Workers(["reference_numpy"], workers)
    try:
        with bar("ball arithmetic", len(OPERATIONS)) as advance:
            tally = pool.run_definition(cases, seed, advance)
    except KeyboardInterrupt:
        console.print("interrupted")
        raise typer.Exit(130) from None
    finally:
        pool.close()
    console.print(results_table(tally, ["reference_numpy"]), *map(violation_lines, tally.violations.values()))
    console.print(f"seed {seed}, {cases} cases of each operation: {'conforms' if tally.conforms else 'violations'}")
    raise typer.Exit(0 if tally.conforms else 1)


def available(name: str) -> bool:
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:
        console.print(f"{name} is left out: {FRAMEWORKS[name]} is not installed")
        return False
    return True


def gpu_available() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    torch = importlib.import_module("torch")
    return bool(torch.cuda.is_available())


@contextlib.contextmanager
def bar(start: str, total: int) -> Iterator[Callable[[str, str], None]]:
    """A bar that moves; where there is no terminal, a dot for every step."""
    columns = (TextColumn("{task.description:42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(start, total=total)

        def advance(rule: str, title: str) -> None:
            progress.update(task, advance=1, description=f"{rule} {title}")
            if not console.is_terminal:
                print(".", end="", flush=True)

        yield advance
    if not console.is_terminal:
        print()


if __name__ == "__main__":
    main()
