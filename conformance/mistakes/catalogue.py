"""All known mistakes."""

from __future__ import annotations

import importlib
from functools import cache

from conformance.mistakes.mistake import Mistake

TOPICS = ("masks",)
"""The files of this folder, each with `MISTAKES` and `PLANTED`."""


@cache
def known_mistakes() -> tuple[Mistake, ...]:
    """Return every entry of the catalogue."""
    return tuple(mistake for topic in TOPICS for mistake in load_topic(topic).MISTAKES)


@cache
def planted_mistakes() -> tuple[Mistake, ...]:
    """Return what is planted: entries with chosen values, some under a condition."""
    return tuple(mistake for topic in TOPICS for mistake in load_topic(topic).PLANTED)


def load_topic(topic: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f"conformance.mistakes.{topic}")
