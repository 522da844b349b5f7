"""Activations of PyTorch, JAX and Keras: alone where they are an operation here, else between two linear layers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.peer import Peer, keras_peer

if TYPE_CHECKING:
    import torch

    from specification.arrays import Array
    from specification.parameters import FeedForward


def silu_of(module: str) -> Callable[[Any], Any]:
    """The function of a library, which is imported when it is called."""

    @declare()
    def silu(x: Array) -> Any:
        return importlib.import_module(module).silu(x)

    return silu


torch_silu, jax_silu, keras_silu = (
    silu_of(module) for module in ("torch.nn.functional", "jax.nn", "keras.activations")
)


@declare()
def torch_network(parameters: FeedForward, x: torch.Tensor, *, activation: str = "relu") -> Any:
    """`F.linear`, and between two of them `F.relu`, `F.gelu` of either kind, or `F.silu`."""
    from torch.nn import functional

    activations: dict[str, Any] = {"relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu}
    activations |= {"gelu_tanh": functools.partial(functional.gelu, approximate="tanh")}
    hidden = activations[activation](functional.linear(x, parameters.inner.weight.T, parameters.inner.bias))
    return functional.linear(hidden, parameters.outer.weight.T, parameters.outer.bias)


@functools.cache
def dense(columns: int, activation: str | None, biased: bool, dtype: str, shape: tuple[int, ...]) -> Any:
    """A layer; "gelu_tanh" is `keras.activations.gelu`, "gelu" the same with `approximate=False`."""
    import keras

    gelus = {"gelu": False, "gelu_tanh": True}
    chosen: Any = activation
    if activation in gelus:
        chosen = functools.partial(keras.activations.gelu, approximate=gelus[activation])
    made = keras.layers.Dense(columns, activation=chosen, use_bias=biased, dtype=dtype)
    made.build(shape)
    return made


@declare()
def keras_network(parameters: FeedForward, x: Array, *, activation: str = "relu") -> Any:
    """Two `keras.layers.Dense`, the first with an activation."""
    import keras

    for (weight, bias), chosen in ((parameters.inner, activation), (parameters.outer, None)):
        dtype = keras.backend.standardize_dtype(x.dtype)
        layer = dense(weight.shape[1], chosen, bias is not None, dtype, (None, weight.shape[0]))
        x = layer.stateless_call([weight] if bias is None else [weight, bias], [], x)[0]
    return x


PEERS = (
    Peer("torch F.silu", f"{__name__}:torch_silu", "silu", "torch", ("torch",)),
    Peer("jax.nn.silu", f"{__name__}:jax_silu", "silu", "jax", ("jax",)),
    Peer(
        "torch F.linear and F.relu, F.gelu or F.silu", f"{__name__}:torch_network", "feed_forward", "torch", ("torch",)
    ),
    *(
        peer
        for backend in ("jax", "torch")
        for peer in (
            keras_peer(backend, "activations.silu", f"{__name__}:keras_silu", "silu"),
            keras_peer(backend, "layers.Dense with an activation", f"{__name__}:keras_network", "feed_forward"),
        )
    ),
)
