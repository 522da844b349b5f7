"""The catalogue of known mistakes is sound: names, sentences, and predictions for any case of their operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from conformance.cases.arguments import replace_kernel_arguments
from conformance.cases.declaration import FEATURES
from conformance.cases.facts import convert_dtype
from conformance.cases.signatures import refuse_meaningless
from conformance.checks.levels import JUDGED
from conformance.judge import plan
from conformance.mistakes import catalogue, condition, precision
from conformance.mistakes.call import Call
from conformance.mistakes.mistake import ATTENTION
from conformance.mistakes.planting import PlantedMistake, PlantedSubject
from conformance.operations import corpus
from conformance.oracle import reference
from conformance.reports.causes import mistake_content
from conformance.sampling.draws import draw_from_seed
from specification.dtypes import FLOATING
from tests.support.helpers import (
    CHECKS,
    EVERYTHING,
    OPERATIONS,
    Case,
    Mistake,
    NumpySubject,
    Planted,
    attention_case,
    bound,
    draw_cases,
    operation_cases,
)

DRAWN, FROZEN = 8, 3
"""Cases of each operation that are drawn, and frozen ones of each check, of which some have special values."""
LARGEST = 2**14
ASKED = [CHECKS[name] for name in ("agreement", "empty rows", "planted", "twin")]


@cache
def calls_of(operation: str) -> list[Call]:
    """Small cases of an operation, each with its exact results, which all mistakes share."""
    dtypes = [dtype for dtype in FLOATING if dtype != "float64"]  # whose exact results are slow
    cases = [case for _, case in draw_cases(operation_cases(operation, dtypes), 2 * DRAWN, 1)]
    calls = [Call(case) for case in cases if number_count(case) < LARGEST][:DRAWN]
    calls += [Call(case) for case in empty_cases(operation)]
    with_one_feature = [draw_from_seed(claim.cases, 1, False) for claim in plan.feature_claims(operation, EVERYTHING)]
    calls += [Call(case) for cases in with_one_feature for case in cases]
    calls += [call_in_float64(case) for cases in with_one_feature for case in cases]
    entries = [entry for entry in corpus.entries_for({operation}, EVERYTHING) if number_count(entry.case) < LARGEST]
    for check in ASKED:
        frozen = [entry.example for entry in entries if entry.check == check]
        calls += [call_of(check, example) for example in frozen[:: max(1, len(frozen) // FROZEN)]]
    return calls


@cache
def calls_on_ranks() -> list[Call]:
    """The cases of attention on two and three ranks, which have parts of the sequence or of the heads."""
    spread = [(2, "sequence"), (3, "zigzag"), (2, "heads")]
    return [
        Call(replace(call.case, rounding={"ranks": str(ranks), "shard": shard}))
        for ranks, shard in spread
        for call in calls_of("attention")
    ]


def empty_cases(operation: str) -> list[Case]:
    """Of attention, a case with each size that may be 0."""
    found = []
    for axis in "BHQK" if operation in ATTENTION else "":
        B, H, Q, K = (0 if axis == other else 2 for other in "BHQK")
        shapes = {"query": (B, H, Q, 3), "key": (B, H, K, 3)}
        shapes |= {"value": (B, H, K, 3)} if operation == "attention" else {}
        found.append(Case(operation, "float32", {name: np.ones(shape, "float32") for name, shape in shapes.items()}))
    return found


def call_in_float64(case: Case) -> Call:
    """The call in float64, compared with the definition: exact results are slow there."""
    wide = convert_dtype(case, "float64")
    return Call.make(wide, reference.evaluate_definition(replace_kernel_arguments(wide)), bound(wide))


def call_of(check: Any, example: Any) -> Call:
    """The call of an example that its check asks, with what the check compares it with."""
    *_, exact, bounds = check.prepare(example)
    case = example.planted if isinstance(example, Planted) else example[0] if isinstance(example, tuple) else example
    return Call.make(case, exact, bounds)


def number_count(case: Case) -> int:
    return sum(array.size for array in case.inputs.values())


def some_variants(mistake: Mistake) -> list[Mistake]:
    """All of a few, else the first, one of the middle and the last."""
    variants = [*mistake.variants()]
    return variants if len(variants) < 4 else [variants[0], variants[len(variants) // 2], variants[-1]]


# --- entries ----------------------------------------------------------------------------------------------------------


def test_identities_are_unique_and_made_of_words() -> None:
    ids = [mistake.id for mistake in catalogue.known_mistakes()]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert [name for name in ids if not re.fullmatch(r"[a-z][a-z_]*\.[a-z0-9]+(-[a-z0-9]+)*", name)] == []


@pytest.mark.parametrize("topic", catalogue.TOPICS)
def test_entries_speak_of_what_exists(topic: str) -> None:
    for mistake in catalogue.load_topic(topic).MISTAKES:
        assert mistake.rule in JUDGED, mistake
        assert mistake.operations, mistake
        assert {*mistake.operations} <= OPERATIONS.keys() & {*catalogue.TOPICS[topic]}, mistake
        assert all(mistake in catalogue.mistakes_of(operation) for operation in mistake.operations)
        assert not mistake.values, mistake
        assert mistake.condition == condition.ALWAYS, mistake
        assert mistake.lacks in ("", "BHTD", *FEATURES), mistake


def test_what_an_implementation_with_a_mistake_lacks_may_be_declared() -> None:
    for mistake in catalogue.known_mistakes():
        options = {"layout": "BTHD"} if mistake.lacks == "BHTD" else {"supports": (f"no-{mistake.lacks}",)}
        for operation in mistake.operations if mistake.lacks else ():
            refuse_meaningless(operation, options)


@pytest.mark.parametrize("topic", catalogue.TOPICS)
def test_every_variant_is_told_in_one_line(topic: str) -> None:
    for mistake in catalogue.load_topic(topic).MISTAKES:
        told = [mistake_content(variant)["says"] for variant in mistake.variants()]
        for says in told:
            assert says, mistake
            assert says == says.strip(), mistake
            assert not re.search(r"[\n{}]|[^.]\.$", says), (mistake, says)
        named = [name for name in mistake.parameters if f"{{{name}" in mistake.says]
        assert named == [*mistake.parameters] or len({*told}) < len(told), f"{mistake}: a parameter is not told"


def test_what_is_planted_stands_in_the_catalogue() -> None:
    entries = {mistake.id: mistake for mistake in catalogue.known_mistakes()}
    for planted in catalogue.planted_mistakes():
        entry = entries[planted.id]
        assert planted.limit(condition.ALWAYS).change is entry.change
        assert planted.values.keys() == entry.parameters.keys(), planted
    told = [(one.operation, one.title) for one in map(PlantedMistake, catalogue.planted_mistakes())]
    assert [one for one, count in Counter(told).items() if count > 1] == []


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", catalogue.TOPICS)
def test_predictions_are_results_of_the_case(topic: str) -> None:
    """Every mistake can be asked about any case of its operations, and every topic shows in some."""
    shown: set[str] = set()
    for operation in catalogue.TOPICS[topic]:
        for mistake in (one for one in catalogue.load_topic(topic).MISTAKES if operation in one.operations):
            for variant in some_variants(mistake):
                for call in calls_on_ranks() if topic == "ranks" else calls_of(operation):
                    for prediction in variant.predict(call):
                        told = f"{variant} of {call.case}"
                        assert prediction.results.keys() <= call.right.keys(), told
                        for name, predicted in prediction.results.items():
                            assert predicted.shape == call.right[name].shape, f"{told}: {name}"
                            bounds = prediction.bounds[name]
                            assert np.broadcast_shapes(bounds.shape, predicted.shape) == predicted.shape, told
                            assert not np.any(bounds < 0), told
                        shown.add(mistake.id)
    assert shown


def attention_call(**options: Any) -> Call:
    return Call(attention_case(1, 2, 2, 3, 5, 2, 3, gradients=True, **options))


NOTHING: dict[str, Callable[[Call], Any]] = {
    "no change": lambda call: None,
    "the same case": lambda call: call.case,
    "the same steps": lambda call: call.steps,
    "the same results": lambda call: call.right,
}


@pytest.mark.parametrize("change", NOTHING.values(), ids=NOTHING)
def test_a_planted_change_of_nothing_gives_the_definitions_answers(change: Callable[[Call], Any]) -> None:
    mistake = Mistake("none.none", "ATT-1", "nothing is wrong", change)
    call = attention_call(scale=0.3)
    own, right = PlantedSubject(mistake)(call.case), NumpySubject()(call.case)
    assert own.keys() == right.keys()
    for name, array in right.items():
        assert own[name].dtype == array.dtype
        np.testing.assert_allclose(own[name], array, atol=float(np.max(call.bounds[name])))
    for prediction in mistake.predict(call):
        assert not any(prediction.differs(name, call.right[name], call.bounds[name]) for name in prediction.results)
        assert all(prediction.agrees(name, array) for name, array in right.items())


@pytest.mark.parametrize(("B", "H"), [(0, 4), (2, 0)])
def test_gradients_of_a_broadcast_bias_of_nothing_are_0(B: int, H: int) -> None:
    shapes = {"query": (B, H, 3, 2), "key": (B, H, 5, 2), "value": (B, H, 5, 3), "bias": (1, 1, 3, 5)}
    inputs = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    call = Call(Case("attention", "float32", inputs, {}, {"output": np.ones((B, H, 3, 3), np.float32)}))
    (prediction,) = Mistake("none.none", "ATT-1", "", lambda call: call.steps).predict(call)
    np.testing.assert_array_equal(prediction.results["gradient of bias"], np.zeros((1, 1, 3, 5)))


UNSCALED = Mistake("scores.unscaled", "ATT-1", "the scale is {scale}",
                   lambda call, scale: call.steps.change(scale=scale), parameters={"scale": (1.0, 2.0)})  # fmt: skip


def test_a_prediction_is_kept_apart_from_what_is_right() -> None:
    call = attention_call()
    (prediction,) = UNSCALED.choose().predict(call)
    assert prediction.differs("output", call.right["output"], call.bounds["output"])
    assert prediction.agrees("output", prediction.results["output"].astype(np.float32))
    assert not prediction.agrees("output", call.right["output"].astype(np.float32))
    assert not prediction.agrees("output", prediction.results["output"][:, :1])
    assert UNSCALED.choose().predict(Call(Case("silu", "float32", {"x": np.ones(3, np.float32)}))) == []


@pytest.mark.parametrize("options", [{}, {"empty_rows": "any"}])
def test_float64_inputs_that_float32_does_not_hold_give_no_number(options: dict[str, Any]) -> None:
    case = attention_case(dtype="float64", **options)
    large = replace(case, inputs=case.inputs | {"value": np.full_like(case.inputs["value"], 1e300)})
    (prediction,) = precision.OWN["float64-in-float32"].choose().predict(Call(large))
    assert not np.isfinite(prediction.results["output"]).any()


def test_a_mistake_that_no_case_has_room_for_predicts_nothing() -> None:
    """Of a case that the definition refuses once it is changed, too."""
    ones = np.ones((2, 3), np.float32)
    call = Call(Case("rms_norm", "float32", {"x": ones, "weight": ones[0]}, {"eps": 1e-5}))
    refused = replace(call.case, inputs={"x": ones, "weight": ones[:, 0]})
    for changed in (None, [None, None], refused):
        mistake = Mistake("none.none", "NORM-1", "", lambda call, changed=changed: changed, ("rms_norm",))
        assert mistake.predict(call) == []


# --- values and conditions --------------------------------------------------------------------------------------------


def test_values_are_chosen() -> None:
    assert [dict(variant.values) for variant in UNSCALED.variants()] == [{"scale": 1.0}, {"scale": 2.0}]
    assert UNSCALED.choose().values == {"scale": 1.0}
    assert str(UNSCALED.choose(scale=2.0)) == "scores.unscaled (scale=2.0)"
    assert mistake_content(UNSCALED.choose(scale=2.0))["says"] == "the scale is 2.0"
    with pytest.raises(ValueError, match="has no parameter block"):
        UNSCALED.choose(block=3)


@pytest.mark.parametrize(
    ("condition", "clauses", "holds"),
    [
        (condition.ALWAYS, 0, True),
        (condition.Condition("K", past=4), 1, True),
        (condition.Condition("K", past=5), 1, False),
        (condition.Condition("K", up_to=5), 1, True),
        (condition.Condition("K", up_to=4), 1, False),
        (condition.past("K", 2, partial=True), 2, True),
        (condition.Condition("K", whole=2), 1, False),
        (condition.Condition("H", past=3), 1, True),
        (condition.Condition("BH", past=4), 1, False),
        (condition.Condition("rows", past=1), 1, False),
        (condition.Condition(dtypes=("float32", "float64")), 1, True),
        (condition.Condition(dtypes=("float16",)), 1, False),
        (condition.Condition(features=("gqa", "scale")), 2, True),
        (condition.Condition(features=("causal",)), 1, False),
        (condition.Condition(lacks=("causal", "bias")), 2, True),
        (condition.Condition(lacks=("gqa",)), 1, False),
        (condition.Condition(passes="backward"), 1, True),
    ],
)
def test_a_condition_holds_for_cases(condition: condition.Condition, clauses: int, holds: bool) -> None:
    call = attention_call(scale=0.3)
    assert (condition.clauses, condition.holds(call)) == (clauses, holds)
    assert bool(UNSCALED.choose().limit(condition).predict(call)) is holds


def test_a_condition_keeps_one_pass() -> None:
    names = {
        passes: {*UNSCALED.choose().limit(condition.Condition(passes=passes)).predict(attention_call())[0].results}
        for passes in ("both", "forward", "backward")
    }
    assert names["forward"] == {"output"}
    assert names["backward"] == {"gradient of query", "gradient of key", "gradient of value"}
    assert names["both"] == names["forward"] | names["backward"]
