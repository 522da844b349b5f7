"""A worked example for each operation: small inputs, what all three make of them, and how far they are apart."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.cases import Case
from conformance.oracle import oracle
from conformance.subjects import IMPLEMENTATIONS
from conformance.verdict import compare
from specification import Causal
from study.capturing import Captured, watching
from study.sources import PACKAGES


class Example(NamedTuple):
    """A call, and which of the arrays inside are worth seeing: (function, name)."""

    case: Case
    inside: tuple[tuple[str, str], ...]


class Result(NamedTuple):
    """What one package's result is worth: its error in units of the bound, the largest of all elements."""

    package: str
    name: str
    ratio: float


class Worked(NamedTuple):
    """inputs and steps: by title, the definition's arrays. apart: by title, the largest difference of a port's."""

    example: Example
    inputs: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    apart: dict[str, dict[str, float]]
    disagreement: float  # the largest difference of two packages' results, in units of the bound
    results: tuple[Result, ...]


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Small numbers that are easy to read: one decimal."""
    drawn = np.random.default_rng(seed).uniform(-2, 2, shape)
    return drawn.round(1).astype(np.float32)


def projection(seed: int, name: str, width: int, out: int) -> dict[str, np.ndarray]:
    return {f"{name}.weight": numbers(seed, width, out), f"{name}.bias": numbers(seed + 1, out)}


@cache
def examples() -> dict[str, Example]:
    """By the page on which it stands."""
    heads = {"query": numbers(1, 1, 1, 3, 2), "key": numbers(2, 1, 1, 4, 2), "value": numbers(3, 1, 1, 4, 2)}
    pair = {"query": heads["query"], "key": heads["key"]}
    causal = {"mask": Causal(offset=0)}
    inner = (("attention", "allowed"), ("literal_attention", "allowed"))
    row = {"x": numbers(4, 2, 4), "weight": numbers(5, 4)}
    projections = {
        name: array
        for seed, part in enumerate(("query", "key", "value", "output"))
        for name, array in projection(20 + 2 * seed, part, 4, 4).items()
    }
    return {
        "scores": Example(
            Case("attention_weights", "float32", {**pair, "bias": numbers(9, 3, 4)}, {**causal, "softcap": 2.0}),
            (("attention_weights", "allowed"), ("attention_scores", "scores")),
        ),
        "softmax": Example(
            Case("attention_weights", "float32", pair, {"mask": Causal(offset=-1)}),
            (("softmax", "scores"), ("softmax", "maximum"), ("softmax", "exponentials"), ("softmax", "weights")),
        ),
        "attention": Example(
            Case("attention", "float32", heads, causal),
            (*inner, ("attention_scores", "scores"), ("softmax", "maximum"), ("softmax", "exponentials"),
             ("softmax", "weights")),
        ),
        "companions": Example(
            Case("attention_logsumexp", "float32", pair, causal),
            (("attention_scores", "scores"), ("softmax", "maximum"), ("softmax", "exponentials")),
        ),
        "multi_head_attention": Example(
            Case("multi_head_attention", "float32",
                 {name: numbers(10, 1, 3, 4) for name in ("query", "key", "value")} | projections,
                 {"num_heads": 2, **causal}),
            (("attention", "query"), ("attention", "key"), ("attention", "value"),
             ("concatenate_heads", "x")),
        ),
        "layer_norm": Example(
            Case("layer_norm", "float32", {**row, "bias": numbers(6, 4)}, {"eps": 1e-5}),
            (("deviations", "center"), ("forward", "center"), ("layer_norm", "deviation"), ("layer_norm", "variance"),
             ("layer_norm", "normalized")),
        ),
        "norm_variants": Example(
            Case("rms_norm", "float32", row, {"eps": 1e-5}), (("rms_norm", "square"), ("rms_norm", "normalized")),
        ),
        "embedding": Example(
            Case("embedding", "float32", {"table": numbers(7, 5, 4), "ids": np.array([[3, 0, 3]])}, {"scaled": True}),
            (("embedding", "rows"),),
        ),
        "positions": Example(
            Case("sinusoidal_positions", "float32", {}, {"length": 4, "width": 6, "dtype": "float32"}),
            (("sinusoidal_positions", "position"), ("sinusoidal_positions", "angle")),
        ),
        "feed_forward": Example(
            Case("feed_forward", "float32",
                 {"x": numbers(8, 2, 3), **projection(40, "inner", 3, 4), **projection(50, "outer", 4, 3)},
                 {"activation": "gelu"}),
            (("normal_distribution", "x"), ("feed_forward", "hidden")),
        ),
    }  # fmt: skip


STANDS_FOR = {"literal_attention": "attention", "literal_layer_norm": "layer_norm", "forward": "deviations"}
"""Helpers of the ports, by the function of the definition whose steps they take."""


def captured(package: str, case: Case, inside: Sequence[tuple[str, str]]) -> tuple[dict[str, np.ndarray], Captured]:
    """The package's results, and the arrays that its functions named on the way."""
    subject = IMPLEMENTATIONS[package]()
    functions = {function for function, _ in inside} | set(STANDS_FOR)
    framework = subject.framework

    def keep(value: Any) -> np.ndarray | None:
        if isinstance(value, np.ndarray):  # constants that JAX leaves to NumPy, too
            return np.array(value)
        return np.array(framework.numpy(value)) if isinstance(value, framework.kind) else None

    options = dict(case.options)
    if "engine" in signature(getattr(subject.module, case.operation)).parameters:
        options["engine"] = "reference"  # the one that takes the definition's steps
    with eager(package), watching(package, functions, keep) as found:
        answers = subject(replace(case, options=options))
    return answers, {(STANDS_FOR.get(function, function), name): array for (function, name), array in found.items()}


