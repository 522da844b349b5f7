"""Strategies of training: losses, with targets of which some do not count, and steps of optimizers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import optimizers as bounds_of
from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import EVERYTHING, Declaration, roundings
from conformance.cases.facts import operation_facts
from conformance.cases.signatures import equals_default
from conformance.oracle.reference import ball_work
from conformance.sampling.strategies import (
    DTYPES,
    HUGE,
    MANY_KEYS,
    TINY,
    Draw,
    cotangent,
    draw_dtype,
    draw_memory,
    draw_option,
    edges,
    reset_lacking,
    seeds,
    select_cotangents,
)
from specification.dtypes import HALF, compute_dtype_name

Plan = tuple[tuple[int, ...], int]
"""The shape of the targets, and the number of classes."""
LOSS_SHAPES: tuple[Plan, ...] = (
    ((7,), 5),
    ((3, 5), 4),
    ((2, 3, 4), 7),
    ((1,), 3),
    ((6,), 1),
    ((4, 3), 40),
    ((9,), 300),
)
MANY_CLASSES: tuple[Plan, ...] = (((3,), 65537), ((2,), 100277))
"""More than an index of 16 bits counts."""
SEVERAL = tuple(plan for plan in LOSS_SHAPES if prod(plan[0]) > 2)
LOGITS = ("usual", "usual", "trained", "saturated", "equal", "tiny")
SMOOTHINGS = (0.0, 0.0, 0.1, 0.5)
REDUCTIONS = ("mean", "mean", "sum", "none")
IGNORED = (None, -100, -1, 0, "class", "past")
"""What a target equals that does not count: nothing, -100, -1, class 0 or another one, or the number of classes."""
FAR = {"float16": 2.0**10, "bfloat16": 2.0**7, "float32": 2.0**16, "float64": 2.0**40}
"""Constants at which logits still differ by eighths, or by 1 in 16 bits."""
SPOILING = (np.nan, np.inf, -np.inf)


@st.composite
def loss_cases(
    draw: st.DrawFn,
    operation: str,
    kinds: tuple[str, ...] = LOGITS,
    ignored: tuple[Any, ...] = IGNORED,
    smoothings: tuple[float, ...] = SMOOTHINGS,
    reductions: tuple[str, ...] = REDUCTIONS,
    none_counts: bool = False,
    spoiled: str = "",
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[Plan, ...] = LOSS_SHAPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of numbers, the choices. ignored: those for the target that does not count. none_counts: no target does.

    spoiled: where NaN and infinities stand: in rows "that do not count", "beside" the targets, "anywhere", or only -inf
    in "classes".
    """
    shape, classes = draw(st.sampled_from(plans))
    count = prod(shape)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work(operation, gradients=True, rows=count, classes=classes))
    d = Draw(draw(seeds), dtype)
    options: dict[str, Any] = {
        "ignore": draw_option(draw, operation, "ignore", ignored, declaration),
        "reduction": draw_option(draw, operation, "reduction", reductions, declaration),
    }
    if operation == "cross_entropy":
        options["label_smoothing"] = draw_option(draw, operation, "label_smoothing", smoothings, declaration)
    if isinstance(options["ignore"], str):
        options["ignore"] = classes if options["ignore"] == "past" else classes - 1
    if classes == 1 and options["ignore"] == 0 and not none_counts:
        options["ignore"] = -1
    targets = draw_targets(draw, d, count, classes, options["ignore"], none_counts)
    x = logits(draw(st.sampled_from(kinds)), d, targets, classes)
    if operation == "nll_loss":
        x = x - np.log(np.sum(np.exp(x - x.max(-1, keepdims=True)), axis=-1, keepdims=True)) - x.max(-1, keepdims=True)
    x = x if spoiled else d.cast(x)
    if spoiled:
        spoil(d, x, targets, options["ignore"], spoiled)
        x = x.astype(numpy_dtype(dtype))
    (name,) = operation_facts(operation).differentiated
    inputs = {name: x.reshape(*shape, classes), "targets": targets.reshape(shape)}
    of_rows = options["reduction"] == "none"
    bar = cotangent(draw, d, (count,), 0).reshape(shape) if of_rows else np.asarray(d.normal())
    unsaid = draw(st.booleans())
    options = {n: value for n, value in options.items() if not (unsaid and equals_default(operation, n, value))}
    options = reset_lacking(operation, {n: v for n, v in options.items() if v is not None}, declaration)
    cotangents, rounding = select_cotangents({"output": bar}, declaration), roundings(declaration, dtype)
    case = Case(operation, dtype, inputs, options, cotangents, special=bool(spoiled), rounding=rounding)
    return draw_memory(draw, case, declaration)


