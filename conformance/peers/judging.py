"""A peer's way through the judge: one divergence, one rule.

What a subject gets wrong would show again in every rule whose cases contain it. So what stands below other rules is
asked first, on its own, and who breaks it is not asked for it again: every dtype beyond the first (ATT-9, NORM-2),
rows with a large mean (NORM-4), scales of 0 and below (ATT-1), softcap (ATT-2), bias (ATT-3), gradients (ATT-12,
NORM-6), empty rows (ATT-6), what stands behind a mask (MASK-7).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from hypothesis import strategies as st

from conformance.cases.arguments import is_gradient
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration, roundings
from conformance.cases.facts import operation_facts
from conformance.checks.catalogue import (
    AFTER_OTHER_CALLS,
    CALLS_IN_ORDER,
    INTERLEAVED,
    NOTHING,
    REFUSAL,
    THREADS,
    UNSUPPORTED,
    Check,
    Example,
    Probe,
    Shared,
)
from conformance.checks.findings import Finding, is_error
from conformance.checks.levels import ISOLATION_RULE, NO_ISOLATION
from conformance.checks.results import Results, Violation
from conformance.diagnosis.evidence import ANSWERS_TO_CASE
from conformance.judge.executor import ClaimAnswer, Executor
from conformance.judge.plan import Claim
from conformance.judge.smallest_case import cut_down
from conformance.judge.trial import Progress, ask_probe, ignore_progress, make_violation, settle_violations
from conformance.operations.probes import refusals_of
from conformance.peers import probes as own
from conformance.peers.peer import Peer, return_case, takes_anything
from conformance.runner.in_process import Runner
from conformance.runner.in_subprocess import SubprocessRunner
from conformance.sampling.draws import Rows

if TYPE_CHECKING:
    from conformance.cases.expectations import CaseExample

DESCRIBED = ("MASK-2", "MASK-3", "MASK-4", "MASK-6")
"""Rules about descriptions: who takes boolean arrays only has no part in them."""


OF_SEVERAL = (AFTER_OTHER_CALLS, THREADS, INTERLEAVED)
"""Checks of several cases, all of which are asked as they are."""
BEYOND = (REFUSAL, UNSUPPORTED, NOTHING, ANSWERS_TO_CASE, CALLS_IN_ORDER)
"""Checks of what the path does not take, of no case of its own, and of calls that were all asked before."""
SHARE_OF_PLAN = 1 / 3
"""Of the planned sizes, for what compiles for every shape or answers from a process of its own."""
EXCUSES: dict[str, tuple[dict[str, str], ...]] = {
    "attention": ({"weights": "inputs"}, {"weights": "inputs", "products": "inputs"}),
    "rotary_embedding": (
        {"angles": "float32"},
        {"rotation": "rounded"},
        {"angles": "float32", "rotation": "rounded"},
        {"angles": "float32", "rotation": "inputs"},
    ),
    "route": ({"scores": "inputs"}, {"scores": "inputs", "weights": "inputs"}),
    "mixture_of_experts": (
        {"combined": "inputs"},
        {"scores": "inputs", "combined": "inputs"},
        {"scores": "inputs", "weights": "inputs", "combined": "inputs"},
    ),
}
"""Conventions under which results in a dtype may be right after all, the narrower first."""
FEATURES = {"ATT-2": "softcap", "ATT-3": "bias"}
"""Features that are not asked for in other rules' cases by who breaks their own."""


class WrongDtype(NamedTuple):
    """A dtype in which a path breaks a rule. conventions: of its precision, under which it keeps the rule."""

    name: str
    conventions: dict[str, str]


class DtypeRemark(NamedTuple):
    """The dtypes in which a path breaks a rule. gradients: of gradients alone, where results have their own."""

    wrong: tuple[WrongDtype, ...]
    gradients: bool = False


def cases_in(check: Check[Any, Any], example: Any) -> tuple[Case, ...]:
    """Every case that the subject is asked."""
    return example if check in OF_SEVERAL else (check.case_of(example),)


