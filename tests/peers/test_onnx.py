"""ONNX's own cases: every implementation gives what ONNX expects, and ONNX departs from the rules only where known."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: its cases are not tried")

import importlib  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import replace  # noqa: E402
from typing import Any  # noqa: E402

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import jax_impl  # noqa: E402
import reference_numpy  # noqa: E402
import torch_impl  # noqa: E402
from conformance.onnx import activations as activations_bridge  # noqa: E402
from conformance.onnx import attention as bridge  # noqa: E402
from conformance.onnx import losses as losses_bridge  # noqa: E402
from conformance.onnx.cases import (  # noqa: E402
    NodeCase,
    all_nodes,
    expansions,
    node_cases,
    skip_reason,
    skipped_cases,
)
from conformance.onnx.deviations import DEVIATIONS, ONNX, find_deviations, round_evaluator  # noqa: E402
from conformance.onnx.faults_caught import catches  # noqa: E402
from conformance.onnx.running import TRANSLATIONS, Bridged, bridge_node, objection, outcome, outputs_of  # noqa: E402
from conformance.onnx.translation import Translated  # noqa: E402
from conformance.selftest.behaviours import Behaviour  # noqa: E402
from conformance.subjects.subject import IMPLEMENTATIONS, NumpySubject  # noqa: E402

known_version = pytest.mark.skipif(
    not onnx.__version__.startswith(f"{ONNX}."), reason=f"onnx {onnx.__version__}: the tables are those of {ONNX}"
)


@pytest.fixture(scope="module")
def cases() -> list[Bridged]:
    return [bridge_node(node) for node in node_cases()]


# --- the cases --------------------------------------------------------------------------------------------------------


@known_version
def test_all_cases_are_there() -> None:
    assert Counter(node.operator for node in node_cases()) == {
        "Attention": 93, "LayerNormalization": 19, "RMSNormalization": 19,
        "SoftmaxCrossEntropyLoss": 18, "NegativeLogLikelihoodLoss": 9, "Adam": 2, "Momentum": 3,
        "Gelu": 4, "Swish": 1, "LogSoftmax": 7,
    }  # fmt: skip
    assert len(expansions()) == 229


@known_version
def test_weights_of_classes_and_tables_of_sines_alone_are_skipped() -> None:
    skipped = skipped_cases()
    reasons = Counter(skipped.values())
    assert reasons == {"weights of classes": 25, "sines and cosines that are given, and belong to no angle": 8}
    assert all("weight" in name or name.startswith("rotary_embedding") for name in skipped)


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
            assert objection(node, {"Y": output}) == ""


def test_expansions_have_the_same_arrays() -> None:
    for expansion, case in expansions():
        for ours, theirs in zip(expansion.data_sets[0], case.data_sets[0], strict=True):
            assert all(a is b or np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)), expansion.name


@known_version
def test_what_the_cases_do_not_reach() -> None:
    """As the docstring of the cases says."""
    nodes = {node.name: node for node in node_cases() if node.operator == "Attention"}
    for node in nodes.values():
        call = bridge.attention_call(node)
        query, key, value = (array.astype(np.float64) for array in (call.query, call.key, call.value))
        assert all((array >= 0).all() for array in (query, key, value))
        weights = reference_numpy.attention_weights(query, key)
        assert (weights.max(-1) < 3 * weights.min(-1)).all()
        assert key.shape[2] <= 18
    assert nodes["attention_4d_attn_mask_bool"].inputs["attn_mask"].all()
    assert nodes["attention_4d_attn_mask_bool_4d"].inputs["attn_mask"].all()


def test_collecting_leaves_numpys_generator_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    node_cases()
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_case(name: str, cases: list[Bridged]) -> None:
    """Accepted by ONNX's tolerances, and within our bounds."""
    subject = IMPLEMENTATIONS[name]()
    outcomes = [outcome(subject, case) for case in cases]
    assert [o for o in outcomes if not o.conforms] == []


# --- where ONNX departs -----------------------------------------------------------------------------------------------


@known_version
def test_departures_are_the_known_ones(cases: list[Bridged]) -> None:
    assert find_deviations(cases).keys() == DEVIATIONS.keys()


def test_16_bits_in_between_are_all_that_departs(cases: list[Bridged]) -> None:
    """The same nodes in float32, rounded once, conform."""
    names = {name for name, _ in DEVIATIONS}
    departing = [case for case in cases if case.node.name in names]
    assert len(departing) == len(names)
    for case in departing:
        assert max(case.ratios(round_evaluator(case.node)).values()) <= 1, case.node.name


def model_of(node: NodeCase, **attributes: Any) -> Any:
    """The node's model with other attributes."""
    model = onnx.ModelProto()
    model.CopyFrom(node.model)
    for name, value in attributes.items():
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, value))
    return model


def evaluated(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    names = filter(None, (value.name for value in model.graph.input))
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs.values(), strict=True)))


@known_version
def test_raw_scores_are_capped_by_onnx_reference_only() -> None:
    """qk_matmul_output_mode 0 with a softcap: what the docstring of the translation says."""
    from onnx.inliner import inline_selected_functions

    node = {node.name: node for node in node_cases()}["attention_4d_with_qk_matmul"]
    capped = model_of(node, softcap=0.5)
    expanded = inline_selected_functions(capped, [("", "Attention")], inline_schema_functions=True)
    raw = node.outputs["qk_matmul_output"]
    np.testing.assert_allclose(evaluated(expanded, node.inputs)[1], raw, rtol=1e-5)
    np.testing.assert_allclose(evaluated(capped, node.inputs)[1], 0.5 * np.tanh(raw / 0.5), rtol=1e-5)