def draw_targets(
    draw: st.DrawFn, d: Draw, count: int, classes: int, ignore: int | None, none_counts: bool
) -> np.ndarray:
    """The last two rows count, with the last two classes that do."""
    targets = d.integers(0, classes - 1, count).astype(draw(st.sampled_from((np.int32, np.int64))))
    targets[-2:] = (max(classes - 2, 0), classes - 1)[-count:]
    if ignore is None:
        return targets
    targets[:-2][d.booleans(max(count - 2, 0), share=draw(st.sampled_from((0.1, 0.4))))] = ignore
    if count > 2:
        targets[d.integers(0, count - 3)] = ignore
    if ignore in targets[-2:]:
        targets[-2:] = (ignore + 1) % classes
    if none_counts:
        targets[:] = ignore
    return targets


def logits(kind: str, d: Draw, targets: np.ndarray, classes: int) -> np.ndarray:
    """[rows, classes] in float64.

    Of many classes some stand out, at the edges of tiles, and the last two have a share of every row's sum. Of many
    rows the last two have a large loss, without which a mean would not show that they are missing.
    """
    count = len(targets)
    x = d.numbers(count, classes) * d.choice((0.3, 1.0, 3.0), count, 1)
    at_target = (targets[:, None] == np.arange(classes)).astype(float)
    if kind == "trained":
        x = x + at_target * d.choice((5.0, 10.0, 15.0), count, 1)
    elif kind == "saturated":
        x = x * d.choice((50.0, 300.0), count, 1)
    elif kind == "equal":
        x = np.zeros_like(x) + d.numbers(count, 1)
    elif kind == "tiny":
        x = x * TINY[d.dtype]
    if classes > MANY_KEYS and kind in ("usual", "trained", "far"):
        x[:, edges(classes, d)] += 2.0
        x[:, -2:] += 0.9 * np.log(classes) - x[:, -2:]
    if count > MANY_KEYS and kind != "tiny":
        x[-2:] -= at_target[-2:] * count / 32
    return np.round(x * 8) / 8 + FAR[d.dtype] * d.choice((-1.0, 1.0), count, 1) if kind == "far" else x


def spoil(d: Draw, x: np.ndarray, targets: np.ndarray, ignore: int | None, where: str) -> None:
    """Put NaN and infinities among the numbers; one in a place of their own at least."""
    counted = np.ones(len(targets), bool) if ignore is None else targets != ignore
    at_target = targets[:, None] == np.arange(x.shape[1])
    places = {
        "that do not count": np.broadcast_to(~counted[:, None], x.shape),
        "beside": ~at_target,
        "anywhere": np.ones(x.shape, bool),
        "classes": np.ones(x.shape, bool),
    }[where]
    share = {"that do not count": 0.8, "beside": 0.5, "anywhere": 0.08, "classes": 0.2}[where]
    chosen = places & d.booleans(*x.shape, share=share)
    if where == "classes":  # of every row one class has a probability, and of most the target
        chosen &= ~at_target | d.booleans(len(x), 1, share=0.3)
        chosen[np.arange(len(x)), d.integers(0, x.shape[1] - 1, len(x))] = False
        x[chosen] = -np.inf
        return
    x[chosen] = d.choice(SPOILING, *x.shape)[chosen]


# --- optimizers' steps, and gradients to clip -------------------------------------------------------------------------


