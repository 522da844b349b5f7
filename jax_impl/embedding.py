"""Embedding of token ids in JAX (rule EMB-1; "Attention Is All You Need", section 3.4)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from jax_impl.dtypes import cast, widen
from specification import checks

__all__ = ["embedding"]


def embedding(
    table: Float[jax.Array, "N E"], ids: Integer[jax.Array, "..."], *, scaled: bool = False
) -> Float[jax.Array, "... E"]:
    """Take row ids[...] of the table; multiply it by sqrt(E) when `scaled`, and round once (EMB-1).

    An id outside [0, N) gives a row of NaN where ids are traced.

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
    # The whole table is widened, not the rows taken, so that its gradient adds up in the wider dtype.
    rows = take_rows(widen(table), jnp.asarray(ids))
    return cast(rows * math.sqrt(table.shape[1]) if scaled else rows, table.dtype)


def take_rows(table: Float[jax.Array, "N E"], ids: Integer[jax.Array, "..."]) -> Float[jax.Array, "... E"]:
    """table[ids] with NaN for what lies outside, where JAX's default would take the nearest row, or count backwards."""
    return table.at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def check_rows(table: Float[jax.Array, "N E"], ids: Integer[jax.Array, "..."], name: str = "ids") -> None:
    """ValueError for ids that are no rows of the table, where they can be read."""
    if not isinstance(ids, jax.core.Tracer):
        checks.ids_within(np.asarray(ids), table.shape[0], name)
