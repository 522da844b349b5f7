"""Models of which every rank has a part of the sequence, on processes of PyTorch and devices of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from specification.checkpoints import flatten
from specification.distributed import shard_positions
from specification.parameters import mapped
from tests.support.devices import replaced
from training.packages import converted

SIZE = "the sizes of parts of "
"""Before a parameter's name: the sum over ranks of the sizes of what they add up to its gradient."""


class ModelCall(NamedTuple):
    """A model's function and arrays, in the dtype in which it is called, and how ranks share the sequence.

    lengths: of the inputs' parts on each rank, where they are not even. token_types, dropout: of `options`.
    """

    function: str
    parameters: Any
    inputs: tuple[np.ndarray, ...]
    configuration: Any
    options: dict[str, Any]
    cotangent: np.ndarray
    ranks: int
    layout: str = "contiguous"
    scheme: str = "ring"
    lengths: Sequence[Sequence[int]] = ()
    fault: str = ""

    def positions(self, place: int, rank: int) -> np.ndarray:
        """Of the input at that place."""
        if self.lengths:
            before = self.lengths[place]
            return np.arange(sum(before[:rank]), sum(before[: rank + 1]))
        return shard_positions(self.inputs[place].shape[1], self.ranks, rank, self.layout)

    def cut(self, rank: int) -> tuple[tuple[np.ndarray, ...], dict[str, Any], np.ndarray]:
        """A rank's inputs, options and cotangent."""
        inputs = tuple(array[:, self.positions(i, rank)] for i, array in enumerate(self.inputs))
        options = dict(self.options)
        if options.get("token_types") is not None:
            options["token_types"] = options["token_types"][:, self.positions(0, rank)]
        if "dropout" in options:
            dropout = options["dropout"]
            stacks = dropout if self.function == "transformer" else [dropout]
            cut = [
                converted(stack, partial(np.take, indices=self.positions(i, rank), axis=1))
                for i, stack in enumerate(stacks)
            ]
            options["dropout"] = type(dropout)(*cut) if self.function == "transformer" else cut[0]
        # What comes out has the positions of the last input, but for a decoder's memory.
        last = 1 if self.function == "transformer" else 0
        return inputs, options, self.cotangent[:, self.positions(last, rank)]


