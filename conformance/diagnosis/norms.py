"""Known mistakes of layer norm and its variants; `norm_gradients.py` has those of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import Case
from conformance.checks.comparison import LARGEST
from conformance.diagnosis.attention import power_of_two
from conformance.diagnosis.extents import WHOLE_BLOCKS, ends, likely, without_bias
from conformance.diagnosis.matching import (
    Arrays,
    Bounds,
    Failing,
    Mistake,
    close,
    giving,
    instead,
    resulting,
    told_from,
)
from conformance.diagnosis.options import options
from conformance.diagnosis.row_sums import to_dtype
from conformance.runner.shrinking import without
from specification.dtypes import HALF


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
Statistics = Iterator[tuple[str, Statistic]]


def normalised(name: str, statistic: Statistic) -> Mistake:
    """A norm with other statistics."""

    def results(failing: Failing) -> dict[str, Any]:
        return as_output(failing, *statistic(rows_of(failing.case)))

    return resulting(name, results, limits=close)


def as_output(failing: Failing, shift: Any, divisor: Any) -> dict[str, Any]:
    rows = rows_of(failing.case)
    result = (rows.x - shift) / divisor * rows.weight + rows.bias
    return {"output": result.reshape(failing.case.inputs["x"].shape)}


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


def unweighted(case: Case) -> Case:
    """With the weight that a norm begins with."""
    return replace(case, inputs=case.inputs | {"weight": np.ones_like(case.inputs["weight"])})


def narrowed(case: Case) -> Case | None:
    """With a weight and a bias of float32 as they are in the 16 bits of x."""
    wide = [name for name in ("weight", "bias") if name in case.inputs and str(case.inputs[name].dtype) != case.dtype]
    inputs = {name: case.inputs[name].astype(case.dtype).astype(case.inputs[name].dtype) for name in wide}
    return replace(case, inputs=case.inputs | inputs) if wide else None


def root(square: Any, eps: float) -> Any:
    return np.sqrt(square + eps)


def floored(least: float) -> dict[str, Statistic]:
    return {
        "small variances are taken for 0": lambda r: (middle(r), root(np.where(r.square < least, 0, r.square), r.eps)),
        f"the variance is kept from falling below a number ({least:g})": lambda r: (
            middle(r),
            root(np.maximum(r.square, least), r.eps),
        ),
        f"the variance with eps is kept from falling below a number ({least:g})": lambda r: (
            middle(r),
            np.sqrt(np.maximum(r.square + r.eps, least)),
        ),
    }


STATISTICS: list[tuple[str, Statistic]] = [
    ("the variance is unbiased, over n - 1", lambda r: (average(r.x), root(variance(r.x, 1), r.eps))),
    ("eps is added outside the root", lambda r: (middle(r), np.sqrt(r.square) + r.eps)),
    (
        "the deviation is unbiased and eps is added outside the root (standard_deviation_norm)",
        lambda r: (average(r.x), np.sqrt(variance(r.x, 1)) + r.eps),
    ),
    ("the mean is not subtracted (rms_norm)", lambda r: (0.0, root(np.mean(r.x**2, -1, keepdims=True), r.eps))),
    ("the mean is not subtracted from x, only in the variance", lambda r: (0.0, root(variance(r.x), r.eps))),
    ("the mean is subtracted", lambda r: (average(r.x), root(variance(r.x), r.eps))),
    ("eps is left out", lambda r: (middle(r), np.sqrt(r.square))),
    ("eps is added twice", lambda r: (middle(r), root(r.square, 2 * r.eps))),
    ("all rows have the mean of their variances", lambda r: (middle(r), root(np.mean(r.square), r.eps) + 0 * r.square)),
    ("eps is squared", lambda r: (middle(r), root(r.square, r.eps**2))),
    ("eps is the least variance, and not added", lambda r: (middle(r), np.sqrt(np.maximum(r.square, r.eps)))),
    ("eps is the least deviation, and not added", lambda r: (middle(r), np.maximum(np.sqrt(r.square), r.eps))),
    ("the root is not taken", lambda r: (middle(r), r.square + r.eps)),
    ("the sum of squares is not divided by n", lambda r: (middle(r), root(r.square * r.x.shape[-1], r.eps))),
    *(item for least in (1e-6, 1e-5, 1e-8, 1e-7, 1e-4, 1e-3, 1e-10, 1e-12) for item in floored(least).items()),
]
NORM_MISTAKES = [
    *(normalised(name, statistic) for name, statistic in STATISTICS),
    over_axes("statistics run over the last axis only", lambda case: (-1,)),
    over_axes("statistics run over all axes but the first", lambda case: tuple(range(1, case.inputs["x"].ndim))),
    *(instead(f"eps is {eps:g}", options(eps=eps)) for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)),
    instead("weight is ignored", unweighted),
    instead("bias is ignored", without("bias")),
    instead("weight and bias are rounded to the dtype of x", narrowed)._replace(of_digits=True),
    instead(
        "weight is taken as its distance from 1",
        lambda case: replace(case, inputs=case.inputs | {"weight": case.inputs["weight"] + 1}),
    ),
]


# --- padding and blocks -----------------------------------------------------------------------------------------------

CHUNKS = tuple(2**n for n in range(2, 13))
PLACES = 16
"""Columns of a row by which it is seen how many of them take part."""
MOST_ADDED = 2**18
"""Numbers that are added up one after the other, at most."""
LANES = (32, 64, 128, 256, 512, 1024)


def padded_widths(n: int) -> Iterator[tuple[str, int]]:
    """Widths to which a row of n elements may be filled up, and the rule that gives them, in words."""
    widths = {f"a multiple of {size}": -(-n // size) * size for size in WHOLE_BLOCKS}
    for words, m in ({"a power of two": power_of_two(n)} | widths).items():
        if m > n:
            yield f"(a row is filled up to {words})", m


def in_blocks(n: int, centred: bool) -> Statistics:
    """Of rows of n elements that are filled up, or taken block by block; of rows that are taken together."""
    for filled, m in padded_widths(n):
        yield from padded_to(filled, m, centred)
    if not centred and n > 1:
        yield "the squares are divided by n - 1", lambda r: (0.0, root(r.square * n / (n - 1), r.eps))
    for block in WHOLE_BLOCKS:
        if block < n and n % block:
            yield f"the last block overlaps the one before, and what both hold counts twice {told(block)}", twice(block)
    for block in WHOLE_BLOCKS[:6]:
        yield f"a block's first row has the statistics of all its rows (blocks of {block} rows)", of_first_row(block)
    if not centred:
        return
    for size in CHUNKS:
        if size < n:
            yield from merged(told(size), size, np.arange(n) // size)
    for lanes in LANES:
        if lanes < n:
            yield from merged(f"({lanes} lanes, each with one column in {lanes})", -(-n // lanes), np.arange(n) % lanes)


def told(block: int) -> str:
    return f"(blocks of {block} columns)"


def twice(block: int) -> Statistic:
    """The last block ends with the row: it begins before the last whole one ends."""

    def statistic(r: Rows) -> tuple[Any, Any]:
        n = r.x.shape[-1]
        columns = np.concatenate([np.arange(n // block * block), np.arange(n - block, n)])
        mean = r.x[:, columns].sum(-1, keepdims=True) / n if np.any(middle(r)) else 0.0
        return mean, root(np.sum((r.x[:, columns] - mean) ** 2, -1, keepdims=True) / n, r.eps)

    return statistic


def of_first_row(block: int) -> Statistic:
    def statistic(r: Rows) -> tuple[Any, Any]:
        rows = np.arange(len(r.x)) // block * block
        return middle(r)[rows], root(r.square, r.eps)[rows]

    return statistic


def padded_to(filled: str, m: int, centred: bool) -> Statistics:
    yield (
        f"the squares are divided by the padded width {filled}",
        lambda r: (middle(r), root(r.square * r.x.shape[-1] / m, r.eps)),
    )
    yield f"a row is read on into the next one {filled}", lambda r: read_on(r, m, centred)
    if not centred:
        return
    yield (
        f"padding counts in the variance, by the mean's square {filled}",
        lambda r: (middle(r), root(r.square + (m / r.x.shape[-1] - 1) * average(r.x) ** 2, r.eps)),
    )
    yield (
        f"padding counts in mean and variance {filled}",
        lambda r: (r.x.sum(-1, keepdims=True) / m, root(variance(filled_up(r, m)), r.eps)),
    )
    yield (
        f"the mean is divided by the padded width {filled}",
        lambda r: with_mean(r, r.x.sum(-1, keepdims=True) / m),
    )


def filled_up(r: Rows, m: int) -> np.ndarray:
    return np.pad(r.x, ((0, 0), (0, m - r.x.shape[-1])))


def with_mean(r: Rows, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return mean, root(np.mean((r.x - mean) ** 2, -1, keepdims=True), r.eps)


def read_on(r: Rows, m: int, centred: bool) -> tuple[Any, Any]:
    """Statistics of m elements from the beginning of every row, divided by the row's own number of elements."""
    count, n = r.x.shape
    flat = np.concatenate([r.x.ravel(), np.zeros(m - n)])
    longer = flat[np.arange(count)[:, None] * n + np.arange(m)]
    mean = longer.sum(-1, keepdims=True) / n if centred else 0.0
    return mean, root(np.sum((longer - mean) ** 2, -1, keepdims=True) / n, r.eps)


