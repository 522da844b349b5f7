"""The one place where arrays change framework, and where each framework's own differentiation is asked for.

A framework is imported only when something of it is made here.
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.cases.layouts import Placement, strided_view

if TYPE_CHECKING:
    import torch

Arrays = dict[str, Any]
"""A framework's own arrays, by name."""
Function = Callable[[Arrays], Arrays]
Pullback = Callable[..., Arrays]
"""(cotangents, whether it will be called again) -> gradients by input name."""


class NoGradients(TypeError):
    """Gradients were asked for where there are none."""


class Framework(ABC):
    """What the judge needs of a framework."""

    name: str
    mutable = True  # whether arrays can be changed in place, so that sharing memory would show
    strides = True  # whether arrays can lie in memory in several ways
    kind: type[Any]  # of its arrays

    @abstractmethod
    def array(self, array: np.ndarray) -> Any:
        """A NumPy array as the framework's own, bit for bit, its last axis innermost in memory."""

    @abstractmethod
    def numpy(self, array: Any) -> np.ndarray:
        """The framework's array as NumPy's, bit for bit."""

    @abstractmethod
    def view(self, buffer: np.ndarray, shape: Sequence[int], place: Placement) -> Any:
        """The array that lies there in the buffer or a copy of it; only for frameworks that have strides."""

    @abstractmethod
    def memory(self, array: Any) -> np.ndarray | None:
        """For `numpy.shares_memory`: an array at the same addresses, which need not be readable; None for no memory."""

    @abstractmethod
    def sort_pairs(self, indices: Any, weights: Any) -> tuple[Any, Any]:
        """Both with the indices along the last axis in ascending order; as they are where they can be seen to be so."""

    def elsewhere(self, array: Any) -> str:
        """The array's device if it is another one than the framework's here; else empty."""
        return ""

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Whatever the framework needs around a call; nothing global stays changed after it."""
        return contextlib.nullcontext()

    def evaluate(self, function: Function, inputs: Arrays) -> Arrays:
        """The results."""
        return function(inputs)

    @abstractmethod
    def differentiate(
        self, function: Function, inputs: Arrays, names: Sequence[str], cotangents: Arrays
    ) -> tuple[Arrays, Arrays]:
        """The results, and for the inputs of those names the gradients by input name."""


class NumpyArrays(Framework):
    """NumPy: no differentiation of its own."""

    name, kind = "numpy", np.ndarray

    def __init__(self, device: str = "cpu") -> None:
        """NumPy is on the CPU, whatever the device."""

    def array(self, array: np.ndarray) -> np.ndarray:
        return np.array(array, order="C")

    def numpy(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array)

    def view(self, buffer: np.ndarray, shape: Sequence[int], place: Placement) -> np.ndarray:
        return strided_view(buffer, shape, place)

    def memory(self, array: np.ndarray) -> np.ndarray:
        return array

    def sort_pairs(self, indices: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if (np.diff(indices, axis=-1) > 0).all():
            return indices, weights
        order = np.argsort(indices, axis=-1, kind="stable")
        return np.take_along_axis(indices, order, axis=-1), np.take_along_axis(weights, order, axis=-1)

    def differentiate(
        self, function: Function, inputs: Arrays, names: Sequence[str], cotangents: Arrays
    ) -> tuple[Arrays, Arrays]:
        raise NoGradients("NumPy does not differentiate; give the subject a function for its gradients")


class TorchArrays(Framework):
    """PyTorch, with torch.autograd."""

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        self.torch: Any = importlib.import_module("torch")
        self.kind, self.device = self.torch.Tensor, device

    def array(self, array: np.ndarray) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            tensor = self.torch.from_numpy(np.array(array, order="C").view(np.int16)).view(self.torch.bfloat16)
        else:
            tensor = self.torch.from_numpy(np.array(array, order="C"))
        # NumPy's memory is aligned to 16 bytes, by chance to more, and MKL's sums depend on it to the last bit.
        return tensor.to(self.device) if self.device != "cpu" else tensor.clone()

    def numpy(self, array: Any) -> np.ndarray:
        tensor = array.detach().cpu()
        if tensor.dtype == self.torch.bfloat16:
            return tensor.contiguous().view(self.torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def view(self, buffer: np.ndarray, shape: Sequence[int], place: Placement) -> Any:
        return self.array(buffer).as_strided(tuple(shape), place.strides, place.start)

    def memory(self, array: Any) -> np.ndarray | None:
        return None if array.numel() == 0 else np.asarray(Addresses(array))

    def sort_pairs(self, indices: Any, weights: Any) -> tuple[Any, Any]:
        if (indices[..., 1:] > indices[..., :-1]).all():
            return indices, weights
        order = self.torch.argsort(indices, dim=-1, stable=True)
        return indices.gather(-1, order), weights.gather(-1, order)

    def elsewhere(self, array: Any) -> str:
        home = self.torch.empty(0, device=self.device).device
        return "" if array.device == home else str(array.device)

    def pullback(self, function: Function, inputs: Arrays, names: Sequence[str]) -> tuple[Arrays, Pullback]:
        """(results, their backward pass)."""
        inputs = inputs | {name: inputs[name].detach().requires_grad_() for name in names}
        results = function(inputs)

        def pull(cotangents: Arrays, again: bool = False) -> Arrays:
            # A result that depends on constants alone, as one of several may, has no gradient to go back from.
            connected = {name: bar for name, bar in cotangents.items() if results[name].requires_grad}
            if not connected:
                raise NoGradients("torch.autograd does not connect the result with the inputs")
            gradients = self.torch.autograd.grad(
                [results[name] for name in connected],
                [inputs[name] for name in names],
                list(connected.values()),
                retain_graph=again,
                materialize_grads=True,
            )
            return dict(zip(names, gradients, strict=True))

        return results, pull

    def differentiate(
        self, function: Function, inputs: Arrays, names: Sequence[str], cotangents: Arrays
    ) -> tuple[Arrays, Arrays]:
        results, pull = self.pullback(function, inputs, names)
        return results, pull(cotangents)


class Addresses:
    """Where the elements of a tensor lie, on whatever device: what NumPy makes of it may be compared, and not read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "typestr": f"|V{size}",
            "version": 3,
        }


