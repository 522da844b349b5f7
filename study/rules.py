"""The rules as SPEC.md states them: the text, why, what others do, where it is defined, and what holds it."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from specification import MODEL_RULES, RULES
from study.sources import ROOT

LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
PARTS = ("Why", "Elsewhere", "Definition", "Tests")


class RuleText(NamedTuple):
    """A rule. The texts are Markdown, each paragraph as it stands."""

    id: str
    title: str
    statement: str  # in one line
    text: str
    why: str
    elsewhere: str
    definition: str
    tests: str

    @property
    def defined_by(self) -> list[tuple[str, str]]:
        """(file of the definition, function) for every function of `reference_numpy` that the rule names."""
        links = LINK.findall(self.definition)
        return [(target.partition("/")[2], name) for name, target in links if target.startswith("reference_numpy/")]


@cache
def rule_texts() -> dict[str, RuleText]:
    """Every rule of SPEC.md by its identifier, in order."""
    sections = re.split(
        r"^### ", re.sub(r"^## .*$", "", (ROOT / "SPEC.md").read_text(), flags=re.MULTILINE), flags=re.M
    )
    return {section.split(maxsplit=1)[0]: rule_text(section) for section in sections[1:]}


def letters() -> str:
    """What the letters in shapes stand for, as SPEC.md says it."""
    found = re.search(r"^\*\*Letters\.\*\* (.*?)\n\n", (ROOT / "SPEC.md").read_text(), re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("SPEC.md says nowhere what the letters in shapes stand for")
    return " ".join(found[1].split())


def rule_text(section: str) -> RuleText:
    heading, _, body = section.partition("\n")
    identifier = heading.split()[0]
    rule = (RULES | MODEL_RULES)[identifier]
    found: dict[str, list[str]] = {part: [] for part in ("text", *PARTS)}
    part = "text"
    for paragraph in re.split(r"\n\s*\n", body.strip()):
        starts = [word for word in PARTS if paragraph.startswith(f"{word}:")]
        if starts:
            part, paragraph = starts[0], paragraph.partition(":")[2].strip()
        # After the tests the chapter may go on; that belongs to no rule.
        if part != "Tests" or not found["Tests"]:
            found[part].append(paragraph)
    joined = {name.lower(): "\n\n".join(paragraphs) for name, paragraphs in found.items()}
    return RuleText(identifier, rule.title, rule.statement, **joined)
