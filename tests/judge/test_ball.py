"""The exact oracle, judged by closed forms, by identities and by difference quotients; no other implementation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("flint")

from flint import arb, ctx

from conformance.cases.expectations import visible_pairs
from conformance.oracle import ball
from conformance.oracle.ball import Exact, evaluate, evaluate_balls, tape
from conformance.oracle.reference import AFFORDABLE, ball_work
from specification.masks import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from tests.support.helpers import Case

INTEGERS = ("ids", "targets")


@pytest.fixture
def fine() -> Iterator[None]:
    with ctx.workprec(600):
        yield


def case(operation: str, inputs: dict[str, Any], options: dict[str, Any] | None = None, **cotangents: Any) -> Case:
    arrays = {n: np.asarray(array, dtype=None if n in INTEGERS else np.float64) for n, array in inputs.items()}
    return Case(operation, "float64", arrays, options or {}, {n: np.asarray(c, float) for n, c in cotangents.items()})


def fraction(exact: Exact, index: Any = ()) -> Fraction:
    return Fraction(float(exact.high[index])) + Fraction(float(exact.low[index]))


def assert_equal(left: Exact, right: Exact) -> None:
    """The same to 2^-98, which is within what two roundings to high + low leave."""
    assert left.high.shape == right.high.shape
    for index in np.ndindex(left.high.shape):
        a, b = fraction(left, index), fraction(right, index)
        assert abs(a - b) <= Fraction(1, 2**98) * abs(b) + Fraction(1, 2**199)


# --- gradients --------------------------------------------------------------------------------------------------------


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def attention_inputs(*names: str) -> dict[str, np.ndarray]:
    arrays = {"query": random(2, 4, 3, 2), "key": random(2, 2, 5, 2, seed=1), "value": random(2, 2, 5, 3, seed=2)}
    bias = random(1, 4, 3, 5, seed=3)
    bias[0, 1, 2, 1] = -np.inf
    return {name: (arrays | {"bias": bias, "sinks": random(4, seed=4)})[name] for name in names}


ARRAYS = ("query", "key", "value", "bias", "sinks")
ALL = {"mask": KeyLengths(np.array([4, 0])) & Causal(1), "scale": -0.7, "softcap": 1.5}
DROPOUT = {"dropout_keep": random(2, 4, 3, 5, seed=5) < 0.5, "dropout_rate": 0.3}
PROJECTIONS = {"key.weight": random(4, 4), "value.weight": random(5, 6), "value.bias": random(6)}
SEQUENCES = {"query": random(2, 3, 4), "key": random(2, 5, 4, seed=1), "value": random(2, 5, 5)}
FUSED = SEQUENCES | PROJECTIONS
FUSED |= {"query.weight": random(4, 8), "query.bias": random(8), "output.weight": random(12, 3)}
SEPARATE = FUSED | {f"query[{h}].weight": random(4, 8)[:, 2 * h : 2 * h + 2] for h in range(4)}
SEPARATE |= {f"query[{h}].bias": random(8)[2 * h : 2 * h + 2] for h in range(4)}
SEPARATE = {name: array for name, array in SEPARATE.items() if name not in ("query.weight", "query.bias")}
NORM = {"x": random(2, 3, 4), "weight": random(3, 4), "bias": random(3, 4, seed=1)}
ROWS = {"x": random(5, 3), "weight": random(3)}
LAYERS = {"x": random(2, 4), "inner.weight": random(4, 6), "inner.bias": random(6), "outer.weight": random(6, 3)}
GATED = LAYERS | {"gate.weight": random(4, 6, seed=4), "gate.bias": random(6, seed=5)}
LOGITS = {"logits": random(2, 3, 4), "targets": [[1, -1, 3], [0, 0, -1]]}
INNER_DROPOUT = {"dropout_keep": random(2, 6) < 0.5, "dropout_rate": 0.25}
PARTS = {f"outputs[{p}]": random(2, 3, 2, seed=p) for p in range(3)} | {
    f"logsumexps[{p}]": np.where(random(2, 3, seed=9 + p) < p - 1.5, -np.inf, random(2, 3, seed=p)) for p in range(3)
}

DIFFERENTIABLE = {
    "attention": case("attention", attention_inputs("query", "key", "value"), output=random(2, 4, 3, 3)),
    "all options": case("attention", attention_inputs(*ARRAYS), ALL | DROPOUT, output=random(2, 4, 3, 3)),
    "mean": case(
        "attention", attention_inputs("query", "key", "value"), ALL | {"empty_rows": "mean"}, output=random(2, 4, 3, 3)
    ),
    "weights": case("attention_weights", attention_inputs("query", "key", "bias"), ALL, output=random(2, 4, 3, 5)),
    "logsumexp": case("attention_logsumexp", attention_inputs("query", "key", "bias"), ALL, output=random(2, 4, 3)),
    "merge": case("merge_attention", PARTS, output=random(2, 3, 2), logsumexp=random(2, 3)),
    "multi-head": case("multi_head_attention", FUSED, {"num_heads": 4}, output=random(2, 3, 3)),
    "per head": case("multi_head_attention", SEPARATE, {"num_heads": 4} | ALL, output=random(2, 3, 3)),
    "layer norm": case("layer_norm", NORM, output=random(2, 3, 4, seed=3)),
    "rms norm": case("rms_norm", ROWS, {"eps": 1e-3}, output=random(5, 3, seed=3)),
    "standard deviation": case("standard_deviation_norm", NORM, {"eps": 1e-6}, output=random(2, 3, 4, seed=3)),
    "learned": case("learned_positions", {"table": random(6, 2)}, {"length": 3, "offset": 2}, output=random(3, 2)),
    "embedding": case(
        "embedding", {"table": random(4, 3), "ids": [[1, 3], [1, 0]]}, {"scaled": True}, output=random(2, 2, 3)
    ),
    "relu": case("feed_forward", LAYERS, output=random(2, 3)),
    "gelu": case("feed_forward", LAYERS, {"activation": "gelu"} | INNER_DROPOUT, output=random(2, 3)),
    "gelu tanh": case("feed_forward", LAYERS, {"activation": "gelu_tanh"}, output=random(2, 3)),
    "silu": case("feed_forward", LAYERS, {"activation": "silu"}, output=random(2, 3)),
    "gated": case("gated_feed_forward", GATED, INNER_DROPOUT, output=random(2, 3)),
    "1 + weight": case("rms_norm", ROWS, {"eps": 1e-3, "plus_one": True}, output=random(5, 3, seed=3)),
    "relative": case(
        "relative_position_bias",
        {"table": random(9, 2)},
        {"query_length": 3, "key_length": 7, "bidirectional": True, "furthest": 4, "offset": 2},
        output=random(1, 2, 3, 7),
    ),
    "cross-entropy": case("cross_entropy", LOGITS, {"label_smoothing": 0.1, "ignore": -1}, output=random()),
    "cross-entropies": case("cross_entropy", LOGITS, {"ignore": -1, "reduction": "none"}, output=random(2, 3)),
    "nll": case("nll_loss", {"log_probabilities": random(2, 3, 4), "targets": [[1, 3, 0], [2, 1, 1]]}, output=random()),
}


class Moved(tape.Leaves):
    """Every input moved by step * direction where it counts."""

    def __init__(self, of: Case, directions: dict[str, np.ndarray], step: arb) -> None:
        super().__init__(of.inputs, wanted=False)
        self.directions, self.step = directions, step

    def read(self, name: str, seen: Any = True) -> tape.Variable:
        direction = tape.balls(np.where(seen, self.directions[name], 0.0))
        return super().read(name, seen) + tape.Variable(direction * self.step)


def along(of: Case, directions: dict[str, np.ndarray], step: arb) -> arb:
    """sum(result * cotangent) at the moved inputs, leaving out log-sum-exps of -inf."""
    results = ball.formula(of.operation)(Moved(of, directions, step), of.options)
    pairs = ((results[name].value, tape.balls(cotangent)) for name, cotangent in of.cotangents.items())
    products = (zip(values.flat, cotangents.flat, strict=True) for values, cotangents in pairs)
    return sum((v * c for pair in products for v, c in pair if v.is_finite()), arb(0))


@pytest.mark.rule("ATT-12")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_the_limit_of_difference_quotients(name: str, fine: None) -> None:
    """D(h) = f' + c h^2 + O(h^4), and so (4 D(h/2) - D(h)) / 3 = f' + O(h^4).

    With h = 2^-60 that is 2^-120 and 2^-240 times the third and fifth derivatives, for which 2^20 and 2^40 is room.
    """
    subject = DIFFERENTIABLE[name]
    answer = evaluate_balls(subject)
    names = [n.removeprefix("gradient of ") for n in answer if n.startswith("gradient of ")]
    assert set(names) == set(subject.inputs) - {*INTEGERS}
    for moved in [names, *([n] for n in names)]:
        directions = {n: random(*subject.inputs[n].shape, seed=7) * (n in moved) for n in names}
        slope = sum(((answer[f"gradient of {n}"] * tape.balls(directions[n])).sum() for n in moved), arb(0))

        def quotient(h: arb, directions: dict[str, np.ndarray] = directions) -> arb:
            return (along(subject, directions, h) - along(subject, directions, -h)) / (2 * h)

        h = arb(2) ** -60
        assert abs(quotient(h) - slope) < arb(2) ** -100
        assert abs((4 * quotient(h / 2) - quotient(h)) / 3 - slope) < arb(2) ** -200


@pytest.mark.rule("FFN-1")
def test_slope_of_relu_at_0_is_0() -> None:
    at_kink = {"x": [[0.0]], "inner.weight": [[1.0]], "outer.weight": [[1.0]]}
    assert evaluate(case("feed_forward", at_kink, output=[[1.0]]))["gradient of x"].high == 0


@pytest.mark.rule("NORM-6")
def test_constant_row_has_no_slope_through_its_deviation() -> None:
    """With cotangent c and eps outside the root the gradient is (c - mean(c)) / eps; the output is the bias."""
    inputs = {"x": [0.1, 0.1, 0.1], "weight": np.ones(3), "bias": [1, 2, 3]}
    answer = evaluate(case("standard_deviation_norm", inputs, {"eps": 0.5}, output=[1, 2, 3]))
    np.testing.assert_array_equal(answer["output"].high, [1, 2, 3])
    np.testing.assert_array_equal(answer["gradient of x"].high, [-2, 0, 2])


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("ATT-1")
def test_two_keys_are_a_logistic_function() -> None:
    """Keys 0 and 3/4, values 1 and 0: the output is p = 1 / (1 + e^(3q/4)), its slope in q is -3/4 p (1 - p)."""
    inputs = {"query": [[[[0.625]]]], "key": [[[[0.0], [0.75]]]], "value": [[[[1.0], [0.0]]]]}
    answer = evaluate(case("attention", inputs, output=[[[[1.0]]]]))
    logsumexp = evaluate(case("attention_logsumexp", {n: inputs[n] for n in ("query", "key")}))["output"]
    with localcontext(prec=45):
        term = (Decimal("0.625") * Decimal("0.75")).exp()
        p = 1 / (1 + term)
        expected = {"output": p, "gradient of query": -Decimal("0.75") * p * (1 - p)}
        for name, value in expected.items():
            got = fraction(answer[name], (0, 0, 0, 0))
            assert abs(got / Fraction(value) - 1) < Fraction(1, 2**98)
        assert abs(fraction(logsumexp, (0, 0, 0)) / Fraction((1 + term).ln()) - 1) < Fraction(1, 2**98)


@pytest.mark.rule("ATT-14")
def test_logsumexp_of_one_key_is_its_score() -> None:
    """c tanh(scale query . key / c) + bias."""
    inputs = {"query": [[[[1.0, 2.0]]]], "key": [[[[0.5, -0.75]]]], "bias": [[0.25]]}
    score = evaluate(case("attention_logsumexp", inputs, {"scale": -0.5, "softcap": 2.0}))["output"].high
    np.testing.assert_allclose(score, 2 * math.tanh(0.5 / 2) + 0.25, rtol=1e-15)
    plain = evaluate(case("attention_logsumexp", inputs))["output"].high
    np.testing.assert_allclose(plain, -1 / math.sqrt(2) + 0.25, rtol=1e-15)


@pytest.mark.rule("ATT-11")
def test_dropout_keeps_the_mean() -> None:
    one_key = {"query": np.ones((1, 1, 2, 1)), "key": [[[[1.0]]]], "value": [[[[3.0]]]]}
    options = {"dropout_keep": np.array([[[[True], [False]]]]), "dropout_rate": 0.25}
    np.testing.assert_array_equal(evaluate(case("attention", one_key, options))["output"].high.ravel(), [4, 0])


@pytest.mark.rule("EMB-1")
def test_embedding_is_scaled_by_the_root_of_its_width() -> None:
    inputs = {"table": np.ones((1, 4)), "ids": [0]}
    np.testing.assert_array_equal(evaluate(case("embedding", inputs, {"scaled": True}))["output"].high, [[2] * 4])
    np.testing.assert_array_equal(evaluate(case("embedding", inputs))["output"].high, [[1] * 4])


@pytest.mark.rule("ATT-4")
def test_equal_scores_give_the_mean_of_the_allowed_values() -> None:
    inputs = {"query": np.ones((1, 1, 2, 1)), "key": np.ones((1, 1, 3, 1)), "value": [[[[1.0], [2.0], [6.0]]]]}
    np.testing.assert_array_equal(evaluate(case("attention", inputs))["output"].high, [[[[3], [3]]]])
    causal = evaluate(case("attention", inputs, {"mask": Causal(0)}))["output"].high
    np.testing.assert_array_equal(causal, [[[[1], [1.5]]]])


@pytest.mark.rule("ATT-6")
def test_empty_rows() -> None:
    inputs = {"query": np.ones((1, 1, 2, 1)), "key": np.ones((1, 1, 3, 1)), "value": [[[[1.0], [2.0], [6.0]]]]}
    cotangent = np.ones((1, 1, 2, 1))
    mask = {"mask": np.array([[True, False, True], [False, False, False]])}
    zero = evaluate(case("attention", inputs, mask, output=cotangent))
    np.testing.assert_array_equal(zero["output"].high.ravel(), [3.5, 0])
    np.testing.assert_array_equal(zero["gradient of value"].high.ravel(), [0.5, 0, 0.5])
    mean = evaluate(case("attention", inputs, mask | {"empty_rows": "mean"}, output=cotangent))
    np.testing.assert_array_equal(mean["output"].high.ravel(), [3.5, 3])
    np.testing.assert_array_equal(mean["gradient of value"].high.ravel(), [5 / 6, 1 / 3, 5 / 6])
    np.testing.assert_array_equal(mean["gradient of query"].high.ravel(), [0, 0])
    with pytest.raises(ValueError, match="nan"):
        evaluate(case("attention", inputs, mask | {"empty_rows": "nan"}))
    pair = {name: inputs[name] for name in ("query", "key")}
    logsumexp = evaluate(case("attention_logsumexp", pair, mask))["output"]
    assert logsumexp.high[0, 0, 1] == -np.inf
    assert logsumexp.low[0, 0, 1] == 0
    with_sink = evaluate(case("attention_logsumexp", pair | {"sinks": [0.3]}, mask))["output"]
    assert with_sink.high[0, 0, 1] == 0.3


@pytest.mark.rule("NORM-1", "NORM-7")
def test_layer_norm_of_minus_one_and_one() -> None:
    """y = (-1, 1) / sqrt(1 + eps), and the slope of its second element in the second x is eps / (1 + eps)^1.5 / 2."""
    answer = evaluate(case("layer_norm", {"x": [-1, 1], "weight": [1, 1]}, {"eps": 0.5}, output=[0, 1]))
    with localcontext(prec=45):
        y, slope = 1 / Decimal("1.5").sqrt(), Decimal("0.25") / (Decimal("1.5") * Decimal("1.5").sqrt())
    assert abs(fraction(answer["output"], 1) / Fraction(y) - 1) < Fraction(1, 2**98)
    assert abs(fraction(answer["gradient of x"], 1) / Fraction(slope) - 1) < Fraction(1, 2**98)
    inputs = {"x": [-1, 1], "weight": [1, 1]}
    assert_equal(*(evaluate(case("layer_norm", inputs, options))["output"] for options in ({}, {"eps": 1e-5})))
    unbiased = evaluate(case("standard_deviation_norm", inputs, {"eps": 0.0}))["output"]
    np.testing.assert_allclose(unbiased.high, [-(0.5**0.5), 0.5**0.5], rtol=1e-15)
    rms = evaluate(case("rms_norm", {"x": [3, 3], "weight": [1, 2]}, {"eps": 0.0}))["output"].high
    np.testing.assert_array_equal(rms, [1, 2])


@pytest.mark.rule("POS-1")
@pytest.mark.parametrize("exponent", ["shared", "doubled"])
def test_sinusoidal_positions(exponent: str) -> None:
    table = evaluate(case("sinusoidal_positions", {}, {"length": 3, "width": 5, "offset": 2, "exponent": exponent}))
    for row, p in enumerate((2, 3, 4)):
        powers = (0, 0, 2, 2, 4) if exponent == "shared" else (0, 2, 4, 6, 8)
        angles = [p / 10000 ** (power / 5) for power in powers]
        expected = [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]
        np.testing.assert_allclose(table["output"].high[row], expected, rtol=1e-14)


@pytest.mark.rule("FFN-1")
@pytest.mark.parametrize(
    ("activation", "literal"),
    [
        ("gelu", lambda x: x * (1 + (x / arb(2).sqrt()).erf()) / 2),
        ("silu", lambda x: x * (1 + (x / 2).tanh()) / 2),
        ("gelu_tanh", lambda x: x * (1 + ((2 / arb.pi()).sqrt() * (x + arb("0.044715") * x**3)).tanh()) / 2),
    ],
)
def test_activations_are_their_literal_formulas(activation: str, literal: Callable[[arb], arb], fine: None) -> None:
    x = np.array([[-9.0], [-1.25], [0.0], [0.5], [7.0]])
    inputs = {"x": x, "inner.weight": [[1.0]], "outer.weight": [[1.0]]}
    got = evaluate_balls(case("feed_forward", inputs, {"activation": activation}))["output"]
    for ball_, number in zip(got.flat, x.flat, strict=True):
        assert ball_.overlaps(literal(arb(number)))
        assert ball_.rel_accuracy_bits() > 500


# --- identities -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("ATT-5")
def test_weights_of_a_row_sum_to_one() -> None:
    weights = evaluate_balls(case("attention_weights", attention_inputs("query", "key")))["output"]
    for total in weights.sum(-1).flat:
        assert 1 in total
        assert total.rad() < 2.0**-40


@pytest.mark.rule("ATT-14")
def test_merging_halves_gives_the_whole(fine: None) -> None:
    inputs = attention_inputs("query", "key", "value")
    parts: dict[str, np.ndarray] = {}
    for p, keys in enumerate((slice(0, 2), slice(2, 5))):
        half = inputs | {name: inputs[name][:, :, keys] for name in ("key", "value")}
        # Each half's answers are inputs again, so they are rounded to float64.
        parts[f"outputs[{p}]"] = evaluate(case("attention", half))["output"].high
        del half["value"]
        parts[f"logsumexps[{p}]"] = evaluate(case("attention_logsumexp", half))["output"].high
    merged, whole = evaluate(case("merge_attention", parts)), evaluate(case("attention", inputs))
    np.testing.assert_allclose(merged["output"].high, whole["output"].high, rtol=1e-14, atol=1e-15)


@pytest.mark.rule("ATT-7")
def test_query_head_h_reads_key_head_h_over_group_size() -> None:
    grouped = attention_inputs("query", "key", "value")
    repeated = grouped | {name: np.repeat(grouped[name], 2, axis=1) for name in ("key", "value")}
    assert_equal(evaluate(case("attention", grouped))["output"], evaluate(case("attention", repeated))["output"])


@pytest.mark.rule("MHA-2")
def test_separate_projections_are_the_fused_one() -> None:
    fused, separate = (evaluate(case("multi_head_attention", i, {"num_heads": 4})) for i in (FUSED, SEPARATE))
    assert_equal(fused["output"], separate["output"])


@pytest.mark.rule("MHA-1")
def test_multi_head_attention_with_identity_projections_is_attention() -> None:
    inputs = {"query": random(2, 3, 4), "key": random(2, 5, 4), "value": random(2, 5, 4, seed=1)}
    identity = {f"{name}.weight": np.eye(4) for name in ("query", "key", "value", "output")}
    options = {"mask": Causal(1)}
    joined = evaluate(case("multi_head_attention", inputs | identity, options | {"num_heads": 2}))["output"]
    heads = {name: array.reshape(2, -1, 2, 2).swapaxes(1, 2) for name, array in inputs.items()}
    output = evaluate(case("attention", heads, options))["output"]
    assert_equal(joined, Exact(*(part.swapaxes(1, 2).reshape(2, 3, 4) for part in output)))


@pytest.mark.parametrize(
    ("left", "right"),
    [((8, 9), (9, 8)), ((2, 3, 8, 9), (2, 3, 9, 8)), ((2, 1, 8, 9), (3, 9, 8)), ((3, 4, 9), (9, 8)), ((2, 0), (0, 3))],
)
def test_products_by_matrices_are_those_of_numpy(left: tuple[int, ...], right: tuple[int, ...], fine: None) -> None:
    a, b = tape.balls(random(*left)), tape.balls(random(*right, seed=1))
    got, expected = tape.product(a, b), np.matmul(a, b)
    assert got.shape == expected.shape
    for x, y in zip(got.flat, expected.flat, strict=True):
        assert isinstance(x, arb)
        assert x.overlaps(arb(y))
        assert x.rad() < arb(2) ** -500


# --- masks ------------------------------------------------------------------------------------------------------------

MATRICES = {
    "none": (None, ["1111", "1111", "1111"]),
    "causal": (Causal(0), ["1000", "1100", "1110"]),
    "causal, bottom right": (Causal(1), ["1100", "1110", "1111"]),
    "causal, before the first key": (Causal(-2), ["0000", "0000", "1000"]),
    "window": (SlidingWindow(1, 0, 1), ["1100", "0110", "0011"]),
    "window, open to the left": (SlidingWindow(None, 1, 0), ["1100", "1110", "1111"]),
    "window, open to the right": (SlidingWindow(0, None, 0), ["1111", "0111", "0011"]),
    "window of zero": (SlidingWindow(0, 0, 0), ["1000", "0100", "0010"]),
    "lengths": (KeyLengths(np.array([2])), ["1100"] * 3),
    "padding": (KeyPadding(np.array([[True, False, False, True]])), ["1001"] * 3),
    "segments": (Segments(np.array([[5, 6, 6]]), np.array([[5, 5, 6, 7]])), ["1100", "0010", "0010"]),
    "dense": (Dense(np.eye(3, 4, dtype=bool)), ["1000", "0100", "0010"]),
    "array of rank 4": (np.eye(3, 4, dtype=bool)[None, None], ["1000", "0100", "0010"]),
    "and": (Causal(1) & KeyLengths(np.array([3])), ["1100", "1110", "1110"]),
    "or": (Causal(0) | KeyPadding(np.array([[False, False, False, True]])), ["1001", "1101", "1111"]),
}


@pytest.mark.rule("MASK-2", "MASK-3", "MASK-4", "MASK-6")
@pytest.mark.parametrize("name", MATRICES)
def test_predicate(name: str) -> None:
    mask, rows = MATRICES[name]
    expected = np.array([[character == "1" for character in row] for row in rows])
    np.testing.assert_array_equal(visible_pairs(mask, None, (1, 2, 3, 4)), np.stack([[expected, expected]]))


@pytest.mark.rule("MASK-2")
def test_predicate_per_batch_and_head() -> None:
    lengths = visible_pairs(KeyLengths([1, 2]), None, (2, 1, 1, 3))
    np.testing.assert_array_equal(lengths[:, 0, 0], [[True, False, False], [True, True, False]])
    offsets = visible_pairs(Causal(np.array([0, 2])), None, (2, 1, 1, 3))
    np.testing.assert_array_equal(offsets[:, 0, 0], [[True, False, False], [True, True, True]])
    heads = np.array([[[[True, False]], [[False, True]]]])
    np.testing.assert_array_equal(visible_pairs(heads, None, (2, 2, 1, 2)), np.repeat(heads, 2, axis=0))
    shared = Segments(np.array([[1]]), np.array([[1, 2], [2, 1]]))
    np.testing.assert_array_equal(visible_pairs(shared, None, (2, 1, 1, 2))[:, 0, 0], [[True, False], [False, True]])


@pytest.mark.rule("ATT-3")
def test_minus_infinity_in_the_bias_forbids() -> None:
    bias = np.array([[0.0, -np.inf], [1.0, 2.0]])
    np.testing.assert_array_equal(visible_pairs(None, bias, (1, 1, 2, 2))[0, 0], [[True, False], [True, True]])


@pytest.mark.rule("MASK-7")
def test_what_stands_behind_a_mask_does_not_count() -> None:
    clean = attention_inputs("query", "key", "value", "bias")
    poisoned = {name: array.copy() for name, array in clean.items()}
    poisoned["key"][0, :, 3:], poisoned["value"][0, :, 3:], poisoned["query"][1] = np.nan, np.inf, np.nan
    poisoned["bias"][..., 3:] = np.nan
    options, cotangent = {"mask": KeyLengths(np.array([3, 0]))}, random(2, 4, 3, 3)
    left, right = (evaluate(case("attention", inputs, options, output=cotangent)) for inputs in (clean, poisoned))
    for name, exact in left.items():
        np.testing.assert_array_equal(exact, right[name])


@pytest.mark.rule("ATT-10")
@pytest.mark.parametrize("name", ARRAYS)
def test_special_values_that_count_are_refused(name: str) -> None:
    inputs = {n: array.copy() for n, array in attention_inputs(*ARRAYS).items()}
    inputs[name][(0,) * inputs[name].ndim] = np.nan
    with pytest.raises(ValueError, match=name):
        evaluate(case("attention", inputs))


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_too_little_precision_is_raised_until_it_is_enough(name: str) -> None:
    with ctx.workprec(77):
        coarse, usual = evaluate(DIFFERENTIABLE[name], precision=8), evaluate(DIFFERENTIABLE[name])
        assert ctx.prec == 77
    for result, exact in usual.items():
        if np.isfinite(exact.high).all():
            assert_equal(coarse[result], exact)


def test_a_sign_is_decided_however_small() -> None:
    """1 + 2^-300 - 1 is no number at 256 bits, but the relu of it is 2^-300, and that of its opposite 0."""
    inputs = {"x": [[1.0, 2.0**-300]], "inner.weight": [[1, -1], [1, -1]], "inner.bias": [-1, 1]}
    answer = evaluate(case("feed_forward", inputs | {"outer.weight": np.eye(2)}))["output"]
    np.testing.assert_array_equal(answer.high, [[2.0**-300, 0]])


@pytest.mark.rule("ATT-10")
def test_scores_beyond_every_float() -> None:
    inputs = {"query": [[[[1e300]]]], "key": [[[[1e300], [-1e300]]]], "value": [[[[1.0], [2.0]]]]}
    assert evaluate(case("attention", inputs))["output"].high == 1


def test_gradients_that_cancel_are_zero() -> None:
    """One key has the weight 1 whatever the score is."""
    inputs = {"query": [[[[0.1]]]], "key": [[[[0.3]]]], "value": [[[[0.7]]]]}
    assert evaluate(case("attention", inputs, output=[[[[0.9]]]]))["gradient of query"] == (0, 0)


def test_what_is_undefined_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="layer_norm"):
        evaluate(case("layer_norm", {"x": [1, 1], "weight": [1, 1]}, {"eps": 0.0}))


def test_high_and_low() -> None:
    for numerator, denominator in ((1, 3), (2, 3), (-5, 7), (10**40, 3)):
        high, low = ball.split_ball(arb(numerator) / denominator)
        assert abs(low) <= math.ulp(high) / 2
        exact = Fraction(numerator, denominator)
        assert abs(Fraction(high) + Fraction(low) - exact) <= abs(exact) / 2**50  # flint's default precision is 53
    with ctx.workprec(200):
        high, low = ball.split_ball(arb(1) / 3)
        assert abs(Fraction(high) + Fraction(low) - Fraction(1, 3)) < Fraction(1, 2**105)
        assert ball.split_ball(arb(2) ** 2000) == (math.inf, 0)
        assert ball.split_ball(arb.neg_inf()) == (-math.inf, 0)
        assert ball.split_ball(arb(0, 2.0**-300)) == (0, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_dtype_is_taken_exactly(dtype: str) -> None:
    table = np.array([[0.1], [3.0e-5]]).astype(getattr(ml_dtypes, dtype, dtype))
    lookup = Case("embedding", dtype, {"table": table, "ids": np.array([1, 0])}, {}, {"output": table})
    answer = evaluate(lookup)
    np.testing.assert_array_equal(answer["output"].high, table.astype(np.float64)[::-1])
    np.testing.assert_array_equal(answer["gradient of table"].high, table.astype(np.float64)[::-1])


# --- work -------------------------------------------------------------------------------------------------------------


def affordable(operation: str, **sizes: int) -> bool:
    return ball_work(operation, gradients=True, **sizes) <= AFFORDABLE


def test_what_is_affordable() -> None:
    one_query = {"B": 1, "H": 1, "G": 1, "Q": 1, "D": 1, "V": 1}
    assert affordable("attention", K=65537, **one_query)
    assert not affordable("attention", K=65537, **one_query | {"D": 8})
    assert affordable("layer_norm", rows=1, width=65537)
    assert not affordable("layer_norm", rows=3, width=65537)
