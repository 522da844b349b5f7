"""What this machine can do: the best matrix product and the best copy that any of the frameworks reaches here, now.

Every achieved number is a share of these. They are measured before the cases of a run, in every framework, and again
before a number is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from conformance.timing.measure.other_programs import watch_processors

SIZES = {"cpu": (1024, 2048), "cuda": (4096, 8192)}
"""Of the square matrices."""
COPIES = {"cpu": tuple(2**power for power in (16, 20, 22, 24, 27)), "cuda": (2**24, 2**28)}
"""Bytes that are copied."""
SECONDS, REPEATS, SHORT = 0.25, 5, 0.005
"""For each measurement: so many repetitions, of runs of calls that take about SHORT seconds."""

QUIET = 0.05
"""Share of the processor time that a system's own services may take; above it, a ceiling may be too low."""

Measured = dict[str, Any]


class CeilingWorker:
    """One framework, by itself in a process."""

    def __init__(self, arrays: str, device: str) -> None:
        self.arrays, self.device = arrays, device

    def measure(self, dtypes: Iterable[str]) -> list[Measured]:
        """Rates of all sizes: FLOP/s of products by dtype, bytes/s (read and written) of copies.

        others: the share of the processor time that other programs and the host took meanwhile.
        """
        product, copy = {"numpy": numpy_calls, "torch": torch_calls, "jax": jax_calls}[self.arrays](self.device)
        found: list[tuple[str, str, int, list[float]]] = []
        taken = watch_processors()
        for dtype in dtypes:
            if self.arrays == "numpy" and dtype not in ("float32", "float64"):
                continue
            for size in SIZES[self.device]:
                rates = [2.0 * size**3 / seconds for seconds in repeated(product(dtype, size))]
                found.append(("product", dtype, size, rates))
        for size in COPIES[self.device]:
            found.append(("copy", "float32", size, [2.0 * size / seconds for seconds in repeated(copy(size))]))
        by_others = taken()
        others = None if by_others is None else by_others.share
        return [
            {"kind": kind, "framework": self.arrays, "dtype": dtype, "size": size, "rates": rates, "others": others}
            for kind, dtype, size, rates in found
        ]


def repeated(call: Callable[[int], None]) -> list[float]:
    """Seconds of one of the calls, REPEATS times: the quickest of a few runs; where the machine is busy, of fewer.

    call: call(n) makes n of them.
    """
    call(1)
    start = time.perf_counter()
    call(1)
    number, found = max(1, min(100, int(SHORT / (time.perf_counter() - start + 1e-9)))), []
    for _ in range(REPEATS):
        start, quickest = time.perf_counter(), float("inf")
        while time.perf_counter() - start < SECONDS / REPEATS:
            before = time.perf_counter()
            call(number)
            quickest = min(quickest, (time.perf_counter() - before) / number)
        found.append(quickest)
    return found


def random_square(size: int) -> np.ndarray:
    """Equal numbers would be multiplied with less power, and so faster."""
    return np.random.default_rng(0).standard_normal((size, size), np.float32)


Calls = tuple[Callable[[str, int], Callable[[int], None]], Callable[[int], Callable[[int], None]]]
"""From dtype and size of a product, and from the bytes of a copy, to so many calls of it."""


def repeat(call: Callable[[], Any], wait: Callable[[Any], object] = lambda result: None) -> Callable[[int], None]:
    """Calls one after the other; wait: until the last result is there."""

    def calls(number: int) -> None:
        for _ in range(number):
            result = call()
        wait(result)

    return calls


def numpy_calls(device: str) -> Calls:
    def product(dtype: str, size: int) -> Callable[[int], None]:
        left, right, output = (random_square(size).astype(dtype) for _ in range(3))
        return repeat(partial(np.matmul, left, right, out=output))

    def copy(size: int) -> Callable[[int], None]:
        return repeat(partial(np.copyto, np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)))

    return product, copy


def torch_calls(device: str) -> Calls:
    import torch

    def wait(result: Any) -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def product(dtype: str, size: int) -> Callable[[int], None]:
        left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        return repeat(partial(torch.mm, left, right, out=torch.empty_like(left)), wait)

    def copy(size: int) -> Callable[[int], None]:
        target = torch.zeros(size // 4, device=device)
        return repeat(partial(target.copy_, torch.ones(size // 4, device=device)), wait)

    return product, copy


def jax_calls(device: str) -> Calls:
    import jax
    import jax.numpy as jnp

    place = jax.devices("gpu" if device == "cuda" else device)[0]

    def compiled(function: Any, *arrays: Any) -> Callable[[int], None]:
        return repeat(partial(jax.jit(function), *jax.device_put(arrays, place)), jax.block_until_ready)

    def product(dtype: str, size: int) -> Callable[[int], None]:
        return compiled(jnp.matmul, *(jnp.asarray(random_square(size), dtype) for _ in range(2)))

    def copy(size: int) -> Callable[[int], None]:
        return compiled(jnp.copy, np.ones(size // 4, np.float32))

    return product, copy


# --- what they mean ---------------------------------------------------------------------------------------------------


def crowded(ceilings: Iterable[Measured]) -> str:
    """Return in words what others took while the ceilings were measured; empty if no more than QUIET."""
    most = max((one.get("others") or 0.0 for one in ceilings), default=0.0)
    return f"they took {most:.0%} of the processor time while the ceilings were measured" if most > QUIET else ""


def best_product(ceilings: Iterable[Measured], dtype: str) -> float | None:
    """The highest rate that any product in the dtype has reached; None if none was measured."""
    products = (one for one in ceilings if (one["kind"], one["dtype"]) == ("product", dtype))
    return max((max(one["rates"]) for one in products), default=None)


def best_copy(ceilings: Iterable[Measured], size: float | None = None) -> float | None:
    """The highest rate of any copy; given a size, of those that are at least as large as half of it, or the largest."""
    copies = [one for one in ceilings if one["kind"] == "copy"]
    if size is not None and copies:
        largest = max(one["size"] for one in copies)
        copies = [one for one in copies if one["size"] >= min(size / 2, largest)]
    return max((max(one["rates"]) for one in copies), default=None)
