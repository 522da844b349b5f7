"""thinc: its layer norm, Adam, and swish."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer, require_one_axis
from conformance.peers.extra.fitting import set_options
from conformance.peers.optimizers import decaying, decays
from specification.optimizers import AdamState

EPS = 1e-8
"""Of its layer norm, which has no parameter for another."""


def make_norm(weight: np.ndarray, bias: np.ndarray | None) -> Any:
    from thinc.api import LayerNorm

    model: Any = LayerNorm(len(weight))
    model.initialize(X=np.zeros((1, len(weight)), np.float32))
    model.set_param("G", weight.copy())
    model.set_param("b", np.zeros_like(weight) if bias is None else bias.copy())
    return model


def require_dtype(array: np.ndarray, *dtypes: str) -> None:
    if str(array.dtype) not in dtypes:
        raise NotImplementedError(f"an array of {array.dtype}")


def flatten_rows(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1, array.shape[-1])


def layer_norm_vjp(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, cotangent: np.ndarray, *, eps: float = 1e-5
) -> dict[str, Any]:
    model = make_norm(weight, bias)
    gradient = model(flatten_rows(x), is_train=True)[1](flatten_rows(cotangent))
    named = {"x": gradient.reshape(x.shape), "weight": model.get_grad("G"), "bias": model.get_grad("b")}
    return named if bias is not None else named | {"bias": None}


@declare(["no-axes", "no-empty", "no-wide_weights"], dtypes=("float32",), vjp=layer_norm_vjp)
def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, *, eps: float = 1e-5) -> Any:
    require_one_axis(weight)
    require_dtype(x, "float32")
    if eps != EPS:
        raise NotImplementedError(f"eps is {EPS}")
    return make_norm(weight, bias).predict(flatten_rows(x)).reshape(x.shape)


@declare(dtypes=("float32",))
def adam(
    parameters: np.ndarray, gradients: np.ndarray, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """`Adam`, without its clipping and averages, whose epsilon stands before the correction, where none is seen here.

    A decoupled decay would be one of the weights that it moved to.
    """
    require_dtype(parameters, "float32")
    from thinc.api import Adam

    options = {"L2": weight_decay, "L2_is_weight_decay": decoupled, "grad_clip": 0.0, "use_averages": False}
    optimizer: Any = Adam(learning_rate, beta1=beta_1, beta2=beta_2, eps=eps, **options)
    key = (0, "weight")
    optimizer.nr_update[key] = int(state.step)
    optimizer.mom1[key], optimizer.mom2[key] = (np.array(part, order="C").ravel() for part in state[1:])
    moved, _ = optimizer(key, np.array(parameters, order="C"), np.array(gradients, order="C"))
    after = (moments[key].reshape(parameters.shape) for moments in (optimizer.mom1, optimizer.mom2))
    return np.array(moved), AdamState(optimizer.nr_update[key], *after)


def silu_vjp(x: np.ndarray, cotangent: np.ndarray) -> Any:
    from thinc.api import NumpyOps

    ops = NumpyOps()
    return ops.backprop_swish(np.array(cotangent), np.array(x), ops.swish(np.array(x)))


@declare(dtypes=("float32", "float64"), vjp=silu_vjp)
def silu(x: np.ndarray) -> Any:
    from thinc.api import NumpyOps

    require_dtype(x, "float32", "float64")
    return NumpyOps().swish(np.array(x))


def takes_adam(case: Case) -> bool:
    """Where a beta is 0, `Adam` refuses."""
    return decays(case, decoupled=False) and bool(case.options.get("beta_1")) and bool(case.options.get("beta_2"))


def fit_adam(case: Case) -> Case:
    options = {"eps": 1e-30, "beta_1": case.options.get("beta_1") or 0.9, "beta_2": case.options.get("beta_2") or 0.999}
    return set_options(decaying(case, decoupled=False), "adam_step", **options)


peer = partial(make_peer, "thinc ", __name__, "numpy", ("thinc",), isolated=True)
PEERS = (
    peer("LayerNorm", "layer_norm", "layer_norm", fitted=partial(set_options, operation="layer_norm", eps=EPS)),
    peer("NumpyOps.swish", "silu", "silu"),
    peer("Adam", "adam", "adam_step", takes=takes_adam, fitted=fit_adam),
)
