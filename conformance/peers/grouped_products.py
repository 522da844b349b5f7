"""Mixtures of experts around one product of all experts: PyTorch's `grouped_mm`, JAX's `ragged_dot`.

Neither library has the mixture. Around the product stands what SPEC.md asks for: tokens are sorted by their experts,
and all else is in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.peer import Peer
from conformance.peers.transformers_experts import (
    GROUPED,
    fit_mixture,
    has_no_choice_bias,
    is_plain_gate,
    require_gate,
    takes_all,
)

if TYPE_CHECKING:
    import jax
    import torch

    from specification.parameters import MixtureOfExperts


@declare(**GROUPED)
def torch_grouped(parameters: MixtureOfExperts, x: torch.Tensor, *, chosen: int) -> Any:
    """`torch.nn.functional.grouped_mm` in gated networks without biases, behind a router of the default options."""
    import torch
    from torch.nn import functional as F

    router, experts = parameters.router, require_gate(parameters.experts)
    rows, X = x.reshape(-1, x.shape[-1]), router.weight.shape[1]
    logits = rows.float() @ router.weight.float()
    logits = logits if router.bias is None else logits + router.bias.float()
    weights, indices = torch.topk(logits.softmax(dim=-1), chosen, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    order = indices.flatten().argsort(stable=True)
    tokens, ends = order // chosen, torch.bincount(indices.flatten(), minlength=X).cumsum(0).int()
    gate, inner = (F.grouped_mm(rows[tokens], side.weight, offs=ends).float() for side in experts[:2])
    results = F.grouped_mm((F.silu(gate) * inner).to(x.dtype), experts.outer.weight, offs=ends)
    weighed = results.float() * weights.flatten()[order, None]
    output = torch.zeros(len(rows), results.shape[-1]).index_add(0, tokens, weighed).to(x.dtype)
    return output.reshape(*x.shape[:-1], output.shape[-1])


@declare()
def jax_ragged(parameters: MixtureOfExperts, x: jax.Array, *, chosen: int) -> Any:
    """`jax.lax.ragged_dot` in the same networks."""
    import jax
    from jax import numpy as jnp

    router, experts = parameters.router, require_gate(parameters.experts)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    rows, X = x.reshape(-1, x.shape[-1]), router.weight.shape[1]
    logits = rows.astype(wide) @ router.weight.astype(wide)
    logits = logits if router.bias is None else logits + router.bias.astype(wide)
    weights, indices = jax.lax.top_k(jax.nn.softmax(logits), chosen)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    order = jnp.argsort(indices.ravel())
    tokens, sizes = order // chosen, jnp.bincount(indices.ravel(), length=X).astype(jnp.int32)
    gate, inner = (jax.lax.ragged_dot(rows[tokens], side.weight, sizes).astype(wide) for side in experts[:2])
    results = jax.lax.ragged_dot((jax.nn.silu(gate) * inner).astype(x.dtype), experts.outer.weight, sizes)
    weighed = results.astype(wide) * weights.ravel()[order, None]
    output = jnp.zeros((len(rows), results.shape[-1]), wide).at[tokens].add(weighed).astype(x.dtype)
    return output.reshape(*x.shape[:-1], output.shape[-1])


def peer(name: str, subject: str, library: str) -> Peer:
    return Peer(
        f"{name}, a mixture around it", f"{__name__}:{subject}", "mixture_of_experts", library, (library,),
        takes=takes_all(is_plain_gate, has_no_choice_bias), fitted=fit_mixture(".bias", "shared.", square=False),
    )  # fmt: skip


PEERS = (peer("torch F.grouped_mm", "torch_grouped", "torch"), peer("jax.lax.ragged_dot", "jax_ragged", "jax"))
