"""A plugin for pytest that writes down which of the project's functions each test calls, and for how long it computes.

Of processes that a test starts, the seconds are counted, too, but what they call is not known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutation.calls import Calls

VARIABLE = "CALLS_FILE"
"""The environment variable that names the file to write."""

recorded: dict[str, tuple[float, list[tuple[str, str]]]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    calls, start = Calls(), sum(os.times()[:4])
    try:
        with calls:
            return (yield)
    finally:
        recorded[item.nodeid] = sum(os.times()[:4]) - start, sorted(calls.functions)


def pytest_sessionfinish() -> None:
    Path(os.environ[VARIABLE]).write_text(json.dumps(recorded))
