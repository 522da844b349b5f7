"""`conformance run`: judge the three implementations of this project."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from conformance.cli.console import INTERRUPTED, bar, console, errors, explain_error, save_and_exit
from conformance.cli.options import CORES, Device, Effort, Html, Json, Junit, Seed, Workers, complete_names
from specification import MODEL_RULES, RULES

if TYPE_CHECKING:
    from conformance.checks.results import Results
    from conformance.judge.batches import Shard
    from conformance.reports.parts import Found

FRAMEWORKS = {"reference_numpy": "numpy", "torch_impl": "torch", "jax_impl": "jax"}
ONLY = "an implementation or a rule; may be repeated"
SHARD = "judge one part, such as 3/8, the third of eight; conformance merge joins the --json files of all"
CHOICES = (*FRAMEWORKS, *RULES)
WITHOUT_PROBES = "{} has no probes: tests hold it, and conformance port where it is about whole models"


def run(
    effort: Effort = "default",
    cases: Annotated[int | None, typer.Option(help="cases for each probe; replaces --effort", min=1)] = None,
    seed: Seed = None,
    repeat: Annotated[int, typer.Option(help="number of runs, each with the next seed", min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help=ONLY, autocompletion=complete_names(lambda: CHOICES))] = None,
    workers: Workers = CORES,
    device: Device = "cpu",
    peers: Annotated[bool, typer.Option("--peers", help="also judge other libraries, for comparison")] = False,
    shard: Annotated[str | None, typer.Option(help=SHARD, metavar="PART/PARTS")] = None,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Judge the three implementations by every rule of single operations, on generated cases.

    The rules of whole models (BLK, TRF and GEN) and of several ranks (DIST) have no probes: tests hold them, and
    conformance port judges a checkpoint.

    Exit code 0: all conform. 1: one does not. 2: wrong usage, or the judge could not finish. 130: interrupted.
    """
    from conformance.judge.batches import (
        ImplementationPool,
        confirm_violations,
        list_groups,
        merge,
        merge_run,
        plan_of_operations,
    )
    from conformance.reports.content import document
    from conformance.reports.parts import part_content
    from conformance.reports.subjects import checked_content

    files = {"json": json, "junit": junit, "html": html}
    first = secrets.randbelow(2**32) if seed is None else seed
    told: dict[str, Any] = {"seed": first, "effort": effort if cases is None else None, "runs": repeat}
    try:
        part = None if shard is None else choose_part(shard, seed, peers)
        names, rules, examples = make_plan(effort, cases, only or [], device)
    except ValueError as error:
        errors.print(Text(str(error)), soft_wrap=True)
        save_and_exit(document("run", [], error=str(error), **told), files)
    groups, plan = list_groups(rules, examples, part), plan_of_operations()
    probes = sum(plan[index].kind == "probe" for group in groups for index in group.indices)
    runs, start = list["Found"](), time.monotonic()
    stopped: list[str] = []  # why, if the judge has
    of_peers: list[dict[str, Any]] = []
    with record_errors(stopped), contextlib.closing(ImplementationPool(names, workers, device)) as pool:
        for number in range(first, first + repeat):
            with bar("loading the frameworks", probes) as advance:
                found = pool.run(groups, examples, number, advance)
            if part is None:  # a part keeps them apart: another one may have what stands before a violation
                found = {0: merge(found.values())}
            runs.append(found)  # the results count, also if trying again fails
            for results in found.values():
                confirm_violations(results, device)
            print_run(merge_run(found), number)
    total = print_total([*map(merge_run, runs)], names, examples, repeat, ended=not stopped)
    if part is not None:
        console.print(f"this is {part}; conformance merge joins the reports of all")
    if peers and not stopped:
        with record_errors(stopped):
            from conformance.peers.matrix import matrix
            from conformance.peers.rows import rows_of
            from conformance.peers.terminal import render_rows
            from conformance.ports.report import ModelReport
            from conformance.reports.ports import model_content

            with bar("loading the peers", None, errors) as advance:
                reports = matrix(effort, first, say=lambda line: console.print(Text(line)), progress=advance)
            console.print(render_rows(rows_of(reports)))
            of_peers = [
                model_content(report) | {"peer": True}
                if isinstance(report, ModelReport)
                else checked_content(report, None, peer=True)
                for report in reports
            ]
    told |= {"cases": examples, "seconds": time.monotonic() - start, "error": stopped[0] if stopped else None}
    left_out = "" if part is None else f"all but {part} of the run"
    subjects = run_subjects(total, names if runs else [], device, rules, describe_untried(len(runs), repeat), left_out)
    report = document("run", subjects + of_peers, **told)
    if part is not None:
        report["part"] = part_content(*part, only or [], device, names, runs)
    if stopped:
        errors.print(Text(f"not judged to the end: {report['error']}"), soft_wrap=True)
    save_and_exit(report, files)


