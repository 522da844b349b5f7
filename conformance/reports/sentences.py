"""Sentences about findings and violations. They are written here alone, and no part of the judge reads one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from conformance.cases.case import numpy_dtype
from conformance.cases.declaration import DIMENSIONS, OTHER_LAYOUT
from conformance.checks import findings as kinds
from conformance.checks.findings import Finding, Phase
from conformance.checks.results import Violation
from conformance.reports.threshold_sentences import describe_thresholds
from conformance.runner.process_lifetime import describe_end
from conformance.subjects import wrong_answers
from conformance.subjects.attention_calls import AXES
from conformance.subjects.wrong_answers import Detail


def describe_finding(finding: Finding) -> str:
    if finding.detail is not None:
        return f"{finding.name}: {describe_detail(finding.detail)}"
    off = (
        f"{finding.ratio:.3g} bounds of {finding.bound:.3g}" if np.isfinite(finding.ratio) else "which no bound allows"
    )
    return f"{finding.name}{list(finding.index)}: got {finding.got!r}, expected {finding.expected!r}, {off}"


def describe_violation(violation: Violation) -> str:
    """Return rule, numbers, where it was raised, smallest case, sizes and largest errors, a line each."""
    finding = violation.finding
    raised = [f"raised at {finding.raised_at}"] if finding.raised_at else []
    case = [] if violation.case is None else [f"smallest case: {violation.case}"]
    sizes = [describe_thresholds(violation.threshold)] if violation.threshold else []
    told = [f"{violation.rule}: {describe_finding(finding)}", *raised, *case, *sizes]
    return "\n  ".join([*told, *map(describe_worst, violation.larger)])


def describe_worst(worst: Violation) -> str:
    return f"worst in {worst.case.dtype}: {describe_finding(worst.finding)}"


def levels_line(levels: Mapping[str, Sequence[str]]) -> str:
    """Name by level what is violated: "Violated at core: nothing; at robust: MASK-7; at strict: nothing more".

    A level above one that is violated may have nothing more to show, and is not kept for that.
    """
    told, nothing = [], "nothing"
    for level, rules in levels.items():
        told.append(f"at {level}: {', '.join(rules) or nothing}")
        nothing = "nothing more" if rules else nothing
    return f"Violated {'; '.join(told)}"


# --- what is wrong that is no number ----------------------------------------------------------------------------------


def describe_detail(detail: Detail) -> str:
    """Return what is wrong, without the name of the result."""
    match detail:
        case wrong_answers.Missing():
            return "no such result"
        case wrong_answers.Returned(got, names, array):
            return f"returned {got}, expected {array or ' and '.join(names)}"
        case wrong_answers.OtherType(got, array, count):
            return f"is {got}, expected {array or f'{count} arrays'}"
        case wrong_answers.ReturnedGradients():
            return describe_gradients(detail)
        case wrong_answers.Materialized(got):
            return f"materialize gave {got}"
        case wrong_answers.OtherDevice(device):
            return f"lies on {device}, and the inputs do not"
        case wrong_answers.DtypeOrShape():
            return describe_array(detail)
        case kinds.Raised(error, text, threads, size, memory):
            when = f" {describe_phase(Phase('threads', count=threads))}" if threads else ""
            room = f" (its process may take {memory:.1f} GB; --memory-limit)" if memory else ""
            return f"raised {error}{when}: {text}{room}{describe_size(size)}"
        case kinds.TookTooLong(seconds, ended, size, crowding, ranks):
            wall = f" ({seconds * crowding:.0f} s by the clock of a busy machine)" if crowding > 1 else ""
            which = f" on {describe_ranks(ranks)}, for which the others waited" if ranks else ""
            end = ", and its process was ended" * ended
            return f"took longer than {seconds:g} s{wall}{which}{end}{describe_size(size)}"
        case kinds.ProcessEnded(code, size, rank):
            return ("" if rank is None else f"on rank {rank} ") + describe_end(code) + describe_size(size)
        case wrong_answers.RanksDiffer(rank):
            return f"is another one on rank {rank} than on rank 0, and must be that of the whole on each, bit for bit"
        case kinds.Printed(text):
            return f"prints to standard output: {text!r}"
        case kinds.MaskDiffers():
            return "differs from the predicate"
        case kinds.NotANumber():
            return "is NaN"
        case kinds.NotZero(got_number):
            return f"holds {got_number}, expected 0"
        case kinds.NotSpoiled(numbers, dtype):
            return f"holds {np.array(numbers).astype(numpy_dtype(dtype))}"
        case kinds.Accepted(due, answer):
            return f"accepted, expected {due or 'an error'}" + (f": {describe_detail(answer)}" if answer else "")
        case kinds.WrongError(error, due, text):
            return f"raised {error}, expected {due or 'an error'}: {text}"
        case kinds.ErrorWithoutText(error):
            return f"raised {error} without a message"
        case kinds.Unrefused(found):
            return f"neither supported nor refused, and wrong: {describe_finding(found)}"
        case kinds.WrongInPhase(phase, wrong):
            told = describe_finding(wrong) if isinstance(wrong, Finding) else describe_detail(wrong)
            return f"wrong {describe_phase(phase)}: {told}"
        case kinds.NotDeterministic(call):
            return "differs between two equal calls" if call is None else f"differs in call {call} of equal calls"
        case kinds.NoGradientsAgain():
            return "has no gradients when the same is asked again"
        case kinds.Unreadable():
            return "cannot be read any more after the call"
        case kinds.InputChanged():
            return "was changed by the call"
        case kinds.ResultChanged():
            return "was changed by a later call"
        case kinds.SharedMemory(role, other):
            return f"shares memory with {'the' if role == 'cotangent' else role} {other}"
        case kinds.GradientLost():
            return "is missing: the output has no gradient"
        case kinds.NotReproducible(fresh, found):
            alone = "depends on earlier calls, or is not reproducible: right in a fresh process"
            again = "is not reproducible: right when the same is asked again"
            return f"{alone if fresh else again}; it was {describe_finding(found)}"
        case kinds.DependsOnCalls(before, more, found):
            others = f" and {more} calls before that" if more else ""
            alone = f"right in a fresh process, wrong after {before}{others}"
            return f"depends on earlier calls: {alone}: {describe_finding(found)}"
        case kinds.SurplusStep():
            return "is a step that the definition does not take"
        case kinds.OtherSource(own, right, returned):
            verb = "is" if returned else "is given"
            return f"{verb} {describe_source(own)}, where the definition has {describe_source(right)}"
        case kinds.ChangedLater():
            return "is changed after it was given"
        case kinds.TimesTaken(count):
            return f"is taken {count} times"
        case kinds.SurplusTensor():
            return "the definition has no such tensor"
        case kinds.KnownMistake(name):
            return name
    raise TypeError(f"no sentence for {detail!r}")


def describe_gradients(detail: wrong_answers.ReturnedGradients) -> str:
    told = f"vjp returned {detail.got}"
    if detail.names:
        return f"{told}, expected gradients of {', '.join(detail.names)}"
    if detail.array:
        return f"{told} as the gradient of {detail.of}, expected {detail.array}"
    if detail.count is not None:
        return f"{told} for {detail.of}, expected {detail.count} gradients"
    if detail.lacks:
        return f"{told} for {detail.of}, without {detail.lacks}"
    return f"{told} for the projection {detail.of}"


def describe_array(detail: wrong_answers.DtypeOrShape) -> str:
    got, due = f"{detail.dtype} {list(detail.shape)}", f"{' or '.join(detail.dtypes)} {list(detail.due)}"
    if detail.layout:
        swapped = "; heads and queries have changed places" if detail.swapped else ""
        return f"is {got}, expected {due} {AXES[detail.layout]}{swapped}"
    where = "" if detail.rank is None else f" on rank {detail.rank}"
    return f"has dtype and shape {got}{where}, expected {due}" + (f" ({OTHER_LAYOUT})" if detail.swapped else "")


def describe_ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def describe_phase(phase: Phase) -> str:
    told = {
        "in_a_row": f"in call {phase.number} of {phase.count}",
        "after_forward_passes": "after other forward passes",
        "second_backward_pass": "in the second backward pass",
        "threads": f"while {phase.count} threads call at the same time",
    }
    return told[phase.name]


def describe_size(size: kinds.Size | None) -> str:
    return "" if size is None else f" at {size.extent:,} {DIMENSIONS[size.dimension]}"


def describe_source(source: kinds.Source) -> str:
    """Return the words for a step by its name, or for an input by its number."""
    if source is None:
        return "what is no step's result"
    return f"input {source}" if isinstance(source, int) else f"the result of {source}"
