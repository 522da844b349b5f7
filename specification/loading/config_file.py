"""The config.json beside a checkpoint: what it says must not contradict what the checkpoint is read with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specification.configuration import Configuration
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


def check_config_file(
    dialect: Dialect, checkpoint: Path, given: Mapping[str, Any], configuration: Configuration
) -> None:
    """Compare the file beside a checkpoint, where there is one, with what the checkpoint was read with.

    Args:
        dialect: whose names the checkpoint has.
        checkpoint: the path of the checkpoint.
        given: all hyperparameters.
        configuration: what became of them.

    Raises:
        ValueError: for all contradictions at once.
    """
    path = checkpoint.parent / NAME
    if dialect.config is None or not path.is_file():
        return
    try:
        told = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(told, dict) or "model_type" not in told:
        return
    found = contradictions(dialect.config, told, given, configuration)
    if found:
        raise ValueError(f"{path} says otherwise: {'; '.join(found)}")


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
    family = told["model_type"]
    if family not in config.families:
        return [f"model_type is {family!r}, and this dialect reads {', '.join(map(repr, config.families))}"]
    found = []
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
