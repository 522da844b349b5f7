"""What stands behind a mask does no harm in any engine, whatever it is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from conformance.cases.expectations import Exact, Planted, allowed_pairs, expectation
from conformance.peers.engines import Engine
from specification import Causal, Dense, KeyLengths, SlidingWindow
from tests.support.engine_cases import (
    BLOCKED,
    ENGINES,
    FUSED,
    PIECES,
    RNG,
    SIZES,
    SQUARE,
    H,
    K,
    Q,
    conforms,
    drawn,
    error,
    every_engine,
    subject,
    worst,
)
from tests.support.helpers import Case, Finding, Sizes, truth_and_bounds
from tests.support.helpers import judge as judged

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def hiding() -> dict[str, Case]:
    """Masks that hide some keys from all queries and others from some, and leave queries without any key."""
    dense = RNG.random((Q, K)) < 0.6
    dense[:, 7] = dense[5] = False
    masks = {
        "none": None,
        "dense": Dense(dense),
        "window": SlidingWindow(2, 1, -3),
        "lengths": KeyLengths(np.array([0, 11])) & Causal(5),
    }
    cases = {name: drawn(mask) for name, mask in masks.items()} | {
        "upper left": drawn(Causal(), sizes=SQUARE),
        "few queries": drawn(None, sizes=SIZES._replace(Q=2)),
        "sinks": drawn(Causal(-5), sinks=True),
    }
    for case in cases.values():  # so that a product with the largest number there is leaves the range
        case.inputs["query"][...] *= 3
        case.cotangents["output"][...] *= 3
    return cases


HIDING = hiding()
SPECIAL = (np.nan, np.inf, -np.inf, 3e38)
ISOLATED = [
    pytest.param(engine, name, id=f"{engine.title}: {name}")
    for engine in ENGINES
    for name in (("dense", "few queries", "sinks") if engine is PIECES else HIDING)
    if not (name == "sinks" and engine is FUSED)
]


@cache
def truth_of_hiding(name: str) -> tuple[dict[str, Exact], dict[str, np.ndarray]]:
    return truth_and_bounds(HIDING[name])


def spoiled(case: Case, name: str, place: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Where a NaN at that place of an input or of the cotangent must show, by result and gradient."""
    marks = {key: np.zeros(case.inputs[key].shape, bool) for key in ("query", "key", "value")}
    allowed, zeros = allowed_pairs(case), np.zeros
    if name != "cotangent":
        marks[name][place] = True
        clean = {n: Exact(zeros(a.shape), zeros(a.shape)) for n, a in like_results(case).items()}
        expected = expectation(Planted(case, case, allowed, marks), clean)
        return {n: np.isnan(exact.high) for n, exact in expected.items()}
    b, h, row, feature = place
    group, seen = h // (allowed.shape[1] // marks["key"].shape[1]), allowed[b, h, row]
    found = {n: zeros(a.shape, bool) for n, a in like_results(case).items()}
    found["gradient of query"][b, h, row] = seen.any()
    found["gradient of key"][b, group] = seen[:, None]
    found["gradient of value"][b, group, :, feature] = seen
    if "gradient of sinks" in found:
        found["gradient of sinks"][h] = seen.any()
    return found


@cache
def spoiled_of_hiding(name: str, argument: str, place: tuple[int, ...]) -> dict[str, np.ndarray]:
    return spoiled(HIDING[name], argument, place)


def like_results(case: Case) -> dict[str, np.ndarray]:
    """An array in the shape of every result and gradient."""
    return {"output": case.cotangents["output"]} | {f"gradient of {n}": array for n, array in case.inputs.items()}


