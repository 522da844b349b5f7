"""Many tests check functions of the same parameters with the same seed: their cases are drawn once in a process.

Hypothesis takes most of the time of a small check. Cases may be shared: a run gives the same ones to all its subjects,
each of which has the arrays copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from conformance.judge import judgement, run
from conformance.sampling.draws import Material, drawn

LARGEST = 100_000
"""Bytes of the arrays of a case that is kept."""


def draw_once() -> None:
    for name in ("catalogue", "plain", "showing"):
        setattr(judgement, name, once(getattr(judgement, name)))
    run.drawn = drawn_once


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same result for equal arguments, so that strategies can be told apart by identity."""
    known: dict[str, Any] = {}

    def kept(*arguments: Any) -> Any:
        key = repr(arguments)
        if key not in known:
            known[key] = arguments, function(*arguments)  # whose addresses in `key` are then nobody else's
        return known[key][1]

    return kept


KNOWN: dict[tuple[int, int, int], tuple[Material, list[tuple[int, Any]]]] = {}


def drawn_once(material: Material, count: int, seed: int) -> Iterator[tuple[int, Any]]:
    """As `drawn`; kept are whole series of small cases."""
    key = id(material), count, seed
    if key in KNOWN:
        yield from KNOWN[key][1]
        return
    series = []
    for one in drawn(material, count, seed):
        series.append(one)
        yield one
    if sum(size(case) for _, case in series) <= LARGEST:
        KNOWN[key] = material, series


def size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if is_dataclass(value):
        return sum(size(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return sum(map(size, value)) if isinstance(value, list | tuple) else 0
