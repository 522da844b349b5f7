"""What a router gives, and the names of the ways in which it may choose and weigh (MOE-1 to MOE-3)."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["GROUP_SCORES", "SCORINGS", "WEIGHTINGS", "Routing"]

SCORINGS = ("softmax", "sigmoid", "none")
GROUP_SCORES = ("two_largest", "largest")
WEIGHTINGS = ("scores", "normalized", "softmax")


class Routing(NamedTuple):
    """The experts of each token.

    indices: [..., chosen], the experts chosen, in ascending order.
    weights: [..., chosen], what the result of each is multiplied by.
    scores: [..., X], of all experts.
    """

    indices: Any
    weights: Any
    scores: Any
