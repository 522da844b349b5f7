"""Lock-step: honest steps conform, and a wrong one departs first in the quantity that is wrong."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import reference_numpy
from conformance.bounds.arithmetic import Approx, Precision
from conformance.models.error_propagation import walk_steps
from conformance.models.structures import widen_parameters
from conformance.subjects.callables import load
from specification.checkpoints import flatten
from specification.dropout import TransformerDropout
from specification.optimizers import AdamState
from specification.parameters import mapped
from tests.support.helpers import describe_finding
from training.__main__ import app
from training.lockstep import bounds, report, running
from training.lockstep import command as lockstep_command
from training.lockstep.bounds import Adam
from training.lockstep.expected import Given, Model, expected, first_state
from training.lockstep.plans import PLANS
from training.lockstep.running import Course, Lockstep, Plan, after, compare_quantities, in_dtype, judge, lockstep
from training.lockstep.trainers import Answer, FunctionTrainer, PackageTrainer, Trainer
from training.packages import PACKAGES, Reference, converted
from training.task import Batch, Task

DECAY = 0.1
FAULTY_TENSOR = "decoder.blocks.0.cross_attention.query.weight"


class Prepared(NamedTuple):
    """Two steps of a plan, each from the definition's state, with what the definition's model gives there."""

    plan: Plan
    steps: list[tuple[Given, Model]]


@cache
def prepared(task: str, dtype: str, count: int = 2) -> Prepared:
    plan = PLANS[task](0)
    plan = changed(plan, adam={**plan.settings.adam, "weight_decay": DECAY})
    definition = trainer_of(PACKAGES["reference_numpy"], plan)
    state, steps = first_state(plan.parameters, dtype), []
    for step in range(count):
        given = Given(state, *plan.draws(step))
        steps.append((given, Model(plan.settings.task(), given, dtype)))
        state = in_dtype(after(state, definition.step(given._replace(state=in_dtype(state, "float64")))), dtype)
    return Prepared(plan, steps)


def course_of(trainer: Trainer, task: str = "translation", dtype: str = "float64", rows: int | None = None) -> Course:
    """Two steps. rows: of each batch, None for all."""
    plan, steps = prepared(task, dtype)
    course = Course(trainer.name)
    for given, model in steps:
        if rows is not None:
            some = converted((given.batch, given.dropout), lambda array: array[:rows])
            given = Given(given.state, *some)
            model = Model(plan.settings.task(), given, dtype)
        judge(course, trainer, plan, given, model, dtype)
    return course


def course_with(package: Any, planned: Callable[[Plan], Plan] = lambda plan: plan) -> Course:
    """Two steps of the translation, by a package that may be wrong."""
    return course_of(trainer_of(package, planned(prepared("translation", "float64").plan)))


def trainer_of(package: Any, plan: Plan) -> PackageTrainer:
    return PackageTrainer(package, plan.settings)


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other settings, also with such as no run may have."""
    settings = {name: getattr(plan.settings, name) for name in ("task", "rate", "clip", "adam")}
    return plan._replace(settings=SimpleNamespace(**(settings | changes)))  # type: ignore[arg-type]


# --- honest steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", PLANS)
@pytest.mark.parametrize("package", ["torch_impl", pytest.param("jax_impl", marks=pytest.mark.slow), "reference_numpy"])
def test_the_packages_conform(package: str, task: str, dtype: str) -> None:
    plan = prepared(task, dtype).plan
    course = course_of(trainer_of(PACKAGES[package], plan), task, dtype)
    assert course.departures == []
    assert course.worst.keys() >= {"loss", "gradients", "norm", "clipped gradients", "parameters", "predictions"}


class Blended(Reference):
    """Averages as a step from the old one towards the new, and the corrections put together."""

    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        o, t = Adam(**options), state.step + 1
        mean = mapped(lambda m, g: m + (1 - o.beta_1) * (g - m), state.mean, gradients)
        square = mapped(lambda v, g: v + (1 - o.beta_2) * (g * g - v), state.square, gradients)
        first, second = 1 - o.beta_1**t, np.sqrt(1 - o.beta_2**t)

        def moved(p: Any, m: Any, v: Any) -> Any:
            step = o.learning_rate / first * m / (np.sqrt(v) / second + o.eps)
            return p * (1 - o.learning_rate * o.weight_decay) - step

        return mapped(moved, parameters, mean, square), AdamState(t, mean, square)


