"""Keys, queries and values past a size lost, read twice or counted wrongly (ATT-2, ATT-3, ATT-5, ATT-8, ATT-11)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    After,
    Before,
    Call,
    Compute,
    Tensor,
    after,
    attended,
    before,
    each,
    instead,
    logsumexp,
    more,
    partly,
    with_keys,
    zeroed,
)

# --- keys -------------------------------------------------------------------------------------------------------------


def dropped(n: int) -> Before:
    return lambda c: with_keys(c, slice(0, n))


def in_the_middle(n: int) -> Before:
    """The one key at place n is passed over, where two parts meet."""
    return lambda c: with_keys(c, torch.cat([torch.arange(n), torch.arange(n + 1, c.K)]))


def around(n: int) -> Before:
    """Keys past n are read from the beginning again: their index is taken modulo n."""

    def change(c: Call) -> Call:
        places = torch.arange(c.K) % n
        return replace(c, key=c.key[:, :, places], value=c.values[:, :, places])

    return change


def without_tail(n: int) -> Before:
    """Only whole tiles of n keys."""
    return lambda c: with_keys(c, slice(0, c.K // n * n))


def tail_read_on(n: int) -> Before:
    """The last tile is filled with the first keys."""
    return lambda c: with_keys(c, torch.arange(c.K // n * n + n) % c.K)


def tail_of_zeros(n: int) -> Before:
    """The padding of the last tile counts: keys and values of 0."""

    def change(c: Call) -> Call:
        extra = -c.K % n
        padded = with_keys(c, torch.arange(c.K + extra) % c.K)
        key, value = (zeroed(a, (slice(None), slice(None), slice(c.K, None))) for a in (padded.key, padded.values))
        return replace(padded, key=key, value=value)

    return change


def without_last(n: int) -> Before:
    """Of whole tiles only, the last is lost: (K - 1) // n of them."""
    return lambda c: with_keys(c, slice(0, c.K - n))


def whole(n: int) -> Callable[[Call], bool]:
    return lambda c: more("K", n)(c) and c.K % n == 0


