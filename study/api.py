"""The page of public names. The packages are read, not imported, so no framework is loaded for it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import conformance
from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.sources import LABELS, PACKAGES, ROOT
from study.pages import paragraphs

SECTION = re.compile(r"(Args|Attributes|Methods and properties|Options|Raises|Returns):")
ITEM = re.compile(r" {4}(\*{0,2}[a-zA-Z_]\w*(?:, [a-zA-Z_]\w*)*): (.*)")


class Entry(NamedTuple):
    """A public name.

    text: its docstring in Markdown. labels: of the packages that have it. ports: what docstrings of the others add, by
    label. chapter: the page that has it side by side.
    """

    name: str
    signature: str
    text: str
    path: str
    line: int
    labels: tuple[str, ...] = ()
    ports: tuple[tuple[str, tuple[str, ...]], ...] = ()
    chapter: str | None = None


@cache
def definitions(path: Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def exports(package: str) -> Iterator[tuple[str, Path]]:
    """The names that a package takes from its modules by `import *`, and the file of each."""
    for imported in ast.walk(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(imported, ast.ImportFrom) and imported.names[0].name == "*":
            path = ROOT / f"{str(imported.module).replace('.', '/')}.py"
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    yield from ((name, path) for name in ast.literal_eval(node.value))


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return a call in one line: of a class, with what `__init__` takes, or with its fields."""
    if isinstance(node, ast.FunctionDef):
        returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
        return f"{node.name}({ast.unparse(node.args)}){returns}"
    makers = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    if makers:
        return f"{node.name}({ast.unparse(makers[0].args).removeprefix('self, ')})"
    fields = [ast.unparse(part).partition(" = field(")[0] for part in node.body if isinstance(part, ast.AnnAssign)]
    return f"{node.name}({', '.join(fields)})"


def methods(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the public methods and properties of a class, each with the first paragraph of its docstring."""
    parts = [part for part in node.body if isinstance(node, ast.ClassDef) and isinstance(part, ast.FunctionDef)]
    told = {part.name: ast.get_docstring(part) for part in parts if not part.name.startswith("_")}
    lines = [f"    {name}: {paragraphs(text)[0]}" for name, text in told.items() if text]
    return "\n".join(["\n\nMethods and properties:", *lines]) if lines else ""


def markdown(docstring: str) -> str:
    """Return a docstring of Google's style, its sections as lists."""
    lines, inside = [], False
    for line in docstring.splitlines():
        section, item = SECTION.fullmatch(line), ITEM.fullmatch(line)
        inside = bool(section) or (inside and (not line or line.startswith(" ")))
        if section:
            lines += ["", f"**{section[1]}**", ""]
        elif inside:
            lines += [f"- `{item[1]}`: {item[2]}" if item else f"  {line.strip()}"]
        else:
            lines += [line]
    return "\n".join(lines)


def entry(name: str, path: Path, docstring: str | None = None) -> Entry:
    node = definitions(path)[name]
    text = markdown((docstring or ast.get_docstring(node) or "") + methods(node))
    return Entry(name, signature(node), text, path.relative_to(ROOT).as_posix(), node.lineno)


def judge() -> Iterator[Entry]:
    """The names of `conformance`, with docstrings as Python has them, so with all options; and its pytest plugin's."""
    for name in conformance.__all__:
        value = getattr(conformance, name)
        if not isinstance(value, str):  # the version
            yield entry(name, Path(inspect.getfile(value)), inspect.getdoc(value))
    yield entry("conformance_test", ROOT / "conformance/pytest_plugin.py")


def packages() -> Iterator[Entry]:
    """The names of the three packages in alphabetical order, each by the first package that has it."""
    chapters = {name: one.name for one in OPERATIONS for _, name in (*one.functions, *one.gradients)}
    homes: dict[str, dict[str, Path]] = {}
    for package in PACKAGES:
        for name, path in exports(package):
            homes.setdefault(name, {})[package] = path
    for name, paths in sorted(homes.items()):
        home, *_ = paths.values()
        told = {package: paragraphs(ast.get_docstring(definitions(paths[package])[name]) or "") for package in paths}
        first, *_ = told.values()
        ports = {LABELS[package]: tuple(text for text in texts if text not in first) for package, texts in told.items()}
        added = tuple((label, texts) for label, texts in ports.items() if texts)
        yield entry(name, home)._replace(labels=tuple(ports), ports=added, chapter=chapters.get(name))
