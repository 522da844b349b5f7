"""Every mask description on one small grid, in all three packages."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.cases.case import brief
from conformance.side_by_side.sources import LABELS
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Or, map_arrays
from study.examples.parts import Part, Shown, Table, counted
from study.examples.running import all_equal, in_each, named

if TYPE_CHECKING:
    from conformance.subjects.frameworks import Framework
    from specification.masks import Mask

QUERIES, KEYS, BEFORE = 4, 6, 2
"""Four queries, which stand behind two keys of earlier positions, as in decoding with a cache."""


class Reading(NamedTuple):
    """A description, and the boolean array that each package makes of it."""

    mask: Any
    arrays: dict[str, np.ndarray]

    @property
    def title(self) -> str:
        return written(self.mask)


def written(mask: Mask | None) -> str:
    """The description as one writes it."""
    if isinstance(mask, And | Or):
        return f"{written(mask.left)} {'&' if isinstance(mask, And) else '|'} {written(mask.right)}"
    if isinstance(mask, Dense):
        return "Dense(array)"
    return brief(map_arrays(mask, lambda array: array.tolist()))


@cache
def descriptions() -> dict[str, tuple[Any, ...]]:
    """By what they have in common."""
    causal, lengths = Causal(offset=BEFORE), KeyLengths(np.array([6, 4]))
    checkerboard = Dense(np.indices((QUERIES, KEYS)).sum(axis=0) % 2 == 0)
    return {
        "By position": (
            causal,
            SlidingWindow(left=1, right=0, offset=BEFORE),
            SlidingWindow(left=None, right=1, offset=BEFORE),
            Causal(offset=np.array([2, -1])),
        ),
        "By content": (
            lengths,
            KeyPadding(np.array([[True, True, False, True, True, False]])),
            Segments(np.array([[0, 1, 1, 2]]), np.array([[0, 0, 0, 1, 1, 2]])),
            checkerboard,
        ),
        "Combined": (
            causal & lengths,
            SlidingWindow(left=1, right=0, offset=BEFORE) | checkerboard,
        ),
    }


SAYS = {
    "By position": "1 means that the query may attend to the key. Query i stands at position i + offset. With an "
    "offset for each sequence of a batch there is a table for each. If an offset is so small that a query has no key, "
    "its row is empty.",
    "By content": "Lengths and padding exclude keys that are not real tokens; segments separate sequences that share a "
    "row; `Dense` is the array itself.",
    "Combined": "`&` allows what both sides allow, `|` what either does.",
}


def reading(mask: Mask | None) -> Reading:
    def read(package: ModuleType, framework: Framework) -> np.ndarray:
        return framework.numpy(package.materialize(map_arrays(mask, framework.array), QUERIES, KEYS))

    return Reading(mask, in_each(read))


def parts() -> list[Part]:
    return [
        part(title, [named(f"the example {written(mask)}", reading, mask) for mask in masks])
        for title, masks in descriptions().items()
    ]


def part(title: str, readings: list[Reading]) -> Part:
    labels = counted("query", QUERIES), counted("key", KEYS)
    steps = [Shown(one.title, next(iter(one.arrays.values())), *labels) for one in readings]
    table = Table(
        "What all three allow",
        ("description", *LABELS.values(), "the same"),
        tuple(row_of(one) for one in readings),
    )
    same = sum(all_equal(one.arrays) for one in readings)
    verdict = (
        f"{same} of {len(readings)} are the same in all three, element by element: with truth values nothing rounds."
    )
    call = f"materialize(description, {QUERIES}, {KEYS})"
    return Part(title, SAYS[title], call, (), tuple(steps), (table,), verdict, heading="What they allow")


def row_of(one: Reading) -> tuple[str, ...]:
    counts = (f"{int(array.sum())} of {array.size} pairs" for array in one.arrays.values())
    return (one.title, *counts, "yes" if all_equal(one.arrays) else "no")
