"""Names that a page's code uses and does not show: the first sentence of their docstrings, and their files.

They are read from the sources without importing them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from conformance.side_by_side.columns import INLINED
from conformance.side_by_side.operations import Place, page_of
from conformance.side_by_side.sources import LABELS, PACKAGES, ROOT

SHARED = "specification"


class Definition(NamedTuple):
    """Something that a file defines. says: the first sentence about it, which may be empty."""

    path: str
    name: str
    line: int
    says: str


class Meaning(NamedTuple):
    """One thing that a name stands for. labels: the columns in which it does. page: where it is shown, if anywhere."""

    labels: tuple[str, ...]
    definition: Definition
    page: str | None


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    ends = (found.start() for found in re.finditer(r"(?<=[.:;])\s(?=[A-Z`])", paragraph))
    return next((paragraph[:end] for end in ends if closed(paragraph[:end])), paragraph).rstrip(".:;")


def closed(text: str) -> bool:
    """Whether every parenthesis is; [0, 1) is none."""
    text = re.sub(r"\[[^]()]*\)", "", text)
    return text.count("(") == text.count(")")


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def targets(node: ast.stmt) -> list[str]:
    """Names that a statement of a module defines."""
    match node:
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(given):
            return [part.id for one in given for part in ast.walk(one) if isinstance(part, ast.Name)]
        case ast.AnnAssign(target=ast.Name(name)):
            return [name]
    return []


@cache
def definitions(path: str) -> dict[str, Definition]:
    """What a file defines. The text below an assignment is about what it assigns."""
    body, found = tree(path).body, {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
        if text is None and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        for name in targets(node):
            found[name] = Definition(path, name, node.lineno, first_sentence(text or ""))
    return found


def file_of(module: str) -> str | None:
    """The file of a module of the project."""
    if module.partition(".")[0] not in (*PACKAGES, SHARED):
        return None
    path = module.replace(".", "/")
    return next((one for one in (f"{path}.py", f"{path}/__init__.py") if (ROOT / one).exists()), None)


@cache
def imported(path: str) -> dict[str, tuple[str | None, str]]:
    """By the name that a file uses: the file of what it imports, and its name there, empty for a module."""
    found: dict[str, tuple[str | None, str]] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and file_of(node.module):
            home = file_of(node.module)
            for alias in node.names:
                if alias.name == "*":
                    found |= {name: (home, name) for name in exported(home)}
                    continue
                module = file_of(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = (module, "") if module else (home, alias.name)
    return found


def exported(path: str | None) -> list[str]:
    """The names in a file's `__all__`."""
    if path is None:
        return []
    lists = [node.value for node in tree(path).body if isinstance(node, ast.Assign) and targets(node) == ["__all__"]]
    return [name for one in lists for name in ast.literal_eval(one)]


def defined(path: str | None, name: str) -> Definition | None:
    """The definition that a file has of a name, or that it passes on from another."""
    if path is None:
        return None
    if name in definitions(path):
        return definitions(path)[name]
    source, original = imported(path).get(name, (None, ""))
    return defined(source, original) if original else None


def used(path: str, function: str) -> Iterator[tuple[str, Definition]]:
    """What the body of a function takes from its file and from others of the project, as it names them."""
    owner, _, method = function.partition(".")
    found = next((node for node in tree(path).body if owner in targets(node)), None)
    if method and isinstance(found, ast.ClassDef):
        found = next((node for node in found.body if method in targets(node)), None)
    if not isinstance(found, ast.FunctionDef):
        return
    own = {one.arg for one in ast.walk(found) if isinstance(one, ast.arg)}
    own |= {one.id for one in ast.walk(found) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for node in [part for statement in found.body for part in ast.walk(statement)]:
        one = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in own:
            source, original = imported(path).get(node.value.id, (None, ""))
            one = None if original else defined(source, node.attr)
        elif isinstance(node, ast.Name) and node.id not in own:
            one = defined(path, node.id)
        if one is not None:
            yield ast.unparse(node), one


def meanings(places: Sequence[Place]) -> dict[str, list[Meaning]]:
    """By name, sorted: what the functions at these places use, and do not show themselves."""
    found: dict[str, dict[str, Meaning]] = {}
    for package, (file, function) in product(PACKAGES, places):
        path, inside = f"{package}/{file}", INLINED.get((package, function))
        names = [one for name in (function, inside) if name and (ROOT / path).exists() for one in used(path, name)]
        for name, definition in names:
            place = (definition.path.partition("/")[2], definition.name)
            if place in places or definition.name in (inside, str(inside).partition(".")[0]):
                continue
            alike = found.setdefault(name, {})  # by what is said of it
            operation = page_of(place)
            before = alike.get(definition.says) or Meaning((), definition, operation.name if operation else None)
            labels = tuple(dict.fromkeys((*before.labels, LABELS[package])))
            alike[definition.says] = before._replace(labels=labels)
    return {name: list(found[name].values()) for name in sorted(found, key=str.lower)}
