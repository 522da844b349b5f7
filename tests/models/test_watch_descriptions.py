"""`conformance watch` of functions that take mask descriptions: which one they get, and what is caught by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import conformance
from conformance.cases.features import unsupported_features
from conformance.cases.signatures import declaration_of
from conformance.checks.levels import CORE, STRICT
from conformance.judge.watched import JudgedCall, judge_calls
from conformance.models.named_attention import adapt_function
from conformance.models.watching import watch
from conformance.reports.watched import call_cells, mask_name
from conformance.subjects.mask_descriptions import plainest_description
from reference_numpy import materialize
from specification import Causal, Dense, KeyLengths, KeyPadding, SlidingWindow
from specification.masks import And, Mask
from tests.support import hugging_face as hf
from tests.support.helpers import Case
from torch_impl import attention as definition

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is their own
DOCUMENT = Path(__file__).parents[2] / "docs" / "adapters.md"
SUPPORTS = "structured,causal,no-offset,window,lengths,scale,gqa,cross,gradients"


def kernel(change: Callable[[Any], Any], supports: str = SUPPORTS) -> Callable[..., Any]:
    """The definition, with another mask in the place of what it is given."""

    @conformance.declare(supports, conventions={"causal": "top_left"})
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
        assert mask is None or isinstance(mask, Mask)
        return definition(query, key, value, mask=change(mask), scale=scale)

    return attention


def unchanged(mask: Any) -> Any:
    return mask


def run(function: Callable[..., Any], family: str = "llama", **inputs: Any) -> list[JudgedCall]:
    with hf.registered(adapt_function(function)) as name:
        return judge_calls(watch(hf.small_model(family, name), hf.inputs(**inputs)))


def shown(calls: list[JudgedCall]) -> set[tuple[str, str]]:
    """What the table says of the masks."""
    return {(str(cells[3]), str(cells[4])) for cells in (call_cells(call, STRICT) for call in calls)}


# --- what a function is given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "padded", "names"),
    [
        ("llama", "", {("causal", "Causal")}),
        ("llama", "right", {("causal, padding", "Causal & KeyLengths")}),
        ("mistral", "", {("window 4", "SlidingWindow")}),
        pytest.param("bert", "right", {("padding", "KeyLengths")}, marks=pytest.mark.slow),
        pytest.param("bert", "", {("none", "none")}, marks=pytest.mark.slow),
    ],
)
def test_a_function_gets_the_description_that_the_mask_equals(
    family: str, padded: str, names: set[tuple[str, str]]
) -> None:
    calls = run(kernel(unchanged), family, padded=padded)
    assert shown(calls) == names
    assert all(call.is_judged and call.conforms(STRICT) for call in calls)


def documented_adapter() -> Callable[..., Any]:
    """The first adapter of the document for a kernel with a causal flag, around PyTorch's own kernel."""

    def my_kernel(query: Any, key: Any, value: Any, *, is_causal: bool, sm_scale: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=sm_scale, enable_gqa=True
        )

    (code,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
        if "my_kernel(query, key, value, is_causal" in code
    )
    names: dict[str, Any] = {"conformance": conformance, "Causal": Causal, "my_kernel": my_kernel}
    exec(code, names)
    return names["attention"]


def test_the_documented_causal_flag_runs() -> None:
    calls = run(documented_adapter())
    assert shown(calls) == {("causal", "Causal")}
    assert all(call.conforms(STRICT) for call in calls)


def test_what_is_not_declared_is_named_with_its_layer() -> None:
    for padded, family, needed in (("right", "llama", "lengths, combined"), ("", "mistral", "window")):
        with pytest.raises(TypeError, match=f"the call needs {needed}, which the function does not declare") as error:
            run(documented_adapter(), family, padded=padded)
        assert error.value.__notes__ == ["model.layers.0.self_attn"]


def test_a_function_of_arrays_gets_arrays() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
        assert mask.dtype == torch.bool
        return definition(query, key, value, mask=mask, scale=scale)

    assert shown(run(attention)) == {("causal", "booleans")}
    conformance.declare("causal,scale,gqa")(attention)
    assert shown(run(attention)) == {("causal", "booleans")}
    with pytest.raises(TypeError, match="the call needs window, which"):
        run(attention, "mistral")


# --- what is caught by it ---------------------------------------------------------------------------------------------


def later(mask: Any) -> Any:
    """One key too many, in the causal path alone."""
    return Causal(1) if isinstance(mask, Causal) else mask


