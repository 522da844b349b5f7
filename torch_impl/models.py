"""Models that hold their parameters: read from a checkpoint in a dialect, called, saved, and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from jaxtyping import Bool, Float, Integer

from specification import checks
from specification.checkpoints import read_model, write_model
from specification.checks.arguments import arrays_of_numbers
from specification.checks.shapes import check_array
from specification.configuration import Configuration
from specification.dropout import Dropout, StackDropout, TransformerDropout
from specification.masks import KeyPadding, both
from specification.parameters import (
    Classifier,
    Decoder,
    Encoder,
    LanguageModel,
    MultiHeadAttention,
    Transformer,
    mapped,
)
from torch_impl.attention import attention
from torch_impl.blocks import attend, attention_options
from torch_impl.multi_head_attention import multi_head_attention
from torch_impl.transformer import classifier, decoder, encoder, language_model, transformer

__all__ = ["Model", "load", "load_pretrained", "plain_self_attention", "restore", "save"]


class Structure(torch.nn.Module):
    """A parameter structure as a module, whose `state_dict` names are the paths of the structure."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.kind = type(value)
        self.names = [str(name) for name in getattr(value, "_fields", range(len(value)))]
        for name, part in zip(self.names, value, strict=True):
            if isinstance(part, list | tuple):
                self.add_module(name, Structure(part))
            else:
                self.register_parameter(name, None if part is None else torch.nn.Parameter(part))

    def structure(self) -> Any:
        """The parameters as they are now."""
        parts = [getattr(self, name) for name in self.names]
        parts = [part.structure() if isinstance(part, Structure) else part for part in parts]
        return parts if self.kind is list else self.kind(*parts)


class Model(Structure):
    """Parameters, and what they do not say. Calling it is calling the function of `MODELS` for them."""

    def __init__(self, parameters: Any, configuration: Configuration) -> None:
        super().__init__(parameters)
        self.configuration = configuration

    def forward(self, *inputs: Any, **options: Any) -> Any:
        arrays_of_numbers(inputs)
        return MODELS[self.kind](self.structure(), *inputs, configuration=self.configuration, **options)


def load(dialect: str, state_dict: Mapping[str, Any] | str | Path, **hyperparameters: Any) -> Model:
    """Load a checkpoint with a tutorial's or library's own names; see `specification.dialects`.

    Args:
        dialect: Its name, such as "bert".
        state_dict: Arrays by name, or the path of a safetensors file.
        **hyperparameters: Those of the dialect.

    Returns:
        The model.

    Raises:
        ValueError: Entries that are missing, left over or misshaped, all of them at once.
    """
    from specification import dialects  # which only those load who read a checkpoint

    return from_numpy(*dialects.read(dialect, state_dict, **hyperparameters))


def load_pretrained(folder: str | Path, *, dtype: str | None = None) -> Model:
    """Load a model from a folder as Hugging Face's `save_pretrained` writes it.

    Args:
        folder: With config.json, which says what the model does, and one or many safetensors files.
        dtype: Of the parameters, such as "bfloat16". None for that of the files, with 16-bit ones widened to float32.

    Returns:
        The model. It gives logits where the folder is a language model's, and hidden states otherwise.

    Raises:
        FileNotFoundError: A file that is not there.
        ValueError: An entry of config.json that is not understood and could change numbers, or files that do not fit.
    """
    from specification import dialects  # which only those load who read a checkpoint

    return from_numpy(*dialects.read_folder(folder, dtype))


def save(model: Model, path: str | Path) -> None:
    """Write a model into one safetensors file, which each of the three packages restores bit for bit.

    Args:
        model: The model.
        path: The file.
    """
    write_model(path, mapped(as_array, model.structure()), model.configuration)


def restore(path: str | Path) -> Model:
    """Read a model that any of the three packages has saved.

    Args:
        path: The file.

    Returns:
        The model.

    Raises:
        ValueError: A file that does not fit.
    """
    return from_numpy(*read_model(path))


def from_numpy(parameters: Any, configuration: Configuration) -> Model:
    """The arrays are copied, and stay on the CPU until the module is moved."""
    return Model(mapped(as_tensor, parameters), configuration)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Bit for bit; PyTorch itself hands no bfloat16 to NumPy."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Bit for bit, in memory of its own."""
    if str(array.dtype) == "bfloat16":
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)


# --- what a model is called with --------------------------------------------------------------------------------------


def kept_keys(keep: Bool[torch.Tensor, "B T"] | None) -> KeyPadding | None:
    """The mask of an array in which True is a real token and False is padding."""
    return None if keep is None else KeyPadding(keep)


