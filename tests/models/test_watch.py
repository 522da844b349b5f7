"""`conformance watch`: which calls are judged, what they mean, and which mistakes are caught and named."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from conformance.checks.levels import CORE, ROBUST, STRICT
from conformance.cli.console import explain_error
from conformance.cli.watch import tell_tokens
from conformance.judge.watched import JudgedCall, judge_calls
from conformance.models import watching
from conformance.models.named_attention import adapt_function, implementation
from conformance.models.watching import read_tokens, refuse_absent, refuse_unknown, watch
from conformance.reports.narrow import fitting
from conformance.reports.watched import blocks, call_cells, calls_table, mask_name, watch_content
from conformance.subjects.attention_calls import case_of
from conformance.subjects.mask_descriptions import describe_mask
from reference_numpy import materialize
from specification import Causal, Dense, SlidingWindow
from tests.support import hugging_face as hf
from tests.support.helpers import Case, Finding, command, describe_finding, output_of

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is their own
SLOW = pytest.mark.slow
DOCUMENT = Path(__file__).parents[2] / "docs" / "watch.md"


def judged(family: str, attention: str, *, dtype: str = "float32", backward: bool = True) -> list[JudgedCall]:
    return judge_calls(watch(hf.small_model(family, attention, dtype), hf.inputs(), backward=backward))


def identity(call: JudgedCall) -> str:
    """The id of the known mistake behind a call; empty where none is known."""
    return "" if call.cause is None or call.cause.diagnosis is None else call.cause.diagnosis.id


def violations(calls: list[JudgedCall]) -> list[tuple[str, str]]:
    """The rule and the level of what each call violates."""
    return [(call.violation.rule, call.violation.level) for call in calls]


def masks(calls: list[JudgedCall]) -> list[str]:
    return [str(call_cells(call, STRICT)[3]) for call in calls]


# --- models that conform ----------------------------------------------------------------------------------------------

HONEST = [
    pytest.param(family, attention, marks=() if (family, attention) == ("llama", "sdpa") else SLOW)
    for family in hf.FAMILIES
    for attention in ("eager", "sdpa", "reference")
    if attention != "sdpa" or family not in hf.WITHOUT_SDPA
]


@pytest.mark.parametrize(("family", "attention"), HONEST)
def test_the_attention_of_transformers_conforms(family: str, attention: str) -> None:
    """Forwards and backwards; every layer is seen, with what distinguishes it."""
    calls = judged(family, attention)
    assert len(calls) == (6 if family == "t5" else 3 if family == "modernbert" else 2)
    for call in calls:
        assert call.is_judged, call.reason
        assert call.conforms(STRICT), call.violation
        assert [finding.name for finding in call.findings[1:]] == [
            f"gradient of {n}" for n in ("query", "key", "value")
        ]
        assert any(finding.ratio > 0 for finding in call.findings)


MEANING = {
    "llama": ["causal"] * 2,
    "gemma2": ["window 4", "causal"],
    "bert": ["none"] * 2,
    "modernbert": ["none", "window -2 to 2", "window -2 to 2"],
    "t5": ["none, bias"] * 2 + ["causal, bias", "none"] * 2,
}


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f == "gemma2" else SLOW) for f in MEANING])
def test_a_call_means_the_same_whatever_form_its_mask_has(family: str) -> None:
    """Eager models add numbers, sdpa has booleans or none at all."""
    names = [name for name in ("eager", "sdpa", "reference") if name != "sdpa" or family not in hf.WITHOUT_SDPA]
    for attention in names:
        assert masks(judged(family, attention, backward=False)) == MEANING[family], attention


@SLOW
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_sixteen_bits_break_what_only_strict_asks_for(attention: str) -> None:
    """Or more than that; the report says under which declared roundings they conform."""
    calls = judged("bert", attention, dtype="bfloat16")
    assert violations(calls) == [("ATT-9", STRICT)] * 2
    for call in calls:
        assert call.remark.startswith("conforms under weights=inputs")
        declared = dict(part.split("=") for part in call.remark.removeprefix("conforms under ").split(","))
        model = hf.small_model("bert", attention, "bfloat16")
        assert all(c.conforms(STRICT) for c in judge_calls(watch(model, hf.inputs(), backward=True), declared))


@SLOW
def test_a_softmax_in_float32_is_no_softmax_in_float64() -> None:
    assert violations(judged("llama", "eager", dtype="float64", backward=False)) == [("ATT-9", CORE)] * 2
    assert all(call.conforms(STRICT) for call in judged("llama", "sdpa", dtype="float64"))


@SLOW
def test_blocks_of_flex_attention_are_read() -> None:
    """Compiled C++; on a CPU there are no gradients."""
    calls = judged("gemma2", "flex_attention", backward=False)
    assert masks(calls) == MEANING["gemma2"]
    assert all(call.conforms(ROBUST) for call in calls)


# --- padding ----------------------------------------------------------------------------------------------------------


@SLOW
def test_rows_of_padding_follow_the_levels() -> None:
    """Before a sequence that is padded on the left, causal rows may attend to nothing: eager models take the mean."""
    eager = watch(hf.small_model("llama", "eager"), hf.inputs(padded="left"), backward=True)
    as_zero, as_mean = judge_calls(eager), judge_calls(eager, {"empty_rows": "mean"})
    assert violations(as_zero + as_mean) == [("ATT-6", ROBUST)] * 4
    for call in as_zero:
        assert identity(call) in ("empty_rows.filled", "fills.number-put", "fills.number-added")
        assert call.conforms(CORE)
        assert call.wrong_rows[0] == (1, 0, 0)
        assert len(call.wrong_rows) == 4 * 8
    for call in as_mean:
        # A number that is added to a score lets its gradient through.
        assert [f.name for f in call.findings if f.ratio > 1] == ["gradient of query", "gradient of key"]
        assert call.conforms(CORE)
        assert not call.conforms(ROBUST)
    for attention in ("sdpa", "reference"):
        calls = judge_calls(watch(hf.small_model("llama", attention), hf.inputs(padded="left"), backward=True))
        assert all(call.conforms(STRICT) for call in calls)


@SLOW
def test_empty_rows_and_sixteen_bits_are_told_apart() -> None:
    """Eager models round the weights to 16 bits, and give rows that allow nothing the mean: no one hides the other."""
    (call, *_) = judge_calls(watch(hf.small_model("llama", "eager", "bfloat16"), hf.inputs(padded="left")))
    told = [(part.violation.rule, part.violation.level, part.remark) for part in call.parts if part.violation]
    assert told == [("ATT-6", ROBUST, ""), ("ATT-9", STRICT, "conforms under weights=inputs")]
    assert not call.conforms(ROBUST)
    empty, others = ({*part.wrong_rows} for part in call.parts)
    assert (len(empty), empty & others) == (4 * 8, set())
    assert [text.partition(" ")[0] for text in blocks([call])] == ["ATT-6", "ATT-9"]
    content = watch_content([call], ROBUST)
    assert (content["conforms"], content["calls"][0]["beside"]["rule"]) == (False, "ATT-9")
    for conventions, rule in (({"weights": "inputs"}, "ATT-6"), ({"empty_rows": "mean"}, "ATT-9")):
        calls = watch(hf.small_model("llama", "eager", "bfloat16"), hf.inputs(padded="left"))
        (call, *_) = judge_calls(calls, conventions)
        assert [part.violation.rule for part in call.parts if part.violation] == [rule]


@SLOW
def test_of_empty_rows_and_others_the_lower_level_comes_first() -> None:
    with hf.registered(hf.wrong_scale_and_mean_in_empty_rows) as name:
        (call, *_) = judge_calls(watch(hf.small_model("llama", name), hf.inputs(padded="left")))
    assert violations(call.parts) == [("ATT-1", CORE), ("ATT-6", ROBUST)]
    assert not call.conforms(CORE)


@SLOW
def test_gradients_that_are_wrong_beside_empty_rows_too_are_of_the_core() -> None:
    with hf.registered(hf.key_without_gradient) as name:
        calls = judge_calls(watch(hf.small_model("llama", name), hf.inputs(padded="left"), backward=True))
    assert violations(calls) == [("ATT-12", CORE)] * 2


@SLOW
def test_keys_of_padding_are_hidden() -> None:
    for attention in ("eager", "sdpa"):
        calls = judge_calls(watch(hf.small_model("bert", attention), hf.inputs(padded="right"), backward=True))
        assert masks(calls) == ["padding"] * 2
        assert all(call.conforms(STRICT) for call in calls)


# --- planted faults ---------------------------------------------------------------------------------------------------

FAULTS: list[tuple[str, Callable[..., Any], str, str]] = [
    ("llama", hf.heads_in_another_order, "ATT-7", "heads.modulo"),
    ("gemma2", hf.softcap_left_out, "ATT-2", "scores.softcap-ignored"),
    ("llama", hf.wrong_scale, "ATT-1", "scores.default-scale"),
    ("gemma2", hf.wrong_scale, "ATT-1", "scores.scale-twice"),
    ("bert", hf.scale_left_out, "ATT-1", "scores.default-scale"),
    ("qwen3", hf.mask_one_off, "MASK-3", "masks.causal-offset"),
    ("gpt_oss", hf.sinks_left_out, "ATT-5", "softmax.sinks-ignored"),
    ("t5", hf.bias_left_out, "ATT-3", "scores.bias-ignored"),
    ("llama", hf.key_without_gradient, "ATT-12", "backward.missing"),
    ("llama", hf.wrong_scale_always_causal, "ATT-1", "scores.default-scale"),
    ("llama", hf.heads_in_another_order_always_causal, "ATT-7", "heads.modulo"),
    ("gemma2", hf.always_causal, "MASK-4", "masks.taken-for-causal"),
    ("llama", hf.wrong_scale_for_these_sizes_alone, "ATT-1", "scores.default-scale"),
]


def with_fault(family: str, fault: Callable[..., Any]) -> list[JudgedCall]:
    with hf.registered(fault) as name:
        return judged(family, name)


@pytest.mark.parametrize(
    ("family", "fault", "rule", "name"),
    [pytest.param(*row, marks=SLOW if number > 1 else ()) for number, row in enumerate(FAULTS)],
)
def test_a_mistake_is_caught_and_named(family: str, fault: Callable[..., Any], rule: str, name: str) -> None:
    broken = [call for call in with_fault(family, fault) if not call.conforms(CORE)]
    assert broken
    for call in broken:
        assert call.violation.rule == rule
        assert identity(call) == name
        assert ("mask" in call.violation.case.options) >= ("always_causal" in fault.__name__)


@SLOW
@pytest.mark.parametrize(("family", "rules"), [("gemma2", ["MASK-4", "MASK-3"]), ("modernbert", [None, "MASK-4"])])
def test_a_mask_one_off_breaks_the_rule_of_its_kind(family: str, rules: list[str | None]) -> None:
    calls = with_fault(family, hf.mask_one_off)
    found = [call.violation and call.violation.rule for call in calls]
    assert found[: len(rules)] == rules


@pytest.mark.parametrize(
    "fault",
    [
        hf.output_without_gradient,
        pytest.param(hf.inputs_without_gradients, marks=SLOW),
        pytest.param(hf.without_autograd, marks=SLOW),
    ],
)
def test_an_output_without_a_gradient(fault: Callable[..., Any]) -> None:
    calls = with_fault("llama", fault)
    assert violations(calls) == [("ATT-12", CORE)] * 2
    for call in calls:
        assert [f.name for f in call.findings if f.ratio > 1] == [f"gradient of {n}" for n in ("query", "key", "value")]
        assert "is missing: the output has no gradient" in describe_finding(call.worst)
    with hf.registered(fault) as name:
        assert all(call.conforms(STRICT) for call in judged("llama", name, backward=False))


def test_a_loss_that_depends_on_no_output_judges_no_gradients() -> None:
    """One token alone predicts nothing."""
    for call in judge_calls(watch(hf.small_model("llama", "sdpa"), read_tokens([[3]]), backward=True)):
        assert not call.is_judged
        assert call.conforms(STRICT)
        assert "the loss does not depend on the output" in call.reason


def test_weights_that_are_not_trained_are_no_missing_gradients() -> None:
    model = hf.small_model("llama", "sdpa")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("self_attn" not in name and "embed" not in name)
    for call in judge_calls(watch(model, hf.inputs(), backward=True)):
        assert call.is_judged, call.reason
        assert call.conforms(STRICT), call.violation


@pytest.mark.parametrize(
    ("fault", "rule", "changed"),
    [
        (hf.query_scaled_in_place, "ATT-13", "query"),
        pytest.param(hf.scale_left_out_and_query_changed, "ATT-1", "query", marks=SLOW),
        pytest.param(hf.key_spoiled_afterwards, "ATT-13", "key", marks=SLOW),
        (hf.mask_changed, "ATT-13", "mask"),
    ],
)
def test_inputs_are_judged_as_they_were(fault: Callable[..., Any], rule: str, changed: str) -> None:
    """A function that changes them neither hides a mistake nor is told of one that it has not."""
    with hf.registered(fault) as name:
        calls = judged("llama", name, backward=False)
    for call in calls:
        assert call.violation.rule == rule
        assert f"{changed}: was changed by the call" in map(describe_finding, call.findings)
        assert (call.findings[0].ratio > 1) == (rule == "ATT-1")


@SLOW
def test_what_changes_its_inputs_has_no_gradients_judged() -> None:
    for call in with_fault("llama", hf.query_scaled_in_place):
        assert call.violation.rule == "ATT-13"
        assert call.reason == "no gradients are judged: the function changes its inputs"


def test_outputs_are_kept_as_they_were() -> None:
    """A function may use the memory of its output again."""
    memory = torch.empty(1, 12, 4, 8)

    def in_one_buffer(module: Any, *tensors: Any, **more: Any) -> Any:
        return memory.copy_(hf.attention_forward(module, *tensors, **more)[0]), None

    with hf.registered(in_one_buffer) as name:
        assert all(call.conforms(STRICT) for call in judged("llama", name, backward=False))


@SLOW
def test_what_is_not_a_number_is_counted_and_where_it_begins() -> None:
    """After it nothing can be judged in full: the next layer's inputs are not numbers."""
    first, second = with_fault("llama", hf.sixth_query_not_a_number)
    assert first.nans == 4 * 8
    assert first.wrong_rows[0] == (0, 0, 5)
    assert not first.conforms(CORE)
    assert second.reason == "its inputs hold NaN or infinities"