def isolated(engine: Engine, name: str, argument: str) -> Finding:
    """The worst finding for special numbers in every third row: NaN where it must show, elsewhere what was there.

    An infinite value makes NaN of the output (ATT-10). Elsewhere infinity shows as what arithmetic makes of it, and so
    does a number too large for that, but only where NaN would.
    """
    case, (truth, bounds), asked, findings = HIDING[name], truth_of_hiding(name), subject(engine), []
    array = case.cotangents["output"] if argument == "cotangent" else case.inputs[argument]
    heads, rows = array.shape[1:3]
    for b, row, number in itertools.product(range(len(array)), range(0, rows, 3), SPECIAL):
        place = (b, b % heads, min(row + b, rows - 1), b)
        wrong = spoiled_of_hiding(name, argument, place)
        dirty = array.copy()
        dirty[place] = number
        inputs, cotangents = case.inputs | {argument: dirty}, case.cotangents
        if argument == "cotangent":
            inputs, cotangents = case.inputs, {"output": dirty}
        planted = replace(case, inputs=inputs, cotangents=cotangents, special=True)
        answers = asked(planted)
        if not np.isnan(number):
            exact = ("output",) if argument == "value" and np.isinf(number) else ()
            answers = {n: a if n in exact else np.where(wrong[n], np.float32(np.nan), a) for n, a in answers.items()}
        expected = {
            n: Exact(np.where(wrong[n], np.nan, e.high), np.where(wrong[n], 0, e.low)) for n, e in truth.items()
        }
        findings.append(worst(judged(planted, answers, expected, bounds)))
    return worst(findings)


@pytest.mark.parametrize(("engine", "name"), ISOLATED)
@pytest.mark.parametrize("argument", ["query", "key", "value", "cotangent"])
@pytest.mark.rule("MASK-7", "ATT-6", "ATT-10", "ATT-12")
@pytest.mark.slow_where("upper left", unless=("query", "cotangent"))
@pytest.mark.slow_where("upper left", "blocked")
@pytest.mark.slow_where("jax_impl", "few queries")
@pytest.mark.slow_where("window")
@pytest.mark.slow_where("value")
@pytest.mark.slow_where("jax_impl", "pieces of 6", unless="dense")
@pytest.mark.slow_where("torch_impl, blocked")
@pytest.mark.slow_where("query-jax_impl")
def test_isolation(engine: Engine, name: str, argument: str) -> None:
    conforms(isolated(engine, name, argument))


def long_sequences_hide(package: str) -> None:
    """NaN among thousands of numbers is still seen, by whatever looks for it: where it must not show, it does not."""
    case = drawn(KeyLengths(np.array([1500])), sizes=Sizes(1, 1, 1, 1024, 2048, 64, 64))
    query, key, value = case.inputs.values()
    cotangent, hidden, asked = case.cotangents["output"], slice(1501, 1504), subject(Engine(package, "auto"))
    dirty = [array.copy() for array in (query, key, value, cotangent)]
    dirty[1][:, :, hidden] = dirty[2][:, :, hidden] = np.nan

    def answers(*given: Any) -> list[np.ndarray]:
        case_of = replace(case, inputs=dict(zip(case.inputs, given[:3], strict=True)), cotangents={"output": given[3]})
        return list(asked(case_of).values())

    assert all(np.isfinite(found).all() for found in answers(*dirty))
    dirty = [query, key, value, cotangent.copy()]
    dirty[3][0, 0, 7, 3] = np.nan
    output, of_query, of_key, of_value = answers(*dirty)
    assert np.isfinite(output).all()
    np.testing.assert_array_equal(np.isnan(of_query).any(-1)[0, 0], np.arange(1024) == 7)
    for gradient in (of_key, of_value):
        np.testing.assert_array_equal(np.isnan(gradient).any(-1)[0, 0], np.arange(2048) < 1500)


@pytest.mark.parametrize("package", ["torch_impl", "jax_impl"])
@pytest.mark.rule("MASK-7")
def test_long_sequences_hide_as_short_ones_do(package: str) -> None:
    long_sequences_hide(package)


