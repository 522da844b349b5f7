"""Derivatives of derivatives, and what PyTorch and JAX make of functions that call attention."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_impl
import torch_impl
from conformance.peers.engines import Engine, limit_engine
from specification import Causal, KeyLengths, SlidingWindow
from tests.ports import test_jax_framework, test_torch_framework
from tests.support.engine_cases import BLOCKED, CASES, FUSED, PIECES, every_engine

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def second_in_torch(engine: Engine, same: bool) -> list[torch.Tensor]:
    """The gradients of the squared gradients, of one tensor as query, key and value or of three."""
    one = test_torch_framework.normal(1, 2, 3, 9, 5)
    arrays = [one.requires_grad_()] * 3 if same else [one.clone().mul_(n + 1).requires_grad_() for n in range(3)]
    with limit_engine(engine) as package:
        output = package.attention(*arrays, mask=SlidingWindow(4, 0, -1) & KeyLengths([9, 7]), engine=engine.name)
    first = torch.autograd.grad(output.sin().sum(), arrays, create_graph=True)
    return [*first, *torch.autograd.grad(sum((gradient**2).sum() for gradient in first), arrays)]


def second_in_jax(engine: Engine, same: bool) -> list[jax.Array]:
    one = test_jax_framework.normal(1, 2, 4, 13, 4)

    def attend(arrays: list[Any]) -> Any:
        arrays = arrays * 3 if same else arrays
        with limit_engine(engine) as package:
            output = package.attention(*arrays, mask=SlidingWindow(4, 0, -1), engine=engine.name)
        return jnp.sum(jnp.sin(output))

    def norm(arrays: list[Any]) -> Any:
        return sum(jnp.sum(gradient**2) for gradient in jax.grad(attend)(arrays))

    arrays = [one] if same else [one, 2 * one, 3 * one]
    return jax.jit(lambda arrays: [*jax.grad(attend)(arrays), *jax.grad(norm)(arrays)])(arrays)


@every_engine
@pytest.mark.parametrize("same", [True, False], ids=["one array three times", "three arrays"])
@pytest.mark.rule("ATT-12")
@pytest.mark.slow_where("three times-jax_impl")
def test_second_derivatives(engine: Engine, same: bool) -> None:
    second = second_in_torch if engine.arrays == "torch" else second_in_jax
    compare = test_torch_framework if engine.arrays == "torch" else test_jax_framework
    compare.assert_close(second(engine, same), second(engine._replace(name="reference"), same))


@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
@pytest.mark.rule("ATT-12")
def test_gradients_of_gradients_are_limits_of_quotients(engine: Engine) -> None:
    arrays = [test_torch_framework.normal(n, 1, 2, 5, 2).requires_grad_() for n in range(3)]

    def attend(*arrays: Any) -> Any:
        with limit_engine(engine._replace(limits=(2,))) as package:
            return package.attention(*arrays, mask=Causal(-1), engine=engine.name)

    assert torch.autograd.gradcheck(attend, arrays)
    assert torch.autograd.gradgradcheck(attend, arrays)


@pytest.mark.parametrize("name", ["reference", "blocked", "fused"])
@pytest.mark.rule("ATT-12")
def test_many_cotangents_at_once(name: str) -> None:
    """As `torch.autograd.functional.jacobian(..., vectorize=True)` asks for them, after an ordinary forward pass."""
    query, key, value = (test_torch_framework.normal(n, 1, 2, 5, 3) for n in range(3))

    def attend(query: Any) -> Any:
        return torch_impl.attention(query, key, value, mask=Causal(-1), engine=name)

    one, many = (torch.autograd.functional.jacobian(attend, query, vectorize=many) for many in (False, True))
    test_torch_framework.assert_close([many], [one])


@pytest.mark.parametrize("name", ["reference", "blocked", "fused"])
@pytest.mark.rule("ATT-12")
def test_gradients_may_be_mapped(name: str) -> None:
    """`torch.vmap` of `torch.autograd.grad`, after an ordinary forward pass."""
    query, key, value = (test_torch_framework.normal(n, 1, 2, 5, 3).requires_grad_() for n in range(3))
    output = torch_impl.attention(query, key, value, mask=Causal(), engine=name)
    cotangents = test_torch_framework.normal(3, 4, *output.shape)

    def pulled_back(cotangent: Any) -> Any:
        return torch.autograd.grad(output, (query, key, value), cotangent, retain_graph=True)

    together = torch.vmap(pulled_back)(cotangents)
    one_by_one = [torch.stack(gradients) for gradients in zip(*map(pulled_back, cotangents), strict=True)]
    test_torch_framework.assert_close(list(together), one_by_one)


LENGTHS = torch.tensor([2, 19])
LATER = [torch.from_numpy(array).double() for array in CASES["none"].inputs.values()]


def in_torch(name: str) -> Callable[..., Any]:
    def attend(query: Any, key: Any, value: Any, lengths: Any) -> Any:
        mask = KeyLengths(lengths) & Causal(torch.tensor([6, -3]))
        return torch_impl.attention(query, key, value, mask=mask, engine=name)

    return attend


def loss_of(function: Any, lengths: Any = LENGTHS) -> Callable[..., Any]:
    return lambda *arrays: function(*arrays, lengths).sin().sum()


def compiled(function: Any, backend: str) -> list[Any]:
    torch.compiler.reset()
    leaves = [array.clone().requires_grad_() for array in LATER]
    output = torch.compile(function, fullgraph=True, backend=backend)(*leaves, LENGTHS)
    return [output.detach(), *torch.autograd.grad(output.sin().sum(), leaves)]


def traced(function: Any) -> list[Any]:
    """Traced with other numbers than it is then called with."""
    make_fx: Any = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    return [make_fx(function)(*LATER, LENGTHS - 1)(*LATER, LENGTHS)]


def without_numbers(function: Any) -> list[Any]:
    mode: Any = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode()
    with mode:
        return [torch.Size(function(*map(mode.from_tensor, (*LATER, LENGTHS))).shape)]


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda function: torch.func.grad(loss_of(function), (0, 1, 2))(*LATER),
    "vjp": lambda function: torch.func.vjp(loss_of(function), *LATER)[1](torch.tensor(1.0).double()),
    "jacrev": lambda function: torch.func.jacrev(lambda *a: function(*a, LENGTHS).sum((1, 3)), (0, 1))(*LATER),
    "vmap": lambda function: torch.func.vmap(function, (None, None, None, 0))(
        *LATER, torch.stack([LENGTHS, LENGTHS - 1])
    ),
    "compiled, eager": lambda function: compiled(function, "eager"),
    "compiled, aot_eager": lambda function: compiled(function, "aot_eager"),
    "traced": traced,
    "without numbers": without_numbers,
}


def transform(name: str) -> None:
    """What a transformation makes of attention by default is what it makes of the reference engine."""
    expected, got = (list(TRANSFORMS[name](in_torch(engine))) for engine in ("reference", "auto"))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.slow_where("compiled, ")
def test_torch_transforms_attention_by_default(name: str) -> None:
    transform(name)


@pytest.mark.usefixtures("no_case_is_small")
@pytest.mark.slow
def test_jax_transforms_attention_by_default() -> None:
    arrays = [jnp.asarray(array, float) for array in CASES["none"].inputs.values()]
    assert jax_impl.explain_engine(*arrays).engine == "blocked"
    lengths, offsets = jnp.array([2, 19]), jnp.array([6, -3])

    def loss(name: str, arrays: Any, lengths: Any, offsets: Any) -> Any:
        with limit_engine(PIECES) as package:
            mask = KeyLengths(lengths) & Causal(offsets)
            return jnp.sum(jnp.sin(package.attention(*arrays, mask=mask, engine=name)))

    def results(name: str) -> Any:
        one = jax.jit(jax.value_and_grad(lambda *given: loss(name, *given)))
        many = jax.jit(jax.vmap(one, (None, 0, None)))
        return one(arrays, lengths, offsets), many(arrays, jnp.stack([lengths, lengths - 1]), offsets)

    test_jax_framework.assert_close(results("auto"), results("reference"))


@pytest.mark.rule("ATT-9")
def test_every_product_of_the_blocks_asks_for_full_precision() -> None:
    arrays = [jnp.asarray(array, jnp.bfloat16) for array in CASES["none"].inputs.values()]

    def gradients(*arrays: Any) -> Any:
        with limit_engine(PIECES) as package:
            output, pullback = jax.vjp(lambda *a: package.attention(*a, mask=Causal(0), engine="blocked"), *arrays)
        return output, pullback(output)

    found = list(test_jax_framework.products(jax.make_jaxpr(gradients)(*arrays).jaxpr))
    highest = jax.lax.Precision.HIGHEST
    assert len(found) > 20
    assert {product.params["precision"] for product in found} == {(highest, highest)}
    assert {variable.aval.dtype for product in found for variable in product.invars} == {np.dtype(np.float32)}
