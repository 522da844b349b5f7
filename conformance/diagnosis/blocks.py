"""Known mistakes of kernels that go through the keys in blocks or parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.diagnosis.attention import MASK_CHANGES, Change, sides, stepped
from conformance.diagnosis.matching import Failing, Mistake, resulting
from conformance.diagnosis.steps import Steps, divided, exponentials_of, highest
from specification import Causal, SlidingWindow
from specification.dtypes import compute_dtype_name

BLOCKS = (8, 16, 32, 64, 128, 256, 512)
MANY = 512
"""Blocks beyond which a case is not gone through block by block."""


def plain(failing: Failing) -> bool:
    """Attention without dropout, and with keys."""
    case = failing.case
    return (
        case.operation == "attention" and case.options.get("dropout_keep") is None and case.inputs["key"].shape[2] > 0
    )


def by_blocks(name: str, block: int, output: Callable[[Failing, int], Any]) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        K = failing.case.inputs["key"].shape[2]
        return {"output": output(failing, block)} if plain(failing) and block < K <= block * MANY else None

    return resulting(f"{name} (blocks of {block} keys)", results)


def online(
    failing: Failing,
    block: int,
    rescale_output: bool = True,
    rescale_sum: bool = True,
    lag: float = 0.0,
    late: bool = False,
    reversed_sign: bool = False,
) -> Any:
    """Online softmax with one rescaling left out. lag: growth of the maximum at which nothing is rescaled.

    late: the sum is rescaled with the new block in it. reversed_sign: by exp(new - old).
    """
    scores, s = failing.forward.scores, failing.steps
    maximum = np.full((*scores.shape[:3], 1), -np.inf)
    total, output = np.zeros_like(maximum), np.zeros((*scores.shape[:3], s.value.shape[-1]))
    for start in range(0, scores.shape[-1], block):
        part = scores[..., start : start + block]
        larger = np.maximum(maximum, part.max(axis=-1, keepdims=True, initial=-np.inf))
        safe = np.where(np.isfinite(larger), larger, 0)
        exponentials, rescale = np.exp(part - safe), np.where(np.isfinite(maximum), np.exp(maximum - safe), 0)
        skipped = np.isfinite(maximum) & (larger - maximum <= lag)
        rescale = np.where(skipped, 1, rescale)
        if reversed_sign:
            rescale = np.where(np.isfinite(maximum), np.exp(safe - maximum), 0)
        of_block = exponentials.sum(axis=-1, keepdims=True)
        early = np.where(np.isfinite(maximum), rescale, 1)  # the first block is not lost
        total = (total + of_block) * early if late else total * (rescale if rescale_sum else 1) + of_block
        output = output * (rescale if rescale_output else 1) + exponentials @ s.value[:, :, start : start + block]
        maximum = np.where(skipped, maximum, larger) if lag else larger
    if s.sinks is not None:
        total = total + np.exp(s.sinks - np.where(np.isfinite(maximum), maximum, 0))
    return divided(output, total)


def saturated(failing: Failing, block: int) -> Any:
    """Weights of 2^8 exp(score - maximum) pass 448, where the maximum lags behind by up to 4 powers of two."""
    scores, s = failing.forward.scores / np.log(2), failing.steps
    maximum = np.full((*scores.shape[:3], 1), -np.inf)
    total, output = np.zeros_like(maximum), np.zeros((*scores.shape[:3], s.value.shape[-1]))
    for start in range(0, scores.shape[-1], block):
        part = scores[..., start : start + block]
        larger = np.maximum(maximum, part.max(axis=-1, keepdims=True, initial=-np.inf))
        new = np.where(larger - maximum <= 4, maximum, larger)
        safe = np.where(np.isfinite(new), new, 0)
        rescale, weights = np.where(np.isfinite(maximum), np.exp2(maximum - safe), 0), np.exp2(part - safe + 8)
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        output = output * rescale + np.minimum(weights, 448) @ s.value[:, :, start : start + block]
        maximum = new
    if s.sinks is not None:
        total = total + np.exp2(s.sinks / np.log(2) - np.where(np.isfinite(maximum), maximum, 0) + 8)
    return divided(output, total)


# --- tails ------------------------------------------------------------------------------------------------------------


def without_tail(block: int, axis: int = 3) -> Change:
    """Keys past the last whole block are not seen; with axis 2, queries past it see nothing."""

    def changed(failing: Failing) -> Steps | None:
        s = failing.steps
        length = s.visible.shape[axis]
        if length % block == 0 or block > length:
            return None
        kept = np.arange(length) < length - length % block
        return s.changed(visible=s.visible & np.expand_dims(kept, tuple(i for i in range(4) if i != axis)))

    return changed


def longer(s: Steps, key: np.ndarray, value: np.ndarray | None) -> Steps:
    """With more keys at the end, which every query sees."""
    more = key.shape[2] - s.key.shape[2]

    def pairs(array: np.ndarray, filling: Any) -> np.ndarray:
        if array.shape[-1] == 1 and s.key.shape[2] != 1:
            array = np.broadcast_to(array, (*array.shape[:-1], s.key.shape[2]))
        return np.concatenate([array, np.full((*array.shape[:-1], more), filling)], axis=-1)

    return s.changed(
        key=key, value=value, visible=pairs(s.visible, True), open=pairs(s.open, True), bias=pairs(s.bias, 0.0)
    )


def padded_tail(block: int) -> Change:
    """The last block is filled up with keys and values of 0, whose scores of 0 count."""

    def changed(failing: Failing) -> Steps | None:
        missing = -failing.case.inputs["key"].shape[2] % block
        if not plain(failing) or missing == 0:
            return None
        widths = ((0, 0), (0, 0), (0, missing), (0, 0))
        s = failing.steps
        return longer(s, np.pad(s.key, widths), np.pad(s.value, widths))

    return changed


def read_on(block: int) -> Change:
    """The last block holds what stands behind the keys: those of the next head, and zeros behind the last."""

    def changed(failing: Failing) -> Steps | None:
        inputs = failing.case.inputs
        missing, share = -inputs["key"].shape[2] % block, failing.steps.key.shape[1] // max(inputs["key"].shape[1], 1)
        if not plain(failing) or missing == 0:
            return None
        key, value = (np.repeat(following(inputs[n].astype(float), missing), share, axis=1) for n in ("key", "value"))
        return longer(failing.steps, key, value)

    return changed


def following(array: np.ndarray, extra: int) -> np.ndarray:
    B, G, K, W = array.shape
    flat = np.concatenate([array.reshape(B * G * K, W), np.zeros((extra, W))])
    return flat[(np.arange(B * G) * K).reshape(B, G, 1) + np.arange(K + extra)]


# --- masks, block by block --------------------------------------------------------------------------------------------


def of_tiles(rows: int, keys: int, combine: Callable[..., np.ndarray]) -> Change:
    """A tile is seen as a whole where one of its pairs is, or only where all of them are."""

    def changed(failing: Failing) -> Steps | None:
        s, (Q, K) = failing.steps, failing.steps.visible.shape[2:]
        if failing.case.options.get("mask") is None or not K or (rows > 1 and rows >= 2 * Q) or keys >= 2 * K:
            return None
        tiles = combine.reduceat(s.visible, np.arange(0, K, keys), axis=3)  # type: ignore[attr-defined]
        tiles = combine.reduceat(tiles, np.arange(0, Q, rows), axis=2)  # type: ignore[attr-defined]
        return s.changed(visible=tiles.repeat(rows, axis=2)[:, :, :Q].repeat(keys, axis=3)[..., :K])

    return changed


def moving_mask(failing: Failing) -> tuple[np.ndarray, Any, Any] | None:
    """Offset [B or 1, 1, 1, 1], left and right of the first causal mask or window; None for a side without an end."""
    masks = [one for one in sides(failing.case.options.get("mask")) if isinstance(one, Causal | SlidingWindow)]
    if not masks:
        return None
    offset = np.asarray(0 if masks[0].offset is None else masks[0].offset).reshape(-1, 1, 1, 1)
    return offset, getattr(masks[0], "left", None), getattr(masks[0], "right", 0)


def between_tiles(n: int, ends: Callable[[Any, Any], tuple[Any, Any]], shifted: bool = True) -> Change:
    """Only some tiles of keys are gone through for a block of queries, from the first and the last key it may see.

    `ends` gives the first tile and the one after the last, from these keys in units of tiles. shifted: whether the
    mask's offset counts for that.
    """

    def changed(failing: Failing) -> Steps | None:
        s, (Q, K) = failing.steps, failing.steps.visible.shape[2:]
        mask = moving_mask(failing)
        if mask is None or n >= 2 * max(Q, K):
            return None
        offset, left, right = mask
        offset = offset if shifted else 0 * offset
        block = np.arange(Q)[:, None] // n * n + offset
        first, end = ends(
            (-np.inf if left is None else block - left) / n, (np.inf if right is None else block + n - 1 + right) / n
        )
        keys = np.arange(K)
        return s.changed(visible=s.visible & (keys >= first * n) & (keys < end * n))

    return changed


def mask_of_first_block(n: int) -> Change:
    """Keys are counted anew in every block of n: each has the mask of the first."""

    def changed(failing: Failing) -> Steps | None:
        s, K = failing.steps, failing.steps.visible.shape[3]
        if failing.case.options.get("mask") is None or n >= K:
            return None
        return s.changed(visible=s.visible[..., np.arange(K) % n])

    return changed


def first_query_left_out(n: int) -> Change:
    """A query does not see the last key that it may see where a block of n keys begins with it."""

    def changed(failing: Failing) -> Steps | None:
        s, (Q, K) = failing.steps, failing.steps.visible.shape[2:]
        mask = moving_mask(failing)
        if mask is None or mask[2] is None:
            return None
        offset, _, right = mask
        own, keys = np.arange(Q)[:, None] + offset + right, np.arange(K)
        return s.changed(visible=s.visible & ~((own == keys) & (keys % n == 0)))

    return changed


TILE_ENDS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "a tile of keys is not seen that begins at the last key of a block of queries": lambda first, last: (
        np.floor(first),
        np.ceil(last),
    ),
    "the last tile of keys that a block of queries sees is left out": lambda first, last: (
        np.floor(first),
        np.floor(last),
    ),
    "the first tile of keys that a block of queries sees is left out where it is not whole": lambda first, last: (
        np.ceil(first),
        np.floor(last) + 1,
    ),
}
FIRST_SEES = "a tile of keys is seen only where a block's first query sees its first key"


def of_first_query(n: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The tiles that the first query of n sees."""
    return lambda first, last: (np.floor(first), np.floor(last - 1 + 1 / n) + 1)


