"""Alignment of functions and of their steps in columns.

Functions are aligned if they have the same name in files of the same name; the definition gives the order. Steps are
aligned if they assign the same name or, if they assign nothing, do the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from conformance.side_by_side import alignment
from conformance.side_by_side.sources import PACKAGES, Function, Step, functions_of

Functions = Mapping[str, Mapping[str, Function]]  # by package, by name

INLINED = {
    ("torch_impl", "pair_products"): "PairProducts.forward",
    ("torch_impl", "allowed_sum"): "AllowedSum.forward",
    ("jax_impl", "merge_attention"): "merge",
    ("jax_impl", "rms_norm"): "rms_norm_steps",
    ("jax_impl", "standard_deviation_norm"): "standard_deviation_norm_steps",
    ("torch_impl", "deviations"): "Deviations.forward",
}
"""Where a port hands the work on to a function of its own: its steps follow, and stand beside the definition's."""


ALIKE = 0.8
"""Conditions that are no less alike than this are the same one."""


class Row(NamedTuple):
    """Steps beside each other, one for each package; None where a package has none."""

    steps: tuple[Step | None, ...]

    @property
    def name(self) -> str:
        return next(step.name for step in self.steps if step is not None)


class Columns(NamedTuple):
    """One function in every package that has it."""

    file: str
    name: str
    functions: tuple[Function | None, ...]
    head: tuple[Row, ...]
    body: tuple[Row, ...]


def live(file: str) -> Functions:
    """The functions of a file as they are in the sources now."""
    return {package: functions_of(package, file) for package in PACKAGES}


@cache
def neutral(text: str) -> str:
    """Code with every framework called the same, to see how alike two steps are."""
    text = re.sub(r"\b(np\.ndarray|torch\.Tensor|jax\.Array)\b", "array", text)
    text = re.sub(r"\b(np|torch|jnp|jax\.lax|jax)\.", "xp.", text)
    return text.replace("keepdim=", "keepdims=").replace("dim=", "axis=").replace(".to(", ".astype(")


@cache
def likeness(one: str, other: str) -> float:
    """From 0 to 1, how alike two pieces of code are when frameworks are left aside."""
    return difflib.SequenceMatcher(None, neutral(one), neutral(other), autojunk=False).ratio()


def rate_pair(one: Step, other: Step) -> float:
    """How well two steps stand beside each other; 0 for not at all. Names decide, and then how alike the code is."""
    if one.kind != other.kind or one.kind == "decorator":
        return 0.0
    if one.targets or other.targets:
        shared, all_names = set(one.targets) & set(other.targets), set(one.targets) | set(other.targets)
        loops = one.name.startswith("for ") == other.name.startswith("for ")
        return len(shared) / len(all_names) + likeness(one.text, other.text) if shared and loops else 0.0
    if neutral(one.name) == neutral(other.name):
        return 1.0 + likeness(one.text, other.text)
    if one.name.startswith("if ") and other.name.startswith("if "):
        alike = likeness(one.text, other.text)
        return alike if alike > ALIKE else 0.0  # the same question, asked in a framework's own way
    return 0.0


def inline_helper(function: Function, functions: Mapping[str, Function]) -> list[Step]:
    """The steps of a function, and behind them those of the helper that it hands its work to."""
    helper = functions.get(INLINED.get((function.package, function.name), ""))
    within = [] if helper is None else [step._replace(inside=helper.name) for step in helper.steps]
    return [*function.steps, *within]


def side_by_side(file: str, name: str, functions: Functions | None = None) -> Columns:
    """The columns of one function."""
    given = live(file) if functions is None else functions
    found = [given[package].get(name) for package in PACKAGES]
    bodies = [[] if one is None else inline_helper(one, given[one.package]) for one in found]
    heads = [[] if one is None else list(one.head) for one in found]
    return Columns(file, name, tuple(found), rows_of(heads), rows_of(bodies))


def rows_of(columns: Sequence[Sequence[Step]]) -> tuple[Row, ...]:
    return tuple(Row(tuple(row)) for row in alignment.rows(columns, rate_pair))


def names_beside(file: str, functions: Functions | None = None) -> list[str]:
    """The names of a file's functions in the definition's order, and then what only ports have."""
    given = live(file) if functions is None else functions
    return list(dict.fromkeys(name for package in PACKAGES for name in given[package] if "." not in name))
