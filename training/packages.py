"""The three packages behind one interface: arrays in and out, loss and gradients, the optimizer, predictions.

A package, and the framework it stands on, is imported when it is first used.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specification.parameters import mapped
from training.task import Batch, Task

if TYPE_CHECKING:
    import torch

    from specification.arrays import Array
    from specification.dropout import StackDropout, TransformerDropout
    from specification.optimizers import AdamState
    from specification.parameters import ModelParameters, Parameters, Tree


class Step(NamedTuple):
    """Of one batch: the loss, the gradients in the structure of the parameters, and what the model gave."""

    loss: Any
    gradients: Any
    output: Any


def converted(tree: Parameters, convert: Callable[[Any], Any]) -> Any:
    """`mapped` for trees with numbers among their arrays, which stay as they are."""
    return mapped(lambda leaf: convert(leaf) if hasattr(leaf, "shape") else leaf, tree)


class Package:
    """One of the packages. Parameters, gradients and states are trees of its own arrays.

    What is here is the definition's way, with its own gradients; each port says what it does otherwise.
    """

    name: str
    rank = 0
    """Which of several processes that train together this is."""

    @cached_property
    def module(self) -> ModuleType:
        return importlib.import_module(self.name)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What has to be in force while functions of the package are called."""
        return contextlib.nullcontext()

    def arrays(self, tree: Parameters) -> Any:
        """The tree with the package's own arrays in place of NumPy's, bit for bit."""
        return tree

    def numbers(self, tree: Parameters) -> Any:
        """The tree with NumPy's arrays in place of the package's, bit for bit."""
        return tree

    def output(
        self,
        task: Task,
        parameters: ModelParameters,
        batch: Batch,
        dropout: StackDropout | TransformerDropout | None = None,
        model: Callable[..., Any] | None = None,
    ) -> Any:
        """What the model, or a function in its place, gives for arrays of the package.

        dropout: a structure of `specification.dropout`, or None.
        """
        sites = {} if dropout is None else {"dropout": dropout}
        model = model or getattr(self.module, task.model)
        return model(parameters, *batch.inputs, configuration=task.configuration, **batch.options, **sites)

    def loss(self, task: Task, output: Array, batch: Batch) -> Any:
        return getattr(self.module, task.loss)(output, batch.targets, **dict(task.loss_options))

    def step(
        self,
        task: Task,
        parameters: ModelParameters,
        batch: Batch,
        dropout: StackDropout | TransformerDropout | None = None,
    ) -> Step:
        """Loss, gradients and the model's output. batch, dropout: NumPy arrays; keep masks, or None."""
        output = self.output(task, parameters, batch, dropout)
        loss = self.loss(task, output, batch)
        loss_vjp, model_vjp = (getattr(self.module, f"{name}_vjp") for name in (task.loss, task.model))
        cotangent = loss_vjp(output, batch.targets, np.ones_like(loss), **dict(task.loss_options))
        sites = {} if dropout is None else {"dropout": dropout}
        found = model_vjp(
            parameters, *batch.inputs, cotangent, configuration=task.configuration, **batch.options, **sites
        )
        # A model that may be given embedded inputs gives their gradients, too.
        return Step(loss, getattr(found, "parameters", found), output)

    def predict(self, task: Task, parameters: ModelParameters, batch: Batch) -> Any:
        """What the model gives without dropout, as the package's array. batch: NumPy arrays."""
        return self.output(task, parameters, self.arrays(batch))

    def compiled(self, name: str, **static: Any) -> Any:
        """A function of the package, compiled where the package can do so. static: as `jax.jit` takes them."""
        return getattr(self.module, name)

    def clip(self, gradients: Parameters, limit: float) -> tuple[Any, Any]:
        """Gradients of that global norm at most, and the norm they had."""
        with self.context():
            return self.compiled("clip_by_global_norm", static_argnums=1)(gradients, limit)

    def adam_start(self, parameters: ModelParameters) -> Any:
        """The optimizer's state before the first step."""
        with self.context():
            return self.module.adam_start(parameters)

    def adam_step(
        self, parameters: ModelParameters, gradients: Any, state: AdamState, **options: float | bool | Array
    ) -> tuple[Any, Any]:
        """New parameters and state. options: those of `adam_step`, learning_rate among them."""
        numbers = ("beta_1", "beta_2", "eps", "weight_decay", "decoupled")
        with self.context():
            return self.compiled("adam_step", static_argnames=numbers)(parameters, gradients, state, **options)


