"""The attention that a user names for a model of `transformers`: by its name there, or by a function of his own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from conformance.cases.arguments import arguments
from conformance.cases.declaration import declaration_of
from conformance.cases.signatures import Signature, names_taken, signature_of
from conformance.subjects.attention_calls import AXES, in_words
from conformance.subjects.callables import load

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
    if not names_taken(function)[0]:
        raise ValueError(
            f"{attention} names no parameters: name those of attention, or those of transformers' attention interface"
        )
    if of_interface(function):
        refuse_other_parameters(attention, function)
    register(OWN, function=function if of_interface(function) else adapted(function))
    return OWN


def refuse_other_parameters(attention: str, function: Callable[..., Any]) -> None:
    """Raise ValueError for a function of the interface that does not take what every model passes."""
    try:
        inspect.signature(function).bind(*BY_PLACE, dropout=0.0, scaling=1.0)
    except TypeError as error:
        expected = f"({', '.join(BY_PLACE)}, dropout=0.0, scaling=None, **others)"
        raise ValueError(f"{attention} must take {expected}, as transformers calls it: {error}") from error


def of_interface(function: Callable[..., Any]) -> bool:
    """Whether a function has the signature of `transformers`' attention interface."""
    return bool(names_taken(function)[0] & INTERFACE)


def adapted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature of `attention` as one of the interface.

    It gets tensors and a boolean mask, as in `conformance check`, in the layout and polarity that it declares.
    """
    signature, declared = signature_of(function, "attention"), declaration_of(function, True)
    length_first, masked = declared.layout == "BTHD", declared.convention("polarity") == "masked"

    def forward(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, dropout: float = 0.0,
        scaling: float | None = None, **more: Any,
    ) -> tuple[Any, None]:  # fmt: skip
        from torch_impl import materialize
        from torch_impl.huggingface import call_options

        options = call_options(module, query, key, attention_mask, dropout, scaling, **more)
        if "scale" in signature.lacking and is_default_scale(options["scale"], query):
            options["scale"] = None
        if options["mask"] is not None:
            (B, H, Q, _), K = query.shape, key.shape[2]
            allowed = materialize(options["mask"], Q, K, batch=B, heads=H, device=query.device)
            options["mask"] = ~allowed if masked else allowed
            if "mask" in signature.lacking and bool(allowed.all()):
                options["mask"] = None
        refuse_lacking(signature, options)
        given = {"query": query, "key": key, "value": value}
        if length_first:
            given = {name: tensor.transpose(1, 2) for name, tensor in given.items()}
        positional, keywords = signature.bound(*arguments("attention", given, options))
        output = function(*positional, **keywords)
        if not isinstance(output, type(query)) or output.ndim != 4:
            raise TypeError(f"the function must return one tensor {AXES[declared.layout]}, got {in_words(output)}")
        return output if length_first else output.transpose(1, 2), None

    forward.layout = declared.layout  # type: ignore[attr-defined]
    return forward


def refuse_lacking(signature: Signature, options: dict[str, Any]) -> None:
    """Raise TypeError for what a call has and the function has no parameter for."""
    lacking = [name for name, value in options.items() if value is not None and name in signature.lacking]
    if lacking:
        raise TypeError(f"the call needs {', '.join(lacking)}, and the function has no parameter of that name")


def is_default_scale(scale: float | None, query: Any) -> bool:
    """Whether a scale is the one that a call without a scale means, 1 / sqrt(D).

    Models compute it as D**-0.5, or in float32. In float64, the rounding to float32 would show.
    """
    import torch

    default, width = 1 / math.sqrt(query.shape[-1]), query.shape[-1]
    rounded = [] if query.dtype == torch.float64 else [torch.tensor(default, dtype=torch.float32).item()]
    return scale in (None, default, width**-0.5, *rounded)
