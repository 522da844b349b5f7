"""The attention playground: one self-contained page that computes attention in the browser.

python -m study.playing --out FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from conformance.side_by_side.sources import address

FOLDER = Path(__file__).parent / "playground"
DEFINITION = "reference_numpy/attention_steps.py"
RULES = "SPEC.md"
ARITHMETIC = ("masks.js", "attention.js")
"""What is transcribed from the definition; loads by itself, also without a page."""
SCRIPTS = (*ARITHMETIC, "settings.js", "address.js", "tables.js", "playground.js", "fields.js")


def page(
    *,
    definition: str,
    rules: str,
    home: str | None = None,
    navigation: str = "",
    style: str = "",
    sources: Mapping[str, str] | None = None,
) -> str:
    """The whole page as text.

    definition, rules: where the links to the definition's source and to the rules lead. home: where the link above the
    title leads, if to anything. navigation, style: the contents of the site that the page is part of, if of any.
    sources: other texts for some of the scripts, by file name.
    """
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS} | dict(sources or {})
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((FOLDER / "page.html.jinja").read_text(encoding="utf-8"))
    styles = Markup((FOLDER / "playground.css").read_text(encoding="utf-8") + style)
    scripts = [Markup(texts[name]) for name in SCRIPTS]  # our own files, which hold no closing tag
    return template.render(
        style=styles, scripts=scripts, definition=definition, rules=rules, home=home, navigation=Markup(navigation)
    )


def write(
    page_file: Path, base: str | None = None, home: str | None = None, navigation: str = "", style: str = ""
) -> None:
    """Writes the page, and the folder that it stands in where that is missing."""
    page_file.parent.mkdir(parents=True, exist_ok=True)
    before = address(base, page_file.parent)
    text = page(
        definition=before + DEFINITION, rules=before + RULES, home=home, navigation=navigation, style=style
    )  # fmt: skip
    page_file.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m study.playing", description="Write the attention playground.")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the page to write")
    parser.add_argument("--base", metavar="ADDRESS", help="address of the repository's files, for links")
    chosen = parser.parse_args(arguments)
    write(chosen.out, chosen.base)
    print(f"wrote {chosen.out}")


if __name__ == "__main__":
    main()
