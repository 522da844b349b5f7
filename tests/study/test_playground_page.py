"""The playground's page: what its controls do, what it shows, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from tests.support import browser
from tests.support.helpers import Case
from tests.support.playground_settings import by_definition, ratio

chromium, playground = browser.chromium, browser.playground

SHOWN = """id => [...document.querySelectorAll(`#${id} tbody tr`)].map(
    row => [...row.querySelectorAll("td")].map(cell => Number(cell.dataset.value ?? "NaN")))"""


def shown(page: Any, figure: str) -> np.ndarray:
    return np.array(page.evaluate(SHOWN, figure))


def set_on(page: Any) -> dict[str, np.ndarray]:
    """Query, key and value as they stand on the page, for a batch of one."""
    return {name: np.array([page.evaluate(f"page.setting.{name}")], float) for name in ("query", "key", "value")}


def check_shown(page: Any, **options: Any) -> None:
    """Weights, log-sum-exps and output on the page are those of the definition with these options."""
    inputs, head = set_on(page), page.evaluate("page.head")
    inputs |= {name: options.pop(name) for name in ("bias", "sinks") if name in options}
    case = Case("attention", "float64", inputs, {"mask": None, **options})
    table, K = shown(page, "weights"), inputs["key"].shape[2]
    for name, got in (("weights", table[:, :K]), ("logsumexp", table[:, -1]), ("output", shown(page, "output"))):
        whole = by_definition(case, name).copy()
        whole[0, head] = got
        assert ratio(whole, case, name).max() <= 1


# --- what the controls do ---------------------------------------------------------------------------------------------


def test_a_click_on_the_mask(chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, fragment="#causal") as (page, *_):
        check_shown(page, mask=Causal())
        page.click('[data-pair="3,1"]')
        page.click('[data-pair="0,4"]')
        array = np.tril(np.ones((5, 5), bool))
        array[3, 1], array[0, 4] = False, True
        check_shown(page, mask=Dense(array))
        pressed = page.eval_on_selector_all("[data-pair]", "cells => cells.map(cell => cell.ariaPressed === 'true')")
        assert np.array_equal(np.reshape(pressed, (5, 5)), array)
        assert page.is_checked('[data-path="mask.dense.on"]')
        assert not page.is_checked('[data-path="mask.causal.on"]')
        for j in range(5):
            if array[2, j]:
                page.click(f'[data-pair="2,{j}"]')
        array[2] = False
        check_shown(page, mask=Dense(array))
        assert "1 empty row." in page.inner_text("#summary")
        assert "query 2, empty" in page.inner_text("#weights")


def test_every_control(chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, fragment="#causal") as (page, errors, _):
        page.fill('[aria-label="query, query 4, d 1"]', "2.5")
        page.fill('[aria-label="value, key 2, v 0"]', "-inf")
        page.fill('[aria-label="value, key 2, v 0"]', "7")
        assert set_on(page)["query"][0, 0, 4, 1] == 2.5
        check_shown(page, mask=Causal())
        page.fill('[data-path="scale"]', "-0.5")
        page.fill('[data-path="softcap"]', "0.8")
        page.fill('[data-path="sinks"]', "0.3")
        given: dict[str, Any] = {"scale": -0.5, "softcap": 0.8, "sinks": np.array([0.3])}
        check_shown(page, mask=Causal(), **given)
        page.fill('[data-path="mask.causal.offset"]', "-1")
        check_shown(page, mask=Causal(-1), **given)
        page.uncheck('[data-path="mask.causal.on"]')
        check_shown(page, **given)
        page.fill('[data-path="mask.window.left"]', "2")
        page.fill('[data-path="mask.window.right"]', "")
        mask = SlidingWindow(2, None, 0)
        check_shown(page, mask=mask, **given)
        page.fill('[data-path="mask.lengths.length"]', "4")
        check_shown(page, mask=mask & KeyLengths(np.array([4])), **given)
        page.fill('[data-path="mask.padding.keep"]', "0 1 1 0 1")
        mask = mask & KeyLengths(np.array([4])) & KeyPadding(np.array([[False, True, True, False, True]]))
        check_shown(page, mask=mask, **given)
        page.fill('[data-path="mask.segments.query_ids"]', "0 0 1 1 1")
        mask = mask & Segments(np.array([[0, 0, 1, 1, 1]]), np.array([[0, 0, 0, 0, 0]]))
        check_shown(page, mask=mask, **given)
        page.check("#bias-on")
        page.fill('[aria-label="bias, query 1, key 1"]', "-inf")
        page.fill('[aria-label="bias, query 0, key 2"]', "1.5")
        given["bias"] = np.zeros((5, 5))
        given["bias"][1, 1], given["bias"][0, 2] = -np.inf, 1.5
        check_shown(page, mask=mask, **given)
        page.fill('[data-path="sinks"]', "")
        for reading in ("mean", "nan", "zero"):
            page.select_option('[data-path="empty_rows"]', reading)
            check_shown(
                page, mask=mask, **{name: part for name, part in given.items() if name != "sinks"}, empty_rows=reading
            )
        assert errors == []


def test_sizes_and_heads(chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, fragment="#causal") as (page, *_):
        before = set_on(page)
        for name, size in (("H", "4"), ("K", "7"), ("D", "3"), ("V", "1")):
            page.fill(f'[data-size="{name}"]', size)
            page.dispatch_event(f'[data-size="{name}"]', "change")
        page.select_option('[data-size="G"]', "2")
        page.select_option("#head", "3")
        after = set_on(page)
        assert [array.shape for array in after.values()] == [(1, 4, 5, 3), (1, 2, 7, 3), (1, 2, 7, 1)]
        assert np.array_equal(after["query"][:, :1, :, :2], before["query"])
        assert "Query head 3 reads key head 1." in page.inner_text("#summary")
        check_shown(page, mask=Causal(0))
        page.fill('[data-size="Q"]', "99")
        page.dispatch_event('[data-size="Q"]', "change")
        assert page.input_value('[data-size="Q"]') == "8"
        check_shown(page, mask=Causal(0))


def test_the_keyboard_alone(chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, fragment="#causal") as (page, *_):
        page.focus('[data-path="mask.dense.on"]')
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.pair") == "0,0":
                break
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Space"):
            page.keyboard.press(key)
        array = np.tril(np.ones((5, 5), bool))
        array[1, 2] = True
        assert page.evaluate("document.activeElement.dataset.pair") == "1,2"
        check_shown(page, mask=Dense(array))


# --- what is ready-made, kept and refused -----------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"mask": Causal()},
    "cache": {"mask": Causal(3)},
    "window": {"mask": SlidingWindow(2, 0)},
    "padding": {"mask": KeyPadding([[True, True, True, False, False]])},
    "packing": {"mask": Causal() & Segments(*(np.array([[0, 0, 0, 1, 1, 1]]) for _ in range(2)))},
    "empty": {"mask": Causal() & KeyPadding([[False, False, True, True, True]])},
    "softcap": {"softcap": 4.0},
    "sink": {"mask": Causal(), "sinks": np.array([1.0])},
    "grouped": {"mask": Causal()},
    "hidden": {"mask": KeyLengths([3])},
}


@pytest.mark.parametrize("preset", OPTIONS)
def test_ready_made_settings_and_their_addresses(preset: str, chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground) as (page, errors, requests):
        page.click(f'[data-preset="{preset}"]')
        check_shown(page, **OPTIONS[preset])
        page.wait_for_timeout(300)  # the address follows after a moment
        kept, fragment = set_on(page), page.evaluate("location.hash")
        assert (errors, requests) == ([], [])
    with browser.opened(chromium, playground, fragment=fragment) as watched:
        check_shown(watched.page, **OPTIONS[preset])
        again = set_on(watched.page)
        assert all(np.array_equal(kept[name], again[name], equal_nan=True) for name in kept)


REFUSED = {
    "offset": ("cache", "mask.causal.offset", "", "Causal must have an offset with 3 queries and 6 keys"),
    "length": ("causal", "mask.lengths.length", "9", "lengths must lie between 0 and 5 keys, got [9]"),
    "window": ("causal", "mask.window.left", "-1", "left must not be negative, got -1"),
    "softcap": ("causal", "softcap", "0", "softcap must be positive and finite, got 0"),
    "scale": ("causal", "scale", "inf", "scale must be finite, got Infinity"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_the_definition_refuses(mistake: str, chromium: Any, playground: Path) -> None:
    """It is said, and no numbers stand there as if they followed."""
    preset, field, text, message = REFUSED[mistake]
    with browser.opened(chromium, playground, fragment=f"#{preset}") as (page, errors, _):
        before = page.input_value(f'[data-path="{field}"]')
        page.fill(f'[data-path="{field}"]', text)
        assert message in page.inner_text("#refusal")
        assert page.query_selector("#computed figure") is None
        known = "mask" not in field
        assert page.get_attribute('[data-pair="0,0"]', "aria-pressed") == ("true" if known else "mixed")
        page.click('[data-pair="0,0"]')  # of a mask that means nothing, no array can be made
        assert page.is_checked('[data-path="mask.dense.on"]') == known
        page.fill(f'[data-path="{field}"]', before)
        assert not page.is_visible("#refusal")
        assert page.query_selector("#weights") is not None
        assert errors == []


def test_the_same_words_as_the_definition(chromium: Any, playground: Path) -> None:
    query, key, mask = np.ones((1, 1, 2, 1)), np.ones((1, 1, 3, 1)), "mask"
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({mask: Causal()}, "{mask: Causal()}"),
        ({mask: KeyLengths([4])}, "{mask: KeyLengths([4])}"),
        ({mask: SlidingWindow(-1, 0, 0)}, "{mask: SlidingWindow(-1, 0, 0)}"),
        ({"sinks": np.ones(2)}, "{sinks: [1, 1]}"),
        ({"sinks": np.ones(1), "empty_rows": "mean"}, "{sinks: [1], empty_rows: 'mean'}"),
        ({"empty_rows": "none"}, "{empty_rows: 'none'}"),
    )
    with browser.opened(chromium, playground) as watched:
        for options, written in mistakes:
            with pytest.raises(ValueError, match=r"\w") as refused:
                reference_numpy.attention_weights(query, key, **options)
            call = f"attention_weights([[[[1], [1]]]], [[[[1], [1], [1]]]], {written})"
            told = watched.page.evaluate(f"(() => {{ try {{ {call} }} catch (error) {{ return error.message }} }})()")
            assert told == str(refused.value)


@pytest.mark.parametrize("text", ["abc", "-", "1e999"])
def test_what_is_no_number(text: str, chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, fragment="#causal") as (page, errors, _):
        for selector in (
            '[aria-label="query, query 0, d 0"]',
            '[data-path="scale"]',
            '[data-path="mask.padding.keep"]',
        ):
            page.fill(selector, text)
            assert page.get_attribute(selector, "aria-invalid") == "true"
        assert "expected 5 signs of 1 (keep) or 0" in page.inner_text("#refusal")
        check_shown(page, mask=Causal())
        assert errors == []


@pytest.mark.parametrize(
    "fragment",
    ["sizes=", "sizes=5,5,2,2,3,2", "sizes=99,5,2,2,1,1", "sizes=2,2,1,1,1,1&query=1,2,3", "sizes=2,2,1,1,1,1&causal=x",
     "sizes=2,2,1,1,1,1&lengths=none", "sizes=2,2,1,1,1,1&softcap=0", "sizes=2,2,1,1,1,1&empty_rows=<b>",
     "sizes=2,2,1,1,1,1&padding=12", "sizes=%", "nothing"],
)  # fmt: skip
def test_an_address_that_holds_no_setting(fragment: str, chromium: Any, playground: Path) -> None:
    with browser.opened(chromium, playground, fragment=f"#{fragment}") as watched:
        assert watched.page.is_visible("#refusal") == (fragment != "nothing")
        check_shown(watched.page, mask=Causal())
        assert watched.errors == []


Check = Callable[[Any, Path], None]
FAULTS: dict[str, tuple[str, str, str, Check]] = {
    "another head shown": ("attention_page.js", "array[0][head]", "array[0][0]", test_sizes_and_heads),
    "a click that flips nothing": ("attention_page.js", "= !array[i][j]", "= array[i][j]", test_a_click_on_the_mask),
    "a click beside what holds already": ("attention_page.js", '.on = name === "dense"', ".on = true",
          test_a_click_on_the_mask),
    "arrows the other way": ("attention_page.js", "ArrowDown: [1, 0]", "ArrowDown: [-1, 0]", test_the_keyboard_alone),
    "a field without effect": ("fields.js", "  changed();\n}\n\nfunction read_size", "}\nfunction read_size",
          test_every_control),
    "numbers of the last setting": ("tables.js", "rows[i][j] = number;", "", test_every_control),
    "an address without its mask": ("attention_address.js", "if (on) told.push", "if (false) told.push",
          partial(test_ready_made_settings_and_their_addresses, "causal")),
    "old numbers beside a refusal": ("page.js", 'found("computed").replaceChildren();', "",
          partial(test_what_the_definition_refuses, "softcap")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(fault: str, chromium: Any, tmp_path: Path) -> None:
    name, right, wrong, check = FAULTS[fault]
    faulty = browser.faulty_playground(tmp_path, name, right, wrong)
    with pytest.raises(AssertionError):
        check(chromium, faulty)
