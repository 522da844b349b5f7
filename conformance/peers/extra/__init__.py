"""Libraries of the extra environment, which `make peers` makes and the project does without."""

from __future__ import annotations

from conformance.peers.extra import (
    curated_peers,
    diffusers_peers,
    forecasting_peers,
    haiku_peers,
    litgpt_peers,
    mlx_peers,
    monai_peers,
    openvino_peers,
    small_torch_peers,
    tensorflow_peers,
    thinc_peers,
    timm_peers,
    tinygrad_peers,
    torchtune_peers,
    x_transformers_peers,
)
from conformance.peers.peer import Peer

PEERS: tuple[Peer, ...] = (
    *x_transformers_peers.PEERS,
    *curated_peers.PEERS,
    *small_torch_peers.PEERS,
    *timm_peers.PEERS,
    *torchtune_peers.PEERS,
    *litgpt_peers.PEERS,
    *diffusers_peers.PEERS,
    *forecasting_peers.PEERS,
    *haiku_peers.PEERS,
    *mlx_peers.PEERS,
    *monai_peers.PEERS,
    *tinygrad_peers.PEERS,
    *openvino_peers.PEERS,
    *thinc_peers.PEERS,
    *tensorflow_peers.PEERS,
)
"""In the order of the table."""
