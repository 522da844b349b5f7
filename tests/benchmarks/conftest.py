"""Runs without processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.timing.measure import running
from conformance.timing.measure.processes import Failed
from conformance.timing.measure.running import Run


class Inside:
    """A subject's process that is none."""

    def __init__(self, make: Callable[..., Any], given: tuple[Any, ...], variables: Any) -> None:
        self.made = make(*given)

    def ask(self, method: str, *given: Any, limit: float) -> Any:
        try:
            return getattr(self.made, method)(*given)
        except Exception as error:
            raise Failed(str(error)) from error

    def end(self) -> None: ...


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without processes and ceilings."""
    monkeypatch.setattr(running, "Worker", lambda make, given, threads, variables: Inside(make, given, variables))
    monkeypatch.setattr(Run, "measure_ceilings", lambda run, dtypes: None)
