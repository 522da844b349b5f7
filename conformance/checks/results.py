"""What a run has found: worst ratios and counts, by rule, and by operation and dtype; and how much the cases tested."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformance.cases.arguments import is_gradient
from conformance.cases.case import Case
from conformance.cases.declaration import SIMPLEST_FIRST
from conformance.cases.expectations import Exact, allowed_pairs
from conformance.checks.catalogue import Check, Example
from conformance.checks.comparison import units_in_the_last_place
from conformance.checks.findings import Finding, Threshold, same_error
from conformance.checks.levels import CORE, higher, is_required, rank
from conformance.subjects.callables import Target
from conformance.subjects.subject import Answers, Subject
from reference_numpy import attention_weights
from specification import Dense

MOST_NUMBERS = 2**18
"""Numbers of one case at most; a mistake is told apart on small cases."""
FAILING, PASSING = 3, 2
"""Cases that are kept for each probe: the smallest that fail and that pass."""
EXACT = "float64"
"""The dtype whose exact results are slow to compute: one failing and one passing case for each probe."""


@dataclass(frozen=True)
class KeptCase:
    """A case as a check asked it.

    rule, probe, title, least: of the probe that drew it, as in `Violation`. failed: whether the subject was wrong.
    answers: what the subject returned then, where the check compares one call with exact results.
    """

    rule: str
    probe: str
    title: str
    check: Check[Any, Any]
    example: Any
    failed: bool
    least: str = CORE
    answers: Answers | None = None

    @property
    def size(self) -> int:
        return count_numbers(self.check.case_of(self.example))


def single_case(check: Check[Example, Any], example: Example) -> Case | None:
    """The case of the one call that a check compares with exact results; None for a check of other things."""
    return check.case_of(example) if check.compares_call else None


def find_answers(subject: Subject, check: Check[Example, Any], example: Example) -> Answers | None:
    """The subject's answers to the one call of the latest check, where they are few enough to be kept."""
    case, latest = single_case(check, example), subject.latest
    if case is None or latest is None or latest[0] is not case or count_numbers(case) > MOST_NUMBERS:
        return None
    return latest[1]


def count_numbers(case: Case) -> int:
    """Numbers of the inputs, and pairs of queries and keys: about what a prediction computes."""
    count = sum(array.size for array in (*case.inputs.values(), *case.cotangents.values()))
    query, key = case.inputs.get("query"), case.inputs.get("key")
    if query is not None and key is not None and query.ndim == 4:
        count += query[..., 0].size * key.shape[2]
    return count


@dataclass
class KeptCases:
    """Of one subject, by probe, whether they failed, and whether they are in float64."""

    cases: dict[tuple[str, bool, bool], list[KeptCase]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kept: KeptCase) -> None:
        case = kept.check.case_of(kept.example)
        if case is None or kept.size > MOST_NUMBERS:
            return
        exact = case.dtype == EXACT
        several = self.cases[kept.probe, kept.failed, exact]
        several.append(kept)
        several.sort(key=lambda one: one.size)
        del several[1 if exact else FAILING if kept.failed else PASSING :]

    def include(self, other: KeptCases) -> None:
        for kept in other:
            self.add(kept)

    def __iter__(self) -> Iterator[KeptCase]:
        return (kept for several in self.cases.values() for kept in several)


WIDE = ("float32", "float64")
"""Dtypes where no rounding to 16 bits outweighs the rest."""
FEW = 64
"""An error of so few bounds, or of less than that part of the number, is one of rounding, as far as order goes."""

FLAT = {"rms_norm": 1, "layer_norm": 2, "standard_deviation_norm": 2}
"""The widths up to which the rows that a norm makes do not depend on how large its numbers are."""


