"""The dimensions of a case: their sizes, and the case at other sizes. Axes are those of `cases/operation.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.bounds.arithmetic import LARGEST
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.features import mask_parts, replace_parts
from conformance.cases.layouts import apply_memory
from conformance.cases.operation import HEADS, OFFSET, PAIRS, Axis, Sizes
from conformance.checks.findings import AxisName
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.rotary import DynamicScaling, LongRopeScaling

if TYPE_CHECKING:
    from specification.masks import Mask


class Part(NamedTuple):
    """Some of a dimension: `size` from `start` on; after the last one it starts anew."""

    start: int
    size: int

    def places(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.size)


Parts = Mapping[str, Part]


class Layout(NamedTuple):
    """sizes: of all dimensions. arrays: the axes of inputs, cotangents ("-> output") and options ("option ...").

    lists: dimensions of the arguments that are lists of arrays, as "outputs[0]" is an element of one; where these have
        axes of their own, they stand among the arrays too.
    """

    sizes: Sizes
    arrays: dict[str, tuple[Axis, ...]]
    lists: dict[str, Axis]


def sizes_of(case: Case) -> Sizes:
    return layout_of(case).sizes


def work(case: Case) -> int:
    """About how many multiplications it takes, gradients aside."""
    s = sizes_of(case)
    if "G" in s and "K" in s:
        return s["B"] * s["G"] * s["S"] * s["Q"] * s["K"] * (s["D"] + s.get("V", 0))
    return math.prod(max(size, 1) for name, size in s.items() if name not in (OFFSET, "vocabulary"))


def layout_of(case: Case) -> Layout:
    sizes, arrays, lists = operation_facts(case.operation).axes(case)
    axes = {}
    for name, array in arrays_of(case).items():
        element = name.partition("[")[0] + name.partition("]")[2] if "[" in name else name
        axes[name] = array_axes(arrays[name if name in arrays else element], array, sizes)
    return Layout(sizes, axes, lists)


def array_axes(axes: tuple[Axis, ...], array: np.ndarray, sizes: Sizes) -> tuple[Axis, ...]:
    """The array's axes, the last of these; empty products where its size is 1 and the axis's is not."""
    own = axes[len(axes) - array.ndim :]
    return tuple(
        axis if n == math.prod(sizes[d] for d in axis) else () for axis, n in zip(own, array.shape, strict=True)
    )


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    keep = case.options.get("dropout_keep")
    named = case.inputs | {f"-> {name}": array for name, array in case.cotangents.items()}
    return named if keep is None else named | {"option dropout_keep": keep}


PRODUCTS: dict[Axis, AxisName] = {
    HEADS: "H",
    (*HEADS, "D"): "H D",
    ("G", "D"): "G D",
    ("G", "V"): "G V",
    (*HEADS, "V"): "H V",
}
"""What multi-head attention has of products of dimensions: heads, and axes of its arrays."""


# --- the case at other sizes ------------------------------------------------------------------------------------------


def take_parts(case: Case, parts: Parts, rng: np.random.Generator | None = None) -> Case | None:
    """The case with only these parts of its dimensions; None where there is no such case.

    A part may be larger than its dimension. The arrays are then repeated, and what is new is multiplied by normal
    numbers from `rng`.
    """
    sizes, arrays, lists = layout_of(case)
    parts = fit_table(case, sizes, parts)
    if any(name != OFFSET and (part.size > 0) != (sizes[name] > 0) for name, part in parts.items()):
        return None
    cut = {n: resize_array(array, arrays[n], sizes, parts, rng) for n, array in arrays_of(case).items()}
    cut |= {name: np.abs(cut[name]) for name in operation_facts(case.operation).positive if name in cut}
    inputs = {name: cut[name] for name in case.inputs}
    for name, axis in lists.items():
        inputs = renumber_list(inputs, name, places(axis, sizes, parts)[0])
    options = case.options | {name.removeprefix("option "): a for name, a in cut.items() if name.startswith("option ")}
    if options.get("mask") is not None:
        options["mask"] = replace_parts(
            options["mask"], [cut_mask(mask, sizes, parts) for mask in mask_parts(options["mask"])]
        )
    if "num_heads" in options:
        options["num_heads"] = len(places(HEADS if "G" in sizes else ("H",), sizes, parts)[0])
    options |= sizes_as_options(case, sizes, parts)
    if "ids" in inputs and "vocabulary" in parts:
        start, size = parts["vocabulary"]
        inputs["ids"] = np.clip(inputs["ids"] - start, 0, size - 1).astype(inputs["ids"].dtype)
    if "targets" in inputs and "classes" in parts:
        targets, (start, size), ignore = inputs["targets"], parts["classes"], options.get("ignore")
        moved = np.clip(targets - start, 0, size - 1).astype(targets.dtype)
        inputs["targets"] = moved if ignore is None else np.where(targets == ignore, targets, moved)
    if "query_lengths" in inputs and "Q" in parts:
        start, size = parts["Q"]
        inputs["query_lengths"] = np.clip(inputs["query_lengths"] - start, 0, size).astype(np.int32)
    cotangents = {name: cut[f"-> {name}"] for name in case.cotangents}
    return apply_memory(replace(case, inputs=inputs, options=options, cotangents=cotangents), case.memory)


def fit_table(case: Case, sizes: Sizes, parts: Parts) -> dict[str, Part]:
    """A table of positions keeps, or gets, as many rows as are read from it."""
    fitted = dict(parts)
    if "table" in case.inputs and "length" in case.options:
        length, offset = (fitted[name].size if name in fitted else sizes[name] for name in ("length", OFFSET))
        offset += fitted["length"].start if "length" in fitted else 0
        rows = fitted.get("vocabulary", Part(0, sizes["vocabulary"]))
        if "vocabulary" in parts:
            offset = min(offset, max(rows.size - length, 0))
            fitted[OFFSET] = Part(0, offset)
        if offset + length > rows.size:
            fitted["vocabulary"] = Part(0, offset + length)
    return fitted


def sizes_as_options(case: Case, sizes: Sizes, parts: Parts) -> dict[str, Any]:
    """Sizes that are options, of positions."""
    options: dict[str, Any] = {}
    if "length" in case.options and OFFSET in sizes:
        start, options["length"] = parts.get("length", Part(0, sizes["length"]))
        offset = parts.get(OFFSET, Part(0, sizes[OFFSET])).size
        moved = offset + (start if OFFSET not in parts else 0)
        if moved or case.options.get(OFFSET) is not None:
            options[OFFSET] = moved
    if "query_length" in case.options:
        (i, options["query_length"]), (j, options["key_length"]) = (parts.get(n, Part(0, sizes[n])) for n in ("Q", "K"))
        options[OFFSET] = max(parts.get(OFFSET, Part(0, sizes[OFFSET])).size + i - j, 0)
    if "width" in case.options and "E" in parts:
        options["width"] = parts["E"].size
    return options | (fit_rotation(case, parts["E"].size) if "E" in parts else {})


def fit_rotation(case: Case, width: int) -> dict[str, Any]:
    """What fits a rotary embedding of another width: no more columns turn than there are, with a factor for each pair.

    A dynamic scaling, which needs two pairs, is left out for one.
    """
    options: dict[str, Any] = {}
    scaling, part = case.options.get("scaling"), case.options.get("rotary_width")
    if part is not None:
        width = options["rotary_width"] = min(part, width)
    if isinstance(scaling, LongRopeScaling):
        factors = (tuple(islice(cycle(f), width // 2)) for f in (scaling.short_factors, scaling.long_factors))
        short, long = factors  # after the last one they start anew
        options["scaling"] = replace(scaling, short_factors=short, long_factors=long)
    if isinstance(scaling, DynamicScaling) and width < 4:
        options["scaling"] = None
    return options


def places(axis: Axis, sizes: Sizes, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """(which places of the axis are taken, whether each is new: beyond what there was)."""
    places_taken, new = np.zeros(1, int), np.zeros(1, bool)
    for name in axis:
        size = sizes[name]
        wanted = parts.get(name, Part(0, size)).places()
        places_taken = (places_taken[:, None] * size + wanted % max(size, 1)).ravel()
        new = (new[:, None] | (wanted >= size)).ravel()
    return places_taken, new


def cast(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In the dtype, at most its largest number."""
    largest = LARGEST.get(str(dtype), np.finfo(float).max)
    return np.clip(numbers, -largest, largest).astype(dtype)


