"""Models of which every rank has a part of the sequence, on processes of PyTorch and devices of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from specification.checkpoints import flatten
from specification.distributed import shard_positions
from specification.parameters import Decoder, Encoder, mapped


class ModelCall(NamedTuple):
    """A model's function and arrays, in the dtype in which it is called, and how ranks share the sequence.

    lengths: of the inputs' parts on each rank, where they are not even. token_types: one of `options`.
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


def compute_models(calls: Sequence[ModelCall], group: Any) -> list[dict[str, np.ndarray]]:
    return [compute_model(call, group) for call in calls]


def compute_model(call: ModelCall, group: Any) -> dict[str, np.ndarray]:
    """This rank's part of the output, and its gradients by name."""
    import torch
    import torch.distributed as dist

    from conformance.subjects.frameworks import TorchArrays
    from specification.masks import map_arrays
    from torch_impl import distributed_models

    arrays, rank = TorchArrays(), dist.get_rank(group)
    inputs, options, cotangent = call.cut(rank)
    own: Any = mapped(arrays.array, (call.parameters, inputs))
    options = {name: map_arrays(value, arrays.array) if "mask" in name else arrays.array(value)
               for name, value in options.items()}  # fmt: skip
    named = flatten({"parameters": own[0], "inputs": own[1]})
    wanted = {name: tensor.requires_grad_() for name, tensor in named.items() if tensor.is_floating_point()}
    function = getattr(distributed_models, call.function)
    ranks = distributed_models.Ranks(group, call.layout, call.scheme)
    output = function(own[0], *own[1], configuration=call.configuration, **options, ranks=ranks)
    gradients = torch.autograd.grad(output, [*wanted.values()], arrays.array(cotangent), allow_unused=True)
    found = {"output": arrays.numpy(output.detach())}
    for (name, tensor), gradient in zip(wanted.items(), gradients, strict=True):
        found[name] = arrays.numpy(torch.zeros_like(tensor) if gradient is None else gradient)
    return found