class JaxArrays(Framework):
    """JAX, with jax.vjp; optionally everything under jax.jit."""

    name, mutable, strides = "jax", False, False

    def __init__(self, device: str = "cpu", jit: bool = False) -> None:
        self.jax: Any = importlib.import_module("jax")
        self.kind, self.jit = self.jax.Array, jit
        try:
            self.device = self.jax.devices("gpu" if device == "cuda" else device)[0]
        except RuntimeError as error:  # no such platform
            raise ValueError("device: JAX sees no GPU") from error

    def array(self, array: np.ndarray) -> Any:
        # Without a device of its own, as `jnp.asarray` makes it: JAX compiles anew where some of the arguments have one
        # and others, such as a mask that a function has made, do not.
        with self.jax.default_device(self.device):
            return self.jax.device_put(array)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def view(self, buffer: np.ndarray, shape: Sequence[int], place: Placement) -> Any:
        raise TypeError("arrays of JAX have no strides")

    def memory(self, array: Any) -> None:
        """Arrays of JAX cannot be written to."""

    def sort_pairs(self, indices: Any, weights: Any) -> tuple[Any, Any]:
        order, take = self.jax.numpy.argsort(indices, axis=-1), self.jax.numpy.take_along_axis
        return take(indices, order, axis=-1), take(weights, order, axis=-1)

    def elsewhere(self, array: Any) -> str:
        devices = array.devices()  # several of one that is spread over ranks
        return "" if self.device in devices else ", ".join(sorted(map(str, devices)))

    def context(self) -> contextlib.AbstractContextManager[Any]:
        context = contextlib.ExitStack()
        context.enter_context(self.jax.enable_x64(True))
        context.enter_context(self.jax.default_device(self.device))
        return context

    def pullback(self, function: Function, inputs: Arrays, names: Sequence[str]) -> tuple[Arrays, Pullback]:
        """(results, their backward pass)."""
        others = {name: array for name, array in inputs.items() if name not in names}
        floating = {name: inputs[name] for name in names}
        results, pull = self.jax.vjp(lambda floating: function(floating | others), floating)
        return results, lambda cotangents, again=False: pull(self.complete(cotangents, results))[0]

    def complete(self, cotangents: Arrays, results: Arrays) -> Arrays:
        """With those of whole numbers, for which JAX has a dtype without values."""
        whole = {n: np.zeros(a.shape, self.jax.dtypes.float0) for n, a in results.items() if a.dtype.kind in "iu"}
        return whole | cotangents

    def compile_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.jax.jit(function) if self.jit else function

    def evaluate(self, function: Function, inputs: Arrays) -> Arrays:
        return self.compile_function(function)(inputs)

    def differentiate(
        self, function: Function, inputs: Arrays, names: Sequence[str], cotangents: Arrays
    ) -> tuple[Arrays, Arrays]:
        others = {name: array for name, array in inputs.items() if name not in names}

        def both(floating: Arrays, cotangents: Arrays) -> tuple[Arrays, Arrays]:
            results, pullback = self.jax.vjp(lambda floating: function(floating | others), floating)
            return results, pullback(self.complete(cotangents, results))[0]

        return self.compile_function(both)({name: inputs[name] for name in names}, cotangents)


FRAMEWORKS: dict[str, Callable[..., Framework]] = {"numpy": NumpyArrays, "torch": TorchArrays, "jax": JaxArrays}
