"""Parameter structures as arrays by name, and such names as safetensors files."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specification import parameters as structures
from specification.configuration import AttentionLayer, Configuration, ExpertChoice
from specification.fitting import misfits
from specification.parameters import ModelParameters, Tree
from specification.rotary import Rotary, Scaling

FORMAT = "transformer-conformance model"
KINDS = {
    kind.__name__: kind
    for kind in (
        structures.Transformer,
        structures.Classifier,
        structures.LanguageModel,
        structures.Encoder,
        structures.Decoder,
        structures.MultiHeadAttention,
    )
}
"""Structures that are models of their own."""


def flatten(value: Tree, path: str = "") -> dict[str, Any]:
    """Name every array of a structure by its path, such as "encoder.blocks.0.attention.query.weight", in order.

    value: nested NamedTuples, lists and arrays; None has no arrays. path: that of the structure itself.
    """
    named = structures.leaves(value, path).items()
    return {re.sub(r"\[(\d+)\]", r".\1", name).removeprefix("."): array for name, array in named}


def unflatten(kind: type, arrays: Mapping[str, Any]) -> Any:
    """Build a structure, a NamedTuple of `specification.parameters`, out of its arrays, as `flatten` gives them.

    What has no array becomes None. ValueError for arrays that it has no place for, and for places that must not be
    empty.
    """
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, last = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ValueError(f"a {kind.__name__} has no {path}")
        node[last] = array
    found = grown(kind, tree)
    surplus = sorted(arrays.keys() - flatten(found).keys())
    lacking = needed(found)
    if surplus or lacking:
        problems = [f"has no {', '.join(surplus)}"] * bool(surplus) + [f"needs {', '.join(lacking)}"] * bool(lacking)
        raise ValueError(f"a {kind.__name__} {' and '.join(problems)}")
    return found


def needed(value: Tree, path: str = "") -> list[str]:
    """List the paths of what must not be None and is: fields without a default, and the weights of what is there."""
    if not isinstance(value, list | tuple):
        return []
    names = getattr(value, "_fields", None) or [str(index) for index in range(len(value))]
    hints = typing.get_type_hints(type(value)) if hasattr(value, "_fields") else {}
    found: list[str] = []
    for name, part in zip(names, value, strict=True):
        here = f"{path}.{name}".removeprefix(".")
        optional = name in getattr(value, "_field_defaults", {}) or "None" in str(hints.get(name, ""))
        if part is None and not optional:
            found.append(here)
        found += needed(part, here)
    return found


def grown(hint: Any, tree: Any) -> Any:
    """Build a value of the type that a hint describes, out of dictionaries of arrays, nested by the parts of names."""
    if isinstance(hint, types.UnionType):
        numbered = isinstance(tree, dict) and tree and all(name.isdigit() for name in tree)
        choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
        listed = [choice for choice in choices if typing.get_origin(choice) is list]
        if tree is None:
            return None
        if numbered and listed:
            return grown(listed[0], tree)
        fitting = [choice for choice in choices if set(tree) <= set(getattr(choice, "_fields", ()))]
        return grown((fitting or choices)[0], tree)
    if typing.get_origin(hint) is list:
        (element,) = typing.get_args(hint)
        return [grown(element, tree[name]) for name in sorted(tree or {}, key=int)]
    if hint is Any:
        return tree
    hints, tree = typing.get_type_hints(hint), tree or {}
    return hint(**{name: grown(hints[name], tree.get(name)) for name in hint._fields})


# --- files ------------------------------------------------------------------------------------------------------------


def write_safetensors(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write arrays, and texts beside them, as a safetensors file."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, dict(metadata))
    sort_metadata(path)


def sort_metadata(path: str | Path) -> None:
    """Sort the metadata of a safetensors file by name: the library writes them in an order of chance."""
    with Path(path).open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        file.seek(8)
        file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length))


def read_safetensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file: its arrays by name, and its metadata.

    FileNotFoundError if there is no such file; ValueError for a folder, for a file that is no safetensors file or is
    cut off, and for all entries at once whose dtype NumPy does not have.
    """
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder, and a safetensors file is needed")
    arrays, unknown = {}, []
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                try:
                    arrays[name] = file.get_tensor(name)
                except (AttributeError, TypeError):
                    unknown.append(f"{name} ({file.get_slice(name).get_dtype()})")
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is not there") from error
    except (SafetensorError, OSError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a safetensors file: {error}") from error
    if unknown:
        raise ValueError(f"{path} has entries of dtypes that cannot be read: {', '.join(unknown)}")
    return arrays, metadata


def write_model(path: str | Path, parameters: ModelParameters, configuration: Configuration) -> None:
    """Write a model, one of `KINDS` in NumPy arrays, with its kind and configuration as one safetensors file."""
    arrays = flatten(parameters)
    fields = {field.name: getattr(configuration, field.name) for field in dataclasses.fields(configuration)}
    options = json.dumps({name: as_plain(value) for name, value in fields.items()})
    told = {"kind": type(parameters).__name__, "arrays": str(len(arrays)), "configuration": options}
    write_safetensors(path, arrays, {"format": FORMAT} | told)


NESTED = {kind.__name__: kind for kind in (AttentionLayer, ExpertChoice, Rotary, *typing.get_args(Scaling))}
"""Structures within a configuration."""


def as_plain(value: object) -> Any:
    """Return a value of a configuration as JSON can hold it: structures as objects that name their kind."""
    if type(value).__name__ in NESTED and dataclasses.is_dataclass(value):
        return {"kind": type(value).__name__} | {
            field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [as_plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def from_plain(value: object) -> Any:
    """Return what `as_plain` was given, from what JSON made of it; ValueError for an object of no known kind."""
    if isinstance(value, list):
        return tuple(from_plain(part) for part in value)
    if not isinstance(value, dict):
        return value
    if value.get("kind") not in NESTED:
        raise ValueError(f"a configuration holds no {value.get('kind')!r}")
    return NESTED[value["kind"]](**{name: from_plain(part) for name, part in value.items() if name != "kind"})


def read_model(path: str | Path) -> tuple[Any, Configuration]:
    """Read what `write_model` has written, bit for bit: the parameters, of NumPy arrays, and the configuration.

    ValueError for a file that `write_model` has not written, and for all arrays at once that do not fit.
    """
    arrays, metadata = read_safetensors(path)
    if metadata.get("format") != FORMAT or metadata.get("kind") not in KINDS:
        raise ValueError(f"{path} was not written by save: load it by its dialect")
    try:
        parameters = unflatten(KINDS[metadata["kind"]], arrays)
        named = json.loads(metadata["configuration"])
        if not isinstance(named, dict):
            raise TypeError(f"the configuration must be a mapping, got {named!r}")
        configuration = Configuration(**{name: from_plain(value) for name, value in named.items()})
    except KeyError as error:
        raise ValueError(f"{path} is no whole model: it has no {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no whole model: {error}") from error
    problems = misfits(parameters, configuration)
    saved = metadata.get("arrays", str(len(arrays)))
    if saved != str(len(arrays)) or not arrays:
        problems.append(f"it has {len(arrays)} arrays, and was saved with {saved}")
    if problems:
        raise ValueError(f"{path} is no whole model: {'; '.join(problems)}")
    return parameters, configuration
