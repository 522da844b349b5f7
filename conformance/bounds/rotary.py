"""Error bounds of rotary embeddings and of their frequencies (POS-3, POS-4).

Sine and cosine. Positions and frequencies are exact, and so is their product but for whole turns. An implementation
rounds what is left to a turn in [0, 1), the constant 2 pi, and their product, which is at most 2 pi: the angle is off
by up to 6 pi u, and sine and cosine by that and TANH u of their own. (The definition's angle is at most pi / 4 and
comes from quarters of a turn, which are exact: it is off by 2.5 u.) The attention factor and the product with it round
twice more, relative to the factor.

Rotation. x1 cos - x2 sin rounds two products and their difference: 2 u of the absolute terms, and u of the result.
Gradients are the same of the cotangent, turned back.

Frequencies. base^(-2p / W) may be exp(-ln(base) 2p / W): logarithm, quotient and product make its argument, of size
2p / W ln(base), off by LOG + 2 of itself, which is relative in the power; exponential and reciprocal add EXP + 1, and
the exact frequency, which is rounded to float64, one more.

Angles in float32. A subject may declare that frequencies and angles, their sines and cosines are computed in float32,
whatever the dtype of x. Then the unit of all of the above is that of float32, and the angle that of frequency and
position, f and t, both float32: it is off by what f is, and by a rounding of t, which counts past 2^24, and of the
product, all relative. No sine or cosine changes faster than its angle, or by more than 2: they are off by min(2, the
angle's error) beside their own. A table of sines and cosines has the same roundings. The frequency is also covered as
1 / base^x or base^-x, with a pow of its own: x is rounded, which is within the LOG + 2, and pow adds POW in place of
EXP. Numbers that are given, base and those of a scaling, are rounded to float32 as well: one unit more wherever one
counts, of the base 2p / W.

Rotation in the inputs' 16 bits. A subject may declare that it rounds sines and cosines, once they are multiplied by the
attention factor, to the inputs' 16 bits: u~ of themselves, and t~ where they are too small (`arithmetic.py`). If it
also declares this of the products of the rotation, each is off by u~ more; their sum is rounded last, as any result is.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np

from conformance.bounds.arithmetic import EXP, LOG, POW, TANH, UNIT_ROUNDOFF, Approx, Precision, round_approx
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.facts import returned_columns
from specification.frequencies import CONTEXT, attention_factor, exact_frequencies, yarn_ramp
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling

TRIGONOMETRY = TANH + 6 * math.pi
"""Error of sine and cosine in units of u, with that of the angle."""
SINGLE = UNIT_ROUNDOFF["float32"]


class Call(NamedTuple):
    """What decides the frequencies of a call."""

    width: int
    base: float
    scaling: Scaling | None
    length: int | None


def call_of(case: Case) -> Call:
    """Of either operation; the length of an embedding is one more than its largest position unless it is given."""
    width, length = case.options.get("width"), case.options.get("length")
    if "x" in case.inputs:
        part = case.options.get("rotary_width")
        width = case.inputs["x"].shape[-1] if part is None else part
        length = int(case.inputs["positions"].max(initial=-1)) + 1 if length is None else length
    base = case.options.get("base")
    return Call(width, 10000.0 if base is None else base, case.options.get("scaling"), length)


def angles(case: Case) -> tuple[np.ndarray, float]:
    """The angles [T, W / 2] or [B, 1, T, W / 2] of an embedding, in float64, and the attention factor."""
    value = np.array([float(f) for f in exact_frequencies(*call_of(case))])
    positions = np.asarray(case.inputs["positions"], float)[..., None]
    positions = positions if positions.ndim == 2 else positions[:, None]
    return positions * value, attention_factor(case.options.get("scaling"))


def single_angle_error(case: Case) -> np.ndarray:
    """How far the angles may be off that are computed in float32."""
    exact, _ = angles(case)
    value, error = frequencies(call_of(case), SINGLE, single=True)
    return np.abs(exact) * (error / value + 2 * SINGLE)


def frequencies(call: Call, unit: float, single: bool = False) -> Approx:
    """The frequencies, and how far those may be off that are computed with this unit roundoff.

    single: in float32, to which what is given is rounded first.

    A divided frequency rounds once more. A mixed one, k f + (1 - k) f / factor, rounds five times, and an error of k
    counts with f. k is a clamped quotient. Of Llama 3 it is (t - low) / (high - low), with the turns t within the
    original length: off by what t is, and by 3 of t + low, over high - low. Of YaRN it is (p - start) / (end - start),
    where the ends are whole, or W ln(L / (2 pi beta)) / (2 ln(base)): logarithms, which are relative, and 3 roundings
    of their argument, which count with W / (2 ln(base)). A dynamic base is base * g^(W / (W - 2)): the
    power is off as that of a frequency is, without a reciprocal, and the product rounds; g = factor * length / L -
    factor + 1 is off by 3 of its terms. It counts 2p / W times.
    """
    value = np.array([float(f) for f in exact_frequencies(*call)])
    return Approx(value, value * relative(call, value, unit, int(single)) + 2.0**-1022)


def relative(call: Call, value: np.ndarray, unit: float, given: int) -> np.ndarray:
    """How far the frequencies are off, relative to themselves. given: how often each given number is rounded."""
    width, _, scaling, _ = call
    (base, of_base), share = scaled_base(call, unit, given), 2 * np.arange(width // 2) / width
    power = share * (math.log(base) * (LOG + 2) * unit + of_base) + ((max(EXP, POW) if given else EXP) + 2) * unit
    if isinstance(scaling, YarnScaling | Llama3Scaling):
        plain = base**-share
        of_llama3 = isinstance(scaling, Llama3Scaling)
        kept = llama3(scaling, plain, power, unit, given) if of_llama3 else yarn(call, unit, given)
        return np.asarray(power + (5 + given) * unit + kept * plain / value)
    return np.asarray(power + ((1 + given) * unit if isinstance(scaling, LinearScaling | LongRopeScaling) else 0))


def scaled_base(call: Call, unit: float, given: int) -> tuple[float, float]:
    """The base of a dynamic scaling, and how far it is off relative to itself; other bases are exact as given."""
    width, base, scaling, length = call
    if not isinstance(scaling, DynamicScaling):
        return base, given * unit
    stretch = scaling.factor * max(length or 0, scaling.original_length) / scaling.original_length
    growth, exponent = stretch - scaling.factor + 1, width / (width - 2)
    error = exponent * ((3 + given) * (2 * stretch + 1) / growth + (LOG + 2) * math.log(growth))
    error += (max(EXP, POW) if given else EXP) + 1 + given
    return base * growth**exponent, error * unit


def llama3(scaling: Llama3Scaling, plain: np.ndarray, power: np.ndarray, unit: float, given: int) -> np.ndarray:
    """How far the kept share is off."""
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_length * plain / (2 * math.pi)
    error = turns * (power + (3 + given) * unit) + (3 + given) * unit * (turns + low)
    inside = (turns >= low - error) & (turns <= high + error)
    return np.where(inside, error / (high - low) + (2 + given * (high + low) / (high - low)) * unit, 0)


def yarn(call: Call, unit: float, given: int) -> np.ndarray:
    """How far the kept share is off."""
    width, base, scaling, _ = call
    assert isinstance(scaling, YarnScaling)
    with localcontext(CONTEXT):
        start, end = map(float, yarn_ramp(width, Decimal(base), scaling))
    pair = np.arange(width // 2)
    ends = (2 * LOG + 3 + given) * unit * (abs(start) + abs(end)) + (6 + 4 * given) * unit * width / math.log(base)
    ends = 0.0 if scaling.truncate else ends
    error = (2 * ends + 2 * unit * (pair + abs(start))) / (end - start) + 3 * unit
    inside = (pair >= start - ends) & (pair <= end + ends)
    return np.where(inside, error, 0)


def factor(scaling: Scaling | None, unit: float) -> Approx:
    """0.1 ln(factor) + 1 or sqrt(1 + ln(factor) / ln(L)), by logarithms and at most 4 roundings; or what is given."""
    value = attention_factor(scaling)
    computed = isinstance(scaling, YarnScaling | LongRopeScaling) and scaling.attention_factor is None
    return Approx(np.array(value), np.array((2 * LOG + 4) * unit * value if computed and value != 1 else 0.0))


def pair_columns(width: int, pairing: str) -> tuple[slice, slice]:
    """The columns of the first and of the second numbers of the pairs."""
    halves, neighbours = (slice(0, width // 2), slice(width // 2, width)), (slice(0, width, 2), slice(1, width, 2))
    return halves if pairing == "halves" else neighbours


def rotation(
    x: np.ndarray,
    angles: np.ndarray,
    size: float,
    pairing: str,
    sign: int,
    p: Precision,
    angle_error: float | np.ndarray = 0.0,
) -> Approx:
    """x turned by angles [.., T, W / 2], times the attention factor `size`; columns past W are copied.

    sign: -1 turns back. angle_error: of the angles, absolute, beside those of exact products.
    """
    x = np.asarray(x, float)
    width = 2 * angles.shape[-1]
    pairs = pair_columns(width, pairing)
    first, second = (x[..., columns] for columns in pairs)
    unit = max(p.inner, SINGLE) if "angles" in p.declared else p.inner
    off = size * ((TRIGONOMETRY + 2) * unit + np.minimum(angle_error, 2) + np.zeros_like(angles))
    sine, cosine = (round_approx(Approx(a * size, off), p.sines) for a in (sign * np.sin(angles), np.cos(angles)))
    value, error = x.copy(), np.zeros_like(x)
    for columns, one, other, turned in zip(pairs, (first, second), (second, first), (-1, 1), strict=True):
        result = one * cosine.value + turned * other * sine.value
        terms = np.abs(one * cosine.value) + np.abs(other * sine.value)
        carried = np.abs(one) * cosine.error + np.abs(other) * sine.error
        value[..., columns] = result
        rounding = 2 * p.inner * terms + p.inner * np.abs(result) + 3 * p.inner_tiny
        if p.rotation is not None:
            rounding += p.rotation.unit * (terms + carried) + 2 * p.rotation.tiny
        error[..., columns] = carried + rounding
    return Approx(value, error)


def rotary_embedding(case: Case, p: Precision, angle_error: float | np.ndarray = 0.0) -> dict[str, Approx]:
    """angle_error: of the angles, beside what is derived here."""
    turns, size = angles(case)
    angle_error = np.maximum(angle_error, single_angle_error(case)) if "angles" in p.declared else angle_error
    pairing = case.options.get("pairing") or "halves"
    order = returned_columns(case)
    output = rotation(case.inputs["x"], turns, size, pairing, 1, p, angle_error)
    results = {"output": output.select((..., order))}
    if case.cotangents:
        bar = case.cotangents["output"][..., np.argsort(order)]
        results[gradient_name("x")] = rotation(bar, turns, size, pairing, -1, p, angle_error)
    return results


def rotary_frequencies(case: Case, p: Precision) -> dict[str, Approx]:
    call, unit = call_of(case), SINGLE if "angles" in p.declared else p.inner
    return {
        "frequencies": frequencies(call, unit, "angles" in p.declared),
        "attention_factor": factor(call.scaling, p.inner),
    }