def eager(package: str) -> contextlib.AbstractContextManager[Any]:
    """JAX without compiling, so that there are arrays on the way, and not only their descriptions."""
    if package != "jax_impl":
        return contextlib.nullcontext()
    import jax

    return jax.disable_jit()


@cache
def worked(page: str) -> Worked | None:
    """The example of a page, computed by all three; None where there is none."""
    example = examples().get(page)
    if example is None:
        return None
    case, inside = example
    wanted = list(dict.fromkeys((STANDS_FOR.get(function, function), name) for function, name in inside))
    runs = {package: captured(package, case, inside) for package in PACKAGES}
    truth, bounds = oracle(case), bound(case)
    results = tuple(
        Result(package, name, compare(name, answers[name], exact, bounds[name], str(answers[name].dtype)).ratio)
        for package, (answers, _) in runs.items()
        for name, exact in truth.items()
    )
    definition = runs[PACKAGES[0]]
    steps = {name: definition[1][function, name] for function, name in wanted if (function, name) in definition[1]}
    steps |= definition[0]
    apart = {
        name: {package: distance(array, found_in(runs[package], wanted, name)) for package in PACKAGES[1:]}
        for name, array in steps.items()
    }
    disagreement = max(
        ratio(one[name], other[name], bounds[name])
        for name in truth
        for one, other in itertools.combinations([answers for answers, _ in runs.values()], 2)
    )
    return Worked(example, dict(case.inputs), steps, apart, disagreement, results)


def ratio(one: np.ndarray, other: np.ndarray, allowed: np.ndarray) -> float:
    """The largest difference in units of the bound; 0 where two are the same, whatever the bound."""
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return float(np.max(np.divide(apart, allowed, out=np.where(apart == 0, 0.0, np.inf), where=allowed > 0), initial=0))


def found_in(run: tuple[dict[str, np.ndarray], Captured], wanted: Sequence[tuple[str, str]], name: str) -> Any:
    answers, inside = run
    place = next((place for place in wanted if place[1] == name), None)
    return answers.get(name, inside.get(place) if place is not None else None)


def distance(one: np.ndarray, other: Any) -> float:
    """The largest difference of two arrays, NaN where the other is not there or has another shape."""
    if other is None:
        return float("nan")
    try:
        one, other = np.broadcast_arrays(one.astype(np.float64), other.astype(np.float64))
    except ValueError:
        return float("nan")
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    return float(np.max(np.where(equal, 0, np.abs(np.where(equal, 0, one) - np.where(equal, 0, other))), initial=0))
