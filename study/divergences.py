"""What other libraries do instead, as the divergence matrix of the last run has it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from study.sources import ROOT

MATRIX = ROOT / "docs/divergences.md"
HOW = "make peers"
MARKS = {"✓": "conforms", "✗": "differs", "○": "takes what should be refused"}


class Divergence(NamedTuple):
    """One path through a library that departs from a rule: what was found, and the smallest call that shows it."""

    path: str
    rule: str
    message: str
    example: str


class Matrix(NamedTuple):
    """versions: of everything that ran. marks: what each path does with each rule."""

    versions: str
    marks: dict[tuple[str, str], str]  # (path, rule)
    divergences: tuple[Divergence, ...]

    def tried(self, rule: str) -> list[str]:
        return [path for path, its_rule in self.marks if its_rule == rule]

    def of(self, rule: str) -> list[Divergence]:
        return [one for one in self.divergences if one.rule == rule]


@cache
def matrix(path: Path = MATRIX) -> Matrix | None:
    """None where no run has been written down."""
    return read(path.read_text()) if path.exists() else None


def read(text: str) -> Matrix:
    marks: dict[tuple[str, str], str] = {}
    found: list[Divergence] = []
    rules: list[str] = []
    heading, versions = "", ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("python "):
            versions = line.rstrip(".")
        elif line.startswith("### "):
            heading = line.removeprefix("### ")
        elif line.startswith("|  |"):
            rules = [cell.strip() for cell in line.strip("|").split("|")][1:]
        elif line.startswith("| ") and not line.startswith("| ---"):
            name, *cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            name = re.sub(r"\\(.)", r"\1", name)
            marks |= {(name, rule): MARKS[cell] for rule, cell in zip(rules, cells, strict=True) if cell in MARKS}
        elif told := re.match(r"- \*\*([A-Z]+-\d+)\*\* [^:]+: (.+)", line):
            following = lines[number + 1].strip() if number + 1 < len(lines) else ""
            example = following.strip("`") if following.startswith("`") else ""
            found.append(Divergence(heading, told[1], told[2], example))
    return Matrix(versions, marks, tuple(found))
