"""Every probe: those of each operation, and those that all operations have; and every call that the rules refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.layouts import LAYOUTS, OF_HEADS, REFUSABLE
from conformance.checks.catalogue import (
    AFTER_OTHER_CALLS,
    AGREEMENT,
    DETERMINISM,
    INTERLEAVED,
    MEMORY,
    REPETITIONS,
    THREADS,
    Check,
    Probe,
    takes_described_arrays,
)
from conformance.checks.refusals import Numbers, Refusal, is_applicable
from conformance.operations import OPERATIONS, JudgedOperation
from conformance.sampling.histories import gradient_histories, repeatable_cases
from conformance.sampling.operations import draw_constants, kernel_cases, operation_cases
from conformance.sampling.strategies import DTYPES, memory_cases


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


def refusals_of(operation: str | None, declaration: Declaration) -> list[Refusal]:
    """Return those of one operation, or of all, that nothing but the rule speaks against.

    They are in sizes and in a dtype that the subject takes, with arguments that it has parameters for, and without
    those to which its conventions give a meaning.
    """
    array = Numbers("float32" if "float32" in declaration.dtypes else declaration.dtypes[0])
    chosen = OPERATIONS.values() if operation is None else [OPERATIONS[operation]]
    every = [refusal for one in chosen for refusal in one.refusals(declaration, array)]
    return [refusal for refusal in every if is_applicable(refusal.case, declaration)]


# --- the same call again, in other memory, after other calls ----------------------------------------------------------


def determinism_probe(operation: JudgedOperation, declaration: Declaration) -> Probe:
    cases = operation_cases(operation.name, DTYPES, declaration)
    return Probe("ATT-13", operation.name, (operation.name,), cases, DETERMINISM, weight=0.4)


def some_gradients_probe(operation: JudgedOperation, declaration: Declaration) -> list[Probe]:
    """Gradients of some inputs, with the others constant, as where weights are frozen."""
    if "gradients" not in declaration or len(operation.facts.differentiated) < 2:
        return []
    name, rule = operation.name, operation.facts.rules.get("gradients", operation.facts.rules[""])
    cases = operation_cases(operation.name, DTYPES, declaration).flatmap(draw_constants)
    weight = 0.5 if declaration.compiled else 2.0
    return [Probe(rule, f"gradients of some inputs of {name}", (name,), cases, weight=weight)]


def memory_probes(operation: JudgedOperation, declaration: Declaration) -> list[Probe]:
    """One for each way in which arrays may lie in memory; none without arrays, or where arrays have no strides."""
    if not operation.facts.takes_arrays or not declaration.strides:
        return []
    layouts = [layout for layout in LAYOUTS if layout not in OF_HEADS or "attention" in operation.name]
    probes = []
    for layout in layouts:
        cases = memory_cases(kernel_cases(operation.name, declaration), layout, declaration)
        by = MEMORY if layout in REFUSABLE else AGREEMENT
        title = f"memory of {operation.name}: {layout}"
        probes.append(Probe("ATT-13", title, (operation.name,), cases, by, of_memory=True))
    return probes


def state_probes(operation: JudgedOperation, declaration: Declaration) -> list[Probe]:
    """What an operation keeps between calls, or shares among them."""
    name = operation.name
    few = st.one_of(*operation.histories(name, declaration, 3).values())
    few_shapes = 0.1 if declaration.compiled else 1.0
    kinds: list[tuple[str, st.SearchStrategy[Any], Check[Any, Any], float]] = [
        (f"after other {kind} in {name}", calls, AFTER_OTHER_CALLS, (0.4 if operation.facts.norm else 0.2) * few_shapes)
        for kind, calls in operation.histories(name, declaration, None).items()
    ]
    kinds.append((f"many equal calls of {name}", repeatable_cases(name, declaration), REPETITIONS, 1.0 * few_shapes))
    if "gradients" in declaration and operation.facts.differentiated:
        kinds.append((f"alternating passes of {name}", gradient_histories(few, 2), INTERLEAVED, 0.3))
    kinds.append((f"several threads in {name}", few, THREADS, 0.3 if declaration.compiled else 0.8))
    return [Probe("ATT-13", title, (name,), cases, by, weight) for title, cases, by, weight in kinds]