def merged(parted: str, whole: int, of: np.ndarray) -> Statistics:
    """Means and squares of parts of a row, merged wrongly.

    parted: how, in words. whole: elements of a part. of: the part of every column.
    """
    order = np.argsort(of, kind="stable")
    starts = np.flatnonzero(np.diff(of[order], prepend=-1))
    counts = np.diff(starts, append=len(of))

    def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(means, sums of squared deviations from them)"""
        x = x[:, order]
        means = np.add.reduceat(x, starts, axis=-1) / counts
        return means, np.add.reduceat((x - np.repeat(means, counts, axis=-1)) ** 2, starts, axis=-1)

    def as_if_whole(count: float) -> Statistic:
        def statistic(r: Rows) -> tuple[Any, Any]:
            means, squares = parts(r.x)
            mean = average(means)
            square = np.sum(squares + count * (means - mean) ** 2, -1, keepdims=True)
            return mean, root(square / len(of), r.eps)

        return statistic

    def averaged(r: Rows) -> tuple[Any, Any]:
        means, squares = parts(r.x)
        return average(means), root(average(squares / counts) + variance(means), r.eps)

    def apart(r: Rows) -> tuple[Any, Any]:
        return average(r.x), root(np.sum(parts(r.x)[1], -1, keepdims=True) / len(of), r.eps)

    if not np.all(counts == whole):
        for count in (whole, len(of) / len(counts)):
            yield f"parts of a row are merged as if each were whole {parted}", as_if_whole(count)
        yield f"mean and variance are averaged over parts of a row that are not alike {parted}", averaged
    yield f"the difference of the parts' means is missing in the variance {parted}", apart


# --- columns that take no part ----------------------------------------------------------------------------------------


def partial_statistics(x: np.ndarray, centred: bool) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(words, shift, variance) of rows [rows, N], where columns past the first n take no part: [rows, N], by n - 1."""
    N = x.shape[-1]
    middle = average(x) if centred else np.zeros((len(x), 1))
    y, count = x - middle, np.arange(1, N + 1)
    first, second = np.cumsum(y, axis=-1), np.cumsum(y**2, axis=-1)
    all_of_it = second[:, -1:]
    none = np.zeros_like(first)
    if not centred:
        yield "statistics come from {only} of a row", none, second / count
        yield "columns past {end} take no part in the mean square", none, second / N
        return
    own = first / count
    yield "statistics come from {only} of a row", middle + own, second / count - own**2
    for filling in (np.zeros_like(middle), x[:, :1]):  # in place of what is missing
        mean = (first + (N - count) * (filling - middle)) / N
        body = second - 2 * mean * first + count * mean**2
        yield "columns past {end} take no part in mean and variance", middle + mean, body / N
        for square in (all_of_it / N + mean**2, all_of_it / N):
            yield "columns past {end} take no part in the mean", middle + mean, square + none
    yield "columns past {end} take no part in the variance", middle + none, second / N
    yield "the variance comes from {only} of a row", middle + none, second / count
    yield "the mean comes from {only} of a row", middle + own, all_of_it / N + own**2