class Reference(Package):
    """The definition."""

    name = "reference_numpy"


class Torch(Package):
    """The port to PyTorch, with torch.autograd."""

    name = "torch_impl"

    def arrays(self, tree: Parameters) -> Any:
        import torch

        return converted(tree, torch.tensor)

    def numbers(self, tree: Parameters) -> Any:
        return converted(tree, lambda tensor: tensor.detach().cpu().numpy())

    def step(
        self,
        task: Task,
        parameters: ModelParameters,
        batch: Batch,
        dropout: StackDropout | TransformerDropout | None = None,
    ) -> Step:
        import torch

        leaves: list[Any] = []

        def leaf(tensor: torch.Tensor) -> Any:
            leaves.append(tensor.detach().requires_grad_())
            return leaves[-1]

        batch, dropout = self.arrays((batch, dropout))
        output = self.output(task, converted(parameters, leaf), batch, dropout)
        loss = self.loss(task, output, batch)
        gradients = iter(torch.autograd.grad(loss, leaves, materialize_grads=True))
        return Step(loss.detach(), converted(parameters, lambda _: next(gradients)), output.detach())

    def predict(self, task: Task, parameters: ModelParameters, batch: Batch) -> Any:
        import torch

        with torch.no_grad():
            return super().predict(task, parameters, batch)


@cache
def jit_function(function: Callable[..., Any], **static: Any) -> Any:
    """The function under `jax.jit`, made once: to make it takes as long as a small step."""
    import jax

    return jax.jit(function, **static)


class Jax(Package):
    """The port to JAX, compiled for every new shape. Numbers keep their width: 64 bits are on during every call."""

    name = "jax_impl"

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """64 bits, without which JAX narrows float64 and int64."""
        import jax

        return jax.enable_x64(True)

    def arrays(self, tree: Parameters) -> Any:
        import jax.numpy as jnp

        with self.context():
            return converted(tree, jnp.asarray)

    def numbers(self, tree: Parameters) -> Any:
        return converted(tree, np.array)

    @cached_property
    def compiled_step(self) -> Any:
        import jax

        def step(task: Task, spread: Spread, parameters: ModelParameters, arrays: list[Array]) -> Step:
            batch, dropout = spread(arrays)

            def loss_of(parameters: ModelParameters) -> tuple[Any, Any]:
                output = self.output(task, parameters, batch, dropout)
                return self.loss(task, output, batch), output

            (loss, output), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
            return Step(loss, gradients, output)

        return jax.jit(step, static_argnums=(0, 1))

    def compiled(self, name: str, **static: Any) -> Any:
        return jit_function(super().compiled(name), **static)

    def step(
        self,
        task: Task,
        parameters: ModelParameters,
        batch: Batch,
        dropout: StackDropout | TransformerDropout | None = None,
    ) -> Step:
        arrays, spread = apart((batch, dropout))
        with self.context():
            return self.compiled_step(task, spread, *self.place(parameters, arrays, len(batch.targets)))

    def place(self, parameters: ModelParameters, arrays: list[Any], rows: int) -> tuple[Any, Any]:
        """Parameters, and arrays of so many rows, where a step computes with them."""
        return parameters, arrays

    def predict(self, task: Task, parameters: ModelParameters, batch: Batch) -> Any:
        with self.context():
            return jit_function(self.output, static_argnums=0)(task, parameters, batch)


class Spread(NamedTuple):
    """Arrays put back among the numbers that they were taken from. Hashable, so static under `jax.jit`."""

    structure: Any
    numbers: tuple[Any, ...]

    def __call__(self, arrays: list[Any]) -> Any:
        left = iter(arrays)
        return self.structure.unflatten([next(left) if number is None else number for number in self.numbers])


def apart(tree: Tree) -> tuple[list[Any], Spread]:
    """The arrays of a tree, and the rest of it: a rate of dropout is checked, so it must not be traced."""
    import jax

    leaves, structure = jax.tree.flatten(tree)
    numbers = tuple(None if hasattr(leaf, "shape") else leaf for leaf in leaves)
    return [leaf for leaf in leaves if hasattr(leaf, "shape")], Spread(structure, numbers)


PACKAGES: dict[str, Package] = {package.name: package for package in (Torch(), Jax(), Reference())}
"""By name; the first is the default."""
