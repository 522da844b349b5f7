"""MONAI: the self-attention of its vision transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.extra.torch_modules import WITHOUT_AMX
from conformance.peers.peer import takes_masks
from specification import KeyPadding

if TYPE_CHECKING:
    import torch

    from specification.parameters import Linear


def adapt_block(flash: bool) -> Callable[..., Any]:
    """`SABlock`, whose mask is of keys."""

    @declare("structured,padding,no-separate,gradients")
    def heads(
        parameters: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, num_heads: int,
        mask: KeyPadding | None = None,
    ) -> Any:  # fmt: skip
        import torch
        from monai.networks.blocks.selfattention import SABlock

        widths = {part.weight.shape[1] for part in (parameters.query, parameters.key, parameters.value)}
        if query.shape[1] != key.shape[1] or len(widths) > 1:
            raise NotImplementedError("tokens attend to themselves, by heads of one width")
        if not isinstance(mask, KeyPadding | None):
            raise NotImplementedError("no mask but one of keys")
        options = {"use_combined_linear": False, "use_flash_attention": flash}
        block: Any = SABlock(widths.pop(), num_heads, **options).eval()
        # The block projects one array of tokens. The case has three, so each projection reads its own instead.
        block.to_q = read_other_tokens(query, parameters.query)
        block.to_k = read_other_tokens(key, parameters.key)
        block.to_v = read_other_tokens(value, parameters.value)
        block.out_proj = make_linear(parameters.output)
        return block(query, None if mask is None else torch.as_tensor(mask.keep))

    return heads


def read_other_tokens(tokens: torch.Tensor, part: Linear) -> Any:
    """A module that projects these tokens, whatever it is given."""
    from torch import nn

    class Projection(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return project(tokens)

    project = make_linear(part)
    return Projection()


def make_linear(part: Linear) -> Any:
    from torch import nn

    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return nn.functional.linear(x, part.weight.T, part.bias)

    return Product()


heads, heads_flash = adapt_block(flash=False), adapt_block(flash=True)

peer = partial(
    make_peer, "MONAI ", __name__, "torch", ("monai", "torch"), operation="multi_head_attention", isolated=True,
    environment=WITHOUT_AMX, takes=takes_masks(KeyPadding),
)  # fmt: skip
PEERS = (
    peer("SABlock, attn_mask", "heads"),
    peer("SABlock, use_flash_attention, attn_mask", "heads_flash"),
)
