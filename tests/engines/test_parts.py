"""Attention over some of the keys by every engine, merged, beside attention over all keys (ATT-14)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.subjects.frameworks import TorchArrays
from specification.masks import map_arrays
from tests.support.engine_cases import BEYOND_THE_KERNEL, FOR_ALL, conforms, drawn, worst
from tests.support.helpers import judge, truth_and_bounds
from tests.support.triton_interpreter import interpreted
from torch_impl import merge_attention
from torch_impl.engines import choice, fused_gpu, parts
from torch_impl.engines.blocked import Block, Inputs, Limits, cut, mask_of
from torch_impl.masks import checked_mask

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]

EDGES = (0, 1, 8, 19)
KEYS = ("batch", "heads", "keys")


@pytest.fixture(params=["reference", "blocked", "fused", "fused, on a GPU"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(choice, "LIMITS", Limits(block=4))
    on_a_gpu = request.param.endswith("GPU")
    if on_a_gpu:
        monkeypatch.setattr(parts, "kernels_for", lambda inputs: fused_gpu)
    with interpreted((8, 16)) if on_a_gpu else nullcontext():
        yield request.param


def answer_by_parts(engine: str, case: Case) -> dict[str, np.ndarray]:
    """Output and gradients, from three parts of the keys."""
    arrays = TorchArrays()
    tensors = {name: arrays.array(array) for name, array in case.inputs.items()}
    (B, H, Q, _), K = tensors["query"].shape, tensors["key"].shape[2]
    mask = checked_mask(map_arrays(case.options["mask"], arrays.array), Q, K, B, H, torch.device("cpu"))
    if not engine.endswith("GPU"):
        tensors = {name: tensor.to(parts.widen(tensor).dtype) for name, tensor in tensors.items()}
    bias = tensors.get("bias")
    bias = bias if bias is None or bias.ndim == 4 else bias[None, None]
    options = case.options.get("scale"), case.options.get("softcap"), None
    whole = Inputs(tensors["query"], tensors["key"], tensors["value"], mask, bias, *options)
    edges = [min(edge, K) for edge in EDGES]
    blocks = [
        Block(slice(None), slice(0, Q), slice(*edge), masked=True) for edge in pairwise(edges) if edge[0] < edge[1]
    ]
    pieces = [
        whole._replace(
            key=cut(whole.key, KEYS, block),
            value=cut(whole.value, KEYS, block),
            mask=mask_of(whole, block),
            bias=None if bias is None else bias[..., block.keys],
        )
        for block in blocks
    ]
    name = engine.partition(",")[0]
    outputs, sums = zip(*(parts.forward_of_part(name, piece) for piece in pieces), strict=True)
    output, logsumexp = merge_attention(outputs, sums)
    cotangent = arrays.array(case.cotangents["output"])
    cotangent = cotangent if engine.endswith("GPU") else parts.widen(cotangent)
    mean = (parts.widen(cotangent) * output).sum(dim=-1)
    wanted = (True, True, True, bias is not None, False)
    results = parts.Results(output, logsumexp, mean, cotangent)
    found = [parts.gradients_of_part(name, piece, results, wanted) for piece in pieces]
    gradients: dict[str, Any] = {"query": sum(one[0] for one in found)}
    gradients |= {name: torch.cat([one[i] for one in found], dim=2) for i, name in ((1, "key"), (2, "value"))}
    if bias is not None:
        gradients["bias"] = torch.cat([one[3] for one in found], dim=-1).reshape(tensors["bias"].shape)
    given = {name: arrays.array(array).dtype for name, array in case.inputs.items()}
    results_of = {gradient_name(name): array.to(given[name]) for name, array in gradients.items()}
    return {name: arrays.numpy(array) for name, array in ({"output": output.to(given["query"])} | results_of).items()}


def drop_sinks(case: Case) -> Case:
    return replace(case, inputs={name: array for name, array in case.inputs.items() if name != "sinks"})


@pytest.mark.parametrize("name", [*FOR_ALL, *BEYOND_THE_KERNEL])
@pytest.mark.rule("ATT-14")
def test_parts_make_the_whole(engine: str, name: str) -> None:
    if name in BEYOND_THE_KERNEL and engine.startswith("fused"):
        pytest.skip("beyond the kernels")
    case = drop_sinks((FOR_ALL | BEYOND_THE_KERNEL)[name])
    if case.dtype == "float64" and engine.endswith("GPU"):
        pytest.skip("the Triton kernels have no float64")
    case = replace(case, rounding={"saved": "logsumexp", "merging": "logsumexp", "parts": str(len(EDGES) - 1)})
    conforms(worst(judge(case, answer_by_parts(engine, case), *truth_and_bounds(case))))


@pytest.mark.rule("MASK-7", "ATT-10", "ATT-14")
def test_a_row_that_is_nan_reaches_no_key_of_another_part(engine: str) -> None:
    case = drop_sinks(FOR_ALL["dense"])
    key = case.inputs["key"].copy()
    key[0, 0, 3] = np.nan
    case = replace(case, inputs=case.inputs | {"key": key}, special=True)
    conforms(worst(judge(case, answer_by_parts(engine, case), *truth_and_bounds(case))))


def test_parts_at_an_unlike_place_are_noticed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part's log-sum-exp off by 2^-10 of itself is far beyond the bound."""
    forward = parts.forward_of_part

    def off(engine: str, inputs: Inputs) -> Any:
        output, logsumexp = forward(engine, inputs)
        return output, logsumexp * (1 + 2.0**-10)

    monkeypatch.setattr(parts, "forward_of_part", off)
    case = drawn(FOR_ALL["causal"].options["mask"])
    case = replace(case, rounding={"saved": "logsumexp", "merging": "logsumexp", "parts": "3"})
    assert worst(judge(case, answer_by_parts(engine, case), *truth_and_bounds(case))).ratio > 1