def test_another_order_of_operations_conforms() -> None:
    course = course_with(Blended())
    assert course.departures == []
    assert max(course.worst["parameters"]) > 0


# --- planted faults ---------------------------------------------------------------------------------------------------


class WrongAdam(Reference):
    """Adam is given other options, and is so many steps ahead."""

    def __init__(self, ahead: int = 0, **options: Any) -> None:
        self.ahead, self.options = ahead, options

    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        state = state._replace(step=state.step + self.ahead)
        return super().adam_step(parameters, gradients, state, **options | self.options)


class EpsInsideTheRoot(Reference):
    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        o, t = Adam(**options), state.step + 1
        _, after = super().adam_step(parameters, gradients, state, **options)

        def moved(p: Any, m: Any, v: Any) -> Any:
            root = np.sqrt(v / (1 - o.beta_2**t) + o.eps)
            return p * (1 - o.learning_rate * o.weight_decay) - o.learning_rate * m / (1 - o.beta_1**t) / root

        return mapped(moved, parameters, after.mean, after.square), after


class SquareOfTheMean(Reference):
    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        parameters, after = super().adam_step(parameters, gradients, state, **options)
        return parameters, after._replace(square=mapped(np.square, after.mean))


class Frozen(Reference):
    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        moved, after = super().adam_step(parameters, gradients, state, **options)
        kept = parameters.encoder.blocks[0].attention.key
        block = moved.encoder.blocks[0]
        block = block._replace(attention=block.attention._replace(key=kept))
        return moved._replace(encoder=moved.encoder._replace(blocks=[block])), after


class InPlace(Reference):
    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        moved, after = super().adam_step(parameters, gradients, state, **options)
        mapped(lambda old, new: np.copyto(old, new), state.mean, after.mean)
        return moved, after


class ClippedAfterwards(Reference):
    """The optimizer has taken the gradients before they were clipped."""

    def clip(self, gradients: Any, limit: float) -> Any:
        self.whole = gradients
        return super().clip(gradients, limit)

    def adam_step(self, parameters: Any, gradients: Any, state: Any, **options: Any) -> Any:
        return super().adam_step(parameters, self.whole, state, **options)


class ClippedByTensor(Reference):
    def clip(self, gradients: Any, limit: float) -> Any:
        _, norm = super().clip(gradients, limit)
        return mapped(lambda g: g * min(1.0, limit / max(np.linalg.norm(g), 1e-30)), gradients), norm


class ClippedLikeTorch(Reference):
    def clip(self, gradients: Any, limit: float) -> Any:
        _, norm = super().clip(gradients, limit)
        return mapped(lambda g: g * min(1.0, limit / (norm + 1e-6)), gradients), norm


class LargestNorm(Reference):
    def clip(self, gradients: Any, limit: float) -> Any:
        clipped, _ = super().clip(gradients, limit)
        return clipped, np.max([np.max(np.abs(g)) for g in flatten(gradients).values()])


class AveragedOverPadding(Reference):
    def loss(self, task: Task, output: Any, batch: Batch) -> Any:
        counted = np.sum(batch.targets != dict(task.loss_options)["ignore"])
        return super().loss(task, output, batch) * counted / batch.targets.size


class SmoothedOverTheOthers(Reference):
    """The smoothing is shared by the V - 1 classes that are not the target."""

    def loss(self, task: Task, output: Any, batch: Batch) -> Any:
        options, V = dict(task.loss_options), output.shape[-1]
        share = options["label_smoothing"] * V / (V - 1)
        wrong = replace(task, loss_options=tuple((options | {"label_smoothing": share}).items()))
        return super().loss(wrong, output, batch)


class NotZeroed(Reference):
    """Gradients are added to those of the step before."""

    before: Any = None

    def step(self, task: Task, parameters: Any, batch: Batch, dropout: Any = None) -> Any:
        found = super().step(task, parameters, batch, dropout)
        if self.before is not None:
            found = found._replace(gradients=mapped(np.add, found.gradients, self.before))
        self.before = found.gradients
        return found