STEP_SHAPES = ((7,), (3, 5), (2, 3, 4), (1,), (40,))
ADAM_OPTIONS: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.1, 1.0, 1e-3, 0.03),
    "beta_1": (0.9, 0.9, 0.5, 0.0, 0.99),
    "beta_2": (0.999, 0.999, 0.98, 0.9, 0.0),
    "eps": (1e-8, 1e-8, 1e-3, 0.1),
    "weight_decay": (0.0, 0.0, 0.3, 0.01),
    "decoupled": (True, False),
}
"""Options, each drawn from its choices."""
SGD_OPTIONS: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.1, 1.0, 1e-3, 0.03),
    "momentum": (0.9, 0.9, 0.5, 0.0),
    "nesterov": (False, True),
    "weight_decay": (0.0, 0.0, 0.3, 0.01),
}
"""Options of gradient descent, likewise."""
STEPS = (0, 0, 1, 2, 9, 99, 999)
LATE = (9_999, 99_999, 999_999)
SMALL, LARGE = 1e-7, {"float16": 1e4, "bfloat16": 1e14, "float32": 1e14, "float64": 1e120}
"""Gradients as small as eps; gradients whose squares the compute dtype still holds."""
VANISHING = {"float32": 1e-21, "float64": 1e-160}
"""By compute dtype: gradients whose squares are too small for normal numbers."""


def draw_options(
    draw: st.DrawFn, operation: str, choices: dict[str, tuple[Any, ...]], declaration: Declaration
) -> dict[str, Any]:
    return {name: draw_option(draw, operation, name, those, declaration) for name, those in choices.items()}


