"""The calls of the worked examples: small inputs, and the names of the inner arrays to show."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from conformance.cases.case import Case
from specification import Causal


class Example(NamedTuple):
    """A call, and which of the arrays inside are worth seeing: (function, name). says: how to read them, in words.

    counted: the one of them that says which rows reach the result. Others are compared in these alone, and note says
    what becomes of the rest.
    """

    case: Case
    inside: tuple[tuple[str, str], ...]
    says: str = ""
    counted: tuple[str, str] | None = None
    note: str = ""


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Small numbers that are easy to read: one decimal."""
    drawn = np.random.default_rng(seed).uniform(-2, 2, shape)
    return drawn.round(1).astype(np.float32)


def projection(seed: int, name: str, width: int, out: int) -> dict[str, np.ndarray]:
    return {f"{name}.weight": numbers(seed, width, out), f"{name}.bias": numbers(seed + 1, out)}


FIRST_GRADIENTS = numbers(62, 5)
"""Those that Adam saw at its first step, after which its state is 0.1 times these and 0.001 times their squares."""
FORBIDDEN = "Where the mask forbids a pair, `scores` holds 0, which nothing reads. The weight is 0 there."


@cache
def examples() -> dict[str, Example]:
    """By the page on which it stands."""
    heads = {"query": numbers(1, 1, 1, 3, 2), "key": numbers(2, 1, 1, 4, 2), "value": numbers(3, 1, 1, 4, 2)}
    pair = {"query": heads["query"], "key": heads["key"]}
    causal = {"mask": Causal(offset=0)}
    inner = (("reference_attention", "allowed"),)
    row = {"x": numbers(4, 2, 4), "weight": numbers(5, 4)}
    projections = {
        name: array
        for seed, part in enumerate(("query", "key", "value", "output"))
        for name, array in projection(20 + 2 * seed, part, 4, 4).items()
    }
    return {
        "scores": Example(
            Case("attention_weights", "float32", {**pair, "bias": numbers(9, 3, 4)}, {**causal, "softcap": 2.0}),
            (("attention_weights", "allowed"), ("attention_scores", "scores")),
            FORBIDDEN,
        ),
        "softmax": Example(
            Case("attention_weights", "float32", pair, {"mask": Causal(offset=-1)}),
            (("softmax", "allowed"), ("softmax", "scores"), ("softmax", "maximum"), ("softmax", "exponentials"),
             ("softmax", "weights")),
            FORBIDDEN,
        ),
        "attention": Example(
            Case("attention", "float32", heads, causal),
            (*inner, ("attention_scores", "scores"), ("softmax", "maximum"), ("softmax", "exponentials"),
             ("softmax", "weights")),
            FORBIDDEN,
        ),
        "companions": Example(
            Case("attention_logsumexp", "float32", pair, causal),
            (("attention_scores", "scores"), ("softmax", "maximum"), ("softmax", "exponentials")),
            FORBIDDEN,
        ),
        "multi_head_attention": Example(
            Case("multi_head_attention", "float32",
                 {name: numbers(10, 1, 3, 4) for name in ("query", "key", "value")} | projections,
                 {"num_heads": 2, **causal}),
            (("attention", "query"), ("attention", "key"), ("attention", "value"),
             ("concatenate_heads", "x")),
        ),
        "layer_norm": Example(
            Case("layer_norm", "float32", {**row, "bias": numbers(6, 4)}, {"eps": 1e-5}),
            (("deviations", "center"), ("forward", "center"), ("reference_layer_norm", "deviation"),
             ("reference_layer_norm", "variance"), ("reference_layer_norm", "normalized")),
        ),
        "norm_variants": Example(
            Case("rms_norm", "float32", row, {"eps": 1e-5}), (("rms_norm", "square"), ("rms_norm", "normalized")),
        ),
        "embedding": Example(
            Case("embedding", "float32", {"table": numbers(7, 5, 4), "ids": np.array([[3, 0, 3]])}, {"scaled": True}),
            (("embedding", "rows"),),
        ),
        "positions": Example(
            Case("sinusoidal_positions", "float32", {}, {"length": 4, "width": 6, "dtype": "float32"}),
            (("sinusoidal_positions", "position"), ("sinusoidal_positions", "angle")),
        ),
        "rotary": Example(
            Case("rotary_embedding", "float32", {"x": numbers(70, 1, 1, 3, 4), "positions": np.arange(3)},
                 {"base": 100.0}),
            (("sine_and_cosine", "quarter"), ("sine_and_cosine", "angle")),
            "An angle is a whole number of quarter turns, `quarter`, and a rest between -pi/4 and pi/4, `angle`. The"
            " first pair turns by 1 at position 1: 1 = 1 * pi/2 - 0.5708. Columns 0 and 2 are the first pair, 1 and 3"
            " the second.",
        ),
        "latent_attention": Example(
            Case("latent_attention", "float32",
                 {"x": numbers(71, 1, 3, 4), "query.weight": numbers(72, 4, 6),
                  "key_value_down.weight": numbers(73, 4, 4), "key_value_norm.weight": numbers(74, 2),
                  "key_value_up.weight": numbers(75, 2, 4), "output.weight": numbers(76, 2, 4)},
                 {"num_heads": 2, "rotary_width": 2, "base": 100.0, **causal}),
            (("project_latents", "latents"), ("attention", "key"), ("attention", "value")),
            "Two heads have keys of one column from the latents, and share two columns, which are rotated.",
        ),
        "feed_forward": Example(
            Case("feed_forward", "float32",
                 {"x": numbers(8, 2, 3), **projection(40, "inner", 3, 4), **projection(50, "outer", 4, 3)},
                 {"activation": "gelu"}),
            (("normal_distribution", "x"), ("feed_forward", "hidden")),
        ),
        "experts": Example(
            Case("mixture_of_experts", "float32",
                 {"x": numbers(77, 3, 2), "router.weight": numbers(78, 2, 3),
                  "experts.inner.weight": numbers(79, 3, 2, 3), "experts.outer.weight": numbers(80, 3, 3, 2)},
                 {"chosen": 2, "activation": "relu"}),
            (("route_by_logits", "scores"),),
            "Each of three tokens goes through two of three experts, those with the largest scores.",
        ),
        "losses": Example(
            Case("cross_entropy", "float32", {"logits": numbers(11, 3, 4), "targets": np.array([2, -1, 0])},
                 {"ignore": -1}),
            (("cross_entropy", "counted"), ("row_losses", "shifted"), ("row_losses", "logsumexp"),
             ("row_losses", "losses"), ("reduced", "losses")),
            counted=("cross_entropy", "counted"),
            note="Compared in the rows that count. The ports set the logits of all others to 0 first, so that not even"
            " a NaN in them reaches a gradient; the definition leaves their losses out at the end.",
        ),
        "optimizers": Example(
            Case("adam_step", "float32",
                 {"parameters": numbers(60, 5), "gradients": numbers(61, 5), "mean": FIRST_GRADIENTS / 10,
                  "square": FIRST_GRADIENTS**2 / 1000},
                 {"step": 1, "learning_rate": 0.1, "weight_decay": 0.1}),
            (),
        ),
    }  # fmt: skip
