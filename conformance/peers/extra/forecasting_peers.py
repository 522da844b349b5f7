"""PyTorch Forecasting: the attention of its temporal fusion transformer, which has one head for each batch element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.extra.torch_modules import WITHOUT_AMX
from conformance.peers.peer import BROADCAST

if TYPE_CHECKING:
    import torch


def adapt_attention(mask_bias: float, **declared: Any) -> Callable[..., Any]:
    """`ScaledDotProductAttention`, which puts `mask_bias` into hidden scores."""

    @declare("no-gqa,no-empty", conventions={"polarity": "masked"}, **declared)
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: torch.Tensor | None = None
    ) -> Any:
        from pytorch_forecasting.models.temporal_fusion_transformer import sub_modules

        if query.shape[:2] != key.shape[:2]:
            raise NotImplementedError("as many heads of keys as of queries")
        sizes = (*query.shape[:3], key.shape[2])
        hidden = None if mask is None else mask.expand(sizes).flatten(0, 1)
        attend = sub_modules.ScaledDotProductAttention(mask_bias=mask_bias)
        output, _ = attend(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), hidden)
        return output.unflatten(0, sizes[:2])

    return attention


attention = adapt_attention(-1e9, dtypes=("float32", "bfloat16", "float64"))
attention_infinite = adapt_attention(-math.inf)

peer = partial(
    make_peer, "PyTorch Forecasting ScaledDotProductAttention", __name__, "torch", ("pytorch_forecasting", "torch"),
    operation="attention", isolated=True, environment=WITHOUT_AMX, documented=BROADCAST,
)  # fmt: skip
PEERS = (
    peer(", mask", "attention"),
    peer(", mask, mask_bias=-inf", "attention_infinite"),
)
