"""A worked example for each operation: small inputs, what all three make of them, and how far they are apart."""

from study.examples.calls import examples
from study.examples.working import worked

__all__ = ["examples", "worked"]
