"""`conformance dev engines`: the judge on every engine of the ports, by name and in pieces of two sizes.

The run over the implementations judges what a call gets by default. Here an engine is asked for by name, so that it is
judged on small cases too, where the default would be another; and with blocks and pieces of a few rows, so that these
cases have many of them, a short one at the end included.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.cases.declaration import declare
from conformance.checks.levels import STRICT
from conformance.judge.checking import check
from conformance.judge.report import Report

if TYPE_CHECKING:
    import torch

    from specification.masks import Mask


class Engine(NamedTuple):
    """An engine of a port, and how large its pieces are: as they are by default, or these numbers."""

    package: str
    name: str
    lacking: tuple[str, ...] = ()
    limits: tuple[int, ...] | None = None

    @property
    def arrays(self) -> str:
        return self.package.removesuffix("_impl")

    @property
    def title(self) -> str:
        pieces = "" if self.limits is None else f", pieces of {self.limits[0]}"
        return f"{self.package}, {self.name}{pieces}"


KERNEL_LACKS = ("no-bias", "no-softcap", "no-sinks", "no-value_width")
"""What PyTorch's kernel for the CPU does not support. Those for a GPU take values of another width."""

ENGINES = (
    Engine("torch_impl", "blocked"),
    Engine("torch_impl", "blocked", limits=(4,)),
    Engine("torch_impl", "fused", KERNEL_LACKS),
    Engine("torch_impl", "fused", KERNEL_LACKS, limits=(4,)),
    Engine("jax_impl", "blocked"),
    Engine("jax_impl", "blocked", limits=(8, 12, 3, 1)),
)
"""Those beside "reference", in reading order."""


@contextlib.contextmanager
def limit_engine(engine: Engine) -> Iterator[Any]:
    """The port, with the engine's limits for as long as the block lasts."""
    package: Any = importlib.import_module(engine.package)
    choosing: Any = importlib.import_module(f"{engine.package}.engines.choice")
    before = choosing.LIMITS
    if engine.limits is not None:
        choosing.LIMITS = type(before)(*engine.limits)
    try:
        yield package
    finally:
        choosing.LIMITS = before


def lacking(engine: Engine, device: str) -> tuple[str, ...]:
    return tuple(name for name in engine.lacking if device == "cpu" or name != "no-value_width")


def attention_by(engine: Engine, device: str = "cpu") -> Callable[..., Any]:
    """The port's attention with that engine asked for by name, as a function that says what it lacks."""

    @declare(("structured", "no-empty", *lacking(engine, device)))
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        mask: Mask | torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> Any:
        options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        with limit_engine(engine) as package:
            return package.attention(query, key, value, engine=engine.name, **options)

    return attention


GPU_KERNEL_DTYPES = ("float32", "float16", "bfloat16")

TIME_LIMIT = 120.0
"""Seconds for a case. XLA compiles every block twice, for finite numbers and for others, and its backward pass too: 10
seconds for a new shape on two slow cores that have nothing else to do."""


def judge(engine: Engine, **options: Any) -> Report:
    """`conformance.check` of an engine, in the dtypes that it takes on the device."""
    if engine.name == "fused" and options.get("device") == "cuda":
        from torch_impl.engines.fused_gpu import WIDEST

        options.setdefault("dtypes", GPU_KERNEL_DTYPES)
        options.setdefault("limits", {"key_width": WIDEST, "value_width": WIDEST})
    options.setdefault("time_limit", TIME_LIMIT)
    options.setdefault("profile", STRICT)
    return check(
        attention_by(engine, options.get("device", "cpu")),
        "attention",
        arrays=engine.arrays,
        name=engine.title,
        **options,
    )
