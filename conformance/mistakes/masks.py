"""Masks read wrongly (MASK-1 to MASK-6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.arguments import padded_queries
from conformance.mistakes.attention_steps import AttentionSteps, places_of
from conformance.mistakes.call import Call
from conformance.mistakes.condition import past
from conformance.mistakes.mistake import Topic, name_entries
from reference_numpy import materialize
from reference_numpy.masks import per_batch
from specification.masks import And, Causal, KeyLengths, KeyPadding, Or, Segments, SlidingWindow, as_mask, map_arrays

if TYPE_CHECKING:
    from specification.masks import Mask

BLOCKS = (64, 8, 16, 32, 128, 256, 1024)
IDS = ("uint8", "uint16", "bfloat16", "float16", "float32")
FIRST = (64, 128, 256, 512, 1024, 4096, 8192, 32768, 65535)


def see_pairs(call: Call, visible: np.ndarray) -> AttentionSteps | None:
    """The call with another mask; None where that is its own."""
    own = call.steps.visible
    visible = np.broadcast_to(visible, own.shape)
    if "query_lengths" in call.case.inputs:
        visible = visible & ~padded_queries(call.case)[:, None, :, None]
    return None if np.array_equal(visible, own) else call.steps.change(visible=visible)


# --- the allowed pairs as an array ------------------------------------------------------------------------------------


TOPIC, MASKED = Topic("masks", "MASK-1"), ("mask",)


def read_mask(read: Callable[..., np.ndarray]) -> Callable[..., AttentionSteps | None]:
    """Take `read(visible, **values)` for the allowed pairs [B, H, Q, K] of a call that has a mask."""
    return lambda call, **values: see_pairs(call, read(call.steps.visible, **values))


def repeat_over_flat_heads(visible: np.ndarray) -> np.ndarray:
    """Repeat [B, 1, Q, K] H times one after the other, and cut that as [B, H, Q, K]."""
    B, H, *pairs = visible.shape
    if not visible.size or not (visible == visible[:, :1]).all():
        return visible
    return np.tile(visible[:, 0], (H, 1, 1)).reshape(B, H, *pairs)


def take_batch_for_heads(visible: np.ndarray) -> np.ndarray:
    B, H = visible.shape[:2]
    fits = B == H and bool((visible == visible[:, :1]).all())
    return visible.swapaxes(0, 1) if fits else visible


def take_queries_for_batch(visible: np.ndarray) -> np.ndarray:
    B, _, Q, _ = visible.shape
    fits = B == Q and visible.size and bool((visible == visible[:1, :1]).all())
    return visible[0, 0, :, None, None] if fits else visible


def wrap_row_offset(visible: np.ndarray, modulus: int) -> np.ndarray:
    """Row i begins at i * K modulo so much."""
    *lead, Q, K = visible.shape
    if modulus >= Q * K:
        return visible
    places = (np.arange(Q) * K % modulus)[:, None] + np.arange(K)
    return visible.reshape(*lead, Q * K)[..., np.minimum(places, Q * K - 1)]


NEIGHBOURS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "0": np.zeros_like,
    "i - 1": lambda i: i - 1,
    "i + 1": lambda i: np.roll(i, -1),
}

ARRAYS = TOPIC.entries(
    read_mask,
    ("inverted", "the mask is inverted: True is taken for forbidden", np.logical_not),
    ("ignored", "the mask is ignored", np.ones_like),
    ("transposed", "the mask is transposed", lambda v: v.swapaxes(2, 3) if v.shape[2] == v.shape[3] else v),
    ("by-columns", "the mask is read column by column",
     lambda v: v.reshape(*v.shape[:2], v.shape[3], v.shape[2]).swapaxes(2, 3)),
    ("batch-element", "batch element i has the mask of batch element {taken}",
     lambda v, taken: v[NEIGHBOURS[taken](np.arange(len(v)))], {"taken": (*NEIGHBOURS,)}),
    ("head", "head i has the mask of head {taken}",
     lambda v, taken: v[:, NEIGHBOURS[taken](np.arange(v.shape[1]))], {"taken": (*NEIGHBOURS,)}),
    ("batch-repeated-over-flat-heads", "the mask of batch element (b * H + h) % B is used", repeat_over_flat_heads),
    ("batch-taken-for-heads", "a mask [B, 1, Q, K] is read as [1, H, Q, K], where B = H", take_batch_for_heads),
    ("row-offset-wraps", "the offset of a mask's row wraps around at {modulus}", wrap_row_offset,
     {"modulus": (2**16, 2**8, 2**15, 2**31)}),
    ("one-run", "every key between the first and the last allowed one is allowed",
     lambda v: np.logical_or.accumulate(v, -1) & np.logical_or.accumulate(v[..., ::-1], -1)[..., ::-1]),
    ("keys-start-anew", "every block of {block} keys has the mask of the first one",
     lambda v, block: v[..., np.arange(v.shape[3]) % block], {"block": (*BLOCKS, 2048, 32768)}),
    ("queries-start-anew", "every block of {block} queries has the mask of the first one",
     lambda v, block: v[:, :, np.arange(v.shape[2]) % block], {"block": (*BLOCKS, 2, 4)}),
    ("ignored-from-key", "the mask is ignored from key {first} on",
     lambda v, first: v | (np.arange(v.shape[3]) >= first), {"first": FIRST}),
    ("taken-for-length", "a row is taken for a length: as many of the first keys are seen as it allows",
     lambda v: np.arange(v.shape[3]) < v.sum(axis=3, keepdims=True), {"rule": "MASK-2"}),
    ("taken-for-causal", "a mask whose first row is causal is taken for causal",
     lambda v: v if v[..., :1, 1:].any() else np.tri(v.shape[2], v.shape[3], dtype=bool), {"rule": "MASK-3"}),
    ("row", "each row has the mask of the {row} row",
     lambda v, row: v[:, :, :1] if row == "first" else v[:, :, -1:], {"rule": "MASK-3", "row": ("first", "last")}),
    ("queries-taken-for-batch", "a mask [Q, K] is read as [B, K], where Q = B", take_queries_for_batch,
     {"rule": "MASK-5"}),
    needs=MASKED,
)  # fmt: skip

# --- mask and scores --------------------------------------------------------------------------------------------------


def share_first_row(call: Call, block: int) -> list[AttentionSteps | None]:
    """Of the mask, or of mask and bias."""
    steps, rows = call.steps, np.arange(call.steps.sizes[2]) // block * block
    shared = see_pairs(call, steps.visible[:, :, rows])
    if "bias" not in call.case.inputs:
        return [shared]
    return [shared, (shared or steps).read_elsewhere(bias=places_of(steps.bias)[:, :, rows])]


def share_mask_of_group(call: Call) -> AttentionSteps | None:
    heads = call.steps.key_heads
    return see_pairs(call, call.steps.visible[:, np.searchsorted(heads, heads)])


def add_to_scores(call: Call) -> AttentionSteps:
    visible = call.steps.visible
    return call.steps.change(
        visible=np.ones_like(visible), score=lambda steps, products: steps.cap(products) + steps.bias + visible
    )


def combine_with_bias(call: Call, allowed: str) -> AttentionSteps | None:
    steps = call.steps
    visible = steps.visible | steps.open if allowed == "either allows" else steps.visible
    return None if steps.open.all() else steps.change(visible=visible, open=np.ones_like(steps.open))


def see_causally(call: Call, corner: str, how: str) -> AttentionSteps | None:
    masked, (_, _, Q, K) = call.case.options.get("mask") is not None, call.steps.sizes
    triangle = np.tri(Q, K, K - Q if corner == "last" else 0, dtype=bool)
    if how == "where it has no mask" and masked:
        return None
    return see_pairs(call, triangle if how == "whatever its mask" else call.steps.visible & triangle)


BESIDE = (
    TOPIC.entry("first-row-of-block",
                "the mask of a block's first row is used for all its rows, or mask and bias (blocks of {block} rows)",
                share_first_row, block=(*BLOCKS, 2, 4, 512, 4096)),
    TOPIC.entry("one-for-each-group", "query heads that share a key head have the mask of the first one",
                share_mask_of_group),
    TOPIC.entry("added-to-scores", "the mask is added to the scores as 0 and 1", add_to_scores, needs=MASKED),
    TOPIC.entry("times-infinity", "the mask is multiplied by infinity: 0 * inf is NaN where it allows a key",
                lambda call: {name: np.full_like(array, np.nan) for name, array in call.right.items()}
                if call.steps.visible.size else None, needs=MASKED),
    TOPIC.entry("ignored-beside-bias", "the mask is ignored beside a bias",
                lambda call: see_pairs(call, np.ones((1, 1), bool)), rule="MASK-6", needs=("bias",)),
    TOPIC.entry("infinite-bias", "beside -inf in the bias, pairs are allowed that {allowed}", combine_with_bias,
                rule="MASK-6", needs=MASKED, allowed=("either allows", "the mask allows")),
    TOPIC.entry("always-causal", "every call is causal from the {corner} query and key, {how}", see_causally,
                rule="ATT-5", corner=("first", "last"),
                how=("where it has no mask", "whatever its mask", "beside its mask")),
)  # fmt: skip

# --- descriptions -----------------------------------------------------------------------------------------------------

Reading = Callable[..., Any]
"""From a description, queries [Q, 1], keys [K] and values of parameters to the allowed pairs [B or 1, 1, Q, K]. From a
combination, whose sides are read already: from both sides' pairs."""


