"""Every page of the site can be used by anybody, by axe-core's measure; the playgrounds also offline and by choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from study import playing
from tests.support import browser

chromium, whole_site = browser.chromium, browser.whole_site
playground, playgrounds = browser.playground, browser.playgrounds

ROOT = Path(__file__).parents[2]


# --- every page -------------------------------------------------------------------------------------------------------


def test_axe_is_there(chromium: Any) -> None:
    """A line of its own where the other tests go without."""
    if browser.axe() is None:
        pytest.skip("accessibility is checked with axe-core: npm install axe-core, or name its axe.min.js in AXE")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", browser.VIEWPORTS)
@pytest.mark.slow
def test_every_page_is_accessible(size: str, scheme: Any, chromium: Any, whole_site: Path) -> None:
    """axe-core finds nothing serious, with everything unfolded that can be."""
    if browser.axe() is None:
        pytest.skip("needs axe-core; see test_axe_is_there")
    faults = {}
    for path in browser.pages_of(whole_site):
        with browser.opened(chromium, path, size=size, color_scheme=scheme) as watched:
            browser.unfold(watched.page)
            found = browser.accessibility_faults(watched.page)
            if found:
                faults[path.name] = found
    assert faults == {}


def test_faults_are_seen(chromium: Any, tmp_path: Path) -> None:
    """What the tests above stand on: errors, requests and inaccessible parts are noticed where there are some."""
    faulty = tmp_path / "faulty.html"
    faulty.write_text(
        "<title>t</title><input><img src='https://127.0.0.1:9/x.png'><p style='color: #999'>pale</p>"
        "<script>console.error(1); x()</script>"
    )
    with browser.opened(chromium, faulty) as watched:
        watched.page.wait_for_load_state("load")
        assert len(watched.errors) >= 2
        assert watched.requests == ["https://127.0.0.1:9/x.png"]
        if browser.axe() is not None:
            found = {fault.partition(":")[0] for fault in browser.accessibility_faults(watched.page)}
            assert {"label", "image-alt", "color-contrast"} <= found


# --- the playground ---------------------------------------------------------------------------------------------------


STATES = {
    "playground": (("causal", "hidden", "grouped", "empty"), "mask.lengths.length"),
    "routing_playground": (("groups", "nan", "capacity", "bias"), "chosen"),
}
"""By playground, ready-made settings, and a field that refuses 77."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", browser.VIEWPORTS)
@pytest.mark.parametrize("name", STATES)
def test_playgrounds_fit_and_are_accessible(
    name: str, size: str, scheme: Any, chromium: Any, playgrounds: Path
) -> None:
    """In all their states: nothing scrolls sideways but a table in its frame; axe-core finds nothing serious."""
    presets, field = STATES[name]
    with browser.opened(chromium, playgrounds / f"{name}.html", size=size, color_scheme=scheme) as watched:
        page, errors, requests = watched
        for preset in presets:
            page.click(f'[data-preset="{preset}"]')
            assert browser.sideways(page) == []
            browser.unfold(page)
            assert browser.accessibility_faults(page) == []
        page.fill(f'[data-path="{field}"]', "77")
        assert page.is_visible("#refusal")
        assert browser.accessibility_faults(page) == []
        assert (errors, requests) == ([], [])


def test_the_playground_is_light_or_dark_by_choice(chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, color_scheme="light") as (page, *_):
        paper = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(paper)
        page.select_option("#theme", "dark")
        dark = page.evaluate(paper)
        page.reload()
        assert page.evaluate(paper) == dark != light
        page.emulate_media(media="print")
        assert page.evaluate(paper) == light


def test_the_playground_without_javascript(chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, java_script_enabled=False) as (page, *_):
        assert "JavaScript is off" in page.inner_text("body")
        assert "softmax over the allowed keys" in page.inner_text("body")
        assert not page.is_visible("#playground")
        assert not page.is_visible("#theme")
        addresses = page.eval_on_selector_all("noscript a, .lead a", "links => links.map(link => link.href)")
    assert len(addresses) == 4
    linked = {Path(unquote(urlparse(address).path)) for address in addresses}
    assert linked == {ROOT / "SPEC.md", ROOT / "reference_numpy" / "attention_steps.py"}


def test_playgrounds_link_below_a_base_address(tmp_path: Path) -> None:
    for path in playing.write(tmp_path / "deep", base="https://example.org/tree/", home="index.html"):
        text = path.read_text()
        assert 'href="https://example.org/tree/SPEC.md"' in text
        assert '<a href="index.html">' in text
