"""Keys in blocks: online softmax, split keys that are merged, sinks and masks block by block (ATT-5, ATT-8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.mistakes.attention_steps import AttentionSteps, row_maximum
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition, past
from conformance.mistakes.mistake import Changed, Mistake, Topic, name_entries
from conformance.mistakes.softmax import PullBack, Weights, divide, results_of_weights

BLOCKS = (64, 8, 16, 32, 128, 256, 512)
MOST_BLOCKS = 512
"""More blocks than this are not gone through one by one."""
LOG2 = float(np.log(2))


TOPIC = Topic("blocks", "ATT-5")


def weigh_by(call: Call, weights: np.ndarray, pull: PullBack | None) -> list[Changed]:
    """Results by these weights, with gradients by `pull` and without.

    An implementation may take its gradients through the maxima too, or by a kernel from what it saved.
    """
    return [results_of_weights(call, Weights(weights, way)) for way in dict.fromkeys((pull, None))]


# --- online softmax ---------------------------------------------------------------------------------------------------


class Rescaling(NamedTuple):
    """What happens when a block of keys comes: factors of what was summed up before it, [B, H, Q, 1].

    maximum: the new one. ahead: what the block's exponentials are taken with, if it is another. late: the factor of the
    block's own sum.
    """

    output: Any
    total: Any
    maximum: np.ndarray
    ahead: np.ndarray | None = None
    late: Any = 1.0


Rescale = Callable[..., Rescaling]
"""rescale(old, new, factor): of the maximum before and with the block, and exp(old - new), 0 where old is -inf."""


def run_online(
    rescale: Rescale,
    numerators: Callable[[np.ndarray], np.ndarray] | None = None,
    graded: bool = True,
    partial: bool = False,
) -> Callable[..., list[Changed]]:
    """Online softmax with another rescaling.

    Args:
        numerators: from a block's exponentials to what its values are weighed by; they still count in the sum.
        graded: whether there are gradients, by constant maxima and with slopes of 0 where the numerators changed.
        partial: whether only a last block that is not whole is rescaled otherwise.
    """

    def change(call: Call, block: int, **values: object) -> list[Changed]:
        steps, scores = call.steps, call.forward.scores
        K = scores.shape[-1]
        if not block < K <= block * MOST_BLOCKS:
            return []
        above, below, slopes = (np.zeros_like(scores) for _ in range(3))
        maximum = np.full((*scores.shape[:3], 1), -np.inf)
        for start in range(0, K, block):
            here, before = slice(start, start + block), slice(0, start)
            new = np.maximum(maximum, scores[..., here].max(axis=-1, keepdims=True))
            factor = np.where(np.isfinite(maximum), np.exp(maximum - np.where(np.isfinite(new), new, 0)), 0)
            whole = partial and start + block <= K
            step = Rescaling(factor, factor, new) if whole else rescale(maximum, new, factor, **values)
            maximum = step.maximum
            ahead = maximum if step.ahead is None else step.ahead
            exponentials = np.exp(scores[..., here] - np.where(np.isfinite(ahead), ahead, 0))
            weighed = exponentials if numerators is None else numerators(exponentials)
            above[..., before] *= step.output
            slopes[..., before] *= step.output
            below[..., before] *= step.total
            above[..., here], below[..., here] = weighed, exponentials
            slopes[..., here] = np.where(weighed == exponentials, weighed, 0)
            if start:
                below[..., : start + block] *= step.late
        finite = np.where(np.isfinite(maximum), maximum, 0)
        sink = np.zeros(1) if steps.sinks is None else np.exp(steps.sinks - finite)
        total = below.sum(axis=-1, keepdims=True) + sink
        total = np.where(total == 0, 1, total)
        weights = above / total

        def pull(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
            mean = np.sum(weights * gradient, axis=-1, keepdims=True)
            return (slopes * gradient - below * mean) / total, None if steps.sinks is None else -sink / total * mean

        return weigh_by(call, weights, pull if graded else None)

    return change


def rescale_lazily(old: np.ndarray, new: np.ndarray, factor: np.ndarray, limit: float) -> Rescaling:
    skipped = new - old <= limit  # not while the old one is -inf
    factor = np.where(skipped, 1, factor)
    return Rescaling(factor, factor, np.where(skipped, old, new), new)


def lag_behind(old: np.ndarray, new: np.ndarray, factor: np.ndarray) -> Rescaling:
    """The maximum stays while it grows by 4 powers of two at most; exponentials grow up to 16."""
    stays = new - old <= 4 * LOG2
    return Rescaling(factor := np.where(stays, 1, factor), factor, np.where(stays, old, new))


def entry(
    name: str,
    says: str,
    rescale: Rescale,
    numerators: Any = None,
    graded: bool = True,
    partial: bool = False,
    **more: Any,
) -> Mistake:
    change = run_online(rescale, numerators, graded, partial)
    says = f"{says} (blocks of {{block}} keys)"
    return TOPIC.entry(name, says, change, rule="ATT-8", operations=("attention",), block=BLOCKS, **more)


ONLINE = (
    entry("output-not-rescaled", "the running output is not rescaled when the maximum grows",
          lambda old, new, factor: Rescaling(1.0, factor, new)),
    entry("sum-not-rescaled", "the running sum is not rescaled when the maximum grows",
          lambda old, new, factor: Rescaling(factor, 1.0, new)),
    entry("nothing-rescaled", "nothing is rescaled when the maximum grows",
          lambda old, new, factor: Rescaling(1.0, 1.0, new)),
    entry("output-not-rescaled-at-the-end", "the running output is not rescaled in a last block that is not whole",
          lambda old, new, factor: Rescaling(1.0, factor, new), partial=True),
    entry("nothing-rescaled-at-the-end", "nothing is rescaled in a last block that is not whole",
          lambda old, new, factor: Rescaling(1.0, 1.0, new), partial=True),
    # Nothing is lost where nothing was seen before.
    entry("sum-rescaled-late", "the running sum is rescaled with the new block in it",
          lambda old, new, factor: Rescaling(factor, 1.0, new, late=np.where(np.isfinite(old), factor, 1))),
    entry("rescaled-by-inverse", "sum and output are rescaled by exp(new - old)",
          lambda old, new, factor: Rescaling(f := np.where(np.isfinite(old), np.exp(new - old), 0), f, new)),
    entry("rescaled-in-base-2", "sum and output are rescaled by 2^(old - new)",
          lambda old, new, factor: Rescaling(factor**LOG2, factor**LOG2, new)),
    entry("rescaled-lazily",
          "a maximum that grows by {limit} at most rescales nothing, though the block's weights are taken with it",
          rescale_lazily, limit=(8 * LOG2, 8.0)),
    entry("saturated", "weights of 2^8 exp(score - maximum) saturate at 448, but not in their sum", lag_behind,
          lambda exponentials: np.minimum(exponentials, 448 / 2**8)),
    entry("normalised-in-each-block", "every block is divided by its own sum, and all by the whole sum",
          lambda old, new, factor: Rescaling(factor, factor, new),
          lambda e: divide(e, e.sum(axis=-1, keepdims=True)), graded=False),
)  # fmt: skip


# --- split keys, merged -----------------------------------------------------------------------------------------------


class Division(NamedTuple):
    """How the keys are split: into `kind`."""

    kind: str
    n: int

    def __str__(self) -> str:
        return self.kind.format(n=self.n)

    def cut(self, K: int) -> list[int]:
        """Return where all parts but the first begin."""
        if self.kind == FIRST:
            return [self.n][: self.n < K]
        if self.kind == EQUAL:
            return [*np.cumsum([len(part) for part in np.array_split(np.arange(K), self.n)])[:-1]]
        size = self.n if self.kind == BLOCKS_OF else max(-(-K // self.n), 1)
        return list(range(size, K, size))


BLOCKS_OF, FIRST = "blocks of {n} keys", "the first {n} keys and the rest"
EQUAL, SHORTER = "{n} parts", "{n} parts, the last one shorter"
DIVISIONS = (
    *(Division(kind, n) for kind in (FIRST, BLOCKS_OF) for n in BLOCKS),
    *(Division(kind, n) for kind in (EQUAL, SHORTER) for n in (2, 4, 8, 16, 32)),
)
MOST_PARTS = 64

Share = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""share(totals, logs): the weight of each part by its sum of exponentials and its log-sum-exp less the largest one."""


