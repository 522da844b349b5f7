"""Calls that must be refused, each for the rule that it breaks, with a TypeError or ValueError."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.features import features_of
from conformance.cases.signatures import needed
from conformance.cases.sizes import Sizes, adapted
from conformance.subjects.subject import Subject, WrongAnswer, first_line
from specification import Causal, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import Mask

SIZES = Sizes(B=2, H=4, G=2, Q=3, K=5, D=6, V=7)
HEADS_SIZES = Sizes(B=2, H=2, G=2, Q=3, K=5, D=4, V=4)
SHAPES = frozenset({"gqa", "cross", "value_width"})
"""Features that lie in the sizes, which are the subject's own."""
Kind = type[Exception]


class Refusal(NamedTuple):
    """A case that breaks a rule, and the error that it must raise."""

    rule: str
    title: str
    error: type[Exception]
    case: Case


def refused(subject: Subject, refusal: Refusal) -> str:
    """Empty if the subject refuses as it should; else what it did instead."""
    case = subject.asked(refusal.case)
    with subject.framework.context():
        inputs, options = subject.arrays(case)
        try:
            with subject.answering:
                subject.results(case.operation, inputs, options)
        except WrongAnswer as error:
            return f"accepted, expected {refusal.error.__name__}: {error}"
        except refusal.error as error:
            return "" if first_line(error) else f"raised {refusal.error.__name__} without a message"
        except Exception as error:
            return f"raised {type(error).__name__}, expected {refusal.error.__name__}: {first_line(error)}"
    return f"accepted, expected {refusal.error.__name__}"


def refusals_of(operation: str | None, declaration: Declaration) -> list[Refusal]:
    """Those of one operation, or of all, that nothing but the rule speaks against: in sizes and in a dtype that the
    subject takes, with arguments that it has parameters for, and without those to which its conventions give a meaning.
    """
    dtype = "float32" if "float32" in declaration.dtypes else declaration.dtypes[0]
    every = (*of_attention(declaration, dtype), *of_heads(declaration, dtype), *of_layers(declaration, dtype))
    return [r for r in every if operation in (None, r.case.operation) and concerns(r.case, declaration)]


def concerns(case: Case, declaration: Declaration) -> bool:
    """Whether the subject has what the call would need, were it right."""
    if isinstance(case.options.get("mask"), Mask) and "structured" not in declaration:
        return False
    return features_of(case) - SHAPES <= declaration.features and not needed(case) & declaration.lacking


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


