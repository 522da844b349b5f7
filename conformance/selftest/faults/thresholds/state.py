"""What a kernel keeps between calls, and shares between threads (ATT-13).

Chance is a seeded generator that advances from call to call, so that a test of these faults can be repeated.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    Call,
    Compute,
    Tensor,
    altered,
    attended,
    logsumexp,
    planted,
    with_keys,
)
from conformance.selftest.faults.thresholds.norms import Norm, Wrong, mean_square, norm

# --- kernels found again by too coarse a key --------------------------------------------------------------------------


def kept(name: str, key: Callable[[Call], Hashable]) -> Compute:
    """An argument is built into a kernel, which later calls with the same key find."""
    found: dict[Hashable, Any] = {}
    return lambda c: attended(replace(c, **{name: found.setdefault(key(c), getattr(c, name))}))


def kept_keys(c_key: Callable[[Call], Hashable]) -> Compute:
    """The number of keys is built in; a later call with more loses the others."""
    found: dict[Hashable, int] = {}
    return lambda c: attended(with_keys(c, slice(0, found.setdefault(c_key(c), c.K))))


def kept_causal() -> Compute:
    """Whether there is a mask is built in; a later call with another loses it."""
    found: dict[Hashable, bool] = {}

    def compute(c: Call) -> Tensor:
        masked = found.setdefault((c.D, c.V, c.query.dtype), c.mask is not None)
        return attended(c if masked else replace(c, mask=None))

    return compute


def kept_precision() -> Compute:
    """The dtype of the first call of a width rounds all later ones."""
    found: dict[Hashable, torch.dtype] = {}

    def compute(c: Call) -> Tensor:
        dtype = found.setdefault((c.D, c.V), c.query.dtype)
        narrow = torch.finfo(dtype).eps > torch.finfo(c.query.dtype).eps
        return attended(replace(c, query=c.query.to(dtype).to(c.query.dtype)) if narrow else c)

    return compute


def kept_eps(key: Callable[[Norm], Hashable]) -> Wrong:
    found: dict[Hashable, float] = {}
    return lambda c, right: right(replace(c, eps=found.setdefault(key(c), c.eps)))


def kept_width() -> Wrong:
    """The variance is divided by the width of the first call with so many rows."""
    found: dict[Hashable, int] = {}

    def variance(c: Norm, d: Tensor) -> Tensor:
        return torch.sum(d**2, dim=c.axes, keepdim=True) / found.setdefault(c.rows, c.width)

    return lambda c, right: right(c, variance)


# --- workspaces -------------------------------------------------------------------------------------------------------


def stale_parts(n: int) -> Compute:
    """Parts of n keys lie in a workspace; a call with fewer merges what an earlier one has left behind them."""
    workspace: list[tuple[Tensor, Tensor]] = []

    def compute(c: Call) -> Tensor:
        if c.K == 0 or c.V == 0 or c.query.numel() == 0:
            return attended(c)
        parts = [with_keys(c, slice(start, start + n)) for start in range(0, c.K, n)]
        parts = [replace(part, sinks=c.sinks if number == 0 else None) for number, part in enumerate(parts)]
        found = [(attended(part), logsumexp(part)) for part in parts]
        left = [pair for pair in workspace[len(found) :] if fits(pair, found[0])]
        workspace[: len(found)] = [(output.detach(), log.detach()) for output, log in found]
        return combined([*found, *(as_this(pair, found[0]) for pair in left)]).to(c.query.dtype)

    return compute


Part = tuple[Tensor, Tensor]
"""Output and log-sum-exp."""


def fits(stale: Part, now: Part) -> bool:
    return all(s.numel() >= a.numel() and s.dtype == a.dtype for s, a in zip(stale, now, strict=True))


def as_this(stale: Part, now: Part) -> Part:
    """The stale numbers in the shapes of now."""
    output, log = (s.reshape(-1)[: a.numel()].reshape(a.shape) for s, a in zip(stale, now, strict=True))
    return output, log


def combined(parts: list[Part]) -> Tensor:
    outputs, logs = (torch.stack(several) for several in zip(*parts, strict=True))
    largest = logs.amax(0).detach()
    shares = torch.exp(logs - torch.where(largest == -torch.inf, 0, largest))
    total = shares.sum(0)
    return ((shares / torch.where(total == 0, 1, total))[..., None] * outputs).sum(0)


def stale_sums() -> Wrong:
    """The weight's gradient is added to what an earlier call of another number of rows has left."""
    left: dict[Hashable, tuple[int, Tensor]] = {}

    def wrong(c: Norm, right: Any) -> Tensor:
        def change(bar: Tensor) -> Tensor:
            rows, before = left.get((c.weight.shape, bar.dtype), (c.rows, torch.zeros_like(bar)))
            left[c.weight.shape, bar.dtype] = c.rows, bar.clone()
            return bar + before if rows > c.rows else bar

        return right(replace(c, weight=altered(c.weight, change)))

    return wrong


# --- now and then -----------------------------------------------------------------------------------------------------


def now_and_then(every: int, change: Callable[[Call], Call]) -> Compute:
    """One call of so many."""
    dice = random.Random(20261125)
    return lambda c: attended(change(c) if dice.random() < 1 / every else c)


