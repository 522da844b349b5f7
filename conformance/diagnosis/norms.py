"""Known mistakes of layer norm, its variants and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.cases.case import Case
from conformance.diagnosis.attention import power_of_two
from conformance.diagnosis.extents import roundest
from conformance.diagnosis.matching import Failing, Mistake, giving, instead, loose, resulting


class Rows(NamedTuple):
    """x, its deviations from what is subtracted, weight and bias, with the normalised elements as one axis."""

    x: np.ndarray
    deviation: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    eps: float

    @property
    def square(self) -> np.ndarray:
        """The variance, or of rms_norm the mean square."""
        return np.mean(self.deviation**2, axis=-1, keepdims=True)


def rows_of(case: Case) -> Rows:
    weight = case.inputs["weight"].astype(float).reshape(-1)
    x = case.inputs["x"].astype(float).reshape(-1, weight.size)
    bias = case.inputs["bias"].astype(float).reshape(-1) if "bias" in case.inputs else np.zeros_like(weight)
    deviation = x if case.operation == "rms_norm" else x - average(x)
    return Rows(x, deviation, weight, bias, case.options.get("eps", 1e-5))


def average(x: np.ndarray) -> np.ndarray:
    return np.mean(x, axis=-1, keepdims=True)


Statistic = Callable[[Rows], tuple[Any, Any]]
"""What is subtracted from a row, and what it is divided by."""


def normalised(name: str, statistic: Statistic) -> Mistake:
    """A norm with other statistics."""

    def results(failing: Failing) -> dict[str, Any]:
        rows = rows_of(failing.case)
        shift, divisor = statistic(rows)
        result = (rows.x - shift) / divisor * rows.weight + rows.bias
        return {"output": result.reshape(failing.case.inputs["x"].shape)}

    return resulting(name, results)


def middle(r: Rows) -> np.ndarray:
    """What the norm subtracts."""
    return r.x - r.deviation


def variance(x: np.ndarray, less: int = 0) -> np.ndarray:
    return np.sum((x - average(x)) ** 2, axis=-1, keepdims=True) / max(x.shape[-1] - less, 1)


def over_axes(name: str, axes: Callable[[Case], tuple[int, ...]]) -> Mistake:
    """Statistics over other axes."""

    def results(failing: Failing) -> dict[str, Any] | None:
        case = failing.case
        x, weight = case.inputs["x"].astype(float), case.inputs["weight"].astype(float)
        over = axes(case)
        mean = 0.0 if case.operation == "rms_norm" else x.mean(axis=over, keepdims=True)
        divisor = np.sqrt(((x - mean) ** 2).mean(axis=over, keepdims=True) + case.options.get("eps", 1e-5))
        result = (x - mean) / divisor * weight
        return {"output": result + case.inputs["bias"].astype(float) if "bias" in case.inputs else result}

    return resulting(name, results)


def with_eps(eps: float) -> Callable[[Case], Case | None]:
    return lambda case: None if case.options.get("eps", 1e-5) == eps else replace(case, options={"eps": eps})


def without(name: str) -> Callable[[Case], Case | None]:
    """The parameter as it begins: a weight of 1, no bias."""

    def changed(case: Case) -> Case | None:
        if name not in case.inputs:
            return None
        if name == "bias":
            return replace(case, inputs={n: a for n, a in case.inputs.items() if n != name})
        return replace(case, inputs=case.inputs | {name: np.ones_like(case.inputs[name])})

    return changed


def root(square: Any, eps: float) -> Any:
    return np.sqrt(square + eps)


def floored(least: float) -> list[Mistake]:
    return [
        normalised(
            "small variances are taken for 0",
            lambda r: (middle(r), root(np.where(r.square < least, 0, r.square), r.eps)),
        ),
        normalised(
            f"the variance is kept from falling below a number ({least:g})",
            lambda r: (middle(r), root(np.maximum(r.square, least), r.eps)),
        ),
        normalised(
            f"the variance with eps is kept from falling below a number ({least:g})",
            lambda r: (middle(r), np.sqrt(np.maximum(r.square + r.eps, least))),
        ),
    ]


NORM_MISTAKES = [
    normalised("the variance is unbiased, over n - 1", lambda r: (average(r.x), root(variance(r.x, 1), r.eps))),
    normalised("eps is added outside the root", lambda r: (middle(r), np.sqrt(r.square) + r.eps)),
    normalised(
        "the deviation is unbiased and eps is added outside the root (standard_deviation_norm)",
        lambda r: (average(r.x), np.sqrt(variance(r.x, 1)) + r.eps),
    ),
    normalised(
        "the mean is not subtracted (rms_norm)", lambda r: (0.0, root(np.mean(r.x**2, -1, keepdims=True), r.eps))
    ),
    normalised("the mean is not subtracted from x, only in the variance", lambda r: (0.0, root(variance(r.x), r.eps))),
    normalised("the mean is subtracted", lambda r: (average(r.x), root(variance(r.x), r.eps))),
    normalised("eps is left out", lambda r: (middle(r), np.sqrt(r.square))),
    normalised("eps is squared", lambda r: (middle(r), root(r.square, r.eps**2))),
    normalised("eps is the least variance, and not added", lambda r: (middle(r), np.sqrt(np.maximum(r.square, r.eps)))),
    normalised(
        "eps is the least deviation, and not added", lambda r: (middle(r), np.maximum(np.sqrt(r.square), r.eps))
    ),
    normalised("the root is not taken", lambda r: (middle(r), r.square + r.eps)),
    normalised("the sum of squares is not divided by n", lambda r: (middle(r), root(r.square * r.x.shape[-1], r.eps))),
    over_axes("statistics run over the last axis only", lambda case: (-1,)),
    over_axes("statistics run over all axes but the first", lambda case: tuple(range(1, case.inputs["x"].ndim))),
    *(instead(f"eps is {eps:g}", with_eps(eps)) for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)),
    instead("weight is ignored", without("weight")),
    instead("bias is ignored", without("bias")),
    instead(
        "weight is taken as its distance from 1",
        lambda case: replace(case, inputs=case.inputs | {"weight": case.inputs["weight"] + 1}),
    ),
    *(mistake for least in (1e-6, 1e-5, 1e-8, 1e-7, 1e-4, 1e-3, 1e-10, 1e-12) for mistake in floored(least)),
]


# --- numbers that the answers tell ------------------------------------------------------------------------------------

MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)


def padded(failing: Failing) -> Iterator[Mistake]:
    """Zeros that fill a row up count in its statistics."""
    n = failing.case.inputs["weight"].size
    for m in dict.fromkeys([power_of_two(n), *(-(-n // size) * size for size in MULTIPLES)]):
        if m > n:
            yield from padded_to(m, failing.case.operation != "rms_norm")


def padded_to(m: int, centred: bool) -> Iterator[Mistake]:
    told = f"(a row is filled up to {m} elements)"
    yield normalised(
        f"the squares are divided by the padded width {told}",
        lambda r: (middle(r), root(r.square * r.x.shape[-1] / m, r.eps)),
    )
    if not centred:
        return
    yield normalised(
        f"padding counts in the variance, by the mean's square {told}",
        lambda r: (middle(r), root(r.square + (m / r.x.shape[-1] - 1) * average(r.x) ** 2, r.eps)),
    )
    yield normalised(
        f"padding counts in mean and variance {told}", lambda r: (r.x.sum(-1, keepdims=True) / m, filled_up(r, m))
    )
    yield normalised(
        f"the mean is divided by the padded width {told}", lambda r: with_mean(r, r.x.sum(-1, keepdims=True) / m)
    )


def filled_up(r: Rows, m: int) -> np.ndarray:
    full = np.pad(r.x, ((0, 0), (0, m - r.x.shape[-1])))
    return root(variance(full), r.eps)


def with_mean(r: Rows, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return mean, root(np.mean((r.x - mean) ** 2, -1, keepdims=True), r.eps)


def of_first_columns(failing: Failing) -> Iterator[Mistake]:
    """Statistics of the first n elements of a row."""
    rows, shape = rows_of(failing.case), failing.case.inputs["x"].shape
    N = rows.weight.size
    got = failing.answer("output").reshape(-1, N)
    off = failing.off("output").reshape(-1, N)
    row = int(np.argmax(off.sum(axis=1)))
    x, centred = rows.x[row], failing.case.operation != "rms_norm"
    counts = np.arange(1, N + 1)
    mean = np.cumsum(x) / counts if centred else np.zeros(N)
    square = np.maximum(np.cumsum(x**2) / counts - mean**2, 0)
    some = slice(0, 3)
    expected = (x[some] - mean[:, None]) / root(square, rows.eps)[:, None] * rows.weight[some] + rows.bias[some]
    limits = loose(failing, "output", got.reshape(shape)).reshape(-1, N)[row, some] + 2.0**-36 * np.abs(expected)
    near = np.flatnonzero((np.abs(expected - got[row, some]) <= limits).all(axis=1)) + 1
    for n in roundest(near[near < N]):
        first = rows.x[:, :n]
        shift = average(first) if centred else 0.0
        divisor = root(np.mean((first - shift) ** 2, -1, keepdims=True), rows.eps)
        output = (rows.x - shift) / divisor * rows.weight + rows.bias
        ending = np.where(np.arange(N) < n, output, 0)
        yield giving(f"only the first {n} columns of a row are read and written", "output", ending.reshape(shape))
        yield giving(f"statistics come from the first {n} columns of a row", "output", output.reshape(shape))


def one_eps(failing: Failing) -> Iterator[Mistake]:
    """Another eps, the same for every row."""
    rows, got = rows_of(failing.case), failing.answer("output").reshape(-1, failing.case.inputs["weight"].size)
    direction = rows.deviation * rows.weight
    size = np.sum(direction**2, axis=-1, keepdims=True)
    factor = np.sum((got - rows.bias) * direction, axis=-1, keepdims=True) / size
    eps = factor**-2 - rows.square
    usable = np.isfinite(eps) & (size > 0)
    if not usable.any():
        return
    found = float(eps[usable][np.argmin(rows.square[usable])])  # it shows most where the variance is least
    if found > 0 and not np.isclose(found, rows.eps, rtol=1e-2):
        yield normalised(f"eps is {float(f'{found:.2g}'):g}", lambda r: (middle(r), root(r.square, found)))


def extents(failing: Failing) -> Iterator[Mistake]:
    """Mistakes in the output of a norm."""
    if failing.case.operation not in ("layer_norm", "rms_norm") or not failing.case.inputs["x"].size:
        return
    yield from of_first_columns(failing)
    yield from padded(failing)
    yield from one_eps(failing)


# --- digits -----------------------------------------------------------------------------------------------------------


def to_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return array.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float)
    return array.astype(dtype).astype(float)


def rounded_before_the_weight(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if dtype not in ("float16", "bfloat16") or failing.case.operation == "standard_deviation_norm":
        return None
    n = to_dtype((rows.deviation / root(rows.square, rows.eps)).astype(np.float32).astype(float), dtype)
    return {"output": (n * rows.weight + rows.bias).reshape(failing.case.inputs["x"].shape)}


def rounded_before_the_bias(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if dtype not in ("float16", "bfloat16") or "bias" not in failing.case.inputs:
        return None
    scaled = to_dtype(rows.deviation / root(rows.square, rows.eps) * rows.weight, dtype)
    return {"output": (scaled + rows.bias).reshape(failing.case.inputs["x"].shape)}


def rounded_statistics(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if dtype not in ("float16", "bfloat16") or failing.case.operation == "standard_deviation_norm":
        return None
    mean = 0.0 if failing.case.operation == "rms_norm" else to_dtype(average(rows.x), dtype)
    square = to_dtype(np.mean((rows.x - mean) ** 2, -1, keepdims=True), dtype)
    return {
        "output": ((rows.x - mean) / root(square, rows.eps) * rows.weight + rows.bias).reshape(
            failing.case.inputs["x"].shape
        )
    }


def within_a_rounding(name: str, results: Callable[[Failing], dict[str, Any] | None]) -> Mistake:
    """Each element within its own bound; a row may have been rounded the other way in one place of twenty."""

    def answers(failing: Failing) -> Any:
        found = results(failing)
        return None if found is None else (found, {n: failing.bounds[n] for n in found})

    return Mistake(name, answers, of_digits=True)


DIGITS = [
    within_a_rounding("the normalised row is rounded before it meets the weight", rounded_before_the_weight),
    within_a_rounding("the row is rounded before the bias is added", rounded_before_the_bias),
    within_a_rounding("mean and variance are rounded to the inputs' 16 bits", rounded_statistics),
]
NORM_MISTAKES += DIGITS


# --- gradients --------------------------------------------------------------------------------------------------------


class Backward(NamedTuple):
    """The normalised rows, 1 / what divides them, the cotangent, and it times the weight."""

    normal: np.ndarray
    inverse: np.ndarray
    bar: np.ndarray
    weighted: np.ndarray


def backward_of(failing: Failing) -> Backward:
    rows = rows_of(failing.case)
    inverse = 1 / root(rows.square, rows.eps)
    bar = failing.case.cotangents["output"].astype(float).reshape(rows.x.shape)
    return Backward(rows.deviation * inverse, inverse, bar, bar * rows.weight)


def of_x(b: Backward, g: Any = None, less_mean: bool = True, less_projection: bool = True) -> np.ndarray:
    g = b.weighted if g is None else g
    out = g - average(g) * less_mean - b.normal * average(g * b.normal) * less_projection
    return out * b.inverse


def x_gradients(failing: Failing) -> Iterator[tuple[str, np.ndarray]]:
    b = backward_of(failing)
    centred = failing.case.operation == "layer_norm"
    if centred:
        yield "the mean's part is missing in the gradient of x", of_x(b, less_mean=False)
    yield "the variance's part is missing in the gradient of x", of_x(b, less_mean=centred, less_projection=False)
    if centred:
        yield "statistics are constants in the backward pass", of_x(b, less_mean=False, less_projection=False)
    yield "the weight is missing in the gradient of x", of_x(b, b.bar, less_mean=centred)
    yield "the weight counts twice in the gradient of x", of_x(b, b.weighted * rows_of(failing.case).weight, centred)


def parameter_gradients(failing: Failing, name: str) -> Iterator[tuple[str, np.ndarray]]:
    b, rows = backward_of(failing), rows_of(failing.case)
    terms = b.bar * b.normal if name.endswith("weight") else b.bar
    for block in (2, 4, 8, 16, 32, 64, 128, 256):
        if block < len(terms) and len(terms) % block:
            end = len(terms) // block * block
            yield (
                f"{name} loses the rows of the last block, which is not whole (blocks of {block} rows)",
                terms[:end].sum(0),
            )
    for count in dict.fromkeys(failing.case.inputs["x"].shape[:-1]):
        if 0 < count < len(terms):
            yield f"{name} comes from as many rows as one axis has ({count} of {len(terms)})", terms[:count].sum(0)
    sums = np.cumsum(terms, axis=0)
    got = failing.answer(name)
    near = np.flatnonzero((np.abs(sums - got.reshape(-1)) <= loose(failing, name, got).reshape(-1)).all(axis=1)) + 1
    for n in roundest(near[near < len(terms)]):
        yield f"{name} comes from the first {n} rows only", sums[n - 1]
    yield f"{name} comes from the last row only", terms[-1]
    if name.endswith("weight"):
        yield f"{name} is that of the bias", b.bar.sum(0)
        yield f"{name} is taken with x, which is not normalised", (b.bar * rows.x).sum(0)
        yield f"{name} is not divided by the deviation", (b.bar * rows.deviation).sum(0)
        yield f"{name} is multiplied by the weight", terms.sum(0) * rows.weight
    else:
        yield f"{name} is multiplied by the weight", terms.sum(0) * rows.weight


def added_narrowly(failing: Failing, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Row by row in 16 bits."""
    dtype = str(failing.got[name].dtype)
    if dtype not in ("float16", "bfloat16"):
        return
    b = backward_of(failing)
    terms = b.bar * b.normal if name.endswith("weight") else b.bar
    if len(terms) > 4096:
        return
    total = np.zeros(terms.shape[1])
    for row in terms:
        total = to_dtype(total + to_dtype(row, dtype), dtype)
    yield f"{name} is added up row by row in {dtype}", total


def gradient_mistakes(failing: Failing, name: str) -> Iterator[Mistake]:
    """Mistakes in one gradient."""
    if failing.case.operation not in ("layer_norm", "rms_norm") or not failing.case.inputs["x"].size:
        return
    found = x_gradients(failing) if name.endswith(" x") else parameter_gradients(failing, name)
    shape = failing.right(name).shape
    for words, array in found:
        yield giving(words, name, array.reshape(shape))
    if not name.endswith(" x"):
        for words, array in added_narrowly(failing, name):
            yield giving(words, name, array.reshape(shape), strict=True)
