from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.devices import Devices
from tests.support.ranks import Ranks


@pytest.fixture(scope="session")
def processes() -> Iterator[Ranks]:
    """Eight of them, and groups of fewer; for all tests in which no rank is lost."""
    with Ranks(8) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def process() -> Iterator[Devices]:
    with Devices() as found:
        yield found
