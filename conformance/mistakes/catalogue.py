"""All known mistakes, by topic."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from conformance.mistakes.mistake import ATTENTION, Mistake
from conformance.mistakes.norm_steps import NORMS

TOPICS: dict[str, tuple[str, ...]] = {
    "masks": ATTENTION,
    "scores": ATTENTION,
    "fills": ATTENTION,
    "empty_rows": ATTENTION,
    "softmax": ATTENTION,
    "heads": ATTENTION,
    "extents": ATTENTION,
    "blocks": ATTENTION,
    "backward": ATTENTION,
    "special_values": (*ATTENTION, "merge_attention"),
    "merging": ("merge_attention",),
    "ranks": ("attention",),
    "norms": NORMS,
    "norm_gradients": NORMS,
    "positions": ("sinusoidal_positions", "learned_positions", "alibi_bias", "relative_position_bias"),
    "rotary": ("rotary_embedding", "rotary_frequencies"),
    "lookups": ("embedding", "learned_positions", "relative_position_bias"),
    "precision": ATTENTION,
    "multi_head": ("multi_head_attention",),
    "latent_attention": ("latent_attention",),
    "feed_forward": ("feed_forward", "gated_feed_forward", "silu"),
    "experts": ("mixture_of_experts", "route", "load_balancing_loss", "router_z_loss"),
    "losses": ("cross_entropy", "nll_loss"),
    "optimizers": ("adam_step", "sgd_step", "clip_by_global_norm"),
}
"""The files of this folder, and the operations that they are about. Each has `MISTAKES` and what is planted of them in
`PLANTED`: every mistake with the first values of its parameters, some with others, past a size, or in other operations.
"""


def load_topic(topic: str) -> ModuleType:
    return importlib.import_module(f"conformance.mistakes.{topic}")


@cache
def mistakes_of(operation: str) -> tuple[Mistake, ...]:
    """Return the entries about an operation; only the files about it are loaded."""
    topics = [topic for topic, operations in TOPICS.items() if operation in operations]
    return tuple(one for topic in topics for one in load_topic(topic).MISTAKES if operation in one.operations)


@cache
def known_mistakes() -> tuple[Mistake, ...]:
    """Return every entry of the catalogue."""
    return tuple(mistake for topic in TOPICS for mistake in load_topic(topic).MISTAKES)


@cache
def planted_mistakes() -> tuple[Mistake, ...]:
    """Return what is planted: entries with chosen values, some of them under a condition."""
    return tuple(mistake for topic in TOPICS for mistake in load_topic(topic).PLANTED)
