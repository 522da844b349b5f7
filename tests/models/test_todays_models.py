"""Models in the manner of today's: every step, every engine, and generation.

Each of `TODAY` is a small model that shows what is particular to it: rotated queries and keys, windows, norms of
queries and keys, gates, norms around sublayers or behind them, parallel sublayers, sinks, soft caps, biases by
distance, images. `test_gradients` holds their gradients to their bounds.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

import jax_impl
import reference_numpy
import torch_impl
from conformance.models.stepwise import StepFinding
from specification.checkpoints import flatten
from specification.configuration import AttentionLayer
from specification.parameters import mapped
from specification.rotary import Rotary
from tests.models.test_gradients import autograd, beyond, cotangent_of, expected
from tests.models.test_models import SAVED, judged
from tests.support.helpers import IMPLEMENTATIONS, Implementation, by_reference
from tests.support.small_models import plant
from tests.support.todays_models import TODAY, TOKENS

PORTS = IMPLEMENTATIONS[1:]

# --- every step -------------------------------------------------------------------------------------------------------


def worst(found: list[StepFinding]) -> float:
    return max(step.finding.ratio for step in found)


@pytest.mark.rule("BLK-3", "NORM-8", "TRF-1")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", TODAY)
@pytest.mark.slow_where(unless="gpt_oss-float32")
def test_every_step_keeps_its_bound(implementation: Implementation, name: str, dtype: str) -> None:
    found = judged(implementation.package, TODAY[name](), dtype)
    assert len(found) > 10
    assert worst(found) <= 1, [step for step in found if step.finding.ratio > 1]


OPTIONS = "attention_options(width, mask, weights_dropout, configuration)"
FAULTS = {
    "keys are not turned": ("llama", "blocks", "rotated(heads, layer, rotation), split", "heads, split"),
    "the base is left as it is": ("llama", "blocks", "columns, rotary.base,", "columns, 10000.0,"),
    "the scaling is left out": ("gpt_oss", "blocks", "rotary.base, rotary.scaling,", "rotary.base, None,"),
    "pairs are halves": ("gpt_j", "blocks", "cosine, layer.rotary.pairing)", 'cosine, "halves")'),
    "the first layer's rotation for all": ("gemma3", "blocks",
          "first = next(i for i, other in enumerate(kinds) if other == kind)", "first = 0"),
    "no window": ("mistral", "blocks", "windowed(mask, layer)", "mask"),
    "queries without their norm": ("qwen3", "blocks", "heads(parameters.query_norm,", "heads(None,"),
    "keys without their norm": ("olmo2", "blocks", "heads(parameters.key_norm,", "heads(None,"),
    "sinks left out": ("gpt_oss", "blocks", "sinks=parameters.sinks, ", ""),
    "no soft cap": ("gemma2", "blocks", OPTIONS, f'{OPTIONS} | {{"softcap": None}}'),
    "the bias is left out": ("t5", "blocks", "weights_dropout, configuration, bias)",
          "weights_dropout, configuration)"),
    "both sides share the buckets": ("t5", "transformer", "isinstance(parameters, Encoder), ", "False, "),
    "one more bucket of far keys": ("t5", "transformer", "configuration.relative_furthest", "9"),
    "no second norm": ("gemma2", "blocks", "add(x, normalize_if(output_norm, output",
          "add(x, normalize_if(None, output"),
    "the sum is normalised": ("olmo2", "blocks", "normalize(norm, output, conf",
          "normalize(norm, add(x, output), conf"),
    "the second sublayer reads the first's norm": ("gpt_neox", "blocks", "if position_wise.norm is None",
          "if True"),
    "a sublayer after the other": ("gpt_j", "blocks", 'norm_order == "parallel":', 'norm_order == "never":'),
    "the first norm of all is that of the sum": ("modernbert", "blocks", "x if norm is None else",
          "x + x if norm is None else"),
    "the weight without 1": ("gemma3", "blocks", "plus_one=plus_one", "plus_one=False"),
    "the output is not scaled": ("t5", "transformer", "shrink(x) if configuration.scaled_output else",
          "x if True else"),
    "the output is not capped": ("gemma2", "transformer", "if configuration.output_softcap is None", "if True"),
    "the first block's layer in all": ("gemma3", "transformer", "x = decoder_block(block, x, memory, layer=layer",
          "x = decoder_block(block, x, memory, layer=layers[0]"),
    "patches by column": ("vit", "transformer", "permute(0, 2, 4, 1, 3, 5)", "permute(0, 2, 4, 1, 5, 3)"),
    "the class token comes last": ("vit", "transformer", "[first, x]", "[x, first]"),
}  # fmt: skip
"""By name: the model that shows it, and in a file of the port to PyTorch what becomes what."""


@pytest.mark.rule("BLK-3", "NORM-8", "TRF-1")
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.slow_where(unless=("no window", "second norm", "keys are not turned"))
def test_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file, old, new = FAULTS[name]
    example = TODAY[model]()
    plant(f"torch_impl.{file}", old, new, monkeypatch)
    assert worst(judged("torch_impl", example)) > 1


@pytest.mark.slow
def test_a_table_in_which_all_columns_turn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plant("torch_impl.blocks", "checks.rotary_fits(rotary, width)", "width", monkeypatch)
    with pytest.raises(ValueError, match=r"rotation\.sine must have shape"):
        judged("torch_impl", TODAY["gpt_neox"]())


# --- engines ----------------------------------------------------------------------------------------------------------


def in_small_blocks(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in blocks of two queries, so that a table's gradient comes from several."""
    choice = importlib.import_module(f"{package}.engines.choice")
    small = {"torch_impl": {"block": 2}, "jax_impl": {"block": 2, "piece": 3, "shortest": 1}}[package]
    monkeypatch.setattr(choice, "LIMITS", choice.LIMITS._replace(**small))
    if package == "jax_impl":
        monkeypatch.setattr(choice, "SMALL", 0)
        jax.clear_caches()