EXPECTED = r"expected float32 [1, 12, 4, 8] [batch, queries, heads, width]"
SWAPPED = "; heads and queries have changed places"
FORMS = [
    (hf.in_half_precision, f"output: is float16 [1, 12, 4, 8], {EXPECTED}"),
    (hf.without_the_last_query, f"output: is float32 [1, 11, 4, 8], {EXPECTED}"),
    (hf.heads_and_queries_swapped, f"output: is float32 [1, 4, 12, 8], {EXPECTED}{SWAPPED}"),
]


@pytest.mark.parametrize(
    ("fault", "found"), [pytest.param(*row, marks=SLOW if number else ()) for number, row in enumerate(FORMS)]
)
def test_an_output_of_another_form(fault: Callable[..., Any], found: str) -> None:
    """All calls are judged, also where the model could not go on with it."""
    calls = with_fault("llama", fault)
    assert [describe_finding(call.worst) for call in calls] == [found] * 2
    assert not any(call.conforms(CORE) for call in calls)


@SLOW
def test_another_form_is_told_in_the_axes_of_the_function() -> None:
    """A function with the signature of `attention` has heads before queries."""

    def length_first(query: Any, key: Any, value: Any, mask: Any = None, scale: Any = None) -> Any:
        return torch.zeros(query.shape).transpose(1, 2)

    with hf.registered(adapt_function(length_first)) as name:
        call = judged("llama", name, backward=False)[0]
    told = f"is float32 [1, 12, 4, 8], expected float32 [1, 4, 12, 8] [batch, heads, queries, width]{SWAPPED}"
    assert describe_finding(call.worst).endswith(told)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda output: output, r"torch\.Tensor \[1, 12, 4, 8\]"),
        (lambda output: (output, None, None), r"a tuple of \(torch\.Tensor \[1, 12, 4, 8\], NoneType, NoneType\)"),
        (lambda output: (output.detach().numpy(), None), r"a tuple of \(numpy\.ndarray \[1, 12, 4, 8\], NoneType\)"),
        (lambda output: None, "NoneType"),
    ],
)
def test_what_is_not_an_output_and_weights_is_told(returned: Callable[[Any], Any], told: str) -> None:
    def function(module: Any, *tensors: Any, **more: Any) -> Any:
        return returned(hf.attention_forward(module, *tensors, **more)[0])

    with (
        hf.registered(function) as name,
        pytest.raises(TypeError, match=rf"must return \(output, weights\), .*, got {told}\nmodel\.layers\.0"),
    ):
        watch(hf.small_model("llama", name), hf.inputs())


