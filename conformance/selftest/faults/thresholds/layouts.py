"""Arrays read as if they lay otherwise in memory, for some widths and lengths only (ATT-13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    After,
    Before,
    Call,
    Condition,
    Tensor,
    after,
    altered,
    before,
    each,
    more,
)
from conformance.selftest.faults.thresholds.layers import embedding, feed_forward
from conformance.selftest.faults.thresholds.norms import Compute, Norm, norm

# --- reading ----------------------------------------------------------------------------------------------------------


def memory(array: Tensor) -> Tensor:
    """All numbers of the array's storage, one after the other."""
    count = array.untyped_storage().nbytes() // array.element_size()
    return torch.as_strided(array.detach(), (count,), (1,), 0)


def at_strides(array: Tensor, strides: tuple[int, ...], start: int | None = None) -> Tensor:
    """What lies at these strides; past the end of the memory, its beginning. Gradients are those of the array."""
    if not array.numel():
        return array
    places = torch.tensor(array.storage_offset() if start is None else start)
    for axis, (size, stride) in enumerate(zip(array.shape, strides, strict=True)):
        places = places + (torch.arange(size) * stride).reshape(-1, *[1] * (array.ndim - 1 - axis))
    numbers = memory(array)
    return (
        array + (numbers[places % len(numbers)] - array.detach())
        if array.is_floating_point()
        else (numbers[places % len(numbers)])
    )


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def read_in_order(array: Tensor) -> Tensor:
    """As if it were contiguous."""
    return at_strides(array, contiguous_strides(tuple(array.shape)))


def rows_in_order(array: Tensor) -> Tensor:
    """As if one row began where the one before ends; the axes before are right."""
    return at_strides(array, (*array.stride()[:-2], array.shape[-1], 1))


def columns_in_order(array: Tensor) -> Tensor:
    """As if the last axis were the innermost."""
    return at_strides(array, (*array.stride()[:-1], 1))


def expanded_read_on(array: Tensor) -> Tensor:
    """As if no axis were broadcast."""
    return read_in_order(array) if 0 in array.stride() else array


def aligned(array: Tensor) -> Tensor:
    """From the last multiple of 16 bytes before its first number."""
    step = 16 // array.element_size()
    return at_strides(array, array.stride(), array.storage_offset() // step * step)


Reading = Callable[[Tensor], Tensor]


def of_argument(name: str, read: Reading) -> Before:
    def change(c: Call) -> Call:
        array: Any = getattr(c, name)
        found: dict[str, Any] = {name: None if array is None else read(array)}
        return replace(c, **found)

    return change


def cotangent(read: Reading) -> After:
    return lambda c, output: altered(output, read)


def strided(name: str, when: Condition, change: Before) -> Fault:
    return before("ATT-13", name, when, change)


ATTENTION = (
    strided(
        "few queries of 64, 96 or 128 columns as if contiguous",
        lambda c: c.Q <= 8 and c.D in (64, 96, 128),
        of_argument("query", read_in_order),
    ),
    *each(
        [(name, axis, width) for name, axis in (("query", "D"), ("key", "D"), ("value", "V")) for width in (64, 128)],
        lambda of: strided(
            f"rows of {of[0]} of {of[2]} columns as if they followed each other",
            lambda c: bool(getattr(c, of[1]) == of[2]),
            of_argument(of[0], rows_in_order),
        ),
    ),
    *each(
        (32, 128),
        lambda n: strided(f"keys of width past {n} as if contiguous", more("D", n), of_argument("key", read_in_order)),
    ),
    *each(
        (16, 64),
        lambda n: strided(f"values past {n} keys as if contiguous", more("K", n), of_argument("value", read_in_order)),
    ),
    strided(
        "columns of values of 64 or 128 as if innermost",
        lambda c: c.V in (64, 128),
        of_argument("value", columns_in_order),
    ),
    *each(
        ("key", "value", "query"),
        lambda name: strided(
            f"heads that share one {name} by a stride of 0 read on", lambda c: True, of_argument(name, expanded_read_on)
        ),
    ),
    strided("bias as if contiguous", lambda c: c.bias is not None, of_argument("bias", read_in_order)),
    strided("broadcast bias read on", lambda c: c.bias is not None, of_argument("bias", expanded_read_on)),
    strided("mask as if contiguous", lambda c: c.mask is not None, of_argument("mask", read_in_order)),
    strided("keep mask as if contiguous", lambda c: c.keep is not None, of_argument("keep", read_in_order)),
    *each(
        ("query", "value"),
        lambda name: strided(f"{name} from the last 16 bytes on", lambda c: c.D % 4 == 0, of_argument(name, aligned)),
    ),
    *each(
        (64, 128),
        lambda width: after(
            "ATT-13", f"cotangent of {width} columns as if contiguous", lambda c: width == c.V, cotangent(read_in_order)
        ),
    ),
    after(
        "ATT-13", "rows of the cotangent as if they followed each other", lambda c: c.Q > 1, cotangent(rows_in_order)
    ),
)

# --- layers -----------------------------------------------------------------------------------------------------------


def of_x(read: Reading) -> Callable[[Norm, Compute], Tensor]:
    return lambda c, right: right(replace(c, x=read(c.x)))


def of_weight(read: Reading) -> Callable[[Norm, Compute], Tensor]:
    return lambda c, right: right(replace(c, weight=read(c.weight)))


def of_cotangent(read: Reading) -> Callable[[Norm, Compute], Tensor]:
    return lambda c, right: altered(right(c), read)


def several_rows(c: Norm) -> bool:
    return c.x.ndim > 1


def read_feed_forward(
    parameters: Any, x: Any, *, activation: str = "relu", dropout_keep: Any = None, dropout_rate: float = 0.0
) -> Tensor:
    """Rows of x as if they followed each other."""
    options: dict[str, Any] = {"activation": activation, "dropout_keep": dropout_keep, "dropout_rate": dropout_rate}
    return feed_forward(parameters, rows_in_order(x) if x.ndim > 1 else x, **options)


def read_embedding(table: Any, ids: Any, *, scaled: bool = False) -> Tensor:
    """ids as if contiguous; past the table its last row."""
    return embedding(table, read_in_order(ids).clamp(0, len(table) - 1), scaled=scaled)


LAYERS = (
    norm("ATT-13", "rows of x as if they followed each other", several_rows, of_x(rows_in_order)),
    norm("ATT-13", "rows of width past 64 as if contiguous", lambda c: c.width > 64, of_x(read_in_order)),
    norm("ATT-13", "weight as if contiguous", lambda c: True, of_weight(read_in_order)),
    norm(
        "ATT-13",
        "rows of the cotangent as if they followed each other (layer_norm)",
        several_rows,
        of_cotangent(rows_in_order),
    ),
    norm("ATT-13", "x from the last 16 bytes on", lambda c: c.width % 4 == 0, of_x(aligned)),
    norm(
        "ATT-13", "rows of x as if they followed each other (rms_norm)", several_rows, of_x(rows_in_order), "rms_norm"
    ),
    Fault(
        "ATT-13",
        "rows of x as if they followed each other (feed_forward)",
        "feed_forward",
        read_feed_forward,
        feed_forward,
        "torch",
    ),
    Fault("ATT-13", "ids as if contiguous", "embedding", read_embedding, embedding, "torch"),
)

FAULTS: tuple[Fault, ...] = (*ATTENTION, *LAYERS)
