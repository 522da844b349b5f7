"""Every rule's probes catch a planted fault, and pass the definition without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.judge.options import EFFORTS
from specification import RULES
from tests.support.faults import FAULTS, Fault, planted
from tests.support.helpers import NumpySubject, probes_of_all, run_probes

CASES = EFFORTS["default"]
SEED = 20260101


def test_every_rule_has_a_fault() -> None:
    assert {fault.rule for fault in FAULTS} == set(RULES)


def test_every_rule_has_a_probe() -> None:
    assert {probe.rule for probe in probes_of_all()} == set(RULES)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule} {fault.name}")
def test_fault_is_caught(fault: Fault, tmp_path: Path) -> None:
    """By a probe of the rule that the fault names, with the default number of cases; later probes are not tried."""
    subject = NumpySubject(planted(fault, tmp_path).__name__)
    probes = [probe for probe in probes_of_all() if probe.rule == fault.rule]
    every_result = (run_probes([probe], [subject], CASES, SEED) for probe in probes)
    assert any(results.violations_of(fault.rule, subject.name) for results in every_result)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_definition_conforms(rule: str) -> None:
    probes = [probe for probe in probes_of_all() if probe.rule == rule]
    results = run_probes(probes, [NumpySubject()], CASES, SEED)
    assert results.conforms, results.violations
