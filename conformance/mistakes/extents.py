"""Keys, queries, heads, batch elements and columns past a size, and last tiles that are not whole (ATT-1, ATT-8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.features import mask_parts
from conformance.mistakes.attention_steps import AttentionSteps, places_of
from conformance.mistakes.call import Call
from conformance.mistakes.condition import Condition, past
from conformance.mistakes.heads import move_results
from conformance.mistakes.mistake import ATTENTION, Mistake, Topic, name_entries
from reference_numpy import materialize
from specification import Causal, SlidingWindow

SIZES = (64, 16, 32, 96, 128, 160, 192, 256, 320, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65535)
WIDTHS = (64, 8, 16, 32, 80, 96, 128, 160, 192, 256, 320, 512)
FILLINGS = ("zeros", "the next head's", "the first keys")
BLOCKS = (32, 8, 16, 64, 128, 256, 512, 1024)

# --- keys -------------------------------------------------------------------------------------------------------------

Seen = Callable[..., Any]
"""seen(keys, K, **values): which keys are looked at, of their numbers; True for all of them."""


def leave_out_keys(seen: Seen) -> Callable[..., AttentionSteps | None]:
    def change(call: Call, **values: object) -> AttentionSteps | None:
        K = call.steps.sizes[-1]
        some = np.broadcast_to(seen(np.arange(K), K, **values), K)
        return None if some.all() else call.steps.change(visible=call.steps.visible & some)

    return change


def key_places(steps: AttentionSteps, keys: np.ndarray) -> dict[str, np.ndarray]:
    """Places of these keys and their values; -1 stays -1."""
    arrays = {"key": steps.key} | ({} if steps.value is None else {"value": steps.value})
    return {
        name: np.where(keys[:, None] < 0, -1, places_of(array)[:, :, np.maximum(keys, 0)])
        for name, array in arrays.items()
    }


def count_tail_twice(call: Call, block: int) -> AttentionSteps | None:
    """The last tile begins so early that it is whole; or a whole one is taken once more as a tail.

    A key that counts twice is one whose score is larger by log 2.
    """
    steps, K = call.steps, call.steps.sizes[-1]
    if block >= K:
        return None
    keys = np.arange(K)
    twice = (keys >= K - block) & ((K % block == 0) | (keys < K // block * block))
    places = {} if steps.bias_shape is None else {"bias": broadcast_places(steps.bias, 3, K)}
    wider = steps.read_elsewhere(**places)
    return wider.change(bias=wider.bias + np.where(twice, np.log(2), 0))


def broadcast_places(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Places of an array whose axis may be 1, with that axis at full size."""
    places = places_of(array)
    return places.repeat(size, axis) if array.shape[axis] == 1 else places


def read_past_end(call: Call, block: int, what: str) -> list[AttentionSteps]:
    """Fill up the last tile with keys that every query sees, or those to which a causal mask or a window reaches."""
    steps = call.steps
    B, H, Q, K = steps.sizes
    extra = -K % block
    if not extra or not K or call.case.options.get("dropout_keep") is not None:
        return []
    keys = np.arange(K + extra)
    if what == "the next head's":
        rows = steps.key.shape[1] * K * np.arange(B)[:, None, None] + K * np.arange(steps.key.shape[1])[:, None] + keys
        rows = np.where(rows < B * steps.key.shape[1] * K, rows, -1)[..., None]
        widths = {"key": steps.key.shape[-1], "value": steps.values.shape[-1]}
        places = {n: np.where(rows < 0, -1, rows * width + np.arange(width)) for n, width in widths.items()}
    else:
        places = key_places(steps, keys % K if what == "the first keys" else np.where(keys < K, keys, -1))
    bias = broadcast_places(steps.bias, 3, K)
    bias = np.concatenate([bias, np.full((*bias.shape[:3], extra), -1)], axis=3)
    longer, mask = steps.read_elsewhere(**places, bias=bias), call.case.options.get("mask")
    seen = [np.ones((1, 1, Q, extra), bool)]
    parts = [*mask_parts(mask)]
    if parts and all(isinstance(part, Causal | SlidingWindow) and part.offset is not None for part in parts):
        seen.append(materialize(mask, Q, K + extra, batch=B, heads=H)[..., K:])
    behind = (np.broadcast_to(some, (B, H, Q, extra)) for some in seen)
    return [longer.change(visible=np.concatenate([steps.visible, some], axis=3)) for some in behind]


