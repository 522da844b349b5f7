"""Cases of the corpus that are drawn for one planted fault each: sizes, memory, numbers, order of calls.

One or two sizes are large enough for the fault to show; all others are tiny. Several cases have the same sizes, where
their faults allow it, because JAX compiles anew for every shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hypothesis import strategies as st

from conformance.cases.declaration import EVERYTHING
from conformance.cases.sizes import Sizes
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT
from conformance.checks.check import Check
from conformance.checks.comparison import breaks
from conformance.runner.in_process import Runner
from conformance.sampling import strategies as generation
from conformance.sampling.draws import of_seed
from conformance.sampling.layouts import in_memory
from conformance.selftest.faults import Fault, planted

CONTIGUOUS = replace(EVERYTHING, strides=False)
"""Layouts are given, never drawn."""
SEEDS = 40
"""Cases that are drawn for a fault until one shows it."""


class Chosen(NamedTuple):
    """title: what is large or special. fault: its rule and name. cases: draws what may show it."""

    title: str
    fault: str
    cases: st.SearchStrategy[Any]
    check: Check[Any, Any] = AGREEMENT


def heads(
    mask: str = "none",
    *focus: str,
    B: int = 1,
    H: int = 1,
    G: int = 1,
    Q: int = 2,
    K: int = 3,
    D: int = 2,
    V: int = 2,
    operation: str = "attention",
    gradients: bool = False,
    dtype: str = "float32",
    memory: dict[str, str] | None = None,
) -> st.SearchStrategy[Any]:
    """Attention of these sizes, with these features alone. memory: layouts by array."""
    cases = generation.attention_cases(
        operation,
        mask,
        (*focus, *(("gradients",) if gradients else ())),
        others=False,
        gradients=gradients,
        dtypes=(dtype,),
        plans=(Sizes(B, H, G, Q, K, D, V),),
        declaration=CONTIGUOUS,
    )
    return cases.map(lambda case: in_memory(case, memory)) if memory else cases


def rows(
    count: int, width: int, operation: str = "layer_norm", memory: dict[str, str] | None = None, **given: Any
) -> st.SearchStrategy[Any]:
    """Norms of so many rows."""
    given = dict[str, Any](gradients=False, dtypes=("float32",)) | given
    cases = generation.norm_cases(operation, plans=(((count, width), 1),), declaration=CONTIGUOUS, **given)
    return cases.map(lambda case: in_memory(case, memory)) if memory else cases


def networks(count: int, model: int, inner: int, outer: int) -> st.SearchStrategy[Any]:
    sizes = ((count, model), inner, outer)
    return generation.feed_forward_cases("feed_forward", plans=(sizes,), declaration=CONTIGUOUS).filter(in_float32)


def tables(operation: str, vocabulary: int, width: int, ids: int) -> st.SearchStrategy[Any]:
    cases = generation.lookup_cases(operation, plans=((vocabulary, width, (ids,)),), declaration=CONTIGUOUS)
    return cases.filter(in_float32)


def in_float32(case: Any) -> bool:
    return bool(case.dtype == "float32")


with_gradients = partial(heads, gradients=True)

SIZES = (
    Chosen("more than 256 keys", "ATT-8 keys past 256 read from the beginning", heads(K=257)),
    Chosen("more than 1024 keys", "ATT-8 key 1024 passed over", heads(K=1026)),
    Chosen("more than 64 keys", "ATT-8 padding of the last tile of 64 keys counted", heads(K=70)),
    Chosen("two whole tiles of keys", "ATT-8 last of whole tiles of 128 keys left out", heads(K=256)),
    Chosen("more than 128 queries", "ATT-8 queries past 128 get the first answers", heads(Q=129, K=70)),
    Chosen("more than 1024 queries", "ATT-8 queries past 1024 get the last answer", heads(Q=1025, D=1, V=1)),
    Chosen("wide keys", "ATT-1 columns past 64 not in the product", heads(D=65)),
    Chosen("wide keys", "ATT-1 default scale of a width padded to 128 past 128", heads(D=201, V=211)),
    Chosen("wide keys", "ATT-1 columns past 192 not in the product", heads(D=201, V=211)),
    Chosen("wide values", "ATT-8 columns of values past 128 get 0", heads(D=201, V=211)),
    Chosen("wide values", "ATT-8 values as wide as keys past width 128", heads(D=201, V=211)),
    Chosen("many heads", "ATT-8 heads past 32 get the first answers", heads(H=33, G=33)),
    Chosen("many heads", "ATT-8 heads past 64 get the last answer", heads(H=65, G=65, Q=1)),
    Chosen("groups of 3", "ATT-7 groups of 3 counted as 4", heads(H=6, G=2)),
    Chosen("groups of 7", "ATT-7 heads of groups of 7 interleaved", heads(H=14, G=2)),
    Chosen("groups of 12", "ATT-7 groups of 12 counted as 8", heads(H=24, G=2)),
    Chosen("a large batch", "ATT-8 batch elements past 64 get 0", heads(B=1025, Q=1, K=2, D=1, V=1)),
    Chosen("a large batch", "ATT-8 batch elements past 1024 get the last answer", heads(B=1025, Q=1, K=2, D=1, V=1)),
    Chosen("a mask of many keys", "MASK-1 mask ignored past key 64", heads("dense", K=257)),
    Chosen("a causal mask of many keys", "MASK-3 causal up to key 256 only", heads("causal", K=257)),
    Chosen("lengths of many keys", "MASK-2 lengths of 256 at most", heads("lengths", K=257)),
    Chosen("a window over many queries", "MASK-4 no window past query 64", heads("window", Q=129, K=70)),
    Chosen("a bias of many keys", "ATT-3 bias past key 64 ignored", heads("none", "bias", K=70)),
    Chosen("sinks beside many keys", "ATT-5 sinks forgotten past 64 keys", heads("none", "sinks", K=70)),
    Chosen("a softcap beside many keys", "ATT-2 softcap forgotten past 64 keys", heads("none", "softcap", K=70)),
    Chosen("dropout of many keys", "ATT-11 keep mask moved past 64 keys", heads("none", "dropout", K=70)),
    Chosen("gradients of many keys", "ATT-12 keys' gradient past key 256 lost", with_gradients(K=257)),
    Chosen("gradients of wide values", "ATT-12 values' gradient past column 128 lost", with_gradients(D=201, V=211)),
    Chosen("gradients of groups", "ATT-12 keys' gradient of one head of groups of 3", with_gradients(H=6, G=2)),
    Chosen("weights of many keys", "ATT-14 weights past key 64 are 0", heads(K=70, operation="attention_weights")),
    Chosen(
        "log-sum-exp of many keys",
        "ATT-14 log-sum-exp without the keys past 64",
        heads(K=70, operation="attention_logsumexp"),
    ),
    Chosen("wide rows", "NORM-1 variance of the first 512 columns", rows(2, 513)),
    Chosen("wide rows", "NORM-1 columns past 128 not written", rows(3, 129)),
    Chosen("wide rows", "NORM-7 variance of the first 1024 columns (rms_norm)", rows(2, 1025, "rms_norm")),
    Chosen("many rows", "NORM-1 rows past 1024 not written", rows(1025, 2)),
    Chosen("many rows", "NORM-7 rows past 48 not written (rms_norm)", rows(49, 3, "rms_norm")),
    Chosen(
        "gradients of many rows", "NORM-6 rows past 256 lost in the weight's gradient", rows(257, 3, gradients=True)
    ),
    Chosen("gradients of wide rows", "NORM-6 gradient of x past column 128 lost", rows(3, 129, gradients=True)),
    Chosen("a wide inner layer", "FFN-1 activations past 64 left out", networks(3, 4, 65, 3)),
    Chosen("a large table", "EMB-1 ids modulo 128", tables("embedding", 200, 2, 9)),
    Chosen("many positions", "POS-2 positions past 64 are the last", tables("learned_positions", 70, 2, 66)),
)
MEMORY = (
    Chosen(
        "heads by stride 0",
        "ATT-13 heads that share one key by a stride of 0 read on",
        heads(H=4, G=4, memory={"key": "shared heads"}),
    ),
    Chosen(
        "a bias by stride 0",
        "ATT-13 broadcast bias read on",
        heads("none", "bias", B=2, H=2, G=2, memory={"bias": "shared rows"}),
    ),
    Chosen(
        "heads of one fused projection",
        "ATT-13 rows of query of 64 columns as if they followed each other",
        heads(H=2, G=2, Q=3, D=64, memory=dict.fromkeys(("query", "key", "value"), "fused")),
    ),
    Chosen(
        "transposed heads",
        "ATT-13 values past 16 keys as if contiguous",
        heads(H=2, G=2, K=17, memory=dict.fromkeys(("query", "key", "value"), "transposed")),
    ),
    Chosen(
        "keys of a longer cache",
        "ATT-13 keys of width past 32 as if contiguous",
        heads(H=2, G=2, D=33, memory=dict.fromkeys(("key", "value"), "cached")),
    ),
    Chosen(
        "a misaligned query",
        "ATT-13 query from the last 16 bytes on",
        heads(D=4, memory={"query": "misaligned"}),
    ),
    Chosen("a slice of a mask", "ATT-13 mask as if contiguous", heads("dense", Q=5, K=7, memory={"mask": "sliced"})),
    Chosen(
        "a sliced cotangent",
        "ATT-13 rows of the cotangent as if they followed each other",
        with_gradients(Q=4, memory={"cotangent": "sliced"}),
    ),
    Chosen("a slice of rows", "ATT-13 rows of x as if they followed each other", rows(3, 5, memory={"x": "sliced"})),
)
NUMBERS = (
    Chosen("a variance beside eps", "NORM-1 variance below 1e-06 taken for 0", rows(3, 6)),
    Chosen("a small eps", "NORM-1 eps at least 1e-05", rows(3, 6)),
    Chosen("magnitudes far apart", "NORM-1 squares beside the largest of all rows", rows(4, 6)),
    Chosen("squares past 16 bits", "NORM-2 squares in float16", rows(3, 6, dtypes=("float16",))),
    Chosen("weights of 0", "NORM-6 no gradient of columns of weight 0", rows(3, 6, gradients=True)),
    Chosen("cotangents of 0", "NORM-6 rows skipped whose first cotangent is 0", rows(4, 6, gradients=True)),
    Chosen("equal maxima", "ATT-5 of equal maxima the first only", heads(Q=5, K=6)),
    Chosen("scores far apart", "ATT-5 weights below exp(-8) lost", heads(Q=5, K=6)),
    Chosen("rows far apart", "ATT-5 one maximum for all rows of a head", heads("maybe", Q=5, K=6)),
    Chosen("one key takes all weight", "ATT-5 NaN where one key takes all weight", heads(Q=5, K=6)),
    Chosen("denormal values", "ATT-9 denormal values of 16 bits read as 0", heads(Q=5, K=6, dtype="float16")),
    Chosen("keys of 0", "ATT-8 keys of zeros taken for padding", heads(Q=5, K=6)),
    Chosen("cotangents of 0", "ATT-12 rows skipped that have a cotangent of 0", with_gradients(Q=5, K=6)),
    Chosen(
        "rows without cotangents",
        "ATT-12 tiles of 2 rows skipped whose first cotangent is 0",
        with_gradients(Q=5, K=6),
    ),
    Chosen("values of 0", "ATT-12 no gradient where a value is 0", with_gradients(Q=5, K=6)),
)
STATE = (
    Chosen(
        "other sizes before",
        "ATT-13 number of keys of the first call of a width",
        st.tuples(heads(K=5, D=3, V=3), heads(K=9, D=3, V=3)),
        AFTER_OTHER_CALLS,
    ),
    Chosen(
        "another scale before",
        "ATT-13 scale of the first call of a width",
        st.tuples(heads("none", "scale", K=5, D=3, V=3), heads(K=5, D=3, V=3)),
        AFTER_OTHER_CALLS,
    ),
    Chosen(
        "a larger call before",
        "ATT-13 workspace of parts of 32 keys not cleared",
        st.tuples(heads(K=70), heads(K=40)),
        AFTER_OTHER_CALLS,
    ),
    Chosen(
        "another eps before",
        "ATT-13 eps of the first call of a width",
        st.tuples(rows(2, 6), rows(2, 6)),
        AFTER_OTHER_CALLS,
    ),
    Chosen(
        "more rows before",
        "ATT-13 weight's gradient added to that of more rows before",
        st.tuples(rows(5, 3, gradients=True), rows(2, 3, gradients=True)),
        AFTER_OTHER_CALLS,
    ),
)
CHOSEN = (*SIZES, *MEMORY, *NUMBERS, *STATE)


def drawn() -> Iterator[tuple[Chosen, Fault, Any]]:
    """(what is asked for, its fault, an example that shows the fault), for each of `CHOSEN`."""
    faults = {fault.title: fault for fault in planted()}
    for chosen in CHOSEN:
        fault = faults[chosen.fault]
        found = (case for seed in range(SEEDS) for case in of_seed(chosen.cases, seed, simplest=False))
        yield chosen, fault, next(example for example in found if shows(fault, chosen.check, example))


def shows(fault: Fault, check: Check[Any, Any], example: Any) -> bool:
    """Whether the check convicts the fault, and not what it was made from."""
    shared = check.prepare(example)
    wrong, right = (
        breaks(Runner(target.make())(check, example, shared)) for target in (fault.target(), fault.right_target())
    )
    return wrong and not right
