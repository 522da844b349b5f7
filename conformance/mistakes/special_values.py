"""NaN and infinity that get through a mask, get lost or spread (MASK-7, ATT-10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.cases.arguments import list_arrays
from conformance.mistakes.attention_steps import AttentionSteps
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition, past
from conformance.mistakes.merging import Parts
from conformance.mistakes.mistake import ATTENTION, Topic, name_entries


def multiply_all(call: Call, steps: AttentionSteps, weights: np.ndarray) -> list[Results]:
    """Results and gradients by sums over all pairs, of which 0 * NaN is NaN; also with scores' gradients masked."""
    found = {"output": call.right["output"]}
    if steps.operation == "attention":
        found["output"] = (steps.fill_empty_rows(weights) * steps.factor) @ steps.values
    if not call.case.cotangents:
        return [found]
    every = steps.pull_back(call.case.cotangents, weights)
    masked = steps.pull_back_scores(np.where(steps.allowed_pairs, every.scores, 0), every.value, np.zeros((1, 1, 1, 1)))
    ways = (every, masked._replace(sinks=every.sinks))
    return [found | steps.sum_gradients(way, call.case.inputs) for way in ways]


def clear_hidden(steps: AttentionSteps, kept: tuple[str, ...] = (), *, infinity: bool = False) -> AttentionSteps:
    """Put 0 where no row sees it, in all inputs but the kept ones. infinity: in these, too, but for infinities."""
    seen = np.asarray(steps.allowed_pairs.reshape(*steps.key.shape[:2], -1, *steps.sizes[2:]).any(axis=(2, 3)))
    needed = {"query": np.asarray(steps.allowed_pairs.any(axis=-1)), "key": seen, "value": seen}
    arrays = {name: getattr(steps, name) for name in needed if getattr(steps, name) is not None}
    stays = {n: needed[n][..., None] | (n in kept) & (np.isinf(a) | (not infinity)) for n, a in arrays.items()}
    return steps.change(**{name: np.where(stays[name], array, 0) for name, array in arrays.items()})


MULTIPLIED = {
    "values": ("value",),
    "keys": ("key",),
    "queries": ("query",),
    "everything": ("query", "key", "value"),
    "what no row sees is 0, but everything else": (),
}


def multiply_hidden(call: Call, what: str, numbers: str) -> list[Results]:
    """A row with an attended NaN has NaN for weights of its hidden keys too, unless these are masked once more."""
    if not call.steps.key.size:
        return []
    steps, weights = clear_hidden(call.steps, MULTIPLIED[what], infinity=numbers == "infinity"), call.forward.weights
    ways = multiply_all(call, steps, weights)
    spoiled = np.isnan(weights).any(axis=-1, keepdims=True)
    return ways + (multiply_all(call, steps, np.where(spoiled, np.nan, weights)) if spoiled.any() else [])


HIDDEN: dict[str, Callable[[AttentionSteps], np.ndarray]] = {
    "scores": lambda steps: np.isnan(steps.all_scores()) | np.isposinf(steps.all_scores()),
    "bias": lambda steps: np.isnan(steps.bias) | np.isposinf(steps.bias),
    "scores, when the maximum is taken,": lambda steps: np.isnan(steps.all_scores()),
}


def read_hidden(call: Call, what: str) -> list[Results]:
    """-inf is added to hidden scores, or they are masked too early, or their maximum is taken over all.

    Values of weight 0 are left out, or multiplied.
    """
    spoiled = np.any(HIDDEN[what](call.steps) & ~call.steps.allowed_pairs, axis=-1, keepdims=True)
    if not spoiled.any():
        return []
    weights = np.where(spoiled, np.nan, call.forward.weights)
    ways = [way for kept in ((), ("value",)) for way in multiply_all(call, clear_hidden(call.steps, kept), weights)]
    rows = spoiled[..., 0] if call.case.operation == "attention_logsumexp" else spoiled
    return [way | {"output": np.where(rows, np.nan, way["output"])} for way in ways]


def merge_unseen(call: Call) -> Results:
    outputs = np.stack(list_arrays(call.case.inputs, "outputs")).astype(float)
    return {"output": (Parts.read_call(call).weights[..., None] * outputs).sum(axis=0)}


def swallow(call: Call, where: str, number: float) -> Results:
    steps, output = call.steps, call.right["output"]
    if where == "values":
        value = call.case.inputs["value"].astype(float)
        output = steps.change(value=np.where(np.isfinite(value), value, 0)).forward().output
    elif where == "weights":
        output = steps.weigh_values(np.nan_to_num(call.forward.weights))
    return {"output": np.where(np.isnan(output), number, output) if where == "output" else output}


def spread_nan(call: Call, over: str) -> Results | None:
    output = call.right["output"]
    spoiled = np.isnan(output).any(axis=-1 if over == "row" else (1, 2, 3), keepdims=True)
    return {"output": np.where(spoiled, np.nan, output)} if spoiled.any() else None


def skip_weights_of_0(call: Call) -> AttentionSteps:
    steps, weights = call.steps, call.forward.weights
    return steps.change(visible=steps.visible & (weights * steps.factor != 0), weigh=lambda steps, scores: weights)


TOPIC = Topic("special_values", "MASK-7", of_special_values=True)
MISTAKES = (
    TOPIC.entry("hidden-multiplied", "{numbers} behind a mask is multiplied by a weight of 0 ({what})", multiply_hidden,
                needs=("special",), what=(*MULTIPLIED,), numbers=("NaN and infinity", "infinity")),
    TOPIC.entry("hidden-read", "NaN or infinity behind a mask counts in the {what}", read_hidden, what=(*HIDDEN,)),
    TOPIC.entry("unseen-merged", "the output of a part that saw no key is multiplied by a weight of 0", merge_unseen,
                operations=("merge_attention",)),
    TOPIC.entry("swallowed", "NaN in the {where} becomes {number:g}", swallow, rule="ATT-10", operations=("attention",),
                needs=("special",), where=("output", "weights", "values"), number=(0.0, 65504.0)),
    TOPIC.entry("spread", "NaN in one element of the output makes the whole {over} NaN", spread_nan, rule="ATT-10",
                operations=("attention",), over=("row", "batch element")),
    TOPIC.entry("weights-of-0-skipped", "values of weight 0 are skipped", skip_weights_of_0, rule="ATT-10",
                operations=("attention",), needs=("special",)),
)  # fmt: skip
KNOWN = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    KNOWN["hidden-multiplied"].choose(numbers="infinity"),
    KNOWN["hidden-multiplied"].choose().limit(past("K", 1024)),
    *(KNOWN["hidden-multiplied"].choose(what=what) for what in ("keys", "everything")),
    replace(KNOWN["hidden-multiplied"].choose(what=(*MULTIPLIED,)[4]), rule="ATT-10"),
    *(KNOWN["hidden-multiplied"].choose(what=what).limit(Condition(passes="backward")) for what in ("values", "keys")),
    *(KNOWN["hidden-read"].choose(what=what) for what in (*HIDDEN,)[1:]),
    *(KNOWN["hidden-read"].choose().plant_in(operation) for operation in ATTENTION[1:]),
    *(KNOWN["swallowed"].choose(where=where) for where in ("weights", "values")),
    KNOWN["swallowed"].choose(number=65504.0),
    KNOWN["spread"].choose(over="batch element"),
)
