"""Every bug of the page docs/found.md: its call, run once more, still gets what the record says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from conformance.checks.levels import EVERY_RULE
from conformance.peers import PEERS, found
from conformance.peers.found import Bug
from conformance.peers.models import MODELS

BUGS = found.read_bugs()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.library}: {bug.title}")
def test_the_call_still_gets_it_wrong(bug: Bug) -> None:
    """If this fails with a newer version, the bug is gone there: say so in the record."""
    if bug.absent:
        pytest.skip(bug.absent)
    printed = found.run_call(bug)
    if bug.wrong[-1].isdigit():
        assert float(printed) == pytest.approx(float(bug.wrong), rel=1e-2)
    else:
        assert printed == bug.wrong


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.library}: {bug.title}")
def test_a_record_is_whole(bug: Bug) -> None:
    assert bug.rule in EVERY_RULE
    assert any(peer.name.startswith(bug.rows) for peer in (*PEERS, *MODELS))
    compile(bug.call, bug.title, "exec")
    if bug.wrong[-1].isdigit():
        assert not math.isclose(float(bug.wrong), float(bug.right), rel_tol=0.1, abs_tol=1e-3)


def test_a_call_needs_what_its_package_imports() -> None:
    bug = BUGS[0]._replace(package="numpy", needs=("no_such_package",), flag="")
    assert bug.absent == "no_such_package is not installed"
    assert "- its package imports no_such_package" in found.format_found([bug])


def test_the_page_says_what_the_records_say() -> None:
    assert Path("docs/found.md").read_text() == found.format_found(BUGS)


def test_a_call_that_ends_is_told_by_its_end() -> None:
    bug = BUGS[0]._replace(call="print(1 / 0)")
    assert found.run_call(bug) == "ZeroDivisionError"
    assert found.run_call(bug._replace(call="import os, signal\nos.kill(os.getpid(), signal.SIGFPE)")) == "SIGFPE"
    assert found.run_call(bug._replace(call="print('imported')\nprint(2.5)")) == "2.5"
