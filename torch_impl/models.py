"""Models that hold their parameters: read from a checkpoint in a dialect, called, saved, and restored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import ml_dtypes
import numpy as np
import torch
from jaxtyping import Float

from specification.calls import Functions, ModelOptions, model_calls
from specification.checkpoints import read_model, write_model
from specification.checks.arguments import arrays_of_numbers
from specification.configuration import Configuration
from specification.parameters import ModelParameters, mapped
from torch_impl.attention import attention
from torch_impl.blocks import attend
from torch_impl.multi_head_attention import multi_head_attention
from torch_impl.transformer import classifier, decoder, encoder, language_model, transformer

__all__ = ["Model", "load", "load_pretrained", "plain_self_attention", "restore", "save"]


class Structure(torch.nn.Module):
    """A parameter structure as a module, whose `state_dict` names are the paths of the structure."""

    def __init__(self, value: list[Any] | tuple[Any, ...]) -> None:
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

    def __init__(self, parameters: ModelParameters, configuration: Configuration) -> None:
        super().__init__(parameters)
        self.configuration = configuration

    def forward(self, *inputs: torch.Tensor | None, **options: Unpack[ModelOptions]) -> torch.Tensor:
        arrays_of_numbers(inputs)
        return MODELS[self.kind](self.structure(), *inputs, configuration=self.configuration, **options)


def load(dialect: str, state_dict: Mapping[str, Any] | str | Path, **hyperparameters: object) -> Model:
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


def from_numpy(parameters: ModelParameters, configuration: Configuration) -> Model:
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


def plain_self_attention(x: Float[torch.Tensor, "B T E"]) -> Float[torch.Tensor, "B T E"]:
    """Compute softmax(x x^T) x: one head, no parameters, no scale; how the pre-norm blog begins.

    Args:
        x: [B, T, E].

    Returns:
        A new array [B, T, E] in the dtype of x.
    """
    return attention(x[:, None], x[:, None], x[:, None], scale=1.0)[:, 0]


MODELS = model_calls(Functions(encoder, decoder, language_model, transformer, classifier, attend, multi_head_attention))
"""By the structure of the parameters, what calling a model calls."""
