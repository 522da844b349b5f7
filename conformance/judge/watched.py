"""Attention calls of a model, each judged on the model's own inputs.

The case, its error bound, its levels and its diagnosis are those of any case of `attention`. The rule is the one whose
feature the call cannot do without if it is to fail: the function is called again without each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name, is_gradient
from conformance.cases.case import Case, heads_and_keys, widths_of
from conformance.cases.declaration import Declaration, read_conventions, roundings
from conformance.cases.expectations import empty_rows
from conformance.cases.features import features_of
from conformance.checks.catalogue import AGREEMENT, Check, Example, Shared, has_special_values
from conformance.checks.comparison import breaks, fill_unpromised, judge, no_others, ratio, worst
from conformance.checks.findings import Finding, GradientLost, InputChanged
from conformance.checks.levels import CORE, ROBUST, STRICT, higher, rank
from conformance.checks.results import Results, Violation, keep_violation
from conformance.diagnosis.cause import Cause
from conformance.diagnosis.evidence import ask_fresh
from conformance.diagnosis.explanation import screen
from conformance.judge.attribution import check_agreement, find_rule, take_away_each
from conformance.judge.causes import explain_results
from conformance.judge.smallest_case import cut_down
from conformance.judge.trial import make_violation
from conformance.mistakes.catalogue import mistakes_of
from conformance.mistakes.mistake import Mistake
from conformance.oracle.reference import AFFORDABLE, ball_work, balls_available, oracle
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import change_dtype
from conformance.subjects.attention_calls import GIVEN, AttentionCall, CallSubject, case_of, mask_form
from conformance.subjects.subject import Subject
from specification.dtypes import HALF

TITLE = "a model's own call"
CONVENTIONS = ("empty_rows", "products", "shared_heads", "weights")
"""Those of `check` that a call may be judged under."""
PATIENCE = 100
"""By how much more work than a generated case a call may be, where its oracle is ball arithmetic: about a minute."""
BESIDE_NUMBERS = {"input_changed": "ATT-13", "gradient_lost": "ATT-12"}
"""Kinds of what is wrong beside the numbers of a call, and the rules that speak of it."""
Steadiness = Literal["memory", "right_again", "chance"]
"""How a call, made again, differs: in contiguous arrays it is right, it is right, or it gives another number."""
SECONDS = 5.0
"""Spent at most on making a failing call smaller."""
Explanations = dict[tuple[Any, ...], Cause]
"""Causes, by what failing calls are like: calls that fail alike have one in common."""


@dataclass(frozen=True)
class JudgedCall:
    """A call and what is found of it.

    case: None where it cannot be judged. worst: the finding to tell of. violation: its rule, with the smallest case
    like it that still fails. cause: what is behind it, where that was looked for. unsteady: how the same call, made
    again, differs; empty if it does not. wrong_rows: those of the output with a number beyond its bound, as (batch
    element, head, query), and `rows` of all. nans: NaN in the output where a number is due.
    remark: under which conventions the call conforms. reason: why it is not judged, or not in full.
    given: the form in which the function got the mask.
    beside: what else is wrong: where both rows that allow nothing and others are, each has a violation of its own.
    That of the lower level comes first; all but `findings` speaks of its rows alone.
    """

    layer: str
    case: Case | None
    findings: list[Finding] = field(default_factory=list)
    worst: Finding | None = None
    violation: Violation | None = None
    wrong_rows: tuple[tuple[int, ...], ...] = ()
    rows: int = 0
    nans: int = 0
    remark: str = ""
    reason: str = ""
    beside: JudgedCall | None = None
    given: str = ""
    cause: Cause | None = None
    unsteady: Steadiness | Literal[""] = ""

    @property
    def parts(self) -> tuple[JudgedCall, ...]:
        """Itself, and what else is wrong in it."""
        return (self,) if self.beside is None else (self, self.beside)

    @property
    def is_judged(self) -> bool:
        """Whether it was judged in full."""
        return not self.reason

    def conforms(self, profile: str) -> bool:
        """Whether it breaks nothing that the profile asks for."""
        return not breaks(self.findings, profile)


def judge_calls(calls: Iterable[AttentionCall], conventions: Mapping[str, str] | None = None) -> list[JudgedCall]:
    """Judge every call.

    Of several calls of one function that break the same rule in the same way, only the first is made smaller and
    diagnosed.

    Args:
        calls: of a model.
        conventions: intended departures, by names of `CONVENTIONS`.

    Raises:
        ValueError: Another convention, or an unknown value of one.
    """
    chosen = read_conventions(conventions or {})
    others = [name for name in chosen if name not in CONVENTIONS]
    if others:
        raise ValueError(f"conventions: got {others[0]!r}, expected one of {', '.join(CONVENTIONS)}")
    explanations: Explanations = {}
    return [judge_call(call, chosen, explanations) for call in calls]


def judge_call(call: AttentionCall, conventions: Mapping[str, str], explanations: Explanations) -> JudgedCall:
    """Judge one call. explanations: of calls before it; this one's is added."""
    try:
        case = case_of(call, conventions.get("empty_rows", "zero"))
    except (TypeError, ValueError) as error:
        return JudgedCall(call.layer, None, reason=str(error))
    case = replace(case, rounding=roundings(Declaration().add_conventions(**conventions), case.dtype))
    reason = explain_unaffordable(case)
    if reason:
        return JudgedCall(call.layer, None, reason=reason)
    case, reason = limit_gradients(call, case)
    subject = CallSubject(call, case, conventions)
    runner, shared = Runner(subject), AGREEMENT.prepare(case)
    findings = [*level_empty_rows(runner, case, runner(AGREEMENT, case, shared))]
    findings += [Finding(name, np.inf, detail=InputChanged()) for name in call.changed]
    findings += [Finding(gradient_name(name), np.inf, detail=GradientLost()) for name in GIVEN if call.detached]
    judged = JudgedCall(call.layer, case, findings, worst(findings), reason=reason, given=mask_form(call, case))
    judged = replace(judged, rows=int(np.prod(case.inputs["query"].shape[:3])))
    if not breaks(findings):
        return judged
    leading_findings, beside, where = findings, None, None
    output = [finding for finding in findings if finding.name == "output" and finding.ratio > 1]
    if output and rank(worst(findings).level) >= rank(worst(output).level):
        leading_findings = output  # gradients follow from it
    if [finding.name for finding in leading_findings] == [
        "output",
        "output",
    ]:  # of rows that allow nothing, and of the others
        beside = judge_call(call, {**conventions, "empty_rows": "any"}, explanations)
        leading_findings, where = leading_findings[:1], empty_rows(case)
    wrong_rows, nans = wrong_in_output(subject, *shared, where)
    remarks = remark(subject, findings)
    alike = AlikeRunner(subject, case, leading_findings)
    rule = rule_of_finding(runner, case, leading_findings)
    unsteady = "" if rule else compare_again(runner, case, leading_findings)
    rule = rule or (
        "ATT-13" if unsteady else find_rule(runner, replace(case), leading_findings, alike, alike.look_for_needs())
    )
    leading = worst(leading_findings)
    if rule == "ATT-8" and leading.kind == "value" and np.isfinite(leading.expected) and not np.isfinite(leading.got):
        rule = "ATT-10"
    violation = make_violation(rule, TITLE, AGREEMENT, runner, case, leading_findings)
    cause = None
    if not unsteady and not remarks and violation.finding.kind not in BESIDE_NUMBERS:
        cause = explain(violation, alike, explanations)
        rule = violation.rule
        if rule == "ATT-8" and cause.diagnosis is not None and cause.diagnosis.mistake.rule == "ATT-1":
            rule = "ATT-1"
        violation = replace(cause.lead, subject=violation.subject, rule=rule)
    violation = replace(violation, before=())
    judged = replace(judged, worst=leading, violation=violation, wrong_rows=wrong_rows, nans=nans, remark=remarks)
    judged = replace(judged, beside=beside, cause=cause, unsteady=unsteady)
    if beside is not None and beside.violation is not None and rank(beside.violation.level) < rank(violation.level):
        return replace(beside, case=case, findings=findings, beside=replace(judged, beside=None))
    return judged