def read_description(kind: type, read: Reading) -> Callable[..., AttentionSteps | None]:
    """Read every description of this kind otherwise, also in masks that are combined."""

    def change(call: Call, **values: object) -> AttentionSteps | None:
        _, _, Q, K = call.steps.sizes
        queries, keys = np.arange(Q)[:, None], np.arange(K)

        def read_all(mask: Mask | None) -> Any:
            if isinstance(mask, And | Or):
                sides = read_all(mask.left), read_all(mask.right)
                if isinstance(mask, kind):
                    return read(*sides, **values)
                return sides[0] & sides[1] if isinstance(mask, And) else sides[0] | sides[1]
            return read(mask, queries, keys, **values) if isinstance(mask, kind) else materialize(mask, Q, K)

        return see_pairs(call, read_all(map_arrays(as_mask(call.case.options["mask"]), np.asarray)))

    return change


def see_between(distance: np.ndarray, left: int | np.ndarray | None, right: int | np.ndarray | None) -> np.ndarray:
    """-left <= distance <= right; None for no end."""
    found = np.ones(distance.shape, bool)
    found = found if left is None else found & (distance >= -left)
    return found if right is None else found & (distance <= right)


def ends_of(mask: Causal | SlidingWindow) -> tuple[Any, Any]:
    return (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)


