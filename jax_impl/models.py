"""Models that hold their parameters: read from a checkpoint in a dialect, called, saved, and restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jax_impl.attention import attention
from jax_impl.blocks import attend
from jax_impl.dtypes import require_dtype
from jax_impl.multi_head_attention import multi_head_attention
from jax_impl.transformer import classifier, decoder, encoder, language_model, transformer
from specification.calls import Functions, ModelOptions, model_calls
from specification.checkpoints import read_model, write_model
from specification.checks.arguments import arrays_of_numbers
from specification.configuration import Configuration
from specification.dtypes import dtype_name
from specification.parameters import ModelParameters

__all__ = ["Model", "load", "load_pretrained", "plain_self_attention", "restore", "save"]


@partial(jax.tree_util.register_dataclass, data_fields=["parameters"], meta_fields=["configuration"])
@dataclass(frozen=True, eq=False)
class Model:
    """Parameters, and what they do not say. Calling it is calling the function of `MODELS` for them.

    A pytree whose leaves are the parameters: `jax.grad` differentiates by a model, `jax.jit` compiles its call.
    """

    parameters: ModelParameters
    configuration: Configuration

    def structure(self) -> ModelParameters:
        """The parameters as they are now."""
        return self.parameters

    def __call__(self, *inputs: jax.Array | None, **options: Unpack[ModelOptions]) -> jax.Array:
        arrays_of_numbers(inputs)
        return MODELS[type(self.parameters)](self.parameters, *inputs, configuration=self.configuration, **options)


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
    write_model(path, jax.tree.map(np.asarray, model.parameters), model.configuration)


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
    """float64 needs `jax.enable_x64`."""
    for array in jax.tree.leaves(parameters):
        require_dtype(dtype_name(array))
    return Model(jax.tree.map(jnp.asarray, parameters), configuration)


def plain_self_attention(x: Float[jax.Array, "B T E"]) -> Float[jax.Array, "B T E"]:
    """Compute softmax(x x^T) x: one head, no parameters, no scale; how the pre-norm blog begins.

    Args:
        x: [B, T, E].

    Returns:
        A new array [B, T, E] in the dtype of x.
    """
    return attention(x[:, None], x[:, None], x[:, None], scale=1.0)[:, 0]


MODELS = model_calls(Functions(encoder, decoder, language_model, transformer, classifier, attend, multi_head_attention))
"""By the structure of the parameters, what calling a model calls."""
