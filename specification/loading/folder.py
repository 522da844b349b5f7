"""A folder as Hugging Face's `save_pretrained` writes it: config.json, and one or many safetensors files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from specification.checkpoints import read_safetensors
from specification.configuration import Configuration
from specification.dtypes import FLOATING
from specification.loading.config_file import NAME, dialect_of, has_output, json_of, meant_by, unsupported
from specification.loading.families import covered, judgeable, names_of, of_model_type
from specification.loading.hyperparameters import checked
from specification.loading.mapping import mapped
from specification.loading.reader import UNREAD, first_few
from specification.loading.record import Dialect
from specification.parameters import Decoder, Encoder, LanguageModel, Transformer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def folder_read(folder: str | Path, known: Collection[Dialect], dtype: str | None = None) -> tuple[Any, Configuration]:
    """Read a model from a folder: `specification.dialects.read_folder`, with all dialects as `known`."""
    if dtype is not None and dtype not in FLOATING:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, FLOATING))} or None, got {dtype!r}")
    folder = Path(folder)
    told = config_of(folder)
    dialect = record_of(folder, told, known)
    try:
        given = hyperparameters(folder, dialect, told)
    except ValueError as error:
        other = covered(known, names_in(folder))
        if not other or dialect.name in other:
            raise
        raise ValueError(f"{folder}: {names_of(other)}, and model_type is {told['model_type']!r}; {error}") from error
    entries = weights_of(folder)
    try:
        parameters, configuration = mapped(dialect, entries, given, known, told=told, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{folder / NAME} and the weights: {error}") from error
    if has_output(told):
        return parameters, configuration
    unread, found = UNREAD.get(), without_output(parameters)
    if unread is not None and found is not parameters:
        unread += entries_of_output(dialect, entries)
    return found, configuration


# --- config.json ------------------------------------------------------------------------------------------------------


def config_of(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model's folder.

    FileNotFoundError for no folder, or no such file; ValueError for a file in place of the folder, and for content that
    is no model's.
    """
    path = folder / NAME
    if not folder.exists():
        raise FileNotFoundError(f"{folder} is not there")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, and a folder is needed; load reads a file by its dialect")
    if not path.is_file():
        weights = any((folder / name).is_file() for name in (WEIGHTS, INDEX))
        raise FileNotFoundError(f"{path} is not there{'; load reads the weights by a dialect' if weights else ''}")
    told = json_of(path)
    if not isinstance(told, dict) or not isinstance(told.get("model_type"), str):
        raise ValueError(f"{path} names no model_type")
    return told


def record_of(folder: Path, told: Mapping[str, Any], known: Collection[Dialect]) -> Dialect:
    """Find the dialect that a folder's config.json names; ValueError for a model that none of the known ones reads."""
    found = dialect_of(told["model_type"], known)
    if found is not None:
        return found
    family = of_model_type(told["model_type"])
    types = sorted(name for one in known if one.config is not None for name in one.config.families)
    which = f"of {judgeable(family)}" if family else f"and the dialects read {', '.join(map(repr, types))}"
    raise ValueError(f"{folder / NAME} cannot be read: model_type is {told['model_type']!r}, {which}")


def hyperparameters(folder: Path, dialect: Dialect, told: Mapping[str, Any]) -> dict[str, Any]:
    """Read all hyperparameters of a dialect out of a folder's config.json.

    ValueError for all entries at once that are missing, not known or not supported.
    """
    meant = meant_by(dialect, told)
    problems = [f"{key} is missing" for key in meant.missing] + meant.problems
    problems += [] if dialect.config is None else unsupported(dialect.config, told)
    if problems:
        raise ValueError(f"{folder / NAME} cannot be read: {'; '.join(dict.fromkeys(problems))}")
    try:
        return checked(dialect, meant.hyperparameters)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / NAME} cannot be read: {error}") from error


def without_output(parameters: LanguageModel | Transformer | Encoder | Decoder) -> Any:
    """Return a model that gives hidden states: without output layer, where it has one."""
    if isinstance(parameters, LanguageModel):
        return parameters.decoder
    return parameters._replace(output=None) if isinstance(parameters, Transformer) else parameters


def entries_of_output(dialect: Dialect, names: Iterable[str]) -> list[str]:
    """Return those of a checkpoint's names that only an output layer is made of."""
    rows = [row for variant in dialect.variants for row in variant.table]
    own = {row.theirs for row in rows if all(path.startswith("output.") for path in row.paths)}
    own -= {row.theirs for row in rows if not all(path.startswith("output.") for path in row.paths)}
    return [name for name in names if own & {name.removeprefix(prefix) for prefix in (*dialect.prefixes, "")}]


# --- weights ----------------------------------------------------------------------------------------------------------


def weights_of(folder: Path) -> dict[str, Any]:
    """Read all weights of a folder: arrays by name.

    FileNotFoundError for no weights, and for files that the index names and that are not there; ValueError for an index
    that does not fit its files.
    """
    if (folder / WEIGHTS).is_file():
        return read_safetensors(folder / WEIGHTS)[0]
    if (folder / INDEX).is_file():
        return shards(folder, places(folder / INDEX))
    pickled = next((name for name in PICKLED if (folder / name).is_file()), None)
    beside = f", and {pickled}, which is pickled, is not read: save the model with safetensors" if pickled else ""
    raise FileNotFoundError(f"{folder / WEIGHTS} is not there{beside}")


def names_in(folder: Path) -> Collection[str]:
    """Return the names of a folder's entries, as far as they can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        if not (folder / WEIGHTS).is_file():
            return places(folder / INDEX).keys()
        with safe_open(folder / WEIGHTS, framework="numpy") as file:
            return [*file.keys()]
    except (OSError, ValueError, SafetensorError):
        return ()


def places(index: Path) -> dict[str, str]:
    """Read an index: by entry, the name of its file in the same folder. ValueError for a file that is no such index."""
    told = json_of(index)
    found = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{index} has no weight_map")
    for name, file in found.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{index} must name a file of the same folder for {name}, got {file!r}")
    return found


def shards(folder: Path, where: Mapping[str, str]) -> dict[str, Any]:
    """Read the files that an index names, `where` by entry: arrays by name.

    FileNotFoundError for files that are not there; ValueError for entries that are in none of the files or in two, and
    for those that the index does not name.
    """
    missing = sorted({file for file in where.values() if not (folder / file).is_file()})
    if missing:
        raise FileNotFoundError(f"{folder / INDEX} names {', '.join(first_few(missing))}, and there is no such file")
    found: dict[str, Any] = {}
    problems = []
    for file in dict.fromkeys(where.values()):
        arrays, _ = read_safetensors(folder / file)
        problems += [f"{name} is in {file} and in {where.get(name)}" for name in arrays.keys() & found.keys()]
        problems += [f"{name} of {file} is not named" for name in sorted(arrays.keys() - where.keys())]
        problems += [f"{name} is not in {file}" for name, here in where.items() if here == file and name not in arrays]
        found |= arrays
    if problems:
        raise ValueError(f"{folder / INDEX} does not fit: {'; '.join(first_few(problems))}")
    return found
