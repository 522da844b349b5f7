"""What a check is, and every check: what a subject is called with, and what its answers are compared with.

A check prepares what all subjects share (exact results and bounds are computed once), and runs on one subject at a
time. It returns findings; a finding with a ratio above 1 is a violation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from conformance.bounds import bound, grows_with_scores, merged_bound, relaxed_bound, relaxed_merged_bound
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case, logsumexp_alone
from conformance.cases.declaration import Declaration
from conformance.cases.expectations import Planted, dense_meaning, empty_rows, expectation
from conformance.cases.features import supports_case
from conformance.checks.comparison import breaks, judge, no_others, raise_level, worst
from conformance.checks.findings import Finding, MaskDiffers, NotANumber, NotSpoiled, NotZero, Unrefused
from conformance.checks.independence import check_determinism, check_memory
from conformance.checks.levels import CORE, ROBUST, STRICT, higher
from conformance.checks.refusals import Refusal, refusal_failure
from conformance.checks.state import check_history, check_interleaved, check_repetitions, check_threads, prepare_all
from conformance.oracle.reference import oracle
from conformance.subjects.subject import Subject
from conformance.subjects.wrong_answers import WrongAnswer
from specification import Dense
from specification.dtypes import FLOATING

if TYPE_CHECKING:
    from conformance.sampling.draws import CaseStrategy

Findings = list[Finding]
Example = TypeVar("Example")
Shared = TypeVar("Shared")


def return_case(example: Case) -> Case:
    return example


def first(examples: tuple[Any, ...]) -> Case:
    """The case that the subject is asked, of two or more."""
    return examples[0]


def nothing(example: object) -> None:
    """Nothing is shared."""


@dataclass(frozen=True)
class Check(Generic[Example, Shared]):
    """One way to check a subject.

    name: in files. example: what a probe draws, a case or several. prepare: computes from it what all subjects share.
    run: calls a subject and compares its answers. case_of: the example's case. tells_size: whether a failure may say
    that the subject does not take the case's size. level: the lowest one that its violations have. compares_call: it
    compares the answers to one call with exact results. stands: its findings stand, whatever becomes of the case when
    it is asked alone: they are about no numbers, or compare calls of their own.
    """

    name: str
    prepare: Callable[[Example], Shared]
    run: Callable[[Subject, Example, Shared], Findings]
    case_of: Callable[[Any], Case] = return_case
    tells_size: bool = True
    level: str = CORE
    compares_call: bool = False
    stands: bool = False

    def raise_levels(self, findings: Findings, example: Example) -> Findings:
        """The findings of this check, with the level at least that the check and its case have."""
        return (
            raise_level(findings, higher(self.level, case_level(self.case_of(example))))
            if breaks(findings)
            else findings
        )


def case_level(case: Case | None) -> str:
    """ROBUST for a case with lengths of 0, or with NaN or infinity that can reach results."""
    if case is None:
        return CORE
    beyond = case.special or any(
        0 in array.shape or has_special_values(name, array) for name, array in case.inputs.items()
    )
    return ROBUST if beyond else CORE


def has_special_values(name: str, array: np.ndarray) -> bool:
    """Whether it holds NaN or infinity, but for -inf where that stands for what takes no part."""
    if str(array.dtype) not in FLOATING:
        return False
    wide = array.astype(float)
    takes_no_part = name in ("bias", "sinks") or name.startswith("logsumexps")
    return not bool((np.isfinite(wide) | (np.isneginf(wide) & takes_no_part)).all())


Bounds = dict[str, np.ndarray]

# --- agreement with the oracle ----------------------------------------------------------------------------------------


def truth_and_bounds(case: Case) -> tuple[Any, Any]:
    return oracle(case), bound(case)


def check_agreement(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    return judge(case, subject(case), *shared)


# --- masks ------------------------------------------------------------------------------------------------------------


def prepare_description(case: Case) -> tuple[Any, Any, Any]:
    return dense_meaning(case), *truth_and_bounds(case)


def check_description(subject: Subject, case: Case, shared: tuple[Any, Any, Any]) -> Findings:
    """The array is the description's meaning exactly, and attention by that array gives what the description gives."""
    meaning, truth, bounds = shared
    B, H, Q, K = meaning.shape
    array = subject.materialize(case.options.get("mask"), (B, H, Q, K))
    if array is None:
        array = meaning
    elif not stands_for(array, meaning):
        return [Finding("materialize", np.inf, detail=MaskDiffers())]
    return judge(case, subject(replace(case, options=case.options | {"mask": Dense(array)})), truth, bounds)


