"""Parameters for the definition in float64, against which all others are judged."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from specification.parameters import mapped

Structure = TypeVar("Structure")


def widen_parameters(parameters: Structure) -> Structure:
    return mapped(lambda array: array.astype(np.float64), parameters)
