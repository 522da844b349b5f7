"""What other libraries' optimizers, clipping and schedules do, in plain calls: agreement, or where they depart.

The steps that agree are held to the bounds of the definition. Every departure is about one version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import reference_numpy
from conformance.cases.declaration import EVERYTHING
from conformance.peers import PEERS
from tests.peers.test_divergences import installed, require, run
from tests.support.helpers import OPERATIONS, Case, bound, draw_cases, operation_cases, oracle

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

AGREE = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.AdamW, fused", "torch.optim.SGD", "optax.sgd")
IN_FLOAT32 = (*AGREE, "optax.adamw", "torch.nn.utils.clip_grad_norm_", "optax.clip_by_global_norm")


def float32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def first_step(parameter: float, gradient: float, **options: Any) -> float:
    """The definition's Adam: where its first step leads."""
    start = reference_numpy.adam_start(float32(parameter))
    ours, _ = reference_numpy.adam_step(float32(parameter), float32(gradient), start, **options)
    return float(ours[0])


def answer(program: str, **environment: str) -> list[float]:
    """The numbers that a program prints."""
    done = run(program, **environment)
    assert done.returncode == 0, done.stderr
    return [*map(float, done.stdout.split())]


# --- agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_usual_steps_in_float32_agree(name: str) -> None:
    """Gradients of the size of 1, contiguous arrays, several learning rates, betas and decays; norms of 1 and more."""
    peer = next(peer for peer in PEERS if peer.name == name)
    require(peer.packages[0])
    kinds = ("uneven",) if peer.operation == "clip_by_global_norm" else ("usual",)
    more = {"limits": (2.0, np.inf)} if name.startswith("torch.nn") else {}
    subject, count = peer.target.make(), 0
    more |= {"declaration": replace(EVERYTHING, conventions=subject.declaration.conventions)}
    for _, drawn_case in draw_cases(operation_cases(peer.operation, kinds=kinds, dtypes=("float32",), **more), 30, 0):
        case = peer.fitted(drawn_case)
        if not peer.takes(case) or case.memory or (name == "optax.sgd" and case.options["weight_decay"]):
            continue
        got, truth, allowed = subject(case), oracle(case), bound(case)
        for result, limit in allowed.items():
            assert (np.abs(got[result].astype(float) - truth[result].high) <= limit).all(), (result, case)
        count += 1
    assert count > 5


# --- Adam -------------------------------------------------------------------------------------------------------------


def test_torch_loses_an_infinite_mean() -> None:
    """`lerp_` towards infinity with a weight of 1/2 or more is infinity minus infinity."""
    torch = installed("torch")
    parameter = torch.ones(1, requires_grad=True)
    parameter.grad = torch.full((1,), torch.inf)
    optimizer = torch.optim.Adam([parameter], betas=(0.5, 0.999))
    optimizer.step()
    assert optimizer.state[parameter]["exp_avg"].isnan()
    with np.errstate(all="ignore"):
        _, state = reference_numpy.adam_step(
            float32(1), float32(np.inf), reference_numpy.adam_start(float32(1)), learning_rate=0.1, beta_1=0.5
        )
    assert np.isposinf(state.mean[0])


def test_torch_couples_the_decay_of_adam() -> None:
    """Without a gradient Adam's decay moves by the learning rate, AdamW's by a hundredth of it."""
    torch = installed("torch")
    moved = {}
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        parameter = torch.ones(1, requires_grad=True)
        parameter.grad = torch.zeros(1)
        kind([parameter], lr=0.1, weight_decay=0.01).step()
        moved[kind.__name__] = float(parameter)
    for name, decoupled in (("Adam", False), ("AdamW", True)):
        ours = first_step(1, 0, decoupled=decoupled, learning_rate=0.1, weight_decay=0.01)
        assert moved[name] == pytest.approx(ours, rel=1e-6)
    assert moved == {"Adam": pytest.approx(0.9, rel=1e-6), "AdamW": pytest.approx(0.999, rel=1e-6)}


def test_optax_corrects_in_float32() -> None:
    """1 - 0.999^1 has 11 digits fewer than float32; the first step is off by 1e-5 of the learning rate."""
    installed("optax")
    program = """
        import jax.numpy as jnp, optax
        optimizer = optax.adam(1.0)
        parameter = jnp.zeros(1)
        updates, _ = optimizer.update(jnp.ones(1), optimizer.init(parameter), parameter)
        print(float(updates[0]))
    """
    (moved,) = answer(program, JAX_ENABLE_X64="0")
    assert 5e-6 < abs(moved + 1) < 5e-5
    assert abs(first_step(0, 1, learning_rate=1.0) + 1) < 2e-7


def test_keras_adds_eps_before_the_correction() -> None:
    """At the first step its eps counts 1 / sqrt(1 - beta_2) as much, 32 times for 0.999; and its default is 1e-7."""
    require("keras")
    program = """
        import keras, numpy
        parameter = keras.Variable(numpy.zeros(1, "float32"))
        optimizer = keras.optimizers.Adam(1.0, epsilon=0.1)
        optimizer.build([parameter])
        optimizer.apply([keras.ops.ones(1)])
        print(float(parameter.value[0]), keras.optimizers.Adam().epsilon)
    """
    moved, eps = answer(program, KERAS_BACKEND="jax")
    assert eps == 1e-7
    assert moved == pytest.approx(-1 / (1 + 0.1 / np.sqrt(0.001)), rel=1e-4)
    assert first_step(0, 1, learning_rate=1.0, eps=0.1) == pytest.approx(-1 / 1.1, rel=1e-6)


