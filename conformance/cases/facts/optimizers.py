"""Steps of optimizers, and gradients clipped by their norm."""

from __future__ import annotations

from conformance.cases.axes import Arrays, Axis, Described, Sizes, leading
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Shape, State
from specification.optimizers import AdamState, SgdState


def adam_shape(case: Case, name: str, layout: str) -> Shape:
    return () if name == "step" else case.inputs["parameters"].shape


def sgd_shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["parameters"].shape


def step_dimensions(case: Case) -> dict[str, int]:
    return {"rows": case.inputs["parameters"].size}


def step_axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["parameters"], 0)
    return sizes, dict.fromkeys(case.inputs, rows), {}


ADAM_STEP = OperationFacts(
    name="adam_step",
    rules={"": "OPT-1"},
    arguments=("parameters", "gradients", "state"),
    differentiated=(),
    results=("parameters", "state"),
    state=State(AdamState, ("step", "mean", "square")),
    wide=("mean", "square"),
    positive=("square",),
    shape=adam_shape,
    dimensions=step_dimensions,
    axes=step_axes,
)
SGD_STEP = OperationFacts(
    name="sgd_step",
    rules={"": "OPT-2"},
    arguments=("parameters", "gradients", "state"),
    differentiated=(),
    results=("parameters", "state"),
    state=State(SgdState, ("velocity",)),
    wide=("velocity",),
    shape=sgd_shape,
    dimensions=step_dimensions,
    axes=step_axes,
)


def clipped_shape(case: Case, name: str, layout: str) -> Shape:
    return () if name == "norm" else case.inputs[name].shape


def clipped_dimensions(case: Case) -> dict[str, int]:
    return {"rows": sum(array.size for array in case.inputs.values())}


def clipped_axes(case: Case) -> Described:
    """Every array has clipped_axes of its own."""
    sizes: Sizes = {"parts": len(case.inputs)}
    arrays: Arrays = {}
    for name, array in case.inputs.items():
        own: tuple[Axis, ...] = tuple((f"rows {len(sizes) + k}",) for k in range(array.ndim))
        sizes |= {axis[0]: size for axis, size in zip(own, array.shape, strict=True)}
        arrays[name] = own
    return sizes, arrays, {"gradients": ("parts",)}


CLIP_BY_GLOBAL_NORM = OperationFacts(
    name="clip_by_global_norm",
    rules={"": "OPT-3"},
    arguments=("gradients", "limit"),
    differentiated=(),
    results=("gradients", "norm"),
    lists=("gradients",),
    wide=("norm",),
    shape=clipped_shape,
    dimensions=clipped_dimensions,
    axes=clipped_axes,
)
