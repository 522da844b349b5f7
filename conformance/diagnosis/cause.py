"""What is behind violations: a known mistake, or a pattern where no mistake explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conformance.cases.features import dimensions
from conformance.checks.catalogue import REFUSAL, UNSUPPORTED
from conformance.checks.findings import NoAnswer, has_swapped_heads
from conformance.checks.levels import JUDGED, rank
from conformance.checks.results import Violation
from conformance.diagnosis.pattern import Pattern
from conformance.mistakes.condition import ALWAYS, Condition
from conformance.mistakes.mistake import Mistake

CauseKind = Literal["mistake", "arithmetic", "digits", "numbers", "error", "state", "memory", "refusal"]
"""A known mistake; errors as large as those of arithmetic in 16 bits; lost digits, wrong numbers that no mistake
explains; the same error; a dependence on earlier calls; a dependence on memory layouts; a call that is answered and
should be refused."""


MEANT: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "masks.inverted": ({"polarity": "masked"}, {}),
    "heads.modulo": ({"heads": "tiled"}, {"what": "keys and values"}),
}
"""By the id of a known mistake: the convention by which it is no mistake, with these values of its parameters."""


@dataclass(frozen=True)
class Diagnosis:
    """A known mistake that explains failing cases.

    mistake: with the values of its parameters and the condition under which it shows. explained: how many failing
    cases, of how many `failing` that were asked; `passing` cases speak for it, as it does not show in them.
    alternatives: other mistakes that no case told apart from it.
    """

    mistake: Mistake
    explained: int
    failing: int
    passing: int
    alternatives: tuple[Mistake, ...] = ()

    @property
    def id(self) -> str:
        return self.mistake.id

    @property
    def values(self) -> Mapping[str, Any]:
        return self.mistake.values


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong, and the violations that follow from it.

    Attributes:
        kind: what sort of cause it is.
        violations: those that it explains, the one that shows it best first, with the smallest case.
        diagnosis: the known mistake, for a cause of kind "mistake".
        condition: when it shows, as far as the cases tell; None where they do not.
        pattern: where the first wrong result is wrong.
        excuses: conventions under which all its cases conform, those first that excuse least: it may be meant so.
        lacks: features or dtypes without which nothing of it shows; the subject may declare that it lacks them.
    """

    kind: CauseKind
    violations: tuple[Violation, ...]
    diagnosis: Diagnosis | None = None
    condition: Condition | None = None
    pattern: Pattern | None = None
    excuses: tuple[Mapping[str, str], ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def lead(self) -> Violation:
        return self.violations[0]

    @property
    def conventions(self) -> Mapping[str, str]:
        """The conventions by which it is declared, if it is meant so."""
        if self.excuses or self.diagnosis is None or self.condition not in (None, ALWAYS):
            return self.excuses[0] if self.excuses else {}
        meant, values = MEANT.get(self.diagnosis.id, ({}, {}))
        return meant if values.items() <= self.diagnosis.values.items() else {}

    @property
    def rules(self) -> tuple[str, ...]:
        """Those that it breaks, in the specification's order."""
        broken = {violation.rule for violation in self.violations}
        return tuple(rule for rule in JUDGED if rule in broken)

    @property
    def limits(self) -> dict[str, int]:
        """By dimension: the largest size that the subject answered, where the smallest case that fails is larger.

        None where larger sizes are right, which no limit would leave to be tried.
        """
        detail, cut = self.lead.finding.detail, self.lead.uncut is not None
        size = detail.size if cut and isinstance(detail, NoAnswer) else None
        if size is None or self.lead.case is None or dimensions(self.lead.case).get(size.dimension, 0) <= size.answered:
            return {}
        right = [max(one.right, default=0) for one in self.lead.threshold if one.kind != "product"]
        return {size.dimension: size.answered} if size.answered >= max(right, default=0) and size.answered else {}

    @property
    def has_other_layout(self) -> bool:
        """Whether heads and lengths seem to have changed places."""
        named = self.diagnosis is not None and self.diagnosis.mistake.lacks == "BHTD"
        return named or any(has_swapped_heads(violation.finding) for violation in self.violations)

    @property
    def level(self) -> str:
        """The lowest level at which it is a violation."""
        return min((violation.level for violation in self.violations), key=rank)


def cause_kind(violation: Violation) -> CauseKind:
    """The kind of a violation's cause, where no known mistake explains it."""
    if violation.depends_on_state:
        return "state"
    if violation.finding.is_of_values:
        return "digits" if violation.loses_digits else "numbers"
    return "refusal" if violation.check in (REFUSAL, UNSUPPORTED) else "error"
