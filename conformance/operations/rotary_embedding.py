"""Rotary embedding: pairs of columns turned by angles that grow with the position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import rotary as bounds_of
from conformance.bounds.arithmetic import Approx, Precision
from conformance.bounds.operations import finished
from conformance.cases.arguments import gradient_name
from conformance.cases.axes import Arrays, Axis, Described
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import rotary as mistakes
from conformance.operations.common import rows_of_layers
from conformance.sampling.draws import CaseStrategy
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import KEY_HEADS, WIDTHS, around
from conformance.sampling.rotary import FAR, FARTHEST, OF_BATCH, PLANS, SCALED, WIDE, rotary_cases
from specification.rotary import LinearScaling, LongRopeScaling, YarnScaling

NAME = "rotary_embedding"
PLAN = Plan(
    values={
        "heads": (1, *KEY_HEADS),
        "length": (1, 2, 5, 12, *around(*range(4, 12))),
        "model_width": tuple(width for width in WIDTHS if width % 2 == 0),
    },
    typical={"heads": (3, 32), "length": (5, 129, 1025), "model_width": (6, 64, 320)},
)


def work(passes: int, gradients: bool, *, numbers: int, angles: int) -> int:
    return numbers * (30 if gradients else 14) + angles * 60


def shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["x"].shape


def dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("batch", "heads", "length", "model_width"), case.inputs["x"].shape, strict=True))


def axes(case: Case) -> Described:
    B, H, T, D = case.inputs["x"].shape
    whole: tuple[Axis, ...] = (("B",), ("H",), ("T",), ("E",))
    arrays: Arrays = {"x": whole, "positions": (("B",), ("T",)), "-> output": whole}
    return {"B": B, "H": H, "T": T, "E": D}, arrays, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(rotary_cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        plan = (1, row["heads"], row["length"], row["model_width"])
        return cases(("in a row",), partial=False, scalings=("none",), plans=(plan,))

    def agree(name: str, cases: CaseStrategy, weight: float = 1.0, level: str = CORE) -> Probe:
        return agreement("POS-3", name, NAME, cases, weight, level)

    def scaled(name: str, kinds: tuple[str, ...], weight: float = 1.0, **given: Any) -> Probe:
        return agreement("POS-4", name, NAME, cases(scalings=kinds, plans=(*WIDE, *PLANS), **given), weight)

    plain = partial(cases, scalings=("none",), partial=False)
    return [
        agree("rotary", cases(scalings=("none",)), 2.0),
        agree("long positions", plain(far=FAR), 1.5),
        agree("farthest positions", plain(("in a row", "anywhere"), FARTHEST)),
        agree("pairs of neighbours", cases(pairings=("interleaved",), scalings=("none",))),
        agree("columns that stay", cases(partial=True)),
        agree("positions of each batch element", plain(OF_BATCH)),
        scaled("scaled rotary embeddings", SCALED, 2.0),
        scaled("frequencies on a ramp", ("yarn", "llama3"), 1.5),
        scaled("lengths past the original one", ("longrope", "dynamic")),
        scaled("scaled rotary embeddings at long positions", SCALED, far=FAR),
        agree("NaN and infinity in rotary embeddings", cases(special=True), 0.5, ROBUST),
        agree("rotary embeddings, sizes", rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    x, row = array(2, 3, 4, 6), np.arange(4)

    def refused(title: str, error: Kind, x: Any = x, positions: Any = row, **options: Any) -> Refusal:
        return array.refusal("POS-3", title, error, NAME, {"x": x, "positions": positions}, **options)

    yield refused("an odd width", ValueError, array(2, 3, 4, 5))
    yield refused("an odd rotary width", ValueError, rotary_width=3)
    yield refused("a rotary width past x", ValueError, rotary_width=8)
    yield refused("x of three axes", ValueError, array(3, 4, 6))
    yield refused("x of integers", TypeError, np.ones((2, 3, 4, 6), int))
    yield refused("positions of another length", ValueError, positions=np.arange(5))
    yield refused("positions of another batch size", ValueError, positions=np.zeros((3, 4), int))
    yield refused("positions for every head", ValueError, positions=np.zeros((2, 3, 4), int))
    yield refused("positions that are no integers", TypeError, positions=np.arange(4.0).astype(np.float32))
    yield refused("a negative position", ValueError, positions=row - 1)
    yield refused("a position beyond 2**30", ValueError, positions=row + 2**30)
    yield refused("a base of 1", ValueError, base=1.0)
    yield refused("an unknown pairing", ValueError, pairing="thirds")
    yield refused("an unknown scaling", TypeError, scaling="linear")
    yield refused("a scaling that divides by less than 1", ValueError, scaling=LinearScaling(factor=0.5))
    few = LongRopeScaling(short_factors=(1.0,), long_factors=(1.0, 2.0), original_length=8)
    yield refused("a scaling with too few factors", ValueError, scaling=few, length=4)
    late = YarnScaling(factor=2.0, original_length=2**20)
    yield refused("a ramp that ends before it starts", ValueError, base=2.0, scaling=late)


def turning(case: Case) -> int:
    """The number of columns that turn."""
    width = case.options.get("rotary_width")
    return int(case.inputs["x"].shape[-1] if width is None else width)


def copied(case: Case, name: str) -> np.ndarray:
    """Columns past the rotary width."""
    columns = np.arange(case.inputs["x"].shape[-1]) >= turning(case)
    return np.broadcast_to(columns, case.inputs["x"].shape)


def bounds(case: Case, p: Precision, angle_error: Any = 0.0) -> dict[str, Approx]:
    """As `bounds/rotary.py` derives them. angle_error: of the angles, beside what is derived there."""
    angles, size = bounds_of.angles(case)
    angle_error = np.maximum(angle_error, bounds_of.single_angle_error(case)) if p.single_angles else angle_error
    pairing = case.options.get("pairing") or "halves"
    results = {"output": bounds_of.rotation(case.inputs["x"], angles, size, pairing, 1, p, angle_error)}
    if case.cotangents:
        bar = case.cotangents["output"]
        results[gradient_name("x")] = bounds_of.rotation(bar, angles, size, pairing, -1, p, angle_error)
    return results


def relaxed(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow angles computed in float64, which has no digits for all of them.

    The frequency is then off as `bounds.rotary.frequencies` derives it, and its product with the position rounds once
    more; taking whole turns off is exact for the product, and 2 pi is off by half a unit for each of them.
    """
    p, double = Precision.of(case.dtype, case.rounding), Precision.of("float64")
    angles, _ = bounds_of.angles(case)
    call = bounds_of.call_of(case)
    value, error = bounds_of.frequencies(call, double.inner)
    angle_error = np.abs(angles) * (error / value + 2 * double.inner)
    with np.errstate(all="ignore"):
        return {name: finished(name, approx, case, p) for name, approx in bounds(case, p, angle_error).items()}


OPERATION = Operation(
    name=NAME,
    rules=dict.fromkeys(("", "interleaved", "rotary_width", "batch_positions"), "POS-3") | {"rotary_scaling": "POS-4"},
    arguments=("x", "positions"),
    differentiated=("x",),
    copied=copied,
    width_unit=2,
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    relaxed=relaxed,
    work=work,
    cases=rotary_cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=mistakes.MISTAKES,
)