def print_run(results: Results, seed: int) -> None:
    """Print what one run has found."""
    from conformance.reports import tables

    console.print(f"seed {seed}: {'conforms' if results.conforms else 'violations'}")
    for violation in results.violations.values():
        console.print(tables.violation_lines(violation))


def print_total(runs: Sequence[Results], names: Sequence[str], examples: int, repeat: int, ended: bool) -> Results:
    """Print what all runs have found together, and return it. ended: False if an error stopped the judge."""
    from conformance.judge.batches import merge
    from conformance.reports import tables

    total, failures = merge(runs), sum(not results.conforms for results in runs)
    if runs:
        total.set_worst()
        console.print(tables.report(total, names, ended))
        of = f"{repeat} run{'s' * (repeat > 1)}" if len(runs) == repeat else f"{len(runs)} of {repeat} runs"
        console.print(f"{of} of {examples} cases for each probe, {failures} with violations")
    return total


def describe_untried(runs: int, repeat: int) -> str:
    return "" if runs == repeat else f"{runs} of {repeat} runs ended"


def run_subjects(
    total: Results, names: Sequence[str], device: str, rules: Sequence[str], untried: str, left_out: str = ""
) -> list[dict[str, Any]]:
    """Return the parts of the report about the implementations."""
    from conformance.reports.subjects import run_subject

    return [run_subject(total, name, FRAMEWORKS[name], device, rules, untried, left_out) for name in names]


def choose_part(shard: str, seed: int | None, peers: bool) -> Shard:
    """Return the part that the user asks for; ValueError where the other options leave no parts of one run."""
    from conformance.judge.batches import read_shard

    part = read_shard(shard)
    if seed is None:
        raise ValueError("--shard needs --seed, the same one for all parts")
    if peers:
        raise ValueError("--shard splits the run of the three implementations; judge --peers by a run of their own")
    return part


def choose_rules(only: Collection[str]) -> list[str]:
    """Return the rules among these names, in their order; all if there is none."""
    return [name for name in only if name in RULES] or list(RULES)


def make_plan(effort: str, cases: int | None, only: list[str], device: str) -> tuple[list[str], list[str], int]:
    """Return implementations, rules, and cases for each probe; ValueError for an unknown name or a missing device."""
    from conformance.judge.options import EFFORTS
    from conformance.judge.report import NO_ORACLE
    from conformance.oracle.reference import balls_available

    if without := [name for name in only if name in MODEL_RULES]:
        raise ValueError(WITHOUT_PROBES.format(without[0]))
    if wrong := [name for name in only if name not in CHOICES]:
        taken = f"{', '.join(FRAMEWORKS)} or a rule (conformance rules)"
        raise ValueError(f"not understood: {wrong[0]}; --only takes {taken}")
    if effort not in EFFORTS:
        raise ValueError(f"not understood: {effort}; --effort takes {', '.join(EFFORTS)}")
    cuda = device == "cuda" and find_spec("torch") and import_module("torch").cuda.is_available()
    if device != "cpu" and not cuda:
        raise ValueError(f"no device {device} here; cpu, or cuda where PyTorch sees a GPU")
    rules = choose_rules(only)
    names = [n for n in [name for name in only if name in FRAMEWORKS] or FRAMEWORKS if available(n)]
    if not names:
        raise ValueError("nothing to judge: no framework of the chosen implementations is installed")
    if not balls_available():
        console.print(NO_ORACLE)
    return names, rules, EFFORTS[effort] if cases is None else cases


def available(name: str) -> bool:
    if find_spec(FRAMEWORKS[name]) is None:
        console.print(f"{name} is skipped: {FRAMEWORKS[name]} is not installed")
        return False
    return True


@contextlib.contextmanager
def record_errors(stopped: list[str]) -> Iterator[None]:
    """Keep an error of the judge, or an interrupt, beside the results so far."""
    from conformance.runner.in_process import JudgeError

    try:
        yield
    except KeyboardInterrupt:
        stopped.append(INTERRUPTED)
    except (Exception, JudgeError) as error:
        stopped.append(explain_error(error))
