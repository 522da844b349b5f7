"""The engine for GPUs, in Triton's interpreter: every mask, dtype and tail, forward and backward."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import torch_impl
from conformance.cases.expectations import Exact
from conformance.checks.independence import check_determinism
from conformance.peers.engines import judge
from tests.engines.test_isolation import HIDING, SPECIAL, spoiled, truth_of_hiding
from tests.support.engine_cases import agreement, conforms, error, module_of, subject, worst
from tests.support.helpers import Case, Finding, truth_and_bounds
from tests.support.helpers import judge as judged
from tests.support.triton_interpreter import (
    LARGE,
    LARGE_CASES,
    LARGE_MASKS,
    ROOT,
    SMALL_CASES,
    TRITON,
    interpreted,
    large,
    needs_triton,
)
from torch_impl.engines.kernel_inputs import in_units

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    # NumPy's word for what a GPU does without one: exp of a forbidden score may overflow before it is replaced by 0.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


@pytest.fixture
def small_tiles() -> Iterator[None]:
    with interpreted((8, 16)):
        yield


@pytest.fixture
def tiles_of_16() -> Iterator[None]:
    with interpreted((16, 16)):
        yield


@pytest.mark.parametrize("name", SMALL_CASES)
@pytest.mark.rule("ATT-8", "ATT-9", "ATT-12")
def test_definition(name: str, small_tiles: None) -> None:
    conforms(agreement(TRITON, name))


@pytest.mark.parametrize("name", LARGE_CASES)
@pytest.mark.rule("ATT-8", "ATT-9", "ATT-12")
def test_many_tiles(name: str, tiles_of_16: None) -> None:
    conforms(large(name))


# --- special numbers --------------------------------------------------------------------------------------------------


def array_of(case: Case, argument: str) -> np.ndarray:
    return case.cotangents["output"] if argument == "cotangent" else case.inputs[argument]


def with_array(case: Case, argument: str, array: np.ndarray) -> Case:
    if argument == "cotangent":
        return replace(case, cotangents={"output": array}, special=True)
    return replace(case, inputs=case.inputs | {argument: array}, special=True)


def hidden(argument: str) -> Finding:
    """The worst error where a key that nobody sees, or a query that sees none, holds special numbers in every head."""
    case = HIDING["dense"]
    array = array_of(case, argument).copy()
    row = array[:, :, 7 if argument in ("key", "value") else 5]
    row[...] = np.resize(SPECIAL, row.shape[:2])[..., None]
    planted = with_array(case, argument, array)
    return error(TRITON, planted, truth_of_hiding("dense"))


def attended(argument: str) -> Finding:
    """The worst error where a NaN that counts must show where the rules say, and nowhere else."""
    case, place = HIDING["dense"], (1, 1, 3, 2)
    array = array_of(case, argument).copy()
    array[place] = np.nan
    planted, wrong = with_array(case, argument, array), spoiled(case, argument, place)
    truth, bounds = truth_of_hiding("dense")
    expected = {n: Exact(np.where(wrong[n], np.nan, e.high), np.where(wrong[n], 0, e.low)) for n, e in truth.items()}
    return error(TRITON, planted, (expected, bounds))


@pytest.mark.parametrize("argument", ["query", "key", "value", "cotangent"])
@pytest.mark.parametrize("kind", [hidden, attended], ids=["hidden", "attended"])
@pytest.mark.rule("MASK-7", "ATT-6", "ATT-10", "ATT-12")
def test_special_numbers(kind: Callable[[str], Finding], argument: str, small_tiles: None) -> None:
    conforms(kind(argument))


# --- memory and bits --------------------------------------------------------------------------------------------------


def framed(array: np.ndarray) -> Any:
    """A tensor in the middle of a larger one of NaN, which the kernels read in place."""
    room = torch.full((*(size + 3 for size in array.shape[:3]), array.shape[3] + 32), torch.nan)
    inside = room[tuple(slice(1, size + 1) for size in array.shape[:3])][..., 16:-16]
    inside.copy_(torch.from_numpy(array))
    assert in_units(inside) is inside
    return inside


def in_frames() -> float:
    """The worst error where NaN stands all around the inputs and the cotangent."""
    case, arrays = LARGE_CASES["causal in place, float32"], {}
    for name in ("query", "key", "value"):
        arrays[name] = framed(case.inputs[name]).requires_grad_()
    output = torch_impl.attention(**arrays, mask=case.options["mask"], engine="fused")
    gradients = torch.autograd.grad(output, [*arrays.values()], framed(case.cotangents["output"]))
    answers = {"output": output.detach().numpy()}
    answers |= {f"gradient of {name}": g.numpy() for name, g in zip(arrays, gradients, strict=True)}
    return worst(judged(case, answers, *truth_and_bounds(case))).ratio


@pytest.mark.rule("ATT-13")
def test_nothing_beside_the_inputs_is_read(tiles_of_16: None) -> None:
    assert in_frames() <= 1


@pytest.mark.rule("ATT-13")
def test_same_bits_again(tiles_of_16: None) -> None:
    conforms(worst(check_determinism(subject(TRITON), LARGE_CASES["causal in segments, bfloat16"], None)))


ROWS = torch.arange(2.0 * 3 * 5 * 32).reshape(2, 3, 5, 32)
LAID_OUT: dict[str, tuple[torch.Tensor, bool]] = {
    "as the kernels read it": (ROWS, True),
    "heads behind lengths": (ROWS.reshape(2, 5, 3, 32).transpose(1, 2), True),
    "one row for all": (ROWS[:, :, :1].expand(-1, -1, 5, -1), True),
    "one head with any stride": (torch.as_strided(ROWS, (1, 1, 5, 32), (7, 3, 32, 1)), True),
    "20 wide": (ROWS[..., :20].contiguous(), False),
    "20 wide, in rows of 32": (ROWS[..., :20], False),
    "rows of 33": (torch.arange(2.0 * 3 * 5 * 33).reshape(2, 3, 5, 33)[..., :32], False),
    "one number later": (torch.arange(961.0)[1:].reshape(2, 3, 5, 32), False),
    "widths before lengths": (ROWS.reshape(2, 3, 32, 5).transpose(2, 3), False),
    "heads last": (ROWS.reshape(2, 5, 32, 3).permute(0, 3, 1, 2), False),
    "heads last, 20 wide": (ROWS.reshape(2, 5, 32, 3)[:, :, :20].contiguous().permute(0, 3, 1, 2), False),
    "one number for all": (torch.ones(()).expand(2, 3, 5, 32), False),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_in_units(name: str) -> None:
    """What the kernels cannot read in place is copied, with zeros at the end of its rows."""
    tensor, in_place = LAID_OUT[name]
    found, width = in_units(tensor), tensor.shape[-1]
    assert (found is tensor) == in_place
    assert found.shape == (*tensor.shape[:3], 32)
    assert torch.equal(found[..., :width], tensor)
    assert not found[..., width:].any()
    assert found.stride(-1) == 1
    strides = zip(found.shape[:3], found.stride(), strict=False)
    assert not any(number % 16 for number in (found.data_ptr(), *(s for length, s in strides if length > 1)))


def test_the_output_may_be_written_into(tiles_of_16: None) -> None:
    """It shares no memory with what the backward pass reads, also in float32."""
    case = LARGE_CASES["causal in place, float32"]
    query, key, value = (torch.from_numpy(case.inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    output = torch_impl.attention(query, key, value, mask=case.options["mask"], engine="fused")
    plain = torch.autograd.grad(output.sum(), query, retain_graph=True)[0]
    output += 1
    assert torch.equal(torch.autograd.grad(output.sum(), query)[0], plain)


def lost_digits(dtype: torch.dtype) -> float:
    """By how much at most a weight that is multiplied by 1 comes out another, relative to it."""
    sys.modules.pop("tests.support.triton_multiplying", None)
    kernel = importlib.import_module("tests.support.triton_multiplying").multiply
    weights = torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) * 2.0 ** -torch.arange(0, 96, 6)
    found = torch.empty(16, 16)
    kernel[(1,)](weights, torch.eye(16, dtype=dtype), found)
    return float(((found - weights).abs() / weights).max())


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0), ("bfloat16", 0), ("float16", 2**-23)])
@pytest.mark.rule("ATT-9")
def test_weights_keep_their_digits(dtype: str, most: float, small_tiles: None) -> None:
    assert lost_digits(getattr(torch, dtype)) <= most


# --- which tiles ------------------------------------------------------------------------------------------------------


def blocks_of(pairs: np.ndarray, tiles: tuple[int, int], past_the_keys: bool) -> np.ndarray:
    """Whether any of the pairs [B, H, Q, K] of a tile is True, as [B, blocks of queries, blocks of keys]."""
    (B, H, Q, K), (queries, keys) = pairs.shape, tiles
    wide = np.pad(pairs, ((0, 0), (0, 0), (0, 0), (0, -K % keys)), constant_values=past_the_keys)
    whole = np.pad(wide, ((0, 0), (0, 0), (0, -Q % queries), (0, 0)))
    return whole.reshape(B, H, -(-Q // queries), queries, -(-K // keys), keys).any(axis=(1, 3, 5))


def between(edges: np.ndarray, blocks: int) -> np.ndarray:
    first, stop = np.moveaxis(edges[..., None], -2, 0)
    return (first <= np.arange(blocks)) & (np.arange(blocks) < stop)


@pytest.mark.parametrize("tiles", [(16, 16), (8, 4), (4, 32), (64, 128)], ids=str)
@pytest.mark.parametrize("name", LARGE_MASKS)
@pytest.mark.rule("MASK-3", "MASK-4", "MASK-6")
def test_every_allowed_pair_is_visited_and_no_forbidden_one_goes_unmasked(name: str, tiles: tuple[int, int]) -> None:
    masks, (B, H, _, Q, K, *_) = module_of(TRITON, "engines.triton.masks"), LARGE
    query = torch.zeros(B, H, Q, 1)
    mask = module_of(TRITON, "masks").checked_mask(LARGE_MASKS[name], Q, K, B, H, query.device)
    pairs = np.broadcast_to(torch_impl.materialize(LARGE_MASKS[name], Q, K, batch=B, heads=H).numpy(), (B, H, Q, K))
    allowed, forbidden = blocks_of(pairs, tiles, False), blocks_of(~pairs, tiles, True)
    of_queries = masks.ranges_of_queries(mask, query, K, masks.Tiles(*tiles))[0].numpy()
    of_keys = masks.ranges_of_keys(mask, query, K, masks.Tiles(*tiles)).numpy()
    visited = between(of_queries[..., :2], allowed.shape[2])
    assert not (allowed & ~visited).any()
    assert not (forbidden & between(of_queries[..., 2:], allowed.shape[2])).any()
    assert not (allowed & ~between(of_keys[..., :2], allowed.shape[1]).swapaxes(1, 2)).any()
    assert not (forbidden & between(of_keys[..., 2:], allowed.shape[1]).swapaxes(1, 2)).any()
    if name in ("none", "causal", "window", "lengths", "segments"):  # the last block may reach back
        np.testing.assert_array_equal(visited[:, :-1], allowed[:, :-1])


# --- the choice -------------------------------------------------------------------------------------------------------


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Any:
    """Inputs that say they are on a GPU, of which the choice looks at shapes and options only."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(module_of(TRITON, "engines.choice"), "traced", lambda *tensors: False)
    shape = torch.Size((2, 4, 13, 8))
    tensor = SimpleNamespace(shape=shape, dtype=torch.float32, device=torch.device("cuda"), is_cuda=True)
    fields = dict.fromkeys(("query", "key", "value"), tensor) | dict.fromkeys(("mask", "bias", "scale", "softcap"))
    return module_of(TRITON, "engines.blocked").Inputs(**fields | {"sinks": None} | changed)


