"""A worked example for each operation: small inputs, the results of all three packages, and their differences."""

from study.examples.calls import examples
from study.examples.working import worked

__all__ = ["examples", "worked"]
