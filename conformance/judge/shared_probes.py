"""Probes that worker processes take from a check: JAX compiles for every shape, and one core is not enough.

The checking process goes through the probes from the first one on, the workers from the last one back. The checking
process collects what they found in the order of the probes, so the result is the one that a single process gives. Only
the checking process looks for smaller failing cases.

A worker calls the function in its own process. It dies where the function crashes, and ends itself where a call does
not heed its time limit. The checking process runs that probe itself, through its own subprocess: a crash or a hang is
thus seen where a single process would see it. So is an error for lack of memory, of which a worker may take less.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import NamedTuple

from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import Check, Example, Probe, Shared
from conformance.checks.comparison import Finding
from conformance.checks.results import Results
from conformance.judge.plan import list_questions
from conformance.judge.trial import STUCK, ask_probe, ignore_progress
from conformance.oracle.reference import balls_available
from conformance.runner.compiled_code import LEAST, forget_compiled_code, keep_compiled_code, memory, share_of_memory
from conformance.runner.in_process import JudgeError, Runner, ignore_warnings_of_numbers, judge_scope
from conformance.runner.in_subprocess import ENDING, encode_target
from conformance.runner.memory_limit import exceeds_limit, limit_memory
from conformance.runner.process_lifetime import POSIX
from conformance.runner.workers import WorkerPool, encode_call
from conformance.subjects.callables import Target

PROGRESS_SECONDS = 0.02
"""Seconds between two looks at the progress of workers."""


class Order(NamedTuple):
    """Which probes workers take: those that come after empty rows, for a subject that takes what is declared."""

    operation: str
    declaration: Declaration
    examples: int
    seed: int
    rules: Collection[str] | None

    def probes(self, said: Declaration) -> list[Probe]:
        """List them. said: what the subject says of itself."""
        questions = list_questions(self.operation, said, self.declaration, self.rules)
        return [one.about for one in questions if one.kind == "probe" and not one.concerns_empty_rows]


class Outcome(NamedTuple):
    """What a worker found with one probe. overrun: cases that took too long. printed: on standard output."""

    results: Results
    overrun: int
    printed: str


class SharedProbes:
    """The probes of a check, which workers take from the last one back.

    ValueError where the target cannot be sent to another process.
    """

    def __init__(self, target: Target, time_limit: float, processes: int) -> None:
        self.pool = WorkerPool(processes - 1, encode_call(load_share, encode_target(target, time_limit), processes))
        self.futures: list[Future[Outcome | None]] = []
        self.orders = 0
        self.news: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def order(self, order: Order, said: Declaration) -> None:
        """Let workers begin; what was ordered before is dropped."""
        for future in self.futures:
            future.cancel()
        self.orders += 1
        probes = order.probes(said)
        self.futures = []
        with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
            content = pickle.dumps(order)
            for index in reversed(range(len(probes))):
                future = self.pool.submit(ask_share, self.orders, content, index)
                future.add_done_callback(partial(self.tell_progress, probes[index]))
                self.futures.insert(0, future)

    def tell_progress(self, probe: Probe, future: Future[Outcome | None]) -> None:
        """Queue the rule and title for each of a probe's cases."""
        outcome = read_outcome(future)
        if outcome is not None:
            for _ in range(outcome.results.generated[probe.rule]):
                self.news.put((probe.rule, probe.title))

    def outcome(self, index: int, listen: Callable[[], None]) -> Outcome | None:
        """What a worker found with the probe of that index; None where the checking process is to run it.

        listen: called now and then until the worker has finished.
        """
        if index >= len(self.futures) or self.futures[index].cancel():
            return None
        while not wait([self.futures[index]], PROGRESS_SECONDS).done:
            listen()
        return read_outcome(self.futures[index])

    def outcomes_from(self, index: int) -> Iterator[Outcome]:
        """What workers have found by now with the probes from that index on."""
        outcomes = (read_outcome(future) for future in self.futures[index:] if future.done())
        return (outcome for outcome in outcomes if outcome is not None)

    def read_news(self) -> Iterator[tuple[str, str]]:
        """Rule and title for every case that workers have run since the last look."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self.news.get_nowait()

    def close(self) -> None:
        self.pool.close()


def read_outcome(future: Future[Outcome | None]) -> Outcome | None:
    """Return what a worker found; None where it did not finish the probe."""
    if future.cancelled() or future.exception() is not None:
        return None
    return future.result()


def share_probes(target: Target, time_limit: float, processes: int) -> SharedProbes | None:
    """None where there is no room for a second process, or where it could not load the target again."""
    processes = min(processes, int(memory() / 4 / LEAST))
    if processes < 2 or not POSIX or not isinstance(target.subject, str):
        return None
    try:
        return SharedProbes(target, time_limit, processes)
    except ValueError:
        return None


# --- in a worker ------------------------------------------------------------------------------------------------------


class WatchedRunner(Runner):
    """A runner that ends its process where a call does not heed its time limit, as native code may not.

    This limit is wall time. On a busy machine a worker may end too early, and the checking process runs its cases.
    JudgeError where a call asks for more memory than a worker may take.
    """

    interrupts_are_users = False

    def run_check(self, check: Check[Example, Shared], example: Example, shared: Shared) -> list[Finding]:
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later((self.time_limit or 0) + ENDING, exit=True, file=nowhere)
            try:
                findings = super().run_check(check, example, shared)
            finally:
                faulthandler.cancel_dump_traceback_later()
        if any(map(exceeds_limit, findings)):
            raise JudgeError("a worker's part of the memory is too small")
        return findings


class Share:
    """What a worker has loaded: the subject's runner, bytes that it may hold, and the probes of the latest order."""

    runner: Runner
    room: float
    order: int = 0
    plan: Order
    probes: list[Probe]


SHARE = Share()


def load_share(encoded_target: bytes, processes: int) -> None:
    """Load the subject. processes: how many share the memory."""
    keep_compiled_code()
    ignore_warnings_of_numbers()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    target, time_limit = pickle.loads(encoded_target)
    SHARE.runner, SHARE.room = WatchedRunner(target.make(), time_limit), share_of_memory(processes)
    limit_memory(target, processes)


def ask_share(order: int, encoded_order: bytes, index: int) -> Outcome | None:
    """Run the order's probe of that index; None once the subject has run out of time."""
    runner = SHARE.runner
    if runner.overrun >= STUCK:
        return None
    forget_compiled_code(SHARE.room)
    if order != SHARE.order:
        SHARE.order, SHARE.plan = order, pickle.loads(encoded_order)
        SHARE.probes = SHARE.plan.probes(runner.declaration)
    before, runner.printed = runner.overrun, ""
    with judge_scope():
        results = ask_probe(SHARE.probes[index], [runner], SHARE.plan.examples, SHARE.plan.seed, ignore_progress)
    return Outcome(results, runner.overrun - before, runner.printed)
