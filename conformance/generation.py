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
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases import Case
from conformance.declaration import EVERYTHING, SIMPLEST_FIRST, Declaration
from conformance.expectations import allowed_pairs
from conformance.features import alignment
from conformance.oracle import balls_available
from conformance.signatures import default
from conformance.sizes import Sizes, adapted
from conformance.spreading import result_names
from reference_numpy import materialize
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.dtypes import compute_dtype_name
from specification.masks import And, Or

DTYPES = SIMPLEST_FIRST


def judged(dtypes: tuple[str, ...], declaration: Declaration) -> tuple[str, ...]:
    """Those that the subject takes. Without its oracle, float64 cannot be judged."""
    return some(d for d in dtypes if d in declaration.dtypes and (d != "float64" or balls_available()))


def some(choices: Iterable[Any]) -> tuple[Any, ...]:
    """The choices; a case for which there are none is not drawn."""
    left = tuple(choices)
    assume(left)
    return left


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
ALIKE = (Sizes(3, 3, 1, 3, 5, 4, 4),)
"""Batch, heads and queries of one size, so that it shows who tells them apart by their sizes."""
THOUSANDS = (Sizes(1, 2, 1, 2, 2048, 64, 64),)
"""As many numbers as kernels look at, or add up, in another way than a few."""
KERNEL_WIDTHS = (Sizes(2, 4, 2, 5, 7, 64, 32), Sizes(2, 2, 2, 3, 9, 96, 64), Sizes(2, 4, 2, 1, 5, 128, 128))
"""Few queries and keys of widths for which kernels are made."""
ONE_KEY = (Sizes(2, 3, 3, 1, 1, 4, 4),)
EMPTY = (
    Sizes(0, 4, 2, 5, 7, 3, 6),
    Sizes(2, 0, 0, 5, 7, 3, 6),
    Sizes(2, 4, 2, 0, 7, 3, 6),
    Sizes(2, 4, 2, 5, 0, 3, 6),
    Sizes(2, 4, 2, 5, 7, 3, 0),
)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Draw:
    """Arrays drawn from one seed, in one dtype."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), dtype

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: str | None = None) -> np.ndarray:
        return (self.rng.normal(size=shape) * scale + mean).astype(numpy_dtype(dtype or self.dtype))

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
    """float64 is judged by ball arithmetic, which is slow: short lengths only."""
    plans = (SHORT if dtype == "float64" else SHORT + LONG) if plans is None else plans
    return st.sampled_from(some(dict.fromkeys(adapted(plan, declaration) for plan in plans)))


# --- masks ------------------------------------------------------------------------------------------------------------


def causal(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    kind = draw(st.sampled_from(("usual", "number", "per batch", "per batch", "early")))
    if kind == "usual":
        return draw(st.sampled_from((Causal() if s.Q == s.K else Causal(0), Causal(-1), Causal(-2), Causal(s.K - s.Q))))
    if kind == "early":  # the first query sees the first key at most
        return Causal(d.integers(-2, 0, s.B))
    if kind == "per batch":
        return Causal(d.integers(-2, max(0, s.K - 1), s.B))
    return Causal(draw(st.integers(-2, max(0, s.K - 1))))


def window(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    side = st.one_of(st.none(), st.integers(0, max(1, s.K // 3)))
    offset = draw(st.one_of(st.integers(-1, max(0, s.K - s.Q)), st.just("per batch")))
    if offset == "per batch":
        offset = d.integers(-1, max(0, s.K - s.Q), s.B)
    left, right = draw(side), draw(side)
    return SlidingWindow(left, right if left is not None else draw(st.integers(0, s.K // 3)), offset)


def lengths(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    low = draw(st.sampled_from((0, 1)))
    found = d.integers(min(low, s.K), s.K, s.B)
    if low == 0 and (s.B > 1 or draw(st.booleans())):
        found[:1] = 0
    return KeyLengths(found)


def padding(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    return KeyPadding(d.booleans(s.B, s.K))


def segments(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    rows = draw(st.sampled_from((1, s.B)))
    return Segments(np.sort(d.integers(0, 2, rows, s.Q)), np.sort(d.integers(0, 2, s.B, s.K)))


def dense(draw: st.DrawFn, s: Sizes, d: Draw) -> Any:
    shape = draw(st.sampled_from(((s.Q, s.K), (s.B, 1, s.Q, s.K), (1, s.H, s.Q, s.K), (s.B, s.H, s.Q, s.K))))
    array = d.booleans(*shape)
    return array if draw(st.booleans()) else Dense(array)


MASKS: dict[str, Callable[[st.DrawFn, Sizes, Draw], Any]] = {
    "causal": causal,
    "window": window,
    "lengths": lengths,
    "padding": padding,
    "segments": segments,
    "dense": dense,
}


def combined(draw: st.DrawFn, s: Sizes, d: Draw, available: list[str]) -> Any:
    kinds = draw(st.lists(st.sampled_from(available), min_size=2, max_size=min(3, len(available)), unique=True))
    parts = [MASKS[kind](draw, s, d) for kind in kinds]
    parts = [Dense(part) if isinstance(part, np.ndarray) else part for part in parts]
    mask = parts[0]
    for part in parts[1:]:
        mask = mask | part if draw(st.booleans()) else mask & part
    return mask


def draw_mask(draw: st.DrawFn, kind: str, s: Sizes, d: Draw, declaration: Declaration) -> Any:
    """kind: one of MASKS, "combined", "any" (one of those), or "maybe" (any, or none at all)."""
    kinds, several = kinds_of_masks(declaration)
    if kind == "maybe":
        kind = draw(st.sampled_from(("none", *kinds, *several)))
    if kind == "any":
        kind = draw(st.sampled_from(some((*kinds, *several))))
    if kind == "none":
        return None
    aligned = alignment(s.Q, s.K, declaration)
    if kind == "causal" and declaration.convention("causal") != "explicit" and draw(st.booleans()):
        return Causal(aligned)
    mask = combined(draw, s, d, kinds) if kind == "combined" else MASKS[kind](draw, s, d)
    return mask if "offset" in declaration else at(mask, aligned)


def at(mask: Any, offset: int) -> Any:
    """The same with every causal mask and window at this offset."""
    if isinstance(mask, And | Or):
        return type(mask)(at(mask.left, offset), at(mask.right, offset))
    if isinstance(mask, Causal):
        return Causal(offset)
    return SlidingWindow(mask.left, mask.right, offset) if isinstance(mask, SlidingWindow) else mask


def kinds_of_masks(declaration: Declaration) -> tuple[list[str], tuple[str, ...]]:
    """(kinds that the subject takes, "combined" if there are several)."""
    kinds = sorted(declaration.masks)
    return kinds, ("combined",) if len(kinds) > 1 else ()


def possible(mask: str, declaration: Declaration) -> bool:
    """Whether a subject takes such masks at all; asked first, because drawing a case only to drop it takes time."""
    kinds, several = kinds_of_masks(declaration)
    return mask in ("none", "maybe", *kinds, *several) or (mask == "any" and bool(kinds))


def allowed(mask: Any, s: Sizes) -> np.ndarray:
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
) -> Case:
    """Attention, its weights or its log-sum-exp.

    focus: features that every case has. others: the remaining features appear now and then, one in five.
    grouped: True for H > G only. plans: the sizes to draw from, instead of the usual ones.
    """
    assume(set(focus) <= declaration.features and possible(mask, declaration))
    dtype = draw(st.sampled_from(judged(dtypes, declaration)))
    s = draw(sizes(dtype, declaration, plans).filter(lambda s: grouped is None or (s.H > s.G) == grouped))
    d = Draw(draw(seeds), dtype)
    features = set(focus) | {f for f in FEATURES if others and draw(st.integers(0, 4)) == 4}
    features &= declaration.features
    if operation != "attention":
        features.discard("dropout")
    inputs, options = attention_inputs(draw, s, d, operation)
    options["mask"] = draw_mask(draw, mask, s, d, declaration)
    mode = draw(st.sampled_from(empty_rows if "empty_rows" in declaration else ("zero",)))
    convention = empty_row_convention(operation, declaration)
    if mode == "zero" and "sinks" not in focus:
        mode = convention
    if mode not in ("zero", "any"):
        options["empty_rows"] = mode
        features.discard("sinks")
    add_features(draw, s, d, features, inputs, options)
    cotangents, case = {}, Case(operation, dtype, inputs, options, {}, rounding=roundings(declaration, dtype))
    empty = convention in ("any", "nan") and not allowed_pairs(case).any(-1).all()
    assume(not (empty and convention == "any"))
    spoiled = empty  # who gives NaN for an empty row is not asked for what its gradients then are
    if gradients and "gradients" in declaration and not spoiled:
        shape = {"attention": (s.B, s.H, s.Q, s.V), "attention_weights": (s.B, s.H, s.Q, s.K)}
        wide = compute_dtype_name(dtype) if operation == "attention_logsumexp" else dtype
        cotangents["output"] = d.normal(*shape.get(operation, (s.B, s.H, s.Q)), dtype=wide)
    return replace(case, cotangents=cotangents)


def empty_row_convention(operation: str, declaration: Declaration) -> str:
    """What the subject promises of empty rows; a mean and NaN are outputs and weights, and promise no log-sum-exp."""
    convention = declaration.convention("empty_rows")
    return "any" if operation == "attention_logsumexp" and convention != "zero" else convention


def roundings(declaration: Declaration, dtype: str) -> dict[str, str]:
    """The precisions that the subject declares for parts of the arithmetic, in a case of this dtype."""
    declared = {name: declaration.convention(name) for name in ("weights", "products")}
    declared = {name: dtype if value == "inputs" else value for name, value in declared.items()}
    return {name: value for name, value in declared.items() if value not in ("float32", "float64")}


def attention_inputs(
    draw: st.DrawFn, s: Sizes, d: Draw, operation: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Query, key and value. Scores have a spread of about 1, or of 0.1, or of 8, where one key takes nearly all."""
    spread = draw(st.sampled_from((1.0, 1.0, 0.1, 8.0)))
    mean = draw(st.sampled_from((0.0, 0.0, 3.0)))
    inputs = {"query": d.normal(s.B, s.H, s.Q, s.D, scale=spread), "key": d.normal(s.B, s.G, s.K, s.D)}
    if operation == "attention":
        size = draw(st.sampled_from((1.0, 1.0, 1e-2, 30.0)))
        inputs["value"] = d.normal(s.B, s.G, s.K, s.V, scale=size, mean=mean * size)
    return inputs, {}


