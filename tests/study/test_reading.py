"""Reading the site in a browser: columns as the screen has room for them, keys, search, light and dark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.sources import LABELS
from study import playing
from tests.support import browser

pytestmark = pytest.mark.slow  # the whole site has to be built

chromium, whole_site = browser.chromium, browser.whole_site

# --- formulas ---------------------------------------------------------------------------------------------------------

TOUCHING = """() => [...document.querySelectorAll("mfrac")].filter(one => {
    const parts = [...one.lastElementChild.querySelectorAll("mi, mn, mo, mtext")];
    const top = Math.min(...parts.map(part => part.getBoundingClientRect().top));
    return top < one.firstElementChild.getBoundingClientRect().bottom + 8;
}).map(one => one.textContent)"""
"""The bar has no box of its own: it lies 5 pixels below the numerator."""
UNSIGNED = """() => [...document.querySelectorAll(".formulas")].filter(one => one.scrollWidth > one.clientWidth &&
    getComputedStyle(one).backgroundAttachment.split("scroll").length < 3).map(one => one.textContent)"""


def test_no_denominator_touches_its_bar_and_cut_formulas_have_a_shadow(chromium: Any, whole_site: Path) -> None:
    for name in ("softmax", "rotary", "losses"):
        with browser.opened(chromium, whole_site / f"{name}.html", size=(390, 844)) as watched:
            assert watched.page.evaluate(TOUCHING) == []
            assert watched.page.evaluate(UNSIGNED) == []
    with browser.opened(chromium, whole_site / "softmax.html", size=(390, 844)) as watched:
        watched.page.add_style_tag(
            content="mfrac > * { padding: 0 !important; } .formulas { background: none !important; }"
        )
        assert watched.page.evaluate(TOUCHING) != []
        assert watched.page.evaluate(UNSIGNED) != []


# --- columns ----------------------------------------------------------------------------------------------------------

COLUMNS = """() => [...document.querySelectorAll("#code .row.step")].map(row => [...row.querySelectorAll(".cell")]
    .filter(cell => cell.getBoundingClientRect().height)
    .map(cell => { const box = cell.getBoundingClientRect(); return [box.left, box.right, box.top, box.bottom]; }))"""
CUT_OFF = """() => [...document.querySelectorAll("#code .cell, #code .cell *")].filter(part =>
    part.clientWidth && part.scrollWidth > part.clientWidth + 1).map(part => part.innerText)"""


@pytest.mark.parametrize("size", [(1440, 900), (1280, 800)])
def test_three_columns_fit_a_laptop(size: tuple[int, int], chromium: Any, whole_site: Path) -> None:
    """Three side by side, or two by choice, in the width of the screen, and no code is cut off."""
    with browser.opened(chromium, whole_site / "attention.html", size=size) as (page, *_):
        for shown in (3, 2, 1):
            rows = page.evaluate(COLUMNS)
            assert max(map(len, rows)) == shown
            for row in rows:
                assert all(left >= 0 and right <= size[0] for left, right, _, _ in row)
                assert len({top for _, _, top, _ in row}) <= 1
                assert all(one[1] <= other[0] + 1 for one, other in pairwise(row))
            assert page.evaluate(CUT_OFF) == []
            assert browser.sideways(page) == []
            if shown > 1:
                page.uncheck(f"#show-{3 - shown}")


def test_what_does_not_fit_is_seen(chromium: Any, whole_site: Path) -> None:
    with browser.opened(chromium, whole_site / "attention.html", size=browser.SMALL_LAPTOP) as (page, *_):
        page.add_style_tag(content="#code .code code { white-space: pre; }")
        assert page.evaluate(CUT_OFF) != []
        page.add_style_tag(content="#code .row { grid-template-columns: repeat(3, 30rem); }")
        assert any(box[1] > browser.SMALL_LAPTOP[0] for row in page.evaluate(COLUMNS) for box in row)
        assert browser.sideways(page) != []


def test_columns_are_stacked_on_a_phone(chromium: Any, whole_site: Path) -> None:
    with browser.opened(chromium, whole_site / "attention.html", size="phone") as (page, *_):
        browser.unfold(page, ".signature")
        rows = page.evaluate(COLUMNS)
        assert max(map(len, rows)) == 3
        for row in rows:
            assert len({left for left, _, _, _ in row}) <= 1
            assert all(one[3] <= other[2] + 1 for one, other in pairwise(row))
        assert page.evaluate(CUT_OFF) == []
        assert page.locator("#code .which:visible").count() > 100  # each says whose it is


def test_the_contents_give_way_to_the_code(chromium: Any, whole_site: Path) -> None:
    with browser.opened(chromium, whole_site / "attention.html", size=browser.SMALL_LAPTOP) as (page, *_):
        widths = []
        for _ in range(2):
            widths.append(page.locator("#code .grid").nth(1).bounding_box()["width"])
            page.click("#contents-shown")
        assert widths[0] == page.locator("#code .grid").nth(1).bounding_box()["width"]
        page.click("#contents-shown")
        assert page.locator("#code .grid").nth(1).bounding_box()["width"] > widths[0] + 150
        assert [page.is_checked(f"#show-{column}") for column in range(len(LABELS))] == [True] * 3


def test_the_choice_of_columns_is_kept(chromium: Any, whole_site: Path) -> None:
    with browser.opened(chromium, whole_site / "attention.html") as (page, *_):
        page.uncheck("#show-0")
        page.goto((whole_site / "softmax.html").as_uri())
        page.wait_for_function("!document.getElementById('show-0').checked")  # the store of another process may lag
        assert max(map(len, page.evaluate(COLUMNS))) == 2
        for box in ("#show-1", "#show-2"):
            page.locator(box).click()
        assert [page.is_checked(f"#show-{column}") for column in range(len(LABELS))] == [False, False, True]


def test_open_pages_agree_on_the_columns(chromium: Any, whole_site: Path) -> None:
    with browser.opened(chromium, whole_site / "attention.html") as watched:
        other = watched.page.context.new_page()
        other.goto((whole_site / "softmax.html").as_uri())
        watched.page.uncheck("#show-1")
        other.wait_for_function("!document.getElementById('show-1').checked")
        watched.page.check("#show-1")
        other.wait_for_function("document.getElementById('show-1').checked")


# --- keys and search --------------------------------------------------------------------------------------------------

FOCUSED = """() => { const part = document.activeElement; const style = getComputedStyle(part);
    return [part.tagName, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0]; }"""


def test_the_keyboard_reaches_everything(chromium: Any, whole_site: Path) -> None:
    """Tab goes through all that can be pressed, in the order of the page, and it shows where it is."""
    with browser.opened(chromium, whole_site / "softmax.html") as (page, errors, _):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.url.endswith("#main")
        for _ in range(25):
            page.keyboard.press("Tab")
            tag, visible = page.evaluate(FOCUSED)
            assert visible, tag
            assert page.evaluate("!!document.activeElement.closest('main')")
        page.locator("#show-2").focus()
        page.keyboard.press("Space")
        assert not page.is_checked("#show-2")
        page.locator("summary").last.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.parentElement.open")
        assert errors == []


def test_only_what_scrolls_is_a_stop(chromium: Any, whole_site: Path) -> None:
    for size, some in (("laptop", False), ("phone", True)):
        with browser.opened(chromium, whole_site / "generation.html", size=size) as watched:
            stops = watched.page.evaluate(
                "[...document.querySelectorAll('[tabindex=\"0\"]')].map(part => part.scrollWidth > part.clientWidth)"
            )
            assert all(stops)
            assert bool(stops) == some


def test_arrows_turn_pages(chromium: Any, whole_site: Path) -> None:
    names = [one.name for one in OPERATIONS]
    with browser.opened(chromium, whole_site / f"{names[0]}.html") as (page, *_):
        for name in names[1:]:
            page.keyboard.press("ArrowRight")
            page.wait_for_url(f"**/{name}.html")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        page.wait_for_url(f"**/{names[-2]}.html")


def test_search(chromium: Any, whole_site: Path) -> None:
    with browser.opened(chromium, whole_site / "blocks.html") as (page, *_):
        page.keyboard.press("/")
        page.wait_for_url("**/lookup.html*")
        page.wait_for_function("document.activeElement.id === 'find'")
        for asked, found in (
            ("log_softmax", "transformer"),
            ("att-6", "softmax"),
            ("Segments", "masks"),
            ("gpt2", "dialects"),
            ("Keras", "divergences"),
            ("SDPA", "attention"),
            ("grouped-query", "attention"),
            ("KV cache", "decoding"),
            ("jax.jit", "lookup"),
        ):
            page.fill("#find", asked)
            shown = page.eval_on_selector_all(".contents > li:not([hidden]) > a", "links => links.map(a => a.href)")
            assert f"{found}.html" in {address.rpartition("/")[2].partition("#")[0] for address in shown}, asked
            assert len(shown) < len(OPERATIONS)
        page.fill("#find", "ATT-1")
        assert page.locator("ol.contents > li:visible").count() == 1  # and not the page of ATT-10
        page.fill("#find", "no such thing")
        assert page.is_visible("#nothing")
        page.fill("#find", "")
        assert page.locator("ol.contents > li:visible").count() == len(OPERATIONS)
        assert not page.is_visible("#nothing")


def test_light_and_dark_by_choice(chromium: Any, whole_site: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    with browser.opened(chromium, whole_site / "index.html", color_scheme="dark") as (page, *_):
        dark = page.evaluate(paper)
        page.click("#theme")
        light = page.evaluate(paper)
        page.goto((whole_site / "softmax.html").as_uri())
        page.wait_for_function(f"{paper} === {light!r}")  # the store of another process may lag
        assert light != dark
        page.click("#theme")
        assert page.evaluate(paper) == dark
        page.emulate_media(media="print")
        assert page.evaluate(paper) == light


@pytest.mark.parametrize("name", ["softmax", *playing.PLAYGROUNDS])
def test_open_pages_agree_on_light_and_dark(chromium: Any, whole_site: Path, name: str) -> None:
    theme = "document.documentElement.dataset.theme"
    with browser.opened(chromium, whole_site / "index.html") as watched:
        other = watched.page.context.new_page()
        other.goto((whole_site / f"{name}.html").as_uri())
        for chosen in ("dark", "light"):
            watched.page.click("#theme")
            assert watched.page.evaluate(theme) == chosen
            other.wait_for_function(f"{theme} === {chosen!r}")
