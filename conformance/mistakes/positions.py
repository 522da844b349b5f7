"""Positions and biases by distance gone wrong (POS-1, POS-2, POS-5, POS-6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import answer_with, change_options, lose_results, round_to
from conformance.mistakes.lookups import SIZES, add_up, gradient_mistakes, look_up, reading_mistakes, rows_of
from conformance.mistakes.mistake import Mistake, Topic, name_entries
from specification.positions import alibi_slopes, angular_frequencies

# --- all four: where positions begin ----------------------------------------------------------------------------------

SINUSOIDAL, LEARNED, ALIBI, RELATIVE = (
    Topic("positions", rule, (operation,))
    for operation, rule in (
        ("sinusoidal_positions", "POS-1"),
        ("learned_positions", "POS-2"),
        ("alibi_bias", "POS-5"),
        ("relative_position_bias", "POS-6"),
    )
)
KINDS = {"sinusoidal": SINUSOIDAL, "learned": LEARNED, "alibi": ALIBI, "relative": RELATIVE}


def offset_of(case: Case) -> int:
    return int(case.options.get("offset") or 0)


def end_at_last_key(call: Call) -> Case | None:
    options = call.case.options
    return change_options(call.case, offset=max(options["key_length"] - options["query_length"], 0))


BEGINNINGS = tuple(
    one
    for kind, topic in KINDS.items()
    for one in (
        topic.entry(f"{kind}-offset-ignored", "the offset is ignored", answer_with(offset=0)),
        topic.entry(
            f"{kind}-shifted",
            "positions are off by {by}",
            lambda call, by: change_options(call.case, offset=offset_of(call.case) + by),
            by=(1, -1),
        ),
    )
) + tuple(
    KINDS[kind].entry(
        f"{kind}-bottom-right", "the last query stands at the last key, whatever the offset", end_at_last_key
    )
    for kind in ("alibi", "relative")
)

# --- sinusoidal positions ---------------------------------------------------------------------------------------------


def encode(
    encode: Callable[[np.ndarray, int], np.ndarray], place: Callable[..., Any] = lambda p: p, less: int = 0
) -> Callable[..., Results | None]:
    """Answer `encode(angles, width)` at positions `place(positions, **values)`.

    less: subtracted from the width by which the exponents are divided.
    """

    def answer(call: Call, **values: object) -> Results | None:
        case, width = call.case, call.case.options["width"]
        positions = np.arange(case.options["length"]) + offset_of(case)
        factors = angular_frequencies(width, case.options.get("exponent") or "shared") ** (width / max(width - less, 1))
        output = encode(np.asarray(place(positions, **values), float)[:, None] * factors, width)
        return {"output": output}

    return answer


def interleave(angles: np.ndarray, width: int) -> Any:
    return np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))


def interleave_up_to(call: Call, first: int, axis: int) -> Results | None:
    """Positions or columns past the first so many are 0."""
    return lose_results(call, np.expand_dims(np.arange(call.right["output"].shape[axis]) < first, 1 - axis))


def sinusoidal(name: str, says: str, change: Callable[..., Any], **values: Any) -> Mistake:
    return SINUSOIDAL.entry(f"sinusoidal-{name}", says, change, **values)


OF_SINES = (
    sinusoidal("halves", "all sines come first, then all cosines",
               encode(lambda a, width: np.concatenate([np.sin(a[:, ::2]), np.cos(a[:, 1::2])], axis=1))),
    sinusoidal("sine-for-cosine", "sine and cosine are exchanged",
               encode(lambda a, width: interleave(np.pi / 2 - a, width))),
    sinusoidal("last-exponent-1", "exponents are divided by E - 2, not by E", encode(interleave, less=2)),
    sinusoidal("other-exponent", "exponents are {exponent}", answer_with(), exponent=("shared", "doubled")),
    sinusoidal("in-dtype", "positions are kept in {dtype}", encode(interleave, lambda p, dtype: round_to(p, dtype)),
               dtype=("float16", "bfloat16", "uint8", "int8", "uint16", "int16")),
    sinusoidal("counted-in-dtype", "positions are counted in {dtype} from the first one",
               encode(interleave, lambda p, dtype: p[:1] + round_to(np.arange(p.size), dtype)),
               dtype=("uint8", "int8", "uint16", "int16", "float16", "bfloat16")),
    sinusoidal("table-ends", "positions past {size} - 1 are taken for {size} - 1",
               encode(interleave, lambda p, size: np.minimum(p, size - 1)), size=(10000, 5000, *SIZES)),
    sinusoidal("table-starts-anew", "every {size} positions begin with the first one",
               encode(interleave, lambda p, size: p[:1] + np.arange(p.size) % size), size=SIZES),
    sinusoidal("places-lost", "positions past the first {first} are 0",
               lambda call, first: interleave_up_to(call, first, 0), first=SIZES),
    sinusoidal("columns-lost", "columns past the first {first} are 0",
               lambda call, first: interleave_up_to(call, first, 1), first=SIZES),
)  # fmt: skip

# --- ALiBi ------------------------------------------------------------------------------------------------------------


def alibi(name: str, says: str, bias: Callable[..., np.ndarray], **values: Any) -> Mistake:
    """The bias is `bias(slopes, distance, **values)` for slopes [H, 1, 1] and j - i [Q, K]."""

    def answer(call: Call, **values: object) -> Results:
        slopes = alibi_slopes(call.case.options["num_heads"])[:, None, None]
        return {"output": bias(slopes, distances_of(call.case), **values)[None]}

    return ALIBI.entry(f"alibi-{name}", says, answer, **values)


def distances_of(case: Case) -> Any:
    """The position of key j minus that of query i, [Q, K]."""
    rows = np.arange(case.options["query_length"]) + offset_of(case)
    return np.arange(case.options["key_length"]) - rows[:, None]


def geometric_slopes(heads: int, of: int) -> Any:
    """The first slopes of so many heads: 2^(-8h / of)."""
    return 2.0 ** (-8 * np.arange(1, heads + 1) / of)[:, None, None]


OF_SLOPES = (
    alibi("sign", "the bias grows with the distance", lambda slopes, d: -slopes * d),
    alibi("both-sides", "the bias falls on both sides of the query", lambda slopes, d: -slopes * np.abs(d)),
    alibi("no-bias-ahead", "keys after the query have 0", lambda slopes, d: slopes * np.minimum(d, 0)),
    alibi("one-series-of-slopes", "slopes are 2^(-8h / H) for a number of heads that is no power of two",
          lambda slopes, d: geometric_slopes(len(slopes), len(slopes)) * d),
    alibi("slopes-of-next-power", "slopes are the first ones of the next larger power of two",
          lambda slopes, d: geometric_slopes(len(slopes), 1 << (len(slopes) - 1).bit_length()) * d),
    alibi("slopes-from-1", "slopes begin with 1", lambda slopes, d: slopes / slopes[0] * d),
    alibi("slopes-reversed", "slopes are in the opposite order", lambda slopes, d: slopes[::-1] * d),
    alibi("first-query-for-all", "all queries have the bias of the first", lambda slopes, d: slopes * d[:1] + 0 * d),
    alibi("keys-alone", "the bias is slope * j, which a softmax takes for the same",
          lambda slopes, d: slopes * np.arange(d.shape[1]) + 0 * d),
    alibi("slopes-in-dtype", "slopes are rounded to {dtype}", lambda slopes, d, dtype: round_to(slopes, dtype) * d,
          dtype=("bfloat16", "float16")),
)  # fmt: skip

# --- relative positions -----------------------------------------------------------------------------------------------


def relative(name: str, says: str, change: Callable[..., Any], **values: Any) -> Mistake:
    return RELATIVE.entry(f"relative-{name}", says, change, **values)


def use_buckets(change: Callable[..., np.ndarray | None]) -> Callable[..., Results | None]:
    """Read the rows `change(case, buckets, **values)` of the table; buckets [Q, K] are the right ones."""

    def answer(call: Call, **values: object) -> Results | None:
        case, shape = call.case, (call.case.options["query_length"], call.case.options["key_length"])
        buckets = change(case, rows_of(case).reshape(shape), **values)
        return None if buckets is None else look_up(case, buckets)

    return answer


def swap_halves(case: Case, buckets: np.ndarray) -> np.ndarray | None:
    size = len(case.inputs["table"]) // 2
    swapped = np.where(buckets < size, buckets + size, buckets - size)
    return swapped if case.options["bidirectional"] else None


def mirror(case: Case, buckets: np.ndarray) -> np.ndarray:
    """Buckets of i - j: of the case in which queries and keys are exchanged."""
    exchanged = {"query_length": buckets.shape[1], "key_length": buckets.shape[0], "offset": -offset_of(case)}
    return rows_of(replace(case, options=case.options | exchanged)).reshape(buckets.shape[::-1]).T


def logarithms(case: Case, buckets: np.ndarray, dtype: str) -> Any:
    """Buckets as libraries compute them."""
    both, d, number = case.options["bidirectional"], distances_of(case), np.dtype(dtype)
    size = len(case.inputs["table"]) // (2 if both else 1)
    e, n = size // 2, np.abs(d) if both else np.maximum(-d, 0)
    share = np.log(np.maximum(n, 1).astype(dtype) / number.type(e))
    share = share / number.type(math.log(case.options.get("furthest", 128) / e)) * number.type(size - e)
    return np.where(n < e, n, np.minimum(e + share.astype(int), size - 1)) + size * (d > 0) * both


def read_first_head(call: Call) -> Results:
    """Every head has the first one's bias, whose column gets all gradients."""
    found = {name: np.zeros_like(array) for name, array in call.right.items()}
    found["output"] = np.broadcast_to(call.right["output"][:, :1], call.right["output"].shape)
    if call.case.cotangents:
        found[gradient_name("table")][:, 0] = call.right[gradient_name("table")].sum(axis=1)
    return found