TILES_SEEN = {
    **{
        f"{words} (blocks of {n} keys)": between_tiles(n, ends)
        for n in (16, 32, 64, 128, 256)
        for words, ends in TILE_ENDS.items()
    },
    **{f"{FIRST_SEES} (blocks of {n} keys)": between_tiles(n, of_first_query(n)) for n in (16, 32, 64, 128, 256)},
    **{
        f"every block of keys has the mask of the first one (blocks of {n} keys)": mask_of_first_block(n)
        for n in (8, 16, 32, 64, 128, 256)
    },
    **{
        f"the first query that sees a tile of keys is left out of it (blocks of {n} keys)": first_query_left_out(n)
        for n in (2, 4, 8, 16, 32, 64, 128, 256)
    },
    **{
        f"the mask's offset is forgotten where tiles of keys are skipped (blocks of {n} keys)": between_tiles(
            n, lambda first, last: (np.floor(first), np.floor(last) + 1), shifted=False
        )
        for n in (2, 4, 8, 16, 32, 64, 128, 256)
    },
}
"""Also mistakes of the backward pass alone, whichever of queries and keys it goes through in its outer loop."""


def past_first(axis: int, n: int, change: Change) -> Change:
    """Another mask in rows, or at keys, past the first n."""

    def changed(failing: Failing) -> Steps | None:
        s = failing.steps
        steps = change(failing) if s.visible.shape[axis] > n else None
        if steps is None:
            return None
        later = np.expand_dims(np.arange(s.visible.shape[axis]) >= n, tuple(i for i in range(4) if i != axis))
        return s.changed(visible=np.where(later, steps.visible, s.visible))

    return changed


