"""Adam whose mean is interpolated, as `lerp` does: an accusation without `moments=lerp`, and no cover for mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance import Report, check
from specification.optimizers import AdamState
from tests.support.helpers import options_of

Mean = Callable[[Any, Any, float], Any]


def adam(mean_of: Mean, eps_late: bool = False) -> Callable[..., Any]:
    """A step with another mean. eps_late: eps is added before the square is corrected."""

    def adam_step(
        parameters: Any, gradients: Any, state: Any, *, learning_rate: float, beta_1: float = 0.9,
        beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
    ) -> Any:  # fmt: skip
        dtype = torch.promote_types(parameters.dtype, torch.float32)
        new, gradient, step = parameters.to(dtype), gradients.to(dtype), state.step + 1
        if decoupled:
            new = new * (1 - learning_rate * weight_decay)
        elif weight_decay:
            gradient = gradient + weight_decay * new
        mean = mean_of(state.mean, gradient, beta_1)
        square = beta_2 * state.square + (1 - beta_2) * gradient * gradient
        root, correction = square.sqrt(), math.sqrt(1 - beta_2**step)
        root = (root + eps) / correction if eps_late else root / correction + eps
        new = new - learning_rate / (1 - beta_1**step) * mean / root
        return new.to(parameters.dtype), AdamState(step, mean, square)

    return adam_step


def lerp(mean: Any, gradient: Any, beta: float) -> Any:
    """As torch.optim's foreach implementations take it: from the nearer end."""
    return torch.lerp(mean, gradient, 1 - beta)


def interpolate(mean: Any, gradient: Any, beta: float) -> Any:
    return mean + (1 - beta) * (gradient - mean)


def judged(function: Callable[..., Any], **given: Any) -> Report:
    return check(function, "adam_step", arrays="torch", seed=1, shrink=False, rules="OPT-1", **given)


@pytest.mark.parametrize("mean_of", [lerp, interpolate])
def test_interpolation_conforms_if_it_is_declared(mean_of: Mean) -> None:
    assert judged(adam(mean_of), conventions="moments=lerp").conforms
    report = judged(adam(mean_of))
    assert not report.conforms
    assert [cause.conventions for cause in report.causes] == [{"moments": "lerp"}]
    assert options_of(report) == ["--conventions moments=lerp"]


@pytest.mark.parametrize(
    "wrong",
    [
        adam(lambda mean, gradient, beta: mean + beta * (gradient - mean)),
        adam(lambda mean, gradient, beta: interpolate(mean, gradient, beta).bfloat16().to(mean.dtype)),
        adam(lambda mean, gradient, beta: torch.nan_to_num(lerp(mean, gradient, beta))),
        adam(lambda mean, gradient, beta: lerp(mean, gradient, beta) * torch.where(gradient == 0, torch.nan, 1)),
        adam(lerp, eps_late=True),
    ],
    ids=["factors exchanged", "rounded", "NaN taken for 0", "NaN where all is finite", "eps late"],
)
def test_mistakes_are_caught_all_the_same(wrong: Callable[..., Any]) -> None:
    assert [violation.rule for violation in judged(wrong, effort="quick", conventions="moments=lerp").violations] == [
        "OPT-1"
    ]
