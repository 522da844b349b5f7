"""Arguments that are changed, and results that share memory with arguments or with earlier results (ATT-13)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.selftest.behaviours.behaviour import (
    Arguments,
    Behaviour,
    misuse_arguments,
    spoil_gradients,
    spoil_result,
    wrap,
)
from reference_numpy import learned_positions

if TYPE_CHECKING:
    from reference_numpy.attention_vjp import AttentionGradients
    from specification.optimizers import AdamState

# --- results in memory that is used again -----------------------------------------------------------------------------


def reuse_buffers(count: int) -> Callable[[Arguments, Any], Any]:
    """Results of one shape and dtype lie in so many buffers, used in turn."""
    buffers: dict[Any, Any] = {}

    def change(arguments: Arguments, output: np.ndarray) -> Any:
        made = [np.empty_like(output) for _ in range(count)]
        buffer = next(buffers.setdefault((output.shape, str(output.dtype)), itertools.cycle(made)))
        buffer[...] = output
        return buffer

    return change


# --- arguments that are changed or returned ---------------------------------------------------------------------------


def scale_query(a: Arguments) -> None:
    a["query"] *= a["query"].dtype.type(a["query"].shape[-1] ** -0.5 if a["scale"] is None else a["scale"])
    a["scale"] = 1.0


def mask_bias(a: Arguments) -> None:
    """-inf is written into the caller's bias where the mask forbids, if one fits into the other."""
    mask, bias = a["mask"], a["bias"]
    if bias is not None and mask is not None and np.broadcast_shapes(bias.shape, mask.shape) == bias.shape:
        np.copyto(bias, -np.inf, where=~mask)


def clear_hidden_values(a: Arguments) -> None:
    """Values that nobody sees are set to 0 where they are."""
    if a["mask"] is not None:
        pairs: Any = np.broadcast_to(a["mask"], (*a["query"].shape[:3], a["key"].shape[2]))
        a["value"] *= pairs.any((1, 2))[:, None, :, None]


def narrow_mask(a: Arguments) -> None:
    """What a bias of -inf forbids is taken out of the caller's mask, if one fits into the other."""
    mask, bias = a["mask"], a["bias"]
    if bias is not None and mask is not None and np.broadcast_shapes(bias.shape, mask.shape) == mask.shape:
        mask &= bias != -np.inf


def mask_kept_weights(a: Arguments) -> None:
    if a["dropout_keep"] is not None and a["mask"] is not None:
        a["dropout_keep"] &= a["mask"]


def return_values(a: Arguments, output: np.ndarray) -> Any:
    """A result that equals its values is a view of them."""
    value = a["value"]
    same = output.shape == value.shape and output.dtype == value.dtype and np.array_equal(output, value)
    return value if same else output


def return_query(a: Arguments, output: np.ndarray) -> Any:
    """The result is written over the query where it fits."""
    if output.shape != a["query"].shape:
        return output
    a["query"][...] = output
    return a["query"]


def return_single_part(a: Arguments, merged: tuple[np.ndarray, np.ndarray]) -> Any:
    """One part has nothing to be merged with."""
    return (a["outputs"][0], a["logsumexps"][0]) if len(a["outputs"]) == 1 else merged


def center_in_place(a: Arguments, output: np.ndarray) -> Any:
    x, weight = a["x"], a["weight"]
    x -= x.mean(axis=tuple(range(x.ndim - weight.ndim, x.ndim)), keepdims=True, dtype=x.dtype)
    return output


def write_averages(a: Arguments, step: tuple[np.ndarray, AdamState]) -> Any:
    """The new averages of Adam are written over the old ones."""
    moved, state = step
    for name in ("mean", "square"):
        getattr(a["state"], name)[...] = getattr(state, name)
    return moved, state


def write_parameters(a: Arguments, step: tuple[np.ndarray, AdamState]) -> Any:
    a["parameters"][...] = step[0]
    return a["parameters"], step[1]


def write_gradients(a: Arguments, clipped: tuple[list[np.ndarray], np.ndarray]) -> Any:
    for old, new in zip(a["gradients"], clipped[0], strict=True):
        old[...] = new
    return a["gradients"], clipped[1]


# --- gradients --------------------------------------------------------------------------------------------------------


def scale_cotangent(a: Arguments, gradients: AttentionGradients) -> Any:
    a["cotangent"] *= a["cotangent"].dtype.type(a["query"].shape[-1] ** -0.5)
    return gradients


def return_cotangent(a: Arguments, gradients: AttentionGradients) -> Any:
    """The gradient of the query is written over the cotangent where it fits."""
    if a["cotangent"].shape != a["query"].shape:
        return gradients
    a["cotangent"][...] = gradients.query
    return gradients._replace(query=a["cotangent"])


def reuse_gradients() -> Callable[[Arguments, Any], Any]:
    """Gradients of one argument lie in the same memory, call after call."""
    reuse: dict[str, Any] = {}

    def change(a: Arguments, gradients: AttentionGradients) -> Any:
        found = {n: g for n, g in gradients._asdict().items() if g is not None}
        return gradients._replace(**{n: reuse.setdefault(n, reuse_buffers(1))(a, g) for n, g in found.items()})

    return change


BEHAVIOURS = (
    spoil_result("ATT-13", "one buffer for all results", reuse_buffers(1)),
    spoil_result("ATT-13", "two buffers in turn", reuse_buffers(2)),
    misuse_arguments("ATT-13", "query scaled in place", scale_query),
    misuse_arguments("ATT-13", "mask written into the bias", mask_bias),
    misuse_arguments("ATT-13", "unseen values cleared in place", clear_hidden_values),
    misuse_arguments("ATT-13", "-inf of the bias written into the mask", narrow_mask),
    misuse_arguments("ATT-13", "mask written into what dropout keeps", mask_kept_weights),
    spoil_result("ATT-13", "values handed on as they are", return_values),
    spoil_result("ATT-13", "result written over the query", return_query),
    spoil_result("ATT-13", "a single part handed on", return_single_part, "merge_attention"),
    spoil_result("ATT-13", "mean taken off in place", center_in_place, "layer_norm"),
    spoil_result("ATT-13", "averages changed in place", write_averages, "adam_step"),
    spoil_result("ATT-13", "parameters changed in place", write_parameters, "sgd_step"),
    spoil_result("ATT-13", "gradients changed in place", write_gradients, "clip_by_global_norm"),
    Behaviour("ATT-13", "positions as a view of the table",
              wrap(learned_positions, lambda a: a["table"][a["offset"] : a["offset"] + a["length"]]),
              learned_positions, "learned_positions"),
    spoil_gradients("ATT-13", "cotangent scaled in place", scale_cotangent),
    spoil_gradients("ATT-13", "gradient written over the cotangent", return_cotangent),
    spoil_gradients("ATT-13", "a buffer for each argument's gradient", reuse_gradients()),
)  # fmt: skip
