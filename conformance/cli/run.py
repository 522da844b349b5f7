"""`conformance run`: judge the three implementations of this project."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.text import Text

from conformance.cli.console import bar, console, errors, explain_error, save_report
from conformance.cli.options import CORES, Device, Effort, Html, Json, Junit, Seed, Workers, complete_names
from specification import MODEL_RULES, RULES

if TYPE_CHECKING:
    from conformance.checks.results import Results

FRAMEWORKS = {"reference_numpy": "numpy", "torch_impl": "torch", "jax_impl": "jax"}
INTERRUPTED = "interrupted"
ONLY = "an implementation or a rule; may be repeated"
CHOICES = (*FRAMEWORKS, *RULES)
OF_MODELS = "{} is a rule of whole models and has no probes: its tests and conformance port hold it"


class Plan(NamedTuple):
    """What to judge. names: the implementations. seeds: one for each run."""

    names: list[str]
    rules: list[str]
    examples: int
    seeds: range
    device: str


@dataclass
class Found:
    """Results so far. runs: how many ended, `failures` of them with violations. error: why the judge stopped."""

    results: Results
    runs: int = 0
    failures: int = 0
    peers: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def run(
    effort: Effort = "default",
    cases: Annotated[int | None, typer.Option(help="cases for each probe; replaces --effort", min=1)] = None,
    seed: Seed = None,
    repeat: Annotated[int, typer.Option(help="number of runs, each with the next seed", min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help=ONLY, autocompletion=complete_names(lambda: CHOICES))] = None,
    workers: Workers = CORES,
    device: Device = "cpu",
    peers: Annotated[bool, typer.Option("--peers", help="also judge other libraries, for comparison")] = False,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Judge the three implementations by every rule of single operations, on generated cases.

    The rules of whole models (BLK, TRF and GEN) have no probes: tests hold them on small models, and conformance port
    judges a checkpoint.

    Exit code 0: all conform. 1: one does not. 2: wrong usage, or the judge could not finish. 130: interrupted.
    """
    from conformance.checks.results import Results
    from conformance.reports.content import document

    files = {"json": json, "junit": junit, "html": html}
    first = secrets.randbelow(2**32) if seed is None else seed
    told: dict[str, Any] = {"seed": first, "effort": effort if cases is None else None, "runs": repeat}
    try:
        plan = make_plan(effort, cases, range(first, first + repeat), only or [], device)
    except ValueError as error:
        errors.print(Text(str(error)), soft_wrap=True)
        save_report(document("run", [], error=str(error), **told), files)
        raise typer.Exit(2) from None
    found, start = Found(Results()), time.monotonic()
    with record_errors(found):
        judge(plan, workers, found)
    tell(plan, found)
    if peers and found.error is None:
        with record_errors(found):
            found.peers = peers_of(effort, first)
    told |= {"cases": plan.examples, "seconds": time.monotonic() - start, "error": found.error}
    report = document("run", subjects_of(plan, found), **told)
    if found.error is not None:
        errors.print(Text(f"not judged to the end: {report['error']}"), soft_wrap=True)
    save_report(report, files)
    raise typer.Exit(exit_code(report))


def exit_code(report: dict[str, Any]) -> int:
    if report["error"] is not None:
        return 130 if report["error"] == INTERRUPTED else 2
    return 0 if report["conforms"] else 1


# --- the plan ---------------------------------------------------------------------------------------------------------


