"""The config.json beside a checkpoint: what it says must not contradict what the checkpoint is read with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specification.configuration import Configuration
from specification.loading.families import judgeable, of_model_type
from specification.loading.record import ConfigFile, Dialect

NAME = "config.json"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""The activations of `Configuration` by the names that they have there."""


def config_beside(dialect: Dialect, checkpoint: Path, known: Iterable[Dialect]) -> dict[str, Any] | None:
    """Read the file beside a checkpoint.

    Args:
        dialect: whose names the checkpoint has.
        checkpoint: the path of the checkpoint.
        known: all dialects, to say which one reads the model.

    Returns:
        The content. None if there is no such file, if it says nothing of a model, or if the dialect has none.

    Raises:
        ValueError: for a file that is no JSON, and for a model that the dialect does not read.
    """
    path = checkpoint.parent / NAME
    if dialect.config is None or not path.is_file():
        return None
    try:
        told = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(told, dict) or "model_type" not in told:
        return None
    if told["model_type"] not in dialect.config.families:
        raise ValueError(f"{path} says otherwise: {other_model(told['model_type'], dialect.config, known)}")
    return told


def other_model(model_type: Any, config: ConfigFile, known: Iterable[Dialect]) -> str:
    """Say what a model is that a dialect does not read.

    Args:
        model_type: what the file says.
        config: what the dialect knows of such files.
        known: all dialects.
    """
    family = of_model_type(str(model_type))
    if family:
        return f"model_type is {model_type!r}, of {judgeable(family)}"
    reading = [one.name for one in known if one.config is not None and model_type in one.config.families]
    by = f"; dialect {reading[0]!r} reads it" if reading else ""
    return f"model_type is {model_type!r}, and this dialect reads {', '.join(map(repr, config.families))}{by}"


def check_config_file(
    dialect: Dialect, checkpoint: Path, told: Mapping[str, Any], given: Mapping[str, Any], configuration: Configuration
) -> None:
    """Compare the file beside a checkpoint with what the checkpoint was read with.

    Args:
        dialect: whose names the checkpoint has.
        checkpoint: the path of the checkpoint.
        told: the file's content.
        given: all hyperparameters.
        configuration: what became of them.

    Raises:
        ValueError: for all contradictions at once.
    """
    found = [] if dialect.config is None else contradictions(dialect.config, told, given, configuration)
    if found:
        raise ValueError(f"{checkpoint.parent / NAME} says otherwise: {'; '.join(found)}")


def contradictions(
    config: ConfigFile, told: Mapping[str, Any], given: Mapping[str, Any], configuration: Configuration
) -> list[str]:
    """Compare the content of a config.json with what a checkpoint was read with.

    Args:
        config: what the dialect knows of such files.
        told: the file's content.
        given: all hyperparameters.
        configuration: what became of them.

    Returns:
        For each contradiction what the file says, and what is the case instead.
    """
    family, found = told["model_type"], []
    for name, key in config.keys.items():
        value = told.get(key)
        ours = ACTIVATIONS.get(str(value), value) if name == "activation" else value
        if value is not None and given[name] is not None and ours != given[name]:
            meant = "" if ours == value else f", which is {ours!r} here"
            found.append(f"{key} is {value!r}{meant}, and {name} is {given[name]!r}")
    for field, value in config.families[family].items():
        if getattr(configuration, field) != value:
            found.append(f"a {family} has {field}={value!r}, and it is read with {getattr(configuration, field)!r}")
    for key, value in config.fixed.items():
        if told.get(key, value) != value:
            found.append(f"{key} is {told[key]!r}, of which only {value!r} is supported")
    return found
