"""What the entries of one file share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.mistakes.mistake import ATTENTION, Change, Mistake


@dataclass(frozen=True)
class Topic:
    """What the mistakes of a file have in common: the first word of their ids, and what is usual."""

    name: str
    rule: str = ""
    operations: tuple[str, ...] = ATTENTION
    of_gradients: bool = False

    def entry(
        self, name: str, says: str, change: Change, /, *, rule: str = "", operations: tuple[str, ...] = (),
        lacks: str = "", needs: tuple[str, ...] = (), **parameters: Sequence[Any],
    ) -> Mistake:  # fmt: skip
        usual = rule or self.rule, says, change, operations or self.operations
        return Mistake(f"{self.name}.{name}", *usual, parameters, lacks, needs, of_gradients=self.of_gradients)

    def entries(self, make: Callable[[Any], Change], *rows: Sequence[Any], **fields: Any) -> tuple[Mistake, ...]:
        """One for each row: its name, what it says, what `make` makes its change of, and its parameters."""
        return tuple(
            self.entry(name, says, make(step), **fields, **dict(*parameters)) for name, says, step, *parameters in rows
        )


def name_entries(mistakes: Sequence[Mistake]) -> dict[str, Mistake]:
    """By what their ids say after the topic."""
    return {mistake.id.partition(".")[2]: mistake for mistake in mistakes}
