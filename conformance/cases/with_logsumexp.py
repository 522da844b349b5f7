"""Attention that returns the output and the log-sum-exp: which subjects do, and how to ask for either alone."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration

ONLY_OF_OUTPUT = ("dropout_keep", "dropout_rate", "empty_rows")
"""Options that change no log-sum-exp."""


def returns_both(operation: str, declaration: Declaration) -> bool:
    """Whether the subject returns the output and the log-sum-exp."""
    return operation == "attention" and "logsumexp" in declaration


def output_alone(case: Case) -> Case:
    """The same call as one of `attention`, with the output's cotangent."""
    cotangents = {name: array for name, array in case.cotangents.items() if name == "output"}
    return replace(case, cotangents=cotangents, with_logsumexp=False)


def logsumexp_alone(case: Case) -> Case:
    """The same call as one of `attention_logsumexp`, with the log-sum-exp's cotangent."""
    inputs = {name: array for name, array in case.inputs.items() if name != "value"}
    options = {name: value for name, value in case.options.items() if name not in ONLY_OF_OUTPUT}
    bar = case.cotangents.get("logsumexp")
    cotangents = {} if bar is None else {"output": bar}
    constants = tuple(name for name in case.constants if name != "value")
    found = replace(case, operation="attention_logsumexp", inputs=inputs, options=options, cotangents=cotangents)
    return replace(found, constants=constants, with_logsumexp=False)
