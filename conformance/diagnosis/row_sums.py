"""Known mistakes of gradients that are sums over rows: which rows count, how often, and how narrowly they are added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.checks.comparison import PRECISION
from conformance.diagnosis.extents import WHOLE_BLOCKS, likely, roundest
from conformance.diagnosis.matching import Failing, Mistake, agrees, closest, giving, resulting
from specification.dtypes import HALF

PLACES, LEAST_PLACES = 8, 3
"""Numbers of a gradient by which it is seen which rows count; with fewer than the second some sum fits by chance."""
STRIDES = 4096
"""The largest block of which one row is looked for."""
TILES = (1, 16, 32, 64, 128, 256)
"""Rows that are added up exactly before their sum is rounded."""
ADDITIONS = 2**22
"""Numbers that are added up one after the other, at most."""


class RowSum(NamedTuple):
    """A gradient that is a sum over rows.

    terms: of every row, for some flat places of the gradient [k] -> [rows, k]. total: the sum, where each row counts
    so many times [rows]. part: the sum of some rows. sizes: the sum of the absolute terms.
    """

    rows: int
    terms: Callable[[np.ndarray], np.ndarray]
    total: Callable[[np.ndarray], np.ndarray]
    part: Callable[[slice], np.ndarray]
    sizes: Callable[[], np.ndarray]


def of_products(left: np.ndarray, right: np.ndarray, shape: tuple[int, ...]) -> RowSum:
    """left^T @ right, of arrays [rows, m] and [rows, n]."""
    n = right.shape[1]
    return RowSum(
        len(left),
        lambda places: left[:, places // n] * right[:, places % n],
        lambda often: ((left * often[:, None]).T @ right).reshape(shape),
        lambda rows: (left[rows].T @ right[rows]).reshape(shape),
        lambda: (np.abs(left).T @ np.abs(right)).reshape(shape),
    )


def of_rows(terms: np.ndarray, shape: tuple[int, ...]) -> RowSum:
    """The sum of the rows [rows, n] themselves."""
    return of_products(np.ones((len(terms), 1)), terms, shape)


def to_dtype(array: Any, dtype: str) -> np.ndarray:
    """Rounded to a dtype, in float64; bfloat16 by way of float32."""
    narrow = array.astype(np.float32).astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else array.astype(dtype)
    return np.asarray(narrow, float)


def row_sum_mistakes(failing: Failing, name: str, of: RowSum) -> Iterator[Mistake]:
    """Mistakes in one gradient that is a sum over rows."""
    yield from wrongly_counted(failing, name, of)
    yield from added_narrowly(failing, name, of)


# --- which rows count -------------------------------------------------------------------------------------------------


def wrongly_counted(failing: Failing, name: str, of: RowSum) -> Iterator[Mistake]:
    places = np.argsort(-of.sizes().ravel(), kind="stable")[:PLACES]
    if of.rows < 2 or places.size < LEAST_PLACES:
        return
    got, number = failing.answer(name), np.arange(of.rows)
    terms, limits = of.terms(places), np.broadcast_to(closest(failing, name, got), got.shape).ravel()[places]

    def fit(sums: np.ndarray) -> np.ndarray:
        """Which of many sums [n, k] are the answer."""
        return np.flatnonzero((np.abs(sums - got.ravel()[places]) <= limits).all(axis=-1))

    def counted(words: str, often: np.ndarray) -> Mistake:
        return resulting(f"{name} {words}", lambda failing: {name: of.total(often.astype(float))}, limits=closest)

    upto = np.cumsum(terms, axis=0)[:-1]
    for n in likely(fit(upto) + 1, of.rows):
        for words in first_rows(failing, n, of.rows):
            yield counted(words, number < n)
    for n in likely(of.rows - 1 - fit(terms.sum(0) - upto), of.rows):
        for block in WHOLE_BLOCKS:
            if n == (of.rows - 1) % block + 1:
                yield counted(f"comes from the last block only (blocks of {block} rows)", number >= of.rows - n)
        yield counted(f"comes from the last {f'{n} rows' if n > 1 else 'row'} only", number >= of.rows - n)
    for words, block, often in of_blocks(terms, fit):
        yield counted(f"{words} (blocks of {block} rows)", often)
    yield from last_row_again(terms, got.ravel()[places], counted)


def first_rows(failing: Failing, n: int, rows: int) -> Iterator[str]:
    for block in WHOLE_BLOCKS:
        if n == rows // block * block:
            yield f"loses the rows of the last block, which is not whole (blocks of {block} rows)"
    if n in rows_by_axis(failing):
        yield "comes from as many rows as one axis has"
    yield f"comes from the first {f'{n} rows' if n > 1 else 'row'} only"


def rows_by_axis(failing: Failing) -> tuple[int, ...]:
    return failing.case.cotangents["output"].shape[:-1]


def of_blocks(terms: np.ndarray, fit: Callable[[np.ndarray], np.ndarray]) -> Iterator[tuple[str, int, np.ndarray]]:
    """One row of every block is left out, counts twice or counts alone."""
    number, sizes = np.arange(len(terms)), range(2, min(len(terms) - 1, STRIDES) + 1)
    if not sizes:
        return
    first, last = (np.array([terms[start(n) :: n].sum(0) for n in sizes]) for start in (lambda n: 0, lambda n: n - 1))
    for words, sums, weights in (
        ("loses the first row of every block", terms.sum(0) - first, lambda n: number % n != 0),
        ("loses the last row of every block", terms.sum(0) - last, lambda n: number % n != n - 1),
        (
            "counts the first row of every block but the first one twice",
            terms.sum(0) + first - terms[0],
            lambda n: 1 + ((number % n == 0) & (number > 0)),
        ),
        ("counts the last row of every block twice", terms.sum(0) + last, lambda n: 1 + (number % n == n - 1)),
        ("comes from the first row of every block only", first, lambda n: number % n == 0),
        ("comes from the last row of every block only", last, lambda n: number % n == n - 1),
    ):
        for n in roundest(fit(sums) + sizes[0]):
            yield words, n, np.asarray(weights(n))


def last_row_again(
    terms: np.ndarray, got: np.ndarray, counted: Callable[[str, np.ndarray], Mistake]
) -> Iterator[Mistake]:
    """The last row fills up its block: it counts once more for every row that is missing."""
    rows = len(terms)
    with np.errstate(all="ignore"):
        more = np.median((got - terms.sum(0)) / terms[-1])
    if not 0.5 < more < 2**16:
        return
    again = round(float(more))
    often = np.where(np.arange(rows) == rows - 1, 1 + again, 1)
    for block in WHOLE_BLOCKS:
        if again == -rows % block:
            yield counted(
                f"fills up the last block with its last row, which counts again (blocks of {block} rows)", often
            )
    yield counted(f"counts the last row {again + 1} times", often)


# --- how they are added -----------------------------------------------------------------------------------------------


def added_narrowly(failing: Failing, name: str, of: RowSum) -> Iterator[Mistake]:
    """In 16 bits: row by row, or a tile of rows after the other."""
    got = failing.got[name]
    wide = str(got.dtype) not in HALF
    for dtype in HALF if wide else (str(got.dtype),):
        if wide:
            yield giving(f"{name} is rounded to {dtype}", name, to_dtype(failing.right(name), dtype), limits=closest)
        yield from added_in(failing, name, of, dtype)


def added_in(failing: Failing, name: str, of: RowSum, dtype: str) -> Iterator[Mistake]:
    got = failing.got[name]
    strict = str(got.dtype) == dtype
    for tile in TILES:
        if not 1 < -(-of.rows // tile) * got.size <= ADDITIONS or tile >= of.rows:
            continue
        total = np.zeros(got.shape)
        for start in range(0, of.rows, tile):
            total = to_dtype(total + to_dtype(of.part(slice(start, start + tile)), dtype), dtype)
        how = "row by row" if tile == 1 else f"tile by tile (blocks of {tile} rows)"
        yield giving(f"{name} is added up in {dtype}, {how}", name, total, strict, closest)


def added_in_16_bits(failing: Failing, sums: dict[str, RowSum]) -> bool:
    """Whether only sums over rows in 16 bits are wrong, and no more than adding them up in these can make them.

    Adding n terms one after the other, each sum rounded, is off by at most n u times the sum of their sizes.
    """
    for name in failing.wrong:
        of, dtype = sums.get(name), str(failing.got[name].dtype)
        if of is None or dtype not in HALF:
            return False
        bounds = failing.bounds[name] + of.rows * 2.0 ** -PRECISION[dtype][0] * of.sizes()
        if not agrees(failing, name, failing.right(name), bounds):
            return False
    return True
