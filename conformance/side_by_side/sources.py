"""Functions of the three implementations as text: signature, docstring, and the steps of the body, with their lines.

A step is one statement. Its name is what it assigns (`weights, _` assigns `weights`) or, if it assigns nothing, what it
does: `return`, `if sinks is not None`, `checks.attention`. A statement inside an `if`, a loop or a function is its own
step, one level deeper. Comments are removed from the code and kept with the step below or beside them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("reference_numpy", "torch_impl", "jax_impl")
LABELS = {"reference_numpy": "NumPy", "torch_impl": "PyTorch", "jax_impl": "JAX"}
Definition = ast.FunctionDef | ast.ClassDef
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.FunctionDef)


def document(name: str) -> Path:
    """Return a document of the project: in the folder of the sources, or where a wheel has put it.

    Raises FileNotFoundError if it is in neither place.
    """
    if (ROOT / name).is_file():
        return ROOT / name
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("transformer-conformance") or ():
            if file.name == name and (path := Path(str(file.locate()))).is_file():
                return path
    raise FileNotFoundError(f"{name} is not installed: take a clone of the project")


def address(base: str | None, folder: Path) -> str:
    """What stands before the path of a file of the project in a link: the base, or the way there from a folder."""
    return f"{(Path(os.path.relpath(ROOT, folder.resolve())).as_posix() if base is None else base).rstrip('/')}/"


class Step(NamedTuple):
    """One statement, or the first line of one that holds others."""

    name: str
    targets: tuple[str, ...]
    text: str
    line: int
    depth: int = 0
    notes: tuple[str, ...] = ()
    kind: str = "step"  # or "parameter", "decorator"
    inside: str = ""  # the helper it stands in, where that is not the function itself


class Function(NamedTuple):
    """A function or a method: `PairProducts.forward` is named so."""

    package: str
    file: str
    name: str
    line: int
    docstring: str
    head: tuple[Step, ...]
    steps: tuple[Step, ...]

    @property
    def path(self) -> str:
        return f"{self.package}/{self.file}"


class Source(NamedTuple):
    """A file's text, and the comments in it by line: those on a line of their own, and those behind code."""

    text: str
    lines: tuple[str, ...]
    own: dict[int, str]
    behind: dict[int, tuple[int, str]]


def source_of(text: str) -> Source:
    own, behind = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string.lstrip("# ")
            if token.line[: token.start[1]].strip():
                behind[token.start[0]] = (token.start[1], comment)
            else:
                own[token.start[0]] = comment
    return Source(text, tuple(text.splitlines()), own, behind)


def directive(comment: str) -> bool:
    """Comments for tools rather than for readers."""
    return bool(re.match(r"(fmt|noqa|type|pragma|mypy|ruff)\b", comment))


def code_between(source: Source, first: int, last: int) -> str:
    """Lines first to last without comments, dedented."""
    kept = []
    for number in range(first, last + 1):
        line = source.lines[number - 1]
        if number in source.behind:
            line = line[: source.behind[number][0]].rstrip()
        if number not in source.own:
            kept.append(line)
    return textwrap.dedent("\n".join(kept)).rstrip()


def segment(source: Source, node: ast.expr | ast.arg) -> str:
    """Return what `ast.get_source_segment` returns, without splitting the whole text for every node."""
    lines = list(source.lines[node.lineno - 1 : node.end_lineno])
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
    lines[0] = lines[0].encode()[node.col_offset :].decode()
    return "\n".join(lines)


def notes_of(source: Source, first: int, last: int) -> tuple[str, ...]:
    """What comments say above and beside these lines; a comment over several lines is one note."""
    start = first
    while start - 1 in source.own:
        start -= 1
    above = " ".join(source.own[number] for number in range(start, first))
    within = [source.own[number] for number in range(first, last + 1) if number in source.own]
    beside = [source.behind[number][1] for number in range(first, last + 1) if number in source.behind]
    return tuple(note for note in [above, *within, *beside] if note and not directive(note))


def names_in(target: ast.expr) -> Iterator[str]:
    """Names that an assignment to this gives a value; `output[rows]` gives one to `output`."""
    match target:
        case ast.Tuple(elts) | ast.List(elts):
            for element in elts:
                yield from names_in(element)
        case ast.Starred(value):
            yield from names_in(value)
        case ast.Subscript(value):
            yield from names_in(value)
        case _:
            yield ast.unparse(target)


def targets_of(node: ast.stmt) -> tuple[str, ...]:
    match node:
        case ast.Assign(targets):
            found = [name for target in targets for name in names_in(target)]
        case ast.AugAssign(target) | ast.AnnAssign(target) | ast.For(target):
            found = list(names_in(target))
        case _:
            found = []
    return tuple(name for name in found if name != "_")


