"""What is timed: an operation at its real size, with inputs and a mask that are drawn afresh for every call.

A mask keeps its number of allowed pairs from one draw to the next: lengths change places among the batch elements, and
packed segments change their order. So every trial of a case is the same amount of work.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy.masks import allowed_pairs
from specification import Causal, KeyLengths, Segments, SlidingWindow

WARM_UP, BEFORE, TRIAL, AFTER, MEMORY = range(5)
"""What a call is for: the first word of its seed."""

Arrays = dict[str, np.ndarray]

FORWARD, BOTH = "forward", "forward + backward"
INPUTS = {"attention": ("query", "key", "value"), "layer_norm": ("x", "weight", "bias")}
"""The arguments of an operation in their order: what gradients are asked of."""


@dataclass(frozen=True)
class Case:
    """query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V]; layer norm has x [B, Q, D], over its last axis.

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
        return dtype_of(self).itemsize

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs, and of the cotangent where there is a backward pass."""
        if self.operation == "layer_norm":
            found = {"x": (self.B, self.Q, self.D), "weight": (self.D,), "bias": (self.D,)}
            output = found["x"]
        else:
            B, H, G, Q, K, D, V = self.B, self.H, self.G, self.Q, self.K, self.D, self.V
            found = {"query": (B, H, Q, D), "key": (B, G, K, D), "value": (B, G, K, V)}
            output = (B, H, Q, V)
        return found | ({"cotangent": output} if self.backward else {})


def dtype_of(case: Case) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, case.dtype) if case.dtype == "bfloat16" else case.dtype)


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
    return array.astype(dtype_of(case), copy=False)


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


# --- the lists --------------------------------------------------------------------------------------------------------


def both_ways(case: Case) -> tuple[Case, Case]:
    series = f"{case.series}, {BOTH}" if case.series else ""
    return case, replace(case, name=f"{case.name}, {BOTH}", direction=BOTH, series=series)


def attention(name: str, length: int, **fields: Any) -> Case:
    """Queries as many as keys unless fields say otherwise."""
    return Case(f"{name}, T={length}", **({"Q": length, "K": length} | fields))


def causal(length: int, **fields: Any) -> Case:
    return attention("causal", length, kind="causal", series="causal", **fields)


def layer_norm(batch: int, length: int, width: int) -> Case:
    return Case(f"layer norm, {batch}x{length}x{width}", "layer_norm", B=batch, Q=length, D=width, H=1, G=1)


GROUPED: dict[str, Any] = {"H": 8, "G": 2}

CASES = (
    attention("short", 64),
    attention("dense", 2048),
    *(causal(length) for length in (128, 512, 2048, 4096, 8192, 16384)),
    *(both_ways(causal(length))[1] for length in (512, 2048, 4096, 8192, 16384)),
    *both_ways(attention("causal window 256", 4096, kind="window", window=256, H=4, G=4)),
    attention("causal window 256", 16384, kind="window", window=256, H=4, G=4),
    *both_ways(attention("lengths", 1024, kind="lengths", B=8)),
    *both_ways(attention("8 segments", 4096, kind="segments", segments=8, H=4, G=4)),
    *both_ways(attention("causal, 8 heads on 2", 2048, kind="causal", **GROUPED)),
    Case("decode, one query, K=8192, 8 heads on 2", Q=1, K=8192, **GROUPED),
    Case("decode, lengths, B=8, K=8192, 8 heads on 2", B=8, Q=1, K=8192, kind="lengths", **GROUPED),
    *both_ways(layer_norm(8, 512, 768)),
    *both_ways(layer_norm(4, 2048, 1024)),
)
"""On a CPU, in float32."""

QUICK = (
    attention("short", 64),
    *(causal(length) for length in (256, 1024)),
    both_ways(causal(512))[1],
    attention("causal window 128", 1024, kind="window", window=128, H=4, G=4),
    attention("lengths", 256, kind="lengths", B=4),
    Case("decode, one query, K=2048, 8 heads on 2", Q=1, K=2048, **GROUPED),
    both_ways(layer_norm(2, 256, 768))[1],
)
"""Small ones of most kinds."""

LARGE: dict[str, Any] = {"B": 2, "H": 16, "G": 16, "D": 128, "V": 128, "dtype": "bfloat16"}
CUDA_CASES = (
    attention("short", 64, dtype="bfloat16"),
    attention("dense", 2048),
    *both_ways(attention("dense", 4096, **LARGE)),
    *(causal(length, **LARGE) for length in (512, 2048, 4096, 8192, 16384)),
    *(both_ways(causal(length, **LARGE))[1] for length in (512, 2048, 4096, 8192, 16384)),
    *both_ways(attention("causal window 256", 8192, kind="window", window=256, **LARGE)),
    *both_ways(attention("lengths", 4096, kind="lengths", **(LARGE | {"B": 8}))),
    *both_ways(attention("8 segments", 8192, kind="segments", segments=8, **LARGE)),
    *both_ways(attention("causal, 16 heads on 4", 4096, kind="causal", **(LARGE | {"G": 4}))),
    Case("decode, one query, K=16384, 16 heads on 4", Q=1, K=16384, **(LARGE | {"G": 4})),
    *both_ways(replace(layer_norm(8, 4096, 4096), dtype="bfloat16")),
)
"""On a GPU, in bfloat16 but for one."""


def cases(device: str, quick: bool) -> tuple[Case, ...]:
    return QUICK if quick else CUDA_CASES if device == "cuda" else CASES