def stands_for(array: np.ndarray, meaning: np.ndarray) -> bool:
    """Whether it is a boolean array of rank 4 that, broadcast, holds the same; every size is 1 or the meaning's."""
    if array.dtype != bool or array.ndim != 4:
        return False
    fits = all(size in (1, whole) for size, whole in zip(array.shape, meaning.shape, strict=True))
    return fits and np.array_equal(np.broadcast_to(array, meaning.shape), meaning)


def check_shapes(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """A mask [Q, K], also as [1, 1, Q, K] and as [B, H, Q, K], a bare array and `Dense` of it: all mean the same."""
    array = np.asarray(case.options["mask"].array)
    whole = np.broadcast_to(array, (*case.inputs["query"].shape[:2], *array.shape))
    forms = (array, Dense(array), Dense(array[None, None]), Dense(whole))
    answers = (subject(replace(case, options=case.options | {"mask": form})) for form in forms)
    return [finding for answer in answers for finding in judge(case, answer, *shared)]


# --- special values ---------------------------------------------------------------------------------------------------


def prepare_planted(planted: Planted) -> tuple[Any, Any]:
    return expectation(planted, oracle(planted.clean)), bound(planted.clean)


def check_planted(subject: Subject, planted: Planted, shared: tuple[Any, Any]) -> Findings:
    """NaN where NaN is due, the clean case's answer elsewhere; a planted infinity may also show as an infinity."""
    answers = subject(planted.planted)
    if planted.infinite:
        truth = shared[0]
        shows = {name: np.isinf(a) & np.isnan(truth[name].high) for name, a in answers.items() if name in truth}
        answers = {name: np.where(shows.get(name, False), a.dtype.type(np.nan), a) for name, a in answers.items()}
    return judge(planted.planted, answers, *shared, lambda: relaxed_bound(planted.clean))


def check_empty_rows(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """Agreement, and exact zeros where a row allows nothing: for these no rounding is an excuse."""
    answers = subject(case)
    findings = judge(case, answers, *shared)
    if case.options.get("empty_rows", "zero") == "zero" and case.operation != "attention_logsumexp":
        names = ["output", *(n for n in (gradient_name("query"),) if n in answers)]
        shapeless = {finding.name for finding in findings if finding.kind != "value"}
        names = [name for name in names if name not in shapeless]
        findings += [zero(name, np.where(empty_rows(case)[..., None], answers[name], 0)) for name in names]
    return findings


def zero(name: str, array: np.ndarray) -> Finding:
    """The first number that is not 0."""
    wrong = np.argwhere(~(array == 0))
    if not len(wrong):
        return Finding(name, 0.0)
    index = tuple(map(int, wrong[0]))
    return Finding(name, np.inf, index, float(array[index]), 0.0)


def prepare_twin(twins: tuple[Any, ...]) -> tuple[Any, Any]:
    return oracle(twins[1]), twin_bound(twins, bound)


def twin_bound(twins: tuple[Any, ...], bound_of: Callable[[Case], Bounds | None]) -> Any:
    """The harmless case's bounds; at least those of the case itself where more digits of larger scores may be lost."""
    case, harmless = twins[:2]
    bounds = bound_of(harmless)
    if case.special or bounds is None:
        return bounds
    declared = [name for name in bounds if grows_with_scores(case, name)]
    own = (bound_of(case) if declared else None) or bounds
    return bounds | {name: np.fmax(bounds[name], own[name]) for name in declared}


def check_twin(subject: Subject, twins: tuple[Case, Case], shared: tuple[Any, Any]) -> Findings:
    """The first case must give what the second, harmless one gives, gradients included."""
    return judge(twins[0], subject(twins[0]), *shared, lambda: twin_bound(twins, relaxed_bound))


def prepare_towering(twins: tuple[Case, Case]) -> tuple[Any, Any]:
    """The harmless case's truth and bounds; but a kernel may take the weights once more as exp(score - log-sum-exp),
    whose error grows with the score: the values' gradient has the bound of the towering case itself."""
    truth, bounds = prepare_twin(twins)
    return truth, towering_bound(bounds, twins[0], bound)


def towering_bound(bounds: Bounds, case: Case, bound_of: Callable[[Case], Bounds | None]) -> Bounds:
    name = gradient_name("value")
    return bounds | ({name: (bound_of(case) or bounds)[name]} if name in bounds else {})


def check_towering(subject: Subject, twins: tuple[Case, Case], shared: tuple[Any, Any]) -> Findings:
    """Output and the values' gradient as in the harmless case; the others are as large as the scale, but no NaN."""
    truth, bounds = shared
    answers = subject(twins[0])
    names = ("output", gradient_name("value"))

    def relax_bounds() -> Bounds | None:
        harmless = twin_bound(twins, relaxed_bound)
        return None if harmless is None else towering_bound(harmless, twins[0], relaxed_bound)

    findings = judge(twins[0], answers, {name: truth[name] for name in names if name in truth}, bounds, relax_bounds)
    for name in (gradient_name(n) for n in ("query", "key", "value") if gradient_name(n) in truth):
        wrong = np.isnan(answers[name].astype(float)).any()
        findings.append(Finding(name, np.inf, detail=NotANumber()) if wrong else Finding(name, 0.0))
    return findings


# --- splits -----------------------------------------------------------------------------------------------------------


def parts_of(case: Case, cuts: tuple[int, ...]) -> list[Case]:
    """The case on each part of its keys."""

    def part(start: int, stop: int) -> Case:
        inputs = {n: a if n == "query" else a[:, :, start:stop] for n, a in case.inputs.items()}
        mask = Dense(case.options["mask"].array[..., start:stop])
        return replace(case, inputs=inputs, options=case.options | {"mask": mask})

    return [part(start, stop) for start, stop in pairwise((0, *cuts, case.inputs["key"].shape[2]))]


def prepare_split(split: tuple[Case, tuple[int, ...]]) -> tuple[Any, Any]:
    case, cuts = split
    truth = {"output": oracle(case)["output"], "logsumexp": oracle(logsumexp_alone(case))["output"]}
    return truth, merged_bound(parts_of(case, cuts))


def check_split(subject: Subject, split: tuple[Case, tuple[int, ...]], shared: tuple[Any, Any]) -> Findings:
    case, cuts = split
    named = {}
    for i, part in enumerate(parts_of(case, cuts)):
        named[f"outputs[{i}]"] = subject(part)["output"]
        named[f"logsumexps[{i}]"] = subject(logsumexp_alone(part))["output"]
    answers = subject(Case("merge_attention", case.dtype, named))
    relaxed = partial(relaxed_merged_bound, parts_of(case, cuts))
    return judge(replace(case, operation="merge_attention"), answers, *shared, relaxed)


# --- layer norm -------------------------------------------------------------------------------------------------------


def check_constant_rows(subject: Subject, case: Case, shared: None) -> Findings:
    """The bias exactly, which `strict` asks for; below that no more than of any other row, its bound."""
    bias = case.inputs.get("bias")
    expected = np.zeros_like(case.inputs["x"]) if bias is None else np.broadcast_to(bias, case.inputs["x"].shape)
    answers = subject(case)
    difference = answers["output"].astype(float) - expected.astype(case.inputs["x"].dtype).astype(float)
    finding = zero("output - bias", difference)
    if finding.ratio <= 1:
        return [finding]
    finding = replace(finding, detail=NotZero(finding.got))  # a difference: the index is not enough
    near = not breaks(judge(case, answers, *truth_and_bounds(case)))
    return [replace(finding, level=STRICT if near else CORE)]


def check_spoiled_rows(subject: Subject, example: Any, shared: tuple[Any, Any]) -> Findings:
    """Non-finite where it must be; the clean case's answer in all other rows."""
    dirty, clean, reached, rows = example
    truth, bounds = shared
    got = subject(dirty)["output"]
    wrong = got[reached & np.isfinite(got.astype(float))]
    first_number = NotSpoiled(tuple(map(float, wrong[:1])), str(got.dtype))
    finding = Finding("output of spoiled rows", np.inf if wrong.size else 0.0, detail=first_number)
    rest = {"output": np.where(rows, truth["output"].high, got.astype(float)).astype(got.dtype)}
    return [finding, *judge(clean, rest, truth, {"output": np.where(rows, np.inf, bounds["output"])})]


# --- choices ----------------------------------------------------------------------------------------------------------


def prepare_choices(example: tuple[Case, ...]) -> tuple[list[tuple[Any, Any]], Any, Any]:
    """Exact results and bounds of every choice that is right; those of the definition's last."""
    first_choice, *others = (truth_and_bounds(case) for case in example[1:])
    return (others, *first_choice)


def check_near_ties(subject: Subject, example: tuple[Case, ...], shared: tuple[Any, Any, Any]) -> Findings:
    """The results of one of several choices, of which rounding decides."""
    others, truth, bounds = shared
    answers = subject(example[0])
    choices = [(truth, bounds), *others]
    found = [judge(example[0], answers, exact, limits, no_others) for exact, limits in choices]
    return next((findings for findings in found if not breaks(findings)), found[0])


def check_ties(subject: Subject, example: tuple[Case, ...], shared: tuple[Any, Any, Any]) -> Findings:
    """As for near ties; `strict` asks for the first choice."""
    _, truth, bounds = shared
    findings = judge(example[0], subject(example[0]), truth, bounds, no_others)
    if not breaks(findings) or breaks(check_near_ties(subject, example, shared)):
        return findings
    return raise_level(findings, STRICT)


# --- answers at all ---------------------------------------------------------------------------------------------------


def check_answers(subject: Subject, case: Case, truth: dict[str, Any]) -> Findings:
    """Every result and gradient in its shape and dtype, whatever it holds."""
    anything = {name: np.full(exact.high.shape, np.inf) for name, exact in truth.items()}
    findings = judge(case, subject(case), truth, anything, no_others)
    return [replace(f, ratio=0.0) if f.kind == "value" else f for f in findings]


# --- refusals ---------------------------------------------------------------------------------------------------------


def check_refusal(subject: Subject, refusal: Refusal, shared: None) -> Findings:
    detail = refusal_failure(subject, refusal)
    return [Finding(refusal.title, 0.0 if detail is None else np.inf, detail=detail)]


def check_unsupported(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """A case beyond what the subject declares: refused, or answered rightly all the same, but not wrongly.

    A smaller case that is within it shows nothing of that.
    """
    if supports_case(case, subject.declaration):
        return []
    try:
        finding = worst(judge(case, subject(case), *shared))
    except WrongAnswer as error:
        finding = Finding(error.name, np.inf, detail=error.detail)
    except Exception as error:  # any error of the subject's is a refusal
        if error is not subject.scope.raised:
            raise
        return []
    return [replace(finding, detail=Unrefused(finding)) if finding.ratio > 1 else finding]


# --- calls in order ---------------------------------------------------------------------------------------------------

Steps = tuple[tuple[str, Any], ...]
"""Checks by name, each with its example, as replay files hold them."""


def prepare_steps(steps: Steps) -> list[Any]:
    return [CHECKS[name].prepare(example) for name, example in steps]


def check_steps(subject: Subject, steps: Steps, shared: list[Any]) -> Findings:
    """The findings of the last; those before it are only called, whatever comes of it."""
    for (name, example), own in zip(steps[:-1], shared[:-1], strict=True):
        try:
            CHECKS[name].run(subject, example, own)
        except Exception as error:
            if not isinstance(error, WrongAnswer) and error is not subject.scope.raised:
                raise
    name, example = steps[-1]
    return CHECKS[name].run(subject, example, shared[-1])


def last_case(steps: Steps) -> Case:
    name, example = steps[-1]
    return CHECKS[name].case_of(example)


# --- all of them ------------------------------------------------------------------------------------------------------


def planted_case(planted: Planted) -> Case:
    return planted.planted


def refused_case(refusal: Refusal) -> Case:
    return refusal.case


def asks_nothing(subject: Subject, example: object, shared: None) -> Findings:
    return []


AGREEMENT = Check("agreement", truth_and_bounds, check_agreement, compares_call=True)
DESCRIPTION = Check("description", prepare_description, check_description, compares_call=True)
SHAPES = Check("shapes", truth_and_bounds, check_shapes, compares_call=True)
PLANTED = Check("planted", prepare_planted, check_planted, planted_case, level=ROBUST, compares_call=True)
EMPTY_ROWS = Check("empty rows", truth_and_bounds, check_empty_rows, level=ROBUST, compares_call=True)
TWIN = Check("twin", prepare_twin, check_twin, first, level=ROBUST, compares_call=True)
TOWERING = Check("towering", prepare_towering, check_towering, first, level=ROBUST, compares_call=True)
DETERMINISM = Check("determinism", nothing, check_determinism, stands=True)
MEMORY = Check("memory", truth_and_bounds, check_memory, compares_call=True)
AFTER_OTHER_CALLS = Check("after other calls", prepare_all, check_history, first, tells_size=False)
REPETITIONS = Check("repetitions", nothing, check_repetitions, stands=True)
INTERLEAVED = Check("interleaved", prepare_all, check_interleaved, first, tells_size=False, stands=True)
THREADS = Check("threads", prepare_all, check_threads, first, tells_size=False, stands=True)
CALLS_IN_ORDER = Check("calls in order", prepare_steps, check_steps, last_case, tells_size=False, stands=True)
SPLIT = Check("split", prepare_split, check_split, first)
CONSTANT_ROWS = Check("constant rows", nothing, check_constant_rows)
SPOILED_ROWS = Check("spoiled rows", prepare_twin, check_spoiled_rows, first, level=ROBUST, compares_call=True)
TIES = Check("ties", prepare_choices, check_ties, first, compares_call=True)
NEAR_TIES = Check("near ties", prepare_choices, check_near_ties, first)
ANSWERS = Check("answers", oracle, check_answers, stands=True)
NOTHING = Check("nothing", nothing, asks_nothing, tells_size=False, stands=True)
REFUSAL = Check("refusal", nothing, check_refusal, refused_case, tells_size=False, level=ROBUST, stands=True)
UNSUPPORTED = Check("unsupported", truth_and_bounds, check_unsupported, tells_size=False, level=ROBUST, stands=True)

CHECKS: dict[str, Check[Any, Any]] = {
    check.name: check
    for check in (
        *(AGREEMENT, DESCRIPTION, SHAPES, PLANTED, EMPTY_ROWS, TWIN, TOWERING, DETERMINISM, MEMORY, AFTER_OTHER_CALLS),
        *(REPETITIONS, INTERLEAVED, THREADS, CALLS_IN_ORDER, SPLIT, CONSTANT_ROWS, SPOILED_ROWS, ANSWERS, NOTHING),
        *(TIES, NEAR_TIES, REFUSAL, UNSUPPORTED),
    )
}
"""By the names under which replay files and the frozen corpus know them."""


def takes_described_arrays(check: Check[Any, Any], declaration: Declaration) -> bool:
    """Whether the subject takes the arrays for which descriptions stand, where the check asks for them."""
    return check != DESCRIPTION or "dense" in declaration or "structured" not in declaration


# --- what tests a rule ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """What tests one rule.

    name: with the rule it makes the `id`, from which its cases are seeded: it never changes. operations: those that a
    subject must have. cases: draws what the check works on, a case or several. weight: its share of a run's cases,
    relative to other probes. of_memory: only the way in which arrays lie in memory makes its cases differ from others,
    so subjects whose arrays lie in one way alone are not asked. level: the lowest one that a violation of its rule has.
    title: what reports call it; its name unless given.
    """

    rule: str
    name: str
    operations: tuple[str, ...]
    cases: CaseStrategy
    check: Check[Any, Any] = AGREEMENT
    weight: float = 1.0
    of_memory: bool = False
    level: str = CORE
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)

    @property
    def id(self) -> str:
        return probe_id(self.rule, self.name)


def probe_id(rule: str, name: str) -> str:
    return f"{rule} {name}"


def make_probe(
    operation: str,
    rule: str,
    name: str,
    cases: CaseStrategy,
    weight: float = 1.0,
    level: str = CORE,
    check: Check[Any, Any] = AGREEMENT,
) -> Probe:
    """What tests a rule of one operation alone."""
    return Probe(rule, name, (operation,), cases, check, weight, level=level)
