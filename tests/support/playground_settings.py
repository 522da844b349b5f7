"""Settings of the playground, drawn from a seed: sizes, masks and their conjunctions, and all options together.

How far the page may be from the definition is derived, not chosen: both compute in float64, each is within the bound of
`conformance.bounds` of the exact result, so they are within two bounds of each other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

import reference_numpy
from conformance.bounds import bound
from conformance.cases.case import Case
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Mask, Or

KINDS = ("causal", "window", "lengths", "padding", "segments", "dense")
FEATURES = ("bias", "scale", "softcap", "sinks")
RESULTS = {"output": "attention", "weights": "attention_weights", "logsumexp": "attention_logsumexp"}
LACKING = {"output": (), "weights": ("value",), "logsumexp": ("value", "empty_rows")}


def description(rng: np.random.Generator, kind: str, B: int, H: int, Q: int, K: int) -> Mask:
    offsets = [0, K - Q, int(rng.integers(-3, 4)), rng.integers(-3, 4, B)]
    offset = offsets[rng.integers(len(offsets))]
    if kind == "causal":
        return Causal(None if Q == K and rng.random() < 0.2 else offset)
    if kind == "window":
        left, right = (None if rng.random() < 0.2 else int(rng.integers(0, 4)) for _ in range(2))
        return SlidingWindow(left, right, offset)
    if kind == "lengths":
        return KeyLengths(rng.integers(0, K + 1, B))
    if kind == "padding":
        return KeyPadding(rng.random((B, K)) < 0.7)
    if kind == "segments":
        rows = int(rng.choice((1, B)))
        return Segments(np.sort(rng.integers(0, 3, (rows, Q))), np.sort(rng.integers(0, 3, (rows, K))))
    sizes = ((Q, K), (1, H, Q, K), (B, 1, Q, K), (B, H, Q, K))[rng.integers(4)]
    return Dense(rng.random(sizes) < 0.6)


def mask(rng: np.random.Generator, *sizes: int) -> Mask | None:
    """None, one description, or up to three of them that hold at once; now and then, one or the other."""
    chosen = rng.choice(KINDS, int(rng.integers(0, 4)), replace=False)
    parts = [description(rng, kind, *sizes) for kind in chosen]
    return reduce(Or if rng.random() < 0.1 else And, parts) if parts else None


def setting(seed: int) -> Case:
    """One setting. Scores are small, ordinary, or so far apart that one key takes nearly all the weight."""
    rng = np.random.default_rng(seed)
    B, H = int(rng.integers(1, 3)), int(rng.choice((1, 2, 4)))
    G = int(rng.choice([G for G in (1, 2, 4) if H % G == 0]))
    Q, K, D, V = (int(rng.integers(1, largest)) for largest in (8, 8, 7, 5))
    spread = rng.choice((0.1, 1.0, 1.0, 8.0))
    inputs = {
        "query": spread * rng.standard_normal((B, H, Q, D)),
        "key": rng.standard_normal((B, G, K, D)),
        "value": rng.standard_normal((B, G, K, V)) * rng.choice((0.01, 1.0, 30.0)),
    }
    on = {feature for feature in FEATURES if rng.random() < 0.5}
    options: dict[str, Any] = {"mask": mask(rng, B, H, Q, K), "empty_rows": str(rng.choice(("zero", "mean", "nan")))}
    if "bias" in on:
        inputs["bias"] = 2 * rng.standard_normal(((Q, K), (1, H, Q, K), (B, 1, Q, K), (B, H, Q, K))[rng.integers(4)])
        inputs["bias"][rng.random(inputs["bias"].shape) < 0.15] = -np.inf
    if "sinks" in on:
        inputs["sinks"], options["empty_rows"] = 2 * rng.standard_normal(H), "zero"
    if "scale" in on:
        options["scale"] = float(rng.choice((0.3, 1.0, -0.7, 0.0)))
    if "softcap" in on:
        options["softcap"] = float(rng.choice((0.5, 2.0, 30.0)))
    case = Case("attention", "float64", inputs, options)
    if rng.random() < 0.4:
        hide(rng, case)
    return case


def hide(rng: np.random.Generator, case: Case) -> None:
    """NaN or infinity in the keys and values that no query may attend to."""
    query, key, value = (case.inputs[name] for name in ("query", "key", "value"))
    (B, H, Q, _), (_, G, K, _) = query.shape, key.shape
    allowed = np.broadcast_to(reference_numpy.materialize(case.options["mask"], Q, K, batch=B, heads=H), (B, H, Q, K))
    if "bias" in case.inputs:
        allowed = allowed & (case.inputs["bias"] != -np.inf)
    hidden = ~allowed.reshape(B, G, -1, K).any(axis=2)
    key[hidden] = rng.choice((np.nan, np.inf, -np.inf))
    if case.options["empty_rows"] == "zero":  # with "mean" and "nan", an empty row reads hidden values too
        value[hidden] = rng.choice((np.nan, np.inf, -np.inf))


def spoiled(seed: int) -> Case:
    """The same setting with NaN and infinity at any place of its arrays."""
    case, rng = setting(seed), np.random.default_rng(seed + 1)
    for array in case.inputs.values():
        array[rng.random(array.shape) < 0.08] = rng.choice((np.nan, np.inf, -np.inf))
    return case


# --- what the definition makes of them --------------------------------------------------------------------------------


def part_of(case: Case, name: str) -> Case:
    """The case of one result: of attention's output, of its weights, or of its log-sum-exp."""
    inputs, options = (
        {argument: part for argument, part in given.items() if argument not in LACKING[name]}
        for given in (case.inputs, case.options)
    )
    return replace(case, operation=RESULTS[name], inputs=inputs, options=options)


def by_definition(case: Case, name: str) -> np.ndarray:
    part = part_of(case, name)
    return getattr(reference_numpy, part.operation)(**part.inputs, **part.options)


def allowance(case: Case, name: str) -> np.ndarray:
    """Twice the bound. Hidden NaN and infinity count for nothing, in the bound neither."""
    part = part_of(case, name)
    given = ("query", "key", "value")
    plain = {n: np.where(np.isfinite(array), array, 0) if n in given else array for n, array in part.inputs.items()}
    return 2 * bound(replace(part, inputs=plain))["output"]


def ratio(got: np.ndarray, case: Case, name: str) -> np.ndarray:
    """How far off, in units of what is allowed; what is not the same NaN or infinity is infinitely far off."""
    expected = by_definition(case, name)
    with np.errstate(all="ignore"):
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        return np.where(same, 0.0, np.nan_to_num(np.abs(got - expected) / allowance(case, name), nan=np.inf))


# --- for the page -----------------------------------------------------------------------------------------------------


def described(part: Any) -> Any:
    """Arrays as nested lists and descriptions as plain data, as the page's own functions take them."""
    if isinstance(part, Mask):
        return {"type": type(part).__name__} | {name: described(value) for name, value in vars(part).items()}
    return part.tolist() if isinstance(part, np.ndarray) else part
