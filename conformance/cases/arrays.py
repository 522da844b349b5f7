"""What a case's arrays say by their names and shapes alone: elements of lists, heads, lengths and widths."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.case import Case


def list_arrays(inputs: dict[str, Any], name: str, field: str = "") -> list[Any]:
    found: list[Any] = []
    while f"{name}[{len(found)}]{field}" in inputs:
        found.append(inputs[f"{name}[{len(found)}]{field}"])
    return found


def join_projections(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Multi-head attention's inputs with per-head projections set side by side."""
    result = {name: array for name, array in inputs.items() if "[" not in name}
    for name in ("query", "key", "value"):
        for field in ("weight", "bias"):
            heads = list_arrays(inputs, name, f".{field}")
            if heads:
                result[f"{name}.{field}"] = np.concatenate(heads, axis=-1)
    return result


def heads_of(case: Case) -> dict[str, int]:
    """Heads of multi-head attention's three inputs, read off the shapes (MHA-1)."""
    inputs, heads = join_projections(case.inputs), case.options["num_heads"]
    key_heads = inputs["key.weight"].shape[1] // (inputs["query.weight"].shape[1] // heads)
    return {"query": heads, "key": key_heads, "value": key_heads}


def heads_and_keys(case: Case) -> tuple[int, int, int, int]:
    """H query heads, G key heads, Q queries and K keys, of an operation that has masks."""
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
    found = {"batch": case.inputs["query"].shape[0], "heads": H, "group_ratio": H // max(G, 1)}
    found |= {"queries": Q, "keys": K, "key_width": widths[0], "value_width": widths[-1]}
    return found
