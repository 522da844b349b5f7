"""Layer norm by PyTorch's kernel: every rule, the numbers with which it would break one, the choice, planted faults."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import torch_impl
from conformance import check, declare
from conformance.sampling.strategies import Draw
from tests.ports import test_torch_framework
from tests.support.engine_cases import BLOCKED, conforms, module_of, worst
from tests.support.helpers import Case, Finding, Subject, TorchArrays, truth_and_bounds
from tests.support.helpers import judge as judged

fused_norm = module_of(BLOCKED, "engines.fused_norm")

ROWS, WIDTH = 5, 33


def drawn(
    dtype: str = "float32",
    spread: float = 1.0,
    mean: float = 0.0,
    cotangents: float = 1.0,
    weights: float = 1.0,
    eps: float = 1e-5,
    constant: float = 2.0**-8,
) -> Case:
    """Rows of which the first is constant, and near enough to 0 for the kernel, the second has an outlier in front, and
    the last two are as asked for.
    """
    d = Draw(3, dtype)
    x, cotangent = d.normal(ROWS, WIDTH), d.normal(ROWS, WIDTH)
    x[0] = x[0, 0] * x.dtype.type(constant)
    x[1, 0] *= 1000
    x[-2:] = x[-2:] * x.dtype.type(spread) + x.dtype.type(mean)
    cotangent[-2:] = cotangent[-2:] * cotangent.dtype.type(cotangents)
    inputs = {"x": x, "weight": d.normal(WIDTH) * x.dtype.type(weights), "bias": d.normal(WIDTH)}
    return Case("layer_norm", dtype, inputs, {"eps": eps}, {"output": cotangent})


def underflowing(last: float = 3e4, beside: float = 5e-38) -> Case:
    """Small cotangents, large weights and small deviations: cotangent * x underflows, the gradient of x does not.

    last, beside: the last weight and its cotangent.
    """
    inputs = {"x": [[1e-5, -1e-5, 1e-5, 2e-5]], "weight": [3e4, 3e4, 3e4, last], "bias": [0, 0, 0, 0]}
    arrays = {name: np.array(numbers, np.float32) for name, numbers in inputs.items()}
    cotangent = np.array([[1e-37, -1e-37, 5e-38, beside]], np.float32)
    return Case("layer_norm", "float32", arrays, {"eps": 2.5e-10}, {"output": cotangent})


CASES = {
    "cotangent * x underflows": underflowing(),
    "it underflows beside a weight of 0": underflowing(0, 1),
    "it underflows beside a weight near 0": underflowing(1e-36, 1),
    "small products beside larger ones": underflowing(1e-7, 1),
    "narrow, cubes beyond float32": drawn(spread=1e-15, eps=2.0**-120),
    "float32": drawn(),
    "float64": drawn("float64"),
    "bfloat16": drawn("bfloat16"),
    "float16": drawn("float16"),
    "far from zero": drawn(mean=1e4),
    "further": drawn(mean=3e7),
    "squares beyond float32": drawn(mean=1e30),
    "wide, cubes beyond float32": drawn(spread=1e14),
    "constant, cubes beyond float32": drawn(
        spread=0, mean=3e-18, eps=2.0**-120, constant=0, cotangents=1e11, weights=1e4
    ),
    "small cotangents": drawn(cotangents=1e-32, spread=5e4),
    "large cotangents": drawn(cotangents=1e36, weights=1e-3, spread=1e3),
    "small weights": drawn(weights=1e-32, spread=5e4),
    "large weights": drawn(weights=1e34, spread=5e4),
    "no weights": drawn(weights=0.0),
    "no cotangents": drawn(cotangents=0.0),
}


def subject(function: Callable[..., Any] = torch_impl.layer_norm) -> Subject:
    return Subject("layer norm", TorchArrays(), SimpleNamespace(layer_norm=function))


def agreement(name: str) -> Finding:
    case = CASES[name]
    return worst(judged(case, subject()(case), *truth_and_bounds(case)))


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_definition(name: str) -> None:
    conforms(agreement(name))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_every_rule(engine: str) -> None:
    @declare(())
    def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
        return torch_impl.layer_norm(x, weight, bias, eps=eps, engine=engine)

    report = check(layer_norm, "layer_norm", arrays="torch", seed=11, profile="strict")
    assert report.conforms, str(report)
    assert {"NORM-1", "NORM-2", "NORM-3", "NORM-4", "NORM-5", "NORM-6"} <= set(report.rules)


# --- the choice -------------------------------------------------------------------------------------------------------


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = np.random.default_rng(0).standard_normal((4, 6))
    return torch.tensor(x), torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)


def chosen(*given: Any, **options: Any) -> str:
    return torch_impl.explain_layer_norm_engine(*given, **options).engine


def test_choice() -> None:
    x, weight, bias = tensors()
    assert chosen(x, weight, bias) == chosen(x.bfloat16(), weight.bfloat16(), None) == "fused"
    assert chosen(x[:0], weight, bias) == "reference"
    assert chosen(x, weight, bias, eps=torch.tensor(1e-5)) == "reference"
    assert chosen(*(tensor.to("meta") for tensor in (x, weight, bias))) == "reference"
    assert chosen(x, weight, bias, engine="reference") == "reference"


def test_refused() -> None:
    x, weight, bias = tensors()
    for engine, message in {"blocked": "nothing to divide", "quick": "one of auto"}.items():
        with pytest.raises(ValueError, match=message):
            torch_impl.layer_norm(x, weight, bias, engine=engine)
    with pytest.raises(ValueError, match="nothing to normalise"):
        torch_impl.layer_norm(x[:0], weight, bias, engine="fused")


def counted(patch: pytest.MonkeyPatch, name: str) -> list[int]:
    """How often the kernel is called, one entry for each call."""
    kernel, calls = getattr(fused_norm, name), []

    def counting(*given: Any) -> Any:
        calls.append(1)
        return kernel(*given)

    patch.setattr(fused_norm, name, counting)
    return calls


def test_kernel_computes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, backward = counted(monkeypatch, "forward_kernel"), counted(monkeypatch, "backward_kernel")
    x, weight, bias = (tensor.requires_grad_() for tensor in tensors())
    torch_impl.layer_norm(x, weight, bias).sum().backward()
    assert (len(forward), len(backward)) == (1, 1)


@pytest.mark.parametrize("unusual", [np.nan, np.inf, 1e30])
def test_an_unusual_row_leaves_the_others_alone(unusual: float) -> None:
    x, weight, bias = (tensor.float() for tensor in tensors())
    expected = torch_impl.layer_norm(x, weight, bias)
    x[1, 2] = unusual
    got = torch_impl.layer_norm(x, weight, bias)
    others = [0, 2, 3]
    assert torch.equal(got[others], expected[others])
    torch.testing.assert_close(
        got[1], torch_impl.layer_norm(x, weight, bias, engine="reference")[1], rtol=0, atol=0, equal_nan=True
    )


def padded(engine: str) -> list[torch.Tensor]:
    """The output and all gradients where two of eight rows are constant and far from 0."""
    x, weight, bias, cotangent = (test_torch_framework.normal(n, 8, 8) for n in range(4))
    x[-2:] = 1e4
    given = [tensor.float().requires_grad_() for tensor in (x, weight[0], bias[0])]
    output = torch_impl.layer_norm(*given, engine=engine)
    return [output, *torch.autograd.grad(output, given, cotangent.float())]


@pytest.mark.rule("NORM-3", "NORM-6")
def test_constant_rows_far_from_zero_cost_the_others_nothing() -> None:
    """The kernel gets their deviations as differences of numbers of 3e6, and adds them up in the gradient of weight."""
    (output, *gradients), (reference, *expected) = padded("auto"), padded("reference")
    assert torch.equal(output[-2:], reference[-2:])
    assert all(map(torch.equal, gradients, expected))


@pytest.mark.rule("NORM-3", "NORM-6")
def test_asked_for_constant_rows_far_from_zero_the_kernel_spoils_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, *_ = padded("reference")
    monkeypatch.setattr(fused_norm, "DISTANCE", np.inf)
    _, got, *_ = padded("auto")
    assert (got - expected).abs().max() > 0.01


# --- gradients of other kinds -----------------------------------------------------------------------------------------


def test_second_derivatives() -> None:
    given = tuple(tensor.requires_grad_() for tensor in tensors())
    assert torch.autograd.gradcheck(torch_impl.layer_norm, given)
    assert torch.autograd.gradgradcheck(torch_impl.layer_norm, given)


def test_only_what_is_wanted() -> None:
    x, weight, bias = tensors()
    (gradient,) = torch.autograd.grad(torch_impl.layer_norm(x, weight.requires_grad_(), bias).sum(), weight)
    torch_impl.layer_norm(x.requires_grad_(), weight.detach(), None).sum().backward()
    assert gradient.shape == weight.shape
    assert x.grad is not None


def test_the_same_tensor_twice() -> None:
    weight = torch.linspace(0.5, 2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda both: torch_impl.layer_norm(both[None] ** 2, both, both), (weight,))


def test_several_cotangents_at_once() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in tensors())
    output = torch_impl.layer_norm(x, weight, bias)
    several = torch.randn(3, *output.shape, dtype=output.dtype)
    (together,) = torch.autograd.grad(output, x, several, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(output, x, one, retain_graph=True)[0] for one in several]
    mapped = torch.vmap(lambda one: torch.autograd.grad(output, x, one, retain_graph=True)[0])(several)
    for found in (together, mapped):
        torch.testing.assert_close(found, torch.stack(one_by_one), rtol=1e-12, atol=1e-12)


def test_inputs_changed_before_the_backward_pass_are_noticed() -> None:
    x, weight, bias = tensors()
    output = torch_impl.layer_norm(x, weight.requires_grad_(), bias)
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_transformed_and_compiled_is_the_reference() -> None:
    x, weight, bias = tensors()
    expected = torch_impl.layer_norm(x, weight, bias, engine="reference")
    mapped = torch.func.vmap(torch_impl.layer_norm, (0, None, None))(x, weight, bias)
    graph = torch.export.export(Module(), (x, weight, bias)).module()
    torch.testing.assert_close(mapped, expected, rtol=0, atol=0)
    torch.testing.assert_close(graph(x, weight, bias), expected, rtol=0, atol=0)


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch_impl.layer_norm(x, weight, bias)


# --- planted faults ---------------------------------------------------------------------------------------------------

UNGUARDED = {
    "SPREAD": "constant, cubes beyond float32",
    "DISTANCE": "squares beyond float32",
    "COTANGENT": "large cotangents",
    "WEIGHT": "large weights",
}
"""A case that shows that the limit is there."""


@pytest.mark.parametrize("limit", UNGUARDED)
def test_without_its_limit_the_kernel_is_wrong(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_norm, limit, np.inf)
    assert not agreement(UNGUARDED[limit]).ratio <= 1


@pytest.mark.parametrize(
    ("name", "without", "instead"),
    [
        ("cotangent * x underflows", "moderate", lambda *_: True),
        ("it underflows beside a weight of 0", "LEAST", 0.0),
        ("it underflows beside a weight near 0", "LEAST", 0.0),
    ],
)
def test_asked_without_a_look_at_sizes_the_kernel_is_wrong(
    name: str, without: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_norm, without, instead)
    assert not agreement(name).ratio <= 1


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_without_widening_the_kernel_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of(BLOCKED, "layer_norm"), "widen", lambda tensor: tensor)
    assert not agreement(name).ratio <= 1
