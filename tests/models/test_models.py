"""Whole models: every step of all three packages, where a fault is found, and what goes in and out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
from conformance.checks.findings import OtherSource
from conformance.models.stepwise import Oracle, StepFinding, framework_of, judge_steps
from conformance.models.structures import widen_parameters
from specification import (
    Configuration,
    Embedding,
    Encoder,
    Norm,
    Transformer,
)
from specification.checkpoints import KINDS, flatten, read_model, read_safetensors, unflatten, write_safetensors
from specification.parameters import mapped
from tests.support.helpers import IMPLEMENTATIONS, Implementation, TorchArrays
from tests.support.small_models import VOCABULARY, E, H, Maker, fitted, in_dtype, model_of, module_name, plant
from tests.support.todays_models import TODAY, Example


def maker(dtype: str = "float32") -> Maker:
    return Maker(dtype=dtype)


POST = Configuration(H, positions="learned", source_padding=0, target_padding=0, target_mask="causal and real keys")
PRE = replace(POST, norm_order="pre", norm="standard_deviation_norm", activation="gelu", scale="model_width")
RMS = replace(POST, norm_order="pre", norm="rms_norm", activation="gelu_tanh", positions="sinusoidal", pooling="max")
CONFIGURATIONS = {"post": POST, "pre": PRE, "rms": RMS}
SOURCE = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 0, 0, 0, 0]])
TARGET = np.array([[2, 7, 1, 8, 2], [8, 1, 0, 0, 0]])


def inputs_of(parameters: Any) -> tuple[np.ndarray, ...]:
    return (SOURCE, TARGET) if isinstance(parameters, Transformer) else (SOURCE,)


def own_parameters(package: str, parameters: Any) -> Any:
    framework = framework_of(package)
    with framework.context():
        return mapped(framework.array, parameters)


def judged(package: str, example: Example, dtype: str = "float32") -> list[StepFinding]:
    parameters = example.parameters(dtype)
    definition = reference_numpy.Model(widen_parameters(parameters), example.configuration)
    oracle = Oracle(definition, in_dtype(example.inputs, "float64"), example.options(), dtype)
    return judge_steps(package, framework_of(package), own_parameters(package, parameters), oracle)


def steps(package: str, parameters: Any, configuration: Configuration, dtype: str = "float32") -> list[StepFinding]:
    return judged(package, Example(parameters, configuration, inputs_of(parameters)), dtype)


MODELS: dict[str, Callable[[Maker], Any]] = {
    "transformer": Maker.transformer,
    "classifier": Maker.classifier,
    "language_model": Maker.language_model,
}


@pytest.mark.rule("BLK-1", "TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("order", CONFIGURATIONS)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.slow_where("jax_impl", unless="float32")
def test_every_step_keeps_its_bound(implementation: Implementation, kind: str, order: str, dtype: str) -> None:
    configuration = CONFIGURATIONS[order]
    found = steps(implementation.package, fitted(MODELS[kind](maker()), configuration), configuration, dtype)
    assert len(found) > 15
    assert max(step.finding.ratio for step in found) <= 1


# --- where a fault is found -------------------------------------------------------------------------------------------


@pytest.mark.rule("BLK-1")
def test_a_fault_in_one_layer_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 5 of 6: eps of one norm is 1e-4. Only that step is beyond its bound; before and after, nothing is."""
    blocks = importlib.import_module("torch_impl.blocks")
    parameters = maker().encoder(6)
    parameters = parameters._replace(embedding=parameters.embedding._replace(tokens=0.1 * parameters.embedding.tokens))
    own = own_parameters("torch_impl", parameters)
    definition = reference_numpy.Model(widen_parameters(parameters), POST)
    right, spoilt = blocks.normalize, own.blocks[4].attention_norm

    def normalize(norm: Norm, x: torch.Tensor, configuration: Configuration) -> torch.Tensor:
        return right(norm, x, replace(configuration, norm_eps=1e-4) if norm is spoilt else configuration)

    monkeypatch.setattr(blocks, "normalize", normalize)
    found = judge_steps("torch_impl", TorchArrays(), own, Oracle(definition, (SOURCE,), {}, "float32"))
    assert [step.name for step in found if step.finding.ratio > 1] == ["blocks.4.attention_norm"]


