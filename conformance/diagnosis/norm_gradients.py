"""Known mistakes of the gradients of layer norm and its variants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from conformance.diagnosis.extents import ends, likely
from conformance.diagnosis.matching import Failing, Mistake, close, giving, only_backwards
from conformance.diagnosis.norms import (
    CHUNKS,
    PLACES,
    STATISTICS,
    Rows,
    Statistic,
    as_output,
    average,
    in_blocks,
    middle,
    output_mistakes,
    padded_widths,
    root,
    rows_of,
    variance,
)
from conformance.diagnosis.row_sums import RowSum, of_rows, row_sum_mistakes


class Backward(NamedTuple):
    """The normalised rows, 1 / what divides them, the cotangent, and it times the weight."""

    normal: np.ndarray
    inverse: np.ndarray
    bar: np.ndarray
    weighted: np.ndarray


def backward_of(failing: Failing, statistic: Statistic | None = None) -> Backward:
    """By the statistics of the operation, or by other ones."""
    rows = rows_of(failing.case)
    shift, divisor = (statistic or own_statistic(failing.case.operation))(rows)
    bar = failing.case.cotangents["output"].astype(float).reshape(rows.x.shape)
    return Backward((rows.x - shift) / divisor, 1 / divisor, bar, bar * rows.weight)


def own_statistic(operation: str) -> Statistic:
    def statistic(r: Rows) -> tuple[Any, Any]:
        if operation == "standard_deviation_norm":
            return middle(r), np.sqrt(variance(r.x, 1)) + r.eps
        return middle(r), root(r.square, r.eps)

    return statistic


def row_sums(failing: Failing) -> dict[str, RowSum]:
    """The gradients that are sums over rows."""
    b, shape = backward_of(failing), failing.case.inputs["weight"].shape
    terms = {"gradient of weight": b.bar * b.normal, "gradient of bias": b.bar}
    return {name: of_rows(array, shape) for name, array in terms.items()}


# --- x ----------------------------------------------------------------------------------------------------------------


def of_x(b: Backward, g: Any = None, mean: Any = 1.0, projection: Any = 1.0) -> np.ndarray:
    """mean, projection: how often the two means over a row count."""
    g = b.weighted if g is None else g
    return (g - average(g) * mean - b.normal * average(g * b.normal) * projection) * b.inverse


def of_x_by(b: Backward, of_mean: Backward, of_projection: Backward, mean: float = 1.0) -> np.ndarray:
    """The two means over a row are those of other cotangents. mean: how often the first of them counts."""
    projected = b.normal * average(of_projection.weighted * b.normal)
    return (b.weighted - average(of_mean.weighted) * mean - projected) * b.inverse


def of_x_in_blocks(b: Backward, block: int, centred: float) -> np.ndarray:
    """With the means of every block in place of the row's."""
    starts = np.arange(0, b.bar.shape[1], block)
    counts = np.diff(starts, append=b.bar.shape[1])

    def means(array: np.ndarray) -> np.ndarray:
        return np.repeat(np.add.reduceat(array, starts, axis=-1) / counts, counts, axis=-1)

    return (b.weighted - means(b.weighted) * centred - b.normal * means(b.weighted * b.normal)) * b.inverse


def x_gradients(failing: Failing) -> Iterator[tuple[str, np.ndarray]]:
    b, rows = backward_of(failing), rows_of(failing.case)
    centred, N = float(failing.case.operation == "layer_norm"), rows.weight.size
    if centred:
        yield "the mean's part is missing in the gradient of x", of_x(b, mean=0)
    yield "the variance's part is missing in the gradient of x", of_x(b, mean=centred, projection=0)
    if centred:
        yield "statistics are constants in the backward pass", of_x(b, mean=0, projection=0)
    yield "the weight is missing in the gradient of x", of_x(b, b.bar, centred)
    yield "the weight counts twice in the gradient of x", of_x(b, b.weighted * rows.weight, centred)
    bare = b._replace(weighted=b.bar)
    forgotten = "the weight is forgotten inside the mean"
    if centred:
        yield f"{forgotten}s over a row, in the gradient of x", of_x_by(b, bare, bare)
        yield f"{forgotten} of the gradient, in the gradient of x", of_x_by(b, bare, b)
    yield f"{forgotten} of gradient times normalised row, in the gradient of x", of_x_by(b, b, bare, centred)
    yield "the gradient of x is not divided by the deviation", of_x(b, mean=centred) / b.inverse
    yield "the gradient of x is divided by the deviation twice", of_x(b, mean=centred) * b.inverse
    by = {f"the padded width {filled}": m for filled, m in padded_widths(N)} | ({"n - 1": N - 1} if N > 1 else {})
    for divisor, m in by.items():
        for words, mean, projection in (
            ("the means", centred * N / m, N / m),
            ("the mean of the gradient", N / m, 1.0),
            ("the mean of gradient times normalised row", centred, N / m),
        ):
            if centred or words != "the mean of the gradient":
                verb = "are" if words == "the means" else "is"
                told = f"in the backward pass {words} over a row {verb} divided by {divisor}"
                yield told, of_x(b, None, mean, projection)
    for block in CHUNKS:
        if block < N:
            words = f"in the backward pass means run over a block of a row (blocks of {block} columns)"
            yield words, of_x_in_blocks(b, block, centred)
    words = "in the backward pass the normalised row is taken from the output"
    yield words, of_x(from_output(failing, b), mean=centred)
    yield from of_first_columns(failing, b, centred)


