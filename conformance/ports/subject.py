"""A port under test: `build(config, state_dict)` gives a function, which is called in the port's own framework.

A `Request` is one checkpoint and some calls; a `Reply` says what came of each. The port runs in a process of its own or
in this one, under a time limit.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from conformance.cases.case import numpy_dtype
from conformance.checks.findings import (
    GradientLost,
    InputChanged,
    NotDeterministic,
    ProcessEnded,
    Raised,
    TookTooLong,
)
from conformance.runner.fresh import FORKING_PROCESS
from conformance.runner.in_process import judge_scope
from conformance.runner.in_subprocess import ENDING, KEEP_MEMORY, STARTING
from conformance.runner.memory_limit import limit_memory
from conformance.runner.own_time import TooSlow, limit_time, measure_crowding
from conformance.runner.process_lifetime import POSIX
from conformance.runner.workers import NoReply, Worker, encode_call
from conformance.subjects.callables import Target, load
from conformance.subjects.frameworks import FRAMEWORKS, Framework, NoGradients
from conformance.subjects.subject import first_line
from conformance.subjects.wrong_answers import Detail, OtherType, Returned, find_raising_line

TIME_LIMIT = 120.0
"""Seconds of own time for `build` and the calls of one checkpoint: some compile for every one."""
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Call:
    """What a port's function is called with.

    inputs: by position. options: by keyword. cotangent: of the result, where gradients are asked for. chunks: lengths
    of the parts in which `step` is given the tokens; empty for the function itself. twice: whether it is called again
    and must return the same bits.
    """

    inputs: tuple[np.ndarray, ...]
    options: Mapping[str, np.ndarray] = field(default_factory=dict)
    cotangent: np.ndarray | None = None
    chunks: tuple[int, ...] = ()
    twice: bool = False


@dataclass(frozen=True)
class Request:
    """A checkpoint, and calls of what `build` makes of it. dtype: of floating inputs."""

    config: dict[str, Any]
    state_dict: Arrays
    calls: tuple[Call, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Answer:
    """What came of a call: a result, or a detail of what is wrong with it. raised_at: the line that raised it."""

    result: np.ndarray | None = None
    gradients: Arrays | None = None
    detail: Detail | None = None
    raised_at: str = ""


@dataclass(frozen=True)
class Reply:
    """The answers to a request.

    where: what the detail is about: `build`, or the call of its function.
    detail: why there are no answers, where there are none. raised_at: the line that raised it.
    """

    answers: tuple[Answer, ...] = ()
    detail: Detail | None = None
    raised_at: str = ""
    where: Literal["build", "call"] = "build"


@dataclass(frozen=True)
class Traits:
    """What a port's function can do.

    parameters: names of its parameters; None where it takes any. required: how many have no default. step, vjp: whether
    it has these attributes.
    """

    parameters: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    step: bool = False
    vjp: bool = False


# --- where the port runs ----------------------------------------------------------------------------------------------


class PortRunner:
    """Asks a port, in a process of its own, which is started again after it has ended.

    Args:
        target: the port; arrays None for a guess by what its module imports.
        time_limit: seconds of own time for one request.
        isolate: whether in a process of its own; None: where a string names the port.
        gradients: whether `build` is given arrays of the framework, through which it differentiates.
    """

    def __init__(self, target: Target, time_limit: float, isolate: bool | None, gradients: bool = False) -> None:
        self.target, self.time_limit, self.gradients = target, time_limit, gradients
        self.isolate = POSIX and isinstance(target.subject, str) if isolate is None else isolate
        self.worker: Worker | None = None
        self.start()

    def start(self) -> None:
        """ValueError where the port cannot be loaded."""
        if not self.isolate:
            self.target = load_port((self.target, self.gradients))
            return
        try:
            request = encode_call(load_port, (self.target, self.gradients))
        except Exception as error:
            raise ValueError(f"{self.target.title} cannot be sent to a process of its own: {error}") from error
        self.worker = FORKING_PROCESS.start_subject(self.target, env=KEEP_MEMORY | os.environ)
        try:
            self.target = self.worker.call(request, STARTING)
        except NoReply as end:
            raise ValueError(f"the process ended while the port was loaded, or took {STARTING:g} s") from end

    def ask(self, request: Request) -> Reply:
        return self.call(answer_request, request, self.time_limit)

    def traits(self, request: Request) -> Traits | Reply:
        """Return what the function that `build` makes can do, or why there is none."""
        return self.call(read_traits, request, self.time_limit)

    def call(self, function: Callable[..., Any], request: Request, seconds: float) -> Any:
        if not self.isolate:
            with judge_scope():
                return function(request, seconds)
        if self.worker is None:
            self.start()
        assert self.worker is not None
        try:
            return self.worker.call(encode_call(function, request, seconds), seconds + ENDING)
        except NoReply as end:
            code = self.exit_code()
            self.close()
            late = TookTooLong(seconds, ended=True, crowding=measure_crowding())
            return Reply(detail=ProcessEnded(code) if end.in_time else late, where="call")

    def exit_code(self) -> int | None:
        """Of a process that answers no more; None where it does not end by itself."""
        try:
            return None if self.worker is None else self.worker.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


# --- in the port's process --------------------------------------------------------------------------------------------


class Loaded:
    """The port that this process has loaded."""

    build: Callable[..., Any]
    framework: Framework
    gradients: bool


def load_port(given: tuple[Target, bool]) -> Target:
    """Load the port, and return its target with the arrays that it takes; ValueError says what is wrong with it."""
    target, Loaded.gradients = given
    Loaded.build = load(target.subject) if isinstance(target.subject, str) else target.subject
    if not callable(Loaded.build):
        raise ValueError(f"the port is no callable but {type(Loaded.build).__name__}")
    if target.arrays is None:
        target = replace(target, arrays=guess_arrays(Loaded.build), guessed="the modules that the port's file imports")
    if target.arrays not in FRAMEWORKS:
        raise ValueError(f"arrays must be one of {', '.join(FRAMEWORKS)}, got {target.arrays!r}")
    Loaded.framework = FRAMEWORKS[target.arrays](target.device)
    limit_memory(target)
    return target


def guess_arrays(build: Callable[..., Any]) -> str:
    """Return the framework that the source of a port imports; NumPy where there is none."""
    with contextlib.suppress(TypeError, OSError, SyntaxError):
        file = inspect.getsourcefile(inspect.unwrap(build))
        tree = ast.parse(Path(file or "").read_text())
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        roots = {name.partition(".")[0] for name in names}
        for arrays, known in (("jax", {"jax", "flax", "equinox", "haiku"}), ("torch", {"torch", "transformers"})):
            if roots & known:
                return arrays
    return "numpy"


@contextlib.contextmanager
def framework_scope(dtype: str) -> Iterator[None]:
    """What a port's framework needs around a call: JAX has 64 bits only where they are asked for."""
    if Loaded.framework.name != "jax":
        yield
        return
    import jax

    with jax.enable_x64(dtype == "float64"):
        yield


