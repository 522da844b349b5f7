"""ALiBi: a bias that falls with the distance between query and key, more or less steeply in each head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from conformance.bounds.arithmetic import EXP, Approx, Precision
from conformance.cases.axes import OFFSET, Described
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis.matching import Mistake, computed, instead
from conformance.diagnosis.options import options
from conformance.operations.common import rows_of_layers
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import KEY_HEADS, LENGTHS, ROWS
from conformance.sampling.strategies import DTYPES, EXACTLY, digits, judged, some, without_lacking

NAME = "alibi_bias"
PLAN = Plan(
    values={"heads": KEY_HEADS, "queries": ROWS, "keys": LENGTHS},
    typical={"heads": (3, 32), "queries": (3, 130, 1025), "keys": (5, 129, 65537)},
)
HEADS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 71)
LARGEST = 60000.0
"""In float16; what is farther becomes -inf there."""


def work(passes: int, gradients: bool, *, pairs: int) -> int:
    return pairs * 20


def sizes_of(case: Case) -> tuple[int, int, int]:
    H, Q, K = (case.options[name] for name in ("num_heads", "query_length", "key_length"))
    return H, Q, K


def shape(case: Case, name: str, layout: str) -> Shape:
    return (1, *sizes_of(case))


def dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("heads", "queries", "keys"), sizes_of(case), strict=True))


def axes(case: Case) -> Described:
    H, Q, K = sizes_of(case)
    return {"H": H, "Q": Q, "K": K, OFFSET: case.options.get(OFFSET) or 0}, {}, {}


@st.composite
def cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    heads: tuple[int, ...] = HEADS,
    plan: tuple[int, int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """heads: the choices for their number. plan: heads, queries and keys."""
    limits = declaration.limits
    H = min(draw(st.sampled_from(heads)), limits.get("heads", max(heads)))
    Q, K = (draw(st.integers(0, min(20, limits.get(side, 20)))) for side in ("queries", "keys"))
    H, Q, K = plan or (H, Q, K)
    offset = draw(st.one_of(st.sampled_from((0, 0, max(K - Q, 0), 511, 4099)), digits(4)))
    able = dtypes if "dtype" not in declaration.lacking else ("float32",)
    cheap, near = work(1, False, pairs=H * Q * K) <= EXACTLY, max(offset + Q, K) < LARGEST
    able = tuple(d for d in judged(able, declaration) if (cheap or d != "float64") and (near or d != "float16"))
    given: dict[str, Any] = {"num_heads": H, "query_length": Q, "key_length": K, OFFSET: offset}
    given = without_lacking(NAME, given | {"dtype": draw(st.sampled_from(some(able)))}, declaration)
    return Case(NAME, given["dtype"], {}, given)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return drawn(plan=(row["heads"], row["queries"], row["keys"]))

    return [
        agreement("POS-5", "alibi", NAME, drawn(), weight=1.5),
        agreement("POS-5", "heads that are no power of two", NAME, drawn(heads=(3, 6, 12, 20, 40, 71))),
        agreement("POS-5", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"query_length": 3, "key_length": 4}
    yield array.refusal("POS-5", "no heads", ValueError, NAME, {}, num_heads=0, **given)
    yield array.refusal("POS-5", "a negative offset", ValueError, NAME, {}, num_heads=2, offset=-1, **given)


# --- what is right ----------------------------------------------------------------------------------------------------


def powers(num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """(b, n) of every head, whose slope is 2^(-b n): the first slope of P or 2 P heads, and its power."""
    power = 2 ** int(np.log2(num_heads))
    first, others = np.arange(1, power + 1), np.arange(1, 2 * (num_heads - power), 2)
    return np.repeat((8 / power, 4 / power), (power, num_heads - power)), np.concatenate([first, others])


def bounds(case: Case, p: Precision) -> dict[str, Approx]:
    """A slope is the n-th power of 2^-b, or 2^(-b n).

    The first: 2^-b is off by EXP u and its rounding, its power n times as much, and there may be n products. The
    second: b n, at most 8, is exact; as exp(-b n log 2) its argument is off by 2 u, and the exponential by EXP u and
    2 * 8 log 2 < 12 u. The distance may be rounded to the compute dtype, and so are the slope and the product.
    """
    step, power = powers(case.options["num_heads"])
    _, Q, K = sizes_of(case)
    distance = np.arange(K) - (np.arange(Q) + (case.options.get(OFFSET) or 0))[:, None]
    value = (2.0 ** (-step * power))[:, None, None] * distance
    relative = np.maximum((EXP + 2) * power, EXP + 12) + 3
    return {"output": Approx(value[None], p.inner * (relative[:, None, None] * np.abs(value))[None] + p.inner_tiny)}


# --- what is known to go wrong ----------------------------------------------------------------------------------------


def otherwise(name: str, output: Callable[[np.ndarray, np.ndarray], Any]) -> Mistake:
    """The output from slopes [H, 1, 1] and distances [Q, K]."""

    def formula(case: Case) -> Any:
        step, power = powers(case.options["num_heads"])
        _, Q, K = sizes_of(case)
        distance = np.arange(K) - (np.arange(Q) + (case.options.get(OFFSET) or 0))[:, None]
        return output((2.0 ** (-step * power))[:, None, None], distance)[None]

    return computed(name, formula)


def in_a_row(slopes: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """2^(-8h / H) whatever H is."""
    H = len(slopes)
    return 2.0 ** (-8 * np.arange(1, H + 1) / H)[:, None, None] * distance


OPERATION = Operation(
    name=NAME,
    rules={"": "POS-5"},
    arguments=("num_heads", "query_length", "key_length"),
    differentiated=(),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    work=work,
    cases=cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=(
        instead("the offset is ignored", options(offset=0)),
        otherwise("the bias grows with the distance", lambda slopes, distance: -slopes * distance),
        otherwise("the bias falls on both sides of the query", lambda slopes, distance: -slopes * np.abs(distance)),
        otherwise("keys after the query have 0", lambda slopes, distance: slopes * np.minimum(distance, 0)),
        otherwise("the slopes are 2^(-8h / H) for a number of heads that is no power of two", in_a_row),
        otherwise("slopes begin with 1", lambda slopes, distance: slopes / slopes[0] * distance),
        otherwise("slopes are in the opposite order", lambda slopes, distance: slopes[::-1] * distance),
        otherwise("distances count from 1", lambda slopes, distance: slopes * (distance - 1)),
        otherwise("the bias is that of the first query for all", lambda slopes, d: slopes * d[:1] + 0 * d),
        otherwise("slope * j, which a softmax takes for the same", lambda slopes, d: slopes * (d - d[:, :1]) + 0 * d),
        otherwise(
            "slopes are rounded to bfloat16",
            lambda slopes, distance: slopes.astype(ml_dtypes.bfloat16).astype(float) * distance,
        ),
    ),
)
