"""The site as a lesson: the start, chapter 0, the order of a chapter, and the contents beside every page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.side_by_side.operations import OPERATIONS
from study import playing, site, walk
from study.lessons import Symbol, lessons, names, unexplained
from study.pages import ENGINE
from study.results import gather
from tests.support import browser
from tests.support.helpers import AGREEMENT, Case, Runner, Target

chromium = browser.chromium


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few pages: no dialects, no results of runs."""
    out = tmp_path_factory.mktemp("lesson")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(site, "OPERATIONS", OPERATIONS[:4])
        patched.setattr(site.dialect_pages, "rendered", lambda *_: {})
        site.build(out, examples=False, results=gather(out / "none", out / "none", out / "none"))
    return out


# --- ideas and symbols ------------------------------------------------------------------------------------------------


def test_every_operation_is_a_lesson() -> None:
    assert [*lessons()] == [one.name for one in OPERATIONS]
    assert all(len(one.idea.split()) > 30 for one in lessons().values())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_every_symbol_is_explained(operation: Any) -> None:
    symbols = lessons()[operation.name].symbols
    assert unexplained(operation.formulas, symbols) == set()
    assert len(symbols) == len({one.latex for one in symbols})


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_every_symbol_of_a_gradient_is_explained(operation: Any) -> None:
    lesson = lessons()[operation.name]
    formulas, own = lesson.gradients.formulas, lesson.gradients.symbols
    assert bool(formulas) is (operation.name in ("layer_norm", "norm_variants", "attention"))
    used = set().union(*map(names, formulas))
    explained = [set().union(*(names(one.latex) for one in symbols)) for symbols in (lesson.symbols, own)]
    assert used <= explained[0] | explained[1]
    assert explained[1] <= used


def ordinary(name: str, generator: np.random.Generator) -> Case:
    """Normal numbers in float64, of which the page says that the plain function is right."""
    shapes = {
        "attention": {"query": (2, 3, 5, 4), "key": (2, 3, 7, 4), "value": (2, 3, 7, 6)},
        "layer_norm": {"x": (3, 8), "weight": (8,), "bias": (8,)},
        "feed_forward": {
            "x": (3, 4), "inner.weight": (4, 9), "inner.bias": (9,), "outer.weight": (9, 5), "outer.bias": (5,)
        },
    }[name]  # fmt: skip
    options: dict[str, Any] = {"attention": {"mask": generator.random((2, 1, 5, 7)) < 0.8}}.get(name, {})
    if options:
        options["mask"][..., 0] = True
    return Case(name, "float64", {one: generator.normal(size=shape) for one, shape in shapes.items()}, options)


@pytest.mark.parametrize("name", [name for name, one in lessons().items() if one.plain])
def test_plain_functions_are_right(name: str) -> None:
    names: dict[str, Any] = {"np": np}
    exec(lessons()[name].plain, names)
    runner, generator = Runner(Target(names[name], name, "numpy").make()), np.random.default_rng(0)
    for _ in range(5):
        case = ordinary(name, generator)
        (finding,) = runner(AGREEMENT, case, AGREEMENT.prepare(case))
        assert 0 < finding.ratio <= 1, finding


def test_plain_functions_stand_on_their_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name, one in lessons().items() if one.plain}
    assert names == {"attention", "layer_norm", "feed_forward"}
    monkeypatch.setattr(site, "OPERATIONS", [one for one in OPERATIONS if one.name in {*names, "masks"}])
    monkeypatch.setattr(site.dialect_pages, "rendered", lambda *_: {})
    site.build(tmp_path, examples=False, results=gather(*[tmp_path / "none"] * 3))
    for name in (*names, "masks"):
        text, plain = (tmp_path / f"{name}.html").read_text(), lessons()[name].plain
        code = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r'<pre class="program">(.*?)</pre>', text, re.DOTALL)]
        assert code == ([str(walk.Markup.escape(plain.strip()))] if plain else [])
        assert ("rows that attend to nothing" in text.partition("In plain NumPy")[2][:2000]) == (name == "attention")


def test_what_is_not_explained_is_found() -> None:
    formula = (r"y = \frac{x_i}{\sqrt{\varepsilon}} \text{relu}(e^{z})",)
    known = tuple(Symbol(latex, "", "") for latex in ("y", "x_i", r"\varepsilon", r"\text{relu}", "z"))
    assert unexplained(formula, known) == set()
    assert unexplained(formula, known[1:]) == {"y"}
    assert unexplained(formula, (*known, Symbol(r"\mu", "", ""))) == {"mu"}


# --- the order of a chapter -------------------------------------------------------------------------------------------


def test_a_chapter_begins_with_the_idea(built: Path) -> None:
    order = [name for name, _ in site.PARTS if name != "example"]  # not computed here
    for operation in OPERATIONS[1:4]:
        text = (built / f"{operation.name}.html").read_text()
        assert re.findall(r'<section id="(\w+)">', text) == order
        assert re.findall(r'<li><a href="#(\w+)">', text) == order
        lesson = lessons()[operation.name]
        assert text.count('<th scope="row"><math') == len(lesson.symbols) + len(lesson.gradients.symbols)
        assert text.count('<div class="formula">') == len(operation.formulas) + len(lesson.gradients.formulas)
        assert '<a href="rules.html#ATT-12">' in text[text.index('id="gradients"') : text.index('id="rules"')]


