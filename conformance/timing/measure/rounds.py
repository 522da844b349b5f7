"""The trials of a case: subjects one after the other, again and again, so that what slows the machine slows them all.

In every round every subject has one trial, on the same inputs as the others (a repeated trial has inputs of its own),
fresh for each round. The order is reversed in every second round and turned by one after it, so that nobody always
comes after the same one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

TARGET = {"cpu": 0.005, "cuda": 0.02}
"""Seconds that a trial of the fastest subject should take at least: more calls are made until it does."""
FEWEST = {"cpu": 1, "cuda": 10}
"""Calls in a trial: on a GPU they queue, and launching the next hides behind the one before."""
MOST = 50
INPUTS = 2**28
"""Bytes of inputs that are drawn for a trial, beyond the first call's."""


@dataclass(frozen=True)
class Budget:
    """Rounds are added from `least` up to `most` while they take less than `seconds` in all.

    slowest: seconds of one call above which a subject is not timed. limit: after which a process is given up. awake: of
    unmeasured calls before a short trial. again: how often a trial is repeated from which the host of the machine took
    processor time; not if the rounds have taken `patience` times as long as they should.
    """

    least: int = 7
    most: int = 21
    seconds: float = 60.0
    slowest: float = 10.0
    limit: float = 600.0
    awake: float = 0.1
    again: int = 5
    patience: float = 3.0


QUICK = Budget(6, 6, 10.0, 0.5, 120.0, 0.0, 1, 1.0)


def calls_in_trial(fastest: float, input_bytes: int, device: str) -> int:
    """The same for all subjects of a case."""
    wanted = max(FEWEST[device], math.ceil(TARGET[device] / max(fastest, 1e-6)))
    return max(1, min(wanted, MOST, 1 + INPUTS // max(input_bytes, 1)))


def order(subjects: Sequence[T], number: int) -> list[T]:
    turn = number // 2 % max(len(subjects), 1)
    turned = [*subjects[turn:], *subjects[:turn]]
    return turned[::-1] if number % 2 else turned


def rounds(subjects: Sequence[T], trial: Callable[[T, int], bool], budget: Budget, heard: Callable[[int], None]) -> int:
    """trial(subject, round) says whether the subject goes on; `heard` is told of every round. How many there were."""
    start, taking_part = time.monotonic(), list(subjects)
    for number in range(budget.most):
        if not taking_part or (number >= budget.least and time.monotonic() - start > budget.seconds):
            return number
        heard(number)
        for subject in order(taking_part, number):
            if not trial(subject, number):
                taking_part.remove(subject)
    return budget.most
