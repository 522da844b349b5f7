"""Where a result is wrong: which places along each of its axes, as ranges and strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from conformance.cases.arguments import is_gradient
from conformance.cases.facts import operation_facts
from conformance.checks.comparison import ratio
from conformance.diagnosis.evidence import Evidence
from conformance.runner.dimensions import layout_of

Kind = Literal["all", "one", "from", "up to", "range", "every", "some"]
STRIDES = (2, 3, 4, 8, 16, 32)


@dataclass(frozen=True)
class Places:
    """The wrong places along one axis of a result.

    axis: names of the dimensions that it is made of. kind: "from" (and after) or "up to" (and with) a place, "range" of
    `count` places from `start` on, "every" `stride`-th from `start` on, "one", "some" or "all". size: how many places
    there are. count: how many are wrong.
    """

    axis: tuple[str, ...]
    kind: Kind
    size: int
    count: int
    start: int = 0
    stride: int = 1


@dataclass(frozen=True)
class Pattern:
    """The wrong elements of one result. share: how many of its elements are wrong."""

    result: str
    places: tuple[Places, ...]
    share: float


def find_pattern(evidence: Evidence) -> Pattern | None:
    """The pattern of the first wrong result, output before gradients; None where nothing is wrong."""
    name = next((name for name in evidence.answers if name in evidence.wrong), None)
    if name is None:
        return None
    call, got = evidence.call, evidence.answers[name]
    wrong = ratio(got.astype(float), call.exact[name], call.bounds[name], str(got.dtype)) > 1
    if is_gradient(name):
        axes = layout_of(call.case).arrays.get(name.removeprefix("gradient of "), ())
    else:
        axes = operation_facts(call.case.operation).axes(call.case)[1].get(f"-> {name}", ())
    axes = axes if len(axes) == wrong.ndim else ((),) * wrong.ndim  # none where the operation names no axes
    places = (find_places(axis, np.asarray(wrong.any(axis=tuple(j for j in range(wrong.ndim) if j != i))))
              for i, axis in enumerate(axes))  # fmt: skip
    return Pattern(name, tuple(places), float(wrong.mean()) if wrong.size else 0.0)


def same_places(one: Pattern | None, other: Pattern | None) -> bool:
    """Whether two patterns are of one result and the same places, however many places there are."""
    if one is None or other is None:
        return False
    places = ([(p.axis, p.kind, p.start, p.stride) for p in pattern.places] for pattern in (one, other))
    return one.result == other.result and next(places) == next(places)


def find_places(axis: tuple[str, ...], wrong: np.ndarray) -> Places:
    """Describe which of the places are wrong, the simplest description that is exact."""
    indices, size = np.flatnonzero(wrong), wrong.size
    count = indices.size
    if count == size:
        return Places(axis, "all", size, count)
    first, last = int(indices[0]), int(indices[-1])
    if count == 1:
        return Places(axis, "one", size, count, first)
    if last == size - 1 and count == last - first + 1:
        return Places(axis, "from", size, count, first)
    if first == 0 and count == last + 1:
        return Places(axis, "up to", size, count, last)
    if count == last - first + 1:
        return Places(axis, "range", size, count, first)
    for stride in STRIDES:
        if np.array_equal(indices, np.arange(first, size, stride)):
            return Places(axis, "every", size, count, first, stride)
    return Places(axis, "some", size, count, first)