@st.composite
def adam_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "small", "zeros"),
    steps: tuple[int, ...] = STEPS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = STEP_SHAPES,
    options: dict[str, tuple[Any, ...]] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of gradients, the choices. special: NaN and infinity stand among them. plans: the shapes.

    options: choices in place of the usual ones.
    """
    shape = draw(st.sampled_from(plans))
    count = prod(shape)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("adam_step", gradients=False, rows=count))
    wide, kind = compute_dtype_name(dtype), draw(st.sampled_from(kinds))
    choices = ADAM_OPTIONS | (options or {})
    if "zero_betas" not in declaration:
        choices |= {name: tuple(beta for beta in choices[name] if beta) for name in ("beta_1", "beta_2")}
    given = draw_options(draw, "adam_step", choices, declaration)
    d = Draw(draw(seeds), dtype)
    size = {"small": SMALL, "large": LARGE[dtype], "vanishing": VANISHING[wide]}.get(kind, 1.0)
    gradients = d.numbers(count) * size
    mean, square = d.numbers(count) * size, (d.numbers(count) * size) ** 2
    step = draw(st.sampled_from(steps))
    if step == 0 and draw(st.booleans()):
        mean, square = np.zeros(count), np.zeros(count)
    if kind == "zeros":
        gradients, square = gradients * d.booleans(count, share=0.6), square * d.booleans(count, share=0.5)
        mean = mean * (square > 0)
    if special:
        gradients = np.where(d.booleans(count, share=0.5), d.choice((np.nan, np.inf, -np.inf), count), gradients)
        mean = np.where(d.booleans(count, share=0.1), np.nan, mean)
    # Of 16 bits a gradient may come in either dtype, and small ones only in the wider one.
    narrow = dtype in HALF and kind not in ("small", "vanishing") and draw(st.booleans())
    arrays = {
        "parameters": d.cast(d.numbers(count) * draw(st.sampled_from((1.0, 0.1)))),
        "gradients": gradients.astype(numpy_dtype(dtype if narrow else wide)),
        "mean": mean.astype(wide),
        "square": square.astype(wide),
    }
    inputs = {name: array.reshape(shape) for name, array in arrays.items()}
    rounding = roundings(declaration, dtype)
    case = Case("adam_step", dtype, inputs, {"step": step, **given}, special=special, rounding=rounding)
    return draw_memory(draw, case, declaration)


@st.composite
def sgd_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "tiny", "huge", "zeros"),
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = STEP_SHAPES,
    options: dict[str, tuple[Any, ...]] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """As `adam_cases`; "zeros": no velocity yet."""
    shape = draw(st.sampled_from(plans))
    count = prod(shape)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("sgd_step", gradients=False, rows=count))
    wide, kind = compute_dtype_name(dtype), draw(st.sampled_from(kinds))
    given = draw_options(draw, "sgd_step", SGD_OPTIONS | (options or {}), declaration)
    given["nesterov"] = given["nesterov"] and given["momentum"] > 0
    d = Draw(draw(seeds), dtype)
    size = {"tiny": TINY[dtype], "huge": HUGE[dtype]}.get(kind, 1.0)
    gradients, velocity = d.numbers(count) * size, d.numbers(count) * size * (kind != "zeros")
    if special:
        gradients = np.where(d.booleans(count, share=0.5), d.choice((np.nan, np.inf, -np.inf), count), gradients)
    narrow = dtype in HALF and draw(st.booleans())
    arrays = {
        "parameters": d.cast(d.numbers(count) * (size if kind == "huge" else 1.0)),
        "gradients": gradients.astype(numpy_dtype(dtype if narrow else wide)),
        "velocity": velocity.astype(wide),
    }
    inputs = {name: array.reshape(shape) for name, array in arrays.items()}
    rounding = roundings(declaration, dtype)
    return draw_memory(draw, Case("sgd_step", dtype, inputs, given, special=special, rounding=rounding), declaration)


LIST_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((3, 5), (5,), (7,)),
    ((2, 3, 4), (1,)),
    ((40,), (2, 2)),
    ((6,),),
)
"""Of the arrays of one case."""
FAR_BELOW = (1e-39, 1e-41, 1e-43)
"""Limits in units of the norm, as which float32 has numbers of few digits only."""
LIMITS = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0, 1.0)
"""In units of the norm."""
EXTREME = {
    "float16": (2.0**13, 2.0**-20),
    "bfloat16": (2.0**125, 2.0**-110),
    "float32": (2.0**125, 2.0**-110),
    "float64": (2.0**1020, 2.0**-700),
}
"""Gradients whose squares the compute dtype does not hold, or in float16 nearly so."""


@st.composite
def clip_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "small", "uneven", "zeros"),
    limits: tuple[float, ...] = LIMITS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[tuple[int, ...], ...], ...] = LIST_SHAPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of gradients, the choices. limits: the choices, in units of the norm. plans: the shapes of the arrays.

    "small": the norm is far below 1. "uneven": one array is far larger than the others. special: NaN and infinity.
    """
    shapes = draw(st.sampled_from(plans))
    dtype = draw_dtype(
        draw, dtypes, declaration, ball_work("clip_by_global_norm", gradients=False, rows=sum(map(prod, shapes)))
    )
    kind, share = draw(st.sampled_from(kinds)), draw(st.sampled_from(limits))
    d = Draw(draw(seeds), dtype)
    huge, tiny = EXTREME[dtype]
    size = {"small": 1e-3, "huge": huge, "tiny": tiny}.get(kind, 1.0)
    arrays = [
        d.cast(d.numbers(*shape) * size * (100.0 if kind == "uneven" and i == 0 else 1.0))
        for i, shape in enumerate(shapes)
    ]
    if kind == "zeros":
        arrays = [array * d.booleans(*array.shape, share=draw(st.sampled_from((0.0, 0.4)))) for array in arrays]
        arrays = [array.astype(numpy_dtype(dtype)) for array in arrays]
    norm = bounds_of.global_norm(arrays)
    limit = (norm if share == 1 else float(f"{norm * share:.3g}")) if norm > 0 else 1.0
    if special:
        chosen = int(d.integers(0, len(arrays) - 1))
        arrays[chosen].flat[int(d.integers(0, arrays[chosen].size - 1))] = d.choice((np.nan, np.inf, -np.inf), 1)[0]
    inputs = {f"gradients[{i}]": array for i, array in enumerate(arrays)}
    rounding = roundings(declaration, dtype)
    case = Case("clip_by_global_norm", dtype, inputs, {"limit": limit}, special=special, rounding=rounding)
    return draw_memory(draw, case, declaration)
