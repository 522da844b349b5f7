"""What must come of NaN, infinity and empty rows.

The expectation is painted onto the truth of the clean case by plain boolean reasoning about who attends to whom, so it
rests neither on the definition's arithmetic with NaN nor on that of anybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name, replace_kernel_arguments
from conformance.cases.case import Case, heads_and_keys
from reference_numpy import materialize
from specification.masks import (
    And,
    Causal,
    Dense,
    KeyLengths,
    KeyPadding,
    Or,
    Segments,
    SlidingWindow,
    as_mask,
    map_arrays,
)

if TYPE_CHECKING:
    from hypothesis.vendor.pretty import RepresentationPrinter
    from numpy.typing import ArrayLike

    from specification.masks import Mask


class Exact(NamedTuple):
    """high + low, unevaluated: two float64 arrays that together hold about 100 bits."""

    high: np.ndarray
    low: np.ndarray

    def spoil(self, where: ArrayLike) -> Exact:
        """The same with NaN there."""
        return Exact(np.where(where, np.nan, self.high), np.where(where, 0, self.low))


@dataclass(frozen=True)
class Planted:
    """A clean case, the same case with special values planted, and where they stand."""

    clean: Case
    planted: Case
    allowed: np.ndarray  # [B, H, Q, K]
    marks: dict[str, np.ndarray]  # boolean, for "query", "key" and "value"
    infinite: bool = False  # whether infinities are planted, not NaN

    @property
    def is_attended(self) -> bool:
        """Whether some query attends to what is planted, or has it and attends to a key."""
        share = self.allowed.shape[1] // max(self.marks["key"].shape[1], 1)
        read: Any = self.marks["key"].any(-1) | self.marks["value"].any(-1)
        keys = np.repeat(read, share, axis=1)
        return bool((self.allowed & (keys[:, :, None] | np.expand_dims(self.marks["query"].any(-1), -1))).any())

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self.planted))


CaseExample = Case | Planted | tuple[Any, ...]
"""What most checks work on: a case, or several that belong together."""


def change_cases(example: CaseExample, change: Callable[[Case], Case]) -> Any:
    """What a check works on, with every case in it changed."""
    if isinstance(example, Case):
        return change(example)
    if isinstance(example, Planted):
        return replace(example, clean=change(example.clean), planted=change(example.planted))
    return tuple(change_cases(part, change) for part in example) if type(example) is tuple else example


def asked_case(example: CaseExample) -> Case:
    """The case that the subject is asked, of one or several that belong together."""
    return example.planted if isinstance(example, Planted) else example[0] if isinstance(example, tuple) else example


def allowed_pairs(case: Case, shape: tuple[int, int, int, int] | None = None) -> Any:
    """Pairs that take part. shape: [B, H, Q, K], where it is not that of the case."""
    case = replace_kernel_arguments(case)
    heads, _, queries, keys = heads_and_keys(case)
    B, H, Q, K = shape or (case.inputs["query"].shape[0], heads, queries, keys)
    allowed = np.broadcast_to(materialize(case.options.get("mask"), Q, K, batch=B, heads=H), (B, H, Q, K))
    if "bias" in case.inputs:
        bias = case.inputs["bias"].astype(float)
        allowed = allowed & (bias != -np.inf)
    return allowed


def expectation(p: Planted, truth: dict[str, Exact]) -> dict[str, Exact]:
    """The clean truth with NaN wherever a planted NaN must show (MASK-7, ATT-10), for `attention` and its gradients.

    A NaN in a query or an attended key spoils its row's weights: the row's output, the query's gradient, and the
    gradients of every key and value that the row attends to. A NaN in an attended value spoils one output feature of
    the row, and by way of its weights' gradient those of the query and of the keys attended to, but of no value.
    Dropout hides nothing: a dropped weight is 0, and 0 * NaN is NaN.
    """
    allowed = p.allowed
    B, H = allowed.shape[:2]
    G = p.marks["key"].shape[1]

    def heads(mark: np.ndarray) -> np.ndarray:
        return np.repeat(mark, H // G, axis=1)

    def groups(mark: np.ndarray) -> Any:
        return mark.reshape(B, G, H // G, *mark.shape[2:]).any(axis=2)

    bad_key = heads(np.any(p.marks["key"], axis=-1, keepdims=True)).swapaxes(2, 3)
    rows: Any = (allowed & (bad_key | p.marks["query"].any(-1, keepdims=True))).any(-1)
    features = allowed.astype(np.float32) @ heads(p.marks["value"]).astype(np.float32) > 0
    spoiled = {
        "output": rows[..., None] | features,
        gradient_name("value"): groups((allowed & rows[..., None]).any(2))[..., None],
    }
    rows = rows | features.any(-1)
    pairs = allowed & rows[..., None]
    spoiled |= {
        gradient_name("query"): rows[..., None],
        gradient_name("key"): groups(pairs.any(2))[..., None],
        gradient_name("sinks"): rows.any(axis=(0, 2)),
        gradient_name("bias"): pairs,
    }
    expected = {}
    for name, exact in truth.items():
        bad = spoiled[name]
        if name == gradient_name("bias"):
            shape = exact.high.shape if exact.high.ndim == 4 else (1, 1, *exact.high.shape)
            axes = tuple(axis for axis in (0, 1) if shape[axis] == 1)
            bad = bad.any(axis=axes, keepdims=True).reshape(exact.high.shape)
        expected[name] = exact.spoil(bad)
    return expected


def replace_hidden(case: Case) -> Case:
    """The case with 1 in place of NaN and infinity that no query may attend to; the case itself where there are none.

    Of an operation that has masks. An infinity in the bias is replaced where it is above 0, as the other one forbids.
    """
    allowed, inputs = allowed_pairs(case), dict(case.inputs)
    B, H, _, K = allowed.shape
    if "num_heads" in case.options:
        reads, seen = allowed.any(axis=(1, 3)), allowed.any(axis=(1, 2))
    else:
        G = inputs["key"].shape[1]
        reads, seen = allowed.any(axis=3), allowed.reshape(B, G, H // max(G, 1), -1, K).any(axis=(2, 3))
    used = {"query": reads[..., None], "key": seen[..., None], "value": seen[..., None]}
    if "bias" in inputs:
        shape = (1,) * (4 - inputs["bias"].ndim) + inputs["bias"].shape
        axes = tuple(axis for axis in range(4) if shape[axis] == 1)
        used["bias"] = allowed.any(axis=axes, keepdims=True).reshape(inputs["bias"].shape)
    replaced = False
    for name in used.keys() & inputs.keys():
        array = inputs[name].astype(float)
        hidden = ~used[name] & ~np.isfinite(array) & ((name != "bias") | (array != -np.inf))
        replaced |= bool(hidden.any())
        inputs[name] = np.where(hidden, inputs[name].dtype.type(1), inputs[name])
    return replace(case, inputs=inputs) if replaced else case


def empty_rows(case: Case) -> np.ndarray:
    return ~allowed_pairs(case).any(-1)


def nan_rows(case: Case, truth: dict[str, Exact]) -> dict[str, Exact]:
    """NaN in the outputs and weights of empty rows, and in the gradients of all the values that they would weigh.

    Without keys the output is 0, a sum over nothing.
    """
    rows = empty_rows(case)
    B, H, Q = rows.shape
    _, G, K, _ = case.inputs["key"].shape
    if K == 0:
        return truth
    groups = rows.reshape(B, G, H // max(G, 1) * Q, 1).any(2, keepdims=True)
    spoiled = {"output": rows[..., None], gradient_name("value"): groups}
    return {name: exact.spoil(spoiled[name]) if name in spoiled else exact for name, exact in truth.items()}


# --- which query may attend to which key, asked one pair at a time (MASK-1 to MASK-6) ---------------------------------


def is_allowed(mask: Mask | None, b: int, h: int, i: int, j: int) -> bool:
    """Whether query i of batch element b and head h may attend to key j. The mask's arrays are nested lists."""
    match mask:
        case None:
            return True
        case Causal(offset):
            return j <= i + batch_offset(offset, b)
        case SlidingWindow(left, right, offset):
            distance = j - (i + batch_offset(offset, b))
            return (left is None or -left <= distance) and (right is None or distance <= right)
        case KeyLengths(lengths):
            return j < lengths[b]
        case KeyPadding(keep):
            return keep[b][j]
        case Segments(query_ids, key_ids):
            return broadcast_entry(query_ids, b)[i] == broadcast_entry(key_ids, b)[j]
        case Dense(array) if isinstance(array[0][0], list):
            return broadcast_entry(broadcast_entry(array, b), h)[i][j]
        case Dense(array):
            return array[i][j]
        case And(left, right):
            return is_allowed(left, b, h, i, j) and is_allowed(right, b, h, i, j)
        case Or(left, right):
            return is_allowed(left, b, h, i, j) or is_allowed(right, b, h, i, j)
    raise TypeError(f"no mask description: {mask!r}")


