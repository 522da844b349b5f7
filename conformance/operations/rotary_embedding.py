"""Rotary embedding: pairs of columns turned by angles that grow with the position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.draws import CaseStrategy
from conformance.sampling.plan.covering import KEY_HEADS, WIDTHS, Row, neighbouring_sizes
from conformance.sampling.plan.layers import Plan
from conformance.sampling.rotary import FAR, FARTHEST, OF_BATCH, PLANS, SCALED, WIDE, rotary_cases
from specification.rotary import LinearScaling, LongRopeScaling, YarnScaling

NAME = "rotary_embedding"
PLAN = Plan(
    values={
        "heads": (1, *KEY_HEADS),
        "length": (1, 2, 5, 12, *neighbouring_sizes(*range(4, 12))),
        "model_width": tuple(width for width in WIDTHS if width % 2 == 0),
    },
    typical={"heads": (3, 32), "length": (5, 129, 1025), "model_width": (6, 64, 320)},
)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(rotary_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        plan = (1, row["heads"], row["length"], row["model_width"])
        return cases(("in a row",), partial=False, scalings=("none",), plans=(plan,))

    def agree(name: str, cases: CaseStrategy, weight: float = 1.0, level: str = CORE) -> Probe:
        return agreement("POS-3", name, NAME, cases, weight, level)

    def scaling_probe(name: str, kinds: tuple[str, ...], weight: float = 1.0, **given: Any) -> Probe:
        return agreement("POS-4", name, NAME, cases(scalings=kinds, plans=(*WIDE, *PLANS), **given), weight)

    plain = partial(cases, scalings=("none",), partial=False)
    return [
        agree("rotary", cases(scalings=("none",)), 2.0),
        agree("long positions", plain(far=FAR), 1.5),
        agree("farthest positions", plain(("in a row", "anywhere"), FARTHEST)),
        agree("pairs of neighbours", cases(pairings=("interleaved",), scalings=("none",))),
        agree("columns that stay", cases(partial=True)),
        agree("positions of each batch element", plain(OF_BATCH)),
        scaling_probe("scaled rotary embeddings", SCALED, 2.0),
        scaling_probe("frequencies on a ramp", ("yarn", "llama3"), 1.5),
        scaling_probe("lengths past the original one", ("longrope", "dynamic")),
        scaling_probe("scaled rotary embeddings at long positions", SCALED, far=FAR),
        agree("NaN and infinity in rotary embeddings", cases(special=True), 0.5, ROBUST),
        agree("rotary embeddings, sizes", rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    x, row = array(2, 3, 4, 6), np.arange(4)

    def make_refusal(title: str, error: Kind, x: Any = x, positions: Any = row, **options: Any) -> Refusal:
        return array.refusal("POS-3", title, error, NAME, {"x": x, "positions": positions}, **options)

    yield make_refusal("an odd width", ValueError, array(2, 3, 4, 5))
    yield make_refusal("an odd rotary width", ValueError, rotary_width=3)
    yield make_refusal("a rotary width past x", ValueError, rotary_width=8)
    yield make_refusal("x of three axes", ValueError, array(3, 4, 6))
    yield make_refusal("x of integers", TypeError, np.ones((2, 3, 4, 6), int))
    yield make_refusal("positions of another length", ValueError, positions=np.arange(5))
    yield make_refusal("positions of another batch size", ValueError, positions=np.zeros((3, 4), int))
    yield make_refusal("positions for every head", ValueError, positions=np.zeros((2, 3, 4), int))
    yield make_refusal("positions that are no integers", TypeError, positions=np.arange(4.0).astype(np.float32))
    yield make_refusal("a negative position", ValueError, positions=row - 1)
    yield make_refusal("a position beyond 2**30", ValueError, positions=row + 2**30)
    yield make_refusal("a base of 1", ValueError, base=1.0)
    yield make_refusal("an unknown pairing", ValueError, pairing="thirds")
    yield make_refusal("an unknown scaling", TypeError, scaling="linear")
    yield make_refusal("a scaling that divides by less than 1", ValueError, scaling=LinearScaling(factor=0.5))
    few = LongRopeScaling(short_factors=(1.0,), long_factors=(1.0, 2.0), original_length=8)
    yield make_refusal("a scaling with too few factors", ValueError, scaling=few, length=4)
    late = YarnScaling(factor=2.0, original_length=2**20)
    yield make_refusal("a ramp that ends before it starts", ValueError, base=2.0, scaling=late)


OPERATION = JudgedOperation(NAME, probes, refusals)
