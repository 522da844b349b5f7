"""Content of the pages, prepared for the templates."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from conformance.side_by_side.columns import Columns, Row, side_by_side
from conformance.side_by_side.drift import reason
from conformance.side_by_side.marking import Piece, mark_differences
from conformance.side_by_side.rules import RuleText, rule_texts
from conformance.side_by_side.sources import LABELS, PACKAGES, Function, Step
from study.divergences import Matrix
from study.lessons import Symbol

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


class Cell(NamedTuple):
    """One package's step: its code, where it stands, and what its comments say."""

    package: str
    label: str
    code: Markup
    path: str
    line: int
    depth: int
    notes: tuple[str, ...] = ()


class Line(NamedTuple):
    """A row of cells, None where a package has nothing there. together: notes that all of them have."""

    cells: tuple[Cell | None, ...]
    kind: str
    together: tuple[str, ...] = ()
    reason: str | None = None
    helpers: tuple[tuple[str, str], ...] = ()  # (package's label, helper) whose steps begin here

    @property
    def same(self) -> bool:
        """Whether every column has the same code, and nothing to say about it."""
        codes = {cell.code if cell is not None and not cell.notes else None for cell in self.cells}
        return len(codes) == 1 and None not in codes


class Block(NamedTuple):
    """One function: what it is for, what each package says about it, its signature in one line and many, its body."""

    name: str
    labels: tuple[str, ...]
    docstring: str
    sayings: tuple[tuple[str, str], ...]  # (package's label, what its docstring adds)
    signature: str
    head: tuple[Line, ...]
    body: tuple[Line, ...]

    @property
    def dispatch(self) -> bool:
        """Whether the ports choose an engine here, rather than compute."""
        return any(line.reason is not None and line.reason.startswith(ENGINE) for line in self.body)


ENGINE = "A port first chooses its fastest engine"
"""How the reason of steps begins that choose an engine (`idioms.toml`)."""


def html(pieces: list[Piece]) -> Markup:
    """Pieces as spans; what differs is a <mark>."""
    parts = []
    for piece in pieces:
        text = Markup('<span class="{}">{}</span>').format(piece.kind, piece.text) if piece.kind else escape(piece.text)
        where = " ".join(f"from-{column}" for column in piece.differs)
        parts.append(Markup('<mark class="{}">{}</mark>').format(where, text) if piece.differs else text)
    return Markup("").join(parts)


def lines_of(columns: Columns) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """The rows of a function, its head and its body. A reason that several rows in a row share is told once."""
    found: list[Line] = []
    last: str | None = None
    begun: set[tuple[str, str]] = set()
    for row in (*columns.head, *columns.body):
        told = reason(columns, row)
        steps = zip(LABELS.values(), row.steps, strict=True)
        inside = [(label, step.inside) for label, step in steps if step is not None and step.inside]
        fresh = tuple(helper for helper in inside if helper not in begun)
        begun.update(fresh)
        found.append(line_of(columns, row, told if told != last else None, fresh))
        last = told
    return tuple(found[: len(columns.head)]), tuple(found[len(columns.head) :])


def line_of(columns: Columns, row: Row, told: str | None, helpers: tuple[tuple[str, str], ...]) -> Line:
    steps = row.steps
    present = [step for step in steps if step is not None]
    # What all say is told once, above; what one alone says stands in its column.
    said = [sentences(step.notes) for step in present]
    shared = [sentence for sentence in said[0] if len(present) > 1 and all(sentence in one for one in said)]
    marked = mark_differences([None if step is None else step.text for step in steps])
    cells = tuple(
        None if function is None or step is None else cell(package, function, step, html(pieces), shared)
        for package, function, step, pieces in zip(PACKAGES, columns.functions, steps, marked, strict=True)
    )
    return Line(cells, present[0].kind, (" ".join(shared),) if shared else (), told, helpers)


def cell(package: str, function: Function, step: Step, code: Markup, shared: list[str]) -> Cell:
    own = tuple(note for note in (" ".join(one) for one in kept_sentences(step.notes, shared)) if note)
    return Cell(package, LABELS[package], code, function.path, step.line, step.depth, own)


