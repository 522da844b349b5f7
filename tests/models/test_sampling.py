"""Samples: which token a given uniform number chooses, held to plain Python, at borders, and where it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.support.helpers import IMPLEMENTATIONS, REFERENCE, Implementation, error_of
from tests.support.small_models import VOCABULARY, edited, generation


class Choice(NamedTuple):
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def plainly(logits: np.ndarray, uniform: float, choice: Choice) -> int:
    """`choose` for one row, as its docstring tells it."""
    order = sorted(range(len(logits)), key=lambda id: (-logits[id], id))
    weights = [math.exp((logits[id] - max(logits)) / choice.temperature) for id in order]
    weights = weights[: choice.top_k]
    if choice.top_p is not None:
        probabilities = [weight / math.fsum(weights) for weight in weights]
        enough = (n for n in range(1, len(weights)) if math.fsum(probabilities[:n]) >= choice.top_p)
        weights = weights[: next(enough, None)]
    probabilities = [weight / math.fsum(weights) for weight in weights]
    return next(id for n, id in enumerate(order, 1) if n == len(weights) or math.fsum(probabilities[:n]) > uniform)


CHOICES = (
    Choice(), Choice(temperature=0.3), Choice(temperature=5.0), Choice(top_k=1), Choice(top_k=4), Choice(top_k=99),
    Choice(top_p=0.5), Choice(top_p=1e-9), Choice(top_p=1.0), Choice(1.7, 6, 0.8), Choice(0.6, 3, 0.9),
)  # fmt: skip


def chosen(choose: Callable[..., Any], implementation: Implementation, choice: Choice, *given: Any) -> np.ndarray:
    return implementation.subject.framework.numpy(choose(*map(implementation.convert, given), **choice._asdict()))


def differences(choose: Callable[..., Any], implementation: Implementation, choice: Choice) -> int:
    """How often, of 300 times, another token than the plain one is chosen; many logits are equal."""
    generator = np.random.default_rng(8)
    logits = np.round(generator.normal(0, 2, (300, VOCABULARY)), 1)
    uniforms = generator.random(300)
    got = chosen(choose, implementation, choice, logits, uniforms)
    return int((got != [plainly(*row, choice) for row in zip(logits, uniforms, strict=True)]).sum())


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_choices_are_the_plain_ones(implementation: Implementation, choice: Choice) -> None:
    assert differences(generation(implementation).choose, implementation, choice) == 0


QUARTERS = np.zeros((1, 4))
EDGES: list[tuple[np.ndarray, float, Choice, int]] = [
    (QUARTERS, 0.0, Choice(), 0),
    (QUARTERS, 0.25 - 2.0**-54, Choice(), 0),
    (QUARTERS, 0.25, Choice(), 1),
    (QUARTERS, 1 - 2.0**-53, Choice(), 3),
    (QUARTERS, 1 - 2.0**-53, Choice(top_p=0.5), 1),
    (QUARTERS, 1 - 2.0**-53, Choice(top_p=0.5 + 2.0**-53), 2),
    (QUARTERS, 0.5, Choice(top_k=2), 1),
    (QUARTERS, 1 - 2.0**-53, Choice(top_k=2, top_p=0.5), 0),  # half of the two that are kept
    (np.array([[-np.inf, 3.0, -np.inf, -np.inf]]), 1 - 2.0**-53, Choice(), 1),
    (np.array([[-2000.0, 0.0, 1e30, -1e30]]), 1 - 2.0**-53, Choice(), 2),
    (np.array([[1.0, 5.0, 5.0, 0.0]]), 1 - 2.0**-53, Choice(temperature=1e-300), 2),
    (np.array([[1.0, 5.0, 4.0, 0.0]]), 1 - 2.0**-53, Choice(temperature=5e-324), 1),
    (np.array([[1.0, 5.0, 4.0, 9.0]]), 0.0, Choice(temperature=1e300), 3),
    (np.array([[7.625, 0.0]], np.float16), 0.9996, Choice(), 1),  # in float16 the probabilities would sum to that of 0
    (np.full((1, 4), np.nan), 0.9, Choice(), 0),
    (np.full((1, 4), np.inf), 0.9, Choice(top_k=2, top_p=0.5), 0),
]
"""Logits, a uniform number, and the token that is taken, at borders that are exact numbers."""


@pytest.mark.parametrize("case", EDGES, ids=range(len(EDGES)))
def test_choices_at_the_edges(implementation: Implementation, case: tuple[np.ndarray, float, Choice, int]) -> None:
    logits, uniform, choice, expected = case
    choose = generation(implementation).choose
    assert chosen(choose, implementation, choice, logits, np.array([uniform])) == [expected]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_logits_and_uniforms_of_other_dtypes(implementation: Implementation, dtype: str) -> None:
    """They are widened first, so that nothing is lost: 1 - 2^-11 is no 1."""
    logits = np.log(np.array([[2048.0 - 1, 1.0]])).astype(dtype)
    uniforms = np.array([1 - 2.0**-11]).astype(dtype)
    choose = generation(implementation).choose
    expected = plainly(logits.astype(float)[0], float(uniforms[0]), Choice())
    assert chosen(choose, implementation, Choice(), logits, uniforms) == [expected]


def test_shares_of_a_sample() -> None:
    """Evenly spaced numbers take every token as often as its probability says, to one."""
    logits = np.random.default_rng(1).normal(0, 1, VOCABULARY)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    uniforms = np.arange(1000) / 1000
    taken = generation(REFERENCE).choose(np.tile(logits, (1000, 1)), uniforms)
    assert (np.abs(np.bincount(taken, minlength=VOCABULARY) - 1000 * probabilities) <= 1).all()


def test_in_float32_a_number_that_is_rounded_to_1_takes_the_last_token() -> None:
    """JAX has no float64 unless it is asked for."""
    choose = generation(IMPLEMENTATIONS[2]).choose
    logits, uniforms = np.array([[0.0, 1.0, -1000.0]], np.float32), np.array([1 - 2.0**-53])
    with jax.enable_x64(False):
        assert choose(logits, uniforms).tolist() == [0]
        assert choose(logits, uniforms, top_p=0.7).tolist() == [1]


def test_choices_that_are_refused(implementation: Implementation) -> None:
    choose, convert = generation(implementation).choose, implementation.convert

    def call(logits: np.ndarray, uniforms: np.ndarray, **options: Any) -> Callable[[], Any]:
        return lambda: choose(convert(logits), convert(uniforms), **options)

    one = np.zeros((2, 3)), np.zeros(2)
    calls = [
        call(np.zeros(3), one[1]), call(np.zeros((2, 0)), one[1]), call(np.zeros((2, 3), int), one[1]),
        call(one[0], np.zeros(3)), call(one[0], -np.ones(2)),
        call(*one, temperature=-1), call(*one, top_k=-1), call(*one, top_p=math.nan),
    ]  # fmt: skip
    assert [error_of(each) for each in calls] == [
        (ValueError, "logits must have shape [B, N], got [3]"),
        (ValueError, "logits must be those of at least one token, got [2, 0]"),
        (TypeError, "logits must have one of the dtypes float16, bfloat16, float32, float64, got int64"),
        (ValueError, "uniforms must have shape [2], got [3]"),
        (ValueError, "uniforms must lie in [0, 1), got values from -1.0 to -1.0"),
        (ValueError, "temperature must be positive and finite, got -1.0"),
        (ValueError, "top_k must be at least 1, got -1"),
        (ValueError, "top_p must be above 0 and at most 1, got nan"),
    ]


# --- planted faults ---------------------------------------------------------------------------------------------------


def caught(module: ModuleType) -> bool:
    return any(differences(module.choose, REFERENCE, choice) for choice in CHOICES) or any(
        chosen(module.choose, REFERENCE, choice, logits, np.array([uniform])) != [expected]
        for logits, uniform, choice, expected in EDGES
    )


SUM = "weights.sum(-1, keepdims=True)"
REVERSED = "wide.shape[1] - 1 - np.argsort(-wide[:, ::-1], axis=-1, kind"
FAULTS = {
    "top_p keeps one too few": ("kept[:, 1:] &= reached[:, :-1] <", "kept[:, 1:] &= reached[:, 1:] <"),
    "top_p keeps one too many": ("reached[:, :-1] < top_p", "reached[:, :-1] <= top_p"),
    "top_p of all, not of top_k": ("top_p * reached[:, -1:]", f"top_p * {SUM}"),
    "top_k keeps one too many": ("(weights.shape[1]) < top_k", "(weights.shape[1]) <= top_k"),
    "not renormalised": ("[:, None] * reached[:, -1:]", f"[:, None] * {SUM}"),
    "a number at the border": ("np.sum(reached <=", "np.sum(reached <"),
    "temperature upside down": ("falling[:, :1]) / temperature", "falling[:, :1]) * temperature"),
    "ties to the highest id": ("np.argsort(-wide, axis=-1, kind", REVERSED),
    "logits of the model's dtype": ("wide = logits.astype(np.float64)", "wide = logits"),
}


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    assert not caught(generation(REFERENCE))
    assert caught(edited("reference_numpy.generation", *FAULTS[name]))
