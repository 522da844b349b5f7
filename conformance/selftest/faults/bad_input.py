"""Bad input that is taken as if it were good. What these stand on is the definition, which refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy
from conformance.selftest.faults.fault import Fault
from specification.masks import And, Causal, Dense, KeyLengths, Mask, Or

REFUSING = {"supports": ["refusals", "no-gradients"]}
STRUCTURED = {"supports": ["refusals", "structured", "no-gradients"]}


def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, dropout_keep: Any = None,
              dropout_rate: float = 0.0) -> Any:  # fmt: skip
    """The definition's."""
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale, dropout_keep=dropout_keep,
                                     dropout_rate=dropout_rate)  # fmt: skip


def lenient(rule: str, name: str, change: Any) -> Fault:
    """`change(arguments)` first: a dictionary of all arguments of `attention`, changed where it is."""

    def function(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, dropout_keep: Any = None,
                 dropout_rate: float = 0.0) -> Any:  # fmt: skip
        arguments = {"query": query, "key": key, "value": value, "mask": mask, "scale": scale}
        arguments |= {"dropout_keep": dropout_keep, "dropout_rate": dropout_rate}
        change(arguments)
        return attention(**arguments)

    return Fault(rule, name, "attention", function, attention, given=STRUCTURED)


def array_of(mask: Any) -> Any:
    """The array of a dense mask; None for other descriptions."""
    return mask.array if isinstance(mask, Dense) else None if isinstance(mask, Mask) else mask


def truth_of_numbers(a: dict[str, Any]) -> None:
    if array_of(a["mask"]) is not None:
        a["mask"] = np.asarray(array_of(a["mask"])).astype(bool)


def any_rank(a: dict[str, Any]) -> None:
    """Broadcast as NumPy does, from the right."""
    array = array_of(a["mask"])
    if array is not None:
        array = np.asarray(array)
        shape = (1,) * (4 - array.ndim) + array.shape
        a["mask"] = np.broadcast_to(array.reshape(shape), (*shape[:2], a["query"].shape[2], a["key"].shape[2]))


def padding(a: dict[str, Any]) -> None:
    """A matrix that is no [Q, K] is taken for [B, K]."""
    array = array_of(a["mask"])
    shape = (a["query"].shape[2], a["key"].shape[2])
    if array is not None and np.ndim(array) == 2 and np.shape(array) != shape:
        a["mask"] = np.broadcast_to(np.asarray(array)[:, None, None, :], (len(array), 1, *shape))


def bottom_right(a: dict[str, Any]) -> None:
    """Without an offset, the last query at the last key."""
    a["mask"] = with_offset(a["mask"], a["key"].shape[2] - a["query"].shape[2])


def with_offset(mask: Any, offset: int) -> Any:
    if isinstance(mask, And | Or):
        return type(mask)(with_offset(mask.left, offset), with_offset(mask.right, offset))
    return Causal(offset) if isinstance(mask, Causal) and mask.offset is None else mask


def clipped_lengths(a: dict[str, Any]) -> None:
    if isinstance(a["mask"], KeyLengths):
        a["mask"] = KeyLengths(np.clip(a["mask"].lengths, 0, a["key"].shape[2]))


def finite_scale(a: dict[str, Any]) -> None:
    """NaN and infinity taken for no scale."""
    if a["scale"] is not None and not np.isfinite(a["scale"]):
        a["scale"] = None


