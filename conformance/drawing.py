"""Cases from Hypothesis, each by a seed of its own.

In one run Hypothesis varies what it has just drawn: of fifteen cases perhaps three are fresh, and a choice that half of
all cases should make is now and then made by none of them. With a seed for each case they are independent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.errors
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

HOPELESS = 3
"""Seeds in a row without any case, after which none is expected."""
EACH = 2
"""Cases of one seed: the simplest, which all have in common, and one of its own."""


def drawing(examples: int, *phases: Phase) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )


def own_seed(seed: int, number: int) -> int:
    """Of one of a probe's cases."""
    return seed + (number << 32)


def drawn(material: st.SearchStrategy[Any], count: int, seed: int) -> Iterator[tuple[int, Any]]:
    """(number, case): of several the first is the simplest; none where the strategy has none."""
    hopeless = 0
    for number in range(count):
        found = of_seed(material, own_seed(seed, number))
        hopeless = 0 if found else hopeless + 1
        if hopeless == HOPELESS:
            return
        if found:
            yield number, found[0 if number == 0 and count > 1 else -1]


def with_lot(material: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[int, Any]]:
    """After the simplest case Hypothesis makes another first choice than that one's: this one, which is of no account.

    Without it a first choice (a dtype, say) would hardly ever come out as the simplest.
    """
    return st.tuples(st.integers(0, 99), material)


def of_seed(material: st.SearchStrategy[Any], seed: int) -> list[Any]:
    found: list[Any] = []

    @hypothesis.seed(seed)
    @drawing(EACH, Phase.generate)
    @hypothesis.given(with_lot(material))
    def each(drawn: tuple[int, Any]) -> None:
        found.append(drawn[1])

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        each()
    return found