@pytest.mark.slow
@pytest.mark.rule("POS-6", "ATT-3")
@pytest.mark.parametrize("engine", ["reference", "blocked"])
@pytest.mark.parametrize("name", ["t5", "gpt_oss"])
@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.package)
def test_tables_and_sinks_have_gradients_in_every_engine(
    port: Implementation, name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That "auto" may choose; and without the bias of one block the table's gradient is beyond its bound."""
    example, *exact_and_bounds = expected(f"today, {name}", "float32")
    by_reference(port.package, monkeypatch) if engine == "reference" else in_small_blocks(port.package, monkeypatch)
    assert beyond(autograd(port, example, "float32", jit=True), *exact_and_bounds) == []
    if port.package == "jax_impl":
        jax.clear_caches()


@pytest.mark.rule("POS-6")
def test_a_table_without_the_gradient_of_one_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    example, *exact_and_bounds = expected("today, t5", "float32")
    in_small_blocks("torch_impl", monkeypatch)
    blocked = importlib.import_module("torch_impl.engines.blocked")
    blocks = blocked.blocks
    monkeypatch.setattr(blocked, "blocks", lambda *arguments, **options: blocks(*arguments, **options)[1:])
    wrong = beyond(autograd(PORTS[0], example, "float32"), *exact_and_bounds)
    assert "parameters.encoder.relative_positions" in wrong


# --- frameworks' own ways ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "phi3", "qwen2", "t5", "language_model"])
def test_torch_compiles_a_model_as_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a module: its state dict has the structure's paths, and it moves to another dtype."""
    example = SAVED[name]()
    model = torch_impl.Model(mapped(torch.tensor, example.parameters("float32")), example.configuration)
    assert set(model.state_dict()) == set(flatten(example.arrays))
    assert list(model.buffers()) == []
    torch._dynamo.reset()  # each graph that it keeps counts towards a limit
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    by_reference("torch_impl", monkeypatch)
    for length in (7, 6, 5):  # from the second on the length is a variable of the graph
        inputs = [torch.tensor(array[:, :length]) for array in example.inputs]
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=0, atol=0)
    assert model.to(torch.float64)(*inputs).dtype == torch.float64


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.slow
@pytest.mark.rule("POS-3")
def test_torch_compiles_a_model_after_one_of_another_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the base is a variable of the graph, which frequencies cannot be made of unless it is fixed."""
    example = TODAY["llama"]()
    parameters, tokens = mapped(torch.tensor, example.parameters("float32")), torch.tensor(TOKENS)
    by_reference("torch_impl", monkeypatch)
    torch._dynamo.reset()

    def compare(base: float) -> None:
        layer = AttentionLayer(rotary=Rotary(base=base))
        model = torch_impl.Model(parameters, replace(example.configuration, attention_layers=(layer,)))
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(tokens), model(tokens), rtol=0, atol=0)

    for base in (100.0, 200.0, 300.0):
        compare(base)
    monkeypatch.setattr("torch_impl.rotary.fixed", lambda width, base: (width, base))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="argument conversion failed"):
        compare(400.0)


@pytest.mark.slow
def test_jax_compiles_a_model_and_its_gradient() -> None:
    """Within the bounds of every step, where the configuration is static and all arrays are traced."""
    of_function, exact, bounds = expected("today, gemma2", "float32")
    example, cotangent = TODAY["gemma2"](), cotangent_of(of_function).astype("float32")
    inputs, options = example.inputs, example.options()
    model = jax_impl.Model(mapped(jax.numpy.asarray, example.parameters("float32")), example.configuration)

    @jax.jit
    def gradient(model: Any, inputs: Any, options: Any) -> Any:
        return jax.grad(lambda model: (model(*inputs, **options) * cotangent).sum())(model)

    got = flatten(gradient(model, inputs, options).parameters)
    assert beyond({f"parameters.{name}": np.asarray(array) for name, array in got.items()}, exact, bounds) == []


# --- generation -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("GEN-1", "POS-4")
@pytest.mark.parametrize("name", ["phi3", "qwen2", "gemma3", "t5"])
@pytest.mark.slow_where(unless="reference_numpy-phi3")
def test_generation_is_the_same_with_a_cache(implementation: Implementation, name: str) -> None:
    """Also where keys turn by other angles once the sequence is longer than four tokens."""
    example, framework = TODAY[name](), implementation.subject.framework
    with framework.context():
        model = implementation.Model(implementation.convert(example.parameters("float64")), example.configuration)
        prompt, source = map(implementation.convert, (example.target()[:, :2], example.source()))
        options: dict[str, Any] = {"steps": 5, "source": source}
        cached, whole = (implementation.greedy(model, prompt, cached=cached, **options) for cached in (True, False))
        np.testing.assert_array_equal(framework.numpy(cached), framework.numpy(whole))


@pytest.mark.rule("GEN-1", "POS-4")
@pytest.mark.parametrize("name", ["phi3", "qwen2"])
def test_keys_that_turn_by_other_angles_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they were not, the fifth token's logits would be none that a full pass gives."""
    example = TODAY[name]()
    model, tokens = reference_numpy.Model(example.parameters("float64"), example.configuration), example.target()
    _, cache = reference_numpy.start(model, tokens[:, :4], capacity=5)
    with pytest.raises(ValueError, match="rotation changes with the length"):
        reference_numpy.decode_step(model, tokens[:, 4:5], cache)
    monkeypatch.setattr("reference_numpy.decoding.looks_ahead", lambda *_: False)
    logits, _ = reference_numpy.decode_step(model, tokens[:, 4:5], cache)
    assert not np.allclose(logits[:, -1], model(tokens[:, :5])[:, -1])