def batch_offset(offset: int | list[int] | None, b: int) -> int:
    """An offset that is left out is 0; one for each batch element is a list."""
    if offset is None:
        return 0
    return offset[b] if isinstance(offset, list) else offset


def broadcast_entry(rows: list, index: int) -> Any:
    """rows[index], where a single row stands for all of them."""
    return rows[0] if len(rows) == 1 else rows[index]


def visible_pairs(mask: Mask | None, bias: np.ndarray | None, shape: tuple[int, int, int, int]) -> Any:
    """The predicate's value for every (b, h, i, j) in [B, H, Q, K]; -inf in the bias forbids a pair too (ATT-3)."""
    plain = map_arrays(as_mask(mask), lambda array: np.asarray(array).tolist())
    pairs = [bool(is_allowed(plain, *index)) for index in product(*map(range, shape))]
    visible = np.array(pairs, dtype=bool).reshape(shape)
    return visible if bias is None else visible & ~np.isneginf(np.asarray(bias).astype(np.float64))


def visible_bias_entries(visible: np.ndarray, shape: tuple[int, ...]) -> Any:
    """The entries of a bias [Q, K] or [B or 1, H or 1, Q, K] that are added to the score of some visible pair."""
    padded = (1,) * (4 - len(shape)) + tuple(shape)
    repeated = tuple(axis for axis in (0, 1) if padded[axis] == 1)
    return visible.any(axis=repeated, keepdims=True).reshape(shape)


def any_in_group(seen: np.ndarray, groups: int) -> Any:
    """[B, H, K] to [B, G, K]: whether one of the query heads that read a key/value head sees the key."""
    batch, heads, keys = seen.shape
    return seen.reshape(batch, groups, heads // max(groups, 1), keys).any(axis=2)


def dense_meaning(case: Case) -> np.ndarray:
    """What the mask of a call of attention allows, [B, H, Q, K], whatever its bias."""
    (B, H, Q, _), K = case.inputs["query"].shape, case.inputs["key"].shape[2]
    return visible_pairs(case.options.get("mask"), None, (B, H, Q, K))