def merge_by(share: Share, slope: float) -> Callable[..., list[Changed]]:
    """Weigh the parts' outputs otherwise. slope: of a share's logarithm by the log-sum-exp, for constant maxima."""

    def change(call: Call, division: Division) -> list[Changed]:
        steps, scores = call.steps, call.forward.scores
        cuts = division.cut(scores.shape[-1])
        if not 0 < len(cuts) < MOST_PARTS:
            return []
        parts: list[np.ndarray] = []
        logs, totals, of_sink = [], [], np.zeros(1)
        for part in np.split(scores, cuts, axis=-1):
            sinks = None if parts else steps.sinks  # the sink belongs to the first part
            maximum = row_maximum(part, sinks)
            exponentials = np.exp(part - maximum)
            total = exponentials.sum(axis=-1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks - maximum)
                of_sink = np.exp(sinks - maximum) / total
            parts.append(divide(exponentials, total))
            totals.append(total)
            logs.append(maximum + np.log(total))
        whole = np.max(logs, axis=0)
        shares = share(np.array(totals), np.array(logs) - np.where(np.isfinite(whole), whole, 0))
        shares = divide(shares, shares.sum(axis=0))
        weights = np.concatenate([s * part for s, part in zip(shares, parts, strict=True)], axis=-1)

        def pull(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
            mean = np.sum(weights * gradient, axis=-1, keepdims=True)
            pieces = np.split(gradient, cuts, axis=-1)
            means = [np.sum(p * g, axis=-1, keepdims=True) for p, g in zip(parts, pieces, strict=True)]
            own = np.concatenate([np.broadcast_to(m, g.shape) for m, g in zip(means, pieces, strict=True)], axis=-1)
            sinks = None if steps.sinks is None else shares[0] * of_sink * (slope * (means[0] - mean) - means[0])
            return weights * (gradient - own + slope * (own - mean)), sinks

        return weigh_by(call, weights, pull)

    return change


MERGED = tuple(
    TOPIC.entry(f"merged-{name}", f"the keys are split, and their parts merged {words} ({{division}})",
                merge_by(share, slope), operations=("attention",), division=DIVISIONS)
    for name, words, share, slope in (
        ("with-equal-weights", "with equal weights", lambda totals, logs: (totals > 0) * 1.0, 0.0),
        ("in-base-2", "by natural log-sum-exps as if they were in base 2", lambda t, logs: np.exp2(logs), LOG2),
        ("as-natural", "by log-sum-exps in base 2 as if they were natural", lambda t, logs: np.exp(logs / LOG2),
         1 / LOG2),
        ("by-sums", "by their sums, without their maxima", lambda totals, logs: totals, 1.0),
    )
)  # fmt: skip


# --- sinks ------------------------------------------------------------------------------------------------------------


def find_seen_blocks(allowed: np.ndarray, block: int) -> np.ndarray:
    """Whether a key of each block is seen, [.., blocks]; of no keys, no blocks."""
    starts = np.arange(0, allowed.shape[-1], block)
    return np.asarray(np.logical_or.reduceat(allowed, starts, axis=-1)) if starts.size else allowed


SINK_COUNTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "once for each block": lambda seen: np.full(seen.shape[:-1], seen.shape[-1]),
    "once for each block that a row sees": lambda seen: seen.sum(axis=-1),
    "twice": lambda seen: np.full(seen.shape[:-1], 2),
    "twice where the first block is hidden": lambda seen: 2 - seen[..., 0],
    "only where a row sees the first block": lambda seen: seen[..., 0],
    "only where a row sees the last block": lambda seen: seen[..., -1],
}


