"""A function on several devices of JAX, as one function of the whole, by `jax.shard_map` (DIST-1 to DIST-3).

The function under test is called on each device's part, along the mesh's axis "ranks". A parameter `axis_name` gets
that name, and `layout` that of the positions. All parts are as long, as `jax.shard_map` demands.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.signatures import declaration_of
from conformance.runner.ranks import RESULTS, drop_rank_parameters, list_places
from conformance.subjects.callables import Target
from conformance.subjects.shards import Shards, layout_of
from specification.masks import Mask, map_arrays, part

AXIS = "ranks"
HOLE: tuple[()] = ()
"""Stands for an array that is taken out of a mask."""
KEPT = 64
"""Functions that are kept; each has its compiled code."""


def make_devices(count: int) -> None:
    """Let JAX have so many devices of the CPU, if it has none yet; ValueError where it has fewer."""
    jax: Any = importlib.import_module("jax")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # it has them by now
        found = len(jax.devices("cpu"))
        if found < count:
            flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
            raise ValueError(f"{count} ranks need as many devices, and JAX has {found}: set {flag}") from None


def put_on_devices(function: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Return the function of whole arrays that the target's devices compute together; ValueError for too few."""
    make_devices(target.ranks)
    jax: Any = importlib.import_module("jax")
    P, ranks = jax.sharding.PartitionSpec, target.ranks
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:ranks]), (AXIS,))
    declared = declaration_of(function, True, target.operation, **target.given)
    layout, tiled = declared.layout, declared.convention("heads") == "tiled"
    results = RESULTS if declared.returns_both(target.operation) else RESULTS[:1]
    named_options = {"axis_name": AXIS, "layout": layout_of(target.shard)}
    options = {name: v for name, v in named_options.items() if name in inspect.signature(function).parameters}
    own = drop_rank_parameters(function)

    @functools.lru_cache(maxsize=KEPT)
    def compile_call(shards: Shards, places: tuple[str, ...], ranked: Any, skeleton: Skeleton) -> Any:
        """One function for all calls that differ in the numbers of arrays alone; JAX compiles it for each dtype."""
        shapes = dict(ranked)
        orders = {name: order_of(shards, name, shape) for name, shape in shapes.items()}
        found = [order_of(shards, name, (shards.Q,) * axes) for name, axes in zip(results, (4, 3), strict=False)]

        def spec(order: Any) -> Any:
            return P() if order is None else P(*[None] * order[0], AXIS)

        def cut_heads(array: Any, axes: tuple[str, ...]) -> Any:
            if "heads" not in axes or array.shape[1] == 1:
                return array
            count = shards.H // ranks
            return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(AXIS) * count, count, 1)

        def compute_part(arrays: dict[str, Any], inner: list[Any]) -> Any:
            given = skeleton.fill(inner) | arrays
            if target.shard == "heads" and isinstance(given.get("mask"), Mask):
                given["mask"] = part(given["mask"], 0, 0, cut_heads)
            by_place = [given.pop(name) for name in places]
            return function(*by_place, **given, **options)

        specs = {name: spec(order) for name, order in orders.items()}, P()
        outer = tuple(map(spec, found)) if len(results) > 1 else spec(found[0])
        mapped = jax.shard_map(compute_part, mesh=mesh, in_specs=specs, out_specs=outer)

        def reorder(array: Any, order: Any, change: Callable[[Any], Any] = np.asarray) -> Any:
            return array if order is None else jax.numpy.take(array, change(order[1]), axis=order[0])

        @jax.jit
        def compute(arrays: dict[str, Any], inner: list[Any]) -> Any:
            returned = mapped({name: reorder(array, orders[name]) for name, array in arrays.items()}, inner)
            if len(results) == 1:
                return reorder(returned, found[0], np.argsort)
            return tuple(reorder(one, order, np.argsort) for one, order in zip(returned, found, strict=True))

        return compute

    @functools.wraps(function)
    def whole(*positional: Any, **keywords: Any) -> Any:
        places = list_places(own)[: len(positional)]
        named = dict(zip(places, positional, strict=True)) | keywords
        shards = Shards.read_call(target.shard, ranks, named, layout, tiled)
        arrays = {name: value for name, value in named.items() if hasattr(value, "shape")}
        skeleton, inner = Skeleton.empty({name: value for name, value in named.items() if name not in arrays})
        shapes = tuple((name, tuple(array.shape)) for name, array in arrays.items())
        return compile_call(shards, places, shapes, skeleton)(arrays, inner)

    whole.__signature__ = own  # type: ignore[attr-defined]
    return whole


class Skeleton:
    """Arguments that are no arrays; those within masks are left out. Two that print the same are the same."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    @classmethod
    def empty(cls, values: dict[str, Any]) -> tuple[Skeleton, list[Any]]:
        """Take the arrays out of masks."""
        inner: list[Any] = []

        def take_out(array: Any) -> tuple[()]:
            inner.append(array)
            return HOLE

        return cls({name: map_arrays(value, take_out) for name, value in values.items()}), inner

    def fill(self, inner: list[Any]) -> dict[str, Any]:
        """Put arrays in their places."""
        left = iter(inner)
        return {name: map_arrays(value, lambda hole: next(left)) for name, value in self.values.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skeleton) and str(self.values) == str(other.values)

    def __hash__(self) -> int:
        return hash(str(self.values))


def order_of(shards: Shards, name: str, shape: tuple[int, ...]) -> tuple[int, np.ndarray] | None:
    """The axis along which an array is spread, and the indices of all ranks; None where each has the whole."""
    found = [shards.place(name, shape, rank) for rank in range(shards.ranks)]
    if found[0] is None:
        return None
    return found[0][0] % len(shape), np.concatenate([place[1] for place in found if place is not None])
