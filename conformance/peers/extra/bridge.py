"""Functions of libraries whose arrays the judge does not know, as functions of NumPy arrays with their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.cases.declaration import declare

FLOATING = (np.floating, ml_dtypes.bfloat16)


class Arrays(NamedTuple):
    """A library's arrays.

    read: its array of NumPy's. write: NumPy's of its own, in the same dtype; what is no array stays.
    pull: `pull(function, arrays, cotangent)`, the gradients of a function of arrays; None for a library that has none.
    """

    read: Callable[[np.ndarray], Any]
    write: Callable[[Any], Any]
    pull: Callable[[Callable[..., Any], list[Any], Any], Iterable[Any]] | None = None


def adapt_arrays(library: Arrays, function: Callable[..., Any], *supports: str, **declared: Any) -> Callable[..., Any]:
    """A function of the library's arrays as one of NumPy arrays; what it supports is as in `declare`."""
    signature, dtypes = inspect.signature(function), declared.get("dtypes")

    def read(leaf: Any) -> Any:
        if dtypes is not None and is_floating(leaf) and str(leaf.dtype) not in dtypes:
            raise NotImplementedError(f"an array of {leaf.dtype}")
        return library.read(leaf) if isinstance(leaf, np.ndarray) else leaf

    def call(*positional: Any, **keywords: Any) -> Any:
        return map_leaves(library.write, function(*map_leaves(read, positional), **map_leaves(read, keywords)))

    def pull(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        *positional, cotangent = arguments
        given = signature.bind(*positional, **keywords).arguments
        arrays: list[np.ndarray] = []
        map_leaves(lambda leaf: arrays.append(leaf) if is_floating(leaf) else None, given)

        def function_of_arrays(*traced: Any) -> Any:
            left = iter(traced)
            return function(**map_leaves(lambda leaf: next(left) if is_floating(leaf) else read(leaf), given))

        assert library.pull is not None
        gradients = library.pull(function_of_arrays, [library.read(array) for array in arrays], library.read(cotangent))
        written = map(library.write, gradients)
        return map_leaves(lambda leaf: next(written) if is_floating(leaf) else None, given)

    vjp = None if library.pull is None or "no-gradients" in supports else pull
    adapted: Any = declare(supports or None, vjp=vjp, **declared)(call)
    adapted.__signature__ = signature
    return adapted


def is_floating(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and any(np.issubdtype(leaf.dtype, kind) for kind in FLOATING)


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """The tree of dicts, tuples and lists with every leaf changed but None."""
    if isinstance(tree, dict):
        return {name: map_leaves(change, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_leaves(change, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else change(tree)