class AlikeRunner(Runner):
    """Finds nothing in cases that may fail for another reason than the call: of a kind that the model never makes.

    needs: names of inputs and options that the function takes for granted, as a kernel that is always causal does.
    """

    def __init__(self, subject: CallSubject, case: Case, findings: list[Finding]) -> None:
        super().__init__(subject)
        self.case, self.findings = case, findings
        self.needs: frozenset[str] = frozenset({"empty_rows"} & case.options.keys())

    def __call__(self, check: Check[Example, Shared], example: Example, shared: Shared) -> list[Finding]:
        if check != AGREEMENT:
            return super().__call__(check, example, shared)
        if not self.needs <= given_names(check.case_of(example)):
            return []
        findings = super().__call__(check, example, shared)
        return findings if has_only_values(findings) or not has_only_values(self.findings) else []

    def look_for_needs(self) -> frozenset[str]:
        """Add what the function takes for granted to `needs`, and return what of it is not to blame.

        Without it the function gives the same as with it, or an error, and fails by another mistake.
        """
        again, own = replace(self.case), Runner(self.subject)
        output = output_of(self.subject, again)
        if output is None or not has_only_values(self.findings) or np.isnan(output).all():
            return frozenset()
        own_mistakes = self.explain(again)
        needs: set[str] = set()
        for take_away in take_away_each(again):
            plain = take_away(again)
            findings, left_out = check_agreement(own, plain), given_names(again) - given_names(plain)
            if not left_out or not breaks(findings):
                continue
            if not any(finding.kind != "value" for finding in findings):
                if not np.array_equal(output, output_of(self.subject, plain), equal_nan=True):
                    continue
                exact, other = oracle(again)["output"], oracle(plain)["output"].high
                if bool((ratio(other, exact, bound(again)["output"], again.dtype) <= 1).all()):
                    continue  # as with a default that is given: equal answers say nothing of it
                others = self.explain(plain)
                shared = {name for name in own_mistakes if name in others and name not in SHOWN_WITHOUT_A_MASK}
                if shared or (others and not own_mistakes):
                    continue
            needs |= left_out
        if not needs:
            return frozenset()
        self.needs |= needs
        rules = {mistake.rule for mistake in own_mistakes.values()}
        blamed = {name for name in needs if not rules.isdisjoint(RULES_OF.get(name, ()))}
        return frozenset(needs - blamed) if own_mistakes else frozenset()

    def explain(self, case: Case) -> dict[str, Mistake]:
        """Known mistakes that explain the answers to one case, by id."""
        evidence = ask_fresh(Runner(self.subject), case)
        if evidence is None or not evidence.wrong:
            return {}
        return {one.id: one for one in screen(mistakes_of("attention"), evidence)}


