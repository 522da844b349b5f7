"""A checkpoint, read by the record of its dialect."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import product
from typing import Any

import numpy as np

from specification.checkpoints import unflatten
from specification.configuration import Configuration
from specification.fitting import misfits
from specification.loading.config_file import of_entries, sizes_of
from specification.loading.families import UNCOVERED, covered, judgeable, names_of, uncovered
from specification.loading.hyperparameters import of_variant
from specification.loading.reader import Reader, first_few
from specification.loading.record import Dialect, Variant
from specification.loading.table import multiplied

MISSING = " is missing"
"""How a problem ends that names a missing entry."""


def mapped(
    dialect: Dialect,
    state_dict: Mapping[str, Any],
    given: dict[str, Any],
    known: Collection[Dialect],
    *,
    told: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> tuple[Any, Configuration]:
    """Read a checkpoint by the record of its dialect.

    Args:
        dialect: the record.
        state_dict: arrays by their names in the checkpoint.
        given: all hyperparameters, as `checked` returns them.
        known: all dialects, to say whose names those are that do not fit.
        told: the content of the config.json beside the checkpoint, where there is one.
        dtype: of the parameters; None for that of the checkpoint, with narrow entries widened to float32.

    Returns:
        The parameters, of NumPy arrays, and the configuration.

    Raises:
        TypeError: for hyperparameters that a checkpoint of this kind does not take, or needs.
        ValueError: for all at once that does not fit.
    """
    read = reader_of(dialect, state_dict, dtype)
    variant = variant_of(dialect, read)
    hyperparameters = of_variant(dialect, variant, given)
    read.counts({name: hyperparameters[name] for name in multiplied(variant.table) & hyperparameters.keys()})
    read.problems += [f"there is no entry {mark}" for mark in variant.marks if not read.has_any((mark,))]
    arrays = read.arrays(variant.table)
    if told is not None and dialect.config is not None:
        read.compare(sizes_of(dialect.config, told))
        read.problems += of_entries(dialect.config, told, read.entries.keys())
    if "num_heads" in hyperparameters:
        read.heads(hyperparameters["num_heads"], variant.heads_share)
    for name, vocabulary in variant.padding.items():
        read.padding(name, hyperparameters[name], vocabulary)
    if variant.check is not None:
        variant.check(read, hyperparameters)
    if read.problems or read.left:
        recognise(read, dialect, known, state_dict, told is not None)
    read.finish()
    counted = {name: read.sizes[place] for name, place in variant.counted.items()}
    parameters = unflatten(variant.structure, arrays)
    configuration = variant.configuration(**hyperparameters, **counted)
    problems = misfits(parameters, configuration)
    if problems:
        raise ValueError(f"the checkpoint and its hyperparameters make no model: {'; '.join(first_few(problems))}")
    return parameters, configuration


def reader_of(dialect: Dialect, state_dict: Mapping[str, Any], dtype: str | None = None) -> Reader:
    """Return a checkpoint's entries without the prefix and without what the dialect ignores."""
    prefix = next((one for one in dialect.prefixes if any(name.startswith(one) for name in state_dict)), "")
    read = Reader(with_new_names(dialect, state_dict), prefix, dtype)
    layers = (re.fullmatch(r"(layers\.\d+\.)(.+)", name) for name in read.entries)
    marked = {re.escape(found[1]) + ".*" for found in layers if found and found[2] in dialect.ignored_layers}
    for pattern in (*dialect.ignored, *marked):
        read.ignore(pattern)
    return read


