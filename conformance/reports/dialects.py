"""Tables about all dialects in Markdown, made from their records."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from specification.dialects import DIALECTS

DOCUMENT = "docs/models.md"
"""The file that has the tables, each between two comments with its name."""


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; what is empty has no text."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "\n".join("".join(f"| {cell} " if cell else "| " for cell in line) + "|" for line in lines)


def hyperparameter(name: str, default: object) -> str:
    if default is inspect.Parameter.empty:
        return f"`{name}`"
    if isinstance(default, tuple):  # of data, which are long to read
        return f"`{name}=...`"
    return f'`{name}="{default}"`' if isinstance(default, str) else f"`{name}={default}`"


def list_of_dialects() -> str:
    """Every dialect, and of each the kinds of checkpoints that are called in different ways."""
    rows = []
    for name, dialect in DIALECTS.items():
        for variant in dialect.variants:
            own = variant.name and variant.called_with != dialect.described.called_with
            takes = ", ".join(hyperparameter(*one) for one in variant.hyperparameters.items())
            title = f"`{name}`, {variant.name}" if own else f"`{name}`"
            rows.append((title, takes, variant.called_with, variant.gives))
    return markdown(("dialect", "hyperparameters", "called with", "gives"), dict.fromkeys(rows))


def keys_of_files() -> str:
    """Where hyperparameters stand in the config.json of a checkpoint."""
    rows = []
    for name, dialect in DIALECTS.items():
        if dialect.config is not None:
            told = []
            for one in dialect.config.keys:
                keys = dialect.config.read_by(one)  # which the record names where they are many
                told.append(f"`{one}`: {'several' if len(keys) > 2 else ', '.join(f'`{key}`' for key in keys)}")
            types = ", ".join(f"`{family}`" for family in dialect.config.families)
            rows.append((f"`{name}`", types, "; ".join(told)))
    return markdown(("dialect", "model_type", "hyperparameters, and their keys"), rows)


def list_of_tutorials() -> str:
    tutorials = {name: dialect.tutorial for name, dialect in DIALECTS.items()}
    rows = [(name, told.title, told.builds) for name, told in tutorials.items() if told is not None]
    return markdown(("name", "title", "what it builds"), rows)


def departures_of_tutorials() -> str:
    told = {name: dialect.tutorial.departures for name, dialect in DIALECTS.items() if dialect.tutorial is not None}
    labels = dict.fromkeys(label for departures in told.values() for label in departures)
    rows = ((label, *(departures.get(label, "") for departures in told.values())) for label in labels)
    return markdown(("", *told), rows)


TABLES = {
    "dialects": list_of_dialects,
    "keys of config.json": keys_of_files,
    "tutorials": list_of_tutorials,
    "departures": departures_of_tutorials,
}
"""By the name in the comments."""


def renew_tables(text: str) -> str:
    """The document with its tables made anew. ValueError where the comments around one are missing."""
    for name, made in TABLES.items():
        begin, end = f"<!-- {name}: made by `conformance dev dialects` -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"there is no place for the table: {begin} ... {end}")
        text = f"{before}{begin}\n\n{made()}\n\n{end}{after}"
    return text
