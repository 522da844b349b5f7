"""`check`: one subject, one operation, every rule that speaks of it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from conformance.cases.declaration import EVERYTHING, DeclarationOptions
from conformance.cases.facts import operations
from conformance.cases.options import document_options, options_of, read_options, refuse_unknown, validate_names
from conformance.checks.levels import CONTRACT, JUDGED
from conformance.judge.executor import Executor
from conformance.judge.options import EFFORTS, CheckOptions, ModelCheckOptions
from conformance.judge.plan import list_claims
from conformance.judge.report import Report, report_of
from conformance.judge.shared_probes import share_probes
from conformance.judge.trial import Progress, ignore_progress
from conformance.ports.report import ModelReport
from conformance.runner.in_process import TIME_LIMIT, judge_scope
from conformance.runner.in_subprocess import runner_for
from conformance.runner.ranks import is_launched
from conformance.subjects.callables import Target

MODEL = "model"
"""The operation of a port of a whole model."""
SHRINKING = 4.0
"""Seconds spent at most on making one failing case smaller."""
MOST_WORKERS = 4
ENDED = "the check was ended before its end"


@overload
def check(  # type: ignore[overload-overlap]
    subject: str | Callable[..., Any],
    operation: Literal["model"],
    *,
    name: str | None = None,
    progress: Progress = ignore_progress,
    **options: Unpack[ModelCheckOptions],
) -> ModelReport: ...


@overload
def check(
    subject: str | Callable[..., Any],
    operation: str,
    *,
    name: str | None = None,
    workers: int | None = 1,
    progress: Progress = ignore_progress,
    unfinished: Callable[[Report], None] | None = None,
    **options: Unpack[CheckOptions],
) -> Report: ...


@document_options(CheckOptions)
def check(
    subject: str | Callable[..., Any],
    operation: str,
    *,
    name: str | None = None,
    workers: int | None = 1,
    progress: Progress = ignore_progress,
    unfinished: Callable[[Report], None] | None = None,
    **options: Any,
) -> Report | ModelReport:
    """Judge a function that is to compute an operation, or a port of a whole model.

    A port is a function `build(config, state_dict)`, and its operation "model"; with it comes `dialect`, the family of
    models that it builds, and the options `set`, `checkpoint`, `gradients` and `dtypes`; see docs/judge-a-model.md.

    An option is a value of Python, or a string as on the command line: `tile=(128, 64)` or `tile="128x64"`.

    Args:
        subject: the function, or "package.module:callable", or "path/to/file.py:callable". It takes the operation's own
            parameters: for attention `query, key, value, *, mask, bias, scale, softcap, sinks`, those that it has, with
            mask a boolean array [Q, K] or [B or 1, H or 1, Q, K] (True: may attend) or None.
        operation: "attention", "layer_norm" and so on.
        name: what the report calls it.
        workers: processes that share the cases, for a function that is named by a string. None: one for each core, at
            most four, if the check takes long enough. A subprocess and a worker load the function by its name, and see
            nothing of what this process has set, such as `jax.config`.
        progress: is called with rule and title of each probe.
        unfinished: is given what is known so far where an error or an interrupt ends the check, before that is raised.
        **options: what is declared of the function, and how it is judged. A function named by a string runs in a
            subprocess unless `isolate` says otherwise or `vjp` is a function object; a function object runs in this
            process. `vjp(*arguments, cotangent, **keywords)` returns the gradients in the order of the floating
            arguments, or as a dictionary by their names; without one, torch.autograd or jax.vjp computes them.

    Raises:
        ValueError: an option is wrong, the target cannot be judged at all, or none of the rules has been tried.
        RuntimeError: something went wrong in the judge, by no fault of the function's.
    """
    if operation == MODEL:
        return check_model(subject, name, progress, options)
    target, chosen = read_target(subject, operation, name, options)
    rules, profile = chosen.get("rules"), chosen.pop("profile")
    own = rules_of(operation)
    if rules and not own.intersection(rules):
        named = ", ".join(rule for rule in JUDGED if rule in own)
        raise ValueError(f"nothing was tried: there is no case of {', '.join(rules)} for {operation}, but of {named}")
    start = time.monotonic()
    executor = make_executor(target, **({"seed": secrets.randbelow(2**32)} | chosen))
    target, effort = executor.target or target, chosen["effort"]
    executor.progress = progress
    if target.ranks:  # which have the cores
        workers = 1
    workers = usual_workers(target, effort) if workers is None else workers
    try:
        executor.shared = share_probes(target, chosen.get("time_limit", TIME_LIMIT), workers)
        with judge_scope():
            executor.run()
    except BaseException:
        if unfinished is not None:
            executor.untried = executor.untried or ENDED
            unfinished(report_of(target, executor, effort, time.monotonic() - start, profile))
        raise
    finally:
        executor.close()
    report = report_of(target, executor, effort, time.monotonic() - start, profile)
    tried = rules or report.rules.keys() - {"CALL"}  # a call to see what the function takes is no case of a rule
    if report.conforms and not any(cell.cases for rule, cell in report.rules.items() if rule in tried):
        raise ValueError(describe_empty_check(report, rules))
    return report


def check_model(
    subject: str | Callable[..., Any], name: str | None, progress: Progress, options: Mapping[str, Any]
) -> ModelReport:
    """Judge a port of a model, as `check` does."""
    from conformance.ports.checking import check_port

    chosen = read_options(ModelCheckOptions, options)
    if "dialect" not in chosen:
        names = options_of(ModelCheckOptions)["dialect"].names()
        raise ValueError(f"a model needs a dialect (--dialect), which its port reads: one of {', '.join(names)}")
    arrays, device, limit = chosen.pop("arrays", None), chosen.pop("device"), chosen.pop("memory_limit", None)
    target = Target(subject, MODEL, arrays, device, name, memory_limit=limit)
    settings = chosen.pop("set", None)
    return check_port(target, chosen.pop("dialect"), settings=settings, progress=progress, **chosen)


def read_target(
    subject: str | Callable[..., Any], operation: str, name: str | None, options: Mapping[str, Any]
) -> tuple[Target, dict[str, Any]]:
    """Return the target with what is declared of it, and the options of the check itself."""
    refuse_unknown("operation", [operation], [*operations(), MODEL])
    chosen = read_options(CheckOptions, options)
    given = {option: chosen.pop(option) for option in options_of(DeclarationOptions) if option in chosen}
    memory_limit = chosen.pop("memory_limit", None)
    arrays, device = chosen.pop("arrays", None), chosen.pop("device")
    target = Target(subject, operation, arrays, device, name, given, memory_limit=memory_limit)
    ranks, shard = chosen.pop("ranks", 0), chosen.pop("shard", "")
    if ranks or shard:
        target = spread(target, ranks, shard or "sequence")
    return target, chosen


def spread(target: Target, ranks: int, shard: str) -> Target:
    """Return the target on ranks; ValueError where it cannot be called by them."""
    if not ranks:
        raise ValueError("shard means nothing without ranks")
    if target.operation != "attention" or target.arrays == "numpy":
        raise ValueError("ranks: for functions of PyTorch or JAX that compute attention alone")
    if target.device != "cpu":
        raise ValueError("ranks: on CPUs alone")
    if is_launched() and os.environ["WORLD_SIZE"] != str(ranks):
        raise ValueError(f"ranks must be {os.environ['WORLD_SIZE']}, as many as torchrun has started, got {ranks}")
    if "vjp" in target.given:
        raise ValueError("vjp: a function on ranks is differentiated by its framework")
    where = "" if shard == "sequence" else f", {shard}"
    return replace(target, ranks=ranks, shard=shard, name=f"{target.title} on {ranks} ranks{where}")


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
    refuse_unknown("effort", [effort], EFFORTS)
    rules = validate_names("rules", rules, JUDGED) if rules else None
    runner = runner_for(target, time_limit, isolate)
    target, shrinking = runner.target or target, SHRINKING if shrink else 0.0
    return Executor(runner, target.operation, EFFORTS[effort], seed, rules=rules, shrinking=shrinking, target=target)


def rules_of(operation: str) -> set[str]:
    """Return the rules of which the operation has cases."""
    from conformance.operations.probes import probes_of_all

    claimed = {claim.rule for claim in list_claims(operation, EVERYTHING)}
    return claimed | {CONTRACT.id} | {probe.rule for probe in probes_of_all(operation)}


def usual_workers(target: Target, effort: str) -> int:
    """Return one process for each core, at most four, if a check takes long enough to gain by it."""
    long = target.arrays == "jax" or (target.arrays == "torch" and effort != "quick")
    return min(os.cpu_count() or 1, MOST_WORKERS) if long and target.device == "cpu" else 1


def describe_empty_check(report: Report, rules: Collection[str] | None) -> str:
    chosen = f" of {', '.join(rules)}" if rules else ""
    why = f" ({report.left_out})" if report.left_out else ""
    return f"nothing was tried: there is no case{chosen} for {report.operation} within what {report.subject} takes{why}"