@pytest.mark.parametrize(
    ("fault", "name"), [(hf.dropped_at_random, "chance"), pytest.param(hf.strides_ignored, "memory", marks=SLOW)]
)
def test_a_result_of_other_things_than_its_inputs(fault: Callable[..., Any], name: str) -> None:
    with hf.registered(fault) as registered:
        calls = judged("bert", registered, backward=False)
    assert [(call.violation.rule, call.unsteady) for call in calls] == [("ATT-13", name)] * 2


def test_chance_within_the_bound_hides_no_mistake() -> None:
    """As of sums in any order on a GPU."""

    def jittered(*given: Any, **more: Any) -> Any:
        output, weights = hf.heads_in_another_order(*given, **more)
        return torch.nextafter(output, output + torch.randn_like(output)), weights

    assert [call.violation.rule for call in with_fault("llama", jittered)] == ["ATT-7"] * 2


def test_what_the_model_got_is_judged() -> None:
    """Not what the function gives when it is called again."""
    count = 0

    def wrong_at_first(module: Any, *tensors: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        output, weights = hf.attention_forward(module, *tensors, **more)
        return (2 * output if count == 1 else output), weights

    first, second = with_fault("llama", wrong_at_first)
    assert (first.violation.rule, first.unsteady) == ("ATT-13", "right_again")
    assert second.conforms(STRICT)


# --- calls as cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [Causal(0), Causal(3), SlidingWindow(2, 0, 3), SlidingWindow(1, 2, 0)])
@pytest.mark.parametrize("sizes", [(5, 8), (8, 8), (1, 4)])
def test_a_mask_is_described_as_what_it_is(mask: Any, sizes: tuple[int, int]) -> None:
    queries, keys = sizes
    array = materialize(mask, queries, keys)
    found = describe_mask(array, queries, keys)
    assert found is None or type(found) in (Causal, SlidingWindow, Dense)
    assert np.array_equal(materialize(found, queries, keys) & True, array)
    if sizes == (8, 8) and isinstance(mask, SlidingWindow) and mask.offset == 0:
        assert isinstance(found, SlidingWindow)


PADDED = np.arange(6) < np.array([6, 3])[:, None, None, None]
EVERY = np.ones((6, 6), bool)
HOLE = PADDED & materialize(Causal(), 6, 6)
HOLE[0, 0, 4, 2] = False
NAMES = [
    (PADDED & EVERY, "padding"),
    (PADDED[..., ::-1] & EVERY, "padding"),
    (PADDED & materialize(Causal(), 6, 6), "causal, padding"),
    (PADDED[..., ::-1] & materialize(Causal(), 6, 6), "causal, padding"),
    (PADDED & materialize(SlidingWindow(1, 0), 6, 6), "window 2, padding"),
    (PADDED[1:] & materialize(SlidingWindow(1, 1), 6, 6), "window -1 to 1, padding"),
    (PADDED & materialize(Causal(3), 3, 6), "causal, padding"),
    (materialize(Causal(), 6, 6)[..., ::-1], "42% hidden"),
    (PADDED & (materialize(Causal(), 6, 6) != materialize(Causal(-3), 6, 6)), "window 3, padding"),
    (PADDED, "25% hidden"),
    (PADDED & materialize(SlidingWindow(2, 0, 5), 1, 6), "75% hidden"),
    (np.zeros((2, 1, 6, 6), bool), "100% hidden"),
    (HOLE, "51% hidden"),  # one pair less than the padded mask has
]


@pytest.mark.parametrize(("allowed", "name"), NAMES)
def test_padding_leaves_the_mask_its_name(allowed: np.ndarray, name: str) -> None:
    inputs = {n: np.zeros((len(allowed), 1, allowed.shape[i], 2), np.float32) for n, i in (("query", 2), ("key", 3))}
    case = Case("attention", "float32", inputs | {"value": inputs["key"]}, {"mask": Dense(allowed)})
    assert mask_name(case) == name
    assert mask_name(replace(case, inputs=case.inputs | {"bias": np.zeros(())})) == f"{name}, bias"


def test_a_call_that_cannot_be_judged_says_why() -> None:
    model = hf.small_model("t5", "sdpa")
    call = next(c for c in watch(model, hf.inputs()) if c.keywords.get("position_bias") is not None)
    numbers = torch.full((1, 1, 12, 12), 0.5)
    for changed, why in (
        ({"mask": numbers}, "a mask of numbers and a position bias"),
        ({"keywords": {"dropout": 0.1}}, "dropout must be 0"),
        ({"query": call.query.half()}, "one dtype"),
        ({"mask": torch.ones(12, 12, dtype=torch.bool)}, "a mask must be"),
    ):
        other = type(call)(**{**vars(call), **changed})
        with pytest.raises((TypeError, ValueError), match=why):
            case_of(other)
        (found,) = judge_calls([other])
        assert not found.is_judged
        assert why in found.reason


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    hf.small_model("llama", "sdpa").save_pretrained(path)
    return path


def test_the_command_judges_a_folder(folder: Path, tmp_path: Path) -> None:
    output = output_of("watch", folder, "--tokens", "3,1,4,1,5", "--backward", "--json", tmp_path / "found.json")
    assert "LlamaForCausalLM, attention sdpa, float32: 2 calls, outputs and gradients\n" in output
    assert "all calls conform (profile robust)" in output
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["conforms"] is content["judged"] is True
    assert [call["mask"] for call in content["calls"]] == ["causal", "causal"]
    assert content["versions"]["transformers"] == importlib.metadata.version("transformers")
    assert len(content["calls"][0]["findings"]) == 4


@SLOW
def test_the_command_tells_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    with hf.registered(hf.heads_in_another_order) as name:
        words = ("watch", folder, "--tokens", "3,1,4,1,5", "--attention", name, "--json", tmp_path / "found.json")
        code, output = command(*words)
    assert code == 1
    assert "ATT-7" in output
    assert "diagnosis      query head h reads the keys and values of key head h % G" in output
    assert "2 of 2 calls do not conform (profile robust), first model.layers.0.self_attn" in output
    call = json.loads((tmp_path / "found.json").read_text())["calls"][0]
    assert (call["rule"], call["first_wrong_row"]) == ("ATT-7", [0, 1, 0])


@SLOW
def test_the_profile_decides(folder: Path) -> None:
    words = ("watch", folder, "--tokens", "3,1,4,1,5", "--attention", "sdpa", "--dtype", "bfloat16")
    assert [command(*words, "--profile", name)[0] for name in (ROBUST, STRICT)] == [0, 1]
    assert "all calls conform (profile robust); at a stricter profile 2 would not" in command(*words)[1]
    assert command(*words, "--profile", STRICT, "--conventions", "weights=inputs")[0] == 0


@SLOW
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a text, or --tokens"),
        (("a text",), "tokenizer.json is not there; give token ids by --tokens"),
        (("--tokens", "3,x"), "token ids are numbers"),
        (("--tokens", "3,40"), "token ids must be from 0 to 39, got 40"),
        (("--tokens", "-3,1"), "token ids must be from 0 to 39, got -3"),
        (("--tokens", "3,1", "--attention", "nothing"), "attention must be one of eager, flash_attention_2"),
        (("--tokens", "3,1", "--attention", "org/kernels"), "or path/to/file.py:function, got 'org/kernels'"),
        (("--tokens", "3,1", "--attention", "nowhere.py:attention"), "no file nowhere.py"),
        (("--tokens", "3,1", "--dtype", "int8"), "dtype must be one of"),
        (("--tokens", "3,1", "--profile", "all"), "profile must be one of"),
        (("--tokens", "3,1", "--conventions", "polarity=masked"), "expected one of empty_rows"),
    ],
)
def test_wrong_usage(folder: Path, words: tuple[str, ...], message: str) -> None:
    output = output_of("watch", folder, *words, code=2)
    assert message in " ".join(output.split())


