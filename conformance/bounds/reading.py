"""What bounds of attention read from a case: who attends to whom, biases, dropout, and whose gradient is whose."""

from __future__ import annotations

import numpy as np

from conformance.bounds.arithmetic import Approx, Precision, exact, map_approx
from conformance.cases.arguments import alibi, replace_kernel_arguments
from conformance.cases.case import Case
from reference_numpy import materialize

SLOPE = 8
"""Roundings of ALiBi's bias: the slope times the distance; the slope over the scale, or times log2(e), and back."""


def bias_of(case: Case, shape: tuple[int, int, int, int], p: Precision) -> Approx | None:
    """A bias as [B or 1, H or 1, Q, K]. ALiBi's is computed from its slopes."""
    if "alibi_slopes" in case.inputs:
        value = alibi(case.inputs["alibi_slopes"], *shape[2:])
        return Approx(value, p.gamma(SLOPE) * np.abs(value))
    return pairs(case.inputs.get("bias"))


def pairs(array: np.ndarray | None) -> Approx | None:
    """A bias as [B or 1, H or 1, Q, K]."""
    return None if array is None else exact(array if array.ndim == 4 else array[None, None])


def find_allowed_pairs(case: Case, shape: tuple[int, int, int, int]) -> np.ndarray:
    case = replace_kernel_arguments(case)
    B, H, Q, K = shape
    allowed = materialize(case.options.get("mask"), Q, K, batch=B, heads=H)
    if "bias" in case.inputs:
        allowed = allowed & (case.inputs["bias"].astype(float) != -np.inf)
    return np.broadcast_to(allowed, shape)


def dropout_factor(case: Case) -> np.ndarray | None:
    """What dropout multiplies each weight with, [B, H, Q, K]; None without dropout."""
    keep = case.options.get("dropout_keep")
    return None if keep is None else np.where(keep, 1 / (1 - case.options["dropout_rate"]), 0.0)


def separate_heads(gradients: dict[str, Approx], case: Case) -> dict[str, Approx]:
    """Gradients of fused projections cut up again into those of per-head ones, where the case has those."""
    result = dict(gradients)
    for name in ("query", "key", "value"):
        start, head = 0, 0
        while f"{name}[{head}].weight" in case.inputs:
            stop = start + case.inputs[f"{name}[{head}].weight"].shape[1]
            for part in ("weight", "bias"):
                columns = gradients[f"{name}.{part}"].select((..., slice(start, stop)))
                result[f"{name}[{head}].{part}"] = columns
            start, head = stop, head + 1
    return result


def split_heads(x: Approx, heads: int) -> Approx:
    """[B, T, heads * W] as [B, heads, T, W]."""
    return map_approx(x, lambda a: a.reshape(*a.shape[:2], heads, a.shape[2] // heads).swapaxes(1, 2))


def concatenate_heads(x: Approx) -> Approx:
    """[B, heads, T, W] as [B, T, heads * W]."""
    return map_approx(x, lambda a: a.swapaxes(1, 2).reshape(a.shape[0], a.shape[2], -1))