def of_first_columns(failing: Failing) -> Iterator[Mistake]:
    """Statistics of the first n elements of a row."""
    rows, shape = rows_of(failing.case), failing.case.inputs["x"].shape
    N = rows.weight.size
    got = failing.answer("output").reshape(-1, N)
    row = int(np.argmax(failing.off("output").reshape(-1, N).sum(axis=1)))
    some = np.argsort(-np.abs(rows.deviation[row] * rows.weight), kind="stable")[:PLACES]
    limits = close(failing, "output", got.reshape(shape)).reshape(-1, N)[row, some]
    for words, shift, square in partial_statistics(rows.x, failing.case.operation != "rms_norm"):
        divisor = root(np.maximum(square, 0), rows.eps)
        affine = (rows.x[row, some] - shift[row][:, None]) / divisor[row][:, None] * rows.weight[some]
        expected = affine + rows.bias[some]
        near = np.abs(expected - got[row, some]) <= limits + 2.0**-36 * np.abs(expected)
        for n in likely(np.flatnonzero(near.all(axis=1)[:-1]) + 1, N):
            output = as_output(failing, shift[:, n - 1 : n], divisor[:, n - 1 : n])["output"]
            for name in ends(words, n, N):
                yield giving(name, "output", output, limits=close)


def written_to(failing: Failing) -> Iterator[Mistake]:
    """Rows that end before their last columns, which are 0."""
    rows, N = rows_of(failing.case), failing.case.inputs["weight"].size
    written = np.flatnonzero(failing.answer("output").reshape(-1, N).any(axis=0))
    n = int(written[-1]) + 1 if written.size else 0
    if 0 < n < N:
        first = rows.x[:, :n]
        shift = average(first) if failing.case.operation == "layer_norm" else 0.0
        divisor = root(np.mean((first - shift) ** 2, -1, keepdims=True), rows.eps)
        output = as_output(failing, shift, divisor)["output"].reshape(-1, N)
        ending = np.where(np.arange(N) < n, output, 0).reshape(failing.case.inputs["x"].shape)
        yield giving(f"only the first {n} columns of a row are read and written", "output", ending, limits=close)


