"""A function on several ranks, as one function of the whole: processes of PyTorch in one group (DIST-1 to DIST-5).

`put_on_ranks` returns a function of whole tensors. Every call cuts them, has all ranks call the function under test on
their parts, and joins what they return; so does the backward pass. So the judge asks it what it asks any function.

The processes stay from call to call. They are forked from one that has loaded PyTorch, and are started anew after one
of them is lost. Where `torchrun` has started processes, those of other ranks serve instead (`serve_launched`).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import itertools
import os
import pickle
import secrets
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.signatures import declaration_of
from conformance.checks.findings import LostRank, ProcessEnded, TookTooLong
from conformance.runner.fresh import CHECKING, PRELOADED, import_modules, loadable
from conformance.runner.in_process import JudgeError
from conformance.runner.process_lifetime import end_with_input
from conformance.runner.workers import ONE_THREAD, Worker, encode_call
from conformance.subjects.callables import Target
from conformance.subjects.frameworks import TorchArrays
from conformance.subjects.shards import Shards, layout_of
from conformance.subjects.subject import describe_value, first_line, type_name
from conformance.subjects.wrong_answers import Returned, WrongAnswer, find_raising_line
from specification.masks import map_arrays

GRACE = 1.0
"""Seconds in which the other ranks tell what they know of one that failed."""
STARTING = 300.0
"""Seconds in which all ranks must have loaded the function."""
GIVEN = ("layout", "group", "axis_name")
"""Parameters of a function on ranks that are none of the operation's, and are no concern of cases."""
INPUTS, RESULTS = ("query", "key", "value"), ("output", "logsumexp")
ADDRESS = "conformance"
"""The key in torchrun's store under which rank 0 says where it listens."""


Address = tuple[Any, bytes]
"""Where rank 0's judge listens, and its key."""


def is_launched() -> bool:
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


# --- the function of the whole ----------------------------------------------------------------------------------------


def drop_rank_parameters(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature without the parameters of ranks."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in GIVEN])


def list_places(signature: inspect.Signature) -> tuple[str, ...]:
    """The names of arguments that go by place."""
    return *INPUTS, *[p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY][len(INPUTS) :]


def put_on_ranks(function: Callable[..., Any], target: Target, seconds: float) -> Callable[..., Any]:
    """Return the function of whole tensors that the target's ranks compute together.

    Args:
        function: the target's, which is loaded here for its signature alone.
        target: what each rank loads, its number of ranks, and what they have a part of.
        seconds: how long the ranks may take for one pass.

    Raises:
        ValueError: no other process finds the function by its name.
    """
    import torch

    found = loadable(target)
    if found is None:
        raise ValueError(f"{target.title} must be found by a name in the processes of ranks: package.module:function")
    named_target, arrays = replace(found, given={}), TorchArrays(target.device)
    processes = PROCESSES.get((target.ranks, seconds)) or RankProcesses(target.ranks, seconds)
    PROCESSES[target.ranks, seconds] = processes
    declared = declaration_of(function, True, target.operation, **target.given)
    layout, tiled = declared.layout, declared.convention("heads") == "tiled"

    def convert_to_numpy(value: Any) -> Any:
        return map_arrays(value, lambda a: arrays.numpy(a) if isinstance(a, torch.Tensor) else a)

    class OnRanks(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, places: tuple[str, ...], named: dict[str, Any], names: tuple[str, ...], *tensors: Any
        ) -> Any:
            named = {
                name: convert_to_numpy(value)
                for name, value in (named | dict(zip(names, tensors, strict=True))).items()
            }
            shards = Shards.read_call(target.shard, target.ranks, named, layout, tiled)
            number, calls = next(NUMBERS), []
            for rank in range(target.ranks):
                parts = {name: shards.cut(name, value, rank) for name, value in named.items()}
                calls.append((named_target, number, places, parts, names))
            replies = processes.ask(call_forward, calls)
            ctx.handle = Handle()
            weakref.finalize(ctx.handle, processes.released.append, number)
            ctx.state = number, shards, names, {name: named[name] for name in names}
            counts, several = {len(reply[0]) for reply in replies}, replies[0][2]
            if len(counts) > 1 or max(counts) > len(RESULTS):
                raise WrongAnswer(Returned(f"a tuple of {max(counts)}", names=RESULTS))
            outputs = []
            for name, results in zip(RESULTS, zip(*(reply[0] for reply in replies), strict=True), strict=False):
                shape = named["query"].shape[:-1] if name == "output" else (len(named["query"]), shards.H, shards.Q)
                shape = (*shape, *results[0].shape[3:])
                outputs.append(arrays.array(shards.join(name, results, shape, None, name)))
            if not any(reply[1] for reply in replies):
                ctx.mark_non_differentiable(*outputs)
            return tuple(outputs) if several else outputs[0]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *cotangents: Any) -> Any:
            number, shards, names, inputs = ctx.state
            named = {n: convert_to_numpy(c) for n, c in zip(RESULTS, cotangents, strict=False)}
            calls = [
                (named_target, number, [shards.cut(name, array, rank) for name, array in named.items()])
                for rank in range(target.ranks)
            ]
            replies = processes.ask(call_backward, calls)
            gradients = []
            for i, name in enumerate(names):
                whole, parts = inputs[name], [reply[i] for reply in replies]
                joined = shards.join(name, parts, whole.shape, whole.dtype, f"gradient of {name}")
                gradients.append(arrays.array(joined))
            return None, None, None, *gradients

    own = drop_rank_parameters(function)

    @functools.wraps(function)
    def whole(*positional: Any, **keywords: Any) -> Any:
        places = list_places(own)[: len(positional)]
        named = dict(zip(places, positional, strict=True)) | keywords
        wanted = [n for n, v in named.items() if isinstance(v, torch.Tensor) and v.requires_grad]
        names = tuple(wanted) if torch.is_grad_enabled() else ()
        others = {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in named.items() if n not in names}
        return OnRanks.apply(places, others, names, *(named[name] for name in names))

    whole.__signature__ = own  # type: ignore[attr-defined]
    whole.load = lambda: processes.ask(load_here, [(named_target,)] * target.ranks)  # type: ignore[attr-defined]
    return whole


