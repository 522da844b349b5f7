"""A case: one call of one operation, as data. Cases are drawn by `sampling/strategies.py` and answered by subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

ORDER = ("x", "query", "key", "value", "weight")
"""Inputs that are printed first, whatever order a file has them in."""


@dataclass(frozen=True, repr=False)
class Case:
    """One call of one operation, and the cotangents with which its gradients are asked for.

    inputs: NumPy arrays by name, in the case's dtype unless they are ids. A structured argument is spread out:
        "query.weight" is the weight of multi-head attention's query projection, "outputs[0]" the first part to merge.
    options: everything else that the operation takes by keyword; a mask holds NumPy arrays and Python numbers.
    cotangents: one array for each result, by name; empty when the case asks for no gradients.
    special: NaN or infinity stands where it can reach results, which are then compared as what they are.
    rounding: dtypes that the subject declares for parts of the arithmetic, where they are narrower: "weights",
        "products", "shared_heads" (the gradient of each), "shared_sums" (of these), "normalized", "sines" (and cosines
        of rotary angles), "rotation" (their products). "saved" is "logsumexp" where the backward pass takes the
        weights from one log-sum-exp for each row, "merging" where parts of the keys are merged by one each. "angles" is
        "float32" where rotary angles are computed in float32.
    memory: names of `checks.layouts.LAYOUTS` by input, and for "mask", "dropout_keep" and "cotangent" (those of all
        results), for arrays that do not lie contiguous when the subject receives them. Values do not depend on it.
    constants: inputs whose gradients are not asked for; the framework takes them for constants.
    with_logsumexp: whether attention is to return the log-sum-exp beside the output.
    """

    operation: str
    dtype: str
    inputs: dict[str, np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
    special: bool = False
    rounding: dict[str, str] = field(default_factory=dict)
    memory: dict[str, str] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    with_logsumexp: bool = False

    def __repr__(self) -> str:
        return self.call_text()

    def call_text(self, number: Callable[[float], str] = repr) -> str:
        """One line, as a call; large arrays by dtype and shape only. number: how a floating number is written."""
        inputs = {name: self.inputs[name] for name in ORDER if name in self.inputs} | self.inputs
        named = {name: brief(value, number) for name, value in (inputs | self.options).items() if value is not None}
        shown = ", ".join(f"{name}={value}{self.lies(name)}" for name, value in named.items())
        frozen = f", no gradient of {', '.join(self.constants)}" if self.constants else ""
        both = " with its log-sum-exp" if self.with_logsumexp else ""
        return f"{self.operation}({shown}){both}{self.cotangents_text(number)}{frozen}"

    def cotangents_text(self, number: Callable[[float], str] = repr) -> str:
        """The cotangents, to be printed after the call; those of several results by name."""
        shown = [f"{name}={brief(array, number)}{self.lies('cotangent')}" for name, array in self.cotangents.items()]
        if len(shown) == 1:
            return f" with cotangent {shown[0].partition('=')[2]}"
        return f" with cotangents {', '.join(shown)}" if shown else ""

    def lies(self, name: str) -> str:
        """The layout of an array, to be printed after it; empty for a contiguous one."""
        return f" {self.memory[name]}" if name in self.memory else ""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same line where Hypothesis prints a failing case."""
        printer.text(repr(self))


def brief(value: Any, number: Callable[[float], str] = repr) -> str:
    """As Python writes it, but large arrays by dtype and shape only. number: how a floating number is written."""
    if isinstance(value, np.ndarray):
        shown = 0 < value.size <= (36 if value.dtype == bool else 8)
        return (
            f"{value.dtype}({brief(shortest(value).tolist(), number)})"
            if shown
            else f"{value.dtype}{list(value.shape)}"
        )
    if isinstance(value, float):
        return number(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = (f"{field.name}={brief(getattr(value, field.name), number)}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(named)})"
    if type(value) in (list, tuple):
        inside = ", ".join(brief(one, number) for one in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    return repr(value)


def six_digits(number: float) -> str:
    """As Python writes it; a number with six decimals or more with six digits."""
    written = repr(float(number))
    decimals = written.partition("e")[0].partition(".")[2]
    return f"{number:.6g}" if len(decimals) >= 6 else written


def shortest(array: np.ndarray) -> np.ndarray:
    """Floating numbers as the shortest decimal fractions that are the same numbers in the array's dtype."""
    if array.dtype.kind in "biuf" and array.dtype not in (np.float32, np.float16):
        return array
    return np.array([float(str(number)) for number in array.ravel()]).reshape(array.shape)
