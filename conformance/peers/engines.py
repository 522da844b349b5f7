"""`python -m conformance.peers.engines`: the judge on every engine of the ports, by name and in pieces of two sizes.

The run over the implementations judges what a call gets by default. Here an engine is asked for by name, so that it is
judged on small cases too, where the default would be another; and with blocks and pieces of a few rows, so that these
cases have many of them, a short one at the end included.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from conformance.cases.declaration import declare
from conformance.cli.options import Effort, Seed
from conformance.judge.checking import check
from conformance.judge.report import Report
from conformance.peers.peer import gpu_of
from conformance.reports.tables import violation_lines

console = Console()


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
"""What PyTorch's kernel for the CPU is not given. Those for a GPU take values of another width."""

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
def limited(engine: Engine) -> Iterator[Any]:
    """The port, with the engine's limits for as long as the block lasts."""
    package: Any = importlib.import_module(engine.package)
    choosing: Any = importlib.import_module(f"{engine.package}.engines")
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
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
        softcap: Any = None, sinks: Any = None,
    ) -> Any:  # fmt: skip
        options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        with limited(engine) as package:
            return package.attention(query, key, value, engine=engine.name, **options)

    return attention


GPU_KERNEL_DTYPES = ("float32", "float16", "bfloat16")

TIME_LIMIT = 120.0
"""Seconds for a case. XLA compiles every block twice, for finite numbers and for others, and its backward pass too: 10
seconds for a new shape on two slow cores that have nothing else to do."""


def judge(engine: Engine, **options: Any) -> Report:
    """`conformance.check` of an engine, in the dtypes that it takes on the device."""
    if engine.name == "fused" and options.get("device") == "cuda":
        options.setdefault("dtypes", GPU_KERNEL_DTYPES)
    options.setdefault("time_limit", TIME_LIMIT)
    function = attention_by(engine, options.get("device", "cpu"))
    return check(function, "attention", arrays=engine.arrays, name=engine.title, **options)


def main(
    effort: Effort = "default",
    seed: Seed = None,
    only: Annotated[list[str] | None, typer.Option(help="a word in the title; may be given again")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
) -> None:
    """Judge every engine, and print the worst error of each in units of its bound."""
    first = secrets.randbelow(2**32) if seed is None else seed
    chosen = [e for e in ENGINES if not only or any(word in e.title for word in only)]
    if not chosen:
        console.print(f"no engine has that in its title; there are: {'; '.join(e.title for e in ENGINES)}")
        raise typer.Exit(2)
    table = Table(title=f"Engines, seed {first}", title_justify="left")
    for heading in ("engine", "cases", "rules", "worst error in bounds", "violations"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    conforms = True
    for engine in chosen:
        if importlib.util.find_spec(engine.arrays) is None:
            console.print(f"{engine.title} is left out: {engine.arrays} is not installed")
            continue
        if device == "cuda" and not gpu_of(engine.arrays):
            console.print(f"{engine.title} is left out: {engine.arrays} sees no GPU")
            continue
        report = judge(engine, effort=effort, seed=first, device=device)
        console.print(*map(violation_lines, report.violations), sep="\n", end="")
        conforms &= report.conforms
        worst = max((rule.worst for rule in report.rules.values()), default=0.0)
        cases = sum(rule.cases for rule in report.rules.values())
        table.add_row(engine.title, str(cases), str(len(report.rules)), f"{worst:.2f}", str(len(report.violations)))
    console.print(table)
    raise typer.Exit(0 if conforms else 1)


if __name__ == "__main__":
    typer.run(main)