LATER = ("the mask is ignored", "the causal mask is off by one: a query does not see its own key",
         "the causal mask is off by one: a query sees the key after its own")  # fmt: skip
MASKS_IN_BLOCKS = {
    **{
        f"{words} (blocks of {n} {of})": of_tiles(n if of == "rows" else 1, n, combine)
        for n in (8, 16, 32, 64, 128, 256)
        for of in ("keys", "rows")
        for words, combine in (
            ("the mask is that of whole tiles: one is seen where one of its pairs is", np.logical_or),
            ("the mask is that of whole tiles: one is seen where all of its pairs are", np.logical_and),
        )
    },
    **TILES_SEEN,
    **{
        f"{things} past the first {n}: {name}": past_first(axis, n, MASK_CHANGES[name])
        for name in LATER
        for axis, things in ((2, "queries"), (3, "keys"))
        for n in BLOCKS
    },
}


TAILS_LEFT_OUT = {
    f"{things} past the last whole block are left out (blocks of {n} {things})": without_tail(n, axis)
    for n in BLOCKS
    for axis, things in ((3, "keys"), (2, "queries"))
}
"""Also mistakes of the backward pass alone."""


# --- sinks ------------------------------------------------------------------------------------------------------------


def blocks_seen(s: Steps, block: int) -> np.ndarray:
    """Whether a row sees a key of each block, [..., blocks]."""
    return np.logical_or.reduceat(s.allowed, np.arange(0, s.allowed.shape[-1], block), axis=-1)


