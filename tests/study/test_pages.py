"""Every page of the site in a browser: nothing fails, nothing is fetched, no link is broken, all fits and works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from study.pages import formula
from tests.support import browser

chromium, whole_site = browser.chromium, browser.whole_site

SIZES = {**browser.VIEWPORTS, "small laptop": browser.SMALL_LAPTOP}
PAPER = (717, 1046)
"""A4 between Chromium's margins of a centimetre, in pixels of 1/96 inch."""


def every_page(chromium: Any, folder: Path, **options: Any) -> Iterator[tuple[str, browser.Watched]]:
    """Every page in turn, all that can be unfolded unfolded."""
    for path in browser.pages_of(folder):
        with browser.opened(chromium, path, **options) as watched:
            watched.page.wait_for_load_state("load")
            browser.unfold(watched.page)
            yield path.name, watched


def faulty_pages(chromium: Any, folder: Path, **options: Any) -> dict[str, list[str]]:
    """By page, what it has of errors, requests and parts that make it scroll sideways."""
    found = {
        name: [*watched.errors, *watched.requests, *browser.sideways(watched.page)]
        for name, watched in every_page(chromium, folder, **options)
    }
    return {name: faults for name, faults in found.items() if faults}


def broken_links(chromium: Any, folder: Path) -> list[str]:
    """Links, as the browser reads them, to files that are not there and to places that a page does not have."""
    links, places = {}, {}
    for name, watched in every_page(chromium, folder):
        links[name], places[folder / name] = browser.links_of(watched.page), browser.places_of(watched.page)
    broken = []
    for name, addresses in links.items():
        for address in addresses:
            parts = urlparse(address)
            file = Path(unquote(parts.path))
            missing = parts.fragment and file in places and unquote(parts.fragment) not in places[file]
            if parts.scheme != "file" or not file.exists() or missing:
                broken.append(f"{name}: {address}")
    return broken


# --- every page -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), [("laptop", "light"), ("small laptop", "dark"), ("phone", "dark")])
def test_no_page_fails_or_fetches_or_scrolls_sideways(size: str, scheme: str, chromium: Any, whole_site: Path) -> None:
    assert faulty_pages(chromium, whole_site, size=SIZES[size], color_scheme=scheme) == {}


@pytest.mark.slow
def test_every_page_fits_the_paper(chromium: Any, whole_site: Path) -> None:
    """On paper nothing scrolls: what a frame holds is shown, and fits."""
    assert cut_off(chromium, whole_site) == {}


def cut_off(chromium: Any, folder: Path) -> dict[str, list[str]]:
    """By page, what is wider than the paper, or is there only in part."""
    found = {}
    for name, watched in every_page(chromium, folder, size=PAPER):
        watched.page.emulate_media(media="print")
        found[name] = browser.sideways(watched.page) + browser.cut(watched.page)
    return {name: parts for name, parts in found.items() if parts}


@pytest.mark.slow
def test_no_link_is_broken(chromium: Any, whole_site: Path) -> None:
    assert broken_links(chromium, whole_site) == []


@pytest.mark.slow
def test_every_page_can_be_read_without_javascript(chromium: Any, whole_site: Path) -> None:
    """Text, and nothing to press that would do nothing; what is chosen from a list filters by CSS alone."""
    for path in browser.pages_of(whole_site):
        with browser.opened(chromium, path, java_script_enabled=False) as (page, *_):
            assert len(page.inner_text("body")) > 500, path.name
            assert page.locator("button:visible, input[type=search]:visible").count() == 0, path.name


def unset(text: str) -> list[str]:
    """Formulas in which something is left of the LaTeX that they were made from."""
    shown = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<math.*?</math>", text, re.DOTALL)]
    return [one for one in shown if "\\" in one]


@pytest.mark.slow
def test_formulas_are_set_whole(whole_site: Path) -> None:
    assert [one for path in browser.pages_of(whole_site) for one in unset(path.read_text())] == []
    assert unset(str(formula(r"\arg\max_n x"))) != []


@pytest.mark.slow
def test_faults_are_seen(chromium: Any, tmp_path: Path) -> None:
    """The checks above, on pages that have what no page may have."""
    pages = {
        "error": "<script>missing()</script>",
        "request": "<img src='https://127.0.0.1:9/x.png' alt=''>",
        "wide": "<p style='width: 5000px'>wide</p>",
        "frame": "<div style='overflow-x: auto'><p style='width: 5000px'>scrolls in its frame</p></div>",
        "links": "<p id='here'></p><a href='#here'>a</a><a href='wide.html'>b</a><a href='#there'>c</a>"
        "<a href='none.html'>d</a><a href='wide.html#x'>e</a><a href='https://example.org'>f</a>",
    }
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><title>{name}</title>{text}")
    for size in ((390, 844), (1440, 900)):
        found = faulty_pages(chromium, tmp_path, size=size)
        assert set(found) == {"error.html", "request.html", "wide.html"}
        assert "5000px" in "".join(found["wide.html"])
    assert set(cut_off(chromium, tmp_path)) == {"wide.html", "frame.html"}
    assert [link.rpartition("/")[2] for link in broken_links(chromium, tmp_path)] == [
        "links.html#there",
        "none.html",
        "wide.html#x",
        "",
    ]