def read_heads_by_rows(call: Call) -> Results:
    """[Q, K, H] read as [H, Q, K]."""
    case, output = call.case, call.right["output"]
    found = {"output": np.moveaxis(output[0], 0, -1).reshape(output.shape)}
    if case.cotangents:
        cotangent = call.cotangent().reshape(-1, output.shape[1])
        found[gradient_name("table")] = add_up(case, rows_of(case), cotangent)
    return found


OF_BUCKETS = (
    relative("furthest", "the furthest distance is {furthest}, whatever is given", answer_with(), furthest=(128,)),
    relative("direction", "bidirectional is {bidirectional}, whatever is given", answer_with(),
             bidirectional=(False, True)),
    relative("halves-swapped", "keys before the query have the second half of the table", use_buckets(swap_halves)),
    relative("sign", "the distance has the opposite sign", use_buckets(mirror)),
    relative("logarithms", "buckets come from {dtype} logarithms", use_buckets(logarithms),
             dtype=("float32", "float64")),
    relative("transposed", "queries and keys are exchanged",
             use_buckets(lambda case, buckets: buckets.T if len(buckets) == len(buckets.T) else None)),
    relative("first-head", "every head has the first one's bias", read_first_head),
    relative("heads-by-rows", "[Q, K, H] is read as [H, Q, K]", read_heads_by_rows),
    *gradient_mistakes(RELATIVE, "relative-"),
)  # fmt: skip
MISTAKES = (*BEGINNINGS, *OF_SINES, *reading_mistakes(LEARNED, "learned-"), *OF_SLOPES, *OF_BUCKETS)
NAMED = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    NAMED["learned-shifted"].choose(by=-1),
    *(NAMED["sinusoidal-counted-in-dtype"].choose(dtype=dtype) for dtype in ("int16", "uint16")),
    *(NAMED["sinusoidal-table-starts-anew"].choose(size=size) for size in (64, 4096, 32768)),
    *(NAMED["sinusoidal-places-lost"].choose(first=first) for first in (128, 2048, 65536)),
    *(NAMED["sinusoidal-columns-lost"].choose(first=first) for first in (128, 1024, 8192)),
    *(NAMED["learned-rows-end"].choose(size=size) for size in (64, 2048, 65536)),
    *(NAMED["learned-rows-start-anew"].choose(size=size) for size in (1024, 32768)),
    *(NAMED["learned-columns-lost"].choose(first=first) for first in (64, 512, 4096)),
    NAMED["learned-rows-in-dtype"].choose(dtype="uint16"),
    NAMED["relative-direction"].choose(bidirectional=True),
    NAMED["relative-logarithms"].choose(dtype="float64"),
)
