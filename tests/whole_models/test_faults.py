"""Ports with mistakes that people make: every one is caught, and most are placed and named.

The judge's catalogue of mistakes was written without these. What it cannot place or name is listed here.
"""

from __future__ import annotations

from typing import Any

import pytest

import conformance
from conformance.selftest.ports.faults import FAULTS, Fault
from conformance.selftest.ports.registry import PORTS, VARIANTS, Port

pytestmark = pytest.mark.slow
ELSEWHERE = ("bert_jax_norm_order_one_layer",)
"""Faults whose first wrong sublayer is told as another, as no mistake has the name."""


def judge(build: Any, dialect: str, arrays: str, **options: Any) -> Any:
    return conformance.check(build, "model", dialect=dialect, arrays=arrays, seed=1, **options)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_caught_and_placed(fault: Fault) -> None:
    report = judge(fault, fault.dialect, fault.framework)
    assert not report.conforms
    if fault.name not in ELSEWHERE:
        # What raises is told first, and has no sublayer.
        steps = [violation.step for violation in report.violations if violation.step] or [""]
        pair = "_and_" in fault.name  # of which the mistake that explains more cases is told first
        assert fault.where in (steps if pair else steps[:1]), report


@pytest.mark.filterwarnings("ignore")  # flex_attention and torch.compile have advice
@pytest.mark.parametrize("port", [*PORTS, *VARIANTS], ids=lambda port: port.module)
@pytest.mark.parametrize("seed", range(20))
def test_no_right_port_is_accused(port: Port, seed: int) -> None:
    options: Any = {"arrays": port.framework, "seed": seed, "effort": "quick"}
    report = conformance.check(port.build, "model", dialect=port.dialect, **options)
    assert report.conforms, report
