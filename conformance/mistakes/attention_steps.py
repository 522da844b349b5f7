"""Attention and its gradients in float64, step by step: what a mistake of attention changes.

    scores  = softcap(scale * query . key) + bias         for allowed pairs, -inf for the others
    weights = exp(scores - maximum) / total
    output  = (weights * factor) . value

Shapes: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V]. Forbidden pairs contribute nothing, even where a key
or value is NaN, as the definition has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name, replace_kernel_arguments
from conformance.cases.case import Case
from reference_numpy import materialize


class Forward(NamedTuple):
    """Scores with -inf for forbidden pairs; weights before dropout; log-sum-exps [B, H, Q, 1]; the output."""

    scores: np.ndarray
    weights: np.ndarray
    logsumexp: np.ndarray
    output: np.ndarray


class Gradients(NamedTuple):
    """Gradients before sums over groups and broadcast axes.

    key and value [B, H, K, width], scores [B, H, Q, K] (those after the bias), sinks [B, H, Q, 1].
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray | None
    scores: np.ndarray
    sinks: np.ndarray | None


@dataclass(frozen=True)
class AttentionSteps:
    """The quantities of one call, and the steps that a mistake may replace.

    Attributes:
        operation: "attention", "attention_weights" or "attention_logsumexp".
        key_heads: [H], the key head that each query head reads. value_heads: the same of values, where it is another.
        visible: [B, H, Q, K], the pairs that the mask allows. open: those that a bias of -inf does not forbid.
        bias: rank 4, broadcast against the scores, with 0 where it is -inf. bias_shape: its shape in the case.
        factor: what dropout multiplies each weight with. empty_rows: what rows without an allowed key hold.
        score: replaces `softcap(products) + bias`, from these steps and the scaled products. Its gradients need a
            function that takes complex numbers.
        weigh: replaces the softmax, from these steps and the masked scores.
        places: of an input that is read elsewhere, the place in it of each element that is read, see `read_elsewhere`.
        move: from the places of a result to the places whose elements stand there, -1 for a 0.
    """

    operation: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray | None
    key_heads: np.ndarray
    visible: np.ndarray
    open: np.ndarray
    bias: np.ndarray
    bias_shape: tuple[int, ...] | None
    scale: float
    softcap: float | None = None
    sinks: np.ndarray | None = None
    factor: Any = 1.0
    empty_rows: str = "zero"
    with_logsumexp: bool = False
    score: Callable[[AttentionSteps, np.ndarray], np.ndarray] | None = None
    weigh: Callable[[AttentionSteps, np.ndarray], np.ndarray] | None = None
    value_heads: np.ndarray | None = None
    places: Mapping[str, np.ndarray] = field(default_factory=dict)
    move: Callable[[np.ndarray], np.ndarray] | None = None

    @classmethod
    def read_case(cls, case: Case) -> AttentionSteps:
        case = replace_kernel_arguments(case)
        (B, H, Q, D), (_, G, K, _) = case.inputs["query"].shape, case.inputs["key"].shape
        wide = {name: array.astype(float) for name, array in case.inputs.items()}
        visible = np.broadcast_to(materialize(case.options.get("mask"), Q, K, batch=B, heads=H), (B, H, Q, K))
        bias = wide.get("bias", np.zeros((1, 1)))
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        scale, keep = case.options.get("scale"), case.options.get("dropout_keep")
        return cls(
            operation=case.operation,
            query=wide["query"],
            key=wide["key"],
            value=wide.get("value"),
            key_heads=np.arange(H) // max(H // max(G, 1), 1),
            visible=visible,
            open=bias != -np.inf,
            bias=np.where(bias == -np.inf, 0.0, bias),
            bias_shape=case.inputs["bias"].shape if "bias" in case.inputs else None,
            scale=D**-0.5 if scale is None else float(scale),
            softcap=case.options.get("softcap"),
            sinks=wide["sinks"][:, None, None] if "sinks" in wide else None,
            factor=1.0 if keep is None else np.where(keep, 1 / (1 - case.options["dropout_rate"]), 0.0),
            empty_rows=case.options.get("empty_rows", "zero"),
            with_logsumexp=case.with_logsumexp,
            score=(lambda steps, products: steps.cap(products + steps.bias)) if "capped" in case.rounding else None,
        )

    def change(self, **fields: Any) -> AttentionSteps:
        return replace(self, **fields)

    def read_elsewhere(self, **places: np.ndarray) -> AttentionSteps:
        """Read inputs at other places, and return their gradients to these.

        Args:
            places: of query, key, value, sinks [H, 1, 1] or bias of rank 4: the place in the flat input of each element
                that is read, -1 for a 0.
        """
        fields: dict[str, Any] = {name: take_places(getattr(self, name), at) for name, at in places.items()}
        if "bias" in places:
            fields |= {"open": take_places(self.open, places["bias"], True), "bias_shape": places["bias"].shape}
        return self.change(**fields, places={**self.places, **places})

    @property
    def allowed_pairs(self) -> np.ndarray:
        return np.asarray(self.visible & self.open)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, Q, K."""
        B, H, Q, K = self.visible.shape
        return B, H, Q, K

    @property
    def keys(self) -> np.ndarray:
        """[B, H, K, D], the key head of each query head."""
        return self.key[:, self.key_heads]

    @property
    def values(self) -> np.ndarray:
        """[B, H, K, V]."""
        assert self.value is not None
        return self.value[:, self.key_heads if self.value_heads is None else self.value_heads]

    # --- forward ---

    def cap(self, scores: np.ndarray) -> Any:
        return scores if self.softcap is None else self.softcap * np.tanh(scores / self.softcap)

    def products(self) -> np.ndarray:
        """scale * query . key, of all pairs."""
        return np.asarray(self.query @ self.keys.swapaxes(-1, -2) * self.scale)

    def all_scores(self) -> np.ndarray:
        """Of all pairs, whatever the mask allows."""
        products = self.products()
        return np.asarray(self.cap(products) + self.bias if self.score is None else self.score(self, products))

    def slope(self, of: str) -> np.ndarray:
        """How fast `score` grows with each product, or with each bias: by a complex step, exact as scores have no sums.

        The step is so small that its square is 0 in float64.
        """
        assert self.score is not None
        products, step = self.products(), 1e-200j
        steps = self.change(bias=self.bias + step) if of == "bias" else self
        found = self.score(steps, products + step if of == "products" else products)
        return np.asarray(np.broadcast_to(np.imag(found) / 1e-200, self.visible.shape))

    def masked_scores(self) -> np.ndarray:
        return np.where(self.allowed_pairs, self.all_scores(), -np.inf)

    def exponentials(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return exp(scores - maximum), their sum with the sink's, and the maximum."""
        maximum = row_maximum(scores, self.sinks)
        exponentials = np.where(self.allowed_pairs, np.exp(scores - maximum), 0)
        total = exponentials.sum(axis=-1, keepdims=True)
        return exponentials, total if self.sinks is None else total + np.exp(self.sinks - maximum), maximum

    def fill_empty_rows(self, weights: np.ndarray) -> np.ndarray:
        """Put what rows without an allowed key hold into the weights."""
        if self.empty_rows in ("zero", "any"):
            return weights
        empty = ~self.allowed_pairs.any(axis=-1, keepdims=True)
        return np.where(empty, np.nan if self.empty_rows == "nan" else 1 / max(weights.shape[-1], 1), weights)

    def weigh_values(self, weights: np.ndarray) -> np.ndarray:
        """Sum the weighted values; a value that is no number counts only for the rows that attend to it."""
        weights, values = self.fill_empty_rows(weights) * self.factor, self.values
        strange = ~np.isfinite(values)
        if not strange.any():
            return np.asarray(weights @ values)
        output = weights @ np.where(strange, 0, values)
        attended = (self.allowed_pairs | (weights != 0)).astype(float)
        for poison in (np.nan, np.inf, -np.inf):
            there = np.isnan(values) if np.isnan(poison) else values == poison
            output = np.where(attended @ there.astype(float) > 0, output + poison, output)
        return np.asarray(output)

    def forward(self) -> Forward:
        scores = self.masked_scores()
        exponentials, total, maximum = self.exponentials(scores)
        if self.weigh is None:
            weights = np.where(self.allowed_pairs, exponentials / np.where(total == 0, 1, total), 0)
        else:
            weights = self.weigh(self, scores)
        with np.errstate(divide="ignore"):
            logsumexp = maximum + np.log(total)
        if self.operation == "attention_logsumexp":
            output = logsumexp[..., 0]
        elif self.operation == "attention_weights":
            output = self.fill_empty_rows(weights)
        else:
            output = self.weigh_values(weights)
        return Forward(scores, weights, logsumexp, output)

    def results(self, forward: Forward) -> dict[str, np.ndarray]:
        found = {"output": forward.output}
        found |= {"logsumexp": forward.logsumexp[..., 0]} if self.with_logsumexp else {}
        return found if self.move is None else {n: take_places(a, self.move(places_of(a))) for n, a in found.items()}

    # --- backward ---

    def pull_back(
        self,
        cotangents: dict[str, np.ndarray],
        weights: np.ndarray,
        *,
        mean: np.ndarray | None = None,
        value_factor: float | np.ndarray | None = None,
    ) -> Gradients:
        """Compute the gradients from these weights P.

        Args:
            cotangents: of "output", and of "logsumexp" where it is a result.
            weights: before dropout, [B, H, Q, K].
            mean: subtracted from the weights' gradient P_bar, instead of rowsum(P * P_bar).
            value_factor: dropout's factor for the values' gradient, instead of the call's.
        """
        if self.move is not None:
            cotangents = {n: add_at_places(a, self.move(places_of(a)), a.shape) for n, a in cotangents.items()}
        bar, value = cotangents["output"].astype(float), None
        if self.operation == "attention":
            kept = self.fill_empty_rows(weights) * (self.factor if value_factor is None else value_factor)
            value = kept.swapaxes(-1, -2) @ bar
            weights_bar = (bar @ self.values.swapaxes(-1, -2)) * self.factor
        elif self.operation == "attention_weights":
            weights_bar = bar
        else:
            weights_bar, mean = np.zeros_like(weights), -bar[..., None]
        if mean is None:
            mean = np.sum(weights * weights_bar, axis=-1, keepdims=True)
        if "logsumexp" in cotangents:
            mean = mean - cotangents["logsumexp"].astype(float)[..., None]
        return self.pull_back_scores(weights * (weights_bar - mean), value, mean)

    def pull_back_scores(self, scores: np.ndarray, value: np.ndarray | None, mean: np.ndarray) -> Gradients:
        """Compute the gradients of query, key and sinks from that of the scores."""
        products, sinks = scores, None
        if self.score is not None:
            products = scores * self.slope("products")
        elif self.softcap is not None:
            products = scores * (1 - np.tanh(self.products() / self.softcap) ** 2)
        if self.sinks is not None:
            _, total, maximum = self.exponentials(self.masked_scores())
            sinks = -np.exp(self.sinks - maximum) / total * mean
        query, key = products @ self.keys * self.scale, products.swapaxes(-1, -2) @ self.query * self.scale
        return Gradients(query, key, value, scores, sinks)

    def sum_gradients(self, gradients: Gradients, inputs: Any) -> dict[str, np.ndarray]:
        """Add up over the query heads of a group and over broadcast axes; of these inputs, by `gradient_name`."""
        found = {"query": gradients.query, "key": self.sum_over_groups(gradients.key)}
        if gradients.value is not None:
            found["value"] = self.sum_over_groups(gradients.value, self.value_heads)
        if gradients.sinks is not None:
            found["sinks"] = gradients.sinks.sum(axis=(0, 2, 3))
        if self.bias_shape is not None:
            axes = tuple(axis for axis in range(4) if self.bias.shape[axis] == 1 != self.visible.shape[axis])
            scores = gradients.scores if self.score is None else gradients.scores * self.slope("bias")
            found["bias"] = scores.sum(axis=axes, keepdims=True).reshape(self.bias_shape)
        moved = {name: at for name, at in self.places.items() if name in found and name in inputs}
        found |= {name: add_at_places(found[name], at, inputs[name].shape) for name, at in moved.items()}
        return {gradient_name(name): array for name, array in found.items() if name in inputs}

    def sum_over_groups(self, array: np.ndarray, heads: np.ndarray | None = None) -> np.ndarray:
        """[B, H, K, width] to [B, G, K, width], each query head's part to the key head that it reads."""
        B, _, K, width = array.shape
        found = np.zeros((B, self.key.shape[1], K, width))
        for head, key_head in enumerate(self.key_heads if heads is None else heads):
            found[:, key_head] += array[:, head]
        return found


def row_maximum(scores: np.ndarray, sinks: np.ndarray | None = None) -> np.ndarray:
    """Return the largest score of each row, [B, H, Q, 1]; 0 where nothing is allowed."""
    maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    maximum = maximum if sinks is None else np.maximum(maximum, sinks)
    return np.where(maximum == -np.inf, 0, maximum)


def places_of(array: np.ndarray) -> np.ndarray:
    """Number the elements of an array, in its shape."""
    return np.arange(array.size).reshape(array.shape)


def take_places(array: np.ndarray, places: np.ndarray, filling: float = 0) -> np.ndarray:
    """Take the elements at these places of a flat array, and the filling at -1."""
    return np.append(array.ravel(), np.asarray(filling, array.dtype))[places]


def add_at_places(gradient: np.ndarray, places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Add up at each place of an array of this shape what was taken from there."""
    sums = np.bincount(places.ravel() + 1, gradient.astype(float).ravel(), int(np.prod(shape)) + 1)
    return np.asarray(sums[1:].reshape(shape))
