"""A case of a mixture of experts on several ranks: which tokens and experts each has, and the whole from all parts.

Processes of both frameworks run this file, so that neither is loaded with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from conformance.cases.arguments import arguments, gradient_name, named_gradients
from conformance.cases.case import Case


def split_evenly(count: int, ranks: int) -> tuple[int, ...]:
    """As many on each rank, and one more on the first ones."""
    return tuple(count // ranks + (rank < count % ranks) for rank in range(ranks))


@dataclass(frozen=True)
class Call:
    """A case with so many tokens and experts on each rank. fault: (old, new) in the source of the port."""

    case: Case
    tokens: tuple[int, ...]
    experts: tuple[int, ...]
    fault: tuple[str, str] | None = None

    @property
    def ranks(self) -> int:
        return len(self.tokens)

    def axis(self, name: str) -> tuple[int, ...] | None:
        """How an array is cut along its first axis; None for one that every rank has."""
        if name in ("x", "token_mask", "output", gradient_name("x")):
            return self.tokens
        return self.experts if name.removeprefix(gradient_name("")).startswith("experts.") else None

    def cut(self, name: str, array: np.ndarray, rank: int) -> np.ndarray:
        counts = self.axis(name)
        return array if counts is None else array[sum(counts[:rank]) : sum(counts[: rank + 1])]

    def join(self, of_ranks: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
        """The whole's results from those of all ranks. What every rank has must be the same on each."""
        joined = {}
        for name, last in of_ranks[-1].items():
            if name == "counts":
                continue
            arrays = [results[name] for results in of_ranks]
            if self.axis(name) is None and self.fault is None:
                for array in arrays:
                    np.testing.assert_array_equal(array, last)
            joined[name] = last if self.axis(name) is None else np.concatenate(arrays)
        return joined


def function_of(port: str, fault: tuple[str, str] | None) -> Any:
    module = import_module(f"{port}.distributed_experts")
    if fault is None:
        return module.mixture_of_experts
    from tests.support.small_models import edited

    return edited(module.__name__, *fault).mixture_of_experts


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def compute_in_torch(calls: Sequence[Call], group: Any) -> list[dict[str, Any]]:
    """This rank's result and gradients of each call, and how many bytes it sent."""
    return [compute_one(call, group) for call in calls]


def compute_one(call: Call, group: Any) -> dict[str, Any]:
    import torch

    from conformance.subjects.frameworks import TorchArrays
    from tests.support.ranks import counted, numpy

    rank, arrays = torch.distributed.get_rank(group), TorchArrays()
    tensors = {name: arrays.array(call.cut(name, array, rank)) for name, array in call.case.inputs.items()}
    wanted = [name for name in tensors if name != "token_mask"]
    for name in wanted:
        tensors[name].requires_grad_()
    with counted() as counts:
        positional, options = arguments(call.case.operation, tensors, dict(call.case.options))
        output = function_of("torch_impl", call.fault)(*positional, **options, group=group)
        counts["forward"], counts["bytes"] = counts["bytes"], 0
        cotangent = arrays.array(call.cut("output", call.case.cotangents["output"], rank))
        gradients = torch.autograd.grad(output, [tensors[n] for n in wanted], cotangent, materialize_grads=True)
        counts["backward"] = counts["bytes"]
    found = {gradient_name(name): numpy(gradient) for name, gradient in zip(wanted, gradients, strict=True)}
    return {"output": numpy(output), "counts": counts} | found


def call_in_torch(arguments: dict[str, Any], group: Any) -> Any:
    return function_of("torch_impl", None)(**arguments, group=group).numpy()


# --- JAX --------------------------------------------------------------------------------------------------------------


def mapped(call: Call, checked: bool) -> tuple[Any, Any, Any, Any]:
    """The function of a whole's parameters and tokens, with these two and the cotangent."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as Spec

    arrays = {name: jnp.asarray(array) for name, array in call.case.inputs.items()}
    (parameters, x), options = arguments(call.case.operation, arrays, dict(call.case.options))
    mask, function = options.pop("token_mask", None), function_of("jax_impl", call.fault)
    specs: Any = type(parameters)(Spec(), Spec("ranks"), Spec(), Spec())

    def compute_rows(parameters: Any, x: Any, mask: Any) -> Any:
        return function(parameters, x, token_mask=mask, **options, axis_name="ranks")

    mesh = Mesh(np.array(jax.devices()[: call.ranks]), ("ranks",))
    whole = jax.shard_map(
        compute_rows, mesh=mesh, in_specs=(specs, Spec("ranks"), Spec("ranks")), out_specs=Spec("ranks"),
        check_vma=checked,
    )  # fmt: skip
    cotangent = jnp.asarray(call.case.cotangents["output"])
    return lambda parameters, x: whole(parameters, x, mask), parameters, x, cotangent


def both_passes(function: Any) -> Any:
    import jax

    def run(parameters: Any, x: Any, cotangent: Any) -> Any:
        output, pullback = jax.vjp(function, parameters, x)
        return output, pullback(cotangent)

    return run


def compute_in_jax(call: Call, checked: bool = True) -> dict[str, np.ndarray]:
    """The whole's result and gradients."""
    import jax

    from reference_numpy.experts_vjp import MixtureOfExpertsGradients

    function, *arrays = mapped(call, checked)
    output, (parameters, x) = jax.jit(both_passes(function))(*arrays)
    gradients = named_gradients(call.case, MixtureOfExpertsGradients(parameters, x))
    return {"output": np.asarray(output)} | {gradient_name(name): np.asarray(g) for name, g in gradients.items()}


def compute_by_pieces(call: Call) -> dict[str, np.ndarray]:
    """The same, by pieces of the experts' matrices so small that a loop goes over them."""
    import jax

    from jax_impl import experts
    from tests.support.devices import replaced

    with replaced(experts, "PIECE", 8):
        jax.clear_caches()
        results = compute_in_jax(call)
    jax.clear_caches()
    return results


def bytes_in_jax(call: Call) -> tuple[int, int]:
    """What one rank sends to others in the forward pass, and in the backward pass but for sums of parameters."""
    import jax

    from tests.support.devices import sum_of_sends

    function, parameters, x, cotangent = mapped(call, True)
    forward = sum_of_sends(jax.make_jaxpr(function)(parameters, x).jaxpr, call.ranks)
    both = jax.make_jaxpr(both_passes(function))(parameters, x, cotangent)
    return forward, sum_of_sends(both.jaxpr, call.ranks) - forward
