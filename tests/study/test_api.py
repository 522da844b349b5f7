"""The page of public names has all of them, each with its signature and its docstring."""

from __future__ import annotations

import importlib
import inspect

import pytest

from conformance.side_by_side.sources import LABELS, ROOT
from study import api
from study.api import Entry

ENTRIES: dict[str, Entry] = {one.name: one for one in (*api.judge(), *api.packages())}
MODULES = ("conformance", "conformance.pytest_plugin", *LABELS)


def public_names(package: str) -> list[str]:
    """Every name that a package or module exports, but for its version."""
    module = importlib.import_module(package)
    names: list[str] = getattr(module, "__all__", ["conformance_test"])
    return [name for name in names if name != "__version__"]


@pytest.mark.parametrize("package", MODULES)
def test_every_public_name_is_there(package: str) -> None:
    for name in public_names(package):
        entry, value = ENTRIES[name], getattr(importlib.import_module(package), name)
        assert value.__doc__, name
        if package not in LABELS or LABELS[package] == entry.labels[0]:
            assert entry.text.startswith(inspect.cleandoc(value.__doc__).splitlines()[0])
        else:
            assert LABELS[package] in entry.labels
        if inspect.isfunction(value) and name != "conformance_test":  # whose options are those of `check`
            everything = f"{entry.signature} {entry.text} {entry.ports}"
            assert all(parameter in everything for parameter in inspect.signature(value).parameters), name


def test_nothing_else_is_there() -> None:
    assert set(ENTRIES) == {name for package in MODULES for name in public_names(package)}


def test_entries_lead_to_their_lines() -> None:
    for one in ENTRIES.values():
        lines = (ROOT / one.path).read_text().splitlines()
        assert one.name in lines[one.line - 1], one


def test_options_and_properties_are_listed() -> None:
    assert "- `width_multiple`: every width must be a multiple of this" in ENTRIES["check"].text
    assert "- `conforms`: Whether" in ENTRIES["Report"].text
    assert ENTRIES["Causal"].signature == "Causal(offset: Any = None)"


def test_sections_of_a_docstring_become_lists() -> None:
    text = "Do it.\n\nArgs:\n    x, y: Numbers,\n        or arrays.\n    **more: Others.\n\nReturns:\n    A sum."
    found = [line for line in api.markdown(text).splitlines() if line.strip()]
    assert found == [
        *("Do it.", "**Args**", "- `x, y`: Numbers,", "  or arrays.", "- `**more`: Others.", "**Returns**"),
        "  A sum.",
    ]