def hidden_states(
    parameters: Encoder,
    x: Float[torch.Tensor, "B T E"] | Integer[torch.Tensor, "B T"] | Float[torch.Tensor, "B C height width"],
    key_padding: Bool[torch.Tensor, "B T"] | None = None,
    token_types: Integer[torch.Tensor, "B T"] | None = None,
    *,
    configuration: Configuration,
    mask: Any = None,
    dropout: StackDropout = StackDropout(),
) -> Float[torch.Tensor, "B T E"]:
    """`encoder`, with padding as an array: True is a real token, False is padding."""
    options: Any = {"configuration": configuration, "token_types": token_types, "dropout": dropout}
    return encoder(parameters, x, mask=both(mask, kept_keys(key_padding)), **options)


def decoder_states(
    parameters: Decoder,
    x: Float[torch.Tensor, "B T E"] | Integer[torch.Tensor, "B T"],
    memory: Float[torch.Tensor, "B S E"] | None = None,
    *,
    configuration: Configuration,
    key_padding: Bool[torch.Tensor, "B T"] | None = None,
    mask: Any = None,
    memory_mask: Any = None,
    dropout: StackDropout = StackDropout(),
) -> Float[torch.Tensor, "B T E"]:
    """`decoder`, with padding as an array, as in `hidden_states`."""
    options: Any = {"configuration": configuration, "memory_mask": memory_mask, "dropout": dropout}
    return decoder(parameters, x, memory, mask=both(mask, kept_keys(key_padding)), **options)


def next_tokens(
    parameters: LanguageModel,
    tokens: Integer[torch.Tensor, "B T"],
    key_padding: Bool[torch.Tensor, "B T"] | None = None,
    *,
    configuration: Configuration,
    mask: Any = None,
    dropout: StackDropout = StackDropout(),
) -> Float[torch.Tensor, "B T N"]:
    """`language_model`, with padding as an array, as in `hidden_states`."""
    options: Any = {"configuration": configuration, "dropout": dropout}
    return language_model(parameters, tokens, mask=both(mask, kept_keys(key_padding)), **options)


def translation(
    parameters: Transformer,
    source: Float[torch.Tensor, "B S E"] | Integer[torch.Tensor, "B S"],
    target: Float[torch.Tensor, "B T E"] | Integer[torch.Tensor, "B T"],
    *,
    configuration: Configuration,
    source_key_padding: Bool[torch.Tensor, "B S"] | None = None,
    target_key_padding: Bool[torch.Tensor, "B T"] | None = None,
    source_mask: Any = None,
    target_mask: Any = None,
    memory_mask: Any = None,
    dropout: TransformerDropout = TransformerDropout(),
) -> Float[torch.Tensor, "B T N"]:
    """`transformer`, with padding as arrays, as in `hidden_states`; the source's is that of the memory too."""
    source_padding = kept_keys(source_key_padding)
    masks: Any = {
        "source_mask": both(source_mask, source_padding),
        "target_mask": both(target_mask, kept_keys(target_key_padding)),
        "memory_mask": both(memory_mask, source_padding),
    }
    return transformer(parameters, source, target, configuration=configuration, dropout=dropout, **masks)


def multi_head(
    parameters: MultiHeadAttention,
    query: Float[torch.Tensor, "B Q E"],
    key: Float[torch.Tensor, "B K E_key"] | None = None,
    value: Float[torch.Tensor, "B K E_value"] | None = None,
    *,
    configuration: Configuration,
    mask: Any = None,
    dropout: Dropout | None = None,
) -> Float[torch.Tensor, "B Q E_out"]:
    """`multi_head_attention`; the key is the query and the value the key unless given. dropout: of the weights.

    With sinks, norms of queries or keys, a window or a rotation it is a block's attention, whose values are the keys'.
    """
    key = query if key is None else key
    value = key if value is None else value
    checks.site("dropout", dropout)
    (layer,) = configuration.layers(1)
    if checks.of_a_block(parameters, layer):
        checks.one_memory(key, value)
        return attend(parameters, query, key, mask, dropout, configuration, layer)
    width = check_array("query", query, "Shaped", "B Q E")["E"]
    options = attention_options(width, mask, dropout, configuration)
    return multi_head_attention(parameters, query, key, value, num_heads=configuration.num_heads, **options)


def plain_self_attention(x: Float[torch.Tensor, "B T E"]) -> Float[torch.Tensor, "B T E"]:
    """Compute softmax(x x^T) x: one head, no parameters, no scale; how the pre-norm blog begins.

    Args:
        x: [B, T, E].

    Returns:
        A new array [B, T, E] in the dtype of x.
    """
    return attention(x[:, None], x[:, None], x[:, None], scale=1.0)[:, 0]


MODELS: dict[type, Callable[..., Any]] = {
    Transformer: translation,
    Classifier: classifier,
    LanguageModel: next_tokens,
    Encoder: hidden_states,
    Decoder: decoder_states,
    MultiHeadAttention: multi_head,
}
"""By the structure of the parameters."""
