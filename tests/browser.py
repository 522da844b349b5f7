"""A headless Chromium for tests of pages; where there is none, the tests that ask for it are skipped with a line.

It needs the package playwright and a Chromium: the one that the environment variable CHROMIUM names, one on the path,
or the one that playwright has installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWPORTS = {"laptop": (1366, 768), "phone": (390, 844)}


@dataclass
class Watched:
    """A page, and what a page should have none of: errors of its scripts or console, and requests beyond its file."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


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
def opened(browser: Any, file: Path, *, fragment: str = "", size: str = "laptop", **options: Any) -> Iterator[Watched]:
    """The page in a context of its own. options: of playwright's `new_context`, such as color_scheme="dark"."""
    width, height = VIEWPORTS[size]
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        watched = Watched(context.new_page())
        page, address = watched.page, file.resolve().as_uri()
        page.set_default_timeout(10_000)
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
    found = page.evaluate("axe.run().then(({violations}) => violations)")
    return [
        f"{fault['id']}: {fault['help']}: {[node['target'] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
