"""A headless Chromium for tests of pages; where there is none, the tests that ask for it are skipped with a line.

It needs the package playwright and a Chromium: the one that the environment variable CHROMIUM names, one on the path,
or the one that playwright has installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from study import playing, site

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWPORTS = {"laptop": (1440, 900), "phone": (390, 844)}
SMALL_LAPTOP = (1280, 800)


class Watched(NamedTuple):
    """A page, and what a page should have none of: errors of its scripts or console, and requests beyond its file."""

    page: Any
    errors: list[str]
    requests: list[str]


def executable(playwright: Any) -> str | None:
    found = (shutil.which(name) for name in NAMES)
    candidates = (os.environ.get("CHROMIUM"), *found, playwright.chromium.executable_path)
    return next((path for path in candidates if path and Path(path).exists()), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A module takes it by `chromium = browser.chromium`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pages are tested with the package playwright")
    with sync_api.sync_playwright() as playwright:
        path = executable(playwright)
        if path is None:
            pytest.skip("pages are tested in a Chromium: install one, or name it in CHROMIUM")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(
    browser: Any, file: Path, *, fragment: str = "", size: str | tuple[int, int] = "laptop", **options: Any
) -> Iterator[Watched]:
    """The page in a context of its own. options: of playwright's `new_context`, such as color_scheme="dark"."""
    width, height = VIEWPORTS[size] if isinstance(size, str) else size
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        watched, address = Watched(context.new_page(), [], []), file.resolve().as_uri()
        page = watched.page
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("console", lambda line: watched.errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: note(watched, request.url, address))
        page.goto(address + fragment)
        yield watched
    finally:
        context.close()


def note(watched: Watched, url: str, address: str) -> None:
    if url.partition("#")[0] != address and not url.startswith("data:"):
        watched.requests.append(url)


# --- the site ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole site, worked examples too, which all processes of a run share.

    A module takes it by `whole_site = browser.whole_site`.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out, ready = shared / "whole_site", shared / "whole_site_is_ready"
    try:
        out.mkdir()
    except FileExistsError:
        wait_for(ready)
    else:
        try:
            site.build(out)
        finally:
            ready.touch()
    return out


def wait_for(file: Path, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} was not made in {seconds} s"
        time.sleep(0.2)


def pages_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.html"))


# --- the playgrounds --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def playgrounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all. A module takes it by `playgrounds = browser.playgrounds`."""
    folder = tmp_path_factory.mktemp("playgrounds")
    playing.main(["--out", str(folder)])
    return folder


@pytest.fixture(scope="session")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of attention's."""
    return playing.write(tmp_path_factory.mktemp("playground"))[0]


def faulty_playground(folder: Path, name: str, right: str, wrong: str, *, which: str = "playground") -> Path:
    """A playground of which the source `name` has `wrong` in the place of `right`."""
    text = (playing.FOLDER / name).read_text()
    assert text.count(right) == 1, f"{text.count(right)} places for {right!r}"
    path = folder / f"{which}.html"
    sources = {name: text.replace(right, wrong)}
    path.write_text(playing.page(playing.PLAYGROUNDS[which], definition="", rules="", sources=sources))
    return path


# --- what can be wrong with a page ------------------------------------------------------------------------------------

WIDER = """() => {
    if (document.documentElement.scrollWidth <= innerWidth) return [];
    const wider = [...document.querySelectorAll("body, body *")].filter(
        part => part.getBoundingClientRect().right > innerWidth || part.scrollWidth > innerWidth);
    return wider.slice(-5).map(part => part.outerHTML.slice(0, 80)).concat("the page scrolls sideways");
}"""
CUT = """() => [...document.querySelectorAll("body *")].filter(
    part => part.clientWidth > 1 && part.scrollWidth > part.clientWidth + 1
        && !["visible", "clip"].includes(getComputedStyle(part).overflowX)).map(part => part.outerHTML.slice(0, 80))"""
LINKS = """() => [...document.querySelectorAll('a[href]')].map(
  link => new URL(link.getAttribute('href'), document.baseURI).href)"""  # in a drawing `href` is no text
PLACES = "() => [...document.querySelectorAll('[id]')].map(part => part.id)"


def sideways(page: Any) -> list[str]:
    """Parts because of which the page as a whole scrolls sideways; what scrolls in a frame of its own is not meant."""
    return page.evaluate(WIDER)


def cut(page: Any) -> list[str]:
    """Parts that hold more than they show, such as frames that scroll."""
    return page.evaluate(CUT)


def links_of(page: Any) -> list[str]:
    """Addresses, as the browser reads them."""
    return sorted(set(page.evaluate(LINKS)))


def places_of(page: Any) -> set[str]:
    return set(page.evaluate(PLACES))


def unfold(page: Any, which: str = "details") -> None:
    page.eval_on_selector_all(which, "(parts) => parts.forEach((part) => { part.open = true; })")


def sound(watched: Watched) -> None:
    """Asserts that a page fits, that axe-core finds nothing serious, and that nothing failed or was fetched."""
    assert sideways(watched.page) == []
    assert accessibility_faults(watched.page) == []
    assert (watched.errors, watched.requests) == ([], [])


# --- accessibility ----------------------------------------------------------------------------------------------------


def axe() -> Path | None:
    """The script of axe-core: the one that the environment variable AXE names, or the one in node_modules."""
    candidates = (os.environ.get("AXE"), "node_modules/axe-core/axe.min.js")
    return next((Path(path) for path in candidates if path and Path(path).exists()), None)


def accessibility_faults(page: Any) -> list[str]:
    """What axe-core finds serious or critical, with the elements; nothing where there is no axe-core."""
    script = axe()
    if script is None:
        return []
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(script.read_text(encoding="utf-8"))
    options = "{resultTypes: ['violations'], selectors: false}"  # selectors of thousands of cells take their time
    found = page.evaluate(f"axe.run({options}).then(({{violations}}) => violations)")
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'][:100] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