# --- attention of one's own -------------------------------------------------------------------------------------------

DOCUMENTED = next(
    code
    for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    if "attention_mask, dropout" in code
)
OF_THE_JUDGE = """
from torch.nn.functional import scaled_dot_product_attention

def attention(query, key, value, *, mask=None, scale=None):
    share = query.shape[1] // key.shape[1]
    key, value = (heads.repeat_interleave(share, dim=1) for heads in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
"""
LENGTH_FIRST = """
import conformance
import torch
from torch.nn.functional import scaled_dot_product_attention

@conformance.declare(layout="BTHD", conventions={"polarity": "masked"})
def attention(query, key, value, mask=None, scale=None):
    share = query.shape[2] // key.shape[2]
    key, value = (heads.repeat_interleave(share, dim=2) for heads in (key, value))
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=~mask, scale=scale).transpose(1, 2)
"""
REGISTERED = """
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

def attention(*tensors, **others):
    assert tensors[4].is_floating_point()
    return eager_attention_forward(*tensors, **others)

AttentionInterface.register("of a test", attention)
AttentionMaskInterface.register("of a test", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
"""


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistral")
    hf.small_model("mistral", "sdpa").save_pretrained(path)
    return path


def watched_with(source: str, folder: Path, where: Path, *more: Any) -> tuple[int, str]:
    file = where / "my_kernel.py"
    file.write_text(source)
    try:
        return command("watch", folder, "--tokens", "3,1,4,1,5,9", "--attention", f"{file}:attention", *more)
    finally:
        for interface in (hf.transformers.AttentionInterface, hf.transformers.AttentionMaskInterface):
            for name in ("own", "of a test"):
                interface._global_mapping.pop(name, None)


