"""Scores gone wrong: scale, softcap, bias, ALiBi's slopes; and dropout of the weights (ATT-1 to ATT-3, ATT-11)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  (names bfloat16 to NumPy)
import numpy as np

from conformance.cases.case import Case
from conformance.mistakes.attention_steps import AttentionSteps, places_of
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import answer_with, change_options
from conformance.mistakes.condition import Condition, past, size_of
from conformance.mistakes.mistake import Change, Changed, Topic, name_entries

TOPIC = Topic("scores")
entry, entries = TOPIC.entry, TOPIC.entries

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


def change_scale(change: Callable[..., float]) -> Change:
    """`change(scale, D, **values)`, from the scale that is used."""

    def change_case(call: Call, **values: object) -> Case | None:
        new = change(call.steps.scale, size_of(call, "D"), **values)
        return None if new == call.steps.scale else change_options(call.case, scale=float(new))

    return change_case


def take_root_of_scale(call: Call) -> Results | None:
    """NaN of every row that has a key."""
    rows = call.steps.allowed_pairs.any(axis=-1, keepdims=call.case.operation != "attention_logsumexp")
    return {"output": np.where(rows, np.nan, call.right["output"])} if call.steps.scale < 0 else None


USE_DEFAULT = answer_with(scale=None)
GIVEN = ("scale",)
SCALE = (
    entry("default-scale", "the default scale is {scale}", change_default_scale, rule="ATT-1",
          scale=tuple(DEFAULT_SCALES)),
    entry("scale-ignored", "the given scale is ignored: 1 / sqrt(D) is used", USE_DEFAULT, rule="ATT-1",
          lacks="scale", needs=GIVEN),
    entry("scale-of-zero-taken-for-none", "a scale of 0 is taken for none: 1 / sqrt(D) is used",
          lambda call: None if call.steps.scale else USE_DEFAULT(call), rule="ATT-1", needs=GIVEN),
    *entries(change_scale,
             ("scale-on-top-of-default", "the given scale is multiplied by 1 / sqrt(D)", lambda s, D: s * D**-0.5),
             ("scale-divides", "the given scale divides the scores", lambda s, D: 1 / s if s else s),
             rule="ATT-1", needs=GIVEN),
    *entries(change_scale,
             ("scale-twice", "the scale is applied twice", lambda s, D: s * s),
             ("root-of-scale", "the root of the scale is used once", lambda s, D: abs(s) ** 0.5),
             ("scale-sign-lost", "the scale's sign is lost, as by its root on query and on key", lambda s, D: abs(s)),
             rule="ATT-1"),
    entry("root-of-negative-scale", "the root of a scale below 0 is taken: it is NaN", take_root_of_scale,
          rule="ATT-1"),
    entry("scale-rounded", "the scale is rounded to {dtype}",
          change_scale(lambda s, D, dtype: float(np.asarray(s).astype(dtype))), rule="ATT-1",
          dtype=("float16", "bfloat16", "float32")),
)  # fmt: skip

# --- softcap and bias as formulas -------------------------------------------------------------------------------------

Score = Callable[..., Any]
"""score(steps, products, **values), with complex numbers too, which tell its slope."""


def score_otherwise(score: Score) -> Change:
    """Scores by another formula."""
    return lambda call, **values: call.steps.change(score=lambda steps, products: score(steps, products, **values))


def cap_after_mask(call: Call) -> list[Changed]:
    """Forbidden scores are -softcap, and count; rows that allow nothing hold zeros or a mean."""
    s, allowed = call.steps, call.steps.visible
    capped = s.change(
        score=lambda steps, p: np.where(allowed, steps.cap(p) + steps.bias, steps.bias - steps.softcap),
        visible=np.broadcast_to(allowed.any(axis=-1, keepdims=True), allowed.shape),
    )
    return [capped, capped.change(visible=np.ones_like(allowed))]


def cap_after_bias(call: Call) -> list[Changed]:
    """-inf in the bias still forbids, or is -softcap."""
    s, allowed = call.steps, call.steps.open
    c = np.asarray(s.softcap)
    return [
        s.change(score=lambda steps, p: steps.cap(p + steps.bias)),
        s.change(open=np.ones_like(allowed), score=lambda steps, p: np.where(allowed, steps.cap(p + steps.bias), -c)),
    ]


def keep_bits(array: np.ndarray, bits: int) -> Any:
    """Rounded to so many bits after the point; with the slope of what is not rounded."""
    return array + (np.round(array.real * 2.0**bits) / 2.0**bits - array.real)


CAPPED: dict[str, Any] = {"rule": "ATT-2", "needs": ("softcap",)}
BIASED: dict[str, Any] = {"rule": "ATT-3", "needs": ("bias",)}
FORMULAS = (
    *entries(score_otherwise,
             ("softcap-ignored", "softcap is ignored", lambda s, p: p + s.bias, {"lacks": "softcap"}),
             ("softcap-before-scale", "the softcap comes before the scale",
              lambda s, p: (s.scale * s.cap(p / s.scale) if s.scale else p) + s.bias),
             ("clipped-at-softcap", "scores are clipped at the softcap, without tanh",
              lambda s, p: np.clip(p, -s.softcap, s.softcap) + s.bias),
             ("softcap-not-multiplied-back", "the softcap is not multiplied back in",
              lambda s, p: np.tanh(p / s.softcap) + s.bias),
             ("not-divided-by-softcap", "scores are not divided by the softcap",
              lambda s, p: s.softcap * np.tanh(p) + s.bias),
             ("tanh-of-few-bits", "the softcap's tanh has {bits} bits",
              lambda s, p, bits: s.softcap * keep_bits(np.tanh(p / s.softcap), bits) + s.bias, {"bits": (11, 10, 8)}),
             **CAPPED),
    entry("softcap-after-mask", "the softcap comes after the mask: forbidden scores are -softcap", cap_after_mask,
          rule="ATT-2", needs=("softcap", "mask")),
    entry("softcap-after-bias", "bias is added before the softcap", cap_after_bias, rule="ATT-3",
          needs=("softcap", "bias")),
    *entries(score_otherwise,
             ("bias-ignored", "finite numbers in the bias are ignored", lambda s, p: s.cap(p), {"lacks": "bias"}),
             ("bias-twice", "bias is added twice", lambda s, p: s.cap(p) + 2 * s.bias),
             ("bias-subtracted", "bias is subtracted", lambda s, p: s.cap(p) - s.bias),
             ("bias-scaled", "bias is multiplied by the scale", lambda s, p: s.cap(p) + s.bias * s.scale),
             ("bias-divided-by-scale", "bias is divided by the scale",
              lambda s, p: s.cap(p) + (s.bias / s.scale if s.scale else 0)),
             ("bias-cut", "the bias of keys past {first} is ignored",
              lambda s, p, first: s.cap(p) + np.where(np.arange(p.shape[-1]) < first, s.bias, 0),
              {"first": (64, 128, 256, 512, 1024, 2048, 4096, 16384, 65535)}),
             **BIASED),
    entry("clipped", "scores are clipped to lie between -{limit} and {limit}",
          score_otherwise(lambda s, p, limit: np.clip(s.cap(p) + s.bias, -limit, limit)), rule="ATT-10",
          limit=(50, 5, 10, 20, 30, 80, 88, 100)),
)  # fmt: skip

# --- inputs read at other places --------------------------------------------------------------------------------------


def read_bias(read: Callable[..., np.ndarray]) -> Change:
    """Read a bias of rank 4 as `read(places, **values)` rearranges its places."""

    def change(call: Call, **values: object) -> AttentionSteps | None:
        places = places_of(call.steps.bias)
        read_places = np.broadcast_to(read(places, **values), places.shape)
        return None if np.array_equal(read_places, places) else call.steps.read_elsewhere(bias=read_places)

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
    bias = case.inputs["bias"]
    narrow = bias.astype(case.dtype).astype(bias.dtype)
    return None if str(bias.dtype) == case.dtype else replace(case, inputs=case.inputs | {"bias": narrow})


BIAS = (
    *entries(read_bias,
             ("bias-of-batch-0", "bias of batch element 0 is used for all", lambda bias: bias[:1]),
             ("bias-transposed", "the bias is transposed",
              lambda bias: bias.swapaxes(2, 3) if bias.shape[2] == bias.shape[3] else bias),
             ("bias-by-columns", "the bias is read column by column",
              lambda bias: bias.reshape(*bias.shape[:2], bias.shape[3], bias.shape[2]).swapaxes(2, 3)),
             ("bias-of-first-row", "each row has the bias of the first row", lambda bias: bias[:, :, :1]),
             ("bias-of-blocks-first-row",
              "the bias of a block's first row is used for all its rows (blocks of {block} rows)",
              lambda bias, block: bias[:, :, np.arange(bias.shape[2]) // block * block],
              {"block": (32, 2, 4, 8, 16, 64, 128, 256)}),
             **BIASED),
    entry("bias-of-other-heads", "head h has the bias of head {order}",
          lambda call, order: None if call.steps.bias.shape[1] < 2 else read_bias(
              lambda bias: bias[:, order_heads(call, order)])(call), order=tuple(HEAD_ORDERS), **BIASED),
    entry("bias-rounded", "the bias is rounded to the inputs' dtype", round_bias, **BIASED),
)  # fmt: skip

# --- ALiBi ------------------------------------------------------------------------------------------------------------


def bias_by_slopes(bias: Callable[..., Any]) -> Change:
    """`bias(slopes, place, call, **values)`, of slopes [B or 1, H, 1, 1], and how far keys lie behind [Q, K]."""

    def change(call: Call, **values: object) -> AttentionSteps:
        slopes, (_, _, Q, K) = call.case.inputs["alibi_slopes"].astype(float), call.steps.sizes
        place = np.arange(Q)[:, None] + K - Q - np.arange(K)
        found = bias(np.atleast_2d(slopes)[..., None, None], place, call, **values)
        return call.steps.change(bias=found, bias_shape=None)

    return change


ALIBI = entries(
    bias_by_slopes,
    ("alibi-ignored", "ALiBi's slopes are ignored", lambda slopes, place, call: 0 * slopes),
    ("alibi-from-first", "ALiBi's bias is |i - j|, from the first query and key",
     lambda slopes, place, call: -slopes * np.abs(place - place[:1, :1])),
    ("alibi-sign", "ALiBi's bias is added with the wrong sign", lambda slopes, place, call: slopes * np.abs(place)),
    ("alibi-raises-later-keys", "ALiBi's bias raises keys behind the query's place",
     lambda slopes, place, call: -slopes * place),
    ("alibi-scaled", "ALiBi's bias is multiplied by the scale",
     lambda slopes, place, call: -slopes * np.abs(place) * call.steps.scale),
    ("alibi-of-batch-0", "ALiBi's slopes of the first batch element are used for all",
     lambda slopes, place, call: -slopes[:1] * np.abs(place)),
    ("alibi-of-other-heads", "head h has ALiBi's slope of head {order}",
     lambda slopes, place, call, order: -slopes[:, order_heads(call, order)] * np.abs(place),
     {"order": tuple(HEAD_ORDERS)}),
    ("alibi-rounded", "ALiBi's slopes are rounded to {dtype}",
     lambda slopes, place, call, dtype: -slopes.astype(dtype).astype(float) * np.abs(place),
     {"dtype": ("bfloat16", "float16")}),
    rule="ATT-3", needs=("alibi_slopes",),
)  # fmt: skip

# --- dropout ----------------------------------------------------------------------------------------------------------


def drop_otherwise(factor: Callable[[np.ndarray, float], Any]) -> Change:
    """What weights are multiplied with, from the keep mask and the rate."""

    def change(call: Call) -> AttentionSteps:
        keep, rate = call.case.options["dropout_keep"], call.case.options.get("dropout_rate", 0.0)
        return call.steps.change(factor=factor(np.asarray(keep), np.float64(rate)))

    return change


def drop_scores(call: Call) -> AttentionSteps:
    factor = call.steps.factor
    return call.steps.change(factor=1.0, score=lambda s, p: (s.cap(p) + s.bias) * factor)


def drop_pairs_before_softmax(call: Call) -> list[Changed]:
    """The same as normalising again afterwards, but for a sink, which that leaves out."""
    masked = call.steps.change(factor=1.0, visible=call.steps.visible & call.case.options["dropout_keep"])
    return [masked] if masked.sinks is None else [masked, masked.change(sinks=None)]


DROPPING: dict[str, Any] = {"rule": "ATT-11", "operations": ("attention",), "needs": ("dropout_keep",)}
DROPOUT = (
    *entries(drop_otherwise,
             ("dropout-ignored", "dropout is ignored", lambda keep, rate: 1.0, {"lacks": "dropout"}),
             ("dropout-not-rescaled", "weights that dropout keeps are not divided by 1 - rate",
              lambda keep, rate: keep * 1.0),
             ("dropout-by-rate", "weights that dropout keeps are divided by the rate", lambda keep, rate: keep / rate),
             ("dropout-multiplies", "weights that dropout keeps are multiplied by 1 - rate",
              lambda keep, rate: keep * (1 - rate)),
             ("dropout-inverted", "what is to be kept is dropped", lambda keep, rate: ~keep / (1 - rate)),
             ("dropout-of-head-0", "the keep mask of head 0 is used for all",
              lambda keep, rate: keep[:, :1] / (1 - rate)),
             ("dropout-moved", "the keep mask is read one key too far",
              lambda keep, rate: np.roll(keep, 1, axis=-1) / (1 - rate)),
             **DROPPING),
    entry("dropout-of-scores", "dropout is applied to the scores, not to the weights", drop_scores, **DROPPING),
    entry("dropout-before-softmax", "dropout comes before the softmax, or weights are normalised again after it",
          drop_pairs_before_softmax, **DROPPING),
)  # fmt: skip

MISTAKES = (*SCALE, *FORMULAS, *BIAS, *ALIBI, *DROPOUT)
ENTRIES = name_entries(MISTAKES)
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
"""The definition has no slopes: who makes mistakes of ALiBi cannot be planted."""
