"""Which algorithm computes an attention: the choice, and how to ask for it (`explain_engine`)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float

from specification import checks
from specification.engines import Choice, choose
from specification.masks import Mask
from torch_impl.engines.blocked import Inputs, Limits, tensors_of
from torch_impl.engines.fused_gpu import hindrance_of_choosing, hindrance_of_triton
from torch_impl.masks import checked_mask

__all__ = ["explain_engine", "explain_layer_norm_engine"]

LIMITS = Limits()
"""What "blocked" and "fused" take at once."""


def explain_engine(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    *,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    dropout_keep: Bool[torch.Tensor, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
    engine: str = "auto",
) -> Choice:
    """Say which engine `attention` takes for the same arguments, why, and what hinders the others.

    Nothing is computed.

    Args:
        query, key, value, mask, bias, scale, softcap, sinks, dropout_keep, dropout_rate, empty_rows, engine: As in
            `attention`.

    Returns:
        The engine, the reason, and by engine what hinders it.

    Raises:
        TypeError, ValueError: As in `attention`.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H, query.device)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    return engine_for(engine, inputs, dropout_keep, empty_rows)


def engine_for(engine: str, inputs: Inputs, dropout_keep: torch.Tensor | None, empty_rows: str) -> Choice:
    """The choice for arguments that were checked. It looks at shapes and options alone, never at numbers."""
    hindrance = hindrance_of_blocks(inputs, dropout_keep, empty_rows)
    if hindrance:
        return choose(engine, {"blocked": hindrance, "fused": hindrance}, "reference", hindrance)
    hindrance = hindrance_of_the_kernel(inputs)
    if hindrance:
        return choose(engine, {"fused": hindrance}, "blocked", hindrance)
    if not inputs.query.is_cuda:
        return choose(engine, {}, "fused", "PyTorch's kernel takes it")
    if hindrance := hindrance_of_choosing(inputs):
        return choose(engine, {}, "blocked", hindrance)
    return choose(engine, {}, "fused", "the Triton kernels take it")


def hindrance_of_blocks(inputs: Inputs, dropout_keep: torch.Tensor | None, empty_rows: str) -> str:
    if dropout_keep is not None:
        return "blocks have no dropout"
    if empty_rows != "zero":
        return f"blocks have no empty_rows={empty_rows!r}"
    if 0 in (*inputs.query.shape, *inputs.value.shape):
        return "there is nothing to divide into blocks"
    if isinstance(inputs.scale, torch.Tensor) or isinstance(inputs.softcap, torch.Tensor):
        return "a scale or softcap in a tensor may want a gradient, which blocks do not give"
    if traced(*tensors_of(inputs)):
        return "while PyTorch traces or transforms a function, no numbers can be looked at"
    return ""


def traced(*tensors: torch.Tensor | None) -> bool:
    """Under torch.compile, torch.export, torch.fx, torch.func's transformations, or with tensors without numbers.

    Whatever else looks at every operation (a mode, a subclass of tensors) gets the reference engine, too.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or not all(tensor is None or holds_numbers(tensor) for tensor in tensors)
    )


def holds_numbers(tensor: torch.Tensor) -> bool:
    """An ordinary tensor, that is not recorded to be computed later."""
    capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta and not capturing


def hindrance_of_the_kernel(inputs: Inputs) -> str:
    if inputs.query.is_cuda:
        return hindrance_of_triton(inputs)
    if not inputs.query.is_cpu:
        return "the kernels that keep every rule are those for the CPU and for CUDA"
    if inputs.bias is not None or inputs.sinks is not None or inputs.softcap is not None:
        return "PyTorch's kernel has no softcap and no sinks, and no gradient of a bias"
    if inputs.value.shape[-1] != inputs.query.shape[-1]:
        return "PyTorch's kernel needs values as wide as queries"
    return ""


# --- layer norm -------------------------------------------------------------------------------------------------------


def explain_layer_norm_engine(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    *,
    eps: float = 1e-5,
    engine: str = "auto",
) -> Choice:
    """Say which engine `layer_norm` takes for the same arguments, why, and what hinders the others.

    Nothing is computed.

    Args:
        x, weight, bias, eps, engine: As in `layer_norm`.

    Returns:
        The engine, the reason, and by engine what hinders it.

    Raises:
        TypeError, ValueError: As in `layer_norm`.
    """
    checks.norm(x, weight, bias, eps)
    return layer_norm_engine_for(engine, x, weight, bias, eps)


def layer_norm_engine_for(
    engine: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float | torch.Tensor
) -> Choice:
    """The choice for arguments that were checked. It looks at shapes and options alone, never at numbers."""
    hindrances = {"blocked": "rows are normalised one by one, there is nothing to divide into blocks"}
    if hindrance := hindrance_of_the_norm_kernel(x, weight, bias, eps):
        return choose(engine, hindrances | {"fused": hindrance}, "reference", hindrance)
    return choose(engine, hindrances, "fused", "PyTorch's kernel takes it")


def hindrance_of_the_norm_kernel(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float | torch.Tensor
) -> str:
    if not x.is_cpu:
        return "the kernel that is known to keep every rule is the one for the CPU"
    if x.numel() == 0:
        return "there is nothing to normalise"
    if isinstance(eps, torch.Tensor):
        return "eps in a tensor may want a gradient, which the kernel does not give"
    if traced(x, weight, bias):
        return "while PyTorch traces or transforms a function, it gets PyTorch's own operations"
    return ""
