"""Strategies of tables, positions and biases by distance."""

from __future__ import annotations

from math import lcm, prod
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases.arguments import result_names
from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import EVERYTHING, Declaration, fit_width, roundings
from conformance.cases.operation import OFFSET
from conformance.cases.signatures import default
from conformance.oracle.reference import AFFORDABLE, ball_work
from conformance.sampling.strategies import (
    DTYPES,
    EXACTLY,
    HUGE,
    MANY_KEYS,
    TINY,
    Draw,
    cotangent,
    digits,
    draw_dtype,
    draw_memory,
    draw_option,
    judged_dtypes,
    require_some,
    reset_lacking,
    seeds,
    select_cotangents,
)
from specification.positions import bucket_edges
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling

EXACT_POSITIONS = 2**15
"""Entries of sinusoidal positions that ball arithmetic affords."""


@st.composite
def sinusoidal_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    offsets: tuple[int, ...] = (),
    plan: tuple[int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """offsets: the choices, instead of the usual ones. plan: length and width."""
    if "dtype" in declaration.lacking:
        dtypes = tuple(dtype for dtype in dtypes if dtype == default("sinusoidal_positions", "dtype"))
    if plan is not None and plan[0] * plan[1] > EXACT_POSITIONS:
        dtypes = tuple(dtype for dtype in dtypes if dtype != "float64")
    limits = declaration.limits
    least = int("empty" not in declaration)
    options: dict[str, Any] = {
        "length": draw(st.integers(least, min(40, limits.get("length", 40)))) if plan is None else plan[0],
        "width": fit_width(draw(st.integers(1, 70)), "model_width", declaration) if plan is None else plan[1],
        "offset": draw(st.sampled_from(offsets) if offsets else st.one_of(st.sampled_from((0, 511, 4099)), digits(4))),
        "exponent": draw(st.sampled_from(("shared", "doubled"))),
        "dtype": draw(st.sampled_from(judged_dtypes(dtypes, declaration))),
    }
    options["offset"] = min(
        options["offset"], limits.get("table", options["offset"] + options["length"]) - options["length"]
    )
    options = reset_lacking("sinusoidal_positions", options, declaration)
    return Case("sinusoidal_positions", options["dtype"], {}, options)


LOOKUPS = tuple(
    (rows, width, shape)
    for rows, width in ((11, 5), (40, 10))  # widths whose root must be rounded
    for shape in ((7,), (2, 5), (3, 2, 4), (1,))
)


@st.composite
def lookup_cases(
    draw: st.DrawFn,
    operation: str,
    scaled: tuple[bool, ...] = (False, True),
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, int, tuple[int, ...]], ...] = LOOKUPS,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """scaled: the choices for an embedding. plans: rows and width of the table, and shapes of the ids or lengths."""
    rows, width, lengths = draw(st.sampled_from(plans))
    width = fit_width(width, "model_width", declaration)
    shape = draw(st.sampled_from(((prod(lengths),), lengths))) if operation == "embedding" else lengths[:1]
    dtype = draw_dtype(
        draw, dtypes, declaration, ball_work(operation, gradients=True, N=rows, E=width, rows=prod(shape))
    )
    d = Draw(draw(seeds), dtype)
    inputs = {"table": d.normal(rows, width)}
    if operation == "learned_positions":
        length = min(shape[0], rows)
        start = draw(st.sampled_from((0, rows - length))) if rows > MANY_KEYS else int(d.integers(0, rows - length))
        options: dict[str, Any] = {"length": length, "offset": start}
        shape = (length,)
    else:
        kind = draw(st.sampled_from((np.int32, np.int64)))
        inputs["ids"] = d.integers(0, rows - 1, *shape).astype(kind)
        if rows > MANY_KEYS:  # so that the last rows are read, whatever is drawn
            inputs["ids"].reshape(-1)[-2:] = (rows - 2, rows - 1)[-inputs["ids"].size :]
        options = {"scaled": draw_option(draw, operation, "scaled", scaled, declaration)}
    options = reset_lacking(operation, options, declaration)
    cotangents = select_cotangents({result_names(operation)[0]: cotangent(draw, d, (*shape, width), 0)}, declaration)
    return draw_memory(draw, Case(operation, dtype, inputs, options, cotangents), declaration)


# --- biases by distance -----------------------------------------------------------------------------------------------

HEADS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 71)
LARGEST = 60000.0
"""In float16; what is farther becomes -inf there."""


