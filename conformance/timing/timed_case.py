"""What is timed: an operation at its real size, with inputs and a mask that are drawn afresh for every call.

A mask keeps its number of allowed pairs from one draw to the next: lengths change places among the batch elements, and
packed segments change their order. So every trial of a case is the same amount of work.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import numpy_dtype
from reference_numpy.masks import allowed_pairs
from specification import Causal, GatedFeedForward, KeyLengths, Linear, MixtureOfExperts, Segments, SlidingWindow

WARM_UP, BEFORE, TRIAL, AFTER, MEMORY = range(5)
"""What a call is for: the first word of its seed."""

Arrays = dict[str, np.ndarray]

FORWARD, BOTH = "forward", "forward + backward"


class TimedOperation(NamedTuple):
    """What sets an operation apart.

    inputs: its arguments in their order: what gradients are asked of. row_size: how many numbers a result's row is
    computed from, in all of its heads that are looked at together. by_head: whether arrays are [B, heads, T, width]; of
    others all rows [B * T, D] are one head's. own_weights: whether it has weights that are the same in every call.
    """

    inputs: tuple[str, ...]
    row_size: Callable[[Case], int]
    by_head: bool = False
    own_weights: bool = False


OPERATIONS = {
    "attention": TimedOperation(("query", "key", "value"), lambda case: case.K * (case.H // case.G), by_head=True),
    "layer_norm": TimedOperation(("x", "weight", "bias"), lambda case: case.D),
    "mixture_of_experts": TimedOperation(("x",), lambda case: case.chosen * case.D * case.F, own_weights=True),
}
FUNCTIONS = tuple(name for name, facts in OPERATIONS.items() if not facts.own_weights)
"""Operations of which a plain function can be timed. Weights have more than one form."""


@dataclass(frozen=True)
class Case:
    """query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V]; layer norm has x [B, Q, D], over its last axis.

    A mixture of experts has x [B, Q, D], and `chosen` of X networks of D, F and D numbers for each token.
    kind: which pairs are allowed: "dense" (all), "causal", "window" (the last `window` keys, the query's own among
    them), "lengths" (of every batch element, uniform in 1..K) or "segments" (`segments` packed ones).
    series: cases of one series differ in their length only; that is what growth is fitted to.
    """

    name: str
    operation: str = "attention"
    direction: str = FORWARD
    dtype: str = "float32"
    B: int = 1
    H: int = 8
    G: int = 8
    Q: int = 128
    K: int = 128
    D: int = 64
    V: int = 64
    kind: str = "dense"
    window: int = 0
    segments: int = 0
    series: str = ""
    X: int = 0
    F: int = 0
    chosen: int = 0

    @property
    def backward(self) -> bool:
        return self.direction == BOTH

    @property
    def facts(self) -> TimedOperation:
        return OPERATIONS[self.operation]

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.facts.inputs

    @property
    def results(self) -> tuple[str, ...]:
        """What a call returns, by the judge's names."""
        gradients = tuple(f"gradient of {name}" for name in self.inputs) if self.backward else ()
        return "output", *gradients

    @property
    def itemsize(self) -> int:
        return numpy_dtype(self.dtype).itemsize

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs, and of the cotangent where there is a backward pass."""
        if not self.facts.by_head:
            found = {"x": (self.B, self.Q, self.D), "weight": (self.D,), "bias": (self.D,)}
            found, output = {name: found[name] for name in self.inputs}, found["x"]
        else:
            B, H, G, Q, K, D, V = self.B, self.H, self.G, self.Q, self.K, self.D, self.V
            found = {"query": (B, H, Q, D), "key": (B, G, K, D), "value": (B, G, K, V)}
            output = (B, H, Q, V)
        return found | ({"cotangent": output} if self.backward else {})


def generator(seed: int, case: Case, *words: int) -> np.random.Generator:
    """The same numbers for the same run, case and words."""
    return np.random.default_rng([seed, zlib.crc32(case.name.encode()), *words])


def inputs(case: Case, seed: int, *words: int) -> Arrays:
    """All inputs, and the cotangent, of one call."""
    return {name: one_input(case, name, seed, *words) for name in case.shapes}


def one_input(case: Case, name: str, seed: int, *words: int) -> np.ndarray:
    """Standard normal numbers; layer norm's rows have a mean, and its weights are near 1."""
    random = generator(seed, case, *words, *name.encode())
    array: Any = random.standard_normal(case.shapes[name], np.float32)
    if name in ("x", "weight"):
        array = array + np.float32(0.5) if name == "x" else 1 + array / 8
    return array.astype(numpy_dtype(case.dtype), copy=False)


