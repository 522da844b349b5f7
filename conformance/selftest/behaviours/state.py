"""What is kept between calls or shared between threads, and what chance decides (ATT-13 and others).

State is kept in the function itself, as a workspace or a cache in a library would be. Chance is mostly a seeded
generator that advances from call to call, so that a test of these can be repeated.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.selftest.behaviours.behaviour import (
    Arguments,
    Behaviour,
    change_result,
    differentiate,
    misuse_arguments,
    spoil_result,
    wrap,
)
from reference_numpy import attention, attention_logsumexp, layer_norm, layer_norm_vjp, merge_attention

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from reference_numpy.layer_norm_vjp import NormGradients

Change = Callable[[Arguments], None]
Key = Callable[[Arguments], Hashable]
"""By what a kernel, a cache or a workspace is found again."""


def key_width(a: Arguments) -> tuple[Hashable, ...]:
    return a["query"].shape[-1], a["value"].shape[-1], a["query"].dtype.name


def row_width(a: Arguments) -> Hashable:
    return a["weight"].size, a["x"].dtype.name


def dtype_digits(dtype: DTypeLike) -> int:
    return int(ml_dtypes.finfo(dtype).nmant)


def take_keys(a: Arguments, keys: slice | np.ndarray) -> Arguments:
    """The arguments on some of the keys, or on some of them twice."""
    pairs = {name: a[name][..., keys] for name in ("mask", "bias", "dropout_keep") if a[name] is not None}
    return a | pairs | {"key": a["key"][:, :, keys], "value": a["value"][:, :, keys]}


# --- kernels and caches that are found again by too coarse a key ------------------------------------------------------


def keep_first(key: Key, read: Callable[[Arguments], Any], use: Callable[[Arguments, Any], Any]) -> Change:
    """What `read` finds in the first call of a key is built in, and `use(arguments, that)` puts it into all of them."""
    kept: dict[Hashable, Any] = {}

    def change(a: Arguments) -> None:
        use(a, kept.setdefault(key(a), read(a)))

    return change


def keep_argument(name: str, key: Key) -> Change:
    return keep_first(
        key,
        lambda a: np.copy(a[name]) if isinstance(a[name], np.ndarray) else a[name],
        lambda a, first: a.update({name: first}),
    )


def round_query(a: Arguments, dtype: DTypeLike) -> None:
    """To a dtype of fewer digits."""
    if dtype_digits(dtype) < dtype_digits(a["query"].dtype):
        with np.errstate(all="ignore"):
            a["query"] = a["query"].astype(dtype).astype(a["query"].dtype)


keep_key_count = keep_first(
    key_width, lambda a: a["key"].shape[2], lambda a, count: a.update(take_keys(a, slice(0, count)))
)
keep_masked = keep_first(
    key_width, lambda a: a["mask"] is not None, lambda a, masked: None if masked else a.update(mask=None)
)
keep_precision = keep_first(lambda a: key_width(a)[:2], lambda a: a["query"].dtype, round_query)


def table_key(a: Arguments) -> Hashable:
    return a["x"].shape[-1], a["rotary_width"], a["base"], a["positions"].shape, a["positions"].tobytes()


def round_positions(a: Arguments, dtype: DTypeLike) -> None:
    with np.errstate(all="ignore"):
        a["positions"] = np.nan_to_num(a["positions"].astype(dtype), posinf=0).astype(a["positions"].dtype)


def keep_table() -> Callable[[Arguments, Any], Any]:
    """The table of the first call, whatever dtype it had, is cast to that of every other one."""
    tables: dict[Hashable, Any] = {}

    def change(a: Arguments, table: np.ndarray) -> Any:
        key = table.shape, int(a["offset"]), a["exponent"]
        return tables.setdefault(key, table).astype(table.dtype)

    return change


# --- workspaces that are not cleared ----------------------------------------------------------------------------------


def leave_first_row() -> Callable[[Arguments, Any], Any]:
    """The first row of a result begins where the result of the same shape before it has ended."""
    rooms: dict[Hashable, Any] = {}

    def change(a: Arguments, output: np.ndarray) -> Any:
        room = rooms.setdefault((output.shape, output.dtype.name), np.zeros_like(output))
        room[:, :, 1:] = 0
        with np.errstate(all="ignore"):
            room += output
        return room.copy()

    return change


def leave_parts(size: int) -> Callable[[Arguments], Any]:
    """Parts of the keys lie in a workspace; a call with fewer merges what an earlier one has left behind them."""
    workspace: list[tuple[Any, Any]] = []

    def answer(a: Arguments) -> Any:
        if 0 in (a["key"].shape[2], a["value"].shape[3], a["query"].size):
            return attention(**a)
        parts = [take_keys(a, slice(start, start + size)) for start in range(0, a["key"].shape[2], size)]
        for part in parts[1:]:
            part["sinks"] = None
        others = ("mask", "bias", "scale", "softcap", "sinks")
        found = [
            (attention(**part), attention_logsumexp(part["query"], part["key"], **{n: part[n] for n in others}))
            for part in parts
        ]
        stale = [
            tuple(s.reshape(-1)[: a.size].reshape(a.shape) for s, a in zip(left, found[0], strict=True))
            for left in workspace[len(found) :]
            if all(s.size >= a.size and s.dtype == a.dtype for s, a in zip(left, found[0], strict=True))
        ]
        workspace[: len(found)] = found
        return merge_attention(*zip(*found, *stale, strict=True))[0]

    return answer


def add_stale_gradient() -> Callable[[Arguments, Any], Any]:
    """The weight's gradient is added to what an earlier call with more rows has left."""
    left: dict[Hashable, tuple[int, Any]] = {}

    def change(a: Arguments, gradients: NormGradients) -> Any:
        key, rows = (a["weight"].shape, a["weight"].dtype.name), a["x"].size // max(a["weight"].size, 1)
        before_rows, before = left.get(key, (0, None))
        left[key] = rows, gradients.weight
        return gradients._replace(weight=gradients.weight + before) if before_rows > rows else gradients

    return change


