"""The engines of the ports, in pieces of a few rows, and the cases that they are asked."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.cases.expectations import Exact
from conformance.peers.engines import KERNEL_LACKS, Engine, attention_by
from conformance.sampling.strategies import Draw
from conformance.subjects.frameworks import JaxArrays
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import as_mask
from tests.support.helpers import Case, Finding, Sizes, Subject, TorchArrays, truth_and_bounds
from tests.support.helpers import judge as judged

BLOCKED = Engine("torch_impl", "blocked", limits=(4,))
FUSED = Engine("torch_impl", "fused", KERNEL_LACKS, limits=(4,))
PIECES = Engine("jax_impl", "blocked", limits=(6, 8, 3, 1))
"""Three queries of two heads at a time, and 3, 5 or 7 keys: the last of both reach back."""
ENGINES = (BLOCKED, FUSED, PIECES)
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: f"{engine.package}, {engine.name}")

B, H, G, Q, K, D, V = SIZES = Sizes(2, 4, 2, 13, 19, 4, 4)


def subject(engine: Engine, jit: bool = False) -> Subject:
    framework = TorchArrays() if engine.arrays == "torch" else JaxArrays(jit=jit)
    return Subject(engine.title, framework, SimpleNamespace(attention=attention_by(engine)))


def module_of(engine: Engine, name: str) -> Any:
    """A module of the port; `torch_impl.attention` itself is the function of that name."""
    return importlib.import_module(f"{engine.package}.{name}")


# --- cases ------------------------------------------------------------------------------------------------------------


def drawn(
    mask: Any = None,
    dtype: str = "float32",
    sizes: Sizes = SIZES,
    bias: tuple[int, ...] = (),
    sinks: bool = False,
    seed: int = 0,
    **options: Any,
) -> Case:
    """A case with gradients; `bias` is the shape of one, a tenth of which is -inf."""
    d, s = Draw(seed, dtype), sizes
    inputs = {"query": d.normal(s.B, s.H, s.Q, s.D), "key": d.normal(s.B, s.G, s.K, s.D)}
    inputs["value"] = d.normal(s.B, s.G, s.K, s.V)
    if bias:
        wide = "float64" if dtype == "float64" else "float32"
        inputs["bias"] = np.where(d.booleans(*bias, share=0.1), -np.inf, d.normal(*bias, dtype=wide))
        inputs["bias"] = inputs["bias"].astype(wide)
    if sinks:
        inputs["sinks"] = d.normal(s.H)
    options = {"mask": as_mask(mask), **options}
    return Case("attention", dtype, inputs, options, {"output": d.normal(s.B, s.H, s.Q, s.V)})


RNG = np.random.default_rng(1)
QUERY_IDS = np.array([[0, 0, 1, 1, 1, 5, 5, 5, 5, 2, 2, 2, 9], [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]])
KEY_IDS = np.array([[0] * 6 + [7] + [1] * 5 + [2] * 5 + [7] * 2, [7] + [0] * 9 + [1] * 9])
PADDING = RNG.random((B, K)) < 0.7
HOLE = np.arange(Q)[:, None] // 4 + np.zeros(K) != 1  # a whole block of queries sees nothing, those around it all

MASKS = {
    "none": None,
    "causal": Causal(K - Q),
    "causal, empty rows": Causal(-5),
    "causal, per batch": Causal(np.array([6, -3])),
    "window": SlidingWindow(3, 2, 4),
    "window, per batch": SlidingWindow(2, 0, np.array([-4, 9])),
    "window, one side": SlidingWindow(None, 3, 0),
    "lengths": KeyLengths(np.array([0, 11])),
    "padding": KeyPadding(PADDING),
    "segments": Segments(QUERY_IDS, KEY_IDS),
    "dense": Dense(RNG.random((Q, K)) < 0.6),
    "dense, per head": Dense(RNG.random((B, H, Q, K)) < 0.6),
    "dense, with a hole": Dense(HOLE),
    "segments, with a hole": Segments(np.arange(Q)[None] // 4 % 2, np.zeros((1, K), int)),
    "causal and lengths": Causal(np.array([6, -3])) & KeyLengths(np.array([9, 19])),
    "causal and segments": Causal(3) & Segments(QUERY_IDS, KEY_IDS),
    "window or padding": SlidingWindow(1, 1, 2) | KeyPadding(PADDING),
    "all": (Causal(2) & KeyLengths(np.array([7, 19])) & Segments(QUERY_IDS, KEY_IDS)) | SlidingWindow(0, 0, 5),
}
SQUARE = Sizes(2, 3, 3, 17, 17, 8, 8)
FOR_ALL = {name: drawn(mask) for name, mask in MASKS.items()} | {
    "float16": drawn(MASKS["all"], "float16"),
    "bfloat16": drawn(MASKS["window"], "bfloat16"),
    "float64": drawn(MASKS["causal and lengths"], "float64"),
    "upper left": drawn(Causal(), sizes=SQUARE),
    "upper left, negative scale": drawn(Causal(), sizes=SQUARE, scale=-0.7),
    "upper left, 16 bits": drawn(Causal(), "bfloat16", SQUARE),
    "upper left, grouped heads": drawn(Causal(0), sizes=SQUARE._replace(G=1)),
    "no scale at all": drawn(MASKS["window"], scale=0.0),
    "negative scale": drawn(MASKS["dense"], scale=-0.7),
    "one query": drawn(KeyLengths(np.array([3, 19])), sizes=SIZES._replace(Q=1)),
    "one key": drawn(Causal(-2), sizes=SIZES._replace(K=1)),
    "more heads than rows": drawn(MASKS["window"], sizes=SIZES._replace(H=14)),
}
BEYOND_THE_KERNEL = {
    "bias": drawn(MASKS["causal"], bias=(Q, K)),
    "bias, no mask": drawn(None, bias=(1, 1, Q, K)),
    "bias of every head": drawn(MASKS["lengths"], bias=(1, H, Q, K)),
    "bias of every batch element": drawn(MASKS["window"], bias=(B, 1, Q, K)),
    "bias of every pair": drawn(MASKS["padding"], bias=(B, H, Q, K)),
    "sinks": drawn(MASKS["lengths"], sinks=True),
    "softcap": drawn(MASKS["causal, empty rows"], softcap=0.9),
    "wider values": drawn(MASKS["segments"], sizes=SIZES._replace(V=7)),
    "no width to speak of": drawn(MASKS["dense"], sizes=SIZES._replace(D=1, V=1), sinks=True),
    "few queries": drawn(None, "float16", SIZES._replace(Q=2, V=7), sinks=True, softcap=0.9),
    "everything": drawn(MASKS["all"], "bfloat16", SIZES._replace(V=7), (1, H, Q, K), True, softcap=2.0, scale=-1.3),
}
CASES = FOR_ALL | BEYOND_THE_KERNEL


def far(
    query: float = 1, value: float = 1, bias: float = 0, sinks: float = 0, level: float = 0, scale: float | None = None
) -> Case:
    """Inputs times a factor, bias and sinks plus a number; forward only. level: that of scores and sinks."""
    case = drawn(None, bias=(Q, K), sinks=True, scale=scale)
    inputs = {
        "query": case.inputs["query"] * query,
        "key": case.inputs["key"],
        "value": case.inputs["value"] * value,
        "bias": case.inputs["bias"] + bias,
        "sinks": case.inputs["sinks"] + sinks + level,
    }
    if level:
        inputs |= {"query": np.full_like(inputs["query"], level / 8), "key": np.full_like(inputs["key"], 4)}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    return replace(case, inputs=inputs, cotangents={})


def lowered(by: float) -> Case:
    """Scores that are all lower by a number, without any rounding: what is the same for all keys is of no account."""
    case = drawn(MASKS["causal, empty rows"], bias=(Q, K), scale=0.0)
    bias = np.where(case.inputs["bias"] == -np.inf, -np.inf, np.round(case.inputs["bias"] * 256) / 256 - by)
    return replace(case, inputs=case.inputs | {"bias": bias.astype(np.float32)})


NEAR = {
    "as drawn": far(),
    "scores": far(query=3),
    "small values": far(value=2.0**-45, level=-32),
    "large values": far(value=2.0**35, level=32),
}
"""Where JAX's blocks sum exp(score) itself."""
FAR = {
    "scores": far(query=200),
    "small queries, a large scale": far(query=2.0**-100, scale=2.0**107),
    "small values": far(value=2.0**-105, level=-32),
    "large values": far(value=2.0**100, level=32),
    "bias": far(bias=150),
    "sinks": far(sinks=63, level=32),
}
"""Where that would overflow, or lose what is small."""
IN_JAX = (
    "none", "window, per batch", "dense, with a hole", "all", "float16", "float64", "few queries", "everything",
)  # fmt: skip
"""Every shape and kind of mask is compiled anew there, for seconds."""


def names_for(engine: Engine) -> Any:
    return {BLOCKED: CASES, FUSED: FOR_ALL, PIECES: IN_JAX}[engine]


EACH = [pytest.param(engine, name, id=f"{engine.title}: {name}") for engine in ENGINES for name in names_for(engine)]


@cache
def truth(name: str) -> tuple[dict[str, Exact], dict[str, np.ndarray]]:
    return truth_and_bounds(CASES[name])


def worst(findings: list[Finding]) -> Finding:
    return max(findings, key=lambda finding: finding.ratio)


def error(engine: Engine, case: Case, expected: Any = None) -> Finding:
    """The worst error of an engine in a case. expected: values and bounds that are not those of the case itself."""
    return worst(judged(case, subject(engine)(case), *(expected or truth_and_bounds(case))))


def agreement(engine: Engine, name: str) -> Finding:
    return error(engine, CASES[name], truth(name))


def conforms(finding: Finding) -> None:
    assert finding.ratio <= 1, str(finding)
