"""NaN and infinity where drawn cases do not put them: in scores, biases, sinks, cotangents and merged parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference_numpy
from specification import Causal, Dense, FeedForward, KeyLengths, KeyPadding, Linear
from tests.definition.test_vjp import CASES, Function, with_entry
from tests.definition.test_vjp import Case as Gradients
from tests.definition.test_vjp import inputs as differentiated
from tests.support.helpers import Case, Implementation, bound

B, H, G, Q, K, D, V = 2, 4, 2, 3, 5, 6, 7


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def arrays(**changed: np.ndarray) -> dict[str, np.ndarray]:
    return {"query": floats(B, H, Q, D), "key": floats(B, G, K, D), "value": floats(B, G, K, V), **changed}


COTANGENTS = {"attention": (B, H, Q, V), "attention_weights": (B, H, Q, K), "attention_logsumexp": (B, H, Q)}


def answers(
    implementation: Implementation, operation: str, inputs: dict[str, np.ndarray], cotangent: Any = None, **options: Any
) -> dict[str, np.ndarray]:
    """Results and gradients by name, of attention or its companions."""
    cotangent = floats(*COTANGENTS[operation], seed=1) if cotangent is None else cotangent
    inputs = {name: array for name, array in inputs.items() if name != "value" or operation == "attention"}
    case = Case(operation, "float32", inputs, options, {"output": cotangent}, special=True)
    return implementation.subject(case)


def where_nan(found: dict[str, np.ndarray], name: str, axes: str) -> Any:
    """Along the axes named by their place, where a result or gradient has a NaN."""
    array = np.isnan(found[name])
    return array.any(axis=tuple(axis for axis in range(array.ndim) if str(axis) not in axes))


# --- infinite and missing scores --------------------------------------------------------------------------------------


@pytest.mark.rule("ATT-10")
def test_a_row_of_scores_minus_infinity_has_no_weights(implementation: Implementation) -> None:
    """Each score of -inf has weight 0, so that nothing is left of the row: no output, and a log-sum-exp of -inf."""
    inputs = arrays(key=np.abs(floats(B, G, K, D)) + 1)
    inputs["query"] = with_entry(inputs["query"], (0, 1, 2), -np.inf)
    found = answers(implementation, "attention", inputs)
    assert (found["output"][0, 1, 2] == 0).all()
    assert np.isfinite(found["output"]).all()
    assert (found["gradient of query"][0, 1, 2] == 0).all()
    assert np.isfinite(found["gradient of query"]).all()
    assert np.isfinite(found["gradient of value"]).all()
    weights = answers(implementation, "attention_weights", inputs)["output"]
    assert (weights[0, 1, 2] == 0).all()
    logsumexp = answers(implementation, "attention_logsumexp", inputs)["output"]
    assert np.argwhere(logsumexp == -np.inf).tolist() == [[0, 1, 2]]
    assert np.isfinite(np.delete(logsumexp, 1, axis=1)).all()


@pytest.mark.rule("ATT-10", "ATT-6")
@pytest.mark.parametrize("empty_rows", ["mean", "nan"])
def test_a_row_of_scores_minus_infinity_is_not_filled(implementation: Implementation, empty_rows: str) -> None:
    inputs = arrays(query=np.full((B, H, Q, D), -np.inf, np.float32), key=np.abs(floats(B, G, K, D)) + 1)
    assert (implementation.call("attention", **inputs, empty_rows=empty_rows) == 0).all()


@pytest.mark.rule("ATT-10")
def test_a_score_of_minus_infinity_has_weight_0(implementation: Implementation) -> None:
    """The rest of the row is as without that key; 0 * infinity in the query's gradient is NaN, as IEEE says."""
    inputs = arrays(query=-np.abs(floats(B, H, Q, D)) - 1)
    inputs["key"] = with_entry(inputs["key"], (slice(None), slice(None), 2, 0), np.inf)
    found = answers(implementation, "attention", inputs)
    without = answers(implementation, "attention", inputs, mask=np.zeros((Q, 1)) + np.arange(K) != 2)
    for name in ("output", "gradient of value", "gradient of key"):
        np.testing.assert_array_equal(found[name], without[name])
    gradient = np.isnan(found["gradient of query"])
    assert gradient[..., 0].all()
    assert not gradient[..., 1:].any()