def resize_array(
    array: np.ndarray, axes: tuple[Axis, ...], sizes: Sizes, parts: Parts, rng: np.random.Generator | None
) -> np.ndarray:
    fresh = np.zeros((1,) * array.ndim, bool)
    for k, axis in enumerate(axes):
        if parts.keys() & set(axis):
            places_taken, new = places(axis, sizes, parts)
            array = array.take(places_taken, axis=k)
            fresh = fresh | new.reshape([-1 if i == k else 1 for i in range(array.ndim)])
    if rng is not None and fresh.any() and array.dtype.kind not in "biu":
        noise = rng.normal(size=array.shape)  # as much of it for a case and for its twin
        noisy = cast(array.astype(float) * noise, array.dtype)
        # The largest numbers of a dtype stay as they are.
        array = np.where(fresh & np.isfinite(noisy.astype(float)), noisy, array)
    return np.ascontiguousarray(array).reshape(array.shape)  # which makes an axis where there is none


def renumber_list(inputs: dict[str, np.ndarray], name: str, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """With the chosen elements of a list alone, numbered anew."""
    renumbered = {n: array for n, array in inputs.items() if not n.startswith(f"{name}[")}
    for i, place in enumerate(chosen):
        prefix = f"{name}[{place}]"
        renumbered |= {f"{name}[{i}]{n[len(prefix) :]}": array for n, array in inputs.items() if n.startswith(prefix)}
    return renumbered


def cut_mask(mask: Mask | None, sizes: Sizes, parts: Parts) -> Any:
    """What a mask that is not made of others says of these batch elements, queries and keys."""
    queries, keys = (parts.get(name, Part(0, sizes[name])) for name in ("Q", "K"))
    batch = places(("B",), sizes, parts)[0]

    def rows(array: np.ndarray) -> np.ndarray:
        array = np.asarray(array)
        return array[batch] if len(array) == sizes["B"] else array

    def repeat_edge(array: np.ndarray, part: Part) -> Any:
        """New places are as the last one was."""
        return array[:, np.minimum(part.places(), array.shape[1] - 1)]

    if isinstance(mask, Causal | SlidingWindow):
        offset, moved = mask.offset, queries.start - keys.start
        if offset is not None or moved or queries.size != keys.size:  # left out means 0, which must be said then
            offset = (0 if offset is None else offset if isinstance(offset, int) else rows(offset)) + moved
        return replace(mask, offset=offset)
    if isinstance(mask, KeyLengths):
        grown = max(0, keys.size - sizes["K"])
        lengths = rows(mask.lengths)
        return KeyLengths(np.clip(lengths - keys.start + grown, 0, keys.size).astype(lengths.dtype))
    if isinstance(mask, KeyPadding):
        return KeyPadding(repeat_edge(rows(mask.keep), keys))
    if isinstance(mask, Segments):
        return Segments(repeat_edge(rows(mask.query_ids), queries), repeat_edge(rows(mask.key_ids), keys))
    array = np.asarray(mask.array if isinstance(mask, Dense) else mask)
    array = resize_array(array, array_axes(PAIRS, array, sizes), sizes, parts, None)
    return Dense(array) if isinstance(mask, Dense) else array


# --- which can be changed ---------------------------------------------------------------------------------------------


class Dimension(NamedTuple):
    """Dimensions that change together, by name, in steps of `unit`; `least` is the smallest size of any use."""

    names: tuple[str, ...]
    unit: int = 1
    least: int = 1

    def parts(self, size: int, start: int = 0) -> dict[str, Part]:
        return {name: Part(start, size) for name in self.names}


def dimensions(case: Case, declaration: Declaration) -> list[Dimension]:
    """Those of the case that the subject lets change: some only together, or in steps."""
    names = [name for name in sizes_of(case) if not (declaration.head_widths and name in ("D", "V"))]
    record = operation_facts(case.operation)
    if record.norm:
        least = {"W": max(record.least_width, declaration.width_multiple)}
        units = {"W": declaration.width_multiple}
        return [Dimension((name,), units.get(name, 1), least.get(name, 1)) for name in names]
    if not record.masked:
        units = {"E": math.lcm(record.width_unit, declaration.width_multiple), "inner": declaration.width_multiple}
        free = [name for name in names if name not in (*record.fixed, *record.tied)]
        found = [Dimension((n,), units.get(n, 1), 0 if n == OFFSET else units.get(n, 1)) for n in free]
        return [*found, Dimension(record.tied)] if record.tied else found
    together = [("Q", "K")] if "cross" not in declaration else []
    together += [("D", "V")] if "value_width" not in declaration and "V" in names else []
    alone = [(name,) for name in names if not any(name in tied for tied in together)]
    units = dict.fromkeys("DV", declaration.width_multiple) | dict.fromkeys("QK", declaration.length_multiple)
    units |= {"G": declaration.head_multiple}
    steps = {tied: units.get(tied[0], 1) for tied in (*alone, *together)}
    return [Dimension(tied, step, step) for tied, step in steps.items()]
