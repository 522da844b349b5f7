"""What a known mistake is, and what it predicts for a test case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import LARGEST
from conformance.cases.arguments import expected_dtype, is_gradient, replace_kernel_arguments
from conformance.cases.case import Case
from conformance.checks.comparison import PRECISION
from conformance.mistakes.attention_steps import AttentionSteps
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import ALWAYS, Condition
from conformance.oracle.reference import evaluate_definition


class Prediction(NamedTuple):
    """The results of a computation with a mistake, and how far an implementation of it may be off.

    A bound of infinity means that nothing is predicted of an element. What is not among the results is not predicted.
    fit: where roundings decide what comes out, the nearest result to an answer (by name) that the mistake can have;
    None where there is one only. The results are then an example.
    """

    results: Results
    bounds: Results
    fit: Callable[[str, np.ndarray], np.ndarray] | None = None

    def agrees(self, name: str, got: np.ndarray) -> bool:
        """Whether an answer lies within the bounds of the prediction."""
        predicted, bounds = self.results[name], self.bounds[name]
        if got.shape != predicted.shape:
            return False
        wide = got.astype(float)
        with np.errstate(all="ignore"):
            predicted = predicted if self.fit is None else self.fit(name, wide)
            same = (wide == predicted) | (np.isnan(wide) & np.isnan(predicted)) | np.isposinf(bounds)
            near = np.abs(wide - predicted) <= bounds
            too_large = np.abs(predicted) + bounds >= LARGEST.get(str(got.dtype), np.finfo(float).max)
            overflows = np.isinf(wide) & (np.sign(wide) == np.sign(predicted)) & too_large
        return bool(np.all(same | near | overflows))

    def differs(self, name: str, right: np.ndarray, bounds: np.ndarray) -> bool:
        """Whether some element lies farther from the right one than both bounds together."""
        predicted, own = self.results[name], self.bounds[name]
        if predicted.shape != right.shape:
            return True
        with np.errstate(all="ignore"):
            numbers = np.isfinite(predicted) & np.isfinite(right)
            same = (predicted == right) | (np.isnan(predicted) & np.isnan(right))
            apart = np.where(numbers, np.abs(predicted - right) > own + bounds, ~same)
        return bool(np.any(apart & ~np.isposinf(own)))

    def keep_pass(self, passes: str) -> Prediction:
        """Without what the other pass computes, which is right."""
        kept = {n: a for n, a in self.results.items() if passes == "both" or is_gradient(n) == (passes == "backward")}
        return self._replace(results=kept)

    def is_apart(self, results: Results, bounds: Results) -> bool:
        """Whether one of the results that both have differs."""
        return any(self.differs(name, results[name], bounds[name]) for name in self.results.keys() & results.keys())


Changed: TypeAlias = Case | AttentionSteps | Results | Prediction | None
"""What a change makes of a call: another case that is answered in its place, other steps of attention, the results
themselves, a prediction with bounds of its own, or None where the call has no place for the mistake."""
Change = Callable[..., "Changed | Sequence[Changed]"]
"""change(call, **values); a list holds several ways in which implementations make the same mistake."""


@dataclass(frozen=True)
class Mistake:
    """A mistake that implementations make.

    Attributes:
        id: `topic.words-with-hyphens`; never changes.
        rule: the rule of the specification that it breaks.
        says: the mistake in one sentence, with `{parameter}` for the value of a parameter.
        change: what it makes of a call, see `Change`.
        operations: those that it is a mistake of; it is planted in the first.
        parameters: the values of each parameter that implementations have; the first is planted.
        lacks: the feature that an implementation with the mistake may declare that it does not support.
        needs: what a call has in which it can show, see `Call.argument_names`.
        values: the chosen value of each parameter.
        condition: when it shows.
        of_gradients: whether it is one of the backward pass, and predicts no results.
        rounds: what it computes with fewer digits and otherwise right: a convention's name where one says just that.
        of_special_values: whether it is one about NaN and infinity, which no other shows by what a mask hides.
    """

    id: str
    rule: str
    says: str
    change: Change
    operations: tuple[str, ...] = ("attention",)
    parameters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    lacks: str = ""
    needs: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    condition: Condition = ALWAYS
    of_gradients: bool = False
    rounds: str = ""
    of_special_values: bool = False

    def __str__(self) -> str:
        """The id with what is chosen, such as "keys.left-out (first=64)"."""
        chosen = ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in self.values.items())
        return f"{self.id} ({chosen})" if chosen else self.id

    def limit(self, condition: Condition) -> Mistake:
        """The same mistake where a condition holds."""
        return replace(self, condition=condition)

    def choose(self, **values: object) -> Mistake:
        """The mistake with these values of its parameters, and the first of the others."""
        first = {name: choices[0] for name, choices in self.parameters.items()}
        unknown = values.keys() - first.keys()
        if unknown:
            raise ValueError(f"{self.id} has no parameter {', '.join(unknown)}")
        return replace(self, values=first | values)

    def plant_in(self, *operations: str, rule: str = "") -> Mistake:
        """The mistake in other operations, where it breaks their rule."""
        return replace(self, operations=operations, rule=rule or self.rule)

    def variants(self) -> Iterator[Mistake]:
        """The mistake with every combination of the values of its parameters."""
        for values in product(*map(dict.fromkeys, self.parameters.values())):
            yield replace(self, values=dict(zip(self.parameters, values, strict=True)))

    def predict(self, call: Call, solve: Callable[[Case], Results] | None = None) -> list[Prediction]:
        """Predict the results of an implementation with the mistake.

        Args:
            call: the case.
            solve: computes the results of another case that is answered in its place.

        Returns:
            One prediction for each way to make the mistake; none where it makes no difference to the case.
        """
        case = call.case
        possible = case.operation in self.operations and call.argument_names.issuperset(self.needs)
        if not possible or not self.condition.holds(call):
            return []
        with np.errstate(all="ignore"):
            changed = self.change(call, **self.values)
            ways = changed if isinstance(changed, list) else [changed]
            passes = self.condition.passes
            found = [one.keep_pass(passes) for way in ways for one in predictions_of(call, way, passes, solve)]
        return [one for one in found if one.results]


ATTENTION = ("attention", "attention_weights", "attention_logsumexp")
"""Operations that have steps of attention."""


@dataclass(frozen=True)
class Topic:
    """What the mistakes of a file have in common: the first word of their ids, and what is usual."""

    name: str
    rule: str = ""
    operations: tuple[str, ...] = ATTENTION
    of_gradients: bool = False
    rounds: str = ""
    of_special_values: bool = False

    def entry(
        self, name: str, says: str, change: Change, /, *, rule: str = "", operations: tuple[str, ...] = (),
        lacks: str = "", needs: tuple[str, ...] = (), **parameters: Sequence[Any],
    ) -> Mistake:  # fmt: skip
        usual = rule or self.rule, says, change, operations or self.operations
        entry = Mistake(f"{self.name}.{name}", *usual, parameters, lacks, needs)
        gradients, special = self.of_gradients, self.of_special_values
        return replace(entry, of_gradients=gradients, rounds=self.rounds, of_special_values=special)

    def entries(self, make: Callable[[Any], Change], *rows: Sequence[Any], **fields: Any) -> tuple[Mistake, ...]:
        """One for each row: its name, what it says, what `make` makes its change of, and its parameters."""
        return tuple(
            self.entry(name, says, make(step), **fields, **dict(*parameters)) for name, says, step, *parameters in rows
        )


def name_entries(mistakes: Sequence[Mistake]) -> dict[str, Mistake]:
    """By what their ids say after the topic."""
    return {mistake.id.partition(".")[2]: mistake for mistake in mistakes}


def predictions_of(
    call: Call, changed: Any, passes: str, solve: Callable[[Case], Results] | None
) -> Iterator[Prediction]:
    if changed is None:
        return
    if isinstance(changed, Case) and changed.operation == call.case.operation and changed.operation in ATTENTION:
        changed = AttentionSteps.read_case(changed)  # much faster than the definition with its bounds
    if isinstance(changed, Prediction):
        yield changed
    elif isinstance(changed, Case):
        # By the definition in float64, which may be as far off as any float64 code is.
        own = 2.0 if changed.dtype == "float64" else 1.0
        with suppress(ValueError):  # the definition refuses the other case
            results = solve_by_definition(changed) if solve is None else solve(changed)
            yield Prediction(results, {name: own * limits for name, limits in bound(changed).items()})
    elif isinstance(changed, AttentionSteps):
        for results in results_of_steps(call, changed, passes):
            yield add_bounds(call, results)
    else:
        yield add_bounds(call, changed)


def solve_by_definition(case: Case) -> Results:
    return {name: exact.high for name, exact in evaluate_definition(replace_kernel_arguments(case)).items()}


def results_of_steps(call: Call, steps: AttentionSteps, passes: str) -> Iterator[Results]:
    """Results and gradients of attention by other steps, in each way in which they may be computed.

    Steps may leave a row no key that has one: it holds zeros, the mean of the values or NaN. A backward pass that alone
    is wrong has its weights from these steps or from the forward pass's log-sum-exp, where there is one, and the mean
    from the weights' gradient or from the output. Steps with another `weigh` predict no gradients, and neither do
    calls with NaN or infinity, where these may stand behind a mask.
    """
    fillings: tuple[str, ...] = (steps.empty_rows,)
    if steps.sinks is None and steps.operation != "attention_logsumexp":
        emptied = call.steps.allowed_pairs.any(axis=-1) & ~steps.allowed_pairs.any(axis=-1)
        if emptied.any() and steps.empty_rows in ("zero", "any"):
            fillings = ("zero", "mean", "nan")
    graded = call.case.cotangents and not call.case.special and steps.weigh is None
    for filling in fillings:
        filled = steps.change(empty_rows=filling)
        forward = filled.forward()
        found = filled.results(forward)
        if not graded:
            yield found
            continue
        weights, means = [forward.weights], [None]
        if passes == "backward" and steps.operation == "attention":
            saved = np.where(steps.allowed_pairs, np.exp(filled.all_scores() - call.forward.logsumexp), 0)
            weights.append(saved)
            if not np.isfinite(call.forward.logsumexp).all():  # rows that were empty are left out as before
                weights.append(np.where(np.isfinite(call.forward.logsumexp), saved, 0))
            means.append(np.sum(call.cotangent() * call.forward.output, axis=-1, keepdims=True))
        for one, mean in product(weights, means):
            gradients = filled.pull_back(call.case.cotangents, one, mean=mean)
            yield found | filled.sum_gradients(gradients, call.case.inputs)


def add_bounds(call: Call, results: Results) -> Prediction:
    """Results with the bounds that the right computation would have on numbers as large as theirs.

    A computation with a mistake rounds as often as the right one, in other elements: so the bound of every element is
    the largest one of the result, as many times larger as its largest number is. It counts twice, and so does the
    rounding of the result: once for the implementation, once for the definition's own steps.
    """
    bounds = {}
    for name, array in results.items():
        if name not in call.right or name not in call.bounds:
            continue
        largest_right, limit = call.largest[name]
        sizes = np.abs(array)
        sizes = np.where(np.isfinite(sizes), sizes, 0)
        growth = max(1.0, float(sizes.max(initial=0)) / largest_right) if largest_right else 1.0
        digits = PRECISION.get(expected_dtype(name, call.case), (np.inf, 0))[0]  # whole numbers are not rounded
        bounds[name] = np.asarray(2 * (limit * growth + 2.0**-digits * sizes))
    return Prediction({name: np.asarray(results[name], float) for name in bounds}, bounds)
