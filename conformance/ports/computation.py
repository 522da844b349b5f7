"""The definition of a model on one input, step by step, where steps may be taken otherwise.

A known mistake of a port is a definition in which some steps are given other arguments, or are other functions
(`mistakes.py`). The scale of honest errors is that of a definition whose steps round at random (`noise.py`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from conformance.models.instrumentation import instrument_package
from specification.configuration import Configuration
from specification.parameters import ModelParameters


class Step(NamedTuple):
    """One step of a model that is about to be taken.

    name: that of its parameters, such as "blocks.1.feed_forward", or what follows the step before it.
    kind: the definition's function for such steps, such as "transform".
    """

    name: str
    kind: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def take(self) -> Any:
        return self.function(*self.arguments, **self.keywords)

    def argument(self, index: int, new: object) -> Step:
        """Return the step with another positional argument."""
        return self._replace(arguments=(*self.arguments[:index], new, *self.arguments[index + 1 :]))


Rewrite = Callable[[Step], Step]
"""From a step to the one that is taken in its place."""


class Instrument:
    """The definition's functions for some parameters, whose steps go through `visit`, which may be set anew."""

    def __init__(self, parameters: ModelParameters) -> None:
        self.parameters = parameters  # alive, as the names of steps go by identity
        self.visit: Callable[..., Any] = lambda *_: None
        self.functions = instrument_package("reference_numpy", parameters, lambda *step: self.visit(*step))


@lru_cache(maxsize=2)
def find_instrument(identity: int) -> list[Instrument]:
    """Return a list that holds the instrument for the parameters of this identity, once there is one."""
    return []


def instrument_parameters(parameters: ModelParameters) -> Instrument:
    """Return an instrument for the parameters. Those used last are kept: one takes as long to make as a small model."""
    kept = find_instrument(id(parameters))
    if not kept or kept[0].parameters is not parameters:
        kept[:] = [Instrument(parameters)]
    return kept[0]


@dataclass(frozen=True, eq=False)
class Computation:
    """A model's forward pass in float64.

    Attributes:
        parameters: the definition's, in float64.
        configuration: what the parameters do not say.
        inputs: tokens, images or embeddings.
        options: masks and token types by keyword, as a model of `reference_numpy` takes them.
        rewrites: what is done to every step, one after another.
        chunks: lengths of the parts in which a port decodes the tokens with a cache; the definition takes them at once.
    """

    parameters: ModelParameters
    configuration: Configuration
    inputs: tuple[np.ndarray, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    chunks: tuple[int, ...] = ()

    def change(self, **fields: Any) -> Computation:
        return replace(self, **fields)

    def rewrite(self, rewrite: Rewrite) -> Computation:
        """Return the computation with one more rewrite of its steps."""
        return replace(self, rewrites=(*self.rewrites, rewrite))

    def run(self, watch: Callable[[str, Any], object] | None = None, steps: Mapping[str, Any] | None = None) -> Any:
        """Return the model's result.

        Args:
            watch: is given each step's name and result.
            steps: functions in the place of the definition's, by kind of step.
        """
        taken = {} if steps is None else steps

        def visit(
            name: str, kind: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
        ) -> Any:
            step = Step(name, kind, taken.get(kind, function), arguments, keywords)
            for rewrite in self.rewrites:
                step = rewrite(step)
            result = step.take()
            if watch is not None:
                watch(name, result)
            return result

        instrument = instrument_parameters(self.parameters)
        instrument.visit = visit
        call = instrument.functions.MODELS[type(self.parameters)]
        with np.errstate(all="ignore"):
            return call(self.parameters, *self.inputs, configuration=self.configuration, **self.options)


# --- functions with other functions inside ---------------------------------------------------------------------------


def copy_functions(own: dict[str, Any], *modules: types.ModuleType) -> dict[str, Any]:
    """Return copies of the modules' functions, which find those of `own` under their names."""
    found: dict[str, Any] = {}
    for module in modules:
        names = dict(vars(module))
        functions = {name: inspect.unwrap(f) for name, f in names.items() if callable(f) and is_defined_in(f, module)}
        for name, function in functions.items():
            copy = types.FunctionType(function.__code__, names, name, function.__defaults__, function.__closure__)
            copy.__kwdefaults__ = function.__kwdefaults__
            names[name] = found[name] = copy
        names |= own
    return found | own


def is_defined_in(function: Callable[..., Any], module: types.ModuleType) -> bool:
    plain = inspect.unwrap(function)
    return isinstance(plain, types.FunctionType) and plain.__module__ == module.__name__