# --- now and then -----------------------------------------------------------------------------------------------------


def change_now_and_then(every: int, change: Change) -> Change:
    """One call of so many."""
    dice = random.Random(20261125)
    return lambda a: change(a) if dice.random() < 1 / every else None


def read_first_key(a: Arguments) -> None:
    """The last key has not arrived: the first is read in its place."""
    if a["key"].shape[2] > 1:
        a["key"] = np.concatenate([a["key"][:, :, :-1], a["key"][:, :, :1]], axis=2)


def shuffle_keys() -> Change:
    """Keys are added up in another order every time, as threads finish."""
    rng = np.random.default_rng()
    return lambda a: a.update(take_keys(a, rng.permutation(a["key"].shape[2])))


def round_fourth_call() -> Change:
    """Every fourth call tries a faster path, with values in bfloat16."""
    calls = itertools.count()

    def change(a: Arguments) -> None:
        if next(calls) % 4 == 3:
            a["value"] = a["value"].astype(ml_dtypes.bfloat16).astype(a["value"].dtype)

    return change


def drop_keys() -> Change:
    """Dropout of its own, as of a model left in training."""
    rng = np.random.default_rng()

    def change(a: Arguments) -> None:
        pairs = (*a["query"].shape[:3], a["key"].shape[2])
        a["dropout_keep"] = (rng.random(pairs) > 0.1) & (True if a["dropout_keep"] is None else a["dropout_keep"])

    return change


# --- threads ----------------------------------------------------------------------------------------------------------

MEANWHILE = 2e-4
"""Seconds in which another thread may come between."""


def share_argument(name: str, default: Callable[[Arguments], Any] = lambda a: None) -> Change:
    """An argument lies in a buffer or a setting that all threads share while a call runs."""
    shared: dict[str, Any] = {}

    def change(a: Arguments) -> None:
        shared[name] = default(a) if a[name] is None else a[name]
        time.sleep(MEANWHILE)
        a[name] = shared[name]

    return change


def share_output() -> Callable[[Arguments, Any], Any]:
    """Results of one shape meet in one buffer before they are returned."""
    buffers: dict[Hashable, Any] = {}

    def change(a: Arguments, output: np.ndarray) -> Any:
        buffer = buffers.setdefault((output.shape, output.dtype.name), np.empty_like(output))
        buffer[...] = output
        time.sleep(MEANWHILE)
        return buffer.copy()

    return change


BEHAVIOURS = (
    misuse_arguments("MASK-1", "the first mask of a shape kept",
                     keep_argument("mask", lambda a: (np.shape(a["mask"]), a["key"].shape[2]))),
    misuse_arguments("ATT-8", "the first keys of a shape kept",
                     keep_argument("key", lambda a: (a["key"].shape, str(a["key"].dtype)))),
    misuse_arguments("ATT-13", "scale of the first call of a width", keep_argument("scale", key_width)),
    misuse_arguments("ATT-13", "number of keys of the first call of a width", keep_key_count),
    misuse_arguments("ATT-13", "mask of the first call of a width, or none", keep_masked),
    misuse_arguments("ATT-13", "precision of the first call of a width", keep_precision),
    misuse_arguments("ATT-13", "eps of the first call of a width", keep_argument("eps", row_width), "layer_norm"),
    misuse_arguments("ATT-13", "positions in the dtype of their first call",
                     keep_first(table_key, lambda a: a["x"].dtype, round_positions), "rotary_embedding"),
    spoil_result("ATT-13", "table in the dtype of its first call", keep_table(), "sinusoidal_positions"),
    spoil_result("ATT-13", "first row not cleared", leave_first_row()),
    *(
        Behaviour("ATT-13", f"workspace of parts of {n} keys not cleared", wrap(attention, leave_parts(n)), attention)
        for n in (32, 256)
    ),
    Behaviour("ATT-13", "weight's gradient added to that of more rows before",
              differentiate(layer_norm, change_result(layer_norm_vjp, add_stale_gradient())),
              differentiate(layer_norm, layer_norm_vjp), "layer_norm"),
    misuse_arguments("ATT-13", "another path in every fourth call", round_fourth_call()),
    misuse_arguments("ATT-13", "keys added up in any order", shuffle_keys()),
    misuse_arguments("ATT-13", "dropout of its own", drop_keys()),
    *(misuse_arguments("ATT-13", f"last key not there in one call of {n}", change_now_and_then(n, read_first_key))
      for n in (20, 200)),
    misuse_arguments("ATT-13", "another order in one call of 50",
                     change_now_and_then(50, lambda a: a.update(take_keys(a, slice(None, None, -1))))),
    misuse_arguments("ATT-13", "x halved in one call of 100",
                     change_now_and_then(100, lambda a: a.update(x=a["x"] / a["x"].dtype.type(2))), "layer_norm"),
    misuse_arguments("ATT-13", "query in a buffer of all threads", share_argument("query")),
    misuse_arguments("ATT-13", "scale in a setting of all threads",
                     share_argument("scale", lambda a: a["query"].shape[-1] ** -0.5)),
    spoil_result("ATT-13", "results in a buffer of all threads", share_output()),
    misuse_arguments("ATT-13", "eps in a setting of all threads", share_argument("eps"), "layer_norm"),
)  # fmt: skip
