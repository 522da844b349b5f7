"""Checks on the arguments of rotary embeddings (POS-3, POS-4)."""

from __future__ import annotations

import operator
from dataclasses import fields
from typing import Any

import numpy as np

from specification.checks.arguments import (
    described,
    floating,
    in_range,
    integer,
    natural,
    one_of,
    ranked,
    real_number,
    shape_of,
    structure,
)
from specification.dtypes import LARGEST, compute_dtype_name, dtype_name
from specification.frequencies import needs_length
from specification.rotary import (
    PAIRINGS,
    SCALINGS,
    DynamicScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    Rotation,
    YarnScaling,
)

__all__ = ["rotary_embedding", "rotary_fits", "rotary_frequencies", "rotary_length", "rotation"]


def rotary_embedding(
    x: Any, positions: Any, base: Any, rotary_width: Any, pairing: Any, scaling: Any, length: Any
) -> int:
    """Check the arguments of rotary_embedding but for the values of `positions` (POS-3).

    Args:
        x: [B, H, T, D].
        positions: integers [T] or [B, T].
        base: a number above 1.
        rotary_width: an even number of at most D, or None for D.
        pairing: "halves" or "interleaved".
        scaling: one of the scalings, or None.
        length: of the sequence, or None.

    Returns:
        The number of columns that turn.

    Raises:
        TypeError: for other dtypes, and for what is no number or no scaling.
        ValueError: for shapes that do not fit, and for numbers out of range.
    """
    batch, _, steps, width = ranked("x", x, "batch, heads, positions, width")
    floating("x", x)
    shape = shape_of("positions", positions)
    integer("positions", positions)
    if shape not in ((steps,), (batch, steps)):
        raise ValueError(f"positions must have shape [{steps}] or [{batch}, {steps}] beside x, got {list(shape)}")
    one_of("pairing", pairing, PAIRINGS)
    if rotary_width is not None and natural("rotary_width", rotary_width) > width:
        raise ValueError(f"rotary_width must be at most the width {width} of x, got {rotary_width}")
    turning = width if rotary_width is None else int(rotary_width)
    rotary_frequencies(turning, base, scaling, length, "rotary_width")
    return turning


def rotary_fits(rotary: Rotary, width: int) -> int:
    """Check that heads of a width can be rotated (POS-3).

    Args:
        rotary: how.
        width: of a head.

    Returns:
        The number of columns that turn.

    Raises:
        TypeError: for what is no number or no scaling.
        ValueError: for a width that does not fit, and for numbers out of range.
    """
    one_of("pairing", rotary.pairing, PAIRINGS)
    turning = width if rotary.width is None else natural("rotary width", rotary.width)
    if turning > width:
        raise ValueError(f"the rotary width must be at most the head width {width}, got {turning}")
    rotary_frequencies(turning, rotary.base, rotary.scaling, None, "rotary width")
    return turning


