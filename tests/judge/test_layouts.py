"""Memory layouts: strides as they are named, the same values, and what ignores them is found by ATT-13."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import torch_impl
from conformance import declare
from conformance.cases import layouts
from conformance.cases.layouts import apply_memory
from conformance.checks.encoding import decode, encode
from conformance.judge import trial
from conformance.runner.shrinking import depends_on_layout
from conformance.sampling.strategies import draw_memory
from conformance.subjects import frameworks
from specification import Dense
from tests.support.drawn_once import once
from tests.support.helpers import (
    CHECKS,
    EVERYTHING,
    OPERATIONS,
    Case,
    Runner,
    TorchArrays,
    Violation,
    catalogue,
    describe_finding,
    draw_cases,
    find_errors,
    runner_of,
)

pytestmark = pytest.mark.rule("ATT-13")

FRAMEWORKS = (frameworks.NumpyArrays(), TorchArrays())
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, bool, np.int32)

# --- strides ----------------------------------------------------------------------------------------------------------

STRIDES_OF = {
    "contiguous": (60, 20, 5, 1),
    "transposed": (60, 5, 15, 1),
    "fused": (100, 5, 25, 1),
    "sliced": (444, 148, 37, 1),
    "cached": (540, 180, 5, 1),
    "misaligned": (60, 20, 5, 1),
    "shared batch": (0, 20, 5, 1),
    "shared heads": (60, 0, 5, 1),
    "shared rows": (60, 20, 0, 1),
    "one number": (0, 0, 0, 0),
    "column-major": (60, 20, 1, 4),
    "spaced": (120, 40, 10, 2),
}
"""Of [2, 3, 4, 5]."""
LENGTH_FIRST = STRIDES_OF | {
    "contiguous": (60, 15, 5, 1),
    "transposed": (60, 5, 20, 1),
    "fused": (100, 25, 5, 1),
    "sliced": (444, 111, 37, 1),
    "cached": (540, 15, 5, 1),
    "misaligned": (60, 15, 5, 1),
    "shared batch": (0, 15, 5, 1),
    "shared heads": (60, 15, 0, 1),
    "shared rows": (60, 0, 5, 1),
    "column-major": (60, 15, 1, 3),
    "spaced": (120, 30, 10, 2),
}
"""Of [2, 4, 3, 5], whose heads are the third axis."""


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return (np.random.default_rng(1).normal(size=shape) * 5).astype(dtype)


def steps_of(array: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(array.stride()) if hasattr(array, "stride") else tuple(s // array.itemsize for s in array.strides)


def laid(framework: Any, array: np.ndarray, layout: str, heads: int = 1) -> Any:
    buffer, place = layouts.place_array(array, layout, heads)
    return framework.view(buffer, array.shape, place)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
@pytest.mark.parametrize("layout", STRIDES_OF)
def test_strides(layout: str, framework: Any) -> None:
    assert set(STRIDES_OF) == {"contiguous", *layouts.LAYOUTS}
    for shape, heads, expected in (((2, 3, 4, 5), 1, STRIDES_OF), ((2, 4, 3, 5), 2, LENGTH_FIRST)):
        array = layouts.equal_along(values(shape), layouts.shared_axes(layout, 4, heads))
        got = laid(framework, array, layout, heads)
        assert steps_of(got) == expected[layout]
        address = got.data_ptr() if hasattr(got, "data_ptr") else got.ctypes.data
        assert address % 64 == (4 if layout == "misaligned" else 0)


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_values_are_the_same_bits_and_all_else_is_poison(layout: str) -> None:
    for dtype in DTYPES:
        for shape in ((2, 3, 4, 5), (2, 4, 5), (4, 5), (5,), (), (2, 3, 0, 5)):
            shared = layouts.shared_axes(layout, len(shape)) if 0 not in shape else ()
            array = layouts.equal_along(values(shape, dtype), shared)
            for framework in FRAMEWORKS:
                assert layouts.same_bits(np.ascontiguousarray(framework.numpy(laid(framework, array, layout))), array)
            buffer, place = layouts.place_array(array, layout)
            assert buffer.size >= place.start + array.size
            layouts.strided_view(buffer, shape, place)[...] = 0
            rest = buffer[buffer != 0]
            assert rest.size >= 128 or np.dtype(dtype).kind == "i"
            poisoned = rest == array.max(initial=0) if np.dtype(dtype).kind == "i" else np.isnan(rest.astype(float))
            assert rest.all() if dtype is bool else poisoned.all()


def test_values_that_differ_share_no_memory() -> None:
    """Of a case that was changed after its layout was drawn; also where only the sign of a zero differs."""
    zeros = np.zeros((2, 3, 4, 5), np.float32)
    assert steps_of(laid(FRAMEWORKS[0], zeros, "shared heads"))[1] == 0
    zeros[0, 1, 2, 3] = -0.0
    assert steps_of(laid(FRAMEWORKS[0], zeros, "shared heads")) == STRIDES_OF["contiguous"]


# --- cases ------------------------------------------------------------------------------------------------------------

NAMES = ("query", "key", "value", "bias", "mask", "dropout_keep", "cotangent")


def attention_case(shape: tuple[int, int, int, int] = (2, 3, 4, 5)) -> Case:
    B, H, T, _ = shape
    inputs = {name: values(shape) for name in ("query", "key", "value")} | {"bias": values((B, H, T, T))}
    options = {"mask": Dense(values((B, H, T, T)) < 4), "dropout_keep": values((B, H, T, T)) > -4, "dropout_rate": 0.1}
    return Case("attention", "float32", inputs, options, {"output": values(shape)})


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_every_array_of_a_case_reaches_the_subject_in_its_layout(layout: str) -> None:
    case = apply_memory(attention_case(), dict.fromkeys(NAMES, layout))
    seen: dict[str, Any] = {}

    def keep(cotangent: Any) -> Any:
        seen["cotangent"] = cotangent
        return cotangent

    def attend(query: Any, key: Any, value: Any, *, mask: Any, bias: Any, dropout_keep: Any, dropout_rate: Any) -> Any:
        seen.update(query=query, key=key, value=value, mask=mask, bias=bias, dropout_keep=dropout_keep)
        options = {"dropout_keep": dropout_keep, "dropout_rate": dropout_rate}
        return Back.apply(torch_impl.attention(query, key, value, mask=mask, bias=bias, **options), keep)

    for length_first in (False, True):
        declared: Any = declare(layout="BTHD")(swapping(attend)) if length_first else attend
        assert not find_errors(runner_of(declared, arrays="torch"), case)
        if not length_first:
            for name in NAMES:
                plain = attention_case().inputs.get(name)
                shape = plain.shape if plain is not None and name != "bias" else seen[name].shape
                array = layouts.equal_along(values(tuple(shape)), layouts.shared_axes(layout, 4))
                assert steps_of(seen[name]) == steps_of(laid(FRAMEWORKS[1], array, layout)), name


def swapping(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for [B, T, H, D]."""

    @wraps(function)
    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return function(*(array.transpose(1, 2) for array in (query, key, value)), **options).transpose(1, 2)

    return attention


