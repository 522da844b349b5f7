"""Attention by blocks of queries: memory of O(Q + K), and no work on keys that no query of a block may attend to.

Every block is `reference_attention` of its own queries and the one range of keys that the mask leaves to them. Rows are
independent of each other, so the blocks together are `reference_attention` of all. The backward pass computes every
block once more, with its gradients, and adds up what the blocks give to the same keys. Second derivatives are those of
`reference_attention`, with all of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from specification.key_ranges import key_ranges, starts
from specification.masks import map_arrays, part
from torch_impl.attention_steps import reference_attention
from torch_impl.masks import signed


class Limits(NamedTuple):
    """How large the pieces are. The numbers decide about speed and rounding, and nothing else."""

    block: int = 128
    """Queries taken together: fewer waste less at the edges of a mask, and more waste less on starting."""
    alone: int = 2**14
    """Scores of one batch element in a block from which on it gets a step of its own, where there are many elements."""
    scores: int = 2**22
    """Scores of all batch elements and heads that stand in memory at once: 16 MiB in float32."""


class Inputs(NamedTuple):
    """What attention is computed from: key and value heads not repeated, bias of rank 4 or None."""

    query: Any
    key: Any
    value: Any
    mask: Any
    bias: Any
    scale: Any
    softcap: Any
    sinks: Any


Options = tuple[Any, Any, Any]
"""Mask, scale and softcap: what has no gradient here."""


class Block(NamedTuple):
    """Some queries, and the keys that they can see; `masked` says whether any of those is forbidden to any of them."""

    batch: slice
    queries: slice
    keys: slice
    masked: bool


MANY = 32
"""Batch elements, with masks of their own, of which each may get steps of its own however small they are."""


def blocks(inputs: Inputs, size: int, *, merge: bool = False, alone: int = Limits().alone) -> list[Block]:
    """The work, at most `size` queries at a time, without what the mask rules out.

    merge: neighbours that see the same keys, and all of them, become one block. alone: as in `Limits`.
    """
    (_, H, Q, _), K = inputs.query.shape, inputs.key.shape[2]
    size = min(size, Q)
    mask = map_arrays(inputs.mask, lambda array: array.detach().cpu().numpy())
    begin = starts(mask, Q, size)
    edges, ends = np.stack(key_ranges(mask, Q, K, size, np, begin), axis=-1), [*begin[1:].tolist(), Q]
    if len(edges) > MANY and H * size * K < alone:
        edges = united(edges, K)
    found: list[Block] = []
    for row, of_row in enumerate(edges.tolist()):
        batch = slice(None) if len(edges) == 1 else slice(row, row + 1)
        for start, end, (first, stop, full_first, full_stop) in zip(begin.tolist(), ends, of_row, strict=True):
            queries = slice(start, end)
            masked = not full_first <= first < stop <= full_stop
            here = Block(batch, queries, slice(first, stop), masked)
            beside = bool(found) and found[-1].queries.stop == queries.start  # no queries between them see nothing
            if merge and beside and not masked and here == found[-1]._replace(queries=queries):
                found[-1] = here._replace(queries=slice(found[-1].queries.start, queries.stop))
            elif first < stop:
                found.append(here)
    return found


def united(edges: np.ndarray, keys: int) -> np.ndarray:
    """Ranges [1, blocks, 4] that hold those of all batch elements: any key seen by one, full where it is for all."""
    first, stop, full_first, full_stop = np.moveaxis(edges, -1, 0)
    sees = first < stop
    first, stop = np.where(sees, first, keys).min(axis=0), np.where(sees, stop, 0).max(axis=0)
    return np.stack([first, stop, full_first.max(axis=0), full_stop.min(axis=0)], axis=-1)[None]


def cut(array: torch.Tensor, axes: tuple[str, ...], block: Block) -> torch.Tensor:
    """The part of an array that belongs to a block; an axis of size 1 for batch or heads is shared by all."""
    index: list[slice] = []
    for name, size in zip(axes, array.shape, strict=False):
        there = {"batch": block.batch, "queries": block.queries, "keys": block.keys}.get(name, slice(None))
        index.append(slice(None) if name == "batch" and size == 1 else there)
    return signed(array[tuple(index)]) if axes == ("batch",) else array[tuple(index)]


QUERIES, KEYS = ("batch", "heads", "queries"), ("batch", "heads", "keys")
PAIRS = ("batch", "heads", "queries", "keys")


def mask_of(inputs: Inputs, block: Block) -> Any:
    """The mask's description for one block; None where it allows everything."""
    if not block.masked:
        return None
    return part(inputs.mask, block.queries.start, block.keys.start, lambda array, axes: cut(array, axes, block))


