"""ONNX's own cases: every implementation gives what ONNX expects, and ONNX departs from the rules only where known."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: its cases are not tried")

import importlib  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import replace  # noqa: E402
from typing import Any  # noqa: E402

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from onnx.backend.test.runner import Runner  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import jax_impl  # noqa: E402
import reference_numpy  # noqa: E402
import torch_impl  # noqa: E402
from conformance.cases.expectations import Exact  # noqa: E402
from conformance.checks.comparison import ratio  # noqa: E402
from tests.peers.onnx_cases import Arrays, Node, Output, Translation, all_nodes, is_translated, translate  # noqa: E402
from tests.support.helpers import SUBJECTS, Case, NumpySubject, Subject, bound, oracle  # noqa: E402

NODES = {node.name: node for node in all_nodes() if is_translated(node)}
known_version = pytest.mark.skipif(
    not onnx.__version__.startswith("1.23."), reason=f"onnx {onnx.__version__}: what is known of it is of 1.23"
)
ROUNDED_WITHIN = {
    "attention_24_qk_matmul_output_mode3_softmax_precision",
    "attention_3d_causal_bf16",
    "attention_4d_attn_mask_causal_bf16",
    "attention_4d_causal_bf16",
    "attention_4d_causal_fp16",
    "attention_4d_causal_padded_kv_bf16",
    "attention_4d_fp16",
    "attention_4d_gqa_causal_nonpad_decode_fp16",
    "attention_4d_gqa_with_past_and_present_fp16",
    "attention_4d_padded_kv_bf16",
}
"""Cases whose Y departs from the definition by more than its bound, and why.

Scaled queries and keys, scores and weights are each rounded to 16 bits, and in most cases the softmax is computed in
them; the definition keeps float32 and rounds once (ATT-9).
"""


def run_translation(subject: Subject, translation: Translation) -> Arrays:
    """The node's outputs, when the subject computes them."""
    return {
        name: part.read(*(subject(case)[part.result] for case in part.cases)) if isinstance(part, Output) else part
        for name, part in translation.items()
    }


def assert_accepted(node: Node, outputs: Arrays) -> None:
    """By ONNX's own test runner, with the tolerances of the case."""
    expected = [node.outputs[name] for name in outputs]
    Runner.assert_similar_outputs(expected, list(outputs.values()), node.case.rtol, node.case.atol)


def find_departures(translation: Translation, outputs: Arrays) -> Iterator[str]:
    """The outputs that are further from the exact results than the bounds allow, of those that results are moved to."""
    for name, part in translation.items():
        if isinstance(part, Output) and part.is_moved:
            exact = [oracle(case)[part.result] for case in part.cases]
            truth = Exact(part.read(*(one.high for one in exact)), part.read(*(one.low for one in exact)))
            bounds = np.abs(part.read(*(bound(case)[part.result] for case in part.cases)))
            got = outputs[name]
            with np.errstate(invalid="ignore"):  # to widen a NaN of 16 bits
                if np.max(ratio(got.astype(np.float64), truth, bounds, str(got.dtype)), initial=0.0) > 1:
                    yield name


@known_version
def test_all_cases_are_there() -> None:
    assert Counter(node.operator for node in NODES.values()) == {
        "Attention": 93, "LayerNormalization": 19, "RMSNormalization": 19,
        "SoftmaxCrossEntropyLoss": 18, "NegativeLogLikelihoodLoss": 9, "Adam": 2, "Momentum": 3,
        "Gelu": 4, "Swish": 1, "LogSoftmax": 7,
    }  # fmt: skip
    assert len(all_nodes()) == len(NODES) + 25 + 8  # with weights of classes; with sines and cosines that are given


@pytest.mark.slow_where("jax_impl")
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_case(name: str) -> None:
    """Accepted by ONNX's tolerances, and within our bounds."""
    subject = SUBJECTS[name]()
    for node in NODES.values():
        translation = translate(node)
        outputs = run_translation(subject, translation)
        assert_accepted(node, outputs)
        assert not [*find_departures(translation, outputs)], node.name


def test_no_option_is_lost() -> None:
    """Without one, or without a bias, the definition fails a case."""
    subject, noticed = NumpySubject(), Counter()
    for node in NODES.values():
        translation = translate(node)
        cases = [part.cases[0] for part in translation.values() if isinstance(part, Output)]
        for name in {name for case in cases for name in (*case.options, *case.inputs.keys() & {"bias"})}:
            try:
                assert_accepted(node, run_translation(subject, leave_out(translation, name)))
                noticed[node.operator, name] += 0
            except (AssertionError, KeyError, TypeError, ValueError):
                noticed[node.operator, name] += 1
    assert len(noticed) > 20
    assert [place for place, count in noticed.items() if not count] == []


