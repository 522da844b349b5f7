"""Test cases whose arrays lie in memory as models make them, and the check of those that may be refused (ATT-13)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.layouts import LAYOUTS, REFUSABLE, SHARED, changes_placement, equal_along, shared_axes
from specification.masks import map_arrays

USUAL = ("transposed", "fused", "sliced", "cached", "misaligned")
PLAUSIBLE = {
    "activation": (*USUAL, "shared batch", "shared heads", *REFUSABLE),
    "pairs": (*USUAL, "shared batch", "shared heads", "shared rows", *REFUSABLE),
    "cotangent": (*USUAL, *SHARED, *REFUSABLE),
    "parameter": ("sliced", "misaligned", *REFUSABLE),
}
"""Layouts by the role of an array: input of a layer, mask or bias for pairs, cotangent, weights."""
ACTIVATIONS = (
    *("query", "key", "value", "x", "ids", "positions", "outputs", "logsumexps"),
    *("logits", "log_probabilities", "targets"),
)
PAIRS = ("bias", "mask", "dropout_keep")


def role(name: str) -> str:
    """The role of an array of `Case.memory`."""
    if name == "cotangent":
        return name
    if name in PAIRS:
        return "pairs"
    return "activation" if name.partition("[")[0] in ACTIVATIONS and "." not in name else "parameter"


def arrays_of(case: Case) -> dict[str, list[np.ndarray]]:
    """The arrays of a case by the names that `Case.memory` has for them."""
    found = {name: [array] for name, array in case.inputs.items()}
    for name in ("mask", "dropout_keep"):
        arrays: list[np.ndarray] = []
        map_arrays(case.options.get(name), arrays.append)
        found[name] = list(map(np.asarray, arrays))
    return {name: arrays for name, arrays in (found | {"cotangent": [*case.cotangents.values()]}).items() if arrays}


def choices(case: Case, declaration: Declaration) -> dict[str, list[str]]:
    """Layouts, with the arrays that each of them makes lie in another way."""
    rows_stay = declaration.convention("empty_rows") != "zero"  # an equal mask could leave more rows empty

    def is_possible(layout: str, name: str, arrays: list[np.ndarray]) -> bool:
        kind = role(name)
        if layout not in PLAUSIBLE[kind] or (kind in ("pairs", "cotangent") and layout in SHARED and rows_stay):
            return False
        return any(changes_placement(layout, array.shape) for array in arrays)

    arrays = arrays_of(case)
    found = {layout: [name for name in arrays if is_possible(layout, name, arrays[name])] for layout in LAYOUTS}
    return {layout: names for layout, names in found.items() if names}


def draw_memory(draw: st.DrawFn, case: Case, declaration: Declaration, layout: str | None = None) -> Case:
    """Draw a memory layout for one array of a case or for all that can have it, or, two times in three, for none.

    Args:
        draw: Hypothesis's function.
        case: as it is otherwise finished. Values along an axis that gets stride 0 become equal.
        declaration: of the subject. Without strides the case stays as it is.
        layout: the one to use, where an array can have it; else any but those that a subject may refuse.

    Returns:
        the case with its `memory`; the case itself where no array can have any.

    """
    if not declaration.strides or (layout is None and draw(st.integers(0, 2)) < 2):
        return case
    names = choices(case, declaration)
    kinds = [layout] if layout in names else [kind for kind in names if kind not in REFUSABLE]
    if not kinds:
        return case
    kind = draw(st.sampled_from(kinds))
    chosen = [draw(st.sampled_from(names[kind]))] if draw(st.booleans()) else names[kind]  # the simplest case has all
    return apply_memory(case, dict.fromkeys(chosen, kind))


@st.composite
def memory_cases(draw: st.DrawFn, cases: st.SearchStrategy[Case], layout: str, declaration: Declaration) -> Case:
    """Draw cases with this layout for one array, or for all that can have it; with another one if none can."""
    return draw_memory(draw, replace(draw(cases), memory={}), declaration, layout)


def apply_memory(case: Case, memory: dict[str, str]) -> Case:
    """The case with these layouts; values along axes of stride 0 are made equal."""

    def equal(name: str, array: np.ndarray) -> np.ndarray:
        axes = shared_axes(memory.get(name, ""), array.ndim)
        return equal_along(np.asarray(array), axes) if axes else array

    inputs = {name: equal(name, array) for name, array in case.inputs.items()}
    cotangents = {name: equal("cotangent", array) for name, array in case.cotangents.items()}
    options = dict(case.options)
    for name in set(memory) & {"mask", "dropout_keep"} & set(options):
        options[name] = map_arrays(options[name], partial(equal, name))
    return replace(case, inputs=inputs, options=options, cotangents=cotangents, memory=memory)
