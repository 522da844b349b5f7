"""Subjects: implementations under judgement.

A subject answers a case with NumPy arrays by name: its results, and "gradient of <input>" for every floating input when
the case has cotangents.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.declaration import EVERYTHING, Declaration
from conformance.frameworks import Arrays, Framework, JaxArrays, NumpyArrays, TorchArrays
from conformance.spreading import arguments, gradient_name, named_gradients, result_names
from specification.dtypes import FLOATING
from specification.masks import map_arrays

Answers = dict[str, np.ndarray]


def differentiable(case: Case) -> list[str]:
    return [name for name, array in case.inputs.items() if str(array.dtype) in FLOATING]


def results_by_name(operation: str, returned: Any) -> dict[str, Any]:
    names = result_names(operation)
    return dict(zip(names, returned if len(names) > 1 else (returned,), strict=True))


class Subject:
    """A module that has every operation under its own name."""

    def __init__(self, name: str, framework: Framework, module: Any = None) -> None:
        self.name, self.framework, self.module = name, framework, module
        self.declaration: Declaration = EVERYTHING

    def call(self, operation: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        return getattr(self.module, operation)(*positional, **keywords)

    def asked(self, case: Case) -> Case:
        """The case in the subject's own conventions."""
        return case

    def meant(self, case: Case, answers: Answers) -> Answers:
        """The subject's answers in the definition's conventions."""
        return answers

    def arrays(self, case: Case) -> tuple[Arrays, dict[str, Any]]:
        """Inputs and options in the subject's framework, arrays in masks too."""
        array = self.framework.array
        options = dict(case.options)
        if options.get("mask") is not None:
            options["mask"] = map_arrays(options["mask"], lambda a: array(np.asarray(a)))
        if options.get("dropout_keep") is not None:
            options["dropout_keep"] = array(options["dropout_keep"])
        return {name: array(a) for name, a in case.inputs.items()}, options

    def results(self, operation: str, inputs: Arrays, options: dict[str, Any]) -> Arrays:
        """The results by name, still the framework's own arrays."""
        positional, keywords = arguments(operation, inputs, options)
        return results_by_name(operation, self.call(operation, positional, keywords))

    def differentiated(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> tuple[Arrays, Arrays]:
        cotangents = {name: self.framework.array(array) for name, array in case.cotangents.items()}
        return self.framework.differentiate(
            lambda arrays: self.results(case.operation, arrays, options), inputs, differentiable(case), cotangents
        )

    def materialized(self, mask: Any, shape: tuple[int, int, int, int]) -> np.ndarray | None:
        """The subject's dense array of a mask for [B, H, Q, K]; None if it has no such function."""
        B, H, Q, K = shape
        if mask is None:
            return None
        with self.framework.context():
            mask = map_arrays(mask, lambda a: self.framework.array(np.asarray(a)))
            return self.framework.numpy(self.module.materialize(mask, Q, K, batch=B, heads=H))

    def __call__(self, case: Case) -> Answers:
        """All results and gradients of the case."""
        case_asked = self.asked(case)
        with self.framework.context():
            inputs, options = self.arrays(case_asked)
            if case.cotangents and differentiable(case):
                results, gradients = self.differentiated(case_asked, inputs, options)
            else:
                results = self.framework.evaluate(lambda a: self.results(case.operation, a, options), inputs)
                gradients = {}
            answers = {name: self.framework.numpy(result) for name, result in results.items()}
            answers |= {gradient_name(name): self.framework.numpy(gradient) for name, gradient in gradients.items()}
        return self.meant(case_asked, answers)


class NumpySubject(Subject):
    """reference_numpy, or a module like it, with its gradients by hand."""

    def __init__(self, module: str = "reference_numpy", device: str = "cpu") -> None:
        super().__init__(module, NumpyArrays(device), importlib.import_module(module))

    def differentiated(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> tuple[Arrays, Arrays]:
        positional, keywords = arguments(case.operation, inputs, options)
        vjp = getattr(self.module, f"{case.operation}_vjp")
        cotangents = [case.cotangents[name] for name in result_names(case.operation)]
        gradients = named_gradients(case, vjp(*positional, *cotangents, **keywords))
        return self.results(case.operation, inputs, options), gradients


class TorchSubject(Subject):
    """A module of torch functions, differentiated by torch.autograd."""

    def __init__(self, module: str = "torch_impl", device: str = "cpu") -> None:
        super().__init__(module, TorchArrays(device), importlib.import_module(module))


class JaxSubject(Subject):
    """A module of JAX functions, differentiated by jax.vjp; optionally under jax.jit."""

    def __init__(self, module: str = "jax_impl", device: str = "cpu", jit: bool = False) -> None:
        super().__init__(module + (" (jit)" if jit else ""), JaxArrays(device, jit), importlib.import_module(module))


IMPLEMENTATIONS = {"reference_numpy": NumpySubject, "torch_impl": TorchSubject, "jax_impl": JaxSubject}
"""The three implementations of this project, in reading order."""
