"""Frequencies of rotary embeddings (POS-3, POS-4): constants of the definition, not computation on data.

They are computed by `decimal` to 80 digits and held as fixed-point fractions of a turn, so that every package
multiplies them by a position in exact integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from functools import lru_cache
from typing import TypeGuard

from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling

CONTEXT = Context(prec=80)
TURN = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")
"""2 pi: the angle of one turn."""
DIGITS = 6
DIGIT_BITS = 15
"""A fraction of a turn has 6 digits of 15 bits: two products of such digits, and a carry, fit into 32 bits."""


@lru_cache(maxsize=128)
def turn_digits(width: int, base: float, scaling: Scaling | None, length: int | None) -> tuple[tuple[int, ...], ...]:
    """Write every frequency as a fraction of a turn for each step of the position, modulo 1 (POS-3).

    Whole turns move nothing, and are dropped. What is cut off is less than 2^-90 of a turn. There are 6 tuples, the
    largest digit first, of width / 2 integers in [0, 2^15): digit i counts for 2^(-15 (i + 1)).
    """
    with localcontext(CONTEXT):
        turns = [frequency / TURN for frequency in exact_frequencies(width, base, scaling, length)]
        fractions = [int((turn % 1) * 2 ** (DIGITS * DIGIT_BITS)) for turn in turns]
    shifts = range((DIGITS - 1) * DIGIT_BITS, -1, -DIGIT_BITS)
    return tuple(tuple(fraction >> shift & 2**DIGIT_BITS - 1 for fraction in fractions) for shift in shifts)


@lru_cache(maxsize=128)
def exact_frequencies(width: int, base: float, scaling: Scaling | None, length: int | None) -> tuple[Decimal, ...]:
    """Compute the angle by which each pair turns from one position to the next, to 70 digits or more (POS-4).

    width: W, the number of columns that turn. base: of the powers base^(-2p / W), for p = 0, ..., W / 2 - 1. length: of
    the sequence, for scalings that depend on it; None counts as their `original_length`. ValueError where the ramp of a
    YarnScaling would end before it starts.
    """
    with localcontext(CONTEXT):
        exact_base = Decimal(base)
        if isinstance(scaling, DynamicScaling):
            exact_base = grown_base(exact_base, width, scaling, length)
        frequencies = [exact_base ** (Decimal(-2 * p) / width) for p in range(width // 2)]
        return tuple(SCALED[type(scaling)](frequencies, exact_base, scaling, length))


def grown_base(base: Decimal, width: int, scaling: DynamicScaling, length: int | None) -> Decimal:
    """base * (factor * length / original_length - factor + 1)^(W / (W - 2)), with a length past the original one."""
    longer = max(length or 0, scaling.original_length)
    factor = Decimal(scaling.factor)
    growth = factor * longer / scaling.original_length - factor + 1
    return base * growth ** (Decimal(width) / (width - 2))


def unscaled(
    frequencies: list[Decimal], base: Decimal, scaling: DynamicScaling | None, length: int | None
) -> list[Decimal]:
    """The frequencies as they are; a dynamic scaling has changed the base."""
    return frequencies


def linear(frequencies: list[Decimal], base: Decimal, scaling: LinearScaling, length: int | None) -> list[Decimal]:
    """frequency / factor."""
    return [frequency / Decimal(scaling.factor) for frequency in frequencies]


def yarn(frequencies: list[Decimal], base: Decimal, scaling: YarnScaling, length: int | None) -> list[Decimal]:
    """A pair before the ramp is kept, one after it divided by the factor, one on it mixed."""
    start, end = yarn_ramp(2 * len(frequencies), base, scaling)
    slow = [clamped((p - start) / (end - start)) for p in range(len(frequencies))]
    return [mixed(frequency, scaling.factor, 1 - share) for frequency, share in zip(frequencies, slow, strict=True)]


def yarn_ramp(width: int, base: Decimal, scaling: YarnScaling) -> tuple[Decimal, Decimal]:
    """The pairs, as fractional numbers, that turn beta_fast and beta_slow times within the original length."""
    betas = (Decimal(scaling.beta_fast), Decimal(scaling.beta_slow))
    ends = [width * (scaling.original_length / (beta * TURN)).ln() / (2 * base.ln()) for beta in betas]
    if scaling.truncate:
        ends = [ends[0].to_integral_value(ROUND_FLOOR), ends[1].to_integral_value(ROUND_CEILING)]
    start, end = max(ends[0], Decimal(0)), min(ends[1], Decimal(width - 1))
    if start > end:
        raise ValueError(f"the ramp of {scaling} ends before it starts: from pair {start:.6g} to {end:.6g}")
    return start, end + Decimal("0.001") if start == end else end


def llama3(frequencies: list[Decimal], base: Decimal, scaling: Llama3Scaling, length: int | None) -> list[Decimal]:
    """Waves longer than original / low are slowed down, those shorter than original / high kept, between them mixed."""
    low, high = Decimal(scaling.low_frequency_factor), Decimal(scaling.high_frequency_factor)
    turns = [scaling.original_length * frequency / TURN for frequency in frequencies]
    kept = [clamped((turn - low) / (high - low)) for turn in turns]
    return [mixed(frequency, scaling.factor, share) for frequency, share in zip(frequencies, kept, strict=True)]


def longrope(frequencies: list[Decimal], base: Decimal, scaling: LongRopeScaling, length: int | None) -> list[Decimal]:
    """frequency / factor of the pair, from the list for long sequences past the original length."""
    long = length is not None and length > scaling.original_length
    factors = scaling.long_factors if long else scaling.short_factors
    return [frequency / Decimal(factor) for frequency, factor in zip(frequencies, factors, strict=True)]


def clamped(number: Decimal) -> Decimal:
    """The number in [0, 1] that is nearest."""
    return min(max(number, Decimal(0)), Decimal(1))


def mixed(frequency: Decimal, factor: float, kept: Decimal) -> Decimal:
    """A share of the frequency as it is, and the rest of it divided by the factor."""
    return kept * frequency + (1 - kept) * frequency / Decimal(factor)


SCALED: dict[type, Callable[..., list[Decimal]]] = {
    type(None): unscaled,
    LinearScaling: linear,
    DynamicScaling: unscaled,
    YarnScaling: yarn,
    Llama3Scaling: llama3,
    LongRopeScaling: longrope,
}
"""Frequencies by the kind of scaling."""


def attention_factor(scaling: Scaling | None) -> float:
    """Compute the factor of sine and cosine (POS-4).

    It is the one that the scaling gives; without one, 0.1 ln(factor) + 1 for YaRN and sqrt(1 + ln(factor) /
    ln(original_length)) for LongRoPE, both 1 for a factor of at most 1; 1 for all others.
    """
    if not isinstance(scaling, YarnScaling | LongRopeScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return float(scaling.attention_factor)
    if scaling.factor <= 1:
        return 1.0
    with localcontext(CONTEXT):
        stretch = Decimal(scaling.factor).ln()
        if isinstance(scaling, YarnScaling):
            return float(stretch / 10 + 1)
        return float((1 + stretch / Decimal(scaling.original_length).ln()).sqrt())


def needs_length(scaling: Scaling | None) -> TypeGuard[DynamicScaling | LongRopeScaling]:
    """Tell whether frequencies depend on the length of the sequence."""
    return isinstance(scaling, DynamicScaling | LongRopeScaling)