def size_of(inputs: Inputs, limits: Limits) -> int:
    (B, H, _, _), K = inputs.query.shape, inputs.key.shape[2]
    return max(1, min(limits.block, limits.scores // (B * H * K)))


def wide(inputs: Inputs) -> torch.dtype:
    """The dtype in which everything is computed (ATT-9)."""
    return torch.float64 if inputs.query.dtype == torch.float64 else torch.float32


# --- the operation ----------------------------------------------------------------------------------------------------


def blocked_attention(limits: Limits, inputs: Inputs) -> torch.Tensor:
    """Output [B, H, Q, V] in the dtype in which everything is computed. Nothing may have size 0."""
    if inputs.bias is not None and inputs.bias.ndim == 2:
        inputs = inputs._replace(bias=inputs.bias[None, None])
    options = (inputs.mask, inputs.scale, inputs.softcap)
    return BlockedAttention.apply(limits, options, *tensors_of(inputs))


class BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, limits: Limits, options: Options, *tensors: torch.Tensor | None) -> torch.Tensor:
        ctx.limits, ctx.options = limits, options
        ctx.save_for_backward(*tensors, *arrays_of(options))
        output, _ = blocked_forward(limits, joined(options, tensors))
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        tensors, wanted = ctx.saved_tensors[:5], ctx.needs_input_grad[2:]
        gradients = blocked_gradients(ctx.limits, ctx.options, tensors, cotangent, wanted)
        return None, None, *gradients


def blocked_forward(limits: Limits, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q], -inf where a query sees no key. The bias has rank 4."""
    shape, dtype, tensors = inputs.query.shape[:3], wide(inputs), tensors_of(inputs)
    output = inputs.query.new_zeros((*shape, inputs.value.shape[3]), dtype=dtype)
    logsumexp = inputs.query.new_full(shape, -torch.inf, dtype=dtype)
    for block in blocks(inputs, size_of(inputs, limits), alone=limits.alone):
        here = joined((mask_of(inputs, block), inputs.scale, inputs.softcap), parts(tensors, block))
        for total, rows in zip((output, logsumexp), reference_attention(**here._asdict()), strict=True):
            cut(total, QUERIES, block).copy_(rows)
    return output, logsumexp


def blocked_gradients(
    limits: Limits, options: Options, tensors: Sequence[Any], cotangent: torch.Tensor, wanted: Sequence[bool]
) -> list[Any]:
    """The gradients of those tensors that are wanted, None for the others."""
    if torch.is_grad_enabled() or several(cotangent):  # second derivatives are asked for
        return reference_gradients(options, tensors, cotangent, wanted)
    sums = gradients_by_blocks(limits, options, tensors, (cotangent,), wanted, reference_gradients)
    return [None if total is None else total.to(t.dtype) for total, t in zip(sums, tensors, strict=True)]


def gradients_by_blocks(
    limits: Limits, options: Options, tensors: Sequence[Any], rows: Sequence[torch.Tensor], wanted: Sequence[bool],
    gradients_of: Callable[..., list[Any]],
) -> list[Any]:  # fmt: skip
    """The sums of gradients_of(options, tensors, *rows, wanted) of every block, in the dtype of computing.

    rows: what else each query has.
    """
    inputs = joined(options, tensors)
    dtype = wide(inputs)
    sums = [torch.zeros_like(a, dtype=dtype) if want else None for a, want in zip(tensors, wanted, strict=True)]
    for block in blocks(inputs, size_of(inputs, limits), alone=limits.alone):
        # Widened here, so that what the blocks give to the same keys is added up before it is rounded.
        pieces = [None if piece is None else piece.to(dtype).detach() for piece in parts(tensors, block)]
        here = (mask_of(inputs, block), *options[1:])
        found = gradients_of(here, pieces, *(cut(array, QUERIES, block) for array in rows), wanted)
        for total, gradient in zip(parts(sums, block), found, strict=True):
            if gradient is not None:
                total += gradient
    return sums


def arrays_of(options: Options) -> list[torch.Tensor]:
    """What the mask holds: saved with the inputs, so that PyTorch tells if it is changed before the backward pass."""
    found: list[Any] = []
    map_arrays(options[0], found.append)
    return [array for array in found if isinstance(array, torch.Tensor)]


def several(cotangent: torch.Tensor) -> bool:
    """Whether it may stand for several at once, as under `is_grads_batched=True` or in `torch.vmap` of a gradient."""
    return torch._C._functorch.is_legacy_batchedtensor(cotangent) or torch._C._are_functorch_transforms_active()


def reference_gradients(
    options: Options, tensors: Sequence[Any], cotangent: torch.Tensor, wanted: Sequence[bool]
) -> list[Any]:
    """The same by autograd through `reference_attention`."""

    def output(*given: torch.Tensor | None) -> torch.Tensor:
        return reference_attention(**joined(options, given)._asdict())[0]

    return gradients_through(output, tensors, cotangent, wanted)


def gradients_through(
    function: Callable[..., torch.Tensor], tensors: Sequence[Any], cotangent: torch.Tensor, wanted: Sequence[bool]
) -> list[Any]:
    """Autograd's gradients of function(*tensors), None for those not wanted; differentiable where gradients are on."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, because the same tensor may be query and key, and each has a gradient of its own here.
        tensors = [differentiable(t).view_as(t) if want else t for t, want in zip(tensors, wanted, strict=True)]
        output = function(*tensors)
        chosen = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
        found = torch.autograd.grad(output, chosen, cotangent, create_graph=create_graph, materialize_grads=True)
    gradients = iter(found)
    return [next(gradients) if want else None for want in wanted]


def differentiable(tensor: torch.Tensor) -> torch.Tensor:
    """With a gradient to come; asked for only where there is none yet, since `torch.vmap` forbids to ask."""
    return tensor if tensor.requires_grad else tensor.requires_grad_()


def tensors_of(inputs: Inputs) -> tuple[Any, ...]:
    return inputs.query, inputs.key, inputs.value, inputs.bias, inputs.sinks


def joined(options: Options, tensors: Sequence[torch.Tensor | None]) -> Inputs:
    (mask, scale, softcap), (query, key, value, bias, sinks) = options, tensors
    return Inputs(query, key, value, mask, bias, scale, softcap, sinks)


def parts(tensors: Sequence[torch.Tensor | None], block: Block) -> list[Any]:
    """What a block needs of query, key, value, bias and sinks, as views."""
    axes = (QUERIES, KEYS, KEYS, PAIRS, ("heads",))
    return [None if t is None else cut(t, names, block) for t, names in zip(tensors, axes, strict=True)]
