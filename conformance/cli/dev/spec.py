"""`conformance dev spec`: the table at the end of SPEC.md, "What holds each rule"."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from conformance.cases.declaration import EVERYTHING
from conformance.checks.levels import describe_levels
from conformance.cli.console import console, refuse
from conformance.operations import OPERATIONS
from conformance.operations.probes import catalogue, refusals_of
from specification import MODEL_RULES, RULES

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
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"SPEC.md must have the comments {BEGIN} and {END}, once each and in this order")
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def table() -> list[str]:
    rules, refused = [*RULES, *MODEL_RULES], refusals()
    levels = {rule: describe_levels(rule, rule in refused) for rule in rules}
    columns = (levels, definitions(rules), probes(), refused, tests())
    rows = [HEAD, ("---",) * len(HEAD), *((rule, *(column[rule] for column in columns)) for rule in rules)]
    return ["| " + " | ".join(cell or "-" for cell in row) + " |" for row in rows]


def shorten_titles(titles: Iterable[str]) -> str:
    names = [title.replace("|", "\\|") for title in dict.fromkeys(titles)]
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "; ".join(names[:SHOWN] + more)


def probes() -> dict[str, str]:
    """Return the titles of each rule's probes. The part after a comma or colon, which names sizes, is cut off."""
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
    found: defaultdict[str, list[str]] = defaultdict(list)
    for refusal in refusals_of(None, EVERYTHING):
        found[refusal.rule].append(refusal.title)
    return defaultdict(str, {rule: shorten_titles(titles) for rule, titles in found.items()})


def definitions(rules: list[str]) -> dict[str, str]:
    """Link the functions whose docstrings name the rule, or the file if only its own docstring does."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files("reference_numpy", "specification"):
        tree = ast.parse(path.read_text())
        parts = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        functions = {node.name: mentioned_rules(node, rules) for node in parts}
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

    def arguments(*nodes: ast.AST) -> list[ast.expr]:
        """Those of the markers inside."""
        calls = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]
        return [argument for call in calls if ast.unparse(call.func) == MARKER for argument in call.args]

    def literals(nodes: Iterable[ast.AST]) -> set[str]:
        return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    everywhere = literals(arguments(*(node.value for node in tree.body if isinstance(node, ast.Assign))))
    inside = {one for argument in arguments(tree) for one in ast.walk(argument)}
    rows = [text.split() for text in literals(node for node in ast.walk(tree) if node not in inside)]
    named = {rule for row in rows if all(re.fullmatch(RULE_ID, word) for word in row) for rule in row}
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            given = arguments(*node.decorator_list)
            takes_a_table = not all(isinstance(argument, ast.Constant) for argument in given)
            found.update(everywhere | literals(given) | (named if takes_a_table else set()))
    return found


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def format_link(text: str, path: Path) -> str:
    return f"[{text}]({path.relative_to(ROOT).as_posix()})"
