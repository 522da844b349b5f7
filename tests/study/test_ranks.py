"""The page of attention over ranks: what it draws and counts, its definition, and how it looks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cases.arguments import gradient_name
from conformance.side_by_side.sources import ROOT
from reference_numpy import materialize
from specification import Causal, SlidingWindow
from specification.distributed import LAYOUTS, shard_positions
from study import ranks, ranks_definition, site
from study.ranks import layout
from tests.support import browser
from tests.support.engine_cases import SIZES, drawn, worst
from tests.support.helpers import Case, Finding, judge, truth_and_bounds
from tests.support.made_results import text_of
from tests.support.shards import Call, merged_case

chromium = browser.chromium
SIZES = SIZES._replace(H=6, G=2, Q=7, K=10)
"""Lengths that 3 ranks do not divide, and heads of which two ranks read one."""
GRADIENTS = [gradient_name(name) for name in ("query", "key", "value")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "ranks.html"
    path.write_text(ranks.rendered(site.environment(""))["ranks"])
    return path


# --- the picture ------------------------------------------------------------------------------------------------------


def missed(drawn: ranks.Layout, length: int) -> int:
    """How many pairs of the causal mask the parts have not exactly once, or have beyond it."""
    counts = np.zeros((length, length), int)
    for part in [part for of_rank in drawn.parts for part in of_rank]:
        counts[np.ix_(part.queries, part.keys)] += part.allowed
    return int((counts != materialize(Causal(), length, length)[0, 0]).sum())


@pytest.mark.parametrize(("length", "count"), [(12, 3), (7, 3), (16, 1), (3, 4)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_pair_is_computed_once(name: str, length: int, count: int) -> None:
    found = layout(name, length, count)
    assert missed(found, length) == 0
    for rank, of_rank in enumerate(found.parts):
        assert {part.owner for part in of_rank} == {*range(count)}
        for part in of_rank:
            assert [*part.queries] == [*shard_positions(length, count, rank, name)]
            assert [*part.keys] == [*shard_positions(length, count, part.owner, name)]


def test_stale_keys_would_be_seen() -> None:
    found = layout("contiguous", 12, 3)
    stale = [[of_rank[0], *of_rank[:-1]] for of_rank in found.parts]
    assert missed(found._replace(parts=stale), 12) > 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_mask_hides_is_hidden_whole(name: str) -> None:
    """Contiguous: all keys of later ranks. Zigzag: of two pieces each, the later one of the keys is hidden."""
    for of_rank in layout(name, 12, 3).parts:
        for part in of_rank:
            assert not any(part.allowed[i : i + m, j : j + n].any() for i, j, m, n in part.hidden)
            assert all(m and n for *_, m, n in part.hidden)
            pieces = [(0, 4)] if name == "contiguous" else [(0, 2), (2, 2)]
            later = {
                (i, j, m, n)
                for i, m in pieces
                for j, n in pieces
                if part.keys[j : j + n].min() > part.queries[i : i + m].max()
            }
            assert {*part.hidden} == later


def test_work_by_hand() -> None:
    """4 queries on rank r of 3 see 4 keys of every rank before, and 1 + 2 + 3 + 4 of their own."""
    assert layout("contiguous", 12, 3).work == [10, 26, 42]
    assert layout("zigzag", 12, 3).work == [26, 26, 26]
    assert layout("contiguous", 256, 64).share == f"{(63 * 16 + 10) / ((256 * 257 / 2) / 64):.2f}"
    assert layout("zigzag", 256, 32).share == "1.00"


# --- the definition ---------------------------------------------------------------------------------------------------


def join_ranks(case: Case, name: str, layout: str) -> dict[str, np.ndarray]:
    """A function's rows of all ranks, joined; and the gradients of the ring."""
    arrays = [case.inputs[one] for one in ("query", "key", "value")]
    rings = [ranks_definition.Ring(case.options["mask"], rank, 3, layout) for rank in range(3)]
    output = np.zeros((*arrays[0].shape[:3], arrays[2].shape[3]))
    for ring in rings:
        own = shard_positions(SIZES.Q, 3, ring.rank, layout)
        output[:, :, own] = getattr(ranks_definition, name)(*arrays, ring)
    if name != "ring_attention":
        return {"output": output}
    sums = map(
        sum,
        zip(*(ranks_definition.ring_backward(*arrays, case.cotangents["output"], ring) for ring in rings), strict=True),
    )
    return {"output": output, **dict(zip(GRADIENTS, sums, strict=True))}


def error(mask: Any, name: str, layout: str) -> Finding:
    """The worst error, in error bounds."""
    case = drawn(mask, "float64", SIZES)
    call = Call(case, 3, "sequence" if name == "ring_attention" else "heads", layout)
    case = merged_case(call)
    if name != "ring_attention":
        case = replace(case, cotangents={})
    return worst(judge(case, join_ranks(case, name, layout), *truth_and_bounds(case)))


@pytest.mark.parametrize("name", ["ring_attention", "head_parallel_attention"])
@pytest.mark.parametrize(
    ("mask", "layout"), [(None, "zigzag"), (Causal(-2), "contiguous"), (SlidingWindow(2, 1, 3), "zigzag")]
)
def test_the_parts_are_attention_of_the_whole(mask: Any, layout: str, name: str) -> None:
    finding = error(mask, name, layout)
    assert finding.ratio <= 1, str(finding)


