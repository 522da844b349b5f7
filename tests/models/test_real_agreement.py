"""Hugging Face's own BertModel and the three packages, with trained weights on real sentences.

In float32 the sentence embeddings of all 64 sentences are compared. Carried from end to end through trained layers, the
bound for float32 is larger than the hidden states themselves; so Hugging Face's module is judged step by step, as the
packages are: each part of it is given the definition's own activations, and held to the bound of that one step. And
from end to end the hidden states are held to the carried bound in float64, where the other GELU is thousands of bounds
away. These two take three sentences of very different lengths.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.models import minilm
from conformance.models.error_propagation import carried_bound
from conformance.models.minilm import Batch, encode_texts, find_folder
from conformance.models.stepwise import Oracle, framework_of
from conformance.models.structures import widen_parameters
from reference_numpy import Model, pool
from specification.dialects import read_folder
from specification.parameters import mapped
from tests.support.helpers import PACKAGES

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(minilm.missing_packages()), reason=f"not installed: {', '.join(minilm.missing_packages())}"
    ),
]

BATCH, DRAWS = 16, 3
"""DRAWS for a bound, instead of 64: the errors are so much smaller that it need not be known well."""
COSINE = 1 - 1e-6
FAULTS: dict[str, dict[str, Any]] = {
    "feed_forward": {"hidden_act": "gelu_new"},
    "norm": {"layer_norm_eps": 1e-3},
    "attention": {"num_attention_heads": 6},
}


def sentences() -> list[str]:
    """Sixty-four of them, of differing lengths."""
    lines = (Path(__file__).parents[1] / "support" / "sentences.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@cache
def trained() -> Any:
    """(parameters of NumPy arrays in float32, the configuration)."""
    return read_folder(find_folder())


@cache
def definition() -> Model:
    return Model(widen_parameters(trained()[0]), trained()[1])


def embeddings(states: np.ndarray, batch: Batch) -> np.ndarray:
    """The mean of hidden states over the real tokens, divided by its length, in float64."""
    mean = pool(states.astype(np.float64), "mean", batch.keep)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def bert(dtype: str, **options: Any) -> torch.nn.Module:
    """Hugging Face's module with the package's own files."""
    module = transformers.BertModel.from_pretrained(find_folder(), add_pooling_layer=False, **options)
    return module.eval().to(getattr(torch, dtype))


def theirs(module: torch.nn.Module, batch: Batch) -> np.ndarray:
    with torch.no_grad():
        tokens, keep = torch.from_numpy(batch.tokens), torch.from_numpy(batch.keep)
        return module(tokens, attention_mask=keep.long()).last_hidden_state.numpy()


@cache
def parameters(package: str, dtype: str) -> Any:
    framework = framework_of(package)
    with framework.context():
        return mapped(lambda array: framework.array(array.astype(dtype)), trained()[0])


def hidden_states(package: str, dtype: str, batch: Batch) -> np.ndarray:
    """The last hidden states of the package's own model, from the tokens on."""
    framework, own = framework_of(package), parameters(package, dtype)
    called = importlib.import_module(f"{package}.models").MODELS[type(own)]
    with framework.context():
        tokens, keep = framework.array(batch.tokens), framework.array(batch.keep)
        return framework.numpy(called(own, tokens, keep, configuration=trained()[1]))


def all_states(dtype: str, batch: Batch) -> dict[str, np.ndarray]:
    """Hidden states, of Hugging Face's module first."""
    return {"transformers": theirs(bert(dtype), batch)} | {
        package: hidden_states(package, dtype, batch) for package in PACKAGES
    }


# --- all sentences ----------------------------------------------------------------------------------------------------


def batches() -> list[Batch]:
    """All sentences, those of similar length together."""
    texts = sorted(sentences(), key=len)
    return [encode_texts(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]


@pytest.mark.slow
def test_embeddings_of_all_sentences_in_float32() -> None:
    assert sum(len(batch.tokens) for batch in batches()) == 64
    for batch in batches():
        states = all_states("float32", batch)
        expected = embeddings(states["transformers"], batch)
        for name, found in states.items():
            assert found.dtype == np.float32
            assert np.sum(embeddings(found, batch) * expected, axis=-1).min() >= COSINE, name


# --- from end to end --------------------------------------------------------------------------------------------------


@cache
def mixed() -> Batch:
    """Three sentences, so that much is padding."""
    texts = sorted(sentences(), key=len)
    return encode_texts([texts[0], texts[24], texts[48]])


@cache
def bounded() -> tuple[np.ndarray, np.ndarray]:
    """The definition's hidden states, and the carried bound for float64."""
    batch, model = mixed(), definition()

    def run(functions: Any) -> np.ndarray:
        called = functions.MODELS[type(model.parameters)]
        return called(model.parameters, batch.tokens, batch.keep, configuration=model.configuration)

    return carried_bound(run, model.parameters, "float64", samples=DRAWS)


def test_hidden_states_in_float64() -> None:
    exact, bound = bounded()
    for name, states in all_states("float64", mixed()).items():
        assert states.dtype == np.float64
        assert (np.abs(states - exact) <= bound).all(), name


@pytest.mark.parametrize("name", FAULTS)
def test_another_model_is_found_from_end_to_end(name: str) -> None:
    exact, bound = bounded()
    assert np.max(np.abs(theirs(bert("float64", **FAULTS[name]), mixed()) - exact) / bound) > 1000


# --- step by step -----------------------------------------------------------------------------------------------------


@cache
def oracle() -> Oracle:
    return Oracle(definition(), (mixed().tokens,), {"key_padding": mixed().keep}, "float32")


def places(module: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, torch.nn.Module]]:
    """By the definition's name of a step: the part that is given the same, and the part that gives its result."""
    found = {"embedding.norm": (module.embeddings.LayerNorm, module.embeddings.LayerNorm)}
    for number, layer in enumerate(module.encoder.layer):
        attention = layer.attention
        found[f"blocks.{number}.attention"] = (attention.self, attention.output.dense)
        found[f"blocks.{number}.attention_norm"] = (attention.output.LayerNorm, attention.output.LayerNorm)
        found[f"blocks.{number}.feed_forward"] = (layer.intermediate, layer.output.dense)
        found[f"blocks.{number}.feed_forward_norm"] = (layer.output.LayerNorm, layer.output.LayerNorm)
    return found


def ratios(module: torch.nn.Module) -> dict[str, float]:
    """The largest error of every step in units of its bound, when each is given the definition's activations."""
    found: dict[str, float] = {}

    def watch(name: str, first: torch.nn.Module, last: torch.nn.Module) -> None:
        arguments, truth, bound = oracle()[name]

        def given(_: Any, args: Any, keywords: Any) -> Any:
            return (torch.from_numpy(arguments[1].astype("float32")), *args[1:]), keywords

        def gave(_: Any, args: Any, result: torch.Tensor) -> None:
            found[name] = float(np.max(np.abs(result.numpy() - truth) / bound))

        first.register_forward_pre_hook(given, with_kwargs=True)
        last.register_forward_hook(gave)

    for name, (first, last) in places(module).items():
        watch(name, first, last)
    theirs(module, mixed())
    return found


def test_every_step_of_hugging_face() -> None:
    found = ratios(bert("float32"))
    assert len(found) == 25
    assert max(found.values()) <= 1


@pytest.mark.parametrize("name", FAULTS)
def test_another_step_is_found(name: str) -> None:
    wrong = [step for step, ratio in ratios(bert("float32", **FAULTS[name])).items() if ratio > 1]
    assert wrong
    assert all(step.endswith(name) for step in wrong)
