"""Norms computed wrongly (NORM-1 to NORM-5, NORM-7, NORM-8); `norm_gradients.py` has their backward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.bounds import layer_norm as bounds
from conformance.bounds.arithmetic import LARGEST, Approx, Precision, exact, multiply
from conformance.bounds.operations import approximate, result_bound
from conformance.cases.arguments import expected_dtype
from conformance.cases.case import Case
from conformance.checks.comparison import PRECISION
from conformance.mistakes.attention_steps import places_of
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import add_in_order, compute_in_float32, round_stage
from conformance.mistakes.condition import Condition, past
from conformance.mistakes.mistake import Change, Changed, Mistake, Prediction, Topic, name_entries
from conformance.mistakes.norm_steps import NORMS, NormSteps, Statistics, add_eps, add_eps_outside, measure_rows
from specification.dtypes import HALF, compute_dtype_name

LAYER, RMS, DEVIATION = ((name,) for name in NORMS)
CENTERED = LAYER + DEVIATION
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Of what a kernel holds of a row at a time."""
ROWS = (48, 32, *SIZES[:-1], 65535, 65536)
"""Of what a grid holds."""
BLOCKS = (8, 2, 4, 16, 32, 64, 128, 256, 512, 1024)

Step = Callable[..., Any]
"""From the right steps and values of parameters to other steps, to results, to several of them, or to None."""
TOPIC = Topic("norms", "NORM-1", NORMS)


def vary(change: Step) -> Change:
    """Take what comes of `change(steps, **values)`."""

    def results(call: Call, **values: object) -> Changed | list[Changed]:
        changed = change(NormSteps.read_case(call.case), **values) if call.case.inputs["x"].size else None
        ways = changed if isinstance(changed, list) else [changed]
        return [way.results() if isinstance(way, NormSteps) else way for way in ways]

    return results


def norm(name: str, says: str, change: Step, /, **fields: Any) -> Mistake:
    return TOPIC.entry(name, says, vary(change), **fields)


# --- statistics -------------------------------------------------------------------------------------------------------


def mean_weights(s: NormSteps) -> np.ndarray:
    return np.full(s.n, 1 / s.n)


def square_weights(s: NormSteps) -> np.ndarray:
    """What the squared deviations are multiplied with, the same for all."""
    return np.full(s.n, 1 / max(s.n - 1, 1)) if s.case.operation == "standard_deviation_norm" else mean_weights(s)


def divide_squares(divisor: Callable[[int], float]) -> Step:
    return lambda s: s.change_statistics(mean_weights(s), np.full(s.n, 1 / divisor(s.n)), mean_weights(s))


def take_eps_as_floor(s: NormSteps, of: str) -> NormSteps:
    if of == "variance":
        return s.change(divisor=lambda square, eps: np.sqrt(np.maximum(square, eps)))
    return s.change(divisor=lambda square, eps: np.maximum(np.sqrt(square), eps))


def run_over_axes(s: NormSteps, first: int) -> NormSteps | None:
    """Statistics over the axes from the first of these on."""
    width = int(np.prod(s.case.inputs["x"].shape[first:]))
    alone = width == 1 and s.case.operation == "standard_deviation_norm"
    return None if width == s.n or alone else NormSteps.read_case(s.case, width)


def raise_small_variances(s: NormSteps, least: float) -> list[NormSteps]:
    """The variance, with eps or without, has a floor."""
    return [
        s.change(divisor=lambda square, eps: s.divisor(np.maximum(square, least), eps)),
        s.change(divisor=lambda square, eps: np.sqrt(np.maximum(square + eps, least))),
    ]


def take_eps(case: Case, eps: float) -> Case | None:
    return None if case.options.get("eps", 1e-5) == eps else replace(case, options=case.options | {"eps": eps})


