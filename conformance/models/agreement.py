"""One model in several packages, on one input: what every step gives, and how far it is from exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from conformance.models.forced import Oracle, forced_steps, framework_of
from conformance.models.local import cast
from conformance.models.structures import as_float64
from reference_numpy import Model
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.parameters import (
    Classifier,
    Decoder,
    Encoder,
    LanguageModel,
    MultiHeadAttention,
    Transformer,
    mapped,
)

BATCH, LENGTH = 2, 16


class StepAgreement(NamedTuple):
    """One step: what exactly comes of it, and by package the error at its worst place, in bounds."""

    name: str
    shape: tuple[int, ...]
    smallest: float
    largest: float
    ratios: dict[str, float]


class Agreement(NamedTuple):
    """Every step in order, and the definition's activations."""

    steps: list[StepAgreement]
    oracle: Oracle

    @property
    def first_beyond(self) -> tuple[str, str] | None:
        """(step, package) where an error beyond its bound comes first."""
        beyond = ((s.name, package) for s in self.steps for package, ratio in s.ratios.items() if not ratio <= 1)
        return next(beyond, None)


def agreement(
    parameters: Any,
    configuration: Configuration,
    inputs: tuple[np.ndarray, ...],
    options: dict[str, Any],
    packages: Sequence[str],
) -> Agreement:
    """parameters: NumPy arrays, in the dtype in which the packages compute."""
    dtype = str(next(iter(flatten(parameters).values())).dtype)
    exact = Model(as_float64(parameters), configuration)
    oracle = Oracle(exact, tuple(cast(cast(a, dtype), "float64") for a in inputs), options, dtype)
    ratios: dict[str, dict[str, float]] = {}
    for package in packages:
        framework = framework_of(package)
        with framework.context():
            own = mapped(framework.array, parameters)
        for step in forced_steps(package, framework, own, oracle):
            found = ratios.setdefault(step.name, {})
            found[package] = max(found.get(package, 0.0), step.finding.ratio)
    steps = []
    for name, taken in oracle.taken.items():
        result = np.asarray(taken.result)
        low, high = (float(result.min()), float(result.max())) if result.size else (0.0, 0.0)
        steps.append(StepAgreement(name, result.shape, low, high, ratios.get(name, {})))
    surplus = [StepAgreement(name, (), 0.0, 0.0, ratios[name]) for name in ratios if name not in oracle.taken]
    return Agreement(steps + surplus, oracle)


# --- inputs to try a model with ---------------------------------------------------------------------------------------


def probe_inputs(parameters: Any, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Random tokens, or embeddings where the model takes those, that fit the parameters."""
    generator = np.random.default_rng(seed)
    if isinstance(parameters, Transformer):
        return probe_stack(parameters.encoder, generator), probe_stack(parameters.decoder, generator, LENGTH - 3)
    if isinstance(parameters, Classifier | LanguageModel):
        return (probe_stack(parameters[0], generator),)
    if isinstance(parameters, Decoder) and parameters.blocks and parameters.blocks[0].cross_attention is not None:
        x = probe_stack(parameters, generator)
        cross: Any = parameters.blocks[0].cross_attention.key
        memory = generator.normal(size=(BATCH, LENGTH - 3, cross.weight.shape[0]))
        return x, memory.astype(cross.weight.dtype)
    if isinstance(parameters, MultiHeadAttention):
        return tuple(probe_heads(part, generator) for part in parameters[:3])
    return (probe_stack(parameters, generator),)


def probe_stack(parameters: Encoder | Decoder, generator: np.random.Generator, length: int = LENGTH) -> np.ndarray:
    embedding = parameters.embedding
    if embedding is None:
        norm: Any = parameters.blocks[0][1] if parameters.blocks else parameters.norm
        width, dtype = norm.weight.shape[0], norm.weight.dtype
        return generator.normal(size=(BATCH, length, width)).astype(dtype)
    longest = length if embedding.positions is None else min(length, embedding.positions.shape[0])
    return generator.integers(0, embedding.tokens.shape[0], (BATCH, longest))


def probe_heads(projection: Any, generator: np.random.Generator) -> np.ndarray:
    weight = projection[0].weight if isinstance(projection, list) else projection.weight
    return generator.normal(size=(BATCH, LENGTH, weight.shape[0])).astype(weight.dtype)
