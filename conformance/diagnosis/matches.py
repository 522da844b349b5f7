"""Asking a subject the failing case once more, to compare its answers with what known mistakes would give."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name, results_of
from conformance.cases.case import ORDER, Case
from conformance.cases.expectations import Planted, empty_rows
from conformance.cases.features import within
from conformance.cases.with_logsumexp import logsumexp_alone, output_alone
from conformance.checks.catalogue import AGREEMENT, SPOILED_ROWS, TOWERING, TWIN
from conformance.checks.check import Check, nothing
from conformance.checks.comparison import Finding, with_truth_in_padding
from conformance.checks.results import WRONG_IN
from conformance.diagnosis import alibi, attention, backward, blocks, extents, multi_head
from conformance.diagnosis.larger import (
    alike,
    below_0,
    far_above,
    fewer_keys,
    larger_cases,
    masked_otherwise,
    ordinary,
    rescaled,
    unmasked,
    wider_heads,
)
from conformance.diagnosis.matching import BACKWARD_ONLY, Failing, Mistake, backwards, kind, matching, told_from
from conformance.diagnosis.operation_mistakes import MEASURED, MISTAKES
from conformance.diagnosis.operation_row_sums import ROW_SUMS
from conformance.diagnosis.precision import AT_MOST, excused, scale_off, variance_off
from conformance.diagnosis.precision import MISTAKES as ROUNDED
from conformance.diagnosis.row_sums import added_in_16_bits
from conformance.diagnosis.steps import added_up
from conformance.oracle.reference import oracle
from conformance.runner.dimensions import layout_of
from conformance.runner.shrinking import aligned, in_dtype
from conformance.subjects.subject import Subject
from specification.dtypes import HALF

GRADIENT = gradient_name("")
FEW = 2
"""Numbers that any mistake may give."""
OF_SCALE = "the scale is "
"""How names of mistakes in the scale begin."""
WIDE_ENOUGH = 4
"""Width of heads from which on 1 / sqrt(D) is no number close to 1."""
EXTENT = re.compile(r"\bfirst (\d+)\b")
"""How many of something a mistake speaks of."""
IN_16_BITS = re.compile(r"\bb?float16\b")
SECONDS = 2.0
"""Spent at most on trying mistakes on one case, of the processor's time: names do not depend on the machine's load."""


def check_diagnosis(
    subject: Subject, example: tuple[Check[Any, Any], Any, Finding], shared: None, doubted: bool = False
) -> list[Finding]:
    """One finding for each mistake that matches; example: the violation's check, example and finding.

    None where the answers are now right: asked in this way, or this time, the subject makes no mistake. doubted: names
    of mistakes must explain larger cases like it, too, of which one at least fails.
    """
    check, failing, finding = example
    if isinstance(failing, Planted):  # a mistake in numbers says more than what becomes of NaN
        plain = check_diagnosis(subject, (check, failing.clean, finding), shared)
        if plain or failing_of(subject, failing.clean, failing.clean).wrong:
            return plain
        dirty = check_diagnosis(subject, (AGREEMENT, failing.planted, finding), shared)
        return [*dirty, *map(named, of_planted(failing, finding))]
    parts = failing if isinstance(failing, tuple) else (failing,)
    asked, judged = parts[0], parts[1] if check in (TWIN, TOWERING) else parts[0]
    if check == SPOILED_ROWS:  # what is wrong in the other rows is wrong without them, too
        asked = judged = parts[1]
    if not isinstance(asked, Case) or finding.name not in (*results_of(asked), *gradients(asked)):
        return []
    if asked.special and check == TWIN and not judged.special:
        return check_diagnosis(subject, (AGREEMENT, judged, finding), shared)
    given = failing_of(subject, asked, judged)
    if not given.wrong:
        return []
    name = "output" if "output" in given.wrong else finding.name if finding.name in given.wrong else given.wrong[0]
    if any(found.message for found in given.findings):
        return []
    until = time.thread_time() + SECONDS
    if asked.special and multiplied(given, name):
        finite = made_finite(asked)
        wrong = failing_of(subject, finite, finite).wrong
        return check_diagnosis(subject, (AGREEMENT, finite, finding), shared) if wrong else [named(MULTIPLIED)]
    if asked.special:  # too little to go by, unless other violations have the same names
        return [named(line) for line in names_of(subject, given, name, until)]
    if asked.with_logsumexp:
        names = list(of_either(subject, given, name, until))
        return [named(line) for line in (*names, *wrong_in(given))]
    names = []
    if asked is not judged:  # a mistake need not be the same for both: a score of 0 stands apart only from far ones
        names = list(names_of(subject, Failing(asked, given.got, given.truth, given.bounds), name, until))
    names += [other for other in names_of(subject, given, name, until) if other not in names]
    if asked.operation in MEASURED:
        names = confirmed(subject, asked, name, names)
    names = of_twins(subject, asked, of_wider_heads(subject, asked, name, names))
    unsure = set(names) if doubted else doubtful(given, name, names)
    if len(names) > 1 or unsure or (names and name != "output"):
        names = told_apart(subject, asked, name, names, unsure, seen=not doubted)
    names = names or of_larger(subject, asked, name) or list(islice(moved(subject, given, name), 1))
    if not names:
        names = list(islice(chain(vague(given, name), hints(subject, given, name)), 1))
    return [named(line) for line in (*names, *wrong_in(given))]


def failing_of(subject: Subject, asked: Case, judged: Case) -> Failing:
    """The answers to one case, as those of another that it must be like."""
    got, truth = subject(asked), oracle(judged)
    return Failing(judged, with_truth_in_padding(judged, got, truth), truth, bound(judged))


def names_of(
    subject: Subject, failing: Failing, name: str, until: float, kinds: Collection[str] | None = None
) -> Iterator[str]:
    """Names of mistakes, also of those that the subject shows inside."""
    yield from (line for line in known(failing, name, until, kinds) if possible(line, subject, failing.case))
    yield from inside(subject, failing.case)


def possible(line: str, subject: Subject, case: Case) -> bool:
    """Whether the subject may have the formats of a name. TF32 is one of GPUs."""
    on_cpu = "cpu" in str(getattr(subject.framework, "device", "cpu")).lower()
    return of_judged_dtypes(line, subject, case) and not ("TF32" in line and on_cpu)


def of_judged_dtypes(line: str, subject: Subject, case: Case) -> bool:
    """Whether each 16-bit dtype of a name is one of the judged ones; where none is, it may be the arithmetic's."""
    judged = {*subject.declaration.dtypes, *(str(array.dtype) for array in case.inputs.values())}
    return not judged & {*HALF} or judged.issuperset(IN_16_BITS.findall(line))


