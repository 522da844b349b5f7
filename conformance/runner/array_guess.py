"""Which framework's arrays a function takes, for a caller who does not say it.

Annotations come first, then the names that the function's code uses, then what its module imports. Where these name no
framework or several, a trial call with a tiny case decides.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.runner.devices import make_devices, put_on_devices
from conformance.runner.in_process import TIME_LIMIT
from conformance.runner.own_time import limit_time
from conformance.runner.ranks import put_on_ranks
from conformance.subjects.callables import CallableSubject, Target
from conformance.subjects.frameworks import FRAMEWORKS
from conformance.subjects.subject import IMPLEMENTATIONS, Subject

OF_PACKAGE = {"numpy": "numpy", "torch": "torch", "triton": "torch", "jax": "jax", "jaxlib": "jax", "jnp": "jax"}
OF_PACKAGE |= {"flax": "jax", "equinox": "jax"}
OF_PACKAGE |= {"reference_numpy": "numpy", "torch_impl": "torch", "jax_impl": "jax"}
"""The framework whose arrays a package's functions take, by the package or its usual abbreviation."""
NOTHING_TELLS = "nothing tells which it takes"


def make_subject(target: Target, time_limit: float | None) -> tuple[Target, Subject]:
    """Return the target with its arrays, guessed if it has none, and its subject.

    Args:
        target: the subject to make.
        time_limit: seconds for one trial call.

    Raises:
        ValueError: the target cannot be loaded.
    """
    if target.ranks:
        return make_on_ranks(target, time_limit)
    if target.arrays is not None:
        return target, target.make()
    if isinstance(target.subject, str) and target.subject in IMPLEMENTATIONS:
        return replace(target, arrays=OF_PACKAGE[target.subject]), target.make()
    function = target.function()
    arrays, why = guess_arrays(function) or try_arrays(target, function, time_limit) or ("numpy", NOTHING_TELLS)
    target = replace(target, arrays=arrays, guessed=why)
    return target, target.make(function)


def make_on_ranks(target: Target, time_limit: float | None) -> tuple[Target, Subject]:
    """As `make_subject`, of a function that several ranks call together."""
    if target.arrays == "jax":
        make_devices(target.ranks)  # before the function's module asks for them
    function = target.function()
    if target.arrays is None:
        arrays, why = guess_arrays(function) or ("numpy", NOTHING_TELLS)
        target = replace(target, arrays=arrays, guessed=why)
    if target.arrays == "jax":
        return target, target.make(put_on_devices(function, target))
    if target.arrays != "torch":
        raise ValueError(f"ranks: for functions of PyTorch or JAX, --arrays torch or jax; {target.guessed}")
    # Half of the time, so that a rank which hangs is known before the time of the check is over.
    whole: Any = put_on_ranks(function, target, (TIME_LIMIT if time_limit is None else time_limit) / 2)
    try:
        whole.load()
    except Exception as error:
        raise ValueError(f"{target.title} cannot be loaded: {error}") from error
    return target, target.make(whole)


# --- what can be read -------------------------------------------------------------------------------------------------


def guess_arrays(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Return the framework's name and what names it; None if nothing names one alone."""
    used = frameworks_of_code(function)
    evidence = {
        "its annotations name {}": frameworks_of_annotations(function),
        "it comes from {}": frameworks([function]),
        "its code uses {}": used,
        "its module imports {}": used | frameworks_of_imports(function),
    }
    alone = ((next(iter(found)), why) for why, found in evidence.items() if len(found) == 1)
    return next(((arrays, why.format(arrays)) for arrays, why in alone), None)


def frameworks(values: Iterable[Any]) -> set[str]:
    """Return the frameworks that objects come from."""
    return {OF_PACKAGE[package] for value in values for package in packages(value) if package in OF_PACKAGE}


def packages(value: object) -> Iterator[str]:
    """Yield the packages of an object, of its type and that type's bases."""
    kind = value if isinstance(value, type) else type(value)
    homes = [value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)]
    homes += [base.__module__ for base in kind.__mro__]
    homes.append(type(getattr(value, "__self__", None)).__module__)  # of a method; torch.exp is one
    for home in homes:
        if isinstance(home, str):
            yield home.partition(".")[0]


