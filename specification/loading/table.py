"""The table of a dialect: which entry of a checkpoint becomes which array of the parameters.

A dialect writes its table with `array`, `linear` and `norm`, a line for each entry or pair of entries, and with `each`
for what occurs once in every layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

PLACE = re.compile(r"\{(\w+)\}")
"""A place for a number in a name, such as `{i}`."""


class Row(NamedTuple):
    """One entry of a checkpoint.

    theirs: its name there, without the dialect's prefix. `{i}` stands for the number of a layer or head.
    ours: the path of the array in the parameters; several paths for the parts of a fused entry. "gate[{X}].weight" is
        one of the arrays that are stacked along a new first axis.
    axes: the name of each size, as the entry is stored. One name is one size in the whole checkpoint; "3 * E" is three
        times it, "h * V" as many times it as there are numbers for `{h}`, and "num_heads * D" as many as the
        hyperparameter says. Parts follow one another in a sum, "num_heads * D + key_heads * D + key_heads * D", and in
        "3 * E"; in "num_heads * 3 * D" every head has the three, in "F * 2" parts alternate. An axis "1" is left out.
    turned: whether the entry is stored [out, in]; our weights are [in, out], where axes past the first are one.
    stacked: whether the first axis counts experts, each of which has an array of the axes after it.
    when: the row holds only where the checkpoint has one of these names; empty for always. `*` stands for any text.
    unless: the row does not hold where the checkpoint has one of these names.
    """

    theirs: str
    ours: str | tuple[str, ...]
    axes: tuple[str, ...]
    turned: bool = False
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    stacked: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the entry goes, one path or several."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def renamed(self, theirs: Callable[[str], str], ours: Callable[[str], str]) -> Row:
        """Change the names of a row. A condition that begins with `*` is about the whole checkpoint, and stays."""
        when, unless = (
            tuple(name if name.startswith("*") else theirs(name) for name in names)
            for names in (self.when, self.unless)
        )
        return self._replace(theirs=theirs(self.theirs), ours=tuple(map(ours, self.paths)), when=when, unless=unless)

    def holds(self, names: Collection[str]) -> bool:
        """Tell whether a checkpoint with these names has the row."""
        return (not self.when or any_of(self.when, names)) and not any_of(self.unless, names)


Table = tuple[Row, ...]


def any_of(patterns: tuple[str, ...], names: Collection[str]) -> bool:
    """Tell whether one of the patterns is among the names; `*` stands for any text, and with it `?` for a character."""
    return any(
        pattern in names or ("*" in pattern and any(fnmatchcase(name, pattern) for name in names))
        for pattern in patterns
    )


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Tell whether a name is one of the patterns'; see `any_of`."""
    return any_of(patterns, (name,))


# --- what a dialect writes --------------------------------------------------------------------------------------------


def table(*groups: Table) -> Table:
    """Join groups of rows in order."""
    return tuple(row for group in groups for row in group)


def array(theirs: str, ours: str, *axes: str) -> Table:
    """Write the row of an entry that is taken as it is: its name, its path, and the names of its sizes."""
    return (Row(theirs, ours, axes),)


def linear(
    theirs: str,
    ours: str | tuple[str, ...],
    inner: str = "E",
    outer: str = "E",
    *,
    bias: bool | str = True,
    turned: bool = True,
) -> Table:
    """Write the rows of a linear layer from size `inner` to size `outer`.

    Args:
        theirs: the layer's name, to which ".weight" and ".bias" are added.
        ours: the path of a `Linear`, or of several, of which each has a part of the columns.
        inner: the name of the size that goes in.
        outer: the name of the size that comes out, such as "3 * E" for three of ours.
        bias: whether there is one; or a pattern of all biases that a checkpoint has together or not at all.
        turned: whether the weight is stored [out, in], as `torch.nn.Linear` stores it.
    """
    paths = (ours,) if isinstance(ours, str) else ours
    weights, biases = (tuple(f"{path}.{part}" for path in paths) for part in ("weight", "bias"))
    weight = Row(f"{theirs}.weight", weights, (outer, inner) if turned else (inner, outer), turned)
    vector = Row(f"{theirs}.bias", biases, (outer,), when=(bias,) if isinstance(bias, str) else ())
    return (weight,) if bias is False else (weight, vector)


