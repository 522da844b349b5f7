"""All subjects by name, and how another one is found."""

from __future__ import annotations

import importlib

from benchmarks.subjects import jax_subjects, numpy_subjects, other_subjects, torch_subjects
from benchmarks.subjects.subject import Subject


def subject_at(target: str) -> Subject:
    """What `module:NAME` is; ValueError says in a line why it is no subject."""
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{target!r} cannot be loaded, expected module:NAME: {error}") from error
    if not isinstance(found, Subject):
        raise ValueError(f"{target!r} is a {type(found).__name__}, expected a benchmarks.subjects.subject.Subject")
    return found


def subjects() -> dict[str, Subject]:
    """All there are, by name, in reading order; whether they are installed or not."""
    every: tuple[Subject, ...] = (*torch_subjects.OURS, *jax_subjects.OURS, *numpy_subjects.SUBJECTS)
    every += (*torch_subjects.PEERS, *jax_subjects.PEERS, *other_subjects.SUBJECTS)
    return {subject.name: subject for subject in every}
