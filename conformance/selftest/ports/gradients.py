"""The `vjp` of a port, by the automatic differentiation of its framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def differentiate_module(module: Any, call: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return the vjp of a call by torch.autograd; entries are the module's parameters."""
    import torch

    def vjp(cotangent: Any, *inputs: Any, **options: Any) -> dict[str, Any]:
        names, parameters = zip(*module.named_parameters(), strict=True)
        with torch.enable_grad():
            output = call(*inputs, **options)
        gradients = torch.autograd.grad(output, parameters, cotangent, allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for name, parameter, gradient in zip(names, parameters, gradients, strict=True)
        }

    return vjp


def differentiate_function(entries: dict[str, Any], call: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return the vjp of call(entries, *inputs, **options) by jax.vjp."""
    import jax

    def vjp(cotangent: Any, *inputs: Any, **options: Any) -> dict[str, Any]:
        output, pull = jax.vjp(lambda entries: call(entries, *inputs, **options), entries)
        return dict(pull(cotangent.astype(output.dtype))[0])

    return vjp