@pytest.mark.rule("ATT-10")
def test_a_score_of_infinity_makes_its_row_nan(implementation: Implementation) -> None:
    inputs = arrays(key=np.abs(floats(B, G, K, D)) + 1)
    inputs["query"] = with_entry(inputs["query"], (1, 3, 0, 2), np.inf)
    found = answers(implementation, "attention", inputs)
    assert np.argwhere(where_nan(found, "output", "012")).tolist() == [[1, 3, 0]]
    assert np.isnan(found["output"][1, 3, 0]).all()


@pytest.mark.rule("ATT-10", "ATT-2")
def test_a_softcap_makes_infinite_scores_finite(implementation: Implementation) -> None:
    """A capped infinity is the cap itself, as a large enough number is."""
    inputs = arrays(query=np.abs(floats(B, H, Q, D)) + 1)
    place = (slice(None), slice(None), 1, 3)
    infinite = answers(
        implementation, "attention", inputs | {"key": with_entry(inputs["key"], place, np.inf)}, softcap=2.0
    )
    large = answers(implementation, "attention", inputs | {"key": with_entry(inputs["key"], place, 1e30)}, softcap=2.0)
    for name in ("output", "gradient of value", "gradient of key"):
        np.testing.assert_array_equal(infinite[name], large[name])


@pytest.mark.rule("ATT-3")
@pytest.mark.parametrize("entry", [np.nan, np.inf])
def test_nan_and_infinity_in_an_allowed_bias_make_the_row_nan(implementation: Implementation, entry: float) -> None:
    bias = with_entry(floats(1, H, Q, K), (0, 2, 1, 3), entry)
    found = answers(implementation, "attention", arrays(bias=bias))
    assert np.argwhere(where_nan(found, "output", "012")).tolist() == [[0, 2, 1], [1, 2, 1]]
    assert np.isnan(found["output"][:, 2, 1]).all()
    logsumexp = answers(implementation, "attention_logsumexp", arrays(bias=bias))["output"]
    assert (np.isnan(logsumexp) | (logsumexp == np.inf))[:, 2, 1].all()
    assert np.isfinite(np.delete(logsumexp, 2, axis=1)).all()


@pytest.mark.rule("ATT-5", "ATT-6")
@pytest.mark.parametrize("operation", COTANGENTS)
@pytest.mark.parametrize("mask", [None, Causal(0), KeyLengths(np.array([0, 4]))], ids=["none", "causal", "empty"])
def test_a_sink_of_minus_infinity_changes_nothing(implementation: Implementation, operation: str, mask: Any) -> None:
    """Also in a row that allows nothing; its own gradient is 0."""
    some = np.array([-np.inf, 0.5, -np.inf, -1], np.float32)
    found = answers(implementation, operation, arrays(sinks=some), mask=mask)
    without = answers(implementation, operation, arrays(), mask=mask)
    with_finite = answers(implementation, operation, arrays(sinks=np.where(np.isinf(some), 1, some)), mask=mask)
    assert (found["gradient of sinks"][[0, 2]] == 0).all()
    np.testing.assert_array_equal(found["gradient of sinks"][[1, 3]], with_finite["gradient of sinks"][[1, 3]])
    for name in ("output", "gradient of query"):
        np.testing.assert_array_equal(found[name][:, [0, 2]], without[name][:, [0, 2]])
    for name in found:
        assert not np.isnan(found[name]).any()


@pytest.mark.rule("ATT-5", "ATT-6", "ATT-10")
@pytest.mark.parametrize("entry", [np.nan, np.inf])
def test_a_sink_of_nan_or_infinity(implementation: Implementation, entry: float) -> None:
    """Every row of its head that attends to anything is NaN; what an empty row gives is still 0."""
    sinks = np.array([0.5, entry, -1, 0], np.float32)
    found = answers(implementation, "attention", arrays(sinks=sinks), mask=Causal(-1))
    expected = np.zeros((B, H, Q), bool)
    expected[:, 1, 1:] = True
    np.testing.assert_array_equal(np.isnan(found["output"]), np.broadcast_to(expected[..., None], (B, H, Q, V)))
    assert (found["output"][:, :, 0] == 0).all()


# --- what a NaN in a cotangent reaches --------------------------------------------------------------------------------


