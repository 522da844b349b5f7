"""Mistakes of feed-forward networks, residual connections, tables and output layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.case import numpy_dtype
from conformance.ports.computation import Step
from conformance.ports.mistakes.mistake import (
    TRANSPOSED,
    StepChange,
    Topic,
    change_argument,
    change_fields,
    read_transposed,
    replace_function,
    set_keywords,
)
from reference_numpy.feed_forward import ACTIVATIONS as ACTIVATE
from reference_numpy.multi_head_attention import linear
from reference_numpy.transformer import log_softmax
from specification.parameters import FeedForward

# --- feed-forward networks --------------------------------------------------------------------------------------------

NETWORK = Topic("network", "FFN-1", ("transform",))
CONFIGURATION = 3
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU by erf", "gelu_tanh": "GELU by tanh", "silu": "SiLU"}


def change_network(change: Callable[[Any], Any]) -> StepChange:
    return change_argument(0, change)


def drop_bias(name: str) -> StepChange:
    return change_network(lambda p: p._replace(**{name: getattr(p, name)._replace(bias=None)}))


def transpose(*names: str) -> StepChange:
    def change(p: Any) -> Any:
        parts = {name: part for name in names if (part := getattr(p, name, None)) is not None}
        return p._replace(**{name: part._replace(weight=read_transposed(part.weight)) for name, part in parts.items()})

    return change_network(change)


def give_zeros(p: Any, x: np.ndarray, *_: Any, **__: Any) -> Any:
    return np.zeros_like(x)


def activate_otherwise(function: Callable[[np.ndarray], Any]) -> StepChange:
    """The activation is a function that no config names."""

    def transform(p: Any, x: np.ndarray, *_: Any) -> Any:
        first = p.gate if hasattr(p, "gate") else p.inner
        hidden = function(linear(first, x))
        hidden = hidden * linear(p.inner, x) if hasattr(p, "gate") else hidden
        return linear(p.outer, hidden)

    return replace_function(transform)


def sigmoid(x: np.ndarray) -> Any:
    return 1 / (1 + np.exp(-x))


OTHER_ACTIVATIONS: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "not-activated": ("the activation is left out", lambda x: x),
    "quick-gelu": ("the activation is x sigmoid(1.702 x)", lambda x: x * sigmoid(1.702 * x)),
    "erf-unscaled": ("GELU takes erf(x) in place of erf(x / sqrt(2))", lambda x: x * gelu_share(x * math.sqrt(2))),
    "sigmoid": ("the activation is a sigmoid", sigmoid),
    "tanh": ("the activation is tanh", np.tanh),
}


def gelu_share(x: np.ndarray) -> Any:
    """The standard normal distribution function."""
    return np.where(x == 0, 0.5, ACTIVATE["gelu"](x) / np.where(x == 0, 1, x))


NETWORKS = (
    *(
        NETWORK.entry(name.replace("_", "-"), f"the activation is {says}", change_fields(3, activation=name))
        for name, says in ACTIVATIONS.items()
    ),
    *(NETWORK.entry(name, says, activate_otherwise(f)) for name, (says, f) in OTHER_ACTIVATIONS.items()),
    NETWORK.entry(
        "gate-swapped",
        "the activation is on the other of the two projections",
        change_network(lambda p: p._replace(gate=p.inner, inner=p.gate)),
        "FFN-2",
    ),
    NETWORK.entry(
        "not-gated",
        "the gate is left out",
        change_network(lambda p: FeedForward(p.inner, p.outer) if hasattr(p, "gate") else p),
        "FFN-2",
    ),
    NETWORK.entry(
        "gate-alone",
        "the product with the second projection is left out",
        change_network(lambda p: FeedForward(p.gate, p.outer)),
        "FFN-2",
    ),
    *(
        NETWORK.entry(f"no-{name}-bias", f"the bias of the {name} projection is left out", drop_bias(name))
        for name in ("inner", "outer", "gate")
    ),
    NETWORK.entry(
        "no-biases",
        "the biases of the feed-forward network are left out",
        change_network(lambda p: type(p)(*(one._replace(bias=None) for one in p))),
    ),
    *(
        NETWORK.entry(f"{name}-transposed", f"the {name} projection is {TRANSPOSED}", transpose(name))
        for name in ("inner", "outer", "gate")
    ),
    NETWORK.entry("all-transposed", f"all projections are {TRANSPOSED}", transpose("gate", "inner", "outer")),
    NETWORK.entry("left-out", "the feed-forward network is left out", replace_function(give_zeros), "BLK-1"),
)

# --- sums -------------------------------------------------------------------------------------------------------------

SUM = Topic("residual", "BLK-1", ("add",))


def change_sum(function: Callable[..., Any]) -> StepChange:
    """Change the sums of residual connections, and not those of an embedding."""
    return lambda step: step._replace(function=function) if "blocks." in step.name else step


SUMS = (
    SUM.entry("left-out", "the residual connection is left out", change_sum(lambda x, y: y)),
    SUM.entry("twice", "the residual connection counts twice", change_sum(lambda x, y: 2 * x + y)),
    SUM.entry("output-twice", "what a sublayer gives is added twice", change_sum(lambda x, y: x + 2 * y)),
)

# --- tables and output layers -----------------------------------------------------------------------------------------

TABLE = Topic("embedding", "EMB-1", ("embedding",))
POSITIONS = Topic("positions", "POS-2", ("learned_positions", "sinusoidal_positions"))
IMAGE = Topic("positions", "POS-2", ("add",))
RELATIVE = Topic("relative", "POS-6", ("relative_position_bias",))
OUTPUT = Topic("output", "TRF-1", ("linear",))
PATCHES, PREPEND = Topic("patches", "TRF-1", ("patches",)), Topic("class-token", "TRF-1", ("prepend",))


def round_factor(dtype: str) -> StepChange:
    """The factor sqrt(E) of embeddings is rounded to 16 bits."""

    def change(step: Step) -> Step:
        if not step.keywords.get("scaled"):
            return step
        factor = float(np.sqrt(step.arguments[0].shape[1]).astype(numpy_dtype(dtype)))
        return step._replace(function=lambda table, ids, **_: table[ids] * factor)

    return change


def change_result(change: Callable[[np.ndarray], Any]) -> StepChange:
    return lambda step: step._replace(function=lambda *a, **k: change(step.function(*a, **k)))


def move_positions(offset: int) -> StepChange:
    """Positions begin elsewhere; in a table only as far as it reaches."""

    def change(step: Step) -> Step:
        if step.kind == "sinusoidal_positions":
            return step._replace(keywords=step.keywords | {"offset": step.keywords.get("offset", 0) + offset})
        table, length = step.arguments[:2]
        rows = np.clip(np.arange(length) + offset, 0, len(table) - 1)
        return step._replace(function=lambda *_, **__: table[rows])

    return change


def change_image_positions(change: Callable[[np.ndarray], Any]) -> StepChange:
    """Change the table of positions that is added to an image's class token and patches."""

    def changed(step: Step) -> Step:
        return step.argument(1, change(step.arguments[1])) if step.name == "embedding.patches: add" else step

    return changed


