"""Strategies that draw cases (Hypothesis).

Hypothesis draws the structure: sizes, dtype, mask, options. Array contents come from a NumPy generator seeded by a
drawn integer, so a case is small to describe and its arrays can be large.

Sizes come from short lists, because JAX compiles anew for every shape. In most of them every axis has a size of its
own, so that a swapped axis shows; the long list goes past 16, 32 and 64 with lengths that are no multiple of 8, so that
a tail block shows, and ends with one of whole blocks. Numbers are signed and of several magnitudes, with means far from
zero too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import (
    EVERYTHING,
    SIMPLEST_FIRST,
    Declaration,
    Sizes,
    Window,
    adapt_sizes,
    roundings,
)
from conformance.cases.expectations import empty_rows as rows_without_keys
from conformance.cases.features import alignment, set_offset
from conformance.cases.layouts import LAYOUTS, REFUSABLE, SHARED, apply_memory, changes_placement
from conformance.cases.signatures import default
from conformance.oracle.reference import ball_work, balls_available
from reference_numpy import materialize
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.dtypes import compute_dtype_name
from specification.masks import map_arrays

if TYPE_CHECKING:
    from specification.masks import Mask

DTYPES = SIMPLEST_FIRST


def judged_dtypes(dtypes: tuple[str, ...], declaration: Declaration) -> tuple[str, ...]:
    """Those that the subject takes. Without its oracle, float64 cannot be judged."""
    return require_some(d for d in dtypes if d in declaration.dtypes and (d != "float64" or balls_available()))


def require_some(choices: Iterable[Any]) -> tuple[Any, ...]:
    """The choices; a case for which there are none is not drawn."""
    left = tuple(choices)
    assume(left)
    return left


EXACTLY = 2**20
"""Multiplications of balls for one case in float64: about a tenth of a second, so that a check stays short."""


def draw_dtype(
    draw: st.DrawFn, dtypes: tuple[str, ...], declaration: Declaration, work: float, limit: float = EXACTLY
) -> str:
    """Draw a dtype that the subject takes; not float64 where its oracle's work is beyond the limit."""
    return draw(
        st.sampled_from(require_some(d for d in judged_dtypes(dtypes, declaration) if work <= limit or d != "float64"))
    )


SHORT = (
    Sizes(2, 4, 2, 5, 7, 3, 6),
    Sizes(3, 2, 1, 6, 6, 5, 1),
    Sizes(2, 3, 3, 7, 4, 8, 5),
    Sizes(3, 4, 2, 1, 9, 3, 7),
)
LONG = (
    Sizes(2, 3, 3, 19, 37, 8, 5),
    Sizes(1, 4, 2, 35, 35, 10, 12),
    Sizes(1, 2, 1, 33, 70, 64, 40),
    Sizes(2, 4, 1, 16, 32, 16, 16),
)
FEATURED = (SHORT[0], SHORT[3], LONG[2])
"""Of the usual sizes, those with every feature where shapes are compiled, since each feature is compiled for each of
them: all sizes differ, one query, and more than a tile of queries, keys and columns."""
FLOAT64 = (SHORT[0], SHORT[3], LONG[1])
"""Of the usual sizes, those in float64 where shapes are compiled, unless there are no narrower dtypes."""
TILED = (Sizes(1, 2, 1, 70, 150, 3, 2), Sizes(2, 1, 1, 140, 140, 4, 3), Sizes(1, 2, 2, 300, 300, 2, 3))
"""Several tiles of queries and of keys."""
ALIKE = (Sizes(3, 3, 1, 3, 5, 4, 4),)
"""Batch, heads and queries of one size, so that it shows who tells them apart by their sizes."""
THOUSANDS = (Sizes(1, 2, 1, 2, 2048, 64, 64),)
"""As many numbers as kernels look at, or add up, in another way than a few."""
KERNEL_WIDTHS = (
    *(Sizes(2, 4, 2, 5, 7, 64, 32), Sizes(2, 2, 2, 3, 9, 96, 64), Sizes(2, 4, 2, 1, 5, 128, 128)),
    *(Sizes(2, 2, 1, 3, 70, 16, 24), Sizes(2, 2, 2, 9, 20, 160, 128)),
)
"""Few queries and keys of widths for which kernels are made, and more than one tile of keys."""
ONE_KEY = (Sizes(2, 3, 3, 1, 1, 4, 4),)
FEW = 8
"""Up to so many batch elements or heads may share a mask or a bias in a test case."""
MANY_KEYS = 64
"""From here on a few keys hardly change a row, unless they stand out."""
EMPTY = (
    Sizes(0, 4, 2, 5, 7, 3, 6),
    Sizes(2, 0, 0, 5, 7, 3, 6),
    Sizes(2, 4, 2, 0, 7, 3, 6),
    Sizes(2, 4, 2, 5, 0, 3, 6),
    Sizes(2, 4, 2, 5, 7, 3, 0),
)


