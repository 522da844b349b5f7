"""`python -m benchmarks`: run the benchmarks, compare two results, plot one."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from benchmarks.cases import Case
from benchmarks.subjects.subject import Subject

app = typer.Typer(
    add_completion=False,
    help="Time attention and layer norm, and judge every result. Without a command: run.",
    epilog="Options such as --quick, --only, --with and --json belong to run: python -m benchmarks run --help",
)
console = Console(markup=False, highlight=False, emoji=False)
if not console.is_terminal:
    console.width = 160  # in a file no line need be broken

DEVICES = ("cpu", "cuda")
QUICK = "small cases of most kinds; two minutes on two quiet cores"
JSON = "write the result to this file, again after every case"
SEED = "generate the same inputs again; by default a fresh seed"
OWN = 'time these sizes instead, e.g. "B=1, H=16, G=4, T=2048, D=64, causal" or "layer norm, B=8, T=512, D=768"'
WITH = "a subject of your own, as package.module:NAME or path/to/file.py:NAME; may be repeated"


def refuse(message: str) -> NoReturn:
    console.print(message, style="red")
    raise typer.Exit(2)


def names(word: str, one: Case | Subject) -> bool:
    """Whether the word stands in its name, in small letters or large."""
    return word.casefold() in one.name.casefold()


def choose(words: Sequence[str], cases: Sequence[Case], known: Sequence[Subject]) -> tuple[list[Case], list[Subject]]:
    """Return cases and subjects whose names contain a word; a word that no case contains chooses subjects."""
    of_cases = [word for word in words if any(names(word, case) for case in cases)]
    of_subjects = [word for word in words if word not in of_cases]
    for word in of_subjects:
        if not any(names(word, subject) for subject in known):
            listed = [f"{what}: {'; '.join(one.name for one in every)}"
                      for what, every in (("cases", cases), ("subjects", known))]  # fmt: skip
            raise ValueError("\n".join([f"no case or subject has {word!r} in its name", *listed]))
    subjects = [one for one in known if not of_subjects or any(names(word, one) for word in of_subjects)]
    operations = {one.operation for one in subjects}
    picked = [case for case in cases if not of_cases or any(names(word, case) for word in of_cases)]
    picked = [case for case in picked if case.operation in operations]
    if not picked:
        raise ValueError(f"none of the subjects that {', '.join(map(repr, of_subjects))} names is for these cases")
    return picked, subjects


@app.command()
def run(
    quick: Annotated[bool, typer.Option("--quick", help=QUICK)] = False,
    only: Annotated[list[str] | None, typer.Option(help="part of a case's or subject's name; may be repeated")] = None,
    json: Annotated[Path | None, typer.Option(help=JSON, metavar="FILE")] = None,
    plots: Annotated[Path | None, typer.Option(help="write pictures (SVG) to this folder", metavar="DIR")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; a GPU has larger cases")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="threads; by default all processors", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help=SEED, min=0)] = None,
    sizes: Annotated[list[str] | None, typer.Option("--case", help=f"{OWN}; may be repeated", metavar="SIZES")] = None,
    others: Annotated[list[str] | None, typer.Option("--with", help=WITH, metavar="TARGET")] = None,
    listed: Annotated[bool, typer.Option("--list", help="print cases, and what memory leaves out; time none")] = False,
) -> None:
    """Time all installed subjects. Exit code 1 if a subject failed, 2 for wrong usage."""
    from benchmarks.cases import cases as listed_cases
    from benchmarks.measure import memory, rounds
    from benchmarks.measure.environment import crowded, environment, gpu, in_use, load
    from benchmarks.measure.running import Plan
    from benchmarks.measure.workers import processors
    from benchmarks.own_cases import own_cases
    from benchmarks.results.findings import counted
    from benchmarks.results.result import empty, refusal
    from benchmarks.results.tables import legend
    from benchmarks.subjects.registry import made_elsewhere, subject_at, subjects

    if device not in DEVICES:
        refuse(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    there = len(processors())
    if threads is not None and threads > there:
        refuse(f"--threads must be at most {there}, the number of processors, got {threads}")
    try:
        mine = [subject_at(target) for target in others or ()]
        every = [*subjects().values(), *mine]
        # Results are stored by name, and two of yours may not be one code.
        for what, told in (("name", [one.name for one in every]), ("make", [one.make for one in every if one.yours])):
            if twice := [one for one, count in Counter(told).items() if count > 1]:
                raise ValueError(f"--with: two subjects have the {what} {twice[0]!r}")
        cases = [case for text in sizes or () for case in own_cases(text, device)] or listed_cases(device, quick)
        picked, asked = choose(only or (), cases, every)
    except ValueError as error:
        refuse(str(error))
    named = any(not any(names(word, case) for case in cases) for word in only or ())
    usable = partial(usable_subjects, asked, device, quick and not named, named)
    if listed:
        known, free = usable(), memory.available(device)
        for case in picked:
            console.print(case.name)
            for subject in known:
                reason = "" if subject.hindrance(case, device) else memory.hindrance(subject, case, free)
                if reason:
                    say(f"  left out {subject.name}: {reason}")
        console.print(f"subjects: {'; '.join(subject.name for subject in known)}")
        raise typer.Exit(0)
    if device == "cuda" and gpu() is None:
        refuse("--device cuda: neither torch nor JAX sees a GPU here")
    if json is not None and (reason := refusal(json)):
        refuse(f"--json: {reason}")
    known, threads = usable(), threads or there
    seed = secrets.randbelow(2**32) if seed is None else seed
    budget = rounds.QUICK if quick else rounds.Budget()
    plan = Plan(
        device, threads, seed, budget, memory=memory_wanted(quick, picked), say=lambda line: say(line),
        busy=lambda: crowded(load(), there, own=threads),
    )  # fmt: skip
    settings: dict[str, Any] = {"device": device, "threads": threads, "seed": seed, "quick": quick}
    settings |= {"rounds": [budget.least, budget.most], "only": only or [], "with": others or [], "sizes": sizes or []}
    result = empty(environment(device, threads), settings)
    place = result["environment"]["gpu"] or f"{counted(threads, 'thread')}, {result['environment']['cpu']}"
    say(f"seed {seed}, {place}")
    for subject, target in zip(mine, others or (), strict=True):
        if elsewhere := made_elsewhere(subject, target):
            say(elsewhere)
    say(legend(result["settings"]["level"], budget.most))
    if busy := in_use():
        say(f"other programs use this machine ({busy}): intervals will be wide")
    finish(execute(plan, picked, known, result, json), plots)


def memory_wanted(quick: bool, picked: Sequence[Case]) -> Callable[[Case], bool]:
    """Return which cases measure memory; --quick measures one, because every subject needs a process for it.

    It is the one with most pairs of a query and a key in all heads and batch elements; without its backward pass, where
    there is one without.
    """
    one = max(picked, key=lambda case: (not case.backward, case.B * case.H * case.Q * case.K))
    if quick and len(picked) > 1:
        say(f"memory is measured in one case, {one.name}; without --quick, in all")
    return lambda case: not quick or case is one


def usable_subjects(asked: Sequence[Subject], device: str, quick: bool, named: bool) -> list[Subject]:
    """Return the subjects that are installed, run on this device and, if quick, are not slow; print why others do not.

    named: the user has named them; otherwise subjects of other devices are not mentioned.
    """
    found: list[Subject] = []
    reasons: dict[str, list[str]] = {}
    for subject in asked:
        elsewhere = "" if device in subject.device else f"it runs on {subject.device} only"
        reason = elsewhere or subject.absent or (f"--quick: {subject.slow}" if quick and subject.slow else "")
        if not reason:
            found.append(subject)
        elif named or not elsewhere:
            reasons.setdefault(reason, []).append(subject.name)
    for reason, names in reasons.items():
        say(f"left out ({reason}): {'; '.join(names)}")
    if not found:
        refuse("no subject is left to time")
    for subject in found:
        if subject.yours and subject.operation == "attention" and subject.scores is None:
            say(f"{subject.name}: memory is not estimated: the subject sets no scores=")
    return found


def say(line: str) -> None:
    console.print(line, style="dim")


@contextmanager
def progress(plan: Any, total: int) -> Iterator[Any]:
    """Show a progress bar; without a terminal, print a line for each case."""
    columns = (TextColumn("{task.description:60.60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=total)

        def begin(name: str, done: int) -> None:
            shown.update(task, completed=done, description=name)
            plan.step = lambda text: shown.update(task, description=f"{name}: {text}")
            if not console.is_terminal:
                say(f"{done + 1} of {total}: {name}")

        plan.step = lambda text: shown.update(task, description=f": {text}")
        yield begin


def execute(
    plan: Any, cases: Sequence[Case], known: Sequence[Subject], result: dict[str, Any], json: Path | None
) -> dict[str, Any]:
    """Run all cases, and write the result after each. An interrupt ends the run and keeps the result."""
    from benchmarks.measure.running import Run
    from benchmarks.results.findings import of_case
    from benchmarks.results.result import case_result, save
    from benchmarks.results.scaling import scaling
    from benchmarks.results.tables import case_table, measured, other_lines, title_of

    def keep() -> None:
        try:
            if json is not None:
                save(result, json)
        except OSError as error:
            say(f"{json} was not written: {error.strerror or error}")

    run = Run(plan, known)
    try:
        with progress(plan, len(cases)) as begin:
            run.measure_ceilings(sorted({case.dtype for case in cases}))
            for number, case in enumerate(cases):
                begin(case.name, number)
                found = case_result(case, *run.case(case), run.ceilings, run.busy)
                result["cases"].append(found)
                result |= {"ceilings": run.ceilings, "scaling": scaling(result["cases"])}
                keep()
                console.print(title_of(found), style="bold")
                table = [case_table(found, console.width)] if measured(found) else []
                console.print(*of_case(found), *table, *other_lines(found), sep="\n")
        result["finished"] = True
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        run.close()
    keep()
    return result


def finish(result: dict[str, Any], plots: Path | None) -> NoReturn:
    """Print the findings, the ceilings and the growth, draw the pictures, and exit."""
    from benchmarks.results.findings import failures, of_cases
    from benchmarks.results.result import device_memory
    from benchmarks.results.scaling import WHAT_THEN, in_words
    from benchmarks.results.tables import busy_cases, ceiling_lines

    cases = result["cases"]
    if len(cases) > 1:
        console.print("All cases", style="bold")
        console.print(*of_cases(cases), sep="\n")
    if busy := busy_cases(cases):
        console.print(f"{busy.capitalize()}: times are too long, and ratios may be wrong", style="yellow")
    if failed := failures(cases):
        console.print(failed, style="bold red")
    lines = [*ceiling_lines(result["ceilings"]), *in_words(cases, device_memory(result))]
    lines += [WHAT_THEN] if any(" would fill " in line for line in lines) else []
    console.print(*lines, sep="\n", end="\n" if lines else "")
    draw(result, plots)
    if not result["finished"]:
        raise typer.Exit(130)
    raise typer.Exit(1 if failed else 0)


def draw(result: dict[str, Any], folder: Path | None) -> None:
    if folder is None:
        return
    try:
        from benchmarks.results.plots import plot

        written = plot(result, folder)
    except ImportError as error:
        return say(f"no pictures: {error.name} is not installed; pip install 'transformer-conformance[bench]' has it")
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
def compare(
    before: Annotated[Path, typer.Argument(help="an earlier result, written by --json", metavar="A.json")],
    after: Annotated[Path, typer.Argument(help="a later result", metavar="B.json")],
) -> None:
    """Compare two results: faster, slower or noise.

    Exit code 1 if one of our subjects or of yours is slower, 2 if nothing has a verdict.
    """
    from benchmarks.results.compare import NO_VERDICT, SLOWER
    from benchmarks.results.compare import compare as compared
    from benchmarks.results.findings import of_comparison
    from benchmarks.results.result import read

    with refuse_unreadable():
        found = compared(read(before), read(after))
    console.print(*of_comparison(found), sep="\n")
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
    from benchmarks.results.result import read

    with refuse_unreadable():
        draw(read(result), folder)


def main() -> None:
    words = sys.argv[1:]
    if not words or (words[0].startswith("-") and words[0] != "--help"):
        words = ["run", *words]
    app(words)


if __name__ == "__main__":
    main()