def test_keras_has_the_learning_rate_inside_the_velocity() -> None:
    """After a step at rate 1 and one at rate 0 without a gradient, its parameter still moves, and ours does not."""
    require("keras")
    program = """
        import keras, numpy
        parameter = keras.Variable(numpy.zeros(1, "float32"))
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
        optimizer.build([parameter])
        optimizer.apply([keras.ops.ones(1)])
        optimizer.learning_rate = 0.0
        optimizer.apply([keras.ops.zeros(1)])
        print(float(parameter.value[0]))
    """
    assert answer(program, KERAS_BACKEND="jax") == [-1.5]
    parameters, state = float32(0), reference_numpy.sgd_start(float32(0))
    for gradient, rate in ((1.0, 1.0), (0.0, 0.0)):
        given = {"learning_rate": rate, "momentum": 0.5}
        parameters, state = reference_numpy.sgd_step(parameters, float32(gradient), state, **given)
    assert parameters[0] == -1


# --- clipping ---------------------------------------------------------------------------------------------------------


def clip_of_torch(*gradients: list[float], limit: float) -> tuple[list[Any], Any]:
    torch = installed("torch")
    owners = [torch.zeros(len(gradient), requires_grad=True) for gradient in gradients]
    for owner, gradient in zip(owners, gradients, strict=True):
        owner.grad = torch.tensor(gradient)
    norm = torch.nn.utils.clip_grad_norm_(owners, limit)
    return [owner.grad.numpy() for owner in owners], float(norm)


def test_torch_adds_1e_6_to_the_norm() -> None:
    (got,), _ = clip_of_torch([3e-6, 4e-6], limit=1e-6)
    ours, _ = reference_numpy.clip_by_global_norm(float32(3e-6, 4e-6), 1e-6)
    np.testing.assert_allclose(got, [5e-7, 6.666667e-7], rtol=1e-6)
    np.testing.assert_allclose(ours, [6e-7, 8e-7], rtol=1e-6)
    (got,), _ = clip_of_torch([3.0, 4.0], limit=1.0)
    assert got[0] == np.float32(0.5999999)


def test_torch_and_optax_spread_what_is_not_finite() -> None:
    """Beside an infinite gradient the others become 0, and beside NaN all become NaN; ours stay, and the norm tells."""
    optax = installed("optax")
    for special, others in ((np.inf, 0.0), (np.nan, np.nan)):
        (got, _), norm = clip_of_torch([1.0], [special], limit=1.0)
        np.testing.assert_array_equal([got[0], norm], [others, special])
        clipped, _ = optax.clip_by_global_norm(1.0).update([jnp.ones(1), jnp.full(1, special)], optax.EmptyState())
        np.testing.assert_array_equal(clipped[0], [others])
        ours, norm = reference_numpy.clip_by_global_norm([float32(1), float32(special)], 1.0)
        np.testing.assert_array_equal([ours[0][0], ours[1][0], norm], [1, special, special])


def test_torch_and_optax_overflow() -> None:
    """Squares beyond 1e38: the norm is infinite, and all gradients are 0."""
    optax = installed("optax")
    (got,), norm = clip_of_torch([3e20, 4e20], limit=1.0)
    assert np.isinf(norm)
    assert (got == 0).all()
    clipped, _ = optax.clip_by_global_norm(1.0).update([jnp.asarray(float32(3e20, 4e20))], optax.EmptyState())
    assert (np.asarray(clipped[0]) == 0).all()
    ours, norm = reference_numpy.clip_by_global_norm(float32(3e20, 4e20), 1.0)
    np.testing.assert_allclose([norm, *ours], [5e20, 0.6, 0.8], rtol=1e-6)


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_elsewhere() -> None:
    """Hugging Face and optax start a warm-up at 0; PyTorch's cosine rises again after its end."""
    torch, optax = installed("torch"), installed("optax")
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    rates = []
    for step in range(7):
        rates.append(schedule.get_last_lr()[0])
        if step <= 4:
            assert rates[-1] == pytest.approx(reference_numpy.cosine_decay(step, steps=4), abs=1e-12)
            assert float(optax.cosine_decay_schedule(1.0, 4)(step)) == pytest.approx(rates[-1], abs=1e-6)
        optimizer.step()
        schedule.step()
    assert rates[6] > 0.4
    assert reference_numpy.cosine_decay(6, steps=4) == 0
    assert float(optax.linear_schedule(0.0, 1.0, 4)(0)) == 0
    assert reference_numpy.linear_warmup(0, steps=4) == 0.25
    transformers = pytest.importorskip("transformers.optimization")
    warm = transformers.get_linear_schedule_with_warmup(torch.optim.SGD([parameter], lr=1.0), 4, 8)
    assert warm.get_last_lr() == [0.0]


@pytest.mark.parametrize("name", [peer.name for peer in PEERS if peer.operation in OPERATIONS and "optim" in peer.name])
def test_every_path_has_its_case(name: str) -> None:
    """A path takes the cases that it is given."""
    peer = next(peer for peer in PEERS if peer.name == name)
    for _, case in draw_cases(operation_cases(peer.operation, dtypes=("float32",)), 3, 0):
        assert isinstance(case, Case)
        assert peer.takes(peer.fitted(case))