def test_a_case_says_its_layouts_and_keeps_them_in_a_file() -> None:
    case = replace(attention_case(), memory={"query": "fused", "mask": "sliced", "cotangent": "one number"})
    assert "query=float32[2, 3, 4, 5] fused, key=float32[2, 3, 4, 5]," in repr(case)
    assert "mask=Dense(array=bool[2, 3, 4, 4]) sliced" in repr(case)
    assert repr(case).endswith(" with cotangent float32[2, 3, 4, 5] one number")
    written = encode(case)
    assert decode(written).memory == case.memory
    del written["fields"]["memory"]
    assert decode(written).memory == {}


def test_layouts_are_drawn_in_one_case_of_three() -> None:
    @st.composite
    def cases(draw: st.DrawFn, declaration: Any = EVERYTHING) -> Case:
        return draw_memory(draw, attention_case(), declaration)

    found = [case for _, case in draw_cases(cases(), 150, 1)]
    kinds = {layout for case in found for layout in case.memory.values()}
    assert kinds == set(layouts.LAYOUTS) - set(layouts.REFUSABLE)
    assert 30 <= sum(bool(case.memory) for case in found) <= 70
    assert {name for case in found for name in case.memory} >= set(NAMES)
    without = [case for _, case in draw_cases(cases(replace(EVERYTHING, strides=False)), 30, 1)]
    assert not any(case.memory for case in without)


