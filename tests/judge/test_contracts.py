"""What a function is asked, how, and what it is not asked: by its signature, its declaration, its gradients, its place.

Beside each honest function that conforms stands a wrong one of the same shape, which does not.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reference_numpy
import torch_impl
from conformance import Report, check, declare
from conformance.cases import features
from conformance.cases.signatures import signature_of
from conformance.models.agreement import comparable_packages
from conformance.operations import corpus
from conformance.operations.probes import refusals_of
from conformance.sampling.special import planted_cases
from conformance.selftest import selftest
from conformance.subjects.callables import load
from specification import And, Causal, Dense, KeyLengths, Linear, MultiHeadAttention, Or
from specification.masks import Mask
from tests.support.helpers import (
    DOCUMENTS,
    SMALL,
    Case,
    Declaration,
    NumpySubject,
    Target,
    attention_case,
    catalogue,
    declaration_of,
    describe_finding,
    draw_cases,
    examine,
    find_errors,
    judged,
    messages,
    normal,
    options_of,
    runner_of,
    violated,
)

Function = Callable[..., Any]
definition = NumpySubject()


def titles(report: Report) -> list[tuple[str, str]]:
    return [(violation.rule, violation.title) for violation in report.violations]


SIZES = {"B": 2, "G": 2, "S": 2, "Q": 3, "K": 5, "D": 6, "V": 7}


def multi_head_case(separate: bool = False, key_heads: int = 2) -> Case:
    """H=4, D=2, V=3, Q=3, K=5, with gradients."""
    inputs = {"query": normal(1, 2, 3, 6), "key": normal(2, 2, 5, 5), "value": normal(3, 2, 5, 4)}
    for name, width, heads, inner in (("query", 2, 4, 6), ("key", 2, key_heads, 5), ("value", 3, key_heads, 4)):
        whole = Linear(normal(4, inner, heads * width), normal(5, heads * width))
        for field, array in whole._asdict().items():
            if separate:
                parts = np.split(array, heads, axis=-1)
                inputs |= {f"{name}[{head}].{field}": part for head, part in enumerate(parts)}
            else:
                inputs[f"{name}.{field}"] = array
    inputs |= {"output.weight": normal(6, 12, 3), "sinks": normal(7, 4), "bias": normal(8, 1, 4, 3, 5)}
    return Case("multi_head_attention", "float32", inputs, {"num_heads": 4}, {"output": normal(9, 2, 3, 3)})


GRADED = attention_case(**SIZES, gradients=True)


# --- functions for gradients ------------------------------------------------------------------------------------------

GRADIENT_RULES = {
    "attention": "ATT-12",
    "attention_logsumexp": "ATT-14",
    "merge_attention": "ATT-14",
    "multi_head_attention": "MHA-1",
    "layer_norm": "NORM-6",
    "rms_norm": "NORM-6",
    "embedding": "EMB-1",
    "learned_positions": "POS-2",
    "feed_forward": "FFN-1",
    "gated_feed_forward": "FFN-2",
    "relative_position_bias": "POS-6",
}


@pytest.mark.parametrize("operation", GRADIENT_RULES)
@pytest.mark.slow_where("attention_logsumexp")
def test_gradients_come_as_those_of_the_definition(operation: str) -> None:
    function, vjp = (getattr(reference_numpy, name) for name in (operation, f"{operation}_vjp"))
    assert violated(function, GRADIENT_RULES[operation], operation=operation, vjp=vjp) == []


def attention(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, sinks: Any = None) -> Any:
    return reference_numpy.attention(query, key, value, mask=mask, bias=bias, sinks=sinks)


def as_tuple(query: Any, key: Any, value: Any, cotangent: Any, **options: Any) -> tuple[Any, ...]:
    """Only of the arguments that there are."""
    return tuple(g for g in reference_numpy.attention_vjp(query, key, value, cotangent, **options) if g is not None)


@pytest.mark.slow
def test_gradients_in_the_order_of_the_arguments() -> None:
    assert violated(attention, vjp=as_tuple) == []
    assert "ATT-12" in violated(attention, vjp=lambda *a, **o: as_tuple(*a, **o)[::-1])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "vjp returned builtins.NoneType, expected gradients of query, key, value"),
        ((1.0, 2.0), "vjp returned a tuple of 2, expected gradients of query, key, value"),
        ({"query": 3.0}, "vjp returned builtins.float as the gradient of query, expected numpy.ndarray"),
        (np.zeros(3), "vjp returned numpy.ndarray, expected gradients of query, key, value"),
    ],
)
def test_what_is_no_gradients_is_told(returned: Any, message: str) -> None:
    (finding,) = examine(runner_of(attention, vjp=lambda *given, **options: returned), GRADED)
    assert describe_finding(finding) == f"call: {message}"


def read_gradients(function: Function, case: Case, returned: Any) -> dict[str, np.ndarray]:
    """By the names of the case's inputs, of a function whose vjp has returned this."""
    target = Target(function, case.operation, given={"vjp": lambda *given, **options: returned})
    answers = target.make()(case)
    return {name: answers[f"gradient of {name}"] for name in case.inputs}


