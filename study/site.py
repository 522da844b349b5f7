"""The pages: the start, a chapter for each operation, and the rules. Each is one self-contained file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from conformance.peers.found import group_by_library, read_bugs
from conformance.side_by_side.drift import summary
from conformance.side_by_side.operations import MASK_RULES, OPERATIONS, Operation
from conformance.side_by_side.rules import letters, rule_texts
from conformance.side_by_side.sources import LABELS, PACKAGES, address, functions_of
from specification.dialects import DIALECTS
from study import api, diagram, dialect_pages, elsewhere, lessons, pages, playing, ranks, training, walk
from study.examples.parts import figure
from study.results import Results, kept

PARTS = (
    ("idea", "Idea"), ("example", "Example"), ("formula", "Formula"), ("code", "Code"), ("gradients", "Gradients"),
    ("rules", "Rules"), ("tests", "Tests"), ("others", "Other libraries"), ("measured", "Measured"),
)  # fmt: skip
"""Of the page of an operation, in order: anchor and title."""
API_PARTS = (("judge", "The judge"), ("packages", "The definition and its ports"))
LOOKUP_PARTS = (("reading", "How to read the pages"), ("words", "Words and letters"))
TEMPLATES = Path(__file__).parent / "templates"


def inline(text: str) -> Markup:
    """A comment or docstring: names in backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def explained(text: str) -> Markup:
    """A paragraph of a docstring: names of arguments, with which a sentence about them begins, are code."""
    return inline(re.sub(r"(?:^|(?<=\. ))[*a-z_]+(?:, [*a-z_]+)*(?=: )", r"`\g<0>`", " ".join(text.split())))


def navigation_style() -> str:
    return (TEMPLATES / "navigation.css").read_text()


def environment(base: str, examples: bool = True) -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "inline": inline,
        "explained": explained,
        "paragraphs": pages.paragraphs,
        "prose": lambda text: pages.prose(text, base),
    }
    made.globals |= {
        "operations": OPERATIONS, "chapter": walk.CHAPTER, "labels": list(LABELS.values()), "base": base, "parts": (),
        "examples": examples,
        # Our own files, and no place for anything else.
        "style": Markup((TEMPLATES / "style.css").read_text() + navigation_style()),
        "script": Markup((TEMPLATES / "script.js").read_text()),
    }  # fmt: skip
    return made


def build(out: Path, base: str | None = None, examples: bool = True, results: Results | None = None) -> list[Path]:
    """Writes the site into a folder, and returns its pages.

    base: the address of the repository's files, to which lines of the source are linked; unless given, the way to them
    on this machine. examples: whether the worked examples are computed, for which all three frameworks are loaded.
    results: of runs; those that come with the sources unless given.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = results or kept()
    made = environment(address(base, out), examples)
    whole, *_, inside = diagram.figures()
    written = {
        "index": made.get_template("index.html").render(
            page="index", whole=whole, inside=inside, width=diagram.WIDTH, rules=len(rule_texts()),
            optional=[one for one in OPERATIONS if one.optional],
        ),
        "lookup": made.get_template("lookup.html").render(
            page="lookup", summary=summary(), letters=letters(), masks=list(MASK_RULES), results=results,
            dialects=list(DIALECTS), page_of=dialect_pages.page_of, parts=LOOKUP_PARTS,
        ),
    }  # fmt: skip
    for number, operation in enumerate(OPERATIONS):
        content = operation_content(operation, number, results)
        content["example"] = worked_example(operation, made) if examples else None
        lacking = {name for name in ("example", "gradients") if not content[name]}
        content["parts"] = [part for part in PARTS if part[0] not in lacking]
        written[operation.name] = made.get_template("operation.html").render(page=operation.name, **content)
    for name in ("divergences", "benchmarks"):
        written[name] = made.get_template(f"{name}.html").render(page=name, results=results, rules=rule_texts())
    written["found"] = made.get_template("found.html").render(
        page="found", libraries=group_by_library(read_bugs()), rules=rule_texts()
    )  # fmt: skip
    written["training"] = made.get_template("training.html").render(
        page="training", results=results, step=training.step(), gradients=list(training.gradients()),
        figure=figure,
    )  # fmt: skip
    written["api"] = made.get_template("api.html").render(
        page="api", judge=list(api.judge()), packages=list(api.packages()), parts=API_PARTS
    )
    uses = {rule: [one for one in OPERATIONS if rule in one.rules] for rule in rule_texts()}
    written["rules"] = made.get_template("rules.html").render(
        page="rules", rules=list(rule_texts().values()), uses=uses
    )  # fmt: skip
    written |= walk.rendered(made, examples) | diagram.rendered(made) | dialect_pages.rendered(made, examples)
    written |= ranks.rendered(made)
    navigation = {name: made.get_template("navigation.html").render(page=name) for name in playing.PLAYGROUNDS}
    paths = playing.write(out, base, home="index.html", navigation=navigation, style=navigation_style())
    for name, text in written.items():
        path = out / f"{name}.html"
        path.write_text(text)
        paths.append(path)
    return paths


def operation_content(operation: Operation, number: int, results: Results) -> dict[str, Any]:
    """Everything that stands on the page of one operation."""
    found, lesson = results.matrix.content, lessons.lessons()[operation.name]
    definition = {place: functions_of(PACKAGES[0], place[0])[place[1]] for place in operation.gradients}
    return {
        "operation": operation,
        "lesson": lesson,
        "plain": walk.colored(lesson.plain.strip()) if lesson.plain else "",
        "symbols": pages.symbols(lesson.symbols),
        "formulas": [pages.formula(one) for one in operation.formulas],
        "gradient_symbols": pages.symbols(lesson.gradients.symbols),
        "gradient_formulas": [pages.formula(one) for one in lesson.gradients.formulas],
        "rules": pages.texts(operation.rules),
        "functions": [pages.block(*place) for place in operation.functions],
        "elsewhere": elsewhere.meanings(operation.functions),
        "gradients": [pages.gradient(*place, function) for place, function in definition.items()],
        "matrix": found,
        "results": results,
        "others": pages.others(operation.rules, found),
        "before": OPERATIONS[number - 1] if number else walk.CHAPTER,
        "after": OPERATIONS[number + 1] if number + 1 < len(OPERATIONS) else None,
    }


def worked_example(operation: Operation, made: Environment) -> Markup | None:
    """Small inputs, and what all three make of them; None for operations that have no example."""
    # Loaded here, because the frameworks come with it.
    from study.examples.showing import rendered

    return rendered(operation.name, made)
