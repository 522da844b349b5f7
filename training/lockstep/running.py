"""The run: in lock-step, where each step starts from the definition's state, and free, where each goes on alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.cases.expectations import Exact
from conformance.checks.comparison import compare
from conformance.checks.findings import Finding, Raised, SurplusTensor
from conformance.subjects.wrong_answers import find_raising_line
from specification.checkpoints import flatten
from specification.parameters import mapped
from training.lockstep.expected import (
    QUANTITIES,
    Bounded,
    Given,
    Model,
    State,
    expected,
    first_state,
    in_dtype,
    paths_of,
)
from training.lockstep.trainers import Answer, PackageTrainer, Trainer
from training.packages import PACKAGES
from training.task import Batch, RunSettings

if TYPE_CHECKING:
    from specification.parameters import ModelParameters


class Plan(NamedTuple):
    """What all implementations are given: settings, initial weights in float64, and a batch for each step.

    draws: by the number of the step its batch and keep masks.
    """

    name: str
    settings: RunSettings
    parameters: Any
    draws: Callable[[int], tuple[Batch, Any]]


class Departure(NamedTuple):
    """A tensor of a quantity that is beyond its bound at a step; the message says so in words where there is one."""

    step: int
    quantity: str
    finding: Finding


@dataclass
class Course:
    """One implementation. By step, counted from 0.

    worst: by quantity, the largest error in bounds at every step. departures: all of them, in order. losses, drift,
    furthest: of the free run; drift is the distance of all parameters from the definition's, relative to the norm of
    these, and furthest the tensor with the largest difference.
    """

    name: str
    worst: dict[str, list[float]] = field(default_factory=dict)
    departures: list[Departure] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    furthest: list[str] = field(default_factory=list)


@dataclass
class Lockstep:
    """A whole run. losses: of the definition in float64."""

    task: str
    dtype: str
    seed: int
    steps: int
    courses: list[Course]
    losses: list[float] = field(default_factory=list)

    @property
    def conforms(self) -> bool:
        return not any(course.departures for course in self.courses)


def lockstep(plan: Plan, trainers: Sequence[Trainer], steps: int, *, dtype: str, seed: int) -> Iterator[Lockstep]:
    """Run, and yield the result so far after every step."""
    result = Lockstep(plan.name, dtype, seed, steps, [Course(trainer.name) for trainer in trainers])
    definition = PackageTrainer(PACKAGES["reference_numpy"], plan.settings)
    together = first_state(plan.parameters, dtype)
    alone = in_dtype(together, "float64")
    free: list[State | None] = [together for _ in trainers]
    for step in range(steps):
        batch, dropout = plan.draws(step)
        given = Given(together, batch, dropout)
        model = Model(plan.settings.task(), given, dtype)
        for trainer, course in zip(trainers, result.courses, strict=True):
            judge(course, trainer, plan, given, model, dtype)
        exact = definition.step(Given(in_dtype(together, "float64"), batch, dropout))
        together = in_dtype(after(together, exact), dtype)
        answer = definition.step(Given(alone, batch, dropout))
        alone = after(alone, answer)
        result.losses.append(float(answer["loss"]))
        for place, (trainer, course) in enumerate(zip(trainers, result.courses, strict=True)):
            if (state := free[place]) is None:  # the implementation has not said where it has come to
                continue
            try:
                answer = trainer.step(Given(state, batch, dropout))
                state = after(state, answer)
                drift, furthest = distance(state.parameters, alone.parameters)
                course.losses.append(float(answer["loss"]))
                course.drift.append(drift)
                course.furthest.append(furthest)
                free[place] = state
            except Exception:  # in lock-step the same is told
                free[place] = None
        yield result


def after(state: State, answer: Answer) -> State:
    """The state that a step ends with, in the structure of the one that it began with."""

    def filled(arrays: Mapping[str, Any]) -> Any:
        following = iter(flatten(state.parameters))
        return mapped(lambda _: arrays[next(following)], state.parameters)

    parameters, mean, square = (filled(paths_of(answer[name])) for name in ("parameters", "mean", "square"))
    return State(parameters, mean, square, state.step + 1)


def distance(parameters: ModelParameters, others: ModelParameters) -> tuple[float, str]:
    """The norm of the difference of all parameters, relative to the norm of the others; the tensor that is furthest."""
    mine, theirs = flatten(parameters), flatten(others)
    differences = {path: np.asarray(array - mine[path]) for path, array in theirs.items()}
    norms = [np.linalg.norm(np.concatenate([a.ravel() for a in part.values()])) for part in (differences, theirs)]
    return float(norms[0] / norms[1]), max(differences, key=lambda path: np.max(np.abs(differences[path]), initial=0))


SCALARS = ("loss", "norm", "learning rate")
"""Single numbers, in whatever dtype they come."""


def judge(course: Course, trainer: Trainer, plan: Plan, given: Given, model: Model, dtype: str) -> None:
    """Compare one step of an implementation with the definition's; or note the error that it raises."""
    step = given.state.step
    try:
        answer = trainer.step(given) | trainer.predict(given)
    except Exception as error:
        place, detail = find_raising_line(error, trainer.step), Raised(type(error).__name__, str(error))
        findings = iter([("call", Finding("", np.inf, detail=detail, raised_at=place))])
    else:
        truth = expected(plan.settings, given, model.quantities, answer, dtype)
        findings = compare_quantities(answer, truth, dtype)
    for quantity, finding in findings:
        ratios = course.worst.setdefault(quantity, [])
        ratios += [0.0] * (step + 1 - len(ratios))
        ratios[step] = max(ratios[step], finding.ratio)
        if finding.ratio > 1:
            course.departures.append(Departure(step, quantity, finding))


def compare_quantities(
    answer: Mapping[str, Any], expected: Mapping[str, Bounded], dtype: str
) -> Iterator[tuple[str, Finding]]:
    """Compare every tensor that the implementation tells with the definition's: the quantity, and the worst element."""
    for quantity in QUANTITIES:
        if answer.get(quantity) is None or quantity not in expected:
            continue
        arrays, exact = paths_of(answer[quantity]), expected[quantity]
        for path, (value, error) in exact.items():
            got = None if arrays.get(path) is None else np.asarray(arrays[path])
            kind = str(got.dtype) if got is not None and quantity in SCALARS else dtype
            yield quantity, compare(path, got, Exact(value, np.zeros_like(value)), np.asarray(error), kind)
        surplus = [path for path in arrays if path not in exact]
        yield from ((quantity, Finding(path, np.inf, detail=SurplusTensor())) for path in surplus)
