"""Scores gone wrong: scale, softcap, bias, ALiBi's slopes; and dropout of the weights (ATT-1 to ATT-3, ATT-11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  (names bfloat16 to NumPy)
import numpy as np

from conformance.cases.case import Case
from conformance.mistakes.attention_steps import AttentionSteps, places_of
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import change_options
from conformance.mistakes.condition import Condition, past, size_of
from conformance.mistakes.mistake import ATTENTION, Change, Changed, Mistake

DROPPING = ("attention",)


def entry(
    id: str,
    rule: str,
    says: str,
    change: Change,
    operations: tuple[str, ...] = ATTENTION,
    *,
    lacks: str = "",
    **parameters: Sequence[Any],
) -> Mistake:
    return Mistake(id, rule, says, change, operations, parameters, lacks=lacks)


# --- scale ------------------------------------------------------------------------------------------------------------

DEFAULT_SCALES: dict[str, Callable[..., float]] = {
    "1 / sqrt(H D), of the model's width": lambda D, V, K, H: (H * D) ** -0.5,
    "1": lambda D, V, K, H: 1.0,
    "1 / D": lambda D, V, K, H: 1 / D,
    "1 / (2 D), as of D ** -1 / 2": lambda D, V, K, H: D**-1 / 2,
    "sqrt(D)": lambda D, V, K, H: D**0.5,
    "1 / sqrt(V), of the values' width": lambda D, V, K, H: V**-0.5,
    "1 / sqrt(K), of the number of keys": lambda D, V, K, H: K**-0.5,
    "1 / sqrt(H), of the number of heads": lambda D, V, K, H: H**-0.5,
    "one over the whole part of sqrt(D)": lambda D, V, K, H: 1 / math.isqrt(D),
    "that of D rounded up to a power of two": lambda D, V, K, H: (1 << (D - 1).bit_length()) ** -0.5,
    **{
        f"that of D rounded up to a multiple of {n}": lambda D, V, K, H, n=n: (-(-D // n) * n) ** -0.5
        for n in (8, 16, 32, 64)
    },
}


def change_default_scale(call: Call, scale: str) -> list[Changed]:
    """Where a scale is given it is used, or that one takes its place too."""
    sizes = {name: size_of(call, name) for name in "DVKH"}
    try:
        other = call.steps.change(scale=float(DEFAULT_SCALES[scale](**sizes)))
    except ZeroDivisionError:
        return []
    return [other] if call.case.options.get("scale") is None else [call.case, other]


def change_scale(change: Callable[..., float | None]) -> Change:
    """`change(scale, D, given, **values)`: from the scale, and whether the call gives it; None for the same."""

    def change_case(call: Call, **values: Any) -> Case | None:
        own, given = call.steps.scale, call.case.options.get("scale") is not None
        new = change(own, size_of(call, "D"), given, **values)
        return None if new is None or new == own else change_options(call.case, scale=float(new))

    return change_case


def take_root_of_scale(call: Call) -> Results | None:
    """NaN of every row that has a key."""
    rows = call.steps.allowed_pairs.any(axis=-1, keepdims=call.case.operation != "attention_logsumexp")
    return {"output": np.where(rows, np.nan, call.right["output"])} if call.steps.scale < 0 else None


def use_default_scale(call: Call, zero: bool) -> Case | None:
    given = call.case.options.get("scale")
    return None if given is None or (zero and given != 0) else change_options(call.case, scale=None)


SCALE = (
    entry("scores.default-scale", "ATT-1", "the default scale is {scale}", change_default_scale,
          scale=tuple(DEFAULT_SCALES)),
    entry("scores.scale-ignored", "ATT-1", "the given scale is ignored: 1 / sqrt(D) is used",
          partial(use_default_scale, zero=False), lacks="scale"),
    entry("scores.scale-of-zero-taken-for-none", "ATT-1", "a scale of 0 is taken for none: 1 / sqrt(D) is used",
          partial(use_default_scale, zero=True)),
    entry("scores.scale-on-top-of-default", "ATT-1", "the given scale is multiplied by 1 / sqrt(D)",
          change_scale(lambda s, D, given: s * D**-0.5 if given else None)),
    entry("scores.scale-divides", "ATT-1", "the given scale divides the scores",
          change_scale(lambda s, D, given: 1 / s if given and s else None)),
    entry("scores.scale-twice", "ATT-1", "the scale is applied twice", change_scale(lambda s, D, given: s * s)),
    entry("scores.root-of-scale", "ATT-1", "the root of the scale is used once",
          change_scale(lambda s, D, given: abs(s) ** 0.5)),
    entry("scores.scale-sign-lost", "ATT-1", "the scale's sign is lost, as by its root on query and on key",
          change_scale(lambda s, D, given: abs(s))),
    entry("scores.root-of-negative-scale", "ATT-1", "the root of a scale below 0 is taken: it is NaN",
          take_root_of_scale),
    entry("scores.scale-rounded", "ATT-1", "the scale is rounded to {dtype}",
          change_scale(lambda s, D, given, dtype: float(np.asarray(s).astype(dtype))),
          dtype=("float16", "bfloat16", "float32")),
)  # fmt: skip

# --- softcap and bias as formulas -------------------------------------------------------------------------------------

Score = Callable[..., Any]
"""score(steps, products, **values), with complex numbers too, which tell its slope."""


def score_otherwise(uses: str, score: Score) -> Change:
    """Scores by another formula, where there is an input or option of this name."""

    def change(call: Call, **values: Any) -> AttentionSteps | None:
        case = call.case
        if uses and case.inputs.get(uses, case.options.get(uses)) is None:
            return None
        return call.steps.change(score=lambda steps, products: score(steps, products, **values))

    return change


def cap_after_mask(call: Call) -> list[Changed]:
    """Forbidden scores are -softcap, and count; rows that allow nothing hold zeros or a mean."""
    s = call.steps
    if s.softcap is None or call.case.options.get("mask") is None:
        return []
    c, allowed = s.softcap, s.visible
    capped = s.change(
        score=lambda steps, p: np.where(allowed, steps.cap(p) + steps.bias, steps.bias - c),
        visible=np.broadcast_to(allowed.any(axis=-1, keepdims=True), allowed.shape),
    )
    return [capped, capped.change(visible=np.ones_like(allowed))]


def cap_after_bias(call: Call) -> list[Changed]:
    """-inf in the bias still forbids, or is -softcap."""
    s = call.steps
    if s.softcap is None or s.bias_shape is None:
        return []
    c, allowed = s.softcap, s.open
    return [
        s.change(score=lambda steps, p: steps.cap(p + steps.bias)),
        s.change(open=np.ones_like(allowed), score=lambda steps, p: np.where(allowed, steps.cap(p + steps.bias), -c)),
    ]


def keep_bits(array: Any, bits: int) -> Any:
    """Rounded to so many bits after the point; with the slope of what is not rounded."""
    return array + (np.round(array.real * 2.0**bits) / 2.0**bits - array.real)


FORMULAS = (
    entry("scores.softcap-ignored", "ATT-2", "softcap is ignored",
          score_otherwise("softcap", lambda s, p: p + s.bias), lacks="softcap"),
    entry("scores.softcap-before-scale", "ATT-2", "the softcap comes before the scale",
          score_otherwise("softcap", lambda s, p: (s.scale * s.cap(p / s.scale) if s.scale else p) + s.bias)),
    entry("scores.clipped-at-softcap", "ATT-2", "scores are clipped at the softcap, without tanh",
          score_otherwise("softcap", lambda s, p: np.clip(p, -s.softcap, s.softcap) + s.bias)),
    entry("scores.softcap-not-multiplied-back", "ATT-2", "the softcap is not multiplied back in",
          score_otherwise("softcap", lambda s, p: np.tanh(p / s.softcap) + s.bias)),
    entry("scores.not-divided-by-softcap", "ATT-2", "scores are not divided by the softcap",
          score_otherwise("softcap", lambda s, p: s.softcap * np.tanh(p) + s.bias)),
    entry("scores.tanh-of-few-bits", "ATT-2", "the softcap's tanh has {bits} bits",
          score_otherwise("softcap", lambda s, p, bits: s.softcap * keep_bits(np.tanh(p / s.softcap), bits) + s.bias),
          bits=(11, 10, 8)),
    entry("scores.softcap-after-mask", "ATT-2", "the softcap comes after the mask: forbidden scores are -softcap",
          cap_after_mask),
    entry("scores.softcap-after-bias", "ATT-3", "bias is added before the softcap", cap_after_bias),
    entry("scores.bias-ignored", "ATT-3", "finite numbers in the bias are ignored",
          score_otherwise("bias", lambda s, p: s.cap(p)), lacks="bias"),
    entry("scores.bias-twice", "ATT-3", "bias is added twice",
          score_otherwise("bias", lambda s, p: s.cap(p) + 2 * s.bias)),
    entry("scores.bias-subtracted", "ATT-3", "bias is subtracted",
          score_otherwise("bias", lambda s, p: s.cap(p) - s.bias)),
    entry("scores.bias-scaled", "ATT-3", "bias is multiplied by the scale",
          score_otherwise("bias", lambda s, p: s.cap(p) + s.bias * s.scale)),
    entry("scores.bias-divided-by-scale", "ATT-3", "bias is divided by the scale",
          score_otherwise("bias", lambda s, p: s.cap(p) + (s.bias / s.scale if s.scale else 0))),
    entry("scores.bias-cut", "ATT-3", "the bias of keys past {first} is ignored",
          score_otherwise("bias", lambda s, p, first: s.cap(p) + np.where(np.arange(p.shape[-1]) < first, s.bias, 0)),
          first=(64, 128, 256, 512, 1024, 2048, 4096, 16384, 65535)),
    entry("scores.clipped", "ATT-10", "scores are clipped to lie between -{limit} and {limit}",
          score_otherwise("", lambda s, p, limit: np.clip(s.cap(p) + s.bias, -limit, limit)),
          limit=(50, 5, 10, 20, 30, 80, 88, 100)),
)  # fmt: skip

# --- inputs read at other places --------------------------------------------------------------------------------------


def read_bias(read: Callable[..., np.ndarray]) -> Change:
    """Read a bias of rank 4 as `read(places, **values)` rearranges its places."""

    def change(call: Call, **values: Any) -> AttentionSteps | None:
        places = places_of(call.steps.bias)
        read_places = np.broadcast_to(read(places, **values), places.shape)
        if "bias" not in call.case.inputs or np.array_equal(read_places, places):
            return None
        return call.steps.read_elsewhere(bias=read_places)

    return change


HEAD_ORDERS: dict[str, Callable[[int, int], np.ndarray]] = {
    "0": lambda H, G: np.zeros(H, int),
    "h // 2 * 2": lambda H, G: np.arange(H) // 2 * 2,
    "h % G": lambda H, G: np.arange(H) % G,
    "h // (H / G)": lambda H, G: np.arange(H) // (H // G),
    "H - 1 - h": lambda H, G: np.arange(H)[::-1],
}
"""Which head's bias, sink or slope query head h has."""


