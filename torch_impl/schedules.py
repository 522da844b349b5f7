"""Learning rates as closed forms of the step, in PyTorch (rule OPT-4): Python numbers. Steps count from 0."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float

from specification import checks

__all__ = ["cosine_decay", "inverse_square_root", "linear_warmup"]


def linear_warmup(step: int, *, steps: int) -> float | Float[torch.Tensor, ""]:
    """Compute min(1, (step + 1) / steps): a factor that reaches 1 at the last of `steps` steps (OPT-4).

    "Gradual warmup" in Goyal et al., arXiv 1706.02677, section 2.2. The first step already moves.

    Args:
        step: 0 for the first step.
        steps: How many steps the rate rises, at least 1.

    Returns:
        The factor, in (0, 1].

    Raises:
        TypeError: What is no integer.
        ValueError: A negative step, or no steps.
    """
    checks.schedule(step, steps=steps)
    return min(step + 1, steps) / steps


def inverse_square_root(step: int, *, width: int, warmup: int) -> float | Float[torch.Tensor, ""]:
    """Compute width^-0.5 min(n^-0.5, n warmup^-1.5) with n = step + 1 (OPT-4).

    "Attention Is All You Need", section 5.3, whose step_num counts from 1.

    Args:
        step: 0 for the first step.
        width: E, the model's.
        warmup: How many steps the rate rises, at least 1.

    Returns:
        The learning rate, largest at step warmup - 1.

    Raises:
        TypeError: What is no integer.
        ValueError: A negative step, or a width or warmup of 0.
    """
    checks.schedule(step, width=width, warmup=warmup)
    number = step + 1
    return min(1 / math.sqrt(number), number / warmup / math.sqrt(warmup)) / math.sqrt(width)


def cosine_decay(step: int, *, steps: int) -> float | Float[torch.Tensor, ""]:
    """Compute (1 + cos(pi step / steps)) / 2, and 0 from step `steps` on (OPT-4).

    Loshchilov and Hutter, arXiv 1608.03983, equation 5, without restarts. The same number as
    sin(pi (steps - step) / (2 steps))^2, which keeps its digits near the end, where 1 + cos cancels.

    Args:
        step: 0 for the first step.
        steps: How many steps the factor falls, at least 1.

    Returns:
        The factor, in [0, 1].

    Raises:
        TypeError: What is no integer.
        ValueError: A negative step, or no steps.
    """
    checks.schedule(step, steps=steps)
    remaining = steps - min(step, steps)
    return math.sin(math.pi / 2 * (remaining / steps)) ** 2
