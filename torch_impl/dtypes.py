"""The dtype in which everything is computed, float32 or float64 for float64 (ATT-9), and what would change it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch.autograd.function import FunctionCtx

from specification.dtypes import compute_dtype_name, dtype_name


def widen(array: Float[torch.Tensor, "..."] | None) -> Any:
    """The tensor in the dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""
    if array is None:
        return None
    if not isinstance(array, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(array).__name__}")
    return array.to(getattr(torch, compute_dtype_name(dtype_name(array))))


def number(value: float | torch.Tensor) -> Any:
    """A Python float, whose product with a tensor keeps the tensor's dtype; a tensor stays, and gets a gradient."""
    return value if isinstance(value, torch.Tensor) else float(value)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right in their own dtype, under autocast too.

    TF32 is off in PyTorch unless the user turns it on, and that choice is left as it is.
    """
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


if TYPE_CHECKING:

    class Context(FunctionCtx):
        """What an operation's forward pass leaves for its gradient; PyTorch's own type knows one tensor."""

        saved_tensors: tuple[torch.Tensor, ...]

else:
    Context = FunctionCtx


class GradientByHand(torch.autograd.Function):
    """An operation whose gradient is written by hand, out of the inputs that it saves."""

    generate_vmap_rule = True

    def __init_subclass__(cls) -> None:
        """Keep the signature of `forward`, which `apply` asks for in every call (torch 2.13.0)."""
        if "forward" in vars(cls):
            cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