@pytest.mark.parametrize(
    "source",
    [DOCUMENTED, *(pytest.param(source, marks=SLOW) for source in (OF_THE_JUDGE, LENGTH_FIRST, REGISTERED))],
    ids=["documented", "of the judge", "length first", "registered"],
)
def test_a_function_of_ones_own_is_watched(source: str, windowed: Path, tmp_path: Path) -> None:
    code, output = watched_with(source, windowed, tmp_path, "--backward")
    assert code == 0, output
    assert "my_kernel.py:attention, float32: 2 calls" in output
    assert output.count("window 4") == 2


def without_scale(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def test_the_default_scale_needs_no_parameter() -> None:
    """Computed either way, and rounded to float32 where that does not show; any other scale is passed, and refused."""
    given = [torch.linspace(-1, 1, 2 * 3 * 12).reshape(1, 2, 3, 12)] * 3
    right = without_scale(*given).transpose(1, 2)
    rounded = torch.tensor(12**-0.5).item()
    for scale in (None, 12**-0.5, 1 / np.sqrt(12), rounded):
        assert torch.equal(adapt_function(without_scale)(None, *given, is_causal=False, scaling=scale)[0], right)
    for scale, inputs in ((0.25, given), (rounded, [x.double() for x in given])):
        with pytest.raises(TypeError, match="the call needs scale, and the function has no parameter of that name"):
            adapt_function(without_scale)(None, *inputs, is_causal=False, scaling=scale)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ((torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 3)), r"a tuple of \(torch.Tensor \[1, 2, 3, 4\], .*\)"),
        ([torch.zeros(2, 3), None], r"a list of \(torch.Tensor \[2, 3\], NoneType\)"),
        (torch.zeros(3, 8), r"torch.Tensor \[3, 8\]"),
        (np.zeros((1, 2, 3, 4)), r"numpy.ndarray \[1, 2, 3, 4\]"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_output_is_told(output: Any, told: str) -> None:
    def function(query: Any, key: Any, value: Any) -> Any:
        return output

    given = [torch.zeros(1, 2, 3, 4)] * 3
    with pytest.raises(TypeError, match=rf"must return one tensor \[batch, heads, queries, width\], got {told}$"):
        adapt_function(function)(None, *given, is_causal=False)


def test_a_function_without_a_mask_is_judged_where_every_pair_is_allowed() -> None:
    def attention(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    with hf.registered(adapt_function(attention)) as name:
        model = hf.small_model("bert", name)
        assert all(call.conforms(STRICT) and call.is_judged for call in judge_calls(watch(model, hf.inputs())))
        with pytest.raises(TypeError, match="the call needs mask, and the function has no parameter of that name") as e:
            watch(model, hf.inputs(padded="right"))
    assert e.value.__notes__ == ["bert.encoder.layer.0.attention.self"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("query, key, value, attention_mask, dropout=0.0, scaling=None, **others", "multiple values for .*'dropout'"),
        ("module, query, key, value, attention_mask", "unexpected keyword argument 'dropout'"),
    ],
)
def test_a_function_that_transformers_cannot_call_is_refused(parameters: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "my_kernel.py"
    file.write_text(f"def attention({parameters}): ...")
    expected = r"must take \(module, query, key, value, attention_mask, dropout=0.0, scaling=None, \*\*others\), as "
    with pytest.raises(ValueError, match=rf"my_kernel\.py:attention {expected}transformers calls it: .*{message}"):
        implementation(f"{file}:attention")


def test_a_function_without_names_is_refused(tmp_path: Path) -> None:
    """Nothing tells which of two signatures it has; one name does."""
    file = tmp_path / "my_kernel.py"
    file.write_text("def attention(*tensors, **others):\n    return tensors[0]")
    with pytest.raises(ValueError, match=r"my_kernel\.py:attention names no parameters: name those of attention, or"):
        implementation(f"{file}:attention")


ONE_MORE = "{0} = {0} | {0}.roll(-1, -1).tril()\n    "
MODULO = (".repeat_interleave(share, dim=1)", ".repeat(1, share, 1, 1)", "the keys and values of key head h % G")
MISTAKES = [
    (DOCUMENTED, *MODULO),
    (OF_THE_JUDGE, *MODULO),
    (DOCUMENTED, "output =", f"{ONE_MORE.format('attention_mask')}output =", "window"),
    (OF_THE_JUDGE, "return", f"{ONE_MORE.format('mask')}return", "window"),
]


@pytest.mark.parametrize(
    ("source", "right", "wrong", "name"),
    [pytest.param(*row, marks=SLOW if number else ()) for number, row in enumerate(MISTAKES)],
)
def test_a_mistake_in_it_is_told(
    source: str, right: str, wrong: str, name: str, windowed: Path, tmp_path: Path
) -> None:
    assert source.count(right) == 1
    code, output = watched_with(source.replace(right, wrong), windowed, tmp_path)
    assert code == 1, output
    assert ("MASK-4" if name == "window" else "ATT-7") in output
    assert name in next(line for line in output.splitlines() if "diagnosis" in line)


def test_an_error_in_it_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    code, output = watched_with("def attention(query, key, value, **others):\n    raise OSError(9)", folder, tmp_path)
    assert code == 2
    assert output.startswith("LlamaForCausalLM cannot be run on 6 tokens: OSError: 9 (raised at ")
    assert "my_kernel.py:2 in attention, in model.layers.0.self_attn)" in output
    assert "the function gets" not in output


def test_a_function_of_another_framework_is_told(folder: Path, tmp_path: Path) -> None:
    source = "import numpy as np\n\ndef attention(query, key, value, *, mask):\n    return np.zeros(3, query.dtype)"
    code, output = watched_with(source, folder, tmp_path)
    assert code == 2
    assert output.endswith("; the function gets PyTorch tensors\n")


def test_tokens_are_told_without_padding(capsys: pytest.CaptureFixture[str]) -> None:
    ids, mask = torch.tensor([[5, 7, 0, 0], [1, 2, 3, 4]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    tell_tokens({"input_ids": ids, "attention_mask": mask})
    tell_tokens({"input_ids": ids[:1]})
    assert capsys.readouterr().out.splitlines() == ["2 tokens: 5, 7", "4 tokens: 1, 2, 3, 4", "4 tokens: 5, 7, 0, 0"]


def test_no_message_of_its_own_is_cut() -> None:
    """Where a folder has a long path, what to do stands behind it. Other kinds of errors than ours are cut."""
    message = "x" * 400 + "; name it with --tokens"
    assert explain_error(ValueError(message)) == message
    assert explain_error(OSError(message)) == f"OSError: {'x' * 300}"


def test_a_device_must_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cpu", "cuda", "cuda:1"):
        refuse_absent(device)
    for device in ("cuda:2", "meta", "gpu"):
        code, output = command("watch", folder, "--tokens", "3,1", "--device", device)
        assert (code, output) == (2, f"no device {device} here: PyTorch sees cpu, cuda, cuda:0, cuda:1\n")


def test_a_model_is_watched_on_the_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of "meta" have no numbers to judge."""
    monkeypatch.setattr(watching, "refuse_absent", lambda device: None)
    output = output_of("watch", folder, "--tokens", "3,1", "--device", "meta", code=2)
    assert "meta" in output.lower()


@pytest.mark.parametrize("kind", ["keyword", "input"])
def test_labels_decide_the_loss(kind: str) -> None:
    """The tokens are those of a language model without labels."""
    model, given = hf.small_model("llama", "sdpa"), hf.inputs()

    def cotangent(labels: torch.Tensor) -> torch.Tensor:
        told: dict[str, Any] = {"labels": labels} if kind == "keyword" else {}
        found = watch(model, given | ({} if told else {"labels": labels}), backward=True, **told)[0].cotangent
        assert isinstance(found, torch.Tensor)
        return found

    tokens = watch(model, given, backward=True)[0].cotangent
    assert torch.equal(cotangent(given["input_ids"]), tokens)
    assert not torch.equal(cotangent(given["input_ids"].flip(1)), tokens)


@SLOW
def test_labels_are_read_by_the_decoder() -> None:
    """Of an encoder-decoder, whose targets may have another length."""
    calls = watch(hf.small_model("t5", "sdpa"), hf.inputs(), backward=True, labels=torch.tensor([[3, 4, 5]]))
    assert [tuple(call.query.shape[2:3]) for call in calls] == [(12,), (12,), (3,), (3,), (3,), (3,)]
    assert all(call.conforms(STRICT) and call.is_judged for call in judge_calls(calls))


def test_several_sequences_are_padded() -> None:
    found = read_tokens([[3, 1, 4], [5]])
    assert found["input_ids"].tolist() == [[3, 1, 4], [5, 0, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "attention_mask" not in read_tokens([[3, 1], [4, 1]])


def test_calls_that_fail_alike_are_told_once() -> None:
    calls = with_fault("llama", hf.heads_in_another_order)
    (block,) = blocks(calls)
    assert "model.layers.0.self_attn and 1 more" in block
    assert "24 of 48 of the output are wrong; the first: batch element 0, head 1, query 0" in block


@SLOW
def test_a_model_without_attention_is_not_judged(tmp_path: Path) -> None:
    kind = hf.transformers.MambaForCausalLM
    given = {"vocab_size": 40, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    kind(hf.transformers.MambaConfig(**given)).save_pretrained(tmp_path)
    output = output_of("watch", tmp_path, "--tokens", "3,1,4", "--json", tmp_path / "found.json", code=2)
    assert "has called no attention" in output
    content = json.loads((tmp_path / "found.json").read_text())
    assert (content["conforms"], content["judged"], content["calls"]) == (None, False, [])


def test_what_is_not_judged_does_not_conform(folder: Path, tmp_path: Path) -> None:
    output = output_of("watch", folder, "--tokens", "3", "--backward", "--json", tmp_path / "found.json", code=2)
    assert "2 of 2 calls could not be judged in full" in output
    content = json.loads((tmp_path / "found.json").read_text())
    assert (content["conforms"], content["judged"]) == (None, False)


@SLOW
def test_images_are_no_tokens(tmp_path: Path) -> None:
    given = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    images = hf.transformers.ViTModel(hf.transformers.ViTConfig(intermediate_size=16, **given))
    images.save_pretrained(tmp_path)
    assert "ViTModel reads pixel_values" in output_of("watch", tmp_path, "--tokens", "3,1", code=2)


def changed(**given: Any) -> Callable[[Path], None]:
    """Entries of config.json; None takes one away."""

    def change(folder: Path) -> None:
        told = json.loads((folder / "config.json").read_text()) | given
        (folder / "config.json").write_text(json.dumps({n: v for n, v in told.items() if v is not None}))

    return change


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:3000])


BROKEN = [
    (shutil.rmtree, "copy is not there"),
    (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    (written("config.json", '{"a": '), "config.json cannot be read as JSON: Expecting value"),
    (written("config.json", "[]"), "config.json must hold an object"),
    (written("config.json", "{}"), "config.json: Unrecognized model"),
    (changed(model_type="lama"), "config.json: The checkpoint you are trying to load has model type `lama`"),
    (changed(architectures=["Lama"]), f"config.json: transformers {hf.transformers.__version__} has no model Lama"),
    (changed(hidden_size="x"), "Field 'hidden_size' expected int, got str"),
    (changed(vocab_size=50), "lm_head.weight has shape [40, 32], and config.json says [50, 32], and 1 more do not fit"),
    (cut, "model.safetensors cannot be read as a safetensors file: Error while deserializing header"),
    (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
    (written("tokenizer.json", "x"), "tokenizer.json cannot be read as JSON: Expecting value"),
    (written("tokenizer.json", "{}"), "copy has no tokenizer that can be loaded: "),
    (written("tokenizer_config.json", "{"), "tokenizer_config.json cannot be read as JSON: Expecting property name"),
    (lambda folder: None, "tokenizer.json is not there; give token ids by --tokens"),
    (written("tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}'), "tokenizer.json is not there; give"),
    (written("tokenizer_config.json", '{"tokenizer_class": "GemmaTokenizer"}'), "tokenizer.json is not there; give"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_folders_are_told_in_one_line(
    change: Callable[[Path], Any], message: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    change(tmp_path / "copy")
    code, output = command("watch", tmp_path / "copy", *(("a text",) if "tokenizer" in message else ("--tokens", "3")))
    assert code == 2
    assert message in output
    assert output.count("\n") == 1
    assert not caplog.records


def test_entries_that_a_folder_lacks_are_named(folder: Path, tmp_path: Path) -> None:
    """Their weights are random; a folder that names no architecture is of its model type's own."""
    shutil.copytree(folder, tmp_path / "copy")
    changed(architectures=None, num_hidden_layers=3)(tmp_path / "copy")
    output = output_of("watch", tmp_path / "copy", "--tokens", "3,1,4")
    assert "lacks entries, and their weights are random: layers.2.input_layernorm.weight, " in output
    assert "LlamaModel, attention sdpa, float32: 3 calls" in output


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    """More tokens than positions, or none."""
    model = hf.small_model("gpt2", "sdpa")
    model.save_pretrained(tmp_path)
    output = output_of("watch", tmp_path, "--tokens", ",".join(["3"] * 33), code=2)
    assert output.startswith("GPT2LMHeadModel cannot be run on 33 tokens: IndexError")
    assert output.endswith("max_position_embeddings in config.json is 32\n")
    with pytest.raises(ValueError, match="there is no token to read"):
        refuse_unknown(model, {"input_ids": torch.zeros(1, 0)})


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_of_layers_stay_whole(width: int) -> None:
    """Numbers too; what is said at length is folded."""
    layer = "decoder.block.11.layer.0.SelfAttention"
    unjudged = JudgedCall(layer, None, reason="its exact result in float64 takes minutes: take a shorter text")
    inputs = dict.fromkeys(("query", "key", "value"), np.zeros((1, 4, 12, 8), np.float32))
    case = Case("attention", "float32", inputs)
    finding = Finding("output", 0.25)
    table = calls_table([JudgedCall(layer, case, [finding], finding, rows=48), unjudged], ROBUST)
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(fitting(table, console))
    lines = console.file.getvalue().splitlines()
    assert sum(layer in line for line in lines) == 2
    assert all(len(line) <= width for line in lines)
    assert any("12 x 12" in line and "0.25" in line and "conforms" in line for line in lines)
    assert sum(line.strip("┃ ").split(" ")[0] == "layer" for line in lines) == 1
    assert (len(table.columns) == len(fitting(table, console).columns)) == (width == 200)
