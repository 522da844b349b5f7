"""One model in several packages, on one input: what every step and the whole gives, and how far that is from exact."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.cases.declaration import validate_names
from conformance.models.error_propagation import carried_bound, compare_within_bound
from conformance.models.local import cast
from conformance.models.stepwise import Oracle, convert_arrays, framework_of, is_bounded, judge_steps, replace_nan
from conformance.models.structures import widen_parameters
from conformance.subjects.subject import IMPLEMENTATIONS
from reference_numpy import Model
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.parameters import mapped

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from specification.parameters import ModelParameters

DEFINITION = "reference_numpy"
"""With which all packages are compared, widened to float64; in float64 it is not compared with itself."""


class StepAgreement(NamedTuple):
    """One step: what exactly comes of it, and by package the error at its worst place, in bounds.

    judged: whether it could be judged in full (see `stepwise.is_bounded`).
    """

    name: str
    shape: tuple[int, ...]
    smallest: float
    largest: float
    ratios: dict[str, float]
    judged: bool = True


def describe_step(name: str, result: ArrayLike, ratios: dict[str, float], judged: bool) -> StepAgreement:
    """The agreement about a step of which this exactly comes."""
    result = np.asarray(result)
    extent = (float(result.min()), float(result.max())) if result.size else (0.0, 0.0)
    return StepAgreement(name, result.shape, *extent, ratios, judged)


class Agreement(NamedTuple):
    """Every step in order, and the definition's activations."""

    steps: list[StepAgreement]
    oracle: Oracle

    @property
    def first_beyond(self) -> tuple[str, str] | None:
        """(step, package) where an error beyond its bound comes first."""
        beyond = ((s.name, package) for s in self.steps for package, ratio in s.ratios.items() if not ratio <= 1)
        return next(beyond, None)

    @property
    def unjudged(self) -> list[str]:
        return [step.name for step in self.steps if not step.judged]


def agreement(
    parameters: ModelParameters,
    configuration: Configuration,
    inputs: tuple[np.ndarray, ...],
    options: dict[str, Any],
    packages: Sequence[str],
) -> Agreement:
    """parameters: NumPy arrays, in the dtype in which the packages compute."""
    dtype = dtype_of(parameters)
    exact = Model(widen_parameters(parameters), configuration)
    oracle = Oracle(exact, round_inputs(inputs, dtype), options, dtype)
    ratios: dict[str, dict[str, float]] = {}
    for package in comparable_packages(packages, dtype):
        framework = framework_of(package)
        with framework.context():
            own = mapped(framework.array, parameters)
        for step in judge_steps(package, framework, own, oracle):
            found = ratios.setdefault(step.name, {})
            found[package] = max(found.get(package, 0.0), step.finding.ratio)
    steps = [
        describe_step(name, taken.result, ratios.get(name, {}), is_bounded(oracle[name].truth, oracle[name].bound))
        for name, taken in oracle.taken.items()
    ]
    surplus = [StepAgreement(name, (), 0.0, 0.0, ratios[name]) for name in ratios if name not in oracle.taken]
    return Agreement(steps + surplus, oracle)


def dtype_of(parameters: ModelParameters) -> str:
    return str(next(iter(flatten(parameters).values())).dtype)


def round_inputs(inputs: tuple[np.ndarray, ...], dtype: str) -> tuple[np.ndarray, ...]:
    """The inputs as a model in that dtype is given them, in float64 where they are floating."""
    return tuple(cast(cast(array, dtype), "float64") for array in inputs)


def comparable_packages(packages: Iterable[str], dtype: str) -> list[str]:
    """Packages whose errors in that dtype say something: the definition in float64 is what others are compared with."""
    return [
        package
        for package in validate_names("packages", packages, IMPLEMENTATIONS)
        if (package, dtype) != (DEFINITION, "float64")
    ]


def end_to_end(
    models: Mapping[str, Any],
    parameters: ModelParameters,
    configuration: Configuration,
    inputs: tuple[np.ndarray, ...],
    options: dict[str, Any],
) -> StepAgreement:
    """What each package's own model gives when it is called, as one step that is held to the carried bound.

    models: by package, as its `load` returns them. parameters: NumPy arrays, in the models' dtype. In float32 the bound
    of a wide and deep model is coarse, because it allows every rounding of sums over a thousand products to add up; in
    float64 it is 2^29 times smaller, while what is wired or loaded wrongly is as wrong as before.
    """
    dtype, wide = dtype_of(parameters), widen_parameters(parameters)
    name = f"from end to end, {dtype}"
    exact_inputs = round_inputs(inputs, dtype)

    def run(functions: SimpleNamespace) -> Any:
        return functions.MODELS[type(wide)](wide, *exact_inputs, configuration=configuration, **options)

    exact, bound = carried_bound(run, wide, dtype)
    bound = replace_nan(bound)
    ratios = {}
    for package in comparable_packages(models, dtype):
        model = models[package]
        answer = call_model(package, model, tuple(cast(array, dtype) for array in inputs), options)
        ratios[package] = compare_within_bound(name, answer, exact, bound, dtype).ratio
    return describe_step(name, exact, ratios, is_bounded(exact, bound))


def call_model(
    package: str, model: Callable[..., Any], inputs: tuple[np.ndarray, ...], options: dict[str, Any]
) -> np.ndarray:
    """The package's own model on these inputs, as a user calls it; in JAX under `jax.jit`."""
    framework = framework_of(package)
    with framework.context():
        given = [framework.array(array) for array in inputs]
        keywords = {name: convert_arrays(value, framework) for name, value in options.items()}

        def call(model: Callable[..., Any], given: list[Any], keywords: dict[str, Any]) -> Any:
            return model(*given, **keywords)

        if framework.name == "jax":
            call = importlib.import_module("jax").jit(call)
        return framework.numpy(call(model, given, keywords))
