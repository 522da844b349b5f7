from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# float64 has to be asked for in JAX, and before it is loaded.
os.environ.setdefault("JAX_ENABLE_X64", "1")

import pytest

from conformance.runner.compiled_code import keep_compiled_code
from tests.support import targets
from tests.support.drawn_once import draw_once
from tests.support.helpers import IMPLEMENTATIONS, Implementation

# JAX compiles each shape once: for all processes of pytest, for those that tests start, and for the next run.
keep_compiled_code()
draw_once()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as slow the parameters in whose names all words of `slow_where` stand, and none of its `unless`."""
    name = item.name.partition("[")[2]
    for mark in item.iter_markers("slow_where"):
        unless = mark.kwargs.get("unless", ())
        exempt = any(word in name for word in ([unless] if isinstance(unless, str) else unless))
        if all(word in name for word in mark.args) and not exempt:
            item.add_marker("slow")


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.package)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return request.param


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with targets.py in it, which is loaded for each test anew."""
    shutil.copy(targets.__file__, tmp_path / "targets.py")
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("targets", None)
    yield tmp_path
    sys.modules.pop("targets", None)


@pytest.fixture
def no_case_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that in JAX the engine "auto" is "blocked"."""
    from jax_impl.engines import choice

    monkeypatch.setattr(choice, "SMALL", 0)