@pytest.mark.rule("TRF-1")
def test_a_mask_that_is_lost_is_found_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    models = importlib.import_module("torch_impl.transformer")
    monkeypatch.setattr(models, "padding_mask", lambda tokens, padding: None)
    found = steps("torch_impl", maker().transformer(), POST)
    attentions = (
        "encoder.blocks.{}.attention",
        "decoder.blocks.{}.cross_attention",
        "decoder.blocks.{}.self_attention",
    )
    wrong = {step.name for step in found if step.finding.ratio > 1}
    assert wrong == {attention.format(i) for attention in attentions for i in (0, 1)}


EPS = "parameters.bias, eps=configuration.norm_eps)\n    if"
LAST_NORM = (
    "x = encoder_block(block, x, layer=layer, rotation=rotation, dropout=dropped, **options)\n"
    "    return normalize_if(parameters.norm"
)
OPTIONS = "attention_options(width, mask, weights_dropout, configuration)"
FAULTS = {
    "the residual connection left out": ("blocks", "x = add(x, drop(function(x), dropout.output))", "x = function(x)"),
    "the sublayer reads what is not normalised": ("blocks", "drop(function(normalized)", "drop(function(x)"),
    "the sum is of what is normalised": (
        "blocks", "return add(x, normalize_if(output_norm", "return add(normalized, normalize_if(output_norm",
    ),
    "cross-attention reads the target": ("blocks", "attend(cross, x, memory,", "attend(cross, x, x,"),
    "cross-attention without its mask": ("blocks", "cross, x, memory, memory_mask", "cross, x, memory, None"),
    "scale by the head width everywhere": ("blocks", OPTIONS, f'{OPTIONS} | {{"scale": None}}'),
    "ReLU everywhere": ("blocks", '"activation": configuration.activation', '"activation": "relu"'),
    "eps left as it is by default": ("blocks", EPS, EPS.replace(", eps=configuration.norm_eps", "")),
    "no norm after the last encoder block": ("transformer", LAST_NORM, LAST_NORM.replace("parameters.norm", "None")),
    "positions not added": ("transformer", 'positions == "learned":', 'positions == "nowhere":'),
    "the target is not causal": ("transformer", "return Causal() & padding_mask(tokens", "return padding_mask(tokens"),
    "only the first block": (
        "transformer",
        "zip(parameters.blocks, layers, rotations, sites, strict=True):\n        x = encoder_block",
        "zip(parameters.blocks[:1], layers, rotations, sites, strict=False):\n        x = encoder_block",
    ),
}  # fmt: skip


