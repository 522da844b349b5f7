"""TensorFlow: losses, optimizers, clipping and activations of `tf.nn`, `tf` and `tf.raw_ops`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.cases.case import Case
from conformance.peers.adapters import make_peer
from conformance.peers.extra.bridge import Arrays, adapt_arrays
from conformance.peers.extra.fitting import set_options
from conformance.peers.losses import UNREDUCED
from specification.optimizers import AdamState, SgdState

if TYPE_CHECKING:
    import tensorflow as tf

    from specification.parameters import FeedForward


def read(array: np.ndarray) -> tf.Tensor:
    import tensorflow as tf

    if array.dtype == ml_dtypes.bfloat16:
        return tf.cast(tf.constant(array.astype(np.float32)), tf.bfloat16)
    return tf.constant(array)


def write(array: Any) -> Any:
    import tensorflow as tf

    if not tf.is_tensor(array):
        return array
    numbers = np.asarray(array)
    return numbers.astype(ml_dtypes.bfloat16) if numbers.dtype.name == "bfloat16" else numbers.copy()


def pull(function: Callable[..., Any], arrays: list[Any], cotangent: Any) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(arrays)
        result = function(*arrays)
    gradients = tape.gradient(result, arrays, cotangent, unconnected_gradients="zero")
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


TENSORFLOW = Arrays(read, write, pull)


def take_loss(logits: tf.Tensor, targets: tf.Tensor, *, reduction: str = "mean") -> Any:
    """`tf.nn.sparse_softmax_cross_entropy_with_logits`, the loss of every row."""
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)


def clip_gradients(gradients: list[tf.Tensor], limit: float) -> Any:
    """`tf.clip_by_global_norm`."""
    import tensorflow as tf

    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    return clipped, norm if norm.dtype == tf.float64 else tf.cast(norm, tf.float32)


def step_adam(
    parameters: tf.Tensor, gradients: tf.Tensor, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8,
) -> Any:  # fmt: skip
    """`ResourceApplyAdam`, whose epsilon stands before the correction: one is chosen that is not seen there."""
    import tensorflow as tf

    moved, mean, square = (tf.Variable(array) for array in (parameters, state.mean, state.square))
    number = partial(tf.constant, dtype=parameters.dtype)
    powers = {f"beta{i}_power": number(beta ** (int(state.step) + 1)) for i, beta in ((1, beta_1), (2, beta_2))}
    tf.raw_ops.ResourceApplyAdam(
        var=moved.handle, m=mean.handle, v=square.handle, **powers, lr=number(learning_rate), beta1=number(beta_1),
        beta2=number(beta_2), epsilon=number(eps), grad=gradients,
    )  # fmt: skip
    return moved.value(), AdamState(int(state.step) + 1, mean.value(), square.value())


def step_momentum(
    parameters: tf.Tensor, gradients: tf.Tensor, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False,
) -> Any:  # fmt: skip
    """`ResourceApplyMomentum`."""
    import tensorflow as tf

    moved, velocity = tf.Variable(parameters), tf.Variable(state.velocity)
    number = partial(tf.constant, dtype=parameters.dtype)
    tf.raw_ops.ResourceApplyMomentum(
        var=moved.handle, accum=velocity.handle, lr=number(learning_rate), grad=gradients, momentum=number(momentum),
        use_nesterov=nesterov,
    )  # fmt: skip
    return moved.value(), SgdState(velocity.value())


def activate(x: tf.Tensor) -> Any:
    """`tf.nn.silu`."""
    import tensorflow as tf

    return tf.nn.silu(x)


def apply_network(parameters: FeedForward, x: tf.Tensor, *, activation: str = "relu") -> Any:
    """`tf.nn.relu`, `tf.nn.gelu` of either kind or `tf.nn.silu` between products."""
    import tensorflow as tf

    activations: dict[str, Any] = {"relu": tf.nn.relu, "gelu": tf.nn.gelu, "silu": tf.nn.silu}
    activations["gelu_tanh"] = partial(tf.nn.gelu, approximate=True)
    for (weight, bias), function in ((parameters.inner, activations[activation]), (parameters.outer, None)):
        x = tf.linalg.matmul(x, weight)
        x = x if bias is None else tf.nn.bias_add(x, bias)
        x = x if function is None else function(x)
    return x


WIDE = {"dtypes": ("float32", "float64")}
cross_entropy, clip = adapt_arrays(TENSORFLOW, take_loss), adapt_arrays(TENSORFLOW, clip_gradients)
adam, momentum = (adapt_arrays(TENSORFLOW, function, **WIDE) for function in (step_adam, step_momentum))
silu, network = (adapt_arrays(TENSORFLOW, function) for function in (activate, apply_network))


def takes_network(case: Case) -> bool:
    """`tf.nn.bias_add` wants rows in two axes or more."""
    return case.inputs["x"].ndim > 1


peer = partial(
    make_peer, "TensorFlow ", __name__, "numpy", ("tensorflow",), isolated=True,
    environment={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
)  # fmt: skip
PEERS = (
    peer("nn.silu", "silu", "silu"),
    peer("linalg.matmul and nn.relu, nn.gelu or nn.silu", "network", "feed_forward", takes=takes_network),
    peer("nn.sparse_softmax_cross_entropy_with_logits", "cross_entropy", "cross_entropy", **UNREDUCED),
    peer("raw_ops.ResourceApplyAdam", "adam", "adam_step",
         fitted=partial(set_options, operation="adam_step", eps=1e-30)),
    peer("raw_ops.ResourceApplyMomentum", "momentum", "sgd_step"),
    peer("clip_by_global_norm", "clip", "clip_by_global_norm"),
)  # fmt: skip
