"""Where a result is looked at: some rows of some heads of a batch element, and the small case that these rows are.

Rows of attention know nothing of each other. So some rows of a result at its real size are the whole result of the
small case that has these queries, the key head that they read, all of its keys and values, and the mask's rows. With a
cotangent that is zero but in these rows, the gradients of that key head and its values are those of the small case too,
and so are those of the queries. Layer norm's rows are as independent, and its weights take the place of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.cases import case as judged
from conformance.cases.declaration import EVERYTHING, roundings
from conformance.timing.subjects.timed_subject import Prepared
from conformance.timing.timed_case import Arrays, Case, mixture_weights
from reference_numpy.masks import allowed_pairs

Sample = dict[str, np.ndarray]
"""What a subject gave at a place, by the names of the results."""

BY_ROW = ("output", "gradient of query", "gradient of x")
"""Results that have a row for every row of the place; the others belong to a key head or a weight as a whole."""


@dataclass(frozen=True)
class Place:
    """The rows of the query heads of a batch element that read key head `group`; `live` of them get a cotangent."""

    batch: int
    group: int
    rows: tuple[int, ...]
    live: int


def count_rows(case: Case) -> int:
    return case.Q if case.facts.by_head else case.B * case.Q


def draw(case: Case, random: np.random.Generator, places: int, rows: int, still: int = 0) -> list[Place]:
    """Different places, each with that many random rows, the first and last row at times among them.

    still: so many further rows that get no cotangent: their queries' gradients have to be zero.
    """
    batch = case.B if case.facts.by_head else 1
    spots = [(b, g) for b in range(batch) for g in range(case.G)]
    order = random.permutation(len(spots))[:places]
    total, found = count_rows(case), []
    for number, spot in enumerate(order):
        chosen = random.choice(total, min(rows + still, total), replace=False)
        ends = [total - 1] if number % 2 == 0 else [0]
        chosen = np.array([*ends, *chosen[~np.isin(chosen, ends)]])[: len(chosen)]
        batch, group = spots[spot]
        found.append(Place(batch, group, tuple(map(int, chosen)), min(rows, len(chosen))))
    return found


def only_there(case: Case, arrays: Arrays, places: Sequence[Place]) -> Arrays:
    """The inputs with a cotangent that is zero but in the live rows."""
    if not case.backward:
        return arrays
    cotangent = arrays["cotangent"]
    sparse = np.zeros_like(cotangent)
    whole, part = (rows_view(case, array) for array in (cotangent, sparse))
    for place in places:
        index = (place.batch, query_heads(case, place), np.array(place.rows[: place.live]))
        part[index] = whole[index]
    return arrays | {"cotangent": sparse}


def rows_view(case: Case, array: np.ndarray) -> np.ndarray:
    """[B, H, T, W] as it is, [B, T, D] of other operations as [1, 1, B * T, D]."""
    return array if case.facts.by_head else array.reshape(1, 1, -1, array.shape[-1])


def query_heads(case: Case, place: Place) -> slice:
    share = case.H // case.G
    return slice(place.group * share, (place.group + 1) * share)


def taken(case: Case, prepared: Prepared, results: Sequence[Any], place: Place, names: Sequence[str]) -> dict[str, Any]:
    """Copies of the results of these names at the place, [heads, tokens, width], still the framework's own."""
    found = {}
    for name, result in zip(case.results, results, strict=True):
        if name not in names:
            continue
        by_row = name in BY_ROW
        heads = query_heads(case, place) if by_row else slice(place.group, place.group + 1)
        of_heads = prepared.view(result, name)[place.batch, heads]
        found[name] = prepared.copy(of_heads[:, np.array(place.rows)] if by_row else of_heads)
    return found


def declared_roundings(conventions: dict[str, str], dtype: str) -> dict[str, str]:
    """What conventions (see `conformance.declare`) allow beyond the definition in this dtype."""
    return roundings(EVERYTHING.add_conventions(**conventions), dtype)


# --- the small case ---------------------------------------------------------------------------------------------------


def small_case(case: Case, arrays: Arrays, mask: Any, place: Place, conventions: dict[str, str]) -> judged.Case:
    """What the place's results are all the results of. `conventions`: see `conformance.declare`."""
    rounding = declared_roundings(conventions, case.dtype)
    rows: Any = np.array(place.rows)
    taken: dict[str, np.ndarray]
    options: dict[str, Any]
    if case.operation == "mixture_of_experts":
        taken = {"x": rows_view(case, arrays["x"])[0, 0, rows]}
        inputs = taken | mixture_weights(case)
        options = {"chosen": case.chosen}
    elif case.operation == "layer_norm":
        taken = {name: rows_view(case, arrays[name])[0, 0, rows] for name in ("x", "cotangent") if name in arrays}
        inputs, options = {"x": taken["x"], "weight": arrays["weight"], "bias": arrays["bias"]}, {"eps": 1e-5}
    else:
        batch, heads = slice(place.batch, place.batch + 1), query_heads(case, place)
        taken = {name: arrays[name][batch, heads][:, :, rows] for name in ("query", "cotangent") if name in arrays}
        group = slice(place.group, place.group + 1)
        inputs = {"query": taken["query"]} | {name: arrays[name][batch, group] for name in ("key", "value")}
        options = {}
        if mask is not None:  # its rows [1, 1, rows, K], without the others
            allowed = allowed_pairs(mask, case.Q, case.K, rows)
            of_batch = allowed[batch] if len(allowed) > 1 else allowed
            options["mask"] = np.array(np.broadcast_to(of_batch, (1, 1, len(rows), case.K)))
    cotangents = {"output": taken["cotangent"]} if case.backward else {}
    return judged.Case(case.operation, case.dtype, inputs, options, cotangents, rounding=rounding)


def as_answers(case: Case, sample: Sample) -> dict[str, np.ndarray]:
    """What was taken, [heads, tokens, width], in the shapes of the small case's results."""
    if case.facts.by_head:
        return {name: array[None] for name, array in sample.items()}
    return {name: array[0] if name in BY_ROW else array[0, 0] for name, array in sample.items()}
