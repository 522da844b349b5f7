"""`python -m benchmarks`: run the benchmarks, compare two results, plot one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Column, Table

from conformance.cli.bench import Json, Sizes, Threads
from conformance.cli.console import refuse
from conformance.cli.options import Seed
from conformance.timing.subjects.registry import contains_word, refuse_same_names, subject_at
from conformance.timing.subjects.timed_subject import Subject
from conformance.timing.terminal import (
    console,
    exit_code,
    print_end,
    read_settings,
    refuse_machine,
    say,
    time_cases,
    usable_subjects,
)
from conformance.timing.timed_case import Case

app = typer.Typer(
    add_completion=False,
    help="Time attention and layer norm, and judge every result. Without a command: run.",
    epilog="Options such as --quick, --only, --with and --json belong to run: python -m benchmarks run --help",
)

QUICK = "small cases of most kinds; two minutes on two quiet cores"
ONLY = "part of a case's or subject's name; may be repeated"
WITH = "a function or a subject of your own, as package.module:NAME or path/to/file.py:NAME; may be repeated"


def choose(words: Sequence[str], cases: Sequence[Case], known: Sequence[Subject]) -> tuple[list[Case], list[Subject]]:
    """Return cases and subjects whose names contain a word; a word that no case contains chooses subjects."""
    of_cases = [word for word in words if any(contains_word(case.name, word) for case in cases)]
    of_subjects = [word for word in words if word not in of_cases]
    for word in of_subjects:
        if not any(contains_word(subject.name, word) for subject in known):
            listed = [f"{what}: {'; '.join(one.name for one in every)}"
                      for what, every in (("cases", cases), ("subjects", known))]  # fmt: skip
            raise ValueError("\n".join([f"no case or subject has {word!r} in its name", *listed]))
    subjects = [one for one in known if not of_subjects or any(contains_word(one.name, word) for word in of_subjects)]
    operations = {one.operation for one in subjects}
    picked = [case for case in cases if not of_cases or any(contains_word(case.name, word) for word in of_cases)]
    picked = [case for case in picked if case.operation in operations]
    if not picked:
        raise ValueError(f"none of the subjects that {', '.join(map(repr, of_subjects))} names is for these cases")
    return picked, subjects


@app.command()
def run(
    quick: Annotated[bool, typer.Option("--quick", help=QUICK)] = False,
    only: Annotated[list[str] | None, typer.Option(help=ONLY)] = None,
    json: Json = None,
    plots: Annotated[Path | None, typer.Option(help="write pictures (SVG) to this folder", metavar="DIR")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; a GPU has larger cases")] = "cpu",
    threads: Threads = None,
    seed: Seed = None,
    sizes: Sizes = None,
    others: Annotated[list[str] | None, typer.Option("--with", help=WITH, metavar="TARGET")] = None,
    listed: Annotated[bool, typer.Option("--list", help="print cases, and what memory leaves out; time none")] = False,
) -> None:
    """Time all installed subjects. Exit code 1 if a subject failed, 2 for wrong usage."""
    from benchmarks.cases import cases as listed_cases
    from benchmarks.results.scaling import scaling
    from benchmarks.subjects import subjects
    from conformance.timing.sizes import read_sizes

    try:
        settings = read_settings(device, threads, seed, quick, only=only, targets=others, sizes=sizes)
        every = [*subjects().values(), *(subject_at(target, device=device) for target in others or ())]
        refuse_same_names(every)
        cases = [case for text in sizes or () for case in read_sizes(text, device)] or listed_cases(device, quick)
        picked, asked = choose(only or (), cases, every)
        named = any(not any(contains_word(case.name, word) for case in cases) for word in only or ())
        if not listed:
            refuse_machine(device, json)
        known = usable_subjects(asked, device, quick and not named, named)
    except ValueError as error:
        refuse(str(error))
    if listed:
        list_cases(picked, known, device)
    else:
        finish(time_cases(picked, known, settings, json, scaling), plots)


def list_cases(cases: Sequence[Case], subjects: Sequence[Subject], device: str) -> None:
    from conformance.timing.measure import memory

    free = memory.available(device)
    for case in cases:
        console.print(case.name)
        for subject in subjects:
            reason = "" if subject.hindrance(case, device) else memory.hindrance(subject, case, free)
            if reason:
                say(f"  left out {subject.name}: {reason}")
    console.print(f"subjects: {'; '.join(subject.name for subject in subjects)}")


def finish(result: dict[str, Any], plots: Path | None) -> NoReturn:
    """Print the findings, the ceilings and the growth, draw the pictures, and exit."""
    from benchmarks.results.findings import describe_cases
    from benchmarks.results.scaling import WHAT_THEN, in_words
    from conformance.timing.results.result import device_memory

    cases = result["cases"]
    if len(cases) > 1:
        console.print("All cases", style="bold")
        console.print(*describe_cases(cases), sep="\n")
    print_end(result)
    lines = in_words(cases, device_memory(result))
    lines += [WHAT_THEN] if any(" would fill " in line for line in lines) else []
    console.print(*lines, sep="\n", end="\n" if lines else "")
    draw(result, plots)
    raise typer.Exit(exit_code(result))


def draw(result: dict[str, Any], folder: Path | None) -> None:
    if folder is None:
        return
    try:
        from benchmarks.results.plots import plot

        written = plot(result, folder)
    except ImportError as error:
        return say(f"no pictures: {error.name} is not installed; pip install -e '.[plots]' has it")
    except OSError as error:
        return say(f"no pictures: {error.filename}: {error.strerror}")
    if not written:
        reason = "the result has no times to compare" if result["cases"] else "no case is finished"
        say(f"no pictures: {reason}")
    for path in written:
        say(f"wrote {path}")


@contextmanager
def refuse_unreadable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        refuse(str(error))
    except (KeyError, TypeError) as error:
        refuse(f"not a result of this format: {error!r}")


@app.command()
def ranks(
    quick: Annotated[bool, typer.Option("--quick", help="short lengths, and at most 4 ranks")] = False,
    lengths: Annotated[list[int] | None, typer.Option("--length", help="tokens; may be repeated", min=16)] = None,
    tokens: Annotated[int, typer.Option(help="length of the simulation, a multiple of 2048", min=2048)] = 2**20,
    json: Annotated[Path | None, typer.Option(help="write the result to this file", metavar="FILE")] = None,
    seed: Seed = None,
) -> None:
    """Time attention over ranks, count what they send and need, and simulate more of them.

    Exit code 1 if a result is wrong, a rank fails, or sends other bytes than the formula says.
    """
    from benchmarks.ranks.tables import LENGTHS, QUICK_LENGTHS, benchmark_ranks
    from conformance.timing.measure.processes import Failed

    try:
        settings = read_settings("cpu", 1, seed, quick)
        refuse_machine("cpu", json)
        if tokens % 2048:
            raise ValueError(f"--tokens must be a multiple of 2048, got {tokens}")
        benchmark_ranks(quick, lengths or (QUICK_LENGTHS if quick else LENGTHS), tokens, settings.seed, json)
    except ValueError as error:
        refuse(str(error))
    except Failed as failed:
        refuse(str(failed), code=1)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="an earlier result, written by --json", metavar="A.json")],
    after: Annotated[Path, typer.Argument(help="a later result", metavar="B.json")],
) -> None:
    """Compare two results: faster, slower or noise.

    Exit code 1 if one of our subjects or of yours is slower, 2 if nothing has a verdict.
    """
    from benchmarks.results.compare import NO_VERDICT, SLOWER
    from benchmarks.results.compare import compare as compared
    from benchmarks.results.findings import describe_comparison
    from conformance.timing.results.result import read

    with refuse_unreadable():
        found = compared(read(before), read(after))
    console.print(*describe_comparison(found), sep="\n")
    for line in found.circumstances:
        say(line)
    if not found.changes:
        raise typer.Exit(2)
    headings = ("time B / A", "interval", "same libraries" if found.drift else "")
    table = Table("case", "subject", *(Column(name, justify="right") for name in headings), "", box=None)
    styles = {"faster": "green", "slower": "bold red"}
    for one in found.changes:
        if one.yours or one.verdict != NO_VERDICT:
            same = "{:.2f} to {:.2f}".format(*found.drift[one.case]) if one.case in found.drift else ""
            cells = [one.case, one.subject, f"{one.ratio:.2f}", f"[{one.low:.2f}, {one.high:.2f}]", same, one.verdict]
            table.add_row(*cells, style=styles.get(one.verdict, "dim"))
    if table.rows:
        console.print(table)
    if all(one.verdict == NO_VERDICT for one in found.changes):
        raise typer.Exit(2)
    raise typer.Exit(1 if any(one.own and one.verdict == SLOWER for one in found.changes) else 0)


@app.command()
def plot(
    result: Annotated[Path, typer.Argument(help="a result, written by --json", metavar="RESULT.json")],
    folder: Annotated[Path, typer.Option("--to", help="the folder for them", metavar="DIR")] = Path("benchmark-plots"),
) -> None:
    """Draw pictures of a result, as SVG."""
    from conformance.timing.results.result import read

    with refuse_unreadable():
        draw(read(result), folder)


def main() -> None:
    words = sys.argv[1:]
    if not words or (words[0].startswith("-") and words[0] != "--help"):
        words = ["run", *words]
    app(words)


if __name__ == "__main__":
    main()