@st.composite
def alibi_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    heads: tuple[int, ...] = HEADS,
    plan: tuple[int, int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """heads: the choices for their number. plan: heads, queries and keys."""
    limits = declaration.limits
    H = min(draw(st.sampled_from(heads)), limits.get("heads", max(heads)))
    least = int("empty" not in declaration)
    Q, K = (draw(st.integers(least, min(20, limits.get(side, 20)))) for side in ("queries", "keys"))
    H, Q, K = plan or (H, Q, K)
    offset = draw(st.one_of(st.sampled_from((0, 0, max(K - Q, 0), 511, 4099)), digits(4)))
    able = dtypes if "dtype" not in declaration.lacking else ("float32",)
    cheap, near = ball_work("alibi_bias", gradients=False, pairs=H * Q * K) <= EXACTLY, max(offset + Q, K) < LARGEST
    able = tuple(d for d in judged_dtypes(able, declaration) if (cheap or d != "float64") and (near or d != "float16"))
    given: dict[str, Any] = {"num_heads": H, "query_length": Q, "key_length": K, OFFSET: offset}
    given = reset_lacking("alibi_bias", given | {"dtype": draw(st.sampled_from(require_some(able)))}, declaration)
    return Case("alibi_bias", given["dtype"], {}, given, rounding=roundings(declaration, given["dtype"]))


TABLES = ((32, 128), (32, 128), (16, 20), (64, 256), (4, 3), (5, 9), (12, 1000), (33, 128), (40, 2048))
"""Rows of the table, and the furthest distance."""
EDGES = (
    *((9, 128, 8), (10, 160, 10), (19, 288, 18), (20, 320, 20), (29, 448, 28), (8, 100, 20), (5, 16, 8)),
    *((32, 100, 40), (5, 686, 98), (6, 1029, 147), (11, 1715, 245), (15, 9317, 3791), (83, 1000, 796), (99, 784, 426)),
)
"""Buckets of a direction, the furthest distance, and one that float32 or float64 logarithms put into the wrong bucket.

The first five in float64 as log(n / e), the next three as log(n) - log(e), the others in float32.
"""


@st.composite
def relative_bias_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    tables: tuple[tuple[int, int], ...] = TABLES,
    hard: bool = False,
    plan: tuple[int, int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """tables: rows and furthest distances. hard: one of `EDGES` instead. plan: heads, queries and keys."""
    limits = declaration.limits
    bidirectional = draw_option(draw, "relative_position_bias", "bidirectional", (False, True), declaration)
    if hard:
        size, furthest, distance = draw(st.sampled_from(EDGES))
        rows = 2 * size if bidirectional else size
    else:
        rows, furthest = draw(st.sampled_from(tables))
        if "furthest" in declaration.lacking:
            furthest = 128
        edges = bucket_edges(rows // 2 if bidirectional else rows, furthest)
        distance = draw(st.sampled_from((0, *edges, furthest, 2 * furthest, 4099)))
    H = draw(st.integers(1, min(4, limits.get("heads", 4))))
    Q, K = (draw(st.integers(1, min(most, limits.get(n, most)))) for n, most in (("queries", 9), ("keys", 40)))
    if bidirectional and distance <= 128 and draw(st.booleans()):  # so that a key after the query has the distance
        K = min(K + distance, limits.get("keys", K + distance))
        offset = draw(st.integers(0, K - 1))
    else:  # the first query and one of the keys
        offset = distance + draw(st.integers(0, K - 1))
    if draw(st.integers(0, 3)) == 0 and limits.get("queries", K) >= K:
        Q = K  # as in a model's forward pass
    H, Q, K = (H, Q, K) if plan is None else plan
    work = ball_work("relative_position_bias", gradients=True, pairs=H * Q * K)
    dtype = draw_dtype(draw, dtypes, declaration, work, AFFORDABLE / 8)
    d = Draw(draw(seeds), dtype)
    given: dict[str, Any] = {"query_length": Q, "key_length": K, "bidirectional": bidirectional, "furthest": furthest}
    given = reset_lacking("relative_position_bias", given | {OFFSET: offset}, declaration)
    cotangents = select_cotangents({"output": cotangent(draw, d, (1, H, Q, K), 0)}, declaration)
    return draw_memory(
        draw, Case("relative_position_bias", dtype, {"table": d.normal(rows, H)}, given, cotangents), declaration
    )


# --- rotary embeddings ------------------------------------------------------------------------------------------------


Plan = tuple[int, int, int, int]
"""B, H, T, D of x."""
PLANS: tuple[Plan, ...] = ((2, 3, 5, 8), (3, 2, 7, 6), (2, 1, 4, 16), (1, 5, 3, 10), (2, 4, 19, 12))
WIDE: tuple[Plan, ...] = ((2, 3, 5, 64), (1, 2, 4, 128), (3, 2, 2, 80))
ALIKE: Plan = (3, 3, 3, 8)
"""Batch, heads and positions of one size, so that it shows who takes one axis for another."""
BASES = (10000.0, 10000.0, 500000.0, 1000000.0, 160000.0, 100.0, 12345.5)
NUMBERS = ("usual", "usual", "by head", "zeros", "one of a pair", "tiny", "huge")
STARTS = (0, 1, 7, 100, 511, 2047, 4095, 8191)
"""First positions of a sequence that goes on."""
FAR = (2**12, 2**15, 2**16, 2**17, 2**18, 2**20)
FARTHEST = (2**20, 2**24, 2**28, 2**30)
"""Where positions may lie."""
KINDS = ("in a row", "in a row", "from 0", "of each batch element", "padded", "packed", "anywhere", "backwards")
SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope")
SCALINGS = ("none", "none", *SCALED)
OF_BATCH = ("of each batch element", "padded")
"""Kinds of positions that differ between batch elements."""


def draw_positions(draw: st.DrawFn, d: Draw, kind: str, batch: int, steps: int, far: tuple[int, ...]) -> np.ndarray:
    """int64 [T], or [B, T] where they differ between batch elements."""
    row, last = np.arange(steps), draw(st.sampled_from(far)) if far else 0
    if far:
        ends = np.array([last - steps, last // 2 + 1, last // 3, last - 2 * steps])
        start = max(0, int(d.choice(tuple(ends), 1)[0]))
    else:
        start = draw(st.sampled_from(STARTS))
    if kind == "in a row":
        return row + start
    if kind == "backwards":
        return row[::-1] + start
    if kind == "packed":
        cut = max(1, steps // 2)
        return np.where(row < cut, row + start, row - cut)
    if kind == "anywhere":
        return d.integers(0, max(last, 4096), steps)
    if kind == "of each batch element":
        return row + start + d.integers(1, 50, batch, 1).cumsum(0) - 1
    if kind == "padded":
        return start + np.maximum(row - d.integers(0, steps - 1, batch, 1), 0)
    return row


def scaling_kinds(choices: tuple[str, ...], declaration: Declaration) -> tuple[str, ...]:
    """Those that the subject takes."""
    known = declaration.scalings if "rotary_scaling" in declaration else ()
    return require_some(kind for kind in choices if kind in ("none", *known))


def draw_scaling(draw: st.DrawFn, d: Draw, kind: str, pairs: int, length: int) -> Scaling | None:
    """length: one more than the largest position, on either side of which original lengths lie."""
    factor = draw(st.sampled_from((4.0, 8.0, 2.0, 1.5, 32.0)))
    near = draw(st.sampled_from((max(2, length // 2), length, length, length + 1)))
    original = draw(st.sampled_from((2048, 4096, 8192, 32768)))
    if kind == "linear" or (kind in ("dynamic", "yarn") and pairs == 1):  # which a single pair is too few for
        return LinearScaling(factor=factor)
    if kind == "dynamic":
        return DynamicScaling(factor=factor, original_length=max(2, near))
    if kind == "yarn":
        fast, slow = draw(st.sampled_from(((32.0, 1.0), (4.0, 0.5), (128.0, 16.0))))
        given, truncate = draw(st.sampled_from((None, None, 1.0, 0.75))), draw(st.sampled_from((True, True, False)))
        return YarnScaling(
            factor=factor,
            original_length=original,
            beta_fast=fast,
            beta_slow=slow,
            attention_factor=given,
            truncate=truncate,
        )
    if kind == "llama3":
        low, high = draw(st.sampled_from(((1.0, 4.0), (1.0, 4.0), (2.0, 8.0))))
        return Llama3Scaling(
            factor=factor, low_frequency_factor=low, high_frequency_factor=high, original_length=original
        )
    if kind == "longrope":
        short, long = (np.round(1 + d.rng.random(pairs) * top, 2).tolist() for top in (0.5, 30.0))
        given = draw(st.sampled_from((None, None, 1.2)))
        return LongRopeScaling(
            short_factors=tuple(short),
            long_factors=tuple(long),
            original_length=max(2, near),
            factor=factor,
            attention_factor=given,
        )
    return None


def numbers(d: Draw, kind: str, shape: Plan) -> np.ndarray:
    """x in float64. "one of a pair": neighbours and halves are 0 by turns, so that a sine stands alone."""
    x = d.numbers(*shape)
    if kind == "by head":
        return x * d.choice((0.01, 1.0, 30.0), shape[0], shape[1], 1, 1)
    if kind == "zeros":
        return x * d.booleans(*shape, share=0.7)
    if kind == "one of a pair":
        column = np.arange(shape[3])
        return x * np.where((column % 2 == 0) ^ (column < shape[3] // 2), 1.0, 0.0)
    if kind in ("tiny", "huge"):
        return x * (TINY if kind == "tiny" else HUGE)[d.dtype]
    return x


@st.composite
def rotary_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = KINDS,
    far: tuple[int, ...] = (),
    pairings: tuple[str, ...] = ("halves", "interleaved"),
    partial: bool | None = None,
    scalings: tuple[str, ...] = SCALINGS,
    bases: tuple[float, ...] = BASES,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[Plan, ...] = (*PLANS, ALIKE, *WIDE),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of positions. far: where they end, the choices; by default they are those of `STARTS`. partial: whether
    columns are left as they are; None now and then. scalings: the choices. special: NaN and infinity stand in x.
    """
    names, limits = ("batch", "heads", "length", "model_width"), declaration.limits
    B, H, T, D = (min(n, limits.get(name, n)) for name, n in zip(names, draw(st.sampled_from(plans)), strict=True))
    D = fit_width(D, "model_width", declaration, unit=2)
    sizes = {"numbers": B * H * T * D, "angles": B * T * D}
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("rotary_embedding", gradients=True, **sizes))
    d = Draw(draw(seeds), dtype)
    kind = draw(
        st.sampled_from(require_some(k for k in kinds if k not in OF_BATCH or "batch_positions" in declaration))
    )
    positions = draw_positions(draw, d, kind, B, T, far)
    beyond = int(positions.max(initial=0)) + 1 - limits.get("table", FARTHEST[-1] + 1)
    positions = np.maximum(positions - max(beyond, 0), 0)
    pairing = draw(st.sampled_from(require_some(p for p in pairings if p in declaration)))
    part = draw(st.integers(0, 3)) == 3 if partial is None else partial
    assume(partial is not True or "rotary_width" in declaration)
    unit = lcm(2, declaration.width_multiple)
    part = part and "rotary_width" in declaration and unit < D
    width = draw(st.sampled_from(tuple(range(unit, D, unit)))) if part else D
    length = int(positions.max(initial=0)) + 1
    name = draw(st.sampled_from(scaling_kinds(scalings, declaration)))
    scaling = draw_scaling(draw, d, name, width // 2, length)
    assume(declaration.takes_scaling(scaling))
    options: dict[str, Any] = {
        "base": draw_option(draw, "rotary_embedding", "base", bases, declaration),
        "scaling": scaling,
        "length": length if isinstance(scaling, DynamicScaling | LongRopeScaling) else None,
        "pairing": pairing,
        "rotary_width": width if part else None,
    }
    options = reset_lacking("rotary_embedding", options, declaration)
    x = numbers(d, draw(st.sampled_from(("usual",) if special else NUMBERS)), (B, H, T, D))
    if special:
        x = np.where(d.booleans(*x.shape, share=0.85), x, d.choice((np.nan, np.inf, -np.inf), *x.shape))
    stored = x.astype(numpy_dtype(dtype)) if special else d.cast(x)
    index = draw(st.sampled_from((np.int64, np.int32)))
    cotangents = select_cotangents({"output": cotangent(draw, d, (B, H, T, D), 2)}, declaration)
    inputs = {"x": stored, "positions": positions.astype(index)}
    rounding = roundings(declaration, dtype)
    case = Case("rotary_embedding", dtype, inputs, options, cotangents, special=special, rounding=rounding)
    return draw_memory(draw, case, declaration)


@st.composite
def frequency_cases(
    draw: st.DrawFn,
    scalings: tuple[str, ...] = SCALINGS,
    dtypes: tuple[str, ...] = DTYPES,
    widths: tuple[int, ...] = (8, 64, 128, 6, 32, 2, 80),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """scalings, widths: the choices. Results are float64, and so is every case."""
    dtype = draw(st.sampled_from(require_some(d for d in judged_dtypes(dtypes, declaration) if d == "float64")))
    d, width = Draw(draw(seeds), dtype), draw(st.sampled_from(widths))
    width = fit_width(width, "model_width", declaration, unit=2)
    length = draw(st.sampled_from((1, 100, 4096, 4097, 131072)))
    name = draw(st.sampled_from(scaling_kinds(scalings, declaration)))
    if name == "longrope":  # so that some lengths are the original one, which is at least 2
        length = max(length, 2)
    scaling = draw_scaling(draw, d, name, width // 2, length)
    assume(declaration.takes_scaling(scaling))
    needs = isinstance(scaling, DynamicScaling | LongRopeScaling)
    options: dict[str, Any] = {
        "width": width,
        "base": draw_option(draw, "rotary_frequencies", "base", BASES, declaration),
        "scaling": scaling,
        "length": draw(st.sampled_from((length, length, length, None))) if needs else None,
    }
    options = reset_lacking("rotary_frequencies", options, declaration)
    return Case("rotary_frequencies", dtype, {}, options, rounding=roundings(declaration, dtype))