def name_of(node: ast.stmt) -> str:
    """By what a step is called where it assigns nothing."""
    match node:
        case ast.If(test):
            return f"if {ast.unparse(test)}"
        case ast.For(target):
            return f"for {ast.unparse(target)}"
        case ast.While(test):
            return f"while {ast.unparse(test)}"
        case ast.With(items):
            return f"with {ast.unparse(items[0].context_expr)}"
        case ast.FunctionDef(name):
            return f"def {name}"
        case ast.Raise(exc) if exc is not None:
            return f"raise {ast.unparse(exc.func if isinstance(exc, ast.Call) else exc)}"
        case ast.Expr(ast.Call(func)):
            return ast.unparse(func)
        case _:
            return targets_of(node)[0] if targets_of(node) else type(node).__name__.lower()


def body_of(node: ast.stmt, source: Source) -> list[tuple[str, int, list[ast.stmt]]]:
    """The parts of a statement that holds others: what introduces each (empty: the statement itself), and where."""
    if isinstance(node, ast.Try):
        handlers = [
            (f"except {ast.unparse(handler.type)}" if handler.type else "except", handler.lineno, handler.body)
            for handler in node.handlers
        ]
        return [("", node.lineno, node.body), *handlers, *otherwise(node.orelse, source)]
    return [("", node.lineno, node.body), *otherwise(getattr(node, "orelse", []), source)]  # type: ignore[attr-defined]


def otherwise(body: list[ast.stmt], source: Source) -> list[tuple[str, int, list[ast.stmt]]]:
    if not body:
        return []
    line = body[0].lineno
    while not re.match(r"\s*(else|elif)\b", source.lines[line - 1]):
        line -= 1
    return [("else", line, body)]


def drop_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if told else body


def steps_of(body: list[ast.stmt], source: Source, depth: int = 0) -> Iterator[Step]:
    """Every statement in order, those inside others too."""
    for node in drop_docstring(body) if body else []:
        if not isinstance(node, BLOCKS):
            last = node.end_lineno or node.lineno
            text = code_between(source, node.lineno, last)
            yield Step(name_of(node), targets_of(node), text, node.lineno, depth, notes_of(source, node.lineno, last))
            continue
        for word, line, inner in body_of(node, source):
            chained = word == "else" and len(inner) == 1 and isinstance(inner[0], ast.If) and inner[0].lineno == line
            if chained:
                for step in steps_of(inner, source, depth):
                    yield step._replace(name=f"el{step.name}") if step.line == line else step
                continue
            end = max(line, drop_docstring(inner)[0].lineno - 1)
            while end > line and (end in source.own or not source.lines[end - 1].strip()):
                end -= 1
            end = line if drop_docstring(inner) is not inner else end
            text = code_between(source, line, end)
            yield Step(word or name_of(node), targets_of(node), text, line, depth, notes_of(source, line, end))
            yield from steps_of(inner, source, depth + 1)


def head_of(node: Definition, source: Source) -> Iterator[Step]:
    """Decorators, the parameters one by one, and what is returned."""
    for decorator in node.decorator_list:
        last = decorator.end_lineno or decorator.lineno
        text, notes = code_between(source, decorator.lineno, last), notes_of(source, decorator.lineno, last)
        yield Step(ast.unparse(decorator), (), text, decorator.lineno, 0, notes, "decorator")
    above = () if node.decorator_list else notes_of(source, node.lineno, node.lineno)
    yield Step("def", (), f"def {node.name}(", node.lineno, 0, above, "parameter")
    if isinstance(node, ast.ClassDef):
        return
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    parameters = list(zip(plain, defaults, strict=True))
    for argument, default in [*parameters, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]:
        if given.kwonlyargs and argument is given.kwonlyargs[0]:
            yield Step("*", (), "*,", line_of_star(argument, source), 1, (), "parameter")
        shown = segment(source, argument)
        shown += "" if default is None else f" = {segment(source, default)}"
        yield Step(argument.arg, (argument.arg,), f"{shown},", argument.lineno, 1, (), "parameter")
    returns = f" -> {segment(source, node.returns)}" if node.returns else ""
    yield Step("->", (), f"){returns}:", node.lineno, 0, (), "parameter")


def line_of_star(first: ast.arg, source: Source) -> int:
    """The line of the star before the first keyword argument, which may be a line of its own."""
    above = first.lineno - 1
    return above if source.lines[above - 1].strip() == "*," else first.lineno


def functions_in(text: str, package: str, file: str) -> dict[str, Function]:
    """Every function of a file's text by name, in its order; methods of classes as `Class.method`."""
    source, found = source_of(text), {}
    for node in ast.parse(text).body:
        named = [(node.name, node)] if isinstance(node, Definition) else []
        if isinstance(node, ast.ClassDef):
            named += [(f"{node.name}.{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef)]
        for name, function in named:
            body = function.body if isinstance(function, ast.FunctionDef) else []
            found[name] = Function(
                package, file, name, function.lineno, ast.get_docstring(function) or "",
                tuple(head_of(function, source)), tuple(steps_of(body, source)),
            )  # fmt: skip
    return found


@cache
def functions_of(package: str, file: str) -> dict[str, Function]:
    path = ROOT / package / file
    return functions_in(path.read_text(), package, file) if path.exists() else {}
