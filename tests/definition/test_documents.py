"""The texts of the project: links lead to files and headings, and lines keep to the width of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.cli.dev.spec import ROOT

LINK = re.compile(r"\[[^\[\]]+\]\(([^()\s]+)\)")
WIDTH = 120
PATHS = (path for pattern in ("*.md", "docs/*.md") for path in sorted(ROOT.glob(pattern)))
DOCUMENTS = {str(path.relative_to(ROOT)): path for path in PATHS}


def links(text: str) -> list[str]:
    """The target of every link that stays within the project."""
    return [target for target in LINK.findall(text) if "://" not in target]


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(path: Path, text: str) -> list[str]:
    found = []
    for target in links(text):
        file, _, name = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if not other.exists():
            found.append(f"no file {target}")
        elif name and name not in anchors(text if other == path else other.read_text()):
            found.append(f"no heading {target}")
    return found


def wide_lines(text: str) -> list[int]:
    """The numbers of lines that are too wide, but for tables and lines of one word."""
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if len(line) > WIDTH and " " in line.strip() and line[0] != "|"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = DOCUMENTS[document]
    assert dead_links(path, path.read_text()) == []


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "docs/divergences.md"])
def test_lines_are_not_too_wide(document: str) -> None:
    assert wide_lines(DOCUMENTS[document].read_text()) == []


def test_the_main_documents_are_among_them() -> None:
    assert {"README.md", "SPEC.md", "CONTRIBUTING.md", "docs/judging.md", "docs/mutation.md"} <= DOCUMENTS.keys()


def test_dead_links_are_noticed() -> None:
    text = "# Some `title`, here\n[a](SPEC.md), [b](nowhere.md), [c](#some-title-here), [d](#other), [e](SPEC.md#other)"
    assert dead_links(ROOT / "README.md", text) == [
        "no file nowhere.md",
        "no heading #other",
        "no heading SPEC.md#other",
    ]


def test_wide_lines_are_noticed() -> None:
    words = "word " * 25
    assert wide_lines(f"{words[:120]}\n{words}\n| {words}|\n{'x' * 130}") == [2]
