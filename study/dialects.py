"""Where a dialect differs from the definition's defaults, option by option, and by how much the result changes."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import reference_numpy
from conformance.cli.run import FRAMEWORKS
from conformance.models.agreement import call_model, round_inputs
from conformance.models.error_propagation import carried_bound
from conformance.models.stepwise import framework_of
from conformance.models.structures import widen_parameters
from conformance.side_by_side.sources import PACKAGES
from reference_numpy import Model
from specification.configuration import Configuration
from specification.fitting import misfits
from specification.parameters import Embedding, ImageEmbedding
from study.checkpoints import Small, drawn, small
from study.examples.running import disagreement, distance, ratio
from study.structures import every, fused, per_head, without_tables

TABLES = ("learned", "after_padding")
"""Positions that are rows of a table."""


class Option(NamedTuple):
    """One choice of the configuration that is not the default."""

    name: str
    here: Any
    default: Any


class Effect(NamedTuple):
    """What comes of switching options back to their defaults: dialect minus definition, or why it cannot be done."""

    change: np.ndarray | None = None
    without: str = ""
    note: str = ""

    @property
    def largest(self) -> float:
        return 0.0 if self.change is None else float(np.abs(self.change).max())

    @property
    def typical(self) -> float:
        """The median of all elements."""
        return 0.0 if self.change is None else float(np.median(np.abs(self.change)))


class Agreement(NamedTuple):
    """errors: by package, from the definition in float64, in units of the bound. apart: the same of two packages."""

    errors: dict[str, float]
    apart: float
    absolute: float  # the largest difference of two packages as it is


class Studied(NamedTuple):
    """output: the dialect's, in float64. alone: by option. together: all that can be switched back at once."""

    small: Small
    configuration: Configuration
    parameters: Any
    options: tuple[Option, ...]
    output: np.ndarray
    alone: dict[str, Effect]
    together: Effect
    switched: tuple[Option, ...]
    fused: Effect | None  # of projections of each head, made one; None where there are none
    asked: frozenset[str]  # the options that the model looks at on this input


def differing(configuration: Configuration) -> tuple[Option, ...]:
    """Every choice that is not the definition's default; the number of heads has none."""
    given = [(field.name, getattr(configuration, field.name), field.default) for field in fields(configuration)]
    return tuple(Option(*one) for one in given if one[0] != "num_heads" and one[1] != one[2])


# --- switching back ---------------------------------------------------------------------------------------------------


def hindrance(model: Model, option: Option) -> str:
    """Why an option cannot be switched with the same weights; empty where it can."""
    if option.name == "positions" and every(ImageEmbedding, model.parameters):
        return "An embedding of images adds learned positions of its own."
    if option.name == "positions" and not every(Embedding, model.parameters):
        return "The model reads embeddings and adds no positions."
    other = switched(model, (option,))
    problems = misfits(other.parameters, other.configuration)
    return f"The weights do not fit it: {problems[0]}." if problems else ""


def switched(model: Model, options: tuple[Option, ...]) -> Model:
    """The model with these options at their defaults. A table of positions that is then not read is left out."""
    configuration = replace(model.configuration, **{option.name: option.default for option in options})
    tables = configuration.positions in TABLES
    return Model(model.parameters if tables else without_tables(model.parameters), configuration)


def run(model: Model, one: Small) -> np.ndarray:
    """In float64, from the same numbers."""
    return np.asarray(model(*round_inputs(tuple(one.inputs.values()), "float32"), **one.options))


def asked(model: Model, one: Small) -> frozenset[str]:
    """The options that the model looks at while it runs."""
    found: set[str] = set()

    class Watched(Configuration):
        def __getattribute__(self, name: str) -> Any:
            found.add(name)
            return super().__getattribute__(name)

    watched = Watched(**{field.name: getattr(model.configuration, field.name) for field in fields(Configuration)})
    found.clear()
    run(Model(model.parameters, watched), one)
    return frozenset(found & {field.name for field in fields(Configuration)})


def effect(model: Model, one: Small, options: tuple[Option, ...], output: np.ndarray) -> Effect:
    dropped = any(option.name == "positions" and option.here in TABLES for option in options)
    note = "The model then does not read the table of positions." if dropped else ""
    return Effect(output - run(switched(model, options), one), note=note)


@cache
def studied(dialect: str) -> Studied:
    """The dialect's small model, with each option that differs switched back alone, and all of them."""
    one = small()[dialect]
    loaded = reference_numpy.load(dialect, drawn(one.entries), **one.hyperparameters)
    model = Model(widen_parameters(loaded.parameters), loaded.configuration)
    options = differing(model.configuration)
    output = run(model, one)
    reasons = {option.name: hindrance(model, option) for option in options}
    can = tuple(option for option in options if not reasons[option.name])
    alone = {
        option.name: effect(model, one, (option,), output) if option in can else Effect(without=reasons[option.name])
        for option in options
    }
    together = effect(model, one, can, output)
    joined = replace(model, parameters=fused(model.parameters))
    apart = Effect(output - run(joined, one)) if per_head(model.parameters) else None
    return Studied(
        one, model.configuration, model.parameters, options, output, alone, together, can, apart, asked(model, one)
    )


# --- the three packages -----------------------------------------------------------------------------------------------


def missing() -> list[str]:
    """Packages of the project whose framework is not installed."""
    return [package for package, needed in FRAMEWORKS.items() if importlib.util.find_spec(needed) is None]


@cache
def agreement(dialect: str) -> Agreement:
    """The same checkpoint loaded and called in all packages, in float32."""
    one = small()[dialect]
    checkpoint, inputs = drawn(one.entries), tuple(one.inputs.values())
    found = studied(dialect)

    def definition(functions: SimpleNamespace) -> Any:
        called_by = functions.MODELS[type(found.parameters)]
        given = round_inputs(inputs, "float32")
        return called_by(found.parameters, *given, configuration=found.configuration, **one.options)

    exact, bound = carried_bound(definition, found.parameters, "float32")
    answers = {}
    for package in PACKAGES:
        if package not in missing():
            with framework_of(package).context():
                model = importlib.import_module(package).load(dialect, checkpoint, **one.hyperparameters)
            answers[package] = call_model(package, model, inputs, dict(one.options))
    errors = {package: ratio(answer, exact, bound) for package, answer in answers.items()}
    absolute = max((distance(a, b) for a, b in itertools.combinations(answers.values(), 2)), default=0.0)
    return Agreement(errors, disagreement(answers, bound), absolute)