class WrongGradients(Reference):
    """Each gradient is changed, or the one that is named."""

    def __init__(self, change: Callable[[np.ndarray], np.ndarray], tensor: str | None = FAULTY_TENSOR) -> None:
        self.change, self.tensor = change, tensor

    def step(self, task: Task, parameters: Any, batch: Batch, dropout: Any = None) -> Any:
        found = super().step(task, parameters, batch, dropout)
        following = iter(flatten(found.gradients))
        wrong = mapped(lambda g: self.change(g) if self.tensor in (None, next(following)) else g, found.gradients)
        return found._replace(gradients=wrong)


def through_float32(gradient: np.ndarray) -> np.ndarray:
    return gradient.astype("float32").astype("float64")


class WrongDropout(Reference):
    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def step(self, task: Task, parameters: Any, batch: Batch, dropout: Any = None) -> Any:
        return super().step(task, parameters, batch, self.change(dropout))


class StaleMask(Reference):
    last: Any = None

    def step(self, task: Task, parameters: Any, batch: Batch, dropout: Any = None) -> Any:
        last, self.last = self.last or dropout, dropout
        return super().step(task, parameters, batch, last)


class DroppingInEvaluation(Reference):
    last: Any = None

    def step(self, task: Task, parameters: Any, batch: Batch, dropout: Any = None) -> Any:
        self.last = dropout
        return super().step(task, parameters, batch, dropout)

    def predict(self, task: Task, parameters: Any, batch: Batch) -> Any:
        return self.output(task, parameters, batch, self.last)


class LooksAhead(Reference):
    def output(self, task: Task, *arguments: Any, **options: Any) -> Any:
        wrong = replace(task, configuration=replace(task.configuration, target_mask="none"))
        return super().output(wrong, *arguments, **options)


class Raising(Reference):
    def clip(self, gradients: Any, limit: float) -> Any:
        raise RuntimeError("out of memory")


def late(plan: Plan) -> Plan:
    """The warm-up counts from 1 where it should count from 0."""
    return changed(plan, rate=lambda package, step: plan.settings.rate(package, step + 1))


class Fault(NamedTuple):
    """The first departure must be in that quantity, at that step, and in that tensor where one is named."""

    package: Callable[[], Any]
    quantity: str
    step: int = 0
    tensor: str | None = None
    planned: Callable[[Plan], Plan] = lambda plan: plan


