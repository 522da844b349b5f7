"""Configs of small checkpoints say the same to every reader, whichever keys it knows."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.ports.checkpoints import read_hyperparameters
from conformance.ports.configs import CONFIGS, list_configs
from specification.dialects import DIALECTS

NEW = ("rope_parameters",)
OLDER = ("rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_emb_base", "rotary_pct")


def read_without(dialect: str, config: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return read_hyperparameters(DIALECTS[dialect], {key: value for key, value in config.items() if key not in keys})


@pytest.mark.parametrize("dialect", CONFIGS)
def test_older_keys_say_what_rope_parameters_say(dialect: str) -> None:
    for config in list_configs(dialect):
        if "rope_theta" in config.get("rope_parameters", {}):
            meant = read_hyperparameters(DIALECTS[dialect], config)
            assert meant == read_without(dialect, config, NEW)
            assert meant == read_without(dialect, config, OLDER)