TOPIC, OUTPUT = Topic("extents", "ATT-8"), ATTENTION[:1]
KEYS = (
    *TOPIC.entries(leave_out_keys,
                   ("keys-past", "keys past the first {n} are left out", lambda keys, K, n: keys < n, {"n": SIZES}),
                   ("key-passed-over", "key {n}, where two parts meet, is left out",
                    lambda keys, K, n: (keys != n) | (n + 1 == K), {"n": (127, *SIZES, *(n - 1 for n in SIZES))}),
                   ("key-tail", "keys past the last whole tile are left out (tiles of {block} keys)",
                    lambda keys, K, block: (keys < K // block * block) | (block > K), {"block": BLOCKS}),
                   ("last-key-tile", "where all tiles are whole, the last is left out (tiles of {block} keys)",
                    lambda keys, K, block: (keys < K - block) | (K % block != 0) | (block == K), {"block": BLOCKS})),
    TOPIC.entry("keys-again", "keys past the first {n} are the first ones again",
                lambda call, n: None if n >= (K := call.steps.sizes[-1]) else call.steps.read_elsewhere(
                    **key_places(call.steps, np.arange(K) % n)), n=SIZES),
    TOPIC.entry("key-tail-filled", "the last tile is filled up with {what}, which count (tiles of {block} keys)",
                read_past_end, operations=OUTPUT, block=BLOCKS, what=FILLINGS),
    TOPIC.entry("key-tail-twice", "the last tile is moved back to be whole, and counts again (tiles of {block} keys)",
                count_tail_twice, operations=("attention", "attention_logsumexp"), block=BLOCKS),
    *TOPIC.entries(leave_out_keys,
                   ("keys-before", "only the last {n} keys are read", lambda keys, K, n: keys >= K - n,
                    {"n": (32, 1, *SIZES)}),
                   ("first-key", "the first key is left out", lambda keys, K: (keys > 0) | (K == 1)),
                   ("last-key", "the last key is left out", lambda keys, K: (keys < K - 1) | (K == 1))),
)  # fmt: skip

# --- elements of results ----------------------------------------------------------------------------------------------


def fill_rest(places: np.ndarray, n: int, what: str, axis: int) -> np.ndarray:
    """Change the elements past the first n; results without such an axis stay."""
    if axis >= places.ndim:
        return places
    numbers = np.arange(places.shape[axis])
    if what == "0":
        rest = np.expand_dims(numbers >= n, [other for other in range(places.ndim) if other != axis])
        return np.where(rest, -1, places)
    return places.take(numbers % n if what == "the first ones again" else np.minimum(numbers, n - 1), axis)


def fill_tail(places: np.ndarray, block: int, axis: int) -> np.ndarray:
    size = places.shape[axis] if axis < places.ndim else 0
    return places if size < block else fill_rest(places, size // block * block, "0", axis)


def move_along(axis: int, move: Callable[..., np.ndarray]) -> Callable[..., AttentionSteps | None]:
    return move_results(lambda places, **values: move(places, axis=axis, **values))


WHAT = ("0", "the last one before them", "the first ones again")
RESULTS = (
    *(
        TOPIC.entry(f"{name}-past", f"{things} past the first {{n}} are {{what}}", move_along(axis, fill_rest),
                    operations=ATTENTION if axis < 3 else OUTPUT, n=sizes, what=WHAT)
        for axis, name, things, sizes in (
            (0, "batch-elements", "batch elements", (16, 32, 64, 128, 512, 1024, 4096, 32767, 65535)),
            (1, "heads", "heads", (16, 8, 32, 64, 100, 128)),
            (2, "queries", "queries", SIZES),
            (3, "columns", "columns of the output", WIDTHS),
        )
    ),
    TOPIC.entry("batch-times-heads-past", "of batch elements times heads those past the first {n} are {what}",
                move_results(lambda places, n, what: fill_rest(
                    places.reshape(-1, *places.shape[2:]), n, what, 0).reshape(places.shape)),
                n=(64, 32, 128, 1024, 65535), what=WHAT),
    TOPIC.entry("query-tail", "queries past the last whole tile are 0 (tiles of {block})", move_along(2, fill_tail),
                block=(16, *BLOCKS)),
    TOPIC.entry("column-tail", "columns of the output past the last whole tile are 0 (tiles of {block})",
                move_along(3, fill_tail), operations=OUTPUT, block=(8, 4, 16, 32, 64, 128)),
    TOPIC.entry("columns-past-key-width", "columns of the output past the width of query and key are 0",
                lambda call: move_along(3, fill_rest)(call, n=call.steps.query.shape[-1], what="0"),
                operations=OUTPUT),
    TOPIC.entry("no-keys", "without keys the output is NaN, not 0", lambda call: None if call.steps.sizes[-1]
                else {"output": np.full_like(call.forward.output, np.nan)}, operations=OUTPUT),
)  # fmt: skip

# --- columns of query and key -----------------------------------------------------------------------------------------


def leave_out_columns(call: Call, n: int = 0, block: int = 0) -> list[AttentionSteps]:
    """The default scale is that of all columns, or of those that are read."""
    steps, D = call.steps, call.steps.query.shape[-1]
    n = D // block * block if block else n
    if not 0 < n < D:
        return []
    some = np.arange(D) < n
    fewer = steps.change(query=np.where(some, steps.query, 0), key=np.where(some, steps.key, 0))
    return [fewer] if call.case.options.get("scale") is not None else [fewer, fewer.change(scale=n**-0.5)]


def count_columns_twice(call: Call, block: int) -> AttentionSteps | None:
    steps, D = call.steps, call.steps.query.shape[-1]
    if block >= D or D % block == 0:
        return None
    columns = [*range(D), *range(D - block, D // block * block)]
    return steps.read_elsewhere(query=places_of(steps.query)[..., columns], key=places_of(steps.key)[..., columns])


COLUMNS = (
    TOPIC.entry("key-columns-past", "scores are taken from the first {n} columns of query and key", leave_out_columns,
                rule="ATT-1", n=WIDTHS),
    TOPIC.entry("key-column-tail",
                "columns of query and key past the last whole tile are left out (tiles of {block})", leave_out_columns,
                rule="ATT-1", block=(16, 8, 32, 64)),
    TOPIC.entry("key-column-tail-twice", "the last tile of columns of query and key is moved back to be whole, and "
                "some count twice (tiles of {block})", count_columns_twice, rule="ATT-1", block=(16, 8, 32, 64)),
    TOPIC.entry("default-scale-of-width", "the default scale is that of a width of {width}",
                lambda call, width: None if call.case.options.get("scale") is not None
                or width == call.steps.query.shape[-1] else call.steps.change(scale=width**-0.5), rule="ATT-1",
                width=(64, 32, 80, 96, 128, 256)),
)  # fmt: skip

MISTAKES = (*KEYS, *RESULTS, *COLUMNS)
KNOWN = name_entries(MISTAKES)


def plant_rest(*rows: tuple[str, str, tuple[int, ...]]) -> list[Mistake]:
    """Rows of a result's name, what is done to the rest, and sizes."""
    return [KNOWN[f"{name}-past"].choose(n=n, what=what) for name, what, sizes in rows for n in sizes]


ZERO, LAST, FIRST = WHAT
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(KNOWN["keys-past"].choose(n=n) for n in (32, 1024, 32768)),
    *(KNOWN["key-passed-over"].choose(n=n) for n in (1024, 32767)),
    *(KNOWN["keys-again"].choose(n=n) for n in (2048, 32768)),
    *(KNOWN["key-tail"].choose(block=n).limit(past("K", n)) for n in (16, 128, 1024)),
    *(KNOWN["last-key-tile"].choose(block=n) for n in (64, 256)),
    *(KNOWN["key-tail-filled"].choose(what=what, block=n).limit(past("K", n))
      for what in FILLINGS for n in (64, 256)),
    KNOWN["key-tail-filled"].choose(what="the next head's").limit(Condition("Q", up_to=8)),
    *plant_rest(
        ("queries", ZERO, (32, 2048, 65535)), ("queries", LAST, (64, 32768)), ("queries", FIRST, (32, 4096, 32768)),
        ("heads", LAST, (32, 100)), ("heads", FIRST, (64,)), ("batch-elements", LAST, (16, 1024, 32767)),
        ("batch-elements", ZERO, (512, 65535)), ("columns", ZERO, (8, 512)), ("columns", FIRST, (128, 320)),
    ),
    *(KNOWN["batch-times-heads-past"].choose(n=n) for n in (1024, 65535)),
    KNOWN["query-tail"].choose(block=128),
    KNOWN["column-tail"].choose(block=32),
    *(KNOWN["columns-past-key-width"].choose().limit(Condition("V", past=n)) for n in (64, 128)),
    KNOWN["key-columns-past"].choose(n=32).limit(Condition("D", past=63, up_to=64)),
    *(KNOWN["key-columns-past"].choose(n=n) for n in (96, 192, 512)),
    *(KNOWN["key-column-tail"].choose(block=n) for n in (8, 64)),
    KNOWN["key-column-tail-twice"].choose(block=64),
    *(KNOWN["default-scale-of-width"].choose(width=n).limit(past("D", n)) for n in (64, 128, 256)),
    *(one.plant_in("attention_weights", rule="ATT-14") for one in (
        *(KNOWN["keys-past"].choose(n=n) for n in (64, 1024, 65535)),
        *plant_rest(("queries", ZERO, (64, 32768)), ("heads", LAST, (32, 64))))),
    *(one.plant_in("attention_logsumexp", rule="ATT-14") for one in (
        *(KNOWN["keys-past"].choose(n=n) for n in (64, 4096, 65535)),
        *(KNOWN["key-tail"].choose(block=n).limit(past("K", n)) for n in (32, 128)),
        *plant_rest(("queries", ZERO, (64, 32768)), ("batch-elements", ZERO, (64, 4096))))),
)  # fmt: skip