SHOWN_WITHOUT_A_MASK = ("masks.always-causal",)
"""Mistakes that a call shows without its mask, too: they do not tell whether the function needs one."""
RULES_OF = {
    "mask": ("MASK-1", "MASK-2", "MASK-3", "MASK-4", "MASK-5", "MASK-6"),
    "bias": ("ATT-3",),
    "sinks": ("ATT-5",),
    "softcap": ("ATT-2",),
    "scale": ("ATT-1",),
    "dropout_keep": ("ATT-11",),
    "dropout_rate": ("ATT-11",),
}
"""The rules whose mistakes are about an input or option."""


def given_names(case: Case) -> frozenset[str]:
    """Of inputs and options."""
    return frozenset({*case.inputs, *case.options})


def has_only_values(findings: Iterable[Finding]) -> bool:
    return all(finding.kind == "value" for finding in findings)


def output_of(subject: Subject, case: Case) -> Any:
    try:
        return subject(replace(case, cotangents={}))["output"]
    except Exception:  # no answer: another finding says so
        return None


def explain(violation: Violation, runner: Runner, explanations: Explanations) -> Cause:
    """Return the cause of a violation with its smallest case, or that of one like it."""
    case = violation.case
    options = {name: value for name, value in case.options.items() if name != "mask"}
    features = tuple(sorted(features_of(case))), tuple(options.items())
    finding = violation.finding
    kind = (runner.subject.code, violation.rule, violation.level, finding.name, finding.detail, case.dtype, features)
    if kind not in explanations:
        smaller = cut_down(violation, runner, SECONDS)
        results = Results()
        results.violations[smaller.key] = smaller
        results.kept[runner.name].add(keep_violation(violation))
        (explanations[kind], *_) = explain_results(results, runner, 0)
    return explanations[kind]


def explain_unaffordable(case: Case) -> str:
    """Why the exact result of a call in float64 is not computed; empty where it is."""
    if case.dtype != "float64" or case.special:
        return ""
    if not balls_available():
        return "float64 needs python-flint, which is not installed"
    (H, G, Q, K), widths = heads_and_keys(case), widths_of(case)
    sizes = {"B": case.inputs["query"].shape[0], "H": H, "G": G, "Q": Q, "K": K, "D": widths[0], "V": widths[-1]}
    work = ball_work("attention", gradients=bool(case.cotangents), **sizes)
    return "its exact result in float64 takes minutes: take a shorter text" if work > PATIENCE * AFFORDABLE else ""


def limit_gradients(call: AttentionCall, case: Case) -> tuple[Case, str]:
    """The case without cotangents that hold NaN or infinities, and why it is not judged in full."""
    if any(has_special_values(name, array) for name, array in case.inputs.items()):
        return case, "its inputs hold NaN or infinities"
    if case.special:
        plain = replace(case, cotangents={}, constants=(), special=False)
        return plain, "no gradients are judged: what comes back from the loss holds NaN or infinities"
    if not call.backward or call.detached:
        return case, ""
    if call.changed:
        return case, "no gradients are judged: the function changes its inputs"
    unused = call.cotangent is None or not bool(call.cotangent.any())
    return case, "no gradients are judged: the loss does not depend on the output" if unused else ""


