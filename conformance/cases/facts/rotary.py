"""Rotary embeddings and their frequencies."""

from __future__ import annotations

import numpy as np

from conformance.cases.axes import Arrays, Axis, Described
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Shape


def rotary_shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["x"].shape


def rotary_dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("batch", "heads", "length", "model_width"), case.inputs["x"].shape, strict=True))


def rotary_axes(case: Case) -> Described:
    B, H, T, D = case.inputs["x"].shape
    whole: tuple[Axis, ...] = (("B",), ("H",), ("T",), ("E",))
    arrays: Arrays = {"x": whole, "positions": (("B",), ("T",)), "-> output": whole}
    return {"B": B, "H": H, "T": T, "E": D}, arrays, {}


def turning_columns(case: Case) -> int:
    """The number of columns that turn."""
    width = case.options.get("rotary_width")
    return int(case.inputs["x"].shape[-1] if width is None else width)


def unturned_columns(case: Case, name: str) -> np.ndarray:
    """Columns past the rotary width."""
    columns = np.arange(case.inputs["x"].shape[-1]) >= turning_columns(case)
    return np.broadcast_to(columns, case.inputs["x"].shape)


ROTARY_EMBEDDING = OperationFacts(
    name="rotary_embedding",
    rules=dict.fromkeys(("", "interleaved", "rotary_width", "batch_positions"), "POS-3") | {"rotary_scaling": "POS-4"},
    arguments=("x", "positions"),
    differentiated=("x",),
    copied=unturned_columns,
    width_unit=2,
    shape=rotary_shape,
    dimensions=rotary_dimensions,
    axes=rotary_axes,
)


def frequencies_shape(case: Case, name: str, layout: str) -> Shape:
    return () if name == "attention_factor" else (case.options["width"] // 2,)


def frequencies_dimensions(case: Case) -> dict[str, int]:
    return {"model_width": case.options["width"]}


def frequencies_axes(case: Case) -> Described:
    return {"E": case.options["width"]}, {}, {}


ROTARY_FREQUENCIES = OperationFacts(
    name="rotary_frequencies",
    rules=dict.fromkeys(("", "rotary_scaling"), "POS-4"),
    arguments=("width",),
    differentiated=(),
    results=("frequencies", "attention_factor"),
    numbers=("attention_factor",),
    single=("frequencies",),
    width_unit=2,
    shape=frequencies_shape,
    dimensions=frequencies_dimensions,
    axes=frequencies_axes,
)
