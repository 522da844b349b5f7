"""Mutants: copies of one file's text with one small edit, made by the operators of mutmut and of Cosmic Ray.

Both are asked, because they complement each other: mutmut drops arguments and replaces them by None, forces branches
and edits strings; Cosmic Ray puts every operator in every other's place, adds and subtracts 1, negates conditions,
removes decorators and empties loops. Mutants that are the same program are counted once.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import libcst
from cosmic_ray.mutating import MutationVisitor  # type: ignore[import-untyped]
from cosmic_ray.operators.provider import OperatorProvider  # type: ignore[import-untyped]
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).parent.parent
Span = tuple[int, int]
"""A stretch of a text, from its first character to behind its last."""

NEEDS_ARGUMENTS = {"VariableReplacer", "VariableInserter"}
"""Operators of Cosmic Ray that do nothing unless they are told with which variables."""


@dataclass(frozen=True)
class Mutant:
    """One edit: in `file`, inside `function` ("" at module level), the lines `old` become `new`; `text` is the file.

    `file` is the path from the project's folder.

    `place` counts equal edits of equal lines within one function.
    """

    file: str
    function: str
    old: str
    new: str
    text: str
    place: int = 0

    @property
    def name(self) -> tuple[str, str, str, str, int]:
        """By what it is known from one run to the next, and to the explanations."""
        return self.file, self.function, self.old, self.new, self.place

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file, in the order in which the edits stand in it."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    mutants = []
    for node in ast.parse(text).body:
        first, last = first_line(node) - 1, node.end_lineno
        before, part, after = ("".join(piece) for piece in (lines[:first], lines[first:last], lines[last:]))
        function = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
        for old, new, mutated in edits(part):
            mutants.append(Mutant(str(path.relative_to(ROOT)), function, old, new, before + mutated + after))
    return numbered(mutants)


def edits(part: str) -> list[tuple[str, str, str]]:
    """(the lines changed, what they become, the part then) for every edit of one function or other statement."""
    left_out, seen, found = unjudged(part), {dumped(part)}, []
    for mutated in [*by_mutmut(part), *by_cosmic_ray(part)]:
        start, end = edited(part, mutated)
        program = dumped(mutated)
        if program is None or program in seen or any(a <= start and end <= b for a, b in left_out):
            continue
        seen.add(program)
        found.append((start, (*changed_lines(part, mutated), mutated)))
    return [edit for _, edit in sorted(found, key=lambda pair: pair[0])]


def numbered(mutants: list[Mutant]) -> list[Mutant]:
    counts: Counter[tuple[Any, ...]] = Counter()
    result = []
    for mutant in mutants:
        result.append(replace(mutant, place=counts[mutant.name]))
        counts[mutant.name] += 1
    return result


def first_line(node: ast.stmt) -> int:
    """Of its decorators, if it has any."""
    return min(part.lineno for part in (node, *getattr(node, "decorator_list", [])))


def dumped(text: str) -> str | None:
    """The program without its layout; None for what is no program."""
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return None


# --- the two tools ----------------------------------------------------------------------------------------------------


def by_mutmut(text: str) -> Iterator[str]:
    module = libcst.parse_module(text)
    nodes: list[libcst.CSTNode] = [module]
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for mutated in operator(node):
                    yield libcst.ensure_type(module.deep_replace(node, mutated), libcst.Module).code


def by_cosmic_ray(text: str) -> Iterator[str]:
    provider = OperatorProvider()
    for name in provider:
        operator, occurrence = None if name in NEEDS_ARGUMENTS else provider[name](), 0
        while operator and (mutated := MutationVisitor.mutate_code(text, operator, occurrence)) is not None:
            yield mutated
            occurrence += 1


# --- where an edit stands ---------------------------------------------------------------------------------------------


def edited(old: str, new: str) -> Span:
    """The stretch of `old` that is another one in `new`."""
    start = common(old, new)
    tail = common(old[start:][::-1], new[start:][::-1])
    return start, len(old) - tail


def common(left: str, right: str) -> int:
    """Characters with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def changed_lines(old: str, new: str) -> tuple[str, str]:
    difference = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    removed, added = ([line[2:].strip() for line in difference if line.startswith(sign)] for sign in ("- ", "+ "))
    return "\n".join(removed), "\n".join(added)


def span(node: ast.expr | ast.stmt, text: str) -> Span:
    lines = text.splitlines(keepends=True)

    def position(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)


def unjudged(text: str) -> list[Span]:
    """What is not computed with: docstrings, annotations, imports, the names in `__all__`, the words of errors."""
    parts: list[ast.expr | ast.stmt] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.append(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            parts.append(node)
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            parts.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            parts.append(node.returns)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            parts.append(node)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts.extend(node.exc.args)
    return [span(part, text) for part in parts]
