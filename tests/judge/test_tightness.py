"""The bounds allow what honest implementations do, not much more, and catch what is slightly wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.selftest import sensitivity, tightness

LOW, HIGH = tightness.WANTED
SEED = 20260105


@pytest.mark.parametrize(
    ("operation", "cases"), [("attention", 60), ("merge_attention", 40), ("layer_norm", 60), ("feed_forward", 60)]
)
@pytest.mark.slow_where("attention-60")
def test_honest_errors_come_near_the_bound_but_not_over(operation: str, cases: int) -> None:
    """A short climb in float32 finds a ratio between 0.02 and 1 for every result."""
    found = tightness.Tightness()
    for group in tightness.groups("float32", [operation]):
        ratios = tightness.climb(group, seconds=1200, cases=cases, seed=SEED)
        found.add(group, "float32", ratios)
        assert "output" in ratios
        assert max(ratios.values()) <= HIGH, group.title
        assert min(ratios.values()) >= LOW, (group.title, ratios)
    assert not found.unwanted
    assert tightness.tightness_table(found).row_count == len(found.rows)


def test_a_row_outside_is_reported() -> None:
    found = tightness.Tightness()
    [group] = tightness.groups("float32", ["rms_norm"])
    found.add(group, "float32", {"output": 0.5, "gradient of x": 0.001, "gradient of weight": 1.5, "exact": 0.0})
    assert [row[1] for row in found.unwanted] == ["gradient of x", "gradient of weight"]


def test_some_figures_of_the_page_are_renewed() -> None:
    text = Path("docs/tightness.md").read_text()
    assert tightness.renew_page(text, tightness.Tightness()) == text
    found = tightness.Tightness()
    found.rows["attention", "output"]["float64"] = 0.5
    found.rows["something new", "output"]["float32"] = 0.0
    before, after = tightness.read_page(text).rows, tightness.read_page(tightness.renew_page(text, found)).rows
    output = before["attention", "output"]
    new = {("something new", "output"): {"float32": 0.0}}
    assert after == before | new | {("attention", "output"): output | {"float64": 0.5}}
    assert output["float64"] != 0.5


@pytest.mark.slow
def test_slightly_wrong_attention_is_caught() -> None:
    """By most float32 cases, and by every default run of the rule that it breaks."""
    found = [sensitivity.sensitivity(planted, count=60, runs=2, seed=SEED) for planted in sensitivity.slightly_wrong()]
    assert [row.title for row in found] == list(sensitivity.TITLES)
    for row in found:
        assert row.share > 0.5, row
        assert row.median > 1, row
        assert row.runs == row.of, row
