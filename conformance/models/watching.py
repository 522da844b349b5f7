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
from typing import Any, NamedTuple
from unittest import mock

from conformance.subjects.attention_calls import BLOCKS, BOOLEANS, GIVEN, NUMBERS, AttentionCall, output_of

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


def refuse_unknown(model: Any, inputs: Mapping[str, Any]) -> None:
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


def watch(model: Any, inputs: Mapping[str, Any], *, backward: bool = False, labels: Any = None) -> list[AttentionCall]:
    """Run the model once, and return the calls of its attention in order.

    Args:
        model: of `transformers`.
        inputs: its arguments.
        backward: whether to differentiate its loss: that of the labels; without any, that of the tokens where it is a
            language model, and else half the mean square of its first result.
        labels: of the model's own loss; they may stand among `inputs` too.
    """
    import torch

    given = dict(inputs) | ({} if labels is None else {"labels": labels})
    if getattr(model.config, "is_encoder_decoder", False) and "labels" not in given and "input_ids" in given:
        given.setdefault("decoder_input_ids", given["input_ids"])
    recorded: list[Recorded] = []
    with recording(model, recorded, backward), torch.set_grad_enabled(backward):
        if not backward:
            model(**given)
        else:
            loss_of(model, given).backward()
    calls, seen = [], Counter[str]()
    for record in recorded:
        call = add_gradients(*record) if backward else record.call
        seen[call.layer] += 1
        number = seen[call.layer]
        calls.append(call if number == 1 else replace(call, layer=f"{call.layer}, call {number}"))
    return calls


class Recorded(NamedTuple):
    """A call, the tensors that were given to the function, and the output that it returned."""

    call: AttentionCall
    given: tuple[Any, ...]
    output: Any


def loss_of(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the model's own loss for labels or tokens, and else half the mean square of its first result."""
    if "labels" in inputs:
        return model(**inputs).loss
    labels = "labels" in inspect.signature(model.forward).parameters and "input_ids" in inputs
    if labels and type(model).__name__.endswith(LANGUAGE_MODELS):
        return model(**inputs, labels=inputs["input_ids"]).loss
    return model(**inputs)[0].square().mean() / 2


@contextlib.contextmanager
def recording(model: Any, recorded: list[Recorded], backward: bool) -> Iterator[None]:
    """Keep every call of the model's attention in here."""
    from transformers.modeling_utils import AttentionInterface

    found = AttentionInterface.get_interface
    names = {id(module): name for name, module in model.named_modules()}

    def get_interface(self: Any, implementation: str, default: Any) -> Any:
        function = found(self, implementation, default)

        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **keywords: Any) -> Any:
            kept: Any = tuple(tensor.detach().clone() for tensor in (query, key, value))
            given = tuple(map(isolate_tensor, (query, key, value)))
            others = SharedTensors({"mask": attention_mask, **keywords})
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
            changed = tuple(name for name, *both in zip(GIVEN, kept, given, strict=True) if not same_bits(*both))
            detached = backward and any(tensor.requires_grad for tensor in given) and not output.requires_grad
            call = AttentionCall(
                layer, function, module, form, kept[0], kept[1], kept[2], attention_mask, keywords, output.detach(),
                changed=changed + others.restore(), backward=backward, detached=detached,
            )  # fmt: skip
            recorded.append(Recorded(call, given, output))
            return fit_output(again, query, value), returned[1]

        return attend

    with mock.patch.object(AttentionInterface, "get_interface", get_interface):
        yield


class SharedTensors:
    """Masks and other tensors that go into a call, which the calls of other layers may share."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        import torch

        tensors = {name: tensor for name, tensor in given.items() if isinstance(tensor, torch.Tensor)}
        self.kept = [(name, tensor, tensor.detach().clone()) for name, tensor in tensors.items()]

    def restore(self) -> tuple[str, ...]:
        """The names of those that have changed since; they are again as they were."""
        changed = [(name, tensor, before) for name, tensor, before in self.kept if not same_bits(before, tensor)]
        for _, tensor, before in changed:
            tensor.detach().copy_(before)
        return tuple(name for name, *_ in changed)


def fit_output(output: Any, query: Any, value: Any) -> Any:
    """The output in the dtype and shape that the model needs: it can go on, and all its calls are judged."""
    from torch.nn.functional import pad

    (B, H, Q, _), V = query.shape, value.shape[-1]
    if output.shape != (B, Q, H, V):
        output = pad(output.flatten(), (0, B * Q * H * V - output.numel())).reshape(B, Q, H, V)
    return output.to(query)


def isolate_tensor(tensor: Any) -> Any:
    """The tensor as this call alone has it, so that its gradient is by way of this call alone."""
    import torch

    if not torch.is_grad_enabled():
        return tensor
    # A parameter that is not trained needs no gradient in the model; the function must give one all the same.
    alone = tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_().clone()
    alone.retain_grad()
    return alone


def same_bits(one: Any, other: Any) -> bool:
    """Whether no number differs; NaN is NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def form_of(mask: Any, implementation: str) -> str:
    if mask is None:
        return FORMS.get(implementation, BOOLEANS)
    if not hasattr(mask, "is_floating_point"):
        return BLOCKS
    return NUMBERS if mask.is_floating_point() else BOOLEANS


def add_gradients(call: AttentionCall, given: tuple[Any, ...], output: Any) -> AttentionCall:
    """The call with what the backward pass has left; as it is where the loss does not depend on it.

    After a function that changed its inputs, PyTorch has the gradients of what they were changed to.
    """
    import torch

    if output.grad is None or call.changed:
        return call
    gradients = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in given)
    return replace(call, cotangent=output.grad, gradients=gradients)