def whole_groups(a: dict[str, Any]) -> None:
    """Query heads that fill no group are given the last key head."""
    H, G = a["query"].shape[1], a["key"].shape[1]
    if G and H % G and a["query"].ndim == 4:
        order = np.minimum(np.arange(H) // (H // G), G - 1)
        a["key"], a["value"] = a["key"][:, order], a["value"][:, order]


def one_batch_for_all(a: dict[str, Any]) -> None:
    if a["key"].shape[0] == 1 and a["key"].ndim == 4:
        for name in ("key", "value"):
            a[name] = np.broadcast_to(a[name], (a["query"].shape[0], *a[name].shape[1:]))


def one_dtype(a: dict[str, Any]) -> None:
    for name in ("key", "value"):
        a[name] = a[name].astype(a["query"].dtype)


def no_keep(a: dict[str, Any]) -> None:
    """A rate without a keep array drops nothing."""
    if a["dropout_keep"] is None:
        a["dropout_rate"] = 0.0


def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
    """The definition's."""
    return reference_numpy.embedding(table, ids, scaled=scaled)


def from_the_end(table: Any, ids: Any, *, scaled: bool = False) -> Any:
    """Negative ids count from the end."""
    return embedding(table, np.where(ids < 0, ids + len(table), ids).astype(ids.dtype), scaled=scaled)


def last_row(table: Any, ids: Any, *, scaled: bool = False) -> Any:
    """Ids past the end are those of the last row."""
    return embedding(table, np.minimum(ids, len(table) - 1).astype(ids.dtype), scaled=scaled)


def learned_positions(table: Any, length: int, *, offset: int = 0) -> Any:
    """The definition's."""
    return reference_numpy.learned_positions(table, length, offset=offset)


def what_there_is(table: Any, length: int, *, offset: int = 0) -> Any:
    """Fewer rows where the table has no more."""
    return learned_positions(table, min(length, len(table) - offset), offset=offset)


def cross_entropy(logits: Any, targets: Any, *, ignore: int | None = None) -> Any:
    """The definition's."""
    return reference_numpy.cross_entropy(logits, targets, ignore=ignore)


def classes_from_the_end(logits: Any, targets: Any, *, ignore: int | None = None) -> Any:
    """Negative targets that count are classes from the end."""
    low = (targets < 0) & (targets >= -logits.shape[-1]) & (targets != ignore)
    return cross_entropy(logits, np.where(low, targets + logits.shape[-1], targets), ignore=ignore)


def negative_left_out(logits: Any, targets: Any, *, ignore: int | None = None) -> Any:
    """No negative target counts, whichever it is."""
    low = -1 if ignore is None else ignore
    return cross_entropy(logits, np.where(np.asarray(targets) < 0, low, targets), ignore=low)


def nll_loss(log_probabilities: Any, targets: Any, *, ignore: int | None = None) -> Any:
    """The definition's."""
    return reference_numpy.nll_loss(log_probabilities, targets, ignore=ignore)


def last_class(log_probabilities: Any, targets: Any, *, ignore: int | None = None) -> Any:
    """Targets past the classes are the last one."""
    past = (targets >= log_probabilities.shape[-1]) & (targets != ignore)
    return nll_loss(log_probabilities, np.where(past, log_probabilities.shape[-1] - 1, targets), ignore=ignore)


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """The definition's."""
    return reference_numpy.layer_norm(x, weight, bias, eps=eps)


def any_eps(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    return layer_norm(x, weight, bias, eps=max(eps, 1e-12))


FAULTS = (
    lenient("MASK-1", "0 and 1 taken for a mask", truth_of_numbers),
    lenient("MASK-3", "causal without an offset aligned at the last key", bottom_right),
    lenient("MASK-5", "masks of any rank broadcast", any_rank),
    lenient("MASK-5", "a mask [batch, keys] taken for padding", padding),
    lenient("MASK-5", "lengths beyond the keys clipped", clipped_lengths),
    lenient("ATT-1", "a scale of NaN taken for none", finite_scale),
    lenient("ATT-7", "heads that fill no group", whole_groups),
    lenient("ATT-8", "keys of one batch element for all", one_batch_for_all),
    lenient("ATT-9", "mixed dtypes converted", one_dtype),
    lenient("ATT-11", "a rate without a keep array ignored", no_keep),
    Fault("EMB-1", "negative ids from the end", "embedding", from_the_end, embedding, given=REFUSING),
    Fault("EMB-1", "ids past the end taken for the last", "embedding", last_row, embedding, given=REFUSING),
    Fault("LOSS-1", "negative targets from the end", "cross_entropy", classes_from_the_end, cross_entropy,
          given=REFUSING),
    Fault("LOSS-1", "no negative target counts", "cross_entropy", negative_left_out, cross_entropy, given=REFUSING),
    Fault("LOSS-2", "targets past the classes taken for the last", "nll_loss", last_class, nll_loss, given=REFUSING),
    Fault("POS-2", "rows past the end left out", "learned_positions", what_there_is, learned_positions,
          given=REFUSING),
    Fault("NORM-1", "eps of 0 taken for a small one", "layer_norm", any_eps, layer_norm, given=REFUSING),
)  # fmt: skip