def inside(subject: Subject, case: Case) -> list[str]:
    """Mistakes of the attention inside multi-head attention, asked between identities."""
    found = multi_head.seen_inside(subject, case) if case.operation == "multi_head_attention" else None
    return [] if found is None else of_other(*found)


def of_other(subject: Subject, case: Case, name: str = "output") -> list[str]:
    """Mistakes that the subject shows on another case; none where it does not answer that."""
    if answered(subject, case) is None:
        return []
    lines = check_diagnosis(subject, (AGREEMENT, case, Finding(name, np.inf)), None)
    return [line.message for line in lines if not line.message.startswith((WRONG_IN, AT_MOST))]


def of_either(subject: Subject, failing: Failing, name: str, until: float) -> Iterator[str]:
    """Mistakes of a subject that returns output and log-sum-exp: in one of them, or in the sum of their gradients."""
    if name == "logsumexp":
        case = replace(logsumexp_alone(failing.case), cotangents={})
        got, truth, bounds = failing.got[name], failing.truth[name], failing.bounds[name]
        half = Failing(case, {"output": got}, {"output": truth}, {"output": bounds})
        names = list(known(half, "output", until)) or list(vague(half, "output"))
        yield from (line.replace("output is", "logsumexp is") for line in names)
    elif name != "output":
        yield from matching(failing, name, backward.OF_LOGSUMEXP, until)
    if name != "logsumexp":
        yield from of_other(subject, output_alone(failing.case), name)