def norm(
    theirs: str, ours: str, weight: str = "weight", bias: str = "bias", *, size: str = "E", biased: bool | str = True
) -> Table:
    """Write the rows of a norm's two vectors.

    Args:
        theirs: the norm's name in the checkpoint.
        ours: its path in the parameters.
        weight: what its weight is called there.
        bias: what its bias is called there.
        size: the name of the vectors' size.
        biased: whether it has a bias; or a pattern as in `linear`.
    """
    when = (biased,) if isinstance(biased, str) else ()
    first = Row(f"{theirs}.{weight}", f"{ours}.weight", (size,))
    return (first,) if biased is False else (first, Row(f"{theirs}.{bias}", f"{ours}.bias", (size,), when=when))


def each(theirs: str, ours: str, *groups: Table) -> Table:
    """Put rows under a prefix on either side, such as "encoder.layer.{i}." and "blocks.{i}."."""
    return tuple(row.renamed(theirs.__add__, ours.__add__) for row in table(*groups))


def attention(theirs: str, ours: str, *projections: str) -> Table:
    """Write the rows of an attention, by the names of its projections: queries, keys, values, output."""
    parts = zip(projections, ("query", "key", "value", "output"), strict=True)
    return each(f"{theirs}.", f"{ours}.", *(linear(name, part) for name, part in parts))


def feed_forward(inner: str, outer: str) -> Table:
    """Write the rows of a feed-forward network, by the names of its two projections."""
    return table(linear(inner, "feed_forward.inner", "E", "F"), linear(outer, "feed_forward.outer", "F", "E"))


# --- what is made of it -----------------------------------------------------------------------------------------------


def numbered(
    rows: Table, count: Callable[[str, str], int], holds: Callable[[Row], bool] = lambda row: True
) -> Iterator[Row]:
    """Put numbers in the places of a table's names, layer by layer, and in each layer expert by expert.

    count: how many numbers there are for the text before a place and the place's name; asked once for consecutive rows
    that begin alike. holds: of rows with places, those that there are.
    """
    for (before, place), group in groupby(rows, start):
        if not place:
            yield from group
            continue
        alike = [row for row in group if holds(row)]
        for number in range(count(before, place) if alike else 0):

            def put(name: str, number: int = number, place: str = place) -> str:
                return name.replace(f"{{{place}}}", str(number))

            yield from numbered(tuple(row.renamed(put, put) for row in alike), count, holds)


def start(row: Row) -> tuple[str, str]:
    """Return the text before the first place of a row's name, and the place's name; empty for a row without one."""
    found = PLACE.search(row.theirs)
    return (row.theirs[: found.start()], found[1]) if found else ("", "")


def factors(term: str, sizes: Mapping[str, int]) -> list[int]:
    """Return the numbers of a product such as "num_heads * 3 * D"."""
    return [int(one) if one.isdigit() else sizes[one] for one in term.split(" * ")]


def multiplied(rows: Table) -> set[str]:
    """Collect the names of sizes by which a table multiplies others."""
    axes = {axis for row in rows for axis in row.axes}
    products = [term.split(" * ") for axis in axes for term in axis.split(" + ")]
    return {name for names in products for name in names if not name.isdigit() and name != last_name(names)}


def last_name(factors: list[str]) -> str:
    """Return the last factor of a product that is a name; empty where all are numbers."""
    return next((factor for factor in reversed(factors) if not factor.isdigit()), "")


def multiple(axis: str, sizes: Mapping[str, int]) -> tuple[int, str]:
    """Say how many times which size an axis of a row is: "3 * E" is three times E. Of a number alone there is no name.

    The last name is the same in all terms of a sum; sizes are those that it is multiplied with.
    """
    products = [term.split(" * ") for term in axis.split(" + ")]
    name = last_name(products[0])
    return sum(math.prod(factors(" * ".join(term), {**sizes, name: 1})) for term in products), name


def parts(array: np.ndarray, axes: tuple[str, ...], count: int, sizes: Mapping[str, int]) -> list[Any]:
    """Take a fused entry apart into so many parts, as they are stored.

    The first of its row's axes that is a sum or a product is divided: at the terms of a sum, or at the factor that is
    the number of parts.
    """
    if count == 1:
        return [array]
    place = next(i for i, axis in enumerate(axes) if " * " in axis or " + " in axis)
    before, after, axis = array.shape[:place], array.shape[place + 1 :], axes[place]
    if " + " in axis:
        ends = np.cumsum([math.prod(factors(term, sizes)) for term in axis.split(" + ")])
        return list(np.split(array, ends[:-1], axis=place))
    split = np.reshape(array, (*before, *factors(axis, sizes), *after))
    inside = place + axis.split(" * ").index(str(count))
    return [np.reshape(part, (*before, -1, *after)) for part in np.moveaxis(split, inside, 0)]
