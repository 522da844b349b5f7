"""Known mistakes of rotary embeddings: other pairs, positions, frequencies; angles, sines, products in few digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.bounds import rotary as bounds
from conformance.bounds.arithmetic import Precision
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.diagnosis.matching import Failing, Mistake, instead, resulting
from conformance.diagnosis.options import options
from conformance.runner.shrinking import Change
from specification.dtypes import HALF
from specification.frequencies import attention_factor
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)

DOUBLE = Precision.of("float64")
BASES = (10000.0, 500000.0, 1000000.0, 160000.0, 100000.0)
ROWS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Of tables of sines and cosines."""
NUMBERS = 2**14
"""In x, at most, where frequencies are looked for."""
Angles = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The angles, from positions [.., T, 1] and frequencies [W / 2]."""
Results = Callable[[Case, np.ndarray], dict[str, np.ndarray]]
"""The results with such angles."""
IN_SINGLE = "angles are computed in float32"
NARROW = "sine and cosine are rounded to the inputs' 16 bits"
NARROW_PRODUCTS = "sine and cosine, and the products with them, are rounded to the inputs' 16 bits"


# --- another case -----------------------------------------------------------------------------------------------------


def at(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """At other positions; None where these are the same, or cannot be."""

    def changed(case: Case) -> Case | None:
        positions = case.inputs["positions"]
        other = np.asarray(change(positions.astype(np.int64)))
        if other.shape == positions.shape and np.array_equal(other, positions):
            return None
        if other.size == 0 or other.min() < 0 or other.max() > 2**30:
            return None
        length = bounds.call_of(case).length
        inputs = case.inputs | {"positions": other}
        return replace(case, inputs=inputs, options=case.options | {"length": length})

    return changed


def first_row(positions: np.ndarray) -> np.ndarray:
    return positions[0] if positions.ndim == 2 else positions


def from_0(positions: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(positions.shape[-1]), positions.shape)


def rescaled(kind: type, **changed: Any) -> Change:
    """With other numbers of a scaling of this kind."""

    def change(case: Case) -> Case | None:
        scaling = case.options.get("scaling")
        if not isinstance(scaling, kind) or all(getattr(scaling, n) == v for n, v in changed.items()):
            return None
        return replace(case, options=case.options | {"scaling": replace(scaling, **changed)})  # type: ignore[type-var]

    return change


def unscaled(case: Case) -> Case | None:
    return None if case.options.get("scaling") is None else options(scaling=None)(case)


def of_one_list(name: str, other: str) -> Change:
    """LongRoPE's factors of one list, whatever the length."""

    def change(case: Case) -> Case | None:
        scaling = case.options.get("scaling")
        if not isinstance(scaling, LongRopeScaling):
            return None
        return rescaled(LongRopeScaling, **{other: getattr(scaling, name)})(case)

    return change


def whole_width(case: Case) -> Case | None:
    """All columns turn."""
    scaled = isinstance(case.options.get("scaling"), LongRopeScaling)
    return None if scaled or case.options.get("rotary_width") is None else options(rotary_width=None)(case)


# --- other angles -----------------------------------------------------------------------------------------------------


def turned(case: Case, angles: Any, size: float | None = None, backwards: int = -1) -> dict[str, np.ndarray]:
    """The results with these angles. backwards: the sign of the gradient's."""
    size = attention_factor(case.options.get("scaling")) if size is None else size
    pairing = case.options.get("pairing") or "halves"
    found = {"output": bounds.rotation(case.inputs["x"], angles, size, pairing, 1, DOUBLE).value}
    if case.cotangents:
        bar = case.cotangents["output"]
        found[gradient_name("x")] = bounds.rotation(bar, angles, size, pairing, backwards, DOUBLE).value
    return found


def by_angles(name: str, angles: Angles) -> Mistake:
    """The output, and its gradient, of other angles."""

    def results(failing: Failing) -> dict[str, Any] | None:
        return turned(failing.case, angles(*factors(failing.case)))

    return resulting(name, results)


