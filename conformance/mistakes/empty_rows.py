"""Rows that may attend to nothing, at all or in a block of keys (ATT-6, ATT-3)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import ATTENTION, Prediction, Topic, add_bounds

FILLINGS: dict[str, Callable[[int, int], float]] = {
    "the mean of all values": lambda Q, K: 1 / K,
    "NaN": lambda Q, K: np.nan,
    "0": lambda Q, K: 0.0,
    "the sum of all values": lambda Q, K: 1.0,
    "the sum of all values divided by Q": lambda Q, K: 1 / Q,
}


def fill_weights(call: Call, rows: np.ndarray, number: float) -> list[Results]:
    """Put a number into the weights of these rows [B, H, Q, 1].

    Gradients flow to the values alone, as by a fill; to all that the rows read, as by adding a mask; or to all but the
    values, as where a fill comes after the softmax.
    """
    steps, weights, case = call.steps.change(empty_rows="zero"), call.forward.weights, call.case
    if case.operation == "attention_logsumexp" or not rows.any() or not weights.size:
        return []
    filled = np.where(rows, number, call.steps.fill_empty_rows(weights))
    output = steps.weigh_values(filled) if case.operation == "attention" else filled
    found = {"output": output}
    if not case.cotangents or case.special:
        return [found]
    without, every = (steps.pull_back(case.cotangents, one) for one in (weights, filled))
    ways = without._replace(value=every.value), every, every._replace(value=without.value)
    return [found | steps.sum_gradients(way, case.inputs) for way in ways]


def fill_empty_rows(call: Call, rows: str, holds: str) -> list[Results]:
    steps, (_, _, Q, K) = call.steps, call.steps.sizes
    empty = np.asarray(~steps.allowed_pairs.any(axis=-1, keepdims=True))
    if rows == "that the bias alone leaves nothing":
        empty &= steps.visible.any(axis=-1, keepdims=True)
    return fill_weights(call, empty, FILLINGS[holds](Q, K)) if Q * K else []


def fill_after_hidden_block(call: Call, block: int, end: str, holds: str) -> list[Results]:
    """A running maximum is still -inf after such a block, and -inf less -inf is NaN."""
    allowed = call.steps.allowed_pairs
    tile = allowed[..., :block] if end == "first" else allowed[..., -block:]
    hidden = np.asarray(~tile.any(axis=-1) & allowed.any(axis=-1))
    return fill_weights(call, hidden[..., None], float(holds))


def replace_logsumexp(call: Call, holds: str) -> Prediction | None:
    name = "output" if call.case.operation == "attention_logsumexp" else "logsumexp"
    empty = ~call.steps.allowed_pairs.any(axis=-1)
    if name not in call.right or not empty.any():
        return None
    right, number = add_bounds(call, {name: call.right[name]}), float(holds)
    return Prediction(
        {name: np.where(empty, number, right.results[name])},
        {name: np.where(empty, abs(number) / 2**8 if np.isfinite(number) else 0, right.bounds[name])},
    )


TOPIC = Topic("empty_rows", "ATT-6", ATTENTION[:2])
MISTAKES = (
    TOPIC.entry("filled", "rows {rows} hold {holds}", fill_empty_rows,
                rows=("that allow nothing", "that the bias alone leaves nothing"), holds=(*FILLINGS,)),
    TOPIC.entry("logsumexp", "the log-sum-exp of rows that allow nothing is {holds}, even with a sink",
                replace_logsumexp, operations=("attention_logsumexp", "attention"),
                holds=("-3.4028235e38", "-inf", "inf", "0", "nan")),
    TOPIC.entry("hidden-block", "rows whose {end} {block} keys are hidden, and others are not, hold {holds}",
                fill_after_hidden_block, rule="ATT-3", block=(16, 32, 64, 128, 256, 1), end=("first", "last"),
                holds=("NaN", "0")),
)  # fmt: skip
FILLED, LOGSUMEXP, HIDDEN_BLOCK = MISTAKES
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    FILLED.choose(holds="NaN"),
    FILLED.choose(holds="NaN").limit(Condition(passes="backward")),
    FILLED.choose(holds="NaN", rows="that the bias alone leaves nothing"),
    FILLED.choose(holds="the sum of all values divided by Q"),
    FILLED.choose().limit(Condition(features=("sinks",))),
    FILLED.choose(holds="0").limit(Condition(features=("empty_rows",))),
    FILLED.choose().plant_in("attention_weights"),
    LOGSUMEXP.choose(holds="-inf"),
    *(HIDDEN_BLOCK.choose(block=block).limit(Condition("K", block)) for block in (64, 256)),
)
