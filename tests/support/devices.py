"""Attention on several devices in JAX: a process with eight of the CPU, which must be there before JAX is loaded."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from tests.support.shards import FUNCTIONS, Call

COUNT = 8


class Devices:
    """The process, for as long as the block lasts."""

    def __enter__(self) -> Devices:
        context = multiprocessing.get_context("spawn")
        self.pipe, its = context.Pipe()
        before = os.environ.get("XLA_FLAGS")
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={COUNT}"
        try:
            self.process = context.Process(target=serve, args=(its,), daemon=True)
            self.process.start()
        finally:
            os.environ.pop("XLA_FLAGS")
            if before is not None:
                os.environ["XLA_FLAGS"] = before
        its.close()
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.close()
        self.process.join(1)
        self.process.kill()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of this file returns there; its error is raised here."""
        self.pipe.send((function, arguments))
        found, error = self.pipe.recv()
        if error is not None:
            raise error
        return found


def serve(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            try:
                pipe.send((function(*arguments), None))
            except Exception as error:
                pipe.send((None, type(error)(str(error))))


# --- in the process ---------------------------------------------------------------------------------------------------


def mapped(call: Call, checked: bool = True) -> tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], Any]]:
    """The function of whole arrays, the arrays as the ranks hold them side by side, and how to undo their order."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as Spec

    from jax_impl import distributed

    positions = [call.positions(rank) for rank in range(call.ranks)]
    queries, keys = (np.concatenate(of_ranks) for of_ranks in zip(*positions, strict=True))
    places: dict[str, Any] = {"query": (2, queries), "key": (2, keys), "value": (2, keys), "bias": (-2, queries)}
    rows, same = Spec(None, None, "ranks"), Spec()
    arrays, specs = {}, {}
    for name, array in call.case.inputs.items():
        axis, order = places.get(name, (0, slice(None)))
        shared = name == "sinks" or (name == "bias" and call.one_row)
        given = array[..., :1, :] if name == "bias" and call.one_row else array
        arrays[name] = jnp.asarray(given if shared else np.take(given, order, axis))
        specs[name] = same if shared else (Spec("ranks") if name == "bias" and array.ndim == 2 else rows)
    options = dict(call.case.options)
    mask = jax.tree.map(jnp.asarray, options.pop("mask", None))
    function = getattr(distributed, FUNCTIONS[call.shard])

    def compute_rows(arrays: Any, mask: Any) -> Any:
        return function(**arrays, mask=mask, **options, axis_name="ranks", layout=call.layout, engine=call.engine)

    mesh = Mesh(np.array(jax.devices()[: call.ranks]), ("ranks",))
    whole = jax.shard_map(compute_rows, mesh=mesh, in_specs=(specs, same), out_specs=rows, check_vma=checked)

    def undo(results: dict[str, Any]) -> dict[str, np.ndarray]:
        found = {}
        for name, array in results.items():
            axis, order = places.get(name.removeprefix(gradient_name("")), (2, queries))
            moved = np.asarray(array)
            found[name] = moved if "sinks" in name or ("bias" in name and call.one_row) else None
            if found[name] is None:
                found[name] = np.take(moved, np.argsort(order), axis)
        return found

    return lambda arrays: whole(arrays, mask), (arrays, queries), undo


def compute(call: Call, checked: bool = True) -> dict[str, np.ndarray]:
    """The whole's result and gradients."""
    import jax
    import jax.numpy as jnp

    with planted(call.fault, call.ranks):
        function, (arrays, queries), undo = mapped(call, checked)
        if not call.case.cotangents:
            return undo({"output": jax.jit(function)(arrays)})
        cotangent = jnp.asarray(call.case.cotangents["output"][:, :, queries])

        def both(arrays: Any, cotangent: Any) -> Any:
            output, pullback = jax.vjp(function, arrays)
            return output, pullback(cotangent)[0]

        output, gradients = jax.jit(both)(arrays, cotangent)
        return undo({"output": output} | {gradient_name(name): array for name, array in gradients.items()})


def bytes_sent(call: Call) -> tuple[int, int]:
    """What one rank sends to others in the forward pass, and in the backward pass."""
    import jax
    import jax.numpy as jnp

    function, (arrays, queries), _ = mapped(call)
    cotangent = jnp.asarray(call.case.cotangents["output"][:, :, queries])
    both = jax.make_jaxpr(lambda arrays, cotangent: jax.vjp(function, arrays)[1](cotangent))(arrays, cotangent)
    forward = sum_of_sends(jax.make_jaxpr(function)(arrays).jaxpr, call.ranks)
    return forward, sum_of_sends(both.jaxpr, call.ranks) - forward


