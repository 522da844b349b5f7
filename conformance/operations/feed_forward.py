"""Feed-forward networks, plain and gated, and the activation that is an operation of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling import layers as generation
from conformance.sampling.draws import Rows
from conformance.sampling.layers import ACTIVATIONS
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import rows_of_layers

# --- feed_forward -----------------------------------------------------------------------------------------------------


def network_rows(operation: str, cases: Callable[..., st.SearchStrategy[Case]], declaration: Declaration) -> Rows:
    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=(((row["rows"], row["model_width"]), row["inner_width"], row["outer_width"]),))

    return rows_of_layers(operation, row_cases, declaration)


def feed_forward_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "feed_forward", "FFN-1")
    cases = partial(generation.feed_forward_cases, "feed_forward", declaration=declaration)
    return [
        *(probe(f"with {name}", cases((name,)), weight=2.0) for name in ACTIVATIONS),
        probe("sizes", network_rows("feed_forward", cases, declaration)),
    ]


def feed_forward_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    network = {"x": array(2, 3, 6), "inner.weight": array(6, 9), "outer.weight": array(9, 6)}
    yield array.refusal("feed_forward", "FFN-1", "an unknown activation", ValueError, network, activation="swish")
    apart = network | {"outer.weight": array(8, 6)}
    yield array.refusal("feed_forward", "FFN-1", "layers that do not fit", ValueError, apart)


FEED_FORWARD = JudgedOperation("feed_forward", feed_forward_probes, feed_forward_refusals)


# --- gated_feed_forward -----------------------------------------------------------------------------------------------


def gated_feed_forward_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "gated_feed_forward", "FFN-2")
    cases = partial(generation.feed_forward_cases, "gated_feed_forward", declaration=declaration)
    return [
        *(probe(f"gated by {name}", cases((name,)), weight=1.5) for name in ACTIVATIONS),
        probe("activation before the product", generation.gates_rounded_alike(declaration=declaration)),
        probe("sizes", network_rows("gated_feed_forward", cases, declaration)),
    ]


def gated_feed_forward_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    network = {"gate.weight": array(6, 9), "inner.weight": array(6, 9), "outer.weight": array(9, 6)}
    network = {"x": array(2, 3, 6)} | network
    yield array.refusal("gated_feed_forward", "FFN-2", "an unknown activation", ValueError, network, activation="swish")
    apart = network | {"gate.weight": array(6, 1)}
    yield array.refusal("gated_feed_forward", "FFN-2", "a gate of another width", ValueError, apart)


GATED_FEED_FORWARD = JudgedOperation("gated_feed_forward", gated_feed_forward_probes, gated_feed_forward_refusals)


# --- silu -------------------------------------------------------------------------------------------------------------


def silu_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "silu", "ACT-1")
    cases = partial(generation.silu_cases, declaration=declaration)
    return [
        probe("silu", cases(), weight=2.0),
        probe("the last normal numbers", cases(("last normal",))),
        probe("NaN and infinity in silu", cases(special=True), weight=0.5),
        probe("sizes", rows_of_layers("silu", lambda row: cases(plans=((row["rows"],),)), declaration)),
    ]


def silu_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    yield array.refusal("silu", "ACT-1", "x of integers", TypeError, {"x": np.array([1, -2])})


SILU = JudgedOperation("silu", silu_probes, silu_refusals)
