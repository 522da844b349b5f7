"""`conformance bench`: time a function beside known ones; a wrong result gets no time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import explain_error, refuse
from conformance.cli.options import REPORTS, Device, Seed, complete_names, option

OPERATION = "what the function computes, attention or layer_norm; by default what its name says"
SIZES = 'sizes to time, such as "B=1, H=16, G=4, T=2048, D=64, causal" or "layer norm, B=8, T=512, D=768"'
AGAINST = (
    "part of the name of a subject to compare with, or another function like TARGET; by default the default engine of "
    "this project and the framework's own fused operation"
)
QUICK = "fewer rounds, and small cases by default"
JSON = "write the result to this file, again after every case"


def timed_operations() -> Iterable[str]:
    from conformance.timing.timed_case import FUNCTIONS

    return FUNCTIONS


Threads = Annotated[int | None, typer.Option(help="threads; by default all processors", min=1)]
Sizes = Annotated[list[str] | None, typer.Option("--case", help=f"{SIZES}; may be repeated", metavar="SIZES")]
Json = Annotated[Path | None, typer.Option(help=JSON, metavar="FILE", rich_help_panel=REPORTS)]


def bench(
    target: Annotated[str, typer.Argument(help="package.module:callable or path/to/file.py:callable")],
    operation: Annotated[
        str | None, typer.Option(help=OPERATION, autocompletion=complete_names(timed_operations))
    ] = None,
    arrays: Annotated[str | None, option("arrays")] = None,
    sizes: Sizes = None,
    against: Annotated[
        list[str] | None, typer.Option("--against", "--only", help=f"{AGAINST}; may be repeated", metavar="TEXT")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK)] = False,
    device: Device = "cpu",
    threads: Threads = None,
    seed: Seed = None,
    json: Json = None,
) -> None:
    """Time a function, and judge every result: a wrong one gets no time.

    The function has the parameters that conformance check gives it. Without a parameter `mask` it may have a flag
    `causal` or `is_causal`. Cases that it does not support are left out, by its signature and conformance.declare.

    Exit code 0: everything has a time, or a reason for none. 1: a result is wrong, or a call failed. 2: wrong usage.
    130: interrupted.
    """
    from conformance.cases.options import refuse_unknown
    from conformance.judge.options import array_names
    from conformance.timing.sizes import read_sizes, usual_cases
    from conformance.timing.subjects.registry import compared_subjects, refuse_same_names, subject_at
    from conformance.timing.terminal import (
        exit_code,
        print_end,
        read_settings,
        refuse_machine,
        say,
        time_cases,
        usable_subjects,
    )

    try:
        refuse_unknown("--operation", [operation] if operation else [], tuple(timed_operations()))
        refuse_unknown("--arrays", [arrays] if arrays else [], tuple(array_names()))
        settings = read_settings(device, threads, seed, quick, only=against, targets=[target], sizes=sizes)
        refuse_machine(device, json)
        cases = [case for text in sizes or () for case in read_sizes(text, device)]
        mine = subject_at(target, operation, arrays, device)
        others = compared_subjects(mine, against or (), device)
        refuse_same_names([*others, mine])
        cases = cases or usual_cases(mine.operation, device, quick)
        known = usable_subjects([*others, mine], device, quick and not against, bool(against))
        reasons = {case: mine.hindrance(case, device) for case in cases}
        if arrays is None and not mine.target:
            say(f"{target}: arrays of {mine.arrays}; --arrays names others")
        for case, reason in reasons.items():
            if reason:
                say(f"left out {case.name}: {reason}")
        if not (picked := [case for case, reason in reasons.items() if not reason]):
            raise ValueError(f"no case is left for {target}")
    except Exception as error:
        refuse(explain_error(error))
    result = time_cases(picked, known, settings, json)
    print_end(result)
    raise typer.Exit(exit_code(result))
