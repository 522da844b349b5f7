"""Multi-head attention, feed-forward network, embedding and positions past a size (MHA, FFN-1, EMB-1, POS)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_impl
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    Tensor,
    altered,
    each,
    zeroed,
)
from specification import FeedForward, Linear, MultiHeadAttention

# --- multi-head attention ---------------------------------------------------------------------------------------------

Projections = Linear | list[Linear]


def multi_head_attention(parameters: Any, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
    return torch_impl.multi_head_attention(parameters, query, key, value, **options)


Heads = Callable[[MultiHeadAttention, int, Tensor], bool]
"""(parameters, number of heads, query) -> whether the fault shows."""


def heads(rule: str, name: str, when: Heads, change: Callable[[MultiHeadAttention, int], Any]) -> Fault:
    """change: of the parameters."""

    def function(
        parameters: Any,
        query: Any,
        key: Any,
        value: Any,
        *,
        num_heads: int,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        dropout_keep: Any = None,
        dropout_rate: float = 0.0,
        empty_rows: str = "zero",
    ) -> Tensor:
        options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        options |= {"dropout_keep": dropout_keep, "dropout_rate": dropout_rate, "empty_rows": empty_rows}
        if when(parameters, num_heads, query):
            parameters = change(parameters, num_heads)
        return multi_head_attention(parameters, query, key, value, num_heads=num_heads, **options)

    return Fault(rule, name, "multi_head_attention", function, right_heads, "torch")


def right_heads(
    parameters: Any,
    query: Any,
    key: Any,
    value: Any,
    *,
    num_heads: int,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout_keep: Any = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Tensor:
    """torch_impl's."""
    options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    options |= {"dropout_keep": dropout_keep, "dropout_rate": dropout_rate, "empty_rows": empty_rows}
    return multi_head_attention(parameters, query, key, value, num_heads=num_heads, **options)


def inner_lost(n: int) -> Callable[[MultiHeadAttention, int], Any]:
    """Columns of the heads' outputs past n reach no output."""
    return lambda p, count: p._replace(output=Linear(zeroed(p.output.weight, slice(n, None)), p.output.bias))


def columns_lost(n: int) -> Callable[[MultiHeadAttention, int], Any]:
    """Columns of the result past n get their bias only."""
    return lambda p, count: p._replace(
        output=Linear(zeroed(p.output.weight, (slice(None), slice(n, None))), p.output.bias)
    )


def model_lost(n: int) -> Callable[[MultiHeadAttention, int], Any]:
    """Features of the query past n are not read, by a fused projection."""

    def change(p: MultiHeadAttention, count: int) -> Any:
        assert isinstance(p.query, Linear)
        return p._replace(query=Linear(zeroed(p.query.weight, slice(n, None)), p.query.bias))

    return change


def last_heads_again(n: int) -> Callable[[MultiHeadAttention, int], Any]:
    """Separate query heads past n are the last before."""
    return lambda p, count: p._replace(query=[p.query[min(head, n - 1)] for head in range(count)])


def bias_of_first(n: int) -> Callable[[MultiHeadAttention, int], Any]:
    """Separate query heads past n have the bias of the first."""

    def change(p: MultiHeadAttention, count: int) -> Any:
        first: Any = p.query[0]
        return p._replace(
            query=[Linear(one.weight, one.bias if head < n else first.bias) for head, one in enumerate(p.query)]
        )

    return change


def fused(p: MultiHeadAttention) -> bool:
    return isinstance(p.query, Linear)


def model_width(p: MultiHeadAttention) -> int:
    first: Any = p.query if fused(p) else p.query[0]
    return int(first.weight.shape[0])


MULTI_HEAD = (
    *each(
        [(rule, n) for rule in ("MHA-1", "MHA-2") for n in (64, 256, 1024)],
        lambda of: heads(
            of[0],
            f"columns of heads past {of[1]} lost",
            lambda p, count, x: p.output.weight.shape[0] > of[1],
            inner_lost(of[1]),
        ),
    ),
    *each(
        (64, 512),
        lambda n: heads(
            "MHA-1", f"output past column {n} lost", lambda p, count, x: p.output.weight.shape[1] > n, columns_lost(n)
        ),
    ),
    *each(
        (64, 256, 1024),
        lambda n: heads(
            "MHA-1", f"features past {n} not read", lambda p, count, x: fused(p) and model_width(p) > n, model_lost(n)
        ),
    ),
    *each(
        (8, 16, 32, 64),
        lambda n: heads(
            "MHA-2",
            f"heads past {n} are the last before",
            lambda p, count, x: not fused(p) and count > n,
            last_heads_again(n),
        ),
    ),
    *each(
        (8, 32),
        lambda n: heads(
            "MHA-2",
            f"bias of the first head past head {n}",
            lambda p, count, x: not fused(p) and count > n,
            bias_of_first(n),
        ),
    ),
)

