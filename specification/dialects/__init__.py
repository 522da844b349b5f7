"""Dialects: checkpoints of well-known tutorials and libraries, read under their own names.

Every file here is one dialect: a record of data, `DIALECT`. Its table maps a checkpoint's names to the parameter
structures, and a `Configuration` says in enumerated choices what the model does its own way. No dialect has code of its
own in the implementations. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specification.checkpoints import read_safetensors
from specification.configuration import Configuration
from specification.loading.config_file import NAME, config_beside, contradictions
from specification.loading.families import judgeable, of_model_type
from specification.loading.folder import config_of, folder_read, record_of
from specification.loading.hyperparameters import checked
from specification.loading.mapping import mapped
from specification.loading.record import Dialect


def found() -> dict[str, Dialect]:
    """Collect the record of every file in this folder, by name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.DIALECT.name: module.DIALECT for module in modules}


DIALECTS = found()
"""Every record by name, in alphabetical order."""


def read(dialect: str, state_dict: Mapping[str, Any] | str | Path, **hyperparameters: Any) -> tuple[Any, Configuration]:
    """Read a checkpoint in a dialect.

    Args:
        dialect: one of `DIALECTS`.
        state_dict: arrays by name, or the path of a safetensors file. Entries in float16 and bfloat16 are widened to
            float32, with a warning. NaN and infinities are read, with a warning.
        **hyperparameters: the dialect's.

    Returns:
        The parameters, of NumPy arrays, and the configuration.

    Raises:
        FileNotFoundError: for a path where nothing is.
        ValueError: for an unknown dialect, for a file that cannot be read, for all entries at once that are missing,
            left over, misshaped or of no floating dtype, for a model that could not be called, and
            for all that contradicts a config.json beside the file.
        TypeError: for hyperparameters that the dialect does not have, or needs, and for what is no state dict.
    """
    if not isinstance(dialect, str) or dialect not in DIALECTS:
        family = of_model_type(str(dialect))
        of = f", of {judgeable(family)}" if family else ""
        raise ValueError(f"dialect must be one of {', '.join(map(repr, DIALECTS))}, got {dialect!r}{of}")
    record = DIALECTS[dialect]
    if isinstance(state_dict, str | Path) and not Path(state_dict).exists():
        raise FileNotFoundError(f"{state_dict} is not there")
    given = checked(record, hyperparameters)
    if not isinstance(state_dict, str | Path):
        require_arrays_by_name(state_dict)
        return mapped(record, state_dict, given, DIALECTS.values())
    told = config_beside(record, Path(state_dict), DIALECTS.values())
    arrays = read_safetensors(state_dict)[0]
    parameters, configuration = mapped(record, arrays, given, DIALECTS.values(), told=told)
    if told is not None and (problems := contradictions(record, told, given, configuration)):
        raise ValueError(f"{Path(state_dict).parent / NAME} says otherwise: {'; '.join(problems)}")
    return parameters, configuration


def read_folder(folder: str | Path, dtype: str | None = None) -> tuple[Any, Configuration]:
    """Read a model from a folder as Hugging Face's `save_pretrained` writes it.

    Args:
        folder: with a config.json, which names the model and all its hyperparameters, and the weights.
        dtype: of the parameters; None for that of the weights, with float16 and bfloat16 widened to float32.

    Returns:
        The parameters, of NumPy arrays, and the configuration.

    Raises:
        FileNotFoundError: for a folder or a file that is not there.
        ValueError: for all entries at once of config.json that are not known or not supported, for weights that do not
            fit, and for files that cannot be read.
    """
    return folder_read(folder, DIALECTS.values(), dtype)


def dialect_of_folder(folder: str | Path) -> Dialect:
    """Find the record by which a folder is read.

    FileNotFoundError for a folder or a config.json that is not there; ValueError for a model that no dialect reads.
    """
    return record_of(Path(folder), config_of(Path(folder)), DIALECTS.values())


def require_arrays_by_name(state_dict: object) -> None:
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