def count_sink(call: Call, how: str, block: int) -> AttentionSteps | None:
    if call.steps.sizes[-1] == 0:
        return None
    times = SINK_COUNTS[how](find_seen_blocks(call.steps.allowed_pairs, block))
    return call.steps.change(sinks=call.steps.sinks + np.log(times.astype(float))[..., None])


def subtract_infinities(call: Call) -> Results | None:
    """-inf - -inf where a row sees nothing and its sink is -inf."""
    rows = ~call.steps.allowed_pairs.any(axis=-1, keepdims=True) & (call.steps.sinks == -np.inf)
    return {"output": np.where(rows, np.nan, call.forward.output)} if rows.any() else None


# --- blocks that a row does not see -----------------------------------------------------------------------------------


def skip_blocks(call: Call, by: str, block: int) -> AttentionSteps | None:
    """Skip a block of keys for all where one sees nothing of it; the first query skips none before its first key."""
    steps, K = call.steps, call.steps.sizes[-1]
    if not steps.allowed_pairs.size:
        return None
    seen = np.asarray(steps.allowed_pairs[SKIPS[by]].any(axis=(0, 1, 2)))
    read = seen[::block] if by == "its first key" else find_seen_blocks(seen, block)
    read[0] |= by == "the first query"
    visible = steps.visible & read.repeat(block)[:K]
    return None if np.array_equal(visible, steps.visible) else steps.change(visible=visible)


