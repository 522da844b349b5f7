"""The steps of a model as JSON: what `conformance port` and `conformance trace` write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.cases.declaration import split_names
from conformance.models.agreement import Agreement, StepAgreement
from conformance.models.departures import Departures
from conformance.reports.content import Content, number
from conformance.reports.sentences import describe_finding

SCHEMA = {"name": "transformer-conformance steps", "version": 1}


def steps_content(
    found: Agreement,
    packages: Sequence[str],
    wholes: Sequence[StepAgreement] = (),
    own: Departures | None = None,
    **more: Any,
) -> Content:
    """Return what the command has judged.

    Args:
        found: every step.
        packages: those that were judged.
        wholes: whole models.
        own: the user's values, where there are some.
        **more: further fields, such as the checkpoint.
    """
    every = [*found.steps, *wholes]
    beyond = found.first_beyond
    kept = all(ratio <= 1 for step in every for ratio in step.ratios.values())
    return {
        "schema": SCHEMA,
        **more,
        "dtype": found.oracle.dtype,
        "packages": list(split_names(packages)),
        "conforms": kept and (own is None or own.first is None),
        "judged": all(step.judged for step in every),
        "first_beyond": None if beyond is None else {"step": beyond[0], "package": beyond[1]},
        "steps": [step_content(step) for step in found.steps],
        "wholes": [step_content(whole) for whole in wholes],
    }


def step_content(step: StepAgreement) -> Content:
    return {
        "name": step.name,
        "shape": list(step.shape),
        "smallest": number(step.smallest),
        "largest": number(step.largest),
        "ratios": {package: number(ratio) for package, ratio in step.ratios.items()},
        "judged": step.judged,
    }


def departures_content(found: Departures, file: Path) -> Content:
    ratios = {name: number(finding.ratio) for name, finding in found.findings.items()}
    first = (
        None if found.first is None else {"step": found.first, "message": describe_finding(found.findings[found.first])}
    )
    return {"file": str(file), "dtype": found.dtype, "ratios": ratios, "unknown": found.unknown, "first": first}
