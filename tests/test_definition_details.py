"""Details that drawn cases do not meet: infinite scores, NaN in cotangents, sizes of 1, one call's mistakes in another.

Most of these were found by mutation testing (`mutation/`): each kills an edit of the definition that all else let pass.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance.cases import Case
from specification import (
    Causal,
    Dense,
    FeedForward,
    KeyLengths,
    KeyPadding,
    Linear,
    MultiHeadAttention,
    Segments,
    SlidingWindow,
)
from tests.helpers import REFERENCE, Implementation
from tests.test_bad_input import MISTAKES, Mistake
from tests.test_vjp import CASES, Function
from tests.test_vjp import inputs as differentiated

B, H, G, Q, K, D, V = 2, 4, 2, 3, 5, 6, 7

# By its full name: `reference_numpy.attention` is also a function.
pieces = importlib.import_module("reference_numpy.attention")


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def with_entry(array: np.ndarray, index: Any, entry: float) -> np.ndarray:
    array = array.copy()
    array[index] = entry
    return array


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


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[type[BaseException], str]:
    with pytest.raises((TypeError, ValueError)) as refused:
        call(*arguments, **options)
    return refused.type, str(refused.value)


# --- how operations are called ----------------------------------------------------------------------------------------

PUBLIC = [name for name in reference_numpy.__all__ if inspect.isfunction(getattr(reference_numpy, name))]


def parameters(operation: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(reference_numpy, operation)).parameters)


@pytest.mark.parametrize("operation", PUBLIC)
def test_every_argument_may_be_given_by_name(operation: str) -> None:
    assert inspect.Parameter.POSITIONAL_ONLY not in {parameter.kind for parameter in parameters(operation).values()}


@pytest.mark.rule("ATT-12", "NORM-6")
@pytest.mark.parametrize("operation", [name for name in PUBLIC if name.endswith("_vjp")])
def test_gradients_take_the_operations_own_arguments(operation: str) -> None:
    """The cotangents come after the arrays; names, defaults and kinds are those of the operation."""
    given, own = parameters(operation), parameters(operation.removesuffix("_vjp"))
    cotangents = [name for name in given if name.endswith("cotangent")]
    keywords = [name for name, parameter in own.items() if parameter.kind is parameter.KEYWORD_ONLY]
    positional = [name for name in own if name not in keywords]
    passed_on = "options" in given  # as **options, to the operation itself
    expected = [*positional, *cotangents, *(["num_heads", "options"] if passed_on else keywords)]
    assert list(given) == expected
    for name in given.keys() & own.keys():
        assert (given[name].kind, given[name].default) == (own[name].kind, own[name].default)


@pytest.mark.rule("POS-1", "POS-2", "EMB-1", "NORM-1", "ATT-11", "FFN-1")
@pytest.mark.parametrize(
    ("operation", "arguments", "defaults"),
    [
        ("sinusoidal_positions", (3, 4), {"offset": 0, "exponent": "shared", "dtype": "float32"}),
        ("learned_positions", (floats(5, 4), 2), {"offset": 0}),
        ("embedding", (floats(5, 4), np.array([1, 3])), {"scaled": False}),
        ("layer_norm", (floats(3, 4), floats(4), floats(4)), {"eps": 1e-5}),
        ("attention", tuple(arrays().values()), {"mask": None, "dropout_rate": 0.0, "empty_rows": "zero"}),
        ("attention_weights", tuple(arrays().values())[:2], {"mask": None, "empty_rows": "zero"}),
        (
            "feed_forward",
            (FeedForward(Linear(floats(4, 5)), Linear(floats(5, 3))), floats(2, 4)),
            {"activation": "relu", "dropout_keep": None, "dropout_rate": 0.0},
        ),
    ],
)
def test_what_is_left_out(
    implementation: Implementation, operation: str, arguments: tuple[Any, ...], defaults: dict[str, Any]
) -> None:
    """Leaving an option out is the same as giving its default."""
    left_out = implementation.call(operation, *arguments)
    np.testing.assert_array_equal(left_out, implementation.call(operation, *arguments, **defaults))


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


# --- feed-forward networks --------------------------------------------------------------------------------------------


def network_gradients(implementation: Implementation, activation: str, x: np.ndarray, dtype: str = "float32") -> Any:
    """Of a network with 5 inner and 3 outer columns, no biases, and the identity as its first weight."""
    width = x.shape[-1]
    inputs = {"x": x, "inner.weight": np.eye(width), "outer.weight": floats(width, 3)}
    inputs = {name: array.astype(dtype) for name, array in inputs.items()}
    cotangents = {"output": floats(*x.shape[:-1], 3, seed=1).astype(dtype)}
    case = Case("feed_forward", dtype, inputs, {"activation": activation}, cotangents, special=True)
    return inputs | cotangents, implementation.subject(case)


@pytest.mark.rule("FFN-1")
def test_the_slope_of_relu_at_0_is_0(implementation: Implementation) -> None:
    x = np.array([[-1, 0, 2, -0.0]], np.float32)
    given, found = network_gradients(implementation, "relu", x)
    expected = (given["output"] @ given["outer.weight"].T) * (x > 0)
    np.testing.assert_array_equal(found["gradient of x"] == 0, expected == 0)


@pytest.mark.rule("FFN-1", "ATT-8")
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_networks_take_no_rows(implementation: Implementation, activation: str) -> None:
    _, found = network_gradients(implementation, activation, floats(0, 4))
    assert found["output"].shape == (0, 3)
    assert found["gradient of x"].shape == (0, 4)
    assert (found["gradient of outer.weight"] == 0).all()


@pytest.mark.rule("FFN-1")
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gelus_of_infinity(implementation: Implementation, activation: str) -> None:
    """-inf * 0 is NaN; the others go to infinity and to 0."""
    x = np.array([[np.inf], [-np.inf], [3e4], [-3e4]], np.float32)
    parameters = FeedForward(*(Linear(np.ones((1, 1), np.float32)),) * 2)
    output = implementation.call("feed_forward", parameters, x, activation=activation)
    np.testing.assert_array_equal(output, np.array([[np.inf], [np.nan], [3e4], [0]], np.float32))


@pytest.mark.rule("FFN-1", "ATT-9")
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_gradients_are_those_of_the_rounded_pieces(activation: str) -> None:
    """What passes between the two projections has 16 bits, forwards and backwards."""
    x = floats(40, 6, seed=3)
    given, found = network_gradients(REFERENCE, activation, x, "float16")
    identity = FeedForward(*(Linear(np.eye(6, dtype=np.float16)),) * 2)
    hidden = reference_numpy.feed_forward(identity, given["x"], activation=activation)
    expected = hidden.astype(np.float32).T @ given["output"].astype(np.float32)
    np.testing.assert_array_equal(found["gradient of outer.weight"], expected.astype(np.float16))
    # The first weight is the identity, so that x's gradient is what reached the first projection.
    expected = given["x"].astype(np.float32).T @ found["gradient of x"].astype(np.float32)
    np.testing.assert_array_equal(found["gradient of inner.weight"], expected.astype(np.float16))


@pytest.mark.rule("ATT-9", "ATT-11", "FFN-1")
def test_dropout_in_float32_divides_in_float32() -> None:
    """One key, whose weight is 1: what is left is the factor, 1 / (1 - rate) rounded to float32."""
    value, rate = floats(B, G, 1, V), 0.1
    factor = np.float32(1 / (1 - rate))
    keep = np.ones((B, H, Q, 1), bool)
    inputs = {"query": floats(B, H, Q, D), "key": floats(B, G, 1, D), "value": value}
    output = reference_numpy.attention(**inputs, dropout_keep=keep, dropout_rate=rate)
    expected = np.repeat(value * factor, H // G, axis=1)
    np.testing.assert_array_equal(output, np.broadcast_to(expected, output.shape))
    cotangent = floats(B, H, 1, V)
    inputs["query"], keep = inputs["query"][:, :, :1], keep[:, :, :1]
    inputs |= {"key": np.repeat(inputs["key"], H // G, axis=1), "value": np.repeat(value, H // G, axis=1)}
    gradients = reference_numpy.attention_vjp(**inputs, cotangent=cotangent, dropout_keep=keep, dropout_rate=rate)
    np.testing.assert_array_equal(gradients.value, cotangent * factor)
    x = np.abs(floats(30, 1))
    identity = FeedForward(*(Linear(np.ones((1, 1), np.float32)),) * 2)
    options = {"dropout_keep": np.ones((30, 1), bool), "dropout_rate": rate}
    np.testing.assert_array_equal(reference_numpy.feed_forward(identity, x, **options), x * factor)
    gradients = reference_numpy.feed_forward_vjp(identity, x, x, **options)
    np.testing.assert_array_equal(gradients.x, x * factor)


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.rule("MASK-2", "MASK-3", "MASK-4")
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
def test_integers_of_every_width_mean_the_same(implementation: Implementation, kind: type) -> None:
    """No bound wraps around where it is negated."""
    lengths, offsets, ids = np.array([2, 5]), np.array([0, 2]), np.array([[0, 0, 1]])
    keys = np.array([[0, 1, 1, 0, 2]])
    pairs = [
        (SlidingWindow(kind(1), kind(2), offset=kind(1)), SlidingWindow(1, 2, offset=1)),
        (SlidingWindow(kind(2), kind(0), offset=offsets.astype(kind)), SlidingWindow(2, 0, offset=offsets)),
        (Causal(kind(1)), Causal(1)),
        (Causal(offsets.astype(kind)), Causal(offsets)),
        (KeyLengths(lengths.astype(kind)), KeyLengths(lengths)),
        (Segments(ids.astype(kind), keys.astype(kind)), Segments(ids, keys)),
    ]
    for narrow, plain in pairs:
        found, expected = (implementation.call("materialize", mask, Q, K, batch=B) for mask in (narrow, plain))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.rule("MASK-5")
def test_a_mask_for_other_heads_is_no_array(implementation: Implementation) -> None:
    kind, message = refusal(
        implementation.materialize, implementation.convert(np.ones((1, 3, Q, K), bool)), Q, K, heads=2
    )
    assert kind is ValueError
    assert "[1, 3, 3, 5]" in message
    assert "[any or 1, 2 or 1, 3, 5]" in message


# --- the same mistakes in every operation -----------------------------------------------------------------------------

WRONG_OPTIONS: dict[str, dict[str, Any]] = {
    "bias's shape": {"bias": floats(Q, 1)},
    "bias's dtype": {"bias": floats(Q, K).astype(np.float16)},
    "scale": {"scale": float("nan")},
    "softcap": {"softcap": 0.0},
    "sinks": {"sinks": floats(G)},
    "empty rows": {"empty_rows": "average"},
    "empty rows with sinks": {"empty_rows": "mean", "sinks": floats(H)},
    "dropout without keep": {"dropout_rate": 0.1},
    "dropout rate": {"dropout_keep": np.ones((B, H, Q, K), bool), "dropout_rate": 1.0},
    "mask for another batch": {"mask": np.ones((3, 1, Q, K), bool)},
    "mask for other heads": {"mask": np.ones((1, G, Q, K), bool)},
    "mask for other keys": {"mask": np.ones((Q, Q), bool)},
    "mask for other queries": {"mask": np.ones((K, K), bool)},
    "one length for two": {"mask": KeyLengths(np.array([1]))},
    "one offset for two": {"mask": Causal(np.array([1]))},
    "no offset": {"mask": SlidingWindow(1, 1)},
    "lengths beyond the keys": {"mask": KeyLengths(np.array([1, K + 1]))},
    "ids for other keys": {"mask": Segments(np.zeros((1, Q), int), np.zeros((1, Q), int))},
    "mask of numbers": {"mask": np.ones((Q, K), np.int8)},
}


def projected(seed: int = 0) -> tuple[MultiHeadAttention, tuple[np.ndarray, ...]]:
    """Parameters and inputs whose heads are as many, and as wide, as those of `arrays`."""
    shapes = ((5, H * D), (6, G * D), (4, G * V), (H * V, 3))
    weights = MultiHeadAttention(*(Linear(floats(*shape, seed=seed)) for shape in shapes))
    return weights, (floats(B, Q, 5), floats(B, K, 6), floats(B, K, 4))


CALLS: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "attention": lambda: (tuple(arrays().values()), {}),
    "attention_weights": lambda: (tuple(arrays().values())[:2], {}),
    "attention_logsumexp": lambda: (tuple(arrays().values())[:2], {}),
    "multi_head_attention": lambda: ((projected()[0], *projected()[1]), {"num_heads": H}),
}
RESULTS = COTANGENTS | {"multi_head_attention": (B, Q, 3)}


PAIRS = [
    (operation, mistake)
    for operation in CALLS
    for mistake, options in WRONG_OPTIONS.items()
    if options.keys() <= parameters(operation).keys()
]


@pytest.mark.rule("ATT-14", "ATT-12", "MHA-1")
@pytest.mark.parametrize(("operation", "mistake"), PAIRS)
def test_wrong_options_are_refused_alike(implementation: Implementation, operation: str, mistake: str) -> None:
    """With the words of `attention`, by its companions and by multi-head attention too, and by their gradients."""
    options = WRONG_OPTIONS[mistake]
    expected = refusal(reference_numpy.attention, **arrays(), **options)
    arguments, more = CALLS[operation]()
    assert refusal(lambda *a, **o: implementation.call(operation, *a, **o), *arguments, **more, **options) == expected
    if implementation.package == "reference_numpy":
        vjp = getattr(reference_numpy, f"{operation}_vjp")
        assert refusal(vjp, *arguments, floats(*RESULTS[operation]), **more, **options) == expected


FITTING = {
    "attention": (2, 6, 4, 7),
    "attention_weights": (2, 6, 4, 5),
    "attention_logsumexp": (2, 6, 4),
    "multi_head_attention": (2, 4, 12),
}
"""Shapes of the results that most of those mistakes would have; elsewhere the arguments are checked first."""


@pytest.mark.rule("ATT-12", "NORM-6")
@pytest.mark.parametrize("mistake", [m for m in MISTAKES if f"{m.operation}_vjp" in PUBLIC], ids=lambda m: m.id)
def test_gradients_refuse_what_the_operation_refuses(mistake: Mistake) -> None:
    """With a cotangent that would fit, were it not for the mistake."""
    operation, vjp = (getattr(reference_numpy, mistake.operation + suffix) for suffix in ("", "_vjp"))
    cotangent = floats(*FITTING.get(mistake.operation, ()))
    cotangents = dict.fromkeys((n for n in parameters(vjp.__name__) if n.endswith("cotangent")), cotangent)
    expected = refusal(operation, *mistake.arguments, **mistake.options)
    assert refusal(vjp, *mistake.arguments, **mistake.options, **cotangents) == expected


ONE_EACH = {case.operation: case for case in CASES}
"""A call of every operation that has gradients, in float64."""


@pytest.mark.rule("ATT-12", "NORM-6")
@pytest.mark.parametrize("operation", ONE_EACH)
def test_cotangents_are_checked(operation: str) -> None:
    """Each has the shape and dtype of its own result."""
    case = ONE_EACH[operation]
    names = [name for name in parameters(f"{operation}_vjp") if name.endswith("cotangent")]
    results = Function(case).results()
    fitting = dict(zip(names, results, strict=True))
    vjp = getattr(reference_numpy, f"{operation}_vjp")
    for name, result in fitting.items():
        shape, wrong = list(result.shape), result[..., None]
        expected = ValueError, f"{name} must have shape {shape} like the result, got {[*shape, 1]}"
        assert refusal(vjp, *case.arguments, **case.options, **fitting | {name: wrong}) == expected
        expected = TypeError, f"{name} must be float64 like the result, got float32"
        narrow = result.astype(np.float32)
        assert refusal(vjp, *case.arguments, **case.options, **fitting | {name: narrow}) == expected


@pytest.mark.rule("ATT-10", "NORM-5")
@pytest.mark.parametrize("operation", ONE_EACH)
@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_special_values_raise_no_warning(operation: str, entry: float) -> None:
    """They are legal inputs; what comes of them says so. (Warnings are errors in these tests.)"""
    case = ONE_EACH[operation]
    vjp = getattr(reference_numpy, f"{operation}_vjp")
    results = Function(case).results()
    for array in differentiated(case):
        before = array.copy()
        array[..., ::2] = entry
        getattr(reference_numpy, operation)(*case.arguments, **case.options)
        vjp(*case.arguments, *results, **case.options)
        array[...] = before


# --- the definition's own pieces --------------------------------------------------------------------------------------


@pytest.mark.rule("MASK-7")
def test_scores_of_forbidden_pairs_are_0() -> None:
    allowed = np.tril(np.ones((Q, K), bool))[None, None]
    left, right = floats(B, H, Q, D), floats(B, H, K, D)
    products = pieces.pair_products(left, right, allowed)
    scores = pieces.attention_scores(left, right, allowed, bias=floats(1, 1, Q, K) + 3, scale=None, softcap=2.0)
    for array in (products, scores):
        assert (array[np.broadcast_to(~allowed, array.shape)] == 0).all()


@pytest.mark.rule("ATT-8")
@pytest.mark.parametrize(
    ("batch", "heads", "keys"), [(1, 1, 1), (2, 3, 5), (1, 7, 40), (5, 2, 21), (0, 3, 5), (2, 3, 0)]
)
def test_blocks_are_as_large_as_fits(batch: int, heads: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one query each; no more scores than BLOCK_SCORES otherwise; all blocks but the last of one size."""
    monkeypatch.setattr(pieces, "BLOCK_SCORES", 200)
    queries = 450
    sizes = [block.stop - block.start for block in pieces.query_blocks(batch, heads, queries, keys)]
    row = max(batch * heads * keys, 1)
    largest = max(200 // row, 1)
    assert sum(sizes) == queries
    assert set(sizes[:-1]) <= {largest}
    assert 0 < sizes[-1] <= largest


@pytest.mark.rule("ATT-3", "ATT-8", "ATT-12")
@pytest.mark.parametrize("shape", [(0, 1, Q, K), (1, H, Q, K), (1, 1, Q, K), (0, H, Q, K), (Q, K)])
def test_a_bias_has_a_gradient_for_a_batch_of_none(shape: tuple[int, ...]) -> None:
    sizes = (0, H, Q, D), (0, G, K, D), (0, G, K, V), (0, H, Q, V)
    gradients = reference_numpy.attention_vjp(*(floats(*size) for size in sizes), bias=floats(*shape))
    np.testing.assert_array_equal(gradients.bias, np.zeros(shape, np.float32))


@pytest.mark.rule("ATT-8")
def test_short_sequences_are_one_block() -> None:
    assert len(list(pieces.query_blocks(16, 16, 128, 128))) == 1