def of_larger(subject: Subject, case: Case, name: str) -> list[str]:
    """Mistakes in a gradient for which the case has too few numbers; those that two larger ones like it show.

    Or one, where only one is wrong.
    """
    found: list[str] = []
    for larger in larger_cases(case) if name.startswith("gradient of ") else ():
        failing = answered(subject, larger)
        if failing is not None and name == next(iter(failing.wrong), ""):
            kinds = set(map(kind, found)) or None
            names = list(names_of(subject, failing, name, time.thread_time() + SECONDS / 2, kinds))
            if found:
                return [one for one in found if kind(one) in set(map(kind, names))]
            found = names
    return found


def moved(subject: Subject, failing: Failing, name: str) -> Iterator[str]:
    """Results that stand in another place, in the case or, where it has too few of them, in a larger one like it."""
    with np.errstate(all="ignore"):
        yield from extents.displaced(failing, name)
        for case in larger_cases(failing.case):
            larger = answered(subject, case)
            if larger is not None and name in larger.wrong:
                yield from extents.displaced(larger, name)


def known(failing: Failing, name: str, until: float, kinds: Collection[str] | None = None) -> Iterator[str]:
    """Names of mistakes, the likeliest first. kinds: of those that may take long to try; None for all."""
    case, of_attention = failing.case, failing.case.operation.startswith("attention")
    with np.errstate(all="ignore"):
        mistakes: Iterator[Mistake]
        several = name != "output" and len(failing.wrong) > 1  # a mistake that explains all of them comes first
        alone = name != "output" and not several
        if not several:
            yield from extents.regions(failing, name)
        if of_attention and case.cotangents and name != "output":
            yield from matching(failing, name, backward.OF_LARGE_SCORES, until, kinds)
        if alone:
            yield from backward.multiples(failing, name)
        if not of_attention:
            if case.operation == "multi_head_attention":
                yield from multi_head.wrongly_added(failing, name)
            mistakes = recorded(failing, name)
        elif name == "output":
            mistakes = chain(*attention_mistakes(failing))
        else:
            if case.cotangents:
                yield from backward.wrongly_added(failing, name)
                yield from backward.sink_gradients(failing, name)
            mistakes = gradient_mistakes(failing, name)
        yield from matching(failing, name, mistakes, until, kinds)
        if several:
            yield from extents.regions(failing, name)
        if not alone:
            yield from backward.multiples(failing, name)


def attention_mistakes(failing: Failing) -> Iterator[Any]:
    """From those that are found at once to those that take long."""
    yield attention.FILLS
    yield [attention.UNDIVIDED, attention.LAYOUT]
    yield alibi.MISTAKES
    yield blocks.SINKS
    yield extents.extents(failing)
    yield attention.STEP_MISTAKES
    yield blocks.MISTAKES
    yield extents.more_keys(failing)
    yield ROUNDED
    yield blocks.merges(failing)


def gradient_mistakes(failing: Failing, name: str) -> Iterator[Mistake]:
    if failing.case.cotangents:
        yield from backward.added_narrowly(failing, name)
        yield from backward.bias_mistakes(failing, name)
        yield from backward.of_some_rows(failing, name)
    yield attention.LAYOUT
    yield from backward.BACKWARD_MISTAKES


def recorded(failing: Failing, name: str) -> Iterator[Mistake]:
    """Those of the operation. Of a gradient first those with numbers, which are found sooner."""
    operation = failing.case.operation
    mistakes = MISTAKES.get(operation, ())
    measured = MEASURED[operation](failing, name) if operation in MEASURED else iter(())
    if name.startswith(GRADIENT):
        yield from chain(measured, mistakes, map(backwards, mistakes))
    else:
        yield from chain(mistakes, measured)


def vague(failing: Failing, name: str) -> Iterator[str]:
    """Where nothing that is known at all matches: a number that is off."""
    if name == "output":
        with np.errstate(all="ignore"):
            yield from scale_off(failing)


