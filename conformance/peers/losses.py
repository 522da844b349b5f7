"""Losses of `torch.nn.functional`, optax and Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.peer import Peer, keras_peer

if TYPE_CHECKING:
    import torch

    from specification.arrays import Array


def torch_loss(
    function: str, rows: torch.Tensor, targets: torch.Tensor, ignore: int | None, reduction: str, **options: float
) -> Any:
    """Of rows in one axis: classes are on axis 1, and targets must be int64."""
    from torch.nn import functional

    given = options if ignore is None else options | {"ignore_index": ignore}
    flat = rows.reshape(-1, rows.shape[-1]), targets.reshape(-1).long()
    found = getattr(functional, function)(*flat, reduction=reduction, **given)
    return found.reshape(targets.shape) if reduction == "none" else found


@declare()
def torch_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Any:
    """`F.cross_entropy`."""
    return torch_loss("cross_entropy", logits, targets, ignore, reduction, label_smoothing=label_smoothing)


@declare()
def torch_nll_loss(
    log_probabilities: torch.Tensor, targets: torch.Tensor, *, ignore: int | None = None, reduction: str = "mean"
) -> Any:
    """`F.nll_loss`."""
    return torch_loss("nll_loss", log_probabilities, targets, ignore, reduction)


def rows_alone(reduction: str, path: str) -> None:
    if reduction != "none":
        raise NotImplementedError(f"{path} gives the loss of every row")


@declare()
def optax_cross_entropy(logits: Array, targets: Array, *, reduction: str = "mean") -> Any:
    """`optax.softmax_cross_entropy_with_integer_labels`."""
    import optax

    rows_alone(reduction, "optax")
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


@declare()
def keras_function(logits: Array, targets: Array, *, ignore: int | None = None, reduction: str = "mean") -> Any:
    """`keras.losses.sparse_categorical_crossentropy` with `from_logits`."""
    import keras

    rows_alone(reduction, "the function of Keras")
    return keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True, ignore_class=ignore)


REDUCTIONS = {"mean": "sum_over_batch_size", "sum": "sum", "none": None}
"""By the name here, that of Keras."""


@declare()
def keras_class(logits: Array, targets: Array, *, ignore: int | None = None, reduction: str = "mean") -> Any:
    """`keras.losses.SparseCategoricalCrossentropy` in the dtype of the logits."""
    import keras

    dtype = keras.backend.standardize_dtype(logits.dtype)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=ignore, reduction=REDUCTIONS[reduction], dtype=dtype
    )
    return loss(targets, logits)


UNREDUCED: dict[str, Any] = {"takes": lambda case: case.options.get("reduction") == "none"}


def peer(name: str, subject: str, operation: str, arrays: str, package: str, **fields: Any) -> Peer:
    return Peer(name, f"{__name__}:{subject}", operation, arrays, (package,), **fields)


def keras(backend: str, name: str, subject: str, **fields: Any) -> Peer:
    return keras_peer(backend, name, f"{__name__}:{subject}", "cross_entropy", **fields)


PEERS = (
    peer("torch F.cross_entropy", "torch_cross_entropy", "cross_entropy", "torch", "torch",
         documented=("-100 as a target that counts",)),
    peer("torch F.nll_loss", "torch_nll_loss", "nll_loss", "torch", "torch",
         documented=("-100 as a target that counts",)),
    peer("optax softmax_cross_entropy_with_integer_labels", "optax_cross_entropy", "cross_entropy", "jax", "optax",
         **UNREDUCED),
    *(
        one
        for backend in ("jax", "torch")
        for one in (
            keras(backend, "losses.sparse_categorical_crossentropy", "keras_function", **UNREDUCED),
            keras(backend, "losses.SparseCategoricalCrossentropy", "keras_class"),
        )
    ),
)  # fmt: skip
