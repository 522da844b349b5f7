"""Departures of other libraries, from the stored divergence matrix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from study.sources import ROOT

MATRIX = ROOT / "docs/divergences.md"
HOW = "make peers"
MARKS = {"✓": "conforms", "✗": "differs", "△": "differs", "○": "takes what should be refused"}
NO_RULES = ("keeps", "core", "robust", "strict")
"""Columns that are about a profile or a level; older matrices have none of them."""
REFUSED = "- Takes what should be refused: "


class Divergence(NamedTuple):
    """One path through a library that departs from a rule: what was found, and the smallest call that shows it."""

    path: str
    rule: str
    message: str
    example: str


class Group(NamedTuple):
    """One operation: the paths that compute it, and the rules that any of them was asked."""

    title: str
    rules: tuple[str, ...]
    paths: tuple[str, ...]


class Departure(NamedTuple):
    """What several paths do alike. example: empty where a call is taken that should be refused."""

    rule: str
    place: str  # on the page
    message: str
    example: str
    paths: tuple[str, ...]


class Matrix(NamedTuple):
    """versions: of everything that ran. marks: what each path does with each rule. legend: what the signs mean.

    taken: the calls that a path takes, and should refuse.
    """

    versions: str
    marks: dict[tuple[str, str], str]  # (path, rule)
    divergences: tuple[Divergence, ...]
    taken: dict[tuple[str, str], str]  # (path, rule)
    groups: tuple[Group, ...]
    legend: str

    def tried(self, rule: str) -> list[str]:
        return [path for path, its_rule in self.marks if its_rule == rule]

    def of(self, rule: str) -> list[Divergence]:
        return [one for one in self.divergences if one.rule == rule]

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(rule for group in self.groups for rule in group.rules))

    @property
    def libraries(self) -> list[str]:
        return list(dict.fromkeys(origin(path) for group in self.groups for path in group.paths))

    @property
    def numbers(self) -> dict[str, int]:
        """For every path the number of its library, from 1 on."""
        libraries = self.libraries
        return {path: libraries.index(origin(path)) + 1 for group in self.groups for path in group.paths}

    def version(self, path: str) -> str:
        """Of the package that a path leads through; empty where none of these has its name."""
        versions = dict(re.findall(r"(\w+) ([\w.+]+)", self.versions.partition(";")[0]))
        name = origin(path).lower()
        found = next((one for one in (name.replace(" ", ""), re.split(r"[. ]", name)[0]) if one in versions), "")
        return f"{found} {versions[found]}" if found else ""

    def departures(self, rule: str) -> list[Departure]:
        """Divergences first, then what is taken that should be refused; each with all paths that do it."""
        alike: dict[tuple[str, str], list[str]] = {}
        for one in self.of(rule):
            alike.setdefault((one.message, one.example), []).append(one.path)
        for (path, its_rule), calls in self.taken.items():
            if its_rule == rule:
                alike.setdefault((f"takes what should be refused: {calls}", ""), []).append(path)
        return [
            Departure(rule, f"{rule}-{number}", message, example, tuple(paths))
            for number, ((message, example), paths) in enumerate(alike.items(), 1)
        ]

    def places(self) -> dict[tuple[str, str], Departure]:
        """Where (path, rule) is told: the divergence where there is one."""
        every = [one for rule in self.rules for one in reversed(self.departures(rule))]
        return {(path, one.rule): one for one in every for path in one.paths}


def origin(path: str) -> str:
    """Whose path it is."""
    first, *rest = path.replace(",", "").split()
    if first.startswith("jax.nn."):
        return "jax.nn"
    return f"{first} {rest[0]}" if first == "ONNX" and rest else first


def matrix(path: Path = MATRIX) -> Matrix | None:
    """None where no run has been written down. ValueError for a file that holds no matrix."""
    return read(path.read_text(encoding="utf-8")) if path.exists() else None


def read(text: str) -> Matrix:
    marks: dict[tuple[str, str], str] = {}
    found: list[Divergence] = []
    taken: dict[tuple[str, str], str] = {}
    groups: list[Group] = []
    operation, heading, versions, legend = "", "", "", ""
    columns: tuple[str, ...] = ()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("python "):
            versions = line.rstrip(".")
        elif line[:1] in MARKS:
            legend = line.rstrip(".")
        elif line.startswith("## "):
            operation = line.removeprefix("## ")
        elif line.startswith("### "):
            heading = line.removeprefix("### ")
        elif line.startswith("|  |"):
            columns = tuple(cell.strip(" *") for cell in line.strip("|").split("|")[1:])
            groups.append(Group(operation, tuple(name for name in columns if name not in NO_RULES), ()))
        elif line.startswith("| ") and not line.startswith("| ---"):
            name, *cells = [plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            if not groups or len(cells) != len(columns):
                raise ValueError(f"line {number + 1} has not a cell for every rule: {line[:60]}")
            rules = groups[-1].rules
            groups[-1] = groups[-1]._replace(paths=(*groups[-1].paths, name))
            of_rules = [(rule, cell) for rule, cell in zip(columns, cells, strict=True) if rule in rules]
            marks |= {(name, rule): MARKS[cell] for rule, cell in of_rules if cell in MARKS}
        elif told := re.match(r"- \*\*([A-Z]+(?:-\d+)?)\*\* [^:]+: (.+)", line):
            following = lines[number + 1].strip() if number + 1 < len(lines) else ""
            example = following.strip("`") if following.startswith("`") else ""
            found.append(Divergence(heading, told[1], plain(told[2]), example))
        elif line.startswith(REFUSED):
            told_calls = line.removeprefix(REFUSED).rstrip(".").split("; ")
            taken |= {(heading, rule): calls for rule, _, calls in (one.partition(" ") for one in told_calls)}
    if not marks:
        raise ValueError("no table of rules and paths is in it")
    return Matrix(versions, marks, tuple(found), taken, tuple(groups), legend)


def plain(text: str) -> str:
    """Without Markdown's escapes."""
    return re.sub(r"\\(.)", r"\1", text)