def from_output(failing: Failing, b: Backward) -> Backward:
    """(output - bias) / weight, of the output as it is returned."""
    rows = rows_of(failing.case)
    return b._replace(normal=(failing.answer("output").reshape(rows.x.shape) - rows.bias) / rows.weight)


def of_first_columns(failing: Failing, b: Backward, centred: float) -> Iterator[tuple[str, np.ndarray]]:
    """The means over a row hear only of its first n elements."""
    rows, N = len(b.bar), b.bar.shape[1]
    got = failing.answer("gradient of x").reshape(rows, N)
    row = int(np.argmax(failing.off("gradient of x").reshape(rows, N).sum(axis=1)))
    some = np.argsort(-np.abs(b.normal[row]), kind="stable")[:PLACES]
    limits = close(failing, "gradient of x", got)[row, some]
    count = np.arange(1, N + 1)
    first, second = np.cumsum(b.weighted, axis=-1) * centred, np.cumsum(b.weighted * b.normal, axis=-1)
    whole = np.zeros_like(first)
    for words, mean, projection in (
        ("the means", first / N, second / N),
        ("the means", first / count, second / count),
        ("the mean of the gradient", first / N, whole + second[:, -1:] / N),
        ("the mean of gradient times normalised row", whole + first[:, -1:] / N, second / N),
    ):
        part = b.weighted[row, some] - mean[row][:, None] - b.normal[row, some] * projection[row][:, None]
        near = np.abs(part * b.inverse[row] - got[row, some]) <= limits
        for n in likely(np.flatnonzero(near.all(axis=1)[:-1]) + 1, N):
            array = (b.weighted - mean[:, n - 1 : n] - b.normal * projection[:, n - 1 : n]) * b.inverse
            verb = "come" if words == "the means" else "comes"
            for name in ends(f"in the backward pass {words} over a row {verb} from {{only}}", n, N):
                yield name, array


# --- all of them ------------------------------------------------------------------------------------------------------


def parameter_gradients(failing: Failing, name: str) -> Iterator[tuple[str, np.ndarray]]:
    b, rows = backward_of(failing), rows_of(failing.case)
    terms = b.bar * b.normal if name.endswith("weight") else b.bar
    if name.endswith("weight"):
        yield f"{name} is that of the bias", b.bar.sum(0)
        yield f"{name} is taken with x, which is not normalised", (b.bar * rows.x).sum(0)
        yield f"{name} is not divided by the deviation", (b.bar * rows.deviation).sum(0)
        found = (b.bar * from_output(failing, b).normal).sum(0)
        yield "in the backward pass the normalised row is taken from the output", found
    yield f"{name} is multiplied by the weight", terms.sum(0) * rows.weight


def by_other_statistics(failing: Failing, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The backward pass computes mean and variance anew, and otherwise."""
    rows, centred = rows_of(failing.case), failing.case.operation == "layer_norm"
    for words, statistic in (*STATISTICS, *in_blocks(rows.weight.size, centred)):
        b = backward_of(failing, statistic)
        array = of_x(b, mean=float(centred)) if name == "gradient of x" else (b.bar * b.normal).sum(0)
        output = as_output(failing, *statistic(rows))["output"]
        yield only_backwards(failing, words, output), array


def measured(failing: Failing, name: str) -> Iterator[Mistake]:
    """Mistakes in one result of a norm, with numbers that the answers or the sizes tell."""
    return output_mistakes(failing) if name == "output" else gradient_mistakes(failing, name)


def gradient_mistakes(failing: Failing, name: str) -> Iterator[Mistake]:
    if failing.case.operation not in ("layer_norm", "rms_norm") or not failing.case.inputs["x"].size:
        return
    shape = failing.right(name).shape
    for words, array in x_gradients(failing) if name == "gradient of x" else parameter_gradients(failing, name):
        yield giving(words, name, array.reshape(shape), limits=close)
    if name != "gradient of x":
        yield from row_sum_mistakes(failing, name, row_sums(failing)[name])
    if name != "gradient of bias":
        for words, array in by_other_statistics(failing, name):
            yield giving(words, name, array.reshape(shape), limits=close)
