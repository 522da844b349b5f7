"""SPEC.md against what it speaks of: the rules as data, the definition, probes, tests and planted faults."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

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

RULE_ID = re.compile(r"[A-Z]+-\d+")


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each rule's row in the table at the end."""
    lines = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    cells = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines]
    return {row[0]: row[1:] for row in cells}


# --- the documents ----------------------------------------------------------------------------------------------------


def test_every_rule_has_its_section() -> None:
    """One for each rule, in the rules' order and under their titles, and none for anything else."""
    assert re.findall(r"(?m)^### (\S+) (.+)$", SPEC) == [*TITLES.items()]


def test_every_rule_has_its_reason() -> None:
    sections = re.findall(r"(?m)^### (\S+)((?:\n(?!#)|.)*)", SPEC)
    assert {rule: len(re.findall(r"\n\nWhy:", text)) for rule, text in sections} == dict.fromkeys(TITLES, 1)


def test_table_is_up_to_date() -> None:
    result = CliRunner().invoke(app, ["dev", "spec", "--check"])
    assert (result.exit_code, result.output) == (0, "SPEC.md is up to date.\n")


@pytest.mark.parametrize("rule", TITLES)
def test_every_rule_is_defined_and_tested(rule: str) -> None:
    level, defined, probed, _, tested = rows(SPEC)[rule]
    assert level.startswith(LEVELS)
    assert ("specification/distributed.py" if rule.startswith("DIST-") else "reference_numpy/") in defined
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
