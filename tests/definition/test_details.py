"""Details that drawn cases do not meet: defaults, roundings in between, every call's mistakes, blocks and pieces.

Most of these, and of `test_special_values.py`, were found by mutation testing (`docs/mutation.md`): each kills an edit
of the definition that all else let pass.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

import reference_numpy
from reference_numpy import attention_steps as steps
from reference_numpy import masks
from reference_numpy.attention_steps_vjp import attention_scores_vjp
from specification import (
    Causal,
    FeedForward,
    GatedFeedForward,
    KeyLengths,
    Linear,
    MultiHeadAttention,
    Segments,
    SlidingWindow,
)
from specification.parameters import mapped
from tests.definition.test_bad_input import MISTAKES, Mistake
from tests.definition.test_bad_input import arrays as fitting_arrays
from tests.definition.test_special_values import B, D, G, H, K, Q, V, arrays, floats
from tests.definition.test_vjp import CASES, Function
from tests.support.helpers import REFERENCE, Case, Implementation, error_of

# --- how operations are called ----------------------------------------------------------------------------------------

PUBLIC = [name for name in reference_numpy.__all__ if inspect.isfunction(getattr(reference_numpy, name))]


def parameters(operation: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(reference_numpy, operation)).parameters)


@pytest.mark.parametrize("operation", PUBLIC)
def test_every_argument_may_be_given_by_name(operation: str) -> None:
    assert inspect.Parameter.POSITIONAL_ONLY not in {parameter.kind for parameter in parameters(operation).values()}


ONE_EACH = {case.operation: case for case in CASES}
"""A call of every operation that has gradients, in float64."""
CALLS = {operation: (case.arguments, case.options) for operation, case in ONE_EACH.items()}
CALLS |= {"materialize": ((None, Q, K), {}), "sinusoidal_positions": ((3, 4), {}), "alibi_bias": ((3, 2, 4), {})}


@pytest.mark.parametrize("operation", CALLS)
def test_calls_by_name(operation: str) -> None:
    """Give what the same arguments give in their order."""
    (arguments, options), call = CALLS[operation], getattr(reference_numpy, operation)
    named = dict(zip(parameters(operation), arguments, strict=False))
    mapped(np.testing.assert_array_equal, call(**named, **options), call(*arguments, **options))


@pytest.mark.rule("MHA-1")
@pytest.mark.parametrize("operation", ["multi_head_attention", "multi_head_attention_vjp"])
def test_parameters_of_another_structure_are_refused_by_name(operation: str) -> None:
    x = floats(2, 3, 4)
    cotangents = [x] if operation.endswith("_vjp") else []
    wrong = Linear(floats(4, 4))
    kind, message = error_of(getattr(reference_numpy, operation), wrong, x, x, x, *cotangents, num_heads=2)
    assert kind is TypeError
    assert message.startswith("parameters ")


@pytest.mark.rule("ATT-12", "NORM-6")
@pytest.mark.parametrize("operation", [name for name in PUBLIC if name.endswith("_vjp")])
def test_gradients_take_the_operations_own_arguments(operation: str) -> None:
    """The cotangents come after the arrays; names, defaults and kinds are those of the operation.

    What may be left out before them in the operation has to be given here.
    """
    given, own = parameters(operation), parameters(operation.removesuffix("_vjp"))
    cotangents = [name for name in given if name.endswith("cotangent")]
    keywords = [name for name, parameter in own.items() if parameter.kind is parameter.KEYWORD_ONLY]
    positional = [name for name in own if name not in keywords]
    passed_on = "options" in given  # as **options, to the operation itself
    expected = [*positional, *cotangents, *(["num_heads", "options"] if passed_on else keywords)]
    assert list(given) == expected
    for name in given.keys() & own.keys():
        default = own[name].default if name in keywords else inspect.Parameter.empty
        assert (given[name].kind, given[name].default) == (own[name].kind, default)


@pytest.mark.rule("POS-1", "POS-2", "POS-5", "EMB-1", "NORM-1", "ATT-11", "FFN-1", "FFN-2")
@pytest.mark.parametrize(
    ("operation", "arguments", "defaults"),
    [
        ("sinusoidal_positions", (3, 4), {"offset": 0, "exponent": "shared", "dtype": "float32"}),
        ("learned_positions", (floats(5, 4), 2), {"offset": 0}),
        ("embedding", (floats(5, 4), np.array([1, 3])), {"scaled": False}),
        ("alibi_bias", (3, 2, 4), {"offset": 0, "dtype": "float32"}),
        ("layer_norm", (floats(3, 4), floats(4), floats(4)), {"eps": 1e-5}),
        ("attention", tuple(arrays().values()), {"mask": None, "dropout_rate": 0.0, "empty_rows": "zero"}),
        ("attention_weights", tuple(arrays().values())[:2], {"mask": None, "empty_rows": "zero"}),
        (
            "feed_forward",
            (FeedForward(Linear(floats(4, 5)), Linear(floats(5, 3))), floats(2, 4)),
            {"activation": "relu", "dropout_keep": None, "dropout_rate": 0.0},
        ),
        (
            "gated_feed_forward",
            (GatedFeedForward(Linear(floats(4, 5)), Linear(floats(4, 5)), Linear(floats(5, 3))), floats(2, 4)),
            {"activation": "silu", "dropout_keep": None, "dropout_rate": 0.0},
        ),
    ],
)
def test_what_is_left_out(
    implementation: Implementation, operation: str, arguments: tuple[Any, ...], defaults: dict[str, Any]
) -> None:
    """Leaving an option out is the same as giving its default."""
    left_out = implementation.call(operation, *arguments)
    np.testing.assert_array_equal(left_out, implementation.call(operation, *arguments, **defaults))


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
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_networks_take_no_rows(implementation: Implementation, activation: str) -> None:
    _, found = network_gradients(implementation, activation, floats(0, 4))
    assert found["output"].shape == (0, 3)
    assert found["gradient of x"].shape == (0, 4)
    assert (found["gradient of outer.weight"] == 0).all()


@pytest.mark.rule("FFN-1", "ATT-9")
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
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
    kind, message = error_of(
        implementation.materialize, implementation.convert(np.ones((1, 3, Q, K), bool)), Q, K, heads=2
    )
    assert kind is ValueError
    assert "[1, 3, 3, 5]" in message
    assert "[B or 1, 2 or 1, 3, 5]" in message


# --- the same mistakes in every operation -----------------------------------------------------------------------------

ARRAYS = ("query", "key", "value")
WRONG_OPTIONS: dict[str, dict[str, Any]] = {
    mistake.id: {name: value for name, value in mistake.options.items() if name not in ARRAYS}
    for mistake in MISTAKES
    if mistake.operation == "attention" and mistake.options.keys() - {*ARRAYS}
}
FITTING = {
    "attention": (2, 6, 4, 7),
    "attention_weights": (2, 6, 4, 5),
    "attention_logsumexp": (2, 6, 4),
    "multi_head_attention": (2, 4, 12),
}
"""Shapes of the results that most of those mistakes would have; elsewhere the arguments are checked first."""


def calls(operation: str) -> dict[str, Any]:
    """What the operation is called with; multi-head attention has as many and as wide heads, of 8 and 7 columns."""
    if operation != "multi_head_attention":
        return {name: array for name, array in fitting_arrays().items() if name in parameters(operation)}
    weights = MultiHeadAttention(*(Linear(floats(*shape)) for shape in ((5, 48), (6, 24), (4, 21), (42, 12))))
    inputs = {"query": floats(2, 4, 5), "key": floats(2, 5, 6), "value": floats(2, 5, 4)}
    return {"parameters": weights, "num_heads": 6} | inputs


PAIRS = [
    (operation, mistake)
    for operation in FITTING
    for mistake, options in WRONG_OPTIONS.items()
    if options.keys() <= parameters(operation).keys()
]


@pytest.mark.rule("ATT-14", "ATT-12", "MHA-1")
@pytest.mark.parametrize(("operation", "mistake"), PAIRS)
def test_wrong_options_are_refused_alike(implementation: Implementation, operation: str, mistake: str) -> None:
    """With the words of `attention`, by its companions and by multi-head attention too, and by their gradients."""
    options = WRONG_OPTIONS[mistake]
    expected = error_of(reference_numpy.attention, **fitting_arrays(), **options)
    given = calls(operation) | options
    assert error_of(implementation.call, operation, **given) == expected
    if implementation.package == "reference_numpy":
        vjp = getattr(reference_numpy, f"{operation}_vjp")
        cotangent = next(name for name in parameters(vjp.__name__) if name.endswith("cotangent"))
        assert error_of(vjp, **given | {cotangent: floats(*FITTING[operation])}) == expected


@pytest.mark.rule("ATT-12", "NORM-6")
@pytest.mark.parametrize("mistake", [m for m in MISTAKES if f"{m.operation}_vjp" in PUBLIC], ids=lambda m: m.id)
def test_gradients_refuse_what_the_operation_refuses(mistake: Mistake) -> None:
    """With a cotangent that would fit, were it not for the mistake."""
    operation, vjp = (getattr(reference_numpy, mistake.operation + suffix) for suffix in ("", "_vjp"))
    cotangent = floats(*FITTING.get(mistake.operation, ()))
    cotangents = dict.fromkeys((n for n in parameters(vjp.__name__) if n.endswith("cotangent")), cotangent)
    expected = error_of(operation, *mistake.arguments, **mistake.options)
    assert error_of(vjp, *mistake.arguments, **mistake.options, **cotangents) == expected


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
        assert error_of(vjp, *case.arguments, **case.options, **fitting | {name: wrong}) == expected
        expected = TypeError, f"{name} must be float64 like the result, got float32"
        narrow = result.astype(np.float32)
        assert error_of(vjp, *case.arguments, **case.options, **fitting | {name: narrow}) == expected


# --- before the last rounding -----------------------------------------------------------------------------------------


@pytest.mark.rule("ATT-9", "ATT-14")
def test_reference_attention_is_attention_before_its_rounding(implementation: Implementation) -> None:
    """In every package: the output, and the log-sum-exp of the same scores. Rate and empty rows may be left out."""
    core = importlib.import_module(f"{implementation.package}.attention_steps").reference_attention
    half = {name: array.astype(np.float16) for name, array in arrays().items()}
    options = {"mask": Causal(-1), "bias": None, "scale": 0.3, "softcap": 2.0, "sinks": None}
    keep = np.arange(B * H * Q * K).reshape(B, H, Q, K) % 3 > 0
    with np.errstate(divide="ignore"):  # the logarithm of an empty row's total
        found = core(**implementation.convert(half | options), dropout_keep=implementation.convert(keep))
    output, logsumexp = map(implementation.subject.framework.numpy, found)
    assert (output.dtype, logsumexp.dtype) == (np.float32, np.float32)
    by_default = implementation.call("attention", **half, **options, dropout_keep=keep)
    np.testing.assert_array_equal(output.astype(np.float16), by_default)
    del half["value"]
    np.testing.assert_array_equal(logsumexp, implementation.call("attention_logsumexp", **half, **options))


# --- the definition's own pieces --------------------------------------------------------------------------------------


@pytest.mark.rule("MASK-7")
def test_scores_of_forbidden_pairs_are_0() -> None:
    allowed = np.tril(np.ones((Q, K), bool))[None, None]
    left, right = floats(B, H, Q, D), floats(B, H, K, D)
    products = steps.pair_products(left, right, allowed)
    scores = steps.attention_scores(left, right, allowed, bias=floats(1, 1, Q, K) + 3, scale=None, softcap=2.0)
    for array in (products, scores):
        assert (array[np.broadcast_to(~allowed, array.shape)] == 0).all()


@pytest.mark.rule("ATT-10", "ATT-12", "MASK-7")
def test_keys_have_no_gradient_from_queries_that_do_not_see_them() -> None:
    """A NaN query spoils the gradients of the keys that it sees, whatever the cotangent, and of no other."""
    allowed = np.tril(np.ones((Q, K), bool))[None, None]
    query, key = floats(B, H, Q, D), floats(B, H, K, D)
    query[:, :, 1] = np.nan
    _, gradient, _ = attention_scores_vjp(query, key, allowed, floats(B, H, Q, K), scale=None, softcap=None)
    assert np.isnan(gradient[:, :, :2]).all()
    assert np.isfinite(gradient[:, :, 2:]).all()


@pytest.mark.rule("MASK-6", "ATT-8")
@pytest.mark.parametrize("operator", ["and", "or"])
def test_combined_masks_are_taken_in_blocks(operator: str) -> None:
    """Of some queries only, as of all of them."""
    left, right = Causal(1), Segments(np.array([[0, 0, 1, 1, 2]]), np.array([[0, 1, 1, 2, 2, 2]]))
    mask = left & right if operator == "and" else left | right
    whole = reference_numpy.materialize(mask, 5, 6)
    for rows in (slice(0, 2), slice(3, 5)):
        block = masks.allowed_pairs(mask, 5, 6, rows)
        np.testing.assert_array_equal(np.broadcast_to(block, (1, 1, 2, 6)), whole[:, :, rows])


@pytest.mark.rule("NORM-5", "NORM-6")
def test_gradients_of_rows_with_infinity_do_not_warn() -> None:
    x = floats(3, 4)
    x[1, 2] = np.inf
    found = reference_numpy.rms_norm_vjp(x, floats(4), floats(3, 4), eps=1e-6)
    assert np.isfinite(found.x[[0, 2]]).all()
    assert not np.isfinite(found.x[1]).all()


@pytest.mark.rule("ATT-14", "ATT-12")
def test_a_log_sum_exp_that_is_nan_spoils_its_rows_gradients() -> None:
    outputs, logsumexps = [floats(B, H, Q, V) for _ in range(2)], [floats(B, H, Q) for _ in range(2)]
    logsumexps[0][0, 0, 0] = np.nan
    _, found = reference_numpy.merge_attention_vjp(outputs, logsumexps, floats(B, H, Q, V), floats(B, H, Q))
    for gradient in found:
        spoiled = np.isnan(gradient)
        assert spoiled[0, 0, 0]
        assert spoiled.sum() == 1


@pytest.mark.rule("ATT-8")
@pytest.mark.parametrize(
    ("batch", "heads", "keys"), [(1, 1, 1), (2, 3, 5), (1, 7, 40), (5, 2, 21), (0, 3, 5), (2, 3, 0)]
)
def test_blocks_are_as_large_as_fits(batch: int, heads: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one query each; no more scores than BLOCK_SCORES otherwise; all blocks but the last of one size."""
    monkeypatch.setattr(steps, "BLOCK_SCORES", 200)
    row = max(batch * heads * keys, 1)
    largest = max(200 // row, 1)
    for queries in (0, 1, 5, 450):
        blocks = list(steps.query_blocks(batch, heads, queries, keys))
        assert [row for block in blocks for row in range(queries)[block]] == list(range(queries))
        sizes = [block.stop - block.start for block in blocks]
        assert set(sizes[:-1]) <= {largest}
        assert queries == 0 or 0 < sizes[-1] <= largest


@pytest.mark.rule("ATT-3", "ATT-8", "ATT-12")
@pytest.mark.parametrize("shape", [(0, 1, Q, K), (1, H, Q, K), (1, 1, Q, K), (0, H, Q, K), (Q, K)])
def test_a_bias_has_a_gradient_for_a_batch_of_none(shape: tuple[int, ...]) -> None:
    sizes = (0, H, Q, D), (0, G, K, D), (0, G, K, V), (0, H, Q, V)
    gradients = reference_numpy.attention_vjp(*(floats(*size) for size in sizes), bias=floats(*shape))
    np.testing.assert_array_equal(gradients.bias, np.zeros(shape, np.float32))


@pytest.mark.rule("ATT-8")
def test_short_sequences_are_one_block() -> None:
    assert len(list(steps.query_blocks(16, 16, 128, 128))) == 1