def test_merging_without_log_sum_exps_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ranks.differences()
    monkeypatch.setattr(ranks_definition, "merge_attention", lambda outputs, weights: (sum(outputs) / 2, weights[1]))
    assert error(None, "ring_attention", "zigzag").ratio > 1
    after = ranks.differences()
    assert {name for name in before if before[name] != after[name]} == {"ring"}
    assert float(after["ring"]) > 0.01


def test_gradients_of_stale_keys_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = ranks_definition.pairs

    def stale(*arguments: Any) -> Any:
        found = [*pairs(*arguments)]
        return [pair._replace(keys=found[0].keys) for pair in found]

    assert error(None, "ring_attention", "contiguous").ratio <= 1
    monkeypatch.setattr(ranks_definition, "pairs", stale)
    monkeypatch.setattr(ranks, "LENGTH", 9)
    assert float(ranks.differences()["backward"]) > 0.01


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_says_what_was_computed(file: Path) -> None:
    text = file.read_text()
    assert "12 tokens on 3 ranks" in text_of(text, "ring")
    assert "compute 10, 26, 42 pairs. The ring is done when the busiest rank is, which has 1.62" in text_of(
        text, "ring"
    )
    for name in LAYOUTS:
        assert f"on 64 ranks with as many tokens each, {layout(name, 256, 64).share} times" in text_of(text, "ring")
    for number in ranks.differences().values():
        assert f" {number}" in text_of(text, "merging")
    assert text.count('class="hidden"') == 3 + 15
    assert text_of(text, "rules").count("DIST-") >= 5


def test_the_page_follows_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LENGTH", 6)
    monkeypatch.setattr(ranks, "MANY", 5)
    text = ranks.rendered(site.environment(""))["ranks"]
    assert "6 tokens on 3 ranks" in text_of(text, "ring")
    assert "compute 3, 7, 11 pairs" in text_of(text, "ring")
    assert f"on 5 ranks with as many tokens each, {layout('contiguous', 10, 5).share} times" in text_of(text, "ring")


def test_lines_lead_to_their_files(file: Path) -> None:
    links = re.findall(r'href="([^"#]+)#L(\d+)" title', file.read_text())
    assert {path for path, _ in links} == {
        "study/ranks_definition.py",
        "reference_numpy/transformer.py",
        *(f"{port}/{name}.py" for port in ("torch_impl", "jax_impl") for name in ("distributed", "distributed_models")),
    }
    for path, line in links:
        assert (ROOT / path).read_text().splitlines()[int(line) - 1].strip(), f"{path}:{line}"


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("ring_attention", ["output =", "logsumexp =", "for pair in", "found =", "merged ="]),
        ("ring_backward", ["for ", "found ="]),
        ("pairs", ["inputs =", "yield "]),
        ("head_parallel_attention", ["share", "rows ="]),
        ("decoder", ["mask = both(mask, target_mask", "layers =", "rotations =", "x = drop"]),
    ],
)
def test_steps_stand_beside_each_other(name: str, steps: list[str]) -> None:
    shown = next(one for one in ranks.SHOWN if one[0] == name)
    block = ranks.block(*shown)
    assert block.labels == ("NumPy", "PyTorch", "JAX")
    whole = [[re.sub("<[^>]+>", "", one.code) for one in line.cells if one] for line in block.body]
    beside = [codes for codes in whole if len(codes) == 3]
    for step in steps:
        assert any(all(code.startswith(step) for code in codes) for codes in beside), step


# --- in a browser -----------------------------------------------------------------------------------------------------

TOUCHING = """() => [...document.querySelectorAll(".drawing")].flatMap((drawing) => {
  const texts = [...drawing.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const apart = (one, other) => one.right <= other.left || other.right <= one.left
    || one.bottom - 3 <= other.top || other.bottom - 3 <= one.top;
  return texts.flatMap(([name, box], i) => texts.slice(i + 1)
    .filter(([_, other]) => !apart(box, other)).map(([other]) => `${name} | ${other}`));
})"""
"""Texts that lie on each other. A text's box reaches a few pixels below its letters."""
SMALLEST = """() => Math.min(...[...document.querySelectorAll(".drawing text")].map((text) =>
  parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))"""
COLOURS = """() => ["owner-0", "owner-1", "owner-2", "barred"].map((name) =>
  getComputedStyle(document.querySelector(`.drawing .${name}`)).fill)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", browser.VIEWPORTS)
def test_fits_and_can_be_read(size: str, scheme: Any, chromium: Any, file: Path) -> None:
    with browser.opened(chromium, file, size=size, color_scheme=scheme) as watched:
        browser.unfold(watched.page)
        browser.sound(watched)
        assert watched.page.evaluate(TOUCHING) == []
        assert watched.page.evaluate(SMALLEST) >= 11
        assert len({*watched.page.evaluate(COLOURS)}) == 4


def test_texts_that_touch_are_found(chromium: Any, file: Path) -> None:
    with browser.opened(chromium, file, size="phone") as watched:
        watched.page.evaluate("document.querySelector('.drawing .small').textContent = 'a name that is far too long'")
        assert watched.page.evaluate(TOUCHING) != []
