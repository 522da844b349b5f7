"""Rotary embeddings and their frequencies in balls (POS-3, POS-4)."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb

from conformance.oracle.ball.attention import Results
from conformance.oracle.ball.layers import number
from conformance.oracle.ball.tape import ONE, ZERO, Leaves, Variable, concatenate
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling


def clamp(x: arb) -> arb:
    """The number of [0, 1] that is nearest."""
    return x.max(ZERO).min(ONE)


def wavelengths(width: int, options: dict[str, Any], length: int | None) -> list[arb]:
    """How far apart two positions are that one radian of a pair lies between: 1 / frequency."""
    base, scaling = number(options, "base", 10000.0), options.get("scaling")
    if isinstance(scaling, DynamicScaling) and length is not None and length > scaling.original_length:
        beyond = arb(length - scaling.original_length) / scaling.original_length
        base *= (arb(scaling.factor) * beyond + 1) ** (1 + arb(2) / (width - 2))
    plain = [(base.log() * 2 * p / width).exp() for p in range(width // 2)]
    if isinstance(scaling, LinearScaling):
        return [wave * arb(scaling.factor) for wave in plain]
    if isinstance(scaling, LongRopeScaling):
        long = length is not None and length > scaling.original_length
        factors = scaling.long_factors if long else scaling.short_factors
        return [wave * arb(float(factor)) for wave, factor in zip(plain, factors, strict=True)]
    if isinstance(scaling, YarnScaling):
        start, end = (crossing(width, base, scaling, beta) for beta in (scaling.beta_fast, scaling.beta_slow))
        if scaling.truncate:
            start, end = start.floor(), end.ceil()
        start, end = start.max(ZERO), end.min(arb(width - 1))
        steep = (end - start) if start != end else arb(1) / 1000
        return [interpolate_wave(wave, scaling.factor, clamp((p - start) / steep)) for p, wave in enumerate(plain)]
    if isinstance(scaling, Llama3Scaling):
        longest = scaling.original_length / arb(scaling.low_frequency_factor)
        shortest = scaling.original_length / arb(scaling.high_frequency_factor)
        turns = [2 * arb.pi() * wave for wave in plain]
        shares = [clamp((1 / shortest - 1 / turn) / (1 / shortest - 1 / longest)) for turn in turns]
        return [interpolate_wave(wave, scaling.factor, share) for wave, share in zip(plain, shares, strict=True)]
    return plain


def crossing(width: int, base: arb, scaling: YarnScaling, beta: float) -> arb:
    """The pair, as a fractional number, whose wave fits beta times into the original length."""
    return arb(width) / 2 * (scaling.original_length / (2 * arb.pi() * arb(beta))).log() / base.log()


def interpolate_wave(wave: arb, factor: float, share: arb) -> arb:
    """Return the wave with its frequency between its own (share 0) and that divided by the factor (share 1)."""
    return wave / (1 - share + share / arb(factor))


def amplitude(options: dict[str, Any]) -> arb:
    """The attention factor."""
    scaling = options.get("scaling")
    if not isinstance(scaling, YarnScaling | LongRopeScaling):
        return ONE
    if scaling.attention_factor is not None:
        return arb(float(scaling.attention_factor))
    stretch = arb(max(float(scaling.factor), 1.0)).log()
    if isinstance(scaling, YarnScaling):
        return stretch / 10 + 1
    return (1 + stretch / arb(scaling.original_length).log()).sqrt()


def rotary_embedding(leaves: Leaves, options: dict[str, Any]) -> Results:
    """(x1 cos - x2 sin, x2 cos + x1 sin) times the attention factor, pair by pair (POS-3)."""
    return {"output": turn(leaves.read("x"), leaves.inputs["positions"], options)}


def turn(x: Variable, positions: np.ndarray, options: dict[str, Any]) -> Variable:
    """x [B, H, T, D] turned by positions [T] or [B, T]."""
    positions = np.asarray(positions).astype(np.int64)
    columns, pairing = x.shape[-1], options.get("pairing") or "halves"
    width = columns if options.get("rotary_width") is None else options["rotary_width"]
    length = options.get("length")
    length = int(positions.max(initial=-1)) + 1 if length is None else length
    waves, size = wavelengths(width, options, length), amplitude(options)
    rows = np.atleast_2d(positions)[:, None]
    sine, cosine = (np.empty((*rows.shape, width // 2), object) for _ in range(2))
    for index in np.ndindex(sine.shape):
        angle = arb(int(rows[index[:-1]])) / waves[index[-1]]
        sine[index], cosine[index] = angle.sin() * size, angle.cos() * size
    order = np.arange(width).reshape(2, -1) if pairing == "halves" else np.arange(width).reshape(-1, 2).T
    first, second = x[..., order[0]], x[..., order[1]]
    turned = concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)
    if "columns" not in options:  # a convention by which they come back as they are here
        turned = turned[..., np.argsort(order.reshape(-1))]
    return turned if width == columns else concatenate([turned, x[..., np.arange(width, columns)]], -1)


def rotary_frequencies(leaves: Leaves, options: dict[str, Any]) -> Results:
    """The angle from one position to the next, and the attention factor (POS-4)."""
    waves = wavelengths(options["width"], options, options.get("length"))
    frequencies = np.array([1 / wave for wave in waves], dtype=object)
    return {"frequencies": Variable(frequencies), "attention_factor": Variable(np.asarray(amplitude(options)))}
