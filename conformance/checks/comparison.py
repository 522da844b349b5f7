"""One answer against the truth: the error of every element in units of its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from conformance.bounds import relaxed_bound
from conformance.bounds.arithmetic import LARGEST
from conformance.cases.arguments import dtype_beside, expected_dtype, gradient_name, is_gradient, padded_queries
from conformance.cases.case import Case
from conformance.cases.expectations import Exact, empty_rows
from conformance.checks.findings import Finding, LostRank, Raised
from conformance.checks.levels import CORE, LEVELS, ROBUST, STRICT, higher, is_required, rank
from conformance.oracle.departures import averages_nothing
from conformance.subjects.subject import Answers, Subject, first_line
from conformance.subjects.wrong_answers import DtypeOrShape, Missing, WrongAnswer, find_raising_line

PRECISION = {"float16": (11, -13), "bfloat16": (8, -125), "float32": (24, -125), "float64": (53, -1021)}
"""Binary digits of every dtype, and the exponent (as `frexp` gives it) of its smallest normal number."""


def error_finding(error: BaseException, subject: Subject, threads: int = 0) -> Finding:
    """What an error says of the subject; raise one that is not the subject's. threads: that called at the same time."""
    if isinstance(error, WrongAnswer):
        return Finding(error.name, np.inf, detail=error.detail)
    if error is not subject.scope.raised:
        raise error
    if isinstance(error, LostRank):
        return Finding("call", np.inf, detail=error.detail)
    detail = Raised(type(error).__name__, first_line(error), threads)
    return Finding("call", np.inf, detail=detail, raised_at=find_raising_line(error, subject.code))


def breaks(findings: Iterable[Finding], profile: str = STRICT) -> bool:
    """Whether one of them is a violation that the profile asks about."""
    return any(finding.ratio > 1 and is_required(finding.level, profile) for finding in findings)


def worst(findings: Iterable[Finding]) -> Finding:
    """Of violations one of the lowest level, and the largest error of that; without any the largest error."""

    def order(finding: Finding) -> tuple[int, float]:
        return len(LEVELS) - rank(finding.level) if finding.ratio > 1 else 0, finding.ratio

    return max(findings, key=order)


def raise_level(findings: list[Finding], level: str) -> list[Finding]:
    """The findings, with at least this level."""
    return [replace(finding, level=higher(finding.level, level)) for finding in findings]


Relaxed = Callable[[], dict[str, np.ndarray] | None]
"""Computes the bounds that hold below `strict`; None where they are no other ones."""


def no_others() -> None:
    """Below `strict` the same bounds hold, or nobody asks."""


def judge(
    case: Case,
    answers: Answers,
    truth: dict[str, Exact],
    bounds: dict[str, np.ndarray],
    relaxed: Relaxed | None = None,
) -> list[Finding]:
    """One finding for each result and gradient of the truth.

    A result that is wrong in rows that allow nothing and in others has two where these are of different levels.

    relaxed: those of the case unless given. They are computed only where a result is beyond `bounds`. A result within
    them breaks nothing that is asked below `strict`.
    """
    answers = fill_unpromised(case, answers, truth)

    def compare_result(name: str, looser: np.ndarray | None = None, where: np.ndarray | None = None) -> Finding:
        got = answers.get(name)
        return compare(name, got, truth[name], bounds[name], dtype_beside(got, name, case), looser, where)

    findings = {name: compare_result(name) for name in truth}
    broken = [name for name, finding in findings.items() if finding.ratio > 1 and finding.kind == "value"]
    looser = (relaxed_bound(case) if relaxed is None else relaxed()) if broken else None
    if looser is not None:
        findings |= {name: compare_result(name, looser[name]) for name in broken}
    if not broken or not wrong_in_empty_rows(case, answers, truth, bounds):
        return [*findings.values()]
    empty = empty_output_rows(case)
    split = []
    for name, finding in findings.items():
        if name not in broken:
            split.append(finding)
        elif name not in OF_ROWS:
            split += raise_level([finding], ROBUST)
        else:
            parts = [compare_result(name, None if looser is None else looser[name], where) for where in (empty, ~empty)]
            wrong = [part for part in (*raise_level(parts[:1], ROBUST), parts[1]) if part.ratio > 1]
            split += wrong if len({part.level for part in wrong}) > 1 else [worst(wrong)]
    return split


OF_QUERIES = ("attention", "attention_logsumexp", "multi_head_attention")
"""Operations that allow nothing in some rows."""
OF_ROWS = ("output", "logsumexp")
"""Their results that have a row for each query."""


def empty_output_rows(case: Case) -> np.ndarray:
    """Rows of results that allow nothing, [B, H, Q]; of a layer [B, Q], where one of the heads allows nothing."""
    rows = empty_rows(case)
    return np.asarray(rows.any(axis=1)) if "num_heads" in case.options else rows


def fill_unpromised(case: Case, answers: Answers, truth: dict[str, Exact]) -> Answers:
    """The answers with what is true where nothing is promised."""
    answers = fill_padding(case, answers, truth)
    if "moments" in case.rounding and "mean" in truth:
        answers = fill_nan(answers, truth, ("mean", "parameters"), np.isinf(truth["mean"].high))
    if "no_targets" in case.rounding and averages_nothing(case):  # 0 / 0 may be in every gradient
        answers = fill_nan(answers, truth, [name for name in answers if is_gradient(name)], np.asarray(True))
    return fill_empty_rows(case, answers, truth) if case.options.get("empty_rows") == "any" else answers