KEYS = (
    *each(
        (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
        lambda n: before("ATT-8", f"keys past {n} left out", more("K", n), dropped(n)),
    ),
    *each((127, 1024, 32767), lambda n: before("ATT-8", f"key {n} passed over", more("K", n + 1), in_the_middle(n))),
    *each(
        (256, 2048, 32768),
        lambda n: before("ATT-8", f"keys past {n} read from the beginning", more("K", n), around(n)),
    ),
    *each(
        (16, 32, 64, 128, 256, 1024),
        lambda n: before("ATT-8", f"last tile of {n} keys left out", partly("K", n), without_tail(n)),
    ),
    *each((64, 128, 256), lambda n: before("ATT-8", f"last tile of {n} keys read on", partly("K", n), tail_read_on(n))),
    *each(
        (64, 128, 256),
        lambda n: before("ATT-8", f"padding of the last tile of {n} keys counted", partly("K", n), tail_of_zeros(n)),
    ),
    *each(
        (64, 128, 256),
        lambda n: before("ATT-8", f"last of whole tiles of {n} keys left out", whole(n), without_last(n)),
    ),
)

# --- queries ----------------------------------------------------------------------------------------------------------


def rows_of_zeros(n: int) -> After:
    return lambda c, output: zeroed(output, (slice(None), slice(None), slice(n, None)))


def last_row_again(n: int) -> After:
    return lambda c, output: output[:, :, torch.arange(c.Q).clamp(max=n - 1)]


def rows_again(n: int) -> After:
    return lambda c, output: output[:, :, torch.arange(c.Q) % n]


def tail_rows_of_zeros(n: int) -> After:
    return lambda c, output: zeroed(output, (slice(None), slice(None), slice(c.Q // n * n, None)))


QUERIES = (
    *each(
        (32, 64, 512, 2048, 8192, 65535),
        lambda n: after("ATT-8", f"queries past {n} get 0", more("Q", n), rows_of_zeros(n)),
    ),
    *each(
        (64, 128, 1024, 32768),
        lambda n: after("ATT-8", f"queries past {n} get the last answer", more("Q", n), last_row_again(n)),
    ),
    *each(
        (128, 4096, 32768),
        lambda n: after("ATT-8", f"queries past {n} get the first answers", more("Q", n), rows_again(n)),
    ),
    *each(
        (16, 64, 128),
        lambda n: after("ATT-8", f"last tile of {n} queries gets 0", partly("Q", n), tail_rows_of_zeros(n)),
    ),
)

# --- bias, sinks, softcap, dropout ------------------------------------------------------------------------------------


def bias_past(n: int) -> Before:
    """0 past key n, except where it forbids."""

    def change(c: Call) -> Call:
        assert c.bias is not None
        ignored = (torch.arange(c.K) >= n) & (c.bias != -torch.inf)
        return replace(c, bias=torch.where(ignored, 0, c.bias))

    return change


def bias_of_first_row(n: int) -> Before:
    """Every tile of n queries takes the bias of its first."""

    def change(c: Call) -> Call:
        assert c.bias is not None
        return replace(c, bias=c.bias[..., torch.arange(c.Q) // n * n, :])

    return change


def bias_of_head(n: int) -> Before:
    """Heads past n take the bias of head 0."""

    def change(c: Call) -> Call:
        assert c.bias is not None
        heads = torch.arange(c.H)
        return replace(c, bias=c.bias[:, torch.where(heads < n, heads, 0)])

    return change


def heads_in_bias(c: Call) -> bool:
    return c.bias is not None and c.bias.ndim == 4 and c.bias.shape[1] > 1


def sinks_by_part(n: int) -> Before:
    """The sink counts once for every part of n keys."""

    def change(c: Call) -> Call:
        assert c.sinks is not None
        return replace(c, sinks=c.sinks + math.log(-(-c.K // n)))

    return change


def sinks_of_head(n: int) -> Before:
    """Heads past n take the sinks of the first ones."""

    def change(c: Call) -> Call:
        assert c.sinks is not None
        return replace(c, sinks=c.sinks[torch.arange(c.H) % n])

    return change


def keep_moved(c: Call) -> Call:
    """What is kept is read one key too far."""
    assert c.keep is not None
    return replace(c, keep=c.keep.roll(1, -1))


def keep_of_head(n: int) -> Before:
    def change(c: Call) -> Call:
        assert c.keep is not None
        heads = torch.arange(c.H)
        return replace(c, keep=c.keep[:, torch.where(heads < n, heads, 0)])

    return change


def keep_wraps(bits: int) -> Before:
    """A row's place in the keep mask wraps around."""

    def change(c: Call) -> Call:
        assert c.keep is not None
        flat = c.keep.reshape(*c.keep.shape[:2], -1)
        places = (torch.arange(c.Q) * c.K % 2**bits)[:, None] + torch.arange(c.K)
        return replace(c, keep=flat[..., places.clamp(max=c.Q * c.K - 1)])

    return change


FEATURES = (
    *each(
        (64, 256, 1024, 4096, 16384, 65535),
        lambda n: before("ATT-3", f"bias past key {n} ignored", more("K", n, "bias"), bias_past(n)),
    ),
    *each(
        (32, 64, 128, 1024),
        lambda n: before(
            "ATT-3", f"bias of the first of {n} queries for all", more("Q", n, "bias"), bias_of_first_row(n)
        ),
    ),
    *each(
        (16, 32, 64),
        lambda n: before(
            "ATT-3", f"bias of head 0 past head {n}", lambda c: heads_in_bias(c) and more("H", n)(c), bias_of_head(n)
        ),
    ),
    *each(
        (64, 512, 2048, 8192, 32768),
        lambda n: before(
            "ATT-5", f"sinks forgotten past {n} keys", more("K", n, "sinks"), lambda c: replace(c, sinks=None)
        ),
    ),
    *each(
        (64, 256, 1024, 4096),
        lambda n: before("ATT-5", f"sinks counted for every part of {n} keys", more("K", n, "sinks"), sinks_by_part(n)),
    ),
    *each(
        (16, 32, 64),
        lambda n: before("ATT-5", f"sinks of the first {n} heads again", more("H", n, "sinks"), sinks_of_head(n)),
    ),
    *each(
        (64, 256, 1024, 4096, 32768),
        lambda n: before(
            "ATT-2", f"softcap forgotten past {n} keys", more("K", n, "softcap"), lambda c: replace(c, softcap=None)
        ),
    ),
    *each(
        (64, 128, 256),
        lambda n: before(
            "ATT-2", f"softcap forgotten past width {n}", more("D", n, "softcap"), lambda c: replace(c, softcap=None)
        ),
    ),
    *each(
        (64, 1024),
        lambda n: before(
            "ATT-2", f"softcap forgotten past {n} queries", more("Q", n, "softcap"), lambda c: replace(c, softcap=None)
        ),
    ),
    *each(
        (64, 256, 1024, 8192, 32768),
        lambda n: before("ATT-11", f"keep mask moved past {n} keys", more("K", n, "keep"), keep_moved),
    ),
    *each(
        (64, 512, 4096),
        lambda n: before("ATT-11", f"keep mask moved past {n} queries", more("Q", n, "keep"), keep_moved),
    ),
    *each(
        (16, 32, 64),
        lambda n: before("ATT-11", f"keep mask of head 0 past head {n}", more("H", n, "keep"), keep_of_head(n)),
    ),
    before(
        "ATT-11",
        "place in the keep mask in 16 bits",
        lambda c: c.keep is not None and c.Q * c.K > 2**16,
        keep_wraps(16),
    ),
)

# --- parts that are merged --------------------------------------------------------------------------------------------


def merged(c: Call, share: Callable[[Tensor], Tensor]) -> Tensor:
    """A prefix of 7/8 of the keys and the rest; the sink belongs to the first. share: of each log-sum-exp."""
    prefix = c.K * 7 // 8
    parts = (with_keys(c, slice(0, prefix)), replace(with_keys(c, slice(prefix, None)), sinks=None))
    outputs = torch.stack([attended(part) for part in parts])
    logs = torch.stack([logsumexp(part) for part in parts])
    largest = logs.amax(0).detach()
    shares = share(logs - torch.where(largest == -torch.inf, 0, largest))
    total = shares.sum(0)
    mean = shares / torch.where(total == 0, 1, total)
    return (mean[..., None] * outputs).sum(0).to(c.query.dtype)


def in_base_2(n: int) -> Compute:
    return lambda c: merged(c, torch.exp2)


def as_equals(n: int) -> Compute:
    """Two parts that have seen something count the same."""
    return lambda c: merged(c, lambda logs: (logs != -torch.inf).to(logs.dtype))


MERGED = (
    *each(
        (64, 256, 2048, 16384),
        lambda n: instead("ATT-5", f"prefix and rest merged in base 2 past {n} keys", more("K", n), in_base_2(n)),
    ),
    *each(
        (128, 1024, 32768),
        lambda n: instead("ATT-5", f"prefix and rest averaged past {n} keys", more("K", n), as_equals(n)),
    ),
)

FAULTS: tuple[Fault, ...] = (*KEYS, *QUERIES, *FEATURES, *MERGED)
