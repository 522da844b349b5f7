"""PyTorch: the engines of torch_impl, SDPA by kernel, FlexAttention, nn.MultiheadAttention, F.layer_norm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.subjects.frameworks import TorchArrays
from conformance.timing.subjects.timed_subject import (
    EVICTED,
    ROUNDED,
    TOKENS,
    Layout,
    Prepared,
    Results,
    Subject,
    Unfit,
    heads_of,
    ours,
    usual_layout,
    without,
)
from conformance.timing.timed_case import Arrays, Case, dense_mask, mixture_parameters
from specification.masks import map_arrays


def prepared(
    case: Case,
    device: str,
    function: Any,
    given: Any = None,
    *,
    gradients: Any = None,
    layout: Layout | None = None,
    weights: Any = None,
) -> Prepared:
    """function(*inputs, given(mask)), differentiated by torch.autograd; without `given`, function(*inputs).

    gradients: gradients(*inputs, cotangent, given(mask)) of the inputs, in place of torch.autograd. weights: for layers
    that hold their parameters: from the tensors of the inputs to the function for these, and the tensors that the
    gradients are then asked of.
    """
    import torch

    framework, layout = TorchArrays(device), layout or usual_layout(case)

    def load(arrays: Arrays, mask: Any) -> Any:
        inputs = [framework.array(layout.lay(arrays[name])) for name in case.inputs]
        by_autograd = case.backward and gradients is None
        inputs = [tensor.requires_grad_() for tensor in inputs] if by_autograd else inputs
        cotangent = framework.array(layout.lay(arrays["cotangent"])) if case.backward else None
        extra = (given(mask),) if given else ()
        apply, leaves = (function, inputs) if weights is None else weights(*inputs)
        pull = functools.partial(gradients, *inputs, cotangent, *extra) if gradients else None
        return functools.partial(apply, *inputs, *extra), pull, leaves, cotangent

    def call(loaded: Any) -> Results:
        apply, pull, leaves, cotangent = loaded
        output = apply()
        if cotangent is None:
            return (output,)
        return (output, *(torch.autograd.grad(output, leaves, cotangent) if pull is None else pull()))

    def view(result: Any, name: str) -> Any:
        return layout.view(result.detach(), heads_of(case, name))

    def evict() -> None:
        torch.empty(EVICTED, dtype=torch.uint8, device=device).zero_()

    ready = Prepared(load, call, view, lambda piece: piece.clone(), framework.numpy)
    if device == "cuda":
        return replace(ready, on_stream=True, wait=lambda results: torch.cuda.synchronize(), evict=evict)
    return ready


def engine(case: Case, device: str, name: str) -> Prepared:
    """torch_impl.attention by an engine; the description is given as it is, in every call."""
    import torch

    import torch_impl
    from conformance.timing.timed_case import mask

    framework, dtype = TorchArrays(device), getattr(torch, case.dtype)
    empty = [torch.empty(case.shapes[part], dtype=dtype, device=device) for part in case.inputs]

    def convert_mask(mask: Any) -> Any:
        return map_arrays(mask, framework.array)

    try:
        choice = torch_impl.explain_engine(*empty, mask=convert_mask(mask(case, 0)), engine=name)
    except ValueError as error:
        raise Unfit(str(error)) from error

    def apply(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return torch_impl.attention(query, key, value, mask=mask, engine=name)

    chosen = f"{choice.engine}: {choice.why}" if name == "auto" else ""
    return replace(prepared(case, device, apply, convert_mask), form="description", chosen=chosen)


# --- scaled_dot_product_attention -------------------------------------------------------------------------------------


def causal_or_dense(case: Case, device: str, numbers: bool) -> tuple[Callable[[Any], Any], str]:
    """`is_causal` where that says it, else an `attn_mask`: of 0 and -inf in the inputs' dtype, or of booleans.

    From booleans SDPA's kernel for the CPU makes the numbers anew in every call, so they are made beforehand.
    """
    import torch

    framework, dtype = TorchArrays(device), getattr(torch, case.dtype)
    if case.kind == "dense":
        return lambda mask: {}, ""
    if case.kind == "causal":
        return lambda mask: {"is_causal": True}, "is_causal"
    if not numbers:
        return lambda mask: {"attn_mask": framework.array(dense_mask(case, mask))}, "boolean array"
    return lambda mask: {"attn_mask": as_numbers(framework.array(dense_mask(case, mask)), dtype)}, NUMBERS


NUMBERS = "array of 0 and -inf, made beforehand"


def as_numbers(allowed: Any, dtype: Any) -> Any:
    """To be added to scores: 0 where it is allowed, and -inf."""
    import torch

    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def sdpa(case: Case, device: str, kernel: str = "", numbers: bool = True) -> Prepared:
    """The function itself; `kernel` is switched on around all calls."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend, grouped = torch.nn.functional.scaled_dot_product_attention, case.H != case.G
    options: dict[str, Any] = {"enable_gqa": True} if grouped else {}
    given, form = causal_or_dense(case, device, numbers)

    def apply(query: Any, key: Any, value: Any, mask: dict[str, Any]) -> Any:
        try:
            return attend(query, key, value, **mask, **options)
        except RuntimeError as error:
            if kernel and "No available kernel" in str(error):
                raise Unfit(f"SDPA's kernel {kernel} does not take it here") from error
            raise

    ready = replace(prepared(case, device, apply, given), form=form)
    return replace(ready, around=lambda: sdpa_kernel(getattr(SDPBackend, kernel))) if kernel else ready


