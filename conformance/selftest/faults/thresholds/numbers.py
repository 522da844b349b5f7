"""Numbers that are treated as special and are not: floors, zeros, ties, saturation, one maximum for many rows."""

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
    Compute,
    Tensor,
    after,
    altered,
    before,
    dense,
    each,
    more,
    planted,
    weighed,
)
from conformance.selftest.faults.thresholds.norms import Compute as NormCompute
from conformance.selftest.faults.thresholds.norms import (
    Norm,
    Wrong,
    gradient_of_weight,
    gradient_of_x,
    mean_square,
    norm,
)
from torch_impl.attention_steps import (
    allowed_sum,
    attention_scores,
    dropout_factor,
    repeat_heads,
    softmax,
    visible_pairs,
)
from torch_impl.dtypes import widen
from torch_impl.masks import checked_mask

# --- a softmax whose steps can be replaced ----------------------------------------------------------------------------

Scores = Callable[[Tensor, Tensor], Tensor]
"""(scores, allowed) -> other scores. Both [B, H, Q, K]."""


def softmax_by(change: Scores) -> Compute:
    """Attention whose scores, or what the softmax makes of them, are changed."""

    def compute(c: Call) -> Tensor:
        allowed, bias = visible_pairs(
            checked_mask(c.mask, c.Q, c.K, c.B, c.H, "cpu"), widen(c.bias), c.Q, c.K, c.query.device
        )
        query, key, value = widen(c.query), repeat_heads(widen(c.key), c.H), repeat_heads(widen(c.values), c.H)
        scores = attention_scores(query, key, allowed, bias=bias, scale=c.scale, softcap=c.softcap)
        allowed = allowed.expand(scores.shape)
        changed = change(scores, allowed) if scores.numel() else scores
        weights, _ = softmax(changed, allowed, widen(c.sinks))
        if c.keep is not None:
            weights = weights * dropout_factor(c.keep, c.rate, weights.dtype)
        return allowed_sum(weights, value, allowed).to(c.query.dtype)

    return compute


def hidden_low(scores: Tensor, allowed: Tensor) -> Tensor:
    return torch.where(allowed, scores, -torch.inf)


def over(maximum: Callable[[Tensor], Tensor]) -> Scores:
    """exp(score - maximum) underflows where the maximum is not the row's own. maximum: of scores with -inf."""

    def change(scores: Tensor, allowed: Tensor) -> Tensor:
        largest = maximum(hidden_low(scores, allowed)).detach()
        smallest = torch.finfo(scores.dtype).tiny
        lost = torch.exp(scores - largest) < smallest
        return torch.where(lost, -torch.inf, scores)

    return change


def over_rows(n: int) -> Callable[[Tensor], Tensor]:
    """Every tile of n rows has one maximum."""

    def maximum(scores: Tensor) -> Tensor:
        own = scores.amax(-1, keepdim=True)
        tiles = torch.arange(scores.shape[2]) // n
        whole = torch.full((*own.shape[:2], int(tiles[-1]) + 1, 1), -torch.inf, dtype=own.dtype)
        index = tiles[:, None].expand(own.shape)
        return whole.scatter_reduce(2, index, own, "amax").gather(2, index)

    return maximum


def first_of_ties(scores: Tensor, allowed: Tensor) -> Tensor:
    """Of equal maxima only the first takes part."""
    low = hidden_low(scores, allowed)
    largest = low.amax(-1, keepdim=True)
    ties = (low == largest) & allowed
    later = ties & (ties.cumsum(-1) > 1)
    return torch.where(later, -torch.inf, scores)


def clipped_to(n: float) -> Scores:
    return lambda scores, allowed: scores.clamp(-n, n)


def lost_beside(n: float) -> Scores:
    """Scores that lie n below the maximum are taken for 0 weight."""
    return lambda scores, allowed: torch.where(
        scores < hidden_low(scores, allowed).amax(-1, keepdim=True).detach() - n, -torch.inf, scores
    )


