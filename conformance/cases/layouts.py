"""Memory layouts: how the array of a test case lies in memory when a subject receives it.

Kernels receive memory as models make it: heads split off and transposed, slices of a fused projection or of a cache,
views of stride 0. A layout changes no value. Memory between and around the elements holds NaN, True or a valid index,
so that a kernel which reads on there gets a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import Case
from specification.masks import map_arrays

CONTIGUOUS = "contiguous"
SHARED = ("shared batch", "shared heads", "shared rows", "one number")
"""Layouts of stride 0: over the batch, the heads, the axis before the last, or all axes. Values are equal there."""
OF_HEADS = ("fused", "shared heads")
"""Layouts of arrays that have an axis of heads."""
REFUSABLE = ("column-major", "spaced")
"""Layouts whose last axis has another stride than 1. A subject may refuse them by an error (ATT-13)."""
LAYOUTS = ("transposed", "fused", "sliced", "cached", "misaligned", *SHARED, *REFUSABLE)
"""Every layout but the contiguous one.

transposed: [B, H, T, D] lies as [B, T, H, D]; [B, T, E] as [T, B, E]. fused: as "transposed", and between the heads of
one position and the next lie heads of other arrays. sliced: `wider[..., :D]`. cached: `longer[..., :T, :]`.
misaligned: one element past a multiple of 64 bytes. column-major: the last two axes are exchanged. spaced:
`wider[..., ::2]`.
"""

GUARD = 64
"""Elements before and after an array, at least 64 bytes, so that they change no alignment."""
GAP = 32
"""Columns or rows between those of an array. Their number keeps what is aligned to 16 bytes so."""


class Placement(NamedTuple):
    """Where an array lies in a buffer: the buffer's size, the first element, and strides, all in elements."""

    size: int
    start: int
    strides: tuple[int, ...]


def placement(layout: str, shape: Sequence[int], heads: int = 1) -> Placement:
    """Place an array of that shape; contiguous where the layout needs more axes.

    Args:
        layout: one of `LAYOUTS`, or "contiguous".
        shape: of the array.
        heads: the axis of heads in an array of rank 4: 1, or 2 for a subject that takes [B, T, H, D].

    """
    rank, start = len(shape), GUARD
    room, order = list(shape), list(range(rank))  # sizes with gaps; axes from the outermost to the innermost
    length = 3 - heads if rank == 4 else rank - 2
    if layout == "transposed" and rank >= 3:
        first = 1 if rank == 4 else 0
        order[first], order[first + 1] = order[first + 1], order[first]
    if layout == "fused" and rank == 4:
        order[1], order[2] = length, heads
        room[heads] += 2
    if layout == "sliced" and rank >= 2:
        room[-1] += GAP
    if layout == "cached" and rank >= 3:
        room[length] += GAP
    if layout == "misaligned":
        start += 1
    if layout == "column-major" and rank >= 2:
        order[-2], order[-1] = order[-1], order[-2]
    step = 2 if layout == "spaced" else 1
    strides = [0] * rank
    for axis in reversed(order):
        strides[axis] = step
        step *= room[axis]
    for axis in shared_axes(layout, rank, heads):
        strides[axis] = 0  # the room of the whole array stays, for whoever reads on
    return Placement(start + step + GUARD, start, tuple(strides))


def shared_axes(layout: str, rank: int, heads: int = 1) -> tuple[int, ...]:
    """Axes of stride 0."""
    if layout == "shared batch" and rank >= 2:
        return (0,)
    if layout == "shared heads" and rank == 4:
        return (heads,)
    if layout == "shared rows" and rank >= 3:
        return (3 - heads if rank == 4 else rank - 2,)
    return tuple(range(rank)) if layout == "one number" else ()


def changes_placement(layout: str, shape: Sequence[int]) -> bool:
    """Whether the array lies in another way than the contiguous one; strides of axes of size 1 do not count."""
    if 0 in shape:
        return False
    one, plain = placement(layout, shape), placement(CONTIGUOUS, shape)
    strides = zip(shape, one.strides, plain.strides, strict=True)
    return one.start != plain.start or any(size > 1 and left != right for size, left, right in strides)


def equal_along(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The array with its first values along these axes everywhere."""
    first = array[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(array.ndim))]
    return np.array(np.broadcast_to(first, array.shape))


def apply_memory(case: Case, memory: dict[str, str]) -> Case:
    """The case with these layouts; values along axes of stride 0 are made equal."""

    def equal(name: str, array: np.ndarray) -> np.ndarray:
        axes = shared_axes(memory.get(name, ""), array.ndim)
        return equal_along(np.asarray(array), axes) if axes else array

    inputs = {name: equal(name, array) for name, array in case.inputs.items()}
    cotangents = {name: equal("cotangent", array) for name, array in case.cotangents.items()}
    options = dict(case.options)
    for name in set(memory) & {"mask", "dropout_keep"} & set(options):
        options[name] = map_arrays(options[name], partial(equal, name))
    return replace(case, inputs=inputs, options=options, cotangents=cotangents, memory=memory)


def place_array(array: np.ndarray, layout: str, heads: int = 1) -> tuple[np.ndarray, Placement]:
    """Put an array into a new buffer, whose other elements are poison.

    Returns:
        the buffer, of one axis, and where the array lies in it. A layout of stride 0 for an array whose values differ
        along such an axis counts as contiguous.

    """
    axes = shared_axes(layout, array.ndim, heads)
    if array.size == 0 or (axes and not same_bits(array, equal_along(array, axes))):
        layout = CONTIGUOUS
    place = placement(layout, array.shape, heads)
    buffer = aligned_buffer(place.size, array.dtype)
    buffer[...] = poison(array)
    strided_view(buffer, array.shape, place)[...] = array
    return buffer, place


def strided_view(buffer: np.ndarray, shape: Sequence[int], place: Placement) -> np.ndarray:
    """The array that lies there, as a view of the buffer."""
    strides = [step * buffer.itemsize for step in place.strides]
    return np.lib.stride_tricks.as_strided(buffer[place.start :], shape, strides)


def poison(array: np.ndarray) -> Any:
    """A value that shows where it is read: NaN, True, or the array's largest integer, which is a valid index too."""
    if array.dtype.kind in "iu":
        return array.max() if array.size else 0
    return True if array.dtype == bool else np.nan


def aligned_buffer(size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """An empty buffer at a multiple of 64 bytes. NumPy's own are so by chance, and sums may depend on it."""
    raw = np.empty(size * dtype.itemsize + GUARD, np.uint8)
    start = -raw.ctypes.data % GUARD
    return raw[start : start + size * dtype.itemsize].view(dtype)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()