def make_plan(effort: str, cases: int | None, seeds: range, only: list[str], device: str) -> Plan:
    """Return the plan; raise ValueError for an unknown name or a missing device."""
    from conformance.judge.options import EFFORTS
    from conformance.judge.report import NO_ORACLE
    from conformance.oracle.reference import balls_available

    of_models = [name for name in only if name in MODEL_RULES]
    if of_models:
        raise ValueError(OF_MODELS.format(of_models[0]))
    wrong = [name for name in only if name not in FRAMEWORKS and name not in RULES]
    if wrong:
        raise ValueError(
            f"not understood: {wrong[0]}; --only takes {', '.join(FRAMEWORKS)} or a rule (conformance rules)"
        )
    if effort not in EFFORTS:
        raise ValueError(f"not understood: {effort}; --effort takes {', '.join(EFFORTS)}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not gpu_available()):
        raise ValueError(f"no device {device} here; cpu, or cuda where PyTorch sees a GPU")
    rules = [name for name in only if name in RULES] or list(RULES)
    names = [n for n in [name for name in only if name in FRAMEWORKS] or FRAMEWORKS if available(n)]
    if not names:
        raise ValueError("nothing to judge: no framework of the chosen implementations is installed")
    if not balls_available():
        console.print(NO_ORACLE)
    examples = EFFORTS[effort] if cases is None else cases
    return Plan(names, rules, examples, seeds, device)


def available(name: str) -> bool:
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:
        console.print(f"{name} is skipped: {FRAMEWORKS[name]} is not installed")
        return False
    return True


def gpu_available() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    torch = importlib.import_module("torch")
    return bool(torch.cuda.is_available())


# --- judging ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def record_errors(found: Found) -> Iterator[None]:
    """Keep an error of the judge, or an interrupt, beside the results so far."""
    from conformance.runner.in_process import JudgeError

    try:
        yield
    except KeyboardInterrupt:
        found.error = INTERRUPTED
    except (Exception, JudgeError) as error:
        found.error = explain_error(error)


def judge(plan: Plan, workers: int, found: Found) -> None:
    """Judge every run, and add the results to `found`."""
    from conformance.judge.batches import ImplementationPool

    pool = ImplementationPool(plan.names, workers, plan.device)
    try:
        for seed in plan.seeds:
            one_run(pool, plan, seed, found)
    finally:
        pool.close()


def one_run(pool: Any, plan: Plan, seed: int, found: Found) -> None:
    """Judge one run. Try its violations again, and print them at once."""
    from conformance.judge.batches import confirm_violation
    from conformance.operations.probes import probes_of_all
    from conformance.reports.tables import violation_lines

    with bar("loading the frameworks", sum(probe.rule in plan.rules for probe in probes_of_all())) as advance:
        results = pool.run(plan.rules, plan.examples, seed, advance)
    try:
        results.violations = {key: confirm_violation(one, plan.device) for key, one in results.violations.items()}
        results.set_worst()
    finally:  # the results count, also if trying again fails
        found.results.include(results)
        found.runs += 1
        found.failures += not results.conforms
    console.print(f"seed {seed}: {'conforms' if results.conforms else 'violations'}")
    console.print(*map(violation_lines, results.violations.values()), sep="\n", end="")


def peers_of(effort: str, seed: int) -> list[dict[str, Any]]:
    """Return the peers' parts of the report, and print the table of their divergences."""
    from conformance.peers.matrix import matrix
    from conformance.peers.rows import rows_of
    from conformance.peers.terminal import render_rows
    from conformance.reports.subjects import checked_content

    with bar("loading the peers", None, errors) as advance:
        reports = matrix(effort, seed, say=lambda line: console.print(Text(line)), progress=advance)
    console.print(render_rows(rows_of(reports)))
    return [checked_content(report, None, peer=True) for report in reports]


# --- output -----------------------------------------------------------------------------------------------------------


def tell(plan: Plan, found: Found) -> None:
    """Print the tables of all results; nothing if no run has ended."""
    from conformance.reports.tables import print_report

    if not found.runs:
        return
    found.results.set_worst()
    print_report(found.results, plan.names, console, found.error is None)
    planned = len(plan.seeds)
    runs = f"{planned} run{'s' * (planned > 1)}" if found.runs == planned else f"{found.runs} of {planned} runs"
    console.print(f"{runs} of {plan.examples} cases for each probe, {found.failures} with violations")


def subjects_of(plan: Plan, found: Found) -> list[dict[str, Any]]:
    """Return the report's part for each implementation; none before the first run has ended."""
    from conformance.reports.subjects import run_subject

    planned = len(plan.seeds)
    untried = "" if found.runs == planned else f"{found.runs} of {planned} runs ended"
    names = plan.names if found.runs else []
    ours = [run_subject(found.results, name, FRAMEWORKS[name], plan.device, plan.rules, untried) for name in names]
    return ours + found.peers