SOFTMAX = (
    planted("ATT-5", "one maximum for all rows and heads", softmax_by(over(lambda s: s.amax()))),
    planted("ATT-5", "one maximum for all heads", softmax_by(over(lambda s: s.amax((1, 2, 3), keepdim=True)))),
    planted("ATT-5", "one maximum for all rows of a head", softmax_by(over(lambda s: s.amax((2, 3), keepdim=True)))),
    *each((2, 8, 64), lambda n: planted("ATT-5", f"one maximum for every {n} rows", softmax_by(over(over_rows(n))))),
    planted("ATT-5", "of equal maxima the first only", softmax_by(first_of_ties)),
    *each((4, 8), lambda n: planted("ATT-5", f"weights below exp(-{n}) lost", softmax_by(lost_beside(n)))),
    *each((100.0, 1e4), lambda n: planted("ATT-10", f"scores clipped to {n:g}", softmax_by(clipped_to(n)))),
)

# --- scale, zeros, denormal numbers -----------------------------------------------------------------------------------


def row_of_one_key(c: Call, output: Tensor) -> Tensor:
    """A row in which one key takes all weight becomes NaN."""
    with torch.no_grad():
        saturated = (weighed(replace(c, sinks=None)) == 1).any(-1, keepdim=True)
    return torch.where(saturated & torch.tensor(c.K > 1), torch.nan, output)


def gradient_of_saturated(c: Call) -> Call:
    """The query's gradient of such a row is NaN."""
    with torch.no_grad():
        saturated = (weighed(replace(c, sinks=None)) == 1).any(-1, keepdim=True)
    return replace(c, query=altered(c.query, lambda bar: torch.where(saturated, torch.nan, bar)))


def tiles_of_zero(n: int) -> After:
    """Rows in whose tile of n the first cotangent is 0 get no gradient."""

    def change(c: Call, output: Tensor) -> Tensor:
        first = torch.arange(c.Q) // n * n

        def bar_of(bar: Tensor) -> Tensor:
            return torch.where((bar == 0).all(-1, keepdim=True)[:, :, first], 0, bar)

        return altered(output, bar_of)

    return change


def any_zero(c: Call, output: Tensor) -> Tensor:
    """A row with a 0 in its cotangent gets no gradient."""
    return altered(output, lambda bar: torch.where((bar == 0).any(-1, keepdim=True), 0, bar))


def values_of_zero(c: Call) -> Call:
    """No gradient where a value is 0."""
    value = c.values
    return replace(c, value=altered(value, lambda bar: torch.where(value == 0, 0, bar)))


def keys_of_zero(c: Call) -> Call:
    """A key of zeros counts as padding."""
    allowed = torch.ones(1, 1, c.Q, c.K, dtype=torch.bool) if c.mask is None else dense(c)
    there = (c.key != 0).any(-1).repeat_interleave(c.ratio, 1)[:, :, None]
    return replace(c, mask=(allowed & there).expand(c.B, c.H, c.Q, c.K).contiguous())


def normal_only(*names: str) -> Before:
    """Numbers below the smallest normal one of their dtype are read as 0."""

    def flushed(array: Tensor) -> Tensor:
        return torch.where(array.abs() < torch.finfo(array.dtype).tiny, 0, array)

    def change(c: Call) -> Call:
        found: dict[str, Any] = {name: flushed(getattr(c, name)) for name in names}
        return replace(c, **found)

    return change


ATTENTION = (
    *each(
        (8, 64),
        lambda n: before(
            "ATT-1",
            f"scale below 0 taken for 0 past {n} keys",
            lambda c: c.scale is not None and c.scale < 0 and more("K", n)(c),
            lambda c: replace(c, scale=0.0),
        ),
    ),
    after("ATT-5", "NaN where one key takes all weight", lambda c: c.K > 0, row_of_one_key),
    before("ATT-12", "NaN in gradients where one key takes all weight", lambda c: c.K > 1, gradient_of_saturated),
    *each(
        (2, 16),
        lambda n: after(
            "ATT-12", f"tiles of {n} rows skipped whose first cotangent is 0", lambda c: c.Q > 0, tiles_of_zero(n)
        ),
    ),
    after("ATT-12", "rows skipped that have a cotangent of 0", lambda c: c.Q > 0, any_zero),
    before("ATT-12", "no gradient where a value is 0", lambda c: True, values_of_zero),
    before("ATT-8", "keys of zeros taken for padding", lambda c: c.Q > 0 and c.K > 0, keys_of_zero),
    before(
        "ATT-9", "denormal values of 16 bits read as 0", lambda c: c.query.dtype == torch.float16, normal_only("value")
    ),
)