def convert_input(array: np.ndarray, dtype: str) -> Any:
    """Return an input as the framework's array: floating numbers in the model's dtype, JAX's tokens in 32 bits."""
    if array.dtype.kind == "f":
        array = array.astype(numpy_dtype(dtype))
    elif array.dtype.kind == "i" and Loaded.framework.name == "jax":
        array = array.astype(np.int32)
    return Loaded.framework.array(array)


def build_function(request: Request) -> Callable[..., Any] | Reply:
    """Return what `build` makes, or why there is nothing to call."""
    framework = Loaded.framework
    given: dict[str, Any] = {name: array.copy() for name, array in request.state_dict.items()}
    if Loaded.gradients:
        given = {name: framework.array(array) for name, array in given.items()}
    config = pickle.loads(pickle.dumps(request.config))
    function = Loaded.build(config, given)
    if not callable(function):
        return Reply(detail=Returned(describe_kind(function), array="a function"))
    after = {name: framework.numpy(array) if isinstance(array, framework.kind) else array
             for name, array in given.items()}  # fmt: skip
    changed = [name for name, array in request.state_dict.items() if not same_bits(after.get(name), array)]
    changed += [name for name in given if name not in request.state_dict]
    if changed:
        return Reply(detail=InputChanged(), raised_at=", ".join(changed[:3]))
    return function


def same_bits(one: object, other: np.ndarray) -> bool:
    return isinstance(one, np.ndarray) and one.shape == other.shape and one.tobytes() == other.tobytes()


def describe_kind(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def read_traits(request: Request, seconds: float) -> Traits | Reply:
    with framework_scope(request.dtype):
        try:
            with limit_time(seconds):
                function = build_function(request)
        except BaseException as error:
            return Reply(detail=explain(error, seconds), raised_at=find_raising_line(error, Loaded.build))
    if isinstance(function, Reply):
        return function
    called = getattr(function, "forward", function)  # of a torch module
    step, vjp = hasattr(function, "step"), hasattr(function, "vjp")
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return Traits(None, (), step, vjp)
    kinds = inspect.Parameter
    any_name = any(one.kind is kinds.VAR_KEYWORD for one in parameters)
    named = tuple(one.name for one in parameters if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY))
    plain = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    required = tuple(one.name for one in parameters if one.kind in plain and one.default is kinds.empty)
    return Traits(None if any_name else named, required, step, vjp)


def explain(error: BaseException, seconds: float) -> Detail:
    if isinstance(error, TooSlow):
        return TookTooLong(seconds, crowding=measure_crowding())
    if isinstance(error, KeyboardInterrupt):
        raise error
    return Raised(type(error).__name__, summarize(error))


def summarize(error: BaseException) -> str:
    """Return the first line of an error, and the next where that only announces it, as PyTorch's do of a state dict."""
    first = first_line(error)
    following = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
    return f"{first} {following[0]}" if first.endswith(":") and following else first


