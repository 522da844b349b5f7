"""Bad input that is answered as if it were good. What these are made from refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.selftest.behaviours.behaviour import Arguments, Behaviour, misuse_arguments
from specification.masks import And, Causal, Dense, KeyLengths, Mask, Or


def mask_array(mask: Mask | np.ndarray | None) -> Any:
    """The array of a dense mask; None for other descriptions."""
    return mask.array if isinstance(mask, Dense) else None if isinstance(mask, Mask) else mask


def accept_numbers(a: Arguments) -> None:
    """0 and 1 in a mask are taken for booleans."""
    if mask_array(a["mask"]) is not None:
        a["mask"] = np.asarray(mask_array(a["mask"])).astype(bool)


def broadcast_any_rank(a: Arguments) -> None:
    """Masks are broadcast as NumPy does, from the right."""
    array = mask_array(a["mask"])
    if array is not None:
        shape = (1,) * (4 - np.ndim(array)) + np.shape(array)
        pairs = (*shape[:2], a["query"].shape[2], a["key"].shape[2])
        a["mask"] = np.broadcast_to(np.reshape(array, shape), pairs)


def take_for_padding(a: Arguments) -> None:
    """A matrix that is no [Q, K] is taken for [B, K]."""
    array = mask_array(a["mask"])
    shape = (a["query"].shape[2], a["key"].shape[2])
    if array is not None and np.ndim(array) == 2 and np.shape(array) != shape:
        a["mask"] = np.broadcast_to(np.asarray(array)[:, None, None, :], (len(array), 1, *shape))


def align_last_key(a: Arguments) -> None:
    """Without an offset, a causal mask has the last query at the last key."""

    def align(mask: Mask | np.ndarray | None) -> Any:
        if isinstance(mask, And | Or):
            return type(mask)(align(mask.left), align(mask.right))
        offset = a["key"].shape[2] - a["query"].shape[2]
        return Causal(offset) if isinstance(mask, Causal) and mask.offset is None else mask

    a["mask"] = align(a["mask"])


def clip_lengths(a: Arguments) -> None:
    if isinstance(a["mask"], KeyLengths):
        a["mask"] = KeyLengths(np.clip(a["mask"].lengths, 0, a["key"].shape[2]))


def drop_infinite_scale(a: Arguments) -> None:
    """NaN and infinity are taken for no scale."""
    if a["scale"] is not None and not np.isfinite(a["scale"]):
        a["scale"] = None


def fill_last_group(a: Arguments) -> None:
    """Query heads that fill no group are given the last key head."""
    H, G = a["query"].shape[1], a["key"].shape[1]
    if G and H % G and a["query"].ndim == 4:
        order = np.minimum(np.arange(H) // (H // G), G - 1)
        a["key"], a["value"] = a["key"][:, order], a["value"][:, order]


def broadcast_batch(a: Arguments) -> None:
    """The keys of one batch element are taken for all."""
    if a["key"].shape[0] == 1 and a["key"].ndim == 4:
        for name in ("key", "value"):
            a[name] = np.broadcast_to(a[name], (a["query"].shape[0], *a[name].shape[1:]))


def convert_dtypes(a: Arguments) -> None:
    for name in ("key", "value"):
        a[name] = a[name].astype(a["query"].dtype)


def ignore_rate(a: Arguments) -> None:
    """A rate without a keep array drops nothing."""
    if a["dropout_keep"] is None:
        a["dropout_rate"] = 0.0


def count_ids_from_end(a: Arguments) -> None:
    a["ids"] = np.where(a["ids"] < 0, a["ids"] + len(a["table"]), a["ids"]).astype(a["ids"].dtype)


def clip_ids(a: Arguments) -> None:
    a["ids"] = np.minimum(a["ids"], len(a["table"]) - 1).astype(a["ids"].dtype)


def cut_positions(a: Arguments) -> None:
    """Fewer rows are returned where the table has no more."""
    a["length"] = min(a["length"], len(a["table"]) - a["offset"])


def count_classes_from_end(a: Arguments) -> None:
    targets, classes = a["targets"], a["logits"].shape[-1]
    low = (targets < 0) & (targets >= -classes) & (targets != a["ignore"])
    a["targets"] = np.where(low, targets + classes, targets)


def ignore_negative_targets(a: Arguments) -> None:
    a["ignore"] = low = -1 if a["ignore"] is None else a["ignore"]
    a["targets"] = np.where(np.asarray(a["targets"]) < 0, low, a["targets"])


def clip_targets(a: Arguments) -> None:
    targets, classes = a["targets"], a["log_probabilities"].shape[-1]
    a["targets"] = np.where((targets >= classes) & (targets != a["ignore"]), classes - 1, targets)


def lenient(rule: str, name: str, change: Callable[[Arguments], None], operation: str = "attention") -> Behaviour:
    """The definition, before which `change` makes bad arguments good."""
    supports = ["refusals", "no-gradients", *(["structured"] if operation == "attention" else ())]
    return misuse_arguments(rule, name, change, operation, supports=supports)


BEHAVIOURS = (
    lenient("MASK-1", "0 and 1 taken for a mask", accept_numbers),
    lenient("MASK-3", "causal without an offset aligned at the last key", align_last_key),
    lenient("MASK-5", "masks of any rank broadcast", broadcast_any_rank),
    lenient("MASK-5", "a mask [batch, keys] taken for padding", take_for_padding),
    lenient("MASK-5", "lengths beyond the keys clipped", clip_lengths),
    lenient("ATT-1", "a scale of NaN taken for none", drop_infinite_scale),
    lenient("ATT-7", "heads that fill no group", fill_last_group),
    lenient("ATT-8", "keys of one batch element for all", broadcast_batch),
    lenient("ATT-9", "mixed dtypes converted", convert_dtypes),
    lenient("ATT-11", "a rate without a keep array ignored", ignore_rate),
    lenient("EMB-1", "negative ids from the end", count_ids_from_end, "embedding"),
    lenient("EMB-1", "ids past the end taken for the last", clip_ids, "embedding"),
    lenient("LOSS-1", "negative targets from the end", count_classes_from_end, "cross_entropy"),
    lenient("LOSS-1", "no negative target counts", ignore_negative_targets, "cross_entropy"),
    lenient("LOSS-2", "targets past the classes taken for the last", clip_targets, "nll_loss"),
    lenient("POS-2", "rows past the end left out", cut_positions, "learned_positions"),
    lenient("NORM-1", "eps of 0 taken for a small one", lambda a: a.update(eps=max(a["eps"], 1e-12)), "layer_norm"),
)
