"""Blocks whose results are worked out by hand: the orders of norms, windows, sinks, and norms of queries and keys.

One position, one head, and projections that copy: attention gives x - 6, and the feed-forward network max(x, 0). Only
the first of four columns is not 0, so the RMS norm of v is 2 w sign(v), exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specification import Configuration, EncoderBlock, FeedForward, Linear, MultiHeadAttention, Norm
from specification.configuration import AttentionLayer
from tests.support.helpers import Implementation

COPY = Linear(np.eye(4))
X = np.array([[[4.0, 0, 0, 0]]])


def weight(first: float) -> Norm:
    return Norm(np.array([first, 1.0, 1.0, 1.0]))


def block(**norms: Norm | None) -> EncoderBlock:
    shifted = Linear(np.eye(4), np.array([-6.0, 0, 0, 0]))
    given: dict[str, Any] = {"attention_norm": weight(0.5), "feed_forward_norm": weight(0.75)} | norms
    return EncoderBlock(
        attention=MultiHeadAttention(COPY, COPY, COPY, shifted), feed_forward=FeedForward(COPY, COPY), **given
    )


AROUND = {"attention_output_norm": weight(1.5), "feed_forward_output_norm": weight(2.5)}
ORDERS: dict[str, tuple[str, dict[str, Norm | None], float]] = {
    "post": ("post", {}, 1.5),  # 4 + (4 - 6) = 2, normed 1; 1 + 1, normed 1.5
    "pre": ("pre", {}, -1.0),  # 4 + (1 - 6) = -1; normed -1.5, of which the network makes 0
    "pre, none before attention": ("pre", {"attention_norm": None}, 3.5),  # 4 + (4 - 6) = 2; 2 + 1.5
    "around": ("around", AROUND, 6.0),  # 1 - 6, normed -3, and 4 more: 1; normed 1.5, normed again 5
    "after": ("after", {}, 4.5),  # 4 - 6, normed -1, and 4 more: 3; normed 1.5
    "parallel": ("parallel", {}, 0.5),  # 4 + ((1 - 6) + 1.5)
    "parallel, one norm": ("parallel", {"feed_forward_norm": None}, 0.0),  # 4 + ((1 - 6) + 1)
}


@pytest.mark.rule("BLK-1", "BLK-3")
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.slow_where("jax_impl")
def test_orders_of_norms(name: str, implementation: Implementation) -> None:
    order, norms, expected = ORDERS[name]
    configuration = Configuration(1, norm="rms_norm", norm_order=order, norm_eps=2.0**-126)
    got = implementation.call("encoder_block", block(**norms), X, configuration=configuration)
    assert got.tolist() == [[[expected, 0, 0, 0]]]


@pytest.mark.rule("BLK-3")
@pytest.mark.parametrize(
    ("order", "norms", "told"),
    [
        ("post", {"feed_forward_norm": None}, "with norm_order='post' a block needs feed_forward_norm"),
        ("after", {"attention_norm": None}, "with norm_order='after' a block needs attention_norm"),
        ("around", {}, "with norm_order='around' a block needs attention_output_norm"),
        ("around", AROUND | {"attention_norm": None}, "with norm_order='around' a block needs attention_norm"),
        ("parallel", {"attention_norm": None}, "with norm_order='parallel' a block needs attention_norm"),
        ("pre", AROUND, "with norm_order='pre' a block has no attention_output_norm"),
    ],
)
@pytest.mark.slow_where("jax_impl")
def test_norms_that_are_refused(order: str, norms: Any, told: str, implementation: Implementation) -> None:
    configuration = Configuration(1, norm="rms_norm", norm_order=order)
    with pytest.raises(ValueError, match=told):
        implementation.call("encoder_block", block(**norms), X, configuration=configuration)


UNIFORM = Configuration(1, norm="rms_norm", norm_order="pre", scale=0.0)
VALUES = np.array([[[8.0, 0, 0, 0], [16.0, 0, 0, 0], [32.0, 0, 0, 0]]])


@pytest.mark.rule("BLK-3", "MASK-4", "ATT-5")
@pytest.mark.parametrize(
    ("layer", "sinks", "expected"),
    [
        (AttentionLayer(), None, [8.0, 12.0, 56 / 3]),
        (AttentionLayer(window=(1, 0)), None, [8.0, 12.0, 24.0]),
        (AttentionLayer(window=(0, 0)), None, [8.0, 16.0, 32.0]),
        (AttentionLayer(window=(1, 0)), np.zeros(1), [4.0, 8.0, 16.0]),
    ],
)
@pytest.mark.slow_where("jax_impl")
def test_windows_and_sinks(layer: AttentionLayer, sinks: Any, expected: Any, implementation: Implementation) -> None:
    """With scores of 0, attention is the mean of what a query sees, and a sink of 0 counts as one more of value 0."""
    nothing = FeedForward(Linear(np.zeros((4, 4))), COPY)
    attention = MultiHeadAttention(COPY, COPY, COPY, COPY, sinks=sinks)
    parameters = EncoderBlock(attention, None, nothing, None)
    mask = np.tril(np.ones((3, 3), bool))
    got = implementation.call("encoder_block", parameters, VALUES, configuration=UNIFORM, layer=layer, mask=mask)
    assert (got - VALUES)[0, :, 0].tolist() == pytest.approx(expected, rel=2**-50)


@pytest.mark.rule("NORM-8")
@pytest.mark.slow_where("jax_impl")
def test_norms_of_queries_and_keys(implementation: Implementation) -> None:
    """Normed, [v, 0] is [sqrt(2) sign(v), 0], whatever v is: two keys of one sign weigh the same."""
    heads = MultiHeadAttention(COPY, COPY, COPY, COPY, Norm(np.ones(2)), Norm(np.ones(2)))
    parameters = EncoderBlock(heads, None, FeedForward(Linear(np.zeros((4, 4))), COPY), None)
    x = np.array([[[1.0, 0, 2.0, 0], [5.0, 0, 3.0, 0]]])
    options = {"configuration": Configuration(2, norm="rms_norm", norm_order="pre", norm_eps=2.0**-126)}
    got = implementation.call("encoder_block", parameters, x, **options)
    assert (got - x).tolist() == [[[3.0, 0, 2.5, 0]] * 2]
    plain = parameters._replace(attention=heads._replace(query_norm=None, key_norm=None))
    assert (implementation.call("encoder_block", plain, x, **options) - x)[0, 0, 0] > 4
