"""Optimizers in their frameworks: under torch.compile and jax.jit, in lax.scan, and as a torch.optim.Optimizer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_impl
import torch_impl
from conformance.subjects.subject import JaxSubject
from specification.parameters import leaves
from tests.support.helpers import bound, draw_cases, operation_cases

NAMES = ("adam_step", "sgd_step", "clip_by_global_norm")


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- JAX --------------------------------------------------------------------------------------------------------------


@pytest.mark.rule("OPT-1", "OPT-2", "OPT-3")
@pytest.mark.parametrize("name", NAMES)
def test_jit_is_as_exact_as_eager(name: str) -> None:
    """Both within the bounds, so that they are no further apart than twice these."""
    eager, jitted = JaxSubject(), JaxSubject(jit=True)
    for _, case in draw_cases(operation_cases(name, dtypes=("float32", "bfloat16")), 4, 0):
        allowed, one, other = bound(case), eager(case), jitted(case)
        for result, limit in allowed.items():
            off = np.abs(one[result].astype(float) - other[result].astype(float))
            assert (off <= 2 * limit).all(), (result, case)


@pytest.mark.rule("OPT-1", "OPT-4")
def test_a_whole_run_is_one_scan() -> None:
    """Step and learning rate are traced; state and parameters keep their structure and dtypes."""
    parameters = {"weight": jnp.ones((3, 2), jnp.bfloat16), "none": None, "bias": [jnp.arange(2.0, dtype=jnp.float32)]}
    gradients = jax.tree.map(lambda a: a * jnp.asarray(0.5, a.dtype) + jnp.asarray(1, a.dtype), parameters)

    def step(carry: Any, number: jax.Array) -> tuple[Any, jax.Array]:
        rate = jax_impl.inverse_square_root(number, width=4, warmup=2)
        clipped, norm = jax_impl.clip_by_global_norm(gradients, 1.0)
        return jax_impl.adam_step(carry[0], clipped, carry[1], learning_rate=rate, weight_decay=0.1), norm

    with jax.enable_x64(False):
        carry, norms = jax.lax.scan(step, (parameters, jax_impl.adam_start(parameters)), jnp.arange(4))
        alone = (parameters, jax_impl.adam_start(parameters))
        for number in range(4):
            alone, norm = step(alone, jnp.int32(number))
            np.testing.assert_allclose(norms[number], norm, rtol=1e-6)
    assert int(carry[1].step) == 4
    expected = leaves(alone)
    for path, got in leaves(carry).items():
        right = expected[path]
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(got.astype(float), right.astype(float), rtol=2**-8)


@pytest.mark.rule("OPT-1")
def test_parameters_of_jax_are_not_donated() -> None:
    parameters = {"weight": jnp.ones((3, 2), jnp.float32)}
    state = jax_impl.adam_start(parameters)
    jax.jit(partial(jax_impl.adam_step, learning_rate=0.1))(parameters, parameters, state)
    assert not any(array.is_deleted() for array in leaves((parameters, state)).values())


@pytest.mark.rule("OPT-1")
def test_a_learning_rate_in_float64_widens_nothing() -> None:
    parameters = jnp.ones(3, jnp.float32)
    state = jax_impl.adam_start(parameters)
    moved, state = jax_impl.adam_step(parameters, parameters, state, learning_rate=jnp.asarray(0.1, jnp.float64))
    assert moved.dtype == state.mean.dtype == state.square.dtype == jnp.float32


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def all_of_it(parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> Any:
    clipped, norm = torch_impl.clip_by_global_norm(gradients, 0.5)
    moved, state = torch_impl.adam_step(parameters, clipped, torch_impl.adam_start(parameters), learning_rate=0.1)
    moved, velocity = torch_impl.sgd_step(
        moved, clipped, torch_impl.sgd_start(parameters), learning_rate=0.1, momentum=0.9, nesterov=True
    )
    return moved, state.mean, state.square, velocity, norm


@pytest.mark.rule("OPT-1", "OPT-2", "OPT-3")
@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    """In one graph; whatever a compiler fuses is off by no more than a few roundings."""
    arrays = [numbers(0, 3, 2), numbers(1, 4)], [numbers(2, 3, 2), numbers(3, 4)]
    compiled = torch.compile(all_of_it, fullgraph=True, backend="aot_eager")(*arrays)
    for got, right in zip(leaves(compiled).values(), leaves(all_of_it(*arrays)).values(), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-6, atol=0)


@pytest.mark.rule("OPT-1", "OPT-2", "OPT-3")
def test_numbers_may_be_tensors() -> None:
    parameter, gradient = numbers(0, 3), numbers(1, 3)
    rate, limit = torch.tensor(0.125, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    adam, sgd = torch_impl.adam_start(parameter), torch_impl.sgd_start(parameter)
    for call, given, number in (
        (torch_impl.adam_step, (parameter, gradient, adam), rate),
        (torch_impl.sgd_step, (parameter, gradient, sgd), rate),
        (torch_impl.clip_by_global_norm, (gradient,), limit),
    ):
        name = "limit" if number is limit else "learning_rate"
        one, other = (call(*given, **{name: n})[0] for n in (number, float(number)))
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.rule("OPT-1", "OPT-2", "OPT-3")
def test_nothing_is_recorded_for_autograd() -> None:
    parameters = [numbers(0, 3).requires_grad_()]
    found = all_of_it(parameters, [numbers(1, 3).requires_grad_()])
    assert not any(array.requires_grad for array in leaves(found).values())
    large = torch_impl.clip_by_global_norm((1e30 * numbers(1, 3)).requires_grad_(), 1.0)
    assert not any(array.requires_grad for array in large)


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(dtype)


def train(network: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for number in range(first, first + steps):
        optimizer.zero_grad()
        inputs = numbers(number, 16, 4).to(next(network.parameters()).dtype)
        network(inputs).square().mean().backward()
        optimizer.step()


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.rule("OPT-1")
def test_the_optimizer_takes_the_steps_of_the_function() -> None:
    network, options = model(), {"beta_2": 0.98, "eps": 1e-9, "weight_decay": 0.1}
    parameters = [p.detach().clone() for p in network.parameters()]
    optimizer, state = torch_impl.Adam(network.parameters(), 0.01, **options), torch_impl.adam_start(parameters)
    for number in range(3):
        train(network, optimizer, 1, number)
        gradients = [p.grad for p in network.parameters()]
        parameters, state = torch_impl.adam_step(parameters, gradients, state, learning_rate=0.01, **options)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), parameters, strict=True))


@pytest.mark.rule("OPT-1")
@pytest.mark.parametrize("decoupled", [True, False])
def test_the_optimizer_trains_as_the_one_of_torch(decoupled: bool) -> None:
    """AdamW, or Adam with its coupled decay."""
    ours, theirs = model(), model()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    train(ours, torch_impl.Adam(ours.parameters(), 0.01, weight_decay=0.1, decoupled=decoupled), 5)
    train(theirs, kind(theirs.parameters(), 0.01, weight_decay=0.1), 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.rule("OPT-1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_dict_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    """Averages beside 16-bit parameters stay in float32."""
    whole, first = model(dtype), model(dtype)
    train(whole, torch_impl.Adam(whole.parameters(), 0.01), 6)
    optimizer = torch_impl.Adam(first.parameters(), 0.01)
    train(first, optimizer, 3)
    second = copy.deepcopy(first)
    resumed = torch_impl.Adam(second.parameters(), 0.5)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {state["mean"].dtype for state in resumed.state.values()} == {torch.float32}
    train(second, resumed, 3, 3)
    assert same(second, whole)


@pytest.mark.rule("OPT-1", "OPT-4")
def test_schedules_and_groups_of_torch() -> None:
    """`LambdaLR` sets the rate of each group; a group of rate 0 stays."""
    network = model()
    before = [p.detach().clone() for p in network.parameters()]
    groups = [{"params": network[0].parameters()}, {"params": network[2].parameters(), "lr": 0.0}]
    optimizer = torch_impl.Adam(groups, 0.1, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(torch_impl.linear_warmup, steps=4))
    rates = []
    for number in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        train(network, optimizer, 1, number)
        schedule.step()
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1], rel=1e-15)
    moved = [not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)]
    assert moved == [True, True, False, False]


@pytest.mark.rule("OPT-1")
def test_parameters_without_gradients_stay_and_count_no_step() -> None:
    first, second = numbers(0, 3).requires_grad_(), numbers(1, 3).requires_grad_()
    optimizer = torch_impl.Adam([first, second], 0.1)
    kept = second.detach().clone()
    first.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(second, kept)
    second.grad = torch.ones(3)
    loss = optimizer.step(lambda: 7.0)
    assert loss == 7.0
    assert [optimizer.state[p]["step"] for p in (first, second)] == [2, 1]
    torch.testing.assert_close(kept - second.detach(), torch.full((3,), 0.1), rtol=1e-5, atol=0)
