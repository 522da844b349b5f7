"""The playgrounds: self-contained pages that compute attention, and the choice of experts, in the browser.

python -m study.playing --out FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.side_by_side.sources import address

FOLDER = Path(__file__).parent / "playground"
RULES = "SPEC.md"


class Playground(NamedTuple):
    """A page that computes, and the scripts that it runs."""

    title: str
    template: str
    definition: str
    """The file that `arithmetic` transcribes."""
    arithmetic: tuple[str, ...]
    """Scripts that load by themselves, also without a page."""
    scripts: tuple[str, ...]
    """Its settings, and what it draws."""

    @property
    def all_scripts(self) -> tuple[str, ...]:
        return ("arrays.js", *self.arithmetic, "texts.js", "tables.js", "fields.js", *self.scripts, "page.js")


PLAYGROUNDS = {
    "playground": Playground(
        "Attention playground", "attention.html.jinja", "reference_numpy/attention_steps.py",
        ("masks.js", "attention.js"), ("attention_settings.js", "attention_address.js", "attention_page.js"),
    ),
    "routing_playground": Playground(
        "Routing playground", "routing.html.jinja", "reference_numpy/experts.py",
        ("routing.js",), ("routing_settings.js", "routing_page.js"),
    ),
}  # fmt: skip
"""By the name of the page's file."""


def page(
    playground: Playground,
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
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in playground.all_scripts} | dict(sources or {})
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    styles = Markup((FOLDER / "playground.css").read_text(encoding="utf-8") + style)
    scripts = [Markup(texts[name]) for name in playground.all_scripts]  # our own files, which hold no closing tag
    return environment.get_template(playground.template).render(
        title=playground.title, style=styles, scripts=scripts, definition=definition, rules=rules, home=home,
        navigation=Markup(navigation),
    )  # fmt: skip


def write(
    folder: Path,
    base: str | None = None,
    home: str | None = None,
    navigation: Mapping[str, str] | None = None,
    style: str = "",
) -> list[Path]:
    """Write the pages into the folder, which is made where it is missing.

    navigation: the contents of the site, for each page by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = address(base, folder)
    paths = []
    for name, playground in PLAYGROUNDS.items():
        text = page(
            playground, definition=prefix + playground.definition, rules=prefix + RULES, home=home,
            navigation=(navigation or {}).get(name, ""), style=style,
        )  # fmt: skip
        paths.append(folder / f"{name}.html")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m study.playing", description="Write the playgrounds.")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the pages are written")
    parser.add_argument("--base", metavar="ADDRESS", help="address of the repository's files, for links")
    chosen = parser.parse_args(arguments)
    for path in write(chosen.out, chosen.base):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
