"""Anybody's function as a subject: one operation, in the function's own conventions and layout."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.arguments import arguments, expected_dtype, gradient_name, result_names, results_of
from conformance.cases.case import Case, heads_and_keys, logsumexp_alone, output_alone
from conformance.cases.declaration import Declaration
from conformance.cases.facts import operation_facts, operations
from conformance.cases.signatures import declaration_of, signature_of
from conformance.subjects.conventions import (
    drop_offset,
    invert_mask,
    map_dense_masks,
    permute_answer_heads,
    permute_heads,
    swap_answers,
    swap_layout,
    tiled_order,
)
from conformance.subjects.frameworks import FRAMEWORKS, Arrays, Framework, NoGradients
from conformance.subjects.gradients import gradients_by_name
from conformance.subjects.shards import declare_ranks
from conformance.subjects.subject import (
    IMPLEMENTATIONS,
    Answers,
    NumpySubject,
    Subject,
    differentiable,
    drop_promise,
    expected_shape,
    name_results,
)
from conformance.subjects.wrong_answers import find_raising_line
from reference_numpy import materialize
from specification.masks import Dense, as_mask

if TYPE_CHECKING:
    from specification.masks import Mask


def load(target: str) -> Callable[..., Any]:
    """What a target names, as `load_object`; ValueError says why that is nothing to call."""
    value = load_object(target)
    if not callable(value):
        raise ValueError(f"{target} is no callable but {type(value).__name__}")
    return value


def load_object(target: str) -> Any:
    """What `package.module:name` or `path/to/file.py:name` names; ValueError says why there is nothing.

    The file's folder, or the working directory, is found first while the module is loaded, and stays on the path, last,
    for what its functions import later.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"target must be package.module:callable or path/to/file.py:callable, got {target!r}")
    path = Path(where)
    try:
        with extend_path(path.resolve().parent if where.endswith(".py") else Path.cwd()):
            module = module_of_file(path) if where.endswith(".py") else importlib.import_module(where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import may raise anything, and ends nothing but itself
        line = find_raising_line(error, None)
        place = f" ({line})" if line else ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            place += "; name the function of a package as package.module:function"
        if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "jax"):
            place += f"; the extra {error.name} installs it: pip install 'transformer-conformance[{error.name}]'"
        raise ValueError(f"{where} cannot be imported: {type(error).__name__}: {error}{place}") from error
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise ValueError(f"{where} has no {name}")
        value = getattr(value, part)
    return value


def name_operation(target: str) -> str:
    """Return the operation that the target's own name says, the longest of several; empty if it says none."""
    name = target.rpartition(":")[2]
    return max((operation for operation in operations() if operation in name), key=len, default="")


@contextlib.contextmanager
def extend_path(folder: Path) -> Iterator[None]:
    """The folder first on the path in here, and last on it from then on."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module may have taken it off
            sys.path.remove(str(folder))
        if str(folder) not in map(os.path.abspath, sys.path):
            sys.path.append(str(folder))


def module_of_file(path: Path) -> Any:
    """The file as a module that takes no other's name."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def module_name(path: Path) -> str:
    """What a file that is loaded by its path is called in `sys.modules`."""
    return f"{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"


