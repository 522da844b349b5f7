"""The pictures of a benchmark as self-contained SVG with real text."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from benchmarks.results.plots import dark_rules, drawn, slug

SVG, XLINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


class Plots(NamedTuple):
    """drawn: name and picture. missing: why there are none, or empty."""

    drawn: tuple[tuple[str, Markup], ...]
    missing: str

    @property
    def style(self) -> Markup:
        """Of the page: the colours of the pictures follow its own."""
        return Markup(dark_rules())


def plots(result: dict[str, Any]) -> Plots:
    try:
        found = tuple((name, within_page(text, slug(name))) for name, text in drawn(result))
    except ImportError as error:
        return Plots((), f"The pictures need {error.name}, which is not installed: pip install -e .[plots]")
    return Plots(found, "" if found else "There is nothing to draw.")


def within_page(text: str, name: str) -> Markup:
    """SVG that shares a page with others: its identifiers begin with its name, and it has the page's fonts.

    What matplotlib says for all elements is left to the page's style, and so are the fonts. Its clip paths, which are
    references, are left out: the axes hold everything that is drawn.
    """
    root = ElementTree.fromstring(text)
    referred = {element.get(XLINK, "#")[1:] for element in root.iter()}
    for element in root.iter():
        for child in [child for child in element if child.tag in (f"{{{SVG}}}style", f"{{{SVG}}}clipPath")]:
            element.remove(child)
        identifier, reference = element.get("id"), element.attrib.pop(XLINK, None)
        if identifier in referred:
            element.set("id", f"{name}-{identifier}")
        else:
            element.attrib.pop("id", None)
        if reference is not None:
            element.set("href", f"#{name}-{reference[1:]}")
        element.attrib.pop("clip-path", None)
        for attribute, value in element.attrib.items():
            element.set(attribute, shortened(attribute, value))
        element.tail = None
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", name)
    ElementTree.register_namespace("", SVG)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def shortened(attribute: str, value: str) -> str:
    """Without the names of fonts, and with coordinates to a hundredth of a point."""
    if attribute == "style":
        return re.sub(r"; font-family: [^;]*|font-family: [^;]*; ?", "", value)
    if attribute in ("d", "x", "y", "transform", "viewBox"):
        return re.sub(r"\s+", " ", NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value))
    return value