LEAST = (1e-6, 1e-5, 1e-8, 1e-7, 1e-4, 1e-3, 1e-10, 1e-12)
EPSILONS = (1e-6, 1e-12, 1e-8, 1e-5, 1e-3)
STATISTICS = (
    norm("unbiased-variance", "the squares are divided by n - 1", divide_squares(lambda n: max(n - 1, 1)),
         operations=LAYER + RMS),
    norm("biased-deviation", "the squares are divided by n", divide_squares(lambda n: n), rule="NORM-7",
         operations=DEVIATION),
    norm("eps-outside-the-root", "eps is added outside the root", lambda s: s.change(divisor=add_eps_outside),
         operations=LAYER + RMS),
    norm("eps-inside-the-root", "eps is added inside the root", lambda s: s.change(divisor=add_eps), rule="NORM-7",
         operations=DEVIATION),
    norm("standard-deviation", "the deviation is unbiased and eps is added outside the root (standard_deviation_norm)",
         lambda s: NormSteps.read_case(replace(s.case, operation=DEVIATION[0])).change(case=s.case), operations=LAYER),
    norm("mean-not-subtracted", "the mean is not subtracted (rms_norm)",
         lambda s: s.change_statistics(None, square_weights(s)), operations=CENTERED),
    norm("mean-in-the-variance-only", "the mean is subtracted in the variance only",
         lambda s: s.change_statistics(None, square_weights(s), mean_weights(s)), operations=CENTERED),
    norm("mean-subtracted", "the mean is subtracted",
         lambda s: s.change(statistics=measure_rows(s.x, u := mean_weights(s), u, u)), rule="NORM-7", operations=RMS),
    norm("one-variance", "all rows have the mean of their variances", lambda s: s.change(pooled=True)),
    norm("eps-left-out", "eps is left out", lambda s: s.change(eps=0.0)),
    norm("eps-twice", "eps is added twice", lambda s: s.change(eps=2 * s.eps)),
    norm("eps-squared", "eps is squared", lambda s: s.change(eps=s.eps**2)),
    norm("eps-as-floor", "eps is the least {of}, and not added", take_eps_as_floor, operations=LAYER + RMS,
         of=("variance", "deviation")),
    norm("root-not-taken", "the root is not taken", lambda s: s.change(divisor=lambda square, eps: square + eps)),
    norm("squares-not-divided", "the sum of squares is not divided by n", divide_squares(lambda n: 1)),
    norm("last-axis-only", "statistics run over the last axis only", lambda s: run_over_axes(s, -1), lacks="axes"),
    norm("all-axes-but-the-first", "statistics run over all axes but the first", lambda s: run_over_axes(s, 1)),
    norm("small-variances-zero", "variances below {least:g} are taken for 0", lambda s, least: s.change(
             divisor=lambda square, eps: s.divisor(np.where(np.real(square) < least, 0, square), eps)), least=LEAST),
    norm("least-variance", "variances below {least:g} are raised to it", raise_small_variances, least=LEAST),
    TOPIC.entry("another-eps", "eps is {eps:g}, whatever the call says",
                lambda call, eps: take_eps(call.case, eps), eps=EPSILONS),
    TOPIC.entry("another-default-eps", "eps is {eps:g} where the call leaves it out",
                lambda call, eps: None if "eps" in call.case.options else take_eps(call.case, eps), operations=LAYER,
                eps=EPSILONS),
)  # fmt: skip


# --- padding and parts of a row ---------------------------------------------------------------------------------------


