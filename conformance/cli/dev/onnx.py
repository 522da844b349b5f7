"""`conformance dev onnx`: run ONNX's test cases on the three implementations and on planted faults."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli.console import console

if TYPE_CHECKING:
    from conformance.onnx.running import Bridged
    from conformance.subjects.subject import Subject


def onnx(
    faults: Annotated[bool, typer.Option(help="also list the planted faults that ONNX's cases catch")] = False,
) -> None:
    """Run ONNX's own test cases on the three implementations."""
    if importlib.util.find_spec("onnx") is None:
        console.print("onnx is not installed")
        raise typer.Exit(2)
    from conformance.onnx.cases import expansions, node_cases, skipped_cases
    from conformance.onnx.faults_caught import catches
    from conformance.onnx.running import bridge_node
    from conformance.onnx.tables import faults_table, total_line
    from conformance.selftest.selftest import everything_planted

    nodes = node_cases()
    console.print(f"onnx {version('onnx')}: {len(nodes)} cases; {len(expansions())} more are expansions of cases.")
    for name, reason in skipped_cases().items():
        console.print(f"skipped: {name}: {reason}")
    cases = [bridge_node(node) for node in nodes]
    agrees = implementations_agree(cases)
    if faults:
        caught = list(catches(everything_planted(), cases))
        console.print(faults_table(caught), total_line(caught), sep="\n")
    raise typer.Exit(not agrees)


def implementations_agree(cases: Collection[Bridged]) -> bool:
    """Return whether every implementation passes, and ONNX departs from the definition only where it is known to."""
    from conformance.onnx.deviations import DEVIATIONS, find_deviations
    from conformance.onnx.running import outcome
    from conformance.onnx.tables import cases_table, deviations_table, violation_lines

    outcomes = {subject.name: [outcome(subject, case) for case in cases] for subject in implementations()}
    departures = find_deviations(cases)
    console.print(cases_table(outcomes), deviations_table(departures), sep="\n")
    for line in violation_lines(outcomes):
        console.print(line)
    return departures.keys() == DEVIATIONS.keys() and not violation_lines(outcomes)


def implementations() -> Iterator[Subject]:
    """Yield the implementations whose framework is installed."""
    from conformance.subjects.subject import IMPLEMENTATIONS

    for name, make in IMPLEMENTATIONS.items():
        try:
            yield make()
        except ImportError as error:
            console.print(f"{name} is skipped: {error}")
