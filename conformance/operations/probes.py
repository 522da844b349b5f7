"""Every probe: those of each operation, and those that all operations have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.checks.catalogue import takes_described_arrays
from conformance.checks.probe import Probe
from conformance.operations import OPERATIONS
from conformance.operations.common import determinism_probe, memory_probes, some_gradients_probe, state_probes
from conformance.operations.judged_operation import JudgedOperation


def catalogue(declaration: Declaration = EVERYTHING, operation: str | None = None) -> list[Probe]:
    """Return every probe, with cases within the declaration; some may have none.

    Args:
        declaration: what subjects take.
        operation: only probes of this one alone; None for those of all, and of several together.
    """
    chosen = OPERATIONS.values() if operation is None else [OPERATIONS[operation]]
    probes = [probe for one in chosen for probe in probes_for(one, declaration)]
    probes = [probe for probe in probes if operation is None or probe.operations == (operation,)]
    return [probe for probe in probes if takes_described_arrays(probe.check, declaration)]


def probes_for(operation: JudgedOperation, declaration: Declaration) -> Iterator[Probe]:
    yield from operation.probes(declaration)
    yield determinism_probe(operation, declaration)
    yield from some_gradients_probe(operation, declaration)
    yield from memory_probes(operation, declaration)
    yield from state_probes(operation, declaration)


def probes_of(rule: str, operation: str, declaration: Declaration) -> list[Probe]:
    """Return those that ask one operation alone about the rule, in the catalogue's order."""
    return [
        probe for probe in catalogue(declaration, operation) if probe.rule == rule and probe.operations == (operation,)
    ]


@cache
def probes_of_all(operation: str | None = None) -> tuple[Probe, ...]:
    """Return those for the three implementations together, one of which compiles for every shape."""
    return tuple(catalogue(replace(EVERYTHING, compiled=True), operation))
