"""Results: one JSON line for each mutant tried, the explanations of those that live, and the score."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant

EXPLANATIONS = Path(__file__).parent / "explanations.toml"
KINDS = {
    "equivalent": "computes the same",
    "unspecified": "differs only where SPEC.md promises nothing",
}
"""What an explanation may say of a mutant that lives."""

Name = tuple[Any, ...]


@dataclass(frozen=True)
class Result:
    """`stage`: "judge" or "tests". `killed_by`: what there noticed the mutant, "" if nothing did."""

    name: Name
    digest: str
    stage: str
    killed_by: str


class Results:
    """What is known from earlier runs; every new result is written at once, so that a run can be broken off."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, dict[tuple[Name, str], Result]()
        if path.exists():
            for line in path.read_text().splitlines():
                self.remember(Result(**(entry := json.loads(line)) | {"name": tuple(entry["name"])}))

    def remember(self, result: Result) -> None:
        self.known[result.name, result.digest] = result

    def add(self, mutant: Mutant, stage: str, killed_by: str) -> None:
        result = Result(mutant.name, mutant.digest, stage, killed_by)
        self.remember(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(result.__dict__) + "\n")

    def of(self, mutant: Mutant) -> Result | None:
        return self.known.get((mutant.name, mutant.digest))

    def killers(self, mutant: Mutant) -> Counter[str]:
        """What killed other mutants of the same function, and how many of them."""
        place = (mutant.file, mutant.function)
        return Counter(one.killed_by for one in self.known.values() if one.name[:2] == place and one.killed_by)

    def lives(self, mutant: Mutant) -> bool:
        result = self.of(mutant)
        return result is not None and not result.killed_by

    def passed_judge(self, mutant: Mutant) -> bool:
        """And has not been put to the tests."""
        result = self.of(mutant)
        return result is not None and not result.killed_by and result.stage == "judge"


@dataclass(frozen=True)
class Explanation:
    """Why some mutants of one function may live: those whose edit is among `edits`."""

    file: str
    function: str
    kind: str
    why: str
    edits: list[list[Any]]

    @property
    def names(self) -> list[Name]:
        return [
            (self.file, self.function, old, new, place) for old, new, *rest in self.edits for place in (*rest, 0)[:1]
        ]


def explanations(path: Path = EXPLANATIONS) -> dict[Name, Explanation]:
    entries = [Explanation(**entry) for entry in tomllib.loads(path.read_text())["explanation"]]
    assert {entry.kind for entry in entries} <= set(KINDS)
    return {name: entry for entry in entries for name in entry.names}


@dataclass
class Score:
    """Counts of mutants; `unexplained` live and should not, `stale` are explained and are killed or no longer made."""

    tried: int
    judged: int
    tested: int
    explained: dict[str, list[tuple[Mutant, str]]]
    unexplained: list[Mutant]
    stale: list[Name]


def score(mutants: Sequence[Mutant], results: Results, explained: dict[Name, Explanation]) -> Score:
    total = Score(0, 0, 0, {kind: [] for kind in KINDS}, [], [])
    living, files = set(), {mutant.file for mutant in mutants}
    for mutant in mutants:
        result = results.of(mutant)
        if result is None or (results.passed_judge(mutant) and mutant.name not in explained):
            continue
        total.tried += 1
        if result.killed_by:
            total.judged += result.stage == "judge"
            total.tested += result.stage == "tests"
            continue
        living.add(mutant.name)
        if mutant.name in explained:
            entry = explained[mutant.name]
            total.explained[entry.kind].append((mutant, entry.why))
        else:
            total.unexplained.append(mutant)
    total.stale = [name for name in explained if name not in living and name[0] in files]
    return total
