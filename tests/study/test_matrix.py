"""The divergence matrix as a page, and how pages of results do in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from conformance.peers import rows
from conformance.side_by_side.rules import rule_texts
from study import divergences, results, site
from tests.study.test_site import contrast
from tests.support import browser
from tests.support.made_results import benchmark, built, report, written

chromium = browser.chromium


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pages")
    found = written(out, conformance=report(("torch_impl", "ATT-7")), benchmarks=benchmark())
    built(out / "site", found, "attention", "layer_norm")
    return out / "site"


# --- the matrix -------------------------------------------------------------------------------------------------------


def test_every_mark_leads_to_what_was_found() -> None:
    stored = rows.read(divergences.MATRIX)
    found = divergences.made_of(stored)
    marked = {place for place, mark in found.marks.items() if mark != "conforms"}
    assert marked == set(found.places())
    lost = [row._replace(accepted={}) for row in stored]
    assert set(divergences.made_of(lost).places()) < marked
    for path, rule in marked:
        assert path in found.places()[path, rule].paths


def test_versions_of_paths() -> None:
    found = divergences.matrix()
    without = [path for group in found.groups for path in group.paths if not found.version(path)]
    assert without == []
    assert found.version("ONNX Runtime, LayerNormalization-17").startswith("onnxruntime ")
    assert found.version("Nobody's attention") == ""


def test_every_marked_cell_is_a_link(folder: Path) -> None:
    found = divergences.matrix()
    page = (folder / "divergences.html").read_text()
    cells = re.findall(r'<td data-rule="[^"]+" class="(breaks|strict|takes|keeps|unasked)">(<a href="#[^"]+")?', page)
    assert len(cells) == sum(len(group.rules) * len(group.paths) for group in found.groups)
    assert all(bool(link) == (kind in ("breaks", "strict", "takes")) for kind, link in cells)
    marks = {"breaks": "differs", "strict": "differs at strict", "takes": "takes what should be refused"}
    for kind, mark in (marks | {"keeps": "conforms"}).items():
        assert sum(its == kind for its, _ in cells) == list(found.marks.values()).count(mark)
    assert page.count("△") == 1 + list(found.marks.values()).count("differs at strict") > 1  # the legend's, too
    assert all(one.example in page.replace("&#39;", "'").replace("&gt;", ">") for one in found.divergences)


def test_the_runs_are_folded_to_one_line(folder: Path) -> None:
    page = (folder / "divergences.html").read_text()
    found = divergences.matrix()
    shown, _, rest = page.partition('<details class="how">')
    folded, _, after = rest.partition("</details>")
    assert f"<summary>{len(found.runs)} runs of the judge: versions, seeds and dates</summary>" in folded
    assert folded.count("<li>") == len(found.runs)
    assert not any(run.summary in shown + after for run in found.runs)


def test_columns_have_names_in_words(folder: Path) -> None:
    """Each table names its rules above, and no heading is turned or cut off on any screen or on paper."""
    page = (folder / "divergences.html").read_text()
    found = divergences.matrix()
    lists = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r'<p class="how names-of-rules">(.*?)</p>', page)]
    known = rule_texts()
    assert lists == [" · ".join(f"{r} {known[r].title}" for r in g.rules if r in known) for g in found.groups]


TURNED_OR_CUT = """[...document.querySelectorAll('.matrix thead th')].filter((cell) => {
  const text = cell.firstElementChild ?? cell;
  return getComputedStyle(cell).writingMode !== 'horizontal-tb' || text.scrollWidth > cell.clientWidth + 1
    || text.getBoundingClientRect().width > cell.offsetWidth + 1;
}).map((cell) => cell.innerText)"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1280, 900), (390, 844), (717, 1046)])
def test_headings_can_be_read(size: tuple[int, int], chromium: Any, folder: Path) -> None:
    with browser.opened(chromium, folder / "divergences.html", size=size) as (page, *_):
        if size[0] == 717:
            page.emulate_media(media="print")
        assert page.evaluate(TURNED_OR_CUT) == []
        page.add_style_tag(content=".matrix thead th:last-child { writing-mode: vertical-rl; }")
        assert len(page.evaluate(TURNED_OR_CUT)) == page.locator(".matrix").count()
        page.add_style_tag(content=".matrix thead th { max-width: 12px; overflow: hidden; }")
        assert len(page.evaluate(TURNED_OR_CUT)) > page.locator(".matrix").count()


