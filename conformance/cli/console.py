"""Terminal output that the commands share: progress, and one line for an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

console = Console(markup=False)
errors = Console(stderr=True, markup=False)
"""Both print brackets as they are: shapes like [B, H, Q, D] are no markup."""


def explain_error(error: BaseException) -> str:
    from conformance.subjects.subject import first_line

    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "jax"):
        return f"{error.name} is not installed: pip install 'transformer-conformance[{error.name}]'"
    if type(error) in (ValueError, RuntimeError):
        return first_line(error, most=None)  # often our own: what to do stands behind a long path
    return f"{type(error).__name__}: {first_line(error)}"


def refuse(message: str, code: int = 2) -> NoReturn:
    """Print one line to standard error, and exit; 2 is the exit code of wrong usage."""
    errors.print(Text(message, style="red"), soft_wrap=True)
    raise typer.Exit(code)


INTERRUPTED = "interrupted"
"""The error of a report."""


def save_and_exit(report: dict[str, Any], files: dict[str, Path | None]) -> NoReturn:
    """Write the report to files, by format, and exit; None for a file that the user did not name.

    Exit code 0: it conforms. 1: it does not. 2: the judge could not finish. 130: it was interrupted.
    """
    from conformance.reports.writing import write

    try:
        write(report, files)
    except ValueError as error:
        refuse(str(error))
    if report["error"] is not None:
        raise typer.Exit(130 if report["error"] == INTERRUPTED else 2)
    raise typer.Exit(0 if report["conforms"] else 1)


def save_steps(path: Path, content: dict[str, Any]) -> None:
    from conformance.reports.writing import format_json

    try:
        path.write_text(format_json(content), encoding="utf-8")
    except OSError as error:
        refuse(f"{path} cannot be written: {error.strerror or error}")


def exit_interrupted() -> NoReturn:
    console.print(INTERRUPTED)
    raise typer.Exit(130)


@contextlib.contextmanager
def bar(start: str, total: int | None, where: Console = console) -> Iterator[Callable[[str, str], None]]:
    """Show a progress bar; without a terminal, print a dot for every new rule and title."""
    title = TextColumn("{task.description:42}", markup=False)
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Standard output stays what it is while the bar moves: whether a subject prints to it is judged.
    options: dict[str, Any] = {"transient": True, "redirect_stdout": where is console}
    last = ""
    with Progress(*columns, console=where, disable=not where.is_terminal, **options) as progress:
        task = progress.add_task(start, total=total)

        def advance(rule: str, title: str) -> None:
            nonlocal last
            description = f"{rule} {title}"
            progress.update(task, advance=1, description=description)
            if not where.is_terminal and description != last:
                print(".", end="", flush=True, file=where.file)
            last = description

        try:
            yield advance
        finally:
            if last and not where.is_terminal:
                print(file=where.file)
