"""Subjects: what is timed. A subject is data until its own process makes it ready for a case.

What a user does once for many calls (compiling, building a layer, turning a mask into the form that a library takes) is
outside the clock; what he does in every call is inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from conformance.subjects.callables import load_object
from conformance.timing.timed_case import Arrays, Case

Results = tuple[Any, ...]
"""The output and, with a backward pass, the gradients of the inputs: the framework's own arrays, in its own layout."""
NO_ARENAS = "BENCHMARKS_NO_ARENAS"
"""Set where memory is measured: a library that keeps what it has freed would show nothing in its second call."""


class Unfit(Exception):
    """The subject cannot be given the case; says why."""


class Wrong(Exception):
    """A result that is none: of the wrong number, class, shape or dtype."""


# --- layouts ----------------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """[B, H, T, W] as a library wants it, and back. `view` works on any framework's arrays and copies nothing."""

    lay: Callable[[np.ndarray], np.ndarray]
    view: Callable[[Any, int], Any]
    """Of a result that has so many heads."""


BHTD = Layout(lambda array: array, lambda result, heads: result)
BTHD = Layout(
    lambda array: np.ascontiguousarray(np.swapaxes(array, 1, 2)),
    lambda result, heads: result.swapaxes(1, 2),
)
TOKENS = Layout(
    lambda array: np.swapaxes(array, 1, 2).reshape(array.shape[0], array.shape[2], -1),
    lambda result, heads: result.reshape(*result.shape[:2], heads, -1).swapaxes(1, 2),
)
"""[B, T, H * W]: the heads side by side."""
ROWS = Layout(lambda array: array, lambda result, heads: result.reshape(1, 1, -1, result.shape[-1]))
"""Layer norm's x [B, T, D] is all rows [1, 1, B * T, D], and a weight one of them."""


def usual_layout(case: Case) -> Layout:
    return BHTD if case.facts.by_head else ROWS


def heads_of(case: Case, result: str) -> int:
    return case.G if result in ("gradient of key", "gradient of value") else case.H


# --- ready for a case -------------------------------------------------------------------------------------------------


EVICTED = 2**28
"""Bytes that are written to a GPU before a trial: several times its L2 cache, which has 50 MB on an H100."""


@dataclass
class Prepared:
    """load: NumPy inputs and the mask's description as the call takes them; outside the clock.
    call: what is timed. wait: until the results of some calls are there; inside the clock.
    view: a result, by its name, as [B, heads, tokens, width], without copying; copy: a piece of that in memory of its
    own, at once; numpy: that piece, as NumPy.
    form: how the mask is given. chosen: which engine "auto" took, and why. around: what has to be on around the calls.
    on_stream: the results are complete in the order of CUDA's current stream, so that its events measure the calls.
    evict: clears the GPU's L2 cache of inputs that were just copied there; before the clock starts.
    """

    load: Callable[[Arrays, Any], Any]
    call: Callable[[Any], Results]
    view: Callable[[Any, str], Any]
    copy: Callable[[Any], Any] = np.array
    numpy: Callable[[Any], np.ndarray] = np.asarray
    form: str = ""
    chosen: str = ""
    wait: Callable[[Sequence[Results]], object] = lambda results: None
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    on_stream: bool = False
    evict: Callable[[], object] = lambda: None
    notes: tuple[str, ...] = ()

    def finish(self, loaded: Any) -> Results:
        results = self.call(loaded)
        self.wait([results])
        return results


@dataclass(frozen=True)
class Subject:
    """make: a function that takes the case, the device and `arguments`, and raises Unfit.

    takes: why a case cannot be given to it; empty if it can. None if every case can.
    scores: how many float32 arrays [B, H, Q, K] a call has in memory at once, forward, and with the backward pass; the
    dense masks of those that are given one come on top. None if nobody says: the estimate of memory has no scores then.
    conventions: what it declares of its precision (see `conformance.declare`). ours: an engine of this project. yours:
    the user's; target: where it is loaded from, if it is an object in a file of the user's. base: one that the others'
    times are divided by. usual: `conformance bench` compares with it unless told otherwise. slow: why --quick leaves it
    out.
    """

    name: str
    operation: str
    arrays: str
    packages: tuple[str, ...]
    make: Callable[..., Prepared]
    arguments: tuple[Any, ...] = ()
    device: str = "cpu or cuda"
    takes: Callable[[Case], str] | None = None
    scores: tuple[float, float] | None = None
    conventions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    ours: bool = False
    yours: bool = False
    target: str = ""
    base: bool = False
    usual: bool = False
    slow: str = ""
    notes: tuple[str, ...] = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Its process loads the user's file anew: what is defined there has no name by which it could be sent."""
        return (load_object, (self.target,)) if self.target else super().__reduce_ex__(protocol)

    def ready(self, case: Case, device: str) -> Prepared:
        return self.make(case, device, *self.arguments)

    def hindrance(self, case: Case, device: str) -> str:
        """Why the case is not for it, in a line; empty if it is."""
        if case.operation != self.operation:
            return f"it is for {self.operation}"
        if device not in self.device:
            return f"it runs on {self.device} only"
        return self.absent or (self.takes(case) if self.takes else "")

    @property
    def absent(self) -> str:
        missing = [package for package in self.packages if find_spec(package) is None]
        return f"{missing[0]} is not installed" if missing else ""


ROUNDED = {"weights": "inputs"}
"""What fused kernels declare for 16-bit inputs: SDPA's, FlexAttention's and jax.nn's."""
BY_AUTO = "it is timed as auto where auto takes it"
ALL_SCORES = "it is the reference engine, and holds all scores"


def ours(
    package: str,
    make_engine: Callable[..., Prepared],
    make_layer_norm: Callable[..., Prepared],
    make_mixture: Callable[..., Prepared],
    *,
    scores: tuple[float, float],
) -> tuple[Subject, ...]:
    """A port's engines, its layer norm and its mixture of experts. scores: of the reference engine."""
    arrays = package.removesuffix("_impl")
    common: dict[str, Any] = {"arrays": arrays, "packages": (arrays,), "ours": True}

    def engine(name: str, **fields: Any) -> Subject:
        return Subject(f"{package}, {name}", "attention", make=make_engine, arguments=(name,), **common, **fields)

    return (
        engine("auto", base=True, usual=True),
        engine("fused", slow=BY_AUTO),
        engine("blocked", slow=BY_AUTO),
        engine("reference", scores=scores, slow=ALL_SCORES),
        Subject(
            f"{package}, layer norm",
            "layer_norm",
            make=make_layer_norm,
            arguments=(package,),
            base=True,
            usual=True,
            **common,
        ),
        Subject(f"{package}, mixture", "mixture_of_experts", make=make_mixture, base=True, **common),
    )


def without(
    *kinds: str, grouped: bool = True, backward: bool = True, dtypes: tuple[str, ...] = ()
) -> Callable[[Case], str]:
    """`takes` of what has no way to be given masks of these kinds, grouped heads, a backward pass, or other dtypes."""
    return partial(find_obstacle, kinds, grouped, backward, dtypes)  # which can be sent to another process


def find_obstacle(kinds: tuple[str, ...], grouped: bool, backward: bool, dtypes: tuple[str, ...], case: Case) -> str:
    if case.kind in kinds:
        return f"it has no parameter for a mask of kind {case.kind!r}"
    if not grouped and case.H != case.G:
        return "it takes no fewer key heads than query heads"
    if not backward and case.backward:
        return "it gives no gradients here"
    return f"it does not take {case.dtype}" if dtypes and case.dtype not in dtypes else ""