class CallableSubject(Subject):
    """One function for one operation.

    It gets the operation's parameters under their own names, those that it has. Masks are boolean arrays [Q, K] or
    [B or 1, H or 1, Q, K], or descriptions if it declares `structured`.
    """

    def __init__(
        self, function: Callable[..., Any], operation: str, framework: Framework, declaration: Declaration, name: str
    ) -> None:
        super().__init__(name, framework)
        self.function, self.operation = function, operation
        self.signature = signature_of(function, operation)
        if operation == "rotary_embedding" and "halves" not in declaration:
            self.signature = replace(self.signature, implied=("pairing",))
        lacking = self.signature.lacking
        declaration = declaration.remove_features("biased") if "bias" in lacking else declaration
        strides = framework.strides and declaration.strides
        self.declaration = replace(declaration, lacking=lacking, strides=strides)

    @property
    def code(self) -> Any:
        return self.function

    def bind_arguments(
        self, operation: str, inputs: Arrays, options: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the function has them."""
        positional, keywords = arguments(operation, inputs, options)
        if isinstance(keywords.get("mask"), Dense) and "structured" not in self.declaration:
            keywords["mask"] = keywords["mask"].array
        return self.signature.bind_arguments(positional, keywords)

    def returned_names(self, operation: str) -> tuple[str, ...]:
        """What the function returns, whatever a case asks for."""
        return ("output", "logsumexp") if self.declaration.returns_both(operation) else result_names(operation)

    def results(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> Arrays:
        positional, keywords = self.bind_arguments(case.operation, inputs, options)
        returned = self.function(*positional, **keywords)
        named = name_results(case, self.returned_names(case.operation), returned, self.framework)
        return {name: named[name] for name in results_of(case)}

    def cotangents(self, case: Case) -> Arrays:
        """By result; zeros for a log-sum-exp that comes with the output, and is not asked for."""
        arrays = super().cotangents(case)
        indices = operation_facts(case.operation).indices
        if case.cotangents and self.declaration.vjp is not None:
            for name in self.returned_names(case.operation):
                if name in indices:
                    continue
                if name not in arrays:
                    zeros = np.zeros(expected_shape(name, case, self.declaration.layout), expected_dtype(name, case))
                    arrays[name] = self.lay("cotangent", self.framework.array(zeros))
        return arrays

    def differentiate(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> tuple[Arrays, Arrays]:
        """By the declared function for the gradients, or as the framework does."""
        if self.declaration.vjp is None:
            return super().differentiate(case, inputs, options)
        positional, keywords = self.bind_arguments(case.operation, inputs, options)
        cotangents = self.cotangents(case)
        bars = [cotangents[name] for name in self.returned_names(case.operation) if name in cotangents]
        results = self.results(case, inputs, options)  # before anything that may change the inputs
        returned = self.declaration.vjp(*positional, *bars, **keywords)
        return results, gradients_by_name(case, returned, self.framework.kind, self.declaration.lacking)

    def answer_case(self, case: Case) -> Answers:
        """As every subject. A result that does not depend on the inputs has gradients of 0, where that is right."""
        try:
            return super().answer_case(case)
        except NoGradients:
            if not gradients_vanish(case):
                raise
            zeros = {gradient_name(name): np.zeros_like(case.inputs[name]) for name in differentiable(case)}
            return super().answer_case(replace(case, cotangents={})) | zeros

    def materialize(self, mask: Mask | np.ndarray | None, shape: tuple[int, int, int, int]) -> None:
        """A function has no masks of its own."""

    # --- conventions: what the function is asked, and what its answers mean ---

    def translate_case(self, case: Case) -> Case:
        case = drop_promise(case)
        options = {name: value for name, value in case.options.items() if name != "empty_rows"}
        if "empty_rows" in self.declaration:
            options = dict(case.options)
        if options.get("mask") is not None:
            options["mask"] = self.convert_mask(options["mask"], case)
        case, order = replace(case, options=options), self.head_order(case)
        case = case if order is None else permute_heads(case, order)
        return case if self.declaration.layout == "BHTD" else swap_layout(case)

    def convert_mask(self, mask: Mask | np.ndarray | None, case: Case) -> Any:
        mask = as_mask(mask)
        if "structured" in self.declaration:
            mask = drop_offset(mask, self.declaration.convention("causal"), case)
        elif not isinstance(mask, Dense):
            H, _, Q, K = heads_and_keys(case)
            batch = case.inputs["x" if "x" in case.inputs else "query"].shape[0]
            mask = Dense(np.array(materialize(mask, Q, K, batch=batch, heads=H)))
        return map_dense_masks(mask, invert_mask) if self.declaration.convention("polarity") == "masked" else mask

    def head_order(self, case: Case) -> np.ndarray | None:
        """The order of query heads, where the function reads key head h % G and the definition h // (H / G)."""
        return tiled_order(case) if self.declaration.convention("heads") == "tiled" else None

    def translate_answers(self, case: Case, answers: Answers) -> Answers:
        if self.declaration.layout == "BTHD" and case.operation.startswith("attention"):
            answers, case = swap_answers(case, answers), swap_layout(case)
        order = self.head_order(case)
        return answers if order is None else permute_answer_heads(case, answers, np.argsort(order))


def gradients_vanish(case: Case) -> bool:
    """Whether all gradients of the case are 0, since nothing that it computes depends on its inputs."""
    if case.with_logsumexp:
        return gradients_vanish(output_alone(case)) and gradients_vanish(logsumexp_alone(case))
    answers = NumpySubject()(case)
    return all((answers[gradient_name(name)] == 0).all() for name in differentiable(case))


# --- what a caller names ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A subject to be made.

    subject: a callable, `package.module:callable`, `path/to/file.py:callable`, or one of the three implementations by
    name. arrays: None for a guess, which the runner makes. given: what is said of it; see `declaration.declare`. Its
    `vjp` may be named by a string like the subject. guessed: what the guess of `arrays` goes by; empty for no guess.
    source: the file of the subject's code, if it was loaded from another one and comes from there.
    memory_limit: gigabytes that a process may allocate for it; see `conformance/runner/memory_limit.py`.
    ranks: how many call it together, each with its part of a call; 0 for no such ones. shard: what they have a part of,
    one of `shards.SHARDS`.
    """

    subject: str | Callable[..., Any]
    operation: str
    arrays: str | None = "numpy"
    device: str = "cpu"
    name: str | None = None
    given: dict[str, Any] = field(default_factory=dict)
    guessed: str = ""
    source: str = ""
    memory_limit: float | None = None
    ranks: int = 0
    shard: str = "sequence"

    def make(self, function: Callable[..., Any] | None = None) -> Subject:
        """ValueError says what is wrong with the target, or with what is said of it. function: the subject, loaded."""
        if isinstance(self.subject, str) and self.subject in IMPLEMENTATIONS:
            return IMPLEMENTATIONS[self.subject](device=self.device)
        if self.arrays not in FRAMEWORKS:
            raise ValueError(f"arrays must be one of {', '.join(FRAMEWORKS)}, got {self.arrays!r}")
        function = self.function() if function is None else function
        framework: Any = FRAMEWORKS[self.arrays](self.device)
        if (self.arrays, self.device) == ("torch", "cuda") and not framework.torch.cuda.is_available():
            raise ValueError("device: PyTorch sees no GPU")
        declaration = declaration_of(function, framework.name != "numpy", self.operation, **self.given)
        vjp = load(declaration.vjp) if isinstance(declaration.vjp, str) else declaration.vjp
        declaration = replace(declaration, vjp=vjp, compiled=framework.name == "jax")
        if self.ranks:
            declaration = declare_ranks(declaration, self.shard, self.ranks)
        return CallableSubject(function, self.operation, framework, declaration, self.title)

    def function(self) -> Callable[..., Any]:
        """Return the subject, loaded; ValueError says why there is none."""
        if self.operation not in operations():
            raise ValueError(f"operation must be one of {', '.join(operations())}, got {self.operation!r}")
        function = load(self.subject) if isinstance(self.subject, str) else self.subject
        if not callable(function):
            raise ValueError(f"the subject is no callable but {type(function).__name__}")
        return function

    @property
    def title(self) -> str:
        """What the report calls it."""
        if self.name is not None or isinstance(self.subject, str):
            return self.name or str(self.subject)
        return getattr(self.subject, "__qualname__", repr(self.subject))
