"""`python -m training lockstep`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.cli.console import bar, console
from conformance.reports.files import write_whole
from conformance.runner.compiled_code import keep_compiled_code
from conformance.subjects.callables import load
from training.lockstep.pictures import figure
from training.lockstep.plans import PLANS
from training.lockstep.report import as_page, content, terminal
from training.lockstep.running import lockstep
from training.lockstep.trainers import FunctionTrainer, PackageTrainer, Trainer
from training.packages import PACKAGES

DTYPES = ("float64", "float32")


def run(task: str, steps: int, seed: int, dtype: str, only: str | None, subject: str | None, out: Path) -> bool:
    """Run, print and write the report; whether everything is within its bounds.

    Raises:
        KeyboardInterrupt: once the report of the steps before it is written.
        ValueError: for options that mean nothing.
        OSError: where a file cannot be written.
    """
    for option, value, allowed in (("task", task, PLANS), ("only", only or None, PACKAGES), ("dtype", dtype, DTYPES)):
        if value is not None and value not in allowed:
            raise ValueError(f"--{option} must be one of {', '.join(allowed)}, got {value!r}")
    plan = PLANS[task](seed)
    # Somebody's function is compared alone unless a package is named.
    names = [only] if only else [] if subject else [*PACKAGES]
    trainers: list[Trainer] = [PackageTrainer(PACKAGES[name], plan.settings) for name in names]
    trainers += [FunctionTrainer(Path(subject).name, load(subject), plan.settings)] if subject else []
    keep_compiled_code()
    report: dict[str, Any] = {}
    interrupt: KeyboardInterrupt | None = None
    with bar("lock-step", steps) as advance:
        try:
            for result in lockstep(plan, trainers, steps, dtype=dtype, seed=seed):
                report = content(result)
                advance("step", str(report["steps"]))
        except KeyboardInterrupt as error:
            if not report:
                raise
            interrupt = error
    console.print(terminal(report))
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "report.json", lambda path: path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n"))
    write_whole(out / "report.html", lambda path: path.write_text(as_page(report), encoding="utf-8"))
    write_whole(out / "curves.png", lambda path: figure(report).savefig(path, format="png", dpi=120))
    console.print(f"report.json, report.html and curves.png are in {out}")
    if interrupt:
        raise interrupt
    return bool(report["conforms"])