def change_cases(change: Callable[[Case], Case], example: CaseExample) -> Any:
    """The example with every case in it changed, alone or one of several."""
    if isinstance(example, Case):
        return change(example)
    return tuple(change_cases(change, part) for part in example) if type(example) is tuple else example


def write_eps(case: Case) -> Case:
    return replace(case, options={"eps": 1e-5} | case.options)


class PathRunner(Runner):
    """Runs checks within a peer's path.

    asks: whether the path is asked for a case. Of what it is not asked for, nothing is found: a failing case that is
    made smaller stays within the path.
    """

    asks: Callable[[Case], bool] = staticmethod(takes_anything)

    def __call__(self, check: Check[Example, Shared], example: Example, shared: Shared) -> list[Finding]:
        if check not in BEYOND and not all(map(self.asks, cases_in(check, example))):
            return []
        return super().__call__(check, example, shared)


class PathSubprocessRunner(PathRunner, SubprocessRunner):
    """A runner whose process is started with the peer's environment."""

    def __init__(self, peer: Peer) -> None:
        self.environment = peer.environment
        super().__init__(peer.target, peer.time_limit)

    def start(self) -> Declaration:
        with patch.dict(os.environ, self.environment):
            return super().start()


def runner_of(peer: Peer) -> Runner:
    apart = peer.isolated or peer.environment or peer.device == "cuda"  # where one bad access spoils all later calls
    return PathSubprocessRunner(peer) if apart else PathRunner(peer.target.make(), peer.time_limit)