def rotation(given: Any, rotary: Rotary | None, width: int, x: Any) -> None:
    """Check the rotation that a block is given for its layer (POS-3).

    Args:
        given: a `Rotation`, or None for one that the block makes.
        rotary: the layer's, or None for a layer that rotates nothing.
        width: of a head.
        x: [B, T, E].

    Raises:
        TypeError: for what is no `Rotation`, and for tables in another dtype than that of computation.
        ValueError: for tables of another shape than [1, T, W / 2], and for a layer that rotates nothing.
    """
    if given is None:
        return
    structure("rotation", given, Rotation)
    if rotary is None:
        raise ValueError("rotation was given, but the layer has no rotary: it rotates nothing")
    shape, dtype = (1, x.shape[1], rotary_fits(rotary, width) // 2), compute_dtype_name(dtype_name(x))
    for name, table in zip(("rotation.sine", "rotation.cosine"), given, strict=True):
        if shape_of(name, table) != shape:
            wanted = f"{list(shape)}: 1, the positions of x, and pairs of columns that turn"
            raise ValueError(f"{name} must have shape {wanted}; got {list(table.shape)}")
        if dtype_name(table) != dtype:
            raise TypeError(f"{name} must be {dtype} beside x of {dtype_name(x)}, got {dtype_name(table)}")


def rotary_frequencies(width: Any, base: Any, scaling: Any, length: Any, name: str = "width") -> None:
    """Check the arguments of rotary_frequencies (POS-4).

    Args:
        width: an even number of at least 2.
        base: a number above 1.
        scaling: one of the scalings, or None.
        length: of the sequence, or None.
        name: what messages call the width.

    Raises:
        TypeError: for what is no number or no scaling.
        ValueError: for numbers out of range.
    """
    if natural(name, width) < 2 or width % 2:
        raise ValueError(f"{name} must be even and at least 2, got {width}")
    if fixed_number("base", base) <= 1:
        raise ValueError(f"base must be greater than 1, got {base}")
    if length is not None:
        in_range("length", natural("length", length))
    if scaling is None:
        return
    if not isinstance(scaling, SCALINGS):
        known = ", ".join(kind.__name__ for kind in SCALINGS)
        raise TypeError(f"scaling must be one of {known} or None, got {described(scaling)}")
    scaling_numbers(scaling)
    if isinstance(scaling, DynamicScaling) and width < 4:
        raise ValueError(f"a dynamic scaling needs a {name} of at least 4, got {width}")
    if isinstance(scaling, LongRopeScaling):
        for field in ("short_factors", "long_factors"):
            if len(getattr(scaling, field)) != width // 2:
                count = len(getattr(scaling, field))
                raise ValueError(f"{field} must hold {width // 2} numbers, one for each pair, got {count}")


def scaling_numbers(scaling: Any) -> None:
    """Check the numbers of a scaling, each on its own and beside each other.

    Args:
        scaling: one of the scalings.

    Raises:
        TypeError: for what is no number.
        ValueError: for numbers out of range.
    """
    for field in fields(scaling):
        value = getattr(scaling, field.name)
        if field.name in ("short_factors", "long_factors"):
            if not isinstance(value, tuple):
                raise TypeError(f"{field.name} must be a tuple of numbers, got {described(value)}")
            for divisor in value:
                if fixed_number(field.name, divisor) < 2.0**-30:
                    raise ValueError(f"{field.name} must hold numbers of at least 2**-30, got {divisor}")
        elif field.name == "original_length":
            if in_range(field.name, natural(field.name, value)) < 2:  # type: ignore[operator]
                raise ValueError(f"original_length must be at least 2, got {value}")
        elif field.name == "truncate":
            if not isinstance(value, bool):
                raise TypeError(f"truncate must be True or False, got {described(value)}")
        elif not (field.name == "attention_factor" and value is None):
            least = 1.0 if field.name == "factor" else 0.0
            number = fixed_number(field.name, value)
            if number < least or number == 0:
                raise ValueError(f"{field.name} must be {'at least 1' if least else 'positive'}, got {value}")
    pairs = {Llama3Scaling: ("low_frequency_factor", "high_frequency_factor"), YarnScaling: ("beta_slow", "beta_fast")}
    if type(scaling) in pairs:
        low, high = pairs[type(scaling)]
        if getattr(scaling, low) >= getattr(scaling, high):
            raise ValueError(f"{low} must be below {high}, got {scaling}")


def fixed_number(name: str, value: Any) -> float:
    """Read a number of which constants are made, so that it must be a plain one.

    Args:
        name: what messages call it.
        value: a real number.

    Raises:
        TypeError: for anything else, also for a framework's array.
        ValueError: for NaN, infinities, and numbers that float32 cannot hold.
    """
    number = real_number(name, value)
    if number is None:
        raise TypeError(f"{name} must be a plain number, got {described(value)}")
    if not -LARGEST["float32"] <= number <= LARGEST["float32"]:
        raise ValueError(f"{name} must be finite, and no larger than {LARGEST['float32']:.3g}, got {value}")
    return number


def positions_within(positions: np.ndarray) -> None:
    """Check the values of positions, where they can be read (POS-3).

    Args:
        positions: integers.

    Raises:
        ValueError: for negative ones, and for those beyond 2**30.
    """
    if positions.size and (positions.min() < 0 or positions.max() > 2**30):
        lowest, highest = positions.min(), positions.max()
        raise ValueError(f"positions must lie in [0, 2**30], got values from {lowest} to {highest}")


def rotary_length(scaling: Any, length: int | None, positions: np.ndarray | None) -> int | None:
    """Check the values of positions, where they can be read, and tell the length on which frequencies depend (POS-4).

    Args:
        scaling: one of the scalings, or None.
        length: of the sequence, or None for one more than the largest position.
        positions: integers, or None where they cannot be read.

    Returns:
        A plain number, as far as frequencies depend on it: all lengths up to the original one have the same, and with
        LongRoPE all past it. None for frequencies that do not depend on it.

    Raises:
        ValueError: for positions that are negative or beyond 2**30; and for a length that is needed, and neither given
            nor to be read off the positions.
    """
    if positions is not None:
        positions_within(positions)
    if not needs_length(scaling):
        return None
    if length is None:
        if positions is None:
            raise ValueError(f"{type(scaling).__name__} needs a length where positions cannot be read")
        length = int(positions.max()) + 1 if positions.size else 0
    original: int = scaling.original_length
    if length <= original:
        return original
    return original + 1 if isinstance(scaling, LongRopeScaling) else operator.index(length)
