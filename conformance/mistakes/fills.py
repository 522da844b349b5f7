"""Finite numbers in place of -inf for forbidden scores (ATT-4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.bounds.arithmetic import LARGEST
from conformance.mistakes.attention_steps import AttentionSteps
from conformance.mistakes.call import Call
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Changed, Prediction, Topic, add_bounds
from conformance.mistakes.softmax import WEIGHED, few_roundings, size_of_values
from specification.dtypes import compute_dtype_name
from specification.masks import And

NUMBERS = (-LARGEST["float32"], -1e9, -1e4, -1e20, -65504.0, -1e5)
"""The usual ones first: on small scores all of them do the same."""


def put_number(call: Call, number: float) -> list[Changed]:
    """Rows that allow nothing hold zeros that are put in afterwards, or the mean of all values."""
    s, visible = call.steps, call.steps.visible
    if visible.all():
        return []
    filled = s.change(
        score=lambda t, p: np.where(visible, t.cap(p) + t.bias, number),
        open=s.open | ~visible,
        visible=np.broadcast_to(visible.any(axis=-1, keepdims=True), visible.shape),
    )
    ways = [filled] if visible.any(axis=-1).all() else [filled, filled.change(visible=np.ones_like(visible))]
    return [predict_filled(call, way, ~visible) for way in ways]


def add_number(call: Call, number: float) -> list[Changed]:
    """Once for each mask that forbids the pair; the compute dtype may hold nothing of the score beside it."""
    s, added = call.steps, count_forbidding(call) * number
    if not added.any():
        return []
    form = np.finfo(compute_dtype_name(call.case.dtype))
    spacing = np.spacing(np.minimum(-added, form.max).astype(form.dtype)).astype(float)
    absorbed = spacing > 4 * np.abs(s.all_scores())

    def score(steps: AttentionSteps, products: np.ndarray) -> np.ndarray:
        own = steps.cap(products) + steps.bias
        return np.asarray(np.where(absorbed, own - own.real, own) + added)

    filled = s.change(score=score, visible=np.ones_like(s.visible))
    return [predict_filled(call, filled, absorbed, np.where(absorbed | (added == 0), 0, 4 * spacing))]


def lift_bias(call: Call, number: float) -> list[Changed]:
    """Where the bias is -inf."""
    s = call.steps
    if s.open.all():
        return []
    filled = s.change(score=lambda t, p: t.cap(p) + np.where(s.open, t.bias, number), open=np.ones_like(s.open))
    return [predict_filled(call, filled, np.zeros_like(s.visible))]


def count_forbidding(call: Call) -> np.ndarray:
    """By how many of the masks that are combined each pair is forbidden, [B, H, Q, K]."""
    mask = call.case.options.get("mask")
    if not isinstance(mask, And):
        return (~call.steps.visible).astype(int)
    sides = (replace(call.case, options=call.case.options | {"mask": side}) for side in (mask.left, mask.right))
    return np.sum([count_forbidding(Call(case)) for case in sides], axis=0)


def predict_filled(
    call: Call, steps: AttentionSteps, constant: np.ndarray, lost: float | np.ndarray = 0.0
) -> Prediction:
    """Results of attention in which forbidden pairs take part, with a bound of its own for each row of the output.

    The case's bound is that of the allowed scores. Where forbidden scores are far above these, only they count, and
    constant ones have no error. So an exponential is off by the error of its score, as far as it counts in the row.
    lost: what scores are off by beside that.
    """
    forward = steps.forward()
    results = steps.results(forward)
    unsure = np.any((forward.weights > 0) & (np.asarray(lost) > 0))
    if call.case.cotangents and not call.case.special and not unsure:
        gradients = steps.pull_back(call.case.cotangents, forward.weights)
        results |= steps.sum_gradients(gradients, call.case.inputs)
    found = add_bounds(call, results)
    unit = np.finfo(compute_dtype_name(call.case.dtype)).eps / 2
    sizes = np.abs(steps.query) @ np.abs(steps.keys).swapaxes(-1, -2) * abs(steps.scale) + np.abs(steps.bias)
    off = np.where(constant, 0, np.expm1(2 * (steps.query.shape[-1] + 12) * unit * sizes + 2 * lost))
    spread = np.sum(np.where(forward.weights > 0, forward.weights * off, 0), axis=-1, keepdims=True)
    bound = few_roundings(call) + 2 * size_of_values(call) * spread
    return found._replace(bounds=found.bounds | {"output": np.broadcast_to(bound, results["output"].shape)})


TOPIC = Topic("fills", "ATT-4", WEIGHED)
MISTAKES = (
    TOPIC.entry("number-put", "forbidden scores are {number:g}, not -inf", put_number, number=NUMBERS),
    TOPIC.entry("number-added", "{number:g} is added to forbidden scores, once for each mask", add_number,
                number=NUMBERS),
    TOPIC.entry("lowest-bias", "-inf in the bias is taken for {number:g}", lift_bias, rule="ATT-6", number=NUMBERS),
)  # fmt: skip
PUT, ADDED, LOWEST_BIAS = MISTAKES
PLANTED = (
    *(PUT.choose(number=number) for number in NUMBERS),
    PUT.choose(number=-1e9).limit(Condition(lacks=("bias",))),
    *(ADDED.choose(number=number) for number in (-1e4, -1e9)),
    LOWEST_BIAS.choose(),
)
