"""One record for each operation: what it takes, what is right, and how it is judged.

Every file of this folder is the record of an operation, but for those in `SHARED`.
"""

from __future__ import annotations

import importlib
import pkgutil

from conformance.cases.operation import Operation

SHARED = ("common", "corpus", "probes", "refusals")
"""What all records share, and what is made from all of them."""
STUDIED_FIRST = (
    *("attention", "attention_weights", "attention_logsumexp", "merge_attention", "multi_head_attention"),
    *("layer_norm", "rms_norm", "standard_deviation_norm"),
    *("feed_forward", "gated_feed_forward", "embedding", "learned_positions", "sinusoidal_positions"),
    *("alibi_bias", "relative_position_bias"),
)
"""In this order; others follow by name."""


def records() -> dict[str, Operation]:
    names = {module.name for module in pkgutil.iter_modules(__path__)} - {*SHARED}
    ordered = (*STUDIED_FIRST, *sorted(names - {*STUDIED_FIRST}))
    return {name: importlib.import_module(f"{__name__}.{name}").OPERATION for name in ordered}


OPERATIONS = records()