def join_parts(call: ModelCall, of_ranks: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The whole's output and gradients. Those of parameters must be the same on every rank."""
    joined = {}
    for name, first in of_ranks[0].items():
        if name == "output" or name.startswith("['inputs']"):
            last = 1 if call.function == "transformer" else 0
            place = last if name == "output" else int(name.split(".")[1])
            length = call.inputs[place].shape[1]
            joined[name] = np.zeros_like(first, shape=(first.shape[0], length, *first.shape[2:]))
            for rank, results in enumerate(of_ranks):
                joined[name][:, call.positions(place, rank)] = results[name]
        else:
            for results in of_ranks:
                np.testing.assert_array_equal(results[name], first)
            joined[name] = first
    return joined


# --- in a process of PyTorch ------------------------------------------------------------------------------------------


def compute_model(call: ModelCall, group: Any) -> dict[str, np.ndarray]:
    """This rank's part of the output, and its gradients by name."""
    import torch
    import torch.distributed as dist

    from conformance.subjects.frameworks import TorchArrays
    from specification.masks import map_arrays
    from torch_impl import distributed_models

    arrays = TorchArrays()
    inputs, options, cotangent = call.cut(dist.get_rank(group))
    own: Any = mapped(arrays.array, {"parameters": call.parameters, "inputs": inputs})
    options = {name: map_arrays(value, arrays.array) if "mask" in name else converted(value, arrays.array)
               for name, value in options.items()}  # fmt: skip
    wanted = {name: tensor.requires_grad_() for name, tensor in flatten(own).items() if tensor.is_floating_point()}
    function = getattr(distributed_models, call.function)
    ranks = distributed_models.Ranks(group, call.layout, call.scheme)
    sum_over_ranks, sizes = distributed_models.sum_over_ranks, []

    def sum_and_record(members: Any, numbers: torch.Tensor) -> torch.Tensor:
        sizes.append(sum_over_ranks(members, numbers.abs()))
        return sum_over_ranks(members, numbers)

    with ExitStack() as stack:
        stack.enter_context(replaced(distributed_models, "sum_over_ranks", sum_and_record))
        if call.fault:
            stack.enter_context(replaced(*FAULTS[call.fault](distributed_models)))
        output = function(own["parameters"], *own["inputs"], configuration=call.configuration, **options, ranks=ranks)
        gradients = torch.autograd.grad(output, [*wanted.values()], arrays.array(cotangent))
    found = {"output": arrays.numpy(output.detach())}
    found |= {name: arrays.numpy(gradient) for name, gradient in zip(wanted, gradients, strict=True)}
    summed = [name for name in wanted if name.startswith("['parameters']") and not name.endswith(".sinks")]
    counts = [wanted[name].numel() for name in summed]
    if sizes and sizes[0].numel() == sum(counts):
        parts = sizes[0].split(counts)
        found |= {SIZE + name: part.view(wanted[name].shape).numpy() for name, part in zip(summed, parts, strict=True)}
    return found


Faults = dict[str, Callable[[Any], tuple[Any, str, Any]]]
"""By name: for `distributed_models` of a port, the owner of a function, its name, and what stands in its place."""
FAULTS: Faults = {}
FAULTS_ON_DEVICES: Faults = {}


def fault(*ports: Faults) -> Any:
    def add(function: Callable[[Any], tuple[Any, str, Any]]) -> Any:
        for port in ports:
            port[function.__name__.replace("_", " ")] = function
        return function

    return add


@fault(FAULTS, FAULTS_ON_DEVICES)
def positions_begin_anew_on_every_rank(models: Any) -> Any:
    own = models.Part.positions
    return models.Part, "positions", lambda *given: own(*given) - own(*given)[0]


@fault(FAULTS, FAULTS_ON_DEVICES)
def embedding_at_the_first_positions(models: Any) -> Any:
    embed = models.embed
    return models, "embed", lambda *arrays, offset=0, **options: embed(*arrays, **options)


@fault(FAULTS)
def padding_of_own_tokens(models: Any) -> Any:
    """A rank marks its own padding in the whole, and takes all other tokens for real ones."""

    def gather(part: Any, ids: Any) -> Any:
        whole = ids.new_ones(len(ids), part.length)
        whole[:, part.positions(ids.device)] = ids
        return whole

    return models.Part, "gather", gather


@fault(FAULTS)
def gradients_of_parameters_not_summed(models: Any) -> Any:
    return models, "sum_gradients", lambda members, parameters: parameters


@fault(FAULTS)
def gradients_of_parameters_averaged(models: Any) -> Any:
    backward = models.SumGradients.backward

    def average(ctx: Any, *gradients: Any) -> Any:
        return (None, *(gradient / ctx.members.ranks for gradient in backward(ctx, *gradients)[1:]))

    return models.SumGradients, "backward", staticmethod(average)


@fault(FAULTS, FAULTS_ON_DEVICES)
def attention_within_a_rank(models: Any) -> Any:
    attention = import_module(models.__name__.partition(".")[0]).attention

    def attend(ranks: Any, *arrays: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
        return attention(*arrays, **options)

    return models.Ranks, "__call__", attend


@fault(FAULTS, FAULTS_ON_DEVICES)
def bias_of_the_first_rows(models: Any) -> Any:
    bias = models.position_bias
    return (
        models,
        "position_bias",
        lambda parameters, given, queries, keys, start: bias(parameters, given, queries, keys),
    )


@fault(FAULTS)
def sinks_summed_twice(models: Any) -> Any:
    leaves = models.leaves
    return models, "leaves", lambda tree: {name + " ": array for name, array in leaves(tree).items()}


# --- in a process with devices of JAX ---------------------------------------------------------------------------------


def compute_wrongly_on_devices(call: ModelCall) -> dict[str, np.ndarray]:
    """With the fault of the call; what was compiled without it is not used."""
    import jax

    from jax_impl import distributed_models

    jax.clear_caches()
    try:
        with replaced(*FAULTS_ON_DEVICES[call.fault](distributed_models)):
            return compute_on_devices(call)
    finally:
        jax.clear_caches()


def compute_on_devices(call: ModelCall) -> dict[str, np.ndarray]:
    """The whole's output and gradients; every length is a multiple of the number of ranks."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as Spec

    from conformance.subjects.frameworks import JaxArrays
    from jax_impl import distributed_models

    arrays = JaxArrays()
    with arrays.context():
        orders = [
            np.concatenate([call.positions(i, rank) for rank in range(call.ranks)]) for i in range(len(call.inputs))
        ]
        last = orders[1 if call.function == "transformer" else 0]
        inputs = tuple(arrays.array(array[:, order]) for array, order in zip(call.inputs, orders, strict=True))
        options: Any = dict(call.options)
        if options.get("token_types") is not None:
            options["token_types"] = options["token_types"][:, orders[0]]
        options = {name: jax.tree.map(arrays.array, value) for name, value in options.items()}
        shared = distributed_models.Ranks("ranks", call.layout, call.scheme)
        function, rows, same = getattr(distributed_models, call.function), Spec(None, "ranks"), Spec()

        def compute_part(parameters: Any, inputs: Any, options: Any) -> Any:
            return function(parameters, *inputs, configuration=call.configuration, **options, ranks=shared)

        def compute_of_copy(parameters: Any, inputs: Any, options: Any) -> Any:
            return compute_part(jax.tree.map(lambda array: array[0], parameters), inputs, options)

        others = (rows, {name: same if "mask" in name else rows for name in options})
        mesh = Mesh(np.array(jax.devices()[: call.ranks]), ("ranks",))
        shared_by_all = jax.shard_map(compute_part, mesh=mesh, in_specs=(same, *others), out_specs=rows)
        with_copies = jax.shard_map(compute_of_copy, mesh=mesh, in_specs=(Spec("ranks"), *others), out_specs=rows)
        floating = [array.dtype.kind != "i" for array in call.inputs]

        def compute(whole: Any, parameters: Any, given: Any, cotangent: Any) -> Any:
            def of_wanted(parameters: Any, wanted: Any) -> Any:
                following = iter(wanted)
                every = tuple(next(following) if one else array for one, array in zip(floating, given, strict=True))
                return whole(parameters, every, options)

            wanted = [array for one, array in zip(floating, given, strict=True) if one]
            output, pullback = jax.vjp(of_wanted, parameters, wanted)
            return output, pullback(cotangent)

        cotangent = arrays.array(call.cotangent[:, last])
        parameters = mapped(arrays.array, call.parameters)
        run = jax.jit(compute, static_argnums=0)
        output, (of_parameters, of_inputs) = run(shared_by_all, parameters, inputs, cotangent)
        found = {"output": arrays.numpy(output)[:, np.argsort(last)]}
        found |= {name: arrays.numpy(array) for name, array in flatten({"parameters": of_parameters}).items()}
        places = [i for i, one in enumerate(floating) if one]
        for i, gradient in zip(places, of_inputs, strict=True):
            found[f"['inputs'].{i}"] = arrays.numpy(gradient)[:, np.argsort(orders[i])]
        if call.cotangent.dtype.itemsize == 2:
            copies = mapped(lambda array: jnp.stack([array] * call.ranks), parameters)
            _, (parts, _) = run(with_copies, copies, inputs, cotangent)
            for name, array in flatten({"parameters": parts}).items():
                found[SIZE + name] = np.abs(arrays.numpy(array).astype(np.float64)).sum(axis=0)
        return found


def sum_of_gradients(parts: np.ndarray) -> float:
    """The gradient of a number that all ranks have, and to which each adds a part."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as Spec

    from jax_impl.distributed_models import sum_gradients

    mesh = Mesh(np.array(jax.devices()[: len(parts)]), ("ranks",))
    rows = jax.shard_map(
        lambda number, part: sum_gradients("ranks", number) * part, mesh=mesh, in_specs=(Spec(), Spec("ranks")),
        out_specs=Spec("ranks"),
    )  # fmt: skip
    _, pullback = jax.vjp(rows, jnp.ones((), parts.dtype), jnp.asarray(parts))
    return float(jax.jit(pullback)(jnp.ones_like(parts))[0])


@fault(FAULTS_ON_DEVICES)
def padding_of_own_tokens_on_devices(models: Any) -> Any:
    """As in PyTorch: a rank takes all other tokens for real ones."""

    def gather(part: Any, ids: Any) -> Any:
        return models.jnp.ones((len(ids), part.length), ids.dtype).at[:, part.positions()].set(ids)

    return models.Part, "gather", gather


@fault(FAULTS_ON_DEVICES)
def windows_from_the_first_position_of_a_rank(models: Any) -> Any:
    from specification.masks import And, SlidingWindow

    attend = models.Ranks.__call__

    def shift(mask: Any, start: Any) -> Any:
        if isinstance(mask, And):
            return And(shift(mask.left, start), shift(mask.right, start))
        return replace(mask, offset=-start) if isinstance(mask, SlidingWindow) else mask

    def shift_and_attend(ranks: Any, query: Any, *arrays: Any, mask: Any, **options: Any) -> Any:
        start = models.lax.axis_index(ranks.axis_name) * query.shape[2]
        return attend(ranks, query, *arrays, mask=shift(mask, start), **options)

    return models.Ranks, "__call__", shift_and_attend


@fault(FAULTS_ON_DEVICES)
def gradients_of_the_first_rank_alone(models: Any) -> Any:
    jax, jnp, own = models.jax, models.jnp, models.sum_gradients

    def keep_first(axis_name: str, parameters: Any) -> Any:
        first = models.lax.axis_index(axis_name) == 0
        return jax.tree.map(
            lambda array: jnp.where(first, array, models.lax.stop_gradient(array)), own(axis_name, parameters)
        )

    return models, "sum_gradients", keep_first


@fault(FAULTS_ON_DEVICES)
def gradients_averaged(models: Any) -> Any:
    own = models.sum_gradients

    def average(axis_name: str, parameters: Any) -> Any:
        part = 1 / models.lax.axis_size(axis_name)
        stopped = models.lax.stop_gradient(parameters)
        return own(axis_name, models.jax.tree.map(lambda x, y: part * x + (1 - part) * y, parameters, stopped))

    return models, "sum_gradients", average
