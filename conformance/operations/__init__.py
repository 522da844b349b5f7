"""How implementations of each operation are judged."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts, operations
from conformance.cases.operation import OperationFacts
from conformance.checks.catalogue import Probe
from conformance.checks.refusals import Numbers, Refusal
from conformance.sampling.histories import Histories, plain_histories

FILES = {
    "attention": ("attention", "attention_weights", "attention_logsumexp", "merge_attention"),
    "multi_head_attention": ("multi_head_attention",),
    "latent_attention": ("latent_attention",),
    "norms": ("layer_norm", "rms_norm", "standard_deviation_norm"),
    "feed_forward": ("feed_forward", "gated_feed_forward", "silu"),
    "experts": ("mixture_of_experts", "route", "load_balancing_loss", "router_z_loss"),
    "positions": (
        *("embedding", "learned_positions", "sinusoidal_positions"),
        *("alibi_bias", "relative_position_bias"),
    ),
    "rotary": ("rotary_embedding", "rotary_frequencies"),
    "training": ("cross_entropy", "nll_loss", "adam_step", "sgd_step", "clip_by_global_norm"),
}
"""The operations of each file in this folder. It has a record of each, under its name in capitals."""
FILE_OF = {operation: file for file, names in FILES.items() for operation in names}


@dataclass(frozen=True)
class JudgedOperation:
    """How implementations of one operation are judged.

    probes: all that tests its rules, but for what every operation has (`operations/probes.py`).
    refusals: calls that must be refused.
    histories: several calls in a row, by what differs in them; the last argument: so many of each at most.
    """

    name: str
    probes: Callable[[Declaration], list[Probe]]
    refusals: Callable[[Declaration, Numbers], Iterator[Refusal]]
    histories: Callable[[str, Declaration, int | None], Histories] = plain_histories

    @property
    def facts(self) -> OperationFacts:
        return operation_facts(self.name)


class JudgedOperations(Mapping[str, JudgedOperation]):
    """Records by name, in the order in which operations are studied; a file is loaded when one is first asked for."""

    def __getitem__(self, name: str) -> JudgedOperation:
        record: JudgedOperation = getattr(importlib.import_module(f"{__name__}.{FILE_OF[name]}"), name.upper())
        return record

    def __iter__(self) -> Iterator[str]:
        return iter(operations())

    def __len__(self) -> int:
        return len(operations())


OPERATIONS = JudgedOperations()