def test_nothing_stands_for_absent_arguments() -> None:
    case = replace(GRADED, inputs=GRADED.inputs | {"sinks": normal(4, 4)})
    gradients = [*case.inputs.values()]
    for returned in (tuple(gradients), [*gradients[:3], None, gradients[3]]):
        np.testing.assert_equal(read_gradients(reference_numpy.attention, case, returned), case.inputs)
    without_bias = lambda query, key, value, *, sinks=None: attention(query, key, value, sinks=sinks)  # noqa: E731
    np.testing.assert_equal(read_gradients(without_bias, case, gradients), case.inputs)


@pytest.mark.parametrize("separate", [False, True])
def test_gradients_of_parameters_are_structured_as_they_are(separate: bool) -> None:
    case = multi_head_case(separate)
    flat = {name: array for name, array in case.inputs.items() if "." in name}
    arrays = {name: array for name, array in case.inputs.items() if name not in flat}

    def linear(prefix: str) -> Linear:
        return Linear(flat[f"{prefix}.weight"], flat.get(f"{prefix}.bias"))

    def projection(name: str, heads: int) -> Any:
        return [linear(f"{name}[{head}]") for head in range(heads)] if separate else linear(name)

    inner = {"query": projection("query", 4), "key": projection("key", 2), "value": projection("value", 2)}
    parameters = MultiHeadAttention(**inner, output=linear("output"))
    given = {name: arrays[name] for name in ("query", "key", "value", "bias", "sinks")}
    function = reference_numpy.multi_head_attention
    for returned in ((parameters, *given.values()), {"parameters": parameters} | given, {"parameters": flat} | given):
        np.testing.assert_equal(read_gradients(function, case, returned), case.inputs)
    for wrong, which in ((3, "parameters, without query"), (parameters._replace(output=3), "the projection output")):
        vjp = lambda *arguments, wrong=wrong, **options: (wrong, *given.values())  # noqa: E731
        (finding,) = examine(runner_of(function, case.operation, vjp=vjp), case)
        assert describe_finding(finding) == f"call: vjp returned builtins.int for {which}"


def test_gradients_are_claimed_where_there_are_any() -> None:
    def claimed(framework: bool, supports: str, **given: Any) -> bool:
        return "gradients" in declaration_of(attention, framework, supports=supports, **given)

    assert [claimed(False, names) for names in ("no-bias", "causal", "refusals", "gradients")] == [False] * 3 + [True]
    assert claimed(True, "no-bias")
    assert claimed(False, "no-bias", vjp=as_tuple)