@known_version
@pytest.mark.parametrize("name", ["K", "V"])
def test_nan_behind_a_mask_reaches_onnx_output_only(name: str) -> None:
    node = {node.name: node for node in node_cases()}["attention_4d_softcap_neginf_mask"]
    forbidden = np.isneginf(node.inputs["attn_mask"]).all(axis=0)
    assert forbidden.any()
    poisoned = node.inputs[name].copy()
    poisoned[:, :, forbidden] = np.nan
    node.inputs[name] = poisoned
    assert np.isnan(evaluated(node.model, node.inputs)[0]).any()
    assert np.isfinite(outputs_of(NumpySubject(), bridge.attention(node))["Y"]).all()


# --- the bridge itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["mask", "bias", "scale", "softcap"])
def test_no_argument_is_lost(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A translation that left it out would be noticed."""
    whole = bridge.attention_call
    assert not noticed()
    monkeypatch.setattr(bridge, "attention_call", lambda node: whole(node)._replace(**{argument: None}))
    assert noticed()


@pytest.mark.parametrize("part", ["causal", "window", "lengths"])
def test_no_mask_is_lost(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, part, lambda *arguments: None)
    assert noticed()


def test_no_offset_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "offset", lambda node, pairs: 0)
    assert noticed()


def noticed() -> list[str]:
    """Cases of Attention that the definition fails as they are translated now."""
    subject, nodes = NumpySubject(), [node for node in node_cases() if node.operator == "Attention"]
    return [node.name for node in nodes if objection(node, outputs_of(subject, bridge.attention(node)))]


@pytest.mark.parametrize("part", ["ignore", "reduction"])
def test_no_option_of_a_loss_is_lost(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = losses_bridge.options
    assert not noticed_in_losses()
    monkeypatch.setattr(losses_bridge, "options", lambda node: {n: v for n, v in whole(node).items() if n != part})
    assert noticed_in_losses()


def test_classes_are_on_axis_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their order is that of the last axis only where there are no more."""
    monkeypatch.setattr(losses_bridge, "log_probabilities", lambda losses: -losses)
    assert noticed_in_losses()


def noticed_in_losses() -> list[str]:
    """Cases that the definition fails as they are translated now, or does not take."""
    subject, failed = NumpySubject(), []
    for node in node_cases():
        if node.operator.endswith("Loss"):
            try:
                wrong = objection(node, outputs_of(subject, TRANSLATIONS[node.operator](node)))
            except ValueError as error:
                wrong = str(error)
            failed += [node.name] if wrong else []
    return failed


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("ACTIVATIONS", {"none": "gelu_tanh", "tanh": "gelu_tanh"}),
        ("ACTIVATIONS", {"none": "gelu", "tanh": "gelu"}),
        ("every_class", lambda logits: losses_bridge.every_class(np.ascontiguousarray(logits[::-1]))),
    ],
)
def test_nothing_of_an_activation_is_lost(part: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations_bridge, part, wrong)
    nodes = [node for node in node_cases() if node.operator in ("Gelu", "LogSoftmax")]
    assert any(objection(node, outputs_of(NumpySubject(), TRANSLATIONS[node.operator](node))) for node in nodes)


def test_a_swish_of_another_alpha_is_skipped() -> None:
    node = next(node for node in node_cases() if node.operator == "Swish")
    assert skip_reason(replace(node, attributes={"alpha": 2.0})) == "another alpha than 1"


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        ("Adam", {"step": 0}), ("Adam", {"beta_1": 0.9}), ("Adam", {"beta_2": 0.999}), ("Adam", {"weight_decay": 0.0}),
        ("Adam", {"learning_rate": 0.01}), ("Momentum", {"momentum": 0.5}), ("Momentum", {"nesterov": False}),
        ("Momentum", {"weight_decay": 0.0}), ("Momentum", {"learning_rate": 0.01}),
    ],
)  # fmt: skip
def test_no_option_of_a_step_is_lost(operator: str, wrong: dict[str, Any], cases: list[Bridged]) -> None:
    """With another value the definition fails a case."""
    failed = []
    for case in cases:
        if case.node.operator == operator:
            changed = {
                name: replace(part, case=replace(part.case, options=part.case.options | wrong))
                for name, part in case.translation.items()
                if isinstance(part, Translated)
            }
            failed += [case.node.name] * bool(objection(case.node, outputs_of(NumpySubject(), changed)))
    assert failed


# --- planted faults ---------------------------------------------------------------------------------------------------


def right(
    query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, softcap: Any = None
) -> Any:
    return reference_numpy.attention(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap)


def unscaled(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    return reference_numpy.attention(query, key, value, mask=mask, scale=1.0)


def refuses_masks(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    if mask is not None:
        raise ValueError("no masks")
    return reference_numpy.attention(query, key, value)


def slightly_off(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """By 8192 units in the last place, in float32."""
    output = reference_numpy.attention(query, key, value, mask=mask)
    return output * np.float32(1 + 2**-10) if output.dtype == np.float32 else output


@pytest.mark.parametrize(
    ("function", "is_caught"),
    [(right, False), (unscaled, True), (refuses_masks, True), (slightly_off, False)],
)
def test_faults_are_caught_by_onnx_tolerances(
    function: Callable[..., Any], is_caught: bool, cases: list[Bridged]
) -> None:
    (catch,) = catches([Behaviour("ATT-1", "a fault", function, right)], cases)
    assert bool(catch.by_onnx) == is_caught
    assert bool(catch.by_bounds) == (function is not right)
    assert len(catch.asked) > (90 if function is right else 20)


def test_faults_of_other_operations_are_left_out(cases: list[Bridged]) -> None:
    assert list(catches([Behaviour("ATT-14", "a fault", right, right, "merge_attention")], cases)) == []
