"""Many tests check functions of the same parameters with the same seed: their cases are drawn once in a process.

Hypothesis takes most of the time of a small check. Cases may be shared: a run gives the same ones to all its subjects,
each of which has the arrays copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import numpy as np
import pytest

from conformance.judge import plan, trial
from conformance.sampling.draws import CaseStrategy, draw_cases

LARGEST = 100_000
"""Bytes of the arrays of a series of cases that is kept."""
STRATEGIES = ("catalogue", "plain_cases", "feature_cases")
"""Functions of the judge that make strategies."""


def draw_once() -> None:
    for name in STRATEGIES:
        setattr(plan, name, once(getattr(plan, name)))
    trial.draw_cases = drawn_once


def draw_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that changes what strategies are made from."""
    for name in STRATEGIES:
        monkeypatch.setattr(plan, name, getattr(plan, name).__wrapped__)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same result for equal arguments, so that strategies can be told apart by identity."""
    known: dict[str, Any] = {}

    @wraps(function)
    def kept(*arguments: Any) -> Any:
        key = repr(arguments)
        if key not in known:
            known[key] = arguments, function(*arguments)  # whose addresses in `key` are then nobody else's
        return known[key][1]

    return kept


KNOWN: dict[tuple[int, int, int], tuple[CaseStrategy, list[tuple[int, Any]]]] = {}


def drawn_once(strategy: CaseStrategy, count: int, seed: int) -> Iterator[tuple[int, Any]]:
    """The cases of `draw_cases`, kept where they are small."""
    key = id(strategy), count, seed
    if key in KNOWN:
        yield from KNOWN[key][1]
        return
    series = []
    for one in draw_cases(strategy, count, seed):
        series.append(one)
        yield one
    if sum(size(case) for _, case in series) <= LARGEST:
        KNOWN[key] = strategy, series


def size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if is_dataclass(value):
        return sum(size(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return sum(map(size, value)) if isinstance(value, list | tuple) else 0
