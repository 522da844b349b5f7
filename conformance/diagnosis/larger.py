"""Larger cases like one that fails, to tell mistakes apart that look alike on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.cases.axes import HEADS, OFFSET, Sizes
from conformance.cases.case import Case
from conformance.cases.facts import operation_facts
from conformance.diagnosis.attention import power_of_two
from conformance.diagnosis.operation_mistakes import MEASURED
from conformance.diagnosis.steps import masked_scores, steps_of
from conformance.runner.dimensions import Part, cast, layout_of, sizes_of, taken
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Or

MULTIPLICATIONS = 2**21
LENGTH = 16
"""About as many queries or keys has a larger case at least."""
IDS = (1, 2, 256, 257, 2048, 2049, 65537, 2**24, 2**24 + 1)
"""Ids of segments that narrow formats take for one."""
NUMBERS, SLOW_NUMBERS = 2**20, 2**13
"""In all inputs of a larger case, at most; the second in float64, whose oracle is slow."""
WIDE = 15
"""Width of heads at which a scale shows, however its root is rounded."""
FAR_ABOVE = 100.0
"""Scores whose exponentials float32 does not hold."""
FAR = 4
"""Standard deviations by which numbers lie apart from 0."""
STANDING_OUT = 16
"""In wider rows the last columns are larger, so that it shows where some of them take no part."""


def ordinary(case: Case) -> Case | None:
    """The same call of attention on other numbers, none of them far from 0."""
    if case.operation != "attention" or not case.inputs["value"].size:
        return None
    return redrawn(case, *sizes(case))


def masked_otherwise(case: Case) -> Case | None:
    """The same call of attention without its mask, or with one where it has none."""
    if case.operation != "attention":
        return None
    pairs = case.inputs["query"].shape[2], case.inputs["key"].shape[2]
    mask = Dense(np.ones(pairs, bool)) if case.options.get("mask") is None else None
    return replace(case, options=case.options | {"mask": mask})


def fewer_keys(case: Case) -> Case | None:
    """The same call of attention on other numbers, with half the keys; a mask that has rows keeps its place."""
    if case.operation != "attention" or not case.inputs["value"].size or case.inputs["key"].shape[2] < 2:
        return None
    B, H, G, Q, K = sizes(case)
    return redrawn(case, B, H, G, Q, K // 2)


def larger_cases(case: Case) -> Iterator[Case]:
    """With more keys, of which every block size leaves another rest; with more queries, heads, batch elements, rows.

    With wider rows.
    """
    if operation_facts(case.operation).norm:
        yield more_rows(case)
    if case.operation in MEASURED:
        yield from wider(case)
    elif case.operation != "attention":
        yield from grown(case)
    if case.operation != "attention" or not case.inputs["value"].size:
        return
    B, H, G, Q, K = sizes(case)
    queries, keys = (max(4 * power_of_two(n), LENGTH) for n in (Q, K))
    wanted = [(B, H, G, Q, keys - 1), (B, H, G, Q, keys + 1), (B, H, G, queries - 1, K)]
    if Q == K:  # some take no other calls
        wanted.append((B, H, G, keys - 1, keys - 1))
    if B == 1:
        wanted.append((2, H, G, Q, K))
    if H == 1:
        wanted.append((B, 2, 2, Q, K))
    if H > G:  # with more numbers of each head than there are heads
        wanted += [(2, 20, 4, Q, K), (1, 14, 2, Q, K), (B, H, G, Q, max(K, H + 2))]
    widths = case.inputs["query"].shape[-1] + case.inputs["value"].shape[-1]
    for batch, heads, groups, queries, keys in wanted:
        if batch * heads * queries * keys * widths <= MULTIPLICATIONS:
            yield redrawn(case, batch, heads, groups, queries, keys)


def far_above(case: Case) -> Case | None:
    """The same call of attention with scores of the other sign; None where float32 holds the exponentials of these."""
    turned = {name: case.inputs[name] for name in ("query", "bias", "sinks") if name in case.inputs}
    turned = {name: np.where(np.isneginf(array.astype(float)), array, -array) for name, array in turned.items()}
    turned_case = replace(case, inputs=case.inputs | turned)
    return turned_case if masked_scores(steps_of(turned_case)).max(initial=0) >= FAR_ABOVE else None


def unmasked(case: Case) -> Case:
    return replace(case, options={name: value for name, value in case.options.items() if name != "mask"})


def below_0(case: Case) -> Case | None:
    """The same call of attention on ordinary numbers, with a small scale below 0."""
    plain = ordinary(case)
    return None if plain is None else replace(plain, options=plain.options | {"scale": -0.1})


def rescaled(case: Case) -> Case:
    """The same call of attention with a scale that is neither 0 nor usual."""
    return replace(case, options=case.options | {"scale": 0.7})


def wider_heads(case: Case) -> Case:
    """The same call of attention on other numbers, with wider queries and keys."""
    shaped = {name: case.inputs[name][..., :1].repeat(WIDE, axis=-1) for name in ("query", "key")}
    return redrawn(replace(case, inputs=case.inputs | shaped), *sizes(case))


def grown(case: Case) -> Iterator[Case]:
    """With more of everything but heads, which stay as many, and with more of each thing alone."""
    every = [name for name in sizes_of(case) if name not in (OFFSET, "vocabulary")]
    unit = operation_facts(case.operation).width_unit
    for names in ([name for name in every if name not in HEADS], *([name] for name in every)):
        parts = {name: Part(0, 2 * sizes_of(case)[name] + (unit if name == "E" else 1)) for name in names}
        larger = taken(case, parts, np.random.default_rng(0))
        if larger is not None and affordable(larger):
            yield larger


def affordable(case: Case) -> bool:
    return sum(array.size for array in case.inputs.values()) <= (SLOW_NUMBERS if case.dtype == "float64" else NUMBERS)


LEAST = {"W": 8, "E": 5, "inner": 4, "output": 4, "vocabulary": 8, "classes": 5, "length": 4, OFFSET: 3}
"""Sizes that tell mistakes apart, of operations that work on rows."""
ROWS = 24
"""Of which ids occur several times."""
OTHER_SIZES = (("W", 2, -1), ("W", 5, 1), ("E", 2, -1), ("inner", 2, -1), ("output", 2, -1), ("rows", 2, -1))
"""Dimensions that grow: how many times the next power of two, and how much more.

