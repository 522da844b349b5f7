"""`conformance merge`: one report of the parts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from conformance.cli.console import errors, refuse, save_and_exit
from conformance.cli.options import Html, Json, Junit
from conformance.cli.run import choose_rules, describe_untried, print_run, print_total, run_subjects

PARTS = "the reports of all parts, in any order, written by conformance run --shard ... --json"


def merge(
    files: Annotated[list[Path], typer.Argument(help=PARTS, metavar="PART.json...")],
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Join the parts of a run into the report of the whole.

    The verdict, the violations and the exit code are those of one run with the same options and seed.

    Exit code 0: all conform. 1: one does not. 2: wrong usage, or the judge could not finish a part.
    """
    from conformance.judge.batches import list_groups, merge_run
    from conformance.reports.content import document
    from conformance.reports.parts import read_parts, read_runs

    try:
        parts = read_parts(files)
        found = [read_runs(part) for part in parts]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        refuse(str(error) if type(error) is ValueError else f"not a report of this schema: {error!r}")
    first, shared = parts[0], parts[0]["part"]
    seed, examples, repeat = first["seed"], first["cases_per_probe"], first["runs"]
    rules, names = choose_rules(shared["only"]), shared["subjects"]
    runs = [{i: one for part in found for i, one in part[n].items()} for n in range(min(map(len, found)))]
    whole = {group.indices[0] for group in list_groups(rules, examples)}
    if any(run.keys() != whole for run in runs):
        refuse("the parts do not make up the plan of this version; merge them with the version that judged them")
    stopped = [f"part {one['part']['number']}: {one['error']}" for one in parts if one["error"] is not None]
    merged = [*map(merge_run, runs)]
    for number, results in enumerate(merged):
        print_run(results, seed + number)
    total = print_total(merged, names, examples, repeat, ended=not stopped)
    subjects = run_subjects(total, names if runs else [], shared["device"], rules, describe_untried(len(runs), repeat))
    told = {name: first[name] for name in ("seed", "effort", "runs")} | {"cases": examples}
    told |= {"seconds": sum(part["seconds"] for part in parts), "error": "; ".join(stopped) or None}
    report = document("run", subjects, **told) | {name: first[name] for name in ("project", "versions")}
    if stopped:
        errors.print(Text(f"not judged to the end: {report['error']}"), soft_wrap=True)
    save_and_exit(report, {"json": json, "junit": junit, "html": html})
