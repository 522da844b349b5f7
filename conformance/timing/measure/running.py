"""A run: case by case, judged, timed, judged again; what fails is failed, and the rest goes on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

import numpy as np

from conformance.timing.measure import memory
from conformance.timing.measure.ceilings import CeilingWorker, Measured, best_copy, best_product, crowded
from conformance.timing.measure.memory import MemoryWorker
from conformance.timing.measure.other_programs import TOLERATED, Taken, in_words, watch_processors
from conformance.timing.measure.processes import Failed, Worker
from conformance.timing.measure.rounds import Budget, calls_in_trial, rounds
from conformance.timing.measure.statistics import Interval, interval
from conformance.timing.measure.timing_worker import Start, TimingWorker, Trial
from conformance.timing.subjects.timed_subject import Subject
from conformance.timing.timed_case import AFTER, BEFORE, Case, generator
from conformance.timing.verify.gate import GOOD, Call, Verdict, all_rows_judged, learn_truths, worst
from conformance.timing.verify.row_sampling import BY_ROW, draw
from conformance.timing.work import Work, work

PLACES, ROWS, STILL = 3, 8, 3
"""Of the judge before and after the timing: places, rows of each, and rows more whose cotangent is zero."""
PAIRS = 2**18
"""Of a place, pairs of a row and a key or column up to which more rows are judged: all rows of a small case."""
FOR_PLACES = 0x506C616365
"""The last word of a seed for drawing places: other numbers than the inputs are made of."""
MEASURED, FAILED, LEFT_OUT, NOT_CREDIBLE = "measured", "failed", "left out", "not credible"

IMPOSSIBLE, WHILE_BUSY = "impossible: ", "while other programs use this machine"


@dataclass
class Plan:
    """What is run, and how. `say` gets lines that are to be read, `step` what is being done right now.

    busy: says in words how other programs use this machine right now, where no system tells what they take; empty if
    they leave it alone.
    """

    device: str
    threads: int
    seed: int
    budget: Budget = field(default_factory=Budget)
    memory: Callable[[Case], bool] = lambda case: True
    say: Callable[[str], None] = lambda line: None
    step: Callable[[str], None] = lambda text: None
    busy: Callable[[], str] = lambda: ""


@dataclass
class Entry:
    """A subject at a case."""

    subject: Subject
    status: str = MEASURED
    reason: str = ""
    start: Start | None = None
    trials: list[Trial | None] = field(default_factory=list)
    repeated: int = 0
    before: Verdict = GOOD
    during: Verdict = GOOD
    after: Verdict = GOOD
    calls: int = 1
    peaks: list[int] = field(default_factory=list)
    memory_note: str = ""

    def end(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason

    def accept(self, verdict: Verdict) -> None:
        if verdict.wrong:
            self.end(FAILED, verdict.wrong)

    @property
    def measured(self) -> bool:
        return self.status == MEASURED

    @property
    def trial_seconds(self) -> list[float | None]:
        return [None if trial is None else trial.seconds for trial in self.trials]

    @property
    def seconds(self) -> Interval:
        return interval([seconds for seconds in self.trial_seconds if seconds is not None])


class Run:
    """The processes of a run, and what they found of one case at a time."""

    def __init__(
        self,
        plan: Plan,
        subjects: Sequence[Subject],
        start: Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, str]], Any] | None = None,
    ) -> None:
        self.plan, self.subjects = plan, subjects
        self.start = start or (lambda make, given, variables: Worker(make, given, plan.threads, variables))
        self.workers: dict[str, Any] = {}
        self.ceilings: list[Measured] = []
        self.busy = ""
        self.taken: list[Taken | None] = []

    def ask(self, entry: Entry, method: str, *given: Any) -> Any:
        return self.worker(entry.subject).ask(method, *given, limit=self.plan.budget.limit)

    def worker(self, subject: Subject) -> Any:
        if subject.name not in self.workers:
            self.workers[subject.name] = self.start(TimingWorker, (subject, self.plan.device), subject.environment)
        return self.workers[subject.name]

    def close(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.workers.clear()

    # --- what the machine can do ---

    def measure_ceilings(self, dtypes: Sequence[str]) -> None:
        frameworks = ("torch", "jax") if self.plan.device == "cuda" else ("numpy", "torch", "jax")
        for arrays in frameworks:
            if find_spec(arrays) is not None:
                self.plan.step(f"ceilings in {arrays}")
                worker = self.start(CeilingWorker, (arrays, self.plan.device), {})
                try:
                    self.ceilings += worker.ask("measure", tuple(dtypes), limit=self.plan.budget.limit)
                except Failed as failed:
                    self.plan.say(f"ceilings in {arrays}: {failed}")
                worker.end()

    # --- one case ---

    def case(self, case: Case) -> tuple[Work, list[Entry]]:
        """Everything about a case: each subject's entry, in the order of the subjects."""
        entries = [Entry(subject) for subject in self.subjects if subject.operation == case.operation]
        for entry in entries:
            # What the processes before it keep is not free for it.
            self.make_ready(entry, case, memory.available(self.plan.device))
        self.examine(entries, case, BEFORE)
        self.time(entries, case)
        self.examine(entries, case, AFTER)
        self.judge_trials(entries, case)
        found = work(case, self.plan.seed)
        self.refuse_the_impossible(entries, case, found)
        self.put_away(entries, case)
        self.measure_memory(entries, case)
        return found, entries

    def make_ready(self, entry: Entry, case: Case, free: int | None) -> None:
        subject, plan = entry.subject, self.plan
        reason = subject.hindrance(case, plan.device) or memory.hindrance(subject, case, free)
        if reason:
            return entry.end(LEFT_OUT, reason)
        plan.step(f"{subject.name}: first call")
        try:
            entry.start = self.ask(entry, "prepare", case, plan.seed, plan.budget.slowest)
        except Failed as failed:
            return entry.end(LEFT_OUT, str(failed)) if failed.unfit else self.fail(entry, str(failed))
        assert entry.start is not None
        if entry.start.typical > plan.budget.slowest:
            spent, given = entry.start.typical, plan.budget.slowest
            reason = f"one call takes {spent:.2f} s, more than the {given:g} s given to it; not judged"
            reason += f"; without --quick it has {Budget.slowest:g} s" if given < Budget.slowest else ""
            self.worker(subject).end()  # with all the memory that it has, which the others need
            return entry.end(LEFT_OUT, reason)

    def fail(self, entry: Entry, reason: str) -> None:
        """A failed call ends its process, and gives back all of its memory: the others of the case go on."""
        entry.end(FAILED, reason)
        self.worker(entry.subject).end()

    def put_away(self, entries: Sequence[Entry], case: Case) -> None:
        """Nothing of a case stays where the next one may need the room; what failed begins anew."""
        for entry in entries:
            on_gpu = self.plan.device == "cuda" and entry.subject.arrays == "jax"
            large = on_gpu and memory.needed(entry.subject, case) > memory.KEPT_BY_JAX
            try:
                if entry.status == FAILED or (large and entry.measured):
                    self.worker(entry.subject).end()
                elif entry.status in (MEASURED, NOT_CREDIBLE):
                    self.ask(entry, "release")
            except Failed as failed:
                self.plan.say(f"{entry.subject.name}: {failed}")

    # --- judged ---

    def examine(self, entries: Sequence[Entry], case: Case, when: int) -> None:
        """Fresh inputs, the same for all subjects."""
        seed = self.plan.seed
        random = generator(seed, case, when, FOR_PLACES)
        rows = max(ROWS, PAIRS // max(case.facts.row_size(case), 1))
        places = draw(case, random, PLACES, rows, STILL if case.backward else 0)
        call = Call(case, seed, (when,), tuple(places) if case.backward else ())
        where = {BEFORE: "before the timing", AFTER: "after the timing"}[when]
        for entry in (entry for entry in entries if entry.measured):
            self.plan.step(f"{entry.subject.name}: judged {where}")
            try:
                samples = self.ask(entry, "examine", case, seed, (when,), places)
            except Failed as failed:
                self.fail(entry, f"{where}: {failed}")
                continue
            pairs = zip(places, samples, strict=True)
            verdict = worst(call.rows(place, got, entry.subject.conventions, where) for place, got in pairs)
            entry.accept(verdict)
            if when == BEFORE:
                entry.before = verdict
            else:
                entry.after = verdict

    def judge_trials(self, entries: Sequence[Entry], case: Case) -> None:
        """What was kept of every trial; gradients that all rows count in, for one trial that is drawn only now."""
        trials_by_round = [*enumerate(zip_longest(*(entry.trials for entry in entries)))]
        chosen = secrets.randbelow(max(len(trials_by_round), 1))
        # Rows of a mixture are computed together. Others need all inputs of a call, and those of a round fit in memory.
        groups = [trials_by_round] if case.facts.own_weights else [[one] for one in trials_by_round]
        for group in filter(None, groups):
            self.plan.step(f"judging trial {group[0][0] + 1}")
            shared: dict[tuple[int, ...], Call] = {}
            trials = [
                (number, entry, trial, shared.setdefault(trial.words, Call(case, self.plan.seed, trial.words)))
                for number, round_trials in group
                for entry, trial in zip(entries, round_trials, strict=True)
                if entry.measured and trial is not None
            ]
            learn_truths((call, trial.place, entry.subject.conventions) for _, entry, trial, call in trials)
            for number, entry, trial, call in trials:
                if entry.measured:
                    told = (entry.subject.conventions, f"timed trial {number + 1}")
                    by_row = {name: got for name, got in trial.sample.items() if name in BY_ROW}
                    verdict = call.rows(trial.place, by_row, *told)
                    if number == chosen and all_rows_judged(case):
                        others = {name: got for name, got in trial.sample.items() if name not in BY_ROW}
                        verdict = worst((verdict, call.over_all_rows(trial.place, others, *told)))
                    entry.during = worst((entry.during, verdict))
                    entry.accept(verdict)

    # --- timed ---

    def time(self, entries: Sequence[Entry], case: Case) -> None:
        taking_part = [entry for entry in entries if entry.measured]
        starts = [entry.start.typical for entry in taking_part if entry.start is not None]
        size = sum(int(np.prod(shape)) for shape in case.shapes.values()) * case.itemsize
        calls = calls_in_trial(min(starts, default=1.0), size, self.plan.device)

        def trial(entry: Entry, number: int) -> bool:
            entry.calls = calls
            entry.trials += [None] * (number - len(entry.trials))
            try:
                entry.trials.append(self.undisturbed(entry, case, number, patient_until))
            except Failed as failed:
                self.fail(entry, f"timed trial {number + 1}: {failed}")
            return entry.measured

        self.taken = []
        patient_until = time.monotonic() + self.plan.budget.patience * self.plan.budget.seconds
        rounds(taking_part, trial, self.plan.budget, lambda number: self.plan.step(f"round {number + 1}"))
        told = in_words(self.taken)
        self.busy = self.plan.busy() if told is None else told

    def undisturbed(self, entry: Entry, case: Case, number: int, patient_until: float) -> Trial:
        """The first trial from which the host took no processor time; else the one from which it took least.

        Every attempt has inputs of its own: nobody sees the same numbers again.
        """
        assert entry.start is not None
        best: Trial | None = None
        for attempt in range(1 + self.plan.budget.again):
            start = (case, self.plan.seed, (number, attempt), entry.calls, entry.start.typical, self.plan.budget.awake)
            entry.repeated += attempt > 0
            try:
                by_others = watch_processors(self.plan.threads)
                found: Trial = self.ask(entry, "trial", *start)
                self.taken.append(by_others())
            except Failed as failed:
                if not attempt:
                    raise
                raise Failed(f"repetition {attempt}: {failed}") from None
            if best is None or (found.stolen or 0) < (best.stolen or 0):
                best = found
            if (best.stolen or 0) <= TOLERATED or time.monotonic() > patient_until:
                break
        assert best is not None
        return best

    def refuse_the_impossible(self, entries: Sequence[Entry], case: Case, found: Work) -> None:
        """Refuse what is faster than this machine multiplies or copies, even at its slow end; measure ceilings anew.

        While other programs use the machine its ceilings are too low: then a time is not credible, and did not fail.
        """
        if self.ceilings and any(impossible(entry, case, found, self.ceilings) for entry in entries):
            self.measure_ceilings((case.dtype,))
        told = any(one.get("others") is not None for one in self.ceilings)
        others = crowded(self.ceilings) if told else self.busy
        for entry in entries:
            reason = impossible(entry, case, found, self.ceilings)
            if reason and others and entry.seconds.low > 0:
                # A ceiling that others have lowered refutes nothing.
                entry.end(NOT_CREDIBLE, f"{reason.removeprefix(IMPOSSIBLE)}, {WHILE_BUSY} ({others}): repeat the run")
            elif reason:
                entry.end(FAILED, reason)

    # --- memory ---

    def measure_memory(self, entries: Sequence[Entry], case: Case) -> None:
        """Each in a process that is started for it, in as many calls as there are rounds at least."""
        if not self.plan.memory(case):
            return
        plan = self.plan
        for entry in (entry for entry in entries if entry.measured):
            plan.step(f"{entry.subject.name}: memory")
            worker = self.start(MemoryWorker, (entry.subject, plan.device), entry.subject.environment)
            try:
                entry.peaks = worker.ask("measure", case, plan.seed, plan.budget.least, limit=plan.budget.limit)
            except Failed as failed:
                entry.memory_note = f"memory: {failed}"
            worker.end()


def impossible(entry: Entry, case: Case, found: Work, ceilings: Sequence[Measured]) -> str:
    if not entry.measured or not entry.trials:
        return ""
    slowest = entry.seconds.high
    if entry.seconds.low <= 0:
        return f"{IMPOSSIBLE}it took no time at all"
    product, copy = best_product(ceilings, case.dtype), best_copy(ceilings)
    limits = ((found.least_flops, product, "GFLOP/s", "matrix product"), (found.bytes, copy, "GB/s", "copy"))
    for done, best, unit, what in limits:
        if done is not None and best is not None and done / slowest > best:
            rate = f"{done / slowest / 1e9:.0f} {unit} at least"
            return f"{IMPOSSIBLE}{rate}, and the best {what} here has {best / 1e9:.0f}"
    return ""