def test_a_framework_without_strides_is_asked_for_no_layout() -> None:
    assert not frameworks.JaxArrays.strides
    titles = [probe.title for probe in catalogue(replace(EVERYTHING, strides=False))]
    assert not any(title.startswith("memory of") for title in titles)
    own = [one.name for one in OPERATIONS.values() if one.facts.takes_arrays]
    without_heads = [name for name in own if "attention" not in name]
    expected = len(own) * len(layouts.LAYOUTS) - len(without_heads) * len(layouts.OF_HEADS)
    assert sum(probe.title.startswith("memory of") for probe in catalogue()) == expected


# --- planted faults ---------------------------------------------------------------------------------------------------


def as_if_contiguous(array: Any) -> Any:
    """What stands where the elements of a contiguous array would, as far as there is memory."""
    count = array.untyped_storage().nbytes() // array.element_size()
    flat = torch.as_strided(array, (count,), (1,), 0)
    places = array.storage_offset() + torch.arange(array.numel())
    return flat[places.clamp(max=count - 1)].reshape(array.shape)


def reading_on(array: Any) -> Any:
    return as_if_contiguous(array) if 0 in array.stride() else array


def aligned_down(array: Any) -> Any:
    """What a load of 16 bytes reads that ignores the last bits of its address."""
    past = array.data_ptr() % 16 // array.element_size()
    return torch.as_strided(array, array.shape, array.stride(), array.storage_offset() - past)


class Back(torch.autograd.Function):
    """The same forwards; backwards, the cotangent as `read` takes it."""

    @staticmethod
    def forward(ctx: Any, y: Any, read: Any) -> Any:
        ctx.read = read
        return y.clone()

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        return ctx.read(bar), None


RIGHT: dict[str, Callable[..., Any]] = {
    "attention": lambda query, key, value, *, mask=None, bias=None, scale=None: torch_impl.attention(
        query, key, value, mask=mask, bias=bias, scale=scale
    ),
    "layer_norm": torch_impl.layer_norm,
    "embedding": torch_impl.embedding,
}
FAULTY = [("attention", name) for name in ("query", "key", "value", "bias", "mask", "cotangent")]
FAULTY += [("layer_norm", name) for name in ("x", "weight", "bias", "cotangent")]
FAULTY += [("embedding", name) for name in ("table", "ids")]


def misread_array(operation: str, name: str, read: Callable[[Any], Any]) -> Callable[..., Any]:
    """The right function, but for how it reads one of its arrays."""
    right = RIGHT[operation]

    @wraps(right)
    def function(*arguments: Any, **options: Any) -> Any:
        given = signature(right).bind(*arguments, **options).arguments
        if given.get(name) is not None:
            given[name] = read(given[name])
        output = right(**given)
        return Back.apply(output, read) if name == "cotangent" else output

    return function


WAYS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "as if contiguous": (as_if_contiguous, ("sliced", "spaced")),
    "reading on": (reading_on, layouts.SHARED),
    "aligned down": (aligned_down, ("misaligned",)),
}
"""Each with the layouts that show it for every array."""
PARAMETERS = [("layer_norm", "weight"), ("layer_norm", "bias"), ("embedding", "table")]
"""Arrays that no model gives with a stride of 0."""
FOUND = [(*at, way) for at in FAULTY for way in WAYS if way != "reading on" or at not in PARAMETERS]


probes_within = once(catalogue)


