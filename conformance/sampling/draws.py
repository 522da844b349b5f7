"""Cases from Hypothesis, each by a seed of its own.

In one run Hypothesis varies what it has just drawn: of fifteen cases perhaps three are fresh, and a choice that half of
all cases should make is now and then made by none of them. With a seed for each case they are independent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any

import hypothesis
import hypothesis.errors
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

HOPELESS = 3
"""Seeds in a row without any case, after which none is expected. Rows of a plan differ in sizes: once one of them has
given a case, all are tried."""
EACH = 2
"""Cases of one seed: the simplest, which all have in common, and one of its own."""


def draw_settings(examples: int, *phases: Phase) -> hypothesis.settings:
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


Strategies = tuple[st.SearchStrategy[Any], ...]


class Rows:
    """Strategies for the rows of a plan. Each gives one case before any gives another, in an order of the seed's.

    made: makes the strategies, when they are first asked for. large: makes more, whose turn comes after theirs. later:
    makes still more, which take turns with all the others once each of them has given a case.
    """

    def __init__(
        self,
        made: Callable[[], Strategies],
        later: Callable[[], Strategies] = tuple,
        large: Callable[[], Strategies] = tuple,
    ) -> None:
        self.made, self.later, self.large = made, later, large

    @cached_property
    def turns(self) -> tuple[Strategies, Strategies]:
        """The first rows and the large ones."""
        return self.made(), self.large()

    @cached_property
    def strategies(self) -> Strategies:
        return tuple(chain(*self.turns))

    @cached_property
    def all_strategies(self) -> Strategies:
        return (*self.strategies, *self.later())

    def row(self, number: int, seed: int) -> st.SearchStrategy[Any]:
        """The strategy of a run's case."""
        for rows in self.turns:
            if number < len(rows):
                return shuffle_rows(rows, seed)[number]
            number -= len(rows)
        cycle, place = divmod(number, len(self.all_strategies))
        return shuffle_rows(self.all_strategies, seed + cycle + 1)[place]

    def map(self, change: Callable[[Any], Any]) -> Rows:
        """The same rows with every case changed."""
        return self.each(lambda row: row.map(change))

    def filter(self, wanted: Callable[[Any], Any]) -> Rows:
        """The same rows without the cases that are not wanted."""
        return self.each(lambda row: row.filter(wanted))

    def each(self, change: Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]) -> Rows:
        def changed(rows: Callable[[], Strategies]) -> Callable[[], Strategies]:
            return lambda: tuple(map(change, rows()))

        return Rows(changed(self.made), changed(self.later), changed(self.large))


def shuffle_rows(rows: Strategies, seed: int) -> Strategies:
    return tuple(rows[place] for place in np.random.default_rng(seed).permutation(len(rows)))


CaseStrategy = st.SearchStrategy[Any] | Rows


def draw_cases(strategy: CaseStrategy, count: int, seed: int) -> Iterator[tuple[int, Any]]:
    """(number, case): of several from one strategy the first is the simplest; none where the strategy has none."""
    hopeless, drawn, of_plan = 0, False, isinstance(strategy, Rows)
    if isinstance(strategy, Rows) and not strategy.strategies:
        return
    for number in range(count):
        simplest = number == 0 and count > 1 and not of_plan
        row = strategy.row(number, seed) if isinstance(strategy, Rows) else strategy
        examples = draw_from_seed(row, own_seed(seed, number), simplest)
        hopeless = 0 if examples else hopeless + 1
        if hopeless == HOPELESS and not (of_plan and drawn):
            return
        if examples:
            drawn = True
            yield number, examples[0 if simplest else -1]


def prepend_ignored_choice(
    strategy: st.SearchStrategy[Any], simplest: bool = True
) -> st.SearchStrategy[tuple[int, Any]]:
    """Draw a number that nobody reads before each case.

    After the simplest case Hypothesis makes another first choice than that one's: this number.
    Without it a first choice (a dtype, say) would hardly ever come out as the simplest. Unless `simplest`, that case is
    refused before any of its arrays is made.
    """
    ignored = st.integers(0, 99)
    return st.tuples(ignored if simplest else ignored.filter(bool), strategy)


def draw_from_seed(strategy: st.SearchStrategy[Any], seed: int, simplest: bool = True) -> list[Any]:
    """The case of one seed; `simplest`: after the simplest of all."""
    examples: list[Any] = []

    @hypothesis.seed(seed)
    @draw_settings(EACH if simplest else 1, Phase.generate)
    @hypothesis.given(prepend_ignored_choice(strategy, simplest))
    def each(drawn: tuple[int, Any]) -> None:
        examples.append(drawn[1])

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        each()
    return examples
