"""Which entry of a dialect's checkpoint becomes which array of ours, found by loading numbers that all differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import reference_numpy
from specification.checkpoints import flatten
from study.checkpoints import Entries, small

WEIGHTS = (".weight", ".alpha")


class Correspondence(NamedTuple):
    """An array of the parameters: from which entry it comes, and how. theirs is empty for an entry that is not read."""

    theirs: str
    ours: str
    how: str = ""


def numbered(entries: Entries) -> dict[str, np.ndarray]:
    """The same entries with every number another, counted through all of them, to see where each one goes."""
    found, start = {}, 0
    for name, one in entries.items():
        size = int(np.prod(one.shape))
        found[name] = np.arange(start, start + size, dtype=np.float64).reshape(one.shape)
        start += size
    return found


def correspondence(dialect: str) -> list[Correspondence]:
    """Where every entry of the small checkpoint goes, in its own order; found by reading numbers that all differ."""
    one = small()[dialect]
    checkpoint = numbered(one.entries)
    model = reference_numpy.load(dialect, checkpoint, **one.hyperparameters)
    arrays = flatten(model.parameters)
    found = []
    for theirs, entry in checkpoint.items():
        low, high = entry.min(), entry.max()
        taken = []
        for name, array in arrays.items():
            if low <= array.min() and array.max() <= high:
                taken.append(Correspondence(theirs, name, how(entry, array)))
                continue
            # One of the arrays that are stacked, as those of experts are.
            places = [i for i, part in enumerate(array) if low <= np.min(part) and np.max(part) <= high]
            if len(places) == 1 and array.ndim > 1:
                said = f"number {places[0] + 1} of {len(array)}, {how(entry, array[places[0]])}"
                taken.append(Correspondence(theirs, name, said.removesuffix(", ")))
        found += taken or [Correspondence(theirs, "")]
    return found


def how(entry: np.ndarray, array: np.ndarray) -> str:
    """What is done to an entry, all of whose numbers are others."""
    whole = {"": entry, "turned": entry.T, "without axes of size 1": np.squeeze(entry)}
    if entry.ndim > 2:
        whole["turned, all axes but the first as one"] = entry.reshape(len(entry), -1).T
    for said, candidate in whole.items():
        if np.array_equal(candidate, array):
            return said
    for axis in range(entry.ndim):
        for said, part in (("", array), (", turned", array.T)):
            if part.ndim == entry.ndim:
                lines = np.moveaxis(entry, axis, 0).reshape(entry.shape[axis], -1)[:, 0]
                chosen = np.flatnonzero(np.isin(lines, part))
                if len(chosen) and np.array_equal(np.take(entry, chosen, axis), part):
                    return share(chosen, len(lines)) + said
    raise ValueError(f"an entry of shape {entry.shape} became one of shape {array.shape} in no known way")


def share(chosen: np.ndarray, length: int) -> str:
    """Which part of an axis these positions are."""
    count, first = len(chosen), int(chosen[0])
    if chosen[-1] - first + 1 > count:
        run = int(np.flatnonzero(np.diff(chosen) > 1)[0]) + 1
        return f"{run} of every {chosen[run] - first}, from number {first + 1}"
    parts = {2: ("first half", "last half"), 3: ("first third", "second third", "last third")}
    if length % count == 0 and first % count == 0 and length // count in parts:
        return parts[length // count][first // count]
    return f"{first + 1} to {first + count} of {length}"


class Line(NamedTuple):
    """A row of the table of names: a weight and its bias together, where both go the same way."""

    theirs: str
    ours: str
    how: str


def stem(name: str) -> tuple[str, str]:
    """A name without its last part, and that part."""
    before, dot, last = name.rpartition(".")
    return before, dot + last


def lines(found: list[Correspondence]) -> list[Line]:
    """A weight and the bias beside it in one row."""
    stems = {(stem(one.theirs)[0], stem(one.ours)[0]): one for one in found if stem(one.ours)[1] == ".bias"}
    rows, told = [], set()
    for one in found:
        (theirs, their_last), (ours, last) = stem(one.theirs), stem(one.ours)
        bias = stems.get((theirs, ours))
        if their_last in WEIGHTS and last == ".weight" and bias is not None:
            said = one.how if one.how == bias.how else f"weight {one.how}"
            rows.append(Line(f"{theirs}.{{{their_last[1:]}, bias}}", f"{ours}.{{weight, bias}}", said))
            told.add(bias)
        elif one not in told:
            rows.append(Line(one.theirs, one.ours, one.how))
    return rows
