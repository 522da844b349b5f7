"""Ports for the self-test: right ones agree with the definition, and mistakes show where they say."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable

import pytest

from conformance.ports.configs import list_configs
from conformance.selftest.ports.faults import FAULTS, SUBTLE, Fault, make_build
from conformance.selftest.ports.measure import measure
from conformance.selftest.ports.registry import PORTS, VARIANTS, Port

ROUNDING = 1e-5
"""Above the error of a right port, which is at most 5e-6 of the result's root mean square."""
SHOWN = 1e-4
"""Below the error of every fault."""
PLACE = re.compile(
    r"((encoder|decoder)\.)?(embedding|norm|blocks\.[01]\.(attention|self_attention|cross_attention|feed_forward))|output"
)


def parametrize_ports(ports: Iterable[Port]) -> list[object]:
    """JAX and torch.compile compile, which takes minutes for all of them."""
    return [
        pytest.param(
            port,
            id=port.module,
            marks=[pytest.mark.slow] if port.framework == "jax" or port.module.endswith("compile") else [],
        )
        for port in ports
    ]


@pytest.mark.filterwarnings("ignore")  # flex_attention and torch.compile have advice
@pytest.mark.parametrize("port", parametrize_ports((*PORTS, *VARIANTS)))
def test_right_ports_agree_with_the_definition(port: Port) -> None:
    for index in range(len(list_configs(port.dialect))):
        assert measure(port.build, port.framework, port.dialect, index) < ROUNDING


@pytest.mark.parametrize("fault", [*FAULTS, *SUBTLE], ids=lambda fault: fault.name)
def test_faults_are_found_by_name(fault: Fault) -> None:
    compile(fault.source(), fault.name, "exec")
    assert fault.changes
    assert PLACE.fullmatch(fault.where) or fault.where == ""  # of a result of another shape
    assert pickle.loads(pickle.dumps(fault)) is fault
    short = fault.name.removeprefix(f"{fault.port.module}_")
    assert make_build(fault.dialect, fault.framework, short) is fault


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.framework == "numpy"], ids=lambda fault: fault.name)
def test_faults_show(fault: Fault) -> None:
    for index in range(len(list_configs(fault.dialect))):
        error = measure(fault, fault.framework, fault.dialect, index, fault.shown_by)
        assert (error > SHOWN) == (index in fault.configs or not fault.configs)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.framework != "numpy"], ids=lambda fault: fault.name)
def test_faults_of_frameworks_show(fault: Fault) -> None:
    index = fault.configs[0] if fault.configs else 0
    assert measure(fault, fault.framework, fault.dialect, index, fault.shown_by) > SHOWN


@pytest.mark.parametrize("fault", [f for f in SUBTLE if f.framework != "jax"], ids=lambda fault: fault.name)
def test_subtle_faults_show_with_other_settings(fault: Fault) -> None:
    assert measure(fault, fault.framework, fault.dialect, 0) < 10 * ROUNDING
    assert measure(fault, fault.framework, fault.dialect, 0, settings=fault.settings) > SHOWN