One less than a power of two leaves another rest for every block; one more than five of them lacks another number.
"""


def alike(case: Case) -> Iterator[Case]:
    """The same call on other numbers: in the same sizes, in wider rows where they are narrow, and with more rows."""
    sizes = layout_of(case).sizes
    least = [LEAST.get(name.rstrip(" 0123456789"), 1) for name in sizes]
    wide = {name: max(size, n) for (name, size), n in zip(sizes.items(), least, strict=True)}
    many = {name: max(size, ROWS) if name.startswith("rows") else size for name, size in wide.items()}
    for wanted in dict.fromkeys(tuple(s.items()) for s in (sizes, wide, many)):
        other = in_sizes(case, dict(wanted))
        if other is not None:
            yield other


def wider(case: Case) -> Iterator[Case]:
    """In other sizes, each dimension by itself."""
    sizes = layout_of(case).sizes
    least = {n: max(size, LEAST.get(n, 1)) for n, size in sizes.items()}
    for name, times, more in OTHER_SIZES:
        if sizes.get(name, 0) > 2:
            other = in_sizes(case, least | {name: times * power_of_two(sizes[name]) + more})
            if other is not None:
                yield other


def in_sizes(case: Case, wanted: Sizes) -> Case | None:
    """The same call in these sizes on other numbers; None where there is none, or it takes too long."""
    larger = taken(case, {name: Part(0, size) for name, size in wanted.items()})
    if larger is None or not affordable(larger):
        return None
    rng = np.random.default_rng(0)
    inputs = {n: other_numbers(case, larger, n, rng) for n in larger.inputs}
    cotangents = {
        n: last_rows_larger(numbers_like(case.cotangents[n], a.shape, rng)) if a.ndim else a
        for n, a in larger.cotangents.items()
    }
    return replace(larger, inputs=inputs, cotangents=cotangents, memory={})


def other_numbers(case: Case, larger: Case, name: str, rng: np.random.Generator) -> np.ndarray:
    """For an input of the larger case; ids and targets are among the rows or classes that there are."""
    array = larger.inputs[name]
    if name == "ids":
        return drawn_ids(array, len(larger.inputs["table"]), rng)
    if name == "targets":
        classes = next(a.shape[-1] for n, a in larger.inputs.items() if n != name)
        return np.where(array == larger.options.get("ignore"), array, drawn_ids(array, classes, rng))
    return numbers_like(case.inputs[name], array.shape, rng)


def numbers_like(array: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Normal numbers, as large as the array's, and as far from 0. The last ones of wide rows stand out."""
    wide = array.astype(float)
    size, mean, spread = (float(f(wide)) if wide.size else 0.0 for f in (root_mean_square, np.mean, np.std))
    far = abs(mean) > FAR * spread > 0
    numbers = rng.normal(size=shape) * (spread if far else 0.75 * size or 1.0)
    if shape and shape[-1] > STANDING_OUT:
        numbers = numbers * (1 + np.sqrt(shape[-1]) / np.arange(shape[-1], 0, -1) / 4)
    return cast(numbers + mean * far, array.dtype)


def last_rows_larger(array: np.ndarray) -> np.ndarray:
    """So that it shows in a sum over many rows where the last ones are missing."""
    rows = array.reshape(-1, array.shape[-1])
    factor = 1 + len(rows) / 64 / np.arange(len(rows), 0, -1)
    return cast(rows * factor[:, None], array.dtype).reshape(array.shape)


def root_mean_square(array: np.ndarray) -> Any:
    return np.sqrt(np.mean(array**2))


