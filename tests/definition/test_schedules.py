"""Schedules and initial weights against exact values (OPT-4, INIT-1)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

import jax_impl
import torch_impl
from conformance.bounds.arithmetic import UNIT_ROUNDOFF
from conformance.bounds.optimizers import INITIAL_WEIGHTS
from conformance.bounds.optimizers import SCHEDULES as SCHEDULE_ERRORS
from tests.support.helpers import PACKAGES, REFERENCE, Implementation
from tests.support.small_models import plant

# --- schedules --------------------------------------------------------------------------------------------------------


def root(number: Fraction) -> Fraction:
    """To 40 digits."""
    with localcontext() as context:
        context.prec = 40
        return Fraction((Decimal(number.numerator) / Decimal(number.denominator)).sqrt())


def warmed_up(step: int, steps: int) -> Fraction:
    return min(Fraction(1), Fraction(step + 1, steps))


def of_the_paper(step: int, width: int, warmup: int) -> Fraction:
    number = step + 1
    return min(1 / root(Fraction(number)), number / root(Fraction(warmup)) ** 3) / root(Fraction(width))


def cosine(step: int, steps: int) -> Fraction:
    """(1 + cos x) / 2 by its series, for x = pi step / steps, to 30 digits."""
    x = Fraction("3.14159265358979323846264338327950288") * min(step, steps) / steps
    term, total = Fraction(1), Fraction(1)
    for k in range(1, 30):
        term = -term * x * x / ((2 * k - 1) * (2 * k))
        total += term
    return (1 + total) / 2


WARMUPS = ((0, 1), (0, 7), (5, 7), (6, 7), (7, 7), (1000, 7), (999_998, 1_000_000))
PAPERS = (*((step, 512, 4000) for step in (0, 1, 3999, 4000, 99_999)), (0, 1, 1), (6, 96, 3))
COSINES = ((0, 10), (1, 10), (5, 10), (9, 10), (9_999, 10_000), (5, 3), (0, 1), (1, 3), (2, 3))
SCHEDULES: list[tuple[str, Callable[..., Fraction], dict[str, int]]] = [
    *(("linear_warmup", warmed_up, {"step": step, "steps": steps}) for step, steps in WARMUPS),
    *(("inverse_square_root", of_the_paper, {"step": n, "width": width, "warmup": w}) for n, width, w in PAPERS),
    *(("cosine_decay", cosine, {"step": step, "steps": steps}) for step, steps in COSINES),
]


def relative(got: float, exact: Fraction) -> float:
    return float(abs(Fraction(got) - exact) / exact) if exact else float(got != 0)


@pytest.mark.rule("OPT-4")
@pytest.mark.parametrize(("name", "exact", "given"), SCHEDULES)
def test_schedules_are_exact(
    implementation: Implementation, name: str, exact: Callable[..., Fraction], given: dict[str, int]
) -> None:
    """To the last digits of float64, near the end of a cosine too."""
    right = exact(**given) if name != "cosine_decay" or given["step"] < given["steps"] else Fraction(0)
    found = float(getattr(implementation, name)(given["step"], **{k: n for k, n in given.items() if k != "step"}))
    assert relative(found, right) <= SCHEDULE_ERRORS[name] * UNIT_ROUNDOFF["float64"]


@pytest.mark.rule("OPT-4")
@pytest.mark.parametrize(("name", "exact", "given"), SCHEDULES)
def test_schedules_of_traced_steps(name: str, exact: Callable[..., Fraction], given: dict[str, int]) -> None:
    """In JAX in float32, with the step as an int32 that is traced."""
    lengths = {key: number for key, number in given.items() if key != "step"}
    right = exact(**given) if name != "cosine_decay" or given["step"] < given["steps"] else Fraction(0)
    with jax.enable_x64(False):
        found = jax.jit(lambda step: getattr(jax_impl, name)(step, **lengths))(np.int32(given["step"]))
        assert (found.shape, found.dtype) == ((), np.float32)
    assert relative(float(found), right) <= SCHEDULE_ERRORS[name] * UNIT_ROUNDOFF["float32"]


@pytest.mark.rule("OPT-4")
def test_the_largest_rate_of_the_paper(implementation: Implementation) -> None:
    """At the last step of the warm-up, 512^-0.5 4000^-0.5; the rates left and right of it are smaller."""
    rates = [float(implementation.inverse_square_root(step, width=512, warmup=4000)) for step in (3998, 3999, 4000)]
    assert rates[1] == max(rates) == pytest.approx(6.987712429686844e-4, rel=1e-15)


@pytest.mark.rule("OPT-4")
def test_a_warm_up_moves_at_its_first_step_and_ends_at_its_last(implementation: Implementation) -> None:
    factors = [float(implementation.linear_warmup(step, steps=4)) for step in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1, 1, 1]


# --- initial weights --------------------------------------------------------------------------------------------------

UNIFORM = np.random.default_rng(0).random((5, 3))
UNIFORM[0] = (0.0, 0.5, np.nextafter(np.float32(1), np.float32(0)))
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def uniform(dtype: Any, *shape: int) -> np.ndarray:
    """Numbers in [0, 1) in that dtype."""
    numbers = np.resize(UNIFORM, shape).astype(dtype)
    return np.where(numbers.astype(float) < 1, numbers, np.zeros_like(numbers))


def held(got: np.ndarray, numbers: np.ndarray, square: Fraction) -> None:
    """(2 u - 1) sqrt(square), which is rounded in its difference, its factor and their product, and to the dtype."""
    limit, inner = root(square), UNIT_ROUNDOFF["float64" if numbers.dtype == np.float64 else "float32"]
    unit = INITIAL_WEIGHTS * inner + (UNIT_ROUNDOFF.get(str(numbers.dtype), 0) if numbers.dtype.itemsize == 2 else 0)
    for found, u in zip(got.ravel(), numbers.ravel(), strict=True):
        exact = (2 * Fraction(float(u)) - 1) * limit
        assert abs(Fraction(float(found)) - exact) <= Fraction(unit) * abs(exact)


@pytest.mark.rule("INIT-1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform_weights_are_exact(implementation: Implementation, dtype: Any) -> None:
    weight, bias = uniform(dtype, 5, 3), uniform(dtype, 3)
    found = implementation.linear_default(*implementation.convert((weight, bias)))
    numpy = implementation.subject.framework.numpy
    held(numpy(found.weight), weight, Fraction(1, 5))
    held(numpy(found.bias), bias, Fraction(1, 5))
    assert implementation.linear_default(implementation.convert(weight)).bias is None
    held(implementation.call("xavier_uniform", weight), weight, Fraction(6, 8))
    held(implementation.call("xavier_uniform", weight, gain=0.5), weight, Fraction(6, 32))


@pytest.mark.rule("INIT-1")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("package", PACKAGES[1:])
def test_the_same_numbers_give_the_same_weights(package: str, dtype: Any) -> None:
    """Bit for bit."""
    port, weight = Implementation(package), uniform(dtype, 130, 7)
    for name, options in (("xavier_uniform", {}), ("embedding_default", {"padding": 3})):
        assert port.call(name, weight, **options).tobytes() == REFERENCE.call(name, weight, **options).tobytes()
    mine, defined = (one.linear_default(one.convert(weight)) for one in (port, REFERENCE))
    assert port.subject.framework.numpy(mine.weight).tobytes() == defined.weight.tobytes()


@pytest.mark.rule("INIT-1")
def test_weights_lie_where_those_of_torch_do() -> None:
    """The same interval, nearly filled: 2,000 weights of 5 inputs, and `xavier_uniform_`."""
    torch.manual_seed(0)
    numbers = torch.rand(5, 400)
    linear, weight = torch.nn.Linear(5, 400), torch.empty(400, 5)
    torch.nn.init.xavier_uniform_(weight)
    ours = torch_impl.linear_default(numbers, numbers[0])
    for own, theirs in (
        (ours.weight, linear.weight.detach()),
        (ours.bias, linear.bias.detach()),
        (torch_impl.xavier_uniform(numbers), weight),
    ):
        assert float(own.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.01)
    table = torch.nn.Embedding(6, 4, padding_idx=2)
    assert torch.equal(torch_impl.embedding_default(table.weight.detach(), padding=2), table.weight)


@pytest.mark.rule("INIT-1", "OPT-4")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("linear_warmup", "step + 1, steps", "step, steps"),
        ("inverse_square_root", "number = step + 1", "number = max(step, 1)"),
        ("inverse_square_root", "/ math.sqrt(width)", "/ width"),
        (
            "cosine_decay",
            "math.sin(math.pi / 2 * (remaining / steps)) ** 2",
            "0.5 * (1 + math.cos(math.pi * step / steps))",
        ),
    ],
)
def test_wrong_schedules_are_seen(name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step counted from 0 or 1, a width without its root, a cosine that cancels and rises again."""
    plant("reference_numpy.schedules", old, new, monkeypatch)

    def differs(exact: Callable[..., Fraction], given: dict[str, int]) -> bool:
        try:
            test_schedules_are_exact(REFERENCE, name, exact, given)
        except AssertionError:
            return True
        return False

    assert any(differs(exact, given) for other, exact, given in SCHEDULES if other == name)


@pytest.mark.rule("INIT-1")
@pytest.mark.parametrize("wrong", [lambda w: w * np.float32(1 + 2**-20), lambda w: -w, np.abs])
def test_wrong_weights_are_seen(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    """A limit that is off by eight roundings, the other sign, numbers of one sign."""
    weight = uniform(np.float32, 5, 3)
    held(REFERENCE.linear_default(weight).weight, weight, Fraction(1, 5))
    with pytest.raises(AssertionError):
        held(wrong(REFERENCE.linear_default(weight).weight), weight, Fraction(1, 5))
