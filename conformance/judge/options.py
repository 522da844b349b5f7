"""The options of a check beyond what is declared of the function: the same for the command line, pytest and Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, TypedDict

from conformance.cases.declaration import SCALINGS, DeclarationOptions, Names
from conformance.cases.options import Option, options_of, read_number
from conformance.checks.levels import DEFAULT, JUDGED, LEVELS
from conformance.ports.options import ModelOptions
from conformance.subjects.shards import SHARDS
from specification.dtypes import FLOATING

EFFORTS = {"quick": 3, "default": 10, "thorough": 100}
"""Cases for each probe."""


def array_names() -> Iterable[str]:
    from conformance.subjects.frameworks import FRAMEWORKS

    return FRAMEWORKS


def read_seconds(given: Any) -> float:
    try:
        return float(given)
    except (TypeError, ValueError):
        raise ValueError(f"time_limit must be a number of seconds, got {given!r}") from None


def read_gigabytes(given: Any) -> float:
    try:
        gigabytes = float(given)
    except (TypeError, ValueError):
        gigabytes = 0.0
    if not gigabytes > 0:
        raise ValueError(f"memory_limit must be a positive number of gigabytes, got {given!r}")
    return gigabytes


class CommonOptions(TypedDict, total=False):
    """What every check takes. None says nothing."""

    arrays: Annotated[
        str | None,
        Option(
            "arrays that it takes and returns: numpy, torch or jax; by default a guess, which the report names",
            names=array_names,
        ),
    ]
    device: Annotated[
        str | None, Option("cpu or cuda; NumPy stays on the CPU", names=lambda: ("cpu", "cuda"), default="cpu")
    ]
    profile: Annotated[
        str | None, Option("what decides the verdict: core, robust or strict", names=lambda: LEVELS, default=DEFAULT)
    ]
    effort: Annotated[
        str | None,
        Option("how many cases each probe gets: quick, default or thorough", names=lambda: EFFORTS, default="default"),
    ]
    seed: Annotated[
        int | None, Option("generate the same cases again; by default a fresh seed", partial(read_number, "seed", 0))
    ]
    time_limit: Annotated[
        float | None, Option("seconds for one case, 30 by default; of a model for one checkpoint, 120", read_seconds)
    ]
    memory_limit: Annotated[
        float | None,
        Option(
            "gigabytes that a process of its own may allocate, on Linux; by default half of the machine's memory",
            read_gigabytes,
        ),
    ]
    isolate: Annotated[
        bool | None,
        Option(
            "call the function in a subprocess (the default), which may crash or hang, or in this process",
            switch="isolate/in-process",
        ),
    ]


class CheckOptions(DeclarationOptions, CommonOptions, total=False):
    """What `conformance check`, `check` and the pytest plugin take for an operation."""

    rules: Annotated[
        Names | None, Option("judge only these rules, such as MASK-1,ATT-5", names=lambda: JUDGED, many=True)
    ]
    ranks: Annotated[
        int | None,
        Option(
            "how many processes or devices call the function together, each with its part",
            partial(read_number, "ranks", 1),
        ),
    ]
    shard: Annotated[
        str | None,
        Option("what each rank has a part of: sequence (the default), zigzag or heads", names=lambda: SHARDS),
    ]
    shrink: Annotated[
        bool | None, Option("make failing cases smaller, or do not", default=True, switch="shrink/no-shrink")
    ]


class ModelCheckOptions(ModelOptions, CommonOptions, total=False):
    """What they take for a port of a model."""

    dtypes: Annotated[
        Names | None, Option("dtypes of the models; float32 by default", names=lambda: FLOATING, many=True)
    ]
    scalings: Annotated[
        Names | None, Option("scalings of rotary frequencies that the port supports", names=lambda: SCALINGS, many=True)
    ]


def list_options() -> dict[str, Option]:
    """Return the options of every check by name, those of models last."""
    return options_of(CheckOptions) | {n: o for n, o in options_of(ModelCheckOptions).items() if n in MODEL_ALONE}


MODEL_ALONE = frozenset(ModelOptions.__annotations__)