def test_the_choice_of_an_engine_is_folded(chromium: Any, built: Path) -> None:
    with browser.opened(chromium, built / "attention.html") as (page, *_):
        reasons = page.locator(".reason", has_text=ENGINE)
        assert reasons.count() > 0
        assert not any(one.is_visible() for one in reasons.all())
        page.goto(f"{page.url}#reference_attention")
        assert page.locator("#reference_attention .row.step").first.is_visible()
        page.click("#attention .dispatch > summary")
        assert reasons.first.is_visible()


# --- chapter 0 --------------------------------------------------------------------------------------------------------


def test_the_walk_is_shown_whole(built: Path) -> None:
    text = (built / "walk.html").read_text()
    found = walk.cells(walk.FILE.read_text())
    code = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r'<pre class="program">(.*?)</pre>', text, re.DOTALL)]
    assert code == [str(walk.Markup.escape(cell.code)) for cell in found if cell.code]
    assert [title for _, title in walk.parts(found)] == [*walk.MORE]
    assert {name for names in walk.MORE.values() for name in names} <= {one.name for one in OPERATIONS}
    for anchor, _ in walk.parts(found):
        assert f'href="#{anchor}"' in text
        assert f'id="{anchor}"' in text


def test_chapter_0_begins_with_the_idea() -> None:
    """What is imported before the first score is NumPy alone; how it is judged comes after it, folded."""
    text, first, second, *_ = walk.cells(walk.FILE.read_text())
    assert text.text.rstrip().endswith("however wide they are.")
    assert re.findall(r"import (\w+)", first.code) == ["numpy"]
    assert "score = query @ key" in first.code
    assert not first.title
    assert second.title == "How one result is judged"
    page = walk.rendered(site.environment(""), examples=False)["walk"]
    assert page.index("One query, one key</h2>") < page.index('<pre class="program">')
    assert page.count(f"<details><summary>{second.title}</summary>") == 1


def test_code_with_a_title_is_folded() -> None:
    plain, titled = walk.cells("# %%\nx = 1\n\n# %% Later\ny = 2\n")
    assert plain == walk.Cell(code="x = 1")
    assert titled == walk.Cell(code="y = 2", title="Later")


def test_code_runs_and_shows_what_it_gives() -> None:
    code = "import numpy as np\nx = np.arange(4)\nfor y in x: pass\nprint(x.sum())\nlarge = np.zeros(1000)"
    first, second = walk.run([walk.Cell(code=code), walk.Cell(code="x, z = x + 1, np.ones(2)")])
    assert first.output == "6"
    assert [name for name, _ in first.arrays] == ["x"]
    assert np.array_equal(dict(first.arrays)["x"], [0, 1, 2, 3])
    assert [name for name, _ in second.arrays] == ["x", "z"]
    with pytest.raises(AssertionError):
        walk.run([walk.Cell(code="assert False")])


@pytest.mark.slow
def test_chapter_0_has_its_numbers_and_pictures() -> None:
    text = walk.rendered(site.environment(""), examples=True)["walk"]
    for printed in ("score 0.", "usual as attention: violates", "Transformer: off by", "with a cache: True"):
        assert printed in text
    assert text.count('<table class="heat">') >= 20


# --- the contents -----------------------------------------------------------------------------------------------------


def test_the_start_has_three_ways_in(built: Path) -> None:
    main = (built / "index.html").read_text().partition("<main")[2]
    summary = re.sub(r"\s+", " ", re.findall(r'<p class="summary">(.*?)</p>', main, re.DOTALL)[0])
    assert len(re.findall(r"\.(?: |$)", summary)) == 3
    assert re.findall(r'<h2><a href="(\w+)\.html">', main) == ["walk", "lookup", "divergences"]
    assert re.findall(r'<a href="(\w+)\.html[^"]*" class="box attention"', main)


@pytest.mark.parametrize("name", ["attention", *playing.PLAYGROUNDS])
def test_the_contents_stand_beside_or_fold(name: str, chromium: Any, built: Path) -> None:
    with browser.opened(chromium, built / f"{name}.html", size=browser.SMALL_LAPTOP) as (page, errors, _):
        assert page.locator(".side summary").is_hidden()
        assert page.locator('.side [aria-current="page"]').is_visible()
        main = page.locator("main").bounding_box()
        assert main["x"] >= page.locator(".side").bounding_box()["x"] + 150
        assert browser.sideways(page) == []
        assert errors == []
    with browser.opened(chromium, built / f"{name}.html", size="phone") as (page, *_):
        assert page.locator('.side a[href="rules.html"]').is_hidden()
        page.click(".side summary")
        assert page.locator('.side a[href="rules.html"]').is_visible()
        assert browser.sideways(page) == []
