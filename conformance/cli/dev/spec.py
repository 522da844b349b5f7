"""`conformance dev spec`: the table at the end of SPEC.md, "What holds each rule"."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console, refuse

ROOT = Path(__file__).parents[3]
BEGIN = "<!-- `python -m conformance dev spec` writes the lines from here -->"
END = "<!-- to here -->"
HEAD = ("rule", "level", "defined in", "probes of the judge", "refused calls", "tests, and how many")
SHOWN = 8
"""A cell names at most this many probes or calls, and counts the others."""

RULE_ID = r"[A-Z]{3,4}-\d+"
MENTION = re.compile(rf"({RULE_ID})(?: to ({RULE_ID}))?")
MARKER = "pytest.mark.rule"


def spec(
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 if SPEC.md is out of date")] = False,
) -> None:
    """Write the table "What holds each rule" at the end of SPEC.md."""
    path = ROOT / "SPEC.md"
    if not path.is_file():
        refuse(f"{path} does not exist: this command needs a clone of the project")
    text = path.read_text()
    current = insert_table(text, table())
    if current == text:
        console.print("SPEC.md is up to date.")
    elif check:
        refuse("SPEC.md is out of date: run `python -m conformance dev spec`", 1)
    else:
        path.write_text(current)
        console.print("SPEC.md is written.")


def insert_table(text: str, lines: Iterable[str]) -> str:
    """Return the text of SPEC.md with these lines between the two comments."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"SPEC.md must have the comments {BEGIN} and {END}, once each and in this order")
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def table() -> list[str]:
    """Return the table in Markdown, with one row for each rule."""
    from specification import MODEL_RULES, RULES

    rules = [*RULES, *MODEL_RULES]
    columns = (levels(rules), definitions(rules), probes(), refusals(), tests())
    rows = [HEAD, ("---",) * len(HEAD), *((rule, *(column[rule] for column in columns)) for rule in rules)]
    return ["| " + " | ".join(cell or "-" for cell in row) + " |" for row in rows]


def levels(rules: list[str]) -> dict[str, str]:
    """Return the level of each rule and of its parts, in words."""
    from conformance.cases.declaration import EVERYTHING
    from conformance.checks.levels import describe_levels
    from conformance.operations.probes import refusals_of

    refusing = {refusal.rule for refusal in refusals_of(None, EVERYTHING)}
    return {rule: describe_levels(rule, rule in refusing) for rule in rules}


def shorten_titles(titles: Iterable[str]) -> str:
    """Return the first titles in one cell, and count the others."""
    names = [title.replace("|", "\\|") for title in dict.fromkeys(titles)]
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "; ".join(names[:SHOWN] + more)


# --- the judge's probes and refusals ----------------------------------------------------------------------------------


def probes() -> dict[str, str]:
    """Return the titles of each rule's probes. The part after a comma or colon, which names sizes, is cut off."""
    from conformance.cases.declaration import EVERYTHING
    from conformance.operations import OPERATIONS
    from conformance.operations.probes import catalogue

    found: defaultdict[str, list[str]] = defaultdict(list)
    for probe in catalogue(EVERYTHING):
        found[probe.rule].append(re.split(r"[,:] (?![^\[]*\])", probe.title)[0])
    return defaultdict(str, {rule: shorten_titles(merge_titles(titles, OPERATIONS)) for rule, titles in found.items()})


def merge_titles(titles: list[str], operations: Iterable[str]) -> list[str]:
    """Replace more than two titles that differ only in the name of an operation by one title."""
    name = re.compile(rf"\b({'|'.join(operations)})\b")
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for title in titles:
        alike[name.sub("an operation", title)].add(title)
    patterns = [name.sub("an operation", title) for title in titles]
    return [same if len(alike[same]) > 2 else title for title, same in zip(titles, patterns, strict=True)]


def refusals() -> dict[str, str]:
    """Return the titles of the calls that an implementation must refuse, by rule."""
    from conformance.cases.declaration import EVERYTHING
    from conformance.operations.probes import refusals_of

    found: defaultdict[str, list[str]] = defaultdict(list)
    for refusal in refusals_of(None, EVERYTHING):
        found[refusal.rule].append(refusal.title)
    return defaultdict(str, {rule: shorten_titles(titles) for rule, titles in found.items()})


# --- the definition ---------------------------------------------------------------------------------------------------


def definitions(rules: list[str]) -> dict[str, str]:
    """Link the functions whose docstrings name the rule, or the file if only its own docstring does."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files("reference_numpy", "specification"):
        tree = ast.parse(path.read_text())
        functions = {
            node.name: mentioned_rules(node, rules)
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        for rule in mentioned_rules(tree, rules) | set().union(*functions.values()):
            names = [name for name, named in functions.items() if rule in named]
            found[rule] += [format_link(name, path) for name in names or [path.relative_to(ROOT).as_posix()]]
    return {rule: ", ".join(found[rule]) for rule in rules}


def mentioned_rules(node: ast.Module | ast.FunctionDef | ast.ClassDef, rules: list[str]) -> set[str]:
    """Return the rules that a docstring names, alone or in a range like "MASK-1 to MASK-6"."""
    found: set[str] = set()
    for first, last in MENTION.findall(ast.get_docstring(node) or ""):
        if first in rules:
            found |= set(rules[rules.index(first) : rules.index(last or first) + 1])
    return found


# --- the tests --------------------------------------------------------------------------------------------------------


def tests() -> dict[str, str]:
    """Link the test files with tests that are marked with the rule, and count these tests."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files("tests"):
        if path.name.startswith("test_"):
            for rule, count in sorted(count_markers(ast.parse(path.read_text())).items()):
                found[rule].append(f"{format_link(path.stem, path)} {count}")
    return defaultdict(str, {rule: ", ".join(files) for rule, files in found.items()})


def count_markers(tree: ast.Module) -> Counter[str]:
    """Count the test functions that are marked with each rule.

    A marker whose argument is not literal takes its rules from a table in the same file. It then counts for every
    rule in a string of the file that consists of rules only.
    """
    everywhere = {rule for node in tree.body if isinstance(node, ast.Assign) for rule in literal_rules(node.value)}
    named = rules_in_strings(tree)
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            rules = everywhere.union(*map(literal_rules, node.decorator_list))
            found.update(rules | named if any(map(takes_a_table, node.decorator_list)) else rules)
    return found


def markers(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call) and ast.unparse(one.func) == MARKER)


def literal_rules(node: ast.AST) -> set[str]:
    return {str(one.value) for call in markers(node) for one in call.args if isinstance(one, ast.Constant)}


def takes_a_table(node: ast.AST) -> bool:
    return any(not isinstance(argument, ast.Constant) for call in markers(node) for argument in call.args)


def rules_in_strings(tree: ast.Module) -> set[str]:
    """Return the rules in strings of a file that consist of rules only, except in markers."""
    inside = {one for call in markers(tree) for one in ast.walk(call)}
    strings = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside
    )
    words = (text.split() for text in strings)
    return {rule for row in words if all(re.fullmatch(RULE_ID, word) for word in row) for rule in row}


# --- files ------------------------------------------------------------------------------------------------------------


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def format_link(text: str, path: Path) -> str:
    return f"[{text}]({path.relative_to(ROOT).as_posix()})"
