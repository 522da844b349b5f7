"""Rotary embeddings and frequencies gone wrong (POS-3, POS-4), from right ones in steps that can be replaced."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import reference_numpy
from conformance.cases.declaration import declare
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_numpy import Function, widen
from specification.dtypes import HALF
from specification.frequencies import attention_factor
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)

# --- the steps --------------------------------------------------------------------------------------------------------


def places(positions: Any, x: Any) -> Any:
    """[T, 1], or [B, 1, T, 1] for positions of each batch element."""
    return positions[..., None] if positions.ndim == 1 else positions[:, None, :, None]


def frequencies(width: int, columns: int, base: float, scaling: Any, length: int | None) -> Any:
    """float64 [W / 2]. columns: D."""
    return reference_numpy.rotary_frequencies(width, base, scaling, length=length)[0]


def angles(places: Any, frequencies: Any) -> Any:
    """In float64, which has digits for them up to 2^20 and beyond."""
    return places * frequencies


def factor(scaling: Any) -> float:
    """Of sine and cosine."""
    return attention_factor(scaling)


def columns_of(width: int, pairing: str) -> Any:
    """The first and the second columns of all pairs, [2, W / 2]."""
    return np.arange(width).reshape(2, -1) if pairing == "halves" else np.arange(width).reshape(-1, 2).T


def turned(first: Any, second: Any, sine: Any, cosine: Any) -> Any:
    return first * cosine - second * sine, second * cosine + first * sine


def others(x: Any, width: int) -> Any:
    """Columns past the width."""
    return x[..., width:]


class Steps(NamedTuple):
    """Every step under the name by which a fault replaces it. back: what the gradient's sine is multiplied by."""

    places: Function = places
    frequencies: Function = frequencies
    angles: Function = angles
    factor: Function = factor
    columns: Function = columns_of
    turned: Function = turned
    others: Function = others
    back: float = -1.0


def rotary_by(s: Steps) -> Function:
    """`rotary_embedding` in these steps."""

    @np.errstate(all="ignore")
    def through(x: Any, source: Any, positions: Any, sign: float, base: float, rotary_width: Any, pairing: str,
                scaling: Any, length: Any) -> Any:  # fmt: skip
        width = x.shape[-1] if rotary_width is None else rotary_width
        length = int(positions.max(initial=-1)) + 1 if length is None else length
        found = s.angles(s.places(positions, x), s.frequencies(width, x.shape[-1], base, scaling, length))
        wide, size = widen(source), s.factor(scaling)
        sine, cosine = (a.astype(wide.dtype) * wide.dtype.type(size) for a in (sign * np.sin(found), np.cos(found)))
        one, other = s.columns(width, pairing)
        output = source.copy()
        output[..., width:] = s.others(source, width)
        output[..., one], output[..., other] = s.turned(wide[..., one], wide[..., other], sine, cosine)
        return output

    def vjp(x: Any, positions: Any, cotangent: Any, *, base: float = 10000.0, rotary_width: Any = None,
            pairing: str = "halves", scaling: Any = None, length: Any = None) -> Any:  # fmt: skip
        return {"x": through(x, cotangent, positions, s.back, base, rotary_width, pairing, scaling, length)}

    @declare(vjp=vjp)
    def rotary_embedding(x: Any, positions: Any, *, base: float = 10000.0, rotary_width: Any = None,
                         pairing: str = "halves", scaling: Any = None, length: Any = None) -> Any:  # fmt: skip
        return through(x, x, positions, 1.0, base, rotary_width, pairing, scaling, length)

    return rotary_embedding


STEPS = Steps()
rotary_embedding = rotary_by(STEPS)


def rotary_frequencies(width: int, base: float = 10000.0, scaling: Any = None, *, length: int | None = None) -> Any:
    """The definition's."""
    return reference_numpy.rotary_frequencies(width, base, scaling, length=length)


# --- pairs, columns and directions ------------------------------------------------------------------------------------