FAULTS = {
    "bias correction off by one": Fault(partial(WrongAdam, ahead=1), "parameters"),
    "eps inside the root": Fault(EpsInsideTheRoot, "parameters"),
    "decay coupled with the gradient": Fault(partial(WrongAdam, decoupled=False), "mean"),
    "no decay": Fault(partial(WrongAdam, weight_decay=0.0), "parameters"),
    "betas exchanged": Fault(partial(WrongAdam, beta_1=0.98, beta_2=0.9), "mean"),
    "square of the mean": Fault(SquareOfTheMean, "square"),
    "a tensor frozen": Fault(Frozen, "parameters", tensor="encoder.blocks.0.attention.key.weight"),
    "state changed in place": Fault(InPlace, "arguments"),
    "clipped after the step": Fault(ClippedAfterwards, "mean"),
    "clipped tensor by tensor": Fault(ClippedByTensor, "clipped gradients"),
    "clipped like PyTorch": Fault(ClippedLikeTorch, "clipped gradients"),
    "largest element for the norm": Fault(LargestNorm, "norm"),
    "averaged over padding": Fault(AveragedOverPadding, "loss"),
    "smoothed over V - 1": Fault(SmoothedOverTheOthers, "loss"),
    "gradients not set to 0": Fault(NotZeroed, "gradients", step=1),
    "a gradient transposed": Fault(partial(WrongGradients, np.transpose), "gradients", tensor=FAULTY_TENSOR),
    "a gradient off by a billionth": Fault(
        partial(WrongGradients, lambda g: 1.000000001 * g), "gradients", tensor=FAULTY_TENSOR
    ),
    "a gradient that is not finite": Fault(
        partial(WrongGradients, lambda g: g * np.nan), "gradients", tensor=FAULTY_TENSOR
    ),
    "gradients through float32": Fault(partial(WrongGradients, through_float32, None), "gradients"),
    "dropout left out": Fault(partial(WrongDropout, lambda sites: None), "loss"),
    "dropout of the decoder left out": Fault(
        partial(WrongDropout, lambda sites: TransformerDropout(sites.encoder)), "loss"
    ),
    "last step's keep masks": Fault(StaleMask, "loss", step=1),
    "dropout in evaluation": Fault(DroppingInEvaluation, "predictions"),
    "no causal mask": Fault(LooksAhead, "loss"),
    "an error raised": Fault(Raising, "call"),
    "warm-up from step 1": Fault(Reference, "learning rate", planned=late),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    fault = FAULTS[name]
    course = course_with(fault.package(), fault.planned)
    first = course.departures[0]
    assert (first.step, first.quantity) == (fault.step, fault.quantity)
    assert fault.tensor in (None, first.finding.name)
    if fault.tensor is not None:
        assert {d.finding.name for d in course.departures if (d.step, d.quantity) == first[:2]} <= {
            fault.tensor, fault.tensor.replace("weight", "bias"),
        }  # fmt: skip


@pytest.mark.parametrize("name", ["clipped tensor by tensor", "a gradient transposed", "averaged over padding"])
def test_a_mistake_is_named_where_it_is_made_and_not_behind(name: str) -> None:
    course = course_with(FAULTS[name].package())
    assert {departure.quantity for departure in course.departures} == {FAULTS[name].quantity}


# --- what an implementation does not tell -----------------------------------------------------------------------------


def quiet(package: Any, told: set[str], dtype: str = "float64") -> FunctionTrainer:
    """A trainer that tells these quantities only."""
    plan = prepared("translation", dtype).plan

    def step(given: Given, task: Task, adam: Adam, clip: float) -> Answer:
        answer = trainer_of(package, plan).step(given)
        return {quantity: tree for quantity, tree in answer.items() if quantity in told}

    return FunctionTrainer("quiet", step, plan.settings)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_definitions_gradients_take_the_place_of_gradients_that_are_not_told(dtype: str) -> None:
    course = course_of(quiet(Reference(), {"loss", "parameters"}, dtype), dtype=dtype)
    assert course.departures == []
    assert course.worst.keys() == {"arguments", "loss", "parameters"}


@pytest.mark.parametrize("name", ["a gradient transposed", "clipped tensor by tensor", "eps inside the root"])
def test_parameters_alone_tell_of_a_fault(name: str) -> None:
    course = course_of(quiet(FAULTS[name].package(), {"parameters"}))
    assert course.departures[0].quantity == "parameters"


@pytest.mark.parametrize("answer", [{}, {"gradient": np.zeros(1)}])
def test_results_without_a_known_name_are_refused(answer: Answer) -> None:
    plan = prepared("translation", "float64").plan
    course = course_of(FunctionTrainer("mine", lambda *_: answer, plan.settings))
    first = course.departures[0]
    assert first.quantity == "call"
    assert "the results of a step are among arguments, loss, gradients" in describe_finding(first.finding)


def test_a_missing_and_a_surplus_tensor_depart() -> None:
    plan, [(given, model), _] = prepared("translation", "float64")
    answer = trainer_of(Reference(), plan).step(given)
    gradients = flatten(answer["gradients"])
    gradients["more"] = gradients.pop(FAULTY_TENSOR)
    answer |= {"gradients": gradients}
    truth = expected(plan.settings, given, model.quantities, answer, "float64")
    findings = [finding for _, finding in compare_quantities(answer, truth, "float64")]
    assert [finding.name for finding in findings if finding.ratio > 1] == [FAULTY_TENSOR, "more"]


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0])
def test_gradients_within_their_errors_lead_to_results_within_the_bounds(scale: float) -> None:
    """Also where a gradient is as small as its error, and at a norm close to the limit."""
    rng, p, limit = np.random.default_rng(0), Precision.make("float64"), 1.0
    exact = {name: rng.normal(size=(4, 3)) * scale for name in "ab"}
    exact["a"][0] = 0
    norm = float(np.sqrt(sum(np.sum(g * g) for g in exact.values())))
    exact = {name: g / norm if scale == 1 else g for name, g in exact.items()}
    errors = {name: 1e-3 * scale * rng.random((4, 3)) for name in exact}
    parameters, mean = ({name: rng.normal(size=(4, 3)) for name in exact} for _ in range(2))
    square = {name: rng.random((4, 3)) * scale**2 for name in exact}
    options = Adam(0.1, eps=1e-9, weight_decay=0.1)

    def approximate(tree: Any, errors: Any = None) -> Any:
        return {name: Approx(a, np.zeros_like(a) if errors is None else errors[name]) for name, a in tree.items()}

    clipped, norm_bound = bounds.clipped(approximate(exact, errors), limit, p)
    trees = [approximate(tree) for tree in (parameters, mean, square)]
    moved = bounds.adam(trees[0], clipped, trees[1], trees[2], 3, options, p)
    reached = 0.0
    for _ in range(200):
        signs = {name: rng.choice([-1.0, 1.0], (4, 3)) for name in exact}
        gradients = {name: exact[name] + signs[name] * errors[name] for name in exact}
        small, norm_found = reference_numpy.clip_by_global_norm(gradients, limit)
        new, state = reference_numpy.adam_step(parameters, small, AdamState(3, mean, square), **options._asdict())
        assert abs(norm_found - norm_bound.value) <= norm_bound.error
        pairs = (small, clipped), (state.mean, moved.mean), (state.square, moved.square), (new, moved.parameters)
        for got, bound in pairs:
            for name in exact:
                error = np.abs(got[name] - bound[name].value)
                assert np.all(error <= bound[name].error)
                reached = max(reached, np.max(error / bound[name].error))
    assert reached > 0.3


