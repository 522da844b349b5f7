"""What a dialect is: one record of data, from which all that the project does with it follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specification.configuration import Configuration, is_count
from specification.loading.table import Table, matches, multiple, numbered

if TYPE_CHECKING:
    from specification.loading.reader import Reader

EXAMPLE_SIZES = {"E": 8, "F": 12, "vocabulary": 6, "positions": 5}
"""Of an example, unless it says otherwise."""


PADDED = {
    "source": np.array([[3, 1, 4, 0], [0, 0, 0, 0]]),
    "target": np.array([[0, 2, 5, 0], [4, 3, 1, 0]]),
}
ABOUT_PADDED = "Token 0 is padding. The second source is nothing else, so nothing can be attended to there."
"""Inputs of an encoder-decoder."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Example:
    """A small checkpoint, and a call of its model. Its numbers are drawn where it is used.

    hyperparameters: what `load` is given beside the checkpoint.
    inputs: by name, what the model is called with: an array of tokens, or the length of a sequence of embeddings.
    options: by name, the masks and whatever else it is called with by keyword.
    about: what is particular to the call, in a sentence.
    sizes: by name, the sizes that the table names, beside those of `EXAMPLE_SIZES`; a size that the table multiplies
        with, such as the h of "h * V", is a number of layers or heads. There is one of all others.
    without: names of entries that the checkpoint does not have, of those that not every checkpoint has; with patterns
        as in `any_of`.
    unread: by name, with the sizes of its axes, an entry that the checkpoint has and the dialect ignores.
    """

    hyperparameters: Mapping[str, Any]
    inputs: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Variant:
    """A kind of checkpoint that a dialect reads.

    structure: of `specification.parameters`, what the paths of the table lead into.
    table: which entry becomes which array.
    configuration: a function of the hyperparameters, all by keyword; what its signature has no default for must be
        given. Its docstring says what they mean.
    called_with, gives: what the model takes and returns, in a few words.
    name: what tells it apart from other variants, in a few words; empty where there is one.
    marks: names by which a checkpoint of this kind is known: it has all of them; `*` stands for any text. The first
        variant whose marks are there is read.
    counted: by hyperparameter, the place in the table whose numbers are counted for it, in place of being given.
    heads_share: the name of the size that the heads share equally; empty where the table multiplies with num_heads.
    padding: by hyperparameter, the name of the size below which this id of a token must be.
    check: adds to `problems` and `warnings` of the `Reader` what the table cannot say, given all hyperparameters.
    example: a small checkpoint for the study pages and tests; at least one variant has one.
    """

    structure: type
    table: Table
    configuration: Callable[..., Configuration]
    called_with: str
    gives: str
    name: str = ""
    marks: tuple[str, ...] = ()
    counted: Mapping[str, str] = field(default_factory=dict)
    heads_share: str = "E"
    padding: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Reader, Mapping[str, Any]], None] | None = None
    example: Example | None = None

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """By name, the default; `inspect.Parameter.empty` for those that must be given."""
        parameters = inspect.signature(self.configuration).parameters.values()
        return {one.name: one.default for one in parameters if one.name not in self.counted}


class Computed(NamedTuple):
    """A hyperparameter that follows from several entries of a config.json.

    keys: of these entries. value: from the file's content, with defaults, to the hyperparameter; a ValueError says what
    is not supported.
    """

    keys: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], Any]


class Tied(NamedTuple):
    """An output layer that may be the token table turned: its name in a checkpoint, and the key that says so.

    Where a file has one all the same, that is read, as transformers 5 does.
    """

    output: str
    key: str = "tie_word_embeddings"


