"""Ask a subject in a process that has called nothing before."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from conformance.checks.findings import Finding, ProcessEnded
from conformance.runner.in_process import Runner, Step, failed_call
from conformance.runner.template import Request, Template, preloaded_modules, start_template
from conformance.subjects.targets import Target

LONGEST, BUDGET = 60.0, 15.0
"""Seconds for one question, and seconds of processor time for all questions of one check."""

templates: dict[int, Template] = {}
"""One for all subjects that are asked in this process, by its pid: a fork has none."""


@atexit.register
def close_template() -> None:
    if os.getpid() in templates:
        templates.pop(os.getpid()).close()


class FreshProcesses:
    """Fresh processes for one target, as long as the time for them lasts."""

    def __init__(self, runner: Runner, target: Target | None) -> None:
        self.runner, self.left = runner, BUDGET
        self.target = None if target is None else loadable(target)

    def ask(self, steps: Sequence[Step]) -> list[list[Finding]] | None:
        """The findings of each step, in one process that takes them in order; None where that cannot be told."""
        if self.target is None or self.left <= 0 or not hasattr(os, "fork"):
            return None
        try:
            payload = pickle.dumps((self.target, self.runner.time_limit, list(steps)))
            modules = preloaded_modules(self.target)
            request = Request(modules, sys.path, os.getcwd(), dict(os.environ), LONGEST, payload)
        except Exception:  # what cannot be sent cannot be asked; nor is there a working folder always
            return None
        found = self.template.ask(request)
        self.left -= BUDGET if found is None else found.seconds
        if found is None or not found.in_time:
            return None
        if len(found.answers) == len(steps):
            return found.answers
        if found.code == 0:  # the target was not loaded, or the judge failed
            return None
        return found.answers + [failed_call(ProcessEnded(found.code))] * (len(steps) - len(found.answers))

    @property
    def template(self) -> Template:
        """The one that the runner's subprocess has forked; else that of this process, started when first needed."""
        own = self.runner.template
        if own is not None and not own.closed:
            return own
        here = templates.get(os.getpid())
        if here is None or here.closed:
            here = templates[os.getpid()] = start_template()
        return here


def loadable(target: Target) -> Target | None:
    """The target by a name under which another process finds it; None where it has none."""
    subject = name_of(target.subject)
    functions = {name: value for name, value in target.given.items() if callable(value)}
    if subject is None or not all(name_of(function) for function in functions.values()):
        return None
    return replace(target, subject=subject, name=target.title)


def name_of(subject: Any) -> str | None:
    """`module:function` of a function that is found by it; an object may hold what earlier calls have left in it."""
    if isinstance(subject, str):
        return subject
    if not isinstance(subject, FunctionType) or subject.__module__ == "__main__":
        return None
    found: Any = sys.modules.get(subject.__module__)
    for part in subject.__qualname__.split("."):
        found = getattr(found, part, None)
    return f"{subject.__module__}:{subject.__qualname__}" if found is subject else None
