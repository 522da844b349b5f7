"""What `conformance dev onnx` prints."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rich.table import Table

from conformance.onnx.cases import OPERATORS
from conformance.onnx.deviations import DEVIATIONS
from conformance.onnx.faults_caught import Catch
from conformance.onnx.running import Outcome


def cases_table(outcomes: Mapping[str, Collection[Outcome]]) -> Table:
    """outcomes: by implementation."""
    title = (
        "Cases accepted by ONNX; worst error in units of our bound (at most 1 conforms), in float32 and in all dtypes"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("operator")
    table.add_column("cases", justify="right")
    for name in outcomes:
        table.add_column(name, justify="right")
    for operator in OPERATORS:
        by_subject = [[o for o in found if o.node.operator == operator] for found in outcomes.values()]
        if not by_subject[0]:  # all are skipped
            continue
        table.add_row(operator, str(len(by_subject[0])), *map(cell, by_subject))
    return table


def cell(outcomes: Collection[Outcome]) -> str:
    accepted = sum(not outcome.objection for outcome in outcomes)
    wide = max(outcome.ratio for outcome in outcomes if outcome.node.dtype == "float32")
    return f"{accepted} accepted, {wide:.2f}  {max(outcome.ratio for outcome in outcomes):.2f}"


def violation_lines(outcomes: Mapping[str, Collection[Outcome]]) -> list[str]:
    return [
        f"{name}: {outcome.node.name}: {outcome.ratio:.3g} bounds. {outcome.objection}"
        for name, found in outcomes.items()
        for outcome in found
        if not outcome.conforms
    ]


def deviations_table(found: Mapping[tuple[str, str], float]) -> Table:
    """Those that were found, and those of the table that were not."""
    table = Table(title="Expected outputs of ONNX's that would not conform", title_justify="left")
    for column in ("case", "output", "bounds", "reason"):
        table.add_column(column, justify="right" if column == "bounds" else "left")
    for name, output in sorted(DEVIATIONS.keys() | found.keys()):
        ratio = f"{found[name, output]:.2f}" if (name, output) in found else "not found"
        table.add_row(name, output, ratio, DEVIATIONS.get((name, output), "unknown"))
    return table


def faults_table(catches: Collection[Catch]) -> Table:
    title = "Planted faults, and how many of ONNX's cases catch them: by ONNX's tolerances, and by our bounds"
    table = Table(title=title, title_justify="left")
    for column in ("rule", "fault", "operation"):
        table.add_column(column)
    for column in ("cases", "ONNX", "bounds"):
        table.add_column(column, justify="right")
    for catch in catches:
        fault, counts = catch.fault, (catch.asked, catch.by_onnx, catch.by_bounds)
        table.add_row(fault.rule, fault.name, fault.operation, *(str(len(cases) or "-") for cases in counts))
    return table


def total_line(catches: Collection[Catch]) -> str:
    onnx, bounds = (sum(map(bool, by)) for by in zip(*((c.by_onnx, c.by_bounds) for c in catches), strict=True))
    return f"ONNX's cases catch {onnx} of {len(catches)} faults by ONNX's tolerances, {bounds} by our bounds."