@pytest.mark.slow
def test_a_unit_at_its_kink_accuses_nobody() -> None:
    """Eight units of ReLU are at 0 for one token, where rounding decides about their slope, and off for all others."""
    plan, [(given, _)] = prepared("translation", "float32", 1)
    inputs: list[Any] = []

    def visit(name: str, step: str, function: Any, arguments: Any, keywords: Any) -> Any:
        if step == "transform":
            inputs.append(arguments[1])
        return function(*arguments, **keywords)

    parameters = widen_parameters(given.state.parameters)
    walk_steps(Model(plan.settings.task(), given, "float32").forward, parameters, visit)
    weight = parameters.encoder.blocks[0].feed_forward.inner.weight[:, :8]
    given = copy.deepcopy(given)
    inner = given.state.parameters.encoder.blocks[0].feed_forward.inner
    inner.bias[:8] = -np.max(inputs[0] @ weight, axis=(0, 1))
    course = Course("torch_impl")
    model = Model(plan.settings.task(), given, "float32")
    judge(course, trainer_of(PACKAGES["torch_impl"], plan), plan, given, model, "float32")
    assert course.departures == []
    # Some have the other slope indeed: their gradients are further off than rounding alone explains.
    assert max(course.worst["gradients"]) > 0.05


# --- the whole run ----------------------------------------------------------------------------------------------------


def test_a_free_run_drifts_and_the_report_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, steps = prepared("translation", "float64")
    monkeypatch.setattr(running, "Model", lambda task, given, dtype: steps[given.state.step][1])
    port, wrong = trainer_of(PACKAGES["torch_impl"], plan), trainer_of(WrongAdam(decoupled=False), plan)
    *_, result = lockstep(plan, [port, wrong, quiet(Reference(), {"loss"})], 2, dtype="float64", seed=0)
    found = json.loads(json.dumps(report.content(result), allow_nan=False))
    ours, theirs, silent = found["implementations"]
    assert (silent["conforms"], silent["drift"], silent["furthest"]) == (True, [], None)
    assert (ours["conforms"], theirs["conforms"], found["conforms"]) == (True, False, False)
    assert theirs["first"]["quantity"] == "mean"
    assert ours["drifted"]["1e-15"] == 0
    assert ours["drifted"]["1e-6"] is None
    assert theirs["drifted"]["1e-6"] == 0
    assert ours["drift"][1] > ours["drift"][0] > 0
    assert ours["furthest"].endswith("key.bias")  # the gradient is 0 but for rounding
    assert abs(ours["losses"][1] - found["losses"][1]) < 1e-9
    page = report.as_page(found)
    assert "Departs from the definition" in page
    assert "mean decoder" in page or "mean encoder" in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/", "")


