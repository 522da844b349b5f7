"""The record of how implementations of an operation are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.operation import OperationFacts
from conformance.checks.histories import Histories, plain_histories
from conformance.checks.probe import Probe
from conformance.checks.refusals import Numbers, Refusal


@dataclass(frozen=True)
class JudgedOperation:
    """How implementations of one operation are judged.

    probes: all that tests its rules, but for what every operation has (`operations/common.py`).
    refusals: calls that must be refused.
    histories: several calls in a row, by what differs in them; the last argument: so many of each at most.
    """

    name: str
    probes: Callable[[Declaration], list[Probe]]
    refusals: Callable[[Declaration, Numbers], Iterator[Refusal]]
    histories: Callable[[str, Declaration, int | None], Histories] = plain_histories

    @property
    def facts(self) -> OperationFacts:
        return operation_facts(self.name)
