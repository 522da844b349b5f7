"""The same run in all three packages, and the differences of the results."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import ParamSpec, TypeVar

import numpy as np

from conformance.checks.comparison import compare
from conformance.models.stepwise import framework_of
from conformance.oracle.reference import Exact
from conformance.side_by_side.sources import PACKAGES
from conformance.subjects.frameworks import Framework
from study.examples.parts import of_bound

T = TypeVar("T")
P = ParamSpec("P")


def named(name: str, make: Callable[P, T], /, *given: P.args, **options: P.kwargs) -> T:
    """Return make(*given, **options). An error gets a note that names what was being made."""
    try:
        return make(*given, **options)
    except Exception as error:
        error.add_note(f"in {name}")
        raise


@contextlib.contextmanager
def eager(package: str) -> Iterator[None]:
    """JAX without compiling, so that there are arrays on the way, and not only their descriptions.

    JAX still compiles every operation by itself, which takes most of the time; there is nothing to optimize in one.
    """
    if package != "jax_impl":
        yield
        return
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.disable_jit():
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def in_each(run: Callable[[ModuleType, Framework], T]) -> dict[str, T]:
    """What `run` gives for each package and its framework, by package; JAX step by step."""
    found = {}
    for package in PACKAGES:
        framework = framework_of(package)
        with framework.context(), eager(package):
            found[package] = run(importlib.import_module(package), framework)
    return found


def ratio(one: np.ndarray, other: np.ndarray, allowed: np.ndarray) -> float:
    """The largest difference in units of the bound; 0 where two are the same, whatever the bound."""
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return float(np.max(np.divide(apart, allowed, out=np.where(apart == 0, 0.0, np.inf), where=allowed > 0), initial=0))


def disagreement(answers: Mapping[str, np.ndarray], allowed: np.ndarray) -> float:
    """The largest difference of two packages' answers, in units of the bound."""
    pairs = itertools.combinations(answers.values(), 2)
    return max((ratio(one, other, allowed) for one, other in pairs), default=0.0)


def errors_of(answers: Mapping[str, np.ndarray], exact: np.ndarray, allowed: np.ndarray) -> dict[str, float]:
    """The largest error of each package's answer, in units of the bound."""
    truth = Exact(exact, np.zeros_like(exact))
    return {
        package: compare("", answer, truth, allowed, str(answer.dtype)).ratio for package, answer in answers.items()
    }


def verdict(answers: Mapping[str, np.ndarray], exact: np.ndarray, allowed: np.ndarray, what: str) -> str:
    """How far the packages' answers are from each other and from the exact one, in a sentence."""
    return of_bound(disagreement(answers, allowed), errors_of(answers, exact, allowed), what)


def distance(one: np.ndarray, other: np.ndarray | None) -> float:
    """The largest difference of two arrays, NaN where the other is not there or has another shape."""
    if other is None:
        return float("nan")
    try:
        one, other = np.broadcast_arrays(one.astype(np.float64), other.astype(np.float64))
    except ValueError:
        return float("nan")
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    return float(np.max(np.where(equal, 0, np.abs(np.where(equal, 0, one) - np.where(equal, 0, other))), initial=0))


def all_equal(answers: Mapping[str, np.ndarray]) -> bool:
    """Whether all three give the same, element by element."""
    first, *others = answers.values()
    return all(np.array_equal(first, other) for other in others)
