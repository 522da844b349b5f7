"""Peers: what libraries in wide use compute, path by path, judged like anybody's function.

    from conformance.peers.matrix import matrix
    from conformance.peers.rows import rows_of
    from conformance.peers.markdown import format_markdown
    print(format_markdown(rows_of(matrix("default", seed=0))))

An adapter passes arrays straight through. It raises NotImplementedError where its path has no such parameter, and
nothing else in it refuses, widens or repairs anything.
"""

from __future__ import annotations

from conformance.peers import (
    activations,
    equinox_layers,
    extra,
    flax_layers,
    grouped_products,
    jax_functions,
    keras_layers,
    losses,
    onnx_peers,
    optimizers,
    rotary_layers,
    torch_attention,
    torch_flex,
    torch_multi_head,
    torch_norms,
    transformers_attention,
    transformers_experts,
    transformers_latent,
    transformers_layers,
)
from conformance.peers.peer import Peer

PEERS: tuple[Peer, ...] = (
    *torch_attention.PEERS,
    *torch_flex.PEERS,
    *transformers_attention.PEERS,
    *torch_multi_head.PEERS,
    *torch_norms.PEERS,
    *jax_functions.PEERS,
    *flax_layers.PEERS,
    *equinox_layers.PEERS,
    *keras_layers.PEERS,
    *onnx_peers.PEERS,
    *losses.PEERS,
    *optimizers.PEERS,
    *activations.PEERS,
    *transformers_layers.PEERS,
    *transformers_experts.PEERS,
    *grouped_products.PEERS,
    *transformers_latent.PEERS,
    *rotary_layers.PEERS,
    *extra.PEERS,
)
"""In the order of the table."""