def leave_out(translation: Translation, argument: str) -> Translation:
    def shorten(case: Case) -> Case:
        inputs, options = ({n: a for n, a in part.items() if n != argument} for part in (case.inputs, case.options))
        return replace(case, inputs=inputs, options=options)

    return {
        name: part._replace(cases=[*map(shorten, part.cases)]) if isinstance(part, Output) else part
        for name, part in translation.items()
    }


@pytest.mark.rule("POS-3")
def test_rotary_embedding_by_given_sines() -> None:
    """ONNX's own tables of random numbers, in place of sines and cosines: the rotation alone."""
    arrays = {reference_numpy: np.asarray, torch_impl: torch.from_numpy, jax_impl: jnp.asarray}
    steps = {importlib.import_module(f"{p.__name__}.rotary").rotate: array for p, array in arrays.items()}
    nodes = [node for node in all_nodes() if node.operator == "RotaryEmbedding"]
    assert len(nodes) == 8
    for node in nodes:
        x, rows = node.inputs["X"], node.inputs.get("position_ids", ...)
        if x.ndim == 3:
            x = x.reshape(*x.shape[:2], node.attributes["num_heads"], -1).swapaxes(1, 2)
        sine, cosine = (node.inputs[f"{name}_cache"][rows][:, None] for name in ("sin", "cos"))
        pairing = "interleaved" if node.attributes.get("interleaved") else "halves"
        for rotate, array in steps.items():
            output = np.asarray(rotate(array(np.array(x)), array(sine), array(cosine), pairing))
            if node.inputs["X"].ndim == 3:
                output = output.swapaxes(1, 2).reshape(node.inputs["X"].shape)
            assert_accepted(node, {"Y": output})


@known_version
def test_what_the_cases_do_not_reach() -> None:
    """Attention's have no negative number and at most 18 keys."""
    for node in NODES.values():
        if node.operator == "Attention":
            case = translate(node)["Y"].cases[0]
            assert all((case.inputs[name].astype(float) >= 0).all() for name in ("query", "key", "value"))
            assert case.inputs["key"].shape[2] <= 18


# --- where ONNX departs -----------------------------------------------------------------------------------------------


@known_version
def test_departures_are_the_known_ones() -> None:
    departures = {
        (node.name, name) for node in NODES.values() for name in find_departures(translate(node), node.outputs)
    }
    assert departures == {(name, "Y") for name in ROUNDED_WITHIN}


@known_version
@pytest.mark.parametrize("name", sorted(ROUNDED_WITHIN))
def test_16_bits_in_between_are_all_that_departs(name: str) -> None:
    """ONNX's reference evaluator in float32, rounded once, conforms."""
    node = NODES[name]
    wide = {n: a if a.dtype.kind in "biu" else a.astype(np.float32) for n, a in node.inputs.items()}
    outputs = dict(zip(node.outputs, evaluate(node.case.model, wide), strict=True))
    rounded = {n: a.astype(node.outputs[n].dtype) for n, a in outputs.items()}
    assert not [*find_departures(translate(node), rounded)]


def evaluate(model: Any, inputs: Arrays) -> list[np.ndarray]:
    """What ONNX's reference evaluator gives."""
    names = filter(None, (value.name for value in model.graph.input))
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs.values(), strict=True)))


@known_version
def test_raw_scores_are_capped_by_onnx_reference_only() -> None:
    """qk_matmul_output_mode 0 with a softcap: the operator's definition and its expansion give uncapped scores."""
    from onnx.inliner import inline_selected_functions

    node, capped = NODES["attention_4d_with_qk_matmul"], onnx.ModelProto()
    capped.CopyFrom(node.case.model)
    capped.graph.node[0].attribute.append(onnx.helper.make_attribute("softcap", 0.5))
    expanded = inline_selected_functions(capped, [("", "Attention")], inline_schema_functions=True)
    raw = node.outputs["qk_matmul_output"]
    np.testing.assert_allclose(evaluate(expanded, node.inputs)[1], raw, rtol=1e-5)
    np.testing.assert_allclose(evaluate(capped, node.inputs)[1], 0.5 * np.tanh(raw / 0.5), rtol=1e-5)


@known_version
@pytest.mark.parametrize("name", ["K", "V"])
def test_nan_behind_a_mask_reaches_onnx_output_only(name: str) -> None:
    """ONNX forbids by adding -inf (MASK-7)."""
    node = NODES["attention_4d_softcap_neginf_mask"]
    forbidden = np.isneginf(node.inputs["attn_mask"]).all(axis=0)
    assert forbidden.any()
    poisoned = node.inputs[name].copy()
    poisoned[:, :, forbidden] = np.nan
    node = node._replace(inputs=node.inputs | {name: poisoned})
    assert np.isnan(evaluate(node.case.model, node.inputs)[0]).any()
    assert np.isfinite(run_translation(NumpySubject(), translate(node))["Y"]).all()