SKIPS: dict[str, tuple[slice, ...]] = {
    "batch element 0 and head 0": (slice(1), slice(1)),
    "its first key": (),
    "the last query": (slice(None), slice(None), slice(-1, None)),
    "the first query": (slice(None), slice(None), slice(1)),
}


MISTAKES = (
    *ONLINE,
    *MERGED,
    TOPIC.entry("sink-counted", "the sink counts {how} (blocks of {block} keys)", count_sink, needs=("sinks",),
                how=tuple(SINK_COUNTS), block=BLOCKS),
    TOPIC.entry("infinite-sink-nan", "rows that see nothing are NaN beside a sink of -inf", subtract_infinities,
                operations=("attention",), needs=("sinks",)),
    TOPIC.entry("skipped", "a block of {block} keys is skipped for all where {by} sees nothing of it", skip_blocks,
                rule="MASK-2", by=tuple(SKIPS), block=(16, *BLOCKS)),
    TOPIC.entry("rows-empty-by-first-batch-element", "rows are empty where those of batch element 0 are",
                lambda call: call.steps.change(
                    visible=call.steps.visible & call.steps.allowed_pairs[:1].any(axis=-1, keepdims=True)),
                rule="ATT-6", operations=("attention",)),
)  # fmt: skip
NAMED = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    NAMED["output-not-rescaled"].choose(block=16),
    NAMED["rescaled-lazily"].choose(limit=8.0, block=16),
    *(NAMED["merged-as-natural"].choose().limit(past("K", n)) for n in (64, 16384)),
    *(NAMED["merged-with-equal-weights"].choose().limit(past("K", n)) for n in (128, 32768)),
    NAMED["merged-by-sums"].choose(division=Division(SHORTER, 32)).limit(Condition("K", past=1023, features=("gqa",))),
    *(NAMED["sink-counted"].choose(how=how, block=32) for how in SINK_COUNTS),
    NAMED["sink-counted"].choose(block=512),
    NAMED["skipped"].choose(by="its first key"),
    *(replace(NAMED["skipped"].choose(by=by), rule=rule) for by, rule in
      (("the last query", "MASK-4"), ("the first query", "MASK-3"))),
)  # fmt: skip
