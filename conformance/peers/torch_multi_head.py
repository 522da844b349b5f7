"""`torch.nn.MultiheadAttention`, by the code that `forward` chooses.

The module has one width for queries, results and heads side by side, as many key heads as query heads, and biases on
all projections or on none. Its boolean masks read True as "leave this key out" and are [Q, K] or [B * H, Q, K].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.heads import join_heads, make_self_attention, square

if TYPE_CHECKING:
    import torch

    from specification.parameters import MultiHeadAttention

LACKS = ("no-gqa", "no-value_width", "no-empty")


def module(width: int, heads: int, biased: bool, key_width: int, value_width: int) -> Any:
    """A module without numbers, for one call: `functional_call` puts parameters into it meanwhile, for all threads."""
    from torch.nn import MultiheadAttention

    made = MultiheadAttention(
        width, heads, bias=biased, kdim=key_width, vdim=value_width, batch_first=True, device="meta"
    )
    return made.eval()


def state(parameters: MultiHeadAttention, packed: bool) -> dict[str, Any]:
    """The parameters under the module's names, weights transposed to [out, in]."""
    import torch

    parts = [join_heads(part, torch.cat) for part in (parameters.query, parameters.key, parameters.value)]
    weights = [part.weight.T for part in parts]
    named = {"in_proj_weight": torch.cat(weights)} if packed else {}
    if not packed:
        named |= {f"{name}_proj_weight": weight for name, weight in zip("qkv", weights, strict=True)}
    named["out_proj.weight"] = parameters.output.weight.T
    if parameters.output.bias is not None:
        named["in_proj_bias"] = torch.cat([part.bias for part in parts])
        named["out_proj.bias"] = parameters.output.bias
    return named


def attn_mask(mask: torch.Tensor | None, batch: int, heads: int) -> Any:
    if mask is None or mask.ndim == 2:
        return None if mask is None else ~mask
    return ~mask.expand(batch, heads, -1, -1).reshape(batch * heads, *mask.shape[2:])


def attend(
    parameters: MultiHeadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    mask: torch.Tensor | None,
    need_weights: bool,
) -> Any:
    from torch.func import functional_call

    width, inner = query.shape[-1], parameters.output.weight.shape[0]
    if width != inner or parameters.output.weight.shape[1] != inner:
        raise NotImplementedError(f"one width for queries, heads and results, got {width} and {inner}")
    widths = key.shape[-1], value.shape[-1]
    made = module(width, heads, parameters.output.bias is not None, *widths)
    given = {"attn_mask": attn_mask(mask, query.shape[0], heads), "need_weights": need_weights}
    named = state(parameters, widths == (width, width))
    return functional_call(made, named, (query, key, value), given)[0]


def multi_head(need_weights: bool) -> Callable[..., Any]:
    @declare(LACKS)
    def attention(
        parameters: MultiHeadAttention,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        num_heads: int,
        mask: torch.Tensor | None = None,
    ) -> Any:
        return attend(parameters, query, key, value, num_heads, mask, need_weights)

    return attention


slow, weighing = multi_head(need_weights=False), multi_head(need_weights=True)


@declare((*LACKS, "no-cross", "no-gradients"))
def fast(
    parameters: MultiHeadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_heads: int,
    mask: torch.Tensor | None = None,
) -> Any:
    """What `forward` takes in evaluation, without gradients, where query, key and value are one tensor.

    It also wants biases and an even number of heads.
    """
    import torch

    with torch.inference_mode():
        attended = attend(parameters, query, query, query, num_heads, mask, need_weights=False)
    return attended.clone()


def even_heads(case: Case) -> bool:
    """Calls of tokens that attend to themselves, by an even number of heads; a NaN in them is nowhere hidden."""
    inputs = case.inputs
    alike = all(inputs[name].shape == inputs["query"].shape for name in ("key", "value"))
    return alike and not case.special and case.options["num_heads"] % 2 == 0


peer = partial(
    make_peer, "torch nn.MultiheadAttention, ", __name__, "torch", ("torch",), operation="multi_head_attention"
)
PEERS = (
    peer("fast path", "fast", fitted=make_self_attention, takes=even_heads),
    peer("slow path", "slow", fitted=square),
    peer("need_weights=True", "weighing", fitted=square),
)
