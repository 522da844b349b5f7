"""What makes a lesson of an operation's page: its idea, and the symbols of its formulas."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

LABEL = re.compile(r"\\text\{[^}]*\}: ?\\quad")
"""The name of a formula, which stands before it."""
TOKEN = re.compile(r"\\text\{([^}]*)\}|\\([a-zA-Z]+)|(e\^|[A-Za-z])")
KNOWN = {
    "frac", "sqrt", "sum", "left", "right", "quad", "qquad", "cdot", "le", "dots", "leftarrow", "mid", "mathsf", "T",
    "log", "tanh", "sin", "cos", "e^",
}  # fmt: skip
"""Layout, functions that everybody knows, the base of exponentials, and transposition."""


class Symbol(NamedTuple):
    latex: str
    shape: str
    meaning: str


class Lesson(NamedTuple):
    idea: str
    symbols: tuple[Symbol, ...]


@cache
def lessons() -> Mapping[str, Lesson]:
    """Return the lessons by the name of the operation."""
    found = tomllib.loads((Path(__file__).parent / "lessons.toml").read_text(encoding="utf-8"))
    return {
        name: Lesson(" ".join(one["idea"].split()), tuple(Symbol(*symbol) for symbol in one["symbols"]))
        for name, one in found.items()
    }


def names(latex: str) -> set[str]:
    """Return the names in a formula that a reader may not know."""
    tokens = TOKEN.findall(LABEL.sub("", latex.replace(r"^{\mathsf T}", "")))
    return {next(filter(None, token)).strip() for token in tokens} - KNOWN


def unexplained(formulas: tuple[str, ...], symbols: tuple[Symbol, ...]) -> set[str]:
    """Return the names that stand in the formulas or among the symbols, and not in both."""
    there: set[str] = set().union(*map(names, formulas))
    return there ^ set().union(*(names(symbol.latex) for symbol in symbols))
