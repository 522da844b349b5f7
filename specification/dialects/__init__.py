"""Dialects: checkpoints of well-known tutorials and libraries, read under their own names.

A dialect is the map from a checkpoint's names to the parameter structures, and a `Configuration` that says in its
enumerated choices what the model does its own way. No dialect has code of its own in the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specification.checkpoints import read_safetensors
from specification.configuration import Configuration
from specification.dialects.bert import bert
from specification.dialects.dawn import dawn
from specification.dialects.gpt2 import gpt2
from specification.dialects.hyperparameters import checked
from specification.dialects.imdb_classifier import imdb_classifier
from specification.dialects.notebook_scratch import notebook_scratch
from specification.dialects.prenorm_blog import prenorm_blog
from specification.dialects.pytorch import pytorch
from specification.dialects.transformer101 import transformer101

Read = Callable[..., tuple[Any, Configuration]]

DIALECTS: dict[str, Read] = {
    "bert": bert,
    "dawn": dawn,
    "gpt2": gpt2,
    "imdb-classifier": imdb_classifier,
    "notebook-scratch": notebook_scratch,
    "prenorm-blog": prenorm_blog,
    "pytorch": pytorch,
    "transformer101": transformer101,
}
"""By name: from a state dict and hyperparameters to parameters of NumPy arrays and the configuration."""


def read(dialect: str, state_dict: Mapping[str, Any] | str | Path, **hyperparameters: Any) -> tuple[Any, Configuration]:
    """Parameters of NumPy arrays, and the configuration, of a checkpoint in that dialect.

    state_dict: arrays by name, or the path of a safetensors file. Entries in float16 and bfloat16 are widened to
    float32, with a warning. ValueError for an unknown dialect, for a file that cannot be read, and for all entries at
    once that are missing, left over, misshaped or of no floating dtype; TypeError for hyperparameters that the dialect
    does not have, or needs, and for what is no state dict. NaN and infinities are read, with a warning.
    """
    if not isinstance(dialect, str) or dialect not in DIALECTS:
        raise ValueError(f"dialect must be one of {', '.join(map(repr, DIALECTS))}, got {dialect!r}")
    given = checked(dialect, DIALECTS[dialect], hyperparameters)
    if isinstance(state_dict, str | Path):
        state_dict, _ = read_safetensors(state_dict)
    require_arrays_by_name(state_dict)
    return DIALECTS[dialect](state_dict, **given)


def require_arrays_by_name(state_dict: Any) -> None:
    """TypeError for anything but a mapping from strings; a module is told of its own."""
    if hasattr(state_dict, "state_dict"):
        kind = type(state_dict).__name__
        raise TypeError(f"state_dict must be arrays by name, got the module {kind}: pass module.state_dict()")
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        raise TypeError(f"state_dict must be arrays by name or the path of a safetensors file, got {kind}")
    unnamed = [name for name in state_dict if not isinstance(name, str)]
    if unnamed:
        raise TypeError(f"the names in state_dict must be strings, got {unnamed[0]!r}")
