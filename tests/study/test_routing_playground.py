"""The routing playground: it chooses and weighs as the definition does, and its controls do what they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance.bounds import bound
from conformance.cases.case import Case
from reference_numpy.experts import route_by_logits, taken_places
from specification import Linear
from tests.support import browser

chromium, playgrounds = browser.chromium, browser.playgrounds

DEFAULTS: dict[str, Any] = {
    "chosen": 2, "scoring": "softmax", "groups": 1, "chosen_groups": 1, "group_score": "two_largest",
    "weighting": "normalized", "scale": 1.0,
}  # fmt: skip
ROUTE = "settings => settings.map(({logits, ...options}) => route_by_logits(logits, options))"
TAKEN = "({indices, experts, capacity}) => taken_places(indices, experts, capacity)"


def draw_setting(seed: int) -> Case:
    """Draw logits and options. The router is the unit matrix, which makes logits of equal numbers."""
    rng = np.random.default_rng(seed)
    groups, size = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    chosen_groups, X = int(rng.integers(1, groups + 1)), groups * size
    scoring = str(rng.choice(("softmax", "sigmoid", "none")))
    options = DEFAULTS | {
        "chosen": int(rng.integers(1, chosen_groups * size + 1)), "scoring": scoring,
        "groups": groups, "chosen_groups": chosen_groups, "group_score": str(rng.choice(("two_largest", "largest"))),
        "weighting": str(rng.choice(("scores", "softmax", "normalized")[: 2 if scoring == "none" else 3])),
        "scale": float(rng.choice((1.0, 2.5, -0.3))),
    }  # fmt: skip
    inputs = {"x": rng.choice((0.1, 1.0, 8.0)) * rng.standard_normal((4, X)), "router.weight": np.eye(X)}
    if rng.random() < 0.5:
        inputs["choice_bias"] = rng.standard_normal(X)
    return Case("route", "float64", inputs, options)


def define_routes(case: Case, logits: np.ndarray | None = None) -> Any:
    with np.errstate(all="ignore"):
        return route_by_logits(
            case.inputs["x"] if logits is None else logits, case.inputs.get("choice_bias"), **case.options
        )


def routes(chromium: Any, folder: Path, cases: list[Case]) -> list[list[dict[str, Any]]]:
    settings = [
        {"logits": case.inputs["x"].tolist(), **case.options}
        | ({"choice_bias": case.inputs["choice_bias"].tolist()} if "choice_bias" in case.inputs else {})
        for case in cases
    ]
    with browser.opened(chromium, folder / "routing_playground.html") as watched:
        found = watched.page.evaluate(ROUTE, settings)
        assert watched.errors == []
    return found


def largest_ratio(chromium: Any, folder: Path, count: int) -> float:
    """Return the largest distance from the definition, in units of two bounds; infinity for another choice."""
    cases = [draw_setting(seed) for seed in range(count)]
    ratios = [0.0]
    for case, answer in zip(cases, routes(chromium, folder, cases), strict=True):
        exact, allowed = define_routes(case), bound(case)
        decided = np.isfinite(allowed["weights"])
        for name in ("indices", "scores", "weights"):
            got = np.array([token[name] for token in answer], float)
            apart = np.abs(got - getattr(exact, name))
            if name == "indices":
                ratios.append(np.inf if np.any(apart[decided]) else 0.0)
            else:
                within = 2 * allowed[name]
                ratios.append(float(np.max(np.where(apart == 0, 0, apart / within))))
    return float(np.max(ratios))  # NaN, which `max` passes over


def test_agrees_with_the_definition(chromium: Any, playgrounds: Path) -> None:
    cases = [draw_setting(seed) for seed in range(200)]
    assert np.mean([np.isfinite(bound(case)["weights"]).mean() for case in cases]) > 0.99  # choices that are decided
    assert largest_ratio(chromium, playgrounds, 200) <= 1


def test_nan_and_ties_fall_as_in_the_definition(chromium: Any, playgrounds: Path) -> None:
    cases = []
    for seed in range(300):
        case, rng = draw_setting(seed), np.random.default_rng(seed)
        x = case.inputs["x"]
        x[:] = np.round(x)  # equal numbers
        x[rng.random(x.shape) < 0.1] = rng.choice((np.nan, np.inf, -np.inf))
        cases.append(case)
    ties = spoiled = 0
    for case, answer in zip(cases, routes(chromium, playgrounds, cases), strict=True):
        exact, x = define_routes(case), case.inputs["x"]
        spoiled += bool(np.isnan(exact.weights).any())
        # The last bit of an exponential may decide between sums of equal numbers, but not between equal numbers.
        plain = case.options["groups"] == 1 and "choice_bias" not in case.inputs
        ties += plain and len(np.unique(x[0])) < x.shape[1]
        for n, token in enumerate(answer):
            if plain:
                assert token["indices"] == exact.indices[n].tolist()
            np.testing.assert_array_equal(np.isnan(token["weights"]), np.isnan(exact.weights[n]))
            np.testing.assert_array_equal(np.isnan(token["scores"]), np.isnan(exact.scores[n]))
    assert ties >= 10
    assert spoiled >= 10


def test_a_full_expert_takes_the_first(chromium: Any, playgrounds: Path) -> None:
    rng = np.random.default_rng(0)
    with browser.opened(chromium, playgrounds / "routing_playground.html") as watched:
        for capacity in (1, 2, 3, None):
            indices = np.array([np.sort(rng.choice(5, 2, replace=False)) for _ in range(7)])
            found = watched.page.evaluate(TAKEN, {"indices": indices.tolist(), "experts": 5, "capacity": capacity})
            assert np.array_equal(found, taken_places(indices, 5, np.ones(7, bool), capacity))


REFUSED: tuple[dict[str, Any], ...] = (
    {"chosen": 0}, {"chosen": 7}, {"groups": 0}, {"groups": 4}, {"groups": 2, "chosen_groups": 0},
    {"groups": 2, "chosen_groups": 3}, {"groups": 2, "chosen": 4}, {"scale": np.inf}, {"scoring": "none"},
)  # fmt: skip


def test_the_same_words_as_the_definition(chromium: Any, playgrounds: Path) -> None:
    with browser.opened(chromium, playgrounds / "routing_playground.html") as watched:
        for options in REFUSED:
            with pytest.raises(ValueError, match=r"\w") as refused:
                reference_numpy.route(np.ones((1, 6)), Linear(np.eye(6), None), **{"chosen": 2} | options)
            call = "route_by_logits([[1, 1, 1, 1, 1, 1]], options)"
            told = watched.page.evaluate(
                f"options => {{ try {{ {call} }} catch (error) {{ return error.message }} }}", {"chosen": 2} | options
            )
            assert told == str(refused.value)


# --- the page ---------------------------------------------------------------------------------------------------------

WEIGHTS = """[...document.querySelectorAll("#weights tbody tr")].map(
    row => [...row.querySelectorAll("td")].map(cell => Number(cell.dataset.value ?? 0)))"""


def check_shown(page: Any, **options: Any) -> None:
    """The weights on the page are those of the definition, with these options."""
    logits = np.array(page.evaluate("page.setting.logits"), float)
    X, bias = logits.shape[1], options.pop("choice_bias", None)
    inputs = {"x": logits, "router.weight": np.eye(X)} | ({} if bias is None else {"choice_bias": np.array(bias)})
    case = Case("route", "float64", inputs, DEFAULTS | options)
    exact = define_routes(case)
    expected = np.zeros(logits.shape)
    np.put_along_axis(expected, exact.indices, exact.weights, axis=1)
    shown = np.array(page.evaluate(WEIGHTS), float)
    np.testing.assert_array_equal(np.isnan(shown[:, :X]), np.isnan(expected))
    sound = ~np.isnan(logits).any(axis=1)
    plain = Case("route", "float64", inputs | {"x": logits[sound]}, case.options)
    allowed = np.zeros((sound.sum(), X))
    np.put_along_axis(allowed, exact.indices[sound], 2 * bound(plain)["weights"], axis=1)
    assert np.all(np.abs(shown[sound, :X] - expected[sound]) <= allowed)


PRESETS: dict[str, dict[str, Any]] = {
    "two": {},
    "scores": {"chosen": 4, "weighting": "scores"},
    "logits": {"chosen": 4, "scoring": "none", "weighting": "softmax"},
    "bias": {"scoring": "sigmoid", "choice_bias": [0, 0, 0, 0, 0.7, 0, 0, 0]},
    "groups": {"chosen": 4, "scoring": "sigmoid", "groups": 4, "chosen_groups": 2, "scale": 2.5},
    "tie": {},
    "nan": {},
    "capacity": {},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_ready_made_settings_and_their_addresses(preset: str, chromium: Any, playgrounds: Path) -> None:
    file = playgrounds / "routing_playground.html"
    with browser.opened(chromium, file) as (page, errors, requests):
        page.click(f'[data-preset="{preset}"]')
        check_shown(page, **PRESETS[preset])
        page.wait_for_timeout(300)  # the address follows after a moment
        kept, fragment = page.evaluate("page.setting"), page.evaluate("location.hash")
        assert (errors, requests) == ([], [])
    with browser.opened(chromium, file, fragment=fragment) as watched:
        check_shown(watched.page, **PRESETS[preset])
        assert str(watched.page.evaluate("page.setting")) == str(kept)


def test_every_control(chromium: Any, playgrounds: Path) -> None:
    with browser.opened(chromium, playgrounds / "routing_playground.html", fragment="#two") as (page, errors, _):
        page.fill('[aria-label="logits, token 1, expert 3"]', "4.5")
        check_shown(page)
        options: dict[str, Any] = {}
        for name, value in (("scale", -0.5), ("groups", 4), ("chosen_groups", 3), ("chosen", 3)):
            page.fill(f'[data-path="{name}"]', str(value))
            options[name] = value
            check_shown(page, **options)
        for name, value in (("scoring", "sigmoid"), ("weighting", "scores"), ("group_score", "largest")):
            page.select_option(f'[data-path="{name}"]', value)
            options[name] = value
            check_shown(page, **options)
        page.check('[data-optional="choice_bias"]')
        page.fill('[aria-label="choice_bias, bias, expert 6"]', "2")
        options["choice_bias"] = [0, 0, 0, 0, 0, 0, 2, 0]
        check_shown(page, **options)
        for name, size in (("N", "3"), ("X", "12")):
            page.fill(f'[data-size="{name}"]', size)
            page.dispatch_event(f'[data-size="{name}"]', "change")
        options["choice_bias"] += [0] * 4
        check_shown(page, **options)
        assert page.evaluate("page.setting.logits[1][3]") == 4.5
        page.uncheck('[data-optional="choice_bias"]')
        del options["choice_bias"]
        check_shown(page, **options)
        assert errors == []


def read_load(page: Any) -> list[int]:
    return [int(text) for text in page.locator("#load tbody td").all_inner_texts()]


def test_a_bias_makes_an_expert_chosen_that_none_chose(chromium: Any, playgrounds: Path) -> None:
    with browser.opened(chromium, playgrounds / "routing_playground.html", fragment="#bias") as watched:
        page = watched.page
        assert (read_load(page)[4], sum(read_load(page))) == (5, 10)
        assert page.inner_text("#summary") == "At most 5 tokens go to one expert, and none to 3 of 8."
        page.fill('[aria-label="choice_bias, bias, expert 4"]', "0")
        assert (read_load(page)[4], sum(read_load(page))) == (0, 10)


def test_groups_that_are_not_chosen_are_hatched(chromium: Any, playgrounds: Path) -> None:
    with browser.opened(chromium, playgrounds / "routing_playground.html", fragment="#groups") as watched:
        page = watched.page
        chosen = page.evaluate("route_by_logits(page.setting.logits, page.setting).map(one => one.candidates)")
        hatched = page.evaluate(HATCHED)
        assert hatched == [[3 * group not in token for group in range(4)] for token in chosen]
        page.select_option('[data-path="group_score"]', "largest")
        assert page.evaluate(HATCHED) != hatched


HATCHED = """[...document.querySelectorAll("#groups tbody tr")].map(
    row => [...row.querySelectorAll("td")].map(cell => cell.classList.contains("forbidden")))"""


def test_full_experts_are_told(chromium: Any, playgrounds: Path) -> None:
    with browser.opened(chromium, playgrounds / "routing_playground.html", fragment="#capacity") as (page, *_):
        indices = np.array(page.evaluate("route_by_logits(page.setting.logits, page.setting).map(one => one.indices)"))
        taken = taken_places(indices, 4, np.ones(8, bool), 2)
        assert len(page.query_selector_all("#weights .dropped")) == indices.size - taken.sum() > 0
        assert f"{indices.size - taken.sum()} of {indices.size} choices" in page.inner_text("#summary")
        assert read_load(page) == taken.sum(axis=0).tolist()
        assert "At most 2 tokens go to one expert, and at least 1 to each." in page.inner_text("#summary")
        page.fill('[data-path="capacity"]', "0")
        assert "capacity must be at least 1, got 0" in page.inner_text("#refusal")
        assert page.query_selector("#computed figure") is None


@pytest.mark.parametrize(
    "fragment",
    ["sizes=", "sizes=2,99&logits=1", "sizes=1,2&logits=1", "sizes=1,2&logits=1,x", "sizes=1,2&scoring=<b>",
     "sizes=1,4&chosen=5", "sizes=1,4&groups=3", "sizes=1,4&chosen=1.5", "sizes=1,4&choice_bias=1", "nothing"],
)  # fmt: skip
def test_an_address_that_holds_no_setting(fragment: str, chromium: Any, playgrounds: Path) -> None:
    with browser.opened(chromium, playgrounds / "routing_playground.html", fragment=f"#{fragment}") as watched:
        assert watched.page.is_visible("#refusal") == (fragment != "nothing")
        check_shown(watched.page)
        assert watched.errors == []


# --- what the tests can see -------------------------------------------------------------------------------------------


def check_agreement(chromium: Any, folder: Path) -> None:
    assert largest_ratio(chromium, folder, 60) <= 1


PLANTED: dict[str, tuple[str, str, str, Callable[[Any, Path], None]]] = {
    "softmax without division": ("routing.js", "number / total", "number", check_agreement),
    "bias in the weights": ("routing.js", "[row, scores].map", "[row, preferences].map", check_agreement),
    "groups by their largest": ("routing.js", '"two_largest" ? -2 : -1', '"two_largest" ? -1 : -1', check_agreement),
    "groups left out": ("routing.js", "best_groups.includes(Math.floor(x / size))", "true", check_agreement),
    "scale left out": ("routing.js", "weight * all.scale", "weight", check_agreement),
    "weights that are NaN": ("routing.js", "weight * all.scale", "NaN", check_agreement),
    "the smallest": ("routing.js", "compare(-numbers[i], -numbers[j])", "compare(numbers[i], numbers[j])",
          check_agreement),
    "a tie to the last": ("routing.js", "|| i - j", "|| j - i", test_nan_and_ties_fall_as_in_the_definition),
    "NaN chosen by": ("routing.js", "choice.spoiled ? NaN : ", "", test_nan_and_ties_fall_as_in_the_definition),
    "one place too many": ("routing.js", "+= 1) <= capacity", "+= 1) <= capacity + 1",
          test_a_full_expert_takes_the_first),
    "weights of the neighbour": ("routing_page.js", "weights[indices.indexOf(x)]", "weights[x]",
          partial(test_ready_made_settings_and_their_addresses, "two")),
    "an address without its options": ("routing_settings.js", "if (setting[name] !== plain[name])", "if (false)",
          partial(test_ready_made_settings_and_their_addresses, "scores")),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(fault: str, chromium: Any, tmp_path: Path) -> None:
    name, right, wrong, check = PLANTED[fault]
    browser.faulty_playground(tmp_path, name, right, wrong, which="routing_playground")
    with pytest.raises(AssertionError):
        check(chromium, tmp_path)