def order_patches(*axes: int) -> Callable[..., Any]:
    """Patches whose axes batch, channel, row, inner row, column, inner column stand in another order."""

    def patches(images: np.ndarray, size: int) -> Any:
        B, C, height, width = images.shape
        squares = images.reshape(B, C, height // size, size, width // size, size).transpose(axes)
        return squares.reshape(B, height // size * (width // size), C * size * size)

    return patches


def move_tokens(offset: int) -> StepChange:
    """Read the row of the next or the last token."""

    def change(step: Step) -> Step:
        table, ids = step.arguments[:2]
        return step.argument(1, (np.asarray(ids) + offset) % len(table)) if step.name.endswith("tokens") else step

    return change


def put_last(row: np.ndarray, x: np.ndarray) -> Any:
    return np.concatenate([x, np.broadcast_to(row, (len(x), 1, len(row)))], axis=1)


TABLES = (
    TABLE.entry("scale", "embeddings are multiplied by sqrt(E)", set_keywords(scaled=True)),
    TABLE.entry("not-scaled", "embeddings are not multiplied by sqrt(E)", set_keywords(scaled=False)),
    *(
        TABLE.entry(f"scale-in-{dtype}", f"the factor sqrt(E) of embeddings is rounded to {dtype}", round_factor(dtype))
        for dtype in ("bfloat16", "float16")
    ),
    *(
        TABLE.entry(f"offset{offset:+d}", f"ids of tokens are one too {says}", move_tokens(offset))
        for offset, says in ((1, "large"), (-1, "small"))
    ),
    *(
        POSITIONS.entry(f"offset{offset:+d}", f"positions begin at {offset}", move_positions(offset))
        for offset in (1, 2, -1)
    ),
    POSITIONS.entry("left-out", "positions are left out", change_result(lambda x: 0 * x)),
    POSITIONS.entry("reversed", "positions count from the end", change_result(lambda x: x[::-1])),
    *(
        IMAGE.entry(name, says, change_image_positions(change))
        for name, says, change in (
            ("left-out", "positions are left out", np.zeros_like),
            (
                "first-left-out",
                "the class token has no position",
                lambda rows: np.concatenate([0 * rows[:1], rows[1:]]),
            ),
            (
                "of-patches-early",
                "the positions of patches are one too small",
                lambda rows: np.concatenate([rows[:1], rows[:-1]]),
            ),
            ("first-last", "the class token has the last position", lambda rows: np.roll(rows, 1, axis=0)),
        )
    ),
    RELATIVE.entry("one-sided", "relative positions count backwards only", set_keywords(bidirectional=False)),
    RELATIVE.entry("two-sided", "relative positions count both ways", set_keywords(bidirectional=True)),
    *(
        RELATIVE.entry(f"furthest-{distance}", f"the largest distance is {distance}", set_keywords(furthest=distance))
        for distance in (128, 64, 32)
    ),
    RELATIVE.entry(
        "mirrored", "relative positions have the other sign", change_result(lambda x: np.swapaxes(x, -1, -2))
    ),
    PATCHES.entry(
        "channel-last",
        "a patch's columns go by row and column before channel",
        replace_function(order_patches(0, 2, 4, 3, 5, 1)),
    ),
    PATCHES.entry("by-column", "patches go column by column", replace_function(order_patches(0, 4, 2, 1, 3, 5))),
    PATCHES.entry(
        "transposed",
        "a patch's rows and columns have changed places",
        replace_function(order_patches(0, 2, 4, 1, 5, 3)),
    ),
    PREPEND.entry("last", "the class token comes last", replace_function(put_last)),
    Topic("output", "TRF-1", ("shrink",)).entry(
        "not-scaled", "the output layer's input is not scaled", replace_function(lambda x: x)
    ),
    Topic("output", "TRF-1", ("squeeze",)).entry(
        "no-softcap", "the softcap of logits is left out", replace_function(lambda x, cap: x)
    ),
    OUTPUT.entry("no-bias", "the bias of the layer is left out", change_argument(0, lambda p: p._replace(bias=None))),
    OUTPUT.entry(
        "multiplied",
        "the output layer's result is multiplied by sqrt(E)",
        change_argument(1, lambda x: x * math.sqrt(x.shape[-1])),
    ),
    OUTPUT.entry("log-softmax", "logits are made log-probabilities", change_result(log_softmax)),
    OUTPUT.entry("softmax", "logits are made probabilities", change_result(lambda x: np.exp(log_softmax(x)))),
    OUTPUT.entry("softcap-30", "logits are capped at 30", change_result(lambda x: 30 * np.tanh(x / 30))),
)
MISTAKES = (*NETWORKS, *SUMS, *TABLES)