def interleaved_table(places: Any, frequencies: Any) -> Any:
    """The table [f0, f0, f1, f1, ...], of which the first half is read."""
    return places * np.repeat(frequencies, 2)[: len(frequencies)]


def other_pairing(width: int, pairing: str) -> Any:
    return columns_of(width, "interleaved" if pairing == "halves" else "halves")


def halves_always(width: int, pairing: str) -> Any:
    return columns_of(width, "halves")


def second_first(first: Any, second: Any, sine: Any, cosine: Any) -> Any:
    """The two rows of the rotation the other way round."""
    return tuple(reversed(turned(first, second, sine, cosine)))


def no_minus(first: Any, second: Any, sine: Any, cosine: Any) -> Any:
    return first * cosine + second * sine, second * cosine + first * sine


def exchanged(first: Any, second: Any, sine: Any, cosine: Any) -> Any:
    return turned(first, second, cosine, sine)


def in_inputs(first: Any, second: Any, sine: Any, cosine: Any) -> Any:
    """Sine and cosine in bfloat16."""
    return turned(first, second, *(a.astype(ml_dtypes.bfloat16).astype(a.dtype) for a in (sine, cosine)))


def zeros(x: Any, width: int) -> Any:
    return np.zeros_like(x[..., width:])


def through_8_bits(x: Any, width: int) -> Any:
    """A copy by way of bfloat16."""
    return x[..., width:].astype(ml_dtypes.bfloat16).astype(x.dtype)


# --- positions --------------------------------------------------------------------------------------------------------


def from_1(positions: Any, x: Any) -> Any:
    return places(positions + 1, x)


def from_0(positions: Any, x: Any) -> Any:
    """Whatever is given."""
    return np.arange(x.shape[2])[:, None]


def from_first(positions: Any, x: Any) -> Any:
    """Counted from the first one that is given."""
    return places(positions[..., :1] + np.arange(x.shape[2]), x)


def of_first_element(positions: Any, x: Any) -> Any:
    return places(positions[0] if positions.ndim == 2 else positions, x)


def of_heads(positions: Any, x: Any) -> Any:
    """Of x as if it were [B, T, H, D]: a head's number picks the position."""
    row = positions if positions.ndim == 2 else positions[None]
    return row[:, np.arange(x.shape[1]) % x.shape[2]][:, :, None, None]


def clamped(rows: int) -> Function:
    """By a table of so many rows, whose last one is read again."""
    return lambda positions, x: places(np.minimum(positions, rows - 1), x)


def wrapped(rows: int) -> Function:
    """By a table of so many rows, which starts anew."""
    return lambda positions, x: places(positions % rows, x)


def small(dtype: Any) -> Function:
    """Positions in a dtype that does not hold them all."""
    return lambda positions, x: places(positions.astype(dtype).astype(float), x)


# --- angles and frequencies -------------------------------------------------------------------------------------------


def rounded(dtype: Any) -> Function:
    """Angles in this dtype, from positions and frequencies in it."""

    def found(places: Any, frequencies: Any) -> Any:
        return (places.astype(dtype) * frequencies.astype(dtype)).astype(dtype).astype(float)

    return found


def rounded_angles(places: Any, frequencies: Any) -> Any:
    """Exact up to the angle, which is float32."""
    return (places * frequencies).astype(np.float32).astype(float)


def kept(dtype: Any) -> Function:
    """Frequencies in this dtype."""
    return lambda places, frequencies: places * frequencies.astype(dtype).astype(float)