@dataclass
class Cell:
    """One rule, or one result in one dtype, of one subject."""

    cases: int = 0
    worst: float = 0.0
    wide: float = -1.0  # the worst in wide dtypes; -1 for none
    refused: int = 0  # cases beyond what the subject supports that it refused, as it should
    kept: tuple[float, float] = (0.0, -1.0)  # worst and wide of the cases that keep the rule

    def add(self, ratio: float, dtype: str) -> None:
        self.cases += 1
        self.add_ratio(ratio, dtype)
        if ratio <= 1:
            self.kept = max(self.kept[0], ratio), max(self.kept[1], wide_ratio(ratio, dtype))

    def add_ratio(self, ratio: float, dtype: str) -> None:
        """There is an error of this ratio."""
        self.worst, self.wide = max(self.worst, ratio), max(self.wide, wide_ratio(ratio, dtype))

    def drop_broken(self) -> None:
        """What broke the rule turned out to be no matter of this rule."""
        self.worst, self.wide = self.kept

    def include(self, other: Cell) -> None:
        self.cases += other.cases
        self.refused += other.refused
        self.worst, self.wide = max(self.worst, other.worst), max(self.wide, other.wide)
        self.kept = max(self.kept[0], other.kept[0]), max(self.kept[1], other.kept[1])


def wide_ratio(ratio: float, dtype: str) -> float:
    return ratio if dtype in WIDE else -1.0


Key = tuple[str, str, bool]
"""Rule, subject, and whether something else is wrong than numbers."""


@dataclass(frozen=True)
class Violation:
    """A rule that a subject breaks, and the smallest case found that shows it.

    probe: the identity of the probe that found it, and title: what it is called. check: by which it was found, and
    example: what it was done on; with these two the violation can be seen again, on the target, where it is known.
    uncut: the example before its case was cut down, where it was. threshold: at which sizes it fails, and at which not.
    time_limit: seconds that the subject had for one case, where there was a limit. steady: the case failed each time
    it was asked; False where a smaller one, or the case itself, then passed. before: the checks before it, as far as
    they are remembered. least: the lowest level that its rule and probe allow. lacks: the features and dtypes that the
    subject claims, and for whose plainest call it raises this error. worst: by dtype, the violation with the largest
    error among all cases.
    """

    rule: str
    subject: str
    finding: Finding
    title: str
    check: Check[Any, Any]
    example: Any
    uncut: Any = None
    target: Target | None = None
    time_limit: float | None = None
    threshold: tuple[Threshold, ...] = ()
    steady: bool = True
    before: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    least: str = CORE
    lacks: tuple[str, ...] = ()
    worst: Mapping[str, Violation] = field(default_factory=dict, compare=False)
    probe: str = ""

    @property
    def key(self) -> Key:
        """Under which results keep it: an error, or a result of another dtype, hides no wrong number."""
        return self.rule, self.subject, not self.finding.is_of_values

    @property
    def level(self) -> str:
        """The lowest profile that asks for what is violated."""
        return higher(self.finding.level, self.least)

    @property
    def ratio(self) -> float:
        return self.finding.ratio

    @property
    def depends_on_state(self) -> bool:
        """Whether its case alone is answered rightly."""
        return self.finding.kind in ("depends_on_calls", "not_reproducible")

    @property
    def is_numeric(self) -> bool:
        """Whether a number came where another was expected."""
        finding = self.finding
        return finding.kind == "value" and math.isfinite(finding.got) and math.isfinite(finding.expected)

    @property
    def loses_digits(self) -> bool:
        """Whether the number is nearly right: a rounding too many, and not another computation."""
        finding = self.finding
        near = abs(finding.got - finding.expected) * FEW < abs(finding.expected)
        return self.is_numeric and (near or finding.ratio < FEW)

    @property
    def rounds_16_bits(self) -> bool:
        """Whether the number is nearly right, of a case in 16 bits."""
        return self.loses_digits and self.case.dtype not in WIDE

    @property
    def has_flat_rows(self) -> bool:
        """Whether it is the gradient of rows of which a norm makes -1 or 1, however large they are: it is nearly 0."""
        width = FLAT.get(self.case.operation, 0) if isinstance(self.case, Case) else 0
        return width > 0 and self.finding.name == "gradient of x" and width >= self.case.inputs["weight"].size

    def stands_before(self, other: Violation | None) -> bool:
        """Whether it is told in place of another one of the same rule and subject, which was found before it.

        One of a lower level is: no violation hides another one that more profiles ask about.
        Of numbers the first is as good as any: where digits cancel, a rounding too many may leave none that is right.
        A gradient that is nearly 0 says nothing of what is wrong in it.
        """
        if other is None or self.level != other.level:
            return other is None or rank(self.level) < rank(other.level)
        if self.has_flat_rows != other.has_flat_rows:
            return other.has_flat_rows
        return other.loses_digits and not self.is_numeric

    @property
    def larger(self) -> list[Violation]:
        """Larger errors than that of its smallest case, the largest of wide dtypes and of those of 16 bits."""
        classes = [[one for dtype, one in self.worst.items() if (dtype in WIDE) is wide] for wide in (True, False)]
        largest = [max(found, key=lambda one: one.ratio) for found in classes if found]
        return [one for one in largest if one.ratio > self.ratio]

    @property
    def ulp(self) -> float:
        """The error in units in the last place of the expected number, in the dtype that the result must have."""
        return units_in_the_last_place(self.finding, self.case)

    @property
    def case(self) -> Case:
        """The call in question; None for what is no matter of one call."""
        return self.check.case_of(self.example)