class Numbers:
    """Arrays of small numbers in one dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __call__(self, *shape: int, dtype: str = "") -> np.ndarray:
        name = dtype or self.dtype
        numbers = np.arange(np.prod(shape)).reshape(shape) % 5 - 2
        return numbers.astype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

    @property
    def another(self) -> str:
        """A floating dtype that may not stand beside theirs."""
        return "bfloat16" if self.dtype == "float16" else "float16"

    def refusal(self, rule: str, title: str, error: Kind, operation: str, inputs: Any, **options: Any) -> Refusal:
        return Refusal(rule, title, error, Case(operation, self.dtype, inputs, options))


def of_attention(declaration: Declaration, dtype: str) -> Iterator[Refusal]:
    """Some arguments of a call changed."""
    (B, H, G, Q, K, D, V), array = adapted(SIZES, declaration), Numbers(dtype)
    names = ("query", "key", "value", "bias", "sinks")

    def attention(rule: str, title: str, error: Kind, **changes: Any) -> Refusal:
        inputs: dict[str, Any] = {"query": array(B, H, Q, D), "key": array(B, G, K, D), "value": array(B, G, K, V)}
        inputs |= {name: value for name, value in changes.items() if name in names}
        options = {name: value for name, value in changes.items() if name not in names}
        return array.refusal(rule, title, error, "attention", inputs, **options)

    yield attention("MASK-1", "a mask of 0 and 1", TypeError, mask=np.ones((Q, K), np.int64))
    yield attention("MASK-1", "an additive mask", TypeError, mask=np.zeros((Q, K), np.float32))
    yield attention("MASK-1", "an additive padding mask", TypeError, mask=KeyPadding(np.zeros((B, K), np.float32)))
    # Who takes no other number of keys than of queries may give that as the reason, by an error of its own.
    more, refusing = (K, ValueError) if "cross" in declaration else (K + 2, Exception)
    keys = {"key": array(B, G, more, D), "value": array(B, G, more, V)}
    if declaration.convention("causal") == "explicit":
        yield attention("MASK-3", "causal without offset, Q != K", refusing, mask=Causal(), **keys)
    yield attention("MASK-3", "a fractional offset", TypeError, mask=Causal(1.5))
    yield attention("MASK-3", "offsets for another batch", ValueError, mask=Causal(np.arange(B + 1)))
    yield attention("MASK-4", "a window without offset, Q != K", refusing, mask=SlidingWindow(1, 1), **keys)
    yield attention("MASK-4", "a negative window", ValueError, mask=SlidingWindow(-1, 1, 0))
    yield attention("MASK-5", "a mask of rank 1", ValueError, mask=ones(K))
    yield attention("MASK-5", "a mask of rank 3", ValueError, mask=ones(B, Q, K))
    yield attention("MASK-5", "a mask [batch, keys]", ValueError, mask=ones(B, K))
    yield attention("MASK-5", "a mask [4, 1, 3, 5] for batch 2", ValueError, mask=ones(2 * B, 1, Q, K))
    yield attention("MASK-5", "lengths beyond K", ValueError, mask=KeyLengths(np.array([K, K + 1])))
    yield attention("MASK-5", "negative lengths", ValueError, mask=KeyLengths(np.array([-1, 2])))
    ids = Segments(np.zeros((B, Q + 2), int), np.zeros((B, K), int))
    yield attention("MASK-5", "ids of another length", ValueError, mask=ids)
    yield attention("ATT-1", "scale NaN", ValueError, scale=float("nan"))
    yield attention("ATT-1", "scale infinite", ValueError, scale=float("inf"))
    yield attention("ATT-1", "width 0", ValueError, query=array(B, H, Q, 0), key=array(B, G, K, 0))
    yield attention("ATT-2", "softcap 0", ValueError, softcap=0.0)
    yield attention("ATT-2", "softcap negative", ValueError, softcap=-1.0)
    yield attention("ATT-3", "a bias of integers", TypeError, bias=np.zeros((Q, K), np.int32))
    yield attention("ATT-3", "a bias of rank 3", ValueError, bias=array(H, Q, K))
    yield attention("ATT-5", "sinks for the key heads", ValueError, sinks=array(H // 2))
    yield attention("ATT-6", "an unknown kind of empty row", ValueError, empty_rows="one")
    refusing, misfit = ValueError if "gqa" in declaration else Exception, {"key": array(B, 3, K, D)}
    yield attention("ATT-7", "4 query heads, 3 key heads", refusing, **misfit, value=array(B, 3, K, V))
    yield attention("ATT-8", "query of rank 3", ValueError, query=array(B, Q, D))
    yield attention("ATT-8", "widths that differ", ValueError, key=array(B, G, K, D - 2))
    yield attention("ATT-8", "values for other keys", ValueError, value=array(B, G, K - 1, V))
    yield attention("ATT-8", "batches that differ", ValueError, key=array(1, G, K, D), value=array(1, G, K, V))
    yield attention("ATT-9", "integers", TypeError, query=array(B, H, Q, D, dtype="int32"))
    yield attention("ATT-9", "mixed dtypes", TypeError, value=array(B, G, K, V, dtype=array.another))
    yield attention("ATT-11", "rate 1", ValueError, dropout_keep=ones(B, H, Q, K), dropout_rate=1.0)
    yield attention("ATT-11", "a rate without a keep mask", ValueError, dropout_rate=0.5)
    another = {"dropout_keep": ones(Q, K), "dropout_rate": 0.5}
    yield attention("ATT-11", "a keep mask of another shape", ValueError, **another)


def of_heads(declaration: Declaration, dtype: str) -> Iterator[Refusal]:
    """Multi-head attention, and the merging of parts."""
    (B, H, G, Q, K, D, V), array = adapted(HEADS_SIZES, declaration), Numbers(dtype)
    E, operation = 6, "multi_head_attention"
    inputs = {"query": array(B, Q, E), "key": array(B, K, E), "value": array(B, K, E)}
    inputs |= {"query.weight": array(E, H * D), "key.weight": array(E, G * D), "value.weight": array(E, G * V)}
    inputs["output.weight"] = array(H * V, E)
    parts = {"outputs[0]": array(2, 4, 3, 7), "logsumexps[0]": array(2, 4, 5)}
    yield array.refusal("ATT-14", "parts that do not match", ValueError, "merge_attention", parts)
    if H * D % 3:
        yield array.refusal("MHA-1", "3 heads of 8 columns", ValueError, operation, inputs, num_heads=3)
    transposed = inputs | {"query.weight": array(H * D, E)}
    yield array.refusal("MHA-1", "weight [out, in]", ValueError, operation, transposed, num_heads=H)
    wider = inputs | {"value.weight": array(E, G * (V + 1))}
    yield array.refusal("MHA-2", "an output for other widths", ValueError, operation, wider, num_heads=H)


def of_layers(declaration: Declaration, dtype: str) -> Iterator[Refusal]:
    """Norms, positions, embedding, feed-forward."""
    array = Numbers(dtype)
    bias = "bias" not in declaration.lacking

    def layer_norm(rule: str, title: str, error: Kind, eps: float = 1e-5, **changes: Any) -> Refusal:
        inputs = {"x": array(2, 3, 6), "weight": array(6)} | ({"bias": array(6)} if bias else {}) | changes
        return array.refusal(rule, title, error, "layer_norm", inputs, eps=eps)

    def embedding(title: str, error: Kind, ids: np.ndarray) -> Refusal:
        return array.refusal("EMB-1", title, error, "embedding", {"table": array(4, 3), "ids": ids})

    yield layer_norm("NORM-1", "weight of another width", ValueError, weight=array(5))
    yield layer_norm("NORM-1", "eps 0", ValueError, eps=0.0)
    yield layer_norm("NORM-2", "mixed dtypes", TypeError, weight=array(6, dtype=array.another))
    row = {"x": array(3, 1), "weight": array(1)} | ({"bias": array(1)} if bias else {})
    deviation, title = "standard_deviation_norm", "the unbiased deviation of one element"
    yield array.refusal("NORM-7", title, ValueError, deviation, row, eps=1e-6)
    sinusoidal = {"length": 3, "width": 4, "exponent": "one"}
    yield array.refusal("POS-1", "an unknown exponent", ValueError, "sinusoidal_positions", {}, **sinusoidal)
    table = {"table": array(4, 3)}
    yield array.refusal("POS-2", "a position past the table", ValueError, "learned_positions", table, length=5)
    yield embedding("an id past the vocabulary", ValueError, np.array([0, 4]))
    yield embedding("a negative id", ValueError, np.array([0, -1]))
    yield embedding("ids that are no integers", TypeError, array(2))
    network = {"x": array(2, 3, 6), "inner.weight": array(6, 9), "outer.weight": array(9, 6)}
    yield array.refusal("FFN-1", "an unknown activation", ValueError, "feed_forward", network, activation="swish")
    apart = network | {"outer.weight": array(8, 6)}
    yield array.refusal("FFN-1", "layers that do not fit", ValueError, "feed_forward", apart)


REFUSALS = tuple(refusals_of(None, EVERYTHING))
