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

from conformance.cases.case import Case, widths_of
from conformance.cases.declaration import FEATURES, PARAMETERS, UNCLAIMED, Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.features import features_of, has_declared_masks, has_masks, is_norm, rule_of
from conformance.checks.catalogue import ANSWERS, UNSUPPORTED
from conformance.checks.probe import Probe
from conformance.judge.options import EFFORTS
from conformance.operations.corpus import Entry, entries_for
from conformance.operations.probes import catalogue
from conformance.operations.refusals import refusals_of
from conformance.oracle.reference import balls_available
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Rows
from conformance.sampling.operations import operation_cases
from conformance.sampling.plan.attention import Sizes, adapt_sizes
from conformance.sampling.special import narrow
from conformance.sampling.strategies import EMPTY, SHORT, window_sizes
from specification.dtypes import HALF

PLAIN_CALL, FROZEN, PRINTS = "a plain call", "frozen cases", "prints nothing"
EMPTY_ROWS = "ATT-6"
WIDE_WEIGHTS = "wide_weights"
WITH_DROPOUT = ("attention", "multi_head_attention")
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
    return Claim("CALL", "", plain(operation, declaration, declaration.dtypes[0]))


def list_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Everything that the subject claims and that can be asked for alone, with a dtype that a plain call has shown."""
    yield from dtype_claims(operation, declaration)
    yield from feature_claims(operation, declaration)


def feature_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Each feature that the subject claims and that can be asked for alone."""
    for feature in sorted(declaration.features - set(UNCLAIMED)):
        cases = showing(feature, operation, declaration, declaration.dtypes[0])
        if cases is not None:
            yield Claim(rule_of(feature, operation), feature, cases, feature in declaration.unsure)


def dtype_claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
    """Plain calls in every dtype but the first, which the plain call has."""
    for dtype in declaration.dtypes[1:]:
        yield Claim(rule_of("dtype", operation), dtype, plain(operation, declaration, dtype))


def narrow_declaration(declaration: Declaration, refused: Collection[str]) -> Declaration:
    """Without the dtypes and features of these names."""
    dtypes = tuple(dtype for dtype in declaration.dtypes if dtype not in refused)
    return replace(declaration, dtypes=dtypes).remove_features(*refused)


def plain(operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case]:
    """The operation with nothing that could be left away."""
    return any_cases(operation, declaration.keep_features(), dtype)


def any_cases(operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case]:
    """Any cases of the operation; where shapes are compiled, those of attention have the sizes of other claims."""
    if declaration.compiled and operation.startswith("attention"):
        plans = telling_sizes("", declaration)
        return operation_cases(operation, (dtype,), declaration, plans=plans)
    return operation_cases(operation, (dtype,), declaration)


