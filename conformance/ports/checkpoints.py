"""Small random checkpoints of a dialect, which can be changed part by part.

A checkpoint of a library and the parameters of the definition hold the same numbers in other places. Where each number
goes is found by reading a checkpoint whose entries are the numbers' own indices. So parameters can be changed by their
path and written back under the library's names, and gradients of parameters become those of entries.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.cases.case import numpy_dtype
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.dialects import DIALECTS
from specification.loading.config_file import has_output, meant_by, routed_layers, sizes_of, with_defaults
from specification.loading.folder import without_output
from specification.loading.hyperparameters import checked
from specification.loading.mapping import mapped as read_entries
from specification.loading.record import Dialect, Tied, shape_of
from specification.loading.table import Row, matches, multiplied, numbered
from specification.parameters import Encoder, ModelParameters, mapped

Config = dict[str, Any]
"""What `build` is given: a config.json as a dictionary; of a dialect without one, its hyperparameters and sizes."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A dialect's checkpoint, and what the definition reads in it.

    Attributes:
        dialect: its name.
        config: what `build` is given.
        shapes: by the name of an entry, its shape.
        values: all numbers of the entries, one entry after another, in float64.
        places: the definition's parameters, with the index of a number in `values` in the place of each.
        configuration: what the definition makes of the config.
    """

    dialect: str
    config: Config
    shapes: Mapping[str, tuple[int, ...]]
    values: np.ndarray
    places: ModelParameters
    configuration: Configuration

    @property
    def parameters(self) -> Any:
        """The definition's, in float64."""
        return mapped(lambda places: self.values[places], self.places)

    def state_dict(self, dtype: str = "float32") -> dict[str, np.ndarray]:
        """Return the entries as new arrays."""
        return self.split_entries(self.values.astype(dtype))

    def split_entries(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Give each entry its part of an array like `values`."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        parts = np.split(values, np.cumsum(sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def change(self, changes: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint with other numbers in some parameters.

        Args:
            changes: by path, such as "blocks.0.attention.output.weight": a number or an array. Paths that the
                parameters do not have are passed over.
        """
        values, places = self.values.copy(), flatten(self.places)
        for path, new in changes.items():
            if path in places:
                values[places[path]] = new
        return replace(self, values=values)

    def round(self, dtype: str) -> Checkpoint:
        """Return the checkpoint with numbers that the dtype holds."""
        return replace(self, values=self.values.astype(numpy_dtype(dtype)).astype(np.float64))

    def sum_gradients(self, gradients: ModelParameters) -> dict[str, np.ndarray]:
        """Return the gradients of entries, from those of the definition's parameters; an entry read twice has both."""
        total = np.zeros(self.values.shape)
        found = flatten(gradients)
        for path, places in flatten(self.places).items():
            np.add.at(total, places, found[path])
        return self.split_entries(total)


def read_checkpoint(dialect: str, config: Config, entries: Mapping[str, np.ndarray]) -> Checkpoint:
    """Return the checkpoint of these entries.

    Args:
        dialect: its name.
        config: the content of a config.json with all that the dialect needs; or hyperparameters of the dialect by name.
        entries: arrays by their names in the checkpoint.

    Raises:
        TypeError, ValueError: what does not fit, as when `load` reads it.
    """
    shapes = {name: np.shape(array) for name, array in entries.items()}
    flat = [np.asarray(array, np.float64).ravel() for array in entries.values()]
    indices = np.split(np.arange(sum(map(len, flat)), dtype=np.float64), np.cumsum([len(one) for one in flat])[:-1])
    numbered_entries = {name: index.reshape(shapes[name]) for name, index in zip(entries, indices, strict=True)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a checkpoint of numbers means nothing
        parameters, configuration = read_parameters(DIALECTS[dialect], config, numbered_entries)
    places = mapped(lambda array: np.asarray(array).astype(np.int64), parameters)
    return Checkpoint(dialect, config, shapes, np.concatenate(flat), places, configuration)


def read_parameters(dialect: Dialect, config: Config, entries: Mapping[str, np.ndarray]) -> tuple[Any, Configuration]:
    """Read entries by a dialect and a config."""
    known = DIALECTS.values()
    if dialect.config is None:
        return read_entries(dialect, entries, checked(dialect, config), known)
    given = read_hyperparameters(dialect, config)
    parameters, configuration = read_entries(dialect, entries, given, known, told=config)
    return (parameters if has_output(config) else without_output(parameters)), configuration


def read_hyperparameters(dialect: Dialect, config: Config) -> dict[str, Any]:
    """Return the hyperparameters that a config.json means; ValueError for what is missing or not supported."""
    meant = meant_by(dialect, config)
    problems = [f"{key} is missing" for key in meant.missing] + meant.problems
    if problems:
        raise ValueError("; ".join(dict.fromkeys(problems)))
    return checked(dialect, meant.hyperparameters)


def list_entries(dialect: Dialect, config: Config) -> dict[str, tuple[tuple[int, ...], Row]]:
    """By name: the shape of each entry that a checkpoint with this config has, and its row of the dialect's table."""
    variant, example = dialect.described, dialect.example
    # A folder of a bare encoder has names without the prefix that tells it from the heads on top of it.
    whole = dialect.config is None or variant.structure is not Encoder
    prefix = dialect.prefixes[0] if dialect.prefixes and whole else ""
    sizes = read_sizes(dialect, config)
    rows = [*numbered(variant.table, lambda _, place: sizes.get(place, 1))]
    if any("[" in path for row in rows for path in row.paths):  # files have experts one by one, not stacked
        rows = [row for row in rows if not row.stacked]
    absent, output = example.without, ""
    if dialect.config is not None:
        told, tied = with_defaults(dialect.config, config), dialect.config.tied or Tied("lm_head.weight")
        output = tied.output
        # What only the example lacks is for the config to say, but not what no such checkpoint has.
        single = [name.rpartition(".")[0] for name in example.without if "*" not in name and name != output]
        if dialect.config.routed is not None:  # which layers have experts, the config says
            single = [name for name in single if ".mlp." not in name]
        absent = tuple(f"{name}.*" for name in single)
        for key, name in dialect.config.entries.items():
            absent += () if told.get(key) else list_optional(rows, name)
        layers = routed_layers(dialect.config, told)
        for i, routed in enumerate(layers):
            parts = ("up_proj.weight",) if routed else ("gate.weight", "experts.*")
            absent += tuple(f"layers.{i}.mlp.{part}" for part in parts)
        absent += (output,) if told.get(tied.key) is not False else ()
    names = {row.theirs for row in rows if not matches(absent, row.theirs)}
    found: dict[str, tuple[tuple[int, ...], Row]] = {}
    for row in rows:
        if row.theirs in names and row.holds(names):
            # The output layer stands on top of the model that the prefix names.
            name = row.theirs if row.theirs == output else prefix + row.theirs
            found.setdefault(name, (shape_of(row.axes, sizes), row))
    return found


def list_optional(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    """Return patterns of the entries that a checkpoint has together with this one, or not at all."""
    found = [row for row in rows if matches((name,), row.theirs)]
    return tuple(pattern for row in found for pattern in row.when or (re.sub(r"\d+", "*", row.theirs),))


def read_sizes(dialect: Dialect, config: Config) -> dict[str, int]:
    """Return the sizes of a checkpoint's table that a config says, and those of the dialect's example for others."""
    sizes = dict(dialect.example_sizes)
    if dialect.config is None:
        return sizes | {name: value for name, value in config.items() if name in sizes}
    told = with_defaults(dialect.config, config)
    given = read_hyperparameters(dialect, config)
    sizes |= {name: given[name] for name in multiplied(dialect.described.table) & given.keys()}
    given_sizes = sizes_of(dialect.config, told)
    for key, size in dialect.config.sizes.items():
        optional = size == "D" or key in dialect.config.entries  # a head's width follows from E
        if key in told and told[key] is None and not optional and size not in given_sizes:
            raise ValueError(f"{key} is null, from which no size follows")
    sizes |= {size: value for size, (_, value) in given_sizes.items()}
    if "D" in sizes and "D" not in {s for k, s in dialect.config.sizes.items() if told.get(k) is not None}:
        sizes["D"] = sizes["E"] // given["num_heads"]
    if "image_size" in told:
        size = told["image_size"]
        height, width = (size, size) if isinstance(size, int) else size
        sizes["positions"] = height // told["patch_size"] * (width // told["patch_size"]) + 1
    return sizes


def draw_checkpoint(dialect: str, config: Config, generator: np.random.Generator) -> Checkpoint:
    """Draw a checkpoint: rows of matrices of about unit length, weights of norms around 1, everything else near 0.

    No parameter has the value with which training begins, where a mistake would not show.
    """
    record = DIALECTS[dialect]
    plus_one = "plus_one" in str(read_norm(record, config))
    entries = {}
    for name, (shape, row) in list_entries(record, config).items():
        numbers = generator.normal(size=shape)
        path = row.paths[0]
        if len(shape) > 1:
            own = shape[1:] if row.stacked else shape
            fan_in = int(np.prod(own[1:] if row.turned else own[:-1])) if "embedding" not in path else 1
            numbers /= np.sqrt(max(fan_in, 1))
        elif path.endswith("norm.weight"):
            numbers = 0.3 * numbers + (0 if plus_one else 1)
        else:
            numbers *= 0.3
        entries[name] = numbers
    return read_checkpoint(dialect, config, entries).round("float32")


def read_norm(dialect: Dialect, config: Config) -> str:
    """Return the kind of norm that a dialect has."""
    variant = dialect.described
    given = config if dialect.config is None else read_hyperparameters(dialect, config)
    names = {*variant.hyperparameters}
    counted = dict.fromkeys(variant.counted, 1)
    return variant.configuration(**{name: value for name, value in given.items() if name in names}, **counted).norm
