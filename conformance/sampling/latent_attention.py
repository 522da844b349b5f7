"""Strategies of latent attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import EVERYTHING, Declaration, Sizes, roundings
from conformance.oracle.reference import ball_work
from conformance.sampling import positions as rotation
from conformance.sampling.strategies import (
    DTYPES,
    Draw,
    draw_dtype,
    draw_mask,
    draw_memory,
    draw_option,
    draw_row_cotangents,
    require_some,
    reset_lacking,
    seeds,
    select_cotangents,
)
from specification.rotary import DynamicScaling, LongRopeScaling

OPERATION = "latent_attention"


class Widths(NamedTuple):
    """Sizes of a call: batch, tokens, model, heads, columns of a key that stay and that turn, of a value, of a latent,
    columns between a query's two projections (0: there is one), columns of the output."""

    B: int
    T: int
    E: int
    H: int
    D: int
    R: int
    V: int
    C: int
    inner: int
    out: int


SHORT = (
    *(Widths(2, 5, 6, 3, 3, 4, 2, 7, 0, 8), Widths(3, 4, 7, 2, 5, 2, 6, 3, 4, 5)),
    *(Widths(2, 6, 5, 4, 2, 6, 3, 8, 9, 7), Widths(1, 7, 9, 1, 4, 8, 5, 6, 0, 3)),
)
ALIKE = (Widths(3, 3, 4, 3, 4, 4, 4, 4, 4, 4), Widths(2, 4, 6, 2, 3, 2, 3, 3, 0, 6))
"""Widths that are equal, so that it shows who takes one array or axis for another: where C is D, weights that are not
transposed fit too."""
LONG = (Widths(2, 19, 8, 2, 3, 4, 5, 6, 0, 5), Widths(1, 35, 12, 4, 6, 2, 3, 17, 33, 6))
MODELS = (
    *(Widths(1, 3, 64, 2, 128, 64, 128, 512, 0, 32), Widths(1, 4, 40, 1, 128, 64, 128, 512, 192, 32)),
    *(Widths(2, 5, 32, 16, 32, 16, 32, 64, 48, 33), Widths(1, 70, 24, 3, 16, 8, 16, 32, 0, 17)),
)
"""Widths of models: the first two are DeepSeek's of a head and of a latent."""
EPSILONS = (1e-6, 1e-6, 1e-5, 1e-3, 0.3)
POSITIONS = ("none", "none", "in a row", "of each batch element", "packed", "anywhere", "padded")
NUMBERS = ("usual", "usual", "usual", "small", "by token")


@st.composite
def latent_cases(
    draw: st.DrawFn,
    plans: tuple[Widths, ...] = (*SHORT, *SHORT, *ALIKE, *LONG),
    absorbed: tuple[bool, ...] = (False, True),
    pairings: tuple[str, ...] = ("interleaved", "interleaved", "halves"),
    scalings: tuple[str, ...] = ("none", "none", "none", "yarn", "linear", "dynamic", "llama3"),
    mask: str = "maybe",
    kinds: tuple[str, ...] = POSITIONS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """plans to kinds: the choices, of plans the first two where shapes are compiled; kinds are of positions.

    special: NaN stands in some tokens, and some are hidden. Small numbers make a mean square as large as eps.
    """
    chosen: dict[str, Any] = {
        "pairing": draw_option(draw, OPERATION, "pairing", pairings, declaration),
        "absorbed": draw_option(draw, OPERATION, "absorbed", absorbed, declaration),
    }
    scaling_kind = draw(st.sampled_from(rotation.scaling_kinds(scalings, declaration)))
    s, limits = draw(st.sampled_from(plans[:2] if declaration.compiled else plans)), declaration.limits
    names = {"B": "batch", "T": "length", "H": "heads"}
    s = s._replace(**{n: min(getattr(s, n), limits.get(name, getattr(s, n))) for n, name in names.items()})
    work = ball_work(
        OPERATION, gradients=True, B=s.B, H=s.H, T=s.T, E=s.E, D=s.D + s.R, V=s.V, C=s.C, R=s.R, inner=s.inner
    )
    dtype = draw_dtype(draw, dtypes, declaration, work)
    d = Draw(draw(seeds), dtype)
    source = s.inner or s.E
    inputs = {"x": d.numbers(s.B, s.T, s.E)}
    shapes = {"query_down": (s.E, s.inner)} if s.inner else {}
    shapes |= {"query": (source, s.H * (s.D + s.R)), "key_value_down": (s.E, s.C + s.R)}
    shapes |= {"key_value_up": (s.C, s.H * (s.D + s.V)), "output": (s.H * s.V, s.out)}
    biased = draw(st.booleans())
    for name, (rows, columns) in shapes.items():
        inputs[f"{name}.weight"] = d.normal(rows, columns, scale=rows**-0.5)
        if biased and name != "key_value_up":
            inputs[f"{name}.bias"] = d.normal(columns, scale=0.3)
    for name, width in (("key_value_norm", s.C), *((("query_norm", s.inner),) if s.inner else ())):
        inputs[f"{name}.weight"] = d.normal(width, mean=1.0, scale=0.4)
    size = draw(st.sampled_from(NUMBERS))
    if size == "small":
        inputs["x"] *= d.choice((1e-3, 0.03), s.B, s.T, 1)
    elif size == "by token":
        inputs["x"] *= d.choice((0.1, 1.0, 4.0), s.B, s.T, 1)
    as_attention = Sizes(s.B, s.H, s.H, s.T, s.T, s.D + s.R, s.V)
    options: dict[str, Any] = {"num_heads": s.H, "rotary_width": s.R}
    options["mask"] = draw_mask(draw, "padding" if special else mask, as_attention, d, declaration)
    able = (k for k in kinds if k not in rotation.OF_BATCH or "batch_positions" in declaration)
    kind = draw(st.sampled_from(require_some(able)))
    length = s.T
    if kind != "none" and "positions" not in declaration.lacking:
        positions = rotation.draw_positions(draw, d, kind, s.B, s.T, ())
        length = int(positions.max(initial=0)) + 1
        assume(length <= limits.get("table", length))
        inputs["positions"] = positions.astype(draw(st.sampled_from((np.int64, np.int32))))
    scaling = rotation.draw_scaling(draw, d, scaling_kind, s.R // 2, length)
    assume(declaration.takes_scaling(scaling))
    options |= chosen | {
        "base": draw_option(draw, OPERATION, "base", rotation.BASES, declaration),
        "scaling": scaling,
        "length": length if isinstance(scaling, DynamicScaling | LongRopeScaling) else None,
        "scale": draw_option(draw, OPERATION, "scale", (None, None, 0.3, -0.2, 1.4 * (s.D + s.R) ** -0.5), declaration),
        "eps": draw_option(draw, OPERATION, "eps", EPSILONS, declaration),
    }
    options = reset_lacking(OPERATION, options, declaration)
    x = d.cast(inputs["x"])
    if special:
        assume(options["mask"] is not None)
        x = np.where(d.booleans(s.B, s.T, 1, share=0.3) & d.booleans(*x.shape, share=0.4), np.nan, x)
        x = x.astype(numpy_dtype(dtype))
    inputs["x"] = x
    cotangents = {} if special else {"output": draw_row_cotangents(draw, d, (s.B, s.T, s.out))}
    cotangents = select_cotangents(cotangents, declaration)
    rounding = roundings(declaration, dtype)
    case = Case(OPERATION, dtype, inputs, options, cotangents, special=special, rounding=rounding)
    return draw_memory(draw, case, declaration)