def factors(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Positions [T, 1] or [B, 1, T, 1], and frequencies [W / 2]."""
    positions = np.asarray(case.inputs["positions"], float)[..., None]
    frequencies = bounds.frequencies(bounds.call_of(case), DOUBLE.inner).value
    return (positions if positions.ndim == 2 else positions[:, None]), frequencies


def to(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    def rounded(array: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(array.astype(dtype), float)

    return rounded


half, brain, single = to(np.float16), to(ml_dtypes.bfloat16), to(np.float32)


def in_single(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    return single(single(positions) * single(frequencies))


def narrowly(products: bool) -> Results:
    """Sines and cosines in the inputs' 16 bits; products: these, too."""

    def rounded(case: Case, angles: np.ndarray) -> dict[str, np.ndarray]:
        narrow = to(case.inputs["x"].dtype)
        size, width = attention_factor(case.options.get("scaling")), 2 * angles.shape[-1]
        pairs = bounds.pair_columns(width, case.options.get("pairing") or "halves")
        cosine, sine = narrow(np.cos(angles) * size), narrow(np.sin(angles) * size)
        product = narrow if products else np.asarray

        def rotated(x: np.ndarray, sign: int) -> np.ndarray:
            found = x.astype(float)
            first, second = (found[..., columns] for columns in pairs)
            parts = (
                product(first * cosine) - sign * product(second * sine),
                product(second * cosine) + sign * product(first * sine),
            )
            for columns, part in zip(pairs, parts, strict=True):
                found[..., columns] = part
            return found

        found = {"output": rotated(case.inputs["x"], 1)}
        return found | {gradient_name("x"): rotated(bar, -1) for bar in case.cotangents.values()}

    return rounded


def in_16_bits(name: str, products: bool) -> tuple[Mistake, ...]:
    """Of exact angles, and of angles in float32."""
    found = narrowly(products)

    def of_exact(failing: Failing) -> dict[str, Any] | None:
        case = failing.case
        return found(case, np.multiply(*factors(case))) if case.dtype in HALF else None

    def of_single(failing: Failing) -> dict[str, Any] | None:
        return all_in_single(failing, found) if failing.case.dtype in HALF else None

    return (
        resulting(name, of_exact, strict=True),
        resulting(f"{name}; {IN_SINGLE}", of_single, strict=True),
    )


def all_in_single(failing: Failing, results: Results = turned) -> dict[str, Any] | None:
    """Frequencies come from powers in float32: of each pair the one near the exact one that explains the answers best.

    An exponent of size up to ln(base) is off by u of itself, and the power rounds twice: so many floats lie between.
    """
    case = failing.case
    if case.inputs["x"].size > NUMBERS:
        return None
    positions, frequencies = factors(case)
    far = math.ceil(math.log(bounds.call_of(case).base)) + 2
    rounded = single(frequencies)
    near = [rounded + steps * np.spacing(rounded.astype(np.float32)) for steps in range(-far, far + 1)]
    errors = [by_pair(failing, results(case, in_single(positions, other))) for other in near]
    nearest = np.take_along_axis(np.array(near), np.argmin(errors, axis=0)[None], axis=0)[0]
    return results(case, in_single(positions, nearest))


def by_pair(failing: Failing, found: dict[str, np.ndarray]) -> np.ndarray:
    """The largest distance of each pair's answers from these, in bounds."""
    width = bounds.call_of(failing.case).width
    columns = np.arange(width)
    pairs = columns // 2 if failing.case.options.get("pairing") == "interleaved" else columns % (width // 2)
    errors = np.zeros(width // 2)
    for name in found.keys() & failing.got.keys():
        off = np.abs(failing.answer(name) - found[name]) / failing.bounds[name]
        off = np.where(np.isfinite(off), off, 0)[..., :width].reshape(-1, width)
        np.maximum.at(errors, pairs, off.max(axis=0, initial=0))
    return errors


def mirrored(failing: Failing) -> dict[str, Any] | None:
    positions, frequencies = factors(failing.case)
    return {"output": turned(failing.case, -positions * frequencies)["output"]}


def swapped(failing: Failing) -> dict[str, Any] | None:
    """cos(pi / 2 - a) = sin(a)."""
    positions, frequencies = factors(failing.case)
    return {"output": turned(failing.case, np.pi / 2 - positions * frequencies)["output"]}


def of_heads(failing: Failing) -> dict[str, Any] | None:
    """The number of a head is taken for a position."""
    _, frequencies = factors(failing.case)
    heads = np.arange(failing.case.inputs["x"].shape[1])[:, None, None]
    return {"output": turned(failing.case, heads * frequencies)["output"]}


def by_head_width(failing: Failing) -> dict[str, Any] | None:
    """base^(-2p / D), where only W of D columns turn."""
    case = failing.case
    if case.options.get("rotary_width") is None or case.options.get("scaling") is not None:
        return None
    positions, frequencies = factors(case)
    share = 2 * np.arange(len(frequencies)) / case.inputs["x"].shape[-1]
    return turned(case, positions * bounds.call_of(case).base ** -share)


def without_factor(failing: Failing) -> dict[str, Any] | None:
    """Sine and cosine as they are."""
    case = failing.case
    if attention_factor(case.options.get("scaling")) == 1:
        return None
    positions, frequencies = factors(case)
    return turned(case, positions * frequencies, size=1.0)


def squared_factor(failing: Failing) -> dict[str, Any] | None:
    size = attention_factor(failing.case.options.get("scaling"))
    if size == 1:
        return None
    positions, frequencies = factors(failing.case)
    return turned(failing.case, positions * frequencies, size=size**2)


def forwards(failing: Failing) -> dict[str, Any] | None:
    """The gradient is turned as the output is."""
    if not failing.case.cotangents:
        return None
    positions, frequencies = factors(failing.case)
    name = gradient_name("x")
    return {name: turned(failing.case, positions * frequencies, backwards=1)[name]}


SCALED = (
    instead("the scaling is ignored", unscaled),
    instead("the ramp's ends are not rounded to whole pairs", rescaled(YarnScaling, truncate=False)),
    instead("the ramp's ends are rounded to whole pairs", rescaled(YarnScaling, truncate=True)),
    instead("the factors for short sequences are always used", of_one_list("short_factors", "long_factors")),
    instead("the factors for long sequences are always used", of_one_list("long_factors", "short_factors")),
)
BY_BASE = tuple(instead(f"the base is {base:.0f}", options(base=base)) for base in BASES)


def of_scaling(kind: type, frequencies: Callable[[Any, np.ndarray, Case], Any]) -> Callable[[Case], Any]:
    """Frequencies of a case with such a scaling, from those without."""

    def changed(case: Case) -> Any:
        scaling = case.options.get("scaling")
        if not isinstance(scaling, kind):
            return None
        call = bounds.call_of(case)._replace(scaling=None)
        return frequencies(scaling, bounds.frequencies(call, DOUBLE.inner).value, case)

    return changed


def steps(scaling: Any, plain: np.ndarray, case: Case) -> Any:
    """Llama 3's without a ramp: what is not kept is divided."""
    turns = scaling.original_length * plain / (2 * np.pi)
    return np.where(turns < scaling.high_frequency_factor, plain / scaling.factor, plain)


def late_steps(scaling: Any, plain: np.ndarray, case: Case) -> Any:
    """The same, where only long waves are divided."""
    turns = scaling.original_length * plain / (2 * np.pi)
    return np.where(turns < scaling.low_frequency_factor, plain / scaling.factor, plain)


def multiplied(scaling: Any, plain: np.ndarray, case: Case) -> Any:
    return plain * scaling.factor


def all_divided(scaling: Any, plain: np.ndarray, case: Case) -> Any:
    return plain / scaling.factor


def steady_base(scaling: Any, plain: np.ndarray, case: Case) -> Any:
    """The base times factor^(W / (W - 2)), whatever the length."""
    width = 2 * len(plain)
    return plain * scaling.factor ** (-2 * np.arange(width // 2) / (width - 2))


OTHERWISE: tuple[tuple[str, Callable[[Case], Any]], ...] = (
    ("frequencies are multiplied by the factor", of_scaling(LinearScaling, multiplied)),
    ("there is no ramp: what is not kept is divided", of_scaling(Llama3Scaling, steps)),
    ("there is no ramp: only long waves are divided", of_scaling(Llama3Scaling, late_steps)),
    ("all frequencies are divided by the factor", of_scaling(Llama3Scaling, all_divided)),
    ("all frequencies are divided by the factor", of_scaling(YarnScaling, all_divided)),
    ("the base grows whatever the length", of_scaling(DynamicScaling, steady_base)),
)


def embedded(name: str, frequencies: Callable[[Case], Any]) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        found = frequencies(failing.case)
        return None if found is None else turned(failing.case, factors(failing.case)[0] * found)

    return resulting(name, results)


def listed(name: str, frequencies: Callable[[Case], Any]) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        found = frequencies(failing.case)
        return None if found is None else {"frequencies": found}

    return resulting(name, results)


def right_frequencies(failing: Failing) -> np.ndarray:
    return bounds.frequencies(bounds.call_of(failing.case), DOUBLE.inner).value


MISTAKES = (
    instead("pairs are (p, p + W / 2), not (2p, 2p + 1)", options(pairing="halves")),
    instead("pairs are (2p, 2p + 1), not (p, p + W / 2)", options(pairing="interleaved")),
    resulting("pairs turn the other way", mirrored),
    resulting("sine and cosine are swapped", swapped),
    resulting("the gradient is turned forwards, not back", forwards),
    instead("positions count from 1", at(lambda positions: positions + 1)),
    instead("positions are one too small", at(lambda positions: positions - 1)),
    instead("positions start at 0, whatever is given", at(from_0)),
    instead("the first batch element's positions are used for all", at(first_row)),
    resulting("the number of a head is taken for its position", of_heads),
    *(instead(f"positions past {n - 1} are taken for {n - 1}", at(lambda p, n=n: np.minimum(p, n - 1))) for n in ROWS),  # type: ignore[misc]
    *(instead(f"positions start anew at {n}", at(lambda p, n=n: p % n)) for n in ROWS),  # type: ignore[misc]
    *BY_BASE,
    instead("all columns turn, whatever the rotary width", whole_width),
    resulting("the exponent is 2p / D, not 2p / W", by_head_width),
    *SCALED,
    resulting("sine and cosine are not multiplied by the attention factor", without_factor),
    resulting("sine and cosine are multiplied by the attention factor twice", squared_factor),
    *(embedded(name, frequencies) for name, frequencies in OTHERWISE),
    by_angles(IN_SINGLE, in_single),
    resulting(IN_SINGLE, all_in_single),
    by_angles("frequencies are rounded to float32", lambda p, f: p * single(f)),
    by_angles("angles are rounded to bfloat16", lambda p, f: brain(p * f)),
    by_angles("positions are rounded to bfloat16", lambda p, f: brain(p) * f),
    by_angles("frequencies are rounded to bfloat16", lambda p, f: p * brain(f)),
    by_angles("angles are rounded to float16", lambda p, f: half(p * f)),
    by_angles("positions are rounded to float16", lambda p, f: half(p) * f),
    by_angles("frequencies are rounded to float16", lambda p, f: p * half(f)),
    *in_16_bits(NARROW, products=False),
    *in_16_bits(NARROW_PRODUCTS, products=True),
)
OF_FREQUENCIES = (
    *BY_BASE,
    *SCALED,
    *(listed(name, frequencies) for name, frequencies in OTHERWISE),
    resulting(
        "frequencies are rounded to float32", lambda failing: {"frequencies": single(right_frequencies(failing))}
    ),
    resulting("the attention factor is left out", lambda failing: {"attention_factor": np.array(1.0)}),
)
