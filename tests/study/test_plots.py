"""Pictures of benchmarks in a browser: no text covers another, on a phone too; they are light or dark as the page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results.plots import COLOURS, INK
from tests.support import browser, made_results

chromium = browser.chromium

SIZES = {"laptop": (1440, 900), "phone": (360, 740)}
SCHEMES = ("light", "dark")

TEXTS = """() => [...document.querySelectorAll("svg")].flatMap((picture) => {
  const outer = picture.getBoundingClientRect(), faults = [];
  const texts = [...picture.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  texts.forEach(([text, box], number) => {
    if (box.height < 9) faults.push(`small: ${text}`);
    if (box.left < outer.left - 1 || box.right > outer.right + 1 || box.right > innerWidth || box.top < outer.top - 1
        || box.bottom > outer.bottom + 1) faults.push(`outside: ${text}`);
    for (const [other, beside] of texts.slice(number + 1)) {
      const wide = Math.min(box.right, beside.right) - Math.max(box.left, beside.left);
      const high = Math.min(box.bottom, beside.bottom) - Math.max(box.top, beside.top);
      if (wide > 1 && high > 2) faults.push(`covered: ${text} / ${other}`);
    }
  });
  return faults;
})"""
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const paint = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255).map(
    (x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4).reduce(
    (sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (part) => {
    for (; part; part = part.parentElement) {
      const found = paint(getComputedStyle(part).backgroundColor);
      if (found[3] > 0) return light(found);
    }
    return 1;
  };
  const worst = {text: 99, line: 99};
  for (const picture of document.querySelectorAll("svg")) {
    const paper = behind(picture);
    const against = (colour) => {
      const [low, high] = [light(paint(colour)), paper].sort((a, b) => a - b);
      return (high + 0.05) / (low + 0.05);
    };
    for (const text of picture.querySelectorAll("text"))
      worst.text = Math.min(worst.text, against(getComputedStyle(text).fill));
    for (const line of picture.querySelectorAll('[style*="stroke:"]:not([style*="stroke-opacity"])'))
      worst.line = Math.min(worst.line, against(getComputedStyle(line).stroke));
  }
  return worst;
}"""


LIGHT = {tuple(bytes.fromhex(colour[1:])) for colour in COLOURS if colour != INK}


def seen(page: Any) -> set[tuple[int, ...]]:
    """The colours of the first picture's pixels: what `use` copies has no style that a script could ask for."""
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(page.locator("svg").first.screenshot()))
    return {colour for _, colour in image.convert("RGB").getcolors(2**24)}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a run on a GPU, and a picture that is a file."""
    pytest.importorskip("matplotlib")
    from benchmarks.results.plots import plot

    folder, made = tmp_path_factory.mktemp("plots"), made_results.on_gpu()
    made_results.built(folder / "site", made_results.written(folder, benchmarks=made, conformance=None), "attention")
    some = [case for case in made["cases"] if case["series"] == "causal"]
    files = {path.stem: path for path in plot(made | {"cases": some}, folder)}
    return {
        "page": folder / "site/benchmarks.html",
        "growth": files["growth-causal"],
        "ratios": files["ratios-torch-impl-auto"],
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.slow_where("laptop-dark")
@pytest.mark.slow_where("phone-light")
def test_pictures_can_be_read(size: str, scheme: Any, chromium: Any, places: dict[str, Path]) -> None:
    """No text covers another, is cut off or small. Contrast is that of WCAG 2.2, 1.4.3; lines have markers too."""
    for name, path in places.items():
        with browser.opened(chromium, path, size=SIZES[size], color_scheme=scheme) as (page, errors, requests):
            assert page.evaluate(TEXTS) == [], name
            found = page.evaluate(CONTRAST)
            assert found["text"] > 4.5, name
            assert found["line"] > (3 if scheme == "dark" else 2), name
            assert (seen(page) & LIGHT != set()) == (scheme == "light"), name
            assert browser.sideways(page) == [] or name != "page"
            assert browser.accessibility_faults(page) == [] or name != "page"
            assert (errors, requests) == ([], [])


def test_the_button_turns_pictures_too(chromium: Any, places: dict[str, Path]) -> None:
    paper = "getComputedStyle(document.querySelector('.plot')).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.plot text')).fill"
    with browser.opened(chromium, places["page"], color_scheme="light") as watched:
        before = watched.page.evaluate(f"[{paper}, {ink}]")
        watched.page.click("#theme")
        after = watched.page.evaluate(f"[{paper}, {ink}]")
    assert before[0] != after[0]
    assert before[1] != after[1]


TITLE_ON_LEGEND = """() => {
  const texts = [...document.querySelector("svg").querySelectorAll("text")], [title, legend] = [texts[0], texts.at(-1)];
  for (const name of ["x", "y", "transform"]) title.setAttribute(name, legend.getAttribute(name) ?? "");
}"""
WITHOUT_DARK = """() => [...document.querySelectorAll("style")].filter(
  (style) => style.textContent.includes("stroke:light-dark")).forEach((style) => style.remove())"""


def test_faults_of_pictures_are_seen(chromium: Any, places: dict[str, Path]) -> None:
    with browser.opened(chromium, places["page"], size=SIZES["phone"], color_scheme="dark") as (page, *_):

        def faults(kind: str) -> bool:
            return any(fault.startswith(kind) for fault in page.evaluate(TEXTS))

        page.evaluate(TITLE_ON_LEGEND)
        assert faults("covered")
        page.add_style_tag(content=".plot svg { width: 200px }")
        assert faults("small")
        page.add_style_tag(content=".plot svg { width: 500px; max-width: none }")
        assert faults("outside")
        assert not seen(page) & LIGHT
        page.evaluate(WITHOUT_DARK)
        assert seen(page) & LIGHT
        assert page.evaluate(CONTRAST)["text"] < 4.5
