"""The cases of the suite: small ones, and longer ones for a CPU and for a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.timing.timed_case import Case, both_ways


def attention(name: str, length: int, **fields: Any) -> Case:
    """Queries as many as keys unless fields say otherwise."""
    return Case(f"{name}, T={length}", **({"Q": length, "K": length} | fields))


def causal(length: int, **fields: Any) -> Case:
    return attention("causal", length, kind="causal", series="causal", **fields)


def layer_norm(batch: int, length: int, width: int) -> Case:
    return Case(f"layer norm, {batch}x{length}x{width}", "layer_norm", B=batch, Q=length, D=width, H=1, G=1)


def mixture(name: str, tokens: int, **sizes: Any) -> Case:
    return Case(f"{name}, T={tokens}", "mixture_of_experts", Q=tokens, H=1, G=1, **sizes)


GROUPED: dict[str, Any] = {"H": 8, "G": 2}
MIXTRAL = {"D": 1024, "F": 3584, "X": 8, "chosen": 2}
"""A quarter of Mixtral's widths."""
OLMOE = {"D": 1024, "F": 1024, "X": 64, "chosen": 8}
"""OLMoE's networks, between rows of half its width."""

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
    *(mixture("mixture, 2 of 8 experts", tokens, **MIXTRAL) for tokens in (1, 16, 256, 4096)),
    *(mixture("mixture, 8 of 64 experts", tokens, **OLMOE) for tokens in (1, 16, 256, 4096)),
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
