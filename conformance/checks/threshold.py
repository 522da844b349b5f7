"""At which sizes a violation shows, as facts. `reports/threshold_sentences.py` makes the sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# fmt: off
AxisName = Literal[
    "B", "G", "S", "H", "Q", "K", "D", "V", "parts", "rows", "W", "E", "E of key", "E of value", "inner", "output",
    "vocabulary", "classes", "length", "T", "offset", "H D", "G D", "G V", "H V",
]
# fmt: on
"""Dimensions as `cases/facts.py` names them, without numbers; H: all query heads. Of multi-head attention, the columns
of the projections of query, key and value, and of the outputs of all heads."""

Kind = Literal[
    "first", "up to", "from", "no power of two", "power of two", "no multiple", "multiple", "product", "listed"
]


@dataclass(frozen=True)
class Threshold:
    """At which sizes a violation shows, and at which not.

    axes: whose sizes they are: one axis, several that change together, or the two of a product.
    kind: the simplest rule that agrees with all that was tried. "first": wrong from a size on. "product": wrong where
        the product of both sizes passes a number. "listed": no rule agrees.
    wrong, right: the sizes that were tried, in order; of a product those of the first axis, nearest to where it begins.
    above: it is wrong at sizes above this one only; 0 for none.
    multiple: of which the wrong sizes are a multiple, or no multiple.
    beside: of a product, the size of the second axis.
    """

    axes: tuple[AxisName, ...]
    kind: Kind
    wrong: tuple[int, ...]
    right: tuple[int, ...]
    above: int = 0
    multiple: int = 0
    beside: int = 0

    @property
    def is_listed(self) -> bool:
        """Whether no rule agrees with all that was tried: of "first", where a larger size is right again."""
        return self.kind == "listed" or (self.kind == "first" and self.right[-1] > self.wrong[0])

    @property
    def last_right(self) -> int:
        """The largest size that is right below the first wrong one."""
        return max(size for size in self.right if size < self.wrong[0])
