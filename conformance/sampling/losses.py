"""Cases of losses: logits or log-probabilities, and targets of which some do not count."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.signatures import equals_default
from conformance.oracle.reference import ball_work
from conformance.sampling.layouts import draw_memory
from conformance.sampling.strategies import (
    DTYPES,
    MANY_KEYS,
    TINY,
    Draw,
    cotangent,
    draw_dtype,
    draw_option,
    edges,
    numpy_dtype,
    reset_lacking,
    seeds,
    select_cotangents,
)

Plan = tuple[tuple[int, ...], int]
"""The shape of the targets, and the number of classes."""
SHAPES: tuple[Plan, ...] = (((7,), 5), ((3, 5), 4), ((2, 3, 4), 7), ((1,), 3), ((6,), 1), ((4, 3), 40), ((9,), 300))
MANY_CLASSES: tuple[Plan, ...] = (((3,), 65537), ((2,), 100277))
"""More than an index of 16 bits counts."""
SEVERAL = tuple(plan for plan in SHAPES if prod(plan[0]) > 2)
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
    plans: tuple[Plan, ...] = SHAPES,
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
    case = Case(
        operation, dtype, inputs, options, select_cotangents({"output": bar}, declaration), special=bool(spoiled)
    )
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
