"""A worker process of a check: `python -m conformance.judge.worker_main FOLDER`; see `worker_processes`."""

from __future__ import annotations

import pickle
import sys
import threading
from itertools import count
from pathlib import Path

from conformance.checks.probe import Probe
from conformance.judge.judgement import Judgement
from conformance.judge.run import STUCK, try_probe
from conformance.judge.worker_processes import (
    Order,
    Outcome,
    Start,
    awaited,
    claimed,
    folder,
    order_file,
    result_file,
    write,
)
from conformance.oracle.reference import balls_available
from conformance.runner.compiled_code import forget_compiled_code, keep_compiled_code, share_of_memory
from conformance.runner.in_process import Examiner, judging
from conformance.runner.process_lifetime import end_after


def main(path: Path) -> None:
    """Run what is ordered, until the checking process ends this one."""
    threading.Thread(target=end_after, args=(sys.stdin.fileno(),), daemon=True).start()
    keep_compiled_code()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    start: Start = awaited(path / "start")
    examiner = Examiner(start.target.make(), start.time_limit)
    room = share_of_memory(start.processes)
    with (path / "progress").open("a", encoding="utf-8", buffering=1) as told, judging():
        for number in count(1):
            order: Order = awaited(order_file(path, number))

            def progress(rule: str, title: str) -> None:
                told.write(f"{rule}\t{title}\n")

            judgement = Judgement(examiner, order.operation, order.examples, order.seed, order.rules, progress, 0.0)
            probes = judgement.later_probes(order.declaration)
            for index in reversed(range(len(probes))):
                if order_file(path, number + 1).exists() or examiner.overrun >= STUCK:
                    break
                if claimed(folder(path, number), index) is None:
                    outcome = run(judgement, probes[index])
                    write(result_file(folder(path, number), index), pickle.dumps(outcome))
                    forget_compiled_code(room)


def run(judgement: Judgement, probe: Probe) -> Outcome:
    examiner = judgement.examiner
    before, examiner.printed = examiner.overrun, ""
    tried = try_probe(probe, [examiner], judgement.examples, judgement.seed, judgement.progress)
    return Outcome(tried, examiner.overrun - before, examiner.printed)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except BaseException:  # the checking process runs what is left, and says what is wrong
        sys.exit(1)