class PeerExecutor(Executor):
    """As `Executor`, within what the peer's path has parameters for, and in the order told above.

    remarks: by rule, the dtypes in which it is broken. accepted: by rule, titles of calls that it should refuse.
    """

    def __init__(
        self, runner: Runner, peer: Peer, examples: int, seed: int, progress: Progress = ignore_progress
    ) -> None:
        super().__init__(runner, peer.operation, examples, seed, progress=progress, shrinking=peer.shrinking)
        self.peer = peer
        self.remarks: dict[str, list[DtypeRemark]] = {}
        self.accepted: dict[str, list[str]] = {}
        self.level_rows = self.positive_scales = False
        if isinstance(runner, PathRunner):
            runner.asks = self.asks

    @property
    def skipped_inputs(self) -> tuple[str, ...]:
        return () if "structured" in self.runner.declaration else DESCRIBED

    def run(self) -> None:
        """What takes long to compile gets the time to find its sizes once more."""
        super().run()
        shown = {id(cause.lead) for cause in self.causes}
        for key, found in self.results.violations.items():  # a row shows every rule that is broken by a case of its own
            if id(found) not in shown and self.shrinking and not found.depends_on_state and not self.runner.overrun:
                self.results.violations[key] = cut_down(found, self.runner, self.shrinking)
        lost = {id(one) for cause in self.causes if cause.kind == "digits" for one in cause.violations}
        settle_violations(self.results, lambda found: self.charge_to_dtype(found) if id(found) in lost else found)

    def charge_to_dtype(self, found: Violation) -> Violation:
        """What 16 bits round away, and float32 and float64 do not, is told by the rule of dtypes, or of gradients.

        The small cases of that rule may all conform: with thousands of rows, one is more likely to be rounded too far.
        """
        own_rules = own.dtype_rule(self.operation), own.gradient_rule(self.operation)
        gradient, cell = is_gradient(found.finding.name), self.results.rules[found.rule, found.subject]
        if found.rule in own_rules or not found.rounds_16_bits or not 0 <= cell.wide <= 1:
            return found
        self.remark(own_rules[gradient], [WrongDtype(found.case.dtype, {})], gradient)
        return replace(found, rule=own_rules[gradient])

    def ask_beyond_claims(self, declaration: Declaration) -> None:
        declaration = self.precise(declaration)
        self.level_rows = self.breaks("NORM-4", [declaration])
        plain = declaration.remove_features("gradients").add_conventions(empty_rows="any")
        self.positive_scales = self.breaks("ATT-1", [plain])
        for rule, feature in FEATURES.items():
            if self.breaks(rule, [plain]):
                declaration, plain = declaration.remove_features(feature), plain.remove_features(feature)
        declared = self.split_by_gradients(declaration)
        if self.breaks("ATT-6", declared):
            declared = [one.add_conventions(empty_rows="any") for one in declared]
        if self.breaks(ISOLATION_RULE, declared):
            declared = [one.add_conventions(**NO_ISOLATION) for one in declared]
        asked = {"NORM-4", "ATT-1", *FEATURES, "ATT-6", ISOLATION_RULE}
        for one in declared:
            self.ask_probes(probe for probe in self.probes(one) if probe.rule not in asked)
        self.ask_refusals()
        self.level_rows = self.positive_scales = False  # sizes of what was found are looked for with its own numbers

    # --- what is asked first ---

    def breaks(self, rule: str, declared: list[Declaration]) -> bool:
        for one in declared:
            self.ask_probes(probe for probe in self.probes(one) if probe.rule == rule)
        return bool(self.results.violations_of(rule, self.runner.name))

    def precise(self, declaration: Declaration) -> Declaration:
        """The declaration with the dtypes in which plain results are right; the first is taken to be."""
        rule, (first, *others) = own.dtype_rule(self.operation), declaration.dtypes
        plain = declaration.remove_features("gradients", "scale", "softcap", "bias").add_conventions(empty_rows="any")
        probe = partial(own.dtype_probe, self.operation, rule)
        wrong = self.wrong(others, probe, plain)
        self.remark(rule, [WrongDtype(dtype, self.excuse(dtype, probe, plain)) for dtype in wrong])
        return replace(declaration, dtypes=(first, *(dtype for dtype in others if dtype not in wrong)))

    def split_by_gradients(self, declaration: Declaration) -> list[Declaration]:
        """The same with gradients in those dtypes in which they are right, and without in the others."""
        if "gradients" not in declaration or not operation_facts(self.operation).differentiated:
            return [declaration]
        rule, plain = own.gradient_rule(self.operation), declaration.add_conventions(empty_rows="any")
        probe = partial(own.gradient_probe, self.operation, rule)
        wrong = self.wrong(declaration.dtypes, probe, plain)
        self.remark(rule, [WrongDtype(dtype, self.excuse(dtype, probe, plain)) for dtype in wrong], gradients=True)
        right = tuple(dtype for dtype in declaration.dtypes if dtype not in wrong)
        parts = [
            replace(declaration, dtypes=right),
            replace(declaration.remove_features("gradients"), dtypes=tuple(wrong)),
        ]
        return [part for part in parts if part.dtypes]

    def wrong(
        self, dtypes: Iterable[str], probe: Callable[[str, Declaration], Probe], declaration: Declaration
    ) -> list[str]:
        """The dtypes in which the probe fails."""
        found = []
        for dtype in dtypes:
            results = self.answer_own(probe(dtype, declaration))
            self.results.include(results)
            found += [dtype] if results.violations else []
        return found

    def excuse(
        self, dtype: str, probe: Callable[[str, Declaration], Probe], declaration: Declaration
    ) -> dict[str, str]:
        """The conventions of its precision under which it is right after all, where there are any."""
        for conventions in EXCUSES.get(self.operation, ()):
            declared = declaration.add_conventions(**conventions)
            if roundings(declared, dtype) and not self.answer_own(probe(dtype, declared)).violations:
                return conventions
        return {}

    def remark(self, rule: str, wrong: Sequence[WrongDtype], gradients: bool = False) -> None:
        """Keep in which dtypes the rule is broken. Where one rule has both, gradients are told from results."""
        one_rule = own.gradient_rule(self.operation) == own.dtype_rule(self.operation)
        remark = DtypeRemark(tuple(wrong), gradients and one_rule)
        if wrong and remark not in self.remarks.get(rule, ()):
            self.remarks.setdefault(rule, []).append(remark)

    def answer_own(self, probe: Probe) -> Results:
        results = ask_probe(self.limit_probe(probe), [self.runner], self.examples, self.seed, self.progress)
        settle_violations(results, self.settle_violation)
        return results

    def settle_violation(self, found: Violation) -> Violation | None:
        """Of several calls in a row the one that is wrong alone, under its own rule: that is no matter of state."""
        if found.check != AFTER_OTHER_CALLS:
            return found
        new = self.reproduction.settle(found)
        return new if new is None or not new.rounds_16_bits else replace(new, rule=own.dtype_rule(self.operation))

    # --- within the path ---

    def ask_probes(self, probes: Iterable[Probe]) -> None:
        super().ask_probes([self.limit_probe(probe) for probe in probes])

    def ask_claim_anew(self, claim: Claim) -> ClaimAnswer:
        if claim.rule in self.skipped_inputs:
            return ClaimAnswer(claim, Results(), refused=False)
        return super().ask_claim_anew(replace(claim, cases=self.path(claim.cases)))

    def limit_probe(self, probe: Probe) -> Probe:
        """The probe in the sizes of the path. Eps of layer norms is written out, but where its default is asked."""
        cases = probe.cases.map(partial(change_cases, self.peer.fitted))
        if self.operation == "layer_norm" and probe.name != own.EPS_LEFT_OUT:
            cases = cases.map(partial(change_cases, write_eps))
        cases = cases.filter(lambda m: all(map(self.asks, cases_in(probe.check, m))))
        return replace(probe, cases=cases, weight=probe.weight * self.share(probe))

    def share(self, probe: Probe) -> float:
        slow = self.runner.declaration.compiled or isinstance(self.runner, SubprocessRunner)
        return SHARE_OF_PLAN if slow and isinstance(probe.cases, Rows) else 1.0

    def path(self, cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
        return cases.map(self.peer.fitted).filter(self.peer.takes)

    def asks(self, case: Case) -> bool:
        """Whether the path takes the case, in its own sizes, and its answer is not already known to be wrong."""
        return self.peer.takes(case) and self.expects_answer(case) and self.fits(case)

    def fits(self, case: Case) -> bool:
        if self.peer.fitted is return_case:
            return True
        with contextlib.suppress(ValueError, IndexError):
            fitted = self.peer.fitted(case).inputs
            return {n: a.shape for n, a in fitted.items()} == {n: a.shape for n, a in case.inputs.items()}
        return False

    def expects_answer(self, case: Case) -> bool:
        """Whether the call is within what it has not already been seen to get wrong."""
        scale = case.options.get("scale")
        return (not self.level_rows or own.level(case)) and (not self.positive_scales or scale is None or scale > 0)

    def probes(self, declaration: Declaration) -> Iterator[Probe]:
        for probe in (*super().probes(declaration), *own.probes(self.operation, declaration)):
            if probe.rule not in self.skipped_inputs:
                yield probe

    # --- refusals ---

    def ask_refusals(self) -> None:
        """What the rules refuse must raise something; which error, each library decides for itself."""
        explicit = self.runner.declaration.add_conventions(
            causal="explicit"
        )  # a declared alignment is a divergence too
        for refusal in refusals_of(self.operation, explicit):
            wanted = self.rules is None or refusal.rule in self.rules
            if wanted and refusal.title not in self.peer.documented:
                asked = refusal._replace(case=self.fit_refusal(refusal.case))
                findings = [f for f in self.runner(REFUSAL, asked, None) if not is_error(f)]
                self.results.add(refusal.rule, self.runner.name, findings, refusal.case)
                if any(finding.ratio > 1 for finding in findings):
                    found = make_violation(refusal.rule, refusal.title, REFUSAL, self.runner, asked, findings)
                    if not self.results.violations_of(refusal.rule, self.runner.name):  # wrong results say more
                        self.results.add_violation(found)
                    self.accepted.setdefault(refusal.rule, []).append(refusal.title)

    def fit_refusal(self, case: Case) -> Case:
        """A call of multi-head attention that must be refused, in sizes of the path."""
        if self.operation == own.HEADS:
            with contextlib.suppress(ValueError, IndexError):
                return self.peer.fitted(case)
        return case
