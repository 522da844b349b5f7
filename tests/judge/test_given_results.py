"""`compare` and `conformance compare-arrays`: results that were computed elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import conformance
import reference_numpy
from conformance import Causal, KeyLengths, SlidingWindow
from conformance.cases.arguments import arguments
from conformance.judge import given_results
from specification import Linear, MultiHeadAttention
from tests.support.helpers import DOCUMENTS, OPERATIONS, Case, command, draw_cases, operation_cases

generator = np.random.default_rng(0)
attention = reference_numpy.attention


DTYPES = ("float32", "bfloat16", "float64")


def numbers(*shape: int) -> np.ndarray:
    return generator.normal(size=shape).astype(np.float32)


def swap(array: np.ndarray) -> np.ndarray:
    return np.swapaxes(array, 1, 2)


QUERY, KEY, VALUE, COTANGENT = numbers(2, 4, 6, 8), numbers(2, 2, 9, 8), numbers(2, 2, 9, 5), numbers(2, 4, 6, 5)
GIVEN: dict[str, Any] = {"query": QUERY, "key": KEY, "value": VALUE}


def call_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """What the definition returns for a case, and what `compare` is given beside it."""
    positional, keywords = arguments(case.operation, case.inputs, case.options)
    function = getattr(reference_numpy, case.operation)
    given = dict(zip(OPERATIONS[case.operation].facts.arguments, positional, strict=True))
    beside = {name: value for name, value in (given | keywords).items() if value is not None or name in given}
    returned = function(*positional, **keywords)
    if case.cotangents:
        cotangents = case.cotangents
        gradients = getattr(reference_numpy, f"{case.operation}_vjp")(*positional, *cotangents.values(), **keywords)
        beside |= {"cotangent": cotangents, "gradients": gradients}
    return returned, beside


def enlarge(value: Any) -> Any:
    if isinstance(value, tuple | list):
        first, *others = value
        parts = [enlarge(first), *others]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return (np.asarray(value, float) * 1.25).astype(np.asarray(value).dtype)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_judged_whole_and_in_parts(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = 0
    for _, case in draw_cases(operation_cases(operation, dtypes=DTYPES), 4, 1):
        returned, given = call_of(replace(case, memory={}, constants=()))
        whole = conformance.compare(operation, returned, **given)
        assert whole.conforms, whole
        with monkeypatch.context() as patch:
            patch.setattr(given_results, "LARGEST_PART", 60)
            parts = conformance.compare(operation, returned, **given)
        assert parts.error_ratio == pytest.approx(whole.error_ratio, rel=1e-3)
        wrong += not conformance.compare(operation, enlarge(returned), **given)
    assert wrong


@pytest.mark.parametrize(
    ("got", "given", "mistake"),
    [
        (attention(QUERY, KEY, VALUE), {"mask": Causal(3)}, "masks.ignored"),
        (attention(QUERY, KEY, VALUE, scale=1.0), {}, "scores.default-scale"),
        (attention(QUERY, np.tile(KEY, (1, 2, 1, 1)), np.tile(VALUE, (1, 2, 1, 1))), {}, "heads.modulo"),
    ],
)
def test_a_known_mistake_is_named(got: np.ndarray, given: dict[str, Any], mistake: str) -> None:
    found = conformance.compare("attention", got, **GIVEN, **given)
    assert not found
    assert found.diagnosis is not None
    assert found.diagnosis.id == mistake


def test_a_known_mistake_is_named_where_a_row_of_all_heads_is_large() -> None:
    given = {"query": numbers(1, 40, 1, 4), "key": numbers(1, 40, 2048, 4), "value": numbers(1, 40, 2048, 4)}
    found = conformance.compare("attention", attention(**given, scale=1.0), **given)
    assert found.diagnosis is not None
    assert found.diagnosis.id == "scores.default-scale"


@pytest.mark.parametrize("with_gradients", [False, True], ids=["output", "gradients"])
@pytest.mark.parametrize(("batch", "length"), [(1, 60), (2, 300)])
@pytest.mark.parametrize(("mask", "mistake"), [(None, "masks.ignored"), (Causal(1), "masks.causal-offset")])
def test_a_mistake_in_attention_is_named_at_any_size(
    batch: int, length: int, mask: Causal | None, mistake: str, with_gradients: bool
) -> None:
    query, key, value = (numbers(batch, heads, length, 64) for heads in (8, 2, 2))
    given: dict[str, Any] = {"query": query, "key": key, "value": value, "mask": Causal()}
    if with_gradients:
        given["cotangent"] = numbers(batch, 8, length, 64)
        gradients = reference_numpy.attention_vjp(query, key, value, given["cotangent"], mask=mask)
        given["gradients"] = {name: getattr(gradients, name) for name in GIVEN}
    found = conformance.compare("attention", attention(query, key, value, mask=mask), **given)
    assert found.diagnosis is not None
    assert found.diagnosis.id == mistake


@pytest.mark.parametrize("rows", [100, 600])
def test_a_mistake_in_a_norm_is_named_at_any_size(rows: int) -> None:
    shapes = (rows, 512), (512,), (512,), (rows, 512)
    x, weight, bias, cotangent = (torch.from_numpy(numbers(*shape)) for shape in shapes)
    leaves = [array.requires_grad_() for array in (x, weight, bias)]
    output = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * weight + bias
    gradients = dict(zip(("x", "weight", "bias"), torch.autograd.grad(output, leaves, cotangent), strict=True))
    given: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "cotangent": cotangent, "gradients": gradients}
    found = conformance.compare("layer_norm", output, **given)
    assert found.diagnosis is not None
    assert found.diagnosis.mistake.says == "the squares are divided by n - 1"


def test_what_is_too_large_for_a_diagnosis_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, cotangent = numbers(20, 8), numbers(8), numbers(20, 8)
    gradient = reference_numpy.rms_norm_vjp(x, weight, cotangent, eps=1e-6).weight / 20
    given: dict[str, Any] = {"x": x, "weight": weight, "cotangent": cotangent, "gradients": {"weight": gradient}}
    given["eps"] = 1e-6
    found = conformance.compare("rms_norm", reference_numpy.rms_norm(x, weight, eps=1e-6), **given)
    assert "averaged over rows" in str(found)
    monkeypatch.setattr(given_results, "MOST_EVIDENCE", 10)
    found = conformance.compare("rms_norm", reference_numpy.rms_norm(x, weight, eps=1e-6), **given)
    assert str(found).endswith("too large for the known mistakes to be tried: pass fewer rows, heads or keys")


def test_the_first_line_says_what_was_judged() -> None:
    x, weight, bias, cotangent = numbers(3, 8), numbers(8), numbers(8), numbers(3, 8)
    gradients = reference_numpy.layer_norm_vjp(x, weight, bias, cotangent)
    given: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "cotangent": cotangent}
    output = reference_numpy.layer_norm(x, weight, bias)
    found = conformance.compare("layer_norm", output, **given, gradients={"x": gradients.x, "weight": gradients.weight})
    assert str(found).startswith("layer_norm conforms (robust): output, gradients of x and weight; the largest error")
    narrow = str(conformance.compare("layer_norm", output[:2], x=x, weight=weight, bias=bias))
    assert "expected float32 [3, 8]" in narrow
    assert "inf" not in narrow


def test_a_causal_mask_stands_where_a_convention_says() -> None:
    for convention, offset in (("top_left", 0), ("bottom_right", 3)):
        got = attention(**GIVEN, mask=Causal(offset))
        for layout, change in (("BHTD", np.asarray), ("BTHD", swap)):
            given = {name: change(array) for name, array in GIVEN.items()}
            other = {"layout": layout, "mask": Causal()}
            assert conformance.compare("attention", change(got), conventions=f"causal={convention}", **given, **other)
            wrong = conformance.compare(
                "attention", change(got), conventions=f"causal={'bottom_right' if offset == 0 else 'top_left'}",
                **given, **other,
            )  # fmt: skip
            assert not wrong


def test_the_other_layout_is_named_where_results_conform_in_it() -> None:
    query, key, value = numbers(2, 6, 4, 8), numbers(2, 6, 2, 8), numbers(2, 6, 2, 8)
    got = swap(attention(swap(query), swap(key), swap(value), mask=Causal()))
    given: dict[str, Any] = {"query": query, "key": key, "value": value}
    assert str(conformance.compare("attention", got, mask=Causal(0), **given)).endswith("it conforms with layout BTHD")
    with pytest.raises(ValueError, match=r"4 queries and 2 keys.*; the results conform with layout BTHD"):
        conformance.compare("attention", got, mask=Causal(), **given)
    assert "layout" not in str(conformance.compare("attention", 2 * got, mask=Causal(0), **given))


@pytest.mark.parametrize(("keys", "offset"), [(300, 0), (310, 10)])
def test_a_forgotten_causal_mask_is_named(keys: int, offset: int) -> None:
    given = {"query": numbers(1, 2, 300, 8), "key": numbers(1, 1, keys, 8), "value": numbers(1, 1, keys, 8)}
    told = str(conformance.compare("attention", attention(*given.values(), mask=Causal(offset)), **given))
    assert told.endswith(f"it conforms with mask=Causal(offset={offset})")


def test_all_parts_of_a_large_call_conform_with_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_results, "LARGEST_HINT", 300)
    got = attention(**GIVEN, mask=Causal(3))
    assert str(conformance.compare("attention", got, **GIVEN)).endswith("it conforms with mask=Causal(offset=3)")
    got[-1, -1] = 7
    assert "it conforms" not in str(conformance.compare("attention", got, **GIVEN))


def test_right_results_beside_a_wrong_one_are_told_apart() -> None:
    x, weight, bar = numbers(30, 8), numbers(8), numbers(30, 8)
    gradients = reference_numpy.layer_norm_vjp(x, weight, weight, bar)
    given = {
        "x": x,
        "weight": weight,
        "bias": weight,
        "cotangent": bar,
        "gradients": (2 * gradients[0], *gradients[1:]),
    }
    found = conformance.compare("layer_norm", reference_numpy.layer_norm(x, weight, weight), **given)
    assert "robust): gradient of x (output, gradients of weight and bias conform); the largest" in str(found)


def test_a_missing_argument_is_named_beside_an_unknown_one() -> None:
    x, weight = numbers(3, 8), numbers(8)
    with pytest.raises(TypeError, match="layer_norm needs bias, and does not know beta"):
        conformance.compare("layer_norm", x, x=x, weight=weight, beta=weight)


def test_what_is_wrong_is_told_with_its_place() -> None:
    got = attention(QUERY, KEY, VALUE)
    got[1, 2, 4:] = 0
    found = conformance.compare("attention", got, **GIVEN)
    assert (found.worst.index[:2], found.worst.got, found.worst.level) == ((1, 2), 0.0, "core")
    told = str(found)
    assert told.startswith("attention is wrong at core (robust): output; the largest error is ")
    assert "output is wrong in one of 2 batch elements: 1, in one of 4 heads: 2, in queries from 4 on (of 6)" in told


def test_a_range_of_places_is_told_by_its_ends() -> None:
    got = attention(QUERY, KEY, VALUE)
    got[:, 1:3, 2:5] = 0
    told = str(conformance.compare("attention", got, **GIVEN))
    assert "output is wrong in heads 1 to 2 (of 4), in queries 2 to 4 (of 6)" in told


def test_places_are_those_of_the_arrays_that_were_given() -> None:
    right = attention(QUERY, np.tile(KEY, (1, 2, 1, 1)), np.tile(VALUE, (1, 2, 1, 1)))
    tiled = right.copy()
    tiled[1, 2, 4:] = 0
    swapped = {name: swap(array) for name, array in GIVEN.items()}
    for layout, given, got in (("BHTD", GIVEN, tiled), ("BTHD", swapped, swap(tiled))):
        found = conformance.compare("attention", got, layout=layout, conventions="heads=tiled", **given)
        b, h, t, v = found.worst.index if layout == "BHTD" else (found.worst.index[i] for i in (0, 2, 1, 3))
        assert (b, h, t >= 4, found.worst.got) == (1, 2, True, 0.0)
        assert found.worst.expected == pytest.approx(right[b, h, t, v])
        assert found.pattern is not None
        assert ("one", 4, 2) in [(place.kind, place.size, place.start) for place in found.pattern.places]
        assert "in one of 4 heads: 2" in str(found)
        assert "in queries from 4 on (of 6)" in str(found)
    narrow = str(conformance.compare("attention", swap(tiled)[..., :4], layout="BTHD", **swapped))
    assert "[2, 6, 4, 4], expected float32 [2, 6, 4, 5]" in narrow


def test_gradients_of_tiled_heads_keep_their_names() -> None:
    x, cotangent = numbers(2, 3, 8), numbers(2, 3, 8)
    query, key, value = ([Linear(numbers(8, 2)) for _ in range(count)] for count in (4, 2, 2))
    outer = Linear(numbers(8, 8))
    own, widened = (MultiHeadAttention(query, n * key, n * value, outer) for n in (1, 2))
    output = reference_numpy.multi_head_attention(widened, x, x, x, num_heads=4)
    whole = reference_numpy.multi_head_attention_vjp(widened, x, x, x, cotangent, num_heads=4).parameters.query.weight
    weights = {f"query[{i}].weight": part for i, part in enumerate(np.split(whole, 4, axis=1))}
    given: dict[str, Any] = {"parameters": own, "query": x, "key": x, "value": x, "num_heads": 4}
    given |= {"cotangent": cotangent, "conventions": "heads=tiled"}
    assert conformance.compare("multi_head_attention", output, gradients={"parameters": weights}, **given)
    name = "query[1].weight"
    wrong = weights | {name: 2 * weights[name]}
    found = conformance.compare("multi_head_attention", output, gradients={"parameters": wrong}, **given)
    assert found.worst.name == f"gradient of {name}"
    assert found.worst.got == wrong[name][found.worst.index]


PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", (DOCUMENTS / "compare.md").read_text(), re.DOTALL)


def without_numbers(lines: str) -> str:
    """Indices and numbers depend on the processor and on versions of libraries."""
    return re.sub(r"\[[\d, ]+\]|-?\d+(\.\d+)?(e[+-]\d+)? bounds|-?\d+\.\d+(e[+-]\d+)?", "x", lines)


@pytest.mark.parametrize(("code", "documented"), PROGRAMS, ids=["numpy", "onnxruntime", "flax", "torch"])
def test_a_documented_program_prints_what_is_documented(
    code: str, documented: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in re.findall(r"(?m)^import (\w+)", code):
        pytest.importorskip(module)
    exec(code, {})
    assert without_numbers(capsys.readouterr().out) == without_numbers(documented)


def test_arrays_in_a_functions_own_conventions() -> None:
    layout = {name: swap(array) for name, array in GIVEN.items()}
    assert conformance.compare("attention", swap(attention(QUERY, KEY, VALUE)), layout="BTHD", **layout)
    tiled = attention(QUERY, np.tile(KEY, (1, 2, 1, 1)), np.tile(VALUE, (1, 2, 1, 1)))
    assert conformance.compare("attention", tiled, conventions="heads=tiled", **GIVEN)
    masked = ~reference_numpy.materialize(KeyLengths([9, 4]), 6, 9, batch=2)
    got = attention(QUERY, KEY, VALUE, mask=~masked)
    assert conformance.compare("attention", got, mask=masked, conventions="polarity=masked", **GIVEN)
    assert not conformance.compare("attention", got, mask=masked, **GIVEN)
    rounded = attention(QUERY.astype(ml_dtypes.bfloat16).astype(np.float32), KEY, VALUE)
    assert not conformance.compare("attention", rounded, **GIVEN)
    assert conformance.compare("attention", rounded, conventions="products=bfloat16", **GIVEN)


def test_no_queries() -> None:
    found = conformance.compare("attention", numbers(2, 4, 0, 5), **GIVEN | {"query": QUERY[:, :, :0]})
    assert (found.conforms, found.error_ratio) == (True, 0.0)


def test_the_log_sum_exp_beside_the_output() -> None:
    logsumexp = reference_numpy.attention_logsumexp(QUERY, KEY)
    assert conformance.compare("attention", (attention(QUERY, KEY, VALUE), logsumexp), **GIVEN)
    found = conformance.compare("attention", (attention(QUERY, KEY, VALUE), logsumexp + 1), **GIVEN)
    assert [finding.name for finding in found.findings if finding.ratio > 1] == ["logsumexp"]
    assert str(found).startswith("attention is wrong at core (robust): logsumexp (output conforms); the largest")


def test_frameworks_arrays() -> None:
    given = {name: torch.from_numpy(array).bfloat16() for name, array in GIVEN.items()}
    got = torch.nn.functional.scaled_dot_product_attention(*given.values(), enable_gqa=True)
    assert conformance.compare("attention", got, **given)
    assert "dtype" in str(conformance.compare("attention", got.float(), **given))


@pytest.mark.parametrize(
    ("operation", "given", "error", "message"),
    [
        ("attentions", {}, ValueError, "operation: got 'attentions'"),
        ("attention", {"keys": KEY}, TypeError, "attention does not know keys: did you mean key?"),
        ("attention", {"query": QUERY[0]}, ValueError, "query"),
        ("attention", {"key": KEY.astype(float)}, TypeError, "key must be float32 like query, got float64"),
        ("attention", {"query": QUERY.astype(complex)}, TypeError, "query must have one of the dtypes"),
        ("attention", {"mask": np.ones((6, 9))}, TypeError, "mask must be boolean"),
        ("attention", {"profile": "lax"}, ValueError, "profile"),
        ("attention", {"mask": Causal()}, ValueError, "Causal must have an offset with 6 queries and 9 keys"),
        ("attention", {"mask": Causal() & KeyLengths([9, 4])}, ValueError, "an offset with 6 queries and 9 keys"),
        ("attention", {"mask": np.ones((9, 6), bool)}, ValueError, r"mask must have shape \[6, 9\]"),
        ("attention", {"bias": numbers(9, 6)}, ValueError, r"bias must have shape \[6, 9\]"),
        ("attention", {"conventions": "isolation=finite"}, ValueError, "check makes both calls"),
        ("attention", {"gradients": {"query": QUERY}}, ValueError, "cotangent"),
    ],
)
def test_what_cannot_be_judged(operation: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        conformance.compare(operation, COTANGENT, **GIVEN | given)


@pytest.mark.parametrize(
    ("got", "error", "message"),
    [
        (COTANGENT.tolist(), TypeError, "got must be an array, got a list of 2"),
        ({"output": COTANGENT.tolist()}, TypeError, "output must be an array, got builtins.list"),
        ({"output": COTANGENT, "logsumexps": COTANGENT}, ValueError, "did you mean logsumexp?"),
        ({"logsumexp": COTANGENT[..., 0]}, ValueError, "results: output must be among them"),
    ],
)
def test_results_that_cannot_be_judged(got: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        conformance.compare("attention", got, **GIVEN)


@pytest.mark.parametrize("query", [None, 1.0, np.float32(1)])
def test_a_convention_for_a_causal_mask_needs_arrays(query: Any) -> None:
    given = GIVEN | {"query": query, "mask": Causal(), "conventions": "causal=top_left"}
    with pytest.raises(TypeError, match="query must be an array"):
        conformance.compare("attention", COTANGENT, **given)


@pytest.mark.parametrize("option", [{"layout": "BTHD"}, {"conventions": "causal=top_left"}])
def test_options_that_mean_nothing_for_the_operation_are_refused(option: dict[str, str]) -> None:
    x, weight = numbers(3, 8), numbers(8)
    with pytest.raises(ValueError, match="means nothing for layer_norm"):
        conformance.compare("layer_norm", x, x=x, weight=weight, bias=None, **option)


def test_arrays_in_files(tmp_path: Path) -> None:
    gradients = reference_numpy.attention_vjp(QUERY, KEY, VALUE, COTANGENT, mask=Causal(3))
    right = GIVEN | {"output": attention(QUERY, KEY, VALUE, mask=Causal(3)), "cotangent": COTANGENT}
    right |= {"mask": reference_numpy.materialize(Causal(3), 6, 9), "scale": np.float32(8**-0.5)}
    right |= {f"gradient.{name}": getattr(gradients, name) for name in GIVEN}
    np.savez(tmp_path / "right.npz", **right)
    np.savez(tmp_path / "wrong.npz", **right | {"gradient.key": 2 * gradients.key})
    words = ("compare-arrays", "--operation", "attention")
    code, told = command(*words, tmp_path / "right.npz")
    judged = "output, gradients of query, key and value"
    assert (code, told.startswith(f"attention conforms (robust): {judged}; the largest error is 0.0")) == (0, True)
    code, told = command(*words, tmp_path / "wrong.npz")
    assert (code, "ATT-12: the gradient of key is multiplied by 2" in told) == (1, True)
    np.savez(tmp_path / "inputs.npz", **GIVEN)
    code, told = command(*words, tmp_path / "inputs.npz", "--set", "mask=causal")
    assert (code, told.startswith("the file has no result: expected output or logsumexp")) == (2, True)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("causal:3", Causal(3)),
        ("window:2,0:3", SlidingWindow(2, 0, 3)),
        ("window:all,1:3", SlidingWindow(None, 1, 3)),
        ("none", None),
    ],
)
def test_masks_on_a_command_line(text: str, mask: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", **GIVEN, output=attention(**GIVEN, mask=mask))
    code, told = command("compare-arrays", tmp_path / "arrays.npz", "--operation", "attention", "--set", f"mask={text}")
    assert code == 0, told


@pytest.mark.parametrize("text", ["casual", "causal:x", "causal:1:2", "window", "window:1", "window:1,2,3", "none:1"])
def test_unknown_masks_on_a_command_line(text: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", **GIVEN, output=attention(**GIVEN))
    code, told = command("compare-arrays", tmp_path / "arrays.npz", "--operation", "attention", "--set", f"mask={text}")
    assert (code, "causal:OFFSET, window:LEFT,RIGHT" in told) == (2, True)


def test_none_on_a_command_line(tmp_path: Path) -> None:
    x, weight = numbers(3, 8), numbers(8)
    np.savez(tmp_path / "arrays.npz", x=x, weight=weight, output=reference_numpy.layer_norm(x, weight, None))
    words = ("compare-arrays", tmp_path / "arrays.npz", "--operation", "layer_norm")
    assert command(*words, "--set", "bias=none")[0] == command(*words, "--set", "bias=None")[0] == 0
    assert command(*words) == (2, "TypeError: layer_norm needs bias\n")


@pytest.mark.parametrize("name", ["object.npz", "text.npz", "empty.npz", "array.npy", "arrays.zip", "text.safetensors"])
def test_files_that_hold_no_arrays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "object.npz":
        np.savez(path, output=np.array([{}], object))
    elif name == "array.npy":
        np.save(path, QUERY)
    elif name == "arrays.zip":
        with path.open("wb") as file:
            np.savez(file, output=attention(**GIVEN), **GIVEN)
    else:
        path.write_bytes(b"" if name == "empty.npz" else b"no arrays")
    code, told = command("compare-arrays", path, "--operation", "attention")
    assert (code, "pickle" in told, "safetensors" in told) == (2, False, True)


@pytest.mark.parametrize(
    ("arrays", "words", "message"),
    [
        ({"result.output": COTANGENT}, (), "the file has two arrays for result.output"),
        ({"result.outputs": COTANGENT}, (), "did you mean output?"),
        ({"gradient": QUERY}, (), "attention does not know gradient"),
        ({}, ("--set", "layout=BTHD"), "attention does not know layout"),
        ({}, ("--set", "=1"), "--set takes NAME=VALUE"),
    ],
)
def test_entries_that_would_not_be_judged(
    arrays: dict[str, np.ndarray], words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "arrays.npz", **GIVEN, output=attention(**GIVEN), **arrays)  # type: ignore[arg-type]
    code, told = command("compare-arrays", tmp_path / "arrays.npz", "--operation", "attention", *words)
    assert (code, message in told) == (2, True), told


def test_projections_in_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    given = {"x": numbers(3, 5), "inner.weight": numbers(5, 7), "inner.bias": numbers(7), "outer.weight": numbers(7, 5)}
    parameters = reference_numpy.feed_forward(*arguments("feed_forward", given, {})[0], activation="gelu")
    save_file(given | {"output": parameters}, tmp_path / "right.safetensors")
    words = ("compare-arrays", tmp_path / "right.safetensors", "--operation", "feed_forward")
    assert command(*words, "--set", "activation=gelu")[0] == 0
    code, told = command(*words)
    assert (code, "FFN-1" in told) == (1, True)
    save_file(given | {"output": parameters, "gate.weight": given["inner.weight"]}, tmp_path / "right.safetensors")
    code, told = command(*words)
    assert (code, "feed_forward does not know gate.weight" in told) == (2, True)


SEVEN = numbers(7)
OPTIMIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "adam_step": (
        {"parameters": SEVEN, "gradients": 2 * SEVEN, "step": 3, "mean": 0 * SEVEN, "square": SEVEN**2},
        "learning_rate=0.1",
    ),
    "sgd_step": ({"parameters": SEVEN, "gradients": 2 * SEVEN, "velocity": SEVEN}, "learning_rate=0.1"),
    "clip_by_global_norm": ({"gradients[0]": SEVEN, "gradients[1]": numbers(2, 3)}, "limit=1.0"),
}


@pytest.mark.parametrize("operation", OPTIMIZERS)
def test_optimizers_in_files(operation: str, tmp_path: Path) -> None:
    inputs, option = OPTIMIZERS[operation]
    name, _, number = option.partition("=")
    positional, keywords = arguments(operation, inputs, {name: float(number)})
    first, second = getattr(reference_numpy, operation)(*positional, **keywords)
    if operation == "clip_by_global_norm":
        results = {"gradients[0]": first[0], "gradients[1]": first[1], "norm": second}
    else:
        results = {"parameters": first, **second._asdict()}
    words = ("compare-arrays", "--operation", operation, "--set", option)
    for factor, expected in ((1, 0), (2, 1)):
        given = {f"result.{n}": a * factor if n in ("parameters", "gradients[0]") else a for n, a in results.items()}
        np.savez(tmp_path / "arrays.npz", **inputs, **given)
        code, told = command(*words, tmp_path / "arrays.npz")
        assert code == expected, told


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown gradient": ({"gradients": {"qurey": QUERY}, "cotangent": COTANGENT}, "did you mean query"),
    "a gradient of no input": ({"gradients": {"bias": QUERY}, "cotangent": COTANGENT}, "got 'bias'"),
    "no gradient": ({"gradients": {}, "cotangent": COTANGENT}, "there are none"),
    "no cotangent": ({"gradients": {"query": QUERY}, "cotangent": {}}, "gradients need cotangent"),
    "a cotangent alone": ({"cotangent": COTANGENT}, "cotangent is for gradients"),
    "an unknown cotangent": ({"gradients": {"query": QUERY}, "cotangent": {"outptu": QUERY}}, "did you mean output"),
    "a wide cotangent": ({"gradients": {"query": QUERY}, "cotangent": COTANGENT.astype(float)}, "of float64, expected"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_that_would_not_be_judged_are_refused(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        conformance.compare("attention", attention(**GIVEN), **GIVEN, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cotangent": 1.0, "gradients": {"query": QUERY}}, "cotangent of output must be an array, got builtins.float"),
        (
            {"cotangent": COTANGENT, "gradients": {"query": [1.0]}},
            "gradient of query must be an array, got a list of 1",
        ),
        (
            {"cotangent": COTANGENT, "gradients": QUERY},
            "gradients must be those of query, key, value, got numpy.ndarray",
        ),
    ],
)
def test_gradients_that_are_no_arrays_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        conformance.compare("attention", attention(**GIVEN), **GIVEN, **given)


def test_importing_compare_loads_no_framework_and_no_hypothesis() -> None:
    """A test of a kernel that compares one call waits for the import: each of these takes more time than the rest."""
    program = """
import sys
from conformance import compare
print({"hypothesis", "jax", "torch"} & sys.modules.keys())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=DOCUMENTS.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_results_of_no_floating_input_have_the_dtype_of_the_definition() -> None:
    positions = reference_numpy.sinusoidal_positions(4, 6)
    assert conformance.compare("sinusoidal_positions", positions, length=4, width=6)


def test_what_a_convention_leaves_open_is_not_wrong() -> None:
    mask = np.ones((6, 9), bool)
    mask[1] = False
    output = attention(**GIVEN, mask=mask)
    output[:, :, 1] = 7
    found = conformance.compare("attention", output, **GIVEN, mask=mask, conventions="empty_rows=any")
    assert found.conforms
    assert found.pattern is None


def test_a_broken_file_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    np.savez(path, output=QUERY, **GIVEN)
    path.write_bytes(path.read_bytes()[:-40])
    code, text = command("compare-arrays", str(path), "--operation", "attention")
    assert code == 2
    assert "broken.npz" in text
