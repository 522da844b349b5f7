from __future__ import annotations

import os

# float64 has to be asked for in JAX, and before it is loaded.
os.environ.setdefault("JAX_ENABLE_X64", "1")

import pytest

from jax_impl.engines import choice
from tests.support.helpers import IMPLEMENTATIONS, Implementation


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.package)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return request.param


@pytest.fixture
def no_case_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that in JAX the engine "auto" is "blocked"."""
    monkeypatch.setattr(choice, "SMALL", 0)
