"""A case: one call of one operation, as data. Cases are drawn by `sampling/strategies.py` and answered by subjects.

What the arrays of a case say by their names and shapes alone is here too: elements of lists, heads, lengths and widths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from hypothesis.vendor.pretty import RepresentationPrinter

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
        "products", "scores", "shared_heads" (the gradient of each), "shared_sums" (of these), "normalized", "sines"
        (and cosines of rotary angles), "rotation" (their products). "saved" is "logsumexp" where the backward pass
        takes the weights from one log-sum-exp for each row, "merging" where parts of the keys are merged by one each,
        and "parts" is their number in digits where it is known. "ranks" is how many call the function together, also
        in digits, and "shard" what they have a part of.
        "angles" is "float32" where rotary angles are computed in float32. Besides, the declared ones of
        `declaration.FORMULAS`.
    memory: names of `cases.layouts.LAYOUTS` by input, and for "mask", "dropout_keep" and "cotangent" (those of all
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

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        """The same line where Hypothesis prints a failing case."""
        printer.text(repr(self))


def brief(value: object, number: Callable[[float], str] = repr) -> str:
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
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
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


def list_arrays(inputs: dict[str, Any], name: str, field: str = "") -> list[Any]:
    arrays: list[Any] = []
    while f"{name}[{len(arrays)}]{field}" in inputs:
        arrays.append(inputs[f"{name}[{len(arrays)}]{field}"])
    return arrays


def join_projections(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Multi-head attention's inputs with per-head projections set side by side."""
    result = {name: array for name, array in inputs.items() if "[" not in name}
    for name in ("query", "key", "value"):
        for part in (".weight", ".bias"):
            heads = list_arrays(inputs, name, part)
            if heads:
                result[f"{name}{part}"] = np.concatenate(heads, axis=-1)
    return result


def heads_of(case: Case) -> dict[str, int]:
    """Heads of multi-head attention's three inputs, read off the shapes (MHA-1)."""
    inputs, heads = join_projections(case.inputs), case.options["num_heads"]
    key_heads = inputs["key.weight"].shape[1] // (inputs["query.weight"].shape[1] // heads)
    return {"query": heads, "key": key_heads, "value": key_heads}


def heads_and_keys(case: Case) -> tuple[int, int, int, int]:
    """H query heads, G key heads, Q queries and K keys, of an operation that has masks; tokens are both."""
    if "x" in case.inputs:
        H, T = case.options["num_heads"], case.inputs["x"].shape[1]
        return H, H, T, T
    query, key = case.inputs["query"], case.inputs["key"]
    if "num_heads" not in case.options:
        return query.shape[1], key.shape[1], query.shape[2], key.shape[2]
    H = case.options["num_heads"]
    return H, projection_width(case, "key") // max(widths_of(case)[0], 1), query.shape[1], key.shape[1]


def widths_of(case: Case) -> tuple[int, ...]:
    """(D, V), or (D,) without values, of an operation that has masks."""
    if "num_heads" not in case.options:
        return tuple(case.inputs[name].shape[-1] for name in ("key", "value") if name in case.inputs)
    D = projection_width(case, "query") // case.options["num_heads"]
    G = max(projection_width(case, "key") // max(D, 1), 1)
    return D, projection_width(case, "value") // G


def projection_width(case: Case, name: str) -> int:
    """Columns of one of multi-head attention's projections, of all heads together."""
    fused = case.inputs.get(f"{name}.weight")
    weights = list_arrays(case.inputs, name, ".weight") if fused is None else [fused]
    return sum(weight.shape[-1] for weight in weights)


def masked_dimensions(case: Case) -> dict[str, int]:
    """Of an operation that has masks."""
    (H, G, Q, K), widths = heads_and_keys(case), widths_of(case)
    sizes = {"batch": case.inputs["query"].shape[0], "heads": H, "group_ratio": H // max(G, 1)}
    return sizes | {"queries": Q, "keys": K} | dict(zip(("key_width", "value_width"), widths, strict=False))


ONLY_OF_OUTPUT = ("dropout_keep", "dropout_rate", "empty_rows")
"""Options that change no log-sum-exp."""


def output_alone(case: Case) -> Case:
    """The same call as one of `attention`, with the output's cotangent."""
    cotangents = {name: array for name, array in case.cotangents.items() if name == "output"}
    return replace(case, cotangents=cotangents, with_logsumexp=False)


def logsumexp_alone(case: Case) -> Case:
    """The same call as one of `attention_logsumexp`, with the log-sum-exp's cotangent."""
    inputs = {name: array for name, array in case.inputs.items() if name != "value"}
    options = {name: value for name, value in case.options.items() if name not in ONLY_OF_OUTPUT}
    cotangent = case.cotangents.get("logsumexp")
    cotangents = {} if cotangent is None else {"output": cotangent}
    constants = tuple(name for name in case.constants if name != "value")
    alone = replace(case, operation="attention_logsumexp", inputs=inputs, options=options, cotangents=cotangents)
    return replace(alone, constants=constants, with_logsumexp=False)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype, or that of `ml_dtypes` for bfloat16."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def reverse_last_axis(array: np.ndarray) -> np.ndarray:
    """Return other numbers of the same size; ids stay."""
    return array if array.dtype.kind in "iu" else np.ascontiguousarray(array[..., ::-1])
