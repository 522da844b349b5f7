"""SPEC.md against what it speaks of: the rules as data, the definition, probes, tests and planted faults."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from conformance.operations.probes import PROBES
from conformance.operations.refusals import REFUSALS
from specification import MODEL_RULES, RULES
from tests.support.faults import FAULTS

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "SPEC.md").read_text()
TITLES = {rule.id: rule.title for rule in (RULES | MODEL_RULES).values()}

LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
HEADING = re.compile(r"### (\S+) (.+)")
RULE_ID = re.compile(r"[A-Z]+-\d+")
QUOTED = re.compile(r"`([^`]+)`")


# --- reading ----------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    id: str
    title: str
    paragraphs: list[str]  # each on one line

    def starting(self, word: str) -> list[str]:
        return [paragraph for paragraph in self.paragraphs if paragraph.startswith(word)]


def sections(text: str) -> list[Section]:
    """Every `### ID title`, and what stands below it until the next heading of any level."""
    found: list[Section] = []
    inside = False
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.lstrip().startswith("#"):
            heading = HEADING.fullmatch(paragraph.strip())
            inside = heading is not None
            if heading is not None:
                found.append(Section(heading[1], heading[2], []))
        elif inside:
            found[-1].paragraphs.append(" ".join(paragraph.split()))
    return found


def links(text: str) -> list[tuple[str, str, str]]:
    """(text, target, what follows until the next link) of every link to a file."""
    matches = list(LINK.finditer(text))
    ends = [*(match.start() for match in matches), len(text)][1:]
    found = [(match[1], match[2], text[match.end() : end]) for match, end in zip(matches, ends, strict=True)]
    return [link for link in found if "://" not in link[1]]


def file_of(target: str) -> Path:
    return ROOT / target.partition("#")[0]


@cache
def defined(path: Path) -> frozenset[str]:
    """Functions and classes at the top level of a Python file."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds))


@cache
def rules_of_markers(path: Path) -> frozenset[str]:
    """Identifiers that stand literally in the `pytest.mark.rule(...)` of a test file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return frozenset(found)


# --- judging ----------------------------------------------------------------------------------------------------------


def dead_links(text: str) -> list[str]:
    return [f"no file {target}" for _, target, _ in links(text) if not file_of(target).exists()]


def heading_problems(text: str, titles: Mapping[str, str]) -> list[str]:
    """One section for each rule, in the rules' order and under their titles, and none for anything else."""
    ids = [section.id for section in sections(text)]
    problems = [f"unknown rule {id}" for id in ids if id not in titles]
    problems += [f"no section for {id}" for id in titles if id not in ids]
    problems += [f"{id} has two sections" for id in dict.fromkeys(ids) if ids.count(id) > 1]
    problems += [
        f"{section.id} is called {section.title!r}, not {titles[section.id]!r}"
        for section in sections(text)
        if section.id in titles and section.title != titles[section.id]
    ]
    if not problems and ids != list(titles):
        problems.append("sections are not in the rules' order")
    return problems


def definition_problems(section: Section) -> list[str]:
    """Links of which each names a function or class of the file, after # or as its text."""
    found = section.starting("Definition:")
    if len(found) != 1 or not links(found[0]):
        return [f"{section.id} needs one definition with links"]
    problems = []
    for text, target, _ in links(found[0]):
        name = target.partition("#")[2] or text
        if not file_of(target).exists():
            problems.append(f"{section.id}: no file {target}")
        elif name not in defined(file_of(target)):
            problems.append(f"{section.id}: no {name} in {file_of(target).name}")
    return problems


def evidence_problems(section: Section, catalogue: Mapping[str, Collection[tuple[str, str]]]) -> list[str]:
    """Links followed by quoted names, each of which exists; at least one probe and one planted fault of the rule.

    Rules of models have no probes, and their faults are planted in a test.

    `catalogue`: for the files that hold entries with a rule, their (rule, name) pairs.
    """
    found = section.starting("Tests:")
    if len(found) != 1:
        return [f"{section.id} needs one list of tests"]
    problems, linked = [], set()
    for _, target, after in links(found[0]):
        names = QUOTED.findall(after)
        if not file_of(target).exists():
            problems.append(f"{section.id}: no file {target}")
            continue
        if target in catalogue:
            known = {name for rule, name in catalogue[target] if rule == section.id}
        else:
            known = {name for name in defined(file_of(target)) if name.startswith("test_")}
        problems += [f"{section.id}: no {name!r} in {target}" for name in names if name not in known]
        if not names:
            problems.append(f"{section.id}: nothing named in {target}")
        elif known.issuperset(names):
            linked.add(target)
    missing = {} if section.id in MODEL_RULES else {PROBES_FILE: "probe", FAULTS_FILE: "planted fault"}
    return problems + [f"{section.id} names no {kind}" for file, kind in missing.items() if file not in linked]


PROBES_FILE, REFUSALS_FILE, FAULTS_FILE = (
    "conformance/operations/probes.py",
    "conformance/checks/refusals.py",
    "tests/support/faults.py",
)
CATALOGUE = {
    PROBES_FILE: [(probe.rule, probe.title) for probe in PROBES],
    REFUSALS_FILE: [(refusal.rule, refusal.title) for refusal in REFUSALS],
    FAULTS_FILE: [(fault.rule, fault.name) for fault in FAULTS],
}