def one_eps(failing: Failing) -> Iterator[Mistake]:
    """Another eps, the same for every row; of a single row some eps explains any variance."""
    rows, got = rows_of(failing.case), failing.answer("output").reshape(-1, failing.case.inputs["weight"].size)
    direction = rows.deviation * rows.weight
    size = np.sum(direction**2, axis=-1, keepdims=True)
    factor = np.sum((got - rows.bias) * direction, axis=-1, keepdims=True) / size
    eps = factor**-2 - rows.square
    usable = np.isfinite(eps) & (size > 0)
    if np.unique(rows.square[usable]).size < 2:
        return
    found = float(eps[usable][np.argmin(rows.square[usable])])  # it shows most where the variance is least
    if found > 0 and not np.isclose(found, rows.eps, rtol=1e-2):
        yield normalised(f"eps is {float(f'{found:.2g}'):g}", lambda r: (middle(r), root(r.square, found)))


def output_mistakes(failing: Failing) -> Iterator[Mistake]:
    """Mistakes in the output of a norm, with numbers that the answers or the sizes tell."""
    if failing.case.operation not in ("layer_norm", "rms_norm") or not failing.case.inputs["x"].size:
        return
    yield from written_to(failing)
    yield from of_first_columns(failing)
    for name, statistic in in_blocks(failing.case.inputs["weight"].size, failing.case.operation != "rms_norm"):
        yield normalised(name, statistic)
    yield from without_bias(failing, "bias", rows_of(failing.case).bias)
    yield from one_eps(failing)