@pytest.mark.parametrize("engine", [BLOCKED, PIECES], ids=lambda engine: engine.package)
@pytest.mark.parametrize("number", SPECIAL)
@pytest.mark.rule("MASK-7", "ATT-3")
def test_a_bias_behind_the_mask_counts_for_nothing(engine: Engine, number: float) -> None:
    case = drawn(HIDING["dense"].options["mask"], bias=(1, H, Q, K))
    bias = np.where(allowed_pairs(HIDING["dense"])[:1], case.inputs["bias"], np.float32(number))
    dirty = replace(case, inputs=case.inputs | {"bias": bias}, special=True)
    conforms(error(engine, dirty, truth_and_bounds(case)))


@pytest.mark.parametrize("engine", [BLOCKED, PIECES], ids=lambda engine: engine.package)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.rule("ATT-5", "ATT-6", "ATT-10")
def test_special_sinks(engine: Engine, number: float) -> None:
    """The rows of that head are NaN, or as without a sink; those that may attend to nothing are 0 all the same."""
    case = drawn(HIDING["dense"].options["mask"], sinks=True)
    case.inputs["sinks"][1] = number
    case = replace(case, special=True, cotangents={})
    conforms(error(engine, case))


@every_engine
@pytest.mark.parametrize("argument", ["query", "key"])
@pytest.mark.parametrize("number", [3e38, -3e38])
@pytest.mark.rule("ATT-10")
def test_scores_out_of_range_do_what_they_do_in_the_reference(engine: Engine, argument: str, number: float) -> None:
    """Finite inputs whose products are infinite: NaN in the rows of +inf, 0 in those of nothing but -inf."""
    case = drawn(Dense(HIDING["dense"].options["mask"].array) if engine is PIECES else None)
    case = replace(case, cotangents={}, special=True)
    other = case.inputs["key" if argument == "query" else "query"][..., 0]
    other[...] = np.abs(other) + 2
    other[1] *= -1
    case.inputs[argument][..., 0] = number
    reference, got = (subject(one)(case)["output"] for one in (engine._replace(name="reference"), engine))
    assert np.isnan(reference).any()
    assert (reference == 0).any()
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(reference))
    np.testing.assert_array_equal(got == 0, reference == 0)


LARGE = [
    *(pytest.param(engine, False, id=engine.title) for engine in ENGINES),
    pytest.param(PIECES._replace(name="reference"), True, id="jax_impl, reference, compiled"),
    pytest.param(PIECES, True, id="jax_impl, blocked, compiled"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "jit"), LARGE)
@pytest.mark.parametrize("size", [3e3, 3e4, 1e8])
@pytest.mark.rule("ATT-10", "ATT-12")
def test_large_scores_are_rounded_and_do_no_other_harm(engine: Engine, jit: bool, size: float) -> None:
    """They are computed more than once, and need not be rounded alike each time."""
    for width, mask in ((8, None), (33, None), (8, Causal())):
        case = drawn(mask, sizes=Sizes(1, 2, 2, 16, 16, width, width))
        for name in ("query", "key"):
            case.inputs[name][...] *= np.float32(size)
        finding = worst(judged(case, subject(engine, jit=jit)(case), *truth_and_bounds(case)))
        assert finding.ratio <= 1, f"{width}, {mask}: {finding}"


@pytest.mark.parametrize("engine", [*ENGINES], ids=lambda engine: engine.title)
@pytest.mark.rule("MASK-7", "ATT-12")
def test_sums_beyond_float32_stay_behind_the_mask(engine: Engine) -> None:
    """Of d_output . value, and its difference from sum(d_output * output), for a pair that is forbidden."""
    root = np.float32(np.sqrt(3.4028e38))
    case = drawn(Dense(np.array([[True, False], [True, True]])), sizes=Sizes(1, 1, 1, 2, 2, 1, 1))
    for share in (0.999, 0.7):
        case.inputs["query"][...] = case.inputs["key"][...] = 1
        case.inputs["value"][...] = np.array([-1, 1], "float32")[:, None] * root * np.float32(share * 0.5**0.5)
        case.cotangents["output"][...] = np.array([root * np.float32(share), 0], "float32")[:, None]
        with np.errstate(over="ignore"):
            conforms(error(engine, case))
