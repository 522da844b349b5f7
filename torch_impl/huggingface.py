"""Hugging Face models on this attention, and what a call of their attention interface means.

A model of `transformers` takes its attention function by name, and calls it as

    output, weights = function(module, query, key, value, attention_mask, dropout=, scaling=, **more)

with query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V] and output [B, Q, H, V]. `register` adds one name more,
for `attention` of this package, or for a function of yours. `transformers` is imported only there.

What the mask means depends on its kind, in a way that `call_mask` decides once, for every name:

    booleans       True = may attend
    numbers        a number at or below half the lowest of its dtype forbids the pair; any other is added to its score.
                   `transformers` forbids by the lowest number, which is -inf once two of them are added.
    a `BlockMask`  what its `mask_mod` says of every pair
    None           every pair, or causal from the first key on: by the call's `is_causal`, else by the module's, else
                   causal. One query alone sees every key. Only here does `sliding_window` count: masks have it in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float

from specification import Causal, SlidingWindow
from specification.dtypes import compute_dtype_name, dtype_name
from specification.masks import as_mask, both
from torch_impl.attention import attention

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["attention_forward", "call_mask", "call_options", "register"]

REFUSED = ("block_indices", "cache", "indices")
"""Keywords that choose keys in a way of their own."""


def register(name: str = "reference", *, engine: str = "reference", function: Callable[..., Any] | None = None) -> None:
    """Let models of `transformers` compute attention by `attention`, as `attn_implementation=name`.

    It registers the function and the masks that models make for it, which are boolean arrays. Gradients are autograd's.

    Args:
        name: What to write for `attn_implementation`.
        engine: The engine of `attention`: "reference" takes the definition's steps, "auto" the engine that
            `explain_engine` names.
        function: What to register instead, with the signature above. Without masks that belong to its name, models
            would give it none.

    Raises:
        ImportError: `transformers` is not installed, or older than 5.
    """
    try:
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise ImportError("register needs transformers 5: pip install 'transformers>=5'") from error

    def forward(*given: Any, **keywords: Any) -> tuple[torch.Tensor, None]:
        return attention_forward(*given, engine=engine, **keywords)

    def boolean_mask(*given: Any, **keywords: Any) -> Any:
        """Always an array: what a mask of None would mean depends on the module."""
        return sdpa_mask(*given, **keywords | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

    AttentionInterface.register(name, forward if function is None else function)
    AttentionMaskInterface.register(name, boolean_mask)


def attention_forward(
    module: torch.nn.Module | None,
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    attention_mask: torch.Tensor | BlockMask | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    softcap: float | None = None,
    s_aux: Float[torch.Tensor, "H"] | None = None,
    position_bias: Float[torch.Tensor, "..."] | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    engine: str = "reference",
    **more: object,
) -> tuple[Float[torch.Tensor, "B Q H V"], None]:
    """Compute attention for a layer of a Hugging Face model.

    Args:
        module: The layer. Only its `is_causal` is read, where the call has neither a mask nor `is_causal`.
        query, key, value: As in `attention`; key heads are not repeated.
        attention_mask: Booleans or numbers [B or 1, H or 1, Q or 1, K], a `BlockMask` or None, as above.
        dropout: 0.
        scaling: The scale; None is 1 / sqrt(D).
        softcap: As in `attention`.
        s_aux: The sinks, [H].
        position_bias: Numbers like those of a mask, [B or 1, H or 1, Q or 1, K], in addition to it.
        sliding_window: How many keys a query sees, its own and those before it; counts where there is no mask.
        is_causal: Whether a mask of None is causal.
        engine: As in `attention`.
        **more: What else models pass along, which changes nothing here.

    Returns:
        The output [B, Q, H, V], and None for the weights.

    Raises:
        TypeError: As in `attention`.
        ValueError: As in `attention`; dropout; a keyword that chooses keys in a way of its own.
    """
    options = call_options(
        module, query, key, attention_mask, dropout, scaling, softcap=softcap, s_aux=s_aux,
        position_bias=position_bias, sliding_window=sliding_window, is_causal=is_causal, **more,
    )  # fmt: skip
    return attention(query, key, value, **options, engine=engine).transpose(1, 2).contiguous(), None


def call_options(
    module: torch.nn.Module | None,
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    attention_mask: torch.Tensor | BlockMask | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    softcap: float | None = None,
    s_aux: Float[torch.Tensor, "..."] | None = None,
    position_bias: Float[torch.Tensor, "..."] | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **more: object,
) -> dict[str, Any]:
    """Read a call as the optional arguments of `attention`.

    Args:
        module, query, key, attention_mask, dropout, scaling, softcap, s_aux, position_bias, sliding_window, is_causal,
            more: As in `attention_forward`.

    Returns:
        mask, bias, scale, softcap and sinks; None for what the call has none of.

    Raises:
        TypeError, ValueError: As in `attention_forward`.
    """
    refuse_others(dropout, more)
    mask, bias = call_mask(
        module, query, key, attention_mask,
        position_bias=position_bias, sliding_window=sliding_window, is_causal=is_causal,
    )  # fmt: skip
    sinks = None if s_aux is None else s_aux.reshape(-1)
    return {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": sinks}


def refuse_others(dropout: float, more: dict[str, Any]) -> None:
    """Raise ValueError for what would change the result and is not computed."""
    if dropout:
        raise ValueError(f"dropout must be 0, got {dropout}: call model.eval()")
    for name in REFUSED:
        if more.get(name) is not None:
            raise ValueError(f"attention takes no {name}: it chooses keys in a way of its own")


def call_mask(
    module: torch.nn.Module | None,
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    attention_mask: torch.Tensor | BlockMask | None,
    *,
    position_bias: Float[torch.Tensor, "..."] | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
) -> tuple[Any, Float[torch.Tensor, "#B #H Q K"] | None]:
    """Read the mask of a call as a mask and a bias of `attention`.

    Args:
        module, query, key, attention_mask, position_bias, sliding_window, is_causal: As in `attention_forward`.

    Returns:
        The mask: None, a description or a boolean array. The bias, or None where nothing but 0 is added.

    Raises:
        TypeError: A mask of whole numbers.
        ValueError: A mask that is not of rank 4, or does not fit the queries and keys.
    """
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask, bias = unmasked(query.shape[2], key.shape[2], bool(causal), sliding_window), None
    else:
        mask, bias = forbidden_and_added(attention_mask, query, key)
    if position_bias is None:
        return mask, bias
    allowed, added = forbidden_and_added(position_bias, query, key)
    return both(as_mask(mask), as_mask(allowed)), added if bias is None else bias if added is None else bias + added


def unmasked(query_length: int, key_length: int, causal: bool, sliding_window: int | None) -> Any:
    """What a call without a mask means."""
    alone = query_length == 1
    causal = causal and not alone
    if sliding_window is not None and key_length > sliding_window:
        before = sliding_window - 1
        return SlidingWindow(before, 0 if causal or alone else before, key_length - 1 if alone else 0)
    return Causal(0) if causal else None


def forbidden_and_added(
    array: torch.Tensor | BlockMask, query: torch.Tensor, key: torch.Tensor
) -> tuple[Bool[torch.Tensor, "#B #H Q K"] | None, Float[torch.Tensor, "#B #H Q K"] | None]:
    """The pairs that a mask allows, and what it adds to their scores; None for all of them, and for nothing."""
    Q, K = query.shape[2], key.shape[2]
    if not isinstance(array, torch.Tensor):
        array = every_pair(array, Q, K, query.device)
    if array.ndim != 4 or array.shape[2] not in (1, Q) or array.shape[3] != K:
        raise ValueError(f"a mask must be [batch or 1, heads or 1, {Q}, {K}], got {list(array.shape)}")
    array = array.expand(-1, -1, Q, -1)
    if array.dtype == torch.bool:
        return array, None
    if not array.is_floating_point():
        raise TypeError(f"a mask must hold booleans or floating numbers, got {array.dtype}")
    allowed = ~(array <= torch.finfo(array.dtype).min / 2)
    added = torch.where(allowed, array, 0)
    # A bias of NaN is a bias: only 0 adds nothing.
    adds = array.requires_grad or bool((added != 0).any())
    return None if bool(allowed.all()) else allowed, widened(added, query) if adds else None


def every_pair(block_mask: BlockMask, query_length: int, key_length: int, device: torch.device) -> torch.Tensor:
    """The boolean array of a `BlockMask`."""
    from torch.nn.attention.flex_attention import create_mask

    if not hasattr(block_mask, "mask_mod"):
        raise TypeError(f"a mask must be a tensor or a BlockMask, got {type(block_mask).__name__}")
    batch, heads = block_mask.shape[:2]
    return create_mask(block_mask.mask_mod, batch, heads, query_length, key_length, device)


def widened(bias: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """In the dtype in which scores are computed, if it has less digits and another dtype than the queries."""
    wide = getattr(torch, compute_dtype_name(dtype_name(query)))
    return bias.to(wide) if bias.dtype != query.dtype and bias.dtype.itemsize < wide.itemsize else bias
