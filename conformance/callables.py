"""Anybody's function as a subject: one operation, in the function's own conventions and layout."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.declaration import Declaration, parameters
from conformance.frameworks import Arrays, Framework
from conformance.spreading import arguments, gradient_name, result_names
from conformance.subjects import Answers, Subject, differentiable
from reference_numpy import materialize
from specification.masks import And, Causal, Dense, Or, as_mask

HEADS = ("query", "bias", "sinks")
"""Inputs of attention with an axis of query heads, which is their axis 1, or for sinks their only one."""
FEATURES_LAST = ("query", "key", "value")
"""Inputs that a layout rearranges, and their gradients."""
DEFAULTS = {"eps": 1e-5}
"""What a function is given that insists on an argument which the case leaves out."""


class WrongAnswer(TypeError):
    """The function returned something that is no result."""


def load(target: str) -> Callable[..., Any]:
    """What `package.module:name` or `path/to/file.py:name` names; ValueError says why that is nothing to call."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"target must be package.module:callable or path/to/file.py:callable, got {target!r}")
    try:
        module = module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{where} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{target} is no callable but {type(found).__name__}")
    return found


def module_of_file(path: Path) -> Any:
    """The file as a module of its own name, with its folder on the path while it is loaded."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


class CallableSubject(Subject):
    """One function for one operation.

    It gets the operation's parameters under their own names, those that it has. Masks are boolean arrays [Q, K] or
    [B or 1, H or 1, Q, K], or descriptions if it declares `structured`.
    """

    def __init__(
        self, function: Callable[..., Any], operation: str, framework: Framework, declaration: Declaration, name: str
    ) -> None:
        super().__init__(name, framework)
        self.function, self.operation, self.declaration = function, operation, declaration
        self.accepted, self.required = parameters(function), required(function)

    def call(self, operation: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        return self.function(*self.without_absent(positional), **self.own(keywords))

    def without_absent(self, positional: list[Any]) -> list[Any]:
        """A function without room for the last argument is not given it when there is none."""
        if positional and positional[-1] is None and self.accepted is not None and len(self.accepted) < len(positional):
            return positional[:-1]
        return positional

    def own(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """The keywords as the function has them: an absent one only where it insists."""
        given = {name: value for name, value in keywords.items() if value is not None}
        missing = {name: DEFAULTS.get(name) for name in self.required if name not in given}
        if isinstance(given.get("mask"), Dense) and "structured" not in self.declaration:
            given["mask"] = given["mask"].array
        return missing | given

    def results(self, operation: str, inputs: Arrays, options: dict[str, Any]) -> Arrays:
        positional, keywords = arguments(operation, inputs, options)
        returned = self.call(operation, positional, keywords)
        names, kind = result_names(operation), self.framework.kind
        parts = returned if len(names) > 1 else (returned,)
        if len(names) > 1 and (not isinstance(returned, tuple | list) or len(returned) != len(names)):
            raise WrongAnswer(f"returned {described(returned)}, expected {' and '.join(names)}")
        for part in parts:
            if not isinstance(part, kind):
                raise WrongAnswer(f"returned {described(part)}, expected {kind.__module__}.{kind.__qualname__}")
        return dict(zip(names, parts, strict=True))

    def differentiated(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> tuple[Arrays, Arrays]:
        """By the declared function for the gradients, or as the framework does."""
        if self.declaration.vjp is None:
            return super().differentiated(case, inputs, options)
        positional, keywords = arguments(case.operation, inputs, options)
        cotangents = [self.framework.array(case.cotangents[name]) for name in result_names(case.operation)]
        gradients = self.declaration.vjp(*self.without_absent(positional), *cotangents, **self.own(keywords))
        if not isinstance(gradients, dict):
            gradients = dict(zip(differentiable(case), gradients, strict=True))
        named = {name: gradient for name, gradient in gradients.items() if name in case.inputs and gradient is not None}
        return self.results(case.operation, inputs, options), named

    def materialized(self, mask: Any, shape: tuple[int, int, int, int]) -> None:
        """A function has no masks of its own."""

    # --- conventions: what the function is asked, and what its answers mean ---

    def asked(self, case: Case) -> Case:
        options = {name: value for name, value in case.options.items() if name != "empty_rows"}
        if "empty_rows" in self.declaration:
            options = dict(case.options)
        if options.get("mask") is not None:
            options["mask"] = self.mask_as_asked(options["mask"], case)
        case = replace(case, options=options)
        return self.rearranged(self.heads_moved(case, tiled_order(case)))

    def mask_as_asked(self, mask: Any, case: Case) -> Any:
        if "structured" in self.declaration:
            return without_offset(as_mask(mask), self.declaration.convention("causal"), case)
        mask = as_mask(mask)
        if not isinstance(mask, Dense):
            B, H, Q, K = shape_of(case)
            mask = Dense(np.array(materialize(mask, Q, K, batch=B, heads=H)))
        return Dense(~np.asarray(mask.array)) if self.declaration.convention("polarity") == "masked" else mask

    def heads_moved(self, case: Case, order: np.ndarray | None) -> Case:
        """Query heads in another order: where the function reads key head h % G, the definition reads h // (H / G)."""
        if order is None or self.declaration.convention("heads") != "tiled":
            return case
        moved = {n: moved_heads(n, a, order) for n, a in case.inputs.items()}
        cotangents = {n: np.take(a, order, axis=1) for n, a in case.cotangents.items()}
        options = dict(case.options)
        for name in ("mask", "dropout_keep"):
            array = options.get(name)
            array = array.array if isinstance(array, Dense) else array
            if isinstance(array, np.ndarray) and array.ndim == 4 and array.shape[1] == len(order):
                array = np.take(array, order, axis=1)
                options[name] = Dense(array) if name == "mask" else array
        return replace(case, inputs=moved, cotangents=cotangents, options=options)

    def rearranged(self, case: Case) -> Case:
        if self.declaration.layout == "BHTD" or not case.operation.startswith("attention"):
            return case
        inputs = {n: swapped(a) if n in FEATURES_LAST else a for n, a in case.inputs.items()}
        cotangents = {n: swapped(a) if case.operation == "attention" else a for n, a in case.cotangents.items()}
        return replace(case, inputs=inputs, cotangents=cotangents)

    def meant(self, case: Case, answers: Answers) -> Answers:
        if self.declaration.layout == "BTHD" and case.operation.startswith("attention"):
            names = {gradient_name(name) for name in FEATURES_LAST}
            names |= {"output"} if case.operation == "attention" else set()
            answers = {n: swapped(a) if n in names else a for n, a in answers.items()}
            case = replace(case, inputs={n: swapped(a) if n in FEATURES_LAST else a for n, a in case.inputs.items()})
        order = tiled_order(case)
        if order is not None and self.declaration.convention("heads") == "tiled":
            back = np.argsort(order)
            moved = {gradient_name(name): name for name in HEADS}
            answers = {
                n: np.take(a, back, axis=1) if n == "output" else moved_heads(moved.get(n, ""), a, back)
                for n, a in answers.items()
            }
        return answers


