"""The steps of attention and of its gradients in float64, for mistakes to be made in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import Case
from conformance.cases.kernel_arguments import without_kernel_arguments
from reference_numpy import materialize

Score = Callable[[np.ndarray, np.ndarray, Callable[[Any], Any], float], np.ndarray]
"""score(products, bias, cap, scale): scores from scaled products."""


@dataclass(frozen=True)
class Steps:
    """What attention computes with, keys and values once for every query head.

    visible: the pairs that the mask allows, [B, H, Q, K]. open: those that the bias allows.
    factor: what dropout multiplies each weight with. score: replaces softcap(products) + bias.
    """

    operation: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    visible: np.ndarray
    open: np.ndarray
    bias: np.ndarray
    scale: float
    softcap: float | None = None
    sinks: np.ndarray | None = None
    factor: Any = 1.0
    empty_rows: str = "zero"
    score: Score | None = None

    @property
    def allowed(self) -> np.ndarray:
        return self.visible & self.open

    def changed(self, **fields: Any) -> Steps:
        return replace(self, **fields)


class Forward(NamedTuple):
    """Scores with -inf for forbidden pairs; the weights; log-sum-exps [B, H, Q, 1]; the result."""

    scores: np.ndarray
    weights: np.ndarray
    logsumexp: np.ndarray
    output: np.ndarray


def steps_of(case: Case) -> Steps:
    case = without_kernel_arguments(case)
    (B, H, Q, D), K = case.inputs["query"].shape, case.inputs["key"].shape[2]
    share = H // max(case.inputs["key"].shape[1], 1)
    wide = {name: array.astype(float) for name, array in case.inputs.items()}
    visible = np.broadcast_to(materialize(case.options.get("mask"), Q, K, batch=B, heads=H), (B, H, Q, K))
    bias = wide.get("bias", np.zeros((1, 1)))
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    scale, keep = case.options.get("scale"), case.options.get("dropout_keep")
    return Steps(
        case.operation,
        wide["query"],
        np.repeat(wide["key"], share, axis=1),
        np.repeat(wide.get("value", wide["key"][..., :0]), share, axis=1),
        visible,
        bias != -np.inf,
        np.where(np.isfinite(bias), bias, 0.0),
        D**-0.5 if scale is None else float(scale),
        case.options.get("softcap"),
        wide["sinks"][:, None, None] if "sinks" in wide else None,
        1.0 if keep is None else np.where(keep, 1 / (1 - case.options["dropout_rate"]), 0.0),
        case.options.get("empty_rows", "zero"),
    )


def of_row(s: Steps, row: tuple[int, int, int]) -> Steps:
    """The steps of one batch element, head and query."""

    def alone(array: Any) -> Any:
        """Of an array that is broadcast to [B, H, Q, K]."""
        if np.ndim(array) != 4:
            return array
        one = zip(row, array.shape, strict=False)
        return array[tuple(slice(i, i + 1) if size > 1 else slice(None) for i, size in one)]

    of_head = (slice(row[0], row[0] + 1), slice(row[1], row[1] + 1))
    fields = {name: alone(getattr(s, name)) for name in ("query", "visible", "open", "bias", "factor")}
    sinks = s.sinks if s.sinks is None else alone(s.sinks) if s.sinks.ndim == 4 else s.sinks[of_head[1]]
    return s.changed(**fields, key=s.key[of_head], value=s.value[of_head], sinks=sinks)


# --- forwards ---------------------------------------------------------------------------------------------------------


def capped(softcap: float | None) -> Callable[[Any], Any]:
    return (lambda scores: scores) if softcap is None else (lambda scores: softcap * np.tanh(scores / softcap))


def products_of(s: Steps) -> np.ndarray:
    """scale * query @ key^T."""
    return s.query @ s.key.swapaxes(-1, -2) * s.scale


def scores_of(s: Steps) -> np.ndarray:
    """Of all pairs, whatever the mask allows."""
    if s.score is not None:
        return s.score(products_of(s), s.bias, capped(s.softcap), s.scale)
    return capped(s.softcap)(products_of(s)) + s.bias


def masked_scores(s: Steps) -> np.ndarray:
    return np.where(s.allowed, scores_of(s), -np.inf)


def highest(scores: np.ndarray, sinks: np.ndarray | None = None) -> np.ndarray:
    """The maximum of every row; 0 where nothing is allowed."""
    maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    maximum = maximum if sinks is None else np.maximum(maximum, sinks)
    return np.where(np.isfinite(maximum), maximum, 0)


def exponentials_of(scores: np.ndarray, sinks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(exp(scores - maximum), their sum with the sink's, the maximum)."""
    maximum = highest(scores, sinks)
    exponentials = np.exp(scores - maximum)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials, total if sinks is None else total + np.exp(sinks - maximum), maximum


