"""One subject's way through all that is asked of it.

First the plainest cases, one for every dtype and feature that it claims: what it cannot take at all is one violation,
and is left out of everything after. Then the probes, and what it says it does not support.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.arrays import widths_of
from conformance.cases.case import Case
from conformance.cases.declaration import FEATURES, PARAMETERS, UNCLAIMED, Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.features import features_of, has_declared_masks, has_masks, is_norm, rule_of
from conformance.cases.sizes import Sizes, adapt_sizes
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT, ANSWERS, CALLS_IN_ORDER, NOTHING, UNSUPPORTED
from conformance.checks.findings import Finding, Printed, Raised, wrong_dtype
from conformance.checks.levels import ROBUST, is_required
from conformance.checks.probe import Probe
from conformance.checks.refusals import Refusal
from conformance.checks.results import Results, Violation
from conformance.diagnosis.cause import Cause
from conformance.judge.causes import explain_results
from conformance.judge.reproduction import Reproduction
from conformance.judge.run import STUCK, Progress, run_corpus, run_probe, run_refusal, violation
from conformance.judge.worker_processes import Order, WorkerProcesses
from conformance.operations.corpus import Entry, entries_for
from conformance.operations.probes import catalogue
from conformance.operations.refusals import refusals_of
from conformance.oracle.reference import balls_available
from conformance.runner.in_process import Runner, failed_call
from conformance.sampling import strategies as generation
from conformance.sampling.operations import operation_cases
from conformance.sampling.special import narrow
from conformance.sampling.strategies import EMPTY, SHORT, window_sizes
from conformance.subjects.targets import Target
from specification.dtypes import HALF

PLAIN_CALL, FROZEN, PRINTS = "a plain call", "frozen cases", "prints nothing"
EMPTY_ROWS = "ATT-6"
WIDE_WEIGHTS = "wide_weights"
UNMASKED = "unmasked"
NOTHING_ELSE = "the plainest call fails, and nothing else was tried"
WITH_DROPOUT = ("attention", "multi_head_attention")


@dataclass(frozen=True)
class Question:
    """What is asked of a subject.

    kind: "claim" (what it takes), "frozen" (the corpus's cases for a rule), "probe", "refusal" or "printed". about: the
    corpus's entries, the probe, or the call to be refused; two questions may be the same with less in one of them.
    """

    kind: str
    rule: str
    title: str
    about: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.rule} {self.title}"

    @property
    def concerns_empty_rows(self) -> bool:
        return self.rule == EMPTY_ROWS and self.kind != "refusal"


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


@dataclass
class Judgement:
    """What is asked, and the results so far. `untried`: why not everything was.

    workers: run some probes. target: how another process finds the subject, to tell what depends on earlier calls.
    """

    runner: Runner
    operation: str
    examples: int
    seed: int
    rules: Collection[str] | None
    progress: Progress
    shrinking: float
    results: Results = field(default_factory=Results)
    untried: str = ""
    workers: WorkerProcesses | None = None
    target: Target | None = None
    ordered: Declaration | None = None
    causes: list[Cause] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reproduction = Reproduction(self.runner, self.target)

    def run(self) -> None:
        declaration = self.runner.declaration
        self.order(declaration)  # most functions take what they claim
        if not self.takes(plain_claim(self.operation, declaration)):
            self.untried = NOTHING_ELSE
            self.say_dtypes(declaration)
        else:
            self.judge(self.supported_declaration(declaration))
        if self.runner.overrun >= STUCK:
            limit = f"{self.runner.time_limit:g} s"
            self.untried = f"after {STUCK} cases that took longer than {limit} nothing else was tried"
        self.ask_what_is_printed()
        self.results.set_worst()
        self.causes = explain_results(self.results, self.runner, self.shrinking, self.settle)

    def judge(self, declaration: Declaration) -> None:
        """Empty rows first: who gets them wrong is asked for no more of them, so that each rule is seen by itself."""
        self.order(declaration)
        rows = self
        if self.rules is not None and EMPTY_ROWS not in self.rules:
            rows = replace(self, rules=[EMPTY_ROWS], results=Results())
        for question in rows.questions(declaration):
            if question.concerns_empty_rows:
                rows.answer(question)
        if not rows.results.keeps(EMPTY_ROWS, self.runner.name, ROBUST):
            declaration = declaration.promising(empty_rows="any")
            self.order(declaration)
        others = [question for question in self.questions(declaration) if not question.concerns_empty_rows]
        for question in (other for other in others if other.kind == "frozen"):
            self.answer(question)
        self.ask_probes(question.about for question in others if question.kind == "probe")
        for question in (other for other in others if other.kind == "refusal"):
            self.answer(question)

    def questions(self, declaration: Declaration) -> list[Question]:
        """What is asked of a subject that takes all that it declares: frozen cases, probes, calls to be refused."""
        frozen: dict[str, list[Entry]] = {}
        for entry in entries_for({self.operation}, declaration):
            if self.rules is None or entry.rule in self.rules:
                frozen.setdefault(entry.rule, []).append(entry)
        found = [Question("frozen", rule, FROZEN, entries) for rule, entries in frozen.items()]
        found += [Question("probe", probe.rule, probe.title, probe) for probe in self.probes(declaration)]
        return found + [Question("refusal", one.rule, one.title, one) for one in self.refusals(declaration)]

    def answer(self, question: Question) -> None:
        """Ask a question, and keep its results."""
        if question.kind == "frozen":
            self.include(run_corpus(question.about, [self.runner], self.settle))
        elif question.kind == "probe":
            self.ask_one(question.about)
        elif self.runner.overrun < STUCK:
            run_refusal(question.about, self.runner, self.results)

    def refusals(self, declaration: Declaration) -> list[Refusal]:
        """Calls that the subject refuses, as it says."""
        if "refusals" not in self.runner.declaration:
            return []
        found = refusals_of(self.operation, declaration)
        return [refusal for refusal in found if self.rules is None or refusal.rule in self.rules]

    def order(self, declaration: Declaration) -> None:
        """Have workers run the probes for what it takes; what they found with others is dropped."""
        if self.workers is not None and declaration != self.ordered:
            self.ordered = declaration
            self.workers.order(Order(self.operation, declaration, self.examples, self.seed, self.rules))

    def later_probes(self, declaration: Declaration) -> list[Probe]:
        """Those that workers may run."""
        return [probe for probe in self.probes(declaration) if probe.rule != EMPTY_ROWS]

    def ask_probes(self, probes: Iterable[Probe]) -> None:
        """All at once: workers may run some of them."""
        if self.workers is not None:
            self.ask_with_workers([*probes], self.workers)
        else:
            for probe in probes:
                self.ask_one(probe)

    def ask_one(self, probe: Probe, tried: Results | None = None) -> None:
        """tried: what a worker has found with the probe; then only a smaller failing case is looked for."""
        given = (probe, [self.runner], self.examples, self.seed, self.report_progress)
        self.include(run_probe(*given, self.results.violations, tried, self.settle))

    def ask_with_workers(self, probes: Sequence[Probe], workers: WorkerProcesses) -> None:
        """The same in the same order; where that is ended early, all that workers have found is counted."""
        for index, probe in enumerate(probes):
            try:
                self.ask_one(probe, self.worker_results(workers, index))
            except BaseException:
                for found in map(workers.read_outcome, range(index, len(probes))):
                    self.results.include(Results() if found is None else found.tried)
                raise

    def worker_results(self, workers: WorkerProcesses, index: int) -> Results | None:
        """What a worker has found with the probe; None where this process is to run it."""
        outcome = None if self.runner.overrun >= STUCK else workers.outcome(index, self.listen)
        self.listen()
        if outcome is None:
            return None
        self.runner.overrun += outcome.overrun
        self.runner.printed = self.runner.printed or outcome.printed
        return outcome.tried

    def report_progress(self, rule: str, title: str) -> None:
        self.progress(rule, title)
        self.listen()

    def listen(self) -> None:
        """Pass on the progress of workers."""
        for rule, title in () if self.workers is None else self.workers.news():
            self.progress(rule, title)

    def settle(self, found: Violation) -> Violation | None:
        """What becomes of a violation once its case has been asked alone; None where others say the same."""
        settled = self.reproduction.settle(found)
        if settled is None or (found.uncut is None and self.runner.sizes.report_again(settled.finding)):
            return None
        alone = found.check == AFTER_OTHER_CALLS and settled.check == AGREEMENT and not settled.depends_on_state
        return None if alone and self.results.violations else settled

    def include(self, results: Results) -> None:
        """Calls in order, which can be seen again, stand before what cannot."""
        for key, found in results.violations.items():
            known = self.results.violations.get(key)
            again = found.check == CALLS_IN_ORDER
            if known is not None and again and known.check != CALLS_IN_ORDER and is_required(found.level, known.level):
                del self.results.violations[key]
        self.results.include(results)

    def ask_what_is_printed(self) -> None:
        """Standard output is the judge's: a function that prints to it is in violation."""
        if self.runner.printed:
            findings = failed_call(Printed(self.runner.printed[:80]))
            self.results.violate(violation("CALL", PRINTS, NOTHING, self.runner, None, findings))

    # --- what it takes at all ---

    def supported_declaration(self, declaration: Declaration) -> Declaration:
        """The declaration without the dtypes and features for which the plainest call fails."""
        for asked in (dtype_claims, feature_claims):
            refused = {claim.name for claim in asked(self.operation, declaration) if not self.takes(claim)}
            declaration = narrow_declaration(declaration, refused)
        return declaration

    def say_dtypes(self, declaration: Declaration) -> None:
        """Where the plainest call raises an error in some dtypes alone, its violation has them as what is lacking."""
        if not any(map(raises, self.results.violations.values())):
            return
        first, *others = declaration.dtypes
        failing = [claim.name for claim in dtype_claims(self.operation, declaration) if self.answers(claim).violations]
        if len(failing) < len(others):
            lacks, found = (first, *failing), self.results.violations.items()
            self.results.violations = {key: replace(one, lacks=lacks) if raises(one) else one for key, one in found}

    def answers(self, claim: Claim) -> Results:
        """Whether the subject answers the claim's plainest case at all."""
        probe = Probe(claim.rule, claim.title, (self.operation,), claim.cases, ANSWERS)
        return run_probe(probe, [self.runner], 1, self.seed, self.progress)

    def takes(self, claim: Claim) -> bool:
        """Whether the subject answers a case; how well is asked later."""
        results = self.answers(claim)
        if not claim.name and any(map(raises, results.violations.values())) and self.answers_with_a_mask():
            claim = replace(claim, name=UNMASKED)
        if claim.unsure and any(says_no(violation.finding) for violation in results.violations.values()):
            return False
        if self.rules is None or claim.rule in self.rules or claim.rule == "CALL":
            results.violations = {key: add_lacking(found, claim) for key, found in results.violations.items()}
            self.results.include(results)
        return not results.violations

    def answers_with_a_mask(self) -> bool:
        """Whether the subject answers the plainest call with a mask of some kind that it claims."""
        declaration = self.runner.declaration
        if UNMASKED not in declaration or not has_masks(self.operation):
            return False
        with_each = (
            declaration.remove_features(UNMASKED, *{*declaration.masks} - {kind}) for kind in declaration.masks
        )
        found = (self.answers(plain_claim(self.operation, one)) for one in with_each)
        return any(results.rules and not results.violations for results in found)

    # --- how well ---

    def probes(self, declaration: Declaration) -> Iterator[Probe]:
        for probe in (*catalogue(declaration), *unsupported_probes(self.operation, self.runner, declaration)):
            if probe.operations == (self.operation,) and (self.rules is None or probe.rule in self.rules):
                yield probe


def plain_claim(operation: str, declaration: Declaration) -> Claim:
    return Claim("CALL", "", plain(operation, declaration, declaration.dtypes[0]))


def claims(operation: str, declaration: Declaration) -> Iterator[Claim]:
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


def add_lacking(found: Violation, claim: Claim) -> Violation:
    """The violation with what the subject lacks, if it raises an error for it, as for what it does not support.

    A weight in float32 beside 16-bit numbers raises none: the framework may make the result float32.
    """
    lacks = raises(found) or (claim.name == WIDE_WEIGHTS and wrong_dtype(found.finding) is not None)
    return replace(found, lacks=(claim.name,)) if claim.name and lacks else found


def raises(found: Violation) -> bool:
    return found.finding.kind == "raised"


def says_no(finding: Finding) -> bool:
    """Whether the subject raised what is raised for a keyword that it does not know, or does not support."""
    return isinstance(finding.detail, Raised) and finding.detail.error in ("TypeError", "NotImplementedError")


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


def unsupported_probes(operation: str, runner: Runner, declaration: Declaration) -> Iterator[Probe]:
    """Cases with one thing each that the subject says it does not support, and has room for in its signature.

    Who takes any boolean mask gets one for masks of every kind, and cannot tell which kind it was.
    """
    said = runner.declaration
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
