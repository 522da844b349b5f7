"""What is refused, with which words, and what is legal although it is empty.

Each mistake is made in all three implementations, which must raise the same error with the same message. `shows` are
the parts of the message that say what came and what was expected.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from specification import (
    Causal,
    Dense,
    FeedForward,
    GatedFeedForward,
    KeyLengths,
    KeyPadding,
    LatentAttention,
    Linear,
    MixtureOfExperts,
    MultiHeadAttention,
    Norm,
    Segments,
    SlidingWindow,
)
from specification.optimizers import AdamState, SgdState
from tests.support.helpers import REFERENCE, Implementation, error_of

B, H, G, Q, K, D, V, E = 2, 6, 3, 4, 5, 8, 7, 12


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def integers(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


def arrays(**changed: np.ndarray) -> dict[str, np.ndarray]:
    """query, key and value that fit together, but for those that are given."""
    return {"query": floats(B, H, Q, D), "key": floats(B, G, K, D), "value": floats(B, G, K, V), **changed}


def projections(**changed: Any) -> MultiHeadAttention:
    """Six query heads of width 2, three key and value heads, of width 2 and 5."""
    return MultiHeadAttention(
        query=Linear(floats(E, 12), floats(12)),
        key=Linear(floats(E, 6), floats(6)),
        value=Linear(floats(E, 15)),
        output=Linear(floats(30, E)),
    )._replace(**changed)


def networks(**changed: Any) -> FeedForward:
    return FeedForward(Linear(floats(E, 9), floats(9)), Linear(floats(9, 3), floats(3)))._replace(**changed)


def gated(**changed: Any) -> GatedFeedForward:
    return GatedFeedForward(Linear(floats(E, 9), floats(9)), *networks())._replace(**changed)


def latent(**changed: Any) -> LatentAttention:
    """Six heads with keys of 3 + 4 columns and values of 5, latents of 9."""
    return LatentAttention(
        query=Linear(floats(E, 42)),
        key_value_down=Linear(floats(E, 13), floats(13)),
        key_value_norm=Norm(floats(9)),
        key_value_up=Linear(floats(9, 48)),
        output=Linear(floats(30, E)),
    )._replace(**changed)


class Mistake(NamedTuple):
    id: str
    rule: str
    operation: str
    error: type[Exception]
    shows: tuple[str, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


MISTAKES: list[Mistake] = []


def bad(
    id: str, rule: str, error: type[Exception], shows: tuple[str, ...], operation: str, *arguments: Any, **options: Any
) -> None:
    MISTAKES.append(Mistake(id, rule, operation, error, shows, arguments, options))


# --- attention --------------------------------------------------------------------------------------------------------

for id, rule, error, shows, changed in (
    ("query-rank", "ATT-8", ValueError, ("query", "[B, H, Q, D]", "[6, 4, 8]"), {"query": floats(H, Q, D)}),
    ("key-rank", "ATT-8", ValueError, ("key", "[2, G, K, 8]", "got [3, 5, 8]"), {"key": floats(G, K, D)}),
    ("value-rank", "ATT-8", ValueError, ("value", "[2, 3, 5, V]", "got [5, 7]"), {"value": floats(K, V)}),
    ("batch-sizes", "ATT-8", ValueError, ("key", "[2, G, K, 8] beside query [2, 6, 4, 8]", "got [3, 3, 5, 8]"),
     {"key": floats(3, G, K, D)}),
    ("batch-of-one", "ATT-8", ValueError, ("key", "[2, G, K, 8]", "got [1, 3, 5, 8]"), {"key": floats(1, G, K, D)}),
    ("widths", "ATT-8", ValueError, ("key", "[2, G, K, 8]", "got [2, 3, 5, 9]"), {"key": floats(B, G, K, 9)}),
    ("value-length", "ATT-8", ValueError, ("value", "[2, 3, 5, V]", "[2, 3, 6, 7]"), {"value": floats(B, G, 6, V)}),
    ("value-heads", "ATT-8", ValueError, ("value", "[2, 3, 5, V]", "[2, 6, 5, 7]"), {"value": floats(B, 6, K, V)}),
    ("value-batch", "ATT-8", ValueError, ("value", "[2, 3, 5, V]", "[1, 3, 5, 7]"), {"value": floats(1, G, K, V)}),
    ("no-width", "ATT-1", ValueError, ("width", "at least 1", "got 0"),
     {"query": floats(B, H, Q, 0), "key": floats(B, G, K, 0)}),
    ("groups", "ATT-7", ValueError, ("6 query heads", "multiple", "4 key heads"),
     {"key": floats(B, 4, K, D), "value": floats(B, 4, K, V)}),
    ("more-key-heads", "ATT-7", ValueError, ("6 query heads", "multiple", "12 key heads"),
     {"key": floats(B, 12, K, D), "value": floats(B, 12, K, V)}),
    ("no-key-heads", "ATT-7", ValueError, ("6 query heads", "multiple", "0 key heads"),
     {"key": floats(B, 0, K, D), "value": floats(B, 0, K, V)}),
    ("list", "ATT-9", TypeError, ("query", "array", "list"), {"query": [[[[1.0]]]]}),
    *((f"{np.dtype(dtype)}-query", "ATT-9", TypeError,
       ("query", "float16, bfloat16, float32, float64", f"got {np.dtype(dtype)}"),
       {"query": floats(B, H, Q, D).astype(dtype)}) for dtype in (np.int32, np.int64, bool, np.complex64)),
    ("mixed-dtypes", "ATT-9", TypeError, ("key", "float32 like query", "got float64"),
     {"key": floats(B, G, K, D, dtype=np.float64)}),
    ("mixed-halves", "ATT-9", TypeError, ("key", "float16 like query", "got bfloat16"),
     {"query": floats(B, H, Q, D, dtype=np.float16), "key": floats(B, G, K, D, dtype=ml_dtypes.bfloat16),
      "value": floats(B, G, K, V, dtype=np.float16)}),
    ("wider-bias", "ATT-3", TypeError, ("bias", "float32", "float64"), {"bias": floats(Q, K, dtype=np.float64)}),
    ("narrower-bias", "ATT-3", TypeError, ("bias", "float32", "float16"), {"bias": floats(Q, K, dtype=np.float16)}),
    ("boolean-bias", "ATT-3", TypeError, ("bias", "bool"), {"bias": ones(Q, K)}),
    ("bias-vector", "ATT-3", ValueError, ("bias", "[4, 5] or [2 or 1, 6 or 1, 4, 5]", "got [5]"),
     {"bias": floats(K)}),
    ("bias-rank-3", "ATT-3", ValueError, ("bias", "[4, 5] or [2 or 1, 6 or 1, 4, 5]", "got [6, 4, 5]"),
     {"bias": floats(H, Q, K)}),
    ("bias-shape", "ATT-3", ValueError, ("bias", "[4, 5]", "[4, 1]"), {"bias": floats(Q, 1)}),
    ("bias-heads", "ATT-3", ValueError, ("bias", "[2 or 1, 6 or 1, 4, 5]", "[1, 3, 4, 5]"),
     {"bias": floats(1, G, Q, K)}),
    *((f"scale-{scale}-{type(scale).__name__}", "ATT-1", ValueError, ("scale", "finite", f"got {scale}"),
       {"scale": scale}) for scale in (float("nan"), float("inf"), -np.inf, np.float32("nan"))),
    ("scale-text", "ATT-1", TypeError, ("scale", "real number", "got str"), {"scale": "0.5"}),
    ("scale-complex", "ATT-1", TypeError, ("scale", "real number", "got complex"), {"scale": 1j}),
    ("scale-per-head", "ATT-1", TypeError, ("scale", "real number", "float32 array of shape [6]"),
     {"scale": floats(H)}),
    *((f"softcap-{softcap}", "ATT-2", ValueError, ("softcap", "positive and finite", f"got {softcap:g}"),
       {"softcap": softcap}) for softcap in (0, 0.0, -1.0, float("nan"), float("inf"))),
    ("softcap-flag", "ATT-2", TypeError, ("softcap", "real number", "bool"), {"softcap": True}),
    ("sinks-of-key-heads", "ATT-5", ValueError, ("sinks", "[6]", "[3]"), {"sinks": floats(G)}),
    ("sinks-rank", "ATT-5", ValueError, ("sinks", "[6]", "[2, 6]"), {"sinks": floats(B, H)}),
    ("sinks-dtype", "ATT-5", TypeError, ("sinks", "float32", "int32"), {"sinks": integers(*range(H))}),
    ("empty-rows", "ATT-6", ValueError, ("empty_rows", "'zero', 'mean', 'nan'", "'average'"),
     {"empty_rows": "average"}),
    ("empty-rows-with-sinks", "ATT-6", ValueError, ("empty_rows", "'zero' with sinks", "got 'mean'"),
     {"empty_rows": "mean", "sinks": floats(H)}),
):  # fmt: skip
    bad(id, rule, error, shows, "attention", **arrays() | changed)

# --- dropout ----------------------------------------------------------------------------------------------------------

for id, rule, error, shows, changed in (
    *((f"dropout-rate-{rate}", "ATT-11", ValueError, ("dropout_rate", "at least 0 and below 1", f"got {rate}"),
       {"dropout_keep": ones(B, H, Q, K), "dropout_rate": rate}) for rate in (1.0, 1.5, -0.1, float("nan"))),
    ("dropout-without-keep", "ATT-11", ValueError, ("0.1", "no dropout_keep"), {"dropout_rate": 0.1}),
    ("dropout-rate-none", "ATT-11", TypeError, ("dropout_rate", "real number", "NoneType"),
     {"dropout_keep": ones(B, H, Q, K), "dropout_rate": None}),
    ("dropout-keep-dtype", "ATT-11", TypeError, ("dropout_keep", "boolean", "float32"),
     {"dropout_keep": floats(B, H, Q, K), "dropout_rate": 0.1}),
    ("dropout-keep-shape", "ATT-11", ValueError, ("dropout_keep", "[2, 6, 4, 5]", "[4, 5]"),
     {"dropout_keep": ones(Q, K), "dropout_rate": 0.1}),
):  # fmt: skip
    bad(id, rule, error, shows, "attention", **arrays() | changed)

# --- masks, through attention -----------------------------------------------------------------------------------------

for id, rule, error, shows, mask in (
    ("float-mask", "MASK-1", TypeError, ("boolean", "float32", "True = may attend"), floats(Q, K)),
    ("integer-mask", "MASK-1", TypeError, ("boolean", "int32"), np.ones((Q, K), np.int32)),
    ("byte-mask", "MASK-1", TypeError, ("boolean", "uint8"), np.ones((Q, K), np.uint8)),
    ("float-keep", "MASK-1", TypeError, ("keep", "boolean", "float32"), KeyPadding(floats(B, K))),
    ("text-mask", "MASK-2", TypeError, ("mask", "str"), "causal"),
    ("flag-mask", "MASK-2", TypeError, ("mask", "bool"), True),
    ("vector-mask", "MASK-5", ValueError, ("[4, 5] or [2 or 1", "got [5]", "KeyLengths"), ones(K)),
    ("scalar-mask", "MASK-5", ValueError, ("[4, 5] or [2 or 1", "got []"), ones()),
    ("rank-3-mask", "MASK-5", ValueError, ("[4, 5] or [2 or 1", "got [12, 4, 5]", "KeyPadding"), ones(B * H, Q, K)),
    ("rank-5-mask", "MASK-5", ValueError, ("[4, 5] or [2 or 1", "got [1, 1, 1, 4, 5]"), ones(1, 1, 1, Q, K)),
    ("padding-as-mask", "MASK-5", ValueError, ("[2, 5]", "[4, 5]"), ones(B, K)),
    ("transposed-mask", "MASK-5", ValueError, ("[5, 4]", "[4, 5]"), ones(K, Q)),
    ("one-query-mask", "MASK-5", ValueError, ("[1, 5]", "[4, 5]"), ones(1, K)),
    ("mask-of-key-heads", "MASK-5", ValueError, ("[2, 3, 4, 5]", "[2 or 1, 6 or 1, 4, 5]"), ones(B, G, Q, K)),
    ("mask-of-batch", "MASK-5", ValueError, ("[3, 1, 4, 5]", "[2 or 1, 6 or 1, 4, 5]"), Dense(ones(3, 1, Q, K))),
    ("causal", "MASK-3", ValueError, ("4 queries", "5 keys", "offset=0", "offset=1"), Causal()),
    ("window", "MASK-3", ValueError, ("SlidingWindow", "4 queries", "5 keys", "offset=1"), SlidingWindow(1, 1)),
    ("causal-inside", "MASK-3", ValueError, ("4 queries", "5 keys"), KeyLengths(integers(1, 2)) & Causal()),
    ("causal-either", "MASK-3", ValueError, ("4 queries", "5 keys"), ones(Q, K) | Causal()),
    ("offset-float", "MASK-3", TypeError, ("offset", "integer", "float"), Causal(1.0)),
    ("offset-flag", "MASK-3", TypeError, ("offset", "integer", "bool"), Causal(True)),
    ("offset-text", "MASK-3", TypeError, ("offset", "integer", "str"), Causal("top-left")),
    ("offset-batch", "MASK-3", ValueError, ("offset", "[2]", "[3]"), Causal(integers(0, 1, 2))),
    ("offset-floats", "MASK-3", TypeError, ("offset", "integer", "float32"), Causal(floats(B))),
    ("offset-rank", "MASK-3", ValueError, ("offset", "[2]", "got [2, 1]"), Causal(np.zeros((2, 1), np.int32))),
    ("window-left", "MASK-4", ValueError, ("left", "negative", "-1"), SlidingWindow(-1, 0, offset=0)),
    ("window-right", "MASK-4", ValueError, ("right", "negative", "-2"), SlidingWindow(None, -2, offset=0)),
    ("window-float", "MASK-4", TypeError, ("left", "integer", "float"), SlidingWindow(1.5, 0, offset=0)),
    ("window-array", "MASK-4", TypeError, ("left", "int32 array of shape [2]"), SlidingWindow(integers(1, 2), 0, 0)),
    ("lengths-beyond", "MASK-2", ValueError, ("between 0 and 5 keys", "[5, 6]"), KeyLengths(integers(5, 6))),
    ("lengths-negative", "MASK-2", ValueError, ("between 0 and 5 keys", "[-1, 3]"), KeyLengths(integers(-1, 3))),
    ("lengths-inside", "MASK-2", ValueError, ("between 0 and 5", "[9, 3]"), Causal(0) & KeyLengths(integers(9, 3))),
    ("lengths-batch", "MASK-2", ValueError, ("lengths", "[2]", "[3]"), KeyLengths(integers(1, 2, 3))),
    ("lengths-number", "MASK-2", TypeError, ("lengths", "array", "int"), KeyLengths(3)),
    ("lengths-floats", "MASK-2", TypeError, ("lengths", "integer", "float32"), KeyLengths(floats(B))),
    ("keep-shape", "MASK-2", ValueError, ("keep", "[2, 5]", "[2, 4]"), KeyPadding(ones(B, Q))),
    ("keep-shared", "MASK-2", ValueError, ("keep", "[2, 5]", "[1, 5]"), KeyPadding(ones(1, K))),
    ("keep-rank", "MASK-2", ValueError, ("keep", "[2, 5]", "got [5]"), KeyPadding(ones(K))),
    (
        "segments-query", "MASK-2", ValueError, ("query_ids", "[2 or 1, 4]", "[2, 5]"),
        Segments(np.zeros((B, K), np.int32), np.zeros((B, K), np.int32)),
    ),
    (
        "segments-key", "MASK-2", ValueError, ("key_ids", "[2 or 1, 5]", "[3, 5]"),
        Segments(np.zeros((1, Q), np.int32), np.zeros((3, K), np.int32)),
    ),
    (
        "segments-floats", "MASK-2", TypeError, ("key_ids", "integer", "float32"),
        Segments(np.zeros((B, Q), np.int32), np.zeros((B, K), np.float32)),
    ),
):  # fmt: skip
    bad(id, rule, error, shows, "attention", **arrays(), mask=mask)

bad("materialize-causal", "MASK-3", ValueError, ("3 queries", "7 keys", "offset=4"), "materialize", Causal(), 3, 7)
SHOWS = ("[3, 1, 4, 5]", "[2 or 1, H or 1, 4, 5]")
bad("materialize-batch", "MASK-5", ValueError, SHOWS, "materialize", ones(3, 1, Q, K), Q, K, batch=2)
bad("materialize-length", "MASK-2", ValueError, ("query_length", "negative", "-1"), "materialize", None, -1, 3)
bad("materialize-length-float", "MASK-2", TypeError, ("key_length", "integer", "float"), "materialize", None, 1, 3.0)

# --- companions -------------------------------------------------------------------------------------------------------

for operation in ("attention_weights", "attention_logsumexp"):
    for id, error, shows, changed in (
        ("groups", ValueError, ("6 query heads", "4 key heads"), {"key": floats(B, 4, K, D)}),
        ("mask", ValueError, ("4 queries", "5 keys"), {"mask": Causal()}),
        ("dtype", TypeError, ("key", "float32 like query", "got float64"), {"key": floats(B, G, K, D).astype(float)}),
    ):
        fitting = {"query": floats(B, H, Q, D), "key": floats(B, G, K, D)}
        bad(f"{operation}-{id}", "ATT-14", error, shows, operation, **fitting | changed)

PART, SUMS = floats(B, H, Q, V), floats(B, H, Q)
for id, error, shows, outputs, logsumexps in (
    ("nothing", ValueError, ("at least one", "0 and 0"), [], []),
    ("counts", ValueError, ("as many", "2 and 1"), [PART] * 2, [SUMS]),
    (
        "shapes", ValueError, ("outputs[1]", "[2, 6, 4, 7]", "[2, 6, 5, 7]"),
        [PART, floats(B, H, 5, V)], [SUMS, floats(B, H, 5)],
    ),
    ("logsumexp-shape", ValueError, ("logsumexps[0]", "[2, 6, 4]", "[2, 6, 4, 1]"), [PART], [floats(B, H, Q, 1)]),
    ("rank", ValueError, ("outputs[0]", "[B, H, Q, V]", "[4, 7]"), [floats(Q, V)], [floats(Q)]),
    (
        "dtypes", TypeError, ("outputs[1]", "float32 like outputs[0]", "got float16"),
        [PART, PART.astype(np.float16)], [SUMS] * 2,
    ),
    ("logsumexp-dtype", TypeError, ("logsumexps[0]", "float32", "float64"), [PART], [SUMS.astype(np.float64)]),
    ("list", TypeError, ("outputs[0]", "array", "list"), [[[[[1.0]]]]], [[[[1.0]]]]),
    ("integers", TypeError, ("outputs[0]", "int32"), [integers([[[1]]])], [floats(1, 1, 1)]),
):  # fmt: skip
    bad(f"merge-{id}", "ATT-14", error, shows, "merge_attention", outputs, logsumexps)

# --- multi-head attention ---------------------------------------------------------------------------------------------

FITTING = dict.fromkeys(("query", "key", "value"), floats(B, 4, E)) | {"parameters": projections(), "num_heads": H}
for id, rule, error, shows, changed in (
    ("no-heads", "MHA-1", ValueError, ("num_heads", "at least 1", "got 0"), {"num_heads": 0}),
    ("negative-heads", "MHA-1", ValueError, ("num_heads", "at least 1", "-2"), {"num_heads": -2}),
    ("float-heads", "MHA-1", TypeError, ("num_heads", "integer", "float"), {"num_heads": 6.0}),
    ("rank", "MHA-1", ValueError, ("query", "[B, Q, E]", "[4, 12]"), {"query": floats(4, E)}),
    ("batch", "MHA-1", ValueError, ("key", "[2, K, E_key] beside query [2, 4, 12]", "got [3, 4, 12]"),
     {"key": floats(3, 4, E)}),
    ("lengths", "MHA-1", ValueError, ("value", "[2, 4, E_value]", "key [2, 4, 12]", "got [2, 5, 12]"),
     {"value": floats(B, 5, E)}),
    ("dtypes", "MHA-1", TypeError, ("key", "float32 like query", "float64"),
     {"key": floats(B, 4, E, dtype=np.float64)}),
    ("input-width", "MHA-1", ValueError, ("query.weight", "[13, HD]", "[12, 12]"), {"query": floats(B, 4, 13)}),
    ("columns", "MHA-1", ValueError, ("query.weight", "12 columns", "5 heads"), {"num_heads": 5}),
    ("no-columns", "MHA-1", ValueError, ("query.weight", "0 columns"),
     {"parameters": projections(query=Linear(floats(E, 0)))}),
    ("key-columns", "ATT-7", ValueError, ("key.weight", "7 columns", "head width 2"),
     {"parameters": projections(key=Linear(floats(E, 7)))}),
    ("groups", "ATT-7", ValueError, ("6 query heads", "4 key heads"),
     {"parameters": projections(key=Linear(floats(E, 8)))}),
    ("value-columns", "MHA-1", ValueError, ("value.weight", "16 columns", "3 key heads"),
     {"parameters": projections(value=Linear(floats(E, 16)))}),
    ("output-rows", "MHA-1", ValueError, ("output.weight", "[30, E_out]", "[31, 12]"),
     {"parameters": projections(output=Linear(floats(31, E)))}),
    ("weight-rank", "MHA-1", ValueError, ("key.weight", "[12, GD]", "got [12]"),
     {"parameters": projections(key=Linear(floats(E)))}),
    ("weight-dtype", "MHA-1", TypeError, ("key.weight", "float32", "float64"),
     {"parameters": projections(key=Linear(floats(E, 6, dtype=np.float64)))}),
    ("bias", "MHA-1", ValueError, ("query.bias", "[12]", "[6]"),
     {"parameters": projections(query=Linear(floats(E, 12), floats(6)))}),
    ("bias-dtype", "MHA-1", TypeError, ("query.bias", "float32", "got float16"),
     {"parameters": projections(query=Linear(floats(E, 12), floats(12, dtype=np.float16)))}),
    ("no-separate", "MHA-2", ValueError, ("at least one", "none"), {"parameters": projections(query=[])}),
    ("separate-bias", "MHA-2", ValueError, ("bias", "heads[0]", "heads[1]"),
     {"parameters": projections(query=[Linear(floats(E, 2), floats(2)), Linear(floats(E, 2))])}),
    ("separate-rows", "MHA-2", ValueError, ("heads[1].weight", "[12, 2] beside heads[0].weight", "[11, 2]"),
     {"parameters": projections(query=[Linear(floats(E, 2)), Linear(floats(11, 2))])}),
    ("separate-rank", "MHA-2", ValueError, ("heads[0].weight", "[I, O]", "[12]"),
     {"parameters": projections(query=[Linear(floats(E))])}),
    ("separate-arrays", "MHA-2", TypeError, ("heads[0]", "Linear", "[12, 2]"),
     {"parameters": projections(query=[floats(E, 2)])}),
    ("no-projection", "MHA-1", TypeError, ("Linear", "NoneType"), {"parameters": projections(key=None)}),
    ("output", "MHA-1", TypeError, ("output", "Linear", "[30, 12]"),
     {"parameters": projections(output=floats(30, E))}),
    ("mask", "MASK-5", ValueError, ("[5, 5]", "[4, 4]"), {"mask": ones(5, 5)}),
    ("softcap", "ATT-2", ValueError, ("softcap", "positive"), {"softcap": 0.0}),
):  # fmt: skip
    bad(f"mha-{id}", rule, error, shows, "multi_head_attention", **FITTING | changed)

# --- latent attention -------------------------------------------------------------------------------------------------

LATENT: dict[str, Any] = {"parameters": latent(), "x": floats(B, Q, E), "num_heads": H, "rotary_width": 4}
NORMALIZED = {"query": Linear(floats(8, 42)), "query_down": Linear(floats(E, 8)), "query_norm": Norm(floats(8))}
for id, error, shows, changed in (
    ("structure", TypeError, ("parameters", "LatentAttention", "MultiHeadAttention"), {"parameters": projections()}),
    ("no-heads", ValueError, ("num_heads", "at least 1", "got 0"), {"num_heads": 0}),
    ("rank", ValueError, ("x", "[B, T, E]", "[4, 12]"), {"x": floats(4, E)}),
    ("dtype", TypeError, ("query.weight", "float64 like x", "float32"), {"x": floats(B, Q, E, dtype=np.float64)}),
    ("integers", TypeError, ("x", "float32", "int32"), {"x": integers([[1] * E])}),
    ("width", ValueError, ("query.weight", "[13, HQ]", "[12, 42]"), {"x": floats(B, Q, 13)}),
    ("columns", ValueError, ("query.weight", "42 columns", "5 heads"), {"num_heads": 5}),
    ("no-columns", ValueError, ("query.weight", "0 columns"), {"parameters": latent(query=Linear(floats(E, 0)))}),
    ("no-rotation", ValueError, ("rotary_width", "even and at least 2", "got 0"), {"rotary_width": 0}),
    ("odd-rotation", ValueError, ("rotary_width", "even", "got 3"), {"rotary_width": 3}),
    ("wide-rotation", ValueError, ("rotary_width", "at most the head width 7", "got 8"), {"rotary_width": 8}),
    ("whole-rotation", ValueError, ("rotary_width", "below the head width 2", "got 2"),
     {"rotary_width": 2, "parameters": latent(query=Linear(floats(E, 12)))}),
    ("down-columns", ValueError, ("key_value_down.weight", "[12, 13]", "got [12, 12]"),
     {"parameters": latent(key_value_down=Linear(floats(E, 12)))}),
    ("up-rows", ValueError, ("key_value_up.weight", "[9, HDV]", "key_value_norm.weight [9]", "got [8, 48]"),
     {"parameters": latent(key_value_up=Linear(floats(8, 48)))}),
    ("up-columns", ValueError, ("key_value_up.weight", "more than 3 columns", "6 heads", "18 columns"),
     {"parameters": latent(key_value_up=Linear(floats(9, 18)))}),
    ("up-share", ValueError, ("key_value_up.weight", "6 heads", "47 columns"),
     {"parameters": latent(key_value_up=Linear(floats(9, 47)))}),
    ("up-bias", ValueError, ("key_value_up.bias", "None", "[48]"),
     {"parameters": latent(key_value_up=Linear(floats(9, 48), floats(48)))}),
    ("output-rows", ValueError, ("output.weight", "[30, E_out]", "[31, 12]"),
     {"parameters": latent(output=Linear(floats(31, E)))}),
    ("norm", TypeError, ("key_value_norm", "Norm", "[9]"), {"parameters": latent(key_value_norm=floats(9))}),
    ("norm-bias", ValueError, ("key_value_norm.bias", "None", "[9]"),
     {"parameters": latent(key_value_norm=Norm(floats(9), floats(9)))}),
    ("norm-alone", ValueError, ("query_norm", "exactly if query_down", "NoneType"),
     {"parameters": latent(query_down=Linear(floats(E, 8)))}),
    ("query-rows", ValueError, ("query.weight", "[8, HQ]", "query_norm.weight [8]", "got [12, 42]"),
     {"parameters": latent(**NORMALIZED | {"query": Linear(floats(E, 42))})}),
    ("query-norm", ValueError, ("query_down.weight", "[12, 7]", "got [12, 8]"),
     {"parameters": latent(**NORMALIZED | {"query_norm": Norm(floats(7))})}),
    ("positions", ValueError, ("positions", "[4] or [2, 4]", "got [5]"), {"positions": integers(*range(5))}),
    ("negative-position", ValueError, ("positions", "[0, 2**30]", "-1"), {"positions": integers(0, -1, 2, 3)}),
    ("pairing", ValueError, ("pairing", "'halves', 'interleaved'", "'pairs'"), {"pairing": "pairs"}),
    ("base", ValueError, ("base", "greater than 1", "1.0"), {"base": 1.0}),
    ("scale", ValueError, ("scale", "finite", "nan"), {"scale": float("nan")}),
    ("eps", ValueError, ("eps", "finite and at least", "0.0"), {"eps": 0.0}),
    ("absorbed", TypeError, ("absorbed", "True or False", "1"), {"absorbed": 1}),
    ("mask", ValueError, ("[5, 5]", "[4, 4]"), {"mask": ones(5, 5)}),
):  # fmt: skip
    rule = "MLA-2" if id == "absorbed" else "MLA-1"
    bad(f"latent-{id}", rule, error, shows, "latent_attention", **LATENT | changed)

# --- norms ------------------------------------------------------------------------------------------------------------

NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "layer_norm": ("NORM-1", {"bias": floats(E)}),
    "rms_norm": ("NORM-7", {"eps": 1e-6}),
    "standard_deviation_norm": ("NORM-7", {"bias": floats(E), "eps": 1e-6}),
}
for norm, (rule, options) in NORMS.items():
    fitting = {"x": floats(2, E), "weight": floats(E), **options}
    for id, error, shows, changed in (
        ("weight", ValueError, ("weight", "trailing axes", "got [11] for x [2, 12]"), {"weight": floats(11)}),
        ("weight-number", ValueError, ("weight", "trailing axes", "got []"), {"weight": floats()}),
        (
            "weight-rank", ValueError, ("weight", "trailing axes", "got [2, 12] for x [12]"),
            {"x": floats(E), "weight": floats(2, E)},
        ),
        (
            "no-elements", ValueError, ("weight", "at least one element", "got [0]"),
            {"x": floats(2, 0), "weight": floats(0)},
        ),
        ("x-dtype", TypeError, ("x", "float32", "int32"), {"x": integers(*range(E))}),
        ("weight-dtype", TypeError, ("weight", "float32", "float64"), {"weight": floats(E, dtype=np.float64)}),
        *(
            (f"eps-{eps}", ValueError, ("eps", "finite and at least 2**-126", f"got {eps}"), {"eps": eps})
            for eps in (0.0, -1e-5, float("nan"), float("inf"), 1e-40)
        ),
        ("eps-text", TypeError, ("eps", "real number", "str"), {"eps": "1e-5"}),
        ("bias", ValueError, ("bias", "[12]", "[1]"), {"bias": floats(1)}),
        ("bias-dtype", TypeError, ("bias", "float32", "float16"), {"bias": floats(E, dtype=np.float16)}),
    ):  # fmt: skip
        bias = {"bias": changed["weight"]} if "weight" in changed and "bias" in options else {}
        if "bias" not in changed or "bias" in options:
            bad(f"{norm}-{id}", rule, error, shows, norm, **fitting | bias | changed)
bad(
    "one-element-deviation", "NORM-7", ValueError, ("at least two elements", "got 1"),
    "standard_deviation_norm", floats(3, 1), floats(1), floats(1), eps=1e-6,
)  # fmt: skip

# --- positions, embedding, feed-forward -------------------------------------------------------------------------------

DTYPES = ("dtype", "'float16', 'bfloat16', 'float32', 'float64'", "'int32'")
for id, error, shows, changed in (
    ("length", ValueError, ("length", "negative", "-1"), {"length": -1}),
    ("length-float", TypeError, ("length", "integer", "float"), {"length": 2.0}),
    ("width", ValueError, ("width", "negative", "-4"), {"width": -4}),
    ("offset", ValueError, ("offset", "negative", "-3"), {"offset": -3}),
    ("offset-float", TypeError, ("offset", "integer", "float"), {"offset": 0.5}),
    ("exponent", ValueError, ("exponent", "'shared', 'doubled'", "'half'"), {"exponent": "half"}),
    ("dtype", TypeError, DTYPES, {"dtype": "int32"}),
):
    bad(f"sinusoidal-{id}", "POS-1", error, shows, "sinusoidal_positions", **{"length": 2, "width": 4} | changed)

for id, error, shows, changed in (
    ("past", ValueError, ("8 positions", "8 rows", "got 7"), {"length": 8}),
    ("past-by-offset", ValueError, ("3 positions from 5 on", "8 rows", "got 7"), {"offset": 5}),
    ("past-by-array", ValueError, ("3 positions from 5 on", "got 7"), {"offset": np.int64(5)}),
    ("offset", ValueError, ("offset", "negative", "-1"), {"offset": -1}),
    ("length", ValueError, ("length", "negative", "-3"), {"length": -3}),
    ("rank", ValueError, ("table", "[N, E]", "[7]"), {"table": floats(7)}),
    ("dtype", TypeError, ("table", "float32", "int32"), {"table": integers([1, 2]), "length": 1}),
):
    bad(f"learned-{id}", "POS-2", error, shows, "learned_positions", **{"table": floats(7, E), "length": 3} | changed)

for id, error, shows, changed in (
    ("heads", ValueError, ("num_heads", "at least 1", "got 0"), {"num_heads": 0}),
    ("heads-float", TypeError, ("num_heads", "integer", "float"), {"num_heads": 2.0}),
    ("queries", ValueError, ("query_length", "negative", "-3"), {"query_length": -3}),
    ("keys", TypeError, ("key_length", "integer", "str"), {"key_length": "4"}),
    ("offset", ValueError, ("offset", "negative", "-1"), {"offset": -1}),
    ("dtype", TypeError, DTYPES, {"dtype": "int32"}),
):
    sizes = {"num_heads": 2, "query_length": 3, "key_length": 4}
    bad(f"alibi-{id}", "POS-5", error, shows, "alibi_bias", **sizes | changed)

for id, error, shows, changed in (
    ("few", ValueError, ("at least two buckets for each direction", "3 rows"), {"table": floats(3, 2)}),
    ("fewer", ValueError, ("at least two buckets", "1 rows"), {"table": floats(1, 2), "bidirectional": False}),
    ("furthest", ValueError, ("furthest must be more than 2", "got 2"), {"furthest": 2}),
    ("furthest-float", TypeError, ("furthest", "integer", "float"), {"furthest": 9.0}),
    ("bidirectional", TypeError, ("bidirectional", "True or False", "got 1"), {"bidirectional": 1}),
    ("offset", ValueError, ("offset", "negative", "-1"), {"offset": -1}),
    ("queries", ValueError, ("query_length", "negative", "-3"), {"query_length": -3}),
    ("rank", ValueError, ("table", "[N, H]", "[8]"), {"table": floats(8)}),
    ("dtype", TypeError, ("table", "float32", "int32"), {"table": integers([1], [2], [3], [4])}),
):
    fitting = {"table": floats(8, 2), "query_length": 3, "key_length": 4, "bidirectional": True}
    bad(f"relative-{id}", "POS-6", error, shows, "relative_position_bias", **fitting | changed)

for id, error, shows, changed in (
    ("past", ValueError, ("[0, 5)", "from 1 to 5"), {"ids": integers(1, 5)}),
    ("negative", ValueError, ("[0, 5)", "from -1 to 3"), {"ids": integers([3], [-1])}),
    ("float-ids", TypeError, ("ids", "integer", "float32"), {"ids": floats(2)}),
    ("boolean-ids", TypeError, ("ids", "integer", "bool"), {"ids": ones(2)}),
    ("rank", ValueError, ("table", "[N, E]", "[5]"), {"table": floats(5)}),
    ("dtype", TypeError, ("table", "float32", "int32"), {"table": integers([1, 2])}),
    ("no-vocabulary", ValueError, ("[0, 0)", "from 0 to 0"), {"table": floats(0, E)}),
):
    bad(f"embedding-{id}", "EMB-1", error, shows, "embedding", **{"table": floats(5, E), "ids": integers(0)} | changed)

X = {"x": floats(2, E)}
SHOWS = ("plus_one", "True or False", "got 1")
bad("plus-one", "NORM-8", TypeError, SHOWS, "rms_norm", **X, weight=floats(E), eps=1e-6, plus_one=1)

for id, error, shows, changed in (
    ("activation", ValueError, ("'silu'", "'swish'"), {"activation": "swish"}),
    ("structure", TypeError, ("parameters", "GatedFeedForward", "FeedForward"), {"parameters": networks()}),
    (
        "gate", ValueError, ("gate.weight", "[12, 9]", "inner.weight [12, 9]", "got [12, 1]"),
        {"parameters": gated(gate=Linear(floats(E, 1)))},
    ),
    (
        "gate-width", ValueError, ("gate.weight", "[12, 9]", "got [4, 9]"),
        {"parameters": gated(gate=Linear(floats(4, 9)))},
    ),
    ("no-gate", TypeError, ("gate", "Linear", "NoneType"), {"parameters": gated(gate=None)}),
    ("keep", ValueError, ("dropout_keep", "[2, 9]"), {"dropout_keep": ones(2, 8)}),
):  # fmt: skip
    bad(f"gated-{id}", "FFN-2", error, shows, "gated_feed_forward", **{"parameters": gated(), **X} | changed)

for id, error, shows, changed in (
    ("activation", ValueError, ("'relu', 'gelu', 'gelu_tanh', 'silu'", "'swish'"), {"activation": "swish"}),
    ("width", ValueError, ("inner.weight", "[11, F]", "[12, 9]"), {"x": floats(2, 11)}),
    ("tuple", TypeError, ("parameters", "FeedForward", "tuple"), {"parameters": tuple(networks())}),
    ("array", TypeError, ("inner", "Linear", "[12, 9]"), {"parameters": networks(inner=floats(E, 9))}),
    (
        "outer", ValueError, ("outer.weight", "[9, E_out]", "[8, 3]"),
        {"parameters": networks(outer=Linear(floats(8, 3)))},
    ),
    (
        "bias", ValueError, ("inner.bias", "[9]", "[8]"),
        {"parameters": networks(inner=Linear(floats(E, 9), floats(8)))},
    ),
    ("rank", ValueError, ("x", "[..., E]", "got []"), {"x": floats()}),
    ("x-dtype", TypeError, ("x", "float32", "int32"), {"x": integers(*range(E))}),
    ("dtypes", TypeError, ("inner.weight", "float64 like x", "got float32"), {"x": floats(2, E).astype(float)}),
    ("keep", ValueError, ("dropout_keep", "[2, 9]", "[2, 12]"), {"dropout_keep": ones(2, E)}),
    ("rate", ValueError, ("0.2", "no dropout_keep"), {"dropout_rate": 0.2}),
):  # fmt: skip
    bad(f"feed-forward-{id}", "FFN-1", error, shows, "feed_forward", **{"parameters": networks(), **X} | changed)

# --- losses -----------------------------------------------------------------------------------------------------------

WITHIN, PART = "targets must lie in [0, 3), got values from ", "label_smoothing must be at least 0 and below 1, got "
for operation, rule, rows in (("cross_entropy", "LOSS-1", "logits"), ("nll_loss", "LOSS-2", "log_probabilities")):
    fitting = {rows: floats(2, 3), "targets": integers(0, 1)}
    for id, error, shown, changed in (
        ("past", ValueError, f"{WITHIN}0 to 3", {"targets": integers(0, 3)}),
        ("negative", ValueError, f"{WITHIN}-100 to 0", {"targets": integers(-100, 0)}),
        ("another", ValueError, f"{WITHIN}-100 to 0", {"targets": integers(-100, 0), "ignore": -1}),
        ("floats", TypeError, "targets must have an integer dtype, got float32", {"targets": floats(2)}),
        ("rows", ValueError, "targets must have shape [2] beside ", {"targets": integers(0)}),
        ("reduction", ValueError, "reduction must be one of 'mean', 'sum', 'none', ", {"reduction": "batchmean"}),
        ("ignore", TypeError, "ignore must be an integer, got float", {"ignore": 1.0}),
        ("far", ValueError, "ignore must lie within 2**30 of 0, got 2147483648", {"ignore": 2**31}),
        ("no-axes", ValueError, f"{rows} must have shape [..., V], got []", {rows: floats()}),
        ("no-class", ValueError, f"{rows} must have at least one class, got [2, 0]", {rows: floats(2, 0)}),
    ):
        bad(f"{operation}-{id}", rule, error, (shown,), operation, **fitting | changed)
for smoothing, error, shown in (
    (1.0, ValueError, f"{PART}1.0"), (-0.1, ValueError, f"{PART}-0.1"), (np.nan, ValueError, f"{PART}nan"),
    ("much", TypeError, "label_smoothing must be a real number, got str"),
):  # fmt: skip
    given = {"logits": floats(2, 3), "targets": integers(0, 1), "label_smoothing": smoothing}
    bad(f"cross_entropy-smoothing-{smoothing}", "LOSS-1", error, (shown,), "cross_entropy", **given)

# --- mixtures of experts ----------------------------------------------------------------------------------------------


def stacked(experts: int = 6, **changed: Any) -> GatedFeedForward:
    """Networks with an axis of experts before the others."""
    parts = dict.fromkeys(("gate", "inner"), (E, 9)) | {"outer": (9, 3)}
    networks = {name: Linear(floats(experts, *shape), floats(experts, shape[1])) for name, shape in parts.items()}
    return GatedFeedForward(**networks)._replace(**changed)


ROUTER = Linear(floats(E, 6), floats(6))
for id, rule, error, shows, changed in (
    ("width", "MOE-1", ValueError, ("router.weight", "[12, X] beside x [4, 12]", "got [11, 6]"),
     {"router": Linear(floats(11, 6))}),
    ("dtype", "MOE-1", TypeError, ("router.weight", "float32 like x", "got float64"),
     {"router": Linear(floats(E, 6, dtype=np.float64))}),
    ("array", "MOE-1", TypeError, ("router", "be a Linear", "[12, 6]"), {"router": floats(E, 6)}),
    ("scoring", "MOE-1", ValueError, ("scoring", "'softmax', 'sigmoid', 'none'", "'tanh'"), {"scoring": "tanh"}),
    ("bias", "MOE-2", ValueError, ("choice_bias", "[6]", "got [5]"), {"choice_bias": floats(5)}),
    ("bias-dtype", "MOE-2", TypeError, ("choice_bias", "float32", "got float16"),
     {"choice_bias": floats(6, dtype=np.float16)}),
    ("nothing", "MOE-2", ValueError, ("chosen", "at least 1", "got 0"), {"chosen": 0}),
    ("float", "MOE-2", TypeError, ("chosen", "integer", "float"), {"chosen": 2.0}),
    ("many", "MOE-2", ValueError, ("chosen", "at most 6, the number of experts", "got 7"), {"chosen": 7}),
    ("groups", "MOE-2", ValueError, ("router.weight", "4 groups share equally", "6 columns"), {"groups": 4}),
    ("no-groups", "MOE-2", ValueError, ("groups", "at least 1", "got 0"), {"groups": 0}),
    ("chosen-groups", "MOE-2", ValueError, ("chosen_groups", "at most 2, the number of groups", "got 3"),
     {"groups": 2, "chosen_groups": 3}),
    ("few-groups", "MOE-2", ValueError, ("chosen", "at most 2, the number of experts in the chosen groups", "got 3"),
     {"groups": 3, "chosen": 3}),
    ("group-score", "MOE-2", ValueError, ("group_score", "'two_largest', 'largest'", "'mean'"),
     {"group_score": "mean"}),
    ("weighting", "MOE-3", ValueError, ("weighting", "'scores', 'normalized', 'softmax'", "'sum'"),
     {"weighting": "sum"}),
    ("normalized-logits", "MOE-3", ValueError, ("weighting", "'scores' or 'softmax' with scoring 'none'"),
     {"scoring": "none"}),
    ("scale", "MOE-3", ValueError, ("scale", "finite in float32", "got inf"), {"scale": float("inf")}),
    ("scale-array", "MOE-3", TypeError, ("scale", "real number", "[6]"), {"scale": floats(6)}),
):  # fmt: skip
    bad(f"route-{id}", rule, error, shows, "route", **{"x": floats(4, E), "router": ROUTER, "chosen": 2} | changed)

MIXTURE = MixtureOfExperts(ROUTER, stacked())
for id, rule, error, shows, changed in (
    ("structure", "MOE-4", TypeError, ("parameters", "MixtureOfExperts", "GatedFeedForward"),
     {"parameters": stacked()}),
    ("network", "MOE-4", TypeError, ("experts", "GatedFeedForward", "list"),
     {"parameters": MixtureOfExperts(ROUTER, [])}),
    ("experts", "MOE-4", ValueError, ("experts.gate.weight", "[6, 12, F]", "got [5, 12, 9]"),
     {"parameters": MixtureOfExperts(ROUTER, stacked(5))}),
    ("single", "MOE-4", ValueError, ("experts.gate.weight", "[6, 12, F]", "got [12, 9]"),
     {"parameters": MixtureOfExperts(ROUTER, gated())}),
    ("expert-bias", "MOE-4", ValueError, ("experts.outer.bias", "[6, 3]", "got [3]"),
     {"parameters": MixtureOfExperts(ROUTER, stacked(outer=Linear(floats(6, 9, 3), floats(3))))}),
    ("shared", "MOE-4", ValueError, ("shared.outer.weight", "[9, 3]", "got [9, 4]"),
     {"parameters": MIXTURE._replace(shared=gated(outer=Linear(floats(9, 4))))}),
    ("shared-kind", "MOE-4", TypeError, ("shared", "GatedFeedForward", "FeedForward"),
     {"parameters": MIXTURE._replace(shared=networks())}),
    ("activation", "MOE-4", ValueError, ("activation", "'silu', 'clamped_swiglu'", "'swish'"),
     {"activation": "swish"}),
    ("plain-clamp", "MOE-4", ValueError, ("activation", "'relu', 'gelu', 'gelu_tanh', 'silu'", "'clamped_swiglu'"),
     {"parameters": MixtureOfExperts(ROUTER, FeedForward(*stacked()[1:])), "activation": "clamped_swiglu"}),
    ("choice", "MOE-2", ValueError, ("chosen", "at most 6"), {"chosen": 7}),
    ("capacity", "MOE-5", ValueError, ("capacity", "at least 1", "got 0"), {"capacity": 0}),
    ("capacity-float", "MOE-5", TypeError, ("capacity", "integer", "float"), {"capacity": 1.5}),
    ("mask", "MOE-5", ValueError, ("token_mask", "[4]", "got [3]"), {"token_mask": ones(3)}),
    ("mask-dtype", "MOE-5", TypeError, ("token_mask", "boolean", "float32"), {"token_mask": floats(4)}),
):  # fmt: skip
    given = {"parameters": MIXTURE, "x": floats(4, E), "chosen": 2}
    bad(f"mixture-{id}", rule, error, shows, "mixture_of_experts", **given | changed)

for id, error, shows, operation, changed in (
    ("chosen", ValueError, ("chosen", "at most 3", "got 4"), "load_balancing_loss", {"chosen": 4}),
    ("mask", ValueError, ("token_mask", "[2]", "got [3]"), "load_balancing_loss", {"chosen": 1, "token_mask": ones(3)}),
    ("no-axes", ValueError, ("router_logits", "[..., X]", "got []"), "router_z_loss", {"router_logits": floats()}),
    ("no-expert", ValueError, ("router_logits", "at least one expert"), "router_z_loss",
     {"router_logits": floats(2, 0)}),
    ("mask-dtype", TypeError, ("token_mask", "boolean", "int32"), "router_z_loss", {"token_mask": integers(0, 1)}),
):  # fmt: skip
    bad(f"router-loss-{id}", "MOE-6", error, shows, operation, **{"router_logits": floats(2, 3)} | changed)

# --- optimizers, schedules, initial weights ---------------------------------------------------------------------------

ONE, TWO = floats(2), [floats(2), floats(2, 3)]
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam_step": (
        "OPT-1",
        {"parameters": TWO, "gradients": TWO, "state": AdamState(0, TWO, TWO), "learning_rate": 0.1},
    ),
    "sgd_step": ("OPT-2", {"parameters": ONE, "gradients": ONE, "state": SgdState(ONE), "learning_rate": 0.1}),
    "clip_by_global_norm": ("OPT-3", {"gradients": [ONE], "limit": 1.0}),
}
for id, operation, error, shows, changed in (
    ("fewer", "adam_step", ValueError, ("gradients", "structure", "parameters with an array at [1]"),
     {"gradients": [ONE]}),
    ("more", "adam_step", ValueError, ("gradients with an array at [2]",), {"gradients": [*TWO, ONE]}),
    ("none", "adam_step", ValueError, ("parameters with an array at [0]",), {"gradients": [None, TWO[1]]}),
    ("root", "adam_step", ValueError, ("parameters with an array at [0]",), {"gradients": ONE}),
    ("shape", "adam_step", ValueError, ("gradients[0]", "[2]", "[3]"), {"gradients": [floats(3), TWO[1]]}),
    ("dtype", "adam_step", TypeError, ("gradients[0]", "float64"), {"gradients": [ONE.astype(float), TWO[1]]}),
    ("integers", "adam_step", TypeError, ("parameters[0]", "int64"), {"parameters": [np.array([1, 2]), TWO[1]]}),
    ("number", "adam_step", TypeError, ("parameters[0]", "array", "float"), {"parameters": [1.0, TWO[1]]}),
    ("empty", "adam_step", ValueError, ("parameters", "at least one"), {"parameters": [None, {}]}),
    ("state", "adam_step", TypeError, ("state", "AdamState", "tuple"), {"state": (0, TWO, TWO)}),
    ("mean", "adam_step", TypeError, ("state.mean[1]", "float32", "float16"),
     {"state": AdamState(0, [ONE, TWO[1].astype(np.float16)], TWO)}),
    ("square", "adam_step", ValueError, ("state.square", "structure"), {"state": AdamState(0, TWO, ONE)}),
    ("step", "adam_step", ValueError, ("state.step", "-1"), {"state": AdamState(-1, TWO, TWO)}),
    ("half-step", "adam_step", TypeError, ("state.step", "integer"), {"state": AdamState(0.5, TWO, TWO)}),
    ("rate", "adam_step", ValueError, ("learning_rate", "at least 0", "-0.1"), {"learning_rate": -0.1}),
    ("nan", "adam_step", ValueError, ("learning_rate", "nan"), {"learning_rate": float("nan")}),
    ("word", "adam_step", TypeError, ("learning_rate", "str"), {"learning_rate": "0.1"}),
    ("beta_1", "adam_step", ValueError, ("beta_1", "below 1", "1.0"), {"beta_1": 1.0}),
    ("beta_2", "adam_step", ValueError, ("beta_2", "-0.5"), {"beta_2": -0.5}),
    ("eps", "adam_step", ValueError, ("eps", "2**-126"), {"eps": 0.0}),
    ("decay", "adam_step", ValueError, ("weight_decay", "inf"), {"weight_decay": float("inf")}),
    ("decoupled", "adam_step", TypeError, ("decoupled", "True or False", "'yes'"), {"decoupled": "yes"}),
    ("velocity", "sgd_step", ValueError, ("state.velocity", "[2]", "[3]"), {"state": SgdState(floats(3))}),
    ("sgd-state", "sgd_step", TypeError, ("SgdState", "AdamState"), {"state": AdamState(0, ONE, ONE)}),
    ("momentum", "sgd_step", ValueError, ("momentum", "below 1"), {"momentum": 1.0}),
    ("nesterov", "sgd_step", ValueError, ("nesterov", "momentum above 0"), {"nesterov": True}),
    ("nesterov-word", "sgd_step", TypeError, ("nesterov", "1"), {"nesterov": 1, "momentum": 0.5}),
    ("limit", "clip_by_global_norm", ValueError, ("limit", "above 0", "0.0"), {"limit": 0.0}),
    ("limit-nan", "clip_by_global_norm", ValueError, ("limit", "nan"), {"limit": float("nan")}),
    ("no-gradients", "clip_by_global_norm", ValueError, ("gradients", "at least one"), {"gradients": []}),
    ("clip-integers", "clip_by_global_norm", TypeError, ("gradients[0]", "int64"), {"gradients": [np.array([1, 2])]}),
):  # fmt: skip
    rule, fitting = OPTIMIZERS[operation]
    bad(f"optimizer-{id}", rule, error, shows, operation, **fitting | changed)

for id, error, shows, operation, options in (
    ("step", ValueError, ("step", "negative", "-1"), "linear_warmup", {"step": -1, "steps": 3}),
    ("step-float", TypeError, ("step", "integer", "float"), "linear_warmup", {"step": 1.0, "steps": 3}),
    ("steps", ValueError, ("steps", "at least 1"), "linear_warmup", {"step": 1, "steps": 0}),
    ("steps-float", TypeError, ("steps", "integer"), "cosine_decay", {"step": 1, "steps": 2.5}),
    ("width", ValueError, ("width", "at least 1"), "inverse_square_root", {"step": 1, "width": 0, "warmup": 4}),
    ("warmup", ValueError, ("warmup", "1", "-4"), "inverse_square_root", {"step": 1, "width": 8, "warmup": -4}),
):
    bad(f"schedule-{id}", "OPT-4", error, shows, operation, **options)

ZEROS = np.zeros((2, 3))
for id, error, shows, operation, arguments, options in (
    ("weight", ValueError, ("weight", "[0, 1)", "1.0"), "linear_default", (ZEROS + 1,), {}),
    ("weight-rank", ValueError, ("weight", "[I, O]", "[3]"), "linear_default", (ZEROS[0],), {}),
    ("no-rows", ValueError, ("weight", "at least one row"), "linear_default", (ZEROS[:0],), {}),
    ("bias", ValueError, ("bias", "[3]", "[2]"), "linear_default", (ZEROS, ZEROS[0, :2]), {}),
    (
        "bias-dtype", TypeError, ("bias", "float64 like weight", "float32"),
        "linear_default", (ZEROS, ZEROS[0].astype(np.float32)), {},
    ),
    ("nan", ValueError, ("uniform", "[0, 1)", "nan"), "xavier_uniform", (ZEROS * np.nan,), {}),
    ("gain", ValueError, ("gain", "at least 0"), "xavier_uniform", (ZEROS,), {"gain": -1.0}),
    ("integers", TypeError, ("int64",), "xavier_uniform", (ZEROS.astype(int),), {}),
    ("padding", ValueError, ("padding", "2"), "embedding_default", (ZEROS,), {"padding": 2}),
    ("padding-negative", ValueError, ("padding", "negative"), "embedding_default", (ZEROS,), {"padding": -1}),
):  # fmt: skip
    bad(f"initial-{id}", "INIT-1", error, shows, operation, *arguments, **options)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id, marks=pytest.mark.rule(case.rule)) for case in MISTAKES]
)
def test_refused(implementation: Implementation, case: Mistake) -> None:
    kind, told = error_of(implementation.call, case.operation, *case.arguments, **case.options)
    assert kind is case.error
    assert [part for part in case.shows if part not in told] == []
    assert (kind, told) == error_of(REFERENCE.call, case.operation, *case.arguments, **case.options)


def test_what_optimizers_take_is_legal_unchanged(implementation: Implementation) -> None:
    for operation, (_, fitting) in OPTIMIZERS.items():
        getattr(implementation, operation)(**implementation.convert(fitting))


def test_no_mistake_stands_for_another() -> None:
    assert len({case.id for case in MISTAKES}) == len(MISTAKES)


# --- legal although empty ---------------------------------------------------------------------------------------------

SIZES = {
    "none": {},
    "batch": {"B": 0},
    "heads": {"H": 0},
    "queries": {"Q": 0},
    "keys": {"K": 0},
    "value width": {"V": 0},
}


def sized(empty: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    size = {"B": B, "H": H, "G": G, "Q": Q, "K": K, "V": V} | SIZES[empty]
    key_heads = 0 if size["H"] == 0 else size["G"]
    return (
        floats(size["B"], size["H"], size["Q"], D),
        floats(size["B"], key_heads, size["K"], D),
        floats(size["B"], key_heads, size["K"], size["V"]),
    )


def masks(batch: int, queries: int, keys: int) -> dict[str, Any]:
    return {
        "none": None,
        "causal": Causal(0),
        "window": SlidingWindow(1, 1, offset=0),
        "lengths": KeyLengths(np.full(batch, min(2, keys), np.int32)),
        "padding": KeyPadding(ones(batch, keys)),
        "dense": ones(queries, keys),
    }


@pytest.mark.rule("ATT-8", "ATT-6")
@pytest.mark.parametrize("mask", list(masks(B, Q, K)))
@pytest.mark.parametrize("empty", SIZES)
def test_empty_sizes_are_legal(implementation: Implementation, empty: str, mask: str) -> None:
    query, key, value = sized(empty)
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    options = {"mask": masks(batch, queries, keys)[mask]}
    output = implementation.call("attention", query, key, value, **options)
    weights = implementation.call("attention_weights", query, key, **options)
    logsumexp = implementation.call("attention_logsumexp", query, key, **options)
    assert output.shape == (batch, heads, queries, value.shape[-1])
    assert weights.shape == (batch, heads, queries, keys)
    assert logsumexp.shape == (batch, heads, queries)
    assert output.dtype == weights.dtype == logsumexp.dtype == np.float32
    if keys == 0:
        assert (output == 0).all()
        assert (logsumexp == -np.inf).all()


@pytest.mark.rule("ATT-7", "ATT-8")
def test_no_query_heads_read_any_number_of_key_heads(implementation: Implementation) -> None:
    output = implementation.call("attention", floats(B, 0, Q, D), floats(B, G, K, D), floats(B, G, K, V))
    assert output.shape == (B, 0, Q, V)


@pytest.mark.rule("ATT-5", "ATT-6")
def test_no_keys_with_sinks(implementation: Implementation) -> None:
    query, key, value = sized("keys")
    sinks = floats(H)
    assert (implementation.call("attention", query, key, value, sinks=sinks) == 0).all()
    logsumexp = implementation.call("attention_logsumexp", query, key, sinks=sinks)
    np.testing.assert_array_equal(logsumexp, np.broadcast_to(sinks[:, None], (B, H, Q)))


@pytest.mark.rule("ATT-6")
@pytest.mark.parametrize("empty_rows", ["zero", "mean", "nan"])
def test_no_keys_give_zero_in_every_dialect(implementation: Implementation, empty_rows: str) -> None:
    """A sum over no values is 0, whatever the weights would have been."""
    output = implementation.call("attention", *sized("keys"), empty_rows=empty_rows)
    np.testing.assert_array_equal(output, np.zeros((B, H, Q, V), np.float32))


@pytest.mark.rule("MHA-1", "ATT-8")
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_sequences_in_multi_head_attention(
    implementation: Implementation, batch: int, queries: int, keys: int
) -> None:
    output_bias = floats(E)
    parameters = projections(output=Linear(floats(30, E), output_bias))
    inputs = floats(batch, queries, E), floats(batch, keys, E), floats(batch, keys, E)
    output = implementation.call("multi_head_attention", parameters, *inputs, num_heads=H)
    assert output.shape == (batch, queries, E)
    if keys == 0:
        np.testing.assert_array_equal(output, np.broadcast_to(output_bias, output.shape))


@pytest.mark.rule("ATT-14")
def test_merging_nothing_seen(implementation: Implementation) -> None:
    outputs = [np.full((B, H, Q, V), np.nan, np.float32), floats(B, H, Q, V)]
    logsumexps = [np.full((B, H, Q), -np.inf, np.float32)] * 2
    output, logsumexp = implementation.call("merge_attention", outputs, logsumexps)
    assert (output == 0).all()
    assert (logsumexp == -np.inf).all()


@pytest.mark.rule("NORM-1", "NORM-7")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(0, E), (3, 0, E)])
def test_no_rows_to_normalise(implementation: Implementation, norm: str, shape: tuple[int, ...]) -> None:
    output = implementation.call(norm, floats(*shape), floats(E), **NORMS[norm][1])
    assert output.shape == shape
    assert output.dtype == np.float32


@pytest.mark.rule("POS-1", "POS-2", "POS-5", "POS-6", "EMB-1", "FFN-1", "FFN-2")
def test_nothing_to_look_up(implementation: Implementation) -> None:
    assert implementation.call("sinusoidal_positions", 0, 4).shape == (0, 4)
    assert implementation.call("sinusoidal_positions", 3, 0).shape == (3, 0)
    assert implementation.call("learned_positions", floats(7, E), 0, offset=7).shape == (0, E)
    assert implementation.call("embedding", floats(5, E), np.zeros((2, 0), np.int32)).shape == (2, 0, E)
    assert implementation.call("feed_forward", networks(), floats(0, 4, E)).shape == (0, 4, 3)
    assert implementation.call("gated_feed_forward", gated(), floats(0, 4, E)).shape == (0, 4, 3)
    assert implementation.call("alibi_bias", 3, 0, 4).shape == (1, 3, 0, 4)
    assert implementation.call("relative_position_bias", floats(8, 2), 3, 0, bidirectional=True).shape == (1, 2, 3, 0)


@pytest.mark.rule("MASK-2", "MASK-3", "MASK-4", "ATT-1", "ATT-2", "ATT-11")
@pytest.mark.parametrize(
    ("unusual", "plain"),
    [
        ({"scale": 0}, {"scale": 0.0}),
        ({"scale": np.float32(-0.5)}, {"scale": -0.5}),
        ({"scale": np.array(0.5)}, {"scale": 0.5}),
        ({"softcap": 30}, {"softcap": 30.0}),
        ({"softcap": np.array(2.0, np.float32)}, {"softcap": 2.0}),
        ({"dropout_keep": ones(B, H, Q, K)}, {"dropout_keep": ones(B, H, Q, K), "dropout_rate": 0}),
        (
            {"dropout_keep": ones(B, H, Q, K), "dropout_rate": np.float64(0.25)},
            {"dropout_keep": ones(B, H, Q, K), "dropout_rate": 0.25},
        ),
        ({"mask": Causal(np.int64(1))}, {"mask": Causal(1)}),
        ({"mask": Causal(np.array(1))}, {"mask": Causal(1)}),
        ({"mask": Causal([0, 1])}, {"mask": Causal(integers(0, 1))}),
        ({"mask": KeyLengths([2, 5])}, {"mask": KeyLengths(integers(2, 5))}),
        ({"mask": SlidingWindow(np.array(1), None, offset=-1)}, {"mask": SlidingWindow(1, None, offset=-1)}),
        ({"mask": [[True, False, True, False, True]] * Q}, {"mask": np.array([[True, False, True, False, True]] * Q)}),
    ],
)
def test_numbers_and_lists_in_other_guises(
    implementation: Implementation, unusual: dict[str, Any], plain: dict[str, Any]
) -> None:
    """What a plain number may say, a NumPy number or an array of rank 0 may say too, and a list what an array says."""
    output = implementation.call("attention", **arrays(), **unusual)
    assert np.isfinite(output).all()
    np.testing.assert_array_equal(output, implementation.call("attention", **arrays(), **plain))
