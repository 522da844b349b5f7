"""The attention that a user names for a model of `transformers`: by its name there, or by a function of his own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.arguments import arguments
from conformance.cases.case import Case, heads_and_keys
from conformance.cases.declaration import Declaration
from conformance.cases.features import unsupported_features
from conformance.cases.signatures import declaration_of, parameter_names, signature_of
from conformance.subjects.attention_calls import AXES, describe_returned
from conformance.subjects.callables import load
from conformance.subjects.conventions import drop_offset, invert_mask, map_dense_masks
from conformance.subjects.frameworks import TorchArrays
from conformance.subjects.mask_descriptions import plainest_description
from reference_numpy import materialize
from specification import Dense
from specification.dtypes import dtype_name
from specification.masks import map_arrays

if TYPE_CHECKING:
    import torch

    from specification.masks import Mask

OWN = "own"
"""The name of the user's function in `transformers`, which gives names such as flash_attention a meaning."""
INTERFACE = {"module", "attention_mask", "scaling"}
"""Parameters that tell the signature of `transformers` from that of `attention`."""
BY_PLACE = ("module", "query", "key", "value", "attention_mask")
"""What models pass to a function of the interface by place."""


def implementation(attention: str) -> str:
    """Return the name of an implementation for `attn_implementation`.

    A function is registered under a name of its own, with boolean masks; one that its file has registered with masks
    keeps its name and these masks.

    Args:
        attention: a name that `transformers` knows, or `package.module:function` or `path/to/file.py:function`. The
            function has the signature of `transformers`' attention interface, or that of `attention`.

    Raises:
        ValueError: There is no such name or function; the function names no parameters, so that nothing tells which of
            the two signatures it has; or `transformers` cannot call it.
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    from torch_impl.huggingface import register

    functions = AttentionInterface._global_mapping
    if ":" not in attention:
        names = ["eager", *sorted(name for name in functions if "|" not in name)]
        if attention not in names:
            known = ", ".join(names)
            raise ValueError(f"attention must be one of {known}, or path/to/file.py:function, got {attention!r}")
        return attention
    function = load(attention)
    for name, registered in functions.items():
        if registered is function and name in AttentionMaskInterface._global_mapping:
            return name
    parameters = parameter_names(function)[0]
    if not parameters:
        known = "those of attention, or those of transformers' attention interface"
        raise ValueError(f"{attention} names no parameters: name {known}")
    if not parameters & INTERFACE:
        register(OWN, function=adapt_function(function))
        return OWN
    try:  # what every model passes
        inspect.signature(function).bind(*BY_PLACE, dropout=0.0, scaling=1.0)
    except TypeError as error:
        expected = f"({', '.join(BY_PLACE)}, dropout=0.0, scaling=None, **others)"
        raise ValueError(f"{attention} must take {expected}, as transformers calls it: {error}") from error
    register(OWN, function=function)
    return OWN


def adapt_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature of `attention` as one of the interface.

    It gets tensors, in the layout and mask polarity that it declares, as in `conformance check`. Masks are boolean
    arrays, or descriptions if it declares `structured`.
    """
    signature, declared = signature_of(function, "attention"), declaration_of(function, True)
    declared = replace(declared, lacking=signature.lacking)
    length_first = declared.layout == "BTHD"

    def forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[Any, None]:
        from torch_impl.huggingface import call_options

        options = call_options(module, query, key, attention_mask, dropout, scaling, **more)
        if "scale" not in declared and is_default_scale(options["scale"], query):
            options["scale"] = None
        case = outline(query, key, value, options, declared)
        options["mask"] = convert_mask(options["mask"], case, declared, query.device)
        lacking = [name for name, value in options.items() if value is not None and name in signature.lacking]
        if lacking:
            raise TypeError(f"the call needs {', '.join(lacking)}, and the function has no parameter of that name")
        undeclared = list(unsupported_features(case, declared))
        if undeclared:
            raise TypeError(f"the call needs {', '.join(undeclared)}, which the function does not declare")
        given = {"query": query, "key": key, "value": value}
        if length_first:
            given = {name: tensor.transpose(1, 2) for name, tensor in given.items()}
        positional, keywords = signature.bind_arguments(*arguments("attention", given, options))
        output = function(*positional, **keywords)
        if not isinstance(output, type(query)) or output.ndim != 4:
            expected = f"one tensor {AXES[declared.layout]}"
            raise TypeError(f"the function must return {expected}, got {describe_returned(output)}")
        return output if length_first else output.transpose(1, 2), None

    forward.declaration = declared  # type: ignore[attr-defined]
    return forward


def outline(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any], declared: Declaration
) -> Case:
    """The call as a case without its numbers, with the mask as a description that the function takes, if one is."""
    import torch

    given = {"query": query, "key": key, "value": value, "bias": options["bias"], "sinks": options["sinks"]}
    empty = np.float32(0)  # one number, broadcast: no array takes memory
    inputs = {name: np.broadcast_to(empty, tuple(tensor.shape)) for name, tensor in given.items() if tensor is not None}
    (B, _, Q, _), K, mask = query.shape, key.shape[2], options["mask"]
    mask = map_arrays(mask, TorchArrays().numpy)
    mask = plainest_description(declared, mask, B, Q, K)
    own = {"mask": mask, "scale": options["scale"], "softcap": options["softcap"]}
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    cotangents = {"output": inputs["value"]} if differentiated else {}
    return Case("attention", dtype_name(query), inputs, own, cotangents)


def convert_mask(mask: Mask | torch.Tensor | None, case: Case, declared: Declaration, device: torch.device) -> Any:
    """The mask as the function takes it: a description of tensors, a boolean tensor, or None.

    A function of boolean arrays gets one even where every pair is allowed, if it takes any at all.
    """
    import torch

    found = case.options["mask"]
    if "structured" in declared:
        found = drop_offset(found, declared.convention("causal"), case)
    elif mask is None or (found is None and "dense" not in declared):
        return None
    else:
        H, _, Q, K = heads_and_keys(case)
        found = Dense(materialize(found, Q, K, batch=case.inputs["query"].shape[0], heads=H))
    if declared.convention("polarity") == "masked":
        found = map_dense_masks(found, invert_mask)
    found = map_arrays(found, lambda array: torch.as_tensor(array, device=device))
    return found if "structured" in declared or found is None else found.array


def is_default_scale(scale: float | None, query: torch.Tensor) -> bool:
    """Whether a scale is the one that a call without a scale means, 1 / sqrt(D).

    Models compute it as D**-0.5, or in float32. In float64, the rounding to float32 would show.
    """
    import torch

    default, width = 1 / math.sqrt(query.shape[-1]), query.shape[-1]
    rounded = [] if query.dtype == torch.float64 else [torch.tensor(default, dtype=torch.float32).item()]
    return scale in (None, default, width**-0.5, *rounded)