def drawn_ids(array: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """The first and the last row of the table and some others, several times."""
    few = np.concatenate([[0, rows - 1], rng.integers(0, rows, max(array.size // 3, 1))])
    return rng.permuted(np.resize(few, array.size)).reshape(array.shape).astype(array.dtype)


def more_rows(case: Case) -> Case:
    rng = np.random.default_rng(0)
    shape: tuple[int, ...] = case.inputs["x"].shape
    lead_axes = len(shape) - case.inputs["weight"].ndim
    if lead_axes == 1:
        shape = (4 * power_of_two(shape[0]) - 1, *shape[1:])
    elif lead_axes > 1:
        shape = (shape[0] + 1, *(2 * size + 1 for size in shape[1:lead_axes]), *shape[lead_axes:])
    # Rows of small variance tell apart what is done with eps.
    rows = 10.0 ** -(np.arange(int(np.prod(shape[:lead_axes]))) % 5)
    sizes = rows.reshape(*shape[:lead_axes], *(1,) * (len(shape) - lead_axes))
    x = (rng.normal(size=shape) * sizes).astype(case.inputs["x"].dtype)
    options = case.options | ({"eps": 3 * case.options["eps"]} if "eps" in case.options else {})
    cotangents = {n: rng.normal(size=shape).astype(a.dtype) for n, a in case.cotangents.items()}
    return replace(case, inputs=case.inputs | {"x": x}, options=options, cotangents=cotangents)


def sizes(case: Case) -> tuple[int, int, int, int, int]:
    (B, H, Q, _), (_, G, K, _) = case.inputs["query"].shape, case.inputs["key"].shape
    return B, H, G, Q, K


def redrawn(case: Case, B: int, H: int, G: int, Q: int, K: int) -> Case:
    """The call in these sizes on other numbers, and with a mask of the same kind."""
    rng = np.random.default_rng(0)

    def numbers(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return rng.normal(size=shape).astype(array.dtype)

    def pairs(array: np.ndarray) -> tuple[int, ...]:
        lead = tuple(1 if size == 1 else whole for size, whole in zip(array.shape[:-2], (B, H), strict=False))
        return (*lead, Q, K)

    inputs, options = dict(case.inputs), dict(case.options)
    for name, lead in (("query", (B, H, Q)), ("key", (B, G, K)), ("value", (B, G, K))):
        inputs[name] = numbers(inputs[name], (*lead, inputs[name].shape[-1]))
    if "bias" in inputs:
        inputs["bias"] = numbers(inputs["bias"], pairs(inputs["bias"]))
    if "sinks" in inputs:
        inputs["sinks"] = numbers(inputs["sinks"], (H,))
    if "alibi_slopes" in inputs:
        inputs["alibi_slopes"] = np.abs(numbers(inputs["alibi_slopes"], (B, H)[-inputs["alibi_slopes"].ndim :]))
    if "query_lengths" in inputs:
        inputs["query_lengths"] = rng.integers(1, Q + 1, B).astype(np.int32)
    if options.get("dropout_keep") is not None:
        options["dropout_keep"] = drawn(options["dropout_keep"], pairs, rng)
    if options.get("mask") is not None:
        grown = K - case.inputs["key"].shape[2]
        options["mask"] = mask_drawn(options["mask"], (B, Q, K), grown, partial(drawn, pairs=pairs, rng=rng), rng)
    cotangents = {n: numbers(a, (B, H, Q, a.shape[-1])) for n, a in case.cotangents.items()}
    return replace(case, inputs=inputs, options=options, cotangents=cotangents)


def drawn(mask: Any, pairs: Any, rng: np.random.Generator) -> Any:
    """Half of the pairs, and the first key of every row."""
    array = np.asarray(mask.array if isinstance(mask, Dense) else mask)
    new = rng.random(pairs(array)) < 0.5
    new[..., 0] = True
    return Dense(new) if isinstance(mask, Dense) else new


def mask_drawn(mask: Any, sizes: tuple[int, int, int], grown: int, dense: Any, rng: np.random.Generator) -> Any:
    """A mask of the same kind. Where there are more keys, queries stay as far from the last one as they were."""
    B, Q, K = sizes
    if isinstance(mask, And | Or):
        return type(mask)(*(mask_drawn(side, sizes, grown, dense, rng) for side in (mask.left, mask.right)))
    if isinstance(mask, Causal | SlidingWindow):
        offset = np.asarray(0 if mask.offset is None else mask.offset) + grown
        return replace(mask, offset=int(offset) if offset.ndim == 0 else np.resize(offset, B))
    if isinstance(mask, KeyLengths):
        return KeyLengths(rng.integers(1, K + 1, B))
    if isinstance(mask, KeyPadding):
        return KeyPadding((rng.random((B, K)) < 0.5) | (np.arange(K) == 0))
    if isinstance(mask, Segments):
        ids = np.unique(np.concatenate([np.ravel(mask.query_ids), np.ravel(mask.key_ids), IDS]))
        return Segments(*(np.sort(rng.choice(ids, (B, n)), axis=1) for n in (Q, K)))
    return dense(mask)
