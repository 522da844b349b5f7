"""SPEC.md against what it speaks of: the rules as data, the definition, probes, tests and planted faults."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from conformance.checks.levels import LEVELS
from conformance.cli import app
from conformance.cli.dev import spec
from conformance.cli.dev.spec import (
    BEGIN,
    END,
    ROOT,
    count_markers,
    insert_table,
    mentioned_rules,
    merge_titles,
    shorten_titles,
)
from specification import MODEL_RULES, RULES
from tests.support.faults import FAULTS
from tests.support.helpers import probes_of_all

SPEC = (ROOT / "SPEC.md").read_text()
TITLES = {rule.id: rule.title for rule in (RULES | MODEL_RULES).values()}

HEADING = re.compile(r"### (\S+) (.+)")
RULE_ID = re.compile(r"[A-Z]+-\d+")


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


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each rule's row in the table at the end."""
    lines = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    cells = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines]
    return {row[0]: row[1:] for row in cells}


# --- judging ----------------------------------------------------------------------------------------------------------


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


# --- the documents ----------------------------------------------------------------------------------------------------


def test_every_rule_has_its_section() -> None:
    assert heading_problems(SPEC, TITLES) == []


@pytest.mark.parametrize("section", sections(SPEC), ids=lambda section: section.id)
def test_every_rule_has_its_reason(section: Section) -> None:
    assert len(section.starting("Why:")) == 1


def test_table_is_up_to_date() -> None:
    result = CliRunner().invoke(app, ["dev", "spec", "--check"])
    assert (result.exit_code, result.output) == (0, "SPEC.md is up to date.\n")


@pytest.mark.parametrize("rule", TITLES)
def test_every_rule_is_defined_and_tested(rule: str) -> None:
    level, defined, probed, _, tested = rows(SPEC)[rule]
    assert level.startswith(LEVELS)
    assert "reference_numpy/" in defined
    if rule in MODEL_RULES:
        assert tested != "-"
    else:
        assert probed != "-"
        assert rule in {probe.rule for probe in probes_of_all()}
        assert rule in {fault.rule for fault in FAULTS}


def test_no_rule_is_mentioned_that_does_not_exist() -> None:
    assert set(RULE_ID.findall(SPEC)) - set(TITLES) == set()


def test_markers_name_rules() -> None:
    named = {
        rule for path in (ROOT / "tests").rglob("test_*.py") for rule in count_markers(ast.parse(path.read_text()))
    }
    assert named
    assert named - set(TITLES) == set()


# --- the checks themselves --------------------------------------------------------------------------------------------

SNIPPET = """# Title

Some text.

## Masks

### MASK-1 polarity

A mask is boolean.

Why: because.

### MASK-4 window

Nothing yet.

## After

Some other text.
"""
TWO = {"MASK-1": "polarity", "MASK-4": "window"}


def test_snippet_is_read() -> None:
    first, second = sections(SNIPPET)
    assert (first.id, first.title, len(first.paragraphs)) == ("MASK-1", "polarity", 2)
    assert second == Section("MASK-4", "window", ["Nothing yet."])
    assert heading_problems(SNIPPET, TWO) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("### MASK-4 window", "### MASK-9 window", ["unknown rule MASK-9", "no section for MASK-4"]),
        ("### MASK-4 window", "### MASK-1 polarity", ["no section for MASK-4", "MASK-1 has two sections"]),
        ("MASK-1 polarity", "MASK-1 Polarity", ["MASK-1 is called 'Polarity', not 'polarity'"]),
        ("### MASK-4", "#### MASK-4", ["no section for MASK-4"]),
    ],
)
def test_broken_snippet_is_noticed(old: str, new: str, expected: list[str]) -> None:
    assert SNIPPET.count(old) == 1
    assert heading_problems(SNIPPET.replace(old, new), TWO) == expected


def test_sections_in_another_order_are_noticed() -> None:
    assert heading_problems(SNIPPET, dict(reversed(TWO.items()))) == ["sections are not in the rules' order"]


# --- the generated table ----------------------------------------------------------------------------------------------

DEFINING = '''"""Masks (MASK-1 to MASK-3)."""
def causal():
    """Key j is allowed iff j <= i + offset (MASK-3)."""
def other():
    # MASK-5 in a comment does not count.
    return 0
'''
TESTING = """
pytestmark = pytest.mark.rule("MASK-6")
CASES = [("one", "ATT-1 ATT-2"), ("ATT-3 is in a sentence", 3)]
@pytest.mark.rule("MASK-1", "MASK-2")
def test_one(): ...
@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.rule(*c.rules)) for c in CASES])
def test_two(): ...
def test_three(): ...
def helper(): ...
"""


def test_docstrings_are_read() -> None:
    tree, rules = ast.parse(DEFINING), ["MASK-1", "MASK-2", "MASK-3", "MASK-4", "MASK-5"]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert mentioned_rules(tree, rules) == {"MASK-1", "MASK-2", "MASK-3"}
    assert [mentioned_rules(function, rules) for function in functions] == [{"MASK-3"}, set()]


def test_marked_tests_are_counted() -> None:
    expected = {"MASK-6": 3, "MASK-1": 1, "MASK-2": 1, "ATT-1": 1, "ATT-2": 1}
    assert count_markers(ast.parse(TESTING)) == expected


def test_titles_are_put_together() -> None:
    titles = ["scale", *(f"memory of {name}" for name in "abcd"), "rows of a"]
    assert merge_titles(titles, "abcd") == ["scale", *["memory of an operation"] * 4, "rows of a"]
    assert shorten_titles(["a | b", "c", "c"]) == "a \\| b; c"
    assert shorten_titles(map(str, range(10))) == "0; 1; 2; 3; 4; 5; 6; 7; and 2 more"


def test_table_stands_between_the_comments() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert insert_table(text, ["new"]) == text.replace("old", "new")
    for broken in ("", f"{END}\n{BEGIN}", text + text):
        with pytest.raises(ValueError, match="must have the comments"):
            insert_table(broken, ["new"])


def test_old_table_is_noticed_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("reference_numpy", "specification", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    path = tmp_path / "SPEC.md"
    path.write_text(SPEC.replace("| MASK-1 |", "| MASK-9 |"))
    monkeypatch.setattr(spec, "ROOT", tmp_path)
    monkeypatch.setattr(spec, "table", cache(spec.table))
    checked = CliRunner().invoke(app, ["dev", "spec", "--check"])
    assert (checked.exit_code, "out of date" in checked.output) == (1, True)
    assert "| MASK-9 |" in path.read_text()
    assert CliRunner().invoke(app, ["dev", "spec"]).exit_code == 0
    assert path.read_text() == insert_table(SPEC, spec.table())
