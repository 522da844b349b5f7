"""Arguments that kernels have and the definition lacks: what they mean, in arguments that it has.

alibi_slopes: [H] or [B, H], in the compute dtype. Query i and key j have a bias of -slope |i + K - Q - j| (Press et al.
2022): distances count from the last query, which stands at the last key. Slopes have no gradient.
query_lengths: whole numbers [B]. What follows a sequence's queries is no query: it takes part in nothing, and neither
its output nor its gradient is compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import KERNEL_ARGUMENTS
from specification.masks import Dense, as_mask


def kernel_arguments(operation: str) -> tuple[str, ...]:
    """Those that a function for this operation may have."""
    return KERNEL_ARGUMENTS if operation.startswith("attention") else ()


def alibi(slopes: np.ndarray, Q: int, K: int) -> np.ndarray:
    """The bias [B or 1, H, Q, K] in float64."""
    distances = np.abs(np.arange(Q)[:, None] + (K - Q) - np.arange(K))
    return -np.atleast_2d(np.asarray(slopes, float))[..., None, None] * distances


def padded_queries(case: Case) -> np.ndarray:
    """Which queries [B, Q] follow those of their sequence."""
    return np.arange(case.inputs["query"].shape[2]) >= case.inputs["query_lengths"][:, None]


def replace_kernel_arguments(case: Case) -> Case:
    """The case in the definition's arguments: a bias for the slopes, a mask and no cotangents for what is no query."""
    if not {*KERNEL_ARGUMENTS} & case.inputs.keys():
        return case
    inputs = {name: array for name, array in case.inputs.items() if name not in KERNEL_ARGUMENTS}
    (B, _, Q, _), K = inputs["query"].shape, inputs["key"].shape[2]
    options: dict[str, Any] = dict(case.options)
    cotangents, constants = case.cotangents, case.constants
    if "alibi_slopes" in case.inputs:
        inputs["bias"] = alibi(case.inputs["alibi_slopes"], Q, K)
        constants = (*constants, "bias")
    if "query_lengths" in case.inputs:
        padded = padded_queries(case)
        real = Dense(np.broadcast_to(~padded[:, None, :, None], (B, 1, Q, K)))
        options["mask"] = real if options.get("mask") is None else as_mask(options["mask"]) & real
        cotangents = {name: zero_rows(array, padded) for name, array in cotangents.items()}
    return replace(case, inputs=inputs, options=options, cotangents=cotangents, constants=constants)


def zero_rows(array: np.ndarray, padded: np.ndarray) -> np.ndarray:
    """A result's array [B, H, Q, ...] with zeros for what is no query."""
    rows = padded[:, None].reshape(len(padded), 1, -1, *(1,) * (array.ndim - 3))
    return np.where(rows, array.dtype.type(0), array)