def test_operations_lead_to_the_matrix(folder: Path) -> None:
    for name in ("attention", "layer_norm", "index"):
        assert 'href="divergences.html' in (folder / f"{name}.html").read_text().partition("<main")[2]


@pytest.mark.slow
def test_a_damaged_matrix_is_told(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    for text, line in (("# nothing", "cannot be read"), ("{}", "is no divergence matrix of version 1")):
        path.write_text(text)
        found = results.gather(matrix=path)
        assert line in found.matrix.missing
    rows.write([], path)
    assert "no path through a library" in results.gather(matrix=path).matrix.missing
    texts = built(tmp_path / "site", found, "attention")
    for page in ("divergences", "attention"):
        assert "<code>make peers</code>" in texts[page]
        assert "is no divergence matrix of version 1" in texts[page]


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", browser.VIEWPORTS)
@pytest.mark.parametrize("name", ["divergences", "benchmarks", "attention"])
def test_pages_of_results_are_sound(name: str, size: str, scheme: Any, chromium: Any, folder: Path) -> None:
    with browser.opened(chromium, folder / f"{name}.html", size=size, color_scheme=scheme) as watched:
        browser.sound(watched)


def test_the_matrix_is_filtered_without_javascript(chromium: Any, folder: Path) -> None:
    seen = "(rows) => rows.filter(row => row.checkVisibility()).map(row => row.querySelector('th').innerText)"
    with browser.opened(chromium, folder / "divergences.html", java_script_enabled=False) as (page, *_):
        every = page.eval_on_selector_all(".matrix tbody tr", seen)
        page.select_option("#library", label="jax")
        chosen = page.eval_on_selector_all(".matrix tbody tr", seen)
        assert chosen == [path for path in every if divergences.origin(path) == "jax"]
        page.select_option("#rule", "ATT-6")
        rules = "(cells) => [...new Set(cells.filter(one => one.checkVisibility()).map(one => one.dataset.rule))]"
        assert page.eval_on_selector_all(".matrix [data-rule], #departures > section", rules) == ["ATT-6"]
        paths = page.eval_on_selector_all(
            ".departure li", "all => all.filter(one => one.checkVisibility()).map(one => one.innerText)"
        )
        assert paths
        assert all(path.startswith("jax.") for path in paths)


@pytest.mark.parametrize("size", browser.VIEWPORTS)
def test_headings_of_the_matrix_stay(size: str, chromium: Any, folder: Path) -> None:
    with browser.opened(chromium, folder / "divergences.html", size=size) as (page, *_):
        page.evaluate("document.querySelector('.matrix tbody tr:nth-child(20)').scrollIntoView({block: 'center'})")
        page.evaluate("document.querySelector('.frame').scrollLeft = 300")
        boxes = page.evaluate(
            "['.matrix thead th:last-child', '.matrix tbody tr:nth-child(20) th'].map(one =>"
            " document.querySelector(one).getBoundingClientRect()).map(({top, left}) => [top, left])"
        )
        frame = page.evaluate(
            "(({top, left}) => [top, left])(document.querySelector('.frame').getBoundingClientRect())"
        )
        assert boxes[0][0] >= max(0, frame[0])
        assert boxes[0][0] <= max(0, frame[0]) + 2
        assert abs(boxes[1][1] - frame[1]) <= 2


def test_a_mark_leads_to_its_case(chromium: Any, folder: Path) -> None:
    with browser.opened(chromium, folder / "divergences.html", java_script_enabled=False) as (page, *_):
        link = page.locator(".matrix .breaks a").first
        place = link.get_attribute("href")
        link.click()
        assert page.locator(place).is_visible()
        assert "expected" in page.locator(place).inner_text()


def test_signs_can_be_read() -> None:
    style = (site.TEMPLATES / "style.css").read_text()
    light, dark = re.findall(r"--bad: light-dark\((#\w+), (#\w+)\)", style)[0]
    cards = re.findall(r"--card: (#\w+)", style)
    assert contrast(light, cards[0]) >= 4.5
    assert contrast(dark, cards[1]) >= 4.5
    assert contrast("#ff8a80", cards[0]) < 4.5
