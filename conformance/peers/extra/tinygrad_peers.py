"""tinygrad on the CPU, which compiles by clang: attention, norms, a loss, optimizers and activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.peers.adapters import (
    Options,
    adapt_attention,
    adapt_layer_norm,
    adapt_rms_norm,
    make_peer,
    read_causal,
)
from conformance.peers.extra.bridge import Arrays, adapt_arrays
from conformance.peers.optimizers import decaying, decays
from conformance.peers.peer import BROADCAST, FLOAT_MASK, top_left
from specification.optimizers import AdamState, SgdState

if TYPE_CHECKING:
    from tinygrad import Tensor

    from specification.parameters import FeedForward


DTYPES = ("float32", "float16", "float64")
"""Without bfloat16, for which clang has to know more than version 14 does."""


def read(array: np.ndarray) -> Tensor:
    from tinygrad import Tensor, dtypes

    if array.dtype == ml_dtypes.bfloat16:
        return Tensor(array.astype(np.float32)).cast(dtypes.bfloat16)
    return Tensor(np.ascontiguousarray(array))


def write(array: Any) -> Any:
    from tinygrad import Tensor, dtypes

    if not isinstance(array, Tensor):
        return array
    if array.dtype == dtypes.bfloat16:
        return array.float().numpy().astype(ml_dtypes.bfloat16)
    return array.numpy()


def pull(function: Callable[..., Any], arrays: list[Any], cotangent: Any) -> list[Any]:
    return list(function(*arrays).gradient(*arrays, gradient=cotangent))


TINYGRAD = Arrays(read, write, pull)
adapt = partial(adapt_arrays, TINYGRAD, dtypes=DTYPES)


def attend(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Any:
    """`Tensor.scaled_dot_product_attention`."""
    return query.scaled_dot_product_attention(key, value, **keywords, enable_gqa=query.shape[1] != key.shape[1])


CAUSAL: Options = {"mask": read_causal("is_causal")}
mask = adapt(adapt_attention(attend, {"mask": "attn_mask"}), "no-empty")
bias = adapt(adapt_attention(attend, {"bias": "attn_mask"}), "no-empty")
causal = adapt(
    adapt_attention(attend, CAUSAL), "structured", "causal", "cross", "gqa", "value_width", "gradients",
    conventions={"causal": "top_left"},
)  # fmt: skip


def normalize(x: Tensor, weight: Tensor, bias: Tensor | None, **eps: float) -> Any:
    """`Tensor.layernorm`, times weight, plus bias."""
    scaled = x.layernorm(tuple(range(-weight.ndim, 0)), **eps) * weight
    return scaled if bias is None else scaled + bias


def normalize_by_root(x: Tensor, weight: Tensor, bias: None, **eps: float) -> Any:
    """`nn.RMSNorm`."""
    from tinygrad import nn

    module = nn.RMSNorm(weight.shape[0], **eps)
    module.weight = weight
    return module(x)


layer_norm = adapt(adapt_layer_norm(normalize, "eps"), "no-empty", "no-wide_weights")
rms_norm = adapt(
    adapt_rms_norm(normalize_by_root, "eps", "no-axes"), "no-axes", "no-empty", "no-wide_weights",
    conventions={"normalized": "inputs"},
)  # fmt: skip


def take_loss(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, ignore: int | None = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """`Tensor.sparse_categorical_crossentropy`."""
    options = {} if ignore is None else {"ignore_index": ignore}
    return logits.sparse_categorical_crossentropy(
        targets, label_smoothing=label_smoothing, reduction=reduction, **options
    )


def step(optimizer: Any, gradients: Tensor) -> Any:
    from tinygrad.helpers import Context

    optimizer.params[0].grad = gradients
    with Context(TRAINING=1):
        optimizer.step()
    return optimizer.params[0]


def own(array: Tensor) -> Tensor:
    """A buffer that an optimizer may assign to."""
    return array.contiguous().realize()


def step_adam(
    parameters: Tensor, gradients: Tensor, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """`nn.optim.AdamW`, which keeps powers of its betas for the number of steps."""
    from tinygrad import Tensor, nn

    optimizer: Any = nn.optim.AdamW([own(parameters)], learning_rate, beta_1, beta_2, eps, weight_decay)
    optimizer.m[0], optimizer.v[0] = own(state.mean), own(state.square)
    powers = (Tensor(np.array([beta], np.float32) ** np.float32(state.step)) for beta in (beta_1, beta_2))
    optimizer.b1_t, optimizer.b2_t = map(own, powers)
    moved = step(optimizer, gradients)
    return moved, AdamState(int(state.step) + 1, optimizer.m[0], optimizer.v[0])


def step_sgd(
    parameters: Tensor, gradients: Tensor, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0,
) -> Any:  # fmt: skip
    """`nn.optim.SGD`."""
    from tinygrad import nn

    optimizer: Any = nn.optim.SGD([own(parameters)], learning_rate, momentum, weight_decay, nesterov)
    if momentum:  # without it there is no velocity
        optimizer.b[0] = own(state.velocity)
    return step(optimizer, gradients), SgdState(optimizer.b[0] if momentum else state.velocity)


def activate(x: Tensor) -> Any:
    return x.silu()


def apply_network(parameters: FeedForward, x: Tensor, *, activation: str = "relu") -> Any:
    """`Tensor.linear`, and between two of them `relu`, `gelu` of either kind or `silu`."""
    gelus = {"gelu": "none", "gelu_tanh": "tanh"}
    hidden = x.linear(*parameters.inner)
    hidden = hidden.gelu(gelus[activation]) if activation in gelus else getattr(hidden, activation)()
    return hidden.linear(*parameters.outer)


cross_entropy = adapt(take_loss)
adam = adapt(step_adam, dtypes=("float32",))
sgd = adapt(step_sgd, dtypes=("float32",), conventions={"velocity": "momentum"})
silu, network = adapt(activate, "no-empty"), adapt(apply_network, "no-empty")

peer = partial(
    make_peer, "tinygrad ", __name__, "numpy", ("tinygrad",), program="clang", isolated=True,
    environment={"DEV": "CPU", "CPU": "1", "CACHELEVEL": "0"},
)  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
PEERS = (
    peer(f"{ATTENTION}, attn_mask of booleans", "mask", "attention", documented=(*FLOAT_MASK, *BROADCAST)),
    peer(f"{ATTENTION}, attn_mask of numbers", "bias", "attention", documented=BROADCAST),
    peer(f"{ATTENTION}, is_causal", "causal", "attention", takes=top_left),
    peer("layernorm", "layer_norm", "layer_norm"),
    peer("nn.RMSNorm", "rms_norm", "rms_norm"),
    peer("silu", "silu", "silu"),
    peer("linear and relu, gelu or silu", "network", "feed_forward"),
    peer("sparse_categorical_crossentropy", "cross_entropy", "cross_entropy"),
    peer("nn.optim.AdamW", "adam", "adam_step", takes=partial(decays, decoupled=True),
         fitted=partial(decaying, decoupled=True)),
    peer("nn.optim.SGD", "sgd", "sgd_step"),
)  # fmt: skip