def test_taken_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_triton()
    choose = module_of(TRITON, "engines.choice").engine_for
    chosen = choose("auto", on_a_gpu(monkeypatch), None, "zero")
    assert (chosen.engine, chosen.why) == ("fused", "the Triton kernels take it")
    narrower = torch.zeros(2, 4, 13, 5)
    assert choose("auto", on_a_gpu(monkeypatch, value=narrower), None, "zero").engine == "fused"
    assert choose("auto", on_a_gpu(monkeypatch, softcap=2.0), None, "zero").engine == "blocked"
    another, capability = on_a_gpu(monkeypatch), "get_device_capability"
    monkeypatch.setattr(torch.cuda, capability, lambda device: (8, 9))
    assert "the judge has not run" in choose("auto", another, None, "zero").why
    assert choose("fused", another, None, "zero").engine == "fused"


HINDRANCES: list[tuple[dict[str, Any], str]] = [
    ({"softcap": 2.0}, "no softcap"),
    ({"sinks": torch.zeros(4)}, "no sinks"),
    ({"bias": torch.zeros(13, 13)}, "no bias"),
    ({"query": torch.zeros(1, 1, 1, 1, dtype=torch.float64)}, "float64"),
    ({"query": torch.zeros(1, 1, 1, 257)}, "at most 256"),
    ({"value": torch.zeros(1, 1, 1, 257)}, "at most 256"),
]