@pytest.mark.rule("ATT-12", "MASK-7")
@pytest.mark.parametrize("entry", [np.nan, np.inf])
@pytest.mark.parametrize("mask", [Causal(0), Causal(-2)], ids=["causal", "some rows empty"])
def test_what_a_nan_in_a_cotangent_reaches(implementation: Implementation, entry: float, mask: Any) -> None:
    """The gradients of its query, and of the keys and values that this query attends to; of the values one feature."""
    for row in range(Q):
        cotangent = with_entry(floats(B, H, Q, V), (1, 2, row, 4), entry)
        found = answers(implementation, "attention", arrays(), cotangent, mask=mask)
        seen = np.arange(K) <= row + mask.offset
        queries, keys = np.zeros((B, H, Q), bool), np.zeros((B, G, K), bool)
        queries[1, 2, row], keys[1, 1] = seen.any(), seen
        values = np.zeros((B, G, K, V), bool)
        values[1, 1, :, 4] = seen
        np.testing.assert_array_equal(~np.isfinite(found["gradient of query"]).all(axis=-1), queries)
        np.testing.assert_array_equal(~np.isfinite(found["gradient of key"]).all(axis=-1), keys)
        np.testing.assert_array_equal(~np.isfinite(found["gradient of value"]), values)


@pytest.mark.rule("ATT-12", "MASK-7")
@pytest.mark.parametrize("operation", ["attention_weights", "attention_logsumexp"])
def test_what_a_nan_in_a_companions_cotangent_reaches(implementation: Implementation, operation: str) -> None:
    cotangent = with_entry(floats(*COTANGENTS[operation]), (1, 2, 1), np.nan)
    found = answers(implementation, operation, arrays(), cotangent, mask=Causal(0))
    assert np.argwhere(where_nan(found, "gradient of query", "012")).tolist() == [[1, 2, 1]]
    assert np.argwhere(where_nan(found, "gradient of key", "012")).tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.rule("ATT-12", "MASK-7")
def test_a_forbidden_weights_cotangent_reaches_nothing(implementation: Implementation) -> None:
    """A weight that is 0 because its pair is forbidden depends on nothing."""
    cotangent = with_entry(floats(B, H, Q, K), (slice(None), slice(None), 0, slice(2, None)), np.nan)
    found = answers(implementation, "attention_weights", arrays(sinks=floats(H)), cotangent, mask=Causal(0))
    for name, array in found.items():
        assert np.isfinite(array).all(), name


# --- readings of empty rows -------------------------------------------------------------------------------------------


