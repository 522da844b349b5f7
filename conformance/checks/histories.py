"""Several calls in a row: cases whose sizes, dtypes or options differ in one thing, so that what is kept shows.

A workspace that is kept from a larger call, a kernel that is found again by too few of its parameters, or a table made
for the first length gives wrong answers only after other calls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance import generation
from conformance.cases import Case
from conformance.declaration import Declaration
from conformance.features import NORMS
from conformance.generation import judged, some
from conformance.sizes import Sizes

Cases = tuple[Case, ...]

PLAIN = Sizes(2, 4, 2, 5, 40, 16, 16)
"""More keys than one block of 32, and room to grow and shrink on every axis."""
AXES: dict[str, tuple[int, ...]] = {
    "B": (1, 3),
    "Q": (1, 3, 17),
    "K": (3, 16, 33, 70, 130),
    "D": (8, 32, 64),
    "V": (8, 32),
}
HEADS = ((8, 2), (2, 2), (2, 1), (4, 4), (4, 1))
NORM_ROWS = ((5, 70), (2, 70), (130, 70), (5, 16), (5, 257), (5, 1030), (2, 5, 70), (1, 70))
SWITCHED = ("scale", "softcap", "bias", "sinks", "dropout")
TURNS = 3
"""Changes in one history; between two of them comes the plain case again, or the option left out."""


def histories(operation: str, declaration: Declaration) -> st.SearchStrategy[Cases]:
    """Cases of one operation, one after another; never the same numbers twice."""
    if operation.startswith("attention"):
        return attention_histories(operation, declaration)
    if operation in NORMS:
        return norm_histories(operation, declaration)
    if operation == "sinusoidal_positions":
        return sinusoidal_histories(declaration)
    return other_histories(operation, declaration)


@st.composite
def attention_histories(draw: st.DrawFn, operation: str, declaration: Declaration) -> Cases:
    kind = draw(st.sampled_from(("sizes", "sizes", "options", "options", "dtypes")))
    dtypes = quickly_judged(declaration)

    def case(plan: Sizes, dtype: str, mask: str, *focus: str) -> Case:
        cases = generation.attention_cases(
            operation,
            mask,
            focus,
            False,
            draw(st.integers(0, 3)) > 0,
            (dtype,),
            plans=(plan,),
            declaration=declaration,
        )
        return draw(cases)

    masks = ("none", *sorted(declaration.masks))
    mask, dtype = draw(st.sampled_from(("none", *masks))), draw(st.sampled_from(dtypes))
    available = tuple(f for f in SWITCHED if f in declaration and (f != "dropout" or operation == "attention"))
    if kind == "options":
        switched = draw(st.sampled_from(some((*available, *(("mask",) if declaration.masks else ())))))
        if switched == "mask":
            return tuple(case(PLAIN, dtype, draw(st.sampled_from(masks))) for _ in range(2 * TURNS))
        found = [case(PLAIN, dtype, mask, switched) for _ in range(TURNS)]
        found[0] = with_scale_of_1(found[0])
        bare = [case(PLAIN, dtype, mask) for _ in range(TURNS - 1)]
        return tuple(one for pair in zip(found, [*bare, case(PLAIN, dtype, mask, switched)], strict=True) for one in pair)
    focus = draw(st.sampled_from(((), *((feature,) for feature in available))))
    if kind == "dtypes":
        short = PLAIN._replace(B=1, Q=3, K=9, D=8, V=8)  # float64 is judged by ball arithmetic, which is slow
        several = some(judged(generation.DTYPES, declaration))
        return tuple(case(short, draw(st.sampled_from(several)), mask, *focus) for _ in range(2 * TURNS))
    changed = [other_size(draw) for _ in range(TURNS)]
    return tuple(case(plan, dtype, mask, *focus) for plan in (p for other in changed for p in (other, PLAIN)))


def other_size(draw: st.DrawFn) -> Sizes:
    """The plain sizes with another one on one axis; those of keys twice as often."""
    axis = draw(st.sampled_from(("K", "heads", *AXES)))
    if axis == "heads":
        H, G = draw(st.sampled_from(HEADS))
        return PLAIN._replace(H=H, G=G)
    return PLAIN._replace(**{axis: draw(st.sampled_from(AXES[axis]))})


def with_scale_of_1(case: Case) -> Case:
    """A scale of 1 is what kernels leave out; a case without a scale stays as it is."""
    return replace(case, options=case.options | {"scale": 1.0}) if "scale" in case.options else case


@st.composite
def norm_histories(draw: st.DrawFn, operation: str, declaration: Declaration) -> Cases:
    kind = draw(st.sampled_from(("sizes", "options", "options", "anything")))
    dtypes = (draw(st.sampled_from(some(judged(generation.DTYPES, declaration)))),)
    shape = draw(st.sampled_from(NORM_ROWS[:1] if dtypes == ("float64",) else NORM_ROWS))
    own = dict[str, Any](dtypes=dtypes, declaration=declaration)
    if kind == "anything":
        return tuple(draw(generation.norm_cases(operation, declaration=declaration)) for _ in range(2 * TURNS))
    if kind == "options":  # of norms that is eps, the bias, and the dtype of the weight
        return tuple(draw(generation.norm_cases(operation, plans=((shape, 1),), **own)) for _ in range(2 * TURNS))
    others = [draw(st.sampled_from(NORM_ROWS[:4] if dtypes == ("float64",) else NORM_ROWS)) for _ in range(TURNS)]
    plans = [plan for other in others for plan in (other, shape)]
    return tuple(draw(generation.norm_cases(operation, plans=((plan, 1),), **own)) for plan in plans)


@st.composite
def sinusoidal_histories(draw: st.DrawFn, declaration: Declaration) -> Cases:
    """Of one width, so that a table made for the first length is found again."""
    first = draw(generation.sinusoidal_cases(declaration=declaration))
    found = [first]
    for _ in range(2 * TURNS - 1):
        other = draw(generation.sinusoidal_cases(declaration=declaration))
        kept = {"width": first.options["width"]} | {"dtype": first.dtype if draw(st.booleans()) else other.dtype}
        found.append(replace(other, dtype=kept["dtype"], options=other.options | kept))
    return tuple(found)


@st.composite
def other_histories(draw: st.DrawFn, operation: str, declaration: Declaration) -> Cases:
    dtypes = judged(generation.DTYPES, declaration)
    if draw(st.booleans()):
        dtypes = (draw(st.sampled_from(some(dtypes))),)
    cases = generation.operation_cases(operation, dtypes, declaration)
    return tuple(draw(cases) for _ in range(2 * TURNS))


@st.composite
def some_of(draw: st.DrawFn, material: st.SearchStrategy[Cases], count: int, gradients: bool = False) -> Cases:
    """The first cases of a history; gradients: those that ask for some."""
    found = tuple(case for case in draw(material) if case.cotangents or not gradients)[:count]
    assume(len(found) == count)
    return found


TINY = (Sizes(1, 2, 1, 3, 48, 16, 16), Sizes(1, 2, 2, 2, 70, 16, 16), Sizes(2, 2, 1, 1, 40, 32, 16))
"""Calls that take next to no time, with more than one block of keys, and widths that tensor cores take."""


def quickly_judged(declaration: Declaration) -> tuple[str, ...]:
    """The dtypes without float64, whose exact values take long; that alone where there are no others."""
    found = tuple(dtype for dtype in generation.DTYPES if dtype in declaration.dtypes and dtype != "float64")
    return found or ("float64",)


def repeatable(operation: str, declaration: Declaration) -> st.SearchStrategy[Case]:
    """Small cases for many calls, one in five with gradients."""
    dtypes = quickly_judged(declaration)
    if operation.startswith("attention"):
        cases = generation.attention_cases(
            operation, "maybe", others=False, dtypes=dtypes, plans=TINY, declaration=declaration
        )
    else:
        cases = generation.operation_cases(operation, dtypes, declaration)
    told = st.tuples(st.integers(0, 4), cases.filter(lambda case: not has_infinities(case)))
    return told.map(lambda drawn: drawn[1] if drawn[0] == 4 else replace(drawn[1], cotangents={}))


def has_infinities(case: Case) -> bool:
    return any(a.dtype.kind not in "biu" and not np.isfinite(a.astype(float)).all() for a in case.inputs.values())

