"""Calls that must be refused, each for the rule that it breaks, with a TypeError or ValueError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conformance.cases import Case
from conformance.subjects import Subject
from specification import Causal, KeyLengths, KeyPadding, Segments, SlidingWindow


class Refusal(NamedTuple):
    """A case that breaks a rule, and the error that it must raise."""

    rule: str
    title: str
    error: type[Exception]
    case: Case


def refused(subject: Subject, refusal: Refusal) -> str:
    """Empty if the subject refuses as it should; else what it did instead."""
    case = refusal.case
    try:
        with subject.framework.context():
            subject.results(case.operation, *subject.arrays(case))
    except refusal.error as error:
        return "" if str(error) else f"raised {refusal.error.__name__} without a message"
    except Exception as error:
        return f"raised {type(error).__name__}, expected {refusal.error.__name__}: {error}"
    return f"accepted, expected {refusal.error.__name__}"


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 5 - 2).astype(dtype)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


def attention(rule: str, title: str, error: type[Exception], **changes: Any) -> Refusal:
    """Attention with B=2, H=4, G=2, Q=3, K=5, D=6, V=7, and some of its arguments changed."""
    inputs: dict[str, Any] = {"query": array(2, 4, 3, 6), "key": array(2, 2, 5, 6), "value": array(2, 2, 5, 7)}
    names = ("query", "key", "value", "bias", "sinks")
    inputs |= {name: value for name, value in changes.items() if name in names}
    options = {name: value for name, value in changes.items() if name not in names}
    return Refusal(rule, title, error, Case("attention", "float32", inputs, options))


def layer_norm(rule: str, title: str, error: type[Exception], eps: float = 1e-5, **changes: Any) -> Refusal:
    inputs = {"x": array(2, 3, 6), "weight": array(6), "bias": array(6)} | changes
    return Refusal(rule, title, error, Case("layer_norm", "float32", inputs, {"eps": eps}))


def other(rule: str, title: str, error: type[Exception], operation: str, inputs: Any, **options: Any) -> Refusal:
    return Refusal(rule, title, error, Case(operation, "float32", inputs, options))


def multi_head(**changes: Any) -> dict[str, np.ndarray]:
    inputs = {"query": array(2, 3, 6), "key": array(2, 5, 6), "value": array(2, 5, 6)}
    inputs |= {f"{name}.weight": array(6, 8) for name in ("query", "key", "value")}
    return inputs | {"output.weight": array(8, 6)} | changes


NETWORK: Callable[[], dict[str, np.ndarray]] = lambda: {  # noqa: E731
    "x": array(2, 3, 6),
    "inner.weight": array(6, 9),
    "outer.weight": array(9, 6),
}

REFUSALS = (
    attention("MASK-1", "a mask of 0 and 1", TypeError, mask=np.ones((3, 5), np.int64)),
    attention("MASK-1", "an additive mask", TypeError, mask=np.zeros((3, 5), np.float32)),
    attention("MASK-1", "an additive padding mask", TypeError, mask=KeyPadding(np.zeros((2, 5), np.float32))),
    attention("MASK-3", "causal without offset, Q != K", ValueError, mask=Causal()),
    attention("MASK-3", "a fractional offset", TypeError, mask=Causal(1.5)),
    attention("MASK-3", "offsets for another batch", ValueError, mask=Causal(np.array([0, 1, 2]))),
    attention("MASK-4", "a window without offset, Q != K", ValueError, mask=SlidingWindow(1, 1)),
    attention("MASK-4", "a negative window", ValueError, mask=SlidingWindow(-1, 1, 0)),
    attention("MASK-5", "a mask of rank 1", ValueError, mask=ones(5)),
    attention("MASK-5", "a mask of rank 3", ValueError, mask=ones(2, 3, 5)),
    attention("MASK-5", "a mask [batch, keys]", ValueError, mask=ones(2, 5)),
    attention("MASK-5", "a mask [4, 1, 3, 5] for batch 2", ValueError, mask=ones(4, 1, 3, 5)),
    attention("MASK-5", "lengths beyond K", ValueError, mask=KeyLengths(np.array([5, 6]))),
    attention("MASK-5", "negative lengths", ValueError, mask=KeyLengths(np.array([-1, 2]))),
    attention("MASK-5", "ids of another length", ValueError,
              mask=Segments(np.zeros((2, 5), int), np.zeros((2, 5), int))),
    attention("ATT-1", "scale NaN", ValueError, scale=float("nan")),
    attention("ATT-1", "scale infinite", ValueError, scale=float("inf")),
    attention("ATT-1", "width 0", ValueError, query=array(2, 4, 3, 0), key=array(2, 2, 5, 0)),
    attention("ATT-2", "softcap 0", ValueError, softcap=0.0),
    attention("ATT-2", "softcap negative", ValueError, softcap=-1.0),
    attention("ATT-3", "a bias of integers", TypeError, bias=np.zeros((3, 5), np.int32)),
    attention("ATT-3", "a bias of rank 3", ValueError, bias=array(4, 3, 5)),
    attention("ATT-5", "sinks for the key heads", ValueError, sinks=array(2)),
    attention("ATT-6", "an unknown kind of empty row", ValueError, empty_rows="one"),
    attention("ATT-7", "4 query heads, 3 key heads", ValueError, key=array(2, 3, 5, 6), value=array(2, 3, 5, 7)),
    attention("ATT-8", "query of rank 3", ValueError, query=array(2, 3, 6)),
    attention("ATT-8", "widths that differ", ValueError, key=array(2, 2, 5, 4)),
    attention("ATT-8", "values for other keys", ValueError, value=array(2, 2, 4, 7)),
    attention("ATT-8", "batches that differ", ValueError, key=array(1, 2, 5, 6), value=array(1, 2, 5, 7)),
    attention("ATT-9", "integers", TypeError, query=array(2, 4, 3, 6, dtype="int32")),
    attention("ATT-9", "mixed dtypes", TypeError, value=array(2, 2, 5, 7, dtype="float16")),
    attention("ATT-11", "rate 1", ValueError, dropout_keep=ones(2, 4, 3, 5), dropout_rate=1.0),
    attention("ATT-11", "a rate without a keep mask", ValueError, dropout_rate=0.5),
    attention("ATT-11", "a keep mask of another shape", ValueError, dropout_keep=ones(3, 5), dropout_rate=0.5),
    other("ATT-14", "parts that do not match", ValueError, "merge_attention",
          {"outputs[0]": array(2, 4, 3, 7), "logsumexps[0]": array(2, 4, 5)}),
    other("MHA-1", "3 heads of 8 columns", ValueError, "multi_head_attention", multi_head(), num_heads=3),
    other("MHA-1", "weight [out, in]", ValueError, "multi_head_attention",
          multi_head(**{"query.weight": array(8, 6)}), num_heads=2),
    other("MHA-2", "an output for other widths", ValueError, "multi_head_attention",
          multi_head(**{"value.weight": array(6, 10)}), num_heads=2),
    layer_norm("NORM-1", "weight of another width", ValueError, weight=array(5)),
    layer_norm("NORM-1", "eps 0", ValueError, eps=0.0),
    layer_norm("NORM-2", "mixed dtypes", TypeError, weight=array(6, dtype="float16")),
    other("NORM-7", "the unbiased deviation of one element", ValueError, "standard_deviation_norm",
          {"x": array(3, 1), "weight": array(1), "bias": array(1)}, eps=1e-6),
    other("POS-1", "an unknown exponent", ValueError, "sinusoidal_positions", {}, length=3, width=4, exponent="one"),
    other("POS-2", "a position past the table", ValueError, "learned_positions", {"table": array(4, 3)}, length=5),
    other("EMB-1", "an id past the vocabulary", ValueError, "embedding",
          {"table": array(4, 3), "ids": np.array([0, 4])}),
    other("EMB-1", "a negative id", ValueError, "embedding", {"table": array(4, 3), "ids": np.array([0, -1])}),
    other("EMB-1", "ids that are no integers", TypeError, "embedding", {"table": array(4, 3), "ids": array(2)}),
    other("FFN-1", "an unknown activation", ValueError, "feed_forward", NETWORK(), activation="swish"),
    other("FFN-1", "layers that do not fit", ValueError, "feed_forward",
          NETWORK() | {"outer.weight": array(8, 6)}),
)  # fmt: skip