def add_features(
    draw: st.DrawFn, s: Sizes, d: Draw, features: set[str], inputs: dict[str, np.ndarray], options: dict[str, Any]
) -> None:
    companion = draw(st.sampled_from((compute_dtype_name(d.dtype), d.dtype)))
    if "scale" in features:
        options["scale"] = draw(st.sampled_from((0.3, 1.0, -0.7, 0.0, -0.2)))
    if "softcap" in features:
        options["softcap"] = draw(st.sampled_from((0.5, 2.0, 30.0)))
    if "bias" in features:
        shapes = ((s.Q, s.K), (1, s.H, s.Q, s.K), (s.B, 1, s.Q, s.K), (s.B, s.H, s.Q, s.K))
        inputs["bias"] = d.normal(*draw(st.sampled_from(shapes)), scale=2.0, dtype=companion)
        if draw(st.booleans()):
            inputs["bias"][d.booleans(*inputs["bias"].shape, share=0.15)] = -np.inf
    if "sinks" in features:
        inputs["sinks"] = d.normal(s.H, scale=2.0, dtype=companion)
    if "dropout" in features:
        options["dropout_rate"] = draw(st.sampled_from((0.1, 0.5)))
        options["dropout_keep"] = d.booleans(s.B, s.H, s.Q, s.K, share=1 - options["dropout_rate"])


