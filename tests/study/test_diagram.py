"""The drawing: every box leads somewhere, the order is that of the blocks, and text stands in its box."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conformance.side_by_side.columns import names_beside
from conformance.side_by_side.operations import OPERATIONS
from specification.parameters import DecoderBlock, EncoderBlock
from study import diagram, site
from study.drawing import Box, Column, Drawing, Line
from tests.support import browser

chromium = browser.chromium


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagram") / "diagram.html"
    path.write_text(diagram.rendered(site.environment(""))["diagram"])
    return path


def boxes() -> list[Box]:
    return [box for figure in diagram.figures() for box in figure.drawing.boxes]


def astray(found: list[Box]) -> list[str]:
    """Boxes that lead to no operation, or to no function of it."""
    pages = {one.name: [name for _, name in one.functions] for one in OPERATIONS}
    gone = []
    for box in found:
        page, _, place = box.href.partition(".html")
        if page not in pages or (place and place.removeprefix("#") not in pages[page]):
            gone.append(box.href)
    return gone


def test_every_box_leads_to_its_operation() -> None:
    assert astray(boxes()) == []
    wrong = boxes()[0]
    assert astray([wrong._replace(href="atention.html"), wrong._replace(href="blocks.html#nothing")]) == [
        "atention.html",
        "blocks.html#nothing",
    ]


def test_every_operation_has_a_box_or_a_link(file: Path) -> None:
    assert {one.name for one in OPERATIONS} - diagram.linked() == {
        *("norm_variants", "losses", "optimizers", "schedules", "initializers", "rotary"),
        *("latent_attention", "experts"),
    }
    text = file.read_text()
    for one in OPERATIONS:
        assert f'href="{one.name}.html' in text.partition("<main")[2], one.name


def column_of(order: str, side: str) -> list[str]:
    x = {"encoder": 84, "decoder": 268}[side]
    found = [box for box in diagram.whole(order).boxes if box.x == x and box.kind != "tag"]
    assert [box.y for box in found] == sorted((box.y for box in found), reverse=True)
    return [box.title for box in found]


def test_the_order_is_that_of_the_paper_or_the_other() -> None:
    sublayer, norm = ["Self-attention", "+", "Layer norm"], "Layer norm"
    assert column_of("post", "encoder") == ["Embedding", "Positions", *sublayer, "Feed-forward", "+", norm]
    assert column_of("pre", "encoder")[2:] == [norm, "Self-attention", "+", norm, "Feed-forward", "+", norm]
    assert column_of("post", "decoder")[5:8] == ["Cross-attention", "+", norm]
    assert column_of("pre", "decoder")[-4:] == [norm, "Linear", "Decoding", "Generation"]


def test_blocks_are_read_off_their_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagram.sublayers(EncoderBlock) == ["attention", "feed_forward"]
    assert diagram.sublayers(DecoderBlock) == ["self_attention", "cross_attention", "feed_forward"]
    fields = [("feed_forward", Any), ("feed_forward_norm", Any), ("attention", Any), ("attention_norm", Any)]
    monkeypatch.setattr(diagram, "EncoderBlock", NamedTuple("Turned", fields))  # type: ignore[misc]
    assert column_of("post", "encoder")[2] == "Feed-forward"


def test_functions_that_are_linked_to_are_there() -> None:
    files = ("transformer.py", "blocks.py", "multi_head_attention.py")
    names = {name for file in files for name in names_beside(file)}
    assert {box.href.partition("#")[2] for box in boxes()} - {""} <= names


def overlapping(found: list[Box]) -> list[tuple[str, str]]:
    return [
        (one.title, other.title)
        for number, one in enumerate(found)
        for other in found[number + 1 :]
        if abs(one.x - other.x) * 2 < one.width + other.width and abs(one.y - other.y) * 2 < one.height + other.height
    ]


def test_no_box_lies_on_another() -> None:
    for figure in diagram.figures():
        assert overlapping(figure.drawing.boxes) == []
    first = boxes()[0]
    assert overlapping([first, first._replace(y=first.y + 5)])


def test_everything_is_within_the_drawing() -> None:
    for figure in diagram.figures():
        drawing = figure.drawing
        points = [point for line in drawing.lines for point in line.points] + drawing.dots
        assert all(0 <= x <= diagram.WIDTH and drawing.top <= y <= drawing.bottom for x, y in points)
        assert all(box.left >= 0 and box.left + box.width <= diagram.WIDTH for box in drawing.boxes)


def test_arrows_point_along_their_lines() -> None:
    assert Line(((0, 0), (10, 0))).head == "M10 0 L4 -3.5 L4 3.5 Z"
    assert Line(((0, 10), (0, 0))).head == "M0 0 L-3.5 6 L3.5 6 Z"
    drawing = Drawing()
    made = Column(drawing, 50, 40, 0).box("a", "b", "c")
    assert drawing.lines[0].points[-1] == (50, made.top + made.height)


# --- in a browser -----------------------------------------------------------------------------------------------------

OUTSIDE = """[...document.querySelectorAll('.drawing a')].flatMap((link) => {
  const box = link.querySelector('rect').getBoundingClientRect();
  return [...link.querySelectorAll('text')].filter((text) => {
    const own = text.getBoundingClientRect();
    return own.left < box.left || own.right > box.right || own.top < box.top || own.bottom > box.bottom;
  }).map((text) => text.textContent);
})"""
"""Texts that stick out of their boxes."""
SMALLEST = """Math.min(...[...document.querySelectorAll('.drawing text')].map((text) =>
  parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", browser.VIEWPORTS)
def test_fits_and_can_be_read(size: str, scheme: Any, chromium: Any, file: Path) -> None:
    with browser.opened(chromium, file, size=size, color_scheme=scheme) as watched:
        page = watched.page
        browser.sound(watched)
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(SMALLEST) >= 11


def test_frames_are_seen(chromium: Any, file: Path) -> None:
    with browser.opened(chromium, file) as watched:
        sizes = "all => all.map(one => one.getBoundingClientRect()).map(({width, height}) => Math.min(width, height))"
        found = watched.page.eval_on_selector_all(".drawing .frame", sizes)
        assert len(found) == 4
        assert min(found) > 100


def test_text_that_sticks_out_is_found(chromium: Any, file: Path) -> None:
    with browser.opened(chromium, file) as watched:
        watched.page.evaluate("document.querySelector('.drawing a text').textContent = 'a name that is far too long'")
        assert watched.page.evaluate(OUTSIDE) == ["a name that is far too long"]


def test_boxes_are_reached_by_keyboard(chromium: Any, file: Path) -> None:
    """In the order of the flow, with a mark on the box and a name that says where it stands."""
    with browser.opened(chromium, file) as (page, *_):
        page.focus(".drawing a")
        names, widths = [], []
        for _ in range(4):
            page.keyboard.press("Tab")
            names.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
            widths.append(page.evaluate("getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth"))
        expected = [box.name for box in diagram.whole("post").boxes]
        assert names == expected[1:5]
        assert names[0] == "Embedding, of the encoder"
        assert set(widths) == {"3.5px"}
