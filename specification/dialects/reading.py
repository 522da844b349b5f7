"""Reading a checkpoint by names: every entry once, shapes that fit together, and all that is wrong told at once."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import ml_dtypes
import numpy as np

from specification.configuration import is_count
from specification.dtypes import FLOATING
from specification.parameters import FeedForward, Linear, MultiHeadAttention, Norm

NARROW = ("float16", "bfloat16")
TABLES = r"(.*\.)?(pe|position_ids)"
"""Buffers in which modules keep their own tables of positions, which are computed here instead."""
OWN = ("specification", "reference_numpy", "torch_impl", "jax_impl")
"""Packages through which a checkpoint is read."""

UNREAD: ContextVar[list[str] | None] = ContextVar("UNREAD", default=None)
"""Where a list is set, `finish` adds the names of the entries that belong to no part of the model that is read."""


class Reader:
    """The entries of a state dict, and which of them have been taken.

    Sizes are named by letters: the first entry that has one says how large it is, and all others must agree. What is
    missing or has another shape is collected, and `finish` raises one ValueError for all of it.
    """

    def __init__(self, state_dict: Mapping[str, Any], prefix: str = "") -> None:
        """prefix: stands before all names in some files, and is left out here."""
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

    def array(self, name: str, value: Any) -> np.ndarray:
        """The value as NumPy's. What cannot be read is a problem where it is taken."""
        try:
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                return as_numpy(value)
            self.unreadable[name] = f"got {type(value).__name__}"
        except (TypeError, RuntimeError) as error:  # sparse, quantised, without memory, or of a dtype that NumPy lacks
            self.unreadable[name] = f"got {value.dtype}: {str(error).splitlines()[0]}"
        return np.array(None)

    # --- what there is ---

    def has(self, name: str) -> bool:
        return name in self.entries

    def count(self, pattern: str) -> int:
        """How many layers there are: one more than the largest number that `pattern` finds. None is a problem.

        A number beyond the count of all entries is none of a layer, and what has it is left over.
        """
        texts = {match[1] for name in self.entries if (match := re.match(pattern, name))}
        most = len(self.entries)
        found = {int(text) for text in texts if len(text) <= len(str(most)) and int(text) < most}
        if not found:
            self.problems.append(f"there is no layer, such as {pattern.replace(chr(92), '').replace('(d+)', '0')}")
        return max(found, default=-1) + 1

    def ignore(self, pattern: str) -> None:
        """Entries that belong to the checkpoint and to no part of the model that is read."""
        self.ignored |= {name for name in self.left if re.fullmatch(pattern, name)}
        self.left -= self.ignored

    # --- entries ---

    def take(self, name: str, *shape: str | int) -> Any:
        """The entry of that name and shape, in which letters stand for sizes; None where something is wrong with it."""
        self.left.discard(name)
        if name not in self.entries:
            self.problems.append(f"{name} is missing")
            return None
        array = self.entries[name]
        if str(array.dtype) not in FLOATING:
            got = self.unreadable.get(name, f"got {array.dtype}")
            self.problems.append(f"{name} must be floating, {got}")
            return None
        expected = [self.sizes.get(size, size) if isinstance(size, str) else size for size in shape]
        fits = len(array.shape) == len(shape) and all(
            isinstance(size, str) or size == got for size, got in zip(expected, array.shape, strict=True)
        )
        if not fits:
            self.problems.append(f"{name} must have shape [{', '.join(map(str, expected))}], got {list(array.shape)}")
            return None
        if array.size == 0:
            self.problems.append(f"{name} has no elements, its shape is {list(array.shape)}")
            return None
        self.sizes |= {size: got for size, got in zip(expected, array.shape, strict=True) if isinstance(size, str)}
        if not np.isfinite(array).all():
            self.not_finite.append(name)
        return self.widened(array)

    def thirds(self, name: str, *shape: str | int) -> list[Any]:
        """The entry in three equal parts along the one axis whose size is "3 E"; None thrice where it is wrong."""
        E = self.sizes.get("E")
        array = self.take(name, *(3 * E if E and size == "3 E" else size for size in shape))
        return [None] * 3 if array is None or E is None else np.split(array, 3, axis=shape.index("3 E"))

    def widened(self, array: np.ndarray) -> np.ndarray:
        if str(array.dtype) not in NARROW:
            return array
        self.narrow.add(str(array.dtype))
        return array.astype(np.float32)

    def linear(self, name: str, inner: str | int, outer: str | int, *, bias: bool = True) -> Linear:
        """A `torch.nn.Linear`, whose weight is [out, in]."""
        weight = self.take(f"{name}.weight", outer, inner)
        return Linear(None if weight is None else weight.T, self.take(f"{name}.bias", outer) if bias else None)

    def norm(self, name: str, *, bias: bool = True, names: tuple[str, str] = ("weight", "bias")) -> Norm:
        return Norm(self.take(f"{name}.{names[0]}", "E"), self.take(f"{name}.{names[1]}", "E") if bias else None)

    def attention(self, name: str, query: str, key: str, value: str, output: str) -> MultiHeadAttention:
        """Four projections of width E, each with its bias."""
        return MultiHeadAttention(*(self.linear(f"{name}.{part}", "E", "E") for part in (query, key, value, output)))

    def feed_forward(self, inner: str, outer: str, *, bias: bool = True) -> FeedForward:
        return FeedForward(self.linear(inner, "E", "F", bias=bias), self.linear(outer, "F", "E", bias=bias))

    def heads(self, num_heads: int, width: str = "E") -> None:
        """The heads share that size equally."""
        size = self.sizes.get(width)
        if not is_count(num_heads) or num_heads == 0:
            self.problems.append(f"num_heads must be an integer of at least 1, got {num_heads!r}")
        elif size is not None and size % num_heads:
            self.problems.append(f"{num_heads} heads cannot share a width of {size} equally")

    def padding(self, name: str, number: Any, vocabulary: str) -> None:
        """The id of a token, or None."""
        size = self.sizes.get(vocabulary)
        if number is None:
            return
        if not is_count(number):
            self.problems.append(f"{name} must be the id of a token or None, got {number!r}")
        elif size is not None and number >= size:
            self.problems.append(f"{name} must be the id of a token below {size}, got {number}")

    # --- the end ---

    def finish(self) -> None:
        """ValueError for all that is missing, left over or misshaped; a warning where narrow entries were widened."""
        taken = {str(self.entries[name].dtype) for name in self.entries.keys() - self.left - self.ignored}
        dtypes = [dtype for dtype in FLOATING if dtype in taken]  # what is widened to float32 goes with that
        if "float64" in dtypes and len(dtypes) > 1:
            self.problems.append(f"the entries mix {' and '.join(dtypes)}")
        problems = self.problems + [f"{name} is not known" for name in sorted(self.left)]
        if problems:
            count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise ValueError(f"the checkpoint does not fit, {count}: " + "; ".join(problems))
        if self.not_finite:
            self.warnings.append(f"NaN or infinities are in {', '.join(self.not_finite)}")
        if self.narrow:
            names = " and ".join(sorted(self.narrow))
            self.warnings.append(f"{names} entries of the checkpoint are widened to float32")
        unread = UNREAD.get()
        if unread is not None:
            unread += [name for name in self.entries if name in self.ignored]
        for told in self.warnings:
            warnings.warn(told, stacklevel=levels_to_caller())


def levels_to_caller() -> int:
    """The `stacklevel` by which a warning of the function that asks points at the first line outside the project."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in OWN:
        level, frame = level + 1, frame.f_back
    return level


def as_numpy(value: Any) -> np.ndarray:
    """Any framework's array as one of NumPy's own, which stays what it is when the given one is changed."""
    if not hasattr(value, "detach"):
        return np.array(value)
    value = value.detach().cpu()
    if str(value.dtype) != "torch.bfloat16":
        return np.array(value.numpy())
    return np.array(value.float().numpy().astype(ml_dtypes.bfloat16))  # PyTorch itself hands no bfloat16 to NumPy
