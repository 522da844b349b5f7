"""What a check of a port found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conformance.checks.findings import Finding
from conformance.checks.levels import CORE, DEFAULT, is_required
from conformance.checks.results import Cell
from conformance.subjects.callables import Target

if TYPE_CHECKING:
    from conformance.ports.diagnosis import PortCause


@dataclass(frozen=True)
class ModelViolation:
    """One thing that is wrong with a port.

    Attributes:
        rule: The rule that it breaks.
        step: The first wrong sublayer, such as "blocks.1.feed_forward"; "embedding", "norm" or "output" for what comes
            before and after the blocks, "embedding or norm" where these are not told apart; empty where nothing is
            known.
        diagnosis: The ids of the known mistakes that explain it together; empty where none does.
        message: What is wrong, in one line.
        finding: The worst element of the case that shows it best, or what is wrong in place of a number.
        probe: What that case was made for.
        case: The call, in words.
        level: The lowest profile that asks for it.
    """

    rule: str
    step: str
    diagnosis: tuple[str, ...]
    message: str
    finding: Finding = field(compare=False)
    probe: str = ""
    case: str = ""
    level: str = CORE
    cause: PortCause | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class SublayerError:
    """The error of a port's results with one sublayer alone, in bounds. name: of the sublayer; empty for none."""

    name: str
    ratio: float


@dataclass(frozen=True, repr=False)
class ModelReport:
    """One port's result.

    Attributes:
        target: What was judged.
        dialect: Of the models that it builds.
        effort: How many checkpoints were drawn.
        seed: What draws the same again.
        dtypes: Of the models.
        rules: For every rule that was tried, its cases and worst ratio.
        violations: One for each cause.
        sublayers: Of the first wrong case: the error with each sublayer alone, in order; empty for a port that
            conforms.
        failed: How many cases failed.
        left_out: What could not be judged, with the reason; it counts in no verdict.
        seconds: How long it took.
        versions: Of the judge, of Python and of the packages that count.
    """

    target: Target
    dialect: str
    effort: str
    seed: int
    dtypes: tuple[str, ...]
    rules: dict[str, Cell]
    violations: list[ModelViolation]
    sublayers: list[SublayerError]
    failed: int
    left_out: str
    seconds: float
    versions: dict[str, str]
    profile: str = DEFAULT

    def __repr__(self) -> str:
        from conformance.reports.ports import describe_verdict

        return f"<ModelReport: {describe_verdict(self)}>"

    def __str__(self) -> str:
        """Verdict and every violation; for an assertion's message."""
        from conformance.reports.ports import describe_report

        return describe_report(self)

    @property
    def conforms(self) -> bool:
        """Whether nothing is wrong that the report's profile asks for."""
        return not any(is_required(violation.level, self.profile) for violation in self.violations)

    @property
    def cases(self) -> int:
        return sum(cell.cases for cell in self.rules.values())

    @property
    def worst(self) -> float:
        """The largest error ratio."""
        return max((cell.worst for cell in self.rules.values()), default=0.0)
