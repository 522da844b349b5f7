"""Failing cases are cut to the smallest size along every dimension, and a sentence says where the failure begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, get_args

import numpy as np
import pytest

import reference_numpy
from conformance import declare
from conformance.checks.findings import AxisName
from conformance.judge import thresholds
from conformance.judge.smallest_case import cut_down
from conformance.reports import threshold_sentences
from conformance.runner.dimensions import Part, sizes_of, take_parts
from specification import Causal, Dense
from tests.support.helpers import (
    EVERYTHING,
    OPERATIONS,
    Case,
    Runner,
    Threshold,
    Violation,
    attention_case,
    draw_cases,
    find_errors,
    find_violation,
    operation_cases,
    oracle,
    planted_case,
    runner_of,
)
from tests.support.targets import neighbours

Function = Callable[..., Any]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def norm_case(*shape: int, gradients: bool = False) -> Case:
    inputs = {"x": numbers(*shape), "weight": numbers(shape[-1]), "bias": numbers(shape[-1])}
    return Case("layer_norm", "float32", inputs, {}, {"output": numbers(*shape)} if gradients else {})


def smallest(function: Function, example: Any, check: str = "agreement", **given: Any) -> tuple[Violation, Runner]:
    """The violation on its smallest case."""
    runner = runner_of(function, example.operation if isinstance(example, Case) else "attention", **given)
    return cut_down(find_violation(runner, example, check), runner, 60), runner


def describe(violation: Violation, runner: Runner) -> str | None:
    """At which sizes it is seen."""
    return threshold_sentences.describe_thresholds(thresholds.find_thresholds(violation, runner, 60))


def double_if(wrong: Callable[..., bool]) -> Function:
    """Attention whose output is doubled for certain sizes."""

    def function(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
        (B, H, Q, D), (_, G, K, _) = query.shape, key.shape
        output = reference_numpy.attention(query, key, value, mask=mask, scale=scale)
        return output * np.float32(1 + wrong(B=B, H=H, G=G, Q=Q, K=K, D=D))

    return function


def past_256_dropped(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    mask = None if mask is None else mask[..., :256]
    return reference_numpy.attention(query, key[:, :, :256], value[:, :, :256], mask=mask, scale=scale)


def first_64_columns(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return reference_numpy.attention(query[..., :64], key[..., :64], value, mask=mask, scale=scale)


def padded_scale(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    D = query.shape[-1]
    padded = 1 << (D - 1).bit_length() if D > 128 else D
    return reference_numpy.attention(query, key, value, mask=mask, scale=padded**-0.5 if scale is None else scale)


def heads_past_32(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    output = reference_numpy.attention(query, key, value, mask=mask, scale=scale)
    return output[:, np.minimum(np.arange(query.shape[1]), 31)]


def nan_past_100(query: Any, key: Any, value: Any) -> Any:
    return reference_numpy.attention(query, key, value) * np.float32(np.nan if key.shape[2] > 100 else 1)


SENTENCES: list[tuple[Function, Case, dict[str, int], str]] = [
    (past_256_dropped, attention_case(2, 2, 2, 3, 700, 8, 5), {"K": 257}, "first wrong at 257 keys (256 are right)"),
    (first_64_columns, attention_case(D=320), {"K": 2, "D": 65}, "first wrong at 65 columns of query and key (64 are"),
    (padded_scale, attention_case(D=320), {"K": 2, "D": 129}, "query and key, past 128, is no power of two (129,"),
    (heads_past_32, attention_case(G=71), {"G": 33}, "first wrong at 33 heads (32 are right)"),
    (heads_past_32, attention_case(G=8, S=5), {"G": 33}, "first wrong at 33 heads (32 are right)"),
    (nan_past_100, attention_case(K=300), {"K": 101}, "first wrong at 101 keys (100 are right)"),
    (double_if(lambda D, **_: D % 2 == 1), attention_case(D=35), {}, "columns of query and key is odd (1, 3,"),
    (double_if(lambda D, **_: D > 4 and D % 2 == 1), attention_case(D=35), {"D": 5}, "past 4, is odd (5, 7,"),
    (double_if(lambda D, **_: D > 64 and D % 32 > 0), attention_case(D=80), {"D": 65}, "past 64, is no multiple of 32"),
    (double_if(lambda K, **_: K % 128 == 0), attention_case(K=384), {"K": 128}, "is a multiple of 128 (128, 256,"),
    (double_if(lambda D, **_: D in (64, 96, 128)), attention_case(D=96), {"D": 64}, "wrong for 64, 96, 128 columns of"),
    (double_if(lambda K, **_: K < 32), attention_case(K=7), {}, "wrong up to 31 keys"),
    (
        double_if(lambda H, G, **_: H // G in (3, 5, 6, 7)),
        attention_case(G=2, S=7),
        {"S": 3},
        "wrong for 3, 5, 6, 7 query heads to a key head; right for 1, 2, 4,",
    ),
    (
        double_if(lambda Q, K, **_: Q * K > 65536),
        attention_case(Q=300, K=300, D=1, V=1),
        {"Q": 219, "K": 300},
        "first wrong at 257 keys and 256 queries together (their product is 65,792; with 256 keys it is right)",
    ),
    (
        double_if(lambda B, H, **_: B * H > 64),
        attention_case(B=13, G=8),
        {"B": 9, "G": 8},
        "first wrong at 9 batch elements and 8 heads together (their product is 72; with 8 batch elements it is",
    ),
]


@pytest.mark.parametrize(("function", "case", "sizes", "sentence"), SENTENCES, ids=[one[-1][:40] for one in SENTENCES])
def test_the_smallest_sizes_and_their_sentence(
    function: Function, case: Case, sizes: dict[str, int], sentence: str
) -> None:
    found, runner = smallest(function, case)
    assert sizes_of(found.case) == dict.fromkeys(sizes_of(case), 1) | sizes
    assert sentence in describe(found, runner)


@pytest.mark.rule("POS-3")
def test_a_single_pair_that_hides_the_mistake_is_no_right_size() -> None:
    case = Case("rotary_embedding", "float32", {"x": numbers(2, 1, 3, 8), "positions": np.arange(1, 4)}, {})
    found, runner = smallest(neighbours, case, supports=[])
    assert found.case.inputs["x"].shape == (1, 1, 1, 4)
    assert thresholds.find_thresholds(found, runner, 60) == ()


def leave_unwritten(part_of: Callable[[Any], Any]) -> Function:
    """Layer norm that leaves a part of the rows [N, W] as 0."""

    def layer_norm(x: Any, weight: Any, bias: Any = None) -> Any:
        output = reference_numpy.layer_norm(x, weight, bias).copy()
        part_of(output.reshape(-1, output.shape[-1]))[...] = 0
        return output

    return layer_norm


past_blocks_of_4 = leave_unwritten(lambda rows: rows[len(rows) // 4 * 4 :])
past_48_rows = leave_unwritten(lambda rows: rows[48:])
past_1024_columns = leave_unwritten(lambda rows: rows[:, 1024:])


def tails_of_4(x: Any, weight: Any, bias: Any = None) -> Any:
    """Of rows past 256 the columns past the last whole block of 4 take no part in the variance: a small error."""
    N = x.shape[-1]
    wide = x.astype(float)
    deviation = wide - wide.mean(-1, keepdims=True)
    part = deviation[..., : N // 4 * 4] if N > 256 else deviation
    output = deviation / np.sqrt((part**2).sum(-1, keepdims=True) / N + 1e-5) * weight
    return (output if bias is None else output + bias).astype(x.dtype)


@pytest.mark.parametrize(
    ("function", "case", "sizes", "sentence"),
    [
        (tails_of_4, norm_case(1, 1031), {"rows": 1}, "past 256, is no multiple of 4 ("),
        (past_blocks_of_4, norm_case(3, 5, 6), {"rows": 1}, "number of rows is no multiple of 4 (1, 2, 3,"),
        (past_48_rows, norm_case(10, 7, 6), {"rows": 49}, "first wrong at 49 rows (48 are right), and wrong at 50,"),
        (past_1024_columns, norm_case(3, 2049), {"rows": 1, "W": 1025}, "first wrong at 1,025 columns of a row (1,024"),
    ],
)
def test_norms(function: Function, case: Case, sizes: dict[str, int], sentence: str) -> None:
    found, runner = smallest(function, case, supports=["no-gradients"])
    assert sizes_of(found.case).items() >= sizes.items()
    assert sentence in describe(found, runner)


def make_other_cases() -> dict[str, Case]:
    """One of each operation beside attention and norms."""
    network = {"x": numbers(2, 3, 7), "inner.weight": numbers(7, 2000), "outer.weight": numbers(2000, 5)}
    network |= {"inner.bias": numbers(2000), "outer.bias": numbers(5)}
    parts = {f"outputs[{i}]": numbers(2, 3, 4, 5) for i in range(4)}
    parts |= {f"logsumexps[{i}]": numbers(2, 3, 4) for i in range(4)}
    heads = {"query": numbers(2, 35, 6), "key": numbers(2, 9, 5), "value": numbers(2, 9, 4)}
    for head in range(4):
        heads |= {f"query[{head}].weight": numbers(6, 3), f"query[{head}].bias": numbers(3)}
    for head in range(2):
        heads |= {f"key[{head}].weight": numbers(5, 3), f"key[{head}].bias": numbers(3)}
        heads |= {f"value[{head}].weight": numbers(4, 2), f"value[{head}].bias": numbers(2)}
    heads |= {"output.weight": numbers(8, 3)}
    lookup = {"table": numbers(65540, 3), "ids": np.array([[3, 65539, 65537], [1, 2, 7]])}
    sinusoids = {"length": 30, "width": 20, "offset": 4000, "exponent": "doubled", "dtype": "float32"}
    slopes = {"num_heads": 12, "query_length": 9, "key_length": 20, "offset": 30, "dtype": "float32"}
    relation = {"offset": 7, "query_length": 30, "key_length": 60, "bidirectional": True}
    inputs_and_options: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
        "embedding": (lookup, {"scaled": False}),
        "feed_forward": (network, {"activation": "gelu"}),
        "sinusoidal_positions": ({}, sinusoids),
        "learned_positions": ({"table": numbers(3000, 5)}, {"length": 2000, "offset": 100}),
        "alibi_bias": ({}, slopes),
        "relative_position_bias": ({"table": numbers(32, 3)}, relation),
        "merge_attention": (parts, {}),
        "multi_head_attention": (heads, {"num_heads": 4, "mask": None}),
    }
    return {name: Case(name, "float32", *arguments) for name, arguments in inputs_and_options.items()}


LEARNED_SIZES = {"length": 513, "vocabulary": 513, "offset": 0}


def inner_width(parameters: Any) -> int:
    width: int = parameters.inner.weight.shape[1]
    return width


def shift_where(operation: str, wrong: Callable[..., bool]) -> Function:
    """The operation of the definition, off where its arguments are as they say."""
    right = getattr(reference_numpy, operation)

    @wraps(right)
    def function(*arguments: Any, **options: Any) -> Any:
        found = right(*arguments, **options)
        off = np.float32(wrong(**signature(right).bind(*arguments, **options).arguments))
        return (found[0] + off, *found[1:]) if isinstance(found, tuple) else found + off

    return function


@pytest.mark.parametrize(
    ("operation", "wrong", "sizes", "sentence"),
    [
        ("embedding", lambda table, **_: len(table) > 65536, {"vocabulary": 65537}, "at 65,537 rows of the table"),
        ("feed_forward", lambda parameters, **_: inner_width(parameters) > 99, {"inner": 100}, "at 100 columns inside"),
        ("sinusoidal_positions", lambda offset, **_: offset > 2047, {"offset": 2048}, "at 2,048 positions of offset"),
        ("learned_positions", lambda length, **_: length > 512, LEARNED_SIZES, "at 513 positions"),
        ("alibi_bias", lambda num_heads, **_: num_heads > 6, {"H": 7}, "at 7 heads"),
        ("relative_position_bias", lambda key_length, **_: key_length > 40, {"K": 41}, "at 41 keys"),
        ("merge_attention", lambda outputs, **_: len(outputs) > 2, {"parts": 3}, "at 3 parts"),
        ("multi_head_attention", lambda query, **_: query.shape[1] > 20, {"Q": 21}, "at 21 queries"),
    ],
)
def test_operations_are_cut(operation: str, wrong: Callable[..., bool], sizes: dict[str, int], sentence: str) -> None:
    case = make_other_cases()[operation]
    found, runner = smallest(shift_where(operation, wrong), case, supports=["no-gradients"])
    least = dict.fromkeys(sizes_of(case), 1) | ({"offset": 0} if "offset" in sizes_of(case) else {})
    least = {name: size for name, size in least.items() if not name.startswith("rows ")}
    assert sizes_of(found.case) == least | sizes
    assert f"first wrong {sentence} (" in describe(found, runner)


# --- what is cut, and how ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_cases_of_other_sizes_are_cases(operation: str) -> None:
    """The definition takes them, and gives results of their sizes."""
    facts = OPERATIONS[operation].facts
    for _, case in draw_cases(operation_cases(operation, dtypes=("float32", "bfloat16"), declaration=EVERYTHING), 5, 3):
        sizes = sizes_of(case) if case.dtype != "float64" else {}
        for name, size in sizes.items():
            if name in facts.fixed:
                continue
            unit, together = (facts.width_unit if name == "E" else 1), facts.tied if name in facts.tied else (name,)
            for part in (Part(0, unit), Part(size - unit, unit), Part(0, size + 3 * unit)):
                parts = dict.fromkeys(together, part)
                other = take_parts(case, parts, np.random.default_rng(0)) if size else None
                if other is not None and not (operation == "standard_deviation_norm" and sizes_of(other)["W"] == 1):
                    assert sizes_of(other)[name] == part.size or operation == "learned_positions"
                    oracle(other)


def test_what_is_left_is_what_was_there() -> None:
    """The last of everything: the output of the whole case there."""
    case = attention_case(2, 2, 3, 4, 5, mask=Causal(1))
    whole = reference_numpy.attention(**case.inputs, mask=Causal(1))
    last = {"B": Part(1, 1), "G": Part(1, 1), "S": Part(2, 1), "Q": Part(3, 1), "V": Part(1, 1)}
    cut = take_parts(case, last)
    assert cut is not None
    part = reference_numpy.attention(**cut.inputs, **cut.options)
    np.testing.assert_allclose(part, whole[1:, 5:, 3:, 1:], rtol=1e-6)


def test_features_that_do_not_matter_go() -> None:
    case = attention_case(2, 2, 2, 3, 40, mask=Causal(37) & Dense(numbers(3, 40) > -1), scale=0.3)
    case = replace(case, inputs=case.inputs | {"bias": numbers(3, 40), "sinks": numbers(4)})

    def function(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, bias: Any = None,
                 sinks: Any = None) -> Any:  # fmt: skip
        output = reference_numpy.attention(query, key, value, mask=mask, scale=scale, bias=bias, sinks=sinks)
        return output * np.float32(1 + (mask is not None and key.shape[2] > 9))

    found, _ = smallest(function, case)
    assert found.case.inputs.keys() == {"query", "key", "value"}
    assert {name for name, value in found.case.options.items() if value is not None} == {"mask"}
    assert isinstance(found.case.options["mask"], Causal | Dense)
    assert sizes_of(found.case) == dict.fromkeys("BGSQKDV", 1) | {"K": 10}


def nan_behind_64(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """Rows of which the first 64 keys are hidden."""
    output = reference_numpy.attention(query, key, value, mask=mask)
    seen = np.ones((1, key.shape[2]), bool) if mask is None else np.asarray(mask)
    hidden = seen.any(-1) & ~seen[..., :64].any(-1)
    return np.where(hidden[..., None], np.float32(np.nan), output)


@pytest.mark.parametrize("first", [300, 64])
def test_keys_go_from_the_front_where_they_are_hidden(first: int) -> None:
    """As many as may go: of the hidden ones those are left that it takes."""
    mask = np.arange(700) >= np.array([[0], [first]])
    found, _ = smallest(nan_behind_64, attention_case(K=700, mask=mask))
    assert sizes_of(found.case)["K"] == 65
    assert np.asarray(found.case.options["mask"]).sum() == 1


def test_twins_stay_twins() -> None:
    """A step that would make them mean different things is not taken: the definition tells them apart, too."""
    clean = attention_case(1, 2, 1, 3, 20)
    hidden = np.ones((3, 20), bool)
    hidden[:, 5] = False
    clean = replace(clean, options={"mask": Dense(hidden)})
    key = clean.inputs["key"].copy()
    key[:, :, 5] = np.nan
    dirty = replace(clean, inputs=clean.inputs | {"key": key}, special=True)

    def leaks(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        output = reference_numpy.attention(query, key, value, mask=mask)
        return output * np.float32(np.nan) if np.isnan(key).any() and query.shape[2] > 1 else output

    found, _ = smallest(leaks, (dirty, clean), "twin", conventions={"isolation": "strict"})
    dirty, clean = found.example
    assert np.isnan(dirty.inputs["key"]).any()
    assert sizes_of(dirty) == sizes_of(clean)
    assert sizes_of(dirty)["Q"] == 2
    assert not find_errors(runner_of(reference_numpy.attention), found.example, "twin")


def test_planted_cases_keep_what_is_planted() -> None:
    clean = attention_case(2, 2, 1, 3, 9)

    def swallows(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return reference_numpy.attention(query, key, np.nan_to_num(value), mask=mask)

    found, _ = smallest(swallows, planted_case(clean, "value", (1, 1, 7, 1)), "planted")
    assert sum(mark.sum() for mark in found.example.marks.values()) == 1
    assert max(sizes_of(found.case).values()) <= 2


def test_queries_and_keys_are_cut_together_where_an_array_hides_a_key() -> None:
    """Each query gets the keys that any query sees: no row is then left without one."""
    clean = attention_case(1, 1, 1, 5, 5)
    seen = np.eye(5, dtype=bool) | (np.arange(5) == 4)
    seen[:, 0] = False
    clean = replace(clean, options={"mask": Dense(seen)})

    @declare(["dense", "no-cross"])
    def reads_all(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        weights = reference_numpy.attention_weights(query, key, mask=mask)
        return weights @ value

    found, _ = smallest(reads_all, planted_case(clean, "value", np.s_[:, :, 0]), "planted")
    assert (sizes_of(found.case)["Q"], sizes_of(found.case)["K"]) == (2, 2)


def test_what_is_no_number_is_not_lost() -> None:
    """Where smaller cases have wrong numbers."""

    def nan_or_wrong(query: Any, key: Any, value: Any) -> Any:
        output, queries = reference_numpy.attention(query, key, value), query.shape[2]
        return output * np.float32(np.nan) if queries >= 16 else output + np.float32(queries in (2, 3, 4, 8, 9))

    found, _ = smallest(nan_or_wrong, attention_case(Q=35))
    assert np.isnan(found.finding.got)
    assert sizes_of(found.case)["Q"] == 16


def test_another_error_is_not_the_smallest_case() -> None:
    """A division by 0 for one column is no smaller case of a failure to broadcast the heads."""

    def raises(query: Any, key: Any, value: Any) -> Any:
        rotations = query.shape[2] // (query.shape[-1] - 1)
        if query.shape[1] != key.shape[1]:
            raise ValueError("as many heads of keys as of queries")
        return reference_numpy.attention(query, key, value) * np.float32(rotations > 0)

    found, _ = smallest(raises, attention_case(1, 4, 2, 3, 6, 5, 5))
    assert found.finding.detail.error == "ValueError"
    assert sizes_of(found.case)["D"] == 2


def test_another_result_is_not_the_smallest_case() -> None:
    """An output that is wrong for one row is no smaller case of a wrong gradient."""

    def output_or_gradient(x: Any, weight: Any, bias: Any) -> Any:
        return reference_numpy.layer_norm(x, weight, bias) * np.float32(1 + (len(x) == 1))

    def vjp(x: Any, weight: Any, bias: Any, cotangent: Any) -> Any:
        return tuple(2 * gradient for gradient in reference_numpy.layer_norm_vjp(x, weight, bias, cotangent))

    found, _ = smallest(output_or_gradient, norm_case(7, 5, gradients=True), vjp=vjp)
    assert found.finding.name.startswith("gradient of")
    assert found.case.cotangents


def test_a_width_stays_a_multiple_of_what_is_declared() -> None:
    def doubled(x: Any, weight: Any, bias: Any) -> Any:
        return reference_numpy.layer_norm(x, weight, bias) * np.float32(2)

    found, _ = smallest(doubled, norm_case(3, 40), width_multiple=8)
    assert sizes_of(found.case)["W"] == 8


def test_positions_start_at_0_where_that_fails_too() -> None:
    def shifted(x: Any, positions: Any) -> Any:
        return reference_numpy.rotary_embedding(x, positions + 1)

    inputs = {"x": numbers(1, 2, 3, 8), "positions": np.arange(2060, 2063)}
    found, _ = smallest(shifted, Case("rotary_embedding", "float32", inputs, {}))
    assert found.case.inputs["positions"].tolist() == [0]


# --- subjects that answer differently each time -----------------------------------------------------------------------


def test_what_passes_when_asked_again_is_not_the_smallest_case() -> None:
    calls = 0

    def now_and_then(query: Any, key: Any, value: Any) -> Any:
        """Wrong for more than 9 keys, and once in three calls for fewer."""
        nonlocal calls
        calls += 1
        wrong = key.shape[2] > 9 or calls % 3 == 0
        return reference_numpy.attention(query, key, value) * np.float32(1 + wrong)

    found, runner = smallest(now_and_then, attention_case(K=40))
    assert sizes_of(found.case)["K"] > 9
    assert not found.steady
    assert thresholds.find_thresholds(found, runner) == ()


def test_what_never_fails_again_stays_as_it_was() -> None:
    calls = 0

    def once(query: Any, key: Any, value: Any) -> Any:
        nonlocal calls
        calls += 1
        return reference_numpy.attention(query, key, value) * np.float32(1 + (calls == 1))

    case = attention_case(K=40)
    found, _ = smallest(once, case)
    assert found.example is case
    assert not found.steady


def test_few_calls_are_enough() -> None:
    calls = 0

    def counted(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        nonlocal calls
        calls += 1
        return past_256_dropped(query, key, value, mask=mask)

    case = replace(attention_case(2, 2, 1, 3, 5000), options={"mask": np.ones((3, 5000), bool)})
    _, runner = found = smallest(counted, case)
    assert calls <= 40
    calls = 0
    assert thresholds.find_thresholds(*found, 60)
    assert calls <= 80
    assert runner.overrun == 0


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_many_sizes_tell_multiples() -> None:
    few, many = [17, 20, 21, 24], [17, 18, 19, 20, 21, 24, 28, 32]
    assert thresholds.multiples({n: n % 4 > 0 for n in few}) is None
    assert thresholds.multiples({n: n > 18 for n in many}) is None
    found = thresholds.multiples({n: n % 4 > 0 for n in many})
    assert found is not None
    assert (found.kind, found.multiple) == ("no multiple", 4)


@pytest.mark.parametrize(("above", "chance"), [(3849, True), (1024, False), (255, False)])
def test_a_rule_past_no_round_size_may_be_chance(above: int, chance: bool) -> None:
    found = Threshold(("K",), "no power of two", (above + 1,), (above,), above)
    assert thresholds.may_be_chance(found) is chance


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({3, 5, 7, 9}, "wrong where the number of keys is odd (3, 5, 7, 9 wrong; 2, 4, 6, 8 right)"),
        ({2, 4, 6, 8}, "wrong where the number of keys is even (2, 4, 6, 8 wrong; 3, 5, 7, 9 right)"),
        ({2, 4, 8}, "wrong where the number of keys is a power of two (2, 4, 8 wrong; 3, 5, 6, 7, 9 right)"),
        ({8, 9}, "first wrong at 8 keys (7 are right), and wrong at 9"),
        ({3, 4, 5, 7}, "first wrong at 3 keys (2 are right), and wrong at 4, 5, 7; right again at 6, 8, 9"),
        ({2, 3, 4}, "wrong up to 4 keys (2, 3, 4 wrong; 5, 6, 7, 8, 9 right)"),
        ({4, 5, 6}, "wrong from 4 to 6 keys (4, 5, 6 wrong; 2, 3, 7, 8, 9 right)"),
        ({2, 9}, "wrong for 2, 9 keys; right for 3, 4, 5, 6, 7, 8"),
    ],
)
def test_every_kind_of_threshold_has_a_sentence(wrong: set[int], sentence: str) -> None:
    found = thresholds.rule({size: size in wrong for size in range(2, 10)}, ("K",))
    assert found is not None
    assert threshold_sentences.describe_threshold(found) == sentence
    assert thresholds.rule(dict.fromkeys(wrong, True)) is None  # where no size is right


def test_every_axis_has_words() -> None:
    assert threshold_sentences.WORDS.keys() == {*get_args(AxisName), "BH", ""}  # of patterns, too
