"""Sizes of attention, as a subject takes them."""

from __future__ import annotations

from typing import NamedTuple

from conformance.declaration import Declaration


class Sizes(NamedTuple):
    """B batch, H query heads, G key heads, Q queries, K keys, D width of query and key, V of value."""

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int
    V: int


def adapted(s: Sizes, declaration: Declaration) -> Sizes:
    """The sizes as the subject takes them."""
    multiple = declaration.width_multiple
    D, V = (-(-width // multiple) * multiple for width in (s.D, s.V))
    return Sizes(
        s.B,
        s.H,
        s.G if "gqa" in declaration else s.H,
        s.Q,
        s.K if "cross" in declaration else s.Q,
        D,
        V if "value_width" in declaration else D,
    )
