"""Names of known mistakes of norms, the feed-forward network and lookups, and of sums over rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from conformance.diagnosis.larger import alike, wider
from conformance.diagnosis.matches import DIAGNOSIS, hints, known
from conformance.diagnosis.matching import BACKWARD_ONLY, Failing
from conformance.diagnosis.naming import diagnosis, in_families
from conformance.diagnosis.precision import AT_MOST
from conformance.diagnosis.row_sums import to_dtype

import reference_numpy
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING
from conformance.cases.expectations import Exact
from conformance.checks.catalogue import AGREEMENT
from conformance.checks.comparison import Finding
from conformance.checks.results import Violation
from conformance.diagnosis import extents
from conformance.oracle.reference import oracle
from conformance.runner.dimensions import sizes_of
from conformance.runner.in_process import Runner
from conformance.sampling.draws import of_seed
from conformance.sampling.strategies import norm_cases
from conformance.subjects.targets import Target
from reference_numpy.feed_forward_vjp import gelu_tanh_slope
from specification import FeedForward, Linear
from specification.dtypes import HALF
from tests.judge.test_diagnosis import by, center, changed_gradients, drawn, rows, spread, told

Function = Callable[..., Any]

# --- norms ------------------------------------------------------------------------------------------------------------


def whole_blocks(block: int, past: int = 0) -> Function:
    """Columns past the last whole block are not summed up, though the sums are divided by the row's width."""

    def statistic(x: Any, eps: float) -> Any:
        N = x.shape[-1]
        n = N // block * block if past < N else N
        mean = x[..., :n].sum(-1, keepdims=True) / N
        return mean, ((x[..., :n] - mean) ** 2).sum(-1, keepdims=True) / N + eps

    return by(statistic)


