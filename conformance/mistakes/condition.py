"""When a mistake shows: past a size, in a partial tile, in some dtypes, with a feature, in one of the two passes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from conformance.mistakes.call import Call

Passes = Literal["both", "forward", "backward"]


@dataclass(frozen=True)
class Condition:
    """What must hold of a case for a mistake to show.

    Attributes:
        axis: an `AxisName` of `checks/findings.py`, or "BH" for batch elements times query heads.
        past: the axis is larger than this.
        up_to: the axis is no larger than this; None for no limit.
        partial: the axis is no multiple of this; 0 for no such condition. whole: the axis is a multiple of this.
        dtypes: the case has one of these; empty for all.
        features: the case has all of these `Call.features`. lacks: it has none of these.
        passes: the pass whose results are wrong.
    """

    axis: str = ""
    past: int = 0
    up_to: int | None = None
    partial: int = 0
    whole: int = 0
    dtypes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    passes: Passes = "both"

    def holds(self, call: Call) -> bool:
        if self.dtypes and call.case.dtype not in self.dtypes:
            return False
        size = size_of(call, self.axis) if self.axis else 0
        if self.axis and not (
            (not self.past or size > self.past)
            and (self.up_to is None or size <= self.up_to)
            and (not self.partial or size % self.partial != 0)
            and (not self.whole or size % self.whole == 0)
        ):
            return False
        if not (self.features or self.lacks):
            return True
        return call.features.issuperset(self.features) and call.features.isdisjoint(self.lacks)

    @property
    def requirements(self) -> dict[str, Any]:
        """The fields that ask for something."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    @property
    def clauses(self) -> int:
        """How many things it asks for; the fewer, the simpler."""
        asked = (self.past, self.up_to is not None, self.partial, self.whole, self.dtypes, self.passes != "both")
        return sum(map(bool, asked)) + len(self.features) + len(self.lacks)


ALWAYS = Condition()


def size_of(call: Call, axis: str) -> int:
    """The size of an axis of the case; 0 where the case has no such axis."""
    sizes = call.sizes
    if axis in ("H", "BH"):
        heads = sizes.get("G", 0) * sizes.get("S", 1)
        return heads * sizes.get("B", 1) if axis == "BH" else heads
    return sizes.get(axis, 0)


def past(axis: str, size: int, *, partial: bool = False, **others: object) -> Condition:
    """More than `size` along an axis; with `partial`, only where the last tile of `size` is not whole."""
    return Condition(axis, size, partial=size if partial else 0, **others)  # type: ignore[arg-type]
