"""The attention that a user names for a model of `transformers`: by its name there, or by a function of his own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from conformance.cases.arguments import arguments
from conformance.cases.declaration import declaration_of
from conformance.cases.signatures import names_taken, signature_of
from conformance.subjects.callables import load

OWN = "own"
"""The name of the user's function in `transformers`, which gives names such as flash_attention a meaning."""
INTERFACE = {"module", "attention_mask", "scaling"}
"""Parameters that tell the signature of `transformers` from that of `attention`."""


def implementation(attention: str) -> str:
    """Return the name of an implementation for `attn_implementation`.

    A function is registered under a name of its own, with boolean masks; one that its file has registered with masks
    keeps its name and these masks.

    Args:
        attention: a name that `transformers` knows, or `package.module:function` or `path/to/file.py:function`. The
            function has the signature of `transformers`' attention interface, or that of `attention`.

    Raises:
        ValueError: There is no such name or function, or the function names no parameters, so that nothing tells which
            of the two signatures it has.
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
    register(OWN, function=function if of_interface(function) else adapted(function))
    return OWN


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
        given = {"query": query, "key": key, "value": value}
        if length_first:
            given = {name: tensor.transpose(1, 2) for name, tensor in given.items()}
        positional, keywords = signature.bound(*arguments("attention", given, options))
        output = function(*positional, **keywords)
        if getattr(output, "ndim", None) != 4:
            axes = "batch, queries, heads, width" if length_first else "batch, heads, queries, width"
            raise TypeError(f"the function must return one tensor [{axes}], got {in_words(output)}")
        return output if length_first else output.transpose(1, 2), None

    return forward


def is_default_scale(scale: float | None, query: Any) -> bool:
    """Whether a scale is the one that a call without a scale means, 1 / sqrt(D).

    Models compute it as D**-0.5, or in float32. In float64, the rounding to float32 would show.
    """
    import torch

    default, width = 1 / math.sqrt(query.shape[-1]), query.shape[-1]
    rounded = [] if query.dtype == torch.float64 else [torch.tensor(default, dtype=torch.float32).item()]
    return scale in (None, default, width**-0.5, *rounded)


def in_words(output: Any) -> str:
    """A tensor by its shape, a tuple or list by what it holds, anything else by its type."""
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of ({', '.join(map(in_words, output))})"
    return f"{list(output.shape)}" if hasattr(output, "shape") else type(output).__name__
