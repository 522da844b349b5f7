"""One model of a library through the judge of ports."""

from __future__ import annotations

import os
from unittest.mock import patch

from conformance.peers.models import ModelPeer
from conformance.ports.checking import Progress, check_port
from conformance.ports.report import ModelReport


def judge_model(peer: ModelPeer, effort: str, seed: int, progress: Progress = lambda rule, title: None) -> ModelReport:
    """Return the report on a model, which runs in a process of its own."""
    with patch.dict(os.environ, peer.environment):
        return check_port(
            peer.target, peer.dialect, effort=effort, seed=seed, settings=peer.settings, isolate=True, progress=progress
        )
