"""What makes a lesson of an operation's page: its idea, the symbols of its formulas, and formulas of gradients."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LABEL = re.compile(r"\\text\{[^}]*\}: ?\\quad")
"""The name of a formula, which stands before it."""
TOKEN = re.compile(r"\\text\{([^}]*)\}|\\([a-zA-Z]+)|(e\^|[A-Za-z])")
KNOWN = {
    "frac", "sqrt", "sum", "left", "right", "quad", "qquad", "cdot", "le", "dots", "leftarrow", "mid", "mathsf", "T",
    "log", "tanh", "sin", "cos", "e^", "bar",
}  # fmt: skip
"""Layout, functions that everybody knows, the base of exponentials, and transposition."""


class Symbol(NamedTuple):
    latex: str
    shape: str
    meaning: str


class Gradients(NamedTuple):
    """What stands above the gradients' code. symbols: those that the page's formulas lack. note: Markdown."""

    formulas: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    note: str = ""


class Lesson(NamedTuple):
    """plain: the formulas as a function in NumPy, before everything that else must be looked after; empty for none."""

    idea: str
    symbols: tuple[Symbol, ...]
    gradients: Gradients = Gradients()
    plain: str = ""


@cache
def lessons() -> Mapping[str, Lesson]:
    """Return the lessons by the name of the operation."""
    found = tomllib.loads((Path(__file__).parent / "lessons.toml").read_text(encoding="utf-8"))
    return {
        name: Lesson(
            " ".join(one["idea"].split()), symbols_of(one), gradients_of(one.get("gradients", {})), one.get("plain", "")
        )
        for name, one in found.items()
    }


def symbols_of(given: Mapping[str, Any]) -> tuple[Symbol, ...]:
    return tuple(Symbol(*symbol) for symbol in given.get("symbols", ()))


def gradients_of(given: Mapping[str, Any]) -> Gradients:
    return Gradients(tuple(given.get("formulas", ())), symbols_of(given), " ".join(given.get("note", "").split()))


def names(latex: str) -> set[str]:
    """Return the names in a formula that a reader may not know."""
    tokens = TOKEN.findall(LABEL.sub("", latex.replace(r"^{\mathsf T}", "")))
    return {next(filter(None, token)).strip() for token in tokens} - KNOWN


def unexplained(formulas: tuple[str, ...], symbols: tuple[Symbol, ...]) -> set[str]:
    """Return the names that stand in the formulas or among the symbols, and not in both."""
    there: set[str] = set().union(*map(names, formulas))
    return there ^ set().union(*(names(symbol.latex) for symbol in symbols))