def keep_violation(violation: Violation) -> KeptCase:
    """The case of a violation, to be asked again."""
    least = violation.least
    return KeptCase(violation.rule, violation.probe, violation.title, violation.check, violation.example, True, least)


SAMPLE = 2**16
"""Weights that the statistics of a case look at."""


@dataclass
class Substance:
    """How much the attention cases test: lists with one number for each case."""

    masked: list[float] = field(default_factory=list)
    largest_weight: list[float] = field(default_factory=list)
    output_over_bound: list[float] = field(default_factory=list)
    telling: int = 0

    def add(self, case: Case, truth: dict[str, Exact], bounds: dict[str, np.ndarray]) -> None:
        """Statistics of a case of attention without special values."""
        allowed = allowed_pairs(case)
        output = np.abs(truth["output"].high)
        if allowed.size == 0 or output.size == 0:
            return
        weights, rows = sampled_weights(case, allowed)
        largest = float(np.median(weights.max(-1)[rows])) if rows.any() else 1.0
        with np.errstate(all="ignore"):
            over = float(np.median(np.where(output > 0, output / bounds["output"], 0)))
        self.masked.append(1 - float(allowed.mean()))
        self.largest_weight.append(largest)
        self.output_over_bound.append(over)
        self.telling += bool(largest < 0.99 and allowed.any() and over > 1)

    def include(self, other: Substance) -> None:
        self.masked += other.masked
        self.largest_weight += other.largest_weight
        self.output_over_bound += other.output_over_bound
        self.telling += other.telling


