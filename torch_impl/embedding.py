"""Embedding of token ids in PyTorch (rule EMB-1), as `reference_numpy/embedding.py` defines it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Integer

from specification import checks
from torch_impl.dtypes import widen
from torch_impl.masks import readable


def embedding(
    table: Float[torch.Tensor, "N E"], ids: Integer[torch.Tensor, "..."], *, scaled: bool = False
) -> Float[torch.Tensor, "... E"]:
    """Row ids[...] of the table; multiplied by sqrt(E) when `scaled`, and then rounded once.

    Where ids cannot be read (see `masks.readable`) they are not checked here: PyTorch then refuses an id outside [0, N)
    with an error of its own, which on CUDA is a device assertion.
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
