"""Rows of the divergence matrix: what a report says of one path, as a file keeps it.

A row names the run that it is from. So a run of some peers renews their rows in the file, and all others stay.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from conformance.checks.catalogue import REFUSAL
from conformance.checks.judged_rules import JUDGED
from conformance.peers import PEERS, cells
from conformance.peers.matrix import PeerReport
from conformance.peers.peer import installed, version

SCHEMA = {"name": "transformer-conformance divergences", "version": 1}
PLACES = {peer.name: number for number, peer in enumerate(PEERS)}


class Run(NamedTuple):
    """When and with what a row was made. note: what else differs from a run of today."""

    date: str
    seed: int
    effort: str
    versions: dict[str, str]
    note: str = ""

    @property
    def told(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        note = f" {self.note}" if self.note else ""
        return f"{self.date}: {versions}; seed {self.seed}, effort {self.effort}.{note}"


class Divergence(NamedTuple):
    """A rule that a path breaks. level: empty where the run told none. call: the smallest that shows it, in a line."""

    rule: str
    title: str
    level: str
    message: str
    call: str


class Row(NamedTuple):
    """One path through a library.

    marks: by rule, its state in `cells`. broken: the levels that it does not keep; None where the run told none.
    accepted: by rule, titles of calls that it should refuse. untried: why not everything was tried.
    """

    path: str
    operation: str
    marks: dict[str, str]
    broken: list[str] | None
    divergences: tuple[Divergence, ...]
    accepted: dict[str, list[str]]
    untried: str
    run: Run


def rows_of(reports: Sequence[PeerReport]) -> list[Row]:
    """The rows of a run that ends now."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return [row_of(report, Run(today, report.seed, report.effort, versions())) for report in reports]


def row_of(report: PeerReport, run: Run) -> Row:
    states = {rule: cells.state(report, rule) for rule in JUDGED}
    wrong = [violation for violation in report.violations if violation.check != REFUSAL]
    found = [Divergence(one.rule, JUDGED[one.rule].title, one.level, cells.message(report, one), cells.asked(one))
             for one in wrong]  # fmt: skip
    return Row(
        report.subject,
        report.operation,
        {rule: state for rule, state in states.items() if state != cells.NOT_ASKED},
        sorted({violation.level for violation in wrong}),
        tuple(found),
        report.accepted,
        report.untried,
        run,
    )


def versions() -> dict[str, str]:
    """Of everything here that peers need. It is the same for all rows of a run, whichever peers are judged."""
    packages = dict.fromkeys(["numpy", *(package for peer in PEERS for package in peer.packages)])
    return {"python": platform.python_version()} | {name: version(name) for name in packages if installed(name)}


def runs(rows: Iterable[Row]) -> list[Run]:
    """Every run once, the oldest first."""
    found: list[Run] = []
    for row in rows:
        found += [] if row.run in found else [row.run]
    return sorted(found, key=lambda run: run.date)


def renewed(old: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """The new rows, and the old ones of all other peers that there still are, in the order of the table."""
    paths = {row.path for row in new}
    return sorted((*new, *(row for row in old if row.path in PLACES.keys() - paths)), key=place)


def place(row: Row) -> int:
    return PLACES.get(row.path, len(PLACES))


def read(path: Path) -> list[Row]:
    """The rows of a file, in the order of the table. ValueError for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a divergence matrix: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no divergence matrix of version {SCHEMA['version']}")
    return sorted((as_row(row, run) for run in content["runs"] for row in run["rows"]), key=place)


def as_row(content: dict[str, Any], run: dict[str, Any]) -> Row:
    made = Run(**{name: run[name] for name in Run._fields})
    divergences = tuple(Divergence(**one) for one in content["divergences"])
    return Row(**content | {"divergences": divergences, "run": made})


def write(rows: Sequence[Row], path: Path) -> None:
    """Write a file, with a line for each row, so that a change can be read."""
    found = [run._asdict() | {"rows": [content(row) for row in rows if row.run == run]} for run in runs(rows)]
    text = json.dumps({"schema": SCHEMA, "runs": found}, ensure_ascii=False, separators=(",", ":"))
    for first in ("date", "path"):
        text = text.replace(f'{{"{first}":', f'\n{{"{first}":')
    path.write_text(text + "\n", encoding="utf-8")


def content(row: Row) -> dict[str, Any]:
    found = row._asdict() | {"divergences": [one._asdict() for one in row.divergences]}
    del found["run"]
    return found