# --- feed-forward network ---------------------------------------------------------------------------------------------


def feed_forward(
    parameters: Any, x: Any, *, activation: str = "relu", dropout_keep: Any = None, dropout_rate: float = 0.0
) -> Tensor:
    """torch_impl's."""
    return torch_impl.feed_forward(
        parameters, x, activation=activation, dropout_keep=dropout_keep, dropout_rate=dropout_rate
    )


Network = Callable[[FeedForward, Tensor], bool]
Changed = Callable[[FeedForward, Tensor], tuple[FeedForward, Tensor]]


def network(
    name: str, when: Network, change: Changed | None = None, after: Callable[[Tensor], Tensor] | None = None
) -> Fault:
    """change: of parameters and x. after: of the output."""

    def function(
        parameters: Any, x: Any, *, activation: str = "relu", dropout_keep: Any = None, dropout_rate: float = 0.0
    ) -> Tensor:
        options: dict[str, Any] = {"activation": activation, "dropout_keep": dropout_keep, "dropout_rate": dropout_rate}
        if not when(parameters, x):
            return feed_forward(parameters, x, **options)
        output = feed_forward(*(change(parameters, x) if change else (parameters, x)), **options)
        return after(output) if after else output

    return Fault("FFN-1", name, "feed_forward", function, feed_forward, "torch")


def inner_width(p: FeedForward) -> int:
    return int(p.inner.weight.shape[1])


def inner_up_to(n: int) -> Changed:
    """Activations past n reach no output."""
    return lambda p, x: (p._replace(outer=Linear(zeroed(p.outer.weight, slice(n, None)), p.outer.bias)), x)


def features_up_to(n: int) -> Changed:
    return lambda p, x: (p, zeroed(x, (..., slice(n, None))))


def gradient_up_to(n: int) -> Changed:
    """The outer weight's gradient past row n is lost."""

    def change(p: FeedForward, x: Tensor) -> tuple[FeedForward, Tensor]:
        weight = altered(p.outer.weight, lambda bar: zeroed(bar, slice(n, None)))
        return p._replace(outer=Linear(weight, p.outer.bias)), x

    return change


def rows_of(x: Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1)


def rows_after(n: int) -> Callable[[Tensor], Tensor]:
    return lambda output: zeroed(output.reshape(-1, output.shape[-1]), slice(n, None)).reshape(output.shape)


def columns_after(n: int) -> Callable[[Tensor], Tensor]:
    return lambda output: zeroed(output, (..., slice(n, None)))


