"""Sizes of attention, as a subject takes them."""

from __future__ import annotations

from typing import NamedTuple

from conformance.cases.declaration import Declaration


class Sizes(NamedTuple):
    """B batch, H query heads, G key heads, Q queries, K keys, D width of query and key, V of value."""

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int
    V: int


def adapt_sizes(s: Sizes, declaration: Declaration) -> Sizes:
    """The sizes as the subject takes them: within its limits, widths in its multiples or the nearest that it takes."""
    limits = declaration.limits
    heads = min(s.H, limits.get("heads", s.H))
    ratio = s.H // max(s.G, 1) if "gqa" in declaration else 1
    ratio = max(1, min(ratio, heads, limits.get("group_ratio", ratio)))
    groups = min(s.G if "gqa" in declaration else s.H, heads // ratio)
    Q = min(s.Q, limits.get("queries", s.Q), s.Q if "cross" in declaration else limits.get("keys", s.Q))
    K = min(s.K, limits.get("keys", s.K)) if "cross" in declaration else Q
    D, V = width(s.D, "key_width", declaration), width(s.V, "value_width", declaration)
    V = V if "value_width" in declaration else D
    if declaration.head_widths:
        D, V = nearest(D, V, declaration)
    batch = min(s.B, limits.get("batch", s.B))
    return Sizes(batch, groups * ratio, groups, Q, K, D, V)


def nearest(D: int, V: int, declaration: Declaration) -> tuple[int, int]:
    """Of the widths that the subject takes; two alike where values of another width are not asked for."""
    alike = [pair for pair in declaration.head_widths if pair[0] == pair[1]]
    pairs = declaration.head_widths if "value_width" in declaration else alike or declaration.head_widths
    return min(pairs, key=lambda pair: abs(pair[0] - D) + abs(pair[1] - V))


def width(size: int, name: str, declaration: Declaration) -> int:
    """The next multiple that the subject takes, unless that is beyond its limit."""
    multiple, limit = declaration.width_multiple, declaration.limits.get(name)
    whole = -(-size // multiple) * multiple
    return whole if limit is None else min(whole, limit // multiple * multiple)
