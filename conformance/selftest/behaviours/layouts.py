"""Arrays read as if they lay otherwise in memory, some of them for some widths and lengths only (ATT-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_impl
from conformance.selftest.behaviours.behaviour import Arguments, Behaviour, change_arguments, change_result

Tensor = torch.Tensor
Reading = Callable[[Tensor], Tensor]
Condition = Callable[[Arguments], bool]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_strides(array: Tensor, strides: tuple[int, ...], start: int | None = None) -> Tensor:
    """What lies at these strides; past the end of the memory, its beginning. Gradients are those of the array."""
    if not array.numel():
        return array
    places = torch.tensor(array.storage_offset() if start is None else start)
    for axis, (size, stride) in enumerate(zip(array.shape, strides, strict=True)):
        places = places + (torch.arange(size) * stride).reshape(-1, *[1] * (array.ndim - 1 - axis))
    count = array.untyped_storage().nbytes() // array.element_size()
    numbers = torch.as_strided(array.detach(), (count,), (1,), 0)
    found = numbers[places % len(numbers)]
    return array + (found - array.detach()) if array.is_floating_point() else found


def read_in_order(array: Tensor) -> Tensor:
    """As if it were contiguous."""
    return read_strides(array, torch.empty(array.shape, device="meta").stride())


def read_rows_in_order(array: Tensor) -> Tensor:
    """As if one row began where the one before ends; the axes before are right."""
    return read_strides(array, (*array.stride()[:-2], array.shape[-1], 1)) if array.ndim > 1 else array


def read_columns_in_order(array: Tensor) -> Tensor:
    """As if the last axis were the innermost."""
    return read_strides(array, (*array.stride()[:-1], 1))


def read_past_expanded(array: Tensor) -> Tensor:
    """As if no axis were broadcast."""
    return read_in_order(array) if 0 in array.stride() else array


def read_aligned(array: Tensor) -> Tensor:
    """From the last multiple of 16 bytes before its first number."""
    step = 16 // array.element_size()
    return read_strides(array, array.stride(), array.storage_offset() // step * step)


class ReadCotangent(torch.autograd.Function):
    """Do nothing forwards, and read the cotangent as it does not lie."""

    @staticmethod
    def forward(ctx: Any, array: Tensor, read: Reading) -> Tensor:
        ctx.read = read
        return array.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return ctx.read(cotangent), None


# --- what is read so --------------------------------------------------------------------------------------------------


def misread_input(
    name: str, argument: str, read: Reading, when: Condition = lambda a: True, operation: str = "attention"
) -> Behaviour:
    """One argument is read so in calls of some sizes."""
    right = getattr(torch_impl, operation)

    def change(a: Arguments) -> None:
        if a[argument] is not None and when(a):
            a[argument] = read(a[argument])

    return Behaviour("ATT-13", name, change_arguments(right, change), right, operation, "torch")


def misread_cotangent(name: str, read: Reading, when: Condition, operation: str = "attention") -> Behaviour:
    right = getattr(torch_impl, operation)

    def change(a: Arguments, output: Tensor) -> Tensor:
        return ReadCotangent.apply(output, read) if when(a) else output

    return Behaviour("ATT-13", name, change_result(right, change), right, operation, "torch")


def size(name: str, axis: int) -> Callable[[Arguments], int]:
    return lambda a: int(a[name].shape[axis])


queries, keys = size("query", 2), size("key", 2)
key_width, value_width = size("query", 3), size("value", 3)


def past(axis: Callable[[Arguments], int], n: int) -> Condition:
    return lambda a: axis(a) > n


def clamp_ids(a: Arguments) -> None:
    """As if contiguous; past the table its last row."""
    a["ids"] = read_in_order(a["ids"]).clamp(0, len(a["table"]) - 1)


BEHAVIOURS = (
    misread_input("few queries of 64, 96 or 128 columns as if contiguous", "query", read_in_order,
                  lambda a: queries(a) <= 8 and key_width(a) in (64, 96, 128)),
    misread_input("rows of query of 64 columns as if they followed each other", "query", read_rows_in_order,
                  lambda a: key_width(a) == 64),
    *(
        misread_input(f"keys of width past {n} as if contiguous", "key", read_in_order, past(key_width, n))
        for n in (32, 128)
    ),
    *(misread_input(f"values past {n} keys as if contiguous", "value", read_in_order, past(keys, n)) for n in (16, 64)),
    misread_input("columns of values of 64 or 128 as if innermost", "value", read_columns_in_order,
                  lambda a: value_width(a) in (64, 128)),
    misread_input("heads that share one key by a stride of 0 read on", "key", read_past_expanded),
    misread_input("broadcast bias read on", "bias", read_past_expanded),
    misread_input("mask as if contiguous", "mask", read_in_order),
    misread_input("keep mask as if contiguous", "dropout_keep", read_in_order),
    misread_input("query from the last 16 bytes on", "query", read_aligned, lambda a: key_width(a) % 4 == 0),
    misread_cotangent("cotangent of 128 columns as if contiguous", read_in_order, lambda a: value_width(a) == 128),
    misread_cotangent("rows of the cotangent as if they followed each other", read_rows_in_order,
                      lambda a: queries(a) > 1),
    misread_input("rows of x as if they followed each other", "x", read_rows_in_order, operation="layer_norm"),
    misread_input("weight as if contiguous", "weight", read_in_order, operation="layer_norm"),
    misread_input("rows of x as if they followed each other (feed_forward)", "x", read_rows_in_order,
                  operation="feed_forward"),
    Behaviour("ATT-13", "ids as if contiguous", change_arguments(torch_impl.embedding, clamp_ids),
              torch_impl.embedding, "embedding", "torch"),
)  # fmt: skip
