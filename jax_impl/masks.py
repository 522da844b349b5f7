"""Mask descriptions made into boolean arrays (MASK-1 to MASK-6). True = this query may attend to this key.

Importing this file makes every description a pytree, with its numbers and arrays as leaves, so that masks pass through
`jax.jit` and `jax.vmap` as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from specification import checks
from specification.masks import (
    And,
    Causal,
    Dense,
    KeyLengths,
    KeyPadding,
    Mask,
    Or,
    Segments,
    SlidingWindow,
    as_mask,
    map_arrays,
)

__all__ = ["materialize"]


def register(description: type) -> None:
    """Make it a pytree, with its name beside its leaves.

    The name is there because JAX 0.10.2 takes the structures of two dataclasses for equal if their leaves are as many:
    after `register_dataclass`, those of `Causal(x)` and `KeyLengths(x)` are, though their hashes differ. Now and then
    `jax.jit` then finds what it has compiled for the one when it is asked for the other.
    """
    names = [field.name for field in fields(description)]

    def flatten(mask: Mask) -> tuple[list[Any], str]:
        return [getattr(mask, name) for name in names], description.__name__

    def flatten_with_keys(mask: Mask) -> tuple[list[tuple[Any, Any]], str]:
        leaves, kind = flatten(mask)
        return list(zip(map(jax.tree_util.GetAttrKey, names), leaves, strict=True)), kind

    def unflatten(_: str, leaves: Iterable[object]) -> Any:
        return description(*leaves)

    jax.tree_util.register_pytree_with_keys(description, flatten_with_keys, unflatten, flatten)


for kind in (Causal, SlidingWindow, KeyLengths, KeyPadding, Segments, Dense, And, Or):
    register(kind)


def materialize(
    mask: Mask | Bool[jax.Array, "..."] | None,
    query_length: int,
    key_length: int,
    *,
    batch: int | None = None,
    heads: int | None = None,
) -> Bool[jax.Array, "#B #H #Q #K"]:
    """Make the boolean array that a mask description means (MASK-2).

    The lengths, and batch and heads where given, are static under `jax.jit`. What the description holds may be traced.

    Args:
        mask: A description, a boolean array (the same as `Dense` of it), or None for "every query sees every key".
        query_length: Q.
        key_length: K.
        batch, heads: When given, the arrays inside the description must fit them.

    Returns:
        A new boolean array of rank 4 that broadcasts to [batch, heads, query_length, key_length].

    Raises:
        TypeError: A mask that is not boolean.
        ValueError: Sizes or values that do not fit.
    """
    mask = checked_mask(mask, query_length, key_length, batch, heads)
    allowed = allowed_pairs(mask, query_length, key_length)
    return jnp.broadcast_to(allowed, (*allowed.shape[:2], query_length, key_length))


def checked_mask(
    mask: Mask | Bool[jax.Array, "..."] | None, query_length: int, key_length: int, batch: int | None, heads: int | None
) -> Mask | None:
    """The description with arrays inside, once all that it holds is known to fit."""
    mask = map_arrays(as_mask(mask), as_array)
    checks.mask(mask, query_length, key_length, batch, heads)
    checks.mask_values(mask, key_length, readable)
    return jax.tree.map(jnp.asarray, mask)


def as_array(numbers: jax.Array | np.ndarray | Sequence[object]) -> Any:
    """JAX arrays, and lists that hold some, as JAX arrays; NumPy's and Python's as NumPy arrays, to be checked first.

    Without x64, JAX keeps 32 bits of a 64-bit integer and says nothing, which could make two ids equal.
    """
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(numbers)):
        return jnp.asarray(numbers)
    array = np.asarray(numbers)
    wide = array.ndim > 0 and array.dtype.kind in "iu"
    if wide and (array != array.astype(jax.dtypes.canonicalize_dtype(array.dtype))).any():
        raise OverflowError("integers in masks must fit in 32 bits unless jax_enable_x64 is on")
    return array


def readable(array: jax.Array | np.ndarray) -> np.ndarray | None:
    """An array's values, for a check on them; None while they are traced. A traced length beyond K allows every key."""
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


@partial(jax.jit, static_argnums=(1, 2))
def allowed_pairs(mask: Mask | None, query_length: int, key_length: int) -> Bool[jax.Array, "#B #H #Q #K"]:
    """The description's meaning, in a shape that broadcasts to [B, H, Q, K]."""
    queries = jnp.arange(query_length)[:, None]
    keys = jnp.arange(key_length)
    if mask is None:
        return jnp.ones((1, 1, 1, 1), bool)
    if isinstance(mask, And | Or):
        left, right = (allowed_pairs(side, query_length, key_length) for side in (mask.left, mask.right))
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Causal):
        return keys <= queries + per_batch(mask.offset)
    if isinstance(mask, SlidingWindow):
        distance = keys - (queries + per_batch(mask.offset))
        inside = jnp.ones_like(distance, dtype=bool)
        if mask.left is not None:
            inside &= distance >= -per_batch(mask.left)
        if mask.right is not None:
            inside &= distance <= per_batch(mask.right)
        return inside
    if isinstance(mask, KeyLengths):
        return keys < per_batch(mask.lengths)
    if isinstance(mask, KeyPadding):
        return mask.keep[:, None, None, :]
    if isinstance(mask, Segments):
        return mask.query_ids[:, None, :, None] == mask.key_ids[:, None, None, :]
    assert isinstance(mask, Dense)
    return mask.array if mask.array.ndim == 4 else mask.array[None, None]


def per_batch(numbers: int | jax.Array | None) -> jax.Array:
    """A number, or one number per batch element, shaped [B or 1, 1, 1, 1]; None is 0."""
    return jnp.reshape(jnp.asarray(0 if numbers is None else numbers, int), (-1, 1, 1, 1))
