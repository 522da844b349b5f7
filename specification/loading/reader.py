"""The entries of a checkpoint: read by a table, sizes that fit together, and all that is wrong told at once."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import ml_dtypes
import numpy as np

from specification.arrays import is_array
from specification.configuration import is_count
from specification.dtypes import FLOATING
from specification.loading.table import Row, Table, any_of, multiple, numbered, parts

NARROW = ("float16", "bfloat16")
TABLES = r"(.*\.)?(pe|position_ids)"
"""Buffers in which modules keep their own tables of positions, which are computed here instead."""
OWN = ("specification", "reference_numpy", "torch_impl", "jax_impl")
"""Packages through which a checkpoint is read."""
FEW = 5
"""So many entries with the same problem are named."""
MANY = ("is missing", "must have shape", "must be floating", "is not known")
"""Words of problems that many entries may have."""

UNREAD: ContextVar[list[str] | None] = ContextVar("UNREAD", default=None)
"""Where a list is set, `finish` adds the names of the entries that belong to no part of the model that is read."""


class Reader:
    """The entries of a state dict, and which of them have been taken.

    Sizes have names: most entries that have one say how large it is, and all others must agree. What is missing or has
    another shape is collected, and `finish` raises one ValueError for all of it.
    """

    def __init__(self, state_dict: Mapping[str, Any], prefix: str = "", dtype: str | None = None) -> None:
        """prefix: stands before all names in some files, and is left out here.

        dtype: of the arrays that are read; None for that of the entries, with narrow ones widened to float32.
        """
        self.prefix = prefix
        self.dtype = dtype
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.unreadable: dict[str, str] = {}
        self.entries: dict[str, np.ndarray] = {}
        for name, value in state_dict.items():
            short = name.removeprefix(prefix)
            if short in self.entries:
                self.problems.append(f"{short} is there twice, with and without {prefix}")
            self.entries[short] = self.array(short, value)
        self.ignored = {name for name in self.entries if re.fullmatch(TABLES, name)}
        self.left = self.entries.keys() - self.ignored
        self.sizes: dict[str, int] = {}
        self.narrow: set[str] = set()
        self.not_finite: list[str] = []

    def array(self, name: str, value: object) -> np.ndarray:
        """Return a value of any framework as NumPy's. What cannot be read is a problem where it is taken."""
        if not is_array(value):
            self.unreadable[name] = f"got {type(value).__name__}"
            return np.array(None)
        try:
            return as_numpy(value)
        except (TypeError, RuntimeError) as error:  # sparse, quantised, without memory, or of a dtype that NumPy lacks
            self.unreadable[name] = f"got {value.dtype}: {str(error).splitlines()[0]}"
        return np.array(None)

    # --- what there is ---

    def has_any(self, patterns: tuple[str, ...]) -> bool:
        """Tell whether there is an entry of one of these names, in which `*` stands for any text."""
        return any_of(patterns, self.entries.keys())

    def knows_most(self) -> bool:
        """Tell whether more than half of the entries have been taken."""
        return 2 * len(self.entries.keys() - self.left - self.ignored) > len(self.entries)

    def count(self, before: str, place: str) -> int:
        """Count layers or heads, which is the size of that name too. That there is none is a problem.

        The count is one more than the largest number that follows the text before it. A number beyond the count of all
        entries is none of a layer, and what has it is left over.
        """
        names = self.entries.keys() - self.ignored
        texts = {match[1] for name in names if (match := re.match(rf"{re.escape(before)}(\d+)\.", name))}
        most = len(self.entries)
        found = {int(text) for text in texts if len(text) <= len(str(most)) and int(text) < most}
        if not found:
            self.problems.append(f"there is no layer, such as {before}0.")
        self.sizes[place] = max(found, default=-1) + 1
        return self.sizes[place]

    def ignore(self, pattern: str) -> None:
        """Leave out entries, by a regular expression, that belong to the checkpoint and to no part of the model."""
        self.ignored |= {name for name in self.left if re.fullmatch(pattern, name)}
        self.left -= self.ignored

    # --- entries ---

    def arrays(self, table: Table) -> dict[str, Any]:
        """Read all rows of a table: arrays by path of the parameters, None for an entry that is wrong somehow."""
        names = self.entries.keys()

        def may_hold(row: Row) -> bool:
            return any("{" in name for name in (*row.when, *row.unless)) or row.holds(names)

        rows = [row for row in numbered(table, self.count, may_hold) if row.holds(names)]
        self.settle(rows)
        found: dict[str, Any] = {}
        for row in rows:
            found |= self.row_arrays(row)
        return stack_arrays(found)

    def settle(self, rows: list[Row]) -> None:
        """Give every named size its value: what most entries say, and of equal counts the first; counts are known."""
        votes: dict[str, Counter[int]] = {}
        for row in rows:
            shape = np.shape(self.entries.get(row.theirs, 0.0))
            for axis, size in zip(row.axes, shape, strict=True) if len(shape) == len(row.axes) else ():
                factor, name = multiple(axis, self.sizes)
                if name and factor and size and size % factor == 0:
                    votes.setdefault(name, Counter())[size // factor] += 1
        self.sizes = {name: found.most_common(1)[0][0] for name, found in votes.items()} | self.sizes

    def row_arrays(self, row: Row) -> dict[str, Any]:
        """Return the arrays that an entry becomes, by path."""
        again = row.theirs not in self.left
        array = self.take(row)
        if array is None:
            return dict.fromkeys(row.paths)
        found = parts(array, row.axes, len(row.paths), self.sizes)
        ones = tuple(i for i, axis in enumerate(row.axes) if axis == "1")
        found = [np.squeeze(part, ones) for part in found]
        if row.turned and row.stacked:
            found = [np.swapaxes(part, 1, 2) for part in found]
        elif row.turned:
            found = [part.reshape(part.shape[0], -1).T for part in found]
        return dict(zip(row.paths, [part.copy() for part in found] if again else found, strict=True))

    def take(self, row: Row) -> np.ndarray | None:
        """Return the entry of a row, or None where something is wrong with it, which is a problem."""
        name = row.theirs
        self.left.discard(name)
        if name not in self.entries:
            self.problems.append(f"{name} is missing")
            return None
        array = self.entries[name]
        if str(array.dtype) not in FLOATING:
            got = self.unreadable.get(name, f"got {array.dtype}")
            self.problems.append(f"{name} must be floating, {got}")
            return None
        expected = [self.expected(axis) for axis in row.axes]
        fits = len(array.shape) == len(expected) and all(
            size in (there, axis) for size, there, axis in zip(expected, array.shape, row.axes, strict=True)
        )
        if not fits:
            self.problems.append(f"{name} must have shape [{', '.join(map(str, expected))}], got {list(array.shape)}")
            return None
        if array.size == 0:
            self.problems.append(f"{name} has no elements, its shape is {list(array.shape)}")
            return None
        array = self.widened(array)
        if not np.isfinite(array).all():
            self.not_finite.append(name)
        return array

    def expected(self, axis: str) -> int | str:
        """Return how large an axis must be; its name where no entry says so."""
        factor, name = multiple(axis, self.sizes)
        return factor * self.sizes[name] if name in self.sizes else axis if name else factor

    def widened(self, array: np.ndarray) -> np.ndarray:
        """Return an array in the dtype that is asked for, or with float16 and bfloat16 widened, and note that."""
        if self.dtype is not None:
            with np.errstate(over="ignore"):  # `take` tells of the infinities
                return array.astype(self.dtype)
        if str(array.dtype) not in NARROW:
            return array
        self.narrow.add(str(array.dtype))
        return array.astype(np.float32)

    def counts(self, given: Mapping[str, Any]) -> None:
        """Take hyperparameters as sizes, by which a table multiplies others; what is no count is a problem."""
        for name, count in given.items():
            fits = is_count(count) and count > 0
            self.sizes[name] = int(count) if fits else 1
            if not fits:
                self.problems.append(f"{name} must be an integer of at least 1, got {count!r}")

    def compare(self, told: Mapping[str, tuple[str, Any]]) -> None:
        """Check sizes, by whose names the key and the value of a config.json are given; another one is a problem."""
        for name, (key, size) in told.items():
            if self.sizes.get(name, size) != size:
                self.problems.append(f"{key} is {size!r} in config.json, and the entries say {self.sizes[name]}")

    def heads(self, num_heads: int, width: str = "E") -> None:
        """Check that heads share the size of that name equally; that they do not is a problem."""
        size = self.sizes.get(width)
        if not is_count(num_heads) or num_heads == 0:
            self.problems.append(f"num_heads must be an integer of at least 1, got {num_heads!r}")
        elif size is not None and size % num_heads:
            self.problems.append(f"{num_heads} heads cannot share a width of {size} equally")

    def padding(self, name: str, number: object, vocabulary: str) -> None:
        """Check the id of a token below the size of that name, or None; another value is a problem."""
        size = self.sizes.get(vocabulary)
        if number is None:
            return
        if not is_count(number):
            self.problems.append(f"{name} must be the id of a token or None, got {number!r}")
        elif size is not None and number >= size:
            self.problems.append(f"{name} must be the id of a token below {size}, got {number}")

    # --- the end ---

    def finish(self) -> None:
        """Raise one ValueError for all that is wrong, five of each kind; warn of what was widened or is not finite."""
        taken = {str(self.entries[name].dtype) for name in self.entries.keys() - self.left - self.ignored}
        dtypes = [dtype for dtype in FLOATING if dtype in taken]  # what is widened to float32 goes with that
        if "float64" in dtypes and len(dtypes) > 1 and self.dtype is None:
            self.problems.append(f"the entries mix {' and '.join(dtypes)}")
        problems = [*dict.fromkeys(self.problems), *(f"{name} is not known" for name in sorted(self.left))]
        if problems:
            count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise ValueError(f"the checkpoint does not fit, {count}: " + "; ".join(shortened(problems)))
        if self.not_finite:
            self.warnings.append(f"NaN or infinities are in {', '.join(first_few(dict.fromkeys(self.not_finite)))}")
        if self.narrow:
            names = " and ".join(sorted(self.narrow))
            self.warnings.append(f"{names} entries of the checkpoint are widened to float32")
        unread = UNREAD.get()
        if unread is not None:
            unread += [name for name in self.entries if name in self.ignored]
        for told in self.warnings:
            warnings.warn(told, stacklevel=levels_to_caller())


def stack_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Stack what stands under "gate[0].weight", "gate[1].weight", ... as "gate.weight"; None where one of them is."""
    found: dict[str, Any] = {}
    stacks: dict[str, list[Any]] = {}
    for path, array in arrays.items():
        name = re.sub(r"\[\d+\]", "", path)
        if name != path:
            stacks.setdefault(name, []).append(array)
        found[name] = array
    whole = {name: None if any(one is None for one in parts) else np.stack(parts) for name, parts in stacks.items()}
    return found | whole


def first_few(names: Iterable[str]) -> list[str]:
    """Return the first five of a list, and a count of the others as its last element."""
    names = list(names)
    return names if len(names) <= FEW else [*names[:FEW], f"and {len(names) - FEW} more"]


def shortened(problems: Iterable[str]) -> list[str]:
    """Return the first five problems of each kind, each followed by a count of the others."""
    groups: dict[str, list[str]] = {}
    for problem in problems:
        kind = next((words for words in MANY if words in problem), problem)
        groups.setdefault(kind, []).append(problem)
    return [line for group in groups.values() for line in first_few(group)]


def levels_to_caller() -> int:
    """The `stacklevel` by which a warning of the function that asks points at the first line outside the project."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in OWN:
        level, frame = level + 1, frame.f_back
    return level


def as_numpy(value: Any) -> np.ndarray:
    """Return any framework's array as one of NumPy's own, which stays when the given one is changed."""
    if not hasattr(value, "detach"):
        return np.array(value)
    value = value.detach().cpu()
    if str(value.dtype) != "torch.bfloat16":
        return np.array(value.numpy())
    return np.array(value.float().numpy().astype(ml_dtypes.bfloat16))  # PyTorch itself hands no bfloat16 to NumPy
