"""Embedding of token ids in PyTorch (rule EMB-1), as `reference_numpy/embedding.py` defines it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Integer

from specification import checks
from torch_impl.dtypes import widen
from torch_impl.masks import readable

__all__ = ["embedding"]


def embedding(
    table: Float[torch.Tensor, "N E"], ids: Integer[torch.Tensor, "..."], *, scaled: bool = False
) -> Float[torch.Tensor, "... E"]:
    """Take row ids[...] of the table; multiply it by sqrt(E) when `scaled`, and round once (EMB-1).

    Where ids cannot be read (see `masks.readable`) they are not checked here. PyTorch then refuses an id outside [0, N)
    with an error of its own, which on CUDA is a device assertion.

    Args:
        table: [N, E], in float16, bfloat16, float32 or float64.
        ids: Integers in [0, N), in any shape. Negative ids do not count from the end.
        scaled: Whether rows are multiplied by sqrt(E).

    Returns:
        A new array [..., E] in the dtype of table.

    Raises:
        TypeError: ids that are not integers, or another dtype of the table.
        ValueError: An id outside [0, N).
    """
    checks.embedding(table, ids)
    check_rows(table, ids)
    # The table is widened before its rows are taken, so that their gradients are added up in the wider dtype.
    rows = torch.nn.functional.embedding(ids.to(torch.int64), widen(table))
    return (rows * math.sqrt(table.shape[1]) if scaled else rows).to(table.dtype)


def check_rows(table: Float[torch.Tensor, "N E"], ids: Integer[torch.Tensor, "..."], name: str = "ids") -> None:
    """ValueError for ids that are no rows of the table, where they can be read."""
    if (values := readable(ids)) is not None:
        checks.ids_within(values, table.shape[0], name)