class Draw:
    """Arrays drawn from one seed, in one dtype."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), dtype

    def numbers(self, *shape: int) -> np.ndarray:
        """Normal numbers in float64, so that all that is made of them is rounded once, by `cast`."""
        return self.rng.standard_normal(shape)

    def cast(self, array: np.ndarray, dtype: str | None = None) -> np.ndarray:
        dtype = dtype or self.dtype
        return (np.clip(array, -60000, 60000) if dtype == "float16" else array).astype(numpy_dtype(dtype))

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: str | None = None) -> np.ndarray:
        return self.cast(self.numbers(*shape) * scale + mean, dtype)

    def choice(self, choices: tuple[float, ...], *shape: int) -> np.ndarray:
        return self.rng.choice(choices, size=shape)

    def booleans(self, *shape: int, share: float = 0.6) -> np.ndarray:
        return self.rng.random(shape) < share

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        return self.rng.integers(low, high, size=shape, endpoint=True)


def digits(count: int) -> st.SearchStrategy[int]:
    """A number of so many decimal digits.

    Drawn in pairs, because Hypothesis now and then draws a number that stands in the source of a loaded module, from
    100 on, and a seed must draw the same cases whatever is loaded.
    """
    pair = st.integers(0, 99)
    return st.tuples(*[pair] * (count // 2)).map(lambda pairs: sum(n * 100**i for i, n in enumerate(pairs)))


seeds = digits(10)


def sizes(dtype: str, declaration: Declaration, plans: tuple[Sizes, ...] | None = None) -> st.SearchStrategy[Sizes]:
    """Of the plans, or the usual ones; in float64 those that ball arithmetic affords."""
    return st.sampled_from(require_some(sizes_for(dtype, declaration, plans)))


def sizes_for(dtype: str, declaration: Declaration, plans: tuple[Sizes, ...] | None) -> list[Sizes]:
    usual = SHORT if dtype == "float64" else SHORT + LONG
    adapted = dict.fromkeys(adapt_sizes(plan, declaration) for plan in (usual if plans is None else plans))
    if dtype != "float64":
        return [*adapted]
    able = [s for s in adapted if ball_work("attention", gradients=True, **s._asdict()) <= EXACTLY]
    few = [s for s in able if s in {adapt_sizes(plan, declaration) for plan in FLOAT64}]
    return few if few and declaration.compiled and len(declaration.dtypes) > 1 else able


def dtype_and_sizes(
    dtypes: tuple[str, ...],
    declaration: Declaration,
    plans: tuple[Sizes, ...] | None = None,
    grouped: bool | None = None,
) -> st.SearchStrategy[tuple[str, Sizes]]:
    """A dtype, and sizes for it. grouped: True for H > G only, False for H = G."""
    able = {
        dtype: [s for s in sizes_for(dtype, declaration, plans) if grouped is None or (s.H > s.G) == grouped]
        for dtype in judged_dtypes(dtypes, declaration)
    }
    chosen = st.sampled_from(require_some(dtype for dtype, found in able.items() if found))
    return chosen.flatmap(lambda dtype: st.tuples(st.just(dtype), st.sampled_from(able[dtype])))


def reset_lacking(operation: str, options: dict[str, Any], declaration: Declaration) -> dict[str, Any]:
    """The options with the operation's own defaults for those that the function has no parameter for."""
    return {n: default(operation, n) if n in declaration.lacking else value for n, value in options.items()}


def draw_option(draw: st.DrawFn, operation: str, name: str, choices: Iterable[Any], declaration: Declaration) -> Any:
    """Draw an option from its choices; only its default where the function has no parameter for it."""
    lacking = name in declaration.lacking
    return draw(st.sampled_from(require_some(one for one in choices if not lacking or one == default(operation, name))))


# --- how arrays lie in memory -----------------------------------------------------------------------------------------

USUAL = ("transposed", "fused", "sliced", "cached", "misaligned")
PLAUSIBLE = {
    "activation": (*USUAL, "shared batch", "shared heads", *REFUSABLE),
    "pairs": (*USUAL, "shared batch", "shared heads", "shared rows", *REFUSABLE),
    "cotangent": (*USUAL, *SHARED, *REFUSABLE),
    "parameter": ("sliced", "misaligned", *REFUSABLE),
}
"""Layouts by the role of an array: input of a layer, mask or bias for pairs, cotangent, weights."""
ACTIVATIONS = (
    *("query", "key", "value", "x", "ids", "positions", "outputs", "logsumexps"),
    *("logits", "log_probabilities", "targets", "router_logits"),
)
PAIRS = ("bias", "mask", "dropout_keep")


def role(name: str) -> str:
    """The role of an array of `Case.memory`."""
    if name == "cotangent":
        return name
    if name in PAIRS:
        return "pairs"
    return "activation" if name.partition("[")[0] in ACTIVATIONS and "." not in name else "parameter"


def arrays_of(case: Case) -> dict[str, list[np.ndarray]]:
    """The arrays of a case by the names that `Case.memory` has for them."""
    named = {name: [array] for name, array in case.inputs.items()}
    for name in ("mask", "dropout_keep"):
        arrays: list[np.ndarray] = []
        map_arrays(case.options.get(name), arrays.append)
        named[name] = list(map(np.asarray, arrays))
    return {name: arrays for name, arrays in (named | {"cotangent": [*case.cotangents.values()]}).items() if arrays}


