"""Departures of other libraries, from the stored divergence matrix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.peers import rows
from conformance.peers.rows import Row, Run
from conformance.side_by_side.sources import ROOT

MATRIX = ROOT / "docs/divergences.json"
HOW = "make peers"
TAKES = "takes what should be refused"
AT_STRICT = "differs at strict"
MARKS = {rows.CONFORMS: "conforms", rows.VIOLATED: "differs", rows.AT_STRICT: AT_STRICT, rows.ACCEPTS: TAKES}


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
    """runs: the oldest first; each path has one. marks: what each path does with each rule. legend: of the signs.

    taken: the calls that a path takes, and should refuse. without_levels: paths of runs that told no levels.
    """

    runs: tuple[Run, ...]
    run_of: dict[str, Run]  # path
    marks: dict[tuple[str, str], str]  # (path, rule)
    divergences: tuple[Divergence, ...]
    taken: dict[tuple[str, str], str]  # (path, rule)
    groups: tuple[Group, ...]
    legend: str
    without_levels: frozenset[str] = frozenset()

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

    def number(self, path: str) -> int:
        """Of its run, from 1 on."""
        return self.runs.index(self.run_of[path]) + 1

    def version(self, path: str) -> str:
        """Of the package that a path leads through; empty where none of these has its name."""
        versions = self.run_of[path].versions if path in self.run_of else {}
        name = origin(path).lower()
        found = next(
            (
                one
                for one in (re.sub(r"[- ]", "_", name), name.replace(" ", ""), re.split(r"[. ]", name)[0])
                if one in versions
            ),
            "",
        )
        return f"{found} {versions[found]}" if found else ""

    def departures(self, rule: str) -> list[Departure]:
        """Divergences first, then what is taken that should be refused; each with all paths that do it."""
        alike: dict[tuple[str, str], list[str]] = {}
        for one in self.of(rule):
            alike.setdefault((one.message, one.example), []).append(one.path)
        for (path, its_rule), calls in self.taken.items():
            if its_rule == rule:
                alike.setdefault((f"{TAKES}: {calls}", ""), []).append(path)
        return [
            Departure(rule, f"{rule}-{number}", message, example, tuple(paths))
            for number, ((message, example), paths) in enumerate(alike.items(), 1)
        ]

    def places(self) -> dict[tuple[str, str], Departure]:
        """Where (path, rule) is told: the divergence where there is one."""
        every = [one for rule in self.rules for one in reversed(self.departures(rule))]
        return {(path, one.rule): one for one in every for path in one.paths}


def origin(path: str) -> str:
    """Whose path it is: the library, as in "torch" for "torch.optim.Adam"."""
    first, *rest = path.replace(",", "").split()
    return f"{first} {rest[0]}" if first in ("ONNX", "PyTorch") and rest else first.partition(".")[0]


def matrix(path: Path = MATRIX) -> Matrix | None:
    """None where no run has been written down. ValueError for a file that holds no matrix."""
    return made_of(rows.read(path)) if path.exists() else None


def made_of(found: Sequence[Row]) -> Matrix:
    """ValueError where there are no rows. Whole models, which are tried by no rule alone, are left out."""
    found = [row for row in found if row.operation != rows.MODEL]
    if not found:
        raise ValueError("no path through a library is in it")
    alike = {title: [row for row in found if row.operation == name] for name, title in rows.OPERATION_TITLES.items()}
    groups = [Group(title, tuple(rows.list_rules(some)), tuple(row.path for row in some))
              for title, some in alike.items() if some]  # fmt: skip
    shown = {path: group.rules for group in groups for path in group.paths}
    marks = {(row.path, rule): MARKS[row.marks[rule]] for row in found for rule in shown[row.path] if rule in row.marks}
    divergences = [Divergence(row.path, one.rule, one.message, one.call) for row in found for one in row.divergences]
    taken = {(row.path, rule): ", ".join(calls) for row in found for rule, calls in row.accepted.items()}
    run_of = {row.path: row.run for row in found}
    return Matrix(tuple(rows.runs(found)), run_of, marks, tuple(divergences), taken, tuple(groups), rows.legend(()),
                  frozenset(row.path for row in found if row.broken is None))  # fmt: skip