def described(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def required(function: Callable[..., Any]) -> set[str]:
    """Keyword arguments without a default."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in found if p.kind is p.KEYWORD_ONLY and p.default is p.empty}


def shape_of(case: Case) -> tuple[int, int, int, int]:
    """[B, H, Q, K] of attention or multi-head attention."""
    query, key = case.inputs["query"], case.inputs["key"]
    if case.operation == "multi_head_attention":
        return query.shape[0], case.options["num_heads"], query.shape[1], key.shape[1]
    return query.shape[0], query.shape[1], query.shape[2], key.shape[2]


def swapped(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(array, 1, 2)) if array.ndim == 4 else array


def tiled_order(case: Case) -> np.ndarray | None:
    """For every query head of a function that tiles: the definition's head that reads the same key head."""
    if not case.operation.startswith("attention"):
        return None
    H, G = case.inputs["query"].shape[1], case.inputs["key"].shape[1]
    return np.arange(H).reshape(G, H // G).T.reshape(-1) if 0 < G < H else None


def moved_heads(name: str, array: np.ndarray, order: np.ndarray) -> np.ndarray:
    if name == "sinks":
        return np.take(array, order)
    if name not in HEADS or array.ndim != 4 or array.shape[1] != len(order):
        return array
    return np.take(array, order, axis=1)


def without_offset(mask: Any, convention: str, case: Case) -> Any:
    """`Causal()` in place of the offset that the subject's convention gives it."""
    if isinstance(mask, And | Or):
        return type(mask)(*(without_offset(side, convention, case) for side in (mask.left, mask.right)))
    _, _, Q, K = shape_of(case)
    aligned = {"top_left": 0, "bottom_right": K - Q}.get(convention)
    bare = isinstance(mask, Causal) and isinstance(mask.offset, int) and mask.offset == aligned
    return Causal() if bare else mask