def first_violation(
    function: Callable[..., Any],
    operation: str,
    seed: int,
    dtypes: list[str],
    kinds: tuple[str, ...] = layouts.LAYOUTS,
) -> Violation | None:
    """Of the probes of these kinds of layouts, at the default effort."""
    runner = runner_of(function, operation, "torch", dtypes=dtypes)
    for probe in probes_within(runner.declaration):
        of_memory = probe.title.startswith("memory of") and probe.title.partition(": ")[2] in kinds
        if probe.operations == (operation,) and of_memory:
            results = trial.ask_probe(probe, [runner], 10, seed)
            for violation in results.violations.values():
                assert depends_on_layout(runner, violation.check, violation.example)
                return violation
    return None


@pytest.mark.parametrize(("operation", "name", "way"), FOUND, ids=str)
@pytest.mark.slow_where("as if contiguous", unless="attention-query")
@pytest.mark.slow_where("attention-cotangent-reading on")
@pytest.mark.slow_where("aligned down", "attention-", unless="attention-value")
def test_ignored_strides_are_found(operation: str, name: str, way: str) -> None:
    read, kinds = WAYS[way]
    found = first_violation(misread_array(operation, name, read), operation, 1, ["float32"], kinds)
    assert found is not None
    assert found.rule == "ATT-13"


@pytest.mark.slow
def test_right_functions_are_not_accused() -> None:
    def sdpa(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
        options = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)
        return output if mask is None else torch.where(mask.any(-1, keepdim=True), output, 0)

    def plain_norm(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)

    for function, operation, dtypes in (
        (torch_impl.attention, "attention", ["float32"]),
        (torch_impl.layer_norm, "layer_norm", ["float32", "bfloat16"]),
        (declare(["dense", "scale", "gqa", "cross", "value_width", "gradients"])(sdpa), "attention", ["float32"]),
        (plain_norm, "layer_norm", ["float32", "float64"]),
    ):
        assert first_violation(function, operation, 1, dtypes) is None


# --- which violations are of memory -----------------------------------------------------------------------------------


def runner_in_torch(function: Callable[..., Any]) -> Runner:
    return runner_of(function, arrays="torch")


def test_only_what_contiguous_arrays_make_right_is_of_memory() -> None:
    shape = (2, 3, 4, 5)
    inputs = {name: values(shape) + i for i, name in enumerate(("query", "key", "value"))}
    case = Case("attention", "float32", inputs, memory={"value": "transposed"})
    strided = runner_in_torch(misread_array("attention", "value", as_if_contiguous))
    wrong = runner_in_torch(lambda query, key, value: 2 * torch_impl.attention(query, key, value))
    calls = iter(range(100))

    def now_and_then(query: Any, key: Any, value: Any) -> Any:
        return (1 + (next(calls) == 0)) * torch_impl.attention(query, key, value)

    sometimes = runner_in_torch(now_and_then)
    assert find_errors(sometimes, case)
    for check, example in (("agreement", case), ("twin", (case, case)), ("memory", case)):
        assert depends_on_layout(strided, CHECKS[check], example)
        assert not depends_on_layout(wrong, CHECKS[check], example)
        assert not depends_on_layout(sometimes, CHECKS[check], example)
    assert not depends_on_layout(strided, CHECKS["agreement"], replace(case, memory={}))


def test_a_view_may_be_refused_where_the_last_axis_has_another_stride_than_one() -> None:
    def refusing(axis: int) -> Runner:
        def function(query: Any, key: Any, value: Any) -> Any:
            if query.stride(axis) != torch.empty(query.shape).stride(axis):
                raise ValueError("strides")
            return torch_impl.attention(query, key, value)

        return runner_in_torch(function)

    inputs = {name: values((2, 3, 4, 5)) for name in ("query", "key", "value")}
    case = Case("attention", "float32", inputs)
    for layout in ("spaced", "column-major"):
        asked = replace(case, memory={"query": layout})
        assert not find_errors(refusing(-1), asked, "memory")
    asked = replace(case, memory={"query": "sliced"})
    (finding,) = find_errors(refusing(0), asked, "memory")
    assert describe_finding(finding) == "call: raised ValueError: strides"
