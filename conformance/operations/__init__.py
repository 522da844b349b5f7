"""How implementations of each operation are judged: every file that is named after one has its record."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from conformance.cases.facts import operations
from conformance.operations.judged_operation import JudgedOperation


class JudgedOperations(Mapping[str, JudgedOperation]):
    """Records by name, in the order in which operations are studied; each is loaded when it is first asked for."""

    def __getitem__(self, name: str) -> JudgedOperation:
        if name not in operations():
            raise KeyError(name)
        record: JudgedOperation = importlib.import_module(f"{__name__}.{name}").OPERATION
        return record

    def __iter__(self) -> Iterator[str]:
        return iter(operations())

    def __len__(self) -> int:
        return len(operations())


OPERATIONS = JudgedOperations()