@pytest.mark.parametrize(("changed", "pattern"), HINDRANCES)
def test_hindrances(changed: dict[str, Any], pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_triton()
    assert pattern in module_of(TRITON, "engines.fused_gpu").hindrance_of_triton(on_a_gpu(monkeypatch, **changed))


@pytest.mark.parametrize(
    ("module", "name", "found", "message"),
    [
        ("importlib.util", "find_spec", None, "Triton is not installed"),
        ("shutil", "which", None, "Triton needs a C compiler, and there is none"),
        ("sysconfig", "get_path", "nowhere", "Triton needs the headers of Python, and they are not installed"),
    ],
)
def test_one_line_where_something_is_not_installed(
    module: str, name: str, found: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = module_of(TRITON, "engines.fused_gpu")
    monkeypatch.setattr(gpu, "missing_here", gpu.missing_here.__wrapped__)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("shutil.which", lambda name: "there")
    monkeypatch.setattr(f"{module}.{name}", lambda name: found)
    with pytest.raises(ValueError, match=f"^engine 'fused' cannot take this call: {message}$"):
        module_of(TRITON, "engines.choice").engine_for("fused", on_a_gpu(monkeypatch), None, "zero")


# --- the compiler -----------------------------------------------------------------------------------------------------

PRODUCTS = {"float32": set(), "float16": {"f16 f16", "tf32 tf32"}, "bfloat16": {"bf16 bf16"}}
"""What tensor cores may multiply, so that each product is exact: none of them multiplies float32."""


@pytest.mark.rule("ATT-9")
def test_compiles_to_exact_products(tmp_path: Path) -> None:
    """For compute capability 9.0, on any machine: Triton's compiler needs no GPU."""
    needs_triton()
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.triton_compiling", "90"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    found = json.loads(answer.stdout)
    assert found.keys() == PRODUCTS.keys()
    for dtype, kernels in found.items():
        assert kernels.keys() == {"forward_kernel", "query_kernel", "key_kernel"}
        for kernel in kernels.values():
            assert set(kernel["products"]) == PRODUCTS[dtype]
            assert kernel["shared"] <= 227 * 1024  # the bytes that a program may have there


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [7, 2026])
def test_the_judge_finds_nothing_on_a_gpu(seed: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    needs_triton()
    report = judge(TRITON, device="cuda", effort="quick", seed=seed, shrink=False)
    assert report.conforms, report.violations
