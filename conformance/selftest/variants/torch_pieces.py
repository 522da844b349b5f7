"""What the PyTorch variants of attention share: their inputs made ready, and roundings to fewer digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from conformance.cases.declaration import declare
from torch_impl.attention_steps import repeat_heads, resolve_scale, visible_pairs
from torch_impl.dtypes import widen
from torch_impl.masks import checked_mask

if TYPE_CHECKING:
    from specification.masks import Mask

Rounding = Callable[[torch.Tensor], torch.Tensor]


class Problem(NamedTuple):
    """Inputs in the dtype of the arithmetic, with a key head for every query head; a bias [B or 1, H or 1, Q, K]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    allowed: torch.Tensor  # [B, H, Q, K]
    bias: torch.Tensor | None
    sinks: torch.Tensor | None
    scale: float
    softcap: float | None
    dtype: torch.dtype = torch.float32  # of the inputs


Compute = Callable[[Problem], torch.Tensor]


def attention_by(
    compute: Compute, name: str, repeat: Callable[[Any, int], Any] = lambda x, H: x, **declared: Any
) -> Callable[..., Any]:
    """The function in the plain contract.

    repeat: what is done with keys and values before they are widened. declared: as in `declare`.
    """

    @declare(**declared)
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        mask: Mask | torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> Any:
        dtype = str(query.dtype).removeprefix("torch.")
        if dtype not in declared.get("dtypes", (dtype,)):
            raise TypeError(f"{name} takes {', '.join(declared['dtypes'])}, got {dtype}")
        key, value = (repeat(array, query.shape[1]) for array in (key, value))
        return compute(problem(query, key, value, mask, bias, scale, softcap, sinks)).to(query.dtype)

    attention.__qualname__ = attention.__name__ = name
    return attention


def problem(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask | torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: Any,
    softcap: Any,
    sinks: torch.Tensor | None,
) -> Problem:
    (B, H, Q, D), K = query.shape, key.shape[2]
    allowed, bias = visible_pairs(checked_mask(mask, Q, K, B, H, query.device), bias, Q, K, query.device)
    wide = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    numbers = resolve_scale(scale, D), softcap, query.dtype
    return Problem(*wide, allowed.expand(B, H, Q, K), widen(bias), widen(sinks), *numbers)


def cap_scores(products: torch.Tensor, p: Problem, keys: slice = slice(None)) -> torch.Tensor:
    """Scores of the allowed pairs from scaled products, -inf for the others."""
    scores = products if p.softcap is None else p.softcap * torch.tanh(products / p.softcap)
    if p.bias is not None:
        scores = scores + p.bias[..., keys]
    return torch.where(p.allowed[..., keys], scores, -torch.inf)


def first_maximum(p: Problem) -> torch.Tensor:
    """Of a row of which no key has been seen: its sink, or -inf. [B, H, Q, 1]."""
    shape = (*p.query.shape[:3], 1)
    if p.sinks is None:
        return p.query.new_full(shape, -torch.inf)
    return p.sinks.detach()[:, None, None].expand(shape)


def row_maximum(scores: torch.Tensor, p: Problem) -> torch.Tensor:
    """The largest score or sink, 0 where there is none. No gradient flows through it: it cancels."""
    return finite(torch.amax(torch.cat([scores.detach(), first_maximum(p)], dim=-1), dim=-1, keepdim=True))


def finite(maximum: torch.Tensor) -> torch.Tensor:
    """0 in place of -inf, so that a row without weight gets 0 and not NaN."""
    return torch.where(maximum == -torch.inf, 0, maximum)


def sink_exponential(p: Problem, maximum: torch.Tensor) -> torch.Tensor | float:
    return 0.0 if p.sinks is None else torch.exp(p.sinks[:, None, None] - maximum)


def exponentials(shifted: torch.Tensor, p: Problem) -> torch.Tensor:
    """exp of the allowed pairs; a forbidden one is 0 in a row of NaN too."""
    return torch.where(p.allowed, torch.exp(shifted), 0)


def divide_rows(output: torch.Tensor, total: torch.Tensor, p: Problem) -> torch.Tensor:
    """output / total, and 0 in rows that allow nothing."""
    output = output / torch.where(total == 0, 1, total)
    return torch.where(p.allowed.any(dim=-1, keepdim=True), output, 0)


# --- fewer digits -----------------------------------------------------------------------------------------------------


def skip_rounding(x: torch.Tensor) -> torch.Tensor:
    return x


def round_to(dtype: torch.dtype) -> Rounding:
    return lambda x: x.to(dtype).to(x.dtype)


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 with the last 13 of its 23 fraction bits rounded away, ties away from 0."""
    bits = (x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return torch.where(torch.isfinite(x), bits.view(torch.float32), x)
