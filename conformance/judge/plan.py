"""The plan: all questions for a subject, in the order in which they are asked.

First the plainest cases, one for every dtype and feature that the subject claims: what it cannot take at all is one
violation, and is left out of everything after. Then rows that allow nothing: a subject that gets them wrong is asked
for no more of them, so that each rule is seen by itself. Then frozen cases, probes, and calls that must be refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import FEATURES, PARAMETERS, SCALINGS, UNCLAIMED, Declaration
from conformance.cases.features import has_masks, rule_of
from conformance.cases.signatures import operation_features
from conformance.checks.catalogue import ANSWERS, UNSUPPORTED, Probe
from conformance.judge.options import EFFORTS
from conformance.operations.corpus import Entry, entries_for
from conformance.operations.probes import catalogue, refusals_of
from conformance.oracle.reference import balls_available
from conformance.sampling.draws import Rows
from conformance.sampling.operations import feature_cases, has_other_masks, has_other_widths, plain_cases

PLAIN_CALL, FROZEN, PRINTS = "a plain call", "frozen cases", "prints nothing"
EMPTY_ROWS = "ATT-6"
WIDE_WEIGHTS = "wide_weights"
WHOLE_PLAN = EFFORTS["default"]
"""Cases of a probe of weight 1 with which each row of a plan of sizes gives one."""

Kind = Literal["claim", "frozen", "probe", "refusal", "printed"]


@dataclass(frozen=True)
class Question:
    """What is asked of a subject.

    kind: "claim" (what it takes), "frozen" (the corpus's cases for a rule), "probe", "refusal" or "printed". about: the
    claim, the corpus's entries, the probe, or the call to be refused; two questions may be the same with less in one of
    them.
    """

    kind: Kind
    rule: str
    title: str
    about: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.rule} {self.title}"

    @property
    def concerns_empty_rows(self) -> bool:
        return self.rule == EMPTY_ROWS and self.kind in ("frozen", "probe")


@dataclass(frozen=True)
class Claim:
    """One dtype or feature, by name, that a subject claims, and the plainest cases of it. Without a name: a plain call.

    unsure: nobody has named it; the signature takes any keyword, and what it does not know is then refused.
    """

    rule: str
    name: str
    cases: st.SearchStrategy[Case]
    unsure: bool = False

    @property
    def title(self) -> str:
        return f"takes {self.name}" if self.name else PLAIN_CALL

    def question(self, operation: str) -> Question:
        """What asks whether the subject answers at all; how well is asked later."""
        return Question("claim", self.rule, self.title, Probe(self.rule, self.title, (operation,), self.cases, ANSWERS))


def make_question(probe: Probe) -> Question:
    """What asks all cases of a probe."""
    return Question("probe", probe.rule, probe.title, probe)


def list_questions(
    operation: str | None,
    said: Declaration,
    declaration: Declaration,
    rules: Collection[str] | None = None,
    probes: Collection[Probe] | None = None,
) -> list[Question]:
    """List what is asked of a subject that takes all that it declares: frozen cases, probes, calls to be refused.

    Args:
        operation: its name; None for all of them.
        said: what the subject says of itself.
        declaration: what it has been seen to take of that.
        rules: only these; all for None.
        probes: those that it gets; `list_probes` unless given.
    """
    from conformance.operations import OPERATIONS

    frozen: dict[str, list[Entry]] = {}
    for entry in entries_for({operation} if operation else {*OPERATIONS}, declaration):
        frozen.setdefault(entry.rule, []).append(entry)
    questions = [Question("frozen", rule, FROZEN, entries) for rule, entries in frozen.items()]
    if probes is None:
        probes = [*list_probes(operation, said, declaration)]
    questions += [make_question(probe) for probe in probes]
    if "refusals" in said:
        refusals = refusals_of(operation, declaration)
        questions += [Question("refusal", refusal.rule, refusal.title, refusal) for refusal in refusals]
    return [question for question in questions if rules is None or question.rule in rules]


def list_probes(operation: str | None, said: Declaration, declaration: Declaration) -> Iterator[Probe]:
    """Yield the probes for one operation, or for all: of what it takes, and of what it says that it does not."""
    yield from catalogue(declaration, operation)
    if operation is not None:
        yield from unsupported_probes(operation, said, declaration)


def count_cases(probe: Probe, examples: int) -> int:
    """How many cases a probe gets; of a plan each row gives one where a probe of weight 1 gets `WHOLE_PLAN`.

    Where it gets fewer, large cases are left out first: of the rows a share that is the square of the other one.
    """
    if isinstance(probe.cases, Rows):
        share = examples / WHOLE_PLAN
        return max(1, round(len(probe.cases.strategies) * (share if share >= 1 else share**2) * probe.weight))
    return max(1, round(examples * probe.weight))


def seed_of(probe: Probe, seed: int) -> int:
    """A seed of its own for every probe, so that leaving one out changes no other's cases."""
    return seed ^ zlib.crc32(probe.id.encode())


# --- what a subject claims --------------------------------------------------------------------------------------------


def plain_claim(operation: str, declaration: Declaration) -> Claim:
    return Claim("CALL", "", plain_cases(operation, declaration, declaration.dtypes[0]))


def list_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Everything that the subject claims and that can be asked for alone, with a dtype that a plain call has shown."""
    yield from dtype_claims(operation, declaration)
    yield from feature_claims(operation, declaration)
    yield from scaling_claims(operation, declaration)


PLAIN = ("fused", "halves")
"""Features that a plain call has."""


def feature_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Each feature that the subject claims and that can be asked for alone."""
    for feature in sorted(declaration.features - {*UNCLAIMED, *PLAIN}):
        cases = feature_cases(feature, operation, declaration, declaration.dtypes[0])
        if cases is not None:
            yield Claim(rule_of(feature, operation), feature, cases, feature in declaration.unsure)


def dtype_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Plain calls in every dtype but the first, which the plain call has."""
    for dtype in declaration.dtypes[1:]:
        yield Claim(rule_of("dtype", operation), dtype, plain_cases(operation, declaration, dtype))


def scaling_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Each scaling of rotary frequencies that the subject claims."""
    if "rotary_scaling" in operation_features(operation) & declaration.features:
        for name in declaration.scalings:
            only = replace(declaration, scalings=(name,))
            cases = feature_cases("rotary_scaling", operation, only, declaration.dtypes[0])
            if cases is not None:
                yield Claim(rule_of("rotary_scaling", operation), name, cases)


def narrow_declaration(declaration: Declaration, refused: Collection[str]) -> Declaration:
    """Without the dtypes, scalings and features of these names."""
    dtypes = tuple(dtype for dtype in declaration.dtypes if dtype not in refused)
    scalings = tuple(name for name in declaration.scalings if name not in refused)
    return replace(declaration, dtypes=dtypes, scalings=scalings).remove_features(*refused)


def unsupported_probes(operation: str, said: Declaration, declaration: Declaration) -> Iterator[Probe]:
    """Cases with one thing each that the subject says it does not support, and has room for in its signature.

    Who takes any boolean mask gets one for masks of every kind, and cannot tell which kind it was.

    Args:
        operation: its name.
        said: what the subject says of itself.
        declaration: what it has been seen to take of that.
    """
    alike = "dense" in said and "structured" not in said
    of_masks = {name for name, (parameter, *_) in PARAMETERS.items() if parameter == "mask"} if alike else set()
    for feature in sorted((said.room - said.features - of_masks) & set(FEATURES)):
        wider = replace(declaration, features=declaration.features | {feature})
        cases = feature_cases(feature, operation, wider, declaration.dtypes[0])
        if cases is not None and feature not in ("gradients", WIDE_WEIGHTS):
            title = f"{feature} is not supported"
            yield Probe(rule_of(feature, operation), title, (operation,), cases, UNSUPPORTED, weight=0.5)
    for dtype in said.refused_dtypes:
        if dtype != "float64" or balls_available():
            cases = plain_cases(operation, replace(declaration, dtypes=(dtype,)), dtype)
            title = f"{dtype} is not supported"
            yield Probe(rule_of("dtype", operation), title, (operation,), cases, UNSUPPORTED, weight=0.3)
    others = tuple(name for name in SCALINGS if name not in said.scalings)
    if others and "scaling" not in said.lacking and "rotary_scaling" in declaration:
        cases = feature_cases("rotary_scaling", operation, replace(declaration, scalings=others), declaration.dtypes[0])
        if cases is not None:
            rule = rule_of("rotary_scaling", operation)
            yield Probe(rule, "another scaling", (operation,), cases, UNSUPPORTED, weight=0.5)
    if said.windows and "structured" in said:
        anywhere = replace(declaration, windows=(), compiled=False)
        windows = feature_cases("window", operation, anywhere, declaration.dtypes[0])
        if windows is not None:
            odd = windows.filter(partial(has_other_masks, said))
            yield Probe(rule_of("window", operation), "another window", (operation,), odd, UNSUPPORTED, weight=0.5)
    if (said.width_multiple > 1 or said.head_widths) and has_masks(operation):
        anywhere = replace(declaration, width_multiple=1, head_widths=(), compiled=False)  # of several widths
        cases = plain_cases(operation, anywhere, declaration.dtypes[0])
        odd = cases.filter(partial(has_other_widths, said))
        title = "another head width" if said.head_widths else f"a width that is no multiple of {said.width_multiple}"
        yield Probe(rule_of("cross", operation), title, (operation,), odd, UNSUPPORTED, weight=0.5)