@st.composite
def merge_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    fewest: int = 1,
    spread: float = 3.0,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """fewest: parts, of which there are 4 at most. spread: of the log-sum-exps."""
    dtype = draw(st.sampled_from(judged(dtypes, declaration)))
    s, d, parts = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype), draw(st.integers(fewest, 4))
    wide = compute_dtype_name(dtype)
    inputs = {f"outputs[{i}]": d.normal(s.B, s.H, s.Q, s.V) for i in range(parts)}
    for i in range(parts):
        logsumexp = d.normal(s.B, s.H, s.Q, scale=spread, mean=2.0, dtype=wide)
        logsumexp[d.booleans(s.B, s.H, s.Q, share=0.2)] = -np.inf
        inputs[f"logsumexps[{i}]"] = logsumexp
    cotangents = {"output": d.normal(s.B, s.H, s.Q, s.V), "logsumexp": d.normal(s.B, s.H, s.Q, dtype=wide)}
    return Case("merge_attention", dtype, inputs, {}, wanted(cotangents, declaration))


def wanted(cotangents: dict[str, np.ndarray], declaration: Declaration) -> dict[str, np.ndarray]:
    return cotangents if "gradients" in declaration else {}


@st.composite
def multi_head_cases(
    draw: st.DrawFn,
    separate: bool = False,
    mask: str = "maybe",
    focus: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = DTYPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """separate: per-head projections, with widths of key and value that differ from E / H. mask: as in `draw_mask`."""
    assume(set(focus) <= declaration.features)
    dtype = draw(st.sampled_from(judged(dtypes, declaration)))
    s = draw(sizes(dtype, declaration, SHORT if dtype == "float64" else (*SHORT, *LONG[:2])))
    d = Draw(draw(seeds), dtype)
    E, E_key, E_value, E_out = 6, 5, 4, 3
    widths = {"query": (E, s.H * s.D), "key": (E_key, s.G * s.D), "value": (E_value, s.G * s.V)}
    inputs = {"query": d.normal(s.B, s.Q, E), "key": d.normal(s.B, s.K, E_key), "value": d.normal(s.B, s.K, E_value)}
    biased = draw(st.booleans())
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
    features = set(focus) | ({f for f in FEATURES if draw(st.integers(0, 5)) == 5} & declaration.features)
    add_features(draw, s, d, features, inputs, options)
    # Without promises about empty rows, none are asked for.
    visible = allowed(options["mask"], s) & (inputs.get("bias", 0.0) != -np.inf)
    assume(declaration.convention("empty_rows") == "zero" or visible.any(-1).all())
    cotangents = wanted({"output": d.normal(s.B, s.Q, E_out)}, declaration)
    rounding = roundings(declaration, dtype)
    return Case("multi_head_attention", dtype, inputs, options, cotangents, rounding=rounding)


# --- the layers around it ---------------------------------------------------------------------------------------------

NORM_SHAPES = (((3, 7), 1), ((2, 5, 12), 1), ((4, 3, 5), 2), ((5, 70), 1), ((2, 3, 1), 1), ((3, 257), 1))


@st.composite
def norm_cases(
    draw: st.DrawFn,
    operation: str = "layer_norm",
    means: tuple[float, ...] = (0.0, 0.0, 2.0, -30.0),
    spreads: tuple[float, ...] = (1.0, 1.0, 0.03, 40.0),
    default_eps: bool = False,
    gradients: bool = True,
    focus: tuple[str, ...] = (),
    plans: tuple[tuple[tuple[int, ...], int], ...] = NORM_SHAPES,
    dtypes: tuple[str, ...] = DTYPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """plans: the shapes of x to draw from, each with the number of axes that are normalised."""
    assume(set(focus) <= declaration.features)
    dtype = draw(st.sampled_from(judged(dtypes, declaration)))
    shapes = [s for s in plans if operation != "standard_deviation_norm" or s[0][-1] > 1]
    shape, axes = draw(st.sampled_from(some(s for s in shapes if s[1] == 1 or "axes" in declaration)))
    d, scale = Draw(draw(seeds), dtype), draw(st.sampled_from(spreads))
    names = shape[-axes:]
    companion = draw(st.sampled_from((dtype, compute_dtype_name(dtype))))
    inputs = {
        "x": d.normal(*shape, scale=scale, mean=draw(st.sampled_from(means)) * scale),
        "weight": d.normal(*names, dtype=companion),
    }
    if operation != "rms_norm" and draw(st.integers(0, 4)) > 0 and "bias" not in declaration.lacking:
        inputs["bias"] = d.normal(*names, dtype=companion)
    options: dict[str, Any] = {}
    if operation != "layer_norm" or (not default_eps and draw(st.booleans())):
        options["eps"] = draw(st.sampled_from((1e-5, 1e-6, 1e-12, 1e-3, 0.5)))
    options = without_lacking(operation, options, declaration)
    cotangents = wanted({"output": d.normal(*shape)}, declaration) if gradients else {}
    return Case(operation, dtype, inputs, options, cotangents)


def without_lacking(operation: str, options: dict[str, Any], declaration: Declaration) -> dict[str, Any]:
    """The options with the operation's own defaults for those that the function has no parameter for."""
    return {n: default(operation, n) if n in declaration.lacking else value for n, value in options.items()}


def taken(operation: str, name: str, choices: Iterable[Any], declaration: Declaration) -> tuple[Any, ...]:
    """The choices for an option; only its default where the function has no parameter for it."""
    lacking = name in declaration.lacking
    return some(choice for choice in choices if not lacking or choice == default(operation, name))


ACTIVATIONS = ("relu", "gelu", "gelu_tanh")


@st.composite
def feed_forward_cases(
    draw: st.DrawFn,
    activations: tuple[str, ...] = ACTIVATIONS,
    dtypes: tuple[str, ...] = DTYPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    dtype = draw(st.sampled_from(judged(dtypes, declaration)))
    shape, inner, outer = draw(st.sampled_from((((2, 3, 4), 10, 5), ((5, 6), 7, 6), ((2, 9, 24), 40, 17))))
    d, E = Draw(draw(seeds), dtype), shape[-1]
    size = draw(st.sampled_from((1.0, 4.0)))
    inputs = {"x": d.normal(*shape, scale=size), "inner.weight": d.normal(E, inner, scale=E**-0.5)}
    inputs["outer.weight"] = d.normal(inner, outer, scale=inner**-0.5)
    if draw(st.booleans()):
        inputs |= {"inner.bias": d.normal(inner), "outer.bias": d.normal(outer)}
    options: dict[str, Any] = {
        "activation": draw(st.sampled_from(taken("feed_forward", "activation", activations, declaration)))
    }
    if draw(st.integers(0, 2)) == 0 and "dropout" in declaration:
        options |= {"dropout_rate": 0.25, "dropout_keep": d.booleans(*shape[:-1], inner, share=0.75)}
    cotangents = wanted({"output": d.normal(*shape[:-1], outer)}, declaration)
    return Case("feed_forward", dtype, inputs, options, cotangents)


@st.composite
def sinusoidal_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    offsets: tuple[int, ...] = (),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """offsets: the choices, instead of the usual ones."""
    if "dtype" in declaration.lacking:
        dtypes = tuple(dtype for dtype in dtypes if dtype == default("sinusoidal_positions", "dtype"))
    options = {
        "length": draw(st.integers(0, 40)),
        "width": draw(st.integers(1, 70)),
        "offset": draw(st.sampled_from(offsets) if offsets else st.one_of(st.sampled_from((0, 511, 4099)), digits(4))),
        "exponent": draw(st.sampled_from(("shared", "doubled"))),
        "dtype": draw(st.sampled_from(judged(dtypes, declaration))),
    }
    options = without_lacking("sinusoidal_positions", options, declaration)
    return Case("sinusoidal_positions", options["dtype"], {}, options)


@st.composite
def lookup_cases(
    draw: st.DrawFn,
    operation: str,
    scaled: tuple[bool, ...] = (False, True),
    dtypes: tuple[str, ...] = DTYPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """scaled: the choices for an embedding."""
    dtype = draw(st.sampled_from(judged(dtypes, declaration)))
    d = Draw(draw(seeds), dtype)
    rows, width = draw(st.sampled_from(((11, 5), (40, 10))))  # widths whose root must be rounded
    inputs = {"table": d.normal(rows, width)}
    if operation == "learned_positions":
        length = draw(st.sampled_from((1, 5, 11)))
        options: dict[str, Any] = {"length": length, "offset": int(d.integers(0, rows - length))}
        shape: tuple[int, ...] = (options["length"],)
    else:
        shape = draw(st.sampled_from(((7,), (2, 5), (3, 2, 4))))
        kind = draw(st.sampled_from((np.int32, np.int64)))
        inputs["ids"] = d.integers(0, rows - 1, *shape).astype(kind)
        options = {"scaled": draw(st.sampled_from(taken(operation, "scaled", scaled, declaration)))}
    options = without_lacking(operation, options, declaration)
    cotangents = wanted({result_names(operation)[0]: d.normal(*shape, width)}, declaration)
    return Case(operation, dtype, inputs, options, cotangents)


def operation_cases(
    operation: str, dtypes: tuple[str, ...] = DTYPES, declaration: Declaration = EVERYTHING
) -> st.SearchStrategy[Case]:
    """Cases of any operation with all its features."""
    return OPERATIONS[operation](dtypes=dtypes, declaration=declaration)


OPERATIONS: dict[str, Callable[..., st.SearchStrategy[Case]]] = {
    "attention": partial(attention_cases, empty_rows=("zero", "zero", "mean")),
    "attention_weights": partial(attention_cases, "attention_weights"),
    "attention_logsumexp": partial(attention_cases, "attention_logsumexp"),
    "merge_attention": merge_cases,
    "multi_head_attention": lambda **given: st.booleans().flatmap(lambda b: multi_head_cases(separate=b, **given)),
    "layer_norm": partial(norm_cases, "layer_norm"),
    "rms_norm": partial(norm_cases, "rms_norm"),
    "standard_deviation_norm": partial(norm_cases, "standard_deviation_norm"),
    "sinusoidal_positions": sinusoidal_cases,
    "learned_positions": partial(lookup_cases, "learned_positions"),
    "embedding": partial(lookup_cases, "embedding"),
    "feed_forward": feed_forward_cases,
}
"""Every operation with the strategy that draws all its features; keywords: dtypes, declaration."""