def wider(mask: Any) -> Any:
    return SlidingWindow(mask.left + 1, mask.right, mask.offset) if isinstance(mask, SlidingWindow) else mask


def longer(mask: Any) -> Any:
    return And(mask.left, KeyLengths(mask.right.lengths.clamp(max=11) + 1)) if isinstance(mask, And) else mask


@pytest.mark.parametrize(
    ("change", "family", "padded", "rules"),
    [
        (later, "llama", "", {"MASK-3"}),
        pytest.param(wider, "mistral", "", {"MASK-4"}, marks=pytest.mark.slow),
        pytest.param(longer, "llama", "right", {"MASK-2", "MASK-6"}, marks=pytest.mark.slow),
    ],
)
def test_a_mistake_in_the_path_of_one_description_is_caught(
    change: Callable[[Any], Any], family: str, padded: str, rules: set[str]
) -> None:
    for call in run(kernel(change), family, padded=padded):
        assert not call.conforms(CORE)
        assert call.violation.rule in rules


def test_nan_is_a_special_value_and_no_shape() -> None:
    """The next layer's inputs are not numbers, and it is not said to conform."""

    @conformance.declare(SUPPORTS, conventions={"causal": "top_left"})
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
        output = definition(query, key, value, mask=mask, scale=scale)
        return torch.where(torch.arange(output.shape[2])[:, None] == 0, torch.nan, output)

    first, second = run(attention)
    assert first.violation.rule == "ATT-10"
    assert str(call_cells(second, STRICT)[-1]) == "not judged in full; its inputs hold NaN or infinities"


# --- which description it is ------------------------------------------------------------------------------------------

ROWS = np.arange(6) < np.array([6, 3])[:, None]
EQUAL: list[tuple[Any, str, Any]] = [
    (None, "causal,lengths", None),
    (None, "lengths,no-unmasked", KeyLengths(np.array([6, 6]))),
    (Causal(0), "causal", Causal(0)),
    (Causal(0), "window", SlidingWindow(None, 0, 0)),
    (Causal(0), "dense", Dense(np.broadcast_to(materialize(Causal(0), 6, 6), (2, 1, 6, 6)))),
    (SlidingWindow(1, 1, 0), "causal,window", SlidingWindow(1, 1, 0)),
    (KeyLengths(np.array([6, 3])), "lengths,padding", KeyLengths(np.array([6, 3]))),
    (KeyLengths(np.array([6, 3])), "padding", KeyPadding(ROWS)),
    (KeyPadding(ROWS[:, ::-1]), "lengths,padding", KeyPadding(ROWS[:, ::-1])),
    (Causal(0) & KeyLengths(np.array([5, 3])), "causal,lengths", Causal(0) & KeyLengths(np.array([5, 3]))),
    (SlidingWindow(1, 0, 0) & KeyLengths(np.array([6, 3])), "window,lengths", None),
]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if not isinstance(one, Mask):
        return bool(np.array_equal(one, other))
    return all(same(getattr(one, name), getattr(other, name)) for name in vars(one))


@pytest.mark.parametrize(("mask", "supports", "expected"), EQUAL)
def test_the_first_description_that_is_declared_is_taken(mask: Any, supports: str, expected: Any) -> None:
    declared = declaration_of(kernel(unchanged, f"structured,{supports}"), True)
    found = plainest_description(declared, mask, 2, 6, 6)
    assert (materialize(found, 6, 6) == materialize(mask, 6, 6)).all()
    if isinstance(mask, And) and expected is None:
        assert (type(found.left), type(found.right)) == (SlidingWindow, KeyLengths)
    else:
        assert same(found, expected), found


def test_a_declared_window_is_taken_where_the_text_is_shorter() -> None:
    attention = kernel(unchanged)
    conformance.declare("structured,window,no-offset", windows=[(31, 0)])(attention)
    declared = declaration_of(attention, True)
    found = plainest_description(declared, Causal(0), 2, 6, 6)
    assert same(found, SlidingWindow(31, 0, 0))
    inputs = {name: np.zeros((2, 1, 6, 2), np.float32) for name in ("query", "key", "value")}
    case = Case("attention", "float32", inputs, {"mask": found})
    assert (mask_name(case), list(unsupported_features(case, declared))) == ("window 32", [])
    assert list(
        unsupported_features(Case("attention", "float32", inputs, {"mask": SlidingWindow(3, 0, 0)}), declared)
    ) == ["windows 3/0"]
