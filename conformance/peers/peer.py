"""A peer: one code path of a library that people use, as a target of the judge."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.case import Case
from conformance.judge.checking import SHRINKING
from conformance.subjects.callables import Target
from specification import Causal, Dense, SlidingWindow

if TYPE_CHECKING:
    from specification.masks import Mask

FLOAT_MASK = ("an additive mask",)
"""The mask's parameter holds a mask or a bias, told apart by its dtype."""
BROADCAST = ("a mask of rank 1", "a mask of rank 3", "a bias of rank 3")
"""Masks and biases are documented to be broadcast as arrays are."""


def takes_anything(case: Case) -> bool:
    return True


def return_case(case: Case) -> Case:
    return case


@dataclass(frozen=True)
class Peer:
    """One path through a library.

    name: the library, the function and the path. subject: where its adapter is, `module:callable`.
    packages: what must be installed, the library first. program: what must be on the machine beside them.
    device: "cuda" for paths that only a GPU has.
    environment: variables that its process is started with. isolated: it runs in a process of its own, as every peer
    with an environment does; for native code that ends its process over a bad call.
    given: what is said of it beyond its adapter's declaration; see `conformance.check`.
    takes: whether the path has parameters for a call; what it has none for is not asked. fitted: the same kind of call
    in the sizes that the path can be given. documented: titles of refusals to which its documentation gives a meaning.
    slow: why it is left out unless it is named. shrinking: seconds for making a failing case smaller, and for finding
    the sizes at which it fails.
    """

    name: str
    subject: str
    operation: str
    arrays: str
    packages: tuple[str, ...]
    program: str = ""
    device: str = "cpu"
    environment: dict[str, str] = field(default_factory=dict)
    isolated: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    takes: Callable[[Case], bool] = takes_anything
    fitted: Callable[[Case], Case] = return_case
    documented: tuple[str, ...] = ()
    slow: str = ""
    time_limit: float = 60.0
    shrinking: float = SHRINKING

    @property
    def target(self) -> Target:
        return Target(self.subject, self.operation, self.arrays, self.device, self.name, self.given)

    @property
    def absent(self) -> str:
        """Why it cannot be judged here; empty if it can."""
        missing = [package for package in self.packages if not is_installed(package)]
        if missing:
            return f"{missing[0]} is not installed"
        if self.program and not shutil.which(self.program):
            return f"there is no {self.program} on this machine"
        if self.device == "cuda" and not gpu_of(self.arrays):
            return f"{self.arrays} sees no GPU"
        return ""


def keras_peer(backend: str, name: str, subject: str, operation: str, **fields: Any) -> Peer:
    """Keras reads its backend when it is imported, so that each of these peers has a process of its own."""
    environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    packages = ("keras", backend)
    return Peer(f"Keras on {backend}, {name}", subject, operation, backend, packages, environment=environment, **fields)


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@functools.cache
def installed_version(package: str) -> str:
    """Of a package by the name that is imported, which its distribution need not have."""
    try:
        return version(package)
    except PackageNotFoundError:
        return version(packages_distributions()[package][0])


def gpu_of(arrays: str) -> bool:
    """Whether that framework has a GPU here."""
    if arrays == "torch":
        return bool(importlib.import_module("torch").cuda.is_available())
    return arrays == "jax" and importlib.import_module("jax").default_backend() == "gpu"


def takes_masks(*kinds: type) -> Callable[[Case], bool]:
    """Calls without a mask, or with one of these descriptions."""

    def takes(case: Case) -> bool:
        mask = case.options.get("mask")
        return mask is None or isinstance(mask, kinds)

    return takes


def is_aligned(mask: Causal | SlidingWindow) -> bool:
    """Whether the first query of every batch element is aligned with the first key."""
    return isinstance(mask.offset, int | None) and not mask.offset


def top_left(case: Case) -> bool:
    """Calls without a mask, or with an aligned causal one."""
    mask = case.options.get("mask")
    return mask is None or (isinstance(mask, Causal) and is_aligned(mask))


def bottom_right(case: Case) -> bool:
    """Calls without a mask, or with a causal one at the last key."""
    mask = case.options.get("mask")
    offset = case.inputs["key"].shape[2] - case.inputs["query"].shape[2]
    given = mask.offset if isinstance(mask, Causal) else ""
    return mask is None or (isinstance(given, int) and given == offset) or (given is None and offset == 0)


def no_mask(mask: Mask | np.ndarray | None, path: str) -> Any:
    """None; NotImplementedError for a mask, where the path has no parameter for it."""
    if mask is not None:
        inside = mask.array if isinstance(mask, Dense) else mask
        raise NotImplementedError(f"{path} has no parameter for {type(inside).__name__}")
    return None


def causal_flag(mask: Mask | np.ndarray | None, path: str) -> bool:
    """The value of a flag that stands for a causal mask without an offset."""
    if isinstance(mask, Causal) and is_aligned(mask):
        return True
    no_mask(mask, path)
    return False