def sum_of_sends(jaxpr: Any, ranks: int) -> int:
    total = 0
    for equation in jaxpr.eqns:
        size = sum(int(np.prod(v.aval.shape)) * v.aval.dtype.itemsize for v in equation.invars if hasattr(v, "aval"))
        if equation.primitive.name == "ppermute":
            total += size
        elif equation.primitive.name == "all_gather":
            total += size * (ranks - 1)
        elif equation.primitive.name in ("all_to_all", "reduce_scatter"):
            total += size * (ranks - 1) // ranks
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * sum_of_sends(inner, ranks)
    return total


def pairs_computed(call: Call) -> int:
    """How often an engine computes a pair of pieces in the forward pass, on all ranks together."""
    import jax

    from jax_impl import distributed

    counts: list[int] = []
    compute = distributed.forward_of_part

    def counted(engine: str, inputs: Any) -> Any:
        jax.debug.callback(lambda: counts.append(1))
        return compute(engine, inputs)

    with replaced(distributed, "forward_of_part", counted):
        function, (arrays, _), _ = mapped(call)
        jax.block_until_ready(jax.jit(function)(arrays))
        jax.effects_barrier()
    return len(counts)


def refusal(call: Call, changes: dict[str, Any]) -> None:
    """Trace a call with other options."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as Spec

    from jax_impl import distributed

    function = getattr(distributed, FUNCTIONS[call.shard])
    mesh = Mesh(np.array(jax.devices()[: call.ranks]), ("ranks",))
    local = {"query": jnp.ones((1, 2, 3, 4)), "key": jnp.ones((1, 1, 4, 4)), "value": jnp.ones((1, 1, 4, 4))}
    local |= {name: jnp.asarray(value) if isinstance(value, np.ndarray) else value for name, value in changes.items()}
    jax.eval_shape(
        jax.shard_map(lambda: function(**local, axis_name="ranks"), mesh=mesh, in_specs=(), out_specs=Spec("ranks"))
    )


@contextlib.contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = (
    "stale keys in the backward pass", "mask of the wrong rank", "merged without log sum exps", "order not undone",
    "sinks counted on every rank", "gradients not summed over ranks",
)  # fmt: skip


@contextlib.contextmanager
def planted(name: str, ranks: int) -> Iterator[None]:
    """With a mistake in `jax_impl.distributed`."""
    import jax.numpy as jnp

    from jax_impl import distributed

    send, part, merge, prepare = (getattr(distributed, n) for n in ("send_on", "part", "merge_attention", "prepare"))
    calls = [0]

    def stale(ring: Any, arrays: Any) -> Any:
        calls[0] += 1
        return arrays if calls[0] == 2 else send(ring, arrays)  # the keys of the backward pass

    def shifted(mask: Any, row: Any, column: Any, cut: Any) -> Any:
        return part(mask, jnp.maximum(row - 1, 0), column, cut)

    def mean(outputs: Any, logsumexps: Any) -> Any:
        seen = [jnp.where(one == -jnp.inf, one, 0) for one in logsumexps]
        return merge(outputs, seen)[0], merge(outputs, logsumexps)[1]

    def more_sinks(*arguments: Any) -> Any:
        ring, mask, (*arrays, sinks) = prepare(*arguments)
        return ring, mask, (*arrays, sinks + float(np.log(ranks)))

    def own_sinks(*arguments: Any) -> Any:
        ring, mask, (*arrays, sinks) = prepare(*arguments)
        return ring, mask, (*arrays, sinks / ranks + (1 - 1 / ranks) * distributed.lax.stop_gradient(sinks))

    def keep_rank_order(pieces: Any) -> Any:
        return np.arange(max(stop for of_rank in pieces for _, stop in of_rank))

    changes: dict[str, Any] = {
        "stale keys in the backward pass": ("send_on", stale),
        "mask of the wrong rank": ("part", shifted),
        "merged without log sum exps": ("merge_attention", mean),
        "order not undone": ("order_of", keep_rank_order),
        "sinks counted on every rank": ("prepare", more_sinks),
        "gradients not summed over ranks": ("prepare", own_sinks),
    }
    with replaced(distributed, *changes[name]) if name else contextlib.nullcontext():
        yield
