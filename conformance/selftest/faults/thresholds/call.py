"""Attention in PyTorch as one call that a fault may change: its arguments before, its output or gradients after.

`torch_impl` computes everything, by its reference engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

import torch_impl
from conformance.selftest.faults.fault import Fault
from torch_impl.masks import allowed_pairs

Tensor = torch.Tensor
Size = TypeVar("Size")


@dataclass(frozen=True)
class Call:
    """Arguments of attention, of its weights or of its log-sum-exp; `value` is None for the last two."""

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Any = None
    bias: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    keep: Tensor | None = None
    rate: float = 0.0

    @property
    def B(self) -> int:
        return self.query.shape[0]

    @property
    def H(self) -> int:
        return self.query.shape[1]

    @property
    def G(self) -> int:
        return self.key.shape[1]

    @property
    def Q(self) -> int:
        return self.query.shape[2]

    @property
    def K(self) -> int:
        return self.key.shape[2]

    @property
    def D(self) -> int:
        return self.query.shape[3]

    @property
    def V(self) -> int:
        return self.values.shape[3]

    @property
    def ratio(self) -> int:
        """Query heads for each key head."""
        return self.H // max(self.G, 1)

    @property
    def values(self) -> Tensor:
        assert self.value is not None
        return self.value

    @property
    def number(self) -> float:
        """The scale, resolved."""
        return 1 / math.sqrt(self.D) if self.scale is None else self.scale


Condition = Callable[[Call], bool]


def more(axis: str, n: int, having: str = "") -> Condition:
    """More than n of a size, and an argument if one is named."""
    return lambda c: getattr(c, axis) > n and (not having or getattr(c, having) is not None)


def partly(axis: str, n: int, having: str = "") -> Condition:
    """As `more`, and the last tile of n is not whole."""
    return lambda c: more(axis, n, having)(c) and getattr(c, axis) % n != 0


Before = Callable[[Call], Call]
After = Callable[[Call, Tensor], Tensor]
Compute = Callable[[Call], Tensor]

# --- the right one ----------------------------------------------------------------------------------------------------


def attended(c: Call) -> Tensor:
    """The right output."""
    options: dict[str, Any] = {"mask": c.mask, "bias": c.bias, "scale": c.scale, "softcap": c.softcap}
    options |= {"sinks": c.sinks, "dropout_keep": c.keep, "dropout_rate": c.rate}
    return torch_impl.attention(c.query, c.key, c.values, **options, engine="reference")


def weighed(c: Call) -> Tensor:
    """The right weights."""
    options: dict[str, Any] = {"mask": c.mask, "bias": c.bias, "scale": c.scale, "softcap": c.softcap}
    return torch_impl.attention_weights(c.query, c.key, **options, sinks=c.sinks)


def logsumexp(c: Call) -> Tensor:
    """The right log-sum-exp."""
    options: dict[str, Any] = {"mask": c.mask, "bias": c.bias, "scale": c.scale, "softcap": c.softcap}
    return torch_impl.attention_logsumexp(c.query, c.key, **options, sinks=c.sinks)


def attention_by(compute: Compute) -> Callable[..., Tensor]:
    def attention(
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        dropout_keep: Any = None,
        dropout_rate: float = 0.0,
    ) -> Tensor:
        return compute(Call(query, key, value, mask, bias, scale, softcap, sinks, dropout_keep, dropout_rate))

    return attention


def companion_by(compute: Compute) -> Callable[..., Tensor]:
    """`attention_weights` or `attention_logsumexp`."""

    def companion(
        query: Any,
        key: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
    ) -> Tensor:
        return compute(Call(query, key, None, mask, bias, scale, softcap, sinks))

    return companion


right = attention_by(attended)
right_weights = companion_by(weighed)
right_logsumexp = companion_by(logsumexp)

OPERATIONS: dict[str, tuple[Compute, Callable[[Compute], Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "attention": (attended, attention_by, right),
    "attention_weights": (weighed, companion_by, right_weights),
    "attention_logsumexp": (logsumexp, companion_by, right_logsumexp),
}
"""What computes it, what makes a function of that, and the right function."""

# --- the wrong ones ---------------------------------------------------------------------------------------------------


def planted(
    rule: str,
    name: str,
    compute: Compute,
    operation: str = "attention",
    given: Mapping[str, Any] | None = None,
) -> Fault:
    _, function_by, correct = OPERATIONS[operation]
    return Fault(rule, name, operation, function_by(compute), correct, "torch", dict(given or {}))


def instead(rule: str, name: str, when: Condition, compute: Compute, **said: Any) -> Fault:
    """`compute` answers calls of these sizes."""
    correct = OPERATIONS[said.get("operation", "attention")][0]
    return planted(rule, name, lambda c: compute(c) if when(c) else correct(c), **said)


def before(rule: str, name: str, when: Condition, change: Before, **said: Any) -> Fault:
    """The arguments of calls of these sizes are changed."""
    correct = OPERATIONS[said.get("operation", "attention")][0]
    return planted(rule, name, lambda c: correct(change(c) if when(c) else c), **said)


def after(rule: str, name: str, when: Condition, change: After, **said: Any) -> Fault:
    """The output of calls of these sizes is changed."""
    correct = OPERATIONS[said.get("operation", "attention")][0]
    return planted(rule, name, lambda c: change(c, correct(c)) if when(c) else correct(c), **said)


def each(sizes: Iterable[Size], family: Callable[[Size], Fault]) -> tuple[Fault, ...]:
    """A fault for the first, the middle and the last of the sizes; those between are caught by the same cases."""
    every = tuple(sizes)
    return tuple(map(family, dict.fromkeys((every[0], every[len(every) // 2], every[-1]))))


# --- what several of them do ------------------------------------------------------------------------------------------


def dense(c: Call) -> Tensor:
    """The mask as booleans [B or 1, H or 1, Q, K]."""
    mask = c.mask
    if isinstance(mask, torch.Tensor):
        return mask if mask.ndim == 4 else mask[None, None]
    found = allowed_pairs(mask, c.Q, c.K, c.query.device)
    return found.expand(*found.shape[:2], c.Q, c.K)


def pairs_at(array: Tensor | None, keys: Any) -> Tensor | None:
    return None if array is None else array[..., keys]


def with_keys(c: Call, keys: Any) -> Call:
    """The call on some of the keys, or on some of them twice. keys: a slice, or a tensor of indices."""
    found = replace(c, key=c.key[:, :, keys], bias=pairs_at(c.bias, keys), keep=pairs_at(c.keep, keys))
    found = found if c.value is None else replace(found, value=c.value[:, :, keys])
    return found if c.mask is None else replace(found, mask=dense(c)[..., keys])


class Altered(torch.autograd.Function):
    """The same array, whose gradient is changed on its way back."""

    @staticmethod
    def forward(ctx: Any, array: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return array.clone()

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor, None]:
        return ctx.change(bar), None


def altered(array: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    return Altered.apply(array, change)


def zeroed(array: Tensor, index: Any) -> Tensor:
    """A copy with zeros there."""
    array = array.clone()
    array[index] = 0
    return array