def another_base(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    return frequencies(width, columns, 500000.0 if base == 10000.0 else 10000.0, scaling, length)


def base_as_integer(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """Rounded to thousands."""
    return frequencies(width, columns, max(1000.0 * round(base / 1000.0), 100.0), scaling, length)


def by_columns(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """2p / D in place of 2p / W."""
    plain = frequencies(width, columns, base, None, length)
    wrong = base ** (-2 * np.arange(width // 2) / columns)
    return wrong * frequencies(width, columns, base, scaling, length) / plain


def from_one(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """The first pair has the second's frequency."""
    right_one = frequencies(width, columns, base, scaling, length)
    return right_one if scaling is not None else base ** (-2 * (np.arange(width // 2) + 1) / width)


def spread(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """The last pair reaches 1 / base."""
    right_one = frequencies(width, columns, base, scaling, length)
    return right_one if scaling is not None else base ** (-np.arange(width // 2) / max(width // 2 - 1, 1))


def unscaled(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    return frequencies(width, columns, base, None, length)


def one(scaling: Any) -> float:
    return 1.0


def squared(scaling: Any) -> float:
    return factor(scaling) ** 2


def multiplied(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """A linear scaling that multiplies."""
    found = frequencies(width, columns, base, scaling, length)
    return found * scaling.factor**2 if isinstance(scaling, LinearScaling) else found


def without_ramp(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """Of Llama 3: what is not kept is divided by the factor."""
    if not isinstance(scaling, Llama3Scaling):
        return frequencies(width, columns, base, scaling, length)
    plain = frequencies(width, columns, base, None, length)
    turns = scaling.original_length * plain / (2 * math.pi)
    return np.where(turns < scaling.high_frequency_factor, plain / scaling.factor, plain)


def by_radians(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """Of Llama 3: a wavelength without its 2 pi."""
    if not isinstance(scaling, Llama3Scaling):
        return frequencies(width, columns, base, scaling, length)
    plain = frequencies(width, columns, base, None, length)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    share = np.clip((scaling.original_length * plain - low) / (high - low), 0, 1)
    return share * plain + (1 - share) * plain / scaling.factor


def changed(kind: type, **fields: Any) -> Function:
    """Scalings of this kind have these fields, whatever is given."""

    def found(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
        other = replace(scaling, **fields) if isinstance(scaling, kind) else scaling  # type: ignore[type-var]
        return frequencies(width, columns, base, other, length)

    return found


def short_always(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """The length of the sequence is not looked at."""
    return frequencies(width, columns, base, scaling, None if isinstance(scaling, LongRopeScaling) else length)


def at_original_length(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """The long list at the original length already."""
    later = length + 1 if isinstance(scaling, LongRopeScaling) and length is not None else length
    return frequencies(width, columns, base, scaling, later)


def grown_always(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """The dynamic base grows by the factor, whatever the length."""
    if not isinstance(scaling, DynamicScaling):
        return frequencies(width, columns, base, scaling, length)
    return frequencies(width, columns, base * scaling.factor ** (width / (width - 2)), None, length)


def turning(rule: str, name: str, **steps: Any) -> Fault:
    """Without float64, in which angles would need more digits than those of the right one have."""
    function = rotary_by(STEPS._replace(**steps))
    return Fault(rule, name, "rotary_embedding", function, rotary_embedding, given={"dtypes": ("float32", *HALF)})


# --- frequencies alone ------------------------------------------------------------------------------------------------


def listing(name: str, found: Function = frequencies, size: Function = factor) -> Fault:
    """`rotary_frequencies` of other steps."""

    def function(width: int, base: float = 10000.0, scaling: Any = None, *, length: int | None = None) -> Any:
        return found(width, width, base, scaling, length), size(scaling)

    return Fault("POS-4", f"frequencies: {name}", "rotary_frequencies", function, rotary_frequencies)


def in_float32(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    return frequencies(width, columns, base, scaling, length).astype(np.float32).astype(float)


def doubled(width: int, columns: int, base: float, scaling: Any, length: Any) -> Any:
    """A frequency for every column."""
    return np.repeat(frequencies(width, columns, base, scaling, length), 2)


FAULTS = (
    turning("POS-3", "a table of neighbours with pairs of halves", angles=interleaved_table),
    turning("POS-3", "the pairing swapped", columns=other_pairing),
    turning("POS-3", "halves whatever the pairing", columns=halves_always),
    turning("POS-3", "first and second exchanged", turned=second_first),
    turning("POS-3", "no minus", turned=no_minus),
    turning("POS-3", "sine and cosine exchanged", turned=exchanged),
    turning("POS-3", "sine and cosine in bfloat16", turned=in_inputs),
    turning("POS-3", "the negative angle", angles=lambda places, frequencies: -places * frequencies),
    turning("POS-3", "columns past the width are 0", others=zeros),
    turning("POS-3", "columns past the width rounded", others=through_8_bits),
    turning("POS-3", "positions from 1 on", places=from_1),
    turning("POS-3", "positions from 0 on", places=from_0),
    turning("POS-3", "positions counted from the first", places=from_first),
    turning("POS-3", "positions of the first batch element", places=of_first_element),
    turning("POS-3", "heads taken for positions", places=of_heads),
    turning("POS-3", "a table of 4096 rows, the last read again", places=clamped(4096)),
    turning("POS-3", "a table of 32768 rows, the last read again", places=clamped(32768)),
    turning("POS-3", "a table of 8192 rows that starts anew", places=wrapped(8192)),
    turning("POS-3", "a table of 131072 rows, the last read again", places=clamped(131072)),
    turning("POS-3", "positions in bfloat16", places=small(ml_dtypes.bfloat16)),
    turning("POS-3", "positions in 16 bits", places=small(np.int16)),
    turning("POS-3", "angles in bfloat16", angles=rounded(ml_dtypes.bfloat16)),
    turning("POS-3", "angles in float16", angles=rounded(np.float16)),
    turning("POS-3", "angles in float32", angles=rounded(np.float32)),
    turning("POS-3", "angles rounded to float32", angles=rounded_angles),
    turning("POS-3", "frequencies in float32", angles=kept(np.float32)),
    turning("POS-3", "frequencies in bfloat16", angles=kept(ml_dtypes.bfloat16)),
    turning("POS-3", "frequencies in float16", angles=kept(np.float16)),
    turning("POS-3", "another base", frequencies=another_base),
    turning("POS-3", "a base in whole thousands", frequencies=base_as_integer),
    turning("POS-3", "the exponent by the head's width", frequencies=by_columns),
    turning("POS-3", "frequencies from the second on", frequencies=from_one),
    turning("POS-3", "frequencies down to 1 / base", frequencies=spread),
    turning("POS-3", "the gradient turned forwards", back=1.0),
    turning("POS-4", "scalings ignored", frequencies=unscaled),
    turning("POS-4", "the attention factor left out", factor=one),
    turning("POS-4", "the attention factor twice", factor=squared),
    turning("POS-4", "linear scaling that multiplies", frequencies=multiplied),
    turning("POS-4", "llama3 without a ramp", frequencies=without_ramp),
    turning("POS-4", "llama3 by radians, not turns", frequencies=by_radians),
    turning("POS-4", "yarn never truncated", frequencies=changed(YarnScaling, truncate=False)),
    turning("POS-4", "yarn's usual ramp always", frequencies=changed(YarnScaling, beta_fast=32.0, beta_slow=1.0)),
    turning("POS-4", "short factors of longrope always", frequencies=short_always),
    turning("POS-4", "long factors at the original length", frequencies=at_original_length),
    turning("POS-4", "a dynamic base that always grows", frequencies=grown_always),
    listing("frequencies in float32 inside", in_float32),
    listing("a frequency for every column", doubled),
    listing("the attention factor of no scaling", size=one),
    listing("scalings ignored", unscaled),
    listing("linear scaling that multiplies", multiplied),
    listing("llama3 without a ramp", without_ramp),
    listing("yarn never truncated", changed(YarnScaling, truncate=False)),
    listing("long factors at the original length", at_original_length),
    listing("a dynamic base that always grows", grown_always),
)  # fmt: skip
