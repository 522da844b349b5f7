"""Several calls in a row: cases whose sizes, dtypes or options differ in one thing, so that what is kept shows.

Some mistakes show only after other calls. A workspace is kept from a larger call. A compiled kernel is found again by
too few of its parameters. A table is made for the first length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.bounds.arithmetic import UNIT_ROUNDOFF
from conformance.cases.case import Case, reverse_last_axis
from conformance.cases.declaration import Declaration, Sizes, fit_width, roundings
from conformance.cases.facts import convert_dtype, operation_facts
from conformance.cases.signatures import definition
from conformance.oracle.reference import balls_available
from conformance.sampling import strategies as generation
from conformance.sampling.operations import operation_cases
from conformance.sampling.strategies import LONG, SHORT, judged_dtypes, require_some

Cases = tuple[Case, ...]
WIDTHS = (24, 40, 48, 56, 72, 80, 88, 104)
"""Widths that other cases do not have, one for each history: nothing has been kept for them yet."""
NORM_WIDTHS = (24, 40, 48, 72, 80, 96, 120, 200, 264)
OTHER: dict[str, tuple[int, ...]] = {"B": (1, 3), "Q": (1, 3, 17), "D": (8, 32, 64), "V": (8, 32)}
FEWER, MORE, MANY = (3, 16, 33), (70, 130), (520, 1030)
"""Keys, where the plain case has 40: more than one block of 32."""
HEADS = ((8, 2), (2, 2), (2, 1), (4, 4), (4, 1))
ROWS = (1, 2, 5, 130)
SWITCHED = ("scale", "softcap", "bias", "sinks", "dropout")
CALLS = 6
"""In a history that is drawn at random."""
Histories = dict[str, st.SearchStrategy[Cases]]
"""Cases of one operation, one after another, never the same numbers twice; by what differs in them."""


def attention_histories(operation: str, declaration: Declaration, count: int | None) -> Histories:
    kinds = {"sizes": draw_size_calls, "options": draw_option_calls, "dtypes": draw_dtype_calls}
    widths: dict[str, tuple[int, ...]] = dict.fromkeys(kinds, WIDTHS)
    if declaration.compiled:  # one for each kind
        widths = {kind: WIDTHS[number : number + 1] for number, kind in enumerate(kinds)}
    return {kind: attention_history(operation, declaration, make, count, widths[kind]) for kind, make in kinds.items()}


def norm_histories(operation: str, declaration: Declaration, count: int | None) -> Histories:
    histories = {
        kind: norm_history(operation, declaration, sizes, count or CALLS)
        for kind, sizes in (("options", False), ("sizes", True))
    }
    return histories | dtype_histories(operation, declaration, count)


def sinusoidal_histories(operation: str, declaration: Declaration, count: int | None) -> Histories:
    return {"sizes": sinusoidal_history(declaration, count or CALLS)} | dtype_histories(operation, declaration, count)


def plain_histories(operation: str, declaration: Declaration, count: int | None) -> Histories:
    """Of any operation."""
    plain = {"sizes and options": plain_history(operation, declaration, count or CALLS)}
    return plain | dtype_histories(operation, declaration, count)


def dtype_histories(operation: str, declaration: Declaration, count: int | None) -> Histories:
    """None where the subject or the operation has one dtype only."""
    dtypes = tuple(dtype for dtype in declaration.dtypes if dtype != "float64" or balls_available())
    chosen = "dtype" in definition(operation) and "dtype" not in declaration.lacking
    if len(dtypes) < 2 or not (chosen or operation_facts(operation).takes_arrays):
        return {}
    return {"dtypes": dtype_history(operation, dtypes, declaration, count or CALLS)}


class Call(NamedTuple):
    """What one case of attention is drawn from."""

    plan: Sizes
    dtype: str
    mask: str = "none"
    focus: tuple[str, ...] = ()


@st.composite
def attention_history(
    draw: st.DrawFn,
    operation: str,
    declaration: Declaration,
    make: Callable[[st.DrawFn, Call, Declaration], list[Call]],
    count: int | None,
    widths: tuple[int, ...],
) -> Cases:
    """The calls that `make` makes of a plain one of one of the widths; one in four without gradients."""
    width = draw(st.sampled_from(widths))
    plain = Call(Sizes(2, 4, 2, 5, 40, width, width), draw(st.sampled_from(require_some(fast_dtypes(declaration)))))
    if operation != "attention":
        declaration = declaration.remove_features("dropout")
    cases = []
    for call in make(draw, plain, declaration)[:count]:
        gradients = draw(st.integers(0, 3)) > 0
        given = dict[str, Any](plans=(call.plan,), declaration=declaration)
        strategy = generation.attention_cases(
            operation, call.mask, call.focus, False, gradients, (call.dtype,), **given
        )
        cases.append(draw(strategy))
    if "scale" in cases[0].options:  # a scale of 1 is what kernels leave out
        cases[0] = replace(cases[0], options=cases[0].options | {"scale": 1.0})
    return tuple(cases)


def draw_size_calls(draw: st.DrawFn, plain: Call, declaration: Declaration) -> list[Call]:
    """Every axis is another one once; between two of them comes the plain call.

    Where shapes are compiled, the other size is the same for all operations, and what is compiled serves all of them.
    """

    def choose(sizes: tuple[Any, ...]) -> Any:
        return sizes[-1] if declaration.compiled else draw(st.sampled_from(sizes))

    H, G = HEADS[0] if declaration.compiled else draw(st.sampled_from(HEADS))
    plans = [plain.plan._replace(**{axis: choose(sizes)}) for axis, sizes in OTHER.items()]
    lengths = (FEWER, MORE) if declaration.compiled else (FEWER, MORE, MANY)  # each length is one more to compile
    plans += [plain.plan._replace(K=choose(sizes)) for sizes in lengths]
    plans.append(plain.plan._replace(H=H, G=G))
    mask = draw(st.sampled_from(("none", "none", *sorted(declaration.masks))))
    others = draw(st.permutations(plans))
    return [plain._replace(plan=plan, mask=mask) for other in others for plan in (other, plain.plan)]


def draw_option_calls(draw: st.DrawFn, plain: Call, declaration: Declaration) -> list[Call]:
    """A scale of 1, then every option in two calls that hold nothing else, and two calls without any."""
    available = [feature for feature in SWITCHED if feature in declaration]
    switched = [plain._replace(focus=(feature,)) for feature in available]
    masks = sorted(declaration.masks)
    masked = [plain._replace(mask=draw(st.sampled_from(masks))) for _ in range(3 if masks else 0)]
    first = [call for call in switched if call.focus == ("scale",)]
    return [*first, *draw(st.permutations([*switched, *switched, *masked, plain, plain]))]


def draw_dtype_calls(draw: st.DrawFn, plain: Call, declaration: Declaration) -> list[Call]:
    """Few keys: float64 is judged by ball arithmetic, which is slow."""
    several = require_some(judged_dtypes(generation.DTYPES, declaration))
    small = SHORT[0] if declaration.compiled else plain.plan._replace(B=1, Q=3, K=9, D=8, V=8)
    return [Call(small, draw(st.sampled_from(several))) for _ in range(CALLS)]


@st.composite
def norm_history(draw: st.DrawFn, operation: str, declaration: Declaration, sizes: bool, count: int) -> Cases:
    """Of one width and dtype, with other eps, bias and dtype of the weight; sizes: every other one of another size."""
    dtype = draw(st.sampled_from(require_some(judged_dtypes(generation.DTYPES, declaration))))
    widths: tuple[int, ...] = NORM_WIDTHS[:2] if dtype == "float64" else NORM_WIDTHS
    widths = tuple(width for width in widths if fit_width(width, "norm_width", declaration) == width) or widths
    able = [rows for rows in ROWS if rows <= declaration.limits.get("rows", rows)]
    rows, width = draw(st.sampled_from(able)), draw(st.sampled_from(widths))
    other_rows: Sequence[int] = able
    other_widths: Sequence[int] = widths
    if declaration.compiled:  # each shape is one more to compile
        other_rows = [draw(st.sampled_from([other for other in able if other != rows] or able))]
        other_widths = [draw(st.sampled_from([other for other in widths if other != width] or widths))]
    cases = []
    for number in range(count):
        shape = (rows, width)
        if sizes and number % 2:
            others = (draw(st.sampled_from(other_rows)), width), (rows, draw(st.sampled_from(other_widths)))
            shape = draw(st.sampled_from(others))
        cases.append(draw(operation_cases(operation, (dtype,), declaration, plans=((shape, 1),))))
    return tuple(cases)


@st.composite
def sinusoidal_history(draw: st.DrawFn, declaration: Declaration, count: int) -> Cases:
    """Of one width, so that a table made for the first length is found again."""
    cases = operation_cases("sinusoidal_positions", declaration=declaration)
    history = [draw(cases) for _ in range(count)]
    kept = {name: history[0].options[name] for name in ("width", "exponent", "dtype")}
    return tuple(replace(case, dtype=kept["dtype"], options=case.options | kept) for case in history)


@st.composite
def plain_history(draw: st.DrawFn, operation: str, declaration: Declaration, count: int) -> Cases:
    dtypes = judged_dtypes(generation.DTYPES, declaration)
    if draw(st.booleans()):
        dtypes = (draw(st.sampled_from(require_some(dtypes))),)
    cases = operation_cases(operation, dtypes, declaration)
    if not declaration.compiled:
        return tuple(draw(cases) for _ in range(count))
    # Every case comes twice, the second time with other numbers, since each is one more to compile.
    found = [draw(cases) for _ in range((count + 1) // 2)]
    again = [reverse_numbers(case) if case.inputs else draw(cases) for case in found]
    return (*found, *again)[:count]


@st.composite
def dtype_history(
    draw: st.DrawFn, operation: str, dtypes: tuple[str, ...], declaration: Declaration, count: int
) -> Cases:
    """One call in every dtype, those of fewest digits first: what is kept of them is too coarse for the others.

    Positions and options are the same, so that it is found again.
    """
    order = sorted(dtypes, key=UNIT_ROUNDOFF.__getitem__, reverse=True)
    case = draw(operation_cases(operation, (order[-1],), declaration).filter(is_finite))
    converted = [convert_dtype(case, dtype) for dtype in order[:count]]
    cases = [replace(case, rounding=roundings(declaration, case.dtype)) for case in converted]
    assume(all(map(is_finite, cases)))
    return tuple(cases)


def reverse_numbers(case: Case) -> Case:
    """The case with its numbers in reverse; those of a bias stay, because -inf forbids what others must then allow."""
    reversed_inputs = {name: reverse_last_axis(array) for name, array in case.inputs.items() if name != "bias"}
    return replace(case, inputs=case.inputs | reversed_inputs)


@st.composite
def gradient_histories(draw: st.DrawFn, history: st.SearchStrategy[Cases], count: int) -> Cases:
    """Those cases of a history that ask for gradients."""
    cases = tuple(case for case in draw(history) if case.cotangents)[:count]
    assume(len(cases) == count)
    return cases


TINY = (Sizes(1, 2, 1, 3, 48, 16, 16), Sizes(1, 2, 2, 2, 70, 16, 16), Sizes(2, 2, 1, 1, 40, 32, 16))
"""Calls that take next to no time, with more than one block of keys, and widths that tensor cores take. Where shapes
are compiled, those of other cases."""


def fast_dtypes(declaration: Declaration) -> tuple[str, ...]:
    """The dtypes without float64, whose exact values take long; that alone where there are no others."""
    fast = tuple(dtype for dtype in generation.DTYPES if dtype in declaration.dtypes and dtype != "float64")
    return fast or ("float64",)


def repeatable_cases(operation: str, declaration: Declaration) -> st.SearchStrategy[Case]:
    """Small cases for many calls, one in five with gradients."""
    dtypes, plans = fast_dtypes(declaration), LONG[2:3] if declaration.compiled else TINY
    if operation.startswith("attention"):
        cases = generation.attention_cases(
            operation, "maybe", others=False, dtypes=dtypes, plans=plans, declaration=declaration
        )
    else:
        cases = operation_cases(operation, dtypes, declaration)
    numbered = st.tuples(st.integers(0, 4), cases.filter(is_finite))
    return numbered.map(lambda drawn: drawn[1] if drawn[0] == 4 else replace(drawn[1], cotangents={}))


def is_finite(case: Case) -> bool:
    return all(a.dtype.kind in "biu" or np.isfinite(a.astype(float)).all() for a in case.inputs.values())
