"""A plugin for pytest that writes down which functions of the definition each test calls, and how long it takes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reference_numpy

PACKAGE = Path(reference_numpy.__file__).parent
VARIABLE = "CALLS_FILE"
"""The environment variable that names the file to write."""

calls: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    functions = set()

    def called(frame: Any, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.parent == PACKAGE:
            functions.add((file.name, frame.f_code.co_qualname.partition(".")[0]))

    start = time.process_time()
    sys.setprofile(called)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        calls[item.nodeid] = {"functions": sorted(functions), "seconds": time.process_time() - start}


def pytest_sessionfinish() -> None:
    Path(os.environ[VARIABLE]).write_text(json.dumps(calls))
