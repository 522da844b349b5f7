"""One subject's way through all that is asked of it.

First the plainest cases, one for every dtype and feature that it claims: what it cannot take at all is one violation,
and is left out of everything after. Then the probes, and what it says it does not support.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance import generation
from conformance.cases import Case
from conformance.declaration import FEATURES, UNCLAIMED, Declaration, room_for
from conformance.diagnosis import diagnosed
from conformance.features import features_of, rule_of
from conformance.generation import EMPTY, SHORT
from conformance.guard import Examiner, broken
from conformance.oracle import balls_available
from conformance.probes import Probe, catalogue
from conformance.run import STUCK, Progress, run_probe, run_refusals, violation
from conformance.tally import Tally

WITH_MASKS = ("attention", "attention_weights", "attention_logsumexp")


@dataclass
class Judgement:
    """What is asked, and the tally of what is found. `untried`: why not everything was."""

    examiner: Examiner
    operation: str
    examples: int
    seed: int
    rules: Collection[str] | None
    progress: Progress
    shrinking: float
    tally: Tally = field(default_factory=Tally)
    untried: str = ""

    def run(self) -> None:
        declaration = self.examiner.declaration
        if not self.takes("CALL", "a plain call", plain(self.operation, declaration, declaration.dtypes[0])):
            self.untried = "the plainest call fails, and nothing else was tried"
        else:
            self.judge(self.what_it_takes(declaration))
        if self.examiner.overrun >= STUCK:
            limit = f"{self.examiner.time_limit:g} s"
            self.untried = f"after {STUCK} cases that took longer than {limit} nothing else was tried"
        if self.examiner.printed:
            self.found("CALL", "prints nothing", f"prints to standard output: {self.examiner.printed[:80]!r}")
        diagnosed(self.tally, self.examiner)

    def judge(self, declaration: Declaration) -> None:
        """Empty rows first: who gets them wrong is asked for no more of them, so that other rules are seen for themselves."""
        self.ask(probe for probe in self.probes(declaration) if probe.rule == "ATT-6")
        if ("ATT-6", self.examiner.name) in self.tally.violations:
            conventions = {**declaration.conventions, "empty_rows": "any"}
            declaration = replace(declaration, conventions=conventions)
        self.ask(probe for probe in self.probes(declaration) if probe.rule != "ATT-6")
        self.tally.include(run_refusals(self.rules, [self.examiner], self.operation))

    def ask(self, probes: Iterable[Probe]) -> None:
        for probe in probes:
            tally = run_probe(probe, [self.examiner], self.examples, self.seed, self.progress, self.shrinking)
            self.tally.include(tally)

    def found(self, rule: str, title: str, message: str) -> None:
        self.tally.violate(violation(rule, title, "nothing", self.examiner, None, broken(message)))

    # --- what it takes at all -------------------------------------------------------------------------------------------

    def what_it_takes(self, declaration: Declaration) -> Declaration:
        """The declaration without the dtypes and features for which the plainest call fails."""
        first, dtypes = declaration.dtypes[0], [declaration.dtypes[0]]
        for dtype in declaration.dtypes[1:]:
            rule = rule_of("dtype", self.operation)
            if self.takes(rule, f"takes {dtype}", plain(self.operation, declaration, dtype)):
                dtypes.append(dtype)
        declaration = replace(declaration, dtypes=tuple(dtypes))
        for feature in sorted(declaration.features - set(UNCLAIMED)):
            cases = showing(feature, self.operation, declaration, first)
            if cases is not None and not self.takes(rule_of(feature, self.operation), f"takes {feature}", cases):
                declaration = declaration.without(feature)
        return declaration

    def takes(self, rule: str, title: str, cases: st.SearchStrategy[Case]) -> bool:
        """Whether the subject answers a case at all; how well is asked later."""
        probe = Probe(rule, title, (self.operation,), cases, "answers")
        tally = run_probe(probe, [self.examiner], 1, self.seed, self.progress, 0)
        if self.rules is None or rule in self.rules or rule == "CALL":
            self.tally.include(tally)
        return not tally.violations

    # --- how well -------------------------------------------------------------------------------------------------------

    def probes(self, declaration: Declaration) -> Iterator[Probe]:
        for probe in (*catalogue(declaration), *unsupported(self.operation, self.examiner, declaration)):
            if probe.operations == (self.operation,) and (self.rules is None or probe.rule in self.rules):
                yield probe


def plain(operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case]:
    """The operation with nothing that could be left away."""
    bare = replace(declaration, features=declaration.features & set(UNCLAIMED))
    return generation.operation_cases(operation, (dtype,), bare)


def showing(feature: str, operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case] | None:
    """Cases that use the feature, and as little else as can be; None where the operation has no such thing."""
    bare = replace(declaration, features=(declaration.features & set(UNCLAIMED)) | {feature})
    if feature == "gradients":
        return generation.operation_cases(operation, (dtype,), bare)
    if operation not in WITH_MASKS or (feature in ("dropout", "empty_rows") and operation != "attention"):
        return None
    plans = EMPTY if feature == "empty" else SHORT
    cases = partial(generation.attention_cases, operation, dtypes=(dtype,), declaration=bare, plans=plans, others=False)
    if feature in generation.MASKS:
        return cases(mask=feature)
    modes = ("mean",) if feature == "empty_rows" else ("zero",)
    shown = cases(mask="none", focus=(feature,), gradients=False, empty_rows=modes)
    return shown.filter(lambda case: feature in features_of(case))


def unsupported(operation: str, examiner: Examiner, declaration: Declaration) -> Iterator[Probe]:
    """Cases with one thing each that the subject says it does not support, and has room for in its signature."""
    said = examiner.declaration
    room = room_for(getattr(examiner.subject, "function", None)) if hasattr(examiner.subject, "function") else set()
    for feature in sorted((room - said.features) & set(FEATURES)):
        wider = replace(declaration, features=declaration.features | {feature})
        cases = None if feature == "gradients" else showing(feature, operation, wider, declaration.dtypes[0])
        if cases is not None:
            title = f"{feature} is not supported"
            yield Probe(rule_of(feature, operation), title, (operation,), cases, "unsupported", weight=0.5)
    for dtype in said.refused_dtypes:
        if dtype != "float64" or balls_available():
            cases = plain(operation, replace(declaration, dtypes=(dtype,)), dtype)
            title = f"{dtype} is not supported"
            yield Probe(rule_of("dtype", operation), title, (operation,), cases, "unsupported", weight=0.3)
    if said.width_multiple > 1 and operation in WITH_MASKS:
        cases = plain(operation, replace(declaration, width_multiple=1), declaration.dtypes[0])
        odd = cases.filter(lambda case: case.inputs["query"].shape[-1] % said.width_multiple != 0)
        title = f"a width that is no multiple of {said.width_multiple}"
        yield Probe(rule_of("cross", operation), title, (operation,), odd, "unsupported", weight=0.5)
