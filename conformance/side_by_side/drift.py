"""Differences between the columns: a step that some implementations lack, or that has another name in them.

`idioms.toml` allows the differences that a framework's idiom requires, with a reason. This file also reports entries of
it that are no longer needed.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conformance.side_by_side.columns import Columns, Row, live, side_by_side
from conformance.side_by_side.sources import LABELS, PACKAGES, Step

FILES = (
    "dtypes.py", "masks.py", "attention_steps.py", "attention.py", "multi_head_attention.py", "layer_norm_steps.py",
    "layer_norm.py", "embedding.py", "positions.py", "feed_forward.py", "blocks.py", "transformer.py", "decoding.py",
    "generation.py", "optimizers.py", "schedules.py", "initializers.py",
)  # fmt: skip
"""In the order in which they are studied."""


class Drift(NamedTuple):
    """A row whose steps do not say the same, by what `idioms.toml` calls it, and the sentence that says so."""

    key: str
    message: str


def read_idioms(text: str) -> dict[str, list[str]]:
    """The allowed differences, `function: step [where it stands]`, each with a reason for every time that it occurs."""
    reasons: dict[str, list[str]] = {}
    for entry in tomllib.loads(text)["idiom"]:
        for step in entry["steps"]:
            reasons.setdefault(step, []).append(" ".join(entry["reason"].split()))
    return reasons


@cache
def idioms() -> Mapping[str, list[str]]:
    return read_idioms((Path(__file__).parent / "idioms.toml").read_text())


def label(step: Step) -> str:
    """What a step is called: all that it assigns, or what it does."""
    return ", ".join(step.targets) or step.name


def present(row: Row) -> list[tuple[str, Step]]:
    return [(package, step) for package, step in zip(PACKAGES, row.steps, strict=True) if step is not None]


def place(columns: Columns, package: str, step: Step) -> str:
    return f"{package}/{columns.file}:{step.line}"


def key_of(columns: Columns, row: Row) -> str | None:
    """By what a difference is called; None where the steps of a row say the same."""
    steps = dict(present(row))
    where = ", ".join(LABELS[package] for package in steps)
    if len(steps) < sum(one is not None for one in columns.functions):
        return f"{columns.name}: {label(next(iter(steps.values())))} [{where}]"
    names = [set(step.targets) for step in steps.values()]
    if any(one - other and other - one for one in names for other in names):
        return f"{columns.name}: {' | '.join(dict.fromkeys(label(step) for step in steps.values()))}"
    return None


def reason(columns: Columns, row: Row) -> str | None:
    """Why the steps of a row may differ; None where they do not, or where nothing allows it."""
    found = idioms().get(key_of(columns, row) or "", [])
    return found[0] if found else None


def drifts_of(columns: Columns) -> Iterator[Drift]:
    """All differences in the steps of one function, the allowed ones too."""
    alone = [row for row in columns.body if key_of(columns, row) is not None]
    for row in alone:
        lacking = [one.package for one, step in zip(columns.functions, row.steps, strict=True) if one and not step]
        told = lonely(columns, row, lacking, alone) if lacking else describe_rename(columns, row)
        yield Drift(key_of(columns, row) or "", told)


def describe_rename(columns: Columns, row: Row) -> str:
    told = ", ".join(f"`{label(step)}` in {place(columns, package, step)}" for package, step in present(row))
    return f"{columns.name}: one step has several names, {told}"


def lonely(columns: Columns, row: Row, lacking: list[str], alone: list[Row]) -> str:
    """A step that some columns lack. Where they have it elsewhere, the order is another one."""
    first = present(row)[0][1]
    where = " and ".join(place(columns, package, step) for package, step in present(row))
    message = f"{columns.name}: step `{label(first)}` of {where} has nothing beside it in {' and '.join(lacking)}"
    elsewhere = [
        place(columns, package, step)
        for other in alone
        if other is not row
        for package, step in present(other)
        if package in lacking and label(step) == label(first)
    ]
    return f"{message}, where it comes in another order: {' and '.join(elsewhere)}" if elsewhere else message


@cache
def all_columns() -> tuple[Columns, ...]:
    """The columns of every function that the definition shares with a port."""
    return tuple(
        side_by_side(file, name)
        for file in FILES
        for name in live(file)[PACKAGES[0]]
        if "." not in name and any(name in live(file)[package] for package in PACKAGES[1:])
    )


def order_drifts(file: str) -> Iterator[str]:
    """Functions that do not come in the definition's order."""
    functions = live(file)
    expected = list(functions[PACKAGES[0]])
    for package in PACKAGES[1:]:
        shared = [name for name in functions[package] if name in expected]
        wanted = [name for name in expected if name in shared]
        for got, want in zip(shared, wanted, strict=True):
            if got != want:
                yield f"{package}/{file}: `{got}` stands where the definition has `{want}`"
                break


def drifts(columns: Iterable[Columns] | None = None) -> list[str]:
    """In words, where the columns no longer align and no idiom allows it. Empty when all is well.

    columns: those to look at; all of the live sources unless given, and then idioms that nothing needs are told too.
    """
    found: list[str] = []
    left = Counter({key: len(reasons) for key, reasons in idioms().items()})
    for one in all_columns() if columns is None else columns:
        for drift in drifts_of(one):
            if not left[drift.key]:
                found.append(drift.message)
            left[drift.key] -= bool(left[drift.key])
    if columns is None:
        found += [message for file in FILES for message in order_drifts(file)]
        found += [f"idioms.toml allows `{key}`, which no longer differs" for key, count in left.items() if count]
    return found


def summary() -> str:
    """How much of the three aligns, in a sentence."""
    rows = [row for columns in all_columns() for row in columns.body]
    whole = sum(len(present(row)) == len(PACKAGES) for row in rows)
    return f"{whole} of {len(rows)} steps have a counterpart in each of {', '.join(LABELS.values())}"