def wrong_in_empty_rows(case: Case, answers: Answers, truth: dict[str, Exact], bounds: dict[str, np.ndarray]) -> bool:
    """Whether a result is wrong in a row that allows nothing. The core says nothing of it, nor of gradients then."""
    if case.operation not in OF_QUERIES or not (rows := empty_output_rows(case)).any():
        return False
    return any(
        (ratio(answers[name].astype(float), truth[name], bounds[name], expected_dtype(name, case)) > 1)[rows].any()
        for name in OF_ROWS
        if name in truth and name in answers and answers[name].shape == truth[name].high.shape
    )


def fill_empty_rows(case: Case, answers: Answers, truth: dict[str, Exact]) -> Answers:
    """The answers with what is true in the rows that allow nothing, of which the subject promises nothing.

    Where it gives NaN or infinity there, 0 times that may be in every gradient, of which nothing is promised then.
    """
    rows, names = empty_rows(case), [name for name in OF_ROWS if name in truth]
    if any(name not in answers or answers[name].shape != truth[name].high.shape for name in names):
        return answers
    free = {name: expand_rows(rows, answers[name]) for name in names}
    if not all(np.isfinite(answers[name][rows].astype(float)).all() for name in names):
        free |= {name: np.ones((1,) * answers[name].ndim, bool) for name in answers if is_gradient(name)}
    right = {
        name: np.where(where, truth[name].high.astype(answers[name].dtype), answers[name])
        for name, where in free.items()
    }
    return answers | right


def expand_rows(rows: np.ndarray, array: np.ndarray) -> np.ndarray:
    """The rows with an axis of size 1 for each further axis of an array, whose first axes are theirs."""
    return rows.reshape(*rows.shape, *(1 for _ in array.shape[rows.ndim :]))


def fill_padding(case: Case, answers: Answers, truth: dict[str, Exact]) -> Answers:
    """The answers with what is true in rows that are no queries, of which nothing is promised."""
    if "query_lengths" not in case.inputs:
        return answers
    padded, filled = padded_queries(case), dict(answers)
    for name in {*OF_ROWS, gradient_name("query")} & answers.keys() & truth.keys():
        right, array = truth[name].high, answers[name]
        if array.shape == right.shape:
            rows = padded[:, None].reshape(len(padded), 1, -1, *(1,) * (right.ndim - 3))
            filled[name] = np.where(rows, right.astype(array.dtype), array)
    return filled


def fill_nan(answers: Answers, truth: dict[str, Exact], names: Iterable[str], where: np.ndarray) -> Answers:
    """The answers, and in some of them what is true in place of NaN there."""
    filled = dict(answers)
    for name in {*names} & answers.keys():
        right, array = truth[name].high, answers[name]
        if array.shape == right.shape:
            filled[name] = np.where(where & np.isnan(array.astype(float)), right.astype(array.dtype), array)
    return filled


def compare(
    name: str,
    got: np.ndarray | None,
    exact: Exact,
    bound: np.ndarray,
    dtype: str,
    relaxed: np.ndarray | None = None,
    where: np.ndarray | None = None,
) -> Finding:
    """The worst element.

    relaxed: bounds within which an element breaks nothing that is asked below `strict`. where: the first axes of the
    elements that are compared; None for all.
    """
    if got is None:
        return Finding(name, np.inf, detail=Missing())
    if str(got.dtype) != dtype or got.shape != exact.high.shape:
        return Finding(name, np.inf, detail=DtypeOrShape(str(got.dtype), got.shape, (dtype,), exact.high.shape))
    if got.size == 0:
        return Finding(name, 0.0)
    with np.errstate(invalid="ignore"):  # widening a NaN of 16 bits
        wide = got.astype(np.float64)
    ratios, level = ratio(wide, exact, bound, dtype), CORE
    ratios = ratios if where is None else np.where(expand_rows(where, ratios), ratios, 0.0)
    if relaxed is not None:
        beyond = (ratio(wide, exact, relaxed, dtype) > 1) & (ratios > 1)
        ratios, level = (np.where(beyond, ratios, 0.0), CORE) if beyond.any() else (ratios, STRICT)
    index = np.unravel_index(np.argmax(ratios), ratios.shape)
    return Finding(
        name,
        float(ratios[index]),
        tuple(int(i) for i in index),
        float(got[index]),
        float(exact.high[index]),
        float(bound[index]),
        level=level,
    )


def ratio(got: np.ndarray, exact: Exact, bound: np.ndarray, dtype: str) -> np.ndarray:
    """|got - exact| / bound elementwise.

    A NaN answers only a NaN, and an infinity only the same infinity, or a number within whose bound there are some of
    its sign that the dtype cannot hold. An exact answer has ratio 0 even where the bound is 0.
    """
    with np.errstate(all="ignore"):
        error = np.abs((got - exact.high) - exact.low)
        ratios = np.where(error == 0, 0, error / bound)
        same = (got == exact.high) | (np.isnan(got) & np.isnan(exact.high))
        largest = LARGEST.get(dtype, np.finfo(np.float64).max)
        overflow = np.isinf(got) & (np.sign(got) * exact.high + bound >= largest)
        numbers = np.isfinite(got) & np.isfinite(exact.high)
    return np.where(numbers, np.where(np.isnan(ratios), np.inf, ratios), np.where(same | overflow, 0.0, np.inf))


def units_in_the_last_place(finding: Finding, case: Case) -> float:
    """|got - expected| in units in the last place of the expected number; infinity where either is no number."""
    if finding.kind != "value" or not np.isfinite(finding.got) or not np.isfinite(finding.expected):
        return float("inf")
    dtype = expected_dtype(finding.name, case)
    if dtype not in PRECISION:  # whole numbers, as a step's
        return float(abs(finding.got - finding.expected))
    digits, smallest = PRECISION[dtype]
    exponent = max(np.frexp(abs(finding.expected))[1], smallest)
    return float(abs(finding.got - finding.expected) / 2.0 ** (int(exponent) - digits))
