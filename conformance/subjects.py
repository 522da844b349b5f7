"""Subjects: implementations under judgement, and the one place where arrays change framework.

A subject answers a case with NumPy arrays by name: its results, and "gradient of <input>" for every floating input when
the case has cotangents. Frameworks are imported only when a subject of theirs is made.
"""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from conformance.cases import Case
from conformance.spreading import arguments, gradient_name, named_gradients, result_names
from specification.dtypes import FLOATING
from specification.masks import as_mask, map_arrays

Answers = dict[str, np.ndarray]


class Subject(Protocol):
    """What the judge needs of an implementation."""

    name: str
    module: ModuleType
    mutable: bool  # whether arrays can be changed in place, so that sharing memory would show

    def array(self, array: np.ndarray) -> Any:
        """A NumPy array as the framework's own, bit for bit."""

    def numpy(self, array: Any) -> np.ndarray:
        """The framework's array as NumPy's, bit for bit."""

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Whatever the framework needs around a call; nothing global stays changed after it."""

    def __call__(self, case: Case) -> Answers:
        """All results and gradients of the case."""


def differentiable(case: Case) -> list[str]:
    return [name for name, array in case.inputs.items() if str(array.dtype) in FLOATING]


def results_by_name(operation: str, returned: Any) -> dict[str, Any]:
    names = result_names(operation)
    return dict(zip(names, returned if len(names) > 1 else (returned,), strict=True))


class NumpySubject:
    """reference_numpy, with its gradients by hand."""

    mutable = True

    def __init__(self, module: str = "reference_numpy", device: str = "cpu") -> None:
        self.name, self.module = module, importlib.import_module(module)  # NumPy is on the CPU, whatever the device

    def array(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def numpy(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def __call__(self, case: Case) -> Answers:
        inputs = {name: self.array(array) for name, array in case.inputs.items()}
        positional, keywords = arguments(case.operation, inputs, framework_options(self, case))
        returned = getattr(self.module, case.operation)(*positional, **keywords)
        answers = results_by_name(case.operation, returned)
        if case.cotangents:
            vjp = getattr(self.module, f"{case.operation}_vjp")
            cotangents = [case.cotangents[name] for name in result_names(case.operation)]
            answers |= named_gradients(case, vjp(*positional, *cotangents, **keywords))
        return answers


class TorchSubject:
    """A module of torch functions, differentiated by torch.autograd."""

    mutable = True

    def __init__(self, module: str = "torch_impl", device: str = "cpu") -> None:
        self.torch = importlib.import_module("torch")
        self.name, self.module, self.device = module, importlib.import_module(module), device

    def array(self, array: np.ndarray) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            tensor = self.torch.from_numpy(np.array(array).view(np.int16)).view(self.torch.bfloat16)
        else:
            tensor = self.torch.from_numpy(np.array(array))
        return tensor.to(self.device)

    def numpy(self, array: Any) -> np.ndarray:
        tensor = array.detach().cpu()
        if tensor.dtype == self.torch.bfloat16:
            return tensor.contiguous().view(self.torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def __call__(self, case: Case) -> Answers:
        inputs = {name: self.array(array) for name, array in case.inputs.items()}
        names = differentiable(case) if case.cotangents else []
        for name in names:
            inputs[name].requires_grad_()
        positional, keywords = arguments(case.operation, inputs, framework_options(self, case))
        results = results_by_name(case.operation, getattr(self.module, case.operation)(*positional, **keywords))
        answers = {name: self.numpy(result) for name, result in results.items()}
        if names:
            gradients = self.torch.autograd.grad(
                [results[name] for name in case.cotangents],
                [inputs[name] for name in names],
                [self.array(array) for array in case.cotangents.values()],
                materialize_grads=True,
            )
            answers |= {gradient_name(n): self.numpy(g) for n, g in zip(names, gradients, strict=True)}
        return answers


class JaxSubject:
    """A module of JAX functions, differentiated by jax.vjp; optionally under jax.jit."""

    mutable = False

    def __init__(self, module: str = "jax_impl", device: str = "cpu", jit: bool = False) -> None:
        self.jax = importlib.import_module("jax")
        self.name, self.module, self.jit = module + (" (jit)" if jit else ""), importlib.import_module(module), jit
        self.device = self.jax.devices("gpu" if device == "cuda" else device)[0]

    def array(self, array: np.ndarray) -> Any:
        return self.jax.device_put(array, self.device)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        context = contextlib.ExitStack()
        context.enter_context(self.jax.enable_x64(True))
        context.enter_context(self.jax.default_device(self.device))
        return context

    def __call__(self, case: Case) -> Answers:
        with self.context():
            return self.answer(case)

    def answer(self, case: Case) -> Answers:
        inputs = {name: self.array(array) for name, array in case.inputs.items()}
        names = differentiable(case) if case.cotangents else []
        others = {name: array for name, array in inputs.items() if name not in names}
        options = framework_options(self, case)

        def function(floating: dict[str, Any]) -> dict[str, Any]:
            positional, keywords = arguments(case.operation, floating | others, options)
            return results_by_name(case.operation, getattr(self.module, case.operation)(*positional, **keywords))

        def both(floating: dict[str, Any], cotangents: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            results, pullback = self.jax.vjp(function, floating)
            return results, pullback(cotangents)[0]

        floating = {name: inputs[name] for name in names}
        if not names:
            results, gradients = (self.jax.jit(function) if self.jit else function)(floating), {}
        else:
            cotangents = {name: self.array(array) for name, array in case.cotangents.items()}
            results, gradients = (self.jax.jit(both) if self.jit else both)(floating, cotangents)
        answers = {name: self.numpy(result) for name, result in results.items()}
        return answers | {gradient_name(name): self.numpy(gradient) for name, gradient in gradients.items()}


def framework_options(subject: Subject, case: Case) -> dict[str, Any]:
    """The case's options with arrays of the subject's framework, inside masks too."""
    converted = dict(case.options)
    if converted.get("mask") is not None:
        converted["mask"] = map_arrays(as_mask(converted["mask"]), lambda a: subject.array(np.asarray(a)))
    if converted.get("dropout_keep") is not None:
        converted["dropout_keep"] = subject.array(converted["dropout_keep"])
    return converted


IMPLEMENTATIONS = {"reference_numpy": NumpySubject, "torch_impl": TorchSubject, "jax_impl": JaxSubject}
"""The three implementations of this project, in reading order."""
