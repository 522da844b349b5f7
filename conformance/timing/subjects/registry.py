"""The known subjects by name, and those that a user names by a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from conformance.cases.facts import operations
from conformance.subjects.callables import load_object, name_operation
from conformance.timing.subjects import jax_subjects, numpy_subjects, torch_subjects
from conformance.timing.subjects.function_subject import function_subject
from conformance.timing.subjects.timed_subject import Subject
from conformance.timing.timed_case import FUNCTIONS, OPERATIONS


def subjects() -> dict[str, Subject]:
    """All there are, by name, in reading order; whether they are installed or not."""
    every: tuple[Subject, ...] = (*torch_subjects.OURS, *jax_subjects.OURS, *numpy_subjects.SUBJECTS)
    every += (*torch_subjects.PEERS, *jax_subjects.PEERS)
    return {subject.name: subject for subject in every}


def subject_at(target: str, operation: str | None = None, arrays: str | None = None, device: str = "cpu") -> Subject:
    """Load a function or a `Subject`; ValueError says why it cannot be timed.

    Args:
        target: `package.module:NAME` or `path/to/file.py:NAME`.
        operation: of a function; by default what its name says.
        arrays: that a function takes; by default a guess.
        device: on which a guess calls the function.
    """
    found = load_object(target)
    if isinstance(found, Subject):
        if found.operation not in OPERATIONS:
            raise ValueError(f"{target}: operation must be one of {', '.join(OPERATIONS)}, got {found.operation!r}")
        if (operation or found.operation, arrays or found.arrays) != (found.operation, found.arrays):
            raise ValueError(f"{target} is for {found.operation} and arrays of {found.arrays}, as it says itself")
        if not callable(found.make):
            raise ValueError(f"{target}: make must be a function, got {found.make!r}")
        return replace(found, yours=True, target=target)
    if not callable(found):
        raise ValueError(f"{target} is a {type(found).__name__}, expected a function or a Subject")
    operation = operation or name_operation(target)
    if operation not in FUNCTIONS:
        said = f"{operation} is none of them" if operation in operations() else "its name says neither"
        raise ValueError(
            f"{target}: only {' and '.join(FUNCTIONS)} are timed, and {said} (conformance bench --operation)"
        )
    return function_subject(target, found, operation, arrays, device)


def contains_word(name: str, word: str) -> bool:
    """Whether the word stands in a name, in small letters or large."""
    return word.casefold() in name.casefold()


def compared_subjects(mine: Subject, words: Sequence[str], device: str) -> list[Subject]:
    """Return the subjects that are timed beside one of the user's: those of its framework that are usual by default.

    Args:
        mine: the user's subject.
        words: parts of names of known subjects, or targets.
        device: as for `subject_at`.
    """
    known = [one for one in subjects().values() if one.operation == mine.operation]
    if not words:
        return [one for one in known if one.usual and one.arrays == mine.arrays]
    for word in words:
        if ":" not in word and not any(contains_word(one.name, word) for one in known):
            listed = "; ".join(one.name for one in known)
            raise ValueError(f"no subject for {mine.operation} has {word!r} in its name: {listed}")
    chosen = [one for one in known if any(contains_word(one.name, word) for word in words)]
    return chosen + [subject_at(word, mine.operation, None, device) for word in words if ":" in word]


def refuse_same_names(every: Sequence[Subject]) -> None:
    """Raise ValueError where two subjects have one name: results are stored by it."""
    if twice := [name for name, count in Counter(one.name for one in every).items() if count > 1]:
        raise ValueError(f"two subjects have the name {twice[0]!r}")
