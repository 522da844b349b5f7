"""All known mistakes of ports."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.ports.computation import Computation
from conformance.ports.mistakes import attention, experts, masks, networks, norms
from conformance.ports.mistakes.mistake import ModelMistake, limit_mistakes
from conformance.ports.mistakes.models import list_mistakes_of_models

STEP_MISTAKES = (*norms.MISTAKES, *attention.MISTAKES, *masks.MISTAKES, *networks.MISTAKES, *experts.MISTAKES)


def list_mistakes(computation: Computation) -> Iterator[ModelMistake]:
    """Give every known mistake that may change this computation, in every scope, the largest first."""
    yield from list_mistakes_of_models(computation)
    yield from limit_mistakes(computation, STEP_MISTAKES)