def hints(subject: Subject, failing: Failing, name: str) -> Iterator[str]:
    """What the errors may come from. Whether float32 is right costs a call: it is asked last."""
    case, row_sums = failing.case, ROW_SUMS.get(failing.case.operation)
    yield from variance_off(failing)
    found = [line for line in excused(failing) if possible(line, subject, case)][:1]
    if found and (case.dtype != "float64" or right_in_float32(subject, case)):
        yield from found
    narrow = name != "output" and row_sums is not None and added_in_16_bits(failing, row_sums(failing))
    if narrow and right_in_float32(subject, case):
        yield f"{AT_MOST} gradients added up over rows in {case.dtype} would make them"
    yield from extents.round_regions(failing, name)


def right_in_float32(subject: Subject, case: Case) -> bool:
    """Whether the same numbers in float32 are answered rightly: what is wrong there, too, is no float32 arithmetic."""
    failing = answered(subject, in_dtype("float32", subject.declaration)(case))
    return failing is None or not failing.wrong


def confirmed(subject: Subject, case: Case, name: str, names: list[str]) -> list[str]:
    """Those of the names that explain the answers to other numbers in the same sizes, too, where these are wrong.

    Where the case is too small to tell mistakes apart, the name may be that of a larger one like it.
    """
    end = time.thread_time() + 3 * SECONDS
    for other in alike(case):
        failing = answered(subject, other) if time.thread_time() < end else None
        if failing is None or name not in failing.wrong:
            continue
        there = list(known(failing, name, time.thread_time() + SECONDS))
        both = [one for one in names if kind(one) in set(map(kind, there))]
        if names and not both and layout_of(other).sizes == layout_of(case).sizes:
            return []
        names = both or there or names
    return names


def doubtful(failing: Failing, name: str, names: list[str]) -> set[str]:
    """Those of the names that other cases must confirm: of a gradient of few numbers, as many mistakes give it.

    Of an output that is wrong in NaN, infinity and 0 alone those of masks, which may leave a row nothing. Of one that
    is wrong in rows that allow nothing alone all that do not speak of these. Of few wrong numbers those of a place.
    """
    if failing.case.operation != "attention":
        return set()
    if name != "output":
        return set(names) if failing.right(name).size <= FEW else set()
    off = failing.off(name)
    if not (off & ~empty_rows(failing.case)[..., None]).any():
        return {one for one in names if not one.startswith(attention.EMPTY)}
    got = failing.answer(name)[off]
    few = {one for one in names if EXTENT.search(one)} if np.count_nonzero(off) <= FEW else set()
    return few if (np.isfinite(got) & (got != 0)).any() else few | set(names) & attention.MASK_CHANGES.keys()


def of_wider_heads(subject: Subject, case: Case, name: str, names: list[str]) -> list[str]:
    """The names without those of scales that wider heads refute: in narrow ones many a scale is 1."""
    narrow = case.operation == "attention" and case.inputs["query"].shape[-1] < WIDE_ENOUGH and name == "output"
    if not narrow or not any(one.startswith(OF_SCALE) for one in names):
        return names
    failing = answered(subject, wider_heads(case))
    if failing is None:
        return names
    there = set(map(kind, names_of(subject, failing, name, time.thread_time() + SECONDS / 2)))
    there = there if name in failing.wrong else set()
    return [one for one in names if not one.startswith(OF_SCALE) or kind(one) in there]


TWINS = (
    (attention.UNSUBTRACTED, attention.TOO_HIGH, far_above),
    (attention.IGNORED, attention.OF_ZERO, rescaled),
    (attention.ROOT, attention.UNSUBTRACTED, below_0),
    (attention.ROOT, attention.BEFORE_SCALE, below_0),
    *((name, attention.BY_INFINITY.name, unmasked) for name, *_ in attention.OVER_AXES),
)
"""Two names that are the same on some cases, and a change of these: the first is wrong then, and the second right."""