def divided(exponentials: np.ndarray, total: np.ndarray) -> np.ndarray:
    return exponentials / np.where(total == 0, 1, total)


def forward(s: Steps) -> Forward:
    scores = masked_scores(s)
    exponentials, total, maximum = exponentials_of(scores, s.sinks)
    weights = divided(exponentials, total)
    with np.errstate(divide="ignore"):
        logsumexp = maximum + np.log(total)
    return Forward(scores, weights, logsumexp, result(s, weights, logsumexp))


def filled(s: Steps, weights: np.ndarray) -> np.ndarray:
    """With what rows that allow nothing hold."""
    if s.empty_rows == "zero":
        return weights
    empty = ~s.allowed.any(axis=-1, keepdims=True)
    return np.where(empty, np.nan if s.empty_rows == "nan" else 1 / max(weights.shape[-1], 1), weights)


def result(s: Steps, weights: np.ndarray, logsumexp: np.ndarray) -> np.ndarray:
    if s.operation == "attention_logsumexp":
        return logsumexp[..., 0]
    if s.operation == "attention_weights":
        return filled(s, weights)
    return (filled(s, weights) * s.factor) @ s.value


# --- backwards --------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """Gradients before they are added up: keys and values [B, H, K, W], scores [B, H, Q, K], sinks [B, H, Q, 1].

    products: of scale * query . key, [B, H, Q, K].
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray | None
    scores: np.ndarray
    sinks: np.ndarray | None
    products: np.ndarray


def pulled_back(
    s: Steps,
    bar: np.ndarray,
    weights: np.ndarray,
    *,
    mean: np.ndarray | None = None,
    sloped: bool = True,
    value_factor: Any = None,
) -> Parts:
    """mean: instead of rowsum(P * P_bar). sloped: with the softcap's slope. value_factor: dropout's, for values."""
    value = None
    if s.operation == "attention":
        dropped = filled(s, weights) * (s.factor if value_factor is None else value_factor)
        value = dropped.swapaxes(-1, -2) @ bar
        weights_bar = (bar @ s.value.swapaxes(-1, -2)) * s.factor
    elif s.operation == "attention_weights":
        weights_bar = bar
    else:
        weights_bar = np.zeros_like(weights)
        mean = -bar[..., None]
    mean = np.sum(weights * weights_bar, axis=-1, keepdims=True) if mean is None else mean
    scores = weights * (weights_bar - mean)
    raw = scores
    if s.softcap is not None and sloped:
        raw = scores * (1 - np.tanh(products_of(s) / s.softcap) ** 2)
    sinks = None
    if s.sinks is not None:
        _, total, maximum = exponentials_of(masked_scores(s), s.sinks)
        sinks = -np.exp(s.sinks - maximum) / total * mean
    return Parts(raw @ s.key * s.scale, raw.swapaxes(-1, -2) @ s.query * s.scale, value, scores, sinks, raw)


def added_up(parts: Parts, case: Case) -> dict[str, np.ndarray]:
    """Gradients of the case's inputs."""
    found = {"query": parts.query, "key": over_group(parts.key, case), "bias": over_broadcast(parts.scores, case)}
    if parts.value is not None:
        found["value"] = over_group(parts.value, case)
    if parts.sinks is not None:
        found["sinks"] = parts.sinks.sum(axis=(0, 2, 3))
    return {f"gradient of {name}": array for name, array in found.items() if name in case.inputs and array is not None}


def over_group(array: np.ndarray, case: Case) -> np.ndarray:
    (B, H, K, W), G = array.shape, case.inputs["key"].shape[1]
    return array.reshape(B, G, H // max(G, 1), K, W).sum(axis=2)


def over_broadcast(scores: np.ndarray, case: Case) -> np.ndarray | None:
    if "bias" not in case.inputs:
        return None
    shape = case.inputs["bias"].shape
    axes = tuple(axis for axis, size in enumerate((1, 1, *shape)[-4:-2]) if size == 1)
    return scores.sum(axis=axes).reshape(shape)
