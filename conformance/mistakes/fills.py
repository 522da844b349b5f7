"""Finite numbers in place of -inf for forbidden scores (ATT-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.checks.comparison import LARGEST
from conformance.mistakes.attention_steps import AttentionSteps, Forward
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Changed, Mistake, Prediction, with_bounds
from conformance.mistakes.scores import change_options
from conformance.mistakes.softmax import WEIGHED, few_roundings
from specification.dtypes import compute_dtype_name
from specification.masks import And

NUMBERS = (-1e4, -65504.0, -1e5, -1e9, -1e20, -LARGEST["float32"])


def put_number(call: Call, number: float) -> list[Changed]:
    """Rows that allow nothing hold zeros that are put in afterwards, or the mean of all values."""
    s, visible = call.steps, call.steps.visible
    if visible.all():
        return []
    filled = s.changed(
        score=lambda t, p: np.where(visible, t.cap(p) + t.bias, number),
        open=s.open | ~visible,
        visible=np.broadcast_to(visible.any(axis=-1, keepdims=True), visible.shape),
    )
    ways = [filled] if visible.any(axis=-1).all() else [filled, filled.changed(visible=np.ones_like(visible))]
    return [predict_filled(call, way, ~visible, 0.0) for way in ways]


def add_number(call: Call, number: float) -> list[Changed]:
    """Once for each mask that forbids the pair."""
    s, times = call.steps, count_forbidding(call)
    if not times.any():
        return []
    filled = s.changed(score=lambda t, p: t.cap(p) + t.bias + times * number, visible=np.ones_like(s.visible))
    digits = np.finfo(compute_dtype_name(call.case.dtype)).eps
    lost = np.where(times == 0, 0, 4 * digits * times * abs(number))
    return [predict_filled(call, filled, np.zeros_like(s.visible), lost)]


def count_forbidding(call: Call) -> np.ndarray:
    """By how many of the masks that are combined each pair is forbidden, [B, H, Q, K]."""
    mask = call.case.options.get("mask")
    if not isinstance(mask, And):
        return (~call.steps.visible).astype(int)
    return np.sum([count_forbidding(Call(change_options(call.case, mask=m))) for m in (mask.left, mask.right)], axis=0)


def predict_filled(call: Call, steps: AttentionSteps, constant: np.ndarray, lost: Any) -> Prediction:
    """Results of attention in which forbidden pairs take part, with a bound of its own for each row of the output.

    The case's own bound is of scores of which allowed ones count. Where forbidden scores are far above these, only they
    count, and constant ones have no error. So an exponential is off by the error of its score, as it counts in the row.
    lost: what scores are off by beside that.
    """
    forward = steps.forward()
    found = with_bounds(call, steps.results(forward) | pull_back(call, steps, forward))
    unit = np.finfo(compute_dtype_name(call.case.dtype)).eps / 2
    sizes = abs(steps.scale) * np.abs(steps.query) @ np.abs(steps.keys).swapaxes(-1, -2)
    error = (steps.query.shape[-1] + 12) * unit * (sizes + np.abs(steps.bias)) + lost
    off = np.where(constant, 0, np.expm1(2 * error))
    spread = np.sum(np.where(forward.weights > 0, forward.weights * off, 0), axis=-1, keepdims=True)
    keys = max(steps.sizes[-1], 1)
    bound = few_roundings(call) * (1 + 2 * spread / (keys * unit)) if keys else few_roundings(call)
    return found._replace(bounds=found.bounds | {"output": np.broadcast_to(bound, found.results["output"].shape)})


def pull_back(call: Call, steps: AttentionSteps, forward: Forward) -> Results:
    if not call.case.cotangents or call.case.special:
        return {}
    return steps.sum_gradients(steps.pull_back(call.case.cotangents, forward.weights), call.case.inputs)