@dataclass(frozen=True, eq=False, kw_only=True)
class ConfigFile:
    """What a config.json says of a checkpoint. An entry that is none of these, and that is not empty, is refused.

    families: by model_type, the fields of `Configuration` that such a model has, where not all have the same.
    keys: by hyperparameter, its key in the file, or what it is computed from.
    defaults: by model_type and key, what is meant where the file does not say. A key that not all families have here is
        known in those alone.
    fixed: by key, the only value that is supported, of options that leave no trace in a checkpoint.
    sizes: by key, the name of the size in the table that it must be.
    computed_sizes: by name of a size, how it follows from several keys.
    instead: by key of a size, the key of what is meant where the file does not say.
    entries: by key, a name of an entry that the checkpoint has where the value is true, and no other; `*` stands for
        any text.
    routed: of every layer, whether its feed-forward network is a mixture of experts; None where all layers are alike.
    tied: the output layer, where it may be the token table.
    without_effect: keys that change no number, beside those of `config_file.WITHOUT_EFFECT`.
    """

    families: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str | Computed]
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    computed_sizes: Mapping[str, Computed] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    routed: Computed | None = None
    tied: Tied | None = None
    without_effect: tuple[str, ...] = ()

    def read_by(self, hyperparameter: str) -> tuple[str, ...]:
        """The keys that a hyperparameter comes from."""
        key = self.keys[hyperparameter]
        return (key,) if isinstance(key, str) else key.keys

    def known(self, family: str) -> set[str]:
        """The keys that a file of this model_type may have."""
        here = self.defaults.get(family, {})
        elsewhere = {key for defaults in self.defaults.values() for key in defaults} - here.keys()
        read = {key for name in self.keys for key in self.read_by(name)} | {*self.without_effect}
        read |= set() if self.routed is None else {*self.routed.keys}
        tied = set() if self.tied is None else {self.tied.key}
        read |= {key for computed in self.computed_sizes.values() for key in computed.keys}
        everywhere = read | tied | self.fixed.keys() | self.sizes.keys() | self.entries.keys()
        return (everywhere - elsewhere) | here.keys()


@dataclass(frozen=True, eq=False, kw_only=True)
class Tutorial:
    """What a tutorial's text says and does.

    title: its title, or what can be said in place of one. builds: what it builds.
    departures: the lines of a table of all tutorials, by label.
    """

    title: str
    builds: str
    departures: Mapping[str, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dialect:
    """A Transformer under the names of the library or tutorial that its checkpoints come from.

    name: what `load` calls it.
    about: what it is and what is particular to it, in paragraphs of plain text; the first is a summary.
    source: where it is from: paper, library, or tutorial.
    variants: the kinds of checkpoints; most dialects have one.
    prefixes: what stands before all names in some files. The first that a name begins with is left out.
    renamed: parts of names that other versions of the library have, with those of the table.
    ignored: regular expressions of names that belong to a checkpoint and to no part of the model, such as heads.
    ignored_layers: names of entries that mark a layer of which no part belongs to the model.
    config: the config.json that Hugging Face has beside a checkpoint, where the dialect is one of Hugging Face's.
    tutorial: what its text says, where a dialect is that of a tutorial.
    """

    name: str
    about: str
    source: str
    variants: tuple[Variant, ...]
    prefixes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    ignored_layers: tuple[str, ...] = ()
    config: ConfigFile | None = None
    tutorial: Tutorial | None = None

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """By name, the default. One that must be given to some variants only has the default None."""
        found: dict[str, Any] = {}
        for variant in self.variants:
            for name, default in variant.hyperparameters.items():
                everywhere = all(name in one.hyperparameters for one in self.variants)
                found[name] = default if everywhere or default is not inspect.Parameter.empty else None
        return found

    @property
    def described(self) -> Variant:
        """The variant whose example stands for the dialect."""
        return next(variant for variant in self.variants if variant.example is not None)

    @property
    def example(self) -> Example:
        """The example that stands for the dialect."""
        found = self.described.example
        if found is None:
            raise ValueError(f"dialect {self.name} has no example")
        return found

    @property
    def example_sizes(self) -> dict[str, int]:
        """By name, the sizes of the example."""
        counts = {name: value for name, value in self.example.hyperparameters.items() if is_count(value)}
        return EXAMPLE_SIZES | counts | dict(self.example.sizes)

    def example_table(self) -> Table:
        """The table of the example with numbers in its places, also of the entries that the example does not have."""
        return tuple(numbered(self.described.table, lambda _, place: self.example_sizes.get(place, 1)))

    def example_entries(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """By name in the checkpoint, the shape of an entry of the example, and its path; empty where it is not read."""
        example, prefix = self.example, self.prefixes[0] if self.prefixes else ""
        sizes, rows = self.example_sizes, self.example_table()
        names = {row.theirs for row in rows if not (row.when and matches(example.without, row.theirs))}
        found: dict[str, tuple[tuple[int, ...], str]] = {}
        for row in rows:
            if row.theirs in names and row.holds(names):
                found.setdefault(prefix + row.theirs, (shape_of(row.axes, sizes), row.paths[0]))
        return found | {prefix + name: (shape_of(axes, sizes), "") for name, axes in example.unread.items()}


def shape_of(axes: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of axes by these sizes."""
    pairs = [multiple(axis, sizes) for axis in axes]
    return tuple(factor * (sizes[name] if name else 1) for factor, name in pairs)