def order_heads(call: Call, order: str) -> np.ndarray:
    H, G = (call.case.inputs[name].shape[1] for name in ("query", "key"))
    return HEAD_ORDERS[order](H, max(G, 1))


def round_bias(call: Call) -> Case | None:
    """To the inputs' dtype, where the bias is wider."""
    case = call.case
    if "bias" not in case.inputs or str(case.inputs["bias"].dtype) == case.dtype:
        return None
    narrow = case.inputs["bias"].astype(case.dtype).astype(case.inputs["bias"].dtype)
    return replace(case, inputs=case.inputs | {"bias": narrow})


BIAS = (
    entry("scores.bias-of-batch-0", "ATT-3", "bias of batch element 0 is used for all",
          read_bias(lambda bias: bias[:1])),
    entry("scores.bias-transposed", "ATT-3", "the bias is transposed",
          read_bias(lambda bias: bias.swapaxes(2, 3) if bias.shape[2] == bias.shape[3] else bias)),
    entry("scores.bias-by-columns", "ATT-3", "the bias is read column by column",
          read_bias(lambda bias: bias.reshape(*bias.shape[:2], bias.shape[3], bias.shape[2]).swapaxes(2, 3))),
    entry("scores.bias-of-first-row", "ATT-3", "each row has the bias of the first row",
          read_bias(lambda bias: bias[:, :, :1])),
    entry("scores.bias-of-blocks-first-row", "ATT-3",
          "the bias of a block's first row is used for all its rows (blocks of {block} rows)",
          read_bias(lambda bias, block: bias[:, :, np.arange(bias.shape[2]) // block * block]),
          block=(32, 2, 4, 8, 16, 64, 128, 256)),
    entry("scores.bias-of-other-heads", "ATT-3", "head h has the bias of head {order}",
          lambda call, order: None if call.steps.bias.shape[1] < 2 else read_bias(
              lambda bias: bias[:, order_heads(call, order)])(call), order=tuple(HEAD_ORDERS)),
    entry("scores.bias-rounded", "ATT-3", "the bias is rounded to the inputs' dtype", round_bias),
)  # fmt: skip

# --- ALiBi ------------------------------------------------------------------------------------------------------------


def bias_by_slopes(bias: Callable[..., Any], from_first: bool = False) -> Change:
    """`bias(slopes, places, call, **values)`, of slopes [B or 1, H, 1, 1] and each key's place behind its query [Q, K].

    from_first: the first query stands at the first key.
    """

    def change(call: Call, **values: Any) -> AttentionSteps | None:
        slopes, (_, _, Q, K) = call.case.inputs.get("alibi_slopes"), call.steps.sizes
        if slopes is None:
            return None
        places = np.arange(Q)[:, None] + (0 if from_first else K - Q) - np.arange(K)
        found = bias(np.atleast_2d(slopes.astype(float))[..., None, None], places, call, **values)
        return call.steps.change(bias=found, bias_shape=None)

    return change


ALIBI = (
    entry("scores.alibi-ignored", "ATT-3", "ALiBi's slopes are ignored",
          bias_by_slopes(lambda slopes, places, call: 0 * slopes)),
    entry("scores.alibi-from-first", "ATT-3", "ALiBi's bias is |i - j|, from the first query and key",
          bias_by_slopes(lambda slopes, places, call: -slopes * np.abs(places), from_first=True)),
    entry("scores.alibi-sign", "ATT-3", "ALiBi's bias is added with the wrong sign",
          bias_by_slopes(lambda slopes, places, call: slopes * np.abs(places))),
    entry("scores.alibi-raises-later-keys", "ATT-3", "ALiBi's bias raises keys behind the query's place",
          bias_by_slopes(lambda slopes, places, call: -slopes * places)),
    entry("scores.alibi-scaled", "ATT-3", "ALiBi's bias is multiplied by the scale",
          bias_by_slopes(lambda slopes, places, call: -slopes * np.abs(places) * call.steps.scale)),
    entry("scores.alibi-of-batch-0", "ATT-3", "ALiBi's slopes of the first batch element are used for all",
          bias_by_slopes(lambda slopes, places, call: -slopes[:1] * np.abs(places))),
    entry("scores.alibi-of-other-heads", "ATT-3", "head h has ALiBi's slope of head {order}",
          bias_by_slopes(lambda slopes, places, call, order: -slopes[:, order_heads(call, order)] * np.abs(places)),
          order=tuple(HEAD_ORDERS)),
    entry("scores.alibi-rounded", "ATT-3", "ALiBi's slopes are rounded to {dtype}",
          bias_by_slopes(lambda slopes, places, call, dtype: -slopes.astype(dtype).astype(float) * np.abs(places)),
          dtype=("bfloat16", "float16")),
)  # fmt: skip

# --- dropout ----------------------------------------------------------------------------------------------------------


def drop_otherwise(factor: Callable[[np.ndarray, float], Any]) -> Change:
    """What weights are multiplied with, from the keep mask and the rate."""

    def change(call: Call) -> AttentionSteps | None:
        keep, rate = call.case.options.get("dropout_keep"), call.case.options.get("dropout_rate", 0.0)
        return None if keep is None else call.steps.change(factor=factor(np.asarray(keep), np.float64(rate)))

    return change


def drop_scores(call: Call) -> AttentionSteps | None:
    factor = call.steps.factor
    if call.case.options.get("dropout_keep") is None:
        return None
    return call.steps.change(factor=1.0, score=lambda s, p: (s.cap(p) + s.bias) * factor)


def drop_pairs_before_softmax(call: Call) -> list[Changed]:
    """The same as normalising again afterwards, but for a sink, which that leaves out."""
    s, keep = call.steps, call.case.options.get("dropout_keep")
    if keep is None:
        return []
    masked = s.change(factor=1.0, visible=s.visible & keep)
    return [masked] if s.sinks is None else [masked, masked.change(sinks=None)]


DROPOUT = (
    entry("scores.dropout-ignored", "ATT-11", "dropout is ignored", drop_otherwise(lambda keep, rate: 1.0), DROPPING,
          lacks="dropout"),
    entry("scores.dropout-not-rescaled", "ATT-11", "weights that dropout keeps are not divided by 1 - rate",
          drop_otherwise(lambda keep, rate: keep * 1.0), DROPPING),
    entry("scores.dropout-by-rate", "ATT-11", "weights that dropout keeps are divided by the rate",
          drop_otherwise(lambda keep, rate: keep / rate), DROPPING),
    entry("scores.dropout-multiplies", "ATT-11", "weights that dropout keeps are multiplied by 1 - rate",
          drop_otherwise(lambda keep, rate: keep * (1 - rate)), DROPPING),
    entry("scores.dropout-inverted", "ATT-11", "what is to be kept is dropped",
          drop_otherwise(lambda keep, rate: ~keep / (1 - rate)), DROPPING),
    entry("scores.dropout-of-head-0", "ATT-11", "the keep mask of head 0 is used for all",
          drop_otherwise(lambda keep, rate: keep[:, :1] / (1 - rate)), DROPPING),
    entry("scores.dropout-moved", "ATT-11", "the keep mask is read one key too far",
          drop_otherwise(lambda keep, rate: np.roll(keep, 1, axis=-1) / (1 - rate)), DROPPING),
    entry("scores.dropout-of-scores", "ATT-11", "dropout is applied to the scores, not to the weights", drop_scores,
          DROPPING),
    entry("scores.dropout-before-softmax", "ATT-11",
          "dropout comes before the softmax, or weights are normalised again after it", drop_pairs_before_softmax,
          DROPPING),
)  # fmt: skip

MISTAKES = (*SCALE, *FORMULAS, *BIAS, *ALIBI, *DROPOUT)
ENTRIES = {mistake.id.removeprefix("scores."): mistake for mistake in MISTAKES}
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES if mistake not in ALIBI),
    *(ENTRIES["default-scale"].choose(scale=scale) for scale in tuple(DEFAULT_SCALES)[5:11]),
    ENTRIES["softcap-ignored"].limit(Condition(features=("scale",))),
    *(ENTRIES["softcap-ignored"].limit(past(*w)) for w in (("K", 64), ("K", 32768), ("D", 128), ("Q", 1024))),
    ENTRIES["bias-of-other-heads"].choose(order="h // 2 * 2"),
    *(ENTRIES["bias-of-other-heads"].choose().limit(past("H", n)) for n in (16, 64)),
    ENTRIES["bias-of-blocks-first-row"].choose(block=128),
    *(ENTRIES["bias-cut"].choose(first=n) for n in (1024, 65535)),
    *(ENTRIES["dropout-moved"].limit(past(*where)) for where in (("K", 64), ("K", 1024), ("K", 32768), ("Q", 512))),
    ENTRIES["dropout-of-head-0"].limit(past("H", 64)),
)
"""What is planted: every mistake with the first values of its parameters, and some with others or past a size.

The definition has no slopes: who makes mistakes of ALiBi cannot be planted.
"""
