"""A run on a terminal: what is left out of it, its progress, and each case as soon as it is done."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.timing.subjects.timed_subject import Subject
from conformance.timing.timed_case import Case

Result = dict[str, Any]
console = Console(markup=False, highlight=False, emoji=False)
if not console.is_terminal:
    console.width = 160  # in a file no line need be broken

DEVICES = ("cpu", "cuda")


def say(line: str) -> None:
    console.print(line, style="dim")


class Settings(NamedTuple):
    """How a run is made. only, targets, sizes: what the user has named, which the result repeats."""

    device: str
    threads: int
    seed: int
    quick: bool
    only: Sequence[str] = ()
    targets: Sequence[str] = ()
    sizes: Sequence[str] = ()


def read_settings(device: str, threads: int | None, seed: int | None, quick: bool, **named: Any) -> Settings:
    """Return settings with all processors and a fresh seed unless given; ValueError for another device, or too many."""
    from conformance.timing.measure.processes import processors

    if device not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    there = len(processors())
    if threads is not None and threads > there:
        raise ValueError(f"--threads must be at most {there}, the number of processors, got {threads}")
    seed = secrets.randbelow(2**32) if seed is None else seed
    return Settings(device, threads or there, seed, quick, **{name: value or () for name, value in named.items()})


def refuse_machine(device: str, json: Path | None) -> None:
    """Raise ValueError where there is no such device, or the result cannot be written."""
    from conformance.timing.measure.environment import gpu
    from conformance.timing.results.result import refusal

    if device == "cuda" and gpu() is None:
        raise ValueError("--device cuda: neither torch nor JAX sees a GPU here")
    if json is not None and (reason := refusal(json)):
        raise ValueError(f"--json: {reason}")


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
        raise ValueError("no subject is left to time")
    for subject in found:
        if subject.target and subject.operation == "attention" and subject.scores is None:
            say(f"{subject.name}: memory is not estimated: the subject sets no scores=")
    return found


def choose_memory_cases(quick: bool, picked: Sequence[Case]) -> Callable[[Case], bool]:
    """Return which cases measure memory; --quick measures one, because every subject needs a process for it.

    It is the one with most pairs of a query and a key in all heads and batch elements; without its backward pass, where
    there is one without.
    """
    one = max(picked, key=lambda case: (not case.backward, case.B * case.H * case.Q * case.K))
    if quick and len(picked) > 1:
        say(f"memory is measured in one case, {one.name}; without --quick, in all")
    return lambda case: not quick or case is one


# --- a run ------------------------------------------------------------------------------------------------------------

Fit = Callable[[Sequence[Result]], list[Result]]
"""From finished cases to the exponents of their growth."""


def no_fit(cases: Sequence[Result]) -> list[Result]:
    return []


def time_cases(
    cases: Sequence[Case], subjects: Sequence[Subject], settings: Settings, json: Path | None, fit: Fit = no_fit
) -> Result:
    """Time the subjects at the cases, and print what is found; return the result, which `json` holds by then."""
    from conformance.timing.measure import rounds
    from conformance.timing.measure.environment import crowded, environment, in_use, load
    from conformance.timing.measure.processes import processors
    from conformance.timing.measure.running import Plan
    from conformance.timing.results.case_table import legend
    from conformance.timing.results.ranking import count_noun
    from conformance.timing.results.result import empty

    device, threads, seed, quick, only, targets, sizes = settings
    budget = rounds.QUICK if quick else rounds.Budget()
    plan = Plan(
        device, threads, seed, budget, memory=choose_memory_cases(quick, cases), say=say,
        busy=lambda: crowded(load(), len(processors()), own=threads),
    )  # fmt: skip
    told: Result = {"device": device, "threads": threads, "seed": seed, "quick": quick}
    told |= {"rounds": [budget.least, budget.most], "only": [*only], "with": [*targets], "sizes": [*sizes]}
    result = empty(environment(device, threads), told)
    place = result["environment"]["gpu"] or f"{count_noun(threads, 'thread')}, {result['environment']['cpu']}"
    say(f"seed {seed}, {place}")
    say(legend(result["settings"]["level"], budget.most))
    if busy := in_use():
        say(f"other programs use this machine ({busy}): intervals will be wide")
    return execute(plan, cases, subjects, result, json, fit)


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
    plan: Any, cases: Sequence[Case], known: Sequence[Subject], result: Result, json: Path | None, fit: Fit = no_fit
) -> Result:
    """Run all cases, and write the result after each. An interrupt ends the run and keeps the result."""
    from conformance.timing.measure.running import Run
    from conformance.timing.results.case_table import case_table, measured, other_lines, title_of
    from conformance.timing.results.ranking import describe_case
    from conformance.timing.results.result import case_result, save

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
                result |= {"ceilings": run.ceilings, "scaling": fit(result["cases"])}
                keep()
                console.print(title_of(found), style="bold")
                table = [case_table(found, console.width)] if measured(found) else []
                console.print(*describe_case(found), *table, *other_lines(found), sep="\n")
        result["finished"] = True
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        run.close()
    keep()
    return result


def print_end(result: Result) -> None:
    """Print what other programs disturbed, what failed, and what the machine reached."""
    from conformance.timing.results.case_table import busy_cases, ceiling_lines
    from conformance.timing.results.ranking import failures

    if busy := busy_cases(result["cases"]):
        console.print(f"{busy.capitalize()}: times are too long, and ratios may be wrong", style="yellow")
    if failed := failures(result["cases"]):
        console.print(failed, style="bold red")
    for line in ceiling_lines(result["ceilings"]):
        console.print(line)


def exit_code(result: Result) -> int:
    """Return 130 after an interrupt, 1 where a subject failed, else 0."""
    failed = any(one["status"] == "failed" for case in result["cases"] for one in case["subjects"])
    return 1 if result["finished"] and failed else 0 if result["finished"] else 130
