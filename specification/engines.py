"""The algorithms that a port may have for attention beside the definition's steps, and the choice among them.

"reference" takes the definition's steps, and every call. "blocked" computes block by block, and skips what the mask
rules out. "fused" uses the framework's own kernels. Each keeps every rule of SPEC.md, and is never given a call in
which it would not.
"""

from __future__ import annotations

from typing import NamedTuple

ENGINES = ("reference", "blocked", "fused")


class Choice(NamedTuple):
    """The engine that takes a call, why it does, and for each engine that cannot take it what hinders it."""

    engine: str
    why: str
    hindrances: dict[str, str]


def choose(engine: str, hindrances: dict[str, str], preferred: str, why: str) -> Choice:
    """Choose the engine that takes a call, by its name, or "auto" for the preferred one, and say why.

    hindrances: by engine, why it cannot take this call. ValueError for an unknown engine, and for one that cannot.
    """
    if engine == "auto":
        return Choice(preferred, why, hindrances)
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of auto, {', '.join(ENGINES)}, got {engine!r}")
    if engine in hindrances:
        raise ValueError(f"engine {engine!r} cannot take this call: {hindrances[engine]}")
    return Choice(engine, "asked for by name", hindrances)