class Handle:
    """Lives as long as a call's backward pass may come."""


# --- the processes ----------------------------------------------------------------------------------------------------


class RankProcesses:
    """One process for each rank, all in one group, for all functions on so many ranks.

    released: numbers of calls whose backward pass cannot come any more.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds
        self.connections: list[Connection] = []
        self.pids: list[int] = []
        self.released: list[int] = []
        self.forking: list[Worker] = []
        self.lock, self.launched, self.lost = Lock(), is_launched(), False
        weakref.finalize(self, end_processes, self.pids, self.connections, self.forking)

    def start(self) -> None:
        """Start all ranks, and wait until they have found each other; ValueError where they do not."""
        if self.lost and self.launched:
            raise JudgeError("the ranks that torchrun has started are lost, and nothing more can be asked")
        count = self.count
        try:
            with tempfile.TemporaryDirectory() as folder, listen(folder, self.launched) as listener:
                address = listener.address, listener.key
                if self.launched:
                    launch_store().set(ADDRESS, pickle.dumps(address))
                ranks = [0] if self.launched else [*range(count)]
                self.pids += self.forking_process().call(encode_call(fork_ranks, address, ranks))
                came = {connection.recv(): connection for connection in (listener.accept() for _ in range(count))}
                self.connections += [came[rank] for rank in range(count)]
                store = "" if self.launched else str(Path(folder) / "store")
                for connection in self.connections:
                    connection.send((count, self.seconds, store, sys.path))
                if not all(connection.poll(STARTING) and connection.recv() for connection in self.connections):
                    raise EOFError
        except (OSError, EOFError, KeyError) as error:
            self.stop()
            raise ValueError(f"{count} ranks do not find each other") from error
        except BaseException:
            self.stop()
            raise

    def forking_process(self) -> Worker:
        if not self.forking:
            environment = ONE_THREAD | {"TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ
            self.forking.append(Worker("conformance.runner.workers:serve_calls", env=environment))
        return self.forking[0]

    def stop(self) -> None:
        """End all ranks; the next call starts them anew."""
        self.lost = True
        end_processes(self.pids, self.connections)
        self.released.clear()

    def ask(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what the function returns on every rank, which has arguments of its own.

        Raises:
            LostRank: one has ended, or not all have answered in time.
            Exception: like the one that a rank raised first, with the rank in its text.
        """
        with self.lock:
            if not self.connections:
                self.start()
            try:
                released, self.released[:] = [*self.released], []
                replies, raised = self.exchange([encode_call(function, *one, released) for one in arguments])
            except BaseException:  # also an interrupt: a reply that nobody took must not be the next one's
                self.stop()
                raise
        if raised is not None:  # the same by all ranks, which wait for the next call
            raise raised
        return replies

    def exchange(self, calls: Sequence[bytes]) -> tuple[list[Any], Exception | None]:
        """Return what every rank replies, or the error that all of them raise; raise what only some do."""
        start = time.monotonic()
        replies: dict[int, Any] = {}
        errors: dict[int, Any] = {}
        ended: list[int] = []
        waiting = dict(zip(self.connections, range(len(calls)), strict=True))
        for connection, call in zip(self.connections, calls, strict=True):
            with contextlib.suppress(OSError):  # it has ended, as its end of the connection tells
                connection.send_bytes(call)
        end, first = start + self.seconds + GRACE, 0.0
        while waiting and (left := end - time.monotonic()) > 0:
            ready: list[Any] = wait([*waiting], left)
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    replies[rank], error = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    ended.append(rank)
                else:
                    if error is None:
                        continue
                    errors[rank] = error
                if not first:
                    first = time.monotonic()
                    end = min(end, first + GRACE)
        if ended:
            raise LostRank(ProcessEnded(self.exit_code(ended[0]), rank=ended[0]))
        silent = tuple(sorted(waiting.values()))
        if not errors and not silent:
            return [replies[rank] for rank in range(len(calls))], None
        if not errors or first - start >= self.seconds:  # who waits for another rank gives up after so long
            alone = silent if len(silent) < len(calls) else ()
            raise LostRank(TookTooLong(self.seconds, ended=True, ranks=alone))
        rank, error = next(iter(errors.items()))
        if isinstance(error, WrongAnswer):
            raise error
        if len(errors) == len(calls) and len({*errors.values()}) == 1:
            return [], make_exception(*error)
        name, text = error
        raise make_exception(name, f"on rank {rank}: {text}")

    def exit_code(self, rank: int) -> int | None:
        if self.launched:
            return None
        code: int | None = self.forking_process().call(encode_call(wait_for, self.pids[rank]))
        return code


