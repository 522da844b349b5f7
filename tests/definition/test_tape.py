"""The tape of the definition: gradients of compositions, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from reference_numpy import decoder_block_vjp, encoder, encoder_vjp
from reference_numpy.blocks import add, drop, normalize
from reference_numpy.multi_head_attention import linear
from reference_numpy.tape import TAPE, vjp
from specification import Configuration, Linear, Norm
from specification.parameters import mapped
from tests.support.small_models import E, H, Maker

CONFIGURATION = Configuration(H)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def copied(value: Any) -> Any:
    return mapped(np.copy, value)


def assert_equal(value: Any, other: Any) -> None:
    mapped(np.testing.assert_array_equal, value, other)


def test_gradients_add_up() -> None:
    """y = x + x W, and once more: every number is exact."""
    x, parameters = np.array([[1.0, 2.0]]), Linear(np.array([[1.0, 2.0], [3.0, 4.0]]))

    def composition(x: Any, parameters: Any) -> Any:
        for _ in range(2):
            x = add(x, linear(parameters, x))
        return x

    gradients = vjp(composition, {"x": x, "parameters": parameters}, np.array([[1.0, 0.0]]))
    step = np.eye(2) + parameters.weight
    assert_equal(gradients["x"], [[1, 0]] @ step.T @ step.T)
    assert_equal(gradients["parameters"], Linear((x @ step).T @ [[1, 0]] + x.T @ [[1, 0]] @ step.T))


def test_what_the_result_does_not_depend_on_receives_0() -> None:
    """None is for what is no array of floating-point numbers."""
    x, inputs = numbers(2, E), {"tokens": np.arange(3), "other": [numbers(3), None]}
    found = vjp(lambda x, tokens, other: add(x, x), {"x": x} | inputs, np.ones_like(x))
    assert_equal(found, {"x": np.full_like(x, 2), "tokens": None, "other": [np.zeros(3), None]})


def test_an_input_may_be_the_result() -> None:
    """Without dropout `drop` returns what it is given."""
    x, cotangent = numbers(2, E), numbers(2, E)
    assert_equal(vjp(lambda x: drop(drop(x, None), None), {"x": x}, cotangent)["x"], cotangent)


def test_each_place_has_its_own_gradient() -> None:
    """Where one array is given twice, or one block stands in a model twice."""
    made = Maker()
    block, x, cotangent = made.decoder_block(cross=True), numbers(2, 5, E), numbers(2, 5, E)
    same = decoder_block_vjp(block, x, x, cotangent, configuration=CONFIGURATION)
    apart = decoder_block_vjp(block, x, x.copy(), cotangent, configuration=CONFIGURATION)
    assert_equal(same, apart)
    model = made.encoder(1)._replace(embedding=None)
    shared = model._replace(blocks=model.blocks * 3)
    same = encoder_vjp(shared, x, cotangent, configuration=CONFIGURATION)
    apart = encoder_vjp(copied(shared), x, cotangent, configuration=CONFIGURATION)
    assert_equal(same, apart)
    first, second, _ = same.parameters.blocks
    assert (first.attention.query.weight != second.attention.query.weight).any()


@pytest.mark.parametrize("wrong", ["cotangent", "parameters"])
def test_nothing_is_noted_after_an_error(wrong: str) -> None:
    x, norm = numbers(2, E), Norm(numbers(E), numbers(E))
    given: Any = {"parameters": "norm" if wrong == "parameters" else norm, "x": x}
    with pytest.raises((TypeError, ValueError), match=wrong.replace("parameters", "norm")):
        vjp(normalize, given, x[0] if wrong == "cotangent" else x, configuration=CONFIGURATION)
    assert TAPE.get() is None


def test_threads_have_tapes_of_their_own() -> None:
    """Two walk through a model at the same time, and a third one only calls it."""
    model = Maker().encoder(2)._replace(embedding=None)
    x, cotangent = numbers(2, 5, E), numbers(2, 5, E)
    barrier = Barrier(3)

    def gradient(scale: float) -> Any:
        return encoder_vjp(model, scale * x, cotangent, configuration=CONFIGURATION)

    def meet(function: Callable[[], Any]) -> Any:
        barrier.wait()
        return [function() for _ in range(5)][-1]

    calls = [lambda: gradient(1.0), lambda: gradient(2.0), lambda: encoder(model, x, configuration=CONFIGURATION)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(meet, calls))
    for got, function in zip(found, calls, strict=True):
        assert_equal(got, function())