def answer_request(request: Request, seconds: float) -> Reply:
    """Build the function and call it; what goes wrong in the port is in the reply."""
    where: Literal["build", "call"] = "build"
    with framework_scope(request.dtype):
        try:
            with limit_time(seconds):
                function = build_function(request)
                if isinstance(function, Reply):
                    return function
                where = "call"
                return Reply(tuple(answer_call(function, call, request) for call in request.calls))
        except BaseException as error:
            return Reply(detail=explain(error, seconds), raised_at=find_raising_line(error, Loaded.build), where=where)


def answer_call(function: Callable[..., Any], call: Call, request: Request) -> Answer:
    """Call the function once; an error that it raises is an answer."""
    try:
        if call.cotangent is not None:
            return differentiate(function, call, request)
        result = read_result(call_function(function, call, request.dtype))
        if isinstance(result, Answer) or not call.twice:
            return result if isinstance(result, Answer) else Answer(result)
        again = read_result(call_function(function, call, request.dtype))
        same = isinstance(again, np.ndarray) and same_bits(again, result)
        return Answer(result, detail=None if same else NotDeterministic())
    except TooSlow:
        raise
    except InputChangedError:
        return Answer(detail=InputChanged())
    except Exception as error:
        return Answer(detail=Raised(type(error).__name__, summarize(error)),
                      raised_at=find_raising_line(error, Loaded.build))  # fmt: skip


def call_function(function: Callable[..., Any], call: Call, dtype: str) -> Any:
    """Call the function, or its `step` part by part; InputChangedError where it changes an input."""
    if call.chunks:
        return decode(getattr(function, "step"), call, dtype)  # noqa: B009
    inputs = [convert_input(array, dtype) for array in call.inputs]
    options = {name: convert_input(array, dtype) for name, array in call.options.items()}
    result = function(*inputs, **options)
    given = dict(zip(map(str, range(len(inputs))), inputs, strict=True)) | options
    for name, array in (dict(zip(map(str, range(len(inputs))), call.inputs, strict=True)) | dict(call.options)).items():
        if Loaded.framework.mutable and not same_bits(
            np.asarray(Loaded.framework.numpy(given[name])),
            np.asarray(Loaded.framework.numpy(convert_input(array, dtype))),
        ):
            raise InputChangedError
    return result


class InputChangedError(Exception):
    """The function has changed an input."""


def decode(step: Callable[..., Any], call: Call, dtype: str) -> np.ndarray | Answer:
    """Return the logits of all tokens, given to `step` part by part with its cache, or what it returned instead."""
    results, cache, start = [], None, 0
    for length in call.chunks:
        returned = step(convert_input(call.inputs[0][:, start : start + length], dtype), cache)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise TypeError(f"step must return logits and a cache, got {describe_kind(returned)}")
        result, cache = read_result(returned[0]), returned[1]
        if isinstance(result, Answer):
            return result
        results.append(result)
        start += length
    return np.concatenate(results, axis=1)


def read_result(result: Any) -> np.ndarray | Answer:
    framework = Loaded.framework
    if isinstance(result, Answer):  # of a step
        return result
    if isinstance(result, np.ndarray):
        return result.copy()
    if not isinstance(result, framework.kind):
        return Answer(detail=OtherType(describe_kind(result), array=f"an array of {framework.name}"))
    return np.array(framework.numpy(result))


# --- gradients --------------------------------------------------------------------------------------------------------


def differentiate(function: Callable[..., Any], call: Call, request: Request) -> Answer:
    """The gradients of all entries, by the function's own `vjp`, or through `build`.

    Where none reaches any entry through `build`, nothing is said about gradients: `build` copies the entries.
    """
    framework = Loaded.framework
    cotangent: Any = convert_input(np.asarray(call.cotangent), request.dtype)
    plain = replace(call, cotangent=None)
    if hasattr(function, "vjp"):
        inputs = [convert_input(array, request.dtype) for array in call.inputs]
        options = {name: convert_input(array, request.dtype) for name, array in call.options.items()}
        gradients = function.vjp(cotangent, *inputs, **options)
    elif framework.name == "numpy":
        raise TypeError("NumPy does not differentiate; give the function an attribute vjp")
    else:
        entries = {name: framework.array(array) for name, array in request.state_dict.items()}

        def results(entries: dict[str, Any]) -> dict[str, Any]:
            return {"output": call_function(Loaded.build(dict(request.config), dict(entries)), plain, request.dtype)}

        try:
            _, gradients = framework.differentiate(results, entries, [*entries], {"output": cotangent})
        except NoGradients:
            return Answer(detail=GradientLost())
    if not isinstance(gradients, Mapping):
        return Answer(detail=OtherType(describe_kind(gradients), array="a dictionary of gradients by entry"))
    found = {name: np.array(framework.numpy(array)) if isinstance(array, framework.kind) else np.array(array)
             for name, array in gradients.items()}  # fmt: skip
    if not hasattr(function, "vjp") and not any(map(np.any, found.values())):
        return Answer(detail=GradientLost())
    return Answer(gradients=found)
