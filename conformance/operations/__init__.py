"""How implementations of each operation are judged: every file that is named after one has its record."""

from __future__ import annotations

import importlib

from conformance.cases.facts import operations
from conformance.operations.judged_operation import JudgedOperation

OPERATIONS: dict[str, JudgedOperation] = {
    name: importlib.import_module(f"{__name__}.{name}").OPERATION for name in operations()
}
"""In the order in which they are studied."""
