"""`check`: one subject, one operation, every rule that speaks of it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from conformance.cases.declaration import EVERYTHING, Window, validate_names
from conformance.cases.facts import operations
from conformance.checks.judged_rules import CONTRACT, JUDGED
from conformance.checks.levels import DEFAULT, LEVELS
from conformance.judge.executor import Executor
from conformance.judge.plan import EFFORTS, list_claims
from conformance.judge.report import Report, report_of
from conformance.judge.shared_probes import share_probes
from conformance.judge.trial import Progress, silent
from conformance.runner.in_process import TIME_LIMIT, judging
from conformance.runner.in_subprocess import runner_for
from conformance.subjects.targets import Target

SHRINKING = 4.0
"""Seconds spent at most on making one failing case smaller."""
MOST_WORKERS = 4
ENDED = "the check was ended before its end"


def check(
    subject: str | Callable[..., Any],
    operation: str,
    *,
    arrays: str | None = None,
    dtypes: Collection[str] | None = None,
    supports: Collection[str] | None = None,
    effort: str = "default",
    seed: int | None = None,
    device: str = "cpu",
    layout: str | None = None,
    width_multiple: int | None = None,
    conventions: Mapping[str, str] | None = None,
    vjp: str | Callable[..., Any] | None = None,
    limits: Mapping[str, int] | None = None,
    tile: tuple[int, int] | None = None,
    head_widths: Collection[int | tuple[int, int]] | None = None,
    windows: Collection[Window] | None = None,
    name: str | None = None,
    rules: Collection[str] | None = None,
    profile: str = DEFAULT,
    time_limit: float = TIME_LIMIT,
    isolate: bool | None = None,
    shrink: bool = True,
    workers: int | None = 1,
    progress: Progress = silent,
    unfinished: Callable[[Report], None] | None = None,
) -> Report:
    """Judge a function that is to compute an operation.

    subject: the function, or "package.module:callable", or "path/to/file.py:callable". It takes the operation's own
        parameters: for attention `query, key, value, *, mask, bias, scale, softcap, sinks`, those that it has, with
        mask a boolean array [Q, K] or [B or 1, H or 1, Q, K] (True: may attend) or None.
    arrays: "numpy", "torch" or "jax"; unless given, a guess by annotations, by the code, by the module's imports or by
        a trial call, which the report names. device: "cpu" or "cuda".
    dtypes: those that it takes; all four unless given. Like other names, they are a list, or a string with commas.
    supports: names from `declaration.FEATURES`; unless given, all for which its signature has room. "no-softcap" and
        the like: all but these. What is not supported must be refused by an error, and that is checked too.
    layout: "BTHD" for arrays [batch, length, heads, width]. width_multiple: what widths must be multiples of.
    conventions: departures from the definition that it declares, from `declaration.CONVENTIONS`.
    vjp: gives its gradients, `vjp(*arguments, cotangent, **keywords)`, in the order of its floating arguments or as a
        dictionary by their names; else torch.autograd or jax.vjp does. A function, or a string like that of a subject.
    limits: the largest sizes that it takes, by names from `declaration.DIMENSIONS`, such as {"keys": 4096}; nothing
        beyond is tried. tile: queries and keys of its tiles, so that sizes around their multiples are tried too.
    head_widths: the only widths of heads that it takes, such as [64, 128, (576, 512)]; a pair is that of keys and that
        of values.
    windows: the only sliding windows that it takes, such as [(31, 0)]: keys before and after the query's own, None for
        all of them.
    rules: only these. profile: "core", "robust" or "strict", which decides whether the function conforms; the report
        names the violations of every level.
    time_limit: seconds for one case.
    isolate: whether it runs in a subprocess, which may crash, and is killed where it hangs. By default a function that
        is named by a string does, unless `vjp` is a function object, and a function object runs in this process.
    workers: processes that share the cases, for a function that is named by a string. None: one for each core, at most
        four, if the check takes long enough.
        A subprocess and a worker load the function by its name, and see nothing of what this process has set, such as
        `jax.config`.
    unfinished: is given what is known so far where an error or an interrupt ends the check, before that is raised.

    ValueError says what is wrong with a target that cannot be judged at all, or that none of the rules has been tried.
    RuntimeError says what went wrong in the judge, by no fault of the function's.
    """
    validate_names("operation", [operation], operations())
    validate_names("profile", [profile], LEVELS)
    rules = None if rules is None else validate_names("rules", rules, JUDGED)
    own = rules_of(operation)
    if rules and not own.intersection(rules):
        named = ", ".join(rule for rule in JUDGED if rule in own)
        raise ValueError(f"nothing was tried: there is no case of {', '.join(rules)} for {operation}, but of {named}")
    given: dict[str, Any] = {"supports": supports, "dtypes": dtypes, "layout": layout, "vjp": vjp}
    given |= {"width_multiple": width_multiple, "conventions": conventions, "limits": limits, "tile": tile}
    given |= {"head_widths": head_widths, "windows": windows}
    given = {key: value for key, value in given.items() if value is not None}
    target = Target(subject, operation, arrays, device, name, given)
    seed = secrets.randbelow(2**32) if seed is None else seed
    start = time.monotonic()
    executor = make_executor(target, effort, seed, rules, time_limit, isolate, shrink)
    target = executor.target or target
    executor.progress = progress
    workers = usual_workers(target, effort) if workers is None else workers
    try:
        executor.shared = share_probes(target, time_limit, workers)
        with judging():
            executor.run()
    except BaseException:
        if unfinished is not None:
            executor.untried = executor.untried or ENDED
            unfinished(report_of(target, executor, effort, time.monotonic() - start, profile))
        raise
    finally:
        executor.close()
    report = report_of(target, executor, effort, time.monotonic() - start, profile)
    if report.conforms and not has_cases(report, rules):
        raise ValueError(describe_empty_check(report, rules))
    return report


def make_executor(
    target: Target,
    effort: str = "default",
    seed: int = 0,
    rules: Collection[str] | None = None,
    time_limit: float = TIME_LIMIT,
    isolate: bool | None = None,
    shrink: bool = True,
) -> Executor:
    """Return what asks the target's questions. Its own target has the arrays that were guessed.

    Args:
        target: the implementation under test.
        effort, seed, rules, time_limit, isolate, shrink: as for `check`.

    Raises:
        ValueError: for an effort or a rule that does not exist, or a target that cannot be judged.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}")
    rules = validate_names("rules", rules, JUDGED) if rules else None
    runner = runner_for(target, time_limit, isolate)
    target, shrinking = runner.target or target, SHRINKING if shrink else 0.0
    return Executor(runner, target.operation, EFFORTS[effort], seed, rules=rules, shrinking=shrinking, target=target)


def rules_of(operation: str) -> set[str]:
    """Return the rules of which the operation has cases."""
    from conformance.operations.probes import probes_of_all

    asked = {claim.rule for claim in list_claims(operation, EVERYTHING)}
    return asked | {CONTRACT.id} | {probe.rule for probe in probes_of_all(operation)}


def usual_workers(target: Target, effort: str) -> int:
    """Return one process for each core, at most four, if a check takes long enough to gain by it."""
    long = target.arrays == "jax" or (target.arrays == "torch" and effort != "quick")
    return min(os.cpu_count() or 1, MOST_WORKERS) if long and target.device == "cpu" else 1


def has_cases(report: Report, rules: Collection[str] | None) -> bool:
    """Whether there was a case of a rule, and not only a call to see what the function takes."""
    return any(cell.cases for rule, cell in report.rules.items() if (rule in rules if rules else rule != "CALL"))


def describe_empty_check(report: Report, rules: Collection[str] | None) -> str:
    chosen = f" of {', '.join(rules)}" if rules else ""
    why = f" ({report.left_out})" if report.left_out else ""
    return f"nothing was tried: there is no case{chosen} for {report.operation} within what {report.subject} takes{why}"
