"""Data-parallel training: each rank computes its rows of every batch, by the framework's own wrapper.

PyTorch: `DistributedDataParallel`, in processes of `torchrun`. JAX: `jax.jit` of a batch that is sharded over devices.
"""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from specification.parameters import leaves
from training.packages import Jax, Package, Step, Torch, converted
from training.task import Batch, Task

if TYPE_CHECKING:
    from specification.dropout import StackDropout, TransformerDropout
    from specification.parameters import ModelParameters


def package_on_ranks(name: str, ranks: int) -> Package:
    """The package, which spreads every batch over so many ranks.

    Outside of `torchrun`, PyTorch's starts this program anew, as that many processes.

    Raises:
        ValueError: for a package without ranks, or another number of processes or devices than that.
    """
    if name == "jax_impl":
        return JaxOnDevices(ranks)
    if name != "torch_impl":
        raise ValueError(f"--ranks needs torch_impl or jax_impl, got {name}")
    if "WORLD_SIZE" not in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // ranks, 1)))
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        os.execv(sys.executable, [sys.executable, "-m", *launcher, "-m", "training", *sys.argv[1:]])
    return TorchOnRanks(ranks)


class TorchOnRanks(Torch):
    """The port to PyTorch in one of several processes."""

    def __init__(self, ranks: int) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if self.ranks != ranks:
            raise ValueError(f"--ranks is {ranks}, and there are {self.ranks} processes")
        self.wrapped: Any = None

    def step(
        self,
        task: Task,
        parameters: ModelParameters,
        batch: Batch,
        dropout: StackDropout | TransformerDropout | None = None,
    ) -> Step:
        """As in one process: the loss is a mean over the targets of all ranks, and so are the gradients."""
        import torch
        import torch.distributed as dist

        rows = np.array_split(np.arange(len(batch.targets)), self.ranks)[self.rank]
        own, dropped = self.arrays(converted((batch, dropout), lambda array: array[rows]))
        share = self.share(task.counted(batch.targets), rows)
        if self.wrapped is None:
            self.wrapped = self.wrap(parameters)
        module = self.wrapped.module
        with torch.no_grad():
            for own_leaf, leaf in zip(module.leaves, leaves(parameters).values(), strict=True):
                own_leaf.copy_(leaf)
        self.wrapped.zero_grad()
        loss, output = self.wrapped(task, own, dropped, share)
        (loss * self.ranks).backward()  # the wrapper takes the mean over ranks, and the shares add up to 1
        loss = loss.detach()
        dist.all_reduce(loss)
        outputs: list[Any] = [None] * self.ranks
        dist.all_gather_object(outputs, output.detach())
        gradients = iter([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for leaf in module.leaves])
        return Step(loss, converted(parameters, lambda _: next(gradients)), torch.cat(outputs))

    def share(self, counted: np.ndarray, rows: np.ndarray) -> float:
        """Return the share of the counted targets, [B] or [B, T], that stand in this rank's rows."""
        return float(counted[rows].sum() / max(counted.sum(), 1))

    def wrap(self, parameters: ModelParameters) -> Any:
        """The loss of this rank's rows, as a module whose gradients are means over ranks."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        package = self

        class Loss(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.leaves = torch.nn.ParameterList(leaf.detach().clone() for leaf in leaves(parameters).values())

            def forward(self, task: Task, batch: Batch, dropout: Any, share: float) -> tuple[Any, Any]:
                following = iter(self.leaves)
                output = package.output(task, converted(parameters, lambda _: next(following)), batch, dropout)
                return package.loss(task, output, batch) * share, output

        return DistributedDataParallel(Loss())


class JaxOnDevices(Jax):
    """The port to JAX on several devices: a batch lies on all of them, and `jax.jit` computes each part where it is.

    A batch whose rows they cannot share equally is computed on each of them.
    """

    def __init__(self, ranks: int) -> None:
        import jax

        jax.config.update("jax_num_cpu_devices", ranks)
        devices = len(jax.devices())
        if devices < ranks:
            raise ValueError(f"--ranks is {ranks}, and there are {devices} devices")
        self.ranks = ranks

    @cached_property
    def shardings(self) -> tuple[Any, Any]:
        """Of arrays whose rows are spread, and of those that are the same on every device."""
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()[: self.ranks]), ("ranks",))
        return NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())

    def place(self, parameters: ModelParameters, arrays: list[Any], rows: int) -> tuple[Any, Any]:
        import jax

        spread, same = self.shardings
        return jax.device_put(parameters, same), jax.device_put(arrays, spread if rows % self.ranks == 0 else same)
