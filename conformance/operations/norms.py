"""Norms: every row is brought to the same size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import CONSTANT_ROWS, SPOILED_ROWS, Probe, make_probe
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling import draws
from conformance.sampling import layers as generation
from conformance.sampling.histories import norm_histories
from conformance.sampling.layers import NORM_SHAPES
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import SMALL, rows_of_layers
from specification.dtypes import HALF

# --- layer_norm -------------------------------------------------------------------------------------------------------


def norm_rows(operation: str, title: str, declaration: Declaration, large: int = 1, **given: Any) -> draws.Rows:
    """Cases of a norm at the sizes of its plan. large: as for `rows_of_layers`; gradients take four times the time."""

    def cases(row: Row) -> st.SearchStrategy[Case]:
        rows, width = row["rows"], row["norm_width"]
        small = declaration.compiled or SMALL.affords(row)
        # A large case is the only one of its sizes, so it normalises one axis, as all functions do.
        shapes = generation.norm_shapes(rows, width) if small else (((rows, width), 1),)
        return generation.norm_cases(operation, plans=shapes, declaration=declaration, **given)

    return rows_of_layers(operation, cases, declaration, title, large)


def layer_norm_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "layer_norm")
    cases = partial(generation.norm_cases, declaration=declaration)
    planned = partial(norm_rows, "layer_norm", declaration=declaration)
    tiny: dict[str, Any] = {"means": (0.0,), "spreads": (1e-4, 1e-3), "epsilons": (1e-12,)}
    far: dict[str, Any] = {"means": (1e3, -1e4), "gradients": False, "dtypes": ("float32", "float64")}
    narrow: dict[str, Any] = {"gradients": False, "dtypes": HALF}
    return [
        probe("NORM-1", "layer norm", cases(gradients=False)),
        *(probe("NORM-1", f"rows of {list(x[-n:])}", cases(plans=((x, n),)), weight=0.2) for x, n in NORM_SHAPES),
        probe("NORM-1", "eps left out", cases(spreads=(3e-3, 0.03), default_eps=True), weight=0.5),
        probe("NORM-1", "a tiny eps", cases(**tiny), weight=0.4),
        probe("NORM-2", "16-bit inputs", cases(**narrow), weight=2.0),
        probe("NORM-3", "constant rows", generation.constant_rows(declaration=declaration), 2.5, check=CONSTANT_ROWS),
        probe("NORM-4", "far from zero", cases(**far)),
        probe("NORM-4", "a first element far from the others", generation.outlying_rows(declaration)),
        spoiled_probe("layer_norm", declaration),
        probe("NORM-6", "gradients", cases(focus=("gradients",)), weight=2.0),
        probe("NORM-1", "layer norm, sizes", planned("output", large=2, gradients=False)),
        probe("NORM-2", "16-bit inputs, sizes", planned("16 bits", large=0, **narrow), 0.3),
        probe("NORM-4", "far from zero, sizes", planned("far", large=0, far=True, **far), 1.75),
        probe("NORM-6", "gradients, sizes", planned("grad", focus=("gradients",))),
    ]


def spoiled_probe(operation: str, declaration: Declaration) -> Probe:
    cases = generation.spoiled_rows(operation, declaration)
    return make_probe(operation, "NORM-5", f"NaN and infinity in {operation}", cases, 0.5, check=SPOILED_ROWS)


def takes_bias(declaration: Declaration) -> bool:
    return "biased" in declaration and "bias" not in declaration.lacking


def layer_norm_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    bias = {"bias": array(6)} if takes_bias(declaration) else {}

    def make_refusal(rule: str, title: str, error: Kind, eps: float = 1e-5, **changes: object) -> Refusal:
        inputs = {"x": array(2, 3, 6), "weight": array(6)} | bias | changes
        return array.refusal("layer_norm", rule, title, error, inputs, eps=eps)

    yield make_refusal("NORM-1", "weight of another width", ValueError, weight=array(5))
    yield make_refusal("NORM-1", "eps 0", ValueError, eps=0.0)
    yield make_refusal("NORM-2", "mixed dtypes", TypeError, weight=array(6, dtype=array.another))


LAYER_NORM = JudgedOperation("layer_norm", layer_norm_probes, layer_norm_refusals, norm_histories)


# --- rms_norm ---------------------------------------------------------------------------------------------------------


def rms_norm_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "rms_norm")
    cases = partial(generation.norm_cases, "rms_norm", declaration=declaration)
    planned = partial(norm_rows, "rms_norm", declaration=declaration)
    graded = ("gradients",)
    return [
        spoiled_probe("rms_norm", declaration),
        probe("NORM-7", "rms_norm", cases(gradients=False), weight=2.0),
        *weight_plus_one_probes(declaration),
        probe("NORM-6", "gradients of rms_norm", cases(focus=graded), weight=2.0),
        probe("NORM-7", "rms_norm, sizes", planned("rms_norm", large=2, gradients=False)),
        probe("NORM-6", "gradients of rms_norm, sizes", planned("gradients of rms_norm", focus=graded)),
    ]


def weight_plus_one_probes(declaration: Declaration) -> list[Probe]:
    """1 + weight, where the subject has an option for it."""
    if "plus_one" in declaration.lacking:
        return []
    probe = partial(make_probe, "rms_norm", "NORM-8")
    cases = partial(generation.norm_cases, "rms_norm", plus_one=(True,), declaration=declaration)
    return [
        probe("1 + weight", cases(gradients=False), weight=2.0),
        probe("1 + weight in 16 bits", cases(gradients=False, dtypes=HALF), weight=0.5),
        probe("gradients of 1 + weight", cases(focus=("gradients",))),
    ]


def rms_norm_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"x": array(2, 6), "weight": array(6)}
    yield array.refusal("rms_norm", "NORM-8", "plus_one that is no truth value", TypeError, given, eps=1e-5, plus_one=1)


RMS_NORM = JudgedOperation("rms_norm", rms_norm_probes, rms_norm_refusals, norm_histories)


# --- standard_deviation_norm ------------------------------------------------------------------------------------------


def standard_deviation_norm_probes(declaration: Declaration) -> list[Probe]:
    name = "standard_deviation_norm"
    probe, constant = (
        partial(make_probe, name, "NORM-7"),
        partial(generation.constant_rows, name, declaration=declaration),
    )
    gradients = constant(gradients=True, focus=("gradients",))
    return [
        probe(name, generation.norm_cases(name, declaration=declaration), weight=2.0),
        probe(f"constant rows of {name}", constant(), 1.5, check=CONSTANT_ROWS),
        probe(f"gradients in constant rows of {name}", gradients, weight=0.5, level=ROBUST),
        probe(f"{name}, sizes", norm_rows(name, name, declaration)),
    ]


def standard_deviation_norm_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    row = {"x": array(3, 1), "weight": array(1)} | ({"bias": array(1)} if takes_bias(declaration) else {})
    yield array.refusal(
        "standard_deviation_norm", "NORM-7", "the unbiased deviation of one element", ValueError, row, eps=1e-6
    )


STANDARD_DEVIATION_NORM = JudgedOperation(
    "standard_deviation_norm", standard_deviation_norm_probes, standard_deviation_norm_refusals, norm_histories
)