def showing(feature: str, operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case] | None:
    """Cases that use the feature, and as little else as can be; None where the operation has no such thing."""
    alone = declaration.keep_features(feature)
    if feature == "offset":  # of a description; an array has none
        if not operation.startswith("attention") or not {"structured", "causal"} <= declaration.features:
            return None
        at_any = declaration.keep_features(feature, "causal")
        given = dict[str, Any](
            declaration=at_any, plans=telling_sizes(feature, at_any) if declaration.compiled else None
        )
        causal = generation.attention_cases(operation, "causal", (), False, False, (dtype,), **given)
        return causal.filter(lambda case: feature in features_of(case))
    combined = feature in ("combined", "or")
    if combined:  # arrays are combined before the subject sees them
        if "structured" not in declaration or len(declaration.masks) < 2:
            return None
        alone = declaration.keep_features(feature, *declaration.masks, "combined")
    if feature == "gradients":
        return any_cases(operation, alone, dtype)
    if feature in ("axes", WIDE_WEIGHTS):
        dtypes = (dtype,) if feature == "axes" else tuple(name for name in declaration.dtypes if name in HALF)
        if not is_norm(operation) or not dtypes:
            return None
        norms = generation.norm_cases(operation, gradients=False, dtypes=dtypes[:1], declaration=alone)
        return norms.filter(lambda case: feature in features_of(case))
    if feature in operation_facts(operation).rules and not has_masks(operation):
        every = operation_cases(operation, (dtype,), alone)
        return every.filter(lambda case: feature in features_of(case))
    if not has_masks(operation) or feature not in operation_facts("attention").rules:
        return None
    if feature in ("dropout", "empty_rows") and operation not in WITH_DROPOUT:
        return None
    of_mask = combined or feature in generation.MASKS
    mask = "combined" if combined else feature if of_mask else "none"
    if operation == "multi_head_attention":
        if feature in ("empty", "empty_rows"):
            return None
        given = dict[str, Any](dtypes=(dtype,), plans=telling_sizes(feature, alone), declaration=alone)
        shown = generation.multi_head_cases(mask=mask, focus=(feature,), **given)
        return shown.filter(lambda case: feature in features_of(case))
    plans = EMPTY if feature == "empty" else telling_sizes(feature, alone)
    if feature == "window" and declaration.windows:
        plans = window_sizes(alone)
    given = dict[str, Any](dtypes=(dtype,), plans=plans, declaration=alone)
    cases = partial(generation.attention_cases, operation, others=False, **given)
    if of_mask:
        shown = cases(mask=mask).filter(narrow) if feature == "window" else cases(mask=mask)
        return shown.filter(lambda case: feature in features_of(case)) if feature == "or" else shown
    modes = ("mean",) if feature == "empty_rows" else ("zero",)
    shown = cases(mask="none", focus=(feature,), gradients=False, empty_rows=modes)
    return shown.filter(lambda case: feature in features_of(case))


def telling_sizes(feature: str, declaration: Declaration) -> tuple[Sizes, ...]:
    """Short sizes that have the feature, with the fewest axes of size 1, which broadcast without being supported.

    Where shapes are compiled, the first of them alone.
    """
    sizes = [adapt_sizes(plan, declaration) for plan in SHORT]
    sizes = [s for s in sizes if feature != "gqa" or s.H > s.G] or sizes
    ones = [s.count(1) for s in sizes]
    found = tuple(s for s, count in zip(sizes, ones, strict=True) if count == min(ones))
    return found[:1] if declaration.compiled else found


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
        cases = (
            None
            if feature in ("gradients", WIDE_WEIGHTS)
            else showing(feature, operation, wider, declaration.dtypes[0])
        )
        if cases is not None:
            title = f"{feature} is not supported"
            yield Probe(rule_of(feature, operation), title, (operation,), cases, UNSUPPORTED, weight=0.5)
    for dtype in said.refused_dtypes:
        if dtype != "float64" or balls_available():
            cases = plain(operation, replace(declaration, dtypes=(dtype,)), dtype)
            title = f"{dtype} is not supported"
            yield Probe(rule_of("dtype", operation), title, (operation,), cases, UNSUPPORTED, weight=0.3)
    if said.windows and "structured" in said:
        anywhere = replace(declaration, windows=(), compiled=False)
        windows = showing("window", operation, anywhere, declaration.dtypes[0])
        if windows is not None:
            odd = windows.filter(lambda case: not has_declared_masks(case, said))
            yield Probe(rule_of("window", operation), "another window", (operation,), odd, UNSUPPORTED, weight=0.5)
    if (said.width_multiple > 1 or said.head_widths) and has_masks(operation):
        anywhere = replace(declaration, width_multiple=1, head_widths=(), compiled=False)  # of several widths
        cases = plain(operation, anywhere, declaration.dtypes[0])
        odd = cases.filter(lambda case: not said.takes_widths(*widths_of(case)))
        title = "another head width" if said.head_widths else f"a width that is no multiple of {said.width_multiple}"
        yield Probe(rule_of("cross", operation), title, (operation,), odd, UNSUPPORTED, weight=0.5)
