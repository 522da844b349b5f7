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
from collections.abc import Callable
from typing import Any

from conformance.models.naming import Namer
from reference_numpy.tape import GRADIENTS, Call, operation, pull_back

FILES = ("tape", "blocks", "blocks_vjp", "transformer", "transformer_vjp", "losses", "losses_vjp", "models")
STEPS = {
    "attend",
    "transform",
    "normalize",
    "add",
    "drop",
    "embedding",
    "learned_positions",
    "sinusoidal_positions",
    "linear",
    "multi_head_attention",
    "pool",
    "relative_position_bias",
    "patches",
    "prepend",
    "shrink",
    "squeeze",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "accumulate",
}
"""Functions whose results are a model's intermediate values; their gradients are steps of the way back."""

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""From a step's name and function to the function that takes its place."""


def is_step(name: str) -> bool:
    return name.removesuffix("_vjp") in STEPS


Visit = Callable[[str, str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""From a step's name, its kind, its function, and positional and keyword arguments to what stands for its result."""


def visited_package(package: str, parameters: Any, visit: Visit) -> types.SimpleNamespace:
    """The copy of a package whose every step goes through `visit`, named after the parameters that it will be given."""
    namer = Namer(parameters)

    def wrap(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call_visit(*arguments: Any, **keywords: Any) -> Any:
            name = namer(step, arguments[0] if arguments else None)
            return visit(name, step, function, arguments, keywords)

        return call_visit

    return instrument_package(package, wrap)


def skip_without_dropout(function: Any, wrapped: Any) -> Any:
    """Where there is no dropout, `drop` hands its argument on, and is no step."""
    return lambda x, dropout: function(x, None) if dropout is None else wrapped(x, dropout)


def wrap_gradients(wrap: Wrap) -> Callable[[Call, Any], Any]:
    """`pull_back` of the definition's tape, where the gradient of every operation is a step."""

    def pull_call_back(call: Call, cotangent: Any) -> Any:
        plain = inspect.unwrap(call.function)

        def gradient(*arguments: Any, cotangent: Any, **keywords: Any) -> Any:
            given = inspect.signature(plain).bind(*arguments, **keywords)
            return pull_back(Call(plain, given, call.result), cotangent)

        wrapped = wrap(f"{plain.__name__}_vjp", gradient)
        return wrapped(*call.given.args, cotangent=cotangent, **call.given.kwargs)

    return pull_call_back


def instrument_package(package: str, wrap: Wrap) -> types.SimpleNamespace:
    """The package's functions on models, by name, with every step wrapped; `MODELS` is by the parameters' structure."""
    modules = {}
    for file in FILES:
        name = f"{package}.{file}"
        if importlib.util.find_spec(name) is not None:
            modules[name] = importlib.import_module(name)
    names = {module: dict(vars(modules[module])) for module in modules}
    copies: dict[Any, Any] = {}

    def copy_function(function: Any) -> Any:
        plain = inspect.unwrap(function)
        made = types.FunctionType(
            plain.__code__, names[plain.__module__], plain.__name__, plain.__defaults__, plain.__closure__
        )
        made.__kwdefaults__ = plain.__kwdefaults__
        return made

    def replace_value(name: str, value: Any) -> Any:
        if not callable(value) or isinstance(value, type) or getattr(value, "__module__", None) is None:
            return value
        if value is pull_back:
            return wrap_gradients(wrap)
        if is_step(name):
            step = skip_without_dropout(value, wrap(name, value)) if name == "drop" else wrap(name, value)
            recorded = package == "reference_numpy" and name in GRADIENTS
            # So the tape notes the call with what `wrap` makes of its result.
            return operation(functools.wraps(value)(step)) if recorded else step
        if value.__module__ not in names:
            return value
        return copies.setdefault(value, copy_function(value))

    for found in names.values():
        for name, value in list(found.items()):
            found[name] = replace_value(name, value)
        if "MODELS" in found:
            found["MODELS"] = {kind: replace_value(f.__name__, f) for kind, f in found["MODELS"].items()}
    merged = {name: value for found in names.values() for name, value in found.items() if not name.startswith("_")}
    return types.SimpleNamespace(**merged)
