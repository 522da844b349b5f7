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
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from conformance.subjects.attention_calls import BLOCKS, BOOLEANS, GIVEN, NUMBERS, AttentionCall

FORMS = {"eager": NUMBERS, "flex_attention": BLOCKS}
"""Of the masks that an implementation is given where the model's own call has none; of others booleans."""
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""How the names of models end whose loss takes the tokens themselves as labels."""


def load_model(folder: Path, attention: str | None, dtype: str) -> Any:
    """Load the model that a folder's `config.json` names, in evaluation; nothing is downloaded.

    Args:
        folder: as `save_pretrained` writes it.
        attention: the implementation; None for the one that `transformers` chooses. "reference" is this project's.
        dtype: a name, or "auto" for that of the folder.

    Raises:
        ImportError, OSError, ValueError: It cannot be loaded, or reads no tokens.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no folder of a model: it has no config.json")
    import transformers

    from torch_impl.huggingface import register

    register()
    transformers.utils.logging.disable_progress_bar()
    configuration = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    names = configuration.architectures or ["AutoModel"]
    kind: Any = getattr(transformers, names[0], transformers.AutoModel)
    given = {} if attention is None else {"attn_implementation": attention}
    if kind.main_input_name != "input_ids":
        raise ValueError(f"{kind.__name__} reads {kind.main_input_name}: only models that read tokens can be watched")
    return kind.from_pretrained(folder, dtype=dtype, local_files_only=True, **given).eval()


def read_texts(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Return the model's inputs by the folder's tokenizer; several texts are padded to one length.

    Raises:
        ValueError: The folder has none that can be loaded.
    """
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library's own, whatever they are
        raise ValueError(f"{folder} has no tokenizer that can be loaded: give token ids") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return dict(tokenizer(list(texts), padding=len(texts) > 1, return_tensors="pt"))


def read_tokens(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the model's inputs for token ids; shorter sequences are padded on the right with 0."""
    import torch

    length = max(map(len, sequences))
    ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in sequences])
    keep = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in sequences])
    return {"input_ids": ids} | ({} if bool(keep.all()) else {"attention_mask": keep.long()})


def refuse_unknown(model: Any, inputs: Mapping[str, Any]) -> None:
    """Raise ValueError for token ids that the model does not have."""
    ids = inputs["input_ids"]
    size = getattr(model.config.get_text_config(), "vocab_size", int(ids.max()) + 1)
    unknown = ids[(ids < 0) | (ids >= size)]
    if unknown.numel():
        raise ValueError(f"token ids must be from 0 to {size - 1}, got {int(unknown[0])}")


def watch(model: Any, inputs: Mapping[str, Any], *, backward: bool = False) -> list[AttentionCall]:
    """Run the model once, and return the calls of its attention in order.

    Args:
        model: of `transformers`.
        inputs: its arguments.
        backward: whether to differentiate its loss: that of the tokens where it is a language model, else half the mean
            square of its first result.
    """
    import torch

    given = dict(inputs)
    if getattr(model.config, "is_encoder_decoder", False):
        given.setdefault("decoder_input_ids", given["input_ids"])
    recorded: list[Recorded] = []
    with recording(model, recorded, backward), torch.set_grad_enabled(backward):
        if not backward:
            model(**given)
        else:
            loss_of(model, given).backward()
    return with_numbers([differentiated(*record) if backward else record.call for record in recorded])


class Recorded(NamedTuple):
    """A call, the tensors that were given to the function, and the output that it returned."""

    call: AttentionCall
    given: tuple[Any, ...]
    output: Any


def loss_of(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the model's own loss where it has one for tokens, and else half the mean square of its first result."""
    labels = "labels" in inspect.signature(model.forward).parameters
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
            given = tuple(map(own, (query, key, value)))
            returned = function(module, *given, attention_mask, **keywords)
            changed = tuple(name for name, *both in zip(GIVEN, kept, given, strict=True) if not same_bits(*both))
            output, again = twice(returned[0])
            detached = backward and any(tensor.requires_grad for tensor in given) and not output.requires_grad
            layer, form = names.get(id(module), "attention"), form_of(attention_mask, implementation)
            call = AttentionCall(
                layer, function, module, form, kept[0], kept[1], kept[2], attention_mask, keywords, output.detach(),
                changed=changed, backward=backward, detached=detached,
            )  # fmt: skip
            recorded.append(Recorded(call, given, output))
            return again, *returned[1:]

        return attend

    with mock.patch.object(AttentionInterface, "get_interface", get_interface):
        yield


def own(tensor: Any) -> Any:
    """The tensor as this call alone has it, so that its gradient is by way of this call alone."""
    import torch

    if not torch.is_grad_enabled():
        return tensor
    # A parameter that is not trained needs no gradient in the model; the function must give one all the same.
    alone = tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_().clone()
    alone.retain_grad()
    return alone


def twice(output: Any) -> tuple[Any, Any]:
    """The output to keep, with its gradient, and the same for the model, which may change its own in place."""
    kept = output.clone()
    if kept.requires_grad:
        kept.retain_grad()
    return kept, kept.clone()


def same_bits(one: Any, other: Any) -> bool:
    """Whether no number differs; NaN is NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def form_of(mask: Any, implementation: str) -> str:
    if mask is None:
        return FORMS.get(implementation, BOOLEANS)
    if not hasattr(mask, "is_floating_point"):
        return BLOCKS
    return NUMBERS if mask.is_floating_point() else BOOLEANS


def with_numbers(calls: list[AttentionCall]) -> list[AttentionCall]:
    """The calls, of which a layer's second is named so."""
    seen = Counter[str]()
    named = []
    for call in calls:
        seen[call.layer] += 1
        named.append(replace(call, layer=f"{call.layer}, call {seen[call.layer]}") if seen[call.layer] > 1 else call)
    return named


def differentiated(call: AttentionCall, given: tuple[Any, ...], output: Any) -> AttentionCall:
    """The call with what the backward pass has left; as it is where the loss does not depend on it.

    After a function that changed its inputs, PyTorch has the gradients of what they were changed to.
    """
    import torch

    if output.grad is None or call.changed:
        return call
    gradients = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in given)
    return replace(call, cotangent=output.grad, gradients=gradients)
