"""Running a Hugging Face model once, and keeping every call of its attention function.

Models look the function up by `AttentionInterface.get_interface`. While a model is watched, this gives the function
within one that keeps what goes in and out. Attention that a model computes in another way is not seen.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from conformance.subjects.attention_calls import BLOCKS, BOOLEANS, GIVEN, NUMBERS, AttentionCall, output_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FORMS = {"eager": NUMBERS, "flex_attention": BLOCKS}
"""Of the masks that an implementation is given where the model's own call has none; of others booleans."""
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""How the names of models end whose loss takes the tokens themselves as labels."""


def read_tokens(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the model's inputs for token ids; shorter sequences are padded on the right with 0."""
    import torch

    length = max(map(len, sequences))
    ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in sequences])
    keep = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in sequences])
    return {"input_ids": ids} | ({} if bool(keep.all()) else {"attention_mask": keep.long()})


def refuse_unknown(model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """Raise ValueError for token ids that the model does not have, and for none at all."""
    ids = inputs["input_ids"]
    if not ids.numel():
        raise ValueError("there is no token to read: the text is empty")
    size = getattr(model.config.get_text_config(), "vocab_size", int(ids.max()) + 1)
    unknown = ids[(ids < 0) | (ids >= size)]
    if unknown.numel():
        raise ValueError(f"token ids must be from 0 to {size - 1}, got {int(unknown[0])}")


def refuse_absent(device: str) -> None:
    """Raise ValueError for a device that is neither the CPU nor a GPU that PyTorch sees."""
    import torch

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    there = ["cpu", *(["cuda", *gpus] if gpus else [])]
    if device not in there:
        raise ValueError(f"no device {device} here: PyTorch sees {', '.join(there)}")


def watch(
    model: PreTrainedModel, inputs: Mapping[str, Any], *, backward: bool = False, labels: torch.Tensor | None = None
) -> list[AttentionCall]:
    """Run the model once, and return the calls of its attention in order.

    Args:
        model, inputs: a model of `transformers`, and its arguments.
        backward: whether to differentiate its loss: that of the labels; without any, that of the tokens where it is a
            language model, and else half the mean square of its first result.
        labels: of the model's own loss; they may stand among `inputs` too.
    """
    import torch

    given = dict(inputs) | ({} if labels is None else {"labels": labels})
    if getattr(model.config, "is_encoder_decoder", False) and "labels" not in given and "input_ids" in given:
        given.setdefault("decoder_input_ids", given["input_ids"])
    recorded: list[tuple[AttentionCall, tuple[Any, ...], Any]] = []
    with recording(model, recorded, backward), torch.set_grad_enabled(backward):
        if not backward:
            model(**given)
        else:
            loss_of(model, given).backward()
    calls, seen = [], Counter[str]()
    for call, tensors, output in recorded:
        # A call stays as it is where the loss does not depend on it. After a function that changed its inputs, PyTorch
        # has the gradients of what they were changed to.
        if backward and output.grad is not None and not call.changed:
            gradients = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors)
            call = replace(call, cotangent=output.grad, gradients=gradients)
        seen[call.layer] += 1
        number = seen[call.layer]
        calls.append(call if number == 1 else replace(call, layer=f"{call.layer}, call {number}"))
    return calls


def loss_of(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    """Return the model's own loss for labels or tokens, and else half the mean square of its first result."""
    if "labels" in inputs:
        return model(**inputs).loss
    labels = "labels" in inspect.signature(model.forward).parameters and "input_ids" in inputs
    if labels and type(model).__name__.endswith(LANGUAGE_MODELS):
        return model(**inputs, labels=inputs["input_ids"]).loss
    return model(**inputs)[0].square().mean() / 2


@contextlib.contextmanager
def recording(
    model: PreTrainedModel, recorded: list[tuple[AttentionCall, tuple[Any, ...], Any]], backward: bool
) -> Iterator[None]:
    """Keep every call of the model's attention, the tensors that the function was given, and the output it returned."""
    from torch import Tensor
    from torch.nn.functional import pad
    from transformers.modeling_utils import AttentionInterface

    found = AttentionInterface.get_interface
    names = {id(module): name for name, module in model.named_modules()}

    def get_interface(self: Any, implementation: str, default: Any) -> Any:
        function = found(self, implementation, default)

        def attend(
            module: torch.nn.Module,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            **keywords: object,
        ) -> Any:
            kept: Any = tuple(tensor.detach().clone() for tensor in (query, key, value))
            given = tuple(map(isolate_tensor, (query, key, value)))
            named = {"mask": attention_mask, **keywords}
            others = [(name, t, t.detach().clone()) for name, t in named.items() if isinstance(t, Tensor)]
            layer, form = names.get(id(module), "attention"), form_of(attention_mask, implementation)
            try:
                returned = function(module, *given, attention_mask, **keywords)
                output = output_of(returned).clone()
                if output.requires_grad:
                    output.retain_grad()
                again = output.clone()  # for the model, which may change it in place
            except Exception as error:
                error.add_note(layer)
                raise
            changed = [name for name, *both in zip(GIVEN, kept, given, strict=True) if not same_bits(*both)]
            for name, tensor, before in others:  # which the calls of other layers may share
                if not same_bits(before, tensor):
                    tensor.detach().copy_(before)
                    changed.append(name)
            detached = backward and any(tensor.requires_grad for tensor in given) and not output.requires_grad
            call = AttentionCall(
                layer, function, module, form, kept[0], kept[1], kept[2], attention_mask, keywords, output.detach(),
                changed=tuple(changed), backward=backward, detached=detached,
            )  # fmt: skip
            recorded.append((call, given, output))
            # In the dtype and shape that the model needs: it can go on, and all its calls are judged.
            (B, H, Q, _), V = query.shape, value.shape[-1]
            if again.shape != (B, Q, H, V):
                again = pad(again.flatten(), (0, B * Q * H * V - again.numel())).reshape(B, Q, H, V)
            return again.to(query), returned[1]

        return attend

    with mock.patch.object(AttentionInterface, "get_interface", get_interface):
        yield


def isolate_tensor(tensor: torch.Tensor) -> Any:
    """The tensor as this call alone has it, so that its gradient is by way of this call alone."""
    import torch

    if not torch.is_grad_enabled():
        return tensor
    # A parameter that is not trained needs no gradient in the model; the function must give one all the same.
    alone = tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_().clone()
    alone.retain_grad()
    return alone


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether no number differs; NaN is NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def form_of(mask: torch.Tensor | None, implementation: str) -> str:
    if mask is None:
        return FORMS.get(implementation, BOOLEANS)
    if not hasattr(mask, "is_floating_point"):
        return BLOCKS
    return NUMBERS if mask.is_floating_point() else BOOLEANS