def of_twins(subject: Subject, case: Case, names: list[str]) -> list[str]:
    """The names with one of each two that the case does not tell apart."""
    for one, other, change in TWINS:
        changed = answered(subject, change(case)) if {one, other}.issubset(names) else None
        if changed is not None:
            names = [name for name in names if name != (other if changed.wrong else one)]
    return names


def told_apart(
    subject: Subject, case: Case, name: str, names: list[str], doubted: set[str], seen: bool = True
) -> list[str]:
    """Those of the names that explain other cases like it, too.

    Where the subject fails there, a mistake must explain that; where the answers to ordinary numbers in the same sizes
    are right, it must not show there, and neither where those of half the keys are. A mistake of every call shows
    without a mask, or with one, too. doubted: names that are not kept where no other is; they must not show in larger
    cases either that are answered rightly. seen: whether they may stand although no such case fails.
    """

    def kept(fewer: list[str]) -> list[str]:
        return fewer or [one for one in names if one not in doubted]

    failing = answered(subject, ordinary(case))
    if failing is not None and name == "output" and name not in failing.wrong:
        names = kept([one for one in names if one not in shown(failing, name, names)])
    failing = answered(subject, fewer_keys(case)) if name != "output" else None
    if failing is not None and name in failing.truth and name not in failing.wrong:  # they would show there, too
        names = [one for one in names if one not in shown(failing, name, names)]
    of_every_call = any(one.removeprefix(BACKWARD_ONLY).startswith(attention.EVERY_CALL) for one in names)
    unlike = masked_otherwise(case) if of_every_call else None
    others = [] if unlike is None else [one for one in larger_cases(unlike) if within(one, subject.declaration)][:3]
    # Rounded down to 0, a length leaves nothing: where all that is wrong is NaN, only a wrong number shows it.
    of_blocks = {one for one in doubted if "to whole blocks" in one}
    for again in chain(others, larger_cases(case)):
        failing = answered(subject, again) if len(names) > 1 or doubted & set(names) else None
        if failing is None:
            continue
        if name in failing.wrong:
            until, kinds = time.thread_time() + SECONDS / 2, set(map(kind, names))
            found = list(names_of(subject, failing, name, until, kinds))
            there, seen = set(map(kind, found)), True
            if not doubtful(failing, name, found) & attention.MASK_CHANGES.keys():
                of_blocks -= {one for one in of_blocks if kind(one) in there}
            names = kept([one for one in names if kind(one) in there])
        elif doubted or any(again is one for one in others):
            names = kept([one for one in names if one not in shown(failing, name, names)])
    return [one for one in names if one not in of_blocks] if seen else []


def answered(subject: Subject, case: Case | None) -> Failing | None:
    """None where there is no case, or the subject does not take it."""
    case = aligned(case, subject.declaration)
    if case is None or not within(case, subject.declaration):
        return None
    try:
        failing = failing_of(subject, case, case)
    except Exception:  # whatever it raises: it was not asked to take this one
        return None
    return None if any(found.message for found in failing.findings) else failing


def shown(failing: Failing, name: str, names: list[str]) -> set[str]:
    """Of the names of mistakes in a result of attention, those that would have given wrong answers here."""
    found = set()
    with np.errstate(all="ignore"):
        for mistake in gradient_mistakes(failing, name) if name != "output" else ordinary_mistakes(failing):
            answers = mistake.answers(failing) if mistake.name in names else None
            if answers is not None and told_from(failing.right(name), answers[0][name], answers[1][name]):
                found.add(mistake.name)
        if told_from(failing.right(name), np.zeros(()) * failing.right(name), failing.bounds[name]):
            found |= {one for one in names if one.startswith(f"{name} is missing") or " times what it must be" in one}
    return found


def ordinary_mistakes(failing: Failing) -> Iterator[Mistake]:
    """Those in the output that ordinary numbers show."""
    mistakes = attention.STEP_MISTAKES, blocks.MISTAKES, attention.FILLS, blocks.merges(failing)
    return chain([attention.LAYOUT], *mistakes)


def gradients(case: Case) -> list[str]:
    return [gradient_name(name) for name in case.inputs] if case.cotangents else []


