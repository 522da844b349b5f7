"""Checks on the arguments of rotary embeddings (POS-3, POS-4)."""

from __future__ import annotations

import operator
from dataclasses import fields

import numpy as np

from specification.arrays import Array
from specification.checks.arguments import described, finite, flag, natural, one_of, position, refuse, structure
from specification.checks.shapes import Float, Integer, check_shapes, declare, match
from specification.dtypes import compute_dtype_name, dtype_name
from specification.frequencies import needs_length
from specification.rotary import (
    PAIRINGS,
    SCALINGS,
    DynamicScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    Rotation,
    Scaling,
    YarnScaling,
)

__all__ = ["rotary_embedding", "rotary_fits", "rotary_frequencies", "rotary_length", "rotation"]


@check_shapes
def rotary_embedding(
    x: Float[Array, "B H T D"],
    positions: Integer[Array, "T"] | Integer[Array, "B T"],
    base: float,
    rotary_width: int | None,
    pairing: str,
    scaling: Scaling | None,
    length: int | None,
) -> int:
    """Check the arguments of rotary_embedding but for the values of `positions`, and return W (POS-3)."""
    rotary = Rotary(base=base, width=rotary_width, pairing=pairing, scaling=scaling)
    return rotary_fits(rotary, x.shape[3], length, "rotary_width")


def rotary_fits(rotary: Rotary, width: int, length: int | None = None, name: str = "rotary width") -> int:
    """Check that heads of a width can be rotated, and return the number of columns that turn (POS-3)."""
    one_of("pairing", rotary.pairing, PAIRINGS)
    turning = width if rotary.width is None else natural(name, rotary.width)
    if turning > width:
        refuse(name, f"be at most the head width {width}", turning)
    rotary_frequencies(turning, rotary.base, rotary.scaling, length, name)
    return turning


TABLES = declare({"sine": 'Shaped[Array, "one T pairs"]', "cosine": 'Shaped[Array, "one T pairs"]'})


def rotation(given: Rotation | None, rotary: Rotary | None, width: int, x: Array) -> None:
    """Check the tables that a block is given for heads of a width, or None for those that it makes (POS-3)."""
    if given is None:
        return
    structure("rotation", given, Rotation)
    if rotary is None:
        refuse("rotation", "be None where the layer has no rotary", "one")
    pairs, dtype = rotary_fits(rotary, width) // 2, compute_dtype_name(dtype_name(x))
    match(TABLES, given._asdict(), prefix="rotation.", one=1, T=x.shape[1], pairs=pairs)
    for name, table in given._asdict().items():
        if dtype_name(table) != dtype:
            refuse(f"rotation.{name}", f"be {dtype} beside x of {dtype_name(x)}", dtype_name(table), TypeError)


def rotary_frequencies(
    width: int, base: float, scaling: Scaling | None, length: int | None, name: str = "width"
) -> None:
    """Check the arguments of rotary_frequencies (POS-4)."""
    if natural(name, width) < 2 or width % 2:
        refuse(name, "be even and at least 2", width)
    if fixed_number("base", base) <= 1:
        refuse("base", "be greater than 1", base)
    if length is not None:
        position("length", natural("length", length))
    if scaling is None:
        return
    if not isinstance(scaling, SCALINGS):
        known = ", ".join(kind.__name__ for kind in SCALINGS)
        refuse("scaling", f"be one of {known} or None", described(scaling), TypeError)
    scaling_numbers(scaling)
    if isinstance(scaling, DynamicScaling) and width < 4:
        refuse(name, "be at least 4 for a dynamic scaling", width)
    if isinstance(scaling, LongRopeScaling):
        for field in ("short_factors", "long_factors"):
            count = len(getattr(scaling, field))
            if count != width // 2:
                refuse(field, f"hold {width // 2} numbers, one for each pair", count)


def scaling_numbers(scaling: Scaling) -> None:
    """Check the numbers of a scaling, each on its own and beside each other."""
    for field in fields(scaling):
        name, value = field.name, getattr(scaling, field.name)
        if name in ("short_factors", "long_factors"):
            if not isinstance(value, tuple):
                refuse(name, "be a tuple of numbers", described(value), TypeError)
            for divisor in value:
                if fixed_number(name, divisor) < 2.0**-30:
                    refuse(name, "hold numbers of at least 2**-30", divisor)
        elif name == "original_length":
            position(name, natural(name, value, least=2))
        elif name == "truncate":
            flag(name, value)
        elif not (name == "attention_factor" and value is None):
            number = fixed_number(name, value)
            if name == "factor" and number < 1:
                refuse(name, "be at least 1", value)
            if number <= 0:
                refuse(name, "be positive", value)
    pairs = {Llama3Scaling: ("low_frequency_factor", "high_frequency_factor"), YarnScaling: ("beta_slow", "beta_fast")}
    if type(scaling) in pairs:
        low, high = pairs[type(scaling)]
        if getattr(scaling, low) >= getattr(scaling, high):
            refuse(low, f"be below {high}", scaling)


def fixed_number(name: str, value: float) -> float:
    """Read a number of which constants are made, so that it must be a plain one that float32 can hold."""
    finite(name, value, "float32", fixed=True)
    return float(value)


def rotary_length(scaling: Scaling | None, length: int | None, positions: np.ndarray | None) -> int | None:
    """Check positions, where they can be read, and tell the length on which frequencies depend (POS-3, POS-4).

    Without a length it is the largest position + 1. Lengths up to the original one give that one, and with LongRoPE all
    past it the next, because their frequencies are the same. Where frequencies depend on no length, it is None.
    """
    if positions is not None and positions.size and (positions.min() < 0 or positions.max() > 2**30):
        refuse("positions", "lie in [0, 2**30]", f"values from {positions.min()} to {positions.max()}")
    if not needs_length(scaling):
        return None
    if length is None:
        if positions is None:
            refuse("length", f"be given for {type(scaling).__name__} where positions cannot be read", None)
        length = int(positions.max()) + 1 if positions.size else 0
    original: int = scaling.original_length
    if length <= original:
        return original
    return original + 1 if isinstance(scaling, LongRopeScaling) else operator.index(length)