def see_from(mask: Causal | SlidingWindow, places: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """What queries at these places see of a causal mask or a window."""
    return see_between(keys - places, *ends_of(mask))


def compare_ids(queries: np.ndarray, keys: np.ndarray) -> Any:
    return queries[:, None, :, None] == keys[:, None, None, :]


def round_to(number: int | np.ndarray, block: int, way: str) -> Any:
    return number // block * block if way == "down" else -(-number // block) * block


def allow_whole_blocks(mask: Causal | SlidingWindow, queries: np.ndarray, keys: np.ndarray, block: int) -> np.ndarray:
    places, (left, right) = queries + per_batch(mask.offset), ends_of(mask)
    found = see_from(mask, places, keys)
    for end in (None if left is None else -left, right):
        found = found if end is None else found | (keys // block == (places + end) // block)
    return found


def skip_last_block(
    mask: Causal | SlidingWindow, queries: np.ndarray, keys: np.ndarray, block: int, when: str
) -> np.ndarray:
    places, right = queries + per_batch(mask.offset), ends_of(mask)[1]
    if right is None:
        return see_from(mask, places, keys)
    skipped = (keys >= block) & (keys // block == (places + right) // block)
    if when != "always":
        last = places - queries % block + block - 1 + right  # that this block of queries sees
        skipped = keys >= round_to(last, block, "up")
    return np.asarray(see_from(mask, places, keys) & ~skipped)


OFFSETS: dict[str, Callable[..., Any]] = {
    "K - Q (bottom right)": lambda offset, Q, K: K - Q,
    "0 (top left)": lambda offset, Q, K: 0,
    "offset + K - Q": lambda offset, Q, K: offset + K - Q,
    "-offset": lambda offset, Q, K: -offset,
    "that of batch element 0": lambda offset, Q, K: offset[:1],
    "offset - 1": lambda offset, Q, K: offset - 1,
    "offset + 1": lambda offset, Q, K: offset + 1,
}
ONE_KEY = "where a block of queries sees one key of it"

BANDS = tuple(
    TOPIC.entry(f"{word}-{name}", f"{words}'s {says}", read_description(kind, read), rule=rule, needs=MASKED,
                **parameters)
    for kind, word, words, rule in (
        (Causal, "causal", "a causal mask", "MASK-3"),
        (SlidingWindow, "window", "a window", "MASK-4"),
    )
    for name, says, read, parameters in (
        ("offset", "offset is taken for {taken}",
         lambda m, i, j, taken: see_from(m, i + OFFSETS[taken](per_batch(m.offset), len(i), len(j)), j),
         {"taken": (*OFFSETS,)}),
        ("offset-rounded", "offset is rounded {way} to whole blocks of {block}",
         lambda m, i, j, way, block: see_from(m, i + round_to(per_batch(m.offset), block, way), j),
         {"way": ("down", "up"), "block": BLOCKS}),
        ("block-start", "queries count from the start of their block of {block}",
         lambda m, i, j, block: see_from(m, i % block + per_batch(m.offset), j), {"block": BLOCKS}),
        ("first-query", "first of {block} queries stands for all of them",
         lambda m, i, j, block: see_from(m, i // block * block + per_batch(m.offset), j), {"block": BLOCKS}),
        ("whole-blocks", "blocks of {block} keys at its ends are allowed as a whole", allow_whole_blocks,
         {"block": BLOCKS}),
        ("last-block", "last block of {block} keys is skipped ({when})", skip_last_block,
         {"when": ("always", ONE_KEY), "block": BLOCKS}),
        ("ignored-from", "ends are ignored from {axis} {first} on",
         lambda m, i, j, axis, first: materialize(m, len(i), len(j)) | ((i if axis == "query" else j) >= first),
         {"axis": ("key", "query"), "first": FIRST}),
    )
)  # fmt: skip
"""Of causal masks, which are windows with nothing on the right, and of windows."""

ENDS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "left - 1 and right": lambda left, right: (None if left is None else left - 1, right),
    "left + 1 and right": lambda left, right: (None if left is None else left + 1, right),
    "left and right - 1": lambda left, right: (left, None if right is None else right - 1),
    "left and right - 1 (at least 0)": lambda left, right: (left, None if right is None else max(right - 1, 0)),
    "left and right + 1": lambda left, right: (left, None if right is None else right + 1),
    "none and right": lambda left, right: (None, right),
    "left and none": lambda left, right: (left, None),
    "0 where there is none": lambda left, right: (left or 0, right or 0),
    "none where they are 0": lambda left, right: (left or None, right or None),
    "left on both sides": lambda left, right: (right, right) if left is None else (left, left),
}
LENGTHS: dict[str, Callable[[Any, int], Any]] = {
    "n + 1": lambda n, K: n + 1,
    "n - 1": lambda n, K: n - 1,
    "K where it is 0": lambda n, K: np.where(n == 0, K, n),
    "that of batch element 0": lambda n, K: n[:1],
}
EITHER: dict[str, Callable[[Any, Any], Any]] = {
    "or": lambda left, right: left | right,
    "and": lambda left, right: left & right,
    "one of the two but not both": lambda left, right: left ^ right,
    "the first": lambda left, right: left,
    "the second": lambda left, right: right,
}


DESCRIPTIONS = tuple(
    TOPIC.entry(name, says, read_description(kind, read), rule=rule, needs=MASKED, **parameters)
    for kind, name, rule, says, read, parameters in (
        (SlidingWindow, "window-ends", "MASK-4", "the ends of a window are taken for {taken}",
         lambda m, i, j, taken: see_between(j - i - per_batch(m.offset), *ENDS[taken](m.left, m.right)),
         {"taken": (*ENDS,)}),
        (KeyLengths, "length", "MASK-2", "a key length n is taken for {taken}",
         lambda m, i, j, taken: j < LENGTHS[taken](per_batch(m.lengths), len(j)), {"taken": (*LENGTHS,)}),
        (KeyLengths, "length-rounded", "MASK-2", "key lengths are rounded {way} to whole blocks of {block}",
         lambda m, i, j, block, way: j < round_to(per_batch(m.lengths), block, way),
         {"way": ("up", "down"), "block": BLOCKS}),
        (KeyLengths, "length-limited", "MASK-2", "key lengths are {limit} at most",
         lambda m, i, j, limit: j < np.minimum(per_batch(m.lengths), limit), {"limit": FIRST}),
        (KeyLengths, "length-wraps", "MASK-2", "key lengths are signed numbers of {bits} bits",
         lambda m, i, j, bits: j < (per_batch(m.lengths) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1),
         {"bits": (16, 8)}),
        (KeyPadding, "padding-of-first", "MASK-2", "the padding of batch element 0 is used for all",
         lambda m, i, j: m.keep[:1, None, None, :], {}),
        (KeyPadding, "padding-ignored-from", "MASK-2", "padding is ignored from key {first} on",
         lambda m, i, j, first: m.keep[:, None, None, :] | (j >= first), {"first": FIRST}),
        (Segments, "segment-0-padding", "MASK-2", "segment 0 is taken for padding",
         lambda m, i, j: compare_ids(m.query_ids, m.key_ids) & (m.query_ids != 0)[:, None, :, None], {}),
        (Segments, "segments-causal", "MASK-2", "segments are causal, too",
         lambda m, i, j: compare_ids(m.query_ids, m.key_ids) & (j <= i), {}),
        (Segments, "segments-before", "MASK-2", "a query sees the segments before its own, too",
         lambda m, i, j: m.query_ids[:, None, :, None] >= m.key_ids[:, None, None, :], {}),
        (Segments, "segment-of-first-key", "MASK-2", "the segment of the first of {block} keys is used for all",
         lambda m, i, j, block: compare_ids(m.query_ids, m.key_ids[:, j // block * block]), {"block": BLOCKS}),
        (Segments, "segment-ids", "MASK-2", "segment ids are compared in {held}",
         lambda m, i, j, held: compare_ids(*(ids.astype(held) for ids in (m.query_ids, m.key_ids))), {"held": IDS}),
        (And, "and", "MASK-6", "two masks that must both allow a pair are combined as {taken}",
         lambda left, right, taken: EITHER[taken](left, right), {"taken": ("or", "the first", "the second")}),
        (Or, "or", "MASK-6", "two masks of which one must allow a pair are combined as {taken}",
         lambda left, right, taken: EITHER[taken](left, right),
         {"taken": ("one of the two but not both", "and", "the first", "the second")}),
    )
)  # fmt: skip

MISTAKES = (*ARRAYS, *BESIDE, *BANDS, *DESCRIPTIONS)
KNOWN = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(KNOWN["ignored"].choose().limit(past("K", n)) for n in (256, 4096)),
    *(KNOWN["batch-element"].choose().limit(past("B", n)) for n in (16, 4096)),
    *(KNOWN["head"].choose().limit(past("H", n)) for n in (16, 64)),
    *(KNOWN["first-row-of-block"].choose(block=n).limit(past("Q", n)) for n in (32, 512, 4096)),
    *(KNOWN["keys-start-anew"].choose(block=n) for n in (2048, 32768)),
    *(KNOWN["ignored-from-key"].choose(first=n) for n in (1024, 65535)),
    *(KNOWN["causal-offset"].choose(taken=taken) for taken in (*OFFSETS,)[1:]),
    *(KNOWN["causal-block-start"].choose(block=n) for n in (32, 1024)),
    *(KNOWN["causal-whole-blocks"].choose(block=n).limit(past("K", n)) for n in (128, 1024)),
    *(KNOWN["causal-ignored-from"].choose(axis="key", first=n) for n in (256, 4096, 32768)),
    *(KNOWN["window-ignored-from"].choose(axis="query", first=n) for n in (64, 512, 8192)),
    *(KNOWN["window-ignored-from"].choose(axis="key", first=n) for n in (1024, 8192)),
    *(KNOWN["window-first-query"].choose(block=n) for n in (32, 128)),
    *(KNOWN["window-last-block"].choose(when=ONE_KEY, block=n).limit(past("K", n)) for n in (32, 128)),
    *(KNOWN["window-ends"].choose(taken=taken) for taken in (*ENDS,)[1:]),
    *(KNOWN["length"].choose(taken=taken) for taken in (*LENGTHS,)[1:]),
    *(KNOWN["length-rounded"].choose(block=n, way="up").limit(past("K", n)) for n in (64, 1024)),
    *(KNOWN["length-limited"].choose(limit=n) for n in (256, 4096)),
    *(KNOWN["padding-ignored-from"].choose(first=n) for n in (512, 8192, 32768)),
    *(KNOWN["segment-of-first-key"].choose(block=n).limit(past("K", n)) for n in (256, 1024)),
    *(KNOWN["segment-ids"].choose(held=held) for held in IDS[1:]),
    *(KNOWN["infinite-bias"].choose(allowed="the mask allows"), KNOWN["row"].choose(row="last")),
    *(KNOWN["and"].choose(taken=taken) for taken in ("the first", "the second")),
    *(KNOWN["or"].choose(taken=taken) for taken in ("and", "the second")),
)
