"""Data-parallel training: steps on ranks are held to the definition's step of the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specification.parameters import leaves
from tests.support.devices import Devices
from tests.support.ranks import Ranks
from tests.support.small_runs import OPTIONS, command, logged, write_reviews
from tests.training.test_lockstep import course_of, prepared, trainer_of
from training.lockstep.plans import PLANS
from training.ranks import JaxOnDevices, TorchOnRanks
from training.translation.vocabulary import PADDING

RANKS = 3


class RanksCountAlike(TorchOnRanks):
    """A rank with fewer targets counts as much as one with more."""

    def share(self, counted: np.ndarray, rows: np.ndarray) -> float:
        return 1 / self.ranks


class GradientsOfOwnRows(TorchOnRanks):
    """Without the wrapper that takes the mean over ranks."""

    def wrap(self, parameters: Any) -> Any:
        return Alone(super().wrap(parameters).module)


class Alone(SimpleNamespace):
    """A module in place of its wrapper."""

    def __init__(self, module: Any) -> None:
        super().__init__(module=module, zero_grad=module.zero_grad)

    def __call__(self, *arguments: Any) -> Any:
        return self.module(*arguments)


class SumOverRanks(TorchOnRanks):
    """The sum over ranks in place of their mean."""

    def share(self, counted: np.ndarray, rows: np.ndarray) -> float:
        return super().share(counted, rows) * self.ranks


FAULTS = {fault.__name__: fault for fault in (RanksCountAlike, GradientsOfOwnRows, SumOverRanks)}


def departures(kind: type, ranks: int, task: str, rows: int | None = None) -> set[str]:
    """The quantities of two steps that are beyond their bounds, and of which there are results."""
    course = course_of(trainer_of(kind(ranks), prepared(task, "float64").plan), task, rows=rows)
    assert course.worst.keys() >= {"loss", "gradients", "parameters", "predictions"}
    return {departure.quantity for departure in course.departures}


def departures_on_a_rank(given: tuple[type, str, int | None], group: Any) -> set[str]:
    kind, task, rows = given
    return departures(kind, RANKS, task, rows)


@pytest.fixture(scope="module")
def processes() -> Iterator[Ranks]:
    with Ranks(RANKS) as ranks:
        yield ranks


@pytest.mark.slow_where("translation")
@pytest.mark.parametrize("task", PLANS)
def test_steps_on_ranks_conform(processes: Ranks, task: str) -> None:
    batch, _ = prepared(task, "float64").plan.draws(0)
    assert len(batch.targets) % RANKS != 0
    assert processes.ask(departures_on_a_rank, [(TorchOnRanks, task, None)] * RANKS) == [(set(), None)] * RANKS


@pytest.mark.slow_where("translation")
@pytest.mark.parametrize("task", PLANS)
def test_a_rank_without_targets(processes: Ranks, task: str) -> None:
    """Of two rows, the last of three ranks has none."""
    assert processes.ask(departures_on_a_rank, [(TorchOnRanks, task, 2)] * RANKS) == [(set(), None)] * RANKS


def step_without_targets(task: str, group: Any) -> tuple[float, float]:
    """The loss of a batch of padding, and its largest gradient."""
    plan, ((given, _), _) = prepared(task, "float64")
    package, targets = TorchOnRanks(RANKS), np.full_like(given.batch.targets, PADDING)
    parameters, batch = package.arrays(given.state.parameters), given.batch._replace(targets=targets)
    step = package.step(plan.settings.task(), parameters, batch)
    return float(step.loss), max(float(gradient.abs().max()) for gradient in leaves(step.gradients).values())


def test_ranks_of_which_none_has_targets(processes: Ranks) -> None:
    assert processes.ask(step_without_targets, ["translation"] * RANKS) == [((0, 0), None)] * RANKS


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(processes: Ranks, fault: str) -> None:
    for found, error in processes.ask(departures_on_a_rank, [(FAULTS[fault], "reviews", None)] * RANKS):
        assert error is None
        assert "gradients" in found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3], ids=["rows spread", "rows the same on all"])
@pytest.mark.parametrize("task", PLANS)
def test_steps_on_devices_conform(task: str, ranks: int) -> None:
    batch, _ = prepared(task, "float64").plan.draws(0)
    assert (len(batch.targets) % ranks == 0) == (ranks == 2)
    with Devices() as process:
        assert process.ask(departures, JaxOnDevices, ranks, task) == set()


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torch_impl", "jax_impl"])
def test_a_run_on_ranks(package: str, tmp_path: Path) -> None:
    """It takes the steps of a run in one process, resumes one, and leaves the same files."""
    data = write_reviews(tmp_path / "reviews")
    alone, together = tmp_path / "alone", tmp_path / "together"
    words = ["--data", data, *OPTIONS, "--dtype", "float64", "--package", package]
    assert command("reviews", *words, "--out", alone).exit_code == 0
    for more in (["--steps", 3], ["--resume"]):
        program = [sys.executable, "-m", "training", "reviews", *words, "--out", together, "--ranks", 2, *more]
        done = subprocess.run([*map(str, program)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("naive Bayes") == 1  # one rank speaks
    assert logged(together, "loss") == pytest.approx(logged(alone, "loss"), rel=1e-12)
    assert {one.name for one in together.iterdir()} == {one.name for one in alone.iterdir()} | {"step-0000003"}


@pytest.mark.parametrize(
    ("package", "environment", "message"),
    [
        ("reference_numpy", {}, "--ranks needs torch_impl or jax_impl, got reference_numpy"),
        ("torch_impl", {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
         "--ranks is 2, and there are 1 processes"),
    ],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused(package: str, environment: dict[str, str], message: str) -> None:
    program = [sys.executable, "-m", "training", "reviews", "--package", package, "--ranks", "2"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, env=os.environ | environment)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