def mixture_weights(case: Case) -> Arrays:
    """A mixture's weights, the same in every call: views [in, out] of [out, in], as which models store them."""
    return draw_weights(case.X, case.D, case.F, case.dtype)


@lru_cache(maxsize=1)
def draw_weights(X: int, D: int, F: int, dtype: str) -> Arrays:
    """Those of all cases of these sizes, by the names that the judge has for them."""
    random = np.random.default_rng([X, D, F])
    shapes = {"router": (X, D), "experts.gate": (X, F, D), "experts.inner": (X, F, D), "experts.outer": (X, D, F)}
    found: Arrays = {}
    for name, shape in shapes.items():
        array: Any = random.standard_normal(shape, np.float32)
        array *= np.float32(shape[-1] ** -0.5)
        found[f"{name}.weight"] = array.astype(numpy_dtype(dtype), copy=False).swapaxes(-1, -2)
    return found


def mixture_parameters(case: Case, array: Callable[[np.ndarray], Any]) -> MixtureOfExperts:
    """The same in the definition's structure, of the framework that `array` makes arrays of."""
    return join_parameters(mixture_weights(case), array)


def join_parameters(weights: Arrays, array: Callable[[np.ndarray], Any]) -> MixtureOfExperts:
    router, *network = (Linear(array(weight)) for weight in weights.values())
    return MixtureOfExperts(router, GatedFeedForward(*network))


def both_ways(case: Case) -> tuple[Case, Case]:
    series = f"{case.series}, {BOTH}" if case.series else ""
    return case, replace(case, name=f"{case.name}, {BOTH}", direction=BOTH, series=series)


# --- masks ------------------------------------------------------------------------------------------------------------


def mask(case: Case, seed: int, *words: int) -> Any:
    """The description for one call; None where every pair is allowed.

    Lengths are spread evenly over the keys. Segments have at least one key, and lengths about as 1 to 2 to 3.
    """
    if case.kind == "causal":
        return Causal()
    if case.kind == "window":
        return SlidingWindow(case.window - 1, 0)
    order = generator(seed, case, *words)  # the seed draws no more than the order: every run does the same work
    if case.kind == "lengths":
        lengths = np.ceil((np.arange(case.B) + 0.45) * case.K / case.B).astype(int)  # 0.5 would fill whole tiles
        return KeyLengths(order.permutation(lengths))
    if case.kind == "segments":
        numbers = np.arange(case.segments + 1)
        shares = numbers * (numbers + 1) / (case.segments * (case.segments + 1))
        ends = numbers + np.round(shares * (case.K - case.segments)).astype(int)
        ids = np.repeat(np.arange(case.segments, dtype=np.int32), order.permutation(np.diff(ends)))[None]
        return Segments(ids, ids)
    return None


PAIRS_AT_ONCE = 2**22


def blocks_of_rows(case: Case) -> Iterator[slice]:
    """Queries, as many at a time as have so many pairs."""
    size = max(1, PAIRS_AT_ONCE // (case.B * case.K))
    return (slice(start, min(start + size, case.Q)) for start in range(0, case.Q, size))


def dense_mask(case: Case, description: Any) -> np.ndarray:
    """The mask as a boolean array that broadcasts to [B, H, Q, K]; lengths as [B, 1, 1, K]."""
    if isinstance(description, KeyLengths):
        return np.array(allowed_pairs(description, 1, case.K))
    parts = [allowed_pairs(description, case.Q, case.K, rows) for rows in blocks_of_rows(case)]
    return np.concatenate(parts, axis=2)
