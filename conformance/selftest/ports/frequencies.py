"""Frequencies of rotary positions out of a config.json, as transformers' `modeling_rope_utils` computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def compute_frequencies(config: dict[str, Any], width: int) -> tuple[np.ndarray, float]:
    """Return the frequencies [width / 2] in float64, and the factor of sine and cosine."""
    rope = config.get("rope_parameters") or {}
    base, kind = rope.get("rope_theta", 10000.0), rope.get("rope_type", "default")
    frequencies = base ** (-np.arange(0, width, 2) / width)
    if kind == "default":
        return frequencies, 1.0
    factor = rope["factor"]
    if kind == "linear":
        return frequencies / factor, 1.0
    original = rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = original * frequencies / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return kept * frequencies + (1 - kept) * frequencies / factor, 1.0
    if kind != "yarn":
        raise ValueError(f"rope_type {kind!r} is not supported")

    def find_pair(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    start = max(math.floor(find_pair(rope.get("beta_fast", 32.0))), 0)
    end = min(math.ceil(find_pair(rope.get("beta_slow", 1.0))), width - 1)
    # A ramp of no length would divide by zero; transformers makes it this long.
    slow = np.clip((np.arange(width // 2) - start) / (end - start or 0.001), 0, 1)
    return (1 - slow) * frequencies + slow * frequencies / factor, 0.1 * math.log(factor) + 1