def pad(name: str, says: str, change: Callable[[NormSteps, int], NormSteps], **fields: Any) -> tuple[Mistake, Mistake]:
    """`change(steps, padded width)`, for rows that are filled up to a multiple of a block and to a power of two."""

    def pad_rows(s: NormSteps, block: int = 0) -> NormSteps | None:
        m = -(-s.n // block) * block if block else 1 << (s.n - 1).bit_length()
        return change(s, m) if m > s.n else None

    says = f"{says} (a row is filled up to"
    return (
        norm(f"{name}-of-blocks", f"{says} blocks of {{block}} columns)", pad_rows, block=BLOCKS, **fields),
        norm(f"{name}-of-a-power-of-two", f"{says} a power of two)", pad_rows, **fields),
    )


def read_on(s: NormSteps, m: int) -> NormSteps:
    """Statistics of m elements from the beginning of every row, divided by the row's own number of elements."""
    flat = np.concatenate([s.x.ravel(), np.zeros(m - s.n)])
    longer = flat[np.arange(len(s.x))[:, None] * s.n + np.arange(m)]
    mean = longer.sum(-1, keepdims=True) / s.n if s.has_mean else np.zeros((len(s.x), 1))
    square = np.sum((longer - mean) ** 2, -1, keepdims=True) * square_weights(s)[0]
    return s.change(statistics=Statistics(mean, 0.0, square, None))


def count_last_block_twice(s: NormSteps, block: int) -> NormSteps | None:
    """The last block ends with the row: it begins before the last whole one ends."""
    if s.n <= block or s.n % block == 0:
        return None
    counts = 1.0 + ((np.arange(s.n) >= s.n - block) & (np.arange(s.n) < s.n // block * block))
    return s.change_statistics(counts / s.n, counts * square_weights(s), counts / s.n)


def merge_parts(s: NormSteps, part_of: np.ndarray, whole: int, how: str) -> list[NormSteps]:
    """Means and squares of parts of a row, merged wrongly.

    Args:
        s: of layer norm.
        part_of: [n], the part of every column.
        whole: elements of a whole part.
        how: see `MERGES`.
    """
    if not 1 < whole < s.n:
        return []
    order = np.argsort(part_of, kind="stable")
    starts = np.flatnonzero(np.diff(part_of[order], prepend=-1))
    counts = np.diff(starts, append=s.n)
    means = np.add.reduceat(s.x[:, order], starts, axis=-1) / counts
    inside = s.x - means[:, part_of]
    squares = np.add.reduceat(inside[:, order] ** 2, starts, axis=-1)
    mean = np.mean(means, axis=-1, keepdims=True)

    def merge_statistics(own: np.ndarray, between: float) -> NormSteps:
        """own: what the squares of a part count, [parts]. between: what the squared difference of means counts."""
        square = np.sum(own * squares + between * (means - mean) ** 2, axis=-1, keepdims=True)
        slope = 2 * own[part_of] * inside + 2 * between * ((means - mean) / counts)[:, part_of]
        return s.change(statistics=Statistics(mean, 1 / (len(counts) * counts[part_of]), square, slope))

    alike, parts = np.full(len(counts), 1 / s.n), len(counts)
    if how == "without the difference of their means":
        apart = merge_statistics(alike, 0.0).statistics
        right = s.statistics
        return [s.change(statistics=apart._replace(shift=right.shift, share=right.share))]
    if np.all(counts == counts[0]):
        return []
    if how == "as averages":
        return [merge_statistics(1 / (counts * parts), 1 / parts)]
    return [merge_statistics(alike, whole / s.n), merge_statistics(alike, 1 / parts)]


MERGES = ("without the difference of their means", "as if all were whole", "as averages")


def leave_out(s: NormSteps, part: str, first: int) -> list[NormSteps] | None:
    """Statistics, or one of them, hear only of the first columns, and are divided by their number or by all."""
    if not 0 < first < s.n or (part != "variance" and not s.has_mean):
        return None
    u, squares, seen = mean_weights(s), square_weights(s), np.arange(s.n) < first
    few = seen / first
    if part == "variance":
        return [s.change_statistics(u, seen * squares, u), s.change_statistics(u, few, u)]
    # What is missing counts as 0, or as the first element where deviations are measured from that.
    filled = u * seen + (1 - first / s.n) * (np.arange(s.n) == 0)
    if part == "mean":
        return [s.change_statistics(mean, squares, of) for mean in (u * seen, few, filled) for of in (mean, u)]
    return [
        s.change_statistics(few, few, few),
        *(s.change_statistics(mean, seen * squares, mean) for mean in (u * seen, filled)),
    ]


PARTS = ("variance", "mean", "mean and variance")
PARTIAL = (
    *pad("divisor", "the squares are divided by the padded width",
         lambda s, m: s.change_statistics(mean_weights(s), np.full(s.n, 1 / m), mean_weights(s))),
    *pad("padding-in-the-variance", "padding counts in the variance",
         lambda s, m: s.change_statistics(mean_weights(s), square_weights(s), mean_weights(s),
                                          zeros=(m - s.n) * square_weights(s)[0]), operations=CENTERED),
    *pad("padding-in-mean-and-variance", "padding counts in mean and variance",
         lambda s, m: s.change_statistics(u := np.full(s.n, 1 / m), u, u, zeros=(m - s.n) / m), operations=CENTERED),
    *pad("mean-divisor", "the mean is divided by the padded width",
         lambda s, m: s.change_statistics(np.full(s.n, 1 / m), square_weights(s), np.full(s.n, 1 / m)),
         operations=CENTERED),
    *pad("next-row-read", "a row is read on into the next one", read_on),
    norm("last-block-twice", "the last block of {block} columns overlaps the one before, which counts twice there",
         count_last_block_twice, block=BLOCKS),
    norm("statistics-of-first-row", "rows have the statistics of the first of their block of {rows}",
         lambda s, rows: s.change(rows=np.arange(len(s.x)) // rows * rows) if len(s.x) > 1 else None,
         rows=(2, 4, 8, 16, 32, 64)),
    norm("blocks-merged", "statistics of blocks of {block} columns are merged {how}",
         lambda s, how, block: merge_parts(s, np.arange(s.n) // block, block, how), operations=LAYER,
         how=MERGES, block=(8, 4, *BLOCKS[3:], 2048, 4096)),
    norm("lanes-merged", "statistics of {lanes} lanes, each with one column in {lanes}, are merged {how}",
         lambda s, how, lanes: merge_parts(s, np.arange(s.n) % lanes, -(-s.n // lanes), how), operations=LAYER,
         how=MERGES, lanes=(32, 64, 128, 256, 512, 1024)),
    norm("columns-left-out", "columns past the first {first} take no part in the {part}", leave_out,
         part=PARTS, first=SIZES),
    norm("last-block-left-out", "the last block of {block} columns, which is not whole, takes no part in the {part}",
         lambda s, part, block: leave_out(s, part, last_block(s.n, block)), part=PARTS, block=BLOCKS),
)  # fmt: skip


# --- weight and bias --------------------------------------------------------------------------------------------------


def ignore(s: NormSteps, name: str) -> list[Results]:
    """The gradient of what is ignored may be right all the same, or 0."""
    gradient = f"gradient of {name}"
    found = s.change(**{name: np.full(s.n, 1.0 if name == "weight" else 0.0)}).results()
    return [found, found | {gradient: 0 * found[gradient]}] if gradient in found else [found]


def add_bias_first(s: NormSteps) -> Results:
    found = s.change(bias=s.bias * s.weight).results()
    sums = {"weight": s.bar * (s.normal + s.bias), "bias": s.bar * s.weight}
    return found | s.gradients({f"gradient of {name}": array.sum(axis=0) for name, array in sums.items()})


def add_bias_to_first(s: NormSteps, first: int) -> Results | None:
    there = np.arange(s.n) < first
    found = s.change(bias=s.bias * there).results()
    bars = {n: a * there.reshape(a.shape) for n, a in found.items() if n == "gradient of bias"}
    return found | bars if 0 < first < s.n else None


def multiply_first(s: NormSteps) -> Results:
    """x * weight is normalised."""
    scaled = NormSteps.read_case(replace(s.case, inputs=s.case.inputs | {"x": s.x * s.weight}))
    scaled = scaled.change(case=s.case, weight=np.ones(s.n))
    bar = scaled.pull_back()
    sums = {"gradient of x": bar * s.weight, "gradient of weight": np.sum(bar * s.x, axis=0)}
    return scaled.results() | s.gradients(sums)


def round_parameters(case: Case) -> Case | None:
    """A weight and a bias of float32 as they are in the 16 bits of x."""
    wide = [name for name in ("weight", "bias") if name in case.inputs and str(case.inputs[name].dtype) != case.dtype]
    inputs = {name: case.inputs[name].astype(case.dtype).astype(case.inputs[name].dtype) for name in wide}
    return replace(case, inputs=case.inputs | inputs) if wide else None


def add_one_narrowly(case: Case) -> Case | None:
    """1 + weight in the dtype of a 16-bit weight."""
    weight = case.inputs["weight"]
    if str(weight.dtype) not in HALF:
        return None
    narrow = (1 + weight.astype(np.float32)).astype(weight.dtype)
    return replace(case, inputs=case.inputs | {"weight": narrow}, options=case.options | {"plus_one": False})


def round_inputs(change: Callable[[Case], Case | None]) -> Callable[[Call], Changed]:
    """Take another case's results with the digits that they have."""

    def results(call: Call) -> Changed:
        other = change(call.case)
        return None if other is None else predict_rounded(call, approximate(other, Precision.make(other.dtype)))

    return results


AFFINE = (
    norm("weight-ignored", "the weight is ignored", lambda s: ignore(s, "weight")),
    norm("bias-ignored", "the bias is ignored", lambda s: ignore(s, "bias"), operations=CENTERED, needs=("bias",)),
    norm("weight-from-one", "1 is added to the weight",
         lambda s: None if s.case.options.get("plus_one") else s.change(weight=s.weight + 1)),
    norm("one-left-out", "1 is not added to the weight", lambda s: s.change(weight=s.weight - 1), rule="NORM-8",
         operations=RMS, needs=("plus_one",)),
    norm("one-twice", "1 is added to the weight twice", lambda s: s.change(weight=s.weight + 1), rule="NORM-8",
         operations=RMS, needs=("plus_one",)),
    TOPIC.entry("one-in-16-bits", "1 is added to the weight in its own 16 bits", round_inputs(add_one_narrowly),
                rule="NORM-8", operations=RMS, needs=("plus_one", "finite")),
    norm("weight-first", "the weight multiplies x before it is normalised", multiply_first, rule="NORM-7",
         operations=RMS + CENTERED),
    norm("bias-first", "the bias is added before the weight is multiplied", add_bias_first, operations=CENTERED,
         needs=("bias",)),
    norm("bias-of-first-columns", "the bias is not added to columns past the first {first}", add_bias_to_first,
         operations=CENTERED, needs=("bias",), first=SIZES),
    norm("bias-not-in-last-block", "the bias is not added to the last block of {block} columns, which is not whole",
         lambda s, block: add_bias_to_first(s, s.n // block * block), operations=CENTERED, needs=("bias",),
         block=BLOCKS),
    TOPIC.entry("parameters-rounded", "weight and bias are rounded to the dtype of x", round_inputs(round_parameters),
                rule="NORM-2", needs=("finite",)),
)  # fmt: skip


# --- what is written --------------------------------------------------------------------------------------------------


def write_columns(s: NormSteps, first: int) -> list[NormSteps] | None:
    """The others stay 0. They may count in the statistics or not."""
    if not 0 < first < s.n:
        return None
    seen = np.arange(s.n) < first
    few, source = seen / first, np.where(seen, places_of(s.x), -1).ravel()
    return [other.change(source=source) for other in (s.change_statistics(few, few, few), s)]


def write_rows(s: NormSteps, first: int) -> NormSteps | None:
    rows = np.arange(len(s.x))[:, None]
    return s.change(source=np.where(rows < first, places_of(s.x), -1).ravel()) if 0 < first < len(s.x) else None


def write_pairs(s: NormSteps) -> NormSteps | None:
    """Of an odd number the last column gets the result of the one before."""
    if s.n % 2 == 0 or s.n == 1:
        return None
    source = places_of(s.x)
    source[:, -1] -= 1
    return s.change(source=source.ravel())


def overwrite_next_row(s: NormSteps) -> list[Results] | None:
    """The pair's other half is the row's first element. The gradients are those of copies, or without what is lost."""
    if s.n % 2 == 0 or len(s.x) < 2:
        return None
    source = places_of(s.x)
    source[1:, 0] = source[:-1, 0].copy()
    copied = s.change(source=source.ravel()).results()
    lost = s.bar * ((np.arange(len(s.x)) == 0)[:, None] | (np.arange(s.n) > 0))
    return [s.change(bar=lost).results() | {"output": copied["output"]}, copied] if s.case.cotangents else [copied]


def last_block(size: int, block: int) -> int:
    """Where the last block begins that is not whole; 0 where all are, or where there is no other."""
    return size // block * block if size % block else 0


WRITTEN = (
    norm("columns-not-written", "only the first {first} columns of a row are written", write_columns, first=SIZES),
    norm("last-block-not-written", "the last block of {block} columns, which is not whole, is not written",
         lambda s, block: write_columns(s, last_block(s.n, block)), block=BLOCKS),
    norm("rows-not-written", "only the first {first} rows are written", write_rows, first=ROWS),
    norm("last-rows-not-written", "the last block of {block} rows, which is not whole, is not written",
         lambda s, block: write_rows(s, last_block(len(s.x), block)), block=BLOCKS),
    norm("rows-repeated", "row i gets the result of row i modulo {first}",
         lambda s, first: s.change(source=places_of(s.x)[np.arange(len(s.x)) % first].ravel())
         if first < len(s.x) else None, first=SIZES),
    norm("written-in-pairs", "of an odd number of columns the last gets the result of the one before", write_pairs),
    norm("pair-overwrites-next-row",
         "rows of an odd number of columns are written in pairs, past their end into the next row's first",
         overwrite_next_row, rule="NORM-7", operations=RMS + CENTERED),
)  # fmt: skip


# --- digits -----------------------------------------------------------------------------------------------------------


MOST_ADDED = 2**14
"""Numbers that are added up one after the other, at most: they take a second."""
INPUTS = "the inputs' 16 bits"
SUMS = ("each sum of the mean", "each sum of squares")
ROUNDED: dict[str, Any] = {
    "what": ("the normalised row", "x", "the mean", "the variance", "mean and variance", "the squares",
             "the row before the bias", *SUMS),
    "dtype": (INPUTS, "bfloat16", "float16"),
}  # fmt: skip


def round_part(call: Call, what: str, dtype: str) -> list[Changed]:
    """Round one quantity of the forward pass, and follow what is uncertain about it into the results."""
    case, s = call.case, NormSteps.read_case(call.case)
    form = case.dtype if dtype == INPUTS else dtype
    nobody_rounds = case.dtype not in HALF if dtype == INPUTS else case.dtype in ("float64", dtype)
    of_mean = what in ("the mean", "mean and variance", "each sum of the mean")
    if nobody_rounds or not s.x.size or (what in SUMS and s.n > MOST_ADDED) or (of_mean and not s.has_mean):
        return []
    if what == "x" and form == case.dtype:
        return []
    p, spread = Precision.make(case.dtype), case.operation == "standard_deviation_norm"
    rounds = {"mean and variance": ("the mean", "the variance")}.get(what, (what,))

    def round_at(place: str, a: Approx) -> Approx:
        return round_stage(a, form) if place in rounds else a

    if what in ("the normalised row", "the row before the bias"):
        _, _, normal = bounds.normalize_rows(case.operation, s.x, s.eps, p)
    else:
        x, n = round_at("x", exact(s.x)), s.n
        mean = Approx(bounds.average(x.value), p.gamma(n + 2) * bounds.average(x.size))
        if what == "each sum of the mean":
            added = add_in_order(round_stage(exact(x.value), form), form, -1)
            mean = Approx(added.value / n, added.error / n)
        mean = round_at("the mean", mean)
        d = x
        if s.has_mean:
            value = x.value - mean.value
            d = Approx(value, x.error + mean.error + 2 * p.inner * (x.size + np.abs(value)))
        squares = round_at("the squares", multiply(d, d, p))
        if what == "each sum of squares":
            total = add_in_order(round_stage(squares, form), form, -1)
        else:
            error = np.sum(squares.error, -1, keepdims=True) + p.gamma(n + 2) * np.sum(squares.size, -1, keepdims=True)
            total = Approx(np.sum(squares.value, -1, keepdims=True), error)
        count = n - 1 if spread else n
        square = round_at("the variance", Approx(total.value / count, total.error / count))
        root = bounds.reciprocal_deviation if spread else bounds.reciprocal_root
        normal = multiply(d, root(square, s.eps, p), p, 2)
    normal = round_at("the normalised row", normal)
    output = round_at("the row before the bias", multiply(normal, exact(s.weight), p))
    biased = output.value + s.bias
    output = Approx(biased, output.error + p.inner * (np.abs(biased) + 2 * np.abs(s.bias)))
    found = {"output": output.reshape(*case.inputs["x"].shape)}
    if what != "the normalised row" or not call.case.cotangents:
        return [predict_rounded(call, found)]
    # The gradient of a rounded row passes through the rounding, and with a 16-bit weight its terms may have 16 bits.
    inner = round_stage(multiply(exact(s.bar), exact(s.weight), p), form)
    x_bar = bounds.gradients(case.operation, s.x, exact(np.ones(s.n)), inner.value, s.eps, p)["x"]
    slack = s.inverse * (
        inner.error + bounds.average(inner.error) + np.abs(s.normal) * bounds.average(inner.error * np.abs(s.normal))
    )
    found["gradient of x"] = Approx(x_bar.value, x_bar.error + slack).reshape(*case.inputs["x"].shape)
    terms, predictions = multiply(exact(s.bar), normal, p), list[Changed]()
    for some in (terms, round_stage(terms, form)):
        error = np.sum(some.error, axis=0) + p.gamma(len(s.x)) * np.sum(some.size, axis=0)
        weight = Approx(np.sum(some.value, axis=0), error).reshape(*case.inputs["weight"].shape)
        predictions.append(predict_rounded(call, found | {"gradient of weight": weight}))
    return predictions


def predict_rounded(call: Call, found: dict[str, Approx]) -> Prediction:
    """Round results to their dtypes; to 16 bits really, so that a rounding on the way shows in the digits left."""
    results, limits, p = {}, {}, Precision.make(call.case.dtype)
    for name in found.keys() & call.right.keys():
        dtype = expected_dtype(name, call.case)
        stored = round_stage(found[name], dtype) if dtype in HALF else found[name]
        results[name] = stored.value
        limits[name] = stored.error if dtype in HALF else result_bound(name, stored, call.case, p)
    return Prediction(results, limits)


def overflow_squares(s: NormSteps, dtype: str) -> NormSteps | None:
    """Squares or their sum beyond the largest number make the row the bias."""
    wide = {"float16": "float16", "float32": "float64"}[dtype]
    squares = s.deviation**2
    beyond = np.any(squares > LARGEST[dtype], -1) if dtype == "float16" else np.sum(squares, -1) > LARGEST[dtype]
    if s.case.dtype != wide or not beyond.any():
        return None
    return s.change(statistics=s.statistics._replace(square=np.where(beyond[:, None], np.inf, s.square)))


def scale_rows(call: Call, example: np.ndarray, least: np.ndarray, most: np.ndarray) -> list[Changed]:
    """Predict rows whose 1 / divisor lies between two numbers [rows, 1]: an example, and both ends.

    What an answer has of it is read from the answer: a row of the output has one factor in all its elements, and the
    gradient of x is r * a - r^3 * b. Gradients of weights add up rows: they are only known to lie between.
    """
    s = NormSteps.read_case(call.case)
    direction, a = s.deviation * s.weight, s.pull_back(square=0.0) / s.inverse
    b = (s.pull_back(square=0.0) - s.pull_back()) / s.inverse**3
    between = np.sum(np.abs(s.bar * s.deviation) * (most - least), axis=0)

    def row_results(r: np.ndarray) -> Results:
        sums = {"gradient of weight": np.sum(s.bar * s.deviation * r, axis=0), "gradient of bias": s.bar.sum(axis=0)}
        return s.reshape_results({"output": r * direction + s.bias, "gradient of x": r * a - r**3 * b} | sums)

    def fit(name: str, got: np.ndarray) -> np.ndarray:
        if name not in ("output", "gradient of x"):
            return row_results(example)[name]
        rows, r = got.reshape(s.x.shape), s.inverse
        for _ in range(8):  # Newton's steps towards the least squares; one is enough for the output
            off = rows - row_results(r)[name].reshape(s.x.shape)
            slope = direction if name == "output" else a - 3 * r**2 * b
            step = np.sum(off * slope, axis=-1, keepdims=True) / np.sum(slope**2, axis=-1, keepdims=True)
            r = np.clip(r + np.where(np.isnan(step), 0, step), least, most)
        return row_results(r)[name]

    ways: list[Changed] = []
    for inverse in (example, least, most):
        found = {name: array for name, array in row_results(inverse).items() if name in call.right}
        growth = np.maximum(1, inverse / s.inverse)
        limits = {name: call.bounds[name] for name in found}
        for name in limits.keys() & {"output", "gradient of x"}:
            limits[name] = (limits[name].reshape(s.x.shape) * growth).reshape(limits[name].shape)
        if "gradient of weight" in limits:
            limits["gradient of weight"] = limits["gradient of weight"] + between.reshape(s.case.inputs["weight"].shape)
        ways.append(Prediction(found, limits, fit))
    return ways


def square_in_one_pass(call: Call) -> list[Changed]:
    """E[x^2] - E[x]^2 in the compute dtype, no less than 0.

    Of n terms that are added one after the other, E[x^2] is off by at most n u E[x^2]; the squares, the quotient and
    the difference are rounded too. The order of the sums decides which variance comes out.
    """
    s, dtype = NormSteps.read_case(call.case), compute_dtype_name(call.case.dtype)
    if not s.x.size:
        return []
    x = s.x.astype(dtype)
    square = np.maximum(np.mean(x**2, -1, keepdims=True) - np.mean(x, -1, keepdims=True) ** 2, 0).astype(float)
    if call.case.operation == "standard_deviation_norm":
        square = square * s.n / (s.n - 1)
    off = (s.n + 4) * 2.0 ** -PRECISION[dtype][0] * (np.mean(s.x**2, -1, keepdims=True) + s.square)
    squares = (square, s.square + off, np.maximum(s.square - off, 0))
    return scale_rows(call, *(1 / s.divisor(v, s.eps) for v in squares))


def root_coarsely(call: Call) -> list[Changed]:
    """An estimate of 1 / sqrt without the step of Newton's that belongs to it."""
    s = NormSteps.read_case(call.case)
    if call.case.dtype != "float32" or not s.x.size:
        return []
    mantissa, exponent = np.frexp(s.inverse)
    coarse = np.ldexp(np.rint(mantissa * 2**12) / 2**12, exponent)
    return scale_rows(call, coarse, s.inverse * (1 - 2.0**-11), s.inverse * (1 + 2.0**-11))


FINITE = ("finite",)
DIGITS = (
    TOPIC.entry("part-rounded", "{dtype} hold {what}", round_part, rule="NORM-2", needs=FINITE, **ROUNDED),
    TOPIC.entry("float64-in-float32", "float64 inputs are computed with in float32", compute_in_float32, rule="NORM-2"),
    norm("squares-overflow", "squares overflow, as they are taken in {dtype}", overflow_squares, rule="NORM-2",
         dtype=("float16", "float32")),
    TOPIC.entry("one-pass-variance", "the variance is E[x^2] - E[x]^2", square_in_one_pass, rule="NORM-4",
                operations=CENTERED, needs=FINITE),
    TOPIC.entry("coarse-root", "the reciprocal root has 12 bits", root_coarsely, needs=FINITE),
)  # fmt: skip


# --- special values ---------------------------------------------------------------------------------------------------


def spoil_output(change: Callable[[NormSteps, np.ndarray], np.ndarray]) -> Change:
    """`change(steps, output)` for calls with NaN or infinity in x."""
    return vary(lambda s: None if np.isfinite(s.x).all() else s.reshape_results({"output": change(s, s.forward())}))


SPECIAL = TOPIC.entries(
    spoil_output,
    ("nan-swallowed", "NaN in a normalised row is taken for 0",
     lambda s, output: np.nan_to_num(s.normal) * s.weight + s.bias),
    ("nan-clipped", "NaN in the output is clipped to a number",
     lambda s, output: np.fmin(np.fmax(output, -1e4), 1e4)),
    ("nan-for-all", "NaN in one row makes all rows NaN", lambda s, output: output + np.nan * np.isnan(output).any()),
    rule="NORM-5",
)  # fmt: skip

MISTAKES = (*STATISTICS, *PARTIAL, *AFFINE, *WRITTEN, *DIGITS, *SPECIAL)
NAMED = name_entries(MISTAKES)


def plant(name: str, operation: str = "layer_norm", rule: str = "NORM-7", **values: Any) -> Mistake:
    """A mistake with chosen values, in an operation; a variant of layer norm breaks its own rule."""
    mistake = NAMED[name].choose(**values)
    return mistake if operation == "layer_norm" else mistake.plant_in(operation, rule=rule)


PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(plant("part-rounded", what=what) for what in ROUNDED["what"][2:]),
    *(plant("part-rounded", what=what, dtype=dtype)
      for what, dtype in (("x", "bfloat16"), ("the normalised row", "bfloat16"), ("the mean", "bfloat16"),
                          ("the variance", "float16"))),
    *(plant("columns-left-out", part=part) for part in PARTS[1:]),
    *(plant("columns-left-out", first=n) for n in (2048, 65536)),
    *(plant("last-block-left-out", block=n) for n in (128, 1024)),
    *(plant("columns-not-written", first=n) for n in (128, 1024, 4096, 32768)),
    *(plant("divisor-of-blocks", block=n) for n in (128, 1024)),
    *(plant("rows-not-written", first=n) for n in (128, 1024, 65535)),
    *(plant("rows-repeated", first=n) for n in (4096, 32768)),
    *(plant("written-in-pairs").limit(past("W", n)) for n in (128, 2048)),
    *(plant("one-pass-variance").limit(past("W", n)) for n in (128, 4096, 32768)),
    plant("one-pass-variance").limit(past("rows", 128)),
    plant("pair-overwrites-next-row").limit(Condition(dtypes=HALF)),
    plant("another-default-eps", eps=1e-12),
    *(plant(name, operation, first=n)
      for operation in RMS + DEVIATION
      for name, n in (("columns-not-written", 256), ("columns-not-written", 32768), ("columns-left-out", 1024),
                      ("rows-not-written", 48), ("rows-not-written", 65535))),
    *(plant("divisor-of-blocks", operation, block=8) for operation in RMS + DEVIATION),
    *(plant(name, "rms_norm")
      for name in ("unbiased-variance", "eps-outside-the-root", "weight-from-one", "part-rounded")),
    plant("columns-left-out", "rms_norm", first=1024).limit(Condition("rows", up_to=1)),
    plant("nan-swallowed", "rms_norm", "NORM-5"),
    replace(plant("part-rounded", what="the mean", dtype="bfloat16"), rule="NORM-3"),
)  # fmt: skip