def last_key_not_there(c: Call) -> Call:
    """The last key has not arrived: the first is read in its place."""
    if c.K < 2:
        return c
    places = torch.arange(c.K)
    places[-1] = 0
    return replace(c, key=c.key[:, :, places])


def values_not_there(c: Call) -> Call:
    """Values of the last row of a tile are those of the one before."""
    return c if c.K < 2 else replace(c, value=c.values[:, :, torch.arange(c.K) - (torch.arange(c.K) == c.K - 1).long()])


def rows_now_and_then(every: int) -> Wrong:
    dice = random.Random(20261125)

    def wrong(c: Norm, right: Any) -> Tensor:
        late = dice.random() < 1 / every
        return right(c, (lambda c, d: 2 * torch.mean(d**2, dim=c.axes, keepdim=True)) if late else mean_square)

    return wrong


def last_bits(every: int) -> Compute:
    """In one call of so many, the keys are added up in another order."""
    dice = random.Random(20261125)

    def compute(c: Call) -> Tensor:
        return attended(with_keys(c, torch.arange(c.K).flip(0)) if dice.random() < 1 / every else c)

    return compute


# --- threads ----------------------------------------------------------------------------------------------------------

MEANWHILE = 2e-4
"""Seconds in which another thread may come between."""


def shared_query() -> Compute:
    """The query lies in a buffer that all threads share."""
    buffer: dict[str, Tensor] = {}

    def compute(c: Call) -> Tensor:
        buffer["query"] = c.query
        time.sleep(MEANWHILE)
        return attended(replace(c, query=buffer["query"]))

    return compute


def shared_scale() -> Compute:
    """The scale is a global setting while a call runs."""
    setting = {"scale": 1.0}

    def compute(c: Call) -> Tensor:
        setting["scale"] = c.number
        time.sleep(MEANWHILE)
        return attended(replace(c, scale=setting["scale"]))

    return compute


def shared_output() -> Compute:
    """Results of one shape meet in one buffer before they are handed out."""
    buffers: dict[Hashable, Tensor] = {}

    def compute(c: Call) -> Tensor:
        output = attended(c)
        buffer = buffers.setdefault((output.shape, output.dtype), torch.empty_like(output))
        buffer.data.copy_(output.detach())
        time.sleep(MEANWHILE)
        return output + (buffer.detach().clone() - output.detach()) if math.prod(output.shape) else output

    return compute


def shared_eps() -> Wrong:
    setting = {"eps": 0.0}

    def wrong(c: Norm, right: Any) -> Tensor:
        setting["eps"] = c.eps
        time.sleep(MEANWHILE)
        return right(replace(c, eps=setting["eps"]))

    return wrong


def shared_row() -> Wrong:
    """x lies in a buffer that all threads share."""
    buffer: dict[str, Tensor] = {}

    def wrong(c: Norm, right: Any) -> Tensor:
        buffer["x"] = c.x
        time.sleep(MEANWHILE)
        return right(replace(c, x=buffer["x"]))

    return wrong


def state(name: str, compute: Compute) -> Fault:
    return planted("ATT-13", name, compute)


def norm_state(name: str, wrong: Wrong, operation: str = "layer_norm") -> Fault:
    return norm("ATT-13", name, lambda c: c.x.numel() > 0, wrong, operation)


FAULTS: tuple[Fault, ...] = (
    state("scale of the first call of a width", kept("scale", lambda c: (c.D, c.query.dtype))),
    state("softcap of the first call of a width", kept("softcap", lambda c: (c.D, c.query.dtype))),
    state("scale of the first call with so many keys", kept("scale", lambda c: c.K)),
    state("number of keys of the first call of a width", kept_keys(lambda c: (c.D, c.V, c.query.dtype))),
    state("number of keys of the first call with so many queries", kept_keys(lambda c: (c.B, c.H, c.Q, c.D))),
    state("mask of the first call of a width, or none", kept_causal()),
    state("precision of the first call of a width", kept_precision()),
    *(state(f"workspace of parts of {n} keys not cleared", stale_parts(n)) for n in (32, 256)),
    *(state(f"last key not there in one call of {n}", now_and_then(n, last_key_not_there)) for n in (20, 200)),
    state("last value not there in one call of 100", now_and_then(100, values_not_there)),
    state("another order in one call of 50", last_bits(50)),
    state("query in a buffer of all threads", shared_query()),
    state("scale in a setting of all threads", shared_scale()),
    state("results in a buffer of all threads", shared_output()),
    norm_state("eps of the first call of a width", kept_eps(lambda c: (c.width, c.x.dtype))),
    norm_state("eps of the first call of all", kept_eps(lambda c: None)),
    norm_state("width of the first call with so many rows", kept_width()),
    norm_state("weight's gradient added to that of more rows before", stale_sums()),
    norm_state("another variance in one call of 100", rows_now_and_then(100)),
    norm_state("eps in a setting of all threads", shared_eps()),
    norm_state("x in a buffer of all threads", shared_row()),
    norm_state("eps of the first call of a width (rms_norm)", kept_eps(lambda c: c.width), "rms_norm"),
)
