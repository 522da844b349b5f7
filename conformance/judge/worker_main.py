"""A worker process of a check; see `worker_processes`."""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Any

from conformance.checks.check import Check
from conformance.checks.comparison import Finding
from conformance.checks.probe import Probe
from conformance.judge.judgement import Judgement
from conformance.judge.run import STUCK, try_probe
from conformance.judge.worker_processes import (
    Order,
    Outcome,
    Start,
    claim_probe,
    folder,
    order_file,
    result_file,
    wait_for_file,
    write,
)
from conformance.oracle.reference import balls_available
from conformance.runner.compiled_code import forget_compiled_code, keep_compiled_code, share_of_memory
from conformance.runner.in_process import Runner, ignore_warnings_of_numbers, judging
from conformance.runner.in_subprocess import ENDING
from conformance.runner.process_lifetime import end_with_input


class Watched(Runner):
    """A runner that ends its process where a call does not heed its time limit, as native code may not.

    This limit is wall time. On a busy machine a worker may end too early, and the checking process runs its cases.
    """

    def run_check(self, check: Check[Any, Any], example: Any, shared: Any) -> list[Finding]:
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later((self.time_limit or 0) + ENDING, exit=True, file=nowhere)
            try:
                return super().run_check(check, example, shared)
            finally:
                faulthandler.cancel_dump_traceback_later()


def main(descriptor: int) -> None:
    """Run what is ordered, until the checking process ends this one."""
    end_with_input()
    keep_compiled_code()
    ignore_warnings_of_numbers()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    try:
        with socket.socket(fileno=descriptor) as ours, ours.makefile("rb") as sent:
            start: Start = pickle.load(sent)
            path: Path = pickle.load(sent)
        work(path, Watched(start.target.make(), start.time_limit), share_of_memory(start.processes))
    except BaseException:  # the checking process runs what is left, and says what is wrong
        sys.exit(1)


def work(path: Path, runner: Runner, room: float) -> None:
    with (path / "progress").open("a", encoding="utf-8", buffering=1) as told, judging():
        for number in count(1):
            order: Order = wait_for_file(order_file(path, number))

            def progress(rule: str, title: str) -> None:
                told.write(f"{rule}\t{title}\n")

            judgement = Judgement(runner, order.operation, order.examples, order.seed, order.rules, progress, 0.0)
            probes = judgement.later_probes(order.declaration)
            for index in reversed(range(len(probes))):
                if order_file(path, number + 1).exists() or runner.overrun >= STUCK:
                    break
                if claim_probe(folder(path, number), index) is None:
                    outcome = run(judgement, probes[index])
                    write(result_file(folder(path, number), index), pickle.dumps(outcome))
                    forget_compiled_code(room)


def run(judgement: Judgement, probe: Probe) -> Outcome:
    runner = judgement.runner
    before, runner.printed = runner.overrun, ""
    tried = try_probe(probe, [runner], judgement.examples, judgement.seed, judgement.progress)
    return Outcome(tried, runner.overrun - before, runner.printed)
