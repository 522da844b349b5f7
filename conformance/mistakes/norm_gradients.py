"""Backward passes of norms that go wrong where the forward pass is right (NORM-6; NORM-7 and NORM-8 of variants)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bounds import layer_norm as bounds
from conformance.bounds.arithmetic import Approx, Precision, exact, multiply
from conformance.bounds.operations import result_bound
from conformance.cases.arguments import expected_dtype
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import add_in_order, round_stage, round_to
from conformance.mistakes.mistake import Changed, Mistake, Prediction, Topic, name_entries
from conformance.mistakes.norm_steps import NORMS, NormSteps
from conformance.mistakes.norms import BLOCKS, CENTERED, DEVIATION, LAYER, MOST_ADDED, RMS, ROWS, SIZES, last_block
from specification.dtypes import HALF

OF_X, OF_WEIGHT, OF_BIAS = "gradient of x", "gradient of weight", "gradient of bias"
Gradients = Callable[..., "Results | list[Results]"]
TOPIC, NARROW_TOPIC = (Topic("norm_gradients", "NORM-6", NORMS, of_gradients=alone) for alone in (True, False))


def gradient(name: str, says: str, change: Gradients, /, **fields: Any) -> Mistake:
    """Take `change(steps, **values)` for some of the gradients of a call; {} for none."""

    def results(call: Call, **values: object) -> list[Changed]:
        s = NormSteps.read_case(call.case)
        changed = change(s, **values) if s.x.size else {}
        return [s.reshape_results(way) for way in (changed if isinstance(changed, list) else [changed]) if way]

    return TOPIC.entry(name, says, results, needs=("gradients",), **fields)


# --- x ----------------------------------------------------------------------------------------------------------------


def change_x(**changed: Callable[[NormSteps], Any]) -> Gradients:
    """The gradient of x with other arguments of `NormSteps.pull_back`, each a function of the steps."""

    return lambda s: {OF_X: s.pull_back(**{name: value(s) for name, value in changed.items()})}


def pull_back_layer(s: NormSteps, average: Callable[[np.ndarray], np.ndarray], normal: np.ndarray) -> np.ndarray:
    """The gradient of x of layer_norm or rms_norm by these means over a row and normalised rows."""
    g = s.row_bar
    mean = 0.0 if s.case.operation == "rms_norm" else average(g)
    return np.asarray((g - mean - normal * average(g * normal)) * s.inverse)


TERMS = (
    gradient("mean-left-out", "the mean's part is missing in the gradient of x", change_x(mean=lambda s: 0.0),
             operations=CENTERED),
    gradient("square-left-out", "the variance's part is missing in the gradient of x", change_x(square=lambda s: 0.0)),
    gradient("statistics-constant", "statistics are constants in the backward pass",
             change_x(mean=lambda s: 0.0, square=lambda s: 0.0), operations=CENTERED),
    gradient("weight-left-out", "the weight is missing in the gradient of x", change_x(g=lambda s: s.bar)),
    gradient("weight-twice", "the weight counts twice in the gradient of x",
             change_x(g=lambda s: s.row_bar * s.weight)),
    gradient("weight-left-out-of-means", "the weight is missing in the means of the gradient of x",
             change_x(of_mean=lambda s: s.bar, of_square=lambda s: s.bar), operations=CENTERED),
    gradient("weight-left-out-of-mean", "the weight is missing in the mean of the gradient, in the gradient of x",
             change_x(of_mean=lambda s: s.bar), operations=CENTERED),
    gradient("weight-left-out-of-square", "the weight is missing in the mean of gradient times normalised row",
             change_x(of_square=lambda s: s.bar)),
    gradient("not-divided", "the gradient of x is not divided by the deviation",
             lambda s: {OF_X: s.pull_back() / s.inverse}),
    gradient("divided-twice", "the gradient of x is divided by the deviation twice",
             lambda s: {OF_X: s.pull_back() * s.inverse}),
    gradient("one-left-out", "1 is not added to the weight in the gradient of x",
             lambda s: {OF_X: s.pull_back(s.bar * (s.weight - 1))} if s.case.options.get("plus_one") else {},
             rule="NORM-8", operations=RMS),
    gradient("biased-deviation", "the gradient of x is that of layer norm",
             lambda s: {OF_X: pull_back_layer(s, bounds.average, s.normal)},
             rule="NORM-7", operations=DEVIATION),
    gradient("nan-in-constant-rows", "constant rows have NaN in the gradient of x",
             lambda s: {OF_X: np.where(s.square == 0, np.nan, s.pull_back())} if np.any(s.square == 0) else {},
             rule="NORM-7", operations=DEVIATION),
)  # fmt: skip

# --- means over a row -------------------------------------------------------------------------------------------------


def divide_means(s: NormSteps, part: str, m: int) -> Results:
    """The sums over a row are divided by m, not by n."""
    if m in (0, s.n) or (part != "square" and not s.has_mean):
        return {}
    mean, square = (s.n / m if part in (name, "both") else 1.0 for name in ("mean", "square"))
    return {OF_X: s.pull_back(mean=mean, square=square)}


def sum_first_columns(s: NormSteps, part: str, first: int) -> list[Results]:
    """The sums over a row hear only of its first columns, and are divided by n or by their number."""
    if not 0 < first < s.n or (part != "square" and not s.has_mean):
        return []
    few = s.row_bar * (np.arange(s.n) < first)
    changed: dict[str, Any] = {f"of_{name}": few for name in ("mean", "square") if part in (name, "both")}
    grown: dict[str, Any] = {name: s.n / first for name in ("mean", "square") if part in (name, "both")}
    return [{OF_X: s.pull_back(**changed)}, {OF_X: s.pull_back(**changed, **grown)}]


def average_blocks(s: NormSteps, block: int) -> Results:
    """Every block of a row has means of its own."""
    if block >= s.n:
        return {}
    starts = np.arange(0, s.n, block)
    counts = np.diff(starts, append=s.n)

    def average(array: np.ndarray) -> np.ndarray:
        return np.repeat(np.add.reduceat(array, starts, axis=-1) / counts, counts, axis=-1)

    return {OF_X: pull_back_layer(s, average, s.normal)}


def take_row_from_output(s: NormSteps) -> Results:
    """(output - bias) / weight, of the output as it is returned."""
    normal = (round_to(s.forward(), s.case.dtype).reshape(s.x.shape) - s.bias) / s.weight
    return {OF_X: pull_back_layer(s, bounds.average, normal), OF_WEIGHT: np.sum(s.bar * normal, axis=0)}


PARTS = ("both", "square", "mean")
"""Of the gradient of x: those of the mean's and of the square's part, which is mean(gradient * normalised row)."""
MEANS = (
    gradient("means-by-n-1", "in the backward pass the sums of {part} over a row are divided by n - 1",
             lambda s, part: divide_means(s, part, s.n - 1), part=PARTS, operations=LAYER + RMS),
    gradient("means-by-padded-width",
             "in the backward pass the sums of {part} over a row are divided by its width in blocks of {block}",
             lambda s, part, block: divide_means(s, part, -(-s.n // block) * block),
             part=PARTS, block=BLOCKS, operations=LAYER + RMS),
    gradient("means-of-first-columns", "in the backward pass the sums of {part} hear only of the first {first} columns",
             sum_first_columns, part=PARTS, first=SIZES),
    gradient("means-without-last-block",
             "in the backward pass the sums of {part} lose the last block of {block} columns, which is not whole",
             lambda s, part, block: sum_first_columns(s, part, last_block(s.n, block)),
             part=PARTS, block=BLOCKS),
    gradient("means-of-blocks", "in the backward pass means run over a block of {block} columns", average_blocks,
             block=(8, 4, *BLOCKS[3:], 2048, 4096), operations=LAYER + RMS),
    gradient("row-from-output", "in the backward pass the normalised row is taken from the output",
             take_row_from_output, operations=LAYER + RMS),
)  # fmt: skip

# --- weight and bias --------------------------------------------------------------------------------------------------


def rows_of(s: NormSteps) -> np.ndarray:
    return np.arange(len(s.x))


def count_rows(s: NormSteps, often: np.ndarray) -> list[Results]:
    """Each row counts so many times [rows], in both gradients or in one."""
    if np.all(often == 1):
        return []
    both = s.sum_over_rows(s.bar * often[:, None])
    return [both] if "bias" not in s.case.inputs else [both, {OF_WEIGHT: both[OF_WEIGHT]}, {OF_BIAS: both[OF_BIAS]}]


def count_first_rows(s: NormSteps, first: int) -> list[Results]:
    return count_rows(s, rows_of(s) < first) if 0 < first < len(s.x) else []


def count_rows_of_one_axis(s: NormSteps) -> list[Results]:
    """As many rows as one axis has, the first or another."""
    shape = s.case.inputs["x"].shape[: -s.case.inputs["weight"].ndim]
    return [way for first in dict.fromkeys(shape) for way in count_first_rows(s, first)]


COUNTS = {"left out": lambda row: 1 - row, "counted twice": lambda row: 1 + row, "all that counts": lambda row: row}


def count_one_row(s: NormSteps, which: str, how: str, block: int) -> list[Results]:
    """One row of every block is lost, counts twice, or counts alone."""
    rows = rows_of(s)
    row = rows % block == (0 if which == "first" else block - 1)
    if how == "counted twice" and which == "first":
        row &= rows > 0
    return count_rows(s, np.asarray(COUNTS[how](row.astype(float)))) if len(rows) > 1 else []


def lose_columns(s: NormSteps, name: str, first: int) -> Results:
    array = s.pull_back() if name == OF_X else s.sum_over_rows(s.bar)[name]
    return {name: array * (np.arange(s.n) < first)} if 0 < first < s.n else {}


def parameter_gradients(name: str, words: str, change: Gradients, **parameters: Any) -> Mistake:
    return gradient(name, f"the gradients of weight and bias {words}", change, **parameters)


SUMS = (
    parameter_gradients("last-block-lost", "lose the last block of {block} rows, which is not whole",
            lambda s, block: count_first_rows(s, last_block(len(s.x), block)), block=(4, 8, 2, *BLOCKS[3:])),
    parameter_gradients("rows-lost", "lose rows past the first {first}", count_first_rows, first=ROWS),
    parameter_gradients("rows-of-one-axis", "count as many rows as one axis of x has", count_rows_of_one_axis),
    parameter_gradients("last-block-only", "come from the last block of {block} rows only",
            lambda s, block: count_rows(s, rows_of(s) >= (len(s.x) - 1) // block * block), block=BLOCKS),
    parameter_gradients("one-row-of-blocks", "have the {which} row of every block of {block} {how}", count_one_row,
            which=("first", "last"), how=tuple(COUNTS), block=BLOCKS),
    parameter_gradients("last-row-repeated", "count the last row again for each row that its block of {block} lacks",
            lambda s, block: count_rows(s, np.where(rows_of(s) == len(s.x) - 1, 1.0 + -len(s.x) % block, 1.0)),
            block=BLOCKS),
    parameter_gradients("averaged", "are averaged over rows", lambda s: count_rows(s, np.full(len(s.x), 1 / len(s.x)))),
    gradient("weight-is-bias", "the gradient of the weight is that of the bias",
             lambda s: {OF_WEIGHT: s.bar.sum(axis=0)}),
    gradient("weight-by-x", "the gradient of the weight is taken with x, which is not normalised",
             lambda s: {OF_WEIGHT: np.sum(s.bar * s.x, axis=0)}),
    gradient("weight-by-deviation", "the gradient of the weight is not divided by the deviation",
             lambda s: {OF_WEIGHT: np.sum(s.bar * s.deviation, axis=0)}),
    gradient("sums-by-weight", "the {name} is multiplied by the weight",
             lambda s, name: {name: s.sum_over_rows(s.bar)[name] * s.weight}, name=(OF_WEIGHT, OF_BIAS)),
    gradient("columns-lost", "the {name} is 0 in columns past the first {first}", lose_columns,
             name=(OF_X, OF_WEIGHT, OF_BIAS), first=SIZES),
    gradient("rows-of-x-lost", "the gradient of x is 0 in rows past the first {first}",
             lambda s, first: {OF_X: s.pull_back() * (rows_of(s) < first)[:, None]} if first < len(s.x) else {},
             first=ROWS),
)  # fmt: skip

# --- 16 bits ----------------------------------------------------------------------------------------------------------


def add_in_16_bits(call: Call, name: str, dtype: str, tile: int) -> Changed:
    """Add rows, or exact sums over tiles of rows, one after the other, rounding each and each sum."""
    case = call.case
    if name not in call.right or not case.inputs["x"].size:
        return None
    argument = case.inputs[name.removeprefix("gradient of ")]
    form = str(argument.dtype) if dtype == OWN else dtype
    s, p = NormSteps.read_case(case), Precision.make(case.dtype)
    starts = np.arange(0, len(s.x), tile)
    if form not in HALF or not 1 < len(starts) <= MOST_ADDED:
        return None
    terms = exact(s.bar)
    if name == OF_WEIGHT:
        terms = multiply(terms, bounds.normalize_rows(case.operation, s.x, s.eps, p)[2], p)
    error = terms.error + p.gamma(tile) * terms.size
    sums = Approx(*(np.add.reduceat(a, starts, axis=0) for a in (terms.value, error)))
    total = add_in_order(round_stage(sums, form), form, 0)
    limits = total.error if form == str(argument.dtype) else result_bound(name, total, case, p)
    return Prediction({name: total.value.reshape(argument.shape)}, {name: limits.reshape(argument.shape)})


def round_gradient(call: Call, name: str, dtype: str) -> Changed:
    if name not in call.right or expected_dtype(name, call.case) in HALF:
        return None
    found = round_stage(Approx(call.right[name], call.bounds[name]), dtype)
    return Prediction({name: found.value}, {name: found.error})


OWN = "its own 16 bits"
NARROW = (
    NARROW_TOPIC.entry("added-in-16-bits", "the {name} is added up in {dtype}, {tile} rows at a time", add_in_16_bits,
                       name=(OF_WEIGHT, OF_BIAS), dtype=(OWN, *HALF), tile=(1, 16, 32, 64, 128, 256)),
    NARROW_TOPIC.entry("rounded", "the {name} is rounded to {dtype}", round_gradient, name=(OF_BIAS, OF_WEIGHT, OF_X),
                       dtype=("bfloat16", "float16")),
)  # fmt: skip

MISTAKES = (*TERMS, *MEANS, *SUMS, *NARROW)
NAMED = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(NAMED["last-block-lost"].choose(block=n) for n in (32, 128)),
    *(NAMED["rows-lost"].choose(first=n) for n in (256, 2048, 32768)),
    *(NAMED["columns-lost"].choose(first=n) for n in (128, 1024, 32768)),
    *(NAMED["columns-lost"].choose(name=OF_WEIGHT, first=n) for n in (256, 4096)),
    *(NAMED["rows-of-x-lost"].choose(first=n) for n in (128, 1024, 65535)),
    *(NAMED["means-of-blocks"].choose(block=n) for n in (128, 1024)),
    *(NAMED["means-of-first-columns"].choose(part=part) for part in ("mean", "square")),
    NAMED["added-in-16-bits"].choose(name=OF_BIAS),
    NAMED["square-left-out"].choose().plant_in(*RMS),
    *(NAMED["last-block-lost"].choose(block=n).plant_in(operation, rule=rule) for n in (32, 128)
      for operation, rule in (("rms_norm", "NORM-6"), ("standard_deviation_norm", "NORM-7"))),
)  # fmt: skip