def merged(size: int, lanes: bool = False) -> Function:
    """Parts of a row, each counted as if it were whole."""

    def statistic(x: Any, eps: float) -> Any:
        N = x.shape[-1]
        parts = [x[..., i::size] for i in range(size)] if lanes else np.split(x, range(size, N, size), axis=-1)
        means = np.concatenate([center(part) for part in parts], -1)
        squares = np.concatenate([spread(part) * part.shape[-1] for part in parts], -1)
        whole = -(-N // size) if lanes else size
        between = whole * (means - center(means)) ** 2
        return center(means), (squares + between).sum(-1, keepdims=True) / N + eps

    return by(statistic)


def parts_alone(size: int) -> Function:
    def statistic(x: Any, eps: float) -> Any:
        squares = [spread(part) * part.shape[-1] for part in np.split(x, range(size, x.shape[-1], size), axis=-1)]
        return center(x), sum(squares) / x.shape[-1] + eps

    return by(statistic)


def next_row(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """Vectors of 8 read on into the next row."""
    count, N = x.shape
    m = -(-N // 8) * 8
    flat = np.concatenate([x.astype(float).ravel(), np.zeros(m)])
    longer = flat[np.arange(count)[:, None] * N + np.arange(m)]
    mean = longer.sum(-1, keepdims=True) / N
    square = ((longer - mean) ** 2).sum(-1, keepdims=True) / N
    return ((x - mean) / np.sqrt(square + eps) * weight + bias).astype(x.dtype)


def squares_in_16_bits(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    wide = x.astype(float) - center(x.astype(float))
    with np.errstate(over="ignore"):
        square = center(to_dtype(wide**2, "float16")) + eps
    return (wide / np.sqrt(square) * weight + bias).astype(x.dtype)


def squares_in_float32(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """Also of float64, as in the norms of many models."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32) - center(x.astype(np.float32))
        return (wide / np.sqrt(center(wide**2) + np.float32(eps)) * weight + bias).astype(x.dtype)


def overlapping(x: Any, eps: float) -> Any:
    """The last block of 8 ends with the row."""
    N = x.shape[-1]
    read = np.concatenate([x[..., : N // 8 * 8], x[..., -8:]], -1)
    mean = read.sum(-1, keepdims=True) / N
    return mean, ((read - mean) ** 2).sum(-1, keepdims=True) / N + eps


def in_bfloat16(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """The mean of a row is that of a sum in 16 bits."""
    wide, total = x.astype(float), np.zeros((len(x), 1))
    for column in wide.T:
        total = to_dtype(total + column[:, None], "bfloat16")
    mean = total / x.shape[-1]
    return ((wide - mean) / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + eps) * weight + bias).astype(x.dtype)


NORMS: list[tuple[str, Function, Case]] = [
    ("the last block overlaps the one before, and what both hold counts twice (blocks of 8 columns)", by(overlapping),
     rows(2, 21)),
    ("a block's first row has the statistics of all its rows (blocks of 4 rows)",
     by(lambda x, e: (center(x)[np.arange(len(x)) // 4 * 4], spread(x)[np.arange(len(x)) // 4 * 4] + e)), rows(7, 9)),
    ("all rows have the mean of their variances", by(lambda x, e: (center(x), spread(x).mean() + e)), rows(5, 9)),
    ("eps is added twice", by(lambda x, e: (center(x), spread(x) + 2 * e)), rows(5, 9, size=0.01)),
    ("the mean is rounded to bfloat16",
     by(lambda x, e: with_mean(x, to_dtype(center(x), "bfloat16"), e)), rows(5, 30, loc=3.0)),
    ("the normalised row is rounded to float16",
     by(lambda x, e: (center(x), spread(x) + e), lambda row: to_dtype(row, "float16")), rows(5, 30)),
    ("columns past the first 8 get the answer of the one before",
     lambda *given, **eps: reference_numpy.layer_norm(*given, **eps)[:, [*range(8), 7]], rows(5, 9)),
    ("the mean's sum is added up in the inputs' 16 bits", in_bfloat16, rows(3, 60, dtype="bfloat16", loc=1.0)),
    ("columns past the last whole block take no part in mean and variance (blocks of 4 columns)",
     whole_blocks(4, 32), rows(1, 33)),
    ("columns past the first 32 take no part in mean and variance",
     by(lambda x, e: whole_sums(x[..., :32], x.shape[-1], e)), rows(2, 70)),
    ("parts of a row are merged as if each were whole (blocks of 32 columns)", merged(32), rows(2, 70)),
    ("parts of a row are merged as if each were whole (32 lanes, each with one column in 32)", merged(32, lanes=True),
     rows(2, 70)),
    ("the difference of the parts' means is missing in the variance (blocks of 16 columns)", parts_alone(16),
     rows(2, 40)),
    ("a row is read on into the next one (a row is filled up to a multiple of 8)", next_row, rows(3, 19)),
    ("squares overflow, as they are taken in float16", squares_in_16_bits, rows(2, 12, size=200.0, dtype="float16")),
    ("squares overflow, as they are taken in float32", squares_in_float32, rows(2, 12, size=1e30)),
    ("squares overflow, as they are taken in float32", squares_in_float32, rows(2, 12, size=1e30, dtype="bfloat16")),
    ("squares overflow, as they are taken in float32", squares_in_float32, rows(2, 12, size=1e30, dtype="float64")),
    ("x overflows, as it is rounded to float32", squares_in_float32, rows(2, 12, size=1e60, dtype="float64")),
]  # fmt: skip


def with_mean(x: Any, mean: Any, eps: float) -> Any:
    return mean, ((x - mean) ** 2).mean(-1, keepdims=True) + eps


def whole_sums(x: Any, N: int, eps: float) -> Any:
    mean = x.sum(-1, keepdims=True) / N
    return mean, ((x - mean) ** 2).sum(-1, keepdims=True) / N + eps


@pytest.mark.parametrize(("name", "function", "asked"), NORMS, ids=[name for name, _, _ in NORMS])
def test_statistics_gone_wrong_have_names(name: str, function: Function, asked: Case) -> None:
    assert told(function, asked) == (name,)


def first_column(x: Any, weight: Any, bias: Any, eps: float, change: Callable[[Any], Any]) -> Any:
    y = reference_numpy.layer_norm(x, weight, bias, eps=eps)
    y[1:, 0] = change(y[:-1, 0])
    return y


@pytest.mark.parametrize("shape", [(9, 5), (2, 5)], ids=str)
def test_elements_of_the_row_before_have_a_name_and_other_numbers_have_none(shape: tuple[int, int]) -> None:
    """Of two rows a single element is wrong, and a larger case tells."""
    for change, names in ((np.copy, ("wrong elements hold what stands 1 row before them",)), (np.sin, ())):
        assert told(partial(first_column, change=change), rows(*shape)) == names


@pytest.mark.parametrize(("error", "names"), [(1.5, 0), (1e5, 1)], ids=["a digit", "another number"])
def test_elements_that_are_only_just_wrong_stand_in_no_other_place(error: float, names: int) -> None:
    """What stands seven elements after them is what they hold, by chance."""
    asked = rows(20, 5)
    right, bounds = oracle(asked)["output"].high.copy(), bound(asked)
    off = np.arange(0, 60, 20)
    right.reshape(-1)[off + 7] = right.reshape(-1)[off] + error * np.max(bounds["output"])
    got = right.copy()
    got.reshape(-1)[off] = right.reshape(-1)[off + 7]
    failing = Failing(asked, {"output": got}, {"output": Exact(right, np.zeros_like(right))}, bounds)
    assert len(list(extents.displaced(failing, "output"))) == names


def test_some_variance_that_a_number_of_columns_fits_is_not_explained_by_it() -> None:
    """One row of rms_norm tells one number, and of hundreds of columns the squares of some add up to it."""

    def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
        wide = x.astype(float)
        square = center(wide**2) * (0.9 + 0.01 * np.sin(wide[..., :1] * 1e3))
        return (wide / np.sqrt(square + eps) * weight).astype(x.dtype)

    asked = rows(1, 700)
    inputs = {name: asked.inputs[name] for name in ("x", "weight")}
    assert told(rms_norm, replace(asked, operation="rms_norm", inputs=inputs)) == ()


# --- gradients of norms -----------------------------------------------------------------------------------------------


def first_name(asked: Case, name: str, change: Callable[[Any], Any]) -> str:
    """Of the mistakes that explain a gradient."""
    found = changed_gradients(asked, **{name: change})
    return next(known(found, f"gradient of {name}", np.inf))


def backward(asked: Case) -> tuple[Any, Any, Any]:
    """(normalised rows, cotangent, reciprocal)"""
    x, bar = asked.inputs["x"].astype(float), asked.cotangents["output"].astype(float)
    reciprocal = 1 / np.sqrt(spread(x) + 1e-5)
    return (x - center(x)) * reciprocal, bar, reciprocal


def test_means_of_the_backward_pass_have_names() -> None:
    asked = rows(2, 40, graded=True)
    normal, bar, reciprocal = backward(asked)
    g = bar * asked.inputs["weight"]

    def of_x(mean: Any, projection: Any) -> Callable[[Any], Any]:
        return lambda gradient: (g - mean - normal * projection) * reciprocal

    def total(array: Any) -> Any:
        return array.sum(-1, keepdims=True)

    padded = "in the backward pass the means over a row are divided by the padded width (a row is filled up to"
    assert first_name(asked, "x", of_x(total(g) / 64, total(g * normal) / 64)).startswith(padded)
    first = "in the backward pass the mean of gradient times normalised row over a row comes from the first 32 columns"
    assert first_name(asked, "x", of_x(center(g), total((g * normal)[:, :32]) / 40)) == first
    everything = g - center(g) * 40 / 39 - normal * center(g * normal) * 40 / 39
    by_one_less = "in the backward pass the means over a row are divided by n - 1"
    assert first_name(asked, "x", lambda gradient: everything * reciprocal) == by_one_less
    small = replace(asked, options={"eps": 1e-2})
    outside = 1 / (np.sqrt(spread(small.inputs["x"].astype(float))) + 1e-2)
    n = (small.inputs["x"] - center(small.inputs["x"].astype(float))) * outside
    wrong = (g - center(g) - n * center(g * n)) * outside
    assert first_name(small, "x", lambda gradient: wrong) == f"{BACKWARD_ONLY}eps is added outside the root"


COUNTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("comes from the first 16 rows only", lambda n: n < 16),
    ("comes from the last 3 rows only", lambda n: n >= 18),
    ("loses the last row of every block (blocks of 5 rows)", lambda n: n % 5 != 4),
    ("counts the first row of every block but the first one twice (blocks of 8 rows)",
     lambda n: 1 + ((n % 8 == 0) & (n > 0))),
    ("fills up the last block with its last row, which counts again (blocks of 8 rows)", lambda n: 1 + 3 * (n == 20)),
    ("counts the last row 2 times", lambda n: 1 + (n == 20)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "often"), COUNTS, ids=[words for words, _ in COUNTS])
@pytest.mark.parametrize("of", ["weight", "bias"])
def test_which_rows_count_has_a_name(of: str, words: str, often: Callable[[Any], Any]) -> None:
    asked = rows(21, 6, graded=True)
    normal, bar, _ = backward(asked)
    terms = bar * normal if of == "weight" else bar
    found = changed_gradients(asked, **{of: lambda gradient: (often(np.arange(21))[:, None] * terms).sum(0)})
    assert f"gradient of {of} {words}" in list(known(found, f"gradient of {of}", np.inf))


def test_a_normalised_row_taken_from_the_output_has_a_name() -> None:
    asked = rows(5, 8, graded=True, dtype="bfloat16")
    bar, weight, bias = (
        a.astype(float) for a in (asked.cotangents["output"], *(asked.inputs[n] for n in ("weight", "bias")))
    )
    output = to_dtype(oracle(asked)["output"].high, "bfloat16")
    name = "in the backward pass the normalised row is taken from the output"
    assert first_name(asked, "weight", lambda gradient: (bar * (output - bias) / weight).sum(0)) == name


def test_a_single_number_tells_no_rows() -> None:
    """Some rows add up to any number."""
    asked = rows(300, 1, graded=True)
    found = changed_gradients(asked, bias=lambda gradient: gradient * 0.7 + 1)
    assert not [name for name in known(found, "gradient of bias", np.inf) if "rows" in name]


def test_what_explains_an_error_leaves_little_of_it() -> None:
    """Where the bound is half of the error, sums of other rows lie within it, too."""
    asked = rows(21, 6, graded=True)
    bar = asked.cotangents["output"].astype(float)
    found = changed_gradients(asked, bias=lambda gradient: bar[:18].sum(0))
    name = "gradient of bias"
    error = np.abs(found.answer(name) - found.right(name))
    wide = replace(found, bounds=found.bounds | {name: np.full(6, error.max() / 2)})
    assert list(known(wide, name, np.inf)) == list(known(found, name, np.inf))
    assert f"{name} comes from the first 18 rows only" in list(known(wide, name, np.inf))


HINT = f"{AT_MOST} gradients added up over rows in bfloat16 would make them"
ROW_BY_ROW = "gradient of bias is added up in bfloat16, row by row"


@pytest.mark.parametrize(
    ("small", "before", "told"),
    [((HINT,), (ROW_BY_ROW,), (ROW_BY_ROW,)), ((ROW_BY_ROW,), (HINT,), (HINT,)), ((ROW_BY_ROW,), ("another",), ())],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hint_gives_way_to_the_larger_case(
    small: tuple[str, ...], before: tuple[str, ...], told: tuple[str, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint about 16 bits is none about a smaller case in float32."""
    asked, uncut = (rows(3, 2, graded=True, dtype=one) for one in ("float32", dtype))
    answers = iter([small, before])
    monkeypatch.setattr("conformance.diagnosis.naming.asked", lambda *given: next(answers))
    wrong = next(f for f in changed_gradients(asked, bias=lambda g: g + 1).findings if f.ratio > 1)
    violation = Violation("NORM-6", "a subject", wrong, "a probe", AGREEMENT, asked, uncut=uncut)
    runner = Runner(Target(reference_numpy.layer_norm, "layer_norm").make())
    assert diagnosis(violation, runner) == (() if told == (HINT,) and dtype == "bfloat16" else told)


def test_a_sum_over_rows_rounded_to_16_bits_has_a_name() -> None:
    asked = rows(7, 6, graded=True)
    found = changed_gradients(asked, bias=lambda gradient: to_dtype(gradient, "bfloat16"))
    assert next(known(found, "gradient of bias", np.inf)) == "gradient of bias is rounded to bfloat16"


def test_only_0_explains_zeros() -> None:
    """A row divided by its variance of 2^80 is all but 0, and not 0."""

    def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
        return np.zeros_like(x)

    asked = rows(3, 8, size=2.0**40)
    inputs = {name: asked.inputs[name] for name in ("x", "weight")}
    assert "the root is not taken" not in told(layer_norm, replace(asked, inputs=inputs))


@pytest.mark.parametrize("tile", [1, 16])
def test_sums_over_rows_in_16_bits_have_a_name(tile: int) -> None:
    asked = rows(300, 6, graded=True, dtype="bfloat16")
    bar = asked.cotangents["output"].astype(float)
    total: Any = np.zeros(6)
    for start in range(0, 300, tile):
        total = to_dtype(total + to_dtype(bar[start : start + tile].sum(0), "bfloat16"), "bfloat16")
    found = changed_gradients(asked, bias=lambda gradient: total)
    how = "row by row" if tile == 1 else f"tile by tile (blocks of {tile} rows)"
    assert f"gradient of bias is added up in bfloat16, {how}" in list(known(found, "gradient of bias", np.inf))


@pytest.mark.parametrize("rightly", [True, False])
def test_sums_in_16_bits_in_any_order_are_a_hint_where_float32_is_right(rightly: bool) -> None:
    asked = rows(300, 6, graded=True, dtype="bfloat16")
    bar = asked.cotangents["output"].astype(float)
    total: Any = np.zeros(6)
    for row in np.random.default_rng(5).permutation(300):
        total = to_dtype(total + bar[row], "bfloat16")
    found = changed_gradients(asked, bias=lambda gradient: total)

    def subject(case: Case) -> Any:
        right = {name: exact.high.astype(case.dtype) for name, exact in oracle(case).items()}
        return right if rightly else {name: array + 1 for name, array in right.items()}

    subject.declaration = EVERYTHING  # type: ignore[attr-defined]
    told = list(hints(subject, found, "gradient of bias"))  # type: ignore[arg-type]
    hint = "perhaps: the errors are no larger than gradients added up over rows in bfloat16 would make them"
    assert (hint in told) == rightly


# --- grids ------------------------------------------------------------------------------------------------------------


def test_batch_elements_and_heads_are_counted_together() -> None:
    """As in a grid, of which an axis ends at 65,535."""

    def attend(query: Any, key: Any, value: Any) -> Any:
        output = reference_numpy.attention(query, key, value)
        B, H = output.shape[:2]
        return np.where((np.arange(B * H) < 7).reshape(B, H, 1, 1), output, 0).astype(query.dtype)

    assert told(attend, drawn(B=3, H=5, G=5)) == ("batch elements times heads past the first 7 are 0",)


def test_rows_past_some_are_0() -> None:
    def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
        return np.where(np.arange(len(x))[:, None] < 15, reference_numpy.layer_norm(x, weight, bias, eps=eps), 0)

    def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
        return np.where(np.arange(ids.size).reshape(ids.shape)[..., None] < 15, table[ids], 0)

    assert told(layer_norm, rows(20, 4)) == ("rows past the first 15 are 0",)
    ids = np.random.default_rng(0).integers(0, 9, (4, 5))
    assert told(embedding, replace(lookup(ids), cotangents={})) == ("rows past the first 15 are 0",)


# --- feed-forward -----------------------------------------------------------------------------------------------------


def network(
    rows: int = 3, E: int = 5, F: int = 21, out: int = 5, activation: str = "gelu", graded: bool = True
) -> Case:
    generator = np.random.default_rng(0)
    shapes = {
        "x": (rows, E),
        "inner.weight": (E, F),
        "inner.bias": (F,),
        "outer.weight": (F, out),
        "outer.bias": (out,),
    }
    inputs = {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    bar = {"output": generator.normal(size=(rows, out)).astype("float32")} if graded else {}
    return Case("feed_forward", "float32", inputs, {"activation": activation}, bar)


def cut(inner: int = 0, x: int = 0) -> Function:
    """Without the columns of x, or inside, past the last whole block."""

    def function(parameters: Any, array: Any, *, activation: str = "relu") -> Any:
        (weight, bias), outer = parameters
        F, E = weight.shape[1], weight.shape[0]
        f, e = (n // block * block if block else n for n, block in ((F, inner), (E, x)))
        first = Linear(weight[:e, :f], None if bias is None else bias[:f])
        layers = FeedForward(first, Linear(outer.weight[:f], outer.bias))
        return reference_numpy.feed_forward(layers, array[..., :e], activation=activation)

    return function


def quick(parameters: Any, x: Any, *, activation: str = "relu") -> Any:
    (inner, bias), (outer, other) = parameters
    hidden = x @ inner + (0 if bias is None else bias)
    return hidden / (1 + np.exp(-1.702 * hidden)) @ outer + (0 if other is None else other)


def again(parameters: Any, x: Any, *, activation: str = "relu") -> Any:
    """Of 21 columns inside the last 8 are read as a block."""
    (inner, bias), (outer, other) = parameters
    columns = np.concatenate([np.arange(inner.shape[1] // 8 * 8), np.arange(inner.shape[1] - 8, inner.shape[1])])
    layers = FeedForward(
        Linear(inner[:, columns], None if bias is None else bias[columns]), Linear(outer[columns], other)
    )
    return reference_numpy.feed_forward(layers, x, activation=activation)


def without_last_bias(parameters: Any, x: Any, *, activation: str = "relu") -> Any:
    inner, (outer, other) = parameters
    kept = other * (np.arange(other.size) < other.size // 4 * 4)
    return reference_numpy.feed_forward(
        FeedForward(inner, Linear(outer, kept.astype(x.dtype))), x, activation=activation
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("the last block overlaps the one before, and what both hold counts twice (blocks of 8 columns)", again),
        ("the outer bias is not added to columns past the last whole block (blocks of 4 columns)", without_last_bias),
        ("columns inside past the last whole block are left out (blocks of 8 columns)", cut(inner=8)),
        ("columns of x past the last whole block are left out (blocks of 2 columns)", cut(x=2)),
        ("the activation is quick GELU, x * sigmoid(1.702 x)", quick),
    ],
)
def test_networks_gone_wrong_have_names(name: str, function: Function) -> None:
    assert told(function, network(graded=False)) == (name,)


def test_backward_passes_of_networks_have_names() -> None:
    asked = network()
    wide = {name: array.astype(float) for name, array in asked.inputs.items()}
    bar, before = asked.cotangents["output"].astype(float), wide["x"] @ wide["inner.weight"] + wide["inner.bias"]
    before_bar = bar @ wide["outer.weight"].T * gelu_tanh_slope(before)
    changes = {
        "x": before_bar @ wide["inner.weight"].T,
        "inner.weight": wide["x"].T @ before_bar,
        "inner.bias": before_bar.sum(0),
    }
    found = changed_gradients(asked, **{name: lambda gradient, array=array: array for name, array in changes.items()})
    assert next(known(found, "gradient of x", np.inf)) == f"{BACKWARD_ONLY}the activation is gelu_tanh"
    few = changed_gradients(asked, **{"outer.bias": lambda gradient: bar[:2].sum(0)})
    assert "gradient of outer.bias comes from the first 2 rows only" in list(
        known(few, "gradient of outer.bias", np.inf)
    )


def test_a_mistake_of_both_passes_is_not_told_twice() -> None:
    name = "the activation is gelu_tanh"
    assert in_families((name, f"{BACKWARD_ONLY}{name}")) == (name,)
    assert in_families((f"{BACKWARD_ONLY}{name}",)) == (f"{BACKWARD_ONLY}{name}",)


def test_larger_cases_are_as_large_as_they_must_be() -> None:
    small = network(rows=1, E=1, F=3, out=1)
    same, wide, many = (sizes_of(case) for case in alike(small))
    assert same == sizes_of(small)
    assert (wide["rows"], wide["E"], wide["inner"], wide["output"]) == (1, 5, 4, 4)
    assert many == wide | {"rows": 24}
    assert [sizes_of(case)["inner"] for case in wider(small)] == [7]


# --- lookups ----------------------------------------------------------------------------------------------------------


def lookup(ids: Any, rows: int = 9, width: int = 4, dtype: str = "float32") -> Case:
    generator = np.random.default_rng(0)
    inputs = {"table": generator.normal(size=(rows, width)).astype(dtype), "ids": np.asarray(ids)}
    bar = generator.normal(size=(*np.shape(ids), width)).astype(dtype)
    return Case("embedding", dtype, inputs, {"scaled": False}, {"output": bar})


REPEATED = np.array([0, 3, 3, 8, 1, 0, 0, 2])


def gradient_without(row: int) -> Callable[[Any], Any]:
    return lambda gradient: np.where(np.arange(len(gradient))[:, None] == row, 0, gradient)


def assigned(gradient: Any) -> Any:
    found = np.zeros_like(gradient)
    found[REPEATED] = lookup(REPEATED).cotangents["output"]
    return found


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("the gradient of row 0 of the table stays 0", gradient_without(0)),
        ("the gradient of the last row of the table stays 0", gradient_without(8)),
        ("an id that occurs several times counts once in the gradient, the last time", assigned),
        ("the gradient of a row is divided by how often its id occurs",
         lambda g: g / np.maximum(np.bincount(REPEATED, minlength=9), 1)[:, None]),
        (f"{BACKWARD_ONLY}every id is taken for the one before it",
         lambda g: np.concatenate([g[:1] + g[1:2], g[2:], g[:1] * 0])),
    ],
)  # fmt: skip
def test_gradients_of_a_table_have_names(name: str, change: Callable[[Any], Any]) -> None:
    assert first_name(lookup(REPEATED), "table", change) == name


@pytest.mark.parametrize("dtype", HALF)
def test_a_gradient_of_relative_positions_added_up_in_16_bits_has_a_name(dtype: str) -> None:
    """Pair by pair, as an index of rows would add them."""
    options = {"query_length": 30, "key_length": 40, "bidirectional": True}
    generator = np.random.default_rng(0)
    table, bar = (generator.normal(size=shape).astype(dtype) for shape in ((32, 2), (1, 2, 30, 40)))
    asked = Case("relative_position_bias", dtype, {"table": table}, options, {"output": bar})
    bucket = np.argmax(
        reference_numpy.relative_position_bias(np.eye(32), 30, 40, bidirectional=True)[0], axis=0
    ).ravel()

    def narrowly(gradient: Any) -> Any:
        total = np.zeros_like(gradient)
        for row, received in zip(bucket, bar[0].reshape(2, -1).T.astype(float), strict=True):
            total[row] = to_dtype(total[row] + received, dtype)
        return total

    assert first_name(asked, "table", narrowly) == f"gradient of table is added up in {dtype}, row by row"
    found = changed_gradients(asked, table=lambda gradient: np.where(np.arange(32)[:, None] == 16, 0, gradient))
    assert not any("added up" in name for name in known(found, "gradient of table", np.inf))


def test_a_root_in_16_bits_has_a_name() -> None:
    def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
        return (to_dtype(np.sqrt(table.shape[1]), "bfloat16") * table[ids].astype(float)).astype(table.dtype)

    asked = replace(lookup(REPEATED, width=23, dtype="bfloat16"), cotangents={}, options={"scaled": True})
    assert told(embedding, asked) == ("sqrt(E) is rounded to the dtype of the table",)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("ids are cut off at 31", lambda ids: np.minimum(ids, 31)),
        ("ids are taken modulo 32", lambda ids: ids % 32),
    ],
)
def test_ids_taken_for_others_have_names(name: str, read: Callable[[Any], Any]) -> None:
    def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
        return table[read(ids)]

    asked = replace(lookup([2, 40, 3, 35, 33, 5], rows=45), cotangents={})
    assert told(embedding, asked) == (name,)


def test_gradients_of_rows_past_some_have_a_name() -> None:
    """Which is a round number, though no row is read from there on until later."""
    change = lambda g: np.where(np.arange(45)[:, None] >= 32, 0, g)  # noqa: E731
    name = "gradients of rows of the table past the first 32 stay 0"
    assert name in list(
        known(changed_gradients(lookup([2, 40, 3, 35, 5], rows=45), table=change), "gradient of table", np.inf)
    )


def test_one_position_too_early_is_no_offset_that_is_ignored() -> None:
    """The smallest case has an offset of 1."""

    def learned_positions(table: Any, length: int, *, offset: int = 0) -> Any:
        return table[max(offset - 1, 0) :][:length]

    table = {"table": np.random.default_rng(0).normal(size=(3, 2)).astype("float32")}
    asked = Case("learned_positions", "float32", table, {"length": 1, "offset": 1})
    assert told(learned_positions, asked) == ("rows are read from one position too early",)


def test_ids_in_16_bits_have_a_name() -> None:
    def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
        return table[ids & 0xFFFF]

    asked = replace(lookup([65536, 3, 65540], rows=65550, width=4), cotangents={})
    assert told(embedding, asked) == ("ids are kept in 16 bits",)


def test_a_padding_row_is_told_from_the_first_row_where_the_table_has_one_row() -> None:
    """The smallest case has one row: it is the first one and the last one, and gets no gradient at all."""

    def vjp(table: Any, ids: Any, cotangent: Any, *, scaled: bool = False) -> Any:
        gradient = reference_numpy.embedding_vjp(table, ids, cotangent, scaled=scaled)
        return np.where(np.arange(len(table))[:, None] == 0, 0, gradient).astype(table.dtype)

    asked = lookup([0], rows=1, width=1)
    runner = Runner(Target(reference_numpy.embedding, "embedding", given={"vjp": vjp}).make())
    (wrong,) = [finding for finding in runner(AGREEMENT, asked, AGREEMENT.prepare(asked)) if finding.ratio > 1]
    found = diagnosis(Violation("EMB-1", "a subject", wrong, "a probe", AGREEMENT, asked), runner)
    assert found[0] == "the gradient of row 0 of the table stays 0"


def test_the_last_row_of_65537_shows_in_a_sum_over_rows() -> None:
    """In one draw of six at least: some have no cotangent there."""
    plan = partial(norm_cases, "rms_norm", plans=(((65537, 1), 1),), dtypes=("float32",), focus=("gradients",))
    shown = []
    for seed in range(6):
        [case] = of_seed(plan(), seed, False)
        x, bar = (array.astype(float).ravel() for array in (case.inputs["x"], case.cotangents["output"]))
        lost = abs(bar[-1] * x[-1]) / np.sqrt(x[-1] ** 2 + case.options["eps"])
        shown.append(lost > bound(case)["gradient of weight"][0])
    assert any(shown)


def test_a_call_that_fails_while_it_is_explained() -> None:
    """It has no diagnosis, and the judge goes on."""

    def late(x: Any, weight: Any, **options: Any) -> Any:
        time.sleep(1)

    case = replace(of_seed(norm_cases(dtypes=("float32",)), 1)[-1], cotangents={})
    runner = Runner(Target(late, case.operation, "numpy").make(), 0.05)
    (finding,) = runner(DIAGNOSIS, (AGREEMENT, case, Finding("output", 2.0)), None)
    assert finding.kind == "took_too_long"
