"""Optimizers and clipping at single points, on trees, in 16 bits, and what they refuse (OPT-1 to OPT-3)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specification import Linear
from specification.optimizers import AdamState
from specification.parameters import leaves, mapped
from tests.support.helpers import Case, Implementation, bound

DTYPES = ("float32", "float64")


def array(*numbers: float, dtype: str = "float32") -> np.ndarray:
    return np.array(numbers, dtype)


def answers(implementation: Implementation, case: Case, exact: dict[str, list[Any]]) -> None:
    """Hold the results to numbers that are exact, within the bounds of the case."""
    found, allowed = implementation.subject(case), bound(case)
    for name, numbers in exact.items():
        off = [abs(Fraction(float(got)) - Fraction(right)) for got, right in zip(found[name], numbers, strict=True)]
        assert (np.array(off, float) <= allowed[name]).all(), (name, found[name])


# --- by hand ----------------------------------------------------------------------------------------------------------


def adam_case(dtype: str, step: int, mean: Any, square: Any, gradients: Any, **options: Any) -> Case:
    numbers = {"parameters": (1.0, 2.0), "gradients": gradients, "mean": mean, "square": square}
    inputs = {name: array(*given, dtype=dtype) for name, given in numbers.items()}
    return Case("adam_step", dtype, inputs, {"step": step, **options})


@pytest.mark.rule("OPT-1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_step_of_adam(implementation: Implementation, dtype: str) -> None:
    """The corrected averages are the gradient and its square: update = g / (|g| + eps)."""
    case = adam_case(dtype, 0, (0.0, 0.0), (0.0, 0.0), (3.0, -4.0), learning_rate=0.125, eps=0.5)
    first = [1 - Fraction(3, 28), 2 + Fraction(4, 36)]
    answers(implementation, case, {"parameters": first})


@pytest.mark.rule("OPT-1")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decoupled", [True, False])
def test_the_second_step_of_adam(implementation: Implementation, dtype: str, decoupled: bool) -> None:
    """With betas 1/2 and 3/4: the corrections are 3/4 and 7/16, the root is 3, and the gradient in all 3/2."""
    gradients = (1.5, 1.5) if decoupled else (1.0, 0.5)
    options = {"learning_rate": 0.25, "beta_1": 0.5, "beta_2": 0.75, "eps": 0.5, "weight_decay": 0.5}
    case = adam_case(dtype, 1, (1.0, 1.0), (4.5, 4.5), gradients, decoupled=decoupled, **options)
    kept, step = Fraction(7, 8) if decoupled else 1, Fraction(1, 4) * Fraction(10, 21)
    averages: dict[str, list[Any]] = {"mean": [Fraction(5, 4)] * 2, "square": [Fraction(63, 16)] * 2}
    answers(implementation, case, {"parameters": [kept - step, 2 * kept - step], **averages})


@pytest.mark.rule("OPT-2")
@pytest.mark.parametrize(
    ("nesterov", "expected"),
    [(False, [(0.5, 1.0), (0.25, 0.5), (-0.125, 0.75)]), (True, [(0.25, 1.0), (0.125, 0.5), (-0.3125, 0.75)])],
)
def test_three_steps_of_gradient_descent(
    implementation: Implementation, nesterov: bool, expected: list[tuple[float, float]]
) -> None:
    """Gradients 1, 0 and 1/2 with momentum and learning rate 1/2: every number is exact."""
    parameters, state = implementation.convert(array(1.0)), implementation.sgd_start(implementation.convert(array(1.0)))
    for gradient, (moved, velocity) in zip((1.0, 0.0, 0.5), expected, strict=True):
        given = implementation.convert(array(gradient))
        parameters, state = implementation.sgd_step(
            parameters, given, state, learning_rate=0.5, momentum=0.5, nesterov=nesterov
        )
        assert (float(parameters[0]), float(state.velocity[0])) == (moved, velocity)


@pytest.mark.rule("OPT-2")
def test_decay_of_gradient_descent(implementation: Implementation) -> None:
    parameters = implementation.convert(array(4.0))
    state = implementation.sgd_start(parameters)
    moved, state = implementation.sgd_step(parameters, parameters, state, learning_rate=0.5, weight_decay=0.25)
    assert (float(moved[0]), float(state.velocity[0])) == (1.5, 5.0)


@pytest.mark.rule("OPT-3")
@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_by_hand(implementation: Implementation, dtype: str) -> None:
    """Two arrays of norm 5 together."""
    inputs = {"gradients[0]": array(3.0, dtype=dtype), "gradients[1]": array(0.0, -4.0, dtype=dtype)}
    exact = {"gradients[0]": [Fraction(3, 5)], "gradients[1]": [0, Fraction(-4, 5)]}
    answers(implementation, Case("clip_by_global_norm", dtype, inputs, {"limit": 1.0}), exact)


# --- edges ------------------------------------------------------------------------------------------------------------


def clipped(implementation: Implementation, *arrays: np.ndarray, limit: float = 1.0) -> tuple[list[np.ndarray], Any]:
    gradients, norm = implementation.clip_by_global_norm(implementation.convert(list(arrays)), limit)
    numpy = implementation.subject.framework.numpy
    assert norm.shape == ()
    return [numpy(gradient) for gradient in gradients], numpy(norm)


@pytest.mark.rule("OPT-3")
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_gradients_with_a_non_finite_norm_stay(implementation: Implementation, special: float) -> None:
    """What is large stays large, and `norm` says what happened."""
    given = [array(3.0, special), array(1e30)]
    found, norm = clipped(implementation, *given)
    for got, right in zip(found, given, strict=True):
        np.testing.assert_array_equal(got, right)
    np.testing.assert_array_equal(norm, np.float32(abs(special)))


@pytest.mark.rule("OPT-3")
@pytest.mark.parametrize("limit", [5.0, 5.5, np.inf])
def test_gradients_below_the_limit_stay_bit_for_bit(implementation: Implementation, limit: float) -> None:
    given = [array(3.0, -0.0, 1e-30), array(4.0)]
    found, norm = clipped(implementation, *given, limit=limit)
    assert norm == 5
    assert [got.tobytes() for got in found] == [right.tobytes() for right in given]


@pytest.mark.rule("OPT-3")
def test_norms_at_the_ends_of_the_range(implementation: Implementation) -> None:
    """A norm that float32 cannot hold still scales; squares of 1e-30 do not vanish; nothing has the norm 0."""
    found, norm = clipped(implementation, array(3e38, 3e38), array(-3e38))
    assert np.isinf(norm)
    np.testing.assert_allclose(np.concatenate(found) * np.sqrt(3), [1, 1, -1], rtol=1e-6)
    found, norm = clipped(implementation, array(3e-30, 4e-30), limit=1e-30)
    np.testing.assert_allclose([norm, *found[0]], [5e-30, 6e-31, 8e-31], rtol=1e-6)
    found, norm = clipped(implementation, array(3e10, 4e10), limit=1e-30)
    np.testing.assert_allclose(found[0], [6e-31, 8e-31], rtol=1e-6)
    found, norm = clipped(implementation, array(0.0, 0.0), np.zeros((0, 3), np.float32))
    assert norm == 0
    assert (found[0] == 0).all()
    assert found[1].shape == (0, 3)
    assert clipped(implementation, np.zeros(0, np.float32))[1] == 0


@pytest.mark.rule("OPT-3")
def test_gradients_of_several_dtypes_have_one_norm(implementation: Implementation) -> None:
    """In the widest compute dtype; each is rounded to its own."""
    given = [array(3.0), array(4.0).astype(ml_dtypes.bfloat16), array(12.0, dtype="float64")]
    found, norm = clipped(implementation, *given, limit=6.5)
    assert (norm, norm.dtype) == (13, np.float64)
    assert [(got.dtype, float(got[0])) for got in found] == [(g.dtype, float(g[0]) / 2) for g in given]


def step(implementation: Implementation, operation: str, parameters: Any, gradients: Any, **options: Any) -> Any:
    """The first step, as trees of NumPy arrays."""
    given = implementation.convert(parameters)
    state = getattr(implementation, f"{operation}_start")(given)
    call: Callable[..., Any] = getattr(implementation, f"{operation}_step")
    found = call(given, implementation.convert(gradients), state, learning_rate=0.1, **options)
    numpy = implementation.subject.framework.numpy
    return mapped(lambda a: a if isinstance(a, int) else numpy(a), found)


@pytest.mark.rule("OPT-1")
def test_a_square_that_overflows_moves_nothing(implementation: Implementation) -> None:
    parameters, state = step(implementation, "adam", array(1.0, 2.0), array(1e30, 1.0))
    assert parameters[0] == 1
    assert parameters[1] != 2
    assert np.isinf(state.square[0])


@pytest.mark.rule("OPT-1")
def test_a_gradient_of_zero_moves_nothing(implementation: Implementation) -> None:
    parameters, state = step(implementation, "adam", array(1.0, 2.0), array(0.0, 0.0))
    np.testing.assert_array_equal(parameters, [1, 2])
    assert (state.mean == 0).all()
    assert (state.square == 0).all()


# --- trees ------------------------------------------------------------------------------------------------------------


def tree() -> Any:
    """Every kind of nesting, None, an array of rank 0 and one without elements."""
    rng = np.random.default_rng(3)
    numbers = lambda *shape: np.asarray(rng.standard_normal(shape), np.float32)  # noqa: E731
    return {"b": [Linear(numbers(3, 2)), numbers()], "a": (numbers(0, 2), None), "half": numbers(4).astype(np.float16)}


@pytest.mark.rule("OPT-1", "OPT-2")
@pytest.mark.parametrize("operation", ["adam", "sgd"])
def test_a_tree_is_its_arrays(implementation: Implementation, operation: str) -> None:
    """One by one they give the same, in the same places, in containers of the same kinds; arguments stay."""
    parameters, gradients = tree(), mapped(lambda a: np.asarray(2 * a + 1, a.dtype), tree())
    moved, state = step(implementation, operation, parameters, gradients)
    alone = {
        path: step(implementation, operation, array, leaves(gradients)[path])
        for path, array in leaves(parameters).items()
    }
    assert list(leaves(moved)) == list(leaves(parameters))
    assert isinstance(moved["b"][0], Linear)
    assert isinstance(moved["a"], tuple)
    for path, array in leaves(moved).items():
        assert array.dtype == leaves(parameters)[path].dtype
        np.testing.assert_array_equal(array, alone[path][0])
        for name in {"adam": ("mean", "square"), "sgd": ("velocity",)}[operation]:
            kept = leaves(getattr(state, name))[path]
            assert kept.dtype == np.float32
            np.testing.assert_array_equal(kept, getattr(alone[path][1], name))
    for before, after in zip(leaves(tree()).values(), leaves(parameters).values(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.rule("OPT-1", "OPT-2")
@pytest.mark.parametrize("operation", ["adam", "sgd"])
def test_the_order_of_a_dict_does_not_matter(implementation: Implementation, operation: str) -> None:
    """As JAX sorts keys, and others do not."""
    parameters = {"b": array(1.0), "a": array(2.0, 3.0).astype(np.float16)}
    gradients = {"a": array(-0.5, 0.25).astype(np.float16), "b": array(4.0)}
    moved, _ = step(implementation, operation, parameters, gradients)
    for key, one in parameters.items():
        np.testing.assert_array_equal(moved[key], step(implementation, operation, one, gradients[key])[0])


@pytest.mark.rule("OPT-1")
def test_steps_are_counted(implementation: Implementation) -> None:
    parameters = implementation.convert(array(1.0))
    state = implementation.adam_start(parameters)
    for number in range(3):
        assert int(state.step) == number
        assert isinstance(state, AdamState)
        parameters, state = implementation.adam_step(parameters, parameters, state, learning_rate=0.1)
    assert str(getattr(state.step, "dtype", "int32")) == "int32"


@pytest.mark.rule("OPT-1")
def test_parameters_of_16_bits_are_rounded_once(implementation: Implementation) -> None:
    """Gradients may come in float32, and small steps do not vanish in the averages."""
    parameters, gradients = array(1.0).astype(ml_dtypes.bfloat16), array(1e-3)
    moved, state = step(implementation, "adam", parameters, gradients)
    assert moved.dtype == ml_dtypes.bfloat16
    assert float(moved[0]) == float(np.asarray(0.9).astype(ml_dtypes.bfloat16))
    assert state.mean.dtype == state.square.dtype == np.float32
