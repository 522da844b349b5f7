"""Parameters for the definition in float64, against which all others are judged."""

from __future__ import annotations

import numpy as np

from specification.parameters import Parameters, mapped


def widen_parameters(parameters: Parameters) -> Parameters:
    return mapped(lambda array: array.astype(np.float64), parameters)
