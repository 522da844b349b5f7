"""The options of a check of a port: the same for the command line, pytest and Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from conformance.cases.options import Option, read_pairs


def dialect_names() -> Iterable[str]:
    from specification.dialects import DIALECTS

    return DIALECTS


def read_settings(given: Any) -> dict[str, Any]:
    """Read "hidden_act=relu,num_hidden_layers=3": values are JSON or Python's None, True and False, and else text.

    A list or an object of JSON has commas of its own, and stands in a string alone.
    """
    if not isinstance(given, Mapping):
        pairs = [split_json(item) for item in ([given] if isinstance(given, str) else given)]
        given = {name: value for pair in pairs for name, value in pair.items()}
    return {name: read_json(value) for name, value in given.items()}


def split_json(text: str) -> dict[str, Any]:
    name, _, value = text.partition("=")
    if value.lstrip()[:1] in ("{", "["):
        try:
            return {name.strip(): json.loads(value)}
        except ValueError as error:
            raise ValueError(f"set: the value of {name.strip()} is no JSON: {error}") from None
    return read_pairs("set", text)


PYTHON_CONSTANTS = {"None": None, "True": True, "False": False}
"""Read as text they would be true, and a model with `attention_bias="False"` has biases."""


def read_json(value: Any) -> Any:
    if isinstance(value, str) and value in PYTHON_CONSTANTS:
        return PYTHON_CONSTANTS[value]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def read_folder_path(given: Any) -> Path:
    path = Path(given)
    if not path.is_dir():
        raise ValueError(f"checkpoint must be a folder with config.json and weights, got {given!r}")
    return path


class ModelOptions(TypedDict, total=False):
    """What is said of a port of a model alone."""

    dialect: Annotated[
        str | None, Option("of a model: the family whose config and entries the port reads", names=dialect_names)
    ]
    set: Annotated[
        Mapping[str, Any] | str | list[str] | None,
        Option("of a model: entries that its config always has, such as hidden_act=gelu", read_settings, many=True),
    ]
    checkpoint: Annotated[
        str | Path | None,
        Option(
            "of a model: a folder of Hugging Face's to judge it on too; its options alone are tried", read_folder_path
        ),
    ]
    gradients: Annotated[
        bool | None,
        Option(
            "of a model: give build arrays of the framework, and judge the gradients through it",
            default=False,
            switch="gradients/no-gradients",
        ),
    ]