@pytest.mark.rule("BLK-1", "TRF-1")
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.slow_where(unless=("the target is not causal", "cross-attention without its mask", "only the first block"))
def test_faults_in_blocks_and_models_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each small wrong edit of the port to PyTorch makes a step of an encoder-decoder wrong, or another one."""
    configurations = [replace(POST, norm_eps=1e-2), PRE]
    before = [steps("torch_impl", maker().transformer(), configuration) for configuration in configurations]
    assert max(step.finding.ratio for found in before for step in found) <= 1
    file, old, new = FAULTS[name]
    plant(module_name("torch_impl", file), old, new, monkeypatch)
    after = [steps("torch_impl", maker().transformer(), configuration) for configuration in configurations]
    assert max(step.finding.ratio for found in after for step in found) > 1


# --- what is refused, and what a model is -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["feed-forward", "attention", "positions"])
def test_a_width_of_one_is_not_stretched(implementation: Implementation, part: str) -> None:
    """Adding would do it without a word, in all three frameworks."""
    model = maker().language_model(1)
    block = model.decoder.blocks[0]

    def narrow(linear: Any) -> Any:
        return linear._replace(weight=linear.weight[:, :1], bias=linear.bias[:1])

    attention = block.self_attention._replace(output=narrow(block.self_attention.output))
    feed_forward = block.feed_forward._replace(outer=narrow(block.feed_forward.outer))
    embedding = model.decoder.embedding._replace(positions=np.ones((9, 1), "float32"))
    decoder = {
        "feed-forward": model.decoder._replace(blocks=[block._replace(feed_forward=feed_forward)]),
        "attention": model.decoder._replace(blocks=[block._replace(self_attention=attention)]),
        "positions": model.decoder._replace(embedding=embedding),
    }[part]
    parameters = mapped(implementation.convert, model._replace(decoder=decoder))
    with pytest.raises(ValueError, match="trailing axes"):
        implementation.subject.module.language_model(
            parameters, implementation.convert(SOURCE), configuration=replace(POST, positions="learned")
        )


def test_models_are_compared_by_identity() -> None:
    parameters = maker().language_model(1)
    model, other = (reference_numpy.Model(parameters, POST) for _ in range(2))
    assert model == model
    assert model != other


def test_jax_compiles_a_model_and_takes_it_for_a_pytree() -> None:
    parameters = mapped(jax.numpy.asarray, maker().language_model(1))
    model = jax_impl.Model(parameters, POST)
    assert len(jax.tree.leaves(model)) == len(flatten(parameters))
    for result in (jax.jit(model)(SOURCE), jax.jit(lambda model, tokens: model(tokens))(model, SOURCE)):
        assert result.shape == (*SOURCE.shape, VOCABULARY)


# --- files ------------------------------------------------------------------------------------------------------------


SAVED = {kind: lambda make=make: Example(make(maker()), POST) for kind, make in MODELS.items()} | TODAY


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAVED)
@pytest.mark.slow_where(unless=(*MODELS, "gpt_oss-bfloat16", "t5-float32", "vit-float32"))
def test_saved_by_one_and_restored_by_all_bit_for_bit(name: str, dtype: str, tmp_path: Path) -> None:
    example, path = SAVED[name](), tmp_path / "model.safetensors"
    parameters, configuration = example.parameters(dtype), example.configuration
    expected = {name: array.tobytes() for name, array in flatten(parameters).items()}
    for writer in IMPLEMENTATIONS:
        writer.save(model_of(writer, parameters, configuration), path)
        for reader in IMPLEMENTATIONS:
            model, numpy = reader.restore(path), reader.subject.framework.numpy
            assert model.configuration == configuration
            assert {name: numpy(array).tobytes() for name, array in flatten(model.structure()).items()} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_structures_are_found_again_by_names(kind: str) -> None:
    made = {
        "Encoder": maker().encoder(2),
        "Decoder": maker().decoder(1, True),
        "MultiHeadAttention": maker().attention(),
    }
    made |= {name.title().replace("_", ""): make(maker()) for name, make in MODELS.items()}
    parameters = made[kind]
    assert mapped(id, unflatten(type(parameters), flatten(parameters))) == mapped(id, parameters)
    with pytest.raises(ValueError, match="has no wrong"):
        unflatten(type(parameters), flatten(parameters) | {"wrong.weight": np.zeros(1)})


def test_a_file_that_lacks_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    reference_numpy.save(reference_numpy.Model(maker().language_model(), POST), path)
    arrays, metadata = read_safetensors(path)
    del arrays["output.weight"], arrays["decoder.blocks.1.feed_forward_norm.weight"]
    write_safetensors(path, arrays, metadata)
    with pytest.raises(ValueError, match=r"needs decoder.blocks.1.feed_forward_norm.weight, output.weight"):
        read_model(path)
    write_safetensors(path, arrays, {name: value for name, value in metadata.items() if name != "configuration"})
    with pytest.raises(ValueError, match="is no whole model"):
        read_model(path)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("output.weight", lambda a: a.reshape(-1), r"output.weight must have shape \[16, any\], got \[176\]"),
        ("output.weight", lambda a: a.astype(int), "output.weight must be floating, got int64"),
        ("output.bias", lambda a: a[:1], r"output.bias must have shape \[11\], got \[1\]"),
        ("decoder.embedding.positions", lambda a: a[:, :1], r"must have shape \[any, 16\], got \[24, 1\]"),
        ("decoder.norm.weight", lambda a: a[:1], r"decoder.norm.weight must have shape \[16\], got \[1\]"),
        ("decoder.norm.bias", lambda a: None, "it has 37 arrays, and was saved with 38"),
        ("output.weight.below", lambda a: np.ones(2), "has no output.weight.below"),
        ("configuration", lambda a: '{"num_heads": 4, "norm_eps": "x"}', "norm_eps must be a real number"),
        ("configuration", lambda a: "null", "must be a mapping"),
        (
            "configuration",
            lambda a: '{"num_heads": 4, "scaled_embedding": "yes"}',
            "scaled_embedding must be True or False",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    name: str, wrong: Callable[[Any], Any], message: str, tmp_path: Path, implementation: Implementation
) -> None:
    """Also what would be broadcast where the model is called."""
    path = tmp_path / "model.safetensors"
    reference_numpy.save(reference_numpy.Model(maker().language_model(), POST), path)
    arrays, metadata = read_safetensors(path)
    changed = wrong(arrays.get(name))
    if isinstance(changed, str):
        metadata[name] = changed
    else:
        arrays[name] = changed
    write_safetensors(path, {name: array for name, array in arrays.items() if array is not None}, metadata)
    with pytest.raises(ValueError, match=f"is no whole model.*{message}"):
        implementation.restore(path)


def test_pooling_takes_nothing_that_is_not_kept(implementation: Implementation) -> None:
    """Also where what is kept is -inf; and 0 where nothing is kept."""
    x = np.array([[[5.0], [-np.inf]], [[np.nan], [2.0]], [[1.0], [2.0]]], "float32")
    keep = np.array([[False, True], [False, True], [False, False]])
    pooled = implementation.call("pool", x, "max", keep)
    np.testing.assert_array_equal(pooled[:, 0], [-np.inf, 2, 0])
    np.testing.assert_array_equal(implementation.call("pool", x, "mean", keep)[1:, 0], [2, 0])
    cotangent = np.ones((3, 1), "float32")
    np.testing.assert_array_equal(reference_numpy.pool_vjp(x, "max", keep, cotangent)[..., 0], [[0, 1], [0, 1], [0, 0]])


LAST = "    return output_layer(parameters.output, x, configuration)\n"


@pytest.mark.parametrize(
    "spoilt",
    [
        "2 * output_layer(parameters.output, x, configuration)",
        "output_layer(parameters.output, x, configuration).clone()",
    ],
)
def test_what_a_model_returns_is_its_last_step(spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("torch_impl.transformer", LAST, f"    return {spoilt}\n", monkeypatch)
    found = steps("torch_impl", maker().language_model(), POST)
    assert [step.name for step in found if step.finding.ratio > 1] == ["result"]


def test_inputs_that_are_mixed_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values swapped, and an input that is changed before the first block."""
    parameters, x = maker().attention(), np.random.default_rng(0).normal(size=(3, 2, 5, E)).astype("float32")
    options = "multi_head_attention(parameters, query, key, value, num_heads=configuration.num_heads, **options)"
    definition = reference_numpy.Model(widen_parameters(parameters), replace(POST, source_padding=None))
    oracle = Oracle(definition, tuple(x.astype(float)), {}, "float32")
    plant("specification.calls", options, options.replace("key, value", "value, key"), monkeypatch)
    (found,) = judge_steps("torch_impl", TorchArrays(), own_parameters("torch_impl", parameters), oracle)
    assert found.finding.detail == OtherSource(2, 1)