def allowed(case: Case, mask: Any, array: Callable[[Any], Any]) -> Callable[..., Any]:
    """The mask as FlexAttention's function of the four indices."""
    if case.kind == "causal":
        return lambda b, h, i, j: j <= i
    if case.kind == "window":
        left = mask.left
        return lambda b, h, i, j: (j <= i) & (i - j <= left)
    if case.kind == "lengths":
        lengths = array(mask.lengths)
        return lambda b, h, i, j: j < lengths[b]
    ids = array(mask.query_ids[0])
    return lambda b, h, i, j: ids[i] == ids[j]


def flex(case: Case, device: str) -> Prepared:
    """Compiled; its block mask is made outside the clock, since a model makes it once for all layers."""
    import torch
    from torch.nn.attention import flex_attention as library

    compiled = torch.compile(library.flex_attention, dynamic=False)
    framework, grouped = TorchArrays(device), case.H != case.G

    def given(mask: Any) -> Any:
        if mask is None:
            return None
        batch = case.B if case.kind == "lengths" else None
        function = allowed(case, mask, framework.array)
        return library.create_block_mask(function, batch, None, case.Q, case.K, device=device)

    def apply(query: Any, key: Any, value: Any, blocks: Any) -> Any:
        return compiled(query, key, value, block_mask=blocks, enable_gqa=grouped)

    form = "" if case.kind == "dense" else "block mask of a mask_mod, made beforehand"
    return replace(prepared(case, device, apply, given), form=form)


def multi_head(case: Case, device: str) -> Prepared:
    """As a whole: its projections cannot be left out, and are the identity here."""
    import torch

    width = case.H * case.D
    framework, dtype = TorchArrays(device), getattr(torch, case.dtype)
    module = torch.nn.MultiheadAttention(width, case.H, bias=False, batch_first=True, device=device, dtype=dtype)
    with torch.no_grad():
        one = torch.eye(width, dtype=dtype, device=device)
        module.in_proj_weight.copy_(one.repeat(3, 1))
        module.out_proj.weight.copy_(one)
    module = module.eval().requires_grad_(False)

    def given(mask: Any) -> dict[str, Any]:
        if mask is None:
            return {}
        # From booleans it makes these numbers anew in every call.
        added = as_numbers(framework.array(dense_mask(case, mask)), dtype)
        if case.kind == "lengths":
            return {"key_padding_mask": added[:, 0, 0]}
        return {"attn_mask": added[0, 0]} | ({"is_causal": True} if case.kind == "causal" else {})

    def apply(query: Any, key: Any, value: Any, mask: dict[str, Any]) -> Any:
        return module(query, key, value, need_weights=False, **mask)[0]

    form = {"dense": "", "lengths": f"key_padding_mask, {NUMBERS}"}.get(case.kind, f"attn_mask, {NUMBERS}")
    return replace(prepared(case, device, apply, given, layout=TOKENS), form=form)


def layer_norm(case: Case, device: str, package: str) -> Prepared:
    import torch

    if package == "torch_impl":
        import torch_impl

        return prepared(case, device, lambda x, weight, bias: torch_impl.layer_norm(x, weight, bias, eps=1e-5))
    function = torch.nn.functional.layer_norm
    return prepared(case, device, lambda x, weight, bias: function(x, weight.shape, weight, bias, 1e-5))


def mixture(case: Case, device: str) -> Prepared:
    import torch_impl

    parameters = mixture_parameters(case, TorchArrays(device).array)
    return prepared(case, device, lambda x: torch_impl.mixture_of_experts(parameters, x, chosen=case.chosen))


# --- the list ---------------------------------------------------------------------------------------------------------


def needs_array(case: Case) -> str:
    return "" if case.kind in ("window", "lengths", "segments") else "it gets no array here"


def peer(name: str, make: Callable[..., Prepared], *arguments: Any, **fields: Any) -> Subject:
    fields = {"operation": "attention", "conventions": ROUNDED} | fields
    return Subject(name, arrays="torch", packages=("torch",), make=make, arguments=arguments, **fields)


OURS = ours("torch_impl", engine, layer_norm, mixture, scores=(5, 8))
HALF = ("float16", "bfloat16")
EXACT: dict[str, str] = {}
PEERS = (
    peer("torch SDPA", sdpa, usual=True),
    peer("torch SDPA, boolean mask", sdpa, "", False, takes=needs_array),
    peer("torch SDPA, flash", sdpa, "FLASH_ATTENTION", device="cpu", slow="SDPA takes it by itself where it can"),
    peer("torch SDPA, math", sdpa, "MATH", scores=(3, 5), conventions=EXACT),
    peer(
        "torch SDPA, flash (CUDA)", sdpa, "FLASH_ATTENTION", device="cuda",
        takes=without("window", "lengths", "segments", dtypes=HALF),
    ),
    peer("torch SDPA, efficient", sdpa, "EFFICIENT_ATTENTION", device="cuda", takes=without(grouped=False)),
    peer("torch SDPA, cuDNN", sdpa, "CUDNN_ATTENTION", device="cuda", takes=without(dtypes=HALF)),
    peer(
        "torch FlexAttention", flex, device="cpu", takes=without(backward=False),
        slow="it compiles C++ for every shape, for 10 to 40 seconds",
    ),
    peer("torch FlexAttention (CUDA)", flex, device="cuda"),
    peer(
        "torch nn.MultiheadAttention", multi_head, takes=without(grouped=False),
        notes=("as a whole: its four projections, here the identity, are timed with it",),
    ),
    peer("torch F.layer_norm", layer_norm, "torch", operation="layer_norm", conventions=EXACT, usual=True),
)  # fmt: skip
