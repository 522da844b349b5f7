"""A plugin for pytest that writes down which of the project's functions each test calls, and how long it takes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutation.calls import Calls

VARIABLE = "CALLS_FILE"
"""The environment variable that names the file to write."""

recorded: dict[str, tuple[float, list[tuple[str, str]]]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    calls, start = Calls(), time.process_time()
    try:
        with calls:
            return (yield)
    finally:
        recorded[item.nodeid] = time.process_time() - start, sorted(calls.functions)


def pytest_sessionfinish() -> None:
    Path(os.environ[VARIABLE]).write_text(json.dumps(recorded))