def frameworks_of_imports(function: Callable[..., object]) -> set[str]:
    """Return the frameworks of what the function's module has not defined itself."""
    function = unwrap_function(function)
    home, names = getattr(function, "__module__", None), getattr(function, "__globals__", {})
    return frameworks(value for value in names.values() if getattr(value, "__module__", None) != home)


def unwrap_function(function: Callable[..., object]) -> Any:
    """Return the Python function behind a partial, a decorator, a method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "forward", None) or type(function).__call__
    return getattr(function, "__func__", function)


def frameworks_of_annotations(function: Callable[..., object]) -> set[str]:
    """Return the frameworks in annotations such as "torch.Tensor", np.ndarray, Float[Array, "T"], jax.Array | None."""
    function, named = unwrap_function(function), set[str]()
    names = getattr(function, "__globals__", {})
    for annotation in getattr(function, "__annotations__", {}).values():
        if isinstance(annotation, str):
            words = re.findall(r"\w+", annotation)
            named |= frameworks(names[word] for word in words if word in names) | word_frameworks(words, names)
        else:
            named |= frameworks([annotation, getattr(annotation, "array_type", None), *typing.get_args(annotation)])
    return named


def word_frameworks(words: Iterable[str], names: dict[str, Any]) -> set[str]:
    """Return the frameworks among names that a module lacks: imported in a function, or for type checkers only."""
    return {OF_PACKAGE[word] for word in words if word in OF_PACKAGE and word not in names}


def frameworks_of_code(function: Callable[..., object]) -> set[str]:
    """Return the frameworks that the function uses, or another function of its module that it calls."""
    named, seen, left = set[str](), set[Any](), [unwrap_function(function)]
    while left:
        one = left.pop()
        code, names = getattr(one, "__code__", None), getattr(one, "__globals__", {})
        if code is None or code in seen:
            continue
        seen.add(code)
        used = set(names_in(code))
        values = [names[name] for name in used if name in names]
        named |= frameworks(values) | word_frameworks(used, names)
        left += [unwrap_function(value) for value in values if getattr(value, "__module__", None) == one.__module__]
    return named


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code uses, functions within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


# --- a trial call -----------------------------------------------------------------------------------------------------


def try_arrays(target: Target, function: Callable[..., Any], time_limit: float | None) -> tuple[str, str] | None:
    """Return the arrays that the function returns when called with a tiny case; None if no call returns any.

    The trial passes NumPy arrays, then those of each framework that is loaded by now.
    """
    for arrays in ("numpy", *(name for name in FRAMEWORKS if name != "numpy" and name in sys.modules)):
        returned = call_tiny_case(replace(target, arrays=arrays), function, time_limit)
        first = returned[0] if isinstance(returned, tuple | list) and returned else returned
        found = frameworks([first]) if hasattr(first, "dtype") else set()
        if len(found) == 1:
            return found.pop(), "a trial call returned them"
    return None


def call_tiny_case(target: Target, function: Callable[..., Any], time_limit: float | None) -> Any:
    """Return what the function returns for a tiny case; None if it raises an error or takes too long."""
    from conformance.sampling.draws import draw_cases
    from conformance.sampling.operations import operation_cases

    subject = target.make(function)
    assert isinstance(subject, CallableSubject)
    least = replace(subject.declaration.keep_features(), dtypes=subject.declaration.dtypes[:1])
    cases = list(draw_cases(operation_cases(target.operation, least.dtypes, least), 1, 0))
    if not cases:
        return None
    case = subject.translate_case(cases[0][1])
    try:
        with silence(), subject.framework.context(), limit_time(time_limit):
            positional, keywords = subject.bind_arguments(case.operation, *subject.arrays(case))
            return subject.function(*positional, **keywords)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a function may raise anything, and this call counts in no verdict
        return None


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop what a call prints and warns of; NumPy's settings stay as they are."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