def choices(case: Case, declaration: Declaration) -> dict[str, list[str]]:
    """Layouts, with the arrays that each of them makes lie in another way."""
    rows_stay = declaration.convention("empty_rows") != "zero"  # an equal mask could leave more rows empty

    def is_possible(layout: str, name: str, arrays: list[np.ndarray]) -> bool:
        kind = role(name)
        if layout not in PLAUSIBLE[kind] or (kind in ("pairs", "cotangent") and layout in SHARED and rows_stay):
            return False
        return any(changes_placement(layout, array.shape) for array in arrays)

    arrays = arrays_of(case)
    possible = {layout: [name for name in arrays if is_possible(layout, name, arrays[name])] for layout in LAYOUTS}
    return {layout: names for layout, names in possible.items() if names}


def draw_memory(draw: st.DrawFn, case: Case, declaration: Declaration, layout: str | None = None) -> Case:
    """Draw a memory layout for one array of a case or for all that can have it, or, two times in three, for none.

    Args:
        draw: Hypothesis's function.
        case: as it is otherwise finished. Values along an axis that gets stride 0 become equal.
        declaration: of the subject. Without strides the case stays as it is.
        layout: the one to use, where an array can have it; else any but those that a subject may refuse.

    Returns:
        the case with its `memory`; the case itself where no array can have any.

    """
    if not declaration.strides or (layout is None and draw(st.integers(0, 2)) < 2):
        return case
    names = choices(case, declaration)
    kinds = [layout] if layout in names else [kind for kind in names if kind not in REFUSABLE]
    if not kinds:
        return case
    kind = draw(st.sampled_from(kinds))
    chosen = [draw(st.sampled_from(names[kind]))] if draw(st.booleans()) else names[kind]  # the simplest case has all
    return apply_memory(case, dict.fromkeys(chosen, kind))


@st.composite
def memory_cases(draw: st.DrawFn, cases: st.SearchStrategy[Case], layout: str, declaration: Declaration) -> Case:
    """Draw cases with this layout for one array, or for all that can have it; with another one if none can."""
    return draw_memory(draw, replace(draw(cases), memory={}), declaration, layout)


# --- masks ------------------------------------------------------------------------------------------------------------