def sampled_weights(case: Case, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of some rows, all of them in a small case, and which of these have several keys."""
    B, H, Q, K = allowed.shape
    queries = pick_indices(Q, SAMPLE // (H * K))
    elements = pick_indices(B, SAMPLE // (H * K * queries.size))
    inputs = {name: case.inputs[name][elements] for name in ("query", "key")}
    inputs["query"] = inputs["query"][:, :, queries]
    inputs |= {name: case.inputs[name] for name in ("bias", "sinks") if name in case.inputs}
    if "bias" in inputs:
        bias = inputs["bias"][..., queries, :]
        inputs["bias"] = bias[elements] if bias.ndim == 4 and len(bias) > 1 else bias
    visible = allowed[elements][:, :, queries]
    options = {name: case.options[name] for name in ("scale", "softcap") if name in case.options}
    wide: dict[str, Any] = {name: array.astype(np.float64) for name, array in inputs.items()}
    return attention_weights(**wide, mask=Dense(visible), **options), visible.sum(-1) > 1


def pick_indices(count: int, limit: int) -> np.ndarray:
    """Return at most `limit` indices, but at least one, evenly spaced from the first to the last."""
    return np.linspace(0, count - 1, min(count, max(limit, 1))).astype(int)


class Results:
    """Everything that a run counts."""

    def __init__(self) -> None:
        self.rules: dict[tuple[str, str], Cell] = defaultdict(Cell)
        self.by_dtype: dict[tuple[str, str, str], Cell] = defaultdict(Cell)
        self.generated: Counter[str] = Counter()
        self.violations: dict[Key, Violation] = {}
        self.worst: dict[Key, dict[str, Violation]] = defaultdict(dict)
        """As violations, and then by dtype: the violation with the largest error."""
        self.substance = Substance()
        self.kept: dict[str, KeptCases] = defaultdict(KeptCases)
        """By subject: cases that a diagnosis may ask again."""

    def add(self, rule: str, subject: str, findings: list[Finding], case: Case, agreement: bool = False) -> None:
        """`agreement`: the findings compare the case's results with its truth, one by one."""
        worst = max(findings, key=lambda finding: finding.ratio, default=None)
        cell = self.rules[rule, subject]
        cell.add(0.0 if worst is None else worst.ratio, case.dtype)
        cell.refused += not findings  # only a refusal of what is not supported leaves nothing to be found
        if not agreement:
            return
        for kind in ("output", "gradient"):
            ratios = [f.ratio for f in findings if is_gradient(f.name) == (kind == "gradient")]
            if ratios:
                self.by_dtype[f"{case.operation}, {kind}", case.dtype, subject].add(max(ratios), case.dtype)

    def add_violation(self, violation: Violation) -> None:
        """Of each rule by each subject wrong numbers are kept, and what else is wrong: the first of the lowest level.

        One that is no number stands before one of the same level that lost digits. Features whose plainest calls raise
        the same error are kept together.
        """
        key = violation.key
        self.remember(violation)
        known = self.violations.get(key)
        if violation.stands_before(known):
            self.violations[key] = violation
        elif known is not None and same_error(known.finding, violation.finding):
            self.violations[key] = replace(known, lacks=tuple(dict.fromkeys([*known.lacks, *violation.lacks])))

    def remember(self, violation: Violation) -> None:
        """Keep it if no other one of its rule and dtype has as large an error."""
        if violation.case is None or violation.depends_on_state:
            return
        known = self.worst[violation.key]
        dtype = violation.case.dtype
        if dtype not in known or violation.ratio > known[dtype].ratio:
            known[dtype] = replace(violation, before=())

    def set_worst(self) -> None:
        """Give every violation the largest errors of its rule, by dtype, and its rule errors as large as these."""
        for key, violation in self.violations.items():
            self.remember(violation)
            worst = self.worst[key]
            for one in (violation, *worst.values()):
                if one.case is not None:
                    self.rules[key[:2]].add_ratio(one.ratio, one.case.dtype)
            self.violations[key] = replace(violation, worst={d: worst[d] for d in SIMPLEST_FIRST if d in worst})

    def include(self, other: Results) -> None:
        """Add what another run found, with the same subjects."""
        for rule, cell in other.rules.items():
            self.rules[rule].include(cell)
        for result, cell in other.by_dtype.items():
            self.by_dtype[result].include(cell)
        self.generated.update(other.generated)
        for of_dtypes in other.worst.values():
            for violation in of_dtypes.values():
                self.remember(violation)
        for violation in other.violations.values():
            self.add_violation(violation)
        self.substance.include(other.substance)
        for subject, kept in other.kept.items():
            self.kept[subject].include(kept)

    @property
    def conforms(self) -> bool:
        """Whether nothing is violated at any level, as the profile `strict` asks."""
        return not self.violations

    def keeps(self, rule: str, subject: str, profile: str) -> bool:
        """Whether nothing of a rule is violated that the profile asks for."""
        return not any(is_required(violation.level, profile) for violation in self.violations_of(rule, subject))

    def violations_of(self, rule: str, subject: str) -> list[Violation]:
        """List those of a rule by a subject, wrong numbers first."""
        both = (self.violations.get((rule, subject, other)) for other in (False, True))
        return [violation for violation in both if violation is not None]
