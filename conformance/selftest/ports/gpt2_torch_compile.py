"""GPT-2 under `torch.compile`: the modules of `gpt2_torch`, fused by Inductor.

The first call of each shape compiles, which takes most of a minute on two cores.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.selftest.ports import gpt2_torch


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    plain = gpt2_torch.build(config, state_dict)

    @torch.compile
    def compiled(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        with torch.no_grad():
            return plain(tokens, key_padding)

    return compiled
