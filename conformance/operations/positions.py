"""Rows of tables, sinusoidal positions, and biases by distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.levels import STRICT
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling import positions as generation
from conformance.sampling.draws import Rows
from conformance.sampling.histories import sinusoidal_histories
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import rows_of_layers
from conformance.sampling.positions import alibi_cases, relative_bias_cases
from specification.dtypes import HALF

# --- embedding --------------------------------------------------------------------------------------------------------


def embedding_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "embedding", "EMB-1")
    cases = partial(generation.lookup_cases, "embedding", declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=((row["vocabulary"], row["model_width"], (row["rows"],)),))

    return [
        probe("embedding", cases(), weight=2.0),
        probe("rows of 16 bits scaled", cases((True,), HALF), weight=0.5),
        probe("sizes", rows_of_layers("embedding", row_cases, declaration)),
    ]


def embedding_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: Kind, ids: np.ndarray) -> Refusal:
        return array.refusal("embedding", "EMB-1", title, error, {"table": array(4, 3), "ids": ids})

    yield make_refusal("an id past the vocabulary", ValueError, np.array([0, 4]))
    yield make_refusal("a negative id", ValueError, np.array([0, -1]))
    yield make_refusal("ids that are no integers", TypeError, array(2))


EMBEDDING = JudgedOperation("embedding", embedding_probes, embedding_refusals)


# --- learned_positions ------------------------------------------------------------------------------------------------


def learned_positions_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "learned_positions", "POS-2")
    cases = partial(generation.lookup_cases, "learned_positions", declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=((row["vocabulary"], row["model_width"], (row["length"],)),))

    return [
        probe("learned", cases(), weight=2.0),
        probe("sizes", rows_of_layers("learned_positions", row_cases, declaration)),
    ]


def learned_positions_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    table = {"table": array(4, 3)}
    yield array.refusal("learned_positions", "POS-2", "a position past the table", ValueError, table, length=5)


LEARNED_POSITIONS = JudgedOperation("learned_positions", learned_positions_probes, learned_positions_refusals)


# --- sinusoidal_positions ---------------------------------------------------------------------------------------------


def sinusoidal_positions_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "sinusoidal_positions", "POS-1")
    cases = partial(generation.sinusoidal_cases, declaration=declaration)
    rows = rows_of_layers(
        "sinusoidal_positions", lambda row: cases(plan=(row["length"], row["model_width"])), declaration
    )
    return [
        probe("sinusoidal", cases(), weight=1.7),
        probe("far positions", cases(offsets=(10_007, 20_011)), weight=0.5),
        probe("sizes", rows),
    ]


def sinusoidal_positions_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"length": 3, "width": 4, "exponent": "one"}
    yield array.refusal("sinusoidal_positions", "POS-1", "an unknown exponent", ValueError, {}, **given)


SINUSOIDAL_POSITIONS = JudgedOperation(
    "sinusoidal_positions", sinusoidal_positions_probes, sinusoidal_positions_refusals, sinusoidal_histories
)


# --- alibi_bias -------------------------------------------------------------------------------------------------------


def bias_rows(cases: Callable[..., st.SearchStrategy[Case]], declaration: Declaration) -> Rows:
    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plan=(row["heads"], row["queries"], row["keys"]))

    return rows_of_layers("alibi_bias", row_cases, declaration)


def alibi_bias_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "alibi_bias", "POS-5")
    cases = partial(alibi_cases, declaration=declaration)
    return [
        probe("alibi", cases(), weight=1.5),
        probe("heads that are no power of two", cases(heads=(3, 6, 12, 20, 40, 71))),
        probe("sizes", bias_rows(cases, declaration)),
    ]


def alibi_bias_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"query_length": 3, "key_length": 4}
    yield array.refusal("alibi_bias", "POS-5", "no heads", ValueError, {}, num_heads=0, **given)
    yield array.refusal("alibi_bias", "POS-5", "a negative offset", ValueError, {}, num_heads=2, offset=-1, **given)


ALIBI_BIAS = JudgedOperation("alibi_bias", alibi_bias_probes, alibi_bias_refusals)


# --- relative_position_bias -------------------------------------------------------------------------------------------


def relative_position_bias_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "relative_position_bias", "POS-6")
    cases = partial(relative_bias_cases, declaration=declaration)
    return [
        probe("relative buckets", cases(), weight=2.0),
        probe("edges of buckets where logarithms err", cases(hard=True), weight=1.5, level=STRICT),
        probe("sizes", bias_rows(cases, declaration)),
    ]


def relative_position_bias_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: Kind, rows: int = 8, **changes: object) -> Refusal:
        given = {"query_length": 3, "key_length": 4, "bidirectional": True} | changes
        return array.refusal("relative_position_bias", "POS-6", title, error, {"table": array(rows, 2)}, **given)

    yield make_refusal("a table of three buckets for both directions", ValueError, rows=3)
    yield make_refusal("a furthest distance that has a bucket of its own", ValueError, furthest=2)
    yield make_refusal("bidirectional that is no truth value", TypeError, bidirectional=1)


RELATIVE_POSITION_BIAS = JudgedOperation(
    "relative_position_bias", relative_position_bias_probes, relative_position_bias_refusals
)
