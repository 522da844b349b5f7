"""Rotary embeddings, which turn pairs of columns by angles that grow with the position, and their frequencies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import rows_of_layers
from conformance.sampling.positions import FAR, FARTHEST, OF_BATCH, PLANS, SCALED, WIDE, frequency_cases, rotary_cases
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling

# --- rotary_embedding -------------------------------------------------------------------------------------------------


def rotary_embedding_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "rotary_embedding", "POS-3")
    cases = partial(rotary_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        plan = (1, row["heads"], row["length"], row["model_width"])
        return cases(("in a row",), partial=False, scalings=("none",), plans=(plan,))

    scaling_probe = partial(make_probe, "rotary_embedding", "POS-4")
    plain, scaled = partial(cases, scalings=("none",), partial=False), partial(cases, plans=(*WIDE, *PLANS))
    return [
        probe("rotary", cases(scalings=("none",)), 2.0),
        probe("long positions", plain(far=FAR), 1.5),
        probe("farthest positions", plain(("in a row", "anywhere"), FARTHEST)),
        probe("pairs of neighbours", cases(pairings=("interleaved",), scalings=("none",))),
        probe("columns that stay", cases(partial=True)),
        probe("positions of each batch element", plain(OF_BATCH)),
        scaling_probe("scaled rotary embeddings", scaled(scalings=SCALED), 2.0),
        scaling_probe("frequencies on a ramp", scaled(scalings=("yarn", "llama3")), 1.5),
        scaling_probe("lengths past the original one", scaled(scalings=("longrope", "dynamic"))),
        scaling_probe("scaled rotary embeddings at long positions", scaled(scalings=SCALED, far=FAR)),
        probe("NaN and infinity in rotary embeddings", cases(special=True), 0.5, ROBUST),
        probe("rotary embeddings, sizes", rows_of_layers("rotary_embedding", row_cases, declaration)),
    ]


def rotary_embedding_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    x, row = array(2, 3, 4, 6), np.arange(4)

    def make_refusal(
        title: str, error: Kind, x: np.ndarray = x, positions: np.ndarray = row, **options: object
    ) -> Refusal:
        return array.refusal("rotary_embedding", "POS-3", title, error, {"x": x, "positions": positions}, **options)

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


ROTARY_EMBEDDING = JudgedOperation("rotary_embedding", rotary_embedding_probes, rotary_embedding_refusals)


# --- rotary_frequencies -----------------------------------------------------------------------------------------------


def rotary_frequencies_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "rotary_frequencies", "POS-4")
    cases = partial(frequency_cases, declaration=declaration)
    rows = rows_of_layers("rotary_frequencies", lambda row: cases(("none",), widths=(row["model_width"],)), declaration)
    return [
        probe("frequencies", cases(("none",))),
        *(probe(f"{kind} frequencies", cases((kind,)), 1.5) for kind in SCALED),
        probe("frequencies, sizes", rows),
    ]


def rotary_frequencies_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: Kind, **given: object) -> Refusal:
        return array.refusal("rotary_frequencies", "POS-4", title, error, {}, **{"width": 8, "base": 10000.0} | given)

    ramp = Llama3Scaling(factor=8.0, low_frequency_factor=4.0, high_frequency_factor=1.0, original_length=8192)
    yield make_refusal("frequencies of an odd width", ValueError, width=7)
    yield make_refusal("a base below 1", ValueError, base=0.5)
    yield make_refusal("a scaling of another kind", TypeError, scaling={"factor": 2.0})
    yield make_refusal("a factor below 1", ValueError, scaling=LinearScaling(factor=0.25))
    yield make_refusal("a factor that is NaN", ValueError, scaling=LinearScaling(factor=float("nan")))
    yield make_refusal("a low factor above the high one", ValueError, scaling=ramp)
    narrow = DynamicScaling(factor=2.0, original_length=8)
    yield make_refusal("a dynamic scaling of one pair", ValueError, width=2, scaling=narrow)


ROTARY_FREQUENCIES = JudgedOperation("rotary_frequencies", rotary_frequencies_probes, rotary_frequencies_refusals)
