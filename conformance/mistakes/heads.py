"""Query heads that read the wrong key heads, and arrays read or written in another layout (ATT-7, ATT-8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.mistakes.attention_steps import AttentionSteps, places_of
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Topic, name_entries, results_of_steps
from specification import Causal, SlidingWindow

OUTPUT = ("attention",)

# --- key heads --------------------------------------------------------------------------------------------------------

Order = Callable[..., Any]
"""order(heads, H, G, **values): the key head that each query head reads; those past the last one are the last one."""


def read_key_heads(order: Order) -> Callable[..., AttentionSteps | None]:
    """Read other key heads where there are several. What is read: keys and values, or one of them."""

    def change(call: Call, what: str = "keys and values", **values: object) -> AttentionSteps | None:
        steps = call.steps
        H, G = len(steps.key_heads), steps.key.shape[1]
        if not 1 < G <= H or (what != "keys and values" and steps.value is None):
            return None
        read = np.clip(order(np.arange(H), H, G, **values), 0, G - 1)
        if np.array_equal(read, steps.key_heads):
            return None
        keys, values_read = (steps.key_heads if what == other else read for other in ("values", "keys"))
        return steps.change(key_heads=keys, value_heads=values_read)

    return change


TOPIC = Topic("heads", "ATT-8")
KEY_HEADS = TOPIC.entries(
    read_key_heads,
    ("modulo", "query head h reads the {what} of key head h % G", lambda h, H, G: h % G,
     {"what": ("keys and values", "keys", "values")}),
    ("counted-in-powers-of-two", "query heads to a key head are counted in powers of two, rounded {way}",
     lambda h, H, G, way: h // (1 << ((H // G - 1 if way == "up" else H // G).bit_length() - (way == "down"))),
     {"way": ("up", "down")}),
    ("first-past", "query heads past the first {n} read key head 0",
     lambda h, H, G, n: np.where(h < n, h // (H // G), 0), {"n": (8, 16, 32, 64)}),
    ("few-to-a-key-head", "of the query heads to a key head those past the first {n} read key head 0",
     lambda h, H, G, n: np.where(h % (H // G) < n, h // (H // G), 0), {"n": (8, 2, 4, 16)}),
    ("first", "every query head reads key head 0", lambda h, H, G: 0 * h),
    ("one-too-many", "query heads to a key head are counted one too many", lambda h, H, G: h // (H // G + (H > G))),
    ("divided-by-key-heads", "query head h reads key head h // G", lambda h, H, G: h // G),
    ("same-number", "query head h reads key head h, as far as there are so many", lambda h, H, G: h),
    ("late", "groups begin one query head late", lambda h, H, G: np.maximum(h - (H > G), 0) // (H // G)),
    ("reversed", "query heads read key heads in reverse", lambda h, H, G: G - 1 - h // (H // G)),
    rule="ATT-7",
)  # fmt: skip


def read_first_batch_element(call: Call) -> AttentionSteps | None:
    """A stride of 0 over heads that is one over the batch too."""
    steps = call.steps
    if steps.key.shape[1] != 1 or steps.key.shape[0] < 2:
        return None
    arrays = {"key": steps.key} | ({} if steps.value is None else {"value": steps.value})
    places = {name: np.broadcast_to(places_of(a[:1]), a.shape) for name, a in arrays.items()}
    return steps.read_elsewhere(**places)


def sum_over_heads(values: np.ndarray) -> np.ndarray:
    return np.broadcast_to(values.sum(axis=1, keepdims=True), values.shape)


def sum_values(call: Call) -> list[Results]:
    """As an einsum with two letters for the heads."""
    steps, name = call.steps, gradient_name("value")
    if steps.key.shape[1] < 2:
        return []
    found = results_of_steps(call, steps.change(value=sum_over_heads(np.asarray(steps.value))), "both")
    return [results | ({name: sum_over_heads(results[name])} if name in results else {}) for results in found]


# --- layouts ----------------------------------------------------------------------------------------------------------


def exchange_heads_and_positions(call: Call) -> list[Results]:
    """Answer the case whose heads are positions, where that is a call of attention."""
    case, mask = call.case, call.case.options.get("mask")
    plain = set(case.inputs) == {"query", "key", "value"} and case.options.get("dropout_keep") is None
    if not plain or case.with_logsumexp or not isinstance(mask, Causal | SlidingWindow | None):
        return []
    (_, H, Q, _), (_, G, K, _) = case.inputs["query"].shape, case.inputs["key"].shape
    if K == 0 or Q % K or (mask is not None and mask.offset is None and H != G):
        return []
    inputs, cotangents = ({n: a.swapaxes(1, 2) for n, a in some.items()} for some in (case.inputs, case.cotangents))
    other = Call(replace(case, inputs=inputs, cotangents=cotangents))
    ways = results_of_steps(other, other.steps, "both")
    return [{name: array.swapaxes(1, 2) for name, array in results.items()} for results in ways]


def move_results(move: Callable[..., np.ndarray]) -> Callable[..., AttentionSteps | None]:
    """Write `move(places, **values)` of the results, see `AttentionSteps`; None where all stay where they are."""

    def change(call: Call, **values: object) -> AttentionSteps | None:
        own = places_of(call.forward.output)
        if not own.size or np.array_equal(own, move(own, **values)):
            return None
        return call.steps.change(move=lambda places: move(places, **values))

    return change


def read_as_positions_first(places: np.ndarray) -> np.ndarray:
    """Arrays other than the output stay as they are."""
    if places.ndim < 4:
        return places
    B, H, Q, V = places.shape
    return places.reshape(B, Q, H, V).swapaxes(1, 2)


def reorder_heads(call: Call, order: str) -> AttentionSteps | None:
    H, G = call.steps.query.shape[1], call.steps.key.shape[1]
    read = np.arange(H)[::-1] if order == "in reverse" else np.arange(H)
    if H and order != "in reverse":
        read = read.reshape((-1, G) if order == "interleaved by key head" else (G, -1)).T.ravel()
    return move_results(lambda places: places[:, read])(call)


def reshape_keys(call: Call) -> AttentionSteps | None:
    key = call.steps.key
    *lead, K, D = key.shape
    places = places_of(key).reshape(*lead, D, K).swapaxes(-1, -2)
    return None if 1 in (K, D) or not key.size else call.steps.read_elsewhere(key=places)


MISTAKES = (
    *KEY_HEADS,
    TOPIC.entry("one-key-head-of-first-batch-element",
                "where one key head serves all, that of the first batch element is read", read_first_batch_element,
                rule="ATT-7"),
    TOPIC.entry("values-added", "every head has the sum of all key heads' values", sum_values, rule="ATT-7",
                operations=OUTPUT, needs=("value",)),
    TOPIC.entry("positions-exchanged", "heads and positions change places: arrays are read as [B, T, H, D]",
                exchange_heads_and_positions, operations=OUTPUT, lacks="BHTD"),
    *TOPIC.entries(move_results,
                   ("output-transposed", "the output is transposed to [B, Q, H, V], and read as [B, H, Q, V]",
                    lambda places: places if places.ndim < 4 else places.swapaxes(1, 2).reshape(places.shape)),
                   ("output-read-as-positions-first", "the output [B, H, Q, V] is read as [B, Q, H, V]",
                    read_as_positions_first), operations=OUTPUT),
    TOPIC.entry("results-in-another-order", "heads have each other's results, {order}", reorder_heads,
                order=("in reverse", "interleaved by group", "interleaved by key head")),
    TOPIC.entry("keys-reshaped", "keys [K, D] are reshaped to [D, K], not transposed", reshape_keys),
)  # fmt: skip
KNOWN = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(KNOWN["modulo"].choose(what=what) for what in ("keys", "values")),
    KNOWN["counted-in-powers-of-two"].choose(way="down"),
    *(KNOWN["counted-in-powers-of-two"].choose().limit(Condition("S", past=n - 1, up_to=n)) for n in (3, 6, 12)),
    *(KNOWN["modulo"].choose().limit(Condition("S", past=n - 1, up_to=n)) for n in (3, 12)),
    KNOWN["first-past"].choose(n=32),
)  # fmt: skip
