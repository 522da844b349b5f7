"""Work that the mask rules out is not done."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

from conformance.peers.engines import Engine, limit_engine
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from tests.support.engine_cases import BLOCKED, PIECES, module_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


T = 1024
TALLY: list[int] = []
"""Scores of each block of queries; one list for all tests, since what JAX has compiled goes on counting into it."""
COUNTED = {
    "torch_impl, blocked": Engine("torch_impl", "blocked", limits=(64,)),
    "torch_impl, fused": Engine("torch_impl", "fused", limits=(64,)),
    "jax_impl, blocked": Engine("jax_impl", "blocked", limits=(64, 64, 4, 1)),
}


def counted(engine: Engine, mask: Any, batch: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scores of a head the forward pass computes, and how many the backward pass."""
    arrays = [np.ones((batch, 1, T, 2), np.float32)] * 3
    TALLY.clear()
    with limit_engine(engine) as package:
        if engine.arrays == "torch":
            count_in_torch(monkeypatch)
            leaves = [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]
            output = package.attention(*leaves, mask=mask, engine=engine.name)
            forward = sum(TALLY)
            output.sum().backward()
        else:
            count_in_jax(monkeypatch)
            output, pullback = jax.vjp(lambda *a: package.attention(*a, mask=mask, engine=engine.name), *arrays)
            jax.effects_barrier()
            forward = sum(TALLY)
            jax.block_until_ready(pullback(output))
            jax.effects_barrier()
    return [forward, sum(TALLY) - forward]


def count_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, fused = module_of(BLOCKED, "engines.blocked"), module_of(BLOCKED, "engines.fused")
    reference, forward, backward = blocked.reference_attention, fused.forward_kernel, fused.backward_kernel

    def scores(query: Any, key: Any, causal: bool = False) -> None:
        TALLY.append(query.shape[0] * query.shape[2] * (key.shape[2] + causal) // (1 + causal))

    def counting_reference(**given: Any) -> Any:
        scores(given["query"], given["key"])
        return reference(**given)

    def counting_forward(*given: Any, **options: Any) -> Any:
        scores(given[0], given[1], True in given[3:])
        return forward(*given, **options)

    def counting_backward(*given: Any, **options: Any) -> Any:
        scores(given[1], given[2], True in given[6:])
        return backward(*given, **options)

    monkeypatch.setattr(blocked, "reference_attention", counting_reference)
    monkeypatch.setattr(fused, "forward_kernel", counting_forward)
    monkeypatch.setattr(fused, "backward_kernel", counting_backward)


def count_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """In programs that are compiled now: for limits that no other test has."""
    blocked = module_of(PIECES, "engines.blocked")
    right = blocked.piece_at

    def counting(inputs: Any, sizes: Any, place: Any, query: Any, position: Any, length: int, *, full: bool) -> Any:
        jax.debug.callback(lambda: TALLY.append(sizes.R * sizes.block * length))
        return right(inputs, sizes, place, query, position, length, full=full)

    monkeypatch.setattr(blocked, "piece_at", counting)


IDS = np.repeat(np.arange(8), T // 8)[None]
WORK: dict[str, tuple[Any, int, int]] = {
    "causal": (Causal(), 1, T * T // 2),
    "causal, as an offset": (Causal(np.array([0])), 1, T * T // 2),
    "window": (SlidingWindow(255, 0), 1, T * 256),
    "lengths": (KeyLengths(np.array([T, 128, 1, 0])), 4, T * (T + 128 + 1)),
    "segments": (Segments(IDS, IDS), 1, T * T // 8),
    "causal segments": (Segments(IDS, IDS) & Causal(), 1, T * T // 16),
    "padding": (KeyPadding(np.arange(T)[None] >= np.array([[T - 128], [T]])), 2, T * 128),
    "dense": (Dense(np.tri(T, k=-T // 2, dtype=bool)), 1, T * T // 8),
}


def work(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the pairs that the mask leaves, a block of queries computes less than two blocks of keys."""
    mask, batch, needed = WORK[name]
    for pairs in counted(engine, mask, batch, monkeypatch):
        assert needed <= pairs <= needed + batch * T * 2 * 64


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(engine, name, id=f"{title}: {name}")
        for title, engine in COUNTED.items()
        for name in (("causal", "window", "lengths", "segments") if engine.arrays == "jax" else WORK)
    ],
)
@pytest.mark.slow_where("jax_impl", unless="window")
@pytest.mark.slow_where("jax_impl", "window")
def test_work(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work(engine, name, monkeypatch)
