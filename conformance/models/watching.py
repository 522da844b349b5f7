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
from typing import Any
from unittest import mock

from conformance.subjects.attention_calls import BLOCKS, BOOLEANS, NUMBERS, AttentionCall

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
        ImportError, OSError, ValueError: It cannot be loaded.
    """
    import transformers

    from torch_impl.huggingface import register

    register()
    transformers.utils.logging.disable_progress_bar()
    configuration = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    names = configuration.architectures or ["AutoModel"]
    kind = getattr(transformers, names[0], transformers.AutoModel)
    given = {} if attention is None else {"attn_implementation": attention}
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
    calls: list[AttentionCall] = []
    with recording(model, calls), torch.set_grad_enabled(backward):
        if not backward:
            model(**given)
        else:
            loss_of(model, given).backward()
    calls = with_numbers(calls)
    return [differentiated(call) for call in calls] if backward else calls


def loss_of(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the model's own loss where it has one for tokens, and else half the mean square of its first result."""
    labels = "labels" in inspect.signature(model.forward).parameters
    if labels and type(model).__name__.endswith(LANGUAGE_MODELS):
        return model(**inputs, labels=inputs["input_ids"]).loss
    return model(**inputs)[0].square().mean() / 2


@contextlib.contextmanager
def recording(model: Any, calls: list[AttentionCall]) -> Iterator[None]:
    """Keep every call of the model's attention in here."""
    import torch
    from transformers.modeling_utils import AttentionInterface

    found = AttentionInterface.get_interface
    names = {id(module): name for name, module in model.named_modules()}

    def own(tensor: Any) -> Any:
        """The tensor as this call alone has it, so that its gradient is by way of this call alone."""
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor
        alone = tensor.view_as(tensor)
        alone.retain_grad()
        return alone

    def get_interface(self: Any, implementation: str, default: Any) -> Any:
        function = found(self, implementation, default)

        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **keywords: Any) -> Any:
            query, key, value = map(own, (query, key, value))
            returned = function(module, query, key, value, attention_mask, **keywords)
            if returned[0].requires_grad:
                returned[0].retain_grad()
            given, layer = (query, key, value, attention_mask, keywords), names.get(id(module), "attention")
            form = form_of(attention_mask, implementation)
            calls.append(AttentionCall(layer, function, module, form, *given, returned[0]))
            return returned

        return attend

    with mock.patch.object(AttentionInterface, "get_interface", get_interface):
        yield


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


def differentiated(call: AttentionCall) -> AttentionCall:
    """The call with what the backward pass has left; as it is where the loss does not depend on it."""
    import torch

    if call.output.grad is None:
        return call
    given = (call.query, call.key, call.value)
    gradients = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in given)
    return replace(call, cotangent=call.output.grad, gradients=gradients)