def level_empty_rows(runner: Runner, case: Case, findings: list[Finding]) -> list[Finding]:
    """The findings; gradients that are wrong by rows that allow nothing alone are at the level of those."""
    rows = empty_rows(case)
    if not case.cotangents or not rows.any() or not breaks(findings, CORE):
        return findings
    cotangents = {name: np.where(rows[..., None], 0, array) for name, array in case.cotangents.items()}
    elsewhere = {f.name for f in check_agreement(runner, replace(case, cotangents=cotangents)) if f.ratio > 1}
    return [
        replace(f, level=higher(f.level, ROBUST))
        if is_gradient(f.name) and elsewhere.isdisjoint((f.name, "call"))
        else f
        for f in findings
    ]


def wrong_in_output(
    subject: CallSubject, truth: dict[str, Any], bounds: dict[str, np.ndarray], where: np.ndarray | None
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """The rows of the output beyond their bounds, and how many NaN stand for numbers. where: the rows to look at."""
    try:
        got = fill_unpromised(subject.case, {"output": subject(subject.case)["output"]}, truth)["output"].astype(float)
    except Exception:  # no answer: the finding says so
        return (), 0
    exact, looked_at = truth["output"], True if where is None else where[..., None]
    beyond = (ratio(got, exact, bounds["output"], subject.case.dtype) > 1) & looked_at
    rows = tuple(tuple(int(i) for i in row) for row in np.argwhere(beyond.any(axis=-1)))
    return rows, int(np.count_nonzero(np.isnan(got) & ~np.isnan(exact.high) & looked_at))


def rule_of_finding(runner: Runner, case: Case, findings: list[Finding]) -> str:
    """The rule that the worst finding alone tells, by its kind, its row or its digits; empty if it does not."""
    finding = worst(findings)
    if finding.kind != "value":
        return BESIDE_NUMBERS.get(finding.kind, "ATT-8")
    rows = empty_rows(case)
    if finding.name == "output" and finding.level != STRICT and rows[finding.index[:3]]:
        return "ATT-6"
    if is_gradient(finding.name) and finding.level == ROBUST and rows.any():
        return "ATT-6"
    beyond = any(has_special_values(name, array) for name, array in case.inputs.items())
    if beyond and np.isnan(finding.got) != np.isnan(finding.expected):
        return "MASK-7" if np.isnan(finding.got) else "ATT-10"
    in_float32 = change_dtype("float32", runner.declaration)(case)
    return "ATT-9" if in_float32 is not None and not breaks(check_agreement(runner, in_float32)) else ""


def compare_again(runner: Runner, case: Case, findings: list[Finding]) -> Steadiness | Literal[""]:
    """How the call, made again, gives another result than the first or than each other time; empty if it does not.

    Sums in another order differ too. The same mistake gives numbers that are nearer to each other than to the right
    one, and chance does not.
    """
    level = worst(findings).level
    again = check_agreement(runner, replace(case))
    if not breaks(again, level):
        lying = replace(case, memory=dict.fromkeys(GIVEN, "transposed"))
        return "memory" if breaks(check_agreement(runner, lying), level) else "right_again"
    finding = worst(again)
    if finding.kind != "value":
        return ""
    numbers = [float(runner.subject(replace(case))[finding.name][finding.index]) for _ in range(2)]
    apart = any(abs(number - finding.got) > abs(number - finding.expected) for number in numbers)
    return "chance" if apart else ""


ROUNDED: tuple[dict[str, str], ...] = (
    {"weights": "inputs"},
    {"products": "inputs"},
    {"weights": "inputs", "products": "inputs"},
    {"weights": "inputs", "products": "inputs", "shared_heads": "inputs"},
)


def remark(subject: CallSubject, findings: list[Finding]) -> str:
    """The conventions under which 16-bit arithmetic conforms after all; empty where none of them do."""
    case = subject.case
    if case.dtype not in HALF or not has_only_values(findings):
        return ""
    answers, truth = subject(case), oracle(case)
    for conventions in ROUNDED:
        declared = replace(case, rounding=roundings(Declaration().add_conventions(**conventions), case.dtype))
        if not breaks(judge(declared, answers, truth, bound(declared), no_others), STRICT):
            return "conforms under " + ",".join(f"{name}={value}" for name, value in conventions.items())
    return ""