SINK_COUNTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "once for each block": lambda seen: np.full(seen.shape[:-1], seen.shape[-1]),
    "once for each block that a row sees": lambda seen: seen.sum(axis=-1),
    "twice where the first block is hidden": lambda seen: 2 - seen[..., 0],
    "only where a row sees the first block": lambda seen: seen[..., 0],
    "only where a row sees the last block": lambda seen: seen[..., -1],
}
"""How often the sink counts, by which blocks of keys a row sees."""


def sink_counted(count: Callable[[np.ndarray], np.ndarray], block: int) -> Change:
    """The sink counts as often; a row that sees nothing is 0 all the same."""

    def changed(failing: Failing) -> Steps | None:
        s = failing.steps
        if s.sinks is None or block >= s.allowed.shape[-1]:
            return None
        return s.changed(sinks=s.sinks + np.log(count(blocks_seen(s, block)).astype(float))[..., None])

    return changed


# --- parts, merged ----------------------------------------------------------------------------------------------------


def merged(failing: Failing, cuts: list[int], how: str) -> Any:
    """Softmax over every part of the keys, and the parts' outputs weighed wrongly."""
    scores, s = failing.forward.scores, failing.steps
    outputs, logs, totals = [], [], []
    for keys in np.split(np.arange(scores.shape[-1]), cuts):
        exponentials, total, maximum = exponentials_of(scores[..., keys], None)
        outputs.append(divided(exponentials, total) @ s.value[:, :, keys])
        totals.append(total)
        logs.append(maximum + np.log(total))
    if how == "sums":
        shares = totals if s.sinks is None else [*totals, np.ones_like(totals[0])]
    elif how == "equal":
        shares = [(total > 0).astype(float) for total in totals]
    else:
        logs = logs if s.sinks is None else [*logs, np.broadcast_to(s.sinks, logs[0].shape)]
        base = {"base 2": 1 / np.log(2), "natural": np.log(2), "one number": 1.0}[how]
        if how == "one number":
            logs = [log.astype(compute_dtype_name(failing.case.dtype)).astype(float) for log in logs]
        whole = highest(np.concatenate(logs, axis=-1))
        shares = [np.exp((log - whole) * base) for log in logs]
    weighted = np.array(sum(share * output for share, output in zip(shares, outputs, strict=False)))
    return divided(weighted, np.array(sum(shares)))