@pytest.mark.slow
def test_result_that_depends_on_nothing() -> None:
    def without_keys(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        if key.shape[2] == 0:
            return query.new_zeros(*query.shape[:3], value.shape[-1])
        return torch_impl.attention(query, key, value, mask=mask)

    def disconnected(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        with torch.no_grad():
            return torch_impl.attention(query, key, value, mask=mask)

    assert violated(without_keys, "ATT-8", "ATT-12", arrays="torch") == []
    assert violated(disconnected, "ATT-8", "ATT-12", arrays="torch") == ["ATT-12"]


# --- signatures -------------------------------------------------------------------------------------------------------


def by_place(query: Any, key: Any, value: Any, mask: Any, scale: Any) -> Any:
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


def by_place_alone(query: Any, key: Any, value: Any, mask: Any = None, scale: Any = None, /) -> Any:
    return by_place(query, key, value, mask, scale)


def any_keyword(query: Any, key: Any, value: Any, **options: Any) -> Any:
    if options.keys() - {"mask", "scale"}:
        raise TypeError("got an unexpected keyword argument")
    return reference_numpy.attention(query, key, value, **options)


def unscaled(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return any_keyword(query, key, value, **options | {"scale": None})


def half_of_dropout(query: Any, key: Any, value: Any, *, mask: Any = None, dropout_keep: Any = None) -> Any:
    return reference_numpy.attention(query, key, value, mask=mask)


def plain_heads(parameters: Any, query: Any, key: Any, value: Any, num_heads: int, mask: Any = None) -> Any:
    return reference_numpy.multi_head_attention(parameters, query, key, value, num_heads=num_heads, mask=mask)


layer_norm = reference_numpy.layer_norm
FUNCTIONS: dict[str, tuple[Function, str]] = {
    "by place": (by_place, "attention"),
    "by place alone": (by_place_alone, "attention"),
    "any keyword": (any_keyword, "attention"),
    "half of dropout": (half_of_dropout, "attention"),
    "norm without bias": (lambda x, weight, *, eps=1e-5: layer_norm(x, weight, None, eps=eps), "layer_norm"),
    "norm without eps": (lambda x, weight, bias: layer_norm(x, weight, bias), "layer_norm"),
    "norm by place": (lambda x, weight, bias, eps: layer_norm(x, weight, bias, eps=eps), "layer_norm"),
    "norm of two": (lambda x, weight, eps, bias=None: layer_norm(x, weight, bias, eps=eps), "layer_norm"),
    "norm with epsilon": (lambda x, weight, epsilon=1e-5: layer_norm(x, weight, None, eps=epsilon), "layer_norm"),
    "norm with shift": (lambda x, weight, shift=None: layer_norm(x, weight, shift), "layer_norm"),
    "lookup": (lambda table, ids: reference_numpy.embedding(table, ids), "embedding"),
    "network": (lambda parameters, x: reference_numpy.feed_forward(parameters, x), "feed_forward"),
    "sinusoids": (lambda length, width: reference_numpy.sinusoidal_positions(length, width), "sinusoidal_positions"),
    "rows": (lambda table, length: reference_numpy.learned_positions(table, length), "learned_positions"),
    "heads": (plain_heads, "multi_head_attention"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_that_a_function_lacks_are_not_asked_about(name: str) -> None:
    function, operation = FUNCTIONS[name]
    assert violated(function, operation=operation, supports="refusals,no-gradients") == []

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        return result + result.dtype.type(0.5)

    wrong.__wrapped__ = function  # type: ignore[attr-defined]
    assert violated(wrong, operation=operation)


def test_a_norm_with_an_epsilon_in_the_place_of_the_bias_conforms() -> None:
    report = judged(FUNCTIONS["norm with epsilon"][0], "NORM-1", operation="layer_norm")
    assert report.conforms, str(report)
    assert report.never_given == ("epsilon",)


def test_documented_feed_forward_conforms() -> None:
    """The example in docs/judging.md."""
    (example,) = re.findall(r"```python\n(def feed_forward.*?)```", (DOCUMENTS / "judging.md").read_text(), re.DOTALL)
    names = dict(vars(importlib.import_module("reference_numpy.feed_forward")))
    exec(example, names)
    report = judged(names["feed_forward"], "FFN-1", operation="feed_forward", arrays="numpy")
    assert report.conforms, str(report)


def test_arguments_that_every_call_has_are_asked_for() -> None:
    found = messages(judged(lambda x, weight: reference_numpy.rms_norm(x, weight, eps=1e-6), operation="rms_norm"))
    assert [*found] == ["CALL"]
    assert "unexpected keyword argument 'eps'" in found["CALL"]


@pytest.mark.slow
def test_any_keyword_is_found_out_by_asking() -> None:
    assert declaration_of(any_keyword, False).unsure >= {"softcap", "bias", "sinks", "scale", "causal"}
    assert "ATT-1" in violated(unscaled)
    assert "ATT-2" in violated(any_keyword, supports="dense,scale,softcap")  # it has been named, and is refused
    report = judged(any_keyword)
    assert "ATT-2" not in report.rules
    assert {"softcap", "bias", "sinks"}.isdisjoint(report.declaration.features)
    assert "scale" in report.declaration


def test_arguments_are_handed_over_as_the_function_has_them() -> None:
    def bound(name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        return signature_of(*FUNCTIONS[name]).bind_arguments(arguments, options)

    mask = np.ones((3, 5), bool)
    assert bound("by place", [1, 2, 3], {"mask": mask}) == ([1, 2, 3], {"mask": mask, "scale": None})
    assert bound("by place alone", [1, 2, 3], {"scale": 2.0}) == ([1, 2, 3, None, 2.0], {})
    assert bound("norm of two", [1, 2, 3], {}) == ([1, 2], {"bias": 3, "eps": 1e-5})
    assert bound("norm without bias", [1, 2, None], {}) == ([1, 2], {})
    assert bound("norm without eps", [1, 2, None], {"eps": 1e-5}) == ([1, 2, None], {})
    assert bound("norm with epsilon", [1, 2, None], {}) == ([1, 2], {})
    assert bound("norm with shift", [1, 2, 3], {}) == ([1, 2, 3], {})
    assert signature_of(print, "attention").bind_arguments([1, 2, 3], {"scale": None}) == ([1, 2, 3], {})
    lacking = {name: signature_of(*function).lacking for name, function in FUNCTIONS.items()}
    assert lacking["norm with epsilon"] == {"bias", "eps"}
    assert lacking["sinusoids"] == {"offset", "exponent", "dtype"}
    assert lacking["any keyword"] == set()


def test_arguments_that_a_case_needs() -> None:
    case = Case("layer_norm", "float32", {"x": normal(1, 3, 4), "weight": normal(2, 4)}, {"eps": 1e-5})
    lacking = Declaration(lacking=frozenset({"bias", "eps"}))
    assert features.supports_case(case, lacking)
    assert not features.supports_case(replace(case, options={"eps": 1e-6}), lacking)


@pytest.mark.filterwarnings("ignore")  # what torch.compile imports
def test_module_by_its_forward() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
            return torch_impl.attention(query, key, value, mask=mask, scale=scale)

    for function in (Attention(), torch.compile(Attention()), torch.no_grad()(Attention().forward)):
        declaration = declaration_of(function, True)
        assert {"softcap", "bias", "sinks"}.isdisjoint(declaration.features)
        assert {"scale", "dense"} <= declaration.features
        assert not declaration.unsure
    assert violated(Attention(), "ATT-1", "ATT-2", "ATT-8", arrays="torch") == []


# --- what is declared, and where ---


def test_what_is_given_and_declared_stands_side_by_side() -> None:
    """What the caller says of one convention or size leaves the function's others as they are."""
    own: dict[str, Any] = {
        "conventions": {"heads": "tiled", "isolation": "finite"},
        "limits": {"queries": 1, "keys": 64},
    }
    given: dict[str, Any] = {
        "conventions": {"heads": "repeated", "weights": "inputs"},
        "limits": {"keys": 9, "batch": 2},
    }
    found = declaration_of(declare(**own)(lambda query, key, value: query), False, **given)
    assert found.conventions == {"heads": "repeated", "isolation": "finite", "weights": "inputs"}
    assert found.limits == {"queries": 1, "keys": 9, "batch": 2}


# --- masks in conventions of their own --------------------------------------------------------------------------------

PER_HEAD = Dense(np.random.default_rng(5).random((2, 4, 3, 5)) < 0.7)
NESTED = [PER_HEAD, And(Causal(1), PER_HEAD), Or(And(PER_HEAD, KeyLengths(np.array([3, 5]))), Causal(0))]


def spread(mask: Any, change: Callable[[Any], Any], Q: int, K: int) -> Any:
    """The array of a description, each of its own arrays changed."""
    if isinstance(mask, And | Or):
        left, right = (spread(side, change, Q, K) for side in (mask.left, mask.right))
        return left & right if isinstance(mask, And) else left | right
    changed = Dense(change(mask.array)) if isinstance(mask, Dense) else mask
    return reference_numpy.materialize(changed, Q, K, batch=2, heads=4)


def tiled(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    if key.shape[1] and query.shape[1] % key.shape[1]:
        raise ValueError("heads that do not fit")
    heads = np.arange(query.shape[1]) % max(key.shape[1], 1)
    return reference_numpy.attention(query, key[:, heads], value[:, heads], mask=mask)


def inverted(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    mask = spread(mask, np.logical_not, query.shape[2], key.shape[2])
    return reference_numpy.attention(query, key, value, mask=mask)


@pytest.mark.parametrize("mask", NESTED)
@pytest.mark.parametrize(("function", "conventions"), [(tiled, {"heads": "tiled"}), (inverted, {"polarity": "masked"})])
def test_conventions_hold_within_combined_descriptions(mask: Any, function: Function, conventions: Any) -> None:
    case = attention_case(**SIZES, mask=mask)
    for supports in (["structured"], None) if function is tiled else (["structured"],):  # None: as an array
        given = {"supports": supports, "conventions": conventions}
        answers = Target(function, "attention", given=given).make()(case)
        np.testing.assert_allclose(answers["output"], definition(case)["output"], rtol=1e-5, atol=1e-6)


def test_tiled_heads_are_offered_as_a_convention() -> None:
    assert options_of(judged(tiled, "ATT-7")) == ["--conventions heads=tiled"]


FLAG = ["structured", "causal", "no-offset", "scale", "gqa", "cross", "value_width"]


def with_flag(bottom: bool = False, refuses: bool = True) -> Function:
    """A kernel that has a flag for one causal mask, from the top left or the bottom right."""

    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        aligned = key.shape[2] - query.shape[2] if bottom else 0
        if refuses and not (mask is None or (isinstance(mask, Causal) and mask.offset in (None, aligned))):
            raise NotImplementedError("no mask but the causal one")
        causal = None if mask is None else Causal(aligned)
        return reference_numpy.attention(query, key, value, mask=causal, scale=scale)

    return attention


@pytest.mark.slow
@pytest.mark.rule("MASK-3")
@pytest.mark.parametrize("bottom", [False, True])
def test_kernels_with_a_causal_flag(bottom: bool) -> None:
    """Are asked for the one mask that the flag means, and must not take others for it."""
    said = {"dtypes": None, "supports": FLAG, "conventions": {"causal": "bottom_right" if bottom else "top_left"}}
    assert violated(with_flag(bottom), **said) == []
    assert {"MASK-1", "MASK-2", "MASK-3", "MASK-4"} <= set(violated(with_flag(bottom, refuses=False), **said))
    assert "MASK-3" in violated(with_flag(not bottom, refuses=False), **said)


@pytest.mark.rule("MASK-3")
def test_offsets_come_with_causal_masks() -> None:
    assert "offset" in declaration_of(with_flag(), False, supports=["structured", "causal"])
    assert "offset" not in declaration_of(with_flag(), False, supports=FLAG)
    assert features.features_of(attention_case(**SIZES, mask=Causal(2))) >= {"causal", "offset"}
    assert "offset" not in features.features_of(attention_case(**SIZES, mask=Causal(0) & KeyLengths(np.array([1, 5]))))


def test_description_is_no_array_for_who_takes_no_arrays() -> None:
    whole = Declaration()
    by_place, without_arrays = whole.remove_features("structured", "dense"), whole.remove_features("dense")
    for said, found in ((without_arrays, False), (by_place, True), (whole, True)):
        assert any(probe.check.name == "description" for probe in catalogue(said)) == found
        assert any(entry.check.name == "description" for entry in corpus.entries_for({"attention"}, said)) == found


def test_attended_nan_is_nowhere_hidden_by_a_bias() -> None:
    """Where a subject promises nothing of what is hidden."""
    cases = planted_cases("attended", Declaration(conventions={"isolation": "finite"}), focus=("bias",))
    drawn = [planted for _, planted in draw_cases(cases, 30, 1)]
    assert drawn
    assert all(planted.allowed.all() for planted in drawn)


@pytest.mark.parametrize("kind", ["mean", "nan", "any"])
@pytest.mark.slow
def test_conventions_for_empty_rows_promise_no_log_sum_exp(kind: str) -> None:
    given = {"dtypes": None, "conventions": {"empty_rows": kind}, "supports": "no-gradients"}
    assert violated(reference_numpy.attention_logsumexp, operation="attention_logsumexp", **given) == []


# --- multi-head attention ---------------------------------------------------------------------------------------------


def test_features_of_multi_head_attention() -> None:
    for separate in (False, True):
        case = multi_head_case(separate)
        assert features.features_of(case) == {"gradients", "gqa", "cross", "value_width", "bias", "sinks"}
        assert "gqa" not in features.features_of(multi_head_case(separate, key_heads=4))
        assert features.supports_case(case, Declaration())
        assert not features.supports_case(case, Declaration(width_multiple=2))
        assert not features.supports_case(case, Declaration().remove_features("cross"))


@pytest.mark.parametrize("separate", [False, True])
def test_tiled_heads_in_multi_head_attention(separate: bool) -> None:
    """With gradients; the function reads key head h % G."""

    def repeated(projection: Any, width: int, heads: int) -> Linear:
        if not isinstance(projection, Linear):
            parts = zip(*((head.weight, head.bias) for head in projection), strict=True)
            projection = Linear(*(torch.cat(part, -1) for part in parts))
        places = torch.arange(heads) % (projection.weight.shape[1] // width)
        columns = (places[:, None] * width + torch.arange(width)).reshape(-1)
        return Linear(projection.weight[:, columns], projection.bias[columns])

    def function(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, **options: Any) -> Any:
        own = {"key": repeated(parameters.key, 2, num_heads), "value": repeated(parameters.value, 3, num_heads)}
        parameters = parameters._replace(**own)
        return torch_impl.multi_head_attention(parameters, query, key, value, num_heads=num_heads, **options)

    case = multi_head_case(separate)
    expected = definition(case)
    target = Target(function, case.operation, "torch", given={"conventions": {"heads": "tiled"}})
    got = target.make()(case)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_what_multi_head_attention_does_not_support_is_refused() -> None:
    def ungrouped(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, softcap: Any = None) -> Any:
        """No grouped heads; the softcap is neither taken nor refused."""
        heads = [part if isinstance(part, list) else [part] for part in (parameters.query, parameters.key)]
        widths = [sum(head.weight.shape[1] for head in part) for part in heads]
        if widths[0] != widths[1]:
            raise NotImplementedError("grouped heads")
        return reference_numpy.multi_head_attention(parameters, query, key, value, num_heads=num_heads)

    report = judged(ungrouped, operation="multi_head_attention", supports="no-gqa,no-softcap")
    assert titles(report) == [("MHA-1", "softcap is not supported")]
    assert describe_finding(report.violations[0].finding).startswith("output: neither supported nor refused")
    report = judged(ungrouped, operation="multi_head_attention", supports="no-softcap")
    assert ("MHA-1", "takes gqa") in titles(report)


# --- masks and widths that a kernel lacks ---


def first_mask(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    while isinstance(mask, And | Or):
        mask = mask.left
    return reference_numpy.attention(query, key, value, mask=mask)


def has_or(mask: Any) -> bool:
    return isinstance(mask, Or) or (isinstance(mask, And) and (has_or(mask.left) or has_or(mask.right)))


def refuse_masks(refused: Callable[[Any], bool]) -> Function:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        if refused(mask):
            raise NotImplementedError("such masks")
        return reference_numpy.attention(query, key, value, mask=mask)

    return attention


@pytest.mark.parametrize(
    ("refused", "lacks", "declared"),
    [(lambda mask: isinstance(mask, And | Or), "no-combined", "no-combined,no-or"), (has_or, "no-or", "no-or")],
    ids=["combined", "joined by or"],
)
def test_masks_that_are_not_combined(refused: Callable[[Any], bool], lacks: str, declared: str) -> None:
    rules = ("MASK-3", "MASK-6")
    report = judged(refuse_masks(refused), *rules, supports="structured")
    assert [violation.rule for violation in report.violations] == ["MASK-6"]
    assert options_of(report) == [f"--supports {declared}"]
    assert violated(refuse_masks(refused), *rules, supports=f"structured,{lacks}") == []
    assert violated(first_mask, *rules, supports=f"structured,{lacks}") == ["MASK-6"]


@pytest.mark.parametrize(
    ("supports", "combined"),
    [("causal", False), ("causal,lengths", True), ("causal,lengths,no-combined", False), ("no-combined", False)],
)
def test_several_kinds_of_masks_come_combined(supports: str, combined: bool) -> None:
    assert ("combined" in declaration_of(first_mask, False, supports=supports)) == combined


@pytest.mark.parametrize("supports", [None, "no-interleaved"])
def test_the_limit_of_a_table_is_offered(supports: str | None) -> None:
    """Not what a claim of the same error lacks, nor a size that was refused, as `interleaved` is here."""

    def rotary_embedding(x: Any, positions: Any, *, base: float = 10000.0, pairing: str = "halves") -> Any:
        if np.max(positions, initial=0) >= 512:
            raise IndexError("past the table")
        if supports and pairing == "interleaved":
            raise NotImplementedError("halves only")
        return reference_numpy.rotary_embedding(x, positions, base=base, pairing=pairing)

    given: dict[str, Any] = {"operation": "rotary_embedding", "supports": supports, "limits": {}}
    [options] = options_of(judged(rotary_embedding, **given, shrink=True))
    name, _, size = options.removeprefix("--limits ").partition("=")
    assert name == "table"
    assert 1 < int(size) <= 512
    assert violated(rotary_embedding, **given | {"limits": {"table": int(size)}}) == []


def test_no_limit_is_offered_where_larger_sizes_are_right() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        if key.shape[2] > 200 and key.shape[2] % 128:
            raise ValueError("keys")
        return reference_numpy.attention(query, key, value, mask=mask)

    report = check(attention, "attention", effort="quick", seed=1, rules="MASK-1")
    assert [violation.rule for violation in report.violations] == ["MASK-1"]
    assert report.causes[0].limits == {}


ANY_WIDTH = {name: size for name, size in SMALL.items() if not name.endswith("width")}


def at_widths(*pairs: tuple[int, int]) -> Function:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        if (query.shape[-1], value.shape[-1]) not in pairs:
            raise NotImplementedError("head width")
        return reference_numpy.attention(query, key, value, mask=mask)

    return attention


@pytest.mark.parametrize("widths", [[8, 16], [(24, 16)], [8, (24, 16)]], ids=str)
@pytest.mark.slow_where("[8, ")
def test_head_widths_that_are_declared(widths: list[Any]) -> None:
    pairs = [width if isinstance(width, tuple) else (width, width) for width in widths]
    given: dict[str, Any] = {"rules": ["CALL", "ATT-1"], "head_widths": widths, "limits": ANY_WIDTH}
    assert violated(at_widths(*pairs), **given) == []
    assert violated(at_widths(*pairs[:-1], (8, 24)), **given) == (["CALL"] if len(pairs) == 1 else ["ATT-1"])


def every_width(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """What is left of a width after blocks of 2 is not read, and not refused."""
    whole = query.shape[-1] // 2 * 2
    scale = query.shape[-1] ** -0.5
    return reference_numpy.attention(query[..., :whole], key[..., :whole], value, mask=mask, scale=scale)


@pytest.mark.slow
def test_other_head_widths_are_refused() -> None:
    report = judged(every_width, "ATT-8", head_widths=[8, 16], limits=ANY_WIDTH)
    assert titles(report) == [("ATT-8", "another head width")]


# --- norms ------------------------------------------------------------------------------------------------------------


def last_axis(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
    if weight.ndim > 1:
        raise NotImplementedError("one axis")
    return reference_numpy.layer_norm(x, weight, bias, eps=eps)


def last_axis_unchecked(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
    y = reference_numpy.layer_norm(x, np.ones(x.shape[-1:], x.dtype), None, eps=eps) * weight
    return (y if bias is None else y + bias).astype(x.dtype)


def test_a_norm_of_the_last_axis_alone() -> None:
    given: dict[str, Any] = {"operation": "layer_norm", "profile": "strict", "rules": ["NORM-1", "NORM-3"]}
    given["limits"] = {"rows": 16, "norm_width": 64}
    undeclared = judged(last_axis, **given)
    assert titles(undeclared) == [("NORM-1", "takes axes")]
    assert undeclared.rules["NORM-3"].cases > 0
    assert judged(last_axis, supports="no-axes", **given).conforms
    silent = judged(last_axis_unchecked, supports="no-axes", **given)
    assert titles(silent) == [("NORM-1", "axes is not supported")]


# --- what must be refused ---------------------------------------------------------------------------------------------


def other_layout(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, bias: Any = None) -> Any:
    query, key, value = (np.swapaxes(array, 1, 2) if array.ndim == 4 else array for array in (query, key, value))
    return np.swapaxes(reference_numpy.attention(query, key, value, mask=mask, scale=scale, bias=bias), 1, 2)


def arrays_only(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    if isinstance(mask, Mask):
        raise RuntimeError("no descriptions here")
    return reference_numpy.attention(query, key, value, mask=mask)


def descriptions_only(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """Causal ones, aligned at the last key where nothing else is said."""
    if not isinstance(mask, Causal | None):
        raise RuntimeError("no such masks here")
    if mask is not None and mask.offset is None:
        mask = Causal(key.shape[2] - query.shape[2])
    return reference_numpy.attention(query, key, value, mask=mask)


BY_DESCRIPTION = "refusals,structured,causal,gqa,cross,value_width"


def widths_of_eight(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    if query.dtype != np.float16 or query.shape[-1] % 8 or value.shape[-1] != key.shape[-1]:
        raise RuntimeError("no kernel for this")
    if query.ndim == 4 and (query.shape[1] != key.shape[1] or query.shape[2] != key.shape[2]):
        raise RuntimeError("no kernel for this")
    return reference_numpy.attention(query, key, value, mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (other_layout, {"layout": "BTHD", "supports": "refusals,no-gradients"}),
        (arrays_only, {"supports": "refusals,no-gradients"}),
        (tiled, {"supports": "refusals,no-gradients", "conventions": {"heads": "tiled"}}),
        (descriptions_only, {"supports": BY_DESCRIPTION, "conventions": {"causal": "bottom_right"}}),
    ],
)
def test_refusals_are_asked_as_everything_else(function: Function, given: Any) -> None:
    """In the function's layout and conventions, with what it has parameters for, and nothing that it gives a sense."""
    assert violated(function, dtypes=None, **given) == []


def test_refusals_in_sizes_that_the_function_takes() -> None:
    supports = ["refusals", "no-gqa", "no-cross", "no-value_width", "no-gradients"]
    given = {"supports": supports, "width_multiple": 8, "dtypes": "float16"}
    target = Target(widths_of_eight, "attention", given=given)
    own = refusals_of("attention", target.make().declaration)
    assert {"ATT-8", "ATT-9", "MASK-1", "MASK-5"} <= {refusal.rule for refusal in own}
    misfit = {refusal.title: refusal.error for refusal in own if refusal.rule == "ATT-7"}
    assert misfit == {"4 query heads, 3 key heads": Exception}  # which it may refuse for having no grouped heads
    shapes = {refusal.case.inputs["query"].shape for refusal in own if refusal.rule.startswith("MASK")}
    assert shapes == {(2, 4, 3, 8)}
    assert {refusal.case.dtype for refusal in own} == {"float16"}


def test_what_is_accepted_is_found_in_every_convention() -> None:
    """Who refuses nothing is told so, and errors in asking are never taken for refusals."""
    for given in ({}, {"layout": "BTHD"}, {"conventions": {"heads": "tiled", "polarity": "masked"}}):
        runner = runner_of(take_anything, supports="refusals", **given)
        own = refusals_of("attention", runner.declaration)
        assert len(own) > 10
        assert all(find_errors(runner, refusal, "refusal") for refusal in own)


def take_anything(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)


# --- where functions are found ----------------------------------------------------------------------------------------

LAZY = """
def attention(query, key, value):
    from helper_of_lazy import attend
    return attend(query, key, value)
"""
CONFIGURED = """
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass

@dataclass
class Config:
    scale: int = 3
    _: KW_ONLY
    width: float = 2

def attention(query, key, value):
    return Config().width
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_functions_may_import_from_their_folder_later(folder: Path) -> None:
    (folder / "lazy.py").write_text(LAZY)
    (folder / "helper_of_lazy.py").write_text("def attend(query, key, value):\n    return query + key + value\n")
    assert load(f"{folder}/lazy.py:attention")(1, 2, 3) == 6
    load(f"{folder}/lazy.py:attention")
    assert sys.path.count(str(folder)) == 1
    assert sys.path[0] != str(folder)


def test_file_of_a_name_that_is_taken(folder: Path) -> None:
    import queue

    (folder / "queue.py").write_text(CONFIGURED)
    assert load(f"{folder}/queue.py:attention")(1, 2, 3) == 2
    assert sys.modules["queue"] is queue


@pytest.mark.parametrize("base", ["Exception", "BaseException", "SystemExit", "GeneratorExit"])
def test_import_that_raises_anything(folder: Path, base: str) -> None:
    (folder / "raising.py").write_text(f"raise type('Stop', ({base},), {{}})('at import')\n")
    with pytest.raises(ValueError, match=r"raising\.py cannot be imported: Stop: at import"):
        load(f"{folder}/raising.py:attention")


def test_interrupt_while_importing_is_an_interrupt(folder: Path) -> None:
    (folder / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load(f"{folder}/interrupted.py:attention")


def test_module_in_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "kernels_here.py").write_text("def attention(query, key, value):\n    return 7\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    assert load("kernels_here:attention")(1, 2, 3) == 7


# --- names in a string ------------------------------------------------------------------------------------------------


def test_every_list_of_names_may_be_a_string() -> None:
    """It holds one name or several with commas, and never one for each letter."""
    for given in ("ATT-1, ATT-2,", ["ATT-1", "ATT-2"], ["ATT-1,ATT-2"]):
        assert judged(lambda query: query, rules=given, arrays="numpy").chosen == ("ATT-1", "ATT-2")
    for given, wrong in (("ATT-1,no", "no"), (["ATT-1", "no"], "no"), ("A", "A")):
        with pytest.raises(ValueError, match=f"rules: got '{wrong}', expected one of"):
            check(every_width, "attention", rules=given)
    assert comparable_packages("reference_numpy,torch_impl", "float64") == ["torch_impl"]
    with pytest.raises(ValueError, match="packages: got 'torch', expected one of reference_numpy, torch_impl"):
        comparable_packages("torch", "float32")
    words = "masks.inverted"
    assert selftest.choose_planted("ATT-5,MASK-7") == selftest.choose_planted(["ATT-5", "MASK-7"])
    assert (
        len(selftest.choose_planted(words))
        == len(selftest.choose_planted([words]))
        < len(selftest.choose_planted(None))
    )
