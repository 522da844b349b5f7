"""What a rotary embedding does, as plain values that are hashable and free of arrays (POS-3, POS-4); and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["DynamicScaling", "LinearScaling", "Llama3Scaling", "LongRopeScaling", "Rotary", "Rotation", "YarnScaling"]

PAIRINGS = ("halves", "interleaved")


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every frequency divided by `factor`, as if positions were (Chen et al., 2023)."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class DynamicScaling:
    """A base that grows once a sequence is longer than `original_length`, so that the slowest pair keeps its range.

    Frequencies depend on the length of the sequence (dynamic NTK; `rope_type` "dynamic" of Hugging Face).
    """

    factor: float
    original_length: int


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """Fast pairs kept, slow ones divided by `factor`, a ramp between them (Peng et al., YaRN, 2023).

    beta_fast, beta_slow: turns within `original_length` from which, and up to which, a pair counts as fast or slow.
    attention_factor: of sine and cosine; None is 0.1 ln(factor) + 1. truncate: whether the ends of the ramp are whole
    numbers of pairs.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Long waves slowed down by `factor`, short ones kept, those between mixed, as in Llama 3.1."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling:
    """A divisor for every pair: one list up to `original_length`, another past it (Ding et al., LongRoPE, 2024).

    attention_factor: of sine and cosine; None is sqrt(1 + ln(factor) / ln(original_length)), and 1 for a factor of at
    most 1.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_length: int
    factor: float = 1.0
    attention_factor: float | None = None


Scaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling
SCALINGS = (LinearScaling, DynamicScaling, YarnScaling, Llama3Scaling, LongRopeScaling)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How queries and keys are rotated by their positions.

    base: the pair p of a width W turns by position * base^(-2p / W). width: W, of the first columns of a head; None for
    all, and what is past them is left as it is. pairing: a pair is (p, p + W / 2) in "halves", (2p, 2p + 1)
    "interleaved". scaling: of the frequencies.
    """

    base: float = 10000.0
    width: int | None = None
    pairing: str = "halves"
    scaling: Scaling | None = None


class Rotation(NamedTuple):
    """Sine and cosine of the angles of T positions, times the attention factor, [1, T, W / 2] each."""

    sine: Any
    cosine: Any
