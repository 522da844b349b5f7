"""What a check works on, as JSON and back: exact to the bit, and readable by any NumPy.

Plain values are themselves. An array is {"array": dtype, "shape": [...], "data": base64 of its little-endian bytes,
compressed by zlib}, a number that JSON lacks {"float": "nan"}, a tuple {"tuple": [...]}, a dictionary {"dict": {...}},
an error type {"error": name}, a check {"check": name}, and anything of `TYPES` {"type": name, "fields": {...}}.
"""

from __future__ import annotations

import base64
import builtins
import math
import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from conformance.cases.case import Case, numpy_dtype
from conformance.cases.expectations import Planted
from conformance.checks.catalogue import CHECKS, Check
from conformance.checks.findings import Finding, Phase, Size, Threshold
from conformance.checks.refusals import Refusal
from conformance.checks.results import Cell, Substance, Violation
from conformance.subjects.wrong_answers import Detail
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Or
from specification.rotary import SCALINGS


def kinds_of_details(kind: type[Detail] = Detail) -> Iterator[type[Detail]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_of_details(one)


TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Case, Planted, Refusal, Finding, Violation, Cell, Substance),
        *(Phase, Size, Threshold, *kinds_of_details()),
        *(Causal, SlidingWindow, KeyLengths, KeyPadding, Segments, Dense, And, Or),
        *SCALINGS,
    )
}


def encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        ordered = value.astype(value.dtype.newbyteorder("<")) if value.dtype.kind in "fiu" else value
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(ordered).tobytes(), 9)).decode()
        return {"array": str(value.dtype), "shape": list(value.shape), "data": data}
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, type) and issubclass(value, Exception):
        return {"error": value.__name__}
    if isinstance(value, Check) and CHECKS.get(value.name) == value:
        return {"check": value.name}
    if type(value).__name__ in TYPES:
        names = [field.name for field in fields(value)] if is_dataclass(value) else value._fields
        return {"type": type(value).__name__, "fields": {name: encode(getattr(value, name)) for name in names}}
    if isinstance(value, tuple):
        return {"tuple": [encode(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": {name: encode(part) for name, part in value.items()}}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot be written to a file: {type(value).__name__}")


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return decode_array(value)
    if "float" in value:
        return float(value["float"])
    if "error" in value:
        return getattr(builtins, value["error"])
    if "check" in value:
        return CHECKS[value["check"]]
    if "tuple" in value:
        return tuple(decode(part) for part in value["tuple"])
    if "dict" in value:
        return {name: decode(part) for name, part in value["dict"].items()}
    return TYPES[value["type"]](**{name: decode(part) for name, part in value["fields"].items()})


def decode_array(value: dict[str, Any]) -> np.ndarray:
    dtype = numpy_dtype(value["array"])
    raw = np.frombuffer(zlib.decompress(base64.b64decode(value["data"])), dtype.newbyteorder("<"))
    return raw.astype(dtype).reshape(value["shape"]).copy()
