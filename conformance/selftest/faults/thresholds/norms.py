"""Norms of wide rows and of many rows (NORM-1, NORM-4, NORM-6, NORM-7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.cases.features import rule_of
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    Tensor,
    altered,
    each,
    zeroed,
)
from torch_impl.dtypes import widen
from torch_impl.layer_norm_steps import affine, deviations

# --- the right ones ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Norm:
    """One call. axes: those that are normalised."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    eps: float

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(range(-self.weight.ndim, 0))

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.weight.numel()

    @property
    def rows(self) -> int:
        return self.x.numel() // max(self.width, 1)


Compute = Callable[[Norm], Tensor]
Variance = Callable[[Norm, Tensor], Tensor]
"""(call, deviations) -> the variance of every row."""


def centered(n: Norm) -> Tensor:
    return deviations(widen(n.x), n.axes)


def mean_square(n: Norm, array: Tensor) -> Tensor:
    return torch.mean(array**2, dim=n.axes, keepdim=True)


def finished(n: Norm, normalized: Tensor) -> Tensor:
    return affine(normalized, n.weight, n.bias).to(n.x.dtype)


def layer(n: Norm, variance: Variance = mean_square) -> Tensor:
    deviation = centered(n)
    return finished(n, deviation / torch.sqrt(variance(n, deviation) + n.eps))


def root_mean_square(n: Norm, variance: Variance = mean_square) -> Tensor:
    wide = widen(n.x)
    return finished(n, wide / torch.sqrt(variance(n, wide) + n.eps))


def unbiased(n: Norm, array: Tensor) -> Tensor:
    return torch.sum(array**2, dim=n.axes, keepdim=True) / (n.width - 1)


def standard_deviation(n: Norm, variance: Variance = unbiased) -> Tensor:
    deviation = centered(n)
    square = variance(n, deviation)
    constant = square == 0
    spread = torch.where(constant, 0, torch.sqrt(torch.where(constant, 1, square)))
    return finished(n, deviation / (spread + n.eps))


def layer_norm_by(compute: Compute) -> Callable[..., Tensor]:
    def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Tensor:
        return compute(Norm(x, weight, bias, float(eps)))

    return layer_norm


def rms_norm_by(compute: Compute) -> Callable[..., Tensor]:
    def rms_norm(x: Any, weight: Any, *, eps: float) -> Tensor:
        return compute(Norm(x, weight, None, float(eps)))

    return rms_norm


def standard_deviation_norm_by(compute: Compute) -> Callable[..., Tensor]:
    def standard_deviation_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> Tensor:
        return compute(Norm(x, weight, bias, float(eps)))

    return standard_deviation_norm


layer_norm = layer_norm_by(layer)
rms_norm = rms_norm_by(root_mean_square)
standard_deviation_norm = standard_deviation_norm_by(standard_deviation)

