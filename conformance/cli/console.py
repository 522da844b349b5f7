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
    """Return an error in one line."""
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


def save_report(report: dict[str, Any], files: dict[str, Path | None]) -> None:
    """Write the report to files, by format; None for a file that the user did not name."""
    from conformance.reports.writing import write

    try:
        write(report, files)
    except ValueError as error:
        refuse(str(error))


def save_steps(path: Path, content: dict[str, Any]) -> None:
    """Write what `port`, `trace` or `watch` has judged."""
    from conformance.reports.writing import format_json

    try:
        path.write_text(format_json(content), encoding="utf-8")
    except OSError as error:
        refuse(f"{path} cannot be written: {error.strerror or error}")


def exit_interrupted() -> NoReturn:
    console.print("interrupted")
    raise typer.Exit(130)


@contextlib.contextmanager
def bar(start: str, total: int | None, where: Console = console) -> Iterator[Callable[[str, str], None]]:
    """Show a progress bar; without a terminal, print a dot for every new rule and title."""
    title = TextColumn("{task.description:42}", markup=False)
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Standard output stays what it is while the bar moves: whether a subject prints to it is judged.
    last = ""
    with Progress(
        *columns,
        console=where,
        transient=True,
        disable=not where.is_terminal,
        redirect_stdout=where is console,
    ) as progress:
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
