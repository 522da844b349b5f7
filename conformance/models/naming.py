"""Names of a model's steps, the same in every implementation."""

from __future__ import annotations

from collections import Counter
from typing import Any

ORDINARY = ("attend", "transform", "normalize", "multi_head_attention", "linear", "embedding", "learned_positions")
"""Steps that are named after the parameters that they are given first."""
EMBEDDINGS = "sentence embeddings"
WIDE = " in float64"
"""Ends the names of steps that are judged in float64 beside the model's own dtype."""


def paths(value: Any, path: str = "") -> dict[int, str]:
    """The path of every structure and array inside a structure, by identity."""
    found = {id(value): path}
    if isinstance(value, list | tuple):
        for name, part in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            if part is not None:
                found |= paths(part, f"{path}.{name}".removeprefix("."))
    return found


class Namer:
    """Gives every call of a step a name: the path of its parameters, or what follows the step before it.

    A step that is taken again has the same name again, so that what is computed twice can be told to be the same.
    """

    def __init__(self, parameters: Any) -> None:
        self.paths = paths(parameters)
        self.kept = parameters  # alive, so that no identity is given away
        self.last, self.count = "", Counter[str]()

    def __call__(self, step: str, first: Any) -> str:
        way = " gradient" if step.endswith("_vjp") else ""
        kind = step.removesuffix("_vjp")
        if kind in ORDINARY and id(first) in self.paths:
            self.last = (self.paths[id(first)] or "attention") + way
            self.count.clear()
            return self.last
        self.count[kind] += 1
        number = "" if self.count[kind] == 1 else f" {self.count[kind]}"
        return f"{self.last}: {kind}{number}{way}" if self.last else f"{kind}{number}{way}"