# --- norms ------------------------------------------------------------------------------------------------------------


def floored(floor: float) -> Wrong:
    """A variance below the floor is the floor."""
    return lambda c, right: right(c, lambda c, d: torch.clamp(mean_square(c, d), min=floor))


def vanished(floor: float) -> Wrong:
    """A variance below the floor is 0."""

    def variance(c: Norm, d: Tensor) -> Tensor:
        square = mean_square(c, d)
        return torch.where(square < floor, 0, square)

    return lambda c, right: right(c, variance)


def eps_at_least(floor: float) -> Wrong:
    return lambda c, right: right(replace(c, eps=max(c.eps, floor)))


def half_squares(c: Norm, right: Any) -> Tensor:
    """Squares in float16, which end at 65504."""
    return right(c, lambda c, d: (d.to(torch.float16) ** 2).to(d.dtype).mean(c.axes, keepdim=True))


def dead_columns(c: Norm, bar: Tensor) -> Tensor:
    """Columns whose weight is 0 have no gradient."""
    return torch.where(c.weight == 0, 0, bar)


def rows_of_zero(c: Norm, right: NormCompute) -> Tensor:
    """Rows whose first cotangent is 0 are passed over."""
    first: Any = (..., *(slice(0, 1) for _ in c.axes))
    return altered(right(c), lambda bar: torch.where(bar[first] == 0, 0, bar))


def blocks_of_zero(c: Norm, right: NormCompute) -> Tensor:
    """All rows are passed over if one of them has no cotangent but 0."""

    def change(bar: Tensor) -> Tensor:
        rows = (bar.reshape(-1, c.width) == 0).all(-1)
        return torch.zeros_like(bar) if rows.any() else bar

    return altered(right(c), change)


def positive_weights(c: Norm, right: NormCompute) -> Tensor:
    """Weights below 0 are read as 0."""
    return right(replace(c, weight=c.weight.clamp(min=0)))


def one_scale(c: Norm, right: Any) -> Tensor:
    """Rows are divided by the largest of all of them before they are squared in float32."""

    def variance(c: Norm, d: Tensor) -> Tensor:
        largest = d.abs().amax()
        largest = torch.where(largest == 0, 1, largest)
        small = (d / largest).to(torch.float16).to(d.dtype)
        return mean_square(c, small) * largest**2

    return right(c, variance)


def always(c: Norm) -> bool:
    return c.x.numel() > 0


def narrow(c: Norm) -> bool:
    return c.x.dtype in (torch.float16, torch.bfloat16)


NORMS = (
    *each((1e-3, 1e-6), lambda floor: norm("NORM-1", f"variance at least {floor:g}", always, floored(floor))),
    *each((1e-4, 1e-6), lambda floor: norm("NORM-1", f"variance below {floor:g} taken for 0", always, vanished(floor))),
    *each((1e-5, 1e-8), lambda floor: norm("NORM-1", f"eps at least {floor:g}", always, eps_at_least(floor))),
    norm("NORM-1", "weights below 0 read as 0", always, positive_weights),
    norm("NORM-1", "squares beside the largest of all rows", always, one_scale),
    norm("NORM-2", "squares in float16", narrow, half_squares),
    norm("NORM-7", "squares in float16 (rms_norm)", narrow, half_squares, "rms_norm"),
    norm("NORM-7", "mean square at least 1e-6 (rms_norm)", always, floored(1e-6), "rms_norm"),
    norm("NORM-6", "no gradient of columns of weight 0", always, gradient_of_weight(dead_columns)),
    norm("NORM-6", "no gradient of x of columns of weight 0", always, gradient_of_x(dead_columns)),
    norm("NORM-6", "rows skipped whose first cotangent is 0", always, rows_of_zero),
    norm("NORM-6", "all rows skipped beside one without cotangent", always, blocks_of_zero),
)

FAULTS: tuple[Fault, ...] = (*SOFTMAX, *ATTENTION, *NORMS)