RUNNER = CliRunner()
report_console = Console(width=400, markup=False)
EXAMPLE = Path(__file__).parents[2] / "examples" / "training_step.py"


def test_the_command_names_where_a_step_of_ones_own_departs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, steps = prepared("translation", "float64")
    monkeypatch.setattr(running, "Model", lambda task, given, dtype: steps[given.state.step][1])
    out = tmp_path / "report"
    found = RUNNER.invoke(app, ["lockstep", "--steps", "1", "--subject", f"{EXAMPLE}:step", "--out", str(out)])
    assert found.exit_code == 1, found.output
    told = json.loads((out / "report.json").read_text())
    [one] = told["implementations"]
    assert {departure["quantity"] for departure in one["departures"]} == {"clipped gradients"}
    assert len(one["drift"]) == 1
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "training_step.py:step" in (out / "report.html").read_text()


@pytest.mark.parametrize("name", ["an error raised", "a gradient that is not finite", "a tensor frozen"])
def test_every_departure_can_be_written_and_shown(name: str) -> None:
    course = course_with(FAULTS[name].package())
    course.name = "<script>"
    found = report.content(Lockstep("translation", "float64", 0, 2, [course], [3.4, 3.3]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    first = found["implementations"][0]["first"]
    assert first["quantity"] == FAULTS[name].quantity
    words = report.departure_text(first)
    assert words.startswith(f"step 0: {first['quantity']} ")
    assert ("(raised at " in words) == (name == "an error raised")
    assert name != "an error raised" or re.search(r"test_lockstep\.py:\d+ in clip\)$", words)
    page = report.as_page(found)
    assert "<script>" not in page
    assert "Departs from the definition" in page
    with report_console.capture() as captured:
        report_console.print(report.terminal(found))
    assert " ".join(words.split()) in " ".join(captured.get().split())


def test_steps_of_the_table_and_when_a_run_has_drifted() -> None:
    drift = [2 * 10.0 ** (step - 16) for step in range(30)]
    found = report.content(Lockstep("reviews", "float64", 0, 30, [Course("x", {}, [], [1.0] * 30, drift)], [1.0] * 30))
    assert report.shown_steps(found) == [0, 1, 4, 9, 19, 29]
    drifted = {"1e-15": 1, "1e-12": 4, "1e-9": 7, "1e-6": 10, "1e-3": 13, "1e0": 16}
    assert found["implementations"][0]["drifted"] == drifted


def test_an_interrupted_run_reports_the_steps_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_step(*arguments: Any, **options: Any) -> Iterator[Lockstep]:
        yield Lockstep(
            "translation", "float64", 0, 20, [Course("x", {"loss": [0.5]}, [], [3.4], [1e-12], ["a"])], [3.4]
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(lockstep_command, "lockstep", one_step)
    found = RUNNER.invoke(app, ["lockstep", "--out", str(tmp_path)])
    assert found.exit_code == 130
    assert json.loads((tmp_path / "report.json").read_text())["steps"] == 1
    assert "interrupted" in found.output


@pytest.mark.parametrize(("clip", "departing"), [(np.inf, set()), (0.5, {"clipped gradients"})])
def test_pytorchs_own_loss_and_adam_conform_and_its_clipping_departs(clip: float, departing: set[str]) -> None:
    steps = prepared("translation", "float64").steps
    plan = changed(PLANS["translation"](0), clip=clip)
    course, trainer = Course("PyTorch"), FunctionTrainer("PyTorch", load(f"{EXAMPLE}:step"), plan.settings)
    for given, model in steps:
        judge(course, trainer, plan, given, model, "float64")
    assert {departure.quantity for departure in course.departures} == departing
    assert course.worst.keys() >= {"loss", "gradients", "mean", "square", "parameters"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "chess"], "--task must be one of translation, reviews, got 'chess'"),
        (["--only", "numpy"], "--only must be one of"),
        (["--dtype", "float16"], "--dtype must be one of float64, float32, got 'float16'"),
        (["--subject", "nothing.py:step"], "nothing.py cannot be imported"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    found = RUNNER.invoke(app, ["lockstep", "--steps", "1", *arguments, "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert message in found.output
