"""The bound of honest errors from end to end: kept by honest computations, and small enough to show mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.models.error_propagation import carried_bound
from conformance.ports.cases import Calls, ModelCase
from conformance.ports.checkpoints import draw_checkpoint
from conformance.ports.computation import Computation
from conformance.ports.configs import list_configs
from conformance.ports.gradients import bound_gradients, gather_gradients, make_gradient_case
from conformance.ports.noise import FAILURE, RUNS, Noise, noise_bound, quantile
from conformance.ports.noisy_arrays import run_noisily
from reference_numpy.models import MODELS
from specification.checkpoints import flatten
from specification.dialects import DIALECTS
from specification.parameters import mapped


def make_case(dialect: str, number: int = 0, dtype: str = "float32") -> ModelCase:
    checkpoint = draw_checkpoint(dialect, list_configs(dialect)[number], np.random.default_rng(number)).round(dtype)
    cases = [*Calls(checkpoint, None, np.random.default_rng(1)).list_cases()]
    padded = [case for case in cases if "padding" in case.probe]
    return replace((padded or cases)[0], dtype=dtype)


def compute_narrow(case: ModelCase, dtype: str) -> Any:
    """The definition in the model's own dtype, which rounds as a port does."""
    from conformance.cases.case import numpy_dtype

    kind = numpy_dtype(dtype)
    parameters = mapped(lambda array: array.astype(kind), case.checkpoint.parameters)
    inputs = [array.astype(kind) if array.dtype.kind == "f" else array for array in case.call.inputs]
    call = MODELS[type(parameters)]
    return call(parameters, *inputs, configuration=case.checkpoint.configuration, **case.call.options).astype(float)


def worst_ratio(case: ModelCase, got: np.ndarray) -> float:
    exact, bound = case.exact_and_bound
    return float(np.max(case.select(np.abs(got - exact)) / case.select(bound)))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_definition_in_float32_keeps_the_bound(dialect: str) -> None:
    case = make_case(dialect)
    assert 0.005 < worst_ratio(case, compute_narrow(case, "float32")) < 0.6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dialect", ["bert", "gpt2", "llama"])
def test_the_definition_in_16_bits_keeps_the_bound(dialect: str, dtype: str) -> None:
    case = make_case(dialect, dtype=dtype)
    assert worst_ratio(case, compute_narrow(case, dtype)) < 0.9


def worst_gradients(case: ModelCase, dtype: str, factors: tuple[float, ...] = (1.0,)) -> list[float]:
    """The largest error of the definition's gradients, computed in that dtype and times each factor, in bounds."""
    from conformance.cases.case import numpy_dtype

    case = make_gradient_case(case, np.random.default_rng(2))
    exact, bounds = bound_gradients(case)
    kind = numpy_dtype(dtype)
    arrays, run = gather_gradients(case)
    found = run(mapped(lambda array: array.astype(kind) if array.dtype.kind == "f" else array, arrays))

    def measure(factor: float) -> float:
        ratios = mapped(
            lambda got, due, bound: np.max(np.abs(factor * got.astype(float) - due) / bound), found, exact, bounds
        )
        return float(max(flatten(ratios).values()))

    return [*map(measure, factors)]


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "transformer101"])  # a single attention
def test_gradients_of_the_definition_in_float32_keep_their_bound(dialect: str) -> None:
    right, grown = worst_gradients(make_case(dialect), "float32", (1.0, 1.0003))
    assert 0.005 < right < 0.6
    assert grown > 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dialect", ["bert", "gpt2", "llama"])
def test_gradients_of_the_definition_in_16_bits_keep_their_bound(dialect: str, dtype: str) -> None:
    assert worst_gradients(make_case(dialect, dtype=dtype), dtype)[0] < 0.9


def test_errors_that_carry_relus_over_their_kink_keep_the_bound() -> None:
    """In bfloat16 one in some thousand does so, and changes a gradient by more than many roundings."""
    case = make_gradient_case(make_case("t5", dtype="bfloat16"), np.random.default_rng(2))
    arrays, run = gather_gradients(case)
    exact, bounds = bound_gradients(case)
    for number in range(24):
        noise = Noise(np.random.default_rng([1, number]), "bfloat16", 1)
        with np.errstate(all="ignore"):
            got = run_noisily(run, arrays, noise, [], 1.0)
        inside = mapped(lambda one, due, bound: np.all(np.abs(np.asarray(one) - due) <= bound), got, exact, bounds)
        assert all(flatten(inside).values())


@pytest.mark.parametrize("dialect", ["bert", "llama"])
def test_it_is_far_below_the_carried_bound(dialect: str) -> None:
    case = make_case(dialect)
    checkpoint, options = case.checkpoint, case.call.options

    def run(functions: Any) -> Any:
        function = functions.MODELS[type(checkpoint.places)]
        return function(parameters, *case.call.inputs, configuration=checkpoint.configuration, **options)

    parameters = checkpoint.parameters
    _, carried = carried_bound(run, parameters, "float32", samples=16)
    assert np.median(case.select(carried) / case.select(case.bound)) > 20


def change_eps(configuration: Any) -> Any:
    return replace(configuration, norm_eps=1e-5)


def change_activation(configuration: Any) -> Any:
    return replace(configuration, activation="gelu_tanh")


@pytest.mark.parametrize("change", [change_eps, change_activation])
def test_small_mistakes_exceed_it(change: Callable[[Any], Any]) -> None:
    """eps of 1e-5 in place of 1e-12, and the other GELU, on a whole BERT in float32."""
    case = make_case("bert")
    mistaken = case.computation.change(configuration=change(case.checkpoint.configuration)).run()
    assert worst_ratio(case, np.asarray(mistaken)) > 1


def test_runs_in_one_batch_have_noise_of_their_own() -> None:
    """Also in what a model computes once for a batch: angles, the factor of embeddings."""
    case = make_case("gemma")
    few, many = (noise_bound(case.computation, "float32", seed=seed, runs=RUNS)[1] for seed in (1, 2))
    ratio = case.select(few) / case.select(many)
    assert 0.8 < np.median(ratio) < 1.25
    assert ratio.max() < 4


def test_a_mistake_is_measured_on_several_runs_as_on_one() -> None:
    case = make_case("gpt2")

    def change(computation: Computation) -> Computation:
        return computation.change(configuration=replace(computation.configuration, activation="relu"))

    result, bound = noise_bound(case.computation, "float32", change=change)
    np.testing.assert_array_equal(result, change(case.computation).run())
    assert np.isfinite(bound).all()


def test_the_quantile_is_students() -> None:
    """Its tail, by Student's density with as many degrees of freedom as runs, summed up from there on."""
    for elements in (1, 1000, 10**6):
        t = quantile(elements)
        x = np.linspace(t, t + 200, 2_000_001)
        constant = math.exp(math.lgamma((RUNS + 1) / 2) - math.lgamma(RUNS / 2)) / math.sqrt(RUNS * math.pi)
        tail = 2 * float(np.trapezoid(constant * (1 + x**2 / RUNS) ** (-(RUNS + 1) / 2), x))
        assert 0.5 * FAILURE / elements < tail <= FAILURE / elements
