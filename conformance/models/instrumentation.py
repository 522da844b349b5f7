"""Copies of an implementation, in which every step of a model can be seen and changed.

A model is made of functions that call one another by name: `encoder_block` calls `residual`, that calls `attend`, `add`
and `normalize`. The copies share the originals' code and look names up in a dictionary of
their own, where each step is wrapped. The originals stay as they are, and none of them knows of this.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import types
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from reference_numpy.tape import GRADIENTS, Call, operation, pull_back
from specification.calls import Functions, model_calls

if TYPE_CHECKING:
    from specification.parameters import ModelParameters

FILES = ("tape", "blocks", "blocks_vjp", "transformer", "transformer_vjp", "losses", "losses_vjp", "models")
NAMED = ("attend", "transform", "normalize", "multi_head_attention", "linear", "embedding", "learned_positions")
"""Steps that are named after the parameters that they are given first."""
STEPS = {
    *NAMED,
    *("add", "accumulate", "drop", "sinusoidal_positions", "relative_position_bias", "patches", "prepend", "shrink"),
    *("squeeze", "pool", "log_softmax", "cross_entropy", "nll_loss"),
}
"""Functions whose results are a model's intermediate values; their gradients are steps of the way back."""

Visit = Callable[[str, str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""From a step's name, its kind, its function, and positional and keyword arguments to what stands for its result."""


def instrument_package(package: str, parameters: ModelParameters, visit: Visit) -> types.SimpleNamespace:
    """The package's functions on models, by name, every step of which goes through `visit`.

    Steps are named after the parameters that the functions will be given. `MODELS` is by the parameters' structure.
    """
    modules = {}
    for file in FILES:
        name = f"{package}.{file}"
        if importlib.util.find_spec(name) is not None:
            modules[name] = importlib.import_module(name)
    names = {module: dict(vars(modules[module])) for module in modules}
    copies: dict[Any, Any] = {}
    namer = Namer(parameters)

    def wrap_step(step: str, function: Callable[..., Any]) -> Any:
        def call_visit(*arguments: Any, **keywords: Any) -> Any:
            if step == "drop" and arguments[1] is None:  # without dropout it hands its argument on, and is no step
                return function(*arguments)
            name = namer(step, arguments[0] if arguments else None)
            return visit(name, step, function, arguments, keywords)

        return call_visit

    def begin_anew(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_model(*arguments: Any, **keywords: Any) -> Any:
            namer.forget()
            return call(*arguments, **keywords)

        return call_model

    def visit_gradient(call: Call, cotangent: np.ndarray) -> Any:
        """`pull_back` of the definition's tape, where the gradient of every operation is a step."""
        plain = inspect.unwrap(call.function)

        def gradient(*arguments: Any, cotangent: np.ndarray, **keywords: Any) -> Any:
            given = inspect.signature(plain).bind(*arguments, **keywords)
            return pull_back(Call(plain, given, call.result), cotangent)

        step = wrap_step(f"{plain.__name__}_vjp", gradient)
        return step(*call.given.args, cotangent=cotangent, **call.given.kwargs)

    def copy_function(function: Callable[..., Any]) -> Any:
        plain = inspect.unwrap(function)
        made = types.FunctionType(
            plain.__code__, names[plain.__module__], plain.__name__, plain.__defaults__, plain.__closure__
        )
        made.__kwdefaults__ = plain.__kwdefaults__
        return made

    def replace_value(name: str, value: object) -> Any:
        if not callable(value) or isinstance(value, type) or getattr(value, "__module__", None) is None:
            return value
        if value is pull_back:
            return visit_gradient
        if name.removesuffix("_vjp") in STEPS:
            step, recorded = wrap_step(name, value), package == "reference_numpy" and name in GRADIENTS
            # The tape must note what `visit` makes of the result.
            return operation(functools.wraps(value)(step)) if recorded else step
        if value.__module__ not in names:
            return value
        return copies.setdefault(value, copy_function(value))

    for found in names.values():
        for name, value in list(found.items()):
            found[name] = replace_value(name, value)
        if "MODELS" in found:
            calls = model_calls(Functions(**{name: found[name] for name in Functions._fields}))
            found["MODELS"] = {kind: begin_anew(call) for kind, call in calls.items()}
    merged = {name: value for found in names.values() for name, value in found.items() if not name.startswith("_")}
    return types.SimpleNamespace(**merged)


def paths(value: object, path: str = "") -> dict[int, str]:
    """The path of every structure and array inside a structure, by identity."""
    found = {id(value): path}
    if isinstance(value, list | tuple):
        for name, part in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            if part is not None:
                found |= paths(part, f"{path}.{name}".removeprefix("."))
    return found


class Namer:
    """Gives every call of a step a name: the path of its parameters, or what follows the step before it.

    A step that is taken again has the same name again, so that what is computed twice can be told to be the same.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        self.paths = paths(parameters)
        self.kept = parameters  # alive, so that no identity is given away
        self.forget()

    def forget(self) -> None:
        """No step was taken before the next one."""
        self.last, self.count = "", Counter[str]()

    def __call__(self, step: str, first: object) -> str:
        way = " gradient" if step.endswith("_vjp") else ""
        kind = step.removesuffix("_vjp")
        if kind in NAMED and id(first) in self.paths:
            self.last = (self.paths[id(first)] or "attention") + way
            self.count.clear()
            return self.last
        self.count[kind] += 1
        number = "" if self.count[kind] == 1 else f" {self.count[kind]}"
        return f"{self.last}: {kind}{number}{way}" if self.last else f"{kind}{number}{way}"
