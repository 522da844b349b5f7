"""The rules of SPEC.md: text, reason, other libraries, definition and tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from conformance.side_by_side.sources import document
from specification import MODEL_RULES, RULES

LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
PARTS = ("Why", "Elsewhere")
HELD_BY = ("Probes", "Refused calls", "Tests")
"""What the last cells of a row in SPEC.md's table "What holds each rule" list."""


class RuleText(NamedTuple):
    """A rule. The texts are Markdown, each paragraph as SPEC.md has it."""

    id: str
    title: str
    statement: str  # in one line
    text: str
    why: str
    elsewhere: str
    definition: str
    tests: str

    @property
    def defined_by(self) -> list[tuple[str, str]]:
        """(file of the definition, function) for every link into `reference_numpy`; a link to a file names no function.

        The second is then the path of the file.
        """
        links = LINK.findall(self.definition)
        return [(target.partition("/")[2], name) for name, target in links if target.startswith("reference_numpy/")]


@cache
def rule_texts() -> dict[str, RuleText]:
    """Return every rule of SPEC.md by its identifier, in order."""
    text = document("SPEC.md").read_text()
    cells = {row[0]: row[1:] for row in map(cells_of, re.findall(r"^\| ([A-Z].*) \|$", text, re.MULTILINE))}
    sections = re.split(r"^### ", re.sub(r"^## .*$", "", text, flags=re.MULTILINE), flags=re.M)
    texts = (rule_text(section, cells) for section in sections[1:])
    return {text.id: text for text in texts}


def cells_of(row: str) -> list[str]:
    return re.split(r"(?<!\\) \| ", row)


def letters() -> str:
    """Return the paragraph of SPEC.md that explains the letters in shapes."""
    found = re.search(r"^\*\*Letters\.\*\* (.*?)\n\n", document("SPEC.md").read_text(), re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("SPEC.md has no paragraph that explains the letters in shapes")
    return " ".join(found[1].split())


def rule_text(section: str, cells: Mapping[str, Sequence[str]]) -> RuleText:
    """Return the rule of a section. cells: by rule, its row in the table "What holds each rule"."""
    heading, _, body = section.partition("\n")
    rule = (RULES | MODEL_RULES)[heading.split()[0]]
    found: dict[str, list[str]] = {part: [] for part in ("text", *PARTS)}
    part = "text"
    for paragraph in re.split(r"\n\s*\n", body.strip("\n")):  # a block keeps its indentation
        starts = [word for word in PARTS if paragraph.startswith(f"{word}:")]
        if starts:
            part, paragraph = starts[0], paragraph.partition(":")[2].strip()
        elif part != "text":  # the chapter goes on, and that belongs to no rule
            break
        found[part].append(paragraph)
    joined = {name.lower(): "\n\n".join(paragraphs) for name, paragraphs in found.items()}
    _, definition, *held_by = cells[rule.id]
    tests = "\n\n".join(f"{name}: {cell}" for name, cell in zip(HELD_BY, held_by, strict=True) if cell != "-")
    return RuleText(rule.id, rule.title, rule.statement, **joined, definition=definition, tests=tests)