# --- the documents ----------------------------------------------------------------------------------------------------


def test_every_rule_has_its_section() -> None:
    assert heading_problems(SPEC, TITLES) == []


@pytest.mark.parametrize("section", sections(SPEC), ids=lambda section: section.id)
def test_section_is_complete(section: Section) -> None:
    assert len(section.starting("Why:")) == 1
    assert definition_problems(section) == []
    assert evidence_problems(section, CATALOGUE) == []


def test_no_rule_is_mentioned_that_does_not_exist() -> None:
    assert set(RULE_ID.findall(SPEC)) - set(TITLES) == set()


@pytest.mark.parametrize("document", ["SPEC.md", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    assert links(text)
    assert dead_links(text) == []


def test_markers_name_rules() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    named = {id for file in files for id in rules_of_markers(file)}
    assert named
    assert named - set(TITLES) == set()


# --- the checks themselves --------------------------------------------------------------------------------------------

SNIPPET = """# Title

Some text about [a file](specification/rules.py) and [a site](https://example.org/nowhere.py).

## Masks

### MASK-1 polarity

A mask is boolean.

Why: because.

Definition: [materialize](reference_numpy/masks.py),
[masks](reference_numpy/masks.py#allowed_pairs)

Tests: [probes](conformance/operations/probes.py) `dense
masks`; [tests](tests/definition/test_spec.py) `test_every_rule_has_its_section`; [faults](tests/support/faults.py)
`dense masks inverted`

### MASK-4 window

Nothing yet.

## After

Definition: [nobody](nowhere.py)
"""
TWO = {"MASK-1": "polarity", "MASK-4": "window"}
KNOWN = {
    PROBES_FILE: [("MASK-1", "dense masks"), ("MASK-4", "window")],
    REFUSALS_FILE: [],
    FAULTS_FILE: [("MASK-1", "dense masks inverted"), ("MASK-4", "left bound exclusive")],
}


def problems(text: str) -> list[str]:
    section = sections(text)[0]
    return heading_problems(text, TWO) + definition_problems(section) + evidence_problems(section, KNOWN)


def test_snippet_is_read() -> None:
    first, second = sections(SNIPPET)
    assert (first.id, first.title, len(first.paragraphs)) == ("MASK-1", "polarity", 4)
    assert second == Section("MASK-4", "window", ["Nothing yet."])
    assert next(target for _, target, _ in links(SNIPPET)) == "specification/rules.py"
    assert problems(SNIPPET) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("### MASK-4 window", "### MASK-9 window", ["unknown rule MASK-9", "no section for MASK-4"]),
        ("### MASK-4 window", "### MASK-1 polarity", ["no section for MASK-4", "MASK-1 has two sections"]),
        ("MASK-1 polarity", "MASK-1 Polarity", ["MASK-1 is called 'Polarity', not 'polarity'"]),
        ("### MASK-4", "#### MASK-4", ["no section for MASK-4"]),
        ("Definition: [mat", "Defined by [mat", ["MASK-1 needs one definition with links"]),
        ("[materialize](reference_numpy/masks.py),\n[masks](reference_numpy/masks.py#allowed_pairs)", "nowhere",
         ["MASK-1 needs one definition with links"]),
        ("[materialize]", "[materialise]", ["MASK-1: no materialise in masks.py"]),
        ("#allowed_pairs", "#pairs", ["MASK-1: no pairs in masks.py"]),
        ("(reference_numpy/masks.py)", "(reference_numpy/mask.py)", ["MASK-1: no file reference_numpy/mask.py"]),
        ("Tests:", "Held by", ["MASK-1 needs one list of tests"]),
        ("`dense\nmasks`", "", ["MASK-1: nothing named in conformance/operations/probes.py", "MASK-1 names no probe"]),
        ("`dense\nmasks`", "`window`",
         ["MASK-1: no 'window' in conformance/operations/probes.py", "MASK-1 names no probe"]),
        ("[faults](tests/support/faults.py)", "", ["MASK-1: no 'dense masks inverted' in tests/definition/test_spec.py",
         "MASK-1 names no planted fault"]),
        ("`test_every_rule_has_its_section`", "`test_nothing`",
         ["MASK-1: no 'test_nothing' in tests/definition/test_spec.py"]),
        ("(tests/definition/test_spec.py)", "(tests/test_specs.py)", ["MASK-1: no file tests/test_specs.py"]),
    ],
)  # fmt: skip
def test_broken_snippet_is_noticed(old: str, new: str, expected: list[str]) -> None:
    assert SNIPPET.count(old) == 1
    assert problems(SNIPPET.replace(old, new)) == expected


def test_sections_in_another_order_are_noticed() -> None:
    assert heading_problems(SNIPPET, dict(reversed(TWO.items()))) == ["sections are not in the rules' order"]


def test_dead_link_is_noticed() -> None:
    assert dead_links(SNIPPET) == ["no file nowhere.py"]
