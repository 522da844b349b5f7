"""What is timed: an operation at its real size, with inputs and a mask that are drawn afresh for every call.

A mask keeps its number of allowed pairs from one draw to the next: lengths change places among the batch elements, and
packed segments change their order. So every trial of a case is the same amount of work.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases.case import numpy_dtype
from reference_numpy.masks import allowed_pairs
from specification import Causal, GatedFeedForward, KeyLengths, Linear, MixtureOfExperts, Segments, SlidingWindow

WARM_UP, BEFORE, TRIAL, AFTER, MEMORY = range(5)
"""What a call is for: the first word of its seed."""

Arrays = dict[str, np.ndarray]

FORWARD, BOTH = "forward", "forward + backward"
INPUTS = {
    "attention": ("query", "key", "value"), "layer_norm": ("x", "weight", "bias"), "mixture_of_experts": ("x",)
}  # fmt: skip
"""The arguments of an operation in their order: what gradients are asked of."""
FUNCTIONS = ("attention", "layer_norm")
"""Operations of which a plain function can be timed; a mixture has parameters of more than one form."""


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
    def inputs(self) -> tuple[str, ...]:
        return INPUTS[self.operation]

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
        if self.operation != "attention":
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


@lru_cache(maxsize=1)
def mixture_weights(case: Case) -> Arrays:
    """A mixture's weights, the same in every call: views [in, out] of [out, in], as which models store them."""
    random, (X, D, F) = generator(0, case), (case.X, case.D, case.F)
    shapes = {"router": (X, D), "experts.gate": (X, F, D), "experts.inner": (X, F, D), "experts.outer": (X, D, F)}
    found: Arrays = {}
    for name, shape in shapes.items():
        array: Any = random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        found[f"{name}.weight"] = array.astype(numpy_dtype(case.dtype), copy=False).swapaxes(-1, -2)
    return found


def mixture_parameters(case: Case, array: Callable[[np.ndarray], Any]) -> MixtureOfExperts:
    """The same in the definition's structure, of the framework that `array` makes arrays of."""
    router, *network = (Linear(array(weight)) for weight in mixture_weights(case).values())
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