NETWORKS = (
    *each(
        (64, 256, 1024, 4096, 16384),
        lambda n: network(f"activations past {n} left out", lambda p, x: inner_width(p) > n, inner_up_to(n)),
    ),
    *each(
        (32, 128),
        lambda n: network(
            f"last activations of no whole {n} left out",
            lambda p, x: inner_width(p) > n and inner_width(p) % n != 0,
            lambda p, x: inner_up_to(inner_width(p) // n * n)(p, x),
        ),
    ),
    *each(
        (64, 512, 4096),
        lambda n: network(f"features past {n} left out", lambda p, x: x.shape[-1] > n, features_up_to(n)),
    ),
    *each(
        (64, 1024, 32768, 65535),
        lambda n: network(f"rows past {n} get 0", lambda p, x: rows_of(x) > n, after=rows_after(n)),
    ),
    *each(
        (128, 1024),
        lambda n: network(f"columns past {n} get 0", lambda p, x: p.outer.weight.shape[1] > n, after=columns_after(n)),
    ),
    *each(
        (128, 2048),
        lambda n: network(f"outer weight's gradient past {n} lost", lambda p, x: inner_width(p) > n, gradient_up_to(n)),
    ),
)

# --- embedding, positions ---------------------------------------------------------------------------------------------


def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Tensor:
    """torch_impl's."""
    return torch_impl.embedding(table, ids, scaled=scaled)


Lookup = Callable[[Tensor, Tensor], bool]


def lookup(
    name: str,
    when: Lookup,
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    after: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Fault:
    """change: of table and ids. after: of ids and output."""

    def function(table: Any, ids: Any, *, scaled: bool = False) -> Tensor:
        if not when(table, ids):
            return embedding(table, ids, scaled=scaled)
        output = embedding(*(change(table, ids) if change else (table, ids)), scaled=scaled)
        return after(ids, output) if after else output

    return Fault("EMB-1", name, "embedding", function, embedding, "torch")


def ids_modulo(n: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda table, ids: (table, ids % n)


def ids_at_most(n: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda table, ids: (table, ids.clamp(max=n - 1))


def first_occurrences(n: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The table's gradient past row n is lost."""
    return lambda table, ids: (altered(table, lambda bar: zeroed(bar, slice(n, None))), ids)


def tokens_after(n: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda ids, output: zeroed(output.reshape(-1, output.shape[-1]), slice(n, None)).reshape(output.shape)


EMBEDDINGS = (
    *each(
        (128, 256, 1024, 32768, 65536),
        lambda n: lookup(f"ids modulo {n}", lambda table, ids: len(table) > n, ids_modulo(n)),
    ),
    *each((4096, 32767), lambda n: lookup(f"ids of {n} at most", lambda table, ids: len(table) > n, ids_at_most(n))),
    *each(
        (64, 256, 1024, 8192),
        lambda n: lookup(
            f"columns past {n} get 0",
            lambda table, ids: table.shape[1] > n,
            after=lambda ids, output: zeroed(output, (..., slice(n, None))),
        ),
    ),
    *each(
        (64, 1024, 32768, 65535),
        lambda n: lookup(f"tokens past {n} get 0", lambda table, ids: ids.numel() > n, after=tokens_after(n)),
    ),
    *each(
        (256, 4096),
        lambda n: lookup(
            f"int32 tokens past {n} get 0",
            lambda table, ids: ids.dtype == torch.int32 and ids.numel() > n,
            after=tokens_after(n),
        ),
    ),
    *each(
        (256, 2048, 32768),
        lambda n: lookup(f"gradient of rows past {n} lost", lambda table, ids: len(table) > n, first_occurrences(n)),
    ),
)


def learned_positions(table: Any, length: int, *, offset: int = 0) -> Tensor:
    """torch_impl's."""
    return torch_impl.learned_positions(table, length, offset=offset)


def learned(
    name: str, when: Callable[[Tensor, int, int], bool], after: Callable[[Tensor, Tensor, int], Tensor]
) -> Fault:
    """when: of table, length and offset. after: of table, output and offset."""

    def function(table: Any, length: int, *, offset: int = 0) -> Tensor:
        output = learned_positions(table, length, offset=offset)
        return after(table, output, offset) if when(table, length, offset) else output

    return Fault("POS-2", name, "learned_positions", function, learned_positions, "torch")


LEARNED = (
    *each(
        (64, 512, 2048, 16384, 65535),
        lambda n: learned(
            f"positions past {n} are the last",
            lambda t, length, o: o + length > n,
            lambda t, output, o: t[(torch.arange(len(output)) + o).clamp(max=n - 1)],
        ),
    ),
    *each(
        (1024, 32768),
        lambda n: learned(
            f"positions modulo {n}",
            lambda t, length, o: o + length > n,
            lambda t, output, o: t[(torch.arange(len(output)) + o) % n],
        ),
    ),
    *each(
        (64, 512, 4096),
        lambda n: learned(
            f"columns of positions past {n} get 0",
            lambda t, length, o: t.shape[1] > n,
            lambda t, output, o: zeroed(output, (..., slice(n, None))),
        ),
    ),
)


def sinusoidal_positions(
    length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: str = "float32"
) -> Tensor:
    """torch_impl's."""
    return torch_impl.sinusoidal_positions(length, width, offset=offset, exponent=exponent, dtype=dtype)


def sinusoidal(name: str, when: Callable[[int, int], bool], after: Callable[[Tensor], Tensor]) -> Fault:
    """when: of length and width. after: of the output."""

    def function(
        length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: str = "float32"
    ) -> Tensor:
        output = sinusoidal_positions(length, width, offset=offset, exponent=exponent, dtype=dtype)
        return after(output) if when(length, width) else output

    return Fault("POS-1", name, "sinusoidal_positions", function, sinusoidal_positions, "torch")


SINUSOIDAL = (
    *each(
        (64, 512, 4096, 32768),
        lambda n: sinusoidal(
            f"positions past {n} are the first again",
            lambda length, width: length > n,
            lambda output: output[torch.arange(len(output)) % n],
        ),
    ),
    *each(
        (128, 2048, 65535),
        lambda n: sinusoidal(
            f"positions past {n} are 0", lambda length, width: length > n, lambda output: zeroed(output, slice(n, None))
        ),
    ),
    *each(
        (128, 1024, 8192),
        lambda n: sinusoidal(
            f"columns past {n} are 0",
            lambda length, width: width > n,
            lambda output: zeroed(output, (..., slice(n, None))),
        ),
    ),
)

FAULTS: tuple[Fault, ...] = (*MULTI_HEAD, *NETWORKS, *EMBEDDINGS, *LEARNED, *SINUSOIDAL)