def merging(cuts: list[int], how: str) -> Callable[[Failing], dict[str, Any]]:
    return lambda failing: {"output": merged(failing, cuts, how)}


MERGES = {
    "one number": "parts of the keys are merged by one log-sum-exp each, which loses digits beside such scores",
    "sums": "parts of the keys are merged by their sums, without their maxima",
    "equal": "parts of the keys are merged with equal weights",
    "base 2": "parts of the keys are merged by log-sum-exps in base 2 as if they were natural",
    "natural": "parts of the keys are merged by natural log-sum-exps as if they were in base 2",
}
COUNTS = (2, 4, 8, 16, 32)


def merges(failing: Failing) -> Iterator[Mistake]:
    """Parts of one block each; the first block and the rest; so many equal parts."""
    K = failing.case.inputs["key"].shape[2] if plain(failing) else 0
    divisions = {f"blocks of {n} keys": list(range(n, K, n)) for n in BLOCKS if n < K <= 64 * n}
    divisions |= {f"the first {n} keys and the rest": [n] for n in BLOCKS if n < K}
    for n in COUNTS:
        if n <= K:
            divisions[f"{n} parts"] = list(np.cumsum([len(a) for a in np.array_split(np.arange(K), n)])[:-1])
            divisions[f"{n} parts, the last one shorter"] = list(range(-(-K // n), K, -(-K // n)))
    seen: set[tuple[int, ...]] = set()
    for division, cuts in divisions.items():
        if not cuts or tuple(cuts) in seen:
            continue
        seen.add(tuple(cuts))
        for how, name in MERGES.items():
            yield resulting(f"{name} ({division})", merging(cuts, how))


def mistakes_in_blocks(block: int) -> list[Mistake]:
    of = f"(blocks of {block} keys)"
    return [
        stepped(f"keys past the last whole block are left out {of}", without_tail(block)),
        stepped(f"the last block's padding counts as keys with score 0 {of}", padded_tail(block)),
        stepped(f"the last block reads on into the next head's keys and values {of}", read_on(block)),
        by_blocks("the running output is not rescaled when the maximum grows", block, lambda f, n: online(f, n, False)),
        by_blocks(
            "the running sum is not rescaled when the maximum grows", block, lambda f, n: online(f, n, True, False)
        ),
        by_blocks("the running sum is rescaled with the new block in it", block, lambda f, n: online(f, n, late=True)),
        by_blocks(
            "sum and output are rescaled by exp(new - old)", block, lambda f, n: online(f, n, reversed_sign=True)
        ),
        by_blocks("nothing is rescaled when the maximum grows", block, lambda f, n: online(f, n, False, False)),
        by_blocks(
            "rescaling is skipped where the maximum grows little, but weights are taken with the new one",
            block,
            lambda f, n: online(f, n, lag=8 * np.log(2)),
        ),
        by_blocks("weights saturate at 448, but not in their sum", block, saturated),
    ]


SINKS = [
    stepped(f"the sink counts {how} (blocks of {block} keys)", sink_counted(count, block))
    for block in BLOCKS
    for how, count in SINK_COUNTS.items()
]
MISTAKES = [
    *(mistake for block in BLOCKS for mistake in mistakes_in_blocks(block)),
    *(stepped(name, change) for name, change in MASKS_IN_BLOCKS.items()),
]
