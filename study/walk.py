"""Chapter 0: the walk-through from one query and one key, as a page; it runs when the page is made."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from conformance.side_by_side.marking import tokens
from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.sources import ROOT
from study.pages import MARKDOWN, html

FILE = ROOT / "examples/one_query.py"
LARGEST = 100
"""The number of elements up to which an array is drawn."""


MORE = {
    "One query, one key": ("scores",),
    "One query, three keys: softmax": ("softmax",),
    "Many queries, and who may attend to whom": ("masks", "attention"),
    "Heads": ("multi_head_attention",),
    "Layer norm": ("layer_norm",),
    "Feed-forward, and positions": ("feed_forward", "positions"),
    "A block, and parameters for it": ("blocks",),
    "The whole": ("embedding", "transformer"),
    "Generating": ("generation", "decoding"),
}
"""The chapters that say more than a part of this one."""


class Chapter(NamedTuple):
    name: str
    title: str
    summary: str


CHAPTER = Chapter(
    "walk", "From one query and one key",
    "A Transformer in NumPy, from a single dot product to a model that generates, each piece judged as soon as it is"
    " written.",
)  # fmt: skip


class Cell(NamedTuple):
    """A piece of the walk-through: text, or code with what it prints and the arrays to which it gives names.

    title: of code that is folded under it.
    """

    text: str = ""
    code: str = ""
    title: str = ""
    output: str = ""
    arrays: tuple[tuple[str, np.ndarray], ...] = ()


def cells(text: str) -> list[Cell]:
    """Split a walk-through where it has `# %%`, after which code may have a title."""
    found = []
    for piece in re.split(r"(?m)^# %%", text)[1:]:
        kind, _, body = piece.partition("\n")
        prose, code = kind.strip() == "[markdown]", body.strip("\n")
        found.append(Cell(text=re.sub(r"(?m)^# ?", "", body)) if prose else Cell(code=code, title=kind.strip()))
    return found


def run(found: list[Cell]) -> list[Cell]:
    """Run the code in order, in one module. What it raises ends the build."""
    names: dict[str, Any] = {"__name__": CHAPTER.name}
    return [ran(cell, names) if cell.code else cell for cell in found]


def ran(cell: Cell, names: dict[str, Any]) -> Cell:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(cell.code, FILE.name, "exec"), names)
    given = {name: names[name] for name in assigned(cell.code)}
    small = {name: value for name, value in given.items() if isinstance(value, np.ndarray) and value.size <= LARGEST}
    return cell._replace(output=printed.getvalue().rstrip(), arrays=tuple(small.items()))


def assigned(code: str) -> list[str]:
    """Return the names that the code gives to values, outside of loops and functions."""
    given = [target for node in ast.parse(code).body if isinstance(node, ast.Assign) for target in node.targets]
    return [part.id for target in given for part in ast.walk(target) if isinstance(part, ast.Name)]


def colored(code: str) -> Markup:
    return html(list(tokens(code)))


def anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def prose(text: str) -> Markup:
    """Markdown; chapters have names to which links lead. The title stands above the page already."""
    shown = MARKDOWN.render(re.sub(r"(?m)^# .*\n", "", text))
    return Markup(re.sub(r"<h2>(.*?)</h2>", heading, shown))


def heading(found: re.Match[str]) -> str:
    """A heading with its name, and links to the chapters that say more."""
    titles = {one.name: f"chapter {number}, {one.title}" for number, one in enumerate(OPERATIONS, 1)}
    links = "; ".join(f'<a href="{name}.html">{titles[name]}</a>' for name in MORE[found[1]])
    return f'<h2 id="{anchor(found[1])}">{found[1]}</h2><p class="how after">In full: {links}</p>'


def parts(found: list[Cell]) -> list[tuple[str, str]]:
    """Anchor and title of every chapter."""
    titles = [title for cell in found for title in re.findall(r"(?m)^## (.*)$", cell.text)]
    return [(anchor(title), title) for title in titles]


def rendered(made: Environment, examples: bool) -> dict[str, str]:
    """Return the page by its name. examples: whether the code is run."""
    found = cells(FILE.read_text())
    drawn: dict[str, Any] = {"cells": run(found) if examples else found}
    if examples:
        # Loaded here, because the frameworks come with it.
        from study.examples.parts import Shown, figure

        drawn |= {"figure": figure, "shown": Shown}
    page = made.get_template("walk.html").render(
        page=CHAPTER.name, parts=parts(found), prose=prose, colored=colored, after=OPERATIONS[0],
        path=FILE.relative_to(ROOT).as_posix(), **drawn,
    )  # fmt: skip
    return {CHAPTER.name: page}