# --- digits -----------------------------------------------------------------------------------------------------------


def narrow(failing: Failing) -> bool:
    """Whether it is layer_norm or rms_norm in 16 bits."""
    return failing.case.dtype in HALF and failing.case.operation != "standard_deviation_norm"


def rounded_before_the_weight(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if not narrow(failing):
        return None
    n = to_dtype((rows.deviation / root(rows.square, rows.eps)).astype(np.float32).astype(float), dtype)
    return {"output": (n * rows.weight + rows.bias).reshape(failing.case.inputs["x"].shape)}


def rounded_before_the_bias(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if dtype not in HALF or "bias" not in failing.case.inputs:
        return None
    scaled = to_dtype(rows.deviation / root(rows.square, rows.eps) * rows.weight, dtype)
    return {"output": (scaled + rows.bias).reshape(failing.case.inputs["x"].shape)}


def rounded_statistics(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if not narrow(failing):
        return None
    mean = 0.0 if failing.case.operation == "rms_norm" else to_dtype(average(rows.x), dtype)
    square = to_dtype(np.mean((rows.x - mean) ** 2, -1, keepdims=True), dtype)
    return as_output(failing, mean, root(square, rows.eps))


def overflowing_squares(failing: Failing) -> dict[str, Any] | None:
    rows = rows_of(failing.case)
    if failing.case.dtype != "float16" or not narrow(failing):
        return None
    squares = np.where(rows.deviation**2 > LARGEST["float16"], np.inf, rows.deviation**2)
    return as_output(failing, middle(rows), root(average(squares), rows.eps))


def squares_beyond_float32(failing: Failing) -> dict[str, Any] | None:
    rows = rows_of(failing.case)
    beyond = np.sum(rows.deviation**2, axis=-1, keepdims=True) > LARGEST["float32"]
    if failing.case.operation == "standard_deviation_norm" or not beyond.any():
        return None
    return as_output(failing, middle(rows), root(np.where(beyond, np.inf, rows.square), rows.eps))


def row_beyond_float32(failing: Failing) -> dict[str, Any] | None:
    rows = rows_of(failing.case)
    x = to_dtype(rows.x, "float32")
    return None if np.isfinite(x).all() else as_output(failing, *in_another_x(rows, x))


def rounded_squares(failing: Failing) -> dict[str, Any] | None:
    if not narrow(failing):
        return None
    rows = rows_of(failing.case)
    squares = to_dtype(rows.deviation**2, failing.case.dtype)
    if not np.isfinite(squares).all():  # `overflowing_squares`
        return None
    return as_output(failing, middle(rows), root(average(squares), rows.eps))


def mean_added_narrowly(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if not narrow(failing) or failing.case.operation == "rms_norm":
        return None
    mean = added_narrowly(rows.x, dtype) / rows.x.shape[-1]
    return as_output(failing, *with_mean(rows, mean))


def added_narrowly(array: np.ndarray, dtype: str) -> np.ndarray:
    """The sum of every row [rows, 1], rounded at each step."""
    total = np.zeros(len(array))
    for column in array.T if array.size <= MOST_ADDED else ():
        total = to_dtype(total + column, dtype)
    return total[:, None]


def squares_added_narrowly(failing: Failing) -> dict[str, Any] | None:
    rows, dtype = rows_of(failing.case), failing.case.dtype
    if not narrow(failing):
        return None
    total = added_narrowly(to_dtype(rows.deviation**2, dtype), dtype)
    return as_output(failing, middle(rows), root(total / rows.x.shape[-1], rows.eps))


def bias_before_weight(failing: Failing) -> dict[str, Any] | None:
    rows = rows_of(failing.case)
    more = (rows.bias * (rows.weight - 1)).reshape(failing.case.inputs["weight"].shape)
    return {"output": failing.right("output") + more} if "bias" in failing.case.inputs else None


def in_form(form: str) -> Iterator[Mistake]:
    """Of norms in float32 or float64, parts of which are rounded to 16 bits."""

    def rounded(name: str, statistic: Statistic, form_of_row: str = "") -> Mistake:
        def results(failing: Failing) -> dict[str, Any] | None:
            if failing.case.dtype in HALF or failing.case.operation == "standard_deviation_norm":
                return None
            rows = rows_of(failing.case)
            shift, divisor = statistic(rows)
            normal = (rows.x - shift) / divisor
            normal = to_dtype(normal, form_of_row) if form_of_row else normal
            return {"output": (normal * rows.weight + rows.bias).reshape(failing.case.inputs["x"].shape)}

        return resulting(f"{name} {form}", results, limits=close)

    def narrow(array: Any) -> np.ndarray:
        return to_dtype(np.asarray(array), form)

    yield rounded("the normalised row is rounded to", lambda r: (middle(r), root(r.square, r.eps)), form)
    yield rounded("the mean is rounded to", lambda r: with_mean(r, narrow(middle(r))))
    yield rounded("the variance is rounded to", lambda r: (middle(r), root(narrow(r.square), r.eps)))
    yield rounded("squares are rounded to", lambda r: (middle(r), root(average(narrow(r.deviation**2)), r.eps)))
    yield rounded("x is rounded to", lambda r: in_another_x(r, narrow(r.x)))


def in_another_x(r: Rows, x: np.ndarray) -> tuple[Any, Any]:
    """What makes (x - shift) / divisor the normalised row of another x."""
    centred = np.any(middle(r))
    shift = average(x) if centred else 0.0
    return r.x - (x - shift), root(np.mean((x - shift) ** 2, -1, keepdims=True), r.eps)


def within_a_rounding(name: str, results: Callable[[Failing], dict[str, Any] | None]) -> Mistake:
    """Each element within its own bound; a row may have been rounded the other way in one place of twenty."""

    def answers(failing: Failing) -> Any:
        found = results(failing)
        return None if found is None else (found, {n: failing.bounds[n] for n in found})

    return Mistake(name, answers, of_digits=True)


NORM_MISTAKES += [
    within_a_rounding("the normalised row is rounded before it meets the weight", rounded_before_the_weight),
    within_a_rounding("the row is rounded before the bias is added", rounded_before_the_bias),
    within_a_rounding("mean and variance are rounded to the inputs' 16 bits", rounded_statistics),
    resulting("squares overflow, as they are taken in float16", overflowing_squares),
    within_a_rounding("squares are rounded to the inputs' 16 bits", rounded_squares),
    within_a_rounding("the mean's sum is added up in the inputs' 16 bits", mean_added_narrowly),
    within_a_rounding("squares are added up in the inputs' 16 bits", squares_added_narrowly),
    resulting("the bias is added before the weight is multiplied", bias_before_weight, limits=close),
    *in_form("float16"),
    *in_form("bfloat16"),
]


def unless_beyond_float32(mistake: Mistake) -> Mistake:
    """None where the row is as large that float32 overflows, and this gives the same: zeros, or NaN."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        found = mistake.answers(failing)
        for beyond in (squares_beyond_float32, row_beyond_float32):
            other = None if found is None or "output" not in found[0] else beyond(failing)
            if found and other and not told_from(found[0]["output"], other["output"], found[1]["output"]):
                return None
        return found

    return mistake._replace(answers=answers)


NORM_MISTAKES = [
    resulting("squares overflow, as they are taken in float32", squares_beyond_float32, limits=close),
    resulting("x overflows, as it is rounded to float32", row_beyond_float32),
    *map(unless_beyond_float32, NORM_MISTAKES),
]