PROCESSES: weakref.WeakValueDictionary[tuple[int, float], RankProcesses] = weakref.WeakValueDictionary()
"""Those that some function is on, by their number and their seconds."""
NUMBERS = itertools.count()
"""Of calls."""


def make_exception(name: str, text: str) -> Exception:
    """An exception as a rank raised it, by the name of its type."""
    base = getattr(builtins, name, Exception)
    base = base if isinstance(base, type) and issubclass(base, Exception) else Exception
    made: Exception = type(name, (base,), {"__init__": Exception.__init__, "__str__": lambda self: text})(text)
    return made


def end_processes(pids: list[int], connections: list[Connection], forking: Sequence[Worker] = ()) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for connection in connections:
        connection.close()
    for worker in forking:
        worker.close()
    pids.clear()
    connections.clear()


class KeyedListener(Listener):
    """A listener that says its key."""

    def __init__(self, address: Any, key: bytes) -> None:
        super().__init__(address, backlog=64, authkey=key)
        self.key = key


def listen(folder: str, launched: bool) -> KeyedListener:
    """Listen for ranks of other machines, or of this one."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STARTING)
    try:
        return KeyedListener((socket.gethostname(), 0) if launched else f"{folder}/judge", secrets.token_bytes(16))
    finally:
        socket.setdefaulttimeout(before)


def launch_store() -> Any:
    """The store that torchrun's processes share."""
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STARTING))


# --- in the forking process -------------------------------------------------------------------------------------------


def fork_ranks(address: Address, ranks: Sequence[int]) -> list[int]:
    """Fork a process for each rank, and return their numbers."""
    import_modules((*CHECKING, *PRELOADED["torch"], "torch.distributed"))
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):  # those that were ended
            pass
    pids = []
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                end_with_input()
                serve_rank(address, rank)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    return pids


def wait_for(pid: int) -> int | None:
    """The exit code of a rank that has closed its connection."""
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
        time.sleep(GRACE / 50)
    return None


