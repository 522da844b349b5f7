"""`conformance run`: the three implementations of this project."""

from __future__ import annotations

import importlib.util
import secrets
import time
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from conformance.commands.console import bar, console, errors, explained, interrupted, save_report
from conformance.commands.options import CORES, Effort, Html, Json, Junit, Seed, Workers
from specification import RULES

FRAMEWORKS = {"reference_numpy": "numpy", "torch_impl": "torch", "jax_impl": "jax"}


def run(
    effort: Effort = "default",
    cases: Annotated[int | None, typer.Option(help="cases for each probe, instead of an effort", min=1)] = None,
    seed: Seed = None,
    repeat: Annotated[int, typer.Option(help="that many runs, each with the next seed", min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help="an implementation or a rule; may be given again")] = None,
    workers: Workers = CORES,
    device: Annotated[str, typer.Option(help="cpu or cuda; NumPy stays on the CPU")] = "cpu",
    real: Annotated[bool, typer.Option(help="a trained model on real sentences too, where it is installed")] = True,
    peers: Annotated[bool, typer.Option("--peers", help="libraries in wide use too, for comparison")] = False,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Judge the three implementations against every rule, on generated cases."""
    from conformance.checking import EFFORTS
    from conformance.guard import JudgeError
    from conformance.models.real import sentences
    from conformance.oracle import balls_available
    from conformance.probes import PROBES
    from conformance.reports.content import document
    from conformance.reports.real import real_conforms, real_report
    from conformance.reports.subjects import tallied
    from conformance.reports.tables import print_report, violation_lines
    from conformance.result import NO_ORACLE
    from conformance.tally import Tally
    from conformance.workers import Workers as Pool
    from conformance.workers import asked_again

    files = {"json": json, "junit": junit, "html": html}
    first = secrets.randbelow(2**32) if seed is None else seed
    told: dict[str, Any] = {"seed": first, "effort": effort if cases is None else None, "runs": repeat}

    def refuse(message: str) -> NoReturn:
        console.print(Text(message))
        save_report(document("run", [], error=message, **told), files)
        raise typer.Exit(2)

    wrong = [name for name in only or [] if name not in FRAMEWORKS and name not in RULES]
    if effort not in EFFORTS or wrong:
        known = f"--only takes {', '.join(FRAMEWORKS)} or a rule (conformance rules), --effort {', '.join(EFFORTS)}"
        refuse(f"not understood: {wrong[0] if wrong else effort}; {known}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not gpu_available()):
        refuse(f"no device {device} here; cpu, or cuda where PyTorch sees a GPU")
    chosen = [name for name in only or [] if name in RULES] or list(RULES)
    installed = [n for n in [name for name in only or [] if name in FRAMEWORKS] or FRAMEWORKS if available(n)]
    if not installed:
        refuse("nothing to judge")
    if not balls_available():
        console.print(NO_ORACLE)
    examples = EFFORTS[effort] if cases is None else cases
    pool, total, failures, start = Pool(installed, workers, device), Tally(), 0, time.monotonic()
    try:
        for number in range(first, first + repeat):
            with bar("loading the frameworks", sum(probe.rule in chosen for probe in PROBES)) as advance:
                tally = pool.run(chosen, examples, number, advance)
            tally.violations = {key: asked_again(found, device) for key, found in tally.violations.items()}
            total.include(tally)
            failures += not tally.conforms
            console.print(f"seed {number}: {'conforms' if tally.conforms else 'violations'}")
            console.print(*map(violation_lines, tally.violations.values()), sep="\n", end="")
        results = real_text(pool, device) if real and chosen == list(RULES) else []
    except KeyboardInterrupt:
        interrupted()
    except (Exception, JudgeError) as error:
        refuse(f"not judged to the end: {explained(error)}")
    finally:
        pool.close()
    print_report(total, installed, console)
    if results:
        console.print(real_report(results, installed, len(sentences())))
        failures += not real_conforms(results)
    console.print(f"{repeat} run{'s' * (repeat > 1)} of {examples} cases for each probe, {failures} with violations")
    subjects = [tallied(total, name, FRAMEWORKS[name], device, chosen) for name in installed]
    subjects += peers_of(effort, first) if peers else []
    save_report(document("run", subjects, cases=examples, seconds=time.monotonic() - start, **told), files)
    raise typer.Exit(1 if failures else 0)


def real_text(pool: Any, device: str) -> list[Any]:
    """What is found of a trained model; a line where it cannot be had."""
    from conformance.models.real import batches, missing

    if device != "cpu":
        console.print("no trained model is judged: that is done on the CPU")
        return []
    if missing():
        console.print(f"no trained model is judged: {', '.join(missing())} not installed")
        return []
    with bar("all-MiniLM-L6-v2", len(batches())) as advance:
        found: list[Any] = pool.run_real(advance)
    return found


def peers_of(effort: str, seed: int) -> list[dict[str, Any]]:
    """The peers' parts of the report; the table of what they do otherwise is printed."""
    from conformance.peers.matrix import matrix
    from conformance.peers.terminal import as_table
    from conformance.reports.subjects import checked

    with bar("loading the peers", None, errors) as advance:
        reports = matrix(effort, seed, say=lambda line: console.print(Text(line)), progress=advance)
    console.print(as_table(reports))
    return [checked(report, None, peer=True) for report in reports]


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