@pytest.mark.rule("ATT-6")
def test_the_mean_over_one_key_is_its_value(implementation: Implementation) -> None:
    inputs = {name: array[:, :, :1] if name != "query" else array for name, array in arrays().items()}
    output = implementation.call("attention", **inputs, mask=KeyLengths(np.array([0, 1])), empty_rows="mean")
    repeated = np.repeat(inputs["value"], H // G, axis=1)
    np.testing.assert_array_equal(output, np.broadcast_to(repeated, output.shape))


@pytest.mark.rule("ATT-6", "MASK-7")
def test_the_mean_attends_to_what_is_hidden(implementation: Implementation) -> None:
    """An empty row reads every value, a hidden NaN too; the other rows do not."""
    value = with_entry(floats(B, G, K, V), (0, 1, 4, 3), np.nan)
    mask = KeyPadding(np.arange(K)[None] < np.array([[4], [4]])) & Dense(np.arange(Q)[:, None] + np.zeros(K) != 1)
    found = answers(implementation, "attention", arrays(value=value), mask=mask, empty_rows="mean")
    assert np.argwhere(np.isnan(found["output"])).tolist() == [[0, 2, 1, 3], [0, 3, 1, 3]]
    for name in ("gradient of query", "gradient of key", "gradient of value"):
        assert np.isfinite(found[name]).all(), name


@pytest.mark.rule("ATT-6", "ATT-12")
def test_the_mean_spreads_a_nan_of_its_cotangent_over_every_value(implementation: Implementation) -> None:
    cotangent = with_entry(floats(B, H, Q, V), (1, 0, 2, 5), np.nan)
    mask = Dense((np.arange(Q)[:, None] + np.zeros(K)) != 2)
    found = answers(implementation, "attention", arrays(), cotangent, mask=mask, empty_rows="mean")
    expected = np.zeros((B, G, K, V), bool)
    expected[1, 0, :, 5] = True
    np.testing.assert_array_equal(np.isnan(found["gradient of value"]), expected)
    assert np.isfinite(found["gradient of query"]).all()
    assert np.isfinite(found["gradient of key"]).all()


# --- merging ----------------------------------------------------------------------------------------------------------


def parts(count: int = 3) -> dict[str, np.ndarray]:
    inputs = {f"outputs[{i}]": floats(B, H, Q, V, seed=i) for i in range(count)}
    return inputs | {f"logsumexps[{i}]": floats(B, H, Q, seed=i) for i in range(count)}


def merged(implementation: Implementation, inputs: dict[str, np.ndarray], **changed: np.ndarray) -> dict[str, Any]:
    cotangents = {"output": floats(B, H, Q, V, seed=8), "logsumexp": floats(B, H, Q, seed=9)} | changed
    return implementation.subject(Case("merge_attention", "float32", inputs, {}, cotangents, special=True))


@pytest.mark.rule("ATT-14")
@pytest.mark.parametrize("entry", [np.nan, np.inf])
def test_nan_in_a_part_that_saw_keys_reaches_the_merged_output(implementation: Implementation, entry: float) -> None:
    """However little the part weighs; in its own feature only."""
    inputs = parts()
    inputs["outputs[1]"] = with_entry(inputs["outputs[1]"], (0, 1, 2, 3), entry)
    inputs["logsumexps[1]"] = with_entry(inputs["logsumexps[1]"], (0, 1, 2), -1000)
    found = merged(implementation, inputs)
    assert np.argwhere(np.isnan(found["output"])).tolist() == [[0, 1, 2, 3]]
    assert np.isfinite(found["logsumexp"]).all()


@pytest.mark.rule("ATT-14")
def test_nan_in_a_log_sum_exp_reaches_both_results(implementation: Implementation) -> None:
    """Attention gives such a log-sum-exp for a row that is NaN; only -inf says that nothing was seen."""
    inputs = parts()
    inputs["logsumexps[2]"] = with_entry(inputs["logsumexps[2]"], (1, 3, 0), np.nan)
    found = merged(implementation, inputs)
    assert np.argwhere(where_nan(found, "output", "012")).tolist() == [[1, 3, 0]]
    assert np.isnan(found["output"][1, 3, 0]).all()
    assert np.argwhere(np.isnan(found["logsumexp"])).tolist() == [[1, 3, 0]]


@pytest.mark.rule("ATT-14", "ATT-12")
def test_what_a_nan_in_a_cotangent_reaches_in_merging(implementation: Implementation) -> None:
    """Every part that saw keys, and none that did not."""
    inputs = parts()
    inputs["logsumexps[1]"] = with_entry(inputs["logsumexps[1]"], (0, 1), -np.inf)
    found = merged(implementation, inputs, output=with_entry(floats(B, H, Q, V), (0, 1, 2, 3), np.nan))
    for i in (0, 2):
        assert np.argwhere(np.isnan(found[f"gradient of outputs[{i}]"])).tolist() == [[0, 1, 2, 3]]
        assert np.argwhere(np.isnan(found[f"gradient of logsumexps[{i}]"])).tolist() == [[0, 1, 2]]
    assert (found["gradient of outputs[1]"][0, 1] == 0).all()
    assert (found["gradient of logsumexps[1]"][0, 1] == 0).all()


# --- every operation --------------------------------------------------------------------------------------------------


@pytest.mark.rule("FFN-1")
@pytest.mark.parametrize("entry", [np.nan, np.inf])
def test_what_a_relu_holds_back_is_0(implementation: Implementation, entry: float) -> None:
    """A cotangent that is no number reaches x through open units alone: none in the first row, one in the second."""
    inputs = {
        "x": np.array([[-1, 2], [3, -4]], np.float32),
        "inner.weight": np.array([[1, 0], [-1, 0]], np.float32),
        "inner.bias": np.array([0, -1], np.float32),
        "outer.weight": np.ones((2, 3), np.float32),
    }
    cotangent = np.full((2, 3), entry, np.float32)
    case = Case("feed_forward", "float32", inputs, {"activation": "relu"}, {"output": cotangent}, special=True)
    found = implementation.subject(case)
    assert (found["output"] == [[0] * 3, [7] * 3]).all()
    assert (found["gradient of x"][0] == 0).all()
    assert not np.isfinite(found["gradient of x"][1]).any()
    assert (found["gradient of inner.weight"][:, 1] == 0).all()
    assert found["gradient of inner.bias"][1] == 0
    assert not np.isfinite(found["gradient of inner.weight"][:, 0]).any()


@pytest.mark.rule("FFN-1")
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_a_gelu_holds_nothing_back(implementation: Implementation, activation: str) -> None:
    """Where its slope is 0 because it is too small for a number, a NaN goes through."""
    names = ("inner.weight", "outer.weight")
    inputs = {"x": np.full((1, 1), -100, np.float32)} | {name: np.ones((1, 1), np.float32) for name in names}
    for cotangent in (np.ones((1, 1), np.float32), np.full((1, 1), np.nan, np.float32)):
        case = Case("feed_forward", "float32", inputs, {"activation": activation}, {"output": cotangent}, special=True)
        gradient = implementation.subject(case)["gradient of x"]
        np.testing.assert_array_equal(gradient, 0 * cotangent)


@pytest.mark.rule("FFN-1")
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gelus_of_infinity(implementation: Implementation, activation: str) -> None:
    """-inf * 0 is NaN; the others go to infinity and to 0."""
    x = np.array([[np.inf], [-np.inf], [3e4], [-3e4]], np.float32)
    parameters = FeedForward(*(Linear(np.ones((1, 1), np.float32)),) * 2)
    output = implementation.call("feed_forward", parameters, x, activation=activation)
    np.testing.assert_array_equal(output, np.array([[np.inf], [np.nan], [3e4], [0]], np.float32))


def silu_case(numbers: Any, dtype: str = "float32") -> Case:
    """With cotangents of 1, so that the gradient is the slope."""
    x = np.array(numbers, dtype)
    return Case("silu", dtype, {"x": x}, {}, {"output": np.ones_like(x)}, special=True)


def of_silu(implementation: Implementation, numbers: Any, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """SiLU and its slope."""
    found = implementation.subject(silu_case(numbers, dtype))
    return found["output"], found["gradient of x"]


DIGITS = {
    0.0: ("0", "0.5"),
    1.0: ("0.73105857863000487925", "0.92767051187148673179"),
    -1.0: ("-0.26894142136999512075", "0.072329488128513268211"),
    -20.0: ("-4.1223072363804071629e-8", "-3.9161918660646783292e-8"),
}
"""By x: x sigmoid(x), and sigmoid(x) + x sigmoid(x) sigmoid(-x)."""
LAST_NORMAL = {
    "float32": {
        -87.5: ("-8.7345570642480916115e-37", "-8.6347335549423991359e-37"),
        -91.5: ("-1.6729231843800723862e-38", "-1.6546398708895797919e-38"),
    },
    "float64": {-714.5: ("-3.5529975928330214748e-308", "-3.5480248880145008010e-308")},
}


@pytest.mark.rule("ACT-1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_silu_of_single_numbers(implementation: Implementation, dtype: str) -> None:
    """Within the bounds. Where exp(-x) overflows and exp(x) is no normal number, x exp(x) still is one."""
    numbers = DIGITS | LAST_NORMAL[dtype]
    case = silu_case(list(numbers), dtype)
    values, slopes = np.array(list(numbers.values()), float).T
    output, slope = of_silu(implementation, list(numbers), dtype)
    allowed = bound(case)
    assert (np.abs(output - values) <= allowed["output"]).all()
    assert (np.abs(slope - slopes) <= allowed["gradient of x"]).all()


@pytest.mark.rule("ACT-1")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_silu_of_infinity_and_nan(implementation: Implementation, dtype: str) -> None:
    """Limits at infinity, where products of infinity and 0 would be NaN; NaN stays NaN."""
    largest = np.finfo(dtype).max
    output, slope = of_silu(implementation, [np.inf, -np.inf, np.nan, largest, -largest], dtype)
    np.testing.assert_array_equal(output, np.array([np.inf, 0, np.nan, largest, 0], dtype))
    np.testing.assert_array_equal(slope, np.array([1, 0, np.nan, 1, 0], dtype))


@pytest.mark.rule("ACT-1")
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 1, 3)])
def test_silu_of_any_shape(implementation: Implementation, shape: tuple[int, ...]) -> None:
    output, slope = of_silu(implementation, np.zeros(shape))
    assert output.shape == slope.shape == shape
    assert (output == 0).all()
    assert (slope == 0.5).all()


@pytest.mark.rule("ATT-10", "NORM-5")
@pytest.mark.parametrize("case", {case.operation: case for case in CASES}.values(), ids=lambda case: case.operation)
@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_special_values_raise_no_warning(case: Gradients, entry: float) -> None:
    """They are legal inputs; what comes of them says so. (Warnings are errors in these tests.)"""
    operation, vjp = (getattr(reference_numpy, case.operation + suffix) for suffix in ("", "_vjp"))
    results = Function(case).results()
    for array in differentiated(case):
        before = array.copy()
        array[..., ::2] = entry
        operation(*case.arguments, **case.options)
        vjp(*case.arguments, *results, **case.options)
        array[...] = before
