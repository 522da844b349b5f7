"""What a translated node is: for each of its outputs, a case of one of the operations here, and how to read it off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.bounds.arithmetic import SMALLEST, UNIT_ROUNDOFF
from conformance.cases.case import Case
from conformance.cases.expectations import Exact

Rearrangement = Callable[[np.ndarray], np.ndarray]


def keep_array(array: np.ndarray) -> np.ndarray:
    return array


@dataclass(frozen=True)
class Translated:
    """An output of a node, as the result of an operation.

    read: from the operation's result to ONNX's output. read_bound: from the result's exact values and their bounds to
    the bounds of what is read; without it, reading moves elements and computes nothing. dtype: ONNX's, where what is
    read is wider and has to be rounded. result: its name.
    """

    case: Case
    read: Rearrangement = keep_array
    read_bound: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    dtype: str | None = None
    result: str = "output"

    def output(self, result: np.ndarray) -> np.ndarray:
        """ONNX's output, from an implementation's result."""
        read = self.read(result)
        return read if self.dtype is None else read.astype(self.dtype)

    def truth(self, exact: Exact, bound: np.ndarray) -> tuple[Exact, np.ndarray]:
        """What ONNX's output is, exactly, and how far from it an implementation may be."""
        if self.read_bound is None:
            read, error = Exact(self.read(exact.high), self.read(exact.low)), self.read(bound)
        else:
            value = self.read(exact.high)
            read, error = Exact(value, np.zeros_like(value)), self.read_bound(exact.high, bound)
        if self.dtype is not None:
            size = np.where(np.isfinite(read.high), np.abs(read.high) + error, 0)
            error = error + UNIT_ROUNDOFF[self.dtype] * size + SMALLEST[self.dtype]
        return read, error


@dataclass(frozen=True)
class Copied:
    """An output that is made of inputs, as the caches are: there is nothing to compute."""

    array: np.ndarray


Translation = dict[str, Translated | Copied]
"""By the names of ONNX's outputs, in the node's order."""


def present_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without those that are absent."""
    return {name: argument for name, argument in arguments.items() if argument is not None}