def named(name: str) -> Finding:
    return Finding("diagnosis", 0.0, message=name)


def wrong_in(failing: Failing) -> Iterator[str]:
    """One line: which of several results are wrong. That a gradient is right tells nothing where it is 0 everywhere."""
    findings = failing.findings
    every = {finding.name for finding in findings if finding.name.startswith(GRADIENT)}
    wrong = list(dict.fromkeys(finding.name for finding in findings if finding.ratio > 1))
    right = [finding.name for finding in findings if finding.ratio <= 1 and finding.name not in wrong]
    telling = [name for name in right if not name.startswith(GRADIENT) or failing.right(name).any()]
    if len({finding.name for finding in findings}) < 2 or not wrong:
        return
    only = " only" if len(wrong) == 1 and set(wrong) != every and telling == right else ""
    right = telling
    alone = len(right) == 1 or set(right) == every
    conform = f"; {listed(right, every)} conform{'s' * alone}" if right else ""
    yield f"{WRONG_IN}{listed(wrong, every)}{only}{conform}"


def listed(names: list[str], every: set[str]) -> str:
    """In words: "output and the gradients of query and value". every: all gradients that there are."""
    results = [name for name in names if not name.startswith(GRADIENT)]
    of = [name.removeprefix(GRADIENT) for name in names if name.startswith(GRADIENT)]
    of.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    if of and len(of) == len(every):
        results.append("every gradient")
    elif len(of) > 1:
        results.append(f"the gradients of {', '.join(of[:-1])} and {of[-1]}")
    else:
        results += [GRADIENT + name for name in of]
    return " and ".join(filter(None, [", ".join(results[:-1]), results[-1]]))


MULTIPLIED = "what stands behind a mask is multiplied by a weight of 0, and 0 * NaN and 0 * inf are NaN"
REACHING = "NaN reaches what does not attend to it"
WEIGHTED = "an infinity that stands behind a mask gets a weight other than 0"
SWALLOWED = "NaN is swallowed"
BY_NAN = (MULTIPLIED, REACHING, WEIGHTED, SWALLOWED)
"""What NaN and infinity show by themselves."""


def made_finite(case: Case) -> Case:
    """The case with numbers in place of NaN and infinities in query, key and value; it is special without these."""
    given = {name: array for name, array in case.inputs.items() if name in ("query", "key", "value")}
    numbers = {name: np.where(np.isfinite(array.astype(float)), array, 1) for name, array in given.items()}
    inputs = case.inputs | {name: numbers[name].astype(given[name].dtype) for name in given}
    return replace(case, inputs=inputs, special=case.special and not given)


def multiplied(failing: Failing, name: str) -> bool:
    """Whether all that is wrong is NaN, and the right weights of attention give it, too: 0 * NaN is NaN.

    Any mistake in numbers gives the same NaN, so ask for the numbers first.
    """
    if not failing.case.operation.startswith("attention"):
        return False
    with np.errstate(all="ignore"):
        plain = failing.forward.output if name == "output" else added_up(failing.parts, failing.case).get(name)
    off = failing.off(name)
    return plain is not None and bool(np.isnan(failing.answer(name))[off].all() and np.isnan(plain)[off].all())


def of_planted(planted: Planted, finding: Finding) -> list[str]:
    """What NaN and infinity show by themselves; nothing where numbers are compared."""
    if np.isfinite(finding.expected) and not np.isfinite(finding.got):
        if planted.allowed.all():
            return [REACHING]
        return [WEIGHTED if np.isinf(finding.got) else MULTIPLIED]
    return [SWALLOWED] if np.isnan(finding.expected) else []


def case_of(example: tuple[Check[Any, Any], Any, Finding]) -> Case:
    """The violation's case, which decides the level of a call that fails while it is explained."""
    check, failing, _ = example
    return check.case_of(failing)


DIAGNOSIS = Check("diagnosis", nothing, check_diagnosis, case_of, tells_size=False)
DOUBTING = Check(
    "diagnosis by larger cases", nothing, partial(check_diagnosis, doubted=True), case_of, tells_size=False
)
