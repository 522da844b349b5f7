"""JAX 0.10.2 on a CPU miscompiles plain grouped attention under `jax.jit` that is differentiated from outside.

Repeated heads, einsum, softmax, einsum: the output of `jax.vjp` is another than that of the function. With
`XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=` it is right. The smallest case found has 16 queries and 128 keys of
width 2, two query heads to one key head. The judge has cases of such sizes, and jax_impl does not meet it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.helpers import AGREEMENT, Case, Runner, Target

jax = pytest.importorskip("jax")
MISCOMPILES = ("0.10.2",)
SIZES = [(16, 128, 2), (64, 32, 8), (64, 128, 64), (33, 70, 64)]
"""Queries, keys and width."""


def attention(query: Any, key: Any, value: Any) -> Any:
    jnp = jax.numpy
    key, value = (jnp.repeat(a, query.shape[1] // a.shape[1], 1) for a in (key, value))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    return jnp.einsum("bhqk,bhkv->bhqv", jax.nn.softmax(scores, -1), value)


def arrays(Q: int, K: int, D: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((1, 2, Q, D), (1, 1, K, D), (1, 1, K, D))]


@pytest.mark.parametrize(("Q", "K", "D"), SIZES)
def test_where_it_is_miscompiled(Q: int, K: int, D: int) -> None:
    """If this fails with a newer JAX, the fault is gone there: take the version's row out of the divergences."""
    compiled, given = jax.jit(attention), arrays(Q, K, D)
    off = np.abs(np.asarray(jax.vjp(compiled, *given)[0]) - np.asarray(compiled(*given))).max()
    assert (off > 1e-3) == (jax.__version__ in MISCOMPILES)


@pytest.mark.slow
@pytest.mark.rule("ATT-12")
@pytest.mark.parametrize(("Q", "K", "D"), SIZES)
def test_the_port_does_not_meet_it(Q: int, K: int, D: int) -> None:
    """Under `jax.jit`, differentiated from outside, and by each engine that takes the call."""
    import jax_impl

    inputs = dict(zip(("query", "key", "value"), arrays(Q, K, D), strict=True))
    case = Case("attention", "float32", inputs, {}, {"output": np.ones((1, 2, Q, D), np.float32)})
    shared = AGREEMENT.prepare(case)
    for engine in ("auto", "reference", "blocked"):

        def compiled(query: Any, key: Any, value: Any, engine: str = engine) -> Any:
            return jax.jit(lambda *given: jax_impl.attention(*given, engine=engine))(query, key, value)

        findings = Runner(Target(compiled, "attention", "jax").make())(AGREEMENT, case, shared)
        assert all(finding.ratio <= 1 for finding in findings), (engine, findings)


@pytest.mark.rule("ATT-12")
def test_the_judge_sees_it() -> None:
    inputs = dict(zip(("query", "key", "value"), arrays(64, 128, 64), strict=True))
    case = Case("attention", "float32", inputs, {}, {"output": np.ones((1, 2, 64, 64), np.float32)})
    runner = Runner(Target(jax.jit(attention), "attention", "jax").make())
    findings = runner(AGREEMENT, case, AGREEMENT.prepare(case))
    assert any(finding.ratio > 1 for finding in findings) == (jax.__version__ in MISCOMPILES)
