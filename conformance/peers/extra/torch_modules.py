"""What adapters of libraries on PyTorch share: modules that are given their parameters, and packages half installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from specification.parameters import Linear

IN_FLOAT32 = {"dtypes": ("float32", "bfloat16", "float16")}
"""Of what computes in float32 by its name or its documentation, and gives float64 back for float64."""
FLOAT32_ANGLES = {"angles": "float32"}
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""An environment without a bug of PyTorch's own, in products of bfloat16 on processors with AMX (docs/found.md)."""
TABLE = 2**12
"""Rows of a table of positions that an adapter lets a library make: all of them would not fit into memory."""


def import_module(name: str) -> Any:
    """The module, without what the packages above it import when they are loaded, of which not all is installed."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if package not in sys.modules:
            spec: Any = importlib.util.find_spec(package)
            sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(name)


def table_length(positions: torch.Tensor) -> int:
    """Of a table that has all these positions; NotImplementedError for one that the adapter does not let be made."""
    length = int(positions.max()) + 1 if positions.numel() else 1
    if length > TABLE:
        raise NotImplementedError(f"a table of {length} positions")
    return length


def call_module(kind: Callable[..., Any], named: dict[str, torch.Tensor], *arguments: Any, **options: Any) -> Any:
    """What a module of this kind, made with `options` and then given these parameters, makes of the arguments."""
    import torch

    with torch.device("meta"):
        module = kind(**options)
    return torch.func.functional_call(module.eval(), named, arguments)


def name_projections(names: Sequence[str], projections: Sequence[Linear]) -> dict[str, Any]:
    """Parameters of `nn.Linear` layers of these names, weights transposed to [out, in]."""
    named: dict[str, Any] = {}
    for name, (weight, bias) in zip(names, projections, strict=True):
        named[f"{name}.weight"] = weight.T
        named |= {} if bias is None else {f"{name}.bias": bias}
    return named


def widen_mask(mask: torch.Tensor | None) -> Any:
    """A mask of four axes, where a library takes no others."""
    return mask[None, None] if mask is not None and mask.ndim == 2 else mask
