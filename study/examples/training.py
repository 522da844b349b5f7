"""Learning rates over the first steps, and initial weights from a few random numbers, in all three packages."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from conformance.bounds.arithmetic import UNIT_ROUNDOFF
from conformance.bounds.optimizers import INITIAL_WEIGHTS, SCHEDULES
from study.examples.calls import numbers
from study.examples.parts import Part, Shown, counted
from study.examples.running import in_each, named, verdict

if TYPE_CHECKING:
    from conformance.subjects.frameworks import Framework

STEPS = 8
WARMUP: dict[str, dict[str, int]] = {
    "linear_warmup": {"steps": 4},
    "inverse_square_root": {"width": 16, "warmup": 4},
    "cosine_decay": {"steps": 7},
}
"""By schedule, its lengths."""
UNIFORM = np.random.default_rng(60).integers(100, size=(3, 4)) / 100
"""From [0, 1), as INIT-1 requires: 1 itself is refused."""
NORMAL = numbers(61, 4, 3)


def schedules() -> list[Part]:
    return [named(f"the example {name}", schedule, name, **lengths) for name, lengths in WARMUP.items()]


def schedule(name: str, **lengths: int) -> Part:
    def run(package: ModuleType, framework: Framework) -> np.ndarray:
        return np.array([float(getattr(package, name)(step, **lengths)) for step in range(STEPS)])

    rates = in_each(run)
    exact = rates["reference_numpy"]
    allowed = SCHEDULES[name] * UNIT_ROUNDOFF["float64"] * exact
    given = ", ".join(f"{key}={value}" for key, value in lengths.items())
    shown = Shown("by step", exact, columns=counted("step", STEPS))
    says = f"What `{name}` gives in the first {STEPS} steps."
    return Part(name, says, f"{name}(step, {given})", (), (shown,), (), verdict(rates, exact, allowed, "the rates"))


def initial_weights() -> list[Part]:
    calls = {"linear_default": "weight", "xavier_uniform": ""}
    found = [named(f"the example {name}", part, name, field, UNIFORM, "uniform") for name, field in calls.items()]
    return [*found, named("the example embedding_default", part, "embedding_default", "", NORMAL, "normal", padding=0)]


def part(name: str, field: str, drawn: np.ndarray, argument: str, **options: int) -> Part:
    """field: of the result, where that is a structure."""

    def run(package: ModuleType, framework: Framework) -> np.ndarray:
        found = getattr(package, name)(framework.array(drawn.astype(np.float32)), **options)
        return np.array(framework.numpy(getattr(found, field) if field else found))

    weights = in_each(run)
    exact = weights["reference_numpy"].astype(np.float64)
    allowed = INITIAL_WEIGHTS * UNIT_ROUNDOFF["float32"] * np.abs(exact)
    says = "The same random numbers give the same weights in all three packages."
    given = "".join(f", {key}={value}" for key, value in options.items())
    steps = (Shown("weights", exact.astype(np.float32)),)
    call = f"{name}({argument}{given})"
    return Part(name, says, call, (Shown(argument, drawn),), steps, (), verdict(weights, exact, allowed, "the weights"))