def sentences(notes: tuple[str, ...]) -> list[str]:
    return [sentence for note in notes for sentence in re.split(r"(?<=[.:]) (?=[A-Z])", note)]


def kept_sentences(notes: tuple[str, ...], shared: list[str]) -> list[list[str]]:
    return [[sentence for sentence in sentences((note,)) if sentence not in shared] for note in notes]


def paragraphs(docstring: str) -> list[str]:
    """A docstring's paragraphs; what it says about an argument is one of its own, without the heading."""
    text = re.sub(r"^Args:\n", "", docstring, flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?: {4})?(?=[*a-z_]+(?:, [*a-z_]+)*: )", text)
    return [paragraph.strip() for paragraph in parts if paragraph.strip()]


def block(file: str, name: str) -> Block:
    return block_of(side_by_side(file, name))


def block_of(columns: Columns) -> Block:
    present = {label: one for label, one in zip(LABELS.values(), columns.functions, strict=True) if one is not None}
    first = next(iter(present.values()))
    known = set(paragraphs(first.docstring))
    sayings = [(label, added(one, known)) for label, one in list(present.items())[1:]]
    told = tuple((label, text) for label, text in sayings if text)
    return Block(columns.name, tuple(present), first.docstring, told, signature(first), *lines_of(columns))


def signature(function: Function) -> str:
    """The parameters by their names alone."""
    names = [step.name for step in function.head if step.kind == "parameter" and step.name not in ("def", "->")]
    return f"{function.name}({', '.join(names)})"


def added(function: Function, known: set[str]) -> str:
    """What a port's docstring says beyond the definition's."""
    first, *rest = paragraphs(function.docstring) or [""]
    headline = [] if first in known or any(one.startswith(first.rstrip(".")) for one in known) else [first]
    return "\n\n".join([*headline, *(paragraph for paragraph in rest if paragraph not in known)])


def gradient(file: str, name: str, function: Function) -> Block:
    """A function that only the definition has."""
    head, body = (tuple(Row((step, None, None)) for step in steps) for steps in (function.head, function.steps))
    columns = Columns(file, name, (function, None, None), head, body)
    return Block(
        name, (LABELS[PACKAGES[0]],), function.docstring, (), signature(function),
        *(tuple(line_of(columns, row, None, ()) for row in rows) for rows in (head, body)),
    )  # fmt: skip


def formula(latex: str) -> Markup:
    """Mathematics that the browser sets; the text of it is its LaTeX."""
    return Markup(convert(latex, display="block"))


def symbols(found: tuple[Symbol, ...]) -> list[dict[str, Any]]:
    return [one._asdict() | {"sign": Markup(convert(one.latex))} for one in found]


def prose(text: str, base: str) -> Markup:
    """Markdown of SPEC.md, its links led to the sources, and rules to the page of rules."""
    shown = MARKDOWN.render(text)
    shown = re.sub(r'href="(?!https?:|#)([^"]+)"', lambda link: f'href="{base}{link[1]}"', shown)
    return Markup(re.sub(r"(?<![\w-])([A-Z]{3,4}-\d+)(?![\w-])", linked_rule, shown))


def linked_rule(match: re.Match[str]) -> str:
    known = match[1] in rule_texts()
    return f'<a href="rules.html#{match[1]}">{match[1]}</a>' if known else match[1]


def others(rules: tuple[str, ...], found: Matrix | None) -> list[dict[str, Any]]:
    """For every rule that was tried: how many paths keep it, and what the others do."""
    if found is None:
        return []
    told = []
    for rule in rules:
        tried = found.tried(rule)
        marks = [found.marks[path, rule] for path in tried]
        if tried:
            counts = {mark: marks.count(mark) for mark in dict.fromkeys(marks)}
            told.append({"rule": rule, "title": rule_texts()[rule].title, "tried": len(tried), "counts": counts,
                         "keeps": marks.count("conforms"), "departures": found.departures(rule)})  # fmt: skip
    return told


def texts(rules: tuple[str, ...]) -> list[RuleText]:
    return [rule_texts()[rule] for rule in rules]
