"""Attention by PyTorch's own kernel for the CPU, which is called once for every block of queries that the mask leaves.

The kernel is the flash attention behind `scaled_dot_product_attention`. Where it would break a rule it is not asked:

- a NaN, an infinity or a product beyond all numbers (it adds the mask to scores and multiplies weights of 0, so those
  of forbidden keys come through; and queries of NaN become zeros): then `blocked_attention` computes everything;
- 16-bit inputs (it would round the weights to 16 bits): they are widened before;
- a causal mask with a scale that is not positive (it gives NaN): then the mask is handed over as an array;
- several query heads for one key head: they are handed over as further queries of that head, and nothing is copied.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from specification.masks import Causal
from torch_impl.engines import fused_gpu
from torch_impl.engines.blocked import (
    KEYS,
    QUERIES,
    Block,
    Inputs,
    Limits,
    Options,
    arrays_of,
    blocked_attention,
    blocked_gradients,
    blocks,
    cut,
    joined,
    mask_of,
    several,
    wide,
)
from torch_impl.engines.kernel_inputs import bounded, dense, recomputed_alike, scale_of, scores_bounded, size
from torch_impl.masks import allowed_pairs

forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def fused_attention(limits: Limits, inputs: Inputs) -> torch.Tensor:
    """Output [B, H, Q, V] in the dtype in which everything is computed. Nothing may have size 0; on a CPU V is D."""
    if inputs.query.is_cuda:
        return fused_gpu.fused_attention(limits, inputs)
    work = work_of(limits, inputs)
    tensors = (inputs.query, inputs.key, inputs.value)
    masked = any(block.masked for block in work)
    if masked and not (scores_bounded(inputs) and size(inputs.value) < math.inf):
        return blocked_attention(limits, inputs)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        output, logsumexp = FusedAttention.apply(limits, (inputs.mask, inputs.scale, None), work, *tensors)
    else:
        output, logsumexp = forward(inputs, work)
    if not masked and not usual(output, logsumexp):
        return blocked_attention(limits, inputs)
    return output


def usual(output: torch.Tensor, logsumexp: torch.Tensor) -> bool:
    """Whether the kernel was right without a mask.

    A row in which it found no number to start from, and no mask to explain it, has a log-sum-exp of 0.
    """
    return finite(output) and torch.count_nonzero(logsumexp).item() == logsumexp.numel()


def finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are. The sum of their squares may overflow; then this says no, and only time is lost.

    After a short call the threads of PyTorch's own sum cost twice as much as this product.
    """
    rows = tensor.detach()
    numbers = (rows if rows.is_contiguous() else rows.transpose(1, 2)).reshape(-1)  # results lie as the queries do
    return math.isfinite(torch.dot(numbers, numbers))


class FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, limits: Limits, options: Options, work: list[Block], *tensors: torch.Tensor
    ) -> tuple[Any, Any]:
        output, logsumexp = forward(joined(options, (*tensors, None, None)), work)
        ctx.limits, ctx.options, ctx.work = limits, options, work
        ctx.save_for_backward(*tensors, output, logsumexp, *arrays_of(options))
        ctx.mark_non_differentiable(logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
        *tensors, output, logsumexp = ctx.saved_tensors[:5]
        inputs = joined(ctx.options, (*tensors, None, None))
        twice = torch.is_grad_enabled() or several(cotangent)
        if twice or not (bounded(cotangent, inputs.value) and recomputed_alike(inputs)):
            everything, wanted = (*tensors, None, None), (*ctx.needs_input_grad[3:], False, False)
            found = blocked_gradients(ctx.limits, ctx.options, everything, cotangent, wanted)
            return None, None, None, *found[:3]
        return None, None, None, *backward(inputs, ctx.work, output, logsumexp, cotangent)


EVERYTHING = Block(slice(None), slice(None), slice(None), masked=False)
WHOLE = [EVERYTHING]


def work_of(limits: Limits, inputs: Inputs) -> list[Block]:
    plain = inputs.mask is None or upper_left(inputs)
    return WHOLE if plain else blocks(inputs, limits.block, merge=True)


def upper_left(inputs: Inputs) -> bool:
    """Whether the mask is the one that the kernel knows by itself, and gets right."""
    mask, (_, H, Q, _), (_, G, K, _) = inputs.mask, inputs.query.shape, inputs.key.shape
    plain = isinstance(mask, Causal) and (mask.offset is None or (isinstance(mask.offset, int) and mask.offset == 0))
    return plain and Q == K and H == G and scale_of(inputs) > 0


# --- some of the keys -------------------------------------------------------------------------------------------------


def forward_of_part(limits: Limits, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Output and log-sum-exp, -inf where a query sees no key; None where blocks must compute them."""
    work = work_of(limits, inputs)
    masked = [block for block in work if block.masked]
    if masked and not (scores_bounded(inputs) and size(inputs.value) < math.inf):
        return None
    output, logsumexp = forward(inputs, work)
    if not masked and not usual(output, logsumexp):
        return None
    for block in masked:
        # The kernel gives 0 to a row of which the mask leaves nothing.
        rows, keys = cut(logsumexp, QUERIES, block), block.keys.stop - block.keys.start
        allowed = allowed_pairs(mask_of(inputs, block), rows.shape[2], keys, rows.device)
        rows.masked_fill_(~allowed.any(dim=-1), -math.inf)
    return output, logsumexp


def gradients_of_part(
    limits: Limits, inputs: Inputs, output: torch.Tensor, logsumexp: torch.Tensor, cotangent: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value, given output and log-sum-exp over all keys."""
    # Weights of a row without keys are exp(-inf - 0) = 0.
    logsumexp = torch.where(logsumexp == -math.inf, 0, logsumexp)
    return backward(inputs, work_of(limits, inputs), output, logsumexp, cotangent)


# --- the kernel, block by block ---------------------------------------------------------------------------------------


def forward(inputs: Inputs, work: list[Block]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q]."""
    (B, H, Q, D), dtype = inputs.query.shape, wide(inputs)
    if work is WHOLE:
        rows, sums = forward_kernel(
            *operands(inputs, EVERYTHING), 0.0, inputs.mask is not None, attn_mask=None, scale=inputs.scale
        )
        return (rows, sums) if rows.shape[1] == H else (rows.reshape(B, H, Q, D), sums.reshape(B, H, Q))
    output = inputs.query.new_zeros((B, H, Q, D), dtype=dtype)
    logsumexp = inputs.query.new_full((B, H, Q), -math.inf, dtype=dtype)
    for block in work:
        found = forward_kernel(*operands(inputs, block), attn_mask=numbers(inputs, block), scale=inputs.scale)
        for total, rows in zip((output, logsumexp), found, strict=True):
            part = cut(total, QUERIES, block)
            part.copy_(rows.reshape(part.shape))
    return output, logsumexp


def backward(
    inputs: Inputs, work: list[Block], output: torch.Tensor, logsumexp: torch.Tensor, cotangent: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value, each in its own dtype."""
    given, G, dtype = (inputs.query, inputs.key, inputs.value), inputs.key.shape[1], wide(inputs)
    results = (cotangent, output, logsumexp)
    if work is WHOLE:
        d_output, out, lse = (stacked(rows, G) for rows in results)
        found = backward_kernel(
            d_output, *operands(inputs, EVERYTHING), out, lse, 0.0, inputs.mask is not None, scale=inputs.scale
        )
        return tuple(gradient.reshape(a.shape).to(a.dtype) for gradient, a in zip(found, given, strict=True))
    sums = [torch.zeros_like(tensor, dtype=dtype) for tensor in given]
    for block in work:
        d_output, out, lse = (stacked(cut(rows, QUERIES, block), G) for rows in results)
        found = backward_kernel(
            d_output, *operands(inputs, block), out, lse, 0.0, False,
            attn_mask=numbers(inputs, block), scale=inputs.scale,
        )  # fmt: skip
        for total, axes, gradient in zip(sums, (QUERIES, KEYS, KEYS), found, strict=True):
            part = cut(total, axes, block)
            part += gradient.reshape(part.shape)
    return tuple(total.to(tensor.dtype) for total, tensor in zip(sums, given, strict=True))


def operands(inputs: Inputs, block: Block) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value of a block as the kernel takes them."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if block is not EVERYTHING:
        query, key, value = cut(query, QUERIES, block), cut(key, KEYS, block), cut(value, KEYS, block)
    dtype = wide(inputs)
    return as_read(stacked(query, key.shape[1]), dtype), as_read(key, dtype), as_read(value, dtype)


def stacked(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """[B, H, Q, ...] as [B, G, H / G * Q, ...]: heads that share a key head become further queries of it."""
    if rows.shape[1] != groups:
        rows = rows.reshape(rows.shape[0], groups, -1, *rows.shape[3:])
    return dense(rows)


def as_read(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    tensor = dense(tensor)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def numbers(inputs: Inputs, block: Block) -> torch.Tensor | None:
    """The mask of a block as the kernel takes it: 0 where it allows and -inf where it does not, to be added."""
    if not block.masked:
        return None
    (_, H, Q, _), G = cut(inputs.query, QUERIES, block).shape, inputs.key.shape[1]
    K = block.keys.stop - block.keys.start
    allowed = allowed_pairs(mask_of(inputs, block), Q, K, inputs.query.device)
    added = torch.where(allowed, 0.0, -math.inf).to(wide(inputs))
    if H == G:
        return added.expand(-1, -1, Q, K)
    return added.expand(-1, H, Q, K).reshape(added.shape[0], G, H // G * Q, K)
