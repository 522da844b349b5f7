"""Probes that every operation has, and those at the sizes of a plan."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.layouts import LAYOUTS, OF_HEADS, REFUSABLE
from conformance.checks.catalogue import (
    AFTER_OTHER_CALLS,
    AGREEMENT,
    DETERMINISM,
    INTERLEAVED,
    MEMORY,
    REPETITIONS,
    THREADS,
)
from conformance.checks.check import Check
from conformance.checks.histories import asking_gradients, repeatable_cases
from conformance.checks.probe import Probe, agreement
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Rows
from conformance.sampling.layouts import memory_cases
from conformance.sampling.operations import operation_cases
from conformance.sampling.plan import attention as attention_plan
from conformance.sampling.plan import layers as layer_plan
from conformance.sampling.plan.attention import Sizes
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.strategies import DTYPES, KERNEL_WIDTHS, NORM_SHAPES, SHORT, NormShape
from conformance.subjects.subject import differentiable

WIDE = ("float32", "float64")

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


def draw_constants(case: Case) -> st.SearchStrategy[Case]:
    """All inputs but one are constants, or one is; as the case is, where it has no gradients or no two inputs."""
    names = differentiable(case)
    if not case.cotangents or len(names) < 2:
        return st.just(case)
    one = st.sampled_from(names)
    alone = one.map(lambda name: tuple(other for other in names if other != name))
    return st.one_of(one.map(lambda name: (name,)), alone).map(lambda names: replace(case, constants=names))


def memory_probes(operation: JudgedOperation, declaration: Declaration) -> list[Probe]:
    """One for each way in which arrays may lie in memory; none without arrays, or where arrays have no strides."""
    if not operation.facts.takes_arrays or not declaration.strides:
        return []
    layouts = [layout for layout in LAYOUTS if layout not in OF_HEADS or "attention" in operation.name]
    found = []
    for layout in layouts:
        cases = memory_cases(memory_plans(operation, declaration), layout, declaration)
        by = MEMORY if layout in REFUSABLE else AGREEMENT
        title = f"memory of {operation.name}: {layout}"
        found.append(Probe("ATT-13", title, (operation.name,), cases, by, of_memory=True))
    return found


VECTOR_WIDTHS: tuple[NormShape, ...] = tuple(((3, width), 1) for width in (4, 8, 16, 32, 64, 96, 128, 256))
"""Rows of norms that kernels read in vectors of 16 bytes."""


KERNEL_TILES = (
    *(Sizes(2, 4, 2, 5, 70, 128, 64), Sizes(2, 4, 2, 3, 70, 64, 128), Sizes(2, 2, 2, 4, 130, 128, 128)),
    *(Sizes(2, 4, 2, 2, 70, 128, 96), Sizes(3, 2, 2, 6, 80, 64, 64)),
)
"""Widths for which kernels are made, and more than one tile of keys."""


def memory_plans(operation: JudgedOperation, declaration: Declaration) -> st.SearchStrategy[Case]:
    """Cases of an operation in the sizes for which kernels read arrays in their own way, mostly with all arrays."""
    name = operation.name
    if operation.facts.norm:
        return generation.norm_cases(name, plans=(*NORM_SHAPES, *VECTOR_WIDTHS), declaration=declaration)
    if not name.startswith("attention"):
        return operation_cases(operation.name, DTYPES, declaration)
    plans = (*SHORT[:2], *KERNEL_WIDTHS, *KERNEL_TILES)
    cases = partial(generation.attention_cases, name, plans=plans, declaration=declaration)
    if not {"bias", "dense"} & declaration.features:
        return cases()
    every = cases("dense" if "dense" in declaration else "none", tuple({"bias"} & declaration.features))
    return st.integers(0, 2).flatmap(lambda which: every if which < 2 else cases())


def state_probes(operation: JudgedOperation, declaration: Declaration) -> list[Probe]:
    """What an operation keeps between calls, or shares among them."""
    name = operation.name
    few = st.one_of(*operation.histories(name, declaration, 3).values())
    few_shapes = 0.1 if declaration.compiled else 1.0
    found: list[tuple[str, st.SearchStrategy[Any], Check[Any, Any], float]] = [
        (f"after other {kind} in {name}", calls, AFTER_OTHER_CALLS, (0.4 if operation.facts.norm else 0.2) * few_shapes)
        for kind, calls in operation.histories(name, declaration, None).items()
    ]
    found.append((f"many equal calls of {name}", repeatable_cases(name, declaration), REPETITIONS, 1.0 * few_shapes))
    if "gradients" in declaration and operation.facts.differentiated:
        found.append((f"alternating passes of {name}", asking_gradients(few, 2), INTERLEAVED, 0.3))
    found.append((f"several threads in {name}", few, THREADS, 0.3 if declaration.compiled else 0.8))
    return [Probe("ATT-13", title, (name,), cases, by, weight) for title, cases, by, weight in found]


# --- the plan of sizes ------------------------------------------------------------------------------------------------

OFTEN = 3
"""At planned sizes one case in so many has each feature."""
Cases = Callable[..., st.SearchStrategy[Case]]


def plan_probe(
    rule: str,
    name: str,
    plan: str,
    operation: str,
    declaration: Declaration,
    weight: float = 1.0,
    others: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    large: bool = False,
    **given: Any,
) -> Probe:
    """A probe with one case for each row of a plan; without rows where the subject lacks what all of them need."""
    cases = partial(generation.attention_cases, operation, others=others, declaration=declaration, **given)
    takes = generation.takes_mask(given.get("mask", "maybe"), declaration)
    takes = takes and not set(dtypes).isdisjoint(declaration.dtypes)
    if not takes or not set(given.get("focus", ())) <= declaration.features:
        return agreement(rule, name, operation, Rows(tuple), weight)
    wanted = (lambda s: s.H > s.G) if given.get("grouped") else everything
    rows = rows_of(cases, plan, name, declaration, wanted, dtypes, large)
    return agreement(rule, name, operation, rows, weight)


def everything(sizes: Sizes) -> bool:
    return True


def rows_of(
    cases: Cases,
    plan: str,
    name: str,
    declaration: Declaration,
    wanted: Callable[[Sizes], bool] = everything,
    dtypes: tuple[str, ...] = DTYPES,
    large: bool = False,
) -> Rows:
    """One strategy for each row of a plan. By its name, each probe has other sizes of the same ranges.

    Where shapes are compiled, each row has one dtype too. large: also rows of large cases, in which all ranges meet.
    """
    seed = zlib.crc32(name.encode())
    able = [dtype for dtype in dtypes if dtype in declaration.dtypes and dtype != "float64"] or [*dtypes]

    def make_strategies(sizes: tuple[Sizes, ...]) -> tuple[st.SearchStrategy[Case], ...]:
        every = [(able[index % len(able)],) if declaration.compiled else dtypes for index in range(len(sizes))]
        return tuple(cases(plans=(s,), dtypes=some) for s, some in zip(sizes, every, strict=True) if wanted(s))

    def make_large(thorough: bool) -> tuple[st.SearchStrategy[Case], ...]:
        found = attention_plan.large_plans_of(plan, declaration, seed, wanted)[thorough] if large else ()
        triples = attention_plan.thorough_plan(declaration) if thorough and plan == "everything" else ()
        return make_strategies((*triples, *found))

    return Rows(
        lambda: make_strategies(attention_plan.plan_of(plan, declaration, seed)),
        later=lambda: make_large(True),
        large=lambda: make_large(False),
    )


def rows_of_layers(
    plan: Plan,
    cases: Callable[[Row], st.SearchStrategy[Case]],
    declaration: Declaration,
    name: str = "",
    large: float = 1,
) -> Rows:
    """One strategy for each row of a plan. By its name, each probe has other sizes of the same ranges.

    large: how many times the numbers of `LARGE` a case may have; at the thorough effort twice as many.
    """
    seed = zlib.crc32(name.encode())

    def make_large(thorough: bool) -> tuple[st.SearchStrategy[Case], ...]:
        return tuple(map(cases, layer_plan.large_plans_of(plan, declaration, seed, large)[thorough]))

    return Rows(
        lambda: tuple(map(cases, layer_plan.plan_of(plan, declaration, seed))),
        later=lambda: make_large(True),
        large=lambda: make_large(False),
    )