def causal(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    kind = draw(st.sampled_from(("usual", "number", "per batch", "per batch", "early")))
    if s.K > MANY_KEYS:  # whatever the tile, most of them must be seen by some query
        late = s.K - s.Q - draw(st.sampled_from((0, 1, 2, s.K // 4)))
        return Causal(d.integers(s.K // 2, s.K - 1, s.B) if kind == "per batch" else late)
    if kind == "usual":
        return draw(st.sampled_from((Causal() if s.Q == s.K else Causal(0), Causal(-1), Causal(-2), Causal(s.K - s.Q))))
    if kind == "early":  # the first query sees the first key at most
        return Causal(d.integers(-2, 0, s.B))
    if kind == "per batch":
        return Causal(d.integers(-2, max(0, s.K - 1), s.B))
    return Causal(draw(st.integers(-2, max(0, s.K - 1))))


TILES = (16, 32, 64, 128, 256, 512, 1024)
"""Keys to a tile, in many kernels."""


def window(draw: st.DrawFn, s: Sizes, d: Draw, only: tuple[Window, ...] = ()) -> Any:
    """only: the sides to choose from. The window is then often moved to where one of its edges is among the keys."""
    side = st.one_of(st.none(), st.integers(0, max(1, s.K // 3)))
    if s.K > MANY_KEYS:
        side = st.one_of(side, st.sampled_from((0, 1, 2)))
    lowest = min(-1, s.K - s.Q)
    offset: Any = draw(st.one_of(st.integers(lowest, max(0, s.K - s.Q)), st.just("per batch")))
    if offset == "per batch":
        offset = d.integers(lowest, max(0, s.K - s.Q), s.B)
    if only:
        left, right = draw(st.sampled_from(only))
        return SlidingWindow(left, right, offset + draw(st.sampled_from((0, left or 0, -(right or 0)))))
    left, right = draw(side), draw(side)
    if left is None and right is None:
        right = draw(st.integers(0, s.K // 3))
    if s.K > MANY_KEYS and draw(st.integers(0, 3)) > 0:
        offset = tile_offset(draw, s, offset, right if right is not None else -(left or 0))
    return SlidingWindow(left, right, offset)


def tile_offset(draw: st.DrawFn, s: Sizes, offset: int | np.ndarray, side: int) -> Any:
    """The nearest offset at which a window's edge is where a tile of keys ends, or one key before or after.

    side: how many keys the edge is past the query's own place.
    """
    tile = draw(st.sampled_from([tile for tile in TILES if tile <= s.K // 2]))
    past = (offset + side - draw(st.sampled_from((-1, 0, 1)))) % tile
    return offset - past + tile * (past > tile // 2)


MOST_PAIRS = 2**22
"""Of queries and keys, in a case that is larger than a window."""


def window_sizes(declaration: Declaration) -> tuple[Sizes, ...]:
    """Sizes at which each edge of the windows that a subject takes leaves out keys, wherever its windows stand.

    Few queries have more keys than the window, or so many queries few keys. Where lengths are equal there are more
    pairs, and a window of more than some 2,000 keys has no such sizes.
    """
    sides = {side for pair in declaration.windows for side in pair if side is not None}
    longer = [side + 6 for side in sorted(sides)]
    plans = [s for n in longer for s in (Sizes(2, 2, 1, 3, n, 5, 4), Sizes(1, 4, 2, n, 4, 3, 6))]
    adapted = dict.fromkeys(adapt_sizes(s, declaration) for s in plans)
    if "cross" not in declaration:
        adapted = dict.fromkeys(adapt_sizes(Sizes(1, 1, 1, n, n, 5, 4), declaration) for n in longer)
    return tuple(s for s in adapted if s.B * s.H * s.Q * s.K <= MOST_PAIRS)


def lengths(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    low = draw(st.sampled_from((0, 1)))
    counts = d.integers(min(low, s.K), s.K, s.B)
    if s.K > MANY_KEYS:
        counts[-1:] = s.K - draw(st.integers(0, 3))
    if low == 0 and (s.B > 1 or (s.K <= MANY_KEYS and draw(st.booleans()))):
        counts[:1] = 0
    return KeyLengths(counts)


def padding(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    return KeyPadding(d.booleans(s.B, s.K))


def segments(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    """Ids in ascending order. In some cases they are so far apart that 8 or 16 bits do not hold them, or neighbours
    that are one number in bfloat16, float16 or float32."""
    rows = draw(st.sampled_from((1, s.B)))
    far = ((0, 2**8), (0, 2**16), (0, 2**16), (2**8, 1), (2**11, 1), (2**24, 1), (2**24, 1))
    first, apart = draw(st.sampled_from(((0, 1), *far)))
    queries, keys = np.sort(d.integers(0, 2, rows, s.Q)), np.sort(d.integers(0, 2, s.B, s.K))
    return Segments(first + queries * apart, first + keys * apart)


def pair_shapes(s: Sizes, shared: bool = False) -> list[tuple[int, ...]]:
    """Of masks and biases. What is many, batch elements or heads, has one each: that some are mixed up shows there.

    shared: the same for many, as biases are whose gradients are sums.
    """
    if shared:
        return [(s.Q, s.K), (1, 1, s.Q, s.K), (s.B, 1, s.Q, s.K), (1, s.H, s.Q, s.K)]
    batches, heads = (s.B,) if s.B > FEW else (1, s.B), (s.H,) if s.H > FEW else (1, s.H)
    whole: list[tuple[int, ...]] = [(b, h, s.Q, s.K) for b in batches for h in heads if (b, h) != (1, 1)]
    return [(s.Q, s.K), *whole] if max(s.B, s.H) <= FEW else whole


def hidden_run(draw: st.DrawFn, s: Sizes, d: Draw, shape: tuple[int, ...]) -> np.ndarray:
    """Which pairs of an array of this shape lie in a run of whole tiles, mostly of the first keys, for some queries."""
    tiles = [tile for tile in TILES if tile < s.K]
    tile = draw(st.sampled_from((*tiles, *(s.K // 2, s.K - s.K // 8) * 3)))  # long ones have every tile in them
    start = draw(st.sampled_from((0, 0, 0, 0, min(tile, s.K - tile), s.K - tile)))
    keys = (np.arange(s.K) >= start) & (np.arange(s.K) < start + tile)
    return keys & d.booleans(*shape[:-1], 1, share=draw(st.sampled_from((0.5, 1.0))))


def dense(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    array = d.booleans(*draw(st.sampled_from(pair_shapes(s))))
    if s.K > MANY_KEYS:  # of the last keys, which the last query seeks, it may not see both
        if draw(st.integers(0, 2)) == 2:
            array[hidden_run(draw, s, d, array.shape)] = False
        array[..., -1:, -2:] &= (np.arange(2) == d.integers(0, 1, *array.shape[:-2], 1, 1)) & d.booleans(1, share=0.7)
    return array if draw(st.booleans()) else Dense(array)


Masks = dict[str, Callable[[st.DrawFn, Sizes, Draw], Any]]
MASKS: Masks = {
    "causal": causal,
    "window": window,
    "lengths": lengths,
    "padding": padding,
    "segments": segments,
    "dense": dense,
}


def draw_combination(draw: st.DrawFn, s: Sizes, d: Draw, available: Masks, either: bool) -> Any:
    """available: the kinds to choose from. either: some are joined by |."""
    kinds = draw(st.lists(st.sampled_from(sorted(available)), min_size=2, max_size=min(3, len(available)), unique=True))
    parts = [available[kind](draw, s, d) for kind in kinds]
    parts = [Dense(part) if isinstance(part, np.ndarray) else part for part in parts]
    mask = parts[0]
    for part in parts[1:]:
        mask = mask | part if draw(st.booleans()) and either else mask & part
    return mask


def draw_mask(draw: st.DrawFn, kind: str, s: Sizes, d: Draw, declaration: Declaration) -> Any:
    """kind: one of MASKS, "none", "combined", "any" (one of those), or "maybe" (any, or none at all).

    A subject for which there is always a mask gets any in place of none.
    """
    kinds, several = kinds_of_masks(declaration)
    if kind in ("none", "maybe") and "unmasked" not in declaration:
        kind = "any"
    if kind == "maybe":
        kind = draw(st.sampled_from(("none", *kinds, *several)))
    if kind == "any":
        kind = draw(st.sampled_from(require_some((*kinds, *several))))
    if kind == "none":
        return None
    aligned = alignment(s.Q, s.K, declaration)
    if kind == "causal" and declaration.convention("causal") != "explicit" and draw(st.booleans()):
        return Causal(aligned)
    masks: Masks = {**MASKS, "window": partial(window, only=declaration.windows)}
    if kind == "combined":
        mask = draw_combination(draw, s, d, {name: masks[name] for name in kinds}, "or" in declaration)
    else:
        mask = masks[kind](draw, s, d)
    return mask if "offset" in declaration else set_offset(mask, aligned)


def kinds_of_masks(declaration: Declaration) -> tuple[list[str], tuple[str, ...]]:
    """(kinds that the subject takes, "combined" if it takes several at once)."""
    kinds = sorted(declaration.masks)
    return kinds, ("combined",) if len(kinds) > 1 and "combined" in declaration else ()


def takes_mask(mask: str, declaration: Declaration) -> bool:
    """Whether a subject takes such masks at all; asked first, because drawing a case only to drop it takes time."""
    kinds, several = kinds_of_masks(declaration)
    if mask in ("none", "maybe"):
        return "unmasked" in declaration or bool(kinds)
    return mask in (*kinds, *several) or (mask == "any" and bool(kinds))


def broadcast_mask(mask: Mask | None, s: Sizes) -> np.ndarray:
    return np.broadcast_to(materialize(mask, s.Q, s.K, batch=s.B, heads=s.H), (s.B, s.H, s.Q, s.K))


# --- attention --------------------------------------------------------------------------------------------------------

FEATURES = ("scale", "softcap", "bias", "sinks", "dropout")


@st.composite
def attention_cases(
    draw: st.DrawFn,
    operation: str = "attention",
    mask: str = "maybe",
    focus: tuple[str, ...] = (),
    others: bool = True,
    gradients: bool = True,
    dtypes: tuple[str, ...] = DTYPES,
    grouped: bool | None = None,
    empty_rows: tuple[str, ...] = ("zero",),
    plans: tuple[Sizes, ...] | None = None,
    declaration: Declaration = EVERYTHING,
    rate: int = 5,
    shared_bias: bool = False,
) -> Case:
    """Attention, its weights or its log-sum-exp; output and log-sum-exp of one call for subjects that return both.

    focus: features that every case has. others: the remaining features appear now and then, one in `rate`.
    grouped: True for H > G only. plans: the sizes to draw from, instead of the usual ones. shared_bias: many heads or
    batch elements have one bias.
    """
    assume(set(focus) <= declaration.features and takes_mask(mask, declaration))
    if declaration.compiled and plans is None and set(focus) & set(FEATURES):
        plans = FEATURED
    if declaration.windows and plans is None and mask == "window":
        plans = window_sizes(declaration)
    dtype, s = draw(dtype_and_sizes(dtypes, declaration, plans, grouped))
    d = Draw(draw(seeds), dtype)
    features = (set(focus) | (draw_features(draw, rate, declaration) if others else set())) & declaration.features
    if operation != "attention":
        features.discard("dropout")
    rounding = roundings(declaration, dtype)
    in_float16 = "float16" in rounding.values()
    inputs, options = attention_inputs(draw, s, d, operation, in_float16)
    options["mask"] = draw_mask(draw, mask, s, d, declaration)
    modes = empty_rows if "empty_rows" in declaration and "logsumexp" not in declaration else ("zero",)
    mode = draw(st.sampled_from(modes))
    convention, both = empty_row_convention(operation, declaration), declaration.returns_both(operation)
    if mode == "zero" and "sinks" not in focus:
        mode = convention
    if mode not in ("zero", "any"):
        options["empty_rows"] = mode
        features.discard("sinks")
    add_features(draw, s, d, features, inputs, options, shared_bias)
    cotangents, case = {}, Case(operation, dtype, inputs, options, {}, rounding=rounding)
    empty = rows_without_keys(case)
    if convention == "any" and empty.any():
        case.options["empty_rows"] = "any"
    spoiled = convention == "nan" and empty.any()  # what the gradients of NaN then are is not asked
    if gradients and "gradients" in declaration and not spoiled:
        shape = {"attention": (s.B, s.H, s.Q, s.V), "attention_weights": (s.B, s.H, s.Q, s.K)}
        wide = compute_dtype_name(dtype) if operation == "attention_logsumexp" else dtype
        height = 4 if in_float16 else 100
        cotangents["output"] = cotangent(draw, d, shape.get(operation, (s.B, s.H, s.Q)), 2, wide, height)
        if both:
            cotangents["logsumexp"] = cotangent(draw, d, (s.B, s.H, s.Q), 2, compute_dtype_name(dtype), height)
        if convention == "any":
            for array in cotangents.values():
                array[empty] = 0
    return draw_memory(draw, replace(case, cotangents=cotangents, with_logsumexp=both), declaration)


def draw_features(draw: st.DrawFn, rate: int, declaration: Declaration) -> set[str]:
    """Each with a chance of one in `rate`. Where every combination is compiled, all of them or none."""
    if declaration.compiled:
        return set(FEATURES) if draw(st.integers(0, rate - 1)) == rate - 1 else set()
    return {feature for feature in FEATURES if draw(st.integers(0, rate - 1)) == rate - 1}


def cotangent(
    draw: st.DrawFn, d: Draw, shape: tuple[int, ...], axis: int, dtype: str | None = None, height: float = 100
) -> np.ndarray:
    """What a result's gradients start from: now and then with zeros, and some rows along an axis `height` times larger.

    A sum over thousands of rows hardly shows a row that is missing, unless it stands out.
    """
    array = d.normal(*shape, dtype=dtype)
    rows = np.moveaxis(array, axis, 0)
    if len(rows) > MANY_KEYS:
        rows[edges(len(rows), d)] *= rows.dtype.type(height)
    kind = draw(st.integers(0, 5))
    if kind == 5:
        array[d.booleans(*shape, share=0.5)] = 0
    elif kind == 4:
        rows[:-1][d.booleans(max(len(rows) - 1, 0), share=0.5)] = 0
    return array


def draw_row_cotangents(draw: st.DrawFn, d: Draw, shape: tuple[int, ...], trailing: int = 1) -> np.ndarray:
    """What gradients start from that are summed over rows; the bound of their sum grows with the number of rows.

    trailing: axes that make up one row.
    """
    count = prod(shape[:-trailing])
    rows = cotangent(draw, d, (count, *shape[-trailing:]), 0, height=max(100.0, count / 32))
    return rows.reshape(shape)


def edges(length: int, d: Draw) -> list[int]:
    """Places along an axis where tiles of any power of two begin and end, the last one, and a few others."""
    powers = [2**n + step for n in range(4, length.bit_length()) for step in (-1, 0)]
    others = d.integers(0, length - 1, 8).tolist()
    return sorted({place for place in (0, length - 2, length - 1, *powers, *others) if 0 <= place < length})


def empty_row_convention(operation: str, declaration: Declaration) -> str:
    """What the subject promises of empty rows; a mean and NaN are outputs and weights, and promise no log-sum-exp."""
    convention = declaration.convention("empty_rows")
    sums = operation == "attention_logsumexp" or declaration.returns_both(operation)
    return "any" if sums and convention != "zero" else convention


NUMBERS = ("usual", "usual", "by head", "by row", "zeros", "ties", "saturated", "tiny", "huge")
"""What the numbers of a case are like, beside their spread."""
HUGE = {"float16": 2.0**14, "bfloat16": 2.0**90, "float32": 2.0**90, "float64": 2.0**400}
TINY = {"float16": 2.0**-20, "bfloat16": 2.0**-120, "float32": 2.0**-120, "float64": 2.0**-400}
"""Values whose sums still have room, and values of which many are subnormal in the narrower dtypes. Squares of both
are float64 numbers, which the bounds need."""


def attention_inputs(
    draw: st.DrawFn, s: Sizes, d: Draw, operation: str, in_float16: bool
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Query, key and value. Scores have a spread of about 1, or of 0.1, or of 8, where one key takes nearly all.

    Or magnitudes differ between heads or rows, rows are 0, scores are equal, the softmax is saturated, values are tiny
    or huge. Of many keys some stand out, at the edges of tiles.

    in_float16: the subject rounds inside to that format, so no product may leave its range.
    """
    spread = draw(st.sampled_from((1.0, 1.0, 0.1, 8.0)))
    mean = draw(st.sampled_from((0.0, 0.0, 3.0)))
    size = draw(st.sampled_from((1.0, 1.0, 1e-2, 30.0)))
    kind = "usual" if in_float16 else draw(st.sampled_from(NUMBERS))
    rows, columns = (s.B, s.H, s.Q, 1), (s.B, s.G, s.K, 1)
    query, key = d.numbers(s.B, s.H, s.Q, s.D) * spread, d.numbers(s.B, s.G, s.K, s.D)
    value = d.numbers(s.B, s.G, s.K, s.V) * size + mean * size if operation == "attention" else None
    if kind == "ties":
        query, key = np.rint(query / spread), np.rint(key)
    elif kind == "saturated":
        query = query * 60
    elif kind in ("by head", "by row"):
        query_shape, value_shape = ((s.B, s.H, 1, 1), (s.B, s.G, 1, 1)) if kind == "by head" else (rows, columns)
        query = query * d.choice((0.03, 1.0, 8.0), *query_shape)
        value = value if value is None else value * d.choice((1e-3, 1.0, 1e3), *value_shape)
    elif kind == "zeros":
        query, key = query * d.booleans(*rows, share=0.7), key * d.booleans(*columns, share=0.7)
        value = value if value is None else value * d.booleans(*columns, share=0.7)
    elif value is not None and kind in ("tiny", "huge"):
        value = value / size * (TINY if kind == "tiny" else HUGE)[d.dtype]
    if s.K > MANY_KEYS and kind != "ties":
        standing_out = edges(s.K, d)
        peak = max(2.0, 0.6 * np.log(s.K), 2 * spread)
        key[:, :, standing_out] *= peak / max(spread, 1.0)
        score = 2.2 * peak * (60 if kind == "saturated" else 1)
        key[:, :, -2:] = turn_keys(query[:, :: max(s.H // max(s.G, 1), 1), -1:], key[:, :, -2:], score)
        if value is not None and kind != "huge":
            value[:, :, standing_out] *= 8
    inputs = {"query": d.cast(query), "key": d.cast(key)}
    return inputs | ({} if value is None else {"value": d.cast(value)}), {}


def turn_keys(query: np.ndarray, key: np.ndarray, score: float) -> np.ndarray:
    """Keys [B, G, 2, D] turned so that a query [B, G, 1, D], by the default scale, gives them about this score.

    Random keys, however large, have a score below 0 half of the time, and nobody misses them.
    """
    length = np.sqrt(np.sum(query**2, axis=-1, keepdims=True))
    along = query / np.maximum(length, 1e-300)
    across = np.clip(key - np.sum(key * along, axis=-1, keepdims=True) * along, -3, 3)
    wanted = (score - np.array([[1.0], [0.0]])) * np.sqrt(query.shape[-1])
    return np.where(length > 1e-3, across + along * wanted / np.maximum(length, 1e-3), key)


def logsumexp_of_heads(inputs: dict[str, np.ndarray], options: dict[str, Any]) -> np.ndarray:
    """Of the last query in each head, without a mask: a sink of about this weighs as much as all keys together."""
    query, key = inputs["query"][0, :, -1].astype(float), inputs["key"][0].astype(float)
    scale = options["scale"] if options.get("scale") is not None else query.shape[-1] ** -0.5
    groups = query.reshape(len(key), -1, query.shape[-1])
    scores = (groups @ np.swapaxes(key, -1, -2) * scale).reshape(len(query), -1)
    if options.get("softcap") is not None:
        scores = options["softcap"] * np.tanh(scores / options["softcap"])
    largest = scores.max(axis=-1)
    return largest + np.log(np.sum(np.exp(scores - largest[:, None]), axis=-1))


def add_features(
    draw: st.DrawFn,
    s: Sizes,
    d: Draw,
    features: set[str],
    inputs: dict[str, np.ndarray],
    options: dict[str, Any],
    shared_bias: bool = False,
) -> None:
    companion = draw(st.sampled_from((compute_dtype_name(d.dtype), d.dtype)))
    if "alibi_slopes" in features:
        features = features - {"bias"}
        inputs["alibi_slopes"] = alibi_slopes(draw, s, d)
    if "query_lengths" in features:
        inputs["query_lengths"] = d.integers(draw(st.sampled_from((0, 1))), s.Q, s.B).astype(np.int32)
    if "scale" in features:  # kernels divide ALiBi's slopes by it
        scales = (0.3, 1.0, -0.7, -0.2) if "alibi_slopes" in features else (0.3, 1.0, -0.7, 0.0, -0.2)
        options["scale"] = draw(st.sampled_from(scales))
    if "softcap" in features:
        options["softcap"] = draw(st.sampled_from((0.5, 2.0, 30.0)))
    if "bias" in features:
        inputs["bias"] = d.normal(*draw(st.sampled_from(pair_shapes(s, shared_bias))), scale=2.0, dtype=companion)
        if draw(st.booleans()):
            inputs["bias"][d.booleans(*inputs["bias"].shape, share=0.15)] = -np.inf
        if s.K > MANY_KEYS and draw(st.integers(0, 7)) > 0:
            inputs["bias"][hidden_run(draw, s, d, inputs["bias"].shape)] = -np.inf
    if "sinks" in features:
        beside = logsumexp_of_heads(inputs, options) if s.K > MANY_KEYS and s.Q and inputs["query"].ndim == 4 else 0.0
        inputs["sinks"] = d.cast(d.numbers(s.H) * 2.0 + beside, companion)
    if "dropout" in features:
        options["dropout_rate"] = draw(st.sampled_from((0.1, 0.5)))
        options["dropout_keep"] = d.booleans(s.B, s.H, s.Q, s.K, share=1 - options["dropout_rate"])


def alibi_slopes(draw: st.DrawFn, s: Sizes, d: Draw) -> np.ndarray:
    """One for each head, or for each of every batch element, by which the farthest key loses up to 16.

    Their products with distances are exact in float64. Some have more bits than 16-bit dtypes hold.
    """
    shape = draw(st.sampled_from(((s.H,), (s.B, s.H))))
    dtype = compute_dtype_name(d.dtype)
    more = draw(st.sampled_from((0, {"float32": 18, "float64": 34}[dtype])))
    step = 2.0 ** -(max(s.Q, s.K, 2) - 1).bit_length() / 4
    return (d.integers(1, 64 << more, *shape) * (step * 2.0**-more)).astype(dtype)


@st.composite
def merge_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    parts: tuple[int, ...] = (1, 2, 3, 4),
    spread: float = 3.0,
    plans: tuple[Sizes, ...] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """parts: the choices for their number. spread: of the log-sum-exps. plans: as for attention."""
    dtype, s = draw(dtype_and_sizes(dtypes, declaration, plans))
    d, count = Draw(draw(seeds), dtype), draw(st.sampled_from(parts))
    wide = compute_dtype_name(dtype)
    inputs = {f"outputs[{i}]": d.normal(s.B, s.H, s.Q, s.V) for i in range(count)}
    for i in range(count):
        logsumexp = d.normal(s.B, s.H, s.Q, scale=spread, mean=2.0, dtype=wide)
        logsumexp[d.booleans(s.B, s.H, s.Q, share=0.2)] = -np.inf
        inputs[f"logsumexps[{i}]"] = logsumexp
    cotangents = {"output": d.normal(s.B, s.H, s.Q, s.V), "logsumexp": d.normal(s.B, s.H, s.Q, dtype=wide)}
    return draw_memory(
        draw, Case("merge_attention", dtype, inputs, {}, select_cotangents(cotangents, declaration)), declaration
    )


def select_cotangents(cotangents: dict[str, np.ndarray], declaration: Declaration) -> dict[str, np.ndarray]:
    return cotangents if "gradients" in declaration else {}


@st.composite
def multi_head_cases(
    draw: st.DrawFn,
    separate: bool = False,
    mask: str = "maybe",
    focus: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[Sizes, ...] = (*SHORT, *LONG[:2]),
    model_widths: tuple[int, int, int, int] = (6, 5, 4, 3),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """separate: per-head projections, with widths of key and value that differ from E / H; of those who take no others,
    always. mask: as in `draw_mask`.
    model_widths: of query, key, value and output.
    """
    assume(set(focus) <= declaration.features)
    assume(not separate or "separate" in declaration)
    separate = separate or "fused" not in declaration
    dtype, s = draw(dtype_and_sizes(dtypes, declaration, plans))
    d = Draw(draw(seeds), dtype)
    E, E_key, E_value, E_out = (max(width, declaration.least.get("model_width", 0)) for width in model_widths)
    widths = {"query": (E, s.H * s.D), "key": (E_key, s.G * s.D), "value": (E_value, s.G * s.V)}
    inputs = {"query": d.normal(s.B, s.Q, E), "key": d.normal(s.B, s.K, E_key), "value": d.normal(s.B, s.K, E_value)}
    biased = draw(st.integers(0, 3)) > 0
    counts = {"query": s.H, "key": s.G, "value": s.G}
    for name, (inner, outer) in widths.items():
        heads = counts[name] if separate else 1
        for head in range(heads):
            prefix = f"{name}[{head}]" if separate else name
            inputs[f"{prefix}.weight"] = d.normal(inner, outer // heads, scale=inner**-0.5)
            if biased:
                inputs[f"{prefix}.bias"] = d.normal(outer // heads, scale=0.3)
    inputs["output.weight"] = d.normal(s.H * s.V, E_out, scale=(s.H * s.V) ** -0.5)
    if draw(st.booleans()):
        inputs["output.bias"] = d.normal(E_out)
    options: dict[str, Any] = {"num_heads": s.H, "mask": draw_mask(draw, mask, s, d, declaration)}
    features = set(focus) | (draw_features(draw, 6, declaration) & declaration.features)
    add_features(draw, s, d, features, inputs, options)
    # Without promises about empty rows, none are asked for.
    visible = broadcast_mask(options["mask"], s) & (inputs.get("bias", 0.0) != -np.inf)
    assume(declaration.convention("empty_rows") == "zero" or visible.any(-1).all())
    cotangents = select_cotangents({"output": d.normal(s.B, s.Q, E_out)}, declaration)
    rounding = roundings(declaration, dtype)
    return draw_memory(
        draw, Case("multi_head_attention", dtype, inputs, options, cotangents, rounding=rounding), declaration
    )


def fused_or_separate_cases(**given: Any) -> st.SearchStrategy[Case]:
    """Cases of multi-head attention whose projections are fused or, as often, one for every head."""
    separate = st.booleans() if "separate" in given.get("declaration", EVERYTHING) else st.just(False)
    return separate.flatmap(lambda separate: multi_head_cases(separate=separate, **given))