def with_new_names(dialect: Dialect, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the entries of an older checkpoint to the names of today; ValueError for one that is there under both."""
    names = {}
    for name in state_dict:
        names[name] = name
        for old, new in dialect.renamed.items():
            names[name] = names[name].replace(old, new)
    twice = sorted(old for old, new in names.items() if old != new and new in state_dict)
    if twice:
        raise ValueError(f"the checkpoint does not fit: {', '.join(twice)} beside the newer names for the same")
    return {names[name]: array for name, array in state_dict.items()}


def variant_of(dialect: Dialect, read: Reader) -> Variant:
    """Choose the first variant of a dialect whose marks are there; the last where no variant's are."""
    found = (variant for variant in dialect.variants if all(read.has_any((mark,)) for mark in variant.marks))
    return next(found, dialect.variants[-1])


def recognise(
    read: Reader, dialect: Dialect, known: Collection[Dialect], state_dict: Mapping[str, Any], named: bool
) -> None:
    """Say of a checkpoint that does not fit whose names it has, as the first of its problems.

    `named` says whether a config.json names this dialect's model. ValueError for a family that no dialect covers,
    unless it does, and for a checkpoint that has no name in common with the dialect.
    """
    names = state_dict.keys()
    other, family = covered(known, names), uncovered(names)
    foreign, related = family and not named, family and UNCOVERED[family].related
    if family and foreign and not related:
        raise ValueError(f"the checkpoint does not fit: its names are those of {judgeable(family)}")
    if dialect.name in other:
        return
    prefix = other_prefix(dialect, read)
    if prefix is not None:
        here, due = prefix
        instead = f" in place of {due!r}" if here and due else ""
        how = f"begin with {here!r}{instead}" if here else f"lack {due!r} at the beginning"
        read.problems.insert(0, f"names {how}, which accounts for all that are missing or not known")
    elif other:
        read.problems.insert(0, names_of(other))
    elif family and foreign and not read.knows_most():
        raise ValueError(f"the checkpoint does not fit: its names are those of {judgeable(family)}")
    elif read.left and not read.entries.keys() - read.left - read.ignored:
        missing = [problem.removesuffix(MISSING) for problem in read.problems if problem.endswith(MISSING)]
        here, due = ", ".join(first_few(sorted(read.left))), ", ".join(first_few(missing))
        raise ValueError(
            f"the checkpoint does not fit: none of its names is one of dialect {dialect.name!r}; its names are {here}, "
            f"and the dialect's {due}; rename its entries to those of the dialect nearest to the model"
        )


def other_prefix(dialect: Dialect, read: Reader) -> tuple[str, str] | None:
    """Find the prefix that the names of a checkpoint have, and the one with which all of them fit.

    The empty text stands for no prefix. None where there are no such two.
    """
    missing = [problem.removesuffix(MISSING) for problem in read.problems if problem.endswith(MISSING)]
    if not missing or not read.left:
        return None
    pairs: dict[tuple[str, str], None] = {}
    for name in sorted(read.left):
        words, others = name.split("."), missing[0].split(".")
        while words and others and words[-1] == others[-1]:
            words, others = words[:-1], others[:-1]
            pairs |= dict.fromkeys(
                pair for pair in product(beginnings(words), beginnings(others)) if pair[0] != pair[1]
            )
    for here, due in pairs:
        unknown = {name for name in read.left if name.startswith(here)}
        if names_fit(dialect, [due + n.removeprefix(here) if n in unknown else n for n in read.entries]):
            return here, due
    return None


def beginnings(words: list[str]) -> list[str]:
    """Return the prefixes that words of a name make, up to the number of a layer, the longest last."""
    whole = next((i for i, word in enumerate(words) if word.isdigit()), len(words))
    return ["".join(f"{word}." for word in words[:count]) for count in range(whole + 1)]


def names_fit(dialect: Dialect, names: Collection[str]) -> bool:
    """Tell whether a checkpoint with these names, whatever its arrays, has all entries and no others."""
    read = reader_of(dialect, dict.fromkeys(names, np.zeros(())))
    table = variant_of(dialect, read).table
    read.counts(dict.fromkeys(multiplied(table), 1))
    read.arrays(table)
    gone = any(problem.endswith(MISSING) or problem.startswith("there is no layer") for problem in read.problems)
    return not gone and not read.left
