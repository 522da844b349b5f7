"""Parameters for the definition in float64, against which all others are judged."""

from __future__ import annotations

from typing import Any

import numpy as np

from specification.parameters import mapped


def widen_parameters(parameters: Any) -> Any:
    return mapped(lambda array: array.astype(np.float64), parameters)
