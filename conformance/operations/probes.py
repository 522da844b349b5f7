"""Every probe: those of each operation, and those that all operations have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.checks.catalogue import takes_described_arrays
from conformance.checks.probe import Probe
from conformance.operations import OPERATIONS
from conformance.operations.common import determinism_probe, memory_probes, some_gradients_probe, state_probes
from conformance.operations.judged_operation import JudgedOperation


def catalogue(declaration: Declaration = EVERYTHING) -> list[Probe]:
    """Return every probe, with cases that are within the declaration; some may have none."""
    probes = [probe for operation in OPERATIONS.values() for probe in probes_for(operation, declaration)]
    return [probe for probe in probes if takes_described_arrays(probe.check, declaration)]


def probes_for(operation: JudgedOperation, declaration: Declaration) -> Iterator[Probe]:
    yield from operation.probes(declaration)
    yield determinism_probe(operation, declaration)
    yield from some_gradients_probe(operation, declaration)
    yield from memory_probes(operation, declaration)
    yield from state_probes(operation, declaration)


def probes_of(rule: str, operation: str, declaration: Declaration) -> list[Probe]:
    """Return those that ask one operation alone about the rule, in the catalogue's order."""
    return [p for p in catalogue(declaration) if p.rule == rule and p.operations == (operation,)]


PROBES = catalogue(replace(EVERYTHING, compiled=True))
"""For the three implementations together, one of which compiles for every shape."""
