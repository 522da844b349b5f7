"""Parameters for the definition in float64, against which all others are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specification.parameters import mapped

if TYPE_CHECKING:
    from specification.parameters import ModelParameters


def widen_parameters(parameters: ModelParameters) -> Any:
    return mapped(lambda array: array.astype(np.float64), parameters)
