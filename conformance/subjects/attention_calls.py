"""Calls that Hugging Face models made of their attention, each as a case and as a subject.

The case holds what the model passed, as `torch_impl.huggingface.call_mask` reads it. The subject answers this case with
what the model got, and every other one by calling the function again, in the form in which the model calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.subjects.frameworks import TorchArrays
from conformance.subjects.mask_descriptions import describe_mask, plainest_description
from conformance.subjects.subject import Answers, Subject
from conformance.subjects.wrong_answers import DtypeOrShape, WrongAnswer
from specification import Causal, SlidingWindow
from specification.dtypes import dtype_name
from specification.masks import And, Or

if TYPE_CHECKING:
    import torch

    from specification.masks import Mask

KNOWN_KEYWORDS = ("dropout", "is_causal", "position_bias", "s_aux", "scaling", "sliding_window", "softcap")
"""Keywords that a case has a place for."""
OF_MASKS = ("is_causal", "position_bias", "sliding_window")
NUMBERS, BOOLEANS, BLOCKS = "numbers", "booleans", "blocks"
"""The forms of masks."""
GIVEN = ("query", "key", "value")
AXES = {"BTHD": "[batch, queries, heads, width]", "BHTD": "[batch, heads, queries, width]"}
"""Of an output, by its layout."""
NEVER_JUDGED = ("dropout", "empty", "empty_rows", "refusals", "structured")
"""Features that no call is judged on."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call, with the tensors of PyTorch that went in and came out.

    layer: the module's name in the model. function: what the model called. form: of the masks that it is given.
    cotangent: of the output, where the model's loss was differentiated; then the gradients of query, key and value.
    changed: what of all this the function changed, by name; it is here as it was before. backward: whether the loss was
    differentiated. detached: the output has no gradients, though an input does.
    """

    layer: str
    function: Callable[..., Any]
    module: Any
    form: str
    query: Any
    key: Any
    value: Any
    mask: Any
    keywords: Mapping[str, Any]
    output: Any
    cotangent: Any = None
    gradients: tuple[Any, ...] = ()
    changed: tuple[str, ...] = ()
    backward: bool = False
    detached: bool = False


def case_of(call: AttentionCall, empty_rows: str = "zero") -> Case:
    """Return the call as a case of `attention`; TypeError or ValueError says why it is none."""
    from torch_impl.huggingface import call_mask, refuse_others

    keywords, arrays = call.keywords, TorchArrays()
    refuse_others(keywords.get("dropout") or 0.0, dict(keywords))
    given = dict(zip(GIVEN, (call.query, call.key, call.value), strict=True))
    dtypes = {name: dtype_name(tensor) for name, tensor in given.items()}
    if len(set(dtypes.values())) > 1:
        raise TypeError(f"query, key and value must have one dtype, got {', '.join(dtypes.values())}")
    masks = {name: keywords.get(name) for name in OF_MASKS}
    mask, bias = call_mask(call.module, call.query, call.key, call.mask, **masks)
    alone = call_mask(call.module, call.query, call.key, call.mask, **masks | {"position_bias": None})[1]
    if alone is not None and masks["position_bias"] is not None:
        raise ValueError("it adds a mask of numbers and a position bias, and one bias is judged")
    sinks = keywords.get("s_aux")
    inputs = given | {"bias": bias, "sinks": None if sinks is None else sinks.reshape(-1)}
    inputs = {name: arrays.numpy(tensor) for name, tensor in inputs.items() if tensor is not None}
    (B, H, Q, _), K, V = call.query.shape, call.key.shape[2], call.value.shape[-1]
    declared, scale = own_declaration(call.function), keywords.get("scaling")
    if declared is not None and "structured" in declared:
        mask = plainest_description(declared, mask, B, Q, K)
    else:
        mask = describe_mask(mask, Q, K)
    scale = scale if declared is None or "scale" in declared else None  # it got this call by the default alone
    options = {"mask": mask, "softcap": keywords.get("softcap"), "scale": scale}
    options |= {"empty_rows": None if empty_rows == "zero" else empty_rows}
    options = {name: value for name, value in options.items() if value is not None}
    answered = call.cotangent is not None and form(call.cotangent) == (call.query.dtype, (B, Q, H, V))
    cotangents = {"output": arrays.numpy(move_heads_first(call.cotangent))} if answered else {}
    special = not all(np.isfinite(array.astype(float)).all() for array in (*inputs.values(), *cotangents.values()))
    constants = tuple(name for name in ("bias", "sinks") if name in inputs) if cotangents else ()
    return Case("attention", dtypes["query"], inputs, options, cotangents, special=special, constants=constants)


def form(tensor: torch.Tensor) -> tuple[Any, tuple[int, ...]]:
    """Its dtype and shape."""
    return tensor.dtype, tuple(tensor.shape)


def output_of(returned: object) -> Any:
    """The output among what the function returned; TypeError where it returned anything but an output and weights.

    A model takes two: of an output alone it would take the first two sequences of the batch.
    """
    import torch

    if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], torch.Tensor):
        raise TypeError(
            f"the function must return (output, weights), where weights may be None, got {describe_returned(returned)}"
        )
    return returned[0]


def describe_returned(returned: object) -> str:
    """A tensor by its shape, a tuple or list by what it holds, anything else by its type."""
    if isinstance(returned, tuple | list):
        return f"a {type(returned).__name__} of ({', '.join(map(describe_returned, returned))})"
    kind = type(returned)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name} {list(returned.shape)}" if hasattr(returned, "shape") else kind.__name__


def refuse_other_form(call: AttentionCall) -> None:
    """Raise WrongAnswer for an output of another dtype or shape, told in the axes in which the function returns it."""
    (B, H, Q, _), V = call.query.shape, call.value.shape[-1]
    if form(call.output) == (call.query.dtype, (B, Q, H, V)):
        return
    declared = own_declaration(call.function)
    layout = "BTHD" if declared is None else declared.layout  # BTHD is that of the interface
    heads_first = layout == "BHTD"
    got = move_heads_first(call.output) if heads_first and call.output.ndim == 4 else call.output
    expected = (B, H, Q, V) if heads_first else (B, Q, H, V)
    swapped = call.output.shape == (B, H, Q, V) != (B, Q, H, V)
    dtype, due = (str(tensor.dtype).removeprefix("torch.") for tensor in (got, call.query))
    raise WrongAnswer(DtypeOrShape(dtype, tuple(got.shape), (due,), expected, swapped, layout), "output")


def move_heads_first(output: torch.Tensor) -> Any:
    """[B, H, Q, V] of [B, Q, H, V]."""
    return output.transpose(1, 2)


def own_declaration(function: Callable[..., object]) -> Declaration | None:
    """What a function with the signature of `attention` says of itself; None of one with that of the interface."""
    declaration = getattr(function, "declaration", None)
    return declaration if isinstance(declaration, Declaration) else None


def mask_form(call: AttentionCall, case: Case) -> str:
    """The form in which the function got the mask: the names of its descriptions, or that of an array."""
    declared, mask = own_declaration(call.function), case.options.get("mask")
    if declared is not None and "structured" in declared:
        return "none" if mask is None else description_name(mask)
    nothing = call.mask is None or (declared is not None and mask is None and "dense" not in declared)
    return "none" if nothing else call.form


def description_name(mask: Mask | None) -> str:
    if isinstance(mask, And | Or):
        sign = "&" if isinstance(mask, And) else "|"
        return f"{description_name(mask.left)} {sign} {description_name(mask.right)}"
    return type(mask).__name__


class CallSubject(Subject):
    """The function of a call. case: of the call itself, which is answered with what the model got."""

    def __init__(self, call: AttentionCall, case: Case, conventions: Mapping[str, str]) -> None:
        super().__init__(call.layer, TorchArrays(str(call.query.device)))
        self.call_made, self.case = call, case
        declared = own_declaration(call.function) or EVERYTHING
        features = declared.features - set(NEVER_JUDGED)
        self.declaration: Declaration = replace(
            declared, features=features, conventions=dict(conventions), layout="BHTD", vjp=None
        )

    @property
    def code(self) -> Any:
        return self.call_made.function

    def answer_case(self, case: Case) -> Answers:
        if case is not self.case:
            return super().answer_case(case)
        call = self.call_made
        refuse_other_form(call)
        values = {"output": move_heads_first(call.output)}
        if case.cotangents:
            values |= dict(zip(map(gradient_name, GIVEN), call.gradients, strict=True))
        return {name: self.answer(name, case, values) for name in values}

    def call(self, operation: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        return repeat_call(self.call_made, *positional, **keywords)


def repeat_call(
    call: AttentionCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: Mask | None = None,
    bias: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    empty_rows: str = "zero",
) -> Any:
    """Call the function on other arguments; the output [B, H, Q, V]."""
    import torch

    (B, H, Q, D), (_, G, K, _) = query.shape, key.shape
    flagged = call.mask is None and isinstance(mask, Causal) and mask.offset == 0
    keywords = {n: v for n, v in call.keywords.items() if n not in KNOWN_KEYWORDS and not isinstance(v, torch.Tensor)}
    keywords |= {"dropout": 0.0, "scaling": D**-0.5 if scale is None else scale, "is_causal": flagged}
    keywords |= {} if softcap is None and "softcap" not in call.keywords else {"softcap": softcap}
    keywords |= {} if sinks is None else {"s_aux": sinks}
    if "sliding_window" in call.keywords:
        keywords["sliding_window"] = None
        if isinstance(mask, SlidingWindow) and mask.left is not None:
            keywords["sliding_window"] = mask.left + 1
    if bias is not None and (call.form == BLOCKS or call.keywords.get("position_bias") is not None):
        keywords["position_bias"], bias = bias.expand(B, H, Q, K), None
    unseen = query.new_full((H,), -torch.inf) if sinks is None else sinks
    module = Layer(call.module, num_key_value_groups=H // max(G, 1), is_causal=flagged, sinks=unseen)
    given = form_mask(call.form, None if flagged else mask, bias, query, key)
    output = output_of(call.function(module, query, key, value, given, **keywords))
    return move_heads_first(output) if output.ndim == 4 else output


def form_mask(form: str, mask: Mask | None, bias: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> Any:
    """Mask and bias in the form of the function's masks; None where there is neither."""
    import torch

    from torch_impl import materialize

    if mask is None and bias is None:
        return None
    (B, H, Q, _), K = query.shape, key.shape[2]
    allowed = materialize(mask, Q, K, batch=B, heads=H, device=query.device)
    if form == BLOCKS:
        return block_mask(allowed, query, key)
    if form == BOOLEANS and bias is None:
        return allowed
    number = bias if bias is None or bias.ndim == 4 else bias[None, None]
    return additive(allowed, torch.promote_types(query.dtype, query.dtype if bias is None else bias.dtype), number)


class Layer:
    """A model's layer with some attributes of its own."""

    def __init__(self, module: torch.nn.Module | None, **own: object) -> None:
        self.module = module
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


# --- masks in the forms that functions take ---------------------------------------------------------------------------


def additive(mask: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None = None) -> Any:
    """The bias, or 0, where the mask allows, and the dtype's lowest number elsewhere, as `transformers` writes it."""
    import torch

    allowed = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias.to(dtype)
    return torch.where(mask, allowed, torch.finfo(dtype).min)


def lookup(array: torch.Tensor) -> Callable[..., Any]:
    """[Q, K] or [B or 1, H or 1, Q, K] as a function of the four indices."""
    if array.ndim == 2:
        return lambda b, h, i, j: array[i, j]
    batches, heads = array.shape[0] > 1, array.shape[1] > 1
    return lambda b, h, i, j: array[b if batches else 0, h if heads else 0, i, j]


def block_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Any:
    """A `BlockMask` whose `mask_mod` looks the mask up."""
    from torch.nn.attention.flex_attention import create_block_mask

    allows = lookup(mask)
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return create_block_mask(lambda b, h, i, j: allows(b, h, i, j), *sizes, device=str(query.device))