# --- in a rank's process ----------------------------------------------------------------------------------------------


class Rank(NamedTuple):
    """What a rank's process has loaded, and keeps.

    functions: with the options that each takes on ranks. calls: by number, the results and the inputs whose gradients
    may be asked for.
    """

    functions: dict[Any, tuple[Callable[..., Any], dict[str, Any]]]
    calls: dict[int, tuple[Any, Any]]


RANK = Rank({}, {})


def serve_launched() -> None:
    """Serve as the rank that torchrun's environment says, until rank 0 ends."""
    serve_rank(pickle.loads(launch_store().get(ADDRESS)), int(os.environ["RANK"]))


def serve_rank(address: Address, rank: int) -> None:
    """Join the group, and answer the judge's calls until it ends."""
    import torch
    import torch.distributed as dist

    where, key = address
    with Client(where, authkey=key) as connection, contextlib.suppress(EOFError, OSError):
        connection.send(rank)
        count, seconds, store, path = connection.recv()
        group: dict[str, Any] = {"rank": rank, "world_size": count, "init_method": f"file://{store}"}
        if store:
            sys.path[:] = path
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=seconds), **(group if store else {}))
        connection.send(True)
        while True:
            function, arguments = pickle.loads(connection.recv_bytes())
            connection.send_bytes(answer(function, *arguments))


def load_function(target: Target) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Load a target's function; ValueError says why there is none."""
    key = target.subject, target.shard
    if key not in RANK.functions:
        function = target.function()
        named = inspect.signature(function).parameters
        RANK.functions[key] = function, {"layout": layout_of(target.shard)} if "layout" in named else {}
    return RANK.functions[key]


def answer(function: Callable[..., Any], target: Target, *arguments: Any) -> bytes:
    """Return (what the function returns, the error that it raises), pickled. The last argument: what is released."""
    *given, released = arguments
    for number in released:
        RANK.calls.pop(number, None)
    try:
        return pickle.dumps((function(target, *given), None))
    except WrongAnswer as error:
        return pickle.dumps((None, error))
    except Exception as error:
        found = RANK.functions.get((target.subject, target.shard))
        line = "" if found is None else find_raising_line(error, found[0])
        return pickle.dumps((None, (type(error).__name__, first_line(error) + (f" ({line})" if line else ""))))


def load_here(target: Target) -> None:
    """Load the function, so that what is wrong with it is known before it is called."""
    load_function(target)


def call_forward(
    target: Target, number: int, places: Sequence[str], named: dict[str, Any], wanted: Sequence[str]
) -> tuple[Any, bool, bool]:
    """Return this rank's results, whether they have gradients, and whether there are several.

    Args:
        target: whose function is called.
        number: of the call.
        places: names of the arguments that go by place.
        named: all arguments, with arrays of NumPy.
        wanted: names of those whose gradients may be asked for.
    """
    (function, options), arrays = load_function(target), TorchArrays()

    def convert_to_tensors(value: Any) -> Any:
        return map_arrays(value, lambda a: arrays.array(a) if isinstance(a, np.ndarray) else a)

    tensors = {name: convert_to_tensors(value) for name, value in named.items()}
    inputs = [tensors[name].requires_grad_() for name in wanted]
    given = [tensors.pop(name) for name in places]
    returned = function(*given, **tensors, **options)
    several = isinstance(returned, tuple | list)
    results = list(returned) if several else [returned]
    for result in results:
        if not isinstance(result, arrays.kind):
            raise WrongAnswer(Returned(describe_value(result), array=type_name(arrays.kind)))
    if wanted:
        RANK.calls[number] = results, inputs
    connected = any(result.requires_grad for result in results)
    return [np.array(arrays.numpy(result)) for result in results], connected, several


def call_backward(target: Target, number: int, cotangents: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the gradients of the inputs that were wanted."""
    import torch

    (results, inputs), arrays = RANK.calls[number], TorchArrays()
    pairs = [(r, arrays.array(c)) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
    if not pairs:  # as on a rank without queries
        return [np.zeros_like(arrays.numpy(array)) for array in inputs]
    gradients = torch.autograd.grad(
        [result for result, _ in pairs], inputs, [bar for _, bar in pairs], retain_graph=True, materialize_grads=True
    )
    return [np.array(arrays.numpy(gradient)) for gradient in gradients]
