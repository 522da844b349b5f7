"""What becomes of the inputs: their bits, strides, gradients, and threads that share them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from conformance.cases.layouts import LAYOUTS, SHARED, apply_memory
from conformance.checks.independence import check_determinism, check_memory
from conformance.peers.engines import Engine, limit_engine
from specification import Causal, Dense, KeyLengths
from specification.masks import map_arrays
from tests.support.engine_cases import (
    BLOCKED,
    CASES,
    FUSED,
    MASKS,
    PIECES,
    D,
    conforms,
    drawn,
    every_engine,
    subject,
    truth,
    worst,
)
from tests.support.helpers import TorchArrays

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@every_engine
@pytest.mark.parametrize("name", ["all", "upper left"])
@pytest.mark.rule("ATT-13")
def test_same_bits_and_inputs_as_they_were(engine: Engine, name: str) -> None:
    if engine is PIECES and name == "upper left":
        pytest.skip("has no special case of it")
    conforms(worst(check_determinism(subject(engine), CASES[name], None)))


@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
@pytest.mark.parametrize("name", ["all", "none", "upper left", "dense, per head"])
@pytest.mark.rule("ATT-13")
def test_strides_do_not_matter(engine: Engine, name: str) -> None:
    for layout in set(LAYOUTS) - set(SHARED):
        case = apply_memory(CASES[name], dict.fromkeys((*CASES[name].inputs, "mask", "cotangent"), layout))
        finding = worst(check_memory(subject(engine), case, truth(name)))
        assert finding.ratio <= 1, f"{layout}: {finding}"


def gradients_of(engine: Engine, arrays: list[Any], wanted: list[bool], **options: Any) -> list[Any]:
    """The output, and the gradients of those arrays that are wanted, None for the others."""
    leaves = [array.detach().requires_grad_(want) for array, want in zip(arrays, wanted, strict=True)]
    with limit_engine(engine) as package:
        names = dict(zip(("bias", "sinks"), leaves[3:], strict=False))
        output = package.attention(*leaves[:3], **names, **options, engine=engine.name)
    assert output.requires_grad == any(wanted)
    if any(wanted):
        output.sin().sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
@pytest.mark.rule("ATT-12")
def test_gradients_of_some_inputs_only(engine: Engine) -> None:
    case = CASES["everything" if engine is BLOCKED else "causal and lengths"]
    given = [TorchArrays().array(array) for array in case.inputs.values()]
    options = {name: value for name, value in case.options.items() if name != "mask"}
    for mask in (case.options["mask"], None):
        everything = gradients_of(engine, given, [True] * len(given), mask=mask, **options)
        for wanted in [*np.eye(len(given), dtype=bool).tolist(), [False] * len(given)]:
            got = gradients_of(engine, given, wanted, mask=mask, **options)
            for one, other, want in zip(got, everything, (True, *wanted), strict=True):
                assert (one is not None) == want
                assert not want or torch.equal(one, other)


@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(engine: Engine, mode: Any) -> None:
    given = [torch.from_numpy(array).requires_grad_() for array in CASES["all"].inputs.values()]
    for mask in (MASKS["all"], None):
        expected, *_ = gradients_of(engine, given, [True] * 3, mask=mask)
        with mode(), limit_engine(engine) as package:
            output = package.attention(*given, mask=mask, engine=engine.name)
        assert torch.equal(output, expected)
        assert not output.requires_grad


@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.rule("ATT-9")
def test_autocast_changes_nothing(engine: Engine, dtype: torch.dtype) -> None:
    case = CASES["bias of every head" if engine is BLOCKED else "causal and lengths"]
    given, mask = [torch.from_numpy(array) for array in case.inputs.values()], case.options["mask"]
    for one in (mask, None):
        expected = gradients_of(engine, given, [True] * len(given), mask=one)
        with torch.autocast("cpu", dtype=dtype):
            got = gradients_of(engine, given, [True] * len(given), mask=one)
        assert all(map(torch.equal, got, expected))


@every_engine
@pytest.mark.rule("ATT-12", "ATT-13")
@pytest.mark.slow_where("jax_impl")
def test_inputs_that_are_views_of_one_array(engine: Engine) -> None:
    """One projection split in three, one array three times, and keys that are the first of the values' columns."""
    case = drawn(Causal(-1) if engine is not PIECES else MASKS["window, per batch"])
    keys = replace(case, inputs=case.inputs | {"value": case.inputs["key"]})
    asked = subject(engine)
    expected = asked(keys)
    if engine.arrays == "torch":
        one = torch.from_numpy(keys.inputs["key"]).requires_grad_()
        query, cotangent = torch.from_numpy(keys.inputs["query"]), torch.from_numpy(keys.cotangents["output"])
        packed = torch.cat([query.detach(), query.detach() * 0], dim=-1).requires_grad_()
        with limit_engine(engine) as package:
            output = package.attention(packed[..., :D], one, one, mask=keys.options["mask"], engine=engine.name)
        of_packed, of_one = torch.autograd.grad(output, [packed, one], cotangent)
        assert not of_packed[..., D:].any()
        of_packed = of_packed[..., :D]
    else:
        one, query = jnp.asarray(keys.inputs["key"]), jnp.asarray(keys.inputs["query"])
        with limit_engine(engine) as package:
            output, pullback = jax.vjp(
                lambda query, one: package.attention(query, one, one, mask=keys.options["mask"], engine=engine.name),
                query, one,
            )  # fmt: skip
        of_packed, of_one = pullback(jnp.asarray(keys.cotangents["output"]))
    np.testing.assert_array_equal(
        np.asarray(output.detach() if engine.arrays == "torch" else output), expected["output"]
    )
    np.testing.assert_array_equal(np.asarray(of_packed), expected["gradient of query"])
    together = expected["gradient of key"] + expected["gradient of value"]
    np.testing.assert_array_equal(np.asarray(of_one), together)


@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
@pytest.mark.parametrize("kind", ["lengths", "dense"])
@pytest.mark.rule("ATT-12")
def test_a_mask_that_is_changed_before_the_backward_pass(engine: Engine, kind: str) -> None:
    """The gradients are those of the mask as it was, or PyTorch says that a tensor was modified."""
    given = [torch.from_numpy(array).requires_grad_() for array in CASES["all"].inputs.values()]
    array = (
        torch.tensor([5, 11]) if kind == "lengths" else torch.from_numpy(CASES["dense"].options["mask"].array.copy())
    )
    mask = KeyLengths(array) if kind == "lengths" else Dense(array)
    expected = gradients_of(engine, given, [True] * 3, mask=map_arrays(mask, torch.clone))
    with limit_engine(engine) as package:
        output = package.attention(*given, mask=mask, engine=engine.name)
    array.copy_(array + 3 if kind == "lengths" else ~array)
    try:
        got = torch.autograd.grad(output.sin().sum(), given)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    else:
        assert all(map(torch.equal, got, expected[1:]))