def test_a_step_that_is_changed_afterwards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant("torch_impl.blocks", "x = add(x, drop(function(x), dropout.output))", CHANGES, monkeypatch)
    found = steps("torch_impl", maker().language_model(), POST)
    assert any(step.finding.kind == "changed_later" for step in found)


CHANGES = "x = add(x, drop(function(x), dropout.output)).mul_(2)"


@pytest.mark.parametrize("positions", ["learned", "after_padding"])
def test_the_id_of_padding_does_not_wrap_around(implementation: Implementation, positions: str) -> None:
    """In 8 bits 300 is 44."""
    generator = np.random.default_rng(0)
    tables = {"tokens": generator.normal(size=(400, E)), "positions": generator.normal(size=(310, E))}
    encoder = Encoder(Embedding(**tables), Maker(dtype="float64").encoder(1).blocks)
    padding = {"learned": "source_padding", "after_padding": "position_padding"}[positions]
    configuration = Configuration(H, positions=positions, **{padding: 300})
    tokens = np.array([[5, 6, 44, 1]])
    with implementation.subject.framework.context():
        parameters = mapped(implementation.convert, encoder)
        given = [implementation.convert(tokens.astype(dtype)) for dtype in ("uint8", "int32")]
        narrow, wide = (implementation.encoder(parameters, ids, configuration=configuration) for ids in given)
        results = map(implementation.subject.framework.numpy, (narrow, wide))
    np.testing.assert_array_equal(*results)
