"""Faults past a size in JAX; only a few, because JAX compiles for every shape (NORM-1, EMB-1, POS-2)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_impl
from conformance.selftest.faults.fault import Fault


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """jax_impl's."""
    return jax_impl.layer_norm(x, weight, bias, eps=eps)


def columns_up_to_2048(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    output = layer_norm(x, weight, bias, eps=eps)
    return jnp.where(jnp.arange(x.shape[-1]) < 2048, output, 0) if weight.ndim == 1 else output


def rows_up_to_1024(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """Rows past 1024 are the first once more."""
    output = layer_norm(x, weight, bias, eps=eps)
    rows = output.reshape(-1, *weight.shape)
    return rows[jnp.arange(len(rows)) % 1024].reshape(x.shape)


def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
    """jax_impl's."""
    return jax_impl.embedding(table, ids, scaled=scaled)


def ids_in_16_bits(table: Any, ids: Any, *, scaled: bool = False) -> Any:
    return embedding(table, ids.astype(jnp.uint16).astype(jnp.int32), scaled=scaled)


def ids_clipped(table: Any, ids: Any, *, scaled: bool = False) -> Any:
    return embedding(table, jnp.clip(ids, 0, 511), scaled=scaled) if len(table) > 512 else embedding(
        table, ids, scaled=scaled
    )  # fmt: skip


FAULTS: tuple[Fault, ...] = (
    Fault("NORM-1", "columns past 2048 get 0 (jax)", "layer_norm", columns_up_to_2048, layer_norm, "jax"),
    Fault("NORM-1", "rows past 1024 get the first answers (jax)", "layer_norm", rows_up_to_1024, layer_norm, "jax"),
    Fault("EMB-1", "ids in 16 bits (jax)", "embedding", ids_in_16_bits, embedding, "jax"),
    Fault("EMB-1", "ids of 511 at most (jax)", "embedding", ids_clipped, embedding, "jax"),
)
