"""Cases of attention whose subject returns the output and the log-sum-exp, and their two halves."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.case import Case

ONLY_OF_OUTPUT = ("dropout_keep", "dropout_rate", "empty_rows")
"""Options that change no log-sum-exp."""


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