OPERATIONS: dict[str, tuple[Any, Callable[[Compute], Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "layer_norm": (layer, layer_norm_by, layer_norm),
    "rms_norm": (root_mean_square, rms_norm_by, rms_norm),
    "standard_deviation_norm": (standard_deviation, standard_deviation_norm_by, standard_deviation_norm),
}

# --- the wrong ones ---------------------------------------------------------------------------------------------------

Condition = Callable[[Norm], bool]
Wrong = Callable[[Norm, Any], Tensor]
"""(call, the right computation) -> the wrong output."""


def norm(rule: str, name: str, when: Condition, wrong: Wrong, operation: str = "layer_norm") -> Fault:
    right, function_by, correct = OPERATIONS[operation]
    function = function_by(lambda n: wrong(n, right) if when(n) else right(n))
    return Fault(rule, name, operation, function, correct, "torch")


def wider(n: int) -> Condition:
    return lambda c: c.weight.ndim == 1 and c.width > n


def flat(c: Norm) -> Norm:
    """x as [rows, *the axes of the weight]."""
    return replace(c, x=c.x.reshape(-1, *c.weight.shape))


def columns_up_to(n: int) -> Wrong:
    """Only the first n columns are read and written; the others are 0."""

    def wrong(c: Norm, right: Compute) -> Tensor:
        bias = None if c.bias is None else c.bias[:n]
        return torch.cat(
            [right(replace(c, x=c.x[..., :n], weight=c.weight[:n], bias=bias)), torch.zeros_like(c.x[..., n:])], -1
        )

    return wrong


def statistics_of(n: int) -> Wrong:
    """The variance of the first n columns is that of the row."""
    return lambda c, right: right(c, lambda c, d: torch.mean(d[..., :n] ** 2, dim=-1, keepdim=True))


def padded_to(n: int) -> Wrong:
    """Padding to whole tiles of n columns counts in the number by which the variance is divided."""
    return lambda c, right: right(c, lambda c, d: torch.sum(d**2, dim=-1, keepdim=True) / (-(-c.width // n) * n))


def padding_deviates(n: int) -> Wrong:
    """Padding with 0 deviates from the mean, and its squares are summed up too."""

    def variance(c: Norm, d: Tensor) -> Tensor:
        mean = widen(c.x).mean(-1, keepdim=True)
        return (torch.sum(d**2, dim=-1, keepdim=True) + (-c.width % n) * mean**2) / c.width

    return lambda c, right: right(c, variance)


def one_pass(c: Norm, right: Any) -> Tensor:
    """E[x^2] - E[x]^2."""

    def variance(c: Norm, d: Tensor) -> Tensor:
        x = widen(c.x)
        return torch.clamp((x**2).mean(c.axes, keepdim=True) - x.mean(c.axes, keepdim=True) ** 2, min=0)

    return right(c, variance)


def without_last_columns(n: int) -> Wrong:
    """The last partial tile of n columns is not in the variance."""
    return lambda c, right: right(
        c, lambda c, d: torch.sum(d[..., : c.width // n * n] ** 2, dim=-1, keepdim=True) / c.width
    )


def next_to_last_again(c: Norm, right: Compute) -> Tensor:
    """Columns are written in pairs; of an odd number the last stays as it is before."""
    output = right(c)
    return torch.cat([output[..., :-1], output[..., -2:-1]], -1)


def rows_up_to(n: int) -> Wrong:
    """Rows past n are not written."""

    def wrong(c: Norm, right: Compute) -> Tensor:
        rows = flat(c)
        return zeroed(right(rows), slice(n, None)).reshape(c.x.shape)

    return wrong


def rows_again(n: int) -> Wrong:
    """Row i gets the answer of row i mod n."""

    def wrong(c: Norm, right: Compute) -> Tensor:
        return right(flat(c))[torch.arange(c.rows) % n].reshape(c.x.shape)

    return wrong


def parameters_up_to(first: Callable[[Norm], int]) -> Wrong:
    """Gradients of weight and bias hear only of the rows before the first lost one."""

    def wrong(c: Norm, right: Compute) -> Tensor:
        count, rows = first(c), flat(c)
        deaf = replace(rows, weight=c.weight.detach(), bias=None if c.bias is None else c.bias.detach())
        parts = (right(replace(rows, x=rows.x[:count])), right(replace(deaf, x=rows.x[count:])))
        return torch.cat(parts).reshape(c.x.shape)

    return wrong


def last_row_block(n: int) -> Callable[[Norm], int]:
    return lambda c: c.rows // n * n


def gradient_of_x(change: Callable[[Norm, Tensor], Tensor]) -> Wrong:
    return lambda c, right: right(replace(c, x=altered(c.x, lambda bar: change(c, bar))))


def gradient_of_weight(change: Callable[[Norm, Tensor], Tensor]) -> Wrong:
    return lambda c, right: right(replace(c, weight=altered(c.weight, lambda bar: change(c, bar))))


def columns_lost(n: int) -> Callable[[Norm, Tensor], Tensor]:
    return lambda c, bar: zeroed(bar, (..., slice(n, None)))


def rows_lost(n: int) -> Callable[[Norm, Tensor], Tensor]:
    return lambda c, bar: zeroed(bar.reshape(-1, *c.weight.shape), slice(n, None)).reshape(bar.shape)


def parts_of_columns(n: int) -> Wrong:
    """The gradient of x takes its means over tiles of n columns."""

    def change(c: Norm, bar: Tensor) -> Tensor:
        tiles = torch.arange(c.width) // n
        sums = torch.zeros(*bar.shape[:-1], int(tiles[-1]) + 1, dtype=bar.dtype).index_add_(-1, tiles, bar)
        return bar - sums[..., tiles] / n

    return gradient_of_x(change)


LAYER = (
    *each(
        (128, 1024, 4096, 16384, 32768),
        lambda n: norm("NORM-1", f"columns past {n} not written", wider(n), columns_up_to(n)),
    ),
    *each(
        (512, 2048, 8192, 65535),
        lambda n: norm("NORM-1", f"variance of the first {n} columns", wider(n), statistics_of(n)),
    ),
    *each(
        (8, 128, 1024),
        lambda n: norm(
            "NORM-1",
            f"variance divided by a width padded to {n}",
            lambda c: wider(n)(c) and c.width % n != 0,
            padded_to(n),
        ),
    ),
    *each(
        (32, 256),
        lambda n: norm(
            "NORM-1",
            f"padding to {n} columns counted in the variance",
            lambda c: wider(n)(c) and c.width % n != 0,
            padding_deviates(n),
        ),
    ),
    *each(
        (8, 128, 1024),
        lambda n: norm(
            "NORM-1",
            f"last tile of {n} columns not in the variance",
            lambda c: wider(n)(c) and c.width % n != 0,
            without_last_columns(n),
        ),
    ),
    *each(
        (128, 2048),
        lambda n: norm(
            "NORM-1",
            f"odd widths past {n} written in pairs",
            lambda c: wider(n)(c) and c.width % 2 == 1,
            next_to_last_again,
        ),
    ),
    *each(
        (48, 128, 1024, 16384, 65535),
        lambda n: norm("NORM-1", f"rows past {n} not written", lambda c: c.rows > n, rows_up_to(n)),
    ),
    *each(
        (64, 4096, 32768),
        lambda n: norm("NORM-1", f"rows past {n} get the first answers", lambda c: c.rows > n, rows_again(n)),
    ),
    *each(
        (128, 1024, 4096, 32768), lambda n: norm("NORM-4", f"variance in one pass past width {n}", wider(n), one_pass)
    ),
    *each((128, 2048), lambda n: norm("NORM-4", f"variance in one pass past {n} rows", lambda c: c.rows > n, one_pass)),
    *each(
        (4, 32, 128),
        lambda n: norm(
            "NORM-6",
            f"last block of {n} rows lost in the weight's gradient",
            lambda c: c.rows > n and c.rows % n != 0,
            parameters_up_to(last_row_block(n)),
        ),
    ),
    *each(
        (256, 2048, 32768),
        lambda n: norm(
            "NORM-6",
            f"rows past {n} lost in the weight's gradient",
            lambda c: c.rows > n,
            parameters_up_to(lambda c: n),
        ),
    ),
    *each(
        (128, 1024, 8192, 32768),
        lambda n: norm("NORM-6", f"gradient of x past column {n} lost", wider(n), gradient_of_x(columns_lost(n))),
    ),
    *each(
        (256, 4096),
        lambda n: norm(
            "NORM-6", f"gradient of the weight past column {n} lost", wider(n), gradient_of_weight(columns_lost(n))
        ),
    ),
    *each(
        (128, 1024, 65535),
        lambda n: norm("NORM-6", f"gradient of x past row {n} lost", lambda c: c.rows > n, gradient_of_x(rows_lost(n))),
    ),
    *each(
        (128, 1024),
        lambda n: norm("NORM-6", f"means of the gradient over tiles of {n} columns", wider(n), parts_of_columns(n)),
    ),
)


def variant(operation: str, name: str, when: Condition, wrong: Wrong, rule: str = "NORM-7") -> Fault:
    return norm(rule, f"{name} ({operation})", when, wrong, operation)


def variants(operation: str) -> tuple[Fault, ...]:
    return (
        *each(
            (256, 4096, 32768),
            lambda n: variant(operation, f"columns past {n} not written", wider(n), columns_up_to(n)),
        ),
        *each(
            (1024, 16384),
            lambda n: variant(operation, f"variance of the first {n} columns", wider(n), statistics_of(n)),
        ),
        *each(
            (8, 512),
            lambda n: variant(
                operation,
                f"variance divided by a width padded to {n}",
                lambda c: wider(n)(c) and c.width % n != 0,
                padded_to(n),
            ),
        ),
        *each(
            (128, 1024),
            lambda n: variant(
                operation,
                f"odd widths past {n} written in pairs",
                lambda c: wider(n)(c) and c.width % 2 == 1,
                next_to_last_again,
            ),
        ),
        *each(
            (48, 1024, 65535),
            lambda n: variant(operation, f"rows past {n} not written", lambda c: c.rows > n, rows_up_to(n)),
        ),
        *each(
            (32, 128),
            lambda n: variant(
                operation,
                f"last block of {n} rows lost in the weight's gradient",
                lambda c: c.rows > n and c.rows % n != 0,
                parameters_up_to(last_row_block(n)),
                rule_of("gradients", operation),
            ),
        ),
    )


ONE_ROW = each(
    (1024, 4096, 16384),
    lambda n: norm(
        "NORM-7",
        f"of a single row columns past {n} not in the mean square",
        lambda c: c.rows == 1 and wider(n)(c),
        lambda c, right: right(c, lambda c, x: torch.sum(x[..., :n] ** 2, dim=-1, keepdim=True) / c.width),
        "rms_norm",
    ),
)

FAULTS: tuple[Fault, ...] = (*LAYER, *ONE_ROW, *variants("rms_norm"), *variants("standard_deviation_norm"))
